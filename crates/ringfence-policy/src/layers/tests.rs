//! Layers on each other: what wins, what is refused, and where each value comes from.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::config;
use crate::facts::Facts;
use crate::policy::{Network, Root};
use crate::rules::{Access, decide};
use crate::tree::Tree;

struct Host {
    _dir: tempfile::TempDir,
    home: PathBuf,
    workdir: PathBuf,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let workdir = home.join("p");
        for name in ["p/src", "p/.git/hooks", ".ssh", ".cache", "data"] {
            std::fs::create_dir_all(home.join(name)).unwrap();
        }
        Host { _dir: dir, home, workdir }
    }

    fn inputs(&self, global: &str, project: &str) -> Inputs {
        Inputs {
            global: Some(config::parse(global, "g.toml", LayerKind::Global).unwrap()),
            project: Some(config::parse(project, "p.toml", LayerKind::Project).unwrap()),
            ..Inputs::new(self.workdir.clone(), self.home.clone(), Layer::flags())
        }
    }

    fn tree(&self, inputs: Inputs) -> Tree {
        let policy = resolve(inputs).unwrap().policy;
        Tree::new(&policy, &Facts { home: self.home.clone(), uid: 1000, ..Facts::default() }).unwrap()
    }

    fn refused(&self, global: &str, project: &str) -> Vec<String> {
        match resolve(self.inputs(global, project)) {
            Ok(_) => Vec::new(),
            Err(LayerError::Untrusted { loosenings, .. }) => {
                let trusted = Inputs { project_trusted: true, ..self.inputs(global, project) };
                assert_eq!(resolve(trusted).unwrap().loosened, loosenings, "trust lets it through");
                let relative = |what: &str| what.replace(self.home.to_str().unwrap(), "~");
                loosenings.iter().map(|l| relative(&l.what)).collect()
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn later_layers_win() {
    let host = Host::new();
    let mut inputs = host.inputs(
        "network = false\n[limits]\nmemory = \"1g\"\npids = 100\n[env]\npass = [\"SSH_AUTH_SOCK\"]\nset = { A = \"1\" }",
        "[limits]\npids = 50\n[env]\ndrop = [\"SSH_*\", \"A\"]",
    );
    inputs.flags.network(true);
    inputs.flags.pids("70").unwrap();
    let resolved = resolve(inputs).unwrap();
    assert_eq!(resolved.policy.network, Network::Open);
    assert_eq!(resolved.policy.limits.memory, Some(1 << 30));
    assert_eq!(resolved.policy.limits.pids, Some(70));
    assert!(resolved.policy.env.pass.is_empty() && resolved.policy.env.set.is_empty());
    let place = |key: &str| {
        let value = resolved.values().into_iter().find(|v| v.key == key).unwrap();
        format!("{} {}", value.text, value.origin)
    };
    assert_eq!(place("network"), "open --network");
    assert_eq!(place("limits.memory"), "1GiB g.toml:3");
    assert_eq!(place("limits.pids"), "70 --pids");
    assert_eq!(place("limits.cpus"), "none profile agent");
    assert_eq!(place("profile"), "agent built-in");
    assert_eq!(place("commands.git"), "@git profile agent");
    assert_eq!(place("presets.@git"), "true profile agent");
}

#[test]
fn a_project_may_tighten() {
    let host = Host::new();
    for project in [
        "network = false",
        "docker = false",
        "strict = true",
        "skill_verdict = \"clean\"",
        "warm = 0",
        "trace_denials = true",
        "profile = \"agent\"",
        "profile = \"shell\"",
        "profile = \"skill\"",
        "engine = \"auto\"",
        "presets = [\"@env-files\", \"@git-strict\", \"@all\"]",
        "[files]\nexclude = [\"secrets/\", \"**/*.pem\"]\nro = [\"docs\", \"*.lock\"]\nrw = [\"src\"]",
        "[env]\ndrop = [\"AWS_*\"]\npass = [\"EDITOR\"]",
        "[limits]\nmemory = \"1g\"\npids = 10\ntimeout = \"1m\"\ntmp_size = \"1m\"",
        "[commands]\ngit = \"@git\"\ncurl = false\nwget = true\nhub = \"@git\"",
        "[records]\noutput = false\nsecrets = [\"DEPLOY_*\"]",
    ] {
        assert_eq!(host.refused("", project), Vec::<String>::new(), "{project}");
    }
}

#[test]
fn a_project_may_not_loosen() {
    let host = Host::new();
    symlink(host.home.join(".ssh"), host.workdir.join("link")).unwrap();
    symlink("/etc", host.workdir.join("etc")).unwrap();
    let table = [
        ("network = false", "network = true", "opens the network"),
        ("", "docker = true", "opens the Docker socket"),
        ("", "nesting = true", "allows user namespaces inside"),
        ("strict = true", "strict = false", "turns `strict` off"),
        ("", "warm = 200", "holds 200 interpreters ready"),
        ("", "skill_verdict = \"dangerous\"", "lets skills run that are `dangerous`"),
        ("", "engine = \"bubblewrap\"", "changes the engine from `auto` to `bubblewrap`"),
        ("", "optional = [\"limit.memory\"]", "makes guarantee `limit.memory` optional"),
        ("", "presets = [\"!@dotfiles\"]", "takes preset `@dotfiles` away"),
        ("", "presets = [\"!@lint/all\"]", "takes preset `@lint/all` away"),
        (
            "presets = [\"!@caches\"]",
            "presets = [\"@caches\"]",
            "adds preset `@caches`, which makes `~/.cache` writable",
        ),
        ("[files]\nexclude = [\".vscode\"]\n[limits]\n", "[files]\nro = [\".vscode\"]", "shows `~/p/.vscode`"),
        ("", "[files]\nrw = [\"~\"]", "makes `~` writable"),
        ("", "[files]\nrw = [\"~/data\"]", "makes `~/data` writable"),
        ("", "[files]\nrw = [\"/\"]", "makes `/` writable"),
        ("", "[files]\nrw = [\".git/hooks\"]", "makes `~/p/.git/hooks` writable"),
        ("", "[files]\nrw = [\".ringfence.toml\"]", "makes `~/p/.ringfence.toml` writable"),
        ("", "[files]\nrw = [\"src/*\"]", "makes `~/p/src/*` writable"),
        ("", "[files]\nrw = [\"etc\"]", "makes `/etc` writable"),
        ("", "[files]\nro = [\"~/.ssh/config\"]", "shows `~/.ssh/config`"),
        ("", "[files]\nro = [\"link/config\"]", "shows `~/.ssh/config`"),
        ("", "[files]\nro = [\"~/.s*\"]", "shows `~/.ssh`"),
        ("profile = \"shell\"", "[files]\nro = [\"~/data\"]", "shows `~/data`"),
        ("", "[files]\nro = [\"/etc\"]", "names `/etc`, which is not in a writable place"),
        ("", "[files]\nro = [\"/tmp\"]", "names `/tmp`, which is not in a writable place"),
        ("", "[files]\nro = [\"/etc/passw?\"]", "names `/etc/passwd`, which is not in a writable place"),
        ("", "[env]\npass = [\"SSH_AUTH_SOCK\"]", "passes `SSH_AUTH_SOCK` from the environment"),
        ("", "[env]\npass = [\"NODE_OPTIONS\"]", "passes `NODE_OPTIONS` from the environment"),
        ("[env]\ndrop = [\"AWS_*\"]", "[env]\npass = [\"AWS_KEY\"]", "passes `AWS_KEY` from the environment"),
        ("", "[env]\npass = [\"*\"]", "passes `*` from the environment"),
        ("profile = \"shell\"", "[env]\npass = [\"EDITOR\"]", "passes `EDITOR` from the environment"),
        ("", "[env.set]\nANTHROPIC_BASE_URL = \"x\"", "sets `ANTHROPIC_BASE_URL` in the environment"),
        ("", "[limits]\npids = \"none\"", "raises `limits.pids`"),
        ("[limits]\nmemory = \"1m\"", "[limits]\nmemory = \"2m\"", "raises `limits.memory`"),
        ("[limits]\ncpus = 1", "[limits]\ncpus = 1.5", "raises `limits.cpus`"),
        ("[limits]\nfiles = 1", "[limits]\nfiles = 2", "raises `limits.files`"),
        ("[limits]\ntimeout = 1", "[limits]\ntimeout = 2", "raises `limits.timeout`"),
        ("[limits]\ncpu_time = 1", "[limits]\ncpu_time = 2", "raises `limits.cpu_time`"),
        ("[limits]\ntimeout_ceiling = 1", "[limits]\ntimeout_ceiling = 2", "raises `limits.timeout_ceiling`"),
        ("", "[limits]\ntmp_size = \"1t\"", "raises `limits.tmp_size`"),
        ("", "[limits]\ntmp_inodes = 99999999", "raises `limits.tmp_inodes`"),
        ("", "[limits]\noutput = \"1g\"", "raises `limits.output`"),
        ("", "[limits]\nidle = \"1h\"", "raises `limits.idle`"),
        ("[limits]\nlife = \"2h\"", "[limits]\nlife = \"never\"", "raises `limits.life`"),
        ("", "[records]\noutput = true", "changes `records.output` to `true`"),
        ("[records]\noutput = true", "[records]\noutput = false", "changes `records.output` to `false`"),
        ("", "[commands]\ngit = true", "removes the rule for command `git`"),
        ("[commands]\nrm = false", "[commands]\nrm = \"@git\"", "replaces the rule for command `rm`"),
        ("", "[commands]\nls = \"./x\"", "puts a wrapper of its own in front of command `ls`"),
        ("", "[kernel]\nallow_syscalls = [\"bpf\"]", "allows system call `bpf`"),
        ("profile = \"shell\"", "profile = \"agent\"", "chooses profile `agent` instead of `shell`"),
        ("presets = [\"!@base\"]", "profile = \"shell\"", "chooses profile `shell` instead of `agent`"),
        ("", "profile = \"home\"", "chooses profile `home` instead of `agent`"),
        ("[profiles.x]\nnetwork = false", "profile = \"x\"", "chooses profile `x` instead of `agent`"),
        ("", "[profiles.x]\nnetwork = false", "defines profile `x`"),
    ];
    for (global, project, what) in table {
        assert_eq!(host.refused(global, project), [what], "{global} | {project}");
    }
}

#[test]
fn the_error_lists_every_line() {
    let host = Host::new();
    let error = resolve(host.inputs("", "docker = true\nnesting = true")).unwrap_err().to_string();
    assert_eq!(
        error,
        "`p.toml` would loosen the sandbox, and you do not trust it yet\n  \
         p.toml:1: opens the Docker socket\n  p.toml:2: allows user namespaces inside"
    );
}

#[test]
fn a_preset_asked_for_again_by_a_project_stays_below() {
    let host = Host::new();
    let inputs = host.inputs("[files]\nro = [\"~/.cache\"]", "presets = [\"@caches\", \"@all\"]");
    let policy = resolve(inputs).unwrap().policy;
    assert_eq!(decide(&policy.rules, &host.home.join(".cache/x")).unwrap().access, Access::Ro);
}

#[test]
fn profiles_of_the_user() {
    let host = Host::new();
    let text = "profile = \"b\"\n[profiles.a]\nextends = \"shell\"\nnetwork = true\n[profiles.a.limits]\npids = 9\n\
                [profiles.b]\nextends = \"a\"\n[profiles.b.limits]\npids = 8";
    let resolved = resolve(host.inputs(text, "")).unwrap();
    assert_eq!(resolved.policy.profile, "b");
    assert_eq!(resolved.policy.root, Root::Programs);
    assert_eq!(resolved.policy.network, Network::Open);
    assert_eq!(resolved.policy.limits.pids, Some(8));

    let failed = |text: &str| resolve(host.inputs(text, "")).unwrap_err().to_string();
    let cycle = "profile = \"a\"\n[profiles.a]\nextends = \"b\"\n[profiles.b]\nextends = \"a\"";
    assert_eq!(failed(cycle), "g.toml:5: profile `a` extends itself");
    assert_eq!(failed("profile = \"agnt\""), "g.toml:1: unknown profile `agnt` (did you mean `agent`?)");
    let unknown = "profile = \"a\"\n[profiles.a]\nextends = \"shel\"";
    assert_eq!(failed(unknown), "g.toml:3: unknown profile `shel` (did you mean `shell`?)");
}

#[test]
fn presets_come_and_go() {
    let host = Host::new();
    let mut inputs = host.inputs("presets = [\"!@all\", \"@base\"]", "");
    inputs.flags.preset("!@secrets").unwrap();
    let policy = resolve(inputs).unwrap().policy;
    let access = |name: &str| decide(&policy.rules, &host.home.join(name)).map(|rule| rule.access);
    assert_eq!(access("p/x"), Some(Access::Rw));
    assert_eq!(access(".ssh"), Some(Access::Ro));
    assert_eq!(access("p/.vscode"), Some(Access::Rw));
    assert_eq!(access("p/.ringfence.toml"), Some(Access::Ro), "always");
}

#[test]
fn presets_poke_no_holes_into_what_is_excluded() {
    let host = Host::new();
    std::fs::create_dir_all(host.home.join(".claude")).unwrap();
    let mut inputs = host.inputs("[files]\nexclude = [\"~/.claude\", \"~/.config\"]\nro = [\"~/.config/mine\"]", "");
    inputs.own_dirs = vec![host.home.join(".config/ringfence")];
    inputs.flags.exclude(".git");
    let policy = resolve(inputs).unwrap().policy;
    for name in [".claude/settings.json", ".config/opencode", ".config/ringfence", "p/.git/hooks", "p/.git/config"] {
        assert_eq!(decide(&policy.rules, &host.home.join(name)).unwrap().access, Access::Exclude, "{name}");
    }
    assert_eq!(decide(&policy.rules, &host.home.join(".config/mine")).unwrap().access, Access::Ro);
}

#[test]
fn a_glob_takes_no_protection_from_a_name_that_is_not_there() {
    let host = Host::new();
    let access = |name: &str| {
        let mut inputs = host.inputs("", "[files]\nexclude = [\".vsc*\", \".ringf*\", \"**/.envrc\"]");
        inputs.own_dirs = vec![host.home.join(".config/ringfence")];
        decide(&resolve(inputs).unwrap().policy.rules, &host.workdir.join(name)).unwrap().access
    };
    for name in [".vscode", ".envrc", ".ringfence.toml"] {
        assert_eq!(access(name), Access::Ro, "{name}");
    }
    std::fs::create_dir(host.workdir.join(".vscode")).unwrap();
    assert_eq!(access(".vscode"), Access::Exclude, "it is there, and hidden");
}

#[test]
fn skill_sees_nothing_of_the_user() {
    let host = Host::new();
    let mut inputs = host.inputs("", "");
    inputs.own_dirs = vec![host.home.join(".config/ringfence")];
    inputs.flags.profile("skill");
    let policy = resolve(inputs).unwrap().policy;
    assert!(policy.rules.is_empty(), "{:?}", policy.rules);
    assert_eq!(policy.workdir_at.as_deref(), Some(Path::new("/tmp")));
}

#[test]
fn shell_shows_the_working_directory_alone() {
    let host = Host::new();
    std::fs::create_dir_all(host.home.join(".claude/hooks")).unwrap();
    let mut inputs = host.inputs("", "");
    inputs.flags.profile("shell");
    let tree = host.tree(inputs);
    let mut shown = tree.nodes().filter(|(_, node)| node.access != Access::Exclude);
    assert!(shown.all(|(path, _)| path.starts_with(&host.workdir)), "{tree:?}");
}

#[test]
fn what_a_rule_shows_is_protected_on_every_profile() {
    let host = Host::new();
    for name in [".claude/hooks", "p/.git/objects", "p/.git/refs"] {
        std::fs::create_dir_all(host.home.join(name)).unwrap();
    }
    for name in [".ssh/id", "p/.git/HEAD"] {
        std::fs::write(host.home.join(name), "").unwrap();
    }
    symlink(&host.home, host.home.join("data/link")).unwrap();
    for profile in ["agent", "shell", "skill", "home"] {
        let access = |rule: &str, name: &str| {
            let mut inputs = host.inputs("", "");
            inputs.flags.profile(profile);
            inputs.flags.rw(rule);
            host.tree(inputs).decide(&host.home.join(name)).map(|(_, node)| node.access)
        };
        for (rule, name, expected) in [
            (".", "p/src/x", Access::Rw),
            (".", "p/.git/index", Access::Rw),
            (".", "p/.git/hooks/pre-commit", Access::Ro),
            (".", "p/.git/config", Access::Ro),
            (".", "p/.vscode/tasks.json", Access::Ro),
            ("~", "data/x", Access::Rw),
            ("~", ".ssh/id", Access::Exclude),
            ("~/data/link", ".ssh/id", Access::Exclude),
            ("~/data/link", "p/.git/hooks/pre-commit", Access::Ro),
            ("~/.claude", ".claude/projects/x", Access::Rw),
            ("~/.claude", ".claude/hooks/x", Access::Ro),
            ("~/.claude", ".claude/settings.json", Access::Ro),
        ] {
            assert_eq!(access(rule, name), Some(expected), "{profile}: --rw {rule}: {name}");
        }
        let nothing = if profile == "agent" { Some(Access::Ro) } else { None };
        assert_eq!(access("~/data", ".claude/hooks/x"), nothing, "{profile}: it shows nothing by itself");
    }
}

#[test]
fn at_home_what_agents_execute_is_held_on_every_profile() {
    let mut host = Host::new();
    host.workdir = host.home.clone();
    for name in [".codex", ".gemini", ".config/opencode"] {
        std::fs::create_dir_all(host.home.join(name)).unwrap();
    }
    std::fs::write(host.home.join(".codex/config.toml"), "").unwrap();
    for profile in ["agent", "shell", "skill", "home"] {
        let mut inputs = host.inputs("", "");
        inputs.flags.profile(profile);
        inputs.flags.rw(".");
        let tree = host.tree(inputs);
        let access = |name: &str| tree.decide(&host.home.join(name)).map(|(_, node)| node.access);
        assert_eq!(access("notes"), Some(Access::Rw), "{profile}");
        for name in [
            ".claude/settings.json",
            ".claude/hooks/x",
            ".codex/config.toml",
            ".config/opencode/plugin/x.js",
            ".bashrc",
            ".config/autostart/x",
        ] {
            assert_eq!(access(name), Some(Access::Ro), "{profile}: {name}");
        }
        // Where agents keep their state, one that has no settings yet makes them.
        for name in [".gemini/settings.json", ".cursor/mcp.json"] {
            let expected = if profile == "agent" { Access::Rw } else { Access::Ro };
            assert_eq!(access(name), Some(expected), "{profile}: {name}");
        }
    }
}

#[test]
fn a_repository_elsewhere_is_as_open_as_its_worktree() {
    let host = Host::new();
    let (main, worktree) = (host.home.join("main/.git"), host.home.join("main/.git/worktrees/p"));
    std::fs::remove_dir_all(host.workdir.join(".git")).unwrap();
    for dir in [main.join("objects"), main.join("refs"), worktree.clone()] {
        std::fs::create_dir_all(dir).unwrap();
    }
    std::fs::write(main.join("HEAD"), "ref: refs/heads/main").unwrap();
    std::fs::write(worktree.join("commondir"), "../..").unwrap();
    std::fs::write(worktree.join("gitdir"), host.workdir.join(".git").to_str().unwrap()).unwrap();
    std::fs::write(host.workdir.join(".git"), format!("gitdir: {}", worktree.display())).unwrap();
    for profile in ["agent", "skill"] {
        let access = |flags: &dyn Fn(&mut Layer)| {
            let mut inputs = host.inputs("", "");
            inputs.flags.profile(profile);
            flags(&mut inputs.flags);
            host.tree(inputs).decide(&main.join("refs/x")).map(|(_, node)| node.access)
        };
        assert_eq!(access(&|flags| flags.rw(".")), Some(Access::Rw), "{profile}");
        assert_eq!(access(&|flags| flags.ro(".")), Some(Access::Ro), "{profile}");
        let elsewhere = if profile == "agent" { Some(Access::Rw) } else { None };
        assert_eq!(access(&|flags| flags.ro("~/data")), elsewhere, "{profile}");
    }
}

/// A project's file may step down to them.
#[test]
fn a_tighter_profile_protects_no_less() {
    use crate::profiles::{NAMES, builtin};
    let presets = |profile: &Profile| -> Vec<Preset> {
        let selections = profile.presets.iter().map(|name| crate::presets::Selection::parse(name).unwrap());
        selections.flat_map(|selection| selection.presets.to_vec()).collect()
    };
    for from in NAMES.iter().filter_map(|name| builtin(name)) {
        for to in from.tighter.iter().filter_map(|name| builtin(name)) {
            let has = presets(to);
            assert!(presets(from).iter().all(|p| p.grants() || has.contains(p)), "{} to {}", from.name, to.name);
            assert!(!has.iter().any(|p| p.grants()), "{}", to.name);
        }
    }
    let host = Host::new();
    for profile in ["shell", "skill"] {
        let inputs = host.inputs("[files]\nrw = [\".\", \"~/.claude\"]", &format!("profile = \"{profile}\""));
        std::fs::create_dir_all(host.home.join(".claude")).unwrap();
        let tree = host.tree(inputs);
        let access = |name: &str| tree.decide(&host.home.join(name)).map(|(_, node)| node.access);
        for name in ["p/.git/config", "p/.vscode", ".claude/settings.json"] {
            assert_eq!(access(name), Some(Access::Ro), "{profile}: {name}");
        }
        assert_eq!(access(".claude/projects"), Some(Access::Rw), "{profile}");
    }
}

#[test]
fn own_directories_stay_as_they_are() {
    let host = Host::new();
    let mut inputs = host.inputs("[files]\nrw = [\"~/.config\"]", "");
    inputs.own_dirs = vec![host.home.join(".config/ringfence")];
    let policy = resolve(inputs).unwrap().policy;
    assert_eq!(decide(&policy.rules, &host.home.join(".config/ringfence/x")).unwrap().access, Access::Ro);
}

#[test]
fn working_directory_in_an_excluded_place() {
    let host = Host::new();
    let inputs = Inputs::new(host.home.join(".ssh"), host.home.clone(), Layer::flags());
    assert!(matches!(resolve(inputs.clone()), Err(LayerError::WorkdirExcluded { .. })));
    let inner = Inputs { workdir: host.home.join(".ssh/deep"), ..inputs.clone() };
    assert!(matches!(resolve(inner), Err(LayerError::WorkdirExcluded { .. })));
    let mut flags = Layer::flags();
    flags.rw("~/.ssh");
    assert!(resolve(Inputs { flags, ..inputs }).is_ok());
}

#[test]
fn time_limits_and_their_ceiling() {
    let host = Host::new();
    let with = |timeout: &str, global: &str| {
        let mut inputs = host.inputs(global, "");
        inputs.flags.profile("shell");
        if !timeout.is_empty() {
            inputs.flags.timeout(timeout).unwrap();
        }
        resolve(inputs).map(|r| r.policy.limits.timeout)
    };
    assert_eq!(with("", ""), Ok(Some(Duration::from_secs(120))));
    assert_eq!(with("600s", ""), Ok(Some(Duration::from_secs(600))));
    assert_eq!(with("", "[limits]\ntimeout_ceiling = 60"), Ok(Some(Duration::from_secs(60))));
    let error = with("601s", "").unwrap_err().to_string();
    assert_eq!(
        error,
        "--timeout: a time limit of 10m1s is above the longest that may be asked for, 10m (profile shell)"
    );
    assert!(with("none", "").is_err());
}

#[test]
fn when_sessions_end() {
    let host = Host::new();
    let with = |global: &str, project: &str| {
        let resolved = resolve(host.inputs(global, project)).unwrap();
        let text = |key: &str| {
            let value = resolved.values().into_iter().find(|value| value.key == key).unwrap();
            format!("{} ({})", value.text, value.origin.place)
        };
        [text("limits.idle"), text("limits.life")]
    };
    let table = [
        ("", "", ["30m (profile agent)", "24h (profile agent)"]),
        ("profile = \"shell\"", "", ["30m (profile shell)", "24h (profile shell)"]),
        ("[limits]\nidle = \"never\"\nlife = \"7d\"", "", ["none (g.toml:2)", "168h (g.toml:3)"]),
        ("[limits]\nidle = \"never\"", "[limits]\nidle = 60\nlife = \"1h\"", ["1m (p.toml:2)", "1h (p.toml:3)"]),
        ("profile = \"x\"\n[profiles.x]\nlimits.idle = \"2h\"", "", ["2h (g.toml:3)", "24h (profile agent)"]),
    ];
    for (global, project, expected) in table {
        assert_eq!(with(global, project), expected, "{global} | {project}");
    }
}

#[test]
fn bad_paths_name_their_place() {
    let host = Host::new();
    let error = resolve(host.inputs("\n[files]\nro = [\"~bob/x\"]", "")).unwrap_err().to_string();
    assert_eq!(error, "g.toml:3: path `~bob/x` names another user's home, which is not supported");
    let error = resolve(host.inputs("", "[files]\nexclude = [\"a[\"]")).unwrap_err().to_string();
    assert_eq!(error, "p.toml:2: pattern `a[` has a `[` without its `]`");
}

#[test]
fn trust_is_by_content() {
    let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(content_hash(b""), empty);
    assert_ne!(content_hash(b"a"), content_hash(b"b"));
}

#[test]
fn another_users_home_counts() {
    let host = Host::new();
    let other = host.home.join("data");
    let decided = |workdir: &Path, name: &str| {
        let mut inputs = Inputs::new(workdir.to_path_buf(), host.home.join("own"), Layer::flags());
        inputs.other_homes = vec![other.clone()];
        let rules = resolve(inputs).unwrap().policy.rules;
        decide(&rules, &other.join(name)).map(|rule| rule.access)
    };
    std::fs::create_dir_all(other.join("project")).unwrap();
    // Their home is the working directory: as their own box would have it.
    for (name, access) in [
        ("notes", Access::Rw),
        (".ssh/id_rsa", Access::Exclude),
        (".bashrc", Access::Ro),
        (".config/autostart", Access::Ro),
        (".claude/settings.json", Access::Ro),
    ] {
        assert_eq!(decided(&other, name), Some(access), "{name}");
    }
    // It is somewhere above: nothing of it is granted.
    for (name, access) in [
        ("project/x", Some(Access::Rw)),
        (".ssh/id_rsa", Some(Access::Exclude)),
        (".claude/projects", None),
        (".cache", None),
    ] {
        assert_eq!(decided(&other.join("project"), name), access, "{name}");
    }
}

#[test]
fn an_engine_that_is_not_known() {
    use crate::profiles::KnownEngine;
    let host = Host::new();
    let known =
        vec![KnownEngine { name: "native".into(), images: false }, KnownEngine { name: "vm".into(), images: true }];
    let with = |config: &str| resolve(Inputs { engines: known.clone(), ..host.inputs(config, "") });
    let error = with("engine = \"nativ\"").unwrap_err().to_string();
    assert!(error.ends_with("g.toml:1: unknown engine `nativ` (did you mean `native`?)"), "{error}");
    assert!(matches!(with("engine = \"native\"").unwrap().policy.root, Root::Host));
    assert!(matches!(with("engine = \"vm\"").unwrap().policy.root, Root::Image(_)));
    assert!(with("engine = \"auto\"").is_ok());
}
