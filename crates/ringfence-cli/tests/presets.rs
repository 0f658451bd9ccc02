//! Every preset in a real box, on every engine: what it lets through, what it refuses, and that without it the refused act
//! works (or the granted one does not).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::process::{Command, Stdio};

use support::{Done, Place, engines, skip};

/// Texts for the shell, each in a box of its own, in the same place.
struct Case<'a> {
    preset: &'a str,
    /// Run outside, in the project, before anything else.
    given: &'a str,
    /// Where the box works, from the project.
    at: &'a str,
    works: &'a [&'a str],
    refused: &'a [&'a str],
    /// Works when the preset is taken away.
    works_without: &'a [&'a str],
    /// Is refused when the preset is taken away.
    refused_without: &'a [&'a str],
}

const NOTHING: Case<'static> =
    Case { preset: "", given: "", at: ".", works: &[], refused: &[], works_without: &[], refused_without: &[] };

impl Case<'_> {
    fn prove(&self) {
        for engine in engines() {
            let place = Place::new();
            let done = outside(&place, self.given);
            assert_eq!(done.code, 0, "{}: {}", self.preset, done.err);
            // The walls are tried, and no guard stands in front of them.
            place.write(".config/ringfence/config.toml", "[commands]\ngit = true\n");
            let with = ["--preset", self.preset];
            let without = format!("!{}", self.preset);
            let without = ["--preset", without.as_str()];
            let rows = [
                (&with, self.works, true),
                (&with, self.refused, false),
                (&without, self.refused_without, false),
                (&without, self.works_without, true),
            ];
            for (preset, texts, works) in rows {
                for text in texts {
                    let flags = [&["--engine", engine, "-C", self.at], preset.as_slice()].concat();
                    let done = inside(&place, &flags, text);
                    assert_eq!(done.code == 0, works, "{engine} {preset:?}: {text}: {} {}", done.code, done.err);
                    assert!(done.code != 125, "{engine} {preset:?}: {text}: {}", done.err);
                }
            }
        }
    }
}

fn outside(place: &Place, text: &str) -> Done {
    let mut command = Command::new("sh");
    command.args(["-ec", text]).current_dir(&place.project).stdin(Stdio::null());
    environment(place, &mut command);
    Done::new(command.output().unwrap())
}

fn inside(place: &Place, flags: &[&str], text: &str) -> Done {
    let mut command = place.command(["run"]);
    command.args(flags).args(["--", "sh", "-ec", text]);
    environment(place, &mut command);
    Done::new(command.output().unwrap())
}

/// Commits need a name, and submodules of this test are local.
fn environment(place: &Place, command: &mut Command) {
    place.environment(command);
    for (name, value) in [
        ("GIT_AUTHOR_NAME", "A"),
        ("GIT_AUTHOR_EMAIL", "a@example.com"),
        ("GIT_COMMITTER_NAME", "A"),
        ("GIT_COMMITTER_EMAIL", "a@example.com"),
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "protocol.file.allow"),
        ("GIT_CONFIG_VALUE_0", "always"),
    ] {
        command.env(name, value);
    }
}

fn git() -> bool {
    let found = std::path::Path::new("/usr/bin/git").exists();
    if !found {
        skip("git", "it is not installed");
    }
    found
}

const REPOSITORY: &str =
    "git init -q -b main .; echo 1 > a; git add a; git commit -qm first; git branch other; git tag v1;";

#[test]
fn base() {
    Case {
        preset: "@base",
        given: "mkdir ~/.ssh ~/.aws; echo s | tee ~/.ssh/id ~/.aws/credentials ~/.netrc > ~/open",
        works: &["echo x > made && cat ~/open"],
        refused: &["cat ~/.ssh/id", "cat ~/.aws/credentials", "cat ~/.netrc", "ls ~/.ssh", "echo x > ~/made"],
        ..NOTHING
    }
    .prove();
    let place = Place::new();
    place.write(".ssh/id", "key");
    // In `/tmp`, where this place lies, nothing is seen that no rule shows.
    let refused = inside(&place, &["--preset", "!@base"], "true");
    assert!(refused.code == 125 && refused.err.contains("hint: show it with --ro ."), "{}", refused.err);
    let done = inside(&place, &["--preset", "!@base", "--ro", ".", "--ro", "~"], "cat ~/.ssh/id; ! echo x > made");
    assert_eq!((done.code, done.out.as_str()), (0, "key"), "{}", done.err);
}

#[test]
fn env_files() {
    Case {
        preset: "@env-files",
        given: "mkdir sub; echo s | tee .env .env.local sub/.env > open",
        works: &["cat open; echo x > made"],
        refused: &["cat .env", "cat .env.local", "cat sub/.env", "echo x > .env"],
        // Off unless asked for.
        works_without: &["cat .env .env.local sub/.env; echo x > .env"],
        ..NOTHING
    }
    .prove();
}

#[test]
fn caches() {
    Case {
        preset: "@caches",
        given: "mkdir -p ~/go/pkg/mod ~/.m2/repository",
        // Those that no tool can do without are made.
        works: &[
            "for d in .cache .npm .cargo/registry go/pkg/mod .m2/repository; do mkdir ~/$d/x; echo x > ~/$d/x/y; done",
        ],
        refused: &["echo x > ~/made", "mkdir ~/.cargo/bin", "echo x > ~/.cargo/config.toml", "mkdir ~/go/bin"],
        refused_without: &["echo x > ~/.cache/y", "echo x > ~/go/pkg/mod/y"],
        ..NOTHING
    }
    .prove();
}

#[test]
fn agents() {
    let given = "cd ~; mkdir -p .claude .codex .gemini .pi .config/opencode; echo '{}' > .claude.json
                 echo x | tee .codex/config.toml > .gemini/settings.json";
    Case {
        preset: "@agents",
        given,
        works: &[
            "cd ~; for d in .claude .codex .gemini .pi .config/opencode; do mkdir $d/new; echo x > $d/new/y; done",
            "echo '{\"a\":1}' > ~/.claude.json",
        ],
        refused: &[
            "echo x > ~/.claude/settings.json",
            "mkdir ~/.claude/hooks/x",
            "echo x > ~/.codex/config.toml",
            "mv ~/.codex/config.toml ~/.codex/c",
            "echo x > ~/.gemini/settings.json",
            "echo x > ~/.config/opencode/plugin/x.js",
            "echo x > ~/.config/other",
        ],
        refused_without: &["echo x > ~/.claude/y", "echo x > ~/.claude.json", "echo x > ~/.codex/y"],
        ..NOTHING
    }
    .prove();
}

#[test]
fn git_protected() {
    if !git() {
        return;
    }
    Case {
        preset: "@git",
        given: REPOSITORY,
        works: &[
            "echo 2 > a; git commit -qam second; git tag v2; git branch third; git switch -q third; git switch -q main",
            "echo 3 > a; git diff HEAD | grep 3; git log HEAD; git reset -q HEAD; test -z \"$(git status --short | grep -v a)\"",
        ],
        refused: &[
            "echo x > .git/hooks/pre-commit",
            "git config user.name X",
            "mv .git g",
            "echo . > .git/commondir",
            "cp -r .git/refs .git/objects .git/HEAD .",
            "git sparse-checkout set a",
            "git init -q --bare .git/modules/x",
        ],
        works_without: &["echo x > .git/hooks/pre-push; git config user.name X"],
        ..NOTHING
    }
    .prove();
    Case {
        preset: "@git",
        given: &format!("{REPOSITORY} mkdir sub"),
        at: "sub",
        works: &["echo 2 > b; git add b; git diff HEAD | grep 2; git commit -qm second"],
        refused: &["echo x > ../.git/hooks/pre-commit", "mkdir refs", "echo x > ../a"],
        works_without: &["mkdir refs"],
        ..NOTHING
    }
    .prove();
}

#[test]
fn git_strict() {
    if !git() {
        return;
    }
    Case {
        preset: "@git-strict",
        given: REPOSITORY,
        works: &["echo 2 > a; git commit -qam second; git log --oneline | grep second", "git switch -qc fourth main"],
        refused: &[
            "git tag v2",
            "git update-ref refs/tags/v1 HEAD~0~1",
            "git update-ref -d refs/heads/other",
            "git update-ref refs/heads/other HEAD",
            "echo x > .git/refs/heads/other",
            "rm .git/refs/tags/v1",
            "mv .git/refs/tags .git/refs/t",
        ],
        works_without: &["git tag v2; git update-ref -d refs/heads/other"],
        ..NOTHING
    }
    .prove();
}

#[test]
fn packed_branches_are_kept_too() {
    if !git() {
        return;
    }
    Case {
        preset: "@git-strict",
        given: &format!("{REPOSITORY} git pack-refs --all"),
        works: &["echo 2 > a; git commit -qam second; git rev-parse other v1"],
        refused: &[
            "git tag v2",
            "git update-ref -d refs/heads/other",
            "git update-ref refs/heads/other HEAD",
            "rm .git/packed-refs",
        ],
        works_without: &["git tag v2; git update-ref -d refs/heads/other"],
        ..NOTHING
    }
    .prove();
}

#[test]
fn submodules() {
    if !git() {
        return;
    }
    Case {
        preset: "@git",
        given: &format!(
            "{REPOSITORY} git init -q -b main ../lib; cd ../lib; echo 1 > b; git add b; git commit -qm lib; cd ../project
             git submodule -q add ../lib sub; git commit -qm 'with a submodule'"
        ),
        works: &[
            "cd sub; echo 2 > b; git commit -qam 'in the submodule'; cd ..; git add sub; git commit -qm moved; git status",
            "git submodule status",
        ],
        refused: &[
            "echo x > .git/modules/sub/hooks/pre-commit",
            "git -C sub config user.name X",
            "echo x > .git/modules/sub/config",
            "echo x > sub/.git",
            "mv sub/.git sub/g",
            "mv .git/modules .git/m",
            "echo . > .git/modules/sub/commondir",
        ],
        works_without: &["echo x > .git/modules/sub/hooks/pre-commit"],
        ..NOTHING
    }
    .prove();
}

/// Ordinary work says nothing, also in a submodule; a repository in the place of one does.
#[test]
fn a_planted_repository_is_named_at_the_end() {
    if !git() {
        return;
    }
    let plant = "git init -q nested; git -C nested commit -q --allow-empty -m x; git add nested";
    let hide = "git init -q --bare .git/modules/new; mv .git/index .git/i; ln -s i .git/index";
    for engine in engines() {
        let place = Place::new();
        let given = format!(
            "{REPOSITORY} git init -q -b main ../lib; cd ../lib; echo 1 > b; git add b; git commit -qm lib; cd ../project
             git submodule -q add ../lib sub; git commit -qm 'with a submodule'"
        );
        assert_eq!(outside(&place, &given).code, 0);
        let flags = ["--engine", engine];
        let done = inside(&place, &flags, "cd sub; echo 2 > b; git commit -qam x; cd ..; git commit -qam moved");
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{engine}");
        let done = inside(&place, &flags, plant);
        let warnings = done.err.matches("ringfence: warning: ").count();
        assert!(warnings == 1 && done.err.contains("/nested/.git` was made"), "{engine}: {}", done.err);
        // The clock of file systems is coarse: what was done a tick ago may have been done now.
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(inside(&place, &flags, "echo 3 > a").err, "", "{engine}");
        let done = inside(&place, &flags, hide);
        for part in ["/.git/modules/new` was made", "/.git/index` cannot be read whole"] {
            assert!(done.err.contains(part), "{engine}: {}", done.err);
        }
    }
}

#[test]
fn worktrees() {
    if !git() {
        return;
    }
    Case {
        preset: "@git",
        given: &format!("{REPOSITORY} git worktree add -q ../tree other"),
        at: "../tree",
        works: &["echo 2 > a; git commit -qam 'in the worktree'; git log --oneline other | grep worktree"],
        refused: &[
            "echo x > ../project/.git/hooks/pre-commit",
            "git config user.name X",
            "echo x > .git",
            "mv .git g",
            "echo x > ../project/.git/HEAD",
            "echo x > ../project/.git/worktrees/tree/commondir",
            "echo x > ../project/.git/worktrees/tree/gitdir",
            "echo x > ../project/a",
        ],
        // Without it the main repository is but a place in home.
        refused_without: &["echo x > ../project/.git/hooks/pre-commit", "git commit --allow-empty -qm x"],
        ..NOTHING
    }
    .prove();
}

#[test]
fn lint() {
    let table: &[(&str, &[&str])] = &[
        ("@lint/ts", &["eslint.config.js", ".eslintrc.json", ".prettierrc", "biome.json"]),
        ("@lint/go", &[".golangci.yml", ".golangci.yaml"]),
        ("@lint/python", &["ruff.toml", ".flake8", "mypy.ini"]),
        ("@lint/rust", &["clippy.toml", "rustfmt.toml", ".rustfmt.toml"]),
    ];
    for (preset, names) in table {
        let given = format!("echo strict | tee {} > other", names.join(" "));
        let write: Vec<String> = names.iter().map(|name| format!("echo lax > {name}")).collect();
        let mut refused: Vec<&str> = write.iter().map(String::as_str).collect();
        let (moved, removed) = (format!("mv {} x", names[0]), format!("rm {}", names[0]));
        refused.extend([moved.as_str(), removed.as_str()]);
        let all = write.join("; ");
        let works = format!("cat {}; echo x > other; echo x > made", names.join(" "));
        Case { preset, given: &given, works: &[&works], refused: &refused, works_without: &[&all], ..NOTHING }.prove();
        // All of them are one as well.
        Case { preset: "@lint/all", given: &given, refused: &refused[..1], works_without: &[&all], ..NOTHING }.prove();
    }
}

#[test]
fn dotfiles() {
    Case {
        preset: "@dotfiles",
        given: "mkdir .vscode; echo '{}' > .vscode/tasks.json; echo x | tee .bashrc .vimrc > other",
        works: &["echo x > other; cat .vscode/tasks.json"],
        refused: &[
            "echo x > .vscode/tasks.json",
            "mv .vscode v",
            "echo x > .bashrc",
            "echo x > .vimrc",
            // Not there yet.
            "mkdir .idea/x",
            "echo x > .mcp.json",
            "mkdir .claude/x",
        ],
        works_without: &["echo x > .vscode/tasks.json; echo x > .mcp.json; mkdir .idea"],
        ..NOTHING
    }
    .prove();
}

/// Home as the working directory: what is started later from it is protected, also when it is not there yet.
#[test]
fn home_as_working_directory() {
    for engine in engines() {
        let place = Place::new();
        assert_eq!(
            outside(&place, "cd ~; mkdir -p .config/systemd/user .ssh; echo x > .bashrc; echo s > .ssh/id").code,
            0
        );
        let run = |text: &str| inside(&place, &["--engine", engine, "-C", ".."], text);
        let done = run("echo x > made; mkdir .config/app; echo x > .config/app/y; mkdir -p .local/share/app");
        assert_eq!(done.code, 0, "{engine}: {}", done.err);
        for text in [
            "echo x > .config/systemd/user/x.service",
            "echo x > .config/autostart/x.desktop",
            "mkdir -p .local/share/systemd/user",
            "echo x > .local/bin/ls",
            "echo x > bin/ls",
            "mkdir -p .local/share/dbus-1/services",
            "echo x >> .bashrc",
            "echo x > .profile",
            "mv .config c",
            "cat .ssh/id",
        ] {
            let done = run(text);
            assert!(done.code != 0 && done.code != 125, "{engine}: {text}: {}", done.err);
        }
        let left = support::names(&place.home);
        assert_eq!(left, [".bashrc", ".config", ".local", ".ssh", "made", "project"].map(str::to_owned), "{engine}");
        assert_eq!(support::names(&place.home.join(".local/share")), ["app"], "{engine}");
    }
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
