//! Programs that reach other hosts.

use super::super::places::{self, Act};
use super::super::rules::*;
use super::super::value::{HOLE, Taint, Value};
use super::Bash;
use super::commands::taint_of;
use super::programs::base_name;

pub(super) fn network(bash: &mut Bash<'_, '_, '_>, program: &str, arguments: &[String], words: &[Value], at: usize) {
    let text = arguments.join(" ");
    match program {
        "nc" | "ncat" | "netcat" => {
            let letters: String = arguments
                .iter()
                .filter(|a| a.starts_with('-') && !a.starts_with("--"))
                .flat_map(|a| a.chars())
                .collect();
            if letters.contains(['e', 'c']) || text.contains("--exec") || text.contains("--sh-exec") {
                bash.found(&REMOTE_SHELL, at, program);
            } else if letters.contains('l') {
                bash.found(&LISTEN, at, program);
                return;
            }
        }
        "socat" => {
            let lower = text.to_ascii_lowercase();
            if lower.contains("exec:") || lower.contains("system:") {
                bash.found(&REMOTE_SHELL, at, program);
            } else if lower.contains("listen") {
                bash.found(&LISTEN, at, program);
                return;
            }
        }
        "ssh"
            if arguments
                .iter()
                .any(|argument| argument.starts_with("-R") || argument.starts_with("-D") || argument == "-NfR") =>
        {
            bash.found(&DROP, at, "a tunnel");
        }
        "openssl" if !text.contains("s_client") => return,
        _ => {}
    }
    addresses(bash, program, arguments, at);
    if taint_of(words).has(Taint::GATHERED) {
        bash.found(&EXFILTRATION, at, program);
    }
    // Files that are sent.
    for (index, argument) in arguments.iter().enumerate() {
        let sent = argument
            .strip_prefix('@')
            .or_else(|| argument.split_once("=@").map(|(_, path)| path))
            .or_else(|| argument.strip_prefix("--post-file="))
            .or_else(|| argument.strip_prefix("--data-binary=@"));
        let sent = sent.or_else(|| {
            let before = index.checked_sub(1).and_then(|before| arguments.get(before));
            before
                .filter(|before| ["-T", "--upload-file", "--post-file"].contains(&before.as_str()))
                .map(|_| argument.as_str())
        });
        if let Some(path) = sent
            && let Some(rule) = places::path(path, Act::Read, bash.findings.declared)
        {
            bash.found(rule, at, path);
            bash.found(&EXFILTRATION, at, path);
        }
    }
    // Files that come in.
    let mut files: Vec<&str> = Vec::new();
    for (index, argument) in arguments.iter().enumerate() {
        if ["-o", "--output", "-O", "--output-document"].contains(&argument.as_str())
            || argument.starts_with('-') && argument.ends_with('o') && !argument.starts_with("--")
        {
            files.extend(arguments.get(index + 1).map(String::as_str));
        }
        if places::is_address(argument) {
            files.push(argument);
        }
    }
    bash.downloads.extend(
        files
            .into_iter()
            .map(|file| base_name(file).to_owned())
            .filter(|file| !file.is_empty() && file != "-" && !file.contains(HOLE)),
    );
}

/// Hosts among the arguments.
pub(super) fn addresses(bash: &mut Bash<'_, '_, '_>, program: &str, arguments: &[String], at: usize) {
    let mut known = false;
    let mut rules: Vec<(&'static Rule, String)> = Vec::new();
    for argument in arguments {
        let is_host = match program {
            "nc" | "ncat" | "netcat" | "telnet" | "ping" | "dig" | "nslookup" | "host" => {
                !argument.starts_with('-') && argument.contains('.')
            }
            "ssh" | "scp" | "sftp" | "rsync" | "git" => {
                argument.contains('@') || argument.contains(':') && !argument.starts_with('-')
            }
            "curl" | "wget" | "http" | "xh" => {
                !argument.starts_with(['-', '/', '.', '@', '{'])
                    && argument.contains('.')
                    && argument.contains('/')
                    && !argument.contains(' ')
                    && !argument.contains('=')
            }
            _ => false,
        };
        let text = argument
            .split_once('@')
            .filter(|_| program != "dig" && !places::is_address(argument))
            .map_or(argument.as_str(), |(_, host)| host);
        let text = argument.strip_prefix("--url=").unwrap_or(text);
        if places::is_address(text) || is_host {
            known = true;
            rules.extend(places::address(text, bash.findings.declared).map(|rule| (rule, text.to_owned())));
        }
    }
    if !known && program != "git" {
        // `curl --version` reaches nothing.
        let only_flags = !arguments.is_empty()
            && arguments.iter().all(|argument| ["--version", "-V", "--help", "-h"].contains(&argument.as_str()));
        if !only_flags {
            rules.push((&CONNECT, program.to_owned()));
        }
    }
    for (rule, text) in rules {
        bash.found(rule, at, &text);
    }
}
