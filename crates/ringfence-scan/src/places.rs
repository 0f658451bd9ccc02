//! Paths and hosts: which of them are the skill's own, and what the others mean.

use super::Declared;
use super::rules::{CONNECT, CREDENTIAL, DESTROY, DROP, HOST, METADATA, OUTSIDE, PERSIST, Rule, SYSTEM};
use super::value::HOLE;

/// What is done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Read,
    Write,
    Remove,
    /// Removes all that is below.
    RemoveTree,
}

/// Files that hold credentials, by how their path ends or by a directory in it.
const CREDENTIALS: &[&str] = &[
    "/.ssh/",
    "/.ssh",
    "/.gnupg",
    "/.aws/",
    "/.aws",
    "/.azure/",
    "/.config/gcloud",
    "/.kube/config",
    "/.docker/config.json",
    "/.netrc",
    "/.npmrc",
    "/.pypirc",
    "/.git-credentials",
    "/.pgpass",
    "/.my.cnf",
    "/.vault-token",
    "/.config/gh/hosts",
    "/.cargo/credentials",
    "/.terraform.d/credentials",
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/krb5.keytab",
    "/etc/kubernetes/",
    "/var/run/secrets/",
    "/run/secrets/",
    "/.bash_history",
    "/.zsh_history",
    "/.python_history",
    "/.mysql_history",
    "/.password-store",
    "/.local/share/keyrings",
    "/.mozilla/firefox",
    "/.config/google-chrome",
    "/.config/chromium",
    "/.config/bravesoftware",
    "/library/keychains",
    "/.electrum",
    "/.bitcoin/",
    "/.ethereum/",
    "/wallet.dat",
    "/logins.json",
    "/cookies.sqlite",
    "/login data",
    "/.claude/.credentials",
    "/.codex/auth.json",
    "/.config/solana",
    "/id_rsa",
    "/id_ed25519",
    "/id_ecdsa",
    "/.env.production",
    "/.ethereum/keystore",
    "/discord/local storage",
];
/// Ways to another process, to the host or to raw memory.
const HOSTS: &[&str] = &[
    "/docker.sock",
    "/containerd.sock",
    "/podman.sock",
    "/crio.sock",
    "/proc/self/mem",
    "/proc/kcore",
    "/proc/sysrq-trigger",
    "/proc/kallsyms",
    "/dev/mem",
    "/dev/kmem",
    "/release_agent",
    "/sys/kernel/",
    "/sys/fs/cgroup",
    "/proc/self/root",
    "/proc/sys/kernel",
    "/proc/thread-self/mem",
    "/sys/firmware",
    "/notify_on_release",
];
/// What is executed later by itself.
const STARTS: &[&str] = &[
    "/.bashrc",
    "/.bash_profile",
    "/.profile",
    "/.zshrc",
    "/.zprofile",
    "/.zshenv",
    "/.bash_login",
    "/.bash_logout",
    "/etc/cron",
    "/var/spool/cron",
    "/etc/systemd/",
    "/.config/systemd/",
    "/lib/systemd/",
    "/.config/autostart",
    "/etc/init.d",
    "/etc/rc.local",
    "/etc/profile",
    "/.ssh/authorized_keys",
    "/.git/hooks/",
    "/.gitconfig",
    "/sitecustomize.py",
    "/usercustomize.py",
    "/etc/ld.so.preload",
    "/.config/fish/",
    "/.vimrc",
    "/.vscode/tasks.json",
    "/.git/config",
    "/launchagents/",
    "/etc/environment",
    "/.pam_environment",
    "/etc/bash.bashrc",
    "/.inputrc",
    "/.xprofile",
    "/.mcp.json",
    "/.claude/settings",
    "/etc/sudoers",
    "/.pythonrc",
    "/.npmrc",
];
/// Directories that belong to the system.
const SYSTEM_DIRECTORIES: &[&str] = &[
    "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/var", "/opt", "/sys", "/proc", "/root", "/srv",
    "/home",
];
/// Where a skill may read and write: its own directory, and what is private to its box.
const OWN: &[&str] = &[
    "/workspace",
    "/work",
    "/tmp",
    "/var/tmp",
    "/dev/null",
    "/dev/stdin",
    "/dev/stdout",
    "/dev/stderr",
    "/dev/fd",
    "/dev/zero",
    "/dev/urandom",
    "/dev/random",
    "/dev/shm",
    "/dev/tty",
    "/inputs",
    "/input",
    "/outputs",
    "/output",
    "/data",
    "/mnt/data",
    "/app",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/self/status",
    "/proc/version",
    "/home/sandbox",
    "/proc/self/fd",
];
/// What any program may read.
const COMMON: &[&str] = &[
    "/usr/share",
    "/usr/bin/env",
    "/etc/os-release",
    "/etc/timezone",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/ssl/certs",
    "/usr/lib/os-release",
];

/// Names and addresses under which clouds give out credentials.
const METADATA_HOSTS: &[&str] = &[
    "169.254.169.254",
    "metadata.google.internal",
    "169.254.170.2",
    "100.100.100.200",
    "fd00:ec2::254",
    "2852039166",
    "0xa9fea9fe",
];
/// Places for anonymous drops and payloads, tunnels, and mining pools: the host, or how it ends or begins.
const DROPS: &[&str] = &[
    "webhook.site",
    "requestbin",
    "pipedream.net",
    "ngrok.io",
    "ngrok-free.app",
    "ngrok.app",
    "pastebin.com",
    "hastebin.com",
    "transfer.sh",
    "file.io",
    "0x0.st",
    "ix.io",
    "termbin.com",
    "paste.ee",
    "rentry.co",
    "anonfiles.com",
    "gofile.io",
    "oast.fun",
    "oast.pro",
    "oast.live",
    "oast.site",
    "interact.sh",
    "burpcollaborator.net",
    "oastify.com",
    "dnslog.cn",
    "ceye.io",
    "beeceptor.com",
    "trycloudflare.com",
    "serveo.net",
    "localhost.run",
    "localtunnel.me",
    "loca.lt",
    "minexmr.com",
    "nanopool.org",
    "supportxmr.com",
    "nicehash.com",
    "moneroocean.stream",
    "2miners.com",
    "onion",
    "canarytokens.com",
    "bashupload.com",
    "temp.sh",
];
/// The same, where the host alone says nothing.
const DROP_URLS: &[&str] = &[
    "discord.com/api/webhooks",
    "discordapp.com/api/webhooks",
    "api.telegram.org/bot",
    "stratum+tcp:",
    "stratum+ssl:",
    "hooks.slack.com/services",
];

/// Whether a whole text names a place for credentials or a way around walls.
pub fn is_sensitive(text: &str) -> Option<&'static Rule> {
    if text.len() > 300 || text.contains(char::is_whitespace) || text.contains("://") {
        return None;
    }
    let path = normal(text);
    let starts = path.starts_with('/') || path.starts_with('~') || path.starts_with(HOLE) || path.starts_with('.');
    if !starts {
        return None;
    }
    let slashed = format!("/{}", path.trim_start_matches(['/', '~', '.']));
    if HOSTS.iter().any(|host| path.contains(host)) {
        return Some(&HOST);
    }
    let relative = format!("/{path}");
    let named = |entry: &&str| {
        contains_place(&path, entry) || contains_place(&relative, entry) || contains_place(&slashed, entry)
    };
    CREDENTIALS.iter().any(named).then_some(&CREDENTIAL)
}

/// What it means that a path is used so; nothing when it is the skill's own.
pub fn path(text: &str, act: Act, declared: &Declared) -> Option<&'static Rule> {
    if text.is_empty() || text.len() > 4096 || text.contains("://") {
        return None;
    }
    if declared.files.iter().any(|file| file == text) {
        return None;
    }
    let path = normal(text);
    let writes = act != Act::Read;
    if act == Act::RemoveTree {
        let bare = path.trim_end_matches(['/', '*', '.']);
        let whole =
            bare.is_empty() && (path.starts_with('/') || path.starts_with("..")) || bare == "~" || bare == "/home";
        let system = SYSTEM_DIRECTORIES.iter().any(|directory| bare == *directory || under(bare, directory));
        // Of caches, those of one program are its own.
        let cache = under(bare, "~/.cache");
        let home = path.starts_with("~/.") && !cache || path == "~/" || path.starts_with("~/Documents");
        if (whole || system || home) && !is_own(&path) {
            return Some(&DESTROY);
        }
    }
    if HOSTS.iter().any(|host| path.contains(host)) || is_other_process(&path) {
        return Some(&HOST);
    }
    if path.starts_with("/dev/") && !is_own(&path) {
        let disk = [
            "/dev/sd",
            "/dev/vd",
            "/dev/nvme",
            "/dev/xvd",
            "/dev/hd",
            "/dev/mmcblk",
            "/dev/disk",
            "/dev/dm-",
            "/dev/loop",
        ];
        return if disk.iter().any(|d| path.starts_with(d)) { Some(&HOST) } else { Some(&OUTSIDE) };
    }
    let rooted = path.starts_with(['/', '~', HOLE]);
    let slashed = if rooted { path.clone() } else { format!("/{path}") };
    if writes && STARTS.iter().any(|entry| contains_place(&slashed, entry)) {
        return Some(&PERSIST);
    }
    if CREDENTIALS.iter().any(|entry| contains_place(&slashed, entry)) {
        return Some(&CREDENTIAL);
    }
    if path.starts_with('~') {
        return Some(&OUTSIDE);
    }
    if let Some(below) = path.strip_prefix('/') {
        if is_own(&path) || !writes && COMMON.iter().any(|common| path == *common || under(&path, common)) {
            return None;
        }
        let first = below.split('/').next().unwrap_or_default();
        if first.contains(HOLE) {
            return None;
        }
        let system = SYSTEM_DIRECTORIES.iter().any(|d| (path == *d || under(&path, d)) && *d != "/home");
        return if writes && system { Some(&SYSTEM) } else { Some(&OUTSIDE) };
    }
    // Above where it started, by name.
    let above = path.split('/').take_while(|part| *part == "..").count();
    (above > 0).then_some(&OUTSIDE)
}

/// Whether a path is the directory that we are in, or all that is in it.
pub fn is_here(text: &str) -> bool {
    matches!(text, "." | "./" | "*" | "./*")
}

fn is_own(path: &str) -> bool {
    OWN.iter().any(|own| path == *own || under(path, own))
}

fn under(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// `/proc/1/root`, `/proc/1234/mem`: of a process that is not this one.
fn is_other_process(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/proc/") else { return false };
    let mut parts = rest.split('/');
    let process = parts.next().unwrap_or_default();
    let number = !process.is_empty() && process.chars().all(|c| c.is_ascii_digit() || c == HOLE || c == '*');
    let what = parts.next().unwrap_or_default();
    number && ["root", "mem", "environ", "cwd", "fd", "maps", "ns", "map_files", "cmdline"].contains(&what)
        || process == "self" && what == "environ"
        || process == "self" && what == "exe"
}

/// Whether a path goes through a place; one that ends with `/` is a directory, others may go on.
fn contains_place(path: &str, place: &str) -> bool {
    path.to_ascii_lowercase().match_indices(place).any(|(at, _)| {
        let rest = &path[at + place.len()..];
        place.ends_with('/')
            || rest.is_empty()
            || !rest.starts_with(|c: char| c.is_alphanumeric() && !place.ends_with("cron"))
    })
}

/// Without `.`, doubled slashes and `x/..`; the home directory is `~` however it is spelled.
fn normal(text: &str) -> String {
    let text = text.strip_prefix("file://").unwrap_or(text);
    let text = ["$HOME", "${HOME}", "%USERPROFILE%"]
        .iter()
        .find_map(|home| text.strip_prefix(home))
        .map_or_else(|| text.to_owned(), |rest| format!("~{rest}"));
    let absolute = text.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in text.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." if parts
                .last()
                .is_some_and(|last| *last != ".." && !last.starts_with('~') && !last.contains(HOLE)) =>
            {
                parts.pop();
            }
            ".." if absolute && parts.is_empty() => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    let trail = if text.ends_with('/') && !joined.is_empty() { "/" } else { "" };
    let path = if absolute { format!("/{joined}{trail}") } else { format!("{joined}{trail}") };
    // `/home/anna/x` and `/root/x` are homes too.
    let mut homes = path.strip_prefix("/home/").and_then(|rest| rest.split_once('/')).map(|(_, rest)| rest);
    homes = homes
        .or_else(|| path.strip_prefix("/root/"))
        .or_else(|| path.strip_prefix("/Users/").and_then(|rest| rest.split_once('/')).map(|(_, rest)| rest));
    match homes {
        Some(rest) if !path.starts_with("/home/sandbox/") => format!("~/{rest}"),
        _ => path,
    }
}

/// What it means that an address is used; nothing when its host was declared.
pub fn address(text: &str, declared: &Declared) -> Option<&'static Rule> {
    let lower = text.to_ascii_lowercase();
    if DROP_URLS.iter().any(|url| lower.contains(url)) {
        return Some(&DROP);
    }
    let host = host(&lower)?;
    if METADATA_HOSTS.contains(&host.as_str()) {
        return Some(&METADATA);
    }
    if DROPS.iter().any(|drop| host == *drop || host.ends_with(&format!(".{drop}"))) {
        return Some(&DROP);
    }
    (!is_declared(&host, declared)).then_some(&CONNECT)
}

/// Whether the host of an address was declared.
pub fn is_declared(host: &str, declared: &Declared) -> bool {
    // Readers of addresses differ on where a host with a backslash ends.
    !host.contains(['\\', HOLE, ' ', '\t', '\n', '\r'])
        && declared.hosts.iter().map(|declared| declared.to_ascii_lowercase()).any(|declared| {
            match declared.strip_prefix("*.") {
                Some(parent) => host.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.')),
                None => host == declared,
            }
        })
}

/// The host of an URL, or of `host:port`. A hole in it stays.
fn host(text: &str) -> Option<String> {
    let rest = match text.split_once("://") {
        Some((_, rest)) => rest,
        None => text.strip_prefix("//").unwrap_or(text),
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next()?,
        None => host.split(':').next()?,
    };
    let host = host.trim_end_matches('.');
    (!host.is_empty()).then(|| host.to_owned())
}

/// Whether a text is an address of something to talk to.
pub fn is_address(text: &str) -> bool {
    let schemes = [
        "http://",
        "https://",
        "ws://",
        "wss://",
        "ftp://",
        "tcp://",
        "stratum+tcp://",
        "udp://",
        "ssh://",
        "stratum+ssl://",
    ];
    let lower: String = text.chars().take(16).collect::<String>().to_ascii_lowercase();
    schemes.iter().any(|scheme| lower.starts_with(scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let none = Declared { files: vec!["/in/data.csv".into()], ..Declared::default() };
        let table: &[(&str, Act, Option<&str>)] = &[
            ("data.csv", Act::Read, None),
            ("./out/../out/x", Act::Write, None),
            ("/in/data.csv", Act::Read, None),
            ("/workspace/a", Act::Write, None),
            ("/tmp/x", Act::RemoveTree, None),
            ("/etc/passwd", Act::Read, Some("file.outside")),
            ("/etc/hosts", Act::Write, Some("file.system")),
            ("/etc/./shadow", Act::Read, Some("credential.read")),
            ("~/.ssh/id_rsa", Act::Read, Some("credential.read")),
            ("/home/anna/.aws/credentials", Act::Read, Some("credential.read")),
            ("\0/.ssh/id_ed25519", Act::Read, Some("credential.read")),
            ("~/.bashrc", Act::Write, Some("file.persist")),
            ("~/.bashrc", Act::Read, Some("file.outside")),
            ("~/notes", Act::Read, Some("file.outside")),
            ("../../x", Act::Read, Some("file.outside")),
            ("/", Act::RemoveTree, Some("file.destroy")),
            ("~", Act::RemoveTree, Some("file.destroy")),
            ("/*", Act::RemoveTree, Some("file.destroy")),
            ("build", Act::RemoveTree, None),
            ("~/.cache/tool", Act::RemoveTree, Some("file.outside")),
            ("~/.cache/*", Act::RemoveTree, Some("file.destroy")),
            ("/var/run/docker.sock", Act::Read, Some("file.host")),
            ("/proc/1/root/etc", Act::Read, Some("file.host")),
            ("/proc/self/environ", Act::Read, Some("file.host")),
            ("/dev/sda", Act::Write, Some("file.host")),
            ("/usr/share/dict/words", Act::Read, None),
            ("sshd/idea.txt", Act::Read, None),
        ];
        for (text, act, rule) in table {
            assert_eq!(path(text, *act, &none).map(|rule| rule.id), *rule, "{text:?} {act:?}");
        }
    }

    #[test]
    fn addresses() {
        let declared =
            Declared { hosts: vec!["api.example.org".into(), "*.data.example".into()], ..Declared::default() };
        let table: &[(&str, Option<&str>)] = &[
            ("https://api.example.org/v1?x=1", None),
            ("https://API.example.org:8443/v1", None),
            ("https://api.example.org.evil.example/", Some("net.connect")),
            ("https://api.example.org@evil.example/", Some("net.connect")),
            ("https://api.example.org\\@evil.example/", Some("net.connect")),
            ("https://evil.example\\.data.example/", Some("net.connect")),
            ("https://a.data.example/", None),
            ("https://data.example/", Some("net.connect")),
            ("https://evildata.example/", Some("net.connect")),
            ("https://\0.data.example/", Some("net.connect")),
            ("http://169.254.169.254/latest/", Some("net.metadata")),
            ("https://x.ngrok.io/", Some("net.drop")),
            ("https://discord.com/api/webhooks/1", Some("net.drop")),
            ("evil.example:4444", Some("net.connect")),
        ];
        for (text, rule) in table {
            assert_eq!(address(text, &declared).map(|rule| rule.id), *rule, "{text:?}");
        }
    }
}
