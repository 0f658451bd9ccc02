//! What the host does to covered names while a sandbox lives: they are covered again, and the report says so.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{Done, Place, engines};

/// A sandbox that waits for the host before it tries.
struct Living<'a> {
    place: &'a Place,
    child: Child,
}

impl<'a> Living<'a> {
    /// `tries`: a shell text each. The sandbox says `open` or `closed` for each of them.
    fn start(place: &'a Place, flags: &[&str], tries: &[&str]) -> Living<'a> {
        let mut text = "touch ready; while [ ! -e go ]; do sleep 0.02; done; sleep 0.7; ".to_owned();
        for act in tries {
            text += &format!("if ( {act} ) >/dev/null 2>&1; then echo open; else echo closed; fi; ");
        }
        let mut command = place.command(["run"]);
        // The walls are tried, and no guard stands in front of them.
        place.write(".config/ringfence/config.toml", "[commands]\ngit = true\n");
        command.args(flags).args(["--", "sh", "-c", &text]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let living = Living { place, child };
        living.wait_for("ready");
        living
    }

    fn wait_for(&self, name: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.place.project.join(name).exists() {
            assert!(Instant::now() < until, "`{name}` does not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The host acts, the sandbox tries.
    fn end(self, act: &str) -> Done {
        self.host(act);
        self.place.write("project/go", "");
        Done::new(self.child.wait_with_output().unwrap())
    }

    fn host(&self, act: &str) {
        let done = outside(self.place, act);
        assert_eq!(done.code, 0, "{act}: {}", done.err);
    }
}

fn outside(place: &Place, text: &str) -> Done {
    let mut command = Command::new("sh");
    command.args(["-ec", text]).current_dir(&place.project).stdin(Stdio::null());
    place.environment(&mut command);
    Done::new(command.output().unwrap())
}

/// A repository with a branch that tracks `.mcp.json`.
fn repository() -> Place {
    let place = Place::new();
    let made = outside(
        &place,
        "git init -q; git config user.email a@b; git config user.name n; echo a >f; git add f; git commit -qm a
         git branch plain; git checkout -qb tracks; echo '{}' >.mcp.json; git add .mcp.json; git commit -qm b
         git checkout -q plain; echo old >~/.netrc; mkdir sub; echo a >sub/config",
    );
    assert_eq!(made.code, 0, "{}", made.err);
    place
}

const APPEND: &str = "echo x >>.git/config";

/// Each act of the host with the sandbox's own, which must be closed afterwards, and the guarantee.
const ACTS: &[(&str, &str, &str)] = &[
    ("git config x.y z", APPEND, "fs.protected-paths"),
    ("cp .git/config c; mv c .git/config", APPEND, "fs.protected-paths"),
    ("git switch -q tracks", "echo x >>.mcp.json", "fs.protected-paths"),
    ("rmdir .envrc", "echo x >.envrc", "fs.protected-paths"),
    ("mv .git/hooks h; mkdir .git/hooks", "echo x >.git/hooks/pre-commit", "fs.protected-paths"),
    ("mv .git g; cp -r g .git", APPEND, "fs.protected-paths"),
    ("echo new >~/.netrc.new; mv ~/.netrc.new ~/.netrc", "cat ../.netrc", "fs.secrets-hidden"),
    ("rm ~/.netrc; sleep 0.05; echo new >~/.netrc", "cat ../.netrc", "fs.secrets-hidden"),
    ("echo token >~/.npmrc", "cat ../.npmrc", "fs.secrets-hidden"),
    ("mkdir -p ~/.config/gh; echo token >~/.config/gh/hosts.yml", "cat ../.config/gh/hosts.yml", "fs.secrets-hidden"),
    ("mkdir ~/.aws; echo token >~/.aws/credentials", "cat ../.aws/credentials", "fs.secrets-hidden"),
];

#[test]
fn what_the_host_replaces_is_covered_again() {
    for engine in engines() {
        for (act, attempt, guarantee) in ACTS {
            let place = repository();
            let report = place.home.join("report");
            let flags = ["--engine", engine, &format!("--report={}", report.display())];
            // The same acts elsewhere.
            let done = Living::start(&place, &flags, &[attempt, "echo x >>sub/config", "cat f"]).end(act);
            assert_eq!(done.out, "closed\nopen\nopen\n", "{engine}: {act}: {}", done.err);
            assert!(done.err.contains("was changed by the host"), "{engine}: {act}: {}", done.err);
            let report = std::fs::read_to_string(report).unwrap();
            let line = report.lines().find(|line| line.contains(guarantee)).unwrap();
            assert!(line.starts_with("weakened") && line.contains("covered again"), "{engine}: {act}: {line}");
        }
    }
}

#[test]
fn what_the_host_removes_is_kept_and_leaves_nothing() {
    for engine in engines() {
        let place = repository();
        outside(&place, "git switch -q tracks");
        let living = Living::start(&place, &["--engine", engine], &["echo x >.mcp.json", "echo x >other"]);
        let done = living.end("git switch -q plain");
        assert_eq!(done.out, "closed\nopen\n", "{engine}: {}", done.err);
        assert!(!place.project.join(".mcp.json").exists(), "{engine}");
        assert_eq!(outside(&place, "git switch -q tracks && cat .mcp.json").expect(0, "{}\n").code, 0);
    }
}

#[test]
fn a_name_that_a_pattern_hides_is_covered_when_it_appears() {
    for engine in engines() {
        let place = repository();
        outside(&place, "echo a >sub/.env");
        let flags = ["--engine", engine, "--preset", "@env-files"];
        let tries = ["cat sub/.env.local", "cat sub/plain", "cat sub/.env"];
        let done = Living::start(&place, &flags, &tries).end("echo secret >sub/.env.local; echo a >sub/plain");
        assert_eq!(done.out, "closed\nopen\nclosed\n", "{engine}: {}", done.err);
        assert!(done.err.contains(".env.local` was changed by the host"), "{engine}: {}", done.err);
    }
}

#[test]
fn nothing_is_said_where_nothing_happens() {
    for engine in engines() {
        let place = repository();
        let report = place.home.join("report");
        let flags = ["--engine", engine, &format!("--report={}", report.display())];
        let done = Living::start(&place, &flags, &[APPEND, "echo x >new; mv new newer; rm newer"])
            .end("echo x >~/unruled; git status -s >/dev/null; echo b >>f");
        assert_eq!((done.out.as_str(), done.err.as_str()), ("closed\nopen\n", ""), "{engine}");
        let report = std::fs::read_to_string(report).unwrap();
        let line = report.lines().find(|line| line.contains("fs.secrets-hidden")).unwrap();
        assert!(line.starts_with("enforced"), "{engine}: {line}");
    }
}

#[test]
fn two_sandboxes_in_one_project() {
    for engine in engines() {
        let place = repository();
        let one = Living::start(&place, &["--engine", engine], &[APPEND]);
        let two = Living::start(&place, &["--engine", "native"], &[APPEND]);
        // The placeholders of one that ends are no loss of the other.
        let three = place.run(&["--engine", engine], "sleep 0.2");
        assert_eq!((three.code, three.err.as_str()), (0, ""), "{engine}");
        two.host("git config x.y z");
        for living in [one, two] {
            let done = living.end("true");
            assert_eq!(done.out, "closed\n", "{engine}: {}", done.err);
            assert_eq!(done.err.lines().count(), 1, "{engine}: {}", done.err);
        }
    }
}

#[test]
fn a_strict_sandbox_ends_when_a_guarantee_is_lost() {
    let place = repository();
    let flags = ["--engine", "native", "--strict", "--pids", "none", "--optional", "kernel.second-wall"];
    if place.run(&flags, "true").code != 0 {
        return support::skip("strict sandboxes", "this host cannot keep every guarantee of the profile");
    }
    let living = Living::start(&place, &flags, &["true"]);
    living.host("git config x.y z");
    let done = Done::new(living.child.wait_with_output().unwrap());
    assert_eq!((done.code, done.out.as_str()), (125, ""), "{}", done.err);
    assert!(done.err.contains("was changed by the host"), "{}", done.err);
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
