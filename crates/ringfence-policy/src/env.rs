//! The environment that a command starts with.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::policy::EnvPolicy;

/// What the environment says about the box.
#[derive(Debug, Clone, Copy)]
pub struct Inside<'a> {
    /// Name of the profile, for `RINGFENCE_PROFILE`.
    pub profile: &'a str,
    /// Home inside.
    pub home: &'a Path,
    /// The working directory inside.
    pub workdir: &'a Path,
}

/// Where programs are looked for.
pub(crate) fn search_path(environment: &[(OsString, OsString)]) -> Vec<PathBuf> {
    let path = environment.iter().find(|(name, _)| name == "PATH");
    path.into_iter().flat_map(|(_, value)| std::env::split_paths(value)).collect()
}

/// Names that are not inherited, because they inject code into every program that is started or lead to a host socket
/// or to credentials that are hidden. `*` at the end is a wildcard. They can still be passed by their full name.
const DROPPED: &[&str] = &[
    // The loader and the C library: objects and modules loaded into every process.
    "LD_*",
    "DYLD_*",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
    // Shells: files and functions run by every start of a shell, also a non-interactive one.
    "BASH_ENV",
    "ENV",
    "BASH_FUNC_*",
    "PROMPT_COMMAND",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "ZDOTDIR",
    // Interpreters: a file or module run first. Search paths (PYTHONPATH, NODE_PATH, PERL5LIB, RUBYLIB) stay: they are
    // how projects are set up, and name only where `import` looks.
    "PYTHONSTARTUP",
    "PYTHONBREAKPOINT",
    "PERL5DB",
    // SSH and GPG agents, and what asks for a pass phrase.
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "SSH_ASKPASS",
    "GPG_AGENT_INFO",
    "GNUPGHOME",
    "GNOME_KEYRING_CONTROL",
    // D-Bus, the session and the service manager.
    "DBUS_*",
    "SESSION_MANAGER",
    "AT_SPI_BUS_ADDRESS",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "CREDENTIALS_DIRECTORY",
    // Display and sound.
    "DISPLAY",
    "WAYLAND_*",
    "XAUTHORITY",
    "ICEAUTHORITY",
    "SWAYSOCK",
    "I3SOCK",
    "HYPRLAND_INSTANCE_SIGNATURE",
    "PULSE_SERVER",
    "PULSE_COOKIE",
    "PIPEWIRE_REMOTE",
    // Container daemons and clusters. With `docker = true` clients find the socket at its usual place.
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "CONTAINER_HOST",
    "CONTAINER_CONNECTION",
    "CONTAINER_SSHKEY",
    "CONTAINERD_ADDRESS",
    "BUILDKIT_HOST",
    "KUBECONFIG",
    // Terminals, multiplexers and editors that take commands over a socket.
    "TMUX",
    "STY",
    "NVIM",
    "NVIM_LISTEN_ADDRESS",
    "EMACS_SOCKET_NAME",
    "KITTY_LISTEN_ON",
    "WEZTERM_UNIX_SOCKET",
    "ALACRITTY_SOCKET",
    "VSCODE_IPC_HOOK*",
    "VSCODE_GIT_*",
    "VSCODE_INJECTION",
    // Kerberos tickets.
    "KRB5CCNAME",
    // Ringfence's own, which speak of another box.
    "RINGFENCE_PROFILE",
    "RINGFENCE_REAL",
];

/// Names that carry ordinary settings as well: not inherited when one of the words of the value injects code.
const DROPPED_BY_VALUE: &[(&str, &[&str])] = &[
    // Debuggers of editors add `--require …/bootloader.js`; memory settings and the like stay.
    ("NODE_OPTIONS", &["--require", "-r", "--import", "--loader", "--experimental-loader", "--inspect", "--env-file"]),
    ("RUBYOPT", &["-r"]),
    ("PERL5OPT", &["-M", "-m", "-d"]),
    ("JAVA_TOOL_OPTIONS", JAVA_AGENTS),
    ("JDK_JAVA_OPTIONS", JAVA_AGENTS),
    ("_JAVA_OPTIONS", JAVA_AGENTS),
];

const JAVA_AGENTS: &[&str] = &["-javaagent", "-agentlib", "-agentpath", "-Xrun", "-Xbootclasspath", "@"];

/// Where programs are looked up in a clean environment.
const CLEAN_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether a name matches a pattern with an optional `*` at its end.
pub fn name_matches(pattern: &str, name: &OsStr) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    match pattern.split_last() {
        Some((b'*', prefix)) => name.starts_with(prefix),
        _ => name == pattern,
    }
}

/// Whether the built-in table keeps this name out, whatever its value.
pub(crate) fn is_dropped(name: &OsStr) -> bool {
    DROPPED.iter().any(|pattern| name_matches(pattern, name)) || DROPPED_BY_VALUE.iter().any(|(n, _)| name == *n)
}

fn is_inherited(name: &OsStr, value: &OsStr) -> bool {
    if DROPPED.iter().any(|pattern| name_matches(pattern, name)) {
        return false;
    }
    let Some((_, options)) = DROPPED_BY_VALUE.iter().find(|(n, _)| name == *n) else { return true };
    let mut words = value.as_bytes().split(|b| b.is_ascii_whitespace() || matches!(b, b'"' | b'\''));
    !words.any(|word| options.iter().any(|option| word.starts_with(option.as_bytes())))
}

/// Whether a name can stand in an environment at all.
pub(crate) fn is_valid_name(name: &OsStr) -> bool {
    !name.is_empty() && !name.as_bytes().iter().any(|b| matches!(b, b'=' | 0))
}

/// The whole environment of the command, sorted by name: the base, less `drop`, with `pass`, with `set`.
pub fn environment(
    policy: &EnvPolicy,
    caller: &BTreeMap<OsString, OsString>,
    inside: &Inside<'_>,
) -> Vec<(OsString, OsString)> {
    let EnvPolicy { inherit, pass, drop, set } = policy;
    let valid = |name: &OsStr, value: &OsStr| is_valid_name(name) && !value.as_bytes().contains(&0);
    let mut env = if *inherit { inherited(caller, inside) } else { clean(caller, inside) };
    env.retain(|name, value| valid(name, value) && !drop.iter().any(|pattern| name_matches(pattern, name)));
    for (name, value) in caller {
        let passed = pass.iter().any(|pattern| {
            // A wildcard never reaches what the built-in table keeps out; a full name is meant.
            name_matches(pattern, name) && (!pattern.ends_with('*') || is_inherited(name, value))
        });
        if passed && valid(name, value) {
            env.insert(name.clone(), value.clone());
        }
    }
    for (name, value) in set {
        if valid(OsStr::new(name), value) {
            env.insert(name.into(), value.clone());
        }
    }
    env.insert("RINGFENCE_PROFILE".into(), inside.profile.into());
    env.into_iter().collect()
}

fn inherited(caller: &BTreeMap<OsString, OsString>, inside: &Inside<'_>) -> BTreeMap<OsString, OsString> {
    let mut env: BTreeMap<OsString, OsString> = caller
        .iter()
        .filter(|(name, value)| is_inherited(name, value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    for name in ["TMPDIR", "TMP", "TEMP"] {
        if let Some(value) = env.get_mut(OsStr::new(name)) {
            // The box has a temporary directory of its own, in which the caller's subdirectories do not exist.
            let path = Path::new(value);
            let exists = path == Path::new("/tmp") || path == Path::new("/var/tmp") || path.starts_with(inside.workdir);
            if !exists {
                *value = "/tmp".into();
            }
        }
    }
    env.insert("PWD".into(), inside.workdir.into());
    env
}

fn clean(caller: &BTreeMap<OsString, OsString>, inside: &Inside<'_>) -> BTreeMap<OsString, OsString> {
    let term = caller.get(OsStr::new("TERM")).cloned().unwrap_or_else(|| "dumb".into());
    BTreeMap::from([
        ("PATH".into(), CLEAN_PATH.into()),
        ("HOME".into(), inside.home.into()),
        ("PWD".into(), inside.workdir.into()),
        ("LANG".into(), "C.UTF-8".into()),
        ("LC_ALL".into(), "C.UTF-8".into()),
        ("TERM".into(), term),
        ("USER".into(), "sandbox".into()),
        ("LOGNAME".into(), "sandbox".into()),
        ("SHELL".into(), "/bin/sh".into()),
        ("TMPDIR".into(), "/tmp".into()),
    ])
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn run(policy: &EnvPolicy, caller: &[(&str, &str)]) -> BTreeMap<String, String> {
        let caller: BTreeMap<OsString, OsString> = caller.iter().map(|(n, v)| (n.into(), v.into())).collect();
        let inside = Inside { profile: "agent", home: Path::new("/home/u"), workdir: Path::new("/home/u/p") };
        let text = |s: OsString| s.into_string().unwrap();
        environment(policy, &caller, &inside).into_iter().map(|(n, v)| (text(n), text(v))).collect()
    }

    fn inherit() -> EnvPolicy {
        EnvPolicy { inherit: true, ..EnvPolicy::default() }
    }

    #[test]
    fn agent_inherits_all_but_the_table() {
        for name in ["LD_PRELOAD", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "BASH_FUNC_ls%%", "ENV"]
        {
            assert!(!run(&inherit(), &[(name, "x")]).contains_key(name), "{name}");
        }
        for name in ["PATH", "PYTHONPATH", "XDG_RUNTIME_DIR", "ANTHROPIC_API_KEY", "DOCKER_BUILDKIT", "ENVIRONMENT"] {
            assert_eq!(run(&inherit(), &[(name, "x")])[name], "x", "{name}");
        }
    }

    #[test]
    fn values_that_inject() {
        let table = [
            ("NODE_OPTIONS", "--max-old-space-size=4096", true),
            ("NODE_OPTIONS", "--max-old-space-size=4096 --require /x.js", false),
            ("NODE_OPTIONS", "\"--require=/x.js\"", false),
            ("RUBYOPT", "-W0", true),
            ("RUBYOPT", "-W0 -rdebug", false),
            ("JAVA_TOOL_OPTIONS", "-Xmx1g", true),
            ("JAVA_TOOL_OPTIONS", "-javaagent:/x.jar", false),
        ];
        for (name, value, kept) in table {
            assert_eq!(run(&inherit(), &[(name, value)]).contains_key(name), kept, "{name}={value}");
        }
    }

    #[test]
    fn temporary_directory() {
        for (value, expected) in
            [("/tmp", "/tmp"), ("/tmp/u-1000", "/tmp"), ("/scratch", "/tmp"), ("/home/u/p/tmp", "/home/u/p/tmp")]
        {
            assert_eq!(run(&inherit(), &[("TMPDIR", value)])["TMPDIR"], expected);
        }
        assert!(!run(&inherit(), &[]).contains_key("TMPDIR"));
    }

    #[test]
    fn clean_starts_small() {
        let env = run(&EnvPolicy::default(), &[("SECRET", "x"), ("TERM", "xterm"), ("HOME", "/root"), ("PATH", "/x")]);
        insta::assert_debug_snapshot!(env, @r#"
        {
            "HOME": "/home/u",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "LOGNAME": "sandbox",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PWD": "/home/u/p",
            "RINGFENCE_PROFILE": "agent",
            "SHELL": "/bin/sh",
            "TERM": "xterm",
            "TMPDIR": "/tmp",
            "USER": "sandbox",
        }
        "#);
    }

    #[test]
    fn drop_then_pass_then_set() {
        let policy = EnvPolicy {
            inherit: true,
            drop: vec!["AWS_*".into(), "GONE".into()],
            pass: vec!["AWS_REGION".into(), "SSH_AUTH_SOCK".into(), "L*".into(), "SET".into()],
            set: BTreeMap::from([("SET".into(), "ours".into()), ("RINGFENCE_PROFILE".into(), "spoof".into())]),
        };
        let caller = [
            ("AWS_REGION", "eu"),
            ("AWS_SECRET", "s"),
            ("GONE", "g"),
            ("SSH_AUTH_SOCK", "/s"),
            ("LD_PRELOAD", "/x.so"),
            ("LESS", "R"),
            ("SET", "theirs"),
        ];
        let env = run(&policy, &caller);
        assert_eq!(env["AWS_REGION"], "eu");
        assert_eq!(env["SSH_AUTH_SOCK"], "/s");
        assert_eq!(env["SET"], "ours");
        assert_eq!(env["LESS"], "R");
        assert_eq!(env["RINGFENCE_PROFILE"], "agent");
        for gone in ["AWS_SECRET", "GONE", "LD_PRELOAD"] {
            assert!(!env.contains_key(gone), "{gone}");
        }
    }

    #[test]
    fn invalid_names_and_values_are_left_out() {
        let caller: BTreeMap<OsString, OsString> = BTreeMap::from([
            ("".into(), "x".into()),
            ("A=B".into(), "x".into()),
            ("N\0".into(), "x".into()),
            ("V".into(), "x\0y".into()),
            (OsString::from_vec(vec![0xff]), OsString::from_vec(vec![0xfe])),
        ]);
        let policy = EnvPolicy { pass: vec!["*".into()], ..inherit() };
        let inside = Inside { profile: "p", home: Path::new("/h"), workdir: Path::new("/w") };
        let names: Vec<OsString> = environment(&policy, &caller, &inside).into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, [OsString::from("PWD"), "RINGFENCE_PROFILE".into(), OsString::from_vec(vec![0xff])]);
    }
}
