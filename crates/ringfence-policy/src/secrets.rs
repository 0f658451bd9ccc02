//! What secrets look like, and what their names end with, as data. Records are redacted by it, and the scanner of skills
//! looks for it.

/// Tokens by their beginning: what they begin with, and how many characters follow at least.
pub const TOKENS: &[(&str, usize)] = &[
    // Amazon
    ("AKIA", 16),
    ("ASIA", 16),
    ("ABIA", 16),
    ("ACCA", 16),
    // GitHub
    ("ghp_", 20),
    ("gho_", 20),
    ("ghu_", 20),
    ("ghs_", 20),
    ("ghr_", 20),
    ("github_pat_", 20),
    // GitLab
    ("glpat-", 16),
    ("gldt-", 16),
    ("glrt-", 16),
    ("glptt-", 16),
    ("glcbt-", 16),
    ("glsoat-", 16),
    ("glft-", 16),
    // Package registries
    ("npm_", 30),
    ("pypi-AgE", 16),
    ("rubygems_", 32),
    ("cio", 32),
    ("dckr_pat_", 16),
    // Models
    ("sk-", 20),
    ("gsk_", 20),
    ("hf_", 30),
    ("xai-", 30),
    ("pplx-", 30),
    ("r8_", 30),
    // Slack
    ("xoxb-", 10),
    ("xoxp-", 10),
    ("xoxa-", 10),
    ("xoxr-", 10),
    ("xoxs-", 10),
    ("xoxe-", 10),
    ("xoxe.", 10),
    ("xapp-", 10),
    // Google
    ("AIza", 30),
    ("ya29.", 20),
    ("GOCSPX-", 20),
    // Payments
    ("sk_live_", 10),
    ("sk_test_", 10),
    ("rk_live_", 10),
    ("rk_test_", 10),
    ("whsec_", 20),
    // Clouds and services
    ("dop_v1_", 32),
    ("doo_v1_", 32),
    ("dapi", 32),
    ("hvs.", 20),
    ("tskey-", 16),
    ("lin_api_", 20),
    ("ATATT3", 20),
    ("shpat_", 20),
    ("ntn_", 30),
    ("sbp_", 30),
    ("SG.", 30),
    ("AGE-SECRET-KEY-1", 30),
];

/// A name that ends like this, without `_`, `-` and `.` and in lower case, has a secret for a value.
pub const SECRET_NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "passwort",
    "pwd",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "accountkey",
    "signingkey",
    "encryptionkey",
    "masterkey",
    "sshkey",
    "credential",
    "credentials",
    "authorization",
];

/// A last word of a name that says the same: `DB_PASS`, `GITHUB_PAT`.
pub const SECRET_WORDS: &[&str] = &["pass", "pat", "auth", "cookie"];

/// A name that is nothing but this says the same before a `=`: `pw=x`.
pub const SECRET_ALONE: &[&str] = &["pw"];

/// Settings whose value follows after a blank, on a line of its own: `password x` in netrc, `requirepass x` in redis.conf.
pub const SECRET_LINES: &[&str] = &["password", "passwd", "requirepass", "masterauth"];

/// Words of a command that say that it reads a secret from its standard input: `echo x | docker login --password-stdin`.
pub const SECRET_INPUTS: &[&str] = &["--password-stdin", "--with-token", "--token-stdin", "chpasswd"];

/// The same, where the word means it for one program only.
pub const SECRET_INPUTS_OF: &[(&str, &str)] = &[("passwd", "--stdin"), ("sudo", "-S"), ("vault", "-")];

/// Of a variable of the environment, also when it stands anywhere in its name.
pub const SECRET_PARTS: &[&str] = &["password", "passwd", "secret", "token", "apikey", "accesskey", "privatekey"];

/// Programs that take a password by a flag of one letter.
#[derive(Debug, Clone, Copy)]
pub struct Flagged {
    /// The programs.
    pub programs: &'static [&'static str],
    /// The letters of their flags.
    pub letters: &'static [u8],
    /// It stands in the same word: `-pPASSWORD`.
    pub joined: bool,
    /// It is the next word: `-p PASSWORD`.
    pub apart: bool,
    /// A word that begins like this goes on with it: `pass:PASSWORD`.
    pub prefix: Option<&'static str>,
}

const JOINED: Flagged = Flagged { programs: &[], letters: b"p", joined: true, apart: false, prefix: None };
const EITHER: Flagged = Flagged { apart: true, ..JOINED };

/// All of them.
pub const FLAGGED: &[Flagged] = &[
    // `-p` alone asks for it, and a name follows.
    Flagged {
        programs: &[
            "mysql",
            "mysqladmin",
            "mysqlcheck",
            "mysqldump",
            "mysqlimport",
            "mysqlpump",
            "mysqlsh",
            "mysqlshow",
            "mysqlslap",
            "mydumper",
            "myloader",
            "mariadb",
            "mariadb-admin",
            "mariadb-backup",
            "mariadb-check",
            "mariadb-dump",
            "mariadb-import",
            "mariadb-show",
            "xtrabackup",
            "7z",
            "7za",
            "7zr",
            "7zz",
        ],
        ..JOINED
    },
    Flagged {
        programs: &["sshpass", "mongo", "mongosh", "mongodump", "mongoexport", "mongoimport", "mongorestore", "mycli"],
        ..EITHER
    },
    Flagged { programs: &["cqlsh"], joined: false, ..EITHER },
    Flagged { programs: &["sqlcmd", "bcp", "zip", "unzip", "mosquitto_pub", "mosquitto_sub"], letters: b"P", ..EITHER },
    Flagged { programs: &["redis-cli", "keydb-cli", "valkey-cli"], letters: b"a", joined: false, ..EITHER },
    Flagged {
        programs: &["ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldappasswd", "ldapwhoami"],
        letters: b"w",
        ..EITHER
    },
    Flagged { programs: &["openssl"], letters: b"kK", joined: false, prefix: Some("pass:"), ..EITHER },
];
