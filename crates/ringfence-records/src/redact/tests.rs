use super::*;

fn redactor() -> Redactor {
    let env = [
        ("DEPLOY_TOKEN", "tr0ub4dor"),
        ("PLAIN", "not a secret at all"),
        ("MINE", "named by policy"),
        ("PASSWORD", "short"),
        ("PWD", "/home/dev/project"),
    ];
    Redactor::new(env.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value))), &["MI*".to_owned()])
}

fn text(text: &str) -> String {
    redactor().line(text)
}

#[test]
fn values_of_secret_variables() {
    assert_eq!(text("curl -d tr0ub4dor x"), "curl -d [redacted] x");
    assert_eq!(text("xtr0ub4dorxtr0ub4dory"), "x[redacted]x[redacted]y");
    assert_eq!(text("it is named by policy."), "it is [redacted].");
    for plain in ["not a secret at all", "a short word", "cd /home/dev/project"] {
        assert_eq!(text(plain), plain);
    }
    for (name, secret) in [
        ("GITHUB_TOKEN", true),
        ("AWS_SECRET_ACCESS_KEY", true),
        ("OPENAI_API_KEY", true),
        ("pgpassword", true),
        ("DB_PASSWD", true),
        ("GITHUB_TOKEN_FILE", true),
        ("DB_PASS", true),
        ("GH_PAT", true),
        ("AUTH", true),
        ("SESSION_COOKIE", true),
        ("SSH_KEY", true),
        ("COMPASS", false),
        ("HOME", false),
        ("PWD", false),
        ("OLDPWD", false),
        ("KEYBOARD", false),
        ("SSH_AUTH_SOCK", false),
    ] {
        assert_eq!(is_secret_variable(OsStr::new(name)), secret, "{name}");
    }
}

#[test]
fn values_by_their_names_also_where_quotes_are_escaped() {
    for (before, after) in [
        (r#"curl -d "{\"password\":\"hunter5abc\"}" x"#, r#"curl -d "{\"password\":\"[redacted]\"}" x"#),
        (r#"{\\\"api_key\\\": \\\"abc defg\\\"}"#, r#"{\\\"api_key\\\": \\\"[redacted]\\\"}"#),
        ("export DB_PASS=hunter7abc; x", "export DB_PASS=[redacted]; x"),
        (r#"secret => "hunter21abc""#, r#"secret => "[redacted]""#),
    ] {
        assert_eq!(text(before), after, "{before}");
    }
    for plain in ["pass: 12, fail: 0", "auth = none", "compass=northwest"] {
        assert_eq!(text(plain), plain);
    }
}

/// Built here from parts, so that no scanner takes this file for a leak.
fn shaped() -> Vec<String> {
    let body = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0";
    let upper = "A1B2C3D4E5F6G7H8";
    let mut tokens: Vec<String> = [
        "ghp_",
        "gho_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "npm_",
        "pypi-AgE",
        "sk-",
        "sk-proj-",
        "sk-ant-api03-",
        "hf_",
        "xoxb-",
        "xoxp-1-",
        "xapp-",
        "AIza",
        "ya29.",
        "sk_live_",
        "whsec_",
        "dop_v1_",
        "hvs.",
        "tskey-auth-",
        "dckr_pat_",
    ]
    .iter()
    .map(|prefix| format!("{prefix}{body}"))
    .collect();
    tokens.extend(["AKIA", "ASIA"].iter().map(|prefix| format!("{prefix}{upper}")));
    tokens.push(format!("eyJ{body}.eyJ{body}.{body}"));
    tokens.push(format!("eyJ{body}.eyJ{body}."));
    tokens.push("wJalr2UtnFEMI7K7MDENG+b4xRfiCYEX9MPLEKEY".to_owned());
    tokens.push("Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MEFCQ0RFRg==".to_owned());
    tokens
}

#[test]
fn tokens_by_their_shape() {
    for token in shaped() {
        for (before, after) in [("", ""), ("x ", " y"), ("\"", "\""), ("=", ";"), ("(", ")"), ("/", "/z"), ("é", "é")]
        {
            let found = text(&format!("{before}{token}{after}"));
            assert_eq!(found, format!("{before}[redacted]{after}"), "{token}");
        }
    }
}

#[test]
fn what_follows_a_word() {
    let table = [
        ("password=hunter2", "password=[redacted]"),
        ("--password=hunter2 next", "--password=[redacted] next"),
        ("deploy --token abc --verbose", "deploy --token [redacted] --verbose"),
        ("DB_PASSWORD='two words' x", "DB_PASSWORD='[redacted]' x"),
        ("x?api_key=abc&y=1", "x?api_key=[redacted]&y=1"),
        (r#"{"client_secret": "abc", "n": 1}"#, r#"{"client_secret": "[redacted]", "n": 1}"#),
        ("accessToken: abcdef123456", "accessToken: [redacted]"),
        ("password: hunter", "password: [redacted]"),
        ("X-Api-Key: 12345", "X-Api-Key: [redacted]"),
        ("secret = abc", "secret = [redacted]"),
        ("curl -H 'Authorization: Basic dTpw' x", "curl -H 'Authorization: [redacted]' x"),
        ("-H \"authorization: token abc def\"", "-H \"authorization: [redacted]\""),
        ("Cookie: a=b; c=d", "Cookie: [redacted]"),
        ("bearer abcdefgh1234", "bearer [redacted]"),
        ("curl -u me:pa:ss https://x", "curl -u me:[redacted] https://x"),
        ("curl --user=me:pass x", "curl --user=me:[redacted] x"),
        ("curl -ume:pass x", "curl -ume:[redacted] x"),
        ("curl -sSu me:pass x", "curl -sSu me:[redacted] x"),
        ("mysql -u root -phunter2 db", "mysql -u root -p[redacted] db"),
        ("mysql -u root -p'hun ter2' db", "mysql -u root -p'[redacted]' db"),
        ("/usr/bin/mysqldump -e \"a b\" -phunter2; ls -px", "/usr/bin/mysqldump -e \"a b\" -p[redacted]; ls -px"),
        ("mysql --password=one -ptwo", "mysql --password=[redacted] -p[redacted]"),
        ("sshpass -p hunter2 ssh me@host -p 22", "sshpass -p [redacted] ssh me@host -p [redacted]"),
        ("sshpass -phunter2 ssh x", "sshpass -p[redacted] ssh x"),
        ("redis-cli -a hunter2 ping", "redis-cli -a [redacted] ping"),
        ("AccountKey=abc/def==;x", "AccountKey=[redacted];x"),
        ("app --pw=hunter2 x pw=hunter3", "app --pw=[redacted] x pw=[redacted]"),
        ("openssl enc -aes-256-cbc -k hunter2 -in a", "openssl enc -aes-256-cbc -k [redacted] -in a"),
        ("openssl rsa -passin pass:hunter2 -in k", "openssl rsa -passin pass:[redacted] -in k"),
        ("echo hunter2 | docker login -u me --password-stdin", "echo [redacted] | docker login -u me --password-stdin"),
        (
            "printf '%s' \"hun ter2\" | gh auth login --with-token",
            "printf '%s' \"[redacted]\" | gh auth login --with-token",
        ),
        ("echo -n hunter2|sudo -S ls", "echo -n [redacted]|sudo -S ls"),
        ("echo 'root:hunter2' | /usr/sbin/chpasswd", "echo '[redacted]' | /usr/sbin/chpasswd"),
        ("machine h.org login me password hunter2", "machine h.org login me password [redacted]"),
        ("machine h password hunter2 login me machine i", "machine h password [redacted] login me machine i"),
        ("  password hunter2", "  password [redacted]"),
        ("cqlsh -u me -p hunter2 host", "cqlsh -u me -p [redacted] host"),
        ("PGPASSWORD=x psql", "PGPASSWORD=[redacted] psql"),
        ("https://me:p@ss@host/x", "https://me:[redacted]@host/x"),
        ("postgresql://u:p%40@/db?host=/run", "postgresql://u:[redacted]@/db?host=/run"),
        ("https://0123456789abcdef0123@host", "https://[redacted]@host"),
        ("hooks.slack.com/services/T0/B0/abc x", "hooks.slack.com/services/[redacted] x"),
    ];
    for (raw, expected) in table {
        assert_eq!(text(raw), expected, "{raw}");
    }
}

#[test]
fn what_is_no_secret_stays() {
    for plain in [
        "cargo test --workspace --no-fail-fast",
        "git commit -m 'fix: unexpected token: end of input'",
        "grep -rn 'token == other' src",
        "max_tokens=100 tokens: 5",
        "PWD=/home/dev OLDPWD=/tmp",
        "use crate::token::Token",
        "curl -H \"X-Token: $TOKEN\" --password \"$PASSWORD\" --token ${TOKEN}",
        "docker run -u 1000:1000 img",
        "docker run -u1000:1000 -p 80:80 img",
        "mysql -u root -p db",
        "sshpass -p $PW ssh x; mkdir -p a/b",
        "ssh://git@github.com/a/b.git",
        "https://example.org:8080/path?x=1#y",
        "git checkout 0123456789abcdef0123456789abcdef01234567",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        "/usr/lib/x86_64-linux-gnu/libSomeVeryLongLibraryName2.so.1.2.3",
        "src/components/ButtonGroup2/IndexPageHeaderComponent.test.tsx",
        "test_that_a_very_long_name_of_a_test_stays_as_it_is",
        "ask-for-something-very-long sk-learn-is-a-library-too",
        "AKIA is a prefix, ghp_ too",
        "ls -la -- --password",
        "mkdir -pv a; pytest -k name; ps -px; grep -k x; pw: 3, npw=4",
        "echo $TOKEN | docker login --password-stdin",
        "echo hello | docker run -i image cat; echo hello && docker login --password-stdin",
        "the password required here; machine learning with password managers",
        "password is not given",
        "openssl x509 -in pass.pem; echo pass:12",
    ] {
        assert_eq!(text(plain), plain);
    }
}

/// Built here from parts, as above.
#[test]
fn a_key_of_amazon_beside_its_id() {
    let (id, secret) =
        (format!("AKIA{}", "IOSFODNN7EXAMPLE"), format!("wJalrXUtnFEMI/K7MDENG/{}", "bPxRfiCYEXAMPLEKEY"));
    assert_eq!(secret.len(), 40);
    assert_eq!(text(&format!("{id},{secret}")), "[redacted],[redacted]");
    assert_eq!(text(&format!("{id}\n{secret} x")), "[redacted]\\n[redacted] x");
    let command = |args: &[&str]| redactor().command(&args.iter().map(OsString::from).collect::<Vec<_>>());
    assert_eq!(command(&["x", &secret, &id]), ["x", "[redacted]", "[redacted]"]);
    // Without the id it may be a path.
    assert_eq!(text("src/components/ButtonGroup2/IndexPageHea"), "src/components/ButtonGroup2/IndexPageHea");
    assert_eq!(
        text("AKIA is a prefix; src/components/ButtonGroup2/IndexPageHea"),
        text("AKIA is a prefix; src/components/ButtonGroup2/IndexPageHea")
    );
}

#[test]
fn known_values_in_base64() {
    // `tr0ub4dor` alone, behind one, two and three other bytes, and with the other alphabet.
    for encoded in
        ["dHIwdWI0ZG9y", "OnRyMHViNGRvcg==", "YTp0cjB1YjRkb3I=", "bWU6dHIwdWI0ZG9y", "bWVfOnRyMHViNGRvcjo_Pz8"]
    {
        assert_eq!(text(&format!("x {encoded} y")), "x [redacted] y", "{encoded}");
        assert_eq!(text(&format!("--data={encoded};")), "--data=[redacted];", "{encoded}");
    }
    for other in ["aGVsbG8gd29ybGQ=", "/usr/lib/x86_64-linux-gnu/libc", "dHIwdWI0"] {
        assert_eq!(text(other), other);
    }
}

/// Each with the same beginning, which is the slowest to tell apart.
#[test]
fn very_many_values() {
    let values: Vec<(OsString, OsString)> = (0..60_000)
        .map(|n| (OsString::from(format!("T{n}_TOKEN")), OsString::from(format!("a-long-beginning-{n:06}"))))
        .collect();
    let began = std::time::Instant::now();
    let redactor = Redactor::new(values.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())), &[]);
    let line = "a-long-beginning-0x a-long-beginning-059999 ".repeat(80);
    assert_eq!(redactor.line(&line), "a-long-beginning-0x [redacted] ".repeat(80));
    // Half a second in a debug build; half a minute when each is compared with each.
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn private_keys_also_when_cut() {
    let (begin, end) = ("-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----");
    let certificate = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----";
    let table = [
        (format!("a {begin}\nMIIE\n{end}\nb"), "a [redacted]\nb"),
        (format!("a {begin}\nMIIE\n{end}\nb {begin}\nMIIE\n{end}\nc"), "a [redacted]\nb [redacted]\nc"),
        (format!("a {begin}\nMIIE\nabc"), "a [redacted]"),
        (format!("MIIE\n{end}\nb"), "[redacted]\nb"),
        (certificate.to_owned(), certificate),
    ];
    for (raw, expected) in table {
        assert_eq!(redactor().head(raw.as_bytes(), raw.len()), expected, "{raw}");
    }
}

#[test]
fn arguments_of_a_command() {
    let command = |args: &[&str]| redactor().command(&args.iter().map(OsString::from).collect::<Vec<_>>());
    let table: &[(&[&str], &[&str])] = &[
        (&["x", "--token", "abc", "y"], &["x", "--token", "[redacted]", "y"]),
        (&["x", "--password", "--verbose"], &["x", "--password", "--verbose"]),
        (&["x", "--api-key", "$KEY"], &["x", "--api-key", "$KEY"]),
        (&["curl", "-u", "me:pass"], &["curl", "-u", "me:[redacted]"]),
        (&["curl", "-su", "me:pass"], &["curl", "-su", "me:[redacted]"]),
        (&["curl", "-ume:pass"], &["curl", "-ume:[redacted]"]),
        (
            &["env", "A=1", "/bin/mysql", "-phunter2", "-p", "db"],
            &["env", "A=1", "/bin/mysql", "-p[redacted]", "-p", "db"],
        ),
        (&["sshpass", "-p", "hunter2", "ssh"], &["sshpass", "-p", "[redacted]", "ssh"]),
        (&["mkdir", "-p", "a"], &["mkdir", "-p", "a"]),
        (&["curl", "-H", "Authorization: Bearer abc"], &["curl", "-H", "Authorization: [redacted]"]),
        (&["sh", "-c", "a\nb\tc\rd\x1b[2J"], &["sh", "-c", "a\\nb\\tc\\rd\\u{1b}[2J"]),
        (&["echo", "\u{202e}x\u{2028}y\u{9b}"], &["echo", "\\u{202e}x\\u{2028}y\\u{9b}"]),
        (&[""], &[""]),
    ];
    for (raw, expected) in table {
        assert_eq!(command(raw), *expected, "{raw:?}");
    }
    let bytes = [OsString::from(OsStr::from_bytes(b"a\xffb"))];
    assert_eq!(redactor().command(&bytes), ["a\\xffb"]);
}

/// However long: bounded, and nothing is seen of a secret that lies on the edge.
#[test]
fn bounds() {
    let long = "y".repeat(3_000_000);
    let found = redactor().command(&[OsString::from("x"), OsString::from(&long), OsString::from("z")]);
    assert!(found.iter().map(String::len).sum::<usize>() < 5000);
    assert_eq!(found.last().map(String::as_str), Some("…"));
    let many = vec![OsString::new(); 1_000_000];
    assert!(redactor().command(&many).len() < 5000);

    for token in shaped() {
        for cut in 1..token.len() {
            let before = "x ".repeat(20);
            let raw = format!("{before}{token} {}", "z ".repeat(20));
            let head = redactor().head(raw.as_bytes(), before.len() + cut);
            assert_eq!(head, format!("{before}[redacted]"));
            let tail = redactor().tail(raw.as_bytes(), raw.len() - before.len() - cut);
            assert_eq!(tail, format!("[redacted] {}", "z ".repeat(20)));
        }
    }
}

/// Any bytes: no panic, nothing that acts on a terminal.
#[test]
fn hostile_bytes() {
    let mut seed = 1u64;
    let pieces = [
        "password",
        "=",
        ":",
        " ",
        "'",
        "\"",
        "://",
        "@",
        "--",
        "-----BEGIN ",
        "PRIVATE KEY",
        "eyJ",
        "\x1b",
        "é",
        "\u{202e}",
        "bearer ",
    ];
    for _ in 0..3000 {
        let mut raw = Vec::new();
        for _ in 0..12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = (seed >> 33) as usize;
            raw.extend_from_slice(pieces[pick % pieces.len()].as_bytes());
            if pick.is_multiple_of(5) {
                raw.push((seed >> 20) as u8);
            }
        }
        let keep = raw.len() / 2;
        let found = [
            redactor().head(&raw, keep),
            redactor().tail(&raw, keep),
            redactor().command(&[OsString::from(OsStr::from_bytes(&raw))]).join(" "),
        ];
        for found in found {
            assert!(!found.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')), "{found:?}");
        }
    }
}
