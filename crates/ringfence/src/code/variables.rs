//! Which names bash has for itself, so that no input can be a variable of that name.
//!
//! Assigning to one of them is not only an assignment. `RANDOM` is an integer: its value is evaluated, and what is
//! evaluated can run commands. Others steer the shell or the programs it starts. The list is that of bash 5.3; older and
//! newer shells are asked by the runner, which also knows what the environment has set.

/// Whole families of names.
const FAMILIES: [&str; 6] = ["BASH_", "COMP_", "LC_", "LD_", "READLINE_", "__"];

/// Single names: those of bash's manual, those of the C library, and the runner's own.
const NAMES: &[&str] = &[
    // What the shell sets. Integers, arrays, read-only ones and those with a meaning when assigned are among them.
    "_",
    "BASH",
    "BASHOPTS",
    "BASHPID",
    "COPROC",
    "DIRSTACK",
    "EPOCHREALTIME",
    "EPOCHSECONDS",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "HOSTNAME",
    "HOSTTYPE",
    "LINENO",
    "MACHTYPE",
    "MAPFILE",
    "OLDPWD",
    "OPTARG",
    "OPTIND",
    "OSTYPE",
    "PIPESTATUS",
    "PPID",
    "PWD",
    "RANDOM",
    "REPLY",
    "SECONDS",
    "SHELLOPTS",
    "SHLVL",
    "SRANDOM",
    "UID",
    // What the shell uses.
    "CDPATH",
    "CHILD_MAX",
    "COLUMNS",
    "COMPREPLY",
    "EMACS",
    "ENV",
    "EXECIGNORE",
    "FCEDIT",
    "FIGNORE",
    "FUNCNEST",
    "GLOBIGNORE",
    "GLOBSORT",
    "HISTCONTROL",
    "HISTFILE",
    "HISTFILESIZE",
    "HISTIGNORE",
    "HISTSIZE",
    "HISTTIMEFORMAT",
    "HOME",
    "HOSTFILE",
    "IFS",
    "IGNOREEOF",
    "INPUTRC",
    "INSIDE_EMACS",
    "LANG",
    "LANGUAGE",
    "LINES",
    "MAIL",
    "MAILCHECK",
    "MAILPATH",
    "OPTERR",
    "PATH",
    "POSIXLY_CORRECT",
    "POSIX_PEDANTIC",
    "PROMPT_COMMAND",
    "PROMPT_DIRTRIM",
    "PS0",
    "PS1",
    "PS2",
    "PS3",
    "PS4",
    "SHELL",
    "TERM",
    "TERMCAP",
    "TERMINFO",
    "TEXTDOMAIN",
    "TEXTDOMAINDIR",
    "TIMEFORMAT",
    "TMOUT",
    "TMPDIR",
    "TZ",
    "auto_resume",
    "histchars",
    "ignoreeof",
    "noclobber",
    // What the runner gives to code, and takes from it.
    "inputs",
    "result",
];

/// Whether bash can have a variable of this name. An input with another name is in `inputs` alone.
pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a variable of this name is the shell's own, or the runner's.
pub(super) fn is_taken(name: &str) -> bool {
    FAMILIES.iter().any(|start| name.starts_with(start)) || NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shell that is here is asked: nothing that it has is missing.
    #[test]
    fn a_fresh_shell_has_no_other_variables() {
        let mut bash = std::process::Command::new("bash");
        let asked = bash.args(["--norc", "--noprofile", "-c", "compgen -v"]).env_clear().env("PATH", "/usr/bin:/bin");
        let Ok(output) = asked.output() else { return println!("SKIP bash: not installed") };
        let names = String::from_utf8(output.stdout).unwrap();
        assert!(names.lines().any(|name| name == "RANDOM"), "{names}");
        let others: Vec<&str> = names.lines().filter(|name| !is_taken(name)).collect();
        assert!(others.is_empty(), "{others:?}");
    }

    /// What the runner answers to one input, and whether its value was executed.
    fn ask(name: &str, value: &str, made: &std::path::Path) -> (String, bool) {
        use std::io::{Read, Write};
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut bash = std::process::Command::new("bash");
        bash.args(["--norc", "--noprofile", "-c", super::super::language::BASH]);
        let mut child =
            bash.stdin(std::os::fd::OwnedFd::from(theirs)).env("SHOWN", "by the environment").spawn().unwrap();
        drop(bash);
        let source = format!("result=${name}");
        let head = format!("{} 2 1 0 0 -\n{source}{{}}{name} {}\n{value}", source.len(), value.len());
        ours.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        ours.read_to_string(&mut answer).unwrap();
        child.wait().unwrap();
        (answer, made.exists())
    }

    /// The runner is the second wall: what the list does not know, the shell itself does.
    #[test]
    fn the_runner_gives_no_value_to_what_the_shell_has() {
        if !std::process::Command::new("bash").arg("--version").output().is_ok_and(|output| output.status.success()) {
            return println!("SKIP bash: not installed");
        }
        let dir = tempfile::tempdir().unwrap();
        let made = dir.path().join("made");
        let hostile = format!("a[$(touch {})]", made.display());
        for name in ["RANDOM", "SRANDOM", "OPTIND", "HISTCMD", "SECONDS", "UID", "GROUPS", "FUNCNAME", "PATH", "SHOWN"]
        {
            assert_eq!(ask(name, &hostile, &made), (format!("v {}\n{name}", name.len()), false), "{name}");
        }
        // Another name has the value, as it is.
        let (answer, executed) = ask("free", &hostile, &made);
        assert!(answer.starts_with("s 0\nb ") && answer.ends_with(&format!("\n={hostile}")), "{answer}");
        assert!(!executed);
    }

    #[test]
    fn ordinary_names_are_free() {
        for name in ["x", "RANDOM_SEED", "random", "DIRECTORY", "FUNCTION", "COMPANY", "LDAP", "PATHS", "_x", "Inputs"]
        {
            assert!(is_variable(name) && !is_taken(name), "{name}");
        }
        for name in ["", "1x", "a b", "a[0]", "a[$(id)]", "é", "x=", "x\n"] {
            assert!(!is_variable(name), "{name:?}");
        }
    }
}
