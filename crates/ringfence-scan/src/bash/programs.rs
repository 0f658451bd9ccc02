//! Programs, as data.

use super::super::rules::*;

/// Programs that do nothing but start what comes after their options.
pub const WRAPPERS: &[&str] = &[
    "env",
    "nohup",
    "time",
    "timeout",
    "nice",
    "ionice",
    "setsid",
    "stdbuf",
    "command",
    "builtin",
    "exec",
    "xargs",
    "busybox",
    "sudo",
    "doas",
    "chronic",
    "watch",
    "parallel",
    "unbuffer",
    "strace",
    "coproc",
    "script",
    "flock",
    "taskset",
    "chrt",
    "numactl",
    "prlimit",
    "cpulimit",
    "fakeroot",
    "setarch",
    "setpriv",
    "runuser",
    "eatmydata",
    "xvfb-run",
    "dbus-run-session",
    "systemd-run",
    "proot",
    "firejail",
    "caffeinate",
];
pub const NETWORK: &[&str] = &[
    "curl",
    "wget",
    "aria2c",
    "http",
    "https",
    "xh",
    "nc",
    "ncat",
    "netcat",
    "socat",
    "telnet",
    "ssh",
    "scp",
    "sftp",
    "rsync",
    "ftp",
    "tftp",
    "lftp",
    "dig",
    "nslookup",
    "host",
    "ping",
    "lynx",
    "w3m",
    "openssl",
    "smbclient",
    "mail",
    "sendmail",
    "mutt",
    "swaks",
    "websocat",
    "axel",
];
pub const READERS: &[&str] = &[
    "cat", "less", "more", "head", "tail", "grep", "egrep", "rg", "awk", "sed", "tar", "zip", "7z", "find", "ls",
    "xxd", "od", "hexdump", "strings", "sort", "uniq", "wc", "cut", "gzip", "base64", "cp", "dd", "tac", "nl", "diff",
    "stat", "file", "readlink", "tree", "du", "jq", "split", "paste", "fgrep", "zcat", "sqlite3",
];
pub const INSTALLERS: &[(&str, &[&str])] = &[
    ("pip", &["install", "download"]),
    ("pip3", &["install", "download"]),
    ("uv", &["add", "pip", "tool"]),
    ("npm", &["install", "i", "ci", "add"]),
    ("yarn", &["add", "install"]),
    ("pnpm", &["add", "install", "dlx"]),
    ("apt", &["install"]),
    ("apt-get", &["install"]),
    ("apk", &["add"]),
    ("yum", &["install"]),
    ("dnf", &["install"]),
    ("brew", &["install"]),
    ("gem", &["install"]),
    ("cargo", &["install"]),
    ("go", &["install", "get"]),
    ("npx", &[""]),
    ("uvx", &[""]),
    ("easy_install", &[""]),
];
/// Programs that are a finding by themselves.
pub const PROGRAMS: &[(&str, &Rule)] = &[
    ("mkfs", &DESTROY),
    ("wipefs", &DESTROY),
    ("fdisk", &DESTROY),
    ("parted", &DESTROY),
    ("shred", &DESTROY),
    ("srm", &DESTROY),
    ("nsenter", &HOST),
    ("insmod", &HOST),
    ("modprobe", &HOST),
    ("rmmod", &HOST),
    ("mount", &HOST),
    ("umount", &HOST),
    ("pivot_root", &HOST),
    ("unshare", &HOST),
    ("debugfs", &HOST),
    ("gdb", &HOST),
    ("kexec", &HOST),
    ("chroot", &HOST),
    ("ctr", &HOST),
    ("runc", &HOST),
    ("useradd", &SYSTEM),
    ("adduser", &SYSTEM),
    ("usermod", &SYSTEM),
    ("passwd", &SYSTEM),
    ("chpasswd", &SYSTEM),
    ("visudo", &SYSTEM),
    ("setcap", &SYSTEM),
    ("iptables", &TRACES),
    ("nft", &TRACES),
    ("ufw", &TRACES),
    ("setenforce", &TRACES),
    ("auditctl", &TRACES),
    ("xmrig", &DROP),
    ("minerd", &DROP),
    ("cpuminer", &DROP),
    ("ethminer", &DROP),
    ("ngrok", &DROP),
    ("cloudflared", &DROP),
    ("chisel", &DROP),
    ("frpc", &DROP),
    ("tor", &DROP),
    ("torsocks", &DROP),
    ("xclip", &SPY),
    ("xsel", &SPY),
    ("pbpaste", &SPY),
    ("wl-paste", &SPY),
    ("scrot", &SPY),
    ("xinput", &SPY),
    ("screencapture", &SPY),
    ("arecord", &SPY),
    ("at", &PERSIST),
    ("batch", &PERSIST),
    ("launchctl", &PERSIST),
    ("update-rc.d", &PERSIST),
    ("su", &PRIVILEGE),
    ("pkexec", &PRIVILEGE),
    ("kill", &PROCESS),
    ("pkill", &PROCESS),
    ("killall", &PROCESS),
    ("reboot", &PROCESS),
    ("shutdown", &PROCESS),
    ("perl", &DYNAMIC),
    ("ssh-add", &CREDENTIAL),
    ("secret-tool", &CREDENTIAL),
];

pub fn is_shell(program: &str) -> bool {
    ["sh", "bash", "zsh", "dash", "ksh", "ash", "fish"].contains(&program)
}

/// Programs that run what comes in.
pub fn runs_input(program: &str) -> bool {
    is_shell(program)
        || ["python", "python3", "python2", "node", "perl", "ruby", "php", "lua", "eval", "source", "."]
            .contains(&program)
}

/// Programs whose arguments are code, or a program with its arguments.
pub fn runs_other(program: &str) -> bool {
    runs_input(program) || WRAPPERS.contains(&program) || ["find", "ssh", "docker", "awk"].contains(&program)
}

/// Whether a command line fetches something.
pub fn fetches(line: &str) -> bool {
    line.split(|c: char| c.is_whitespace() || "|;&()'\"".contains(c))
        .any(|word| ["curl", "wget", "aria2c", "nc", "ncat"].contains(&base_name(word)))
}

pub fn base_name(text: &str) -> &str {
    text.trim_end_matches('/').rsplit('/').next().unwrap_or(text)
}
