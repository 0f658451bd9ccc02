//! Ordinary work gives the same output, the same exit status and the same files inside as outside, on every engine.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use support::{Place, engines, skip, sysroot};

/// A project, and commands in it.
#[derive(Default)]
struct Work<'a> {
    /// Path in the project and text; `!` at its end makes it executable.
    files: &'a [(&'a str, &'a str)],
    flags: &'a [&'a str],
    env: &'a [(&'a str, &'a str)],
    /// Each is a text for the shell, in this order.
    commands: &'a [&'a str],
}

/// What a command did: status, stdout, stderr.
type Did = (Option<i32>, Vec<u8>, Vec<u8>);

impl Work<'_> {
    /// Does it outside, and then on every engine, each time in the same place from the same beginning.
    fn prove(&self) {
        let place = Place::new();
        let (outside, files) = self.run(&place, None);
        for engine in engines() {
            let (inside, left) = self.run(&place, Some(engine));
            for ((command, outside), inside) in self.commands.iter().zip(&outside).zip(&inside) {
                assert_eq!(outside.0, inside.0, "{engine}: {command}: {}", text(&inside.2));
                for (name, outside, inside) in [("stdout", &outside.1, &inside.1), ("stderr", &outside.2, &inside.2)] {
                    // Compared as bytes; shown as text, and not all of it.
                    assert!(
                        outside == inside,
                        "{engine}: {command}: {name}\n--- outside, {} bytes\n{}\n--- inside, {} bytes\n{}",
                        outside.len(),
                        text(outside),
                        inside.len(),
                        text(inside)
                    );
                }
            }
            assert_eq!(files, left, "{engine}: files");
        }
    }

    fn run(&self, place: &Place, engine: Option<&str>) -> (Vec<Did>, BTreeMap<String, u32>) {
        std::fs::remove_dir_all(&place.home).unwrap();
        std::fs::create_dir_all(&place.project).unwrap();
        for (name, text) in self.files {
            let (name, mode) = name.strip_suffix('!').map_or((*name, 0o644), |name| (name, 0o755));
            place.write(&format!("project/{name}"), text);
            std::fs::set_permissions(place.project.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let did = self.commands.iter().map(|command| {
            let mut program = match engine {
                None => Command::new("sh"),
                Some(engine) => {
                    let mut program = Command::new(support::program());
                    program.args(["run", "--engine", engine]).args(self.flags).args(["--", "sh"]);
                    program
                }
            };
            program.args(["-c", command]).current_dir(&place.project).stdin(Stdio::null());
            place.environment(&mut program);
            let output = program.envs(self.env.iter().copied()).output().unwrap();
            (output.status.code(), without_times(output.stdout), without_times(output.stderr))
        });
        let did = did.collect();
        let mut files = BTreeMap::new();
        list(&place.project, &place.project, &mut files);
        (did, files)
    }
}

/// Every name below a directory, with its mode.
fn list(top: &Path, dir: &Path, files: &mut BTreeMap<String, u32>) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let data = entry.path().symlink_metadata().unwrap();
        let name = entry.path().strip_prefix(top).unwrap().display().to_string();
        files.insert(name, data.permissions().mode());
        if data.is_dir() {
            list(top, &entry.path(), files);
        }
    }
}

/// Programs say how long they took, or where something lies in memory, which differs: `0.34s`, `382ms`, `0x7f18187c4c20`.
fn without_times(bytes: Vec<u8>) -> Vec<u8> {
    let Ok(text) = String::from_utf8(bytes.clone()) else { return bytes };
    if text.len() > 1 << 20 {
        return bytes;
    }
    let word = |word: &str| {
        let time = word.trim_end_matches(|c: char| !c.is_alphanumeric());
        let number = time.strip_suffix("ms").or_else(|| time.strip_suffix('s')).unwrap_or("");
        let is_time = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.');
        // Python names functions by their address.
        let is_address = word.strip_prefix("0x").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()));
        if is_time || is_address { "TIME".to_owned() } else { word.to_owned() }
    };
    // pytest fills a line that has a time in it, so that a longer time takes a `=`: 9.98s, 10.02s.
    let rule = |word: String| if word.len() > 2 && word.trim_matches('=').is_empty() { "===".to_owned() } else { word };
    let line = |line: &str| {
        let words: Vec<String> = line.split(' ').map(word).collect();
        let timed = words.iter().any(|word| word == "TIME");
        words.into_iter().map(|word| if timed { rule(word) } else { word }).collect::<Vec<_>>().join(" ")
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n").into_bytes()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned()
}

/// Whether a command works here at all, outside.
fn works(what: &str, command: &str) -> bool {
    let place = Place::new();
    let mut program = Command::new("sh");
    program.args(["-c", command]).current_dir(&place.project).stdin(Stdio::null());
    place.environment(&mut program);
    let works = program.output().unwrap().status.success();
    if !works {
        skip(what, &format!("`{command}` fails on this host"));
    }
    works
}

#[test]
fn pipes() {
    Work {
        files: &[("script!", "#!/bin/sh\necho \"$#: $*\"\nexit 7\n")],
        commands: &[
            "seq 1 200000 | sort -rn | tee all | tail -3; wc -l < all; rm all",
            "echo to-stderr >&2; echo to-stdout; echo more >&2; exit 3",
            "false | true; echo $?; (exit 200)",
            "./script a 'b c' ''",
            "cat << END | tr a-z A-Z > out && cat out\nhere\nEND",
            "mkfifo f && (echo through > f & cat f; wait; rm f)",
            "sh -c 'kill -TERM $$'; echo $?",
            "yes | head -1; no-such-program; echo $?",
            "read line; echo \"[$line]\" $?",
            "umask; ulimit -n; pwd; date +%Z; echo $HOME $PATH; test -t 1; echo $?",
            "sleep 0.1 & wait $!; jobs; trap 'echo bye' EXIT; exit 9",
        ],
        ..Work::default()
    }
    .prove();
}

/// A hundred million bytes, and bytes that are no text.
#[test]
fn large_and_binary_output() {
    Work {
        commands: &["seq 1 12500000", "seq 1 200000 >&2", "cat $(command -v cat)", "head -c 70000 /dev/zero"],
        ..Work::default()
    }
    .prove();
}

#[test]
fn git_commits() {
    if !works("git", "git --version") {
        return;
    }
    Work {
        files: &[("a", "one\n"), ("d/b", "two\n")],
        env: &[
            ("GIT_AUTHOR_NAME", "A"),
            ("GIT_AUTHOR_EMAIL", "a@example.com"),
            ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
            ("GIT_COMMITTER_NAME", "A"),
            ("GIT_COMMITTER_EMAIL", "a@example.com"),
            ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
            // `git init` makes what a box must not: the repository is there before.
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "init.defaultBranch"),
            ("GIT_CONFIG_VALUE_0", "main"),
        ],
        ..Work::default()
    }
    .with_repository(&[
        "git status --short",
        "git add . && git commit -m first",
        "echo three >> a && git diff && git commit -am second && git log --format='%H %s'",
        "git switch -c side && echo 4 > c && git add c && git commit -qm third && git switch main && git merge side",
        "git stash list; git tag v1; git branch -a; git fsck; git gc -q; git show --stat HEAD",
        "git rebase -q HEAD~1; git commit -m nothing; git checkout no-such-branch",
    ]);
}

impl Work<'_> {
    /// As [`Work::prove`], in a repository that `git init` made outside.
    fn with_repository(&self, commands: &[&str]) {
        let place = Place::new();
        let mut git = Command::new("git");
        git.args(["init", "-q", "-b", "main"]).current_dir(&place.project);
        place.environment(&mut git);
        assert!(git.status().unwrap().success());
        let mut names = BTreeMap::new();
        list(&place.project, &place.project, &mut names);
        let made: Vec<(String, String)> = names
            .iter()
            .filter(|(_, mode)| *mode & 0o170_000 == 0o100_000)
            .map(|(name, mode)| {
                let text = std::fs::read_to_string(place.project.join(name)).unwrap();
                (format!("{name}{}", if mode & 0o111 != 0 { "!" } else { "" }), text)
            })
            .collect();
        let keep = [".git/objects/info/x", ".git/objects/pack/x", ".git/refs/heads/x", ".git/refs/tags/x"];
        let mut files: Vec<(&str, &str)> = made.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
        files.extend(keep.map(|name| (name, "")));
        files.extend(self.files);
        let mut all = vec!["find .git -name x -delete"];
        all.extend(commands);
        Work { files: &files, commands: &all, ..*self }.prove();
    }
}

#[test]
fn cargo_builds() {
    let Some(sysroot) = sysroot() else {
        return skip("cargo", "no Rust toolchain was found");
    };
    let sysroot = sysroot.to_str().unwrap();
    let path = format!("{sysroot}/bin:/usr/local/bin:/usr/bin:/bin");
    Work {
        files: &[
            ("Cargo.toml", "[package]\nname = \"made\"\nversion = \"0.1.0\"\nedition = \"2021\"\n"),
            ("build.rs", "fn main() { println!(\"cargo:rustc-env=BUILT=yes\"); }"),
            ("src/lib.rs", "pub fn two() -> i32 { 2 }\n#[test]\nfn it_is() { assert_eq!(two(), 2); }\n"),
            ("src/main.rs", "fn main() { println!(\"{} {}\", made::two(), env!(\"BUILT\")); std::process::exit(5) }"),
            ("tests/fails.rs", "#[test]\nfn fails() { assert_eq!(made::two(), 3); }\n"),
        ],
        flags: &["--ro", sysroot],
        env: &[
            ("PATH", &path),
            ("CARGO_NET_OFFLINE", "true"),
            ("CARGO_TERM_COLOR", "never"),
            ("CARGO_INCREMENTAL", "0"),
        ],
        commands: &[
            "cargo build --offline",
            "cargo run --offline -q",
            "cargo test --offline --lib -q",
            "cargo test --offline --test fails -q 2>&1 | grep -v thread",
            "echo 'fn main() { no }' > src/main.rs; cargo build --offline",
            "rm -r target Cargo.lock",
        ],
    }
    .prove();
}

#[test]
fn npm_installs() {
    if !works("npm", "npm --version") {
        return;
    }
    Work {
        files: &[
            (
                "package.json",
                r#"{"name":"made","version":"1.0.0","private":true,"scripts":{"say":"node say.js","fail":"exit 4"}}"#,
            ),
            ("say.js", "console.log(require('local').hello); process.exit(process.argv.length - 2)"),
            ("local/package.json", r#"{"name":"local","version":"1.0.0","main":"index.js"}"#),
            ("local/index.js", "exports.hello = 'hello from local'"),
        ],
        env: &[("npm_config_update_notifier", "false"), ("npm_config_audit", "false"), ("npm_config_fund", "false")],
        commands: &[
            "npm install ./local",
            "npm run say",
            "npm run say -- one two",
            "npm run fail 2>&1 | grep -v 'complete log\\|_logs'",
            "npm ls; npm ci --offline; npm run --silent say",
        ],
        ..Work::default()
    }
    .prove();
}

#[test]
fn pip_installs() {
    if !works("python3 -m venv", "/usr/bin/python3 -m venv e && e/bin/pip --version") {
        return;
    }
    let wheel = "import zipfile
z = zipfile.ZipFile('made-1.0-py3-none-any.whl', 'w')
z.writestr('made.py', 'def main():\\n    print(\"installed\")\\n    raise SystemExit(6)\\n')
z.writestr('made-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: made\\nVersion: 1.0\\n')
z.writestr('made-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
z.writestr('made-1.0.dist-info/entry_points.txt', '[console_scripts]\\nmade = made:main\\n')
z.writestr('made-1.0.dist-info/RECORD', '')
z.close()
";
    Work {
        files: &[("wheel.py", wheel)],
        env: &[("PIP_DISABLE_PIP_VERSION_CHECK", "1"), ("PYTHONDONTWRITEBYTECODE", "1")],
        commands: &[
            "/usr/bin/python3 wheel.py",
            "/usr/bin/python3 -m venv venv",
            "venv/bin/pip install --no-index --no-compile ./made-1.0-py3-none-any.whl",
            "venv/bin/made",
            "venv/bin/pip list; venv/bin/pip install --no-index no-such-package",
            "venv/bin/python -c 'import sys; print(sys.prefix)'",
            "venv/bin/pip uninstall -y made",
        ],
        ..Work::default()
    }
    .prove();
}

#[test]
fn pytest_runs() {
    if !works("pytest", "/usr/bin/python3 -m pytest --version") {
        return;
    }
    Work {
        files: &[
            ("made.py", "def two():\n    return 2\n"),
            (
                "test_made.py",
                "import made, subprocess, tempfile\n\
                 def test_two():\n    assert made.two() == 2\n\
                 def test_wrong():\n    assert made.two() == 3\n\
                 def test_process(tmp_path):\n    (tmp_path / 'f').write_text('x')\n    \
                 assert subprocess.check_output(['cat', str(tmp_path / 'f')]) == b'x'\n",
            ),
        ],
        commands: &[
            "/usr/bin/python3 -m pytest",
            "/usr/bin/python3 -m pytest -q -k two",
            "/usr/bin/python3 -m pytest -q no_such_file.py",
            "/usr/bin/python3 -m unittest -v test_made",
            "rm -r .pytest_cache __pycache__",
        ],
        ..Work::default()
    }
    .prove();
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
