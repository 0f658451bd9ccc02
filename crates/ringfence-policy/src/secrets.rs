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

/// Of a variable of the environment, also when it stands anywhere in its name.
pub const SECRET_PARTS: &[&str] = &["password", "passwd", "secret", "token", "apikey", "accesskey", "privatekey"];

/// Programs that take a password by a flag of one letter.
#[derive(Debug, Clone, Copy)]
pub struct Flagged {
    pub programs: &'static [&'static str],
    pub letter: u8,
    /// It stands in the same word: `-pPASSWORD`.
    pub joined: bool,
    /// It is the next word: `-p PASSWORD`.
    pub apart: bool,
}

pub const FLAGGED: &[Flagged] = &[
    // `-p` alone asks for it, and a name follows.
    Flagged {
        programs: &[
            "mysql",
            "mysqladmin",
            "mysqlcheck",
            "mysqldump",
            "mysqlimport",
            "mysqlshow",
            "mysqlslap",
            "mariadb",
            "mariadb-admin",
            "mariadb-check",
            "mariadb-dump",
            "mariadb-import",
            "7z",
            "7za",
            "7zz",
        ],
        letter: b'p',
        joined: true,
        apart: false,
    },
    Flagged {
        programs: &["sshpass", "mongo", "mongosh", "mongodump", "mongorestore"],
        letter: b'p',
        joined: true,
        apart: true,
    },
    Flagged { programs: &["sqlcmd", "bcp", "zip", "unzip"], letter: b'P', joined: true, apart: true },
    Flagged { programs: &["redis-cli"], letter: b'a', joined: false, apart: true },
    Flagged {
        programs: &["ldapsearch", "ldapadd", "ldapmodify", "ldapdelete"],
        letter: b'w',
        joined: true,
        apart: true,
    },
];
