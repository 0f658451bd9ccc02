//! What programs do, by their names and arguments.

use super::super::Language;
use super::super::decode::{self, Codec, unescape};
use super::super::places::{self, Act};
use super::super::rules::*;
use super::super::value::{HOLE, Taint, Value};
use super::Bash;
use super::network::{addresses, network};
use super::programs::{INSTALLERS, NETWORK, PROGRAMS, READERS, WRAPPERS, base_name, is_one_of, is_shell, runs_input};

/// A command: its words, and what flows into it.
pub struct Command<'a> {
    pub words: &'a [Value],
    pub at: usize,
    pub input: &'a Value,
}

/// Without the words that only start the rest; whether more rights were asked for.
fn unwrapped(words: &[Value]) -> (&[Value], bool) {
    let mut rest = words;
    let mut privileged = false;
    for _ in 0..8 {
        let Some(program) = rest.first().and_then(Value::first_text).map(base_name) else { break };
        if !is_one_of(program, WRAPPERS) {
            break;
        }
        privileged |= ["sudo", "doas"].contains(&program);
        let mut next = 1;
        while let Some(word) = rest.get(next).and_then(Value::first_text) {
            // Options, `NAME=value`, and the time of `timeout`.
            let option = word.starts_with('-')
                || word.contains('=') && !word.contains('/')
                || word.starts_with(|c: char| c.is_ascii_digit())
                || word == "{}";
            let with_value = ["-u", "-n", "-I", "-g", "-S", "-P", "-L", "-d"].contains(&word)
                && program != "env"
                && program != "busybox";
            if !option {
                break;
            }
            next += if with_value { 2 } else { 1 };
        }
        // The file that is locked.
        next += usize::from(program == "flock");
        let Some(after) = rest.get(next..).filter(|after| !after.is_empty()) else { break };
        rest = after;
    }
    (rest, privileged)
}

/// Whether words are a shell that reads its commands from its input.
pub fn is_bare_shell(words: &[Value]) -> bool {
    let mut texts = unwrapped(words).0.iter().map(|word| word.first_text().unwrap_or("\u{0}"));
    texts.next().is_some_and(|program| is_shell(base_name(program))) && texts.all(|argument| argument.starts_with('-'))
}

/// A command by itself; what comes out of it.
pub fn look(bash: &mut Bash<'_, '_, '_>, command: &Command<'_>) -> Value {
    // `script -qc 'code'`, `flock file -c 'code'`.
    let texts: Vec<&str> = command.words.iter().map(|word| word.first_text().unwrap_or_default()).collect();
    let takes_code =
        texts.first().is_some_and(|program| ["script", "flock", "su", "runuser"].contains(&base_name(program)));
    let flag = texts.iter().position(|text| {
        text.starts_with('-') && !text.starts_with("--") && text.ends_with('c') || *text == "--command"
    });
    if let (true, Some(code)) = (takes_code, flag.and_then(|flag| texts.get(flag + 1))) {
        embed(bash, "bash", code, command.at);
    }
    let (words, privileged) = unwrapped(command.words);
    if privileged {
        bash.found(&PRIVILEGE, command.at, "");
    }
    literals(bash, words, command.at);
    let Some(first) = words.first() else { return Value::default() };
    let at = command.at;
    if first.taint.has(Taint::DECODED) {
        bash.found(&DECODED, at, "");
    } else if first.taint.has(Taint::REMOTE) {
        bash.found(&REMOTE_CODE, at, "");
    }
    let Some(name) = first.first_text().map(str::to_owned) else {
        bash.found(&DYNAMIC, at, "a computed command");
        return Value::tainted(first.taint);
    };
    if base_name(&name).contains([HOLE, '?', '*', '[']) && name != "[" && name != "[[" {
        bash.found(&DYNAMIC, at, "a computed command");
    }
    let program = base_name(&name).to_owned();
    if bash.downloads.contains(&program) {
        bash.found(&REMOTE_CODE, at, &program);
    }
    if bash.defined.contains(&program) {
        if !bash.calls.add(&program, &words[1..]) {
            bash.found(&LIMIT, at, "calls of one function");
        }
        return Value::tainted(taint_of(words).with(bash.calls.output(&program)));
    }
    let arguments: Vec<String> =
        words.iter().skip(1).map(|word| word.first_text().unwrap_or("\u{0}").to_owned()).collect();
    effects(bash, &program, &arguments, words, at);
    outcome(bash, &program, &arguments, words, command)
}

/// A command again, with what flows into it; what comes out of it.
pub fn receive(bash: &mut Bash<'_, '_, '_>, command: &Command<'_>) -> Value {
    let (words, _) = unwrapped(command.words);
    let Some(program) = words.first().and_then(Value::first_text).map(|name| base_name(name).to_owned()) else {
        return Value::tainted(command.input.taint);
    };
    let arguments: Vec<String> =
        words.iter().skip(1).map(|word| word.first_text().unwrap_or("\u{0}").to_owned()).collect();
    let input = command.input;
    let via_xargs = command.words.len() != words.len();
    // `python3 script.py < data` reads data; `python3`, `python3 -` and `bash -s` read code.
    let reads_code =
        arguments.iter().all(|argument| argument.starts_with('-') && !["-c", "-e", "-m"].contains(&argument.as_str()))
            || via_xargs
            || arguments.first().is_some_and(|a| a == "-s" || a == "/dev/stdin");
    if runs_input(&program) && reads_code {
        if input.taint.has(Taint::DECODED) {
            bash.found(&DECODED, command.at, &program);
        } else if input.taint.has(Taint::REMOTE) {
            bash.found(&REMOTE_CODE, command.at, &program);
        } else if input.texts.is_empty() {
            bash.found(&DYNAMIC, command.at, &program);
        }
        for text in input.texts.clone().iter().take(2) {
            embed(bash, &program, text, command.at);
        }
    }
    if is_one_of(&program, NETWORK) && input.taint.has(Taint::GATHERED) {
        bash.found(&EXFILTRATION, command.at, &program);
    }
    if program == "crontab" {
        bash.found(&PERSIST, command.at, "");
    }
    if program == "read" {
        for name in arguments.iter().filter(|argument| !argument.starts_with('-')) {
            bash.variables.entry(name.clone()).or_default().merge(&Value::tainted(input.taint));
        }
    }
    let recursive = |argument: &String| argument.starts_with('-') && argument.contains(['r', 'R']);
    if program == "rm" && via_xargs && arguments.iter().any(recursive) {
        let named: Vec<&str> = input.whole_text().map_or_else(Vec::new, |text| text.split_whitespace().collect());
        if named.is_empty() {
            bash.found(&COMPUTED, command.at, "xargs rm");
        }
        for path in named {
            if let Some(rule) = places::path(path, Act::RemoveTree, bash.findings.declared) {
                bash.found(rule, command.at, path);
            }
        }
    }
    if ["tee", "dd"].contains(&program.as_str()) && (input.taint.has(Taint::REMOTE) || input.taint.has(Taint::DECODED))
    {
        bash.downloads
            .extend(arguments.iter().map(|argument| base_name(argument.trim_start_matches("of=")).to_owned()));
    }
    outcome(bash, &program, &arguments, words, command)
}

/// Texts among the words that mean something wherever they stand.
fn literals(bash: &mut Bash<'_, '_, '_>, words: &[Value], at: usize) {
    for word in words.iter().take(256) {
        for text in word.texts.clone() {
            if places::is_address(&text) {
                let rule = places::address(&text, bash.findings.declared);
                if let Some(rule) = rule.filter(|rule| rule.id != CONNECT.id) {
                    bash.found(rule, at, &text);
                }
            }
            if let Some(rule) = places::is_sensitive(text.trim_start_matches('@')) {
                let rule = if rule.id == HOST.id { rule } else { &CREDENTIAL_PATH };
                bash.found(rule, at, &text);
            }
        }
    }
}

pub(super) fn taint_of(words: &[Value]) -> Taint {
    words.iter().fold(Taint::default(), |taint, word| taint.with(word.taint))
}

/// What a command does besides its output.
fn effects(bash: &mut Bash<'_, '_, '_>, program: &str, arguments: &[String], words: &[Value], at: usize) {
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let short = |letter: char| {
        arguments
            .iter()
            .any(|argument| argument.starts_with('-') && !argument.starts_with("--") && argument.contains(letter))
    };
    let plain: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let after =
        |flag: &str| arguments.iter().position(|argument| argument == flag).and_then(|index| arguments.get(index + 1));
    let name = if program.starts_with("mkfs.") { "mkfs" } else { program };
    if let Some((rule, _)) = PROGRAMS.iter().find(|(_, programs)| is_one_of(name, programs)) {
        let harmless = match program {
            "kill" => has("-0") || has("-l"),
            "perl" => !short('e'),
            "mount" => arguments.is_empty(),
            "at" => arguments.is_empty(),
            _ => false,
        };
        if !harmless {
            bash.found(rule, at, program);
        }
    }
    let verbs = INSTALLERS.iter().find(|(programs, _)| is_one_of(program, programs)).map(|(_, verbs)| *verbs);
    if verbs.is_some_and(|verbs| verbs.is_empty() || plain.first().is_some_and(|verb| is_one_of(verb, verbs))) {
        bash.found(&INSTALL, at, program);
    }
    if is_one_of(program, NETWORK) {
        network(bash, program, arguments, words, at);
    }
    if is_shell(program) || runs_input(program) {
        runs(bash, program, arguments, words, at);
    }
    let here = bash.here.clone();
    let mut use_path = |path: &str, act: Act| {
        if let Some(rule) = places::path(path, act, bash.findings.declared) {
            bash.found(rule, at, path);
        }
    };
    match program {
        "rm" | "rmdir" | "unlink" => {
            let tree = short('r') || short('R') || has("--recursive");
            // Of a function's parameter, all that it may be.
            let paths = words.iter().skip(1).flat_map(|word| word.texts.iter()).filter(|path| !path.starts_with('-'));
            for path in paths {
                let path = here.as_deref().filter(|_| places::is_here(path)).unwrap_or(path);
                use_path(path, if tree { Act::RemoveTree } else { Act::Remove });
            }
            if plain.iter().any(|path| path.contains("_history") || path.starts_with("/var/log")) {
                bash.found(&TRACES, at, "");
            }
        }
        "chmod" | "chown" | "chgrp" => {
            let tree = short('R');
            plain.iter().skip(1).for_each(|path| use_path(path, if tree { Act::RemoveTree } else { Act::Write }));
            let mode = plain.first().map_or("", |mode| mode.as_str());
            let numeric =
                mode.len() == 4 && mode.starts_with(['4', '6', '2']) && mode.chars().all(|c| c.is_ascii_digit());
            if program == "chmod" && (mode.contains("+s") || numeric) {
                bash.found(&SYSTEM, at, "set-user-id");
            }
        }
        "mv" | "cp" | "ln" | "install" | "rsync" | "scp" => {
            let count = plain.len();
            for (index, path) in plain.iter().enumerate() {
                use_path(path, if index + 1 == count { Act::Write } else { Act::Read });
            }
        }
        "tee" | "truncate" | "touch" | "mkdir" => plain.iter().for_each(|path| use_path(path, Act::Write)),
        "sed" if short('i') => plain.iter().skip(1).for_each(|path| use_path(path, Act::Write)),
        "dd" => {
            for argument in arguments {
                if let Some(path) = argument.strip_prefix("of=") {
                    use_path(path, Act::Write);
                } else if let Some(path) = argument.strip_prefix("if=") {
                    use_path(path, Act::Read);
                }
            }
        }
        "cd" | "pushd" => {
            let path = words.get(1).map_or(Some("~"), Value::whole_text);
            // Above where we are is not above where we began.
            bash.here = path.filter(|path| !path.starts_with(['.', '-'])).map(str::to_owned);
        }
        "set" => {
            if let Some(place) = arguments.iter().position(|argument| argument == "--") {
                let function = bash.function().to_owned();
                if !bash.calls.add(&function, words.get(place + 2..).unwrap_or_default()) {
                    bash.found(&LIMIT, at, "set --");
                }
            }
        }
        "read" => {
            let names = plain.iter().map(|name| (*name).clone()).collect();
            bash.reads.push((at, names));
        }
        "awk" | "gawk" | "mawk" | "nawk" => {
            for (start, _) in plain.first().map_or("", |script| script).match_indices("system(").take(16) {
                bash.found(&SHELL, at, program);
                let code = plain.first().map_or("", |script| &script[start..]);
                embed(bash, "bash", code.split('"').nth(1).unwrap_or_default(), at);
            }
        }
        "find" => {
            let deletes = has("-delete") || has("rm");
            let act = if deletes { Act::RemoveTree } else { Act::Read };
            plain.iter().take(1).for_each(|path| use_path(path, act));
            let names = after("-name").or(after("-iname")).map_or("", String::as_str);
            if ["id_rsa", "*.pem", "*.key", "wallet.dat", "*.kdbx", ".env", "credentials"].contains(&names) {
                bash.found(&CREDENTIAL, at, names);
            }
            if let Some(start) =
                arguments.iter().position(|argument| ["-exec", "-execdir", "-ok"].contains(&argument.as_str()))
            {
                let inner: Vec<Value> = words.iter().skip(start + 2).cloned().collect();
                if let Some(inner_program) =
                    inner.first().and_then(Value::first_text).map(|name| base_name(name).to_owned())
                {
                    let inner_arguments: Vec<String> =
                        inner.iter().skip(1).map(|word| word.first_text().unwrap_or("\u{0}").to_owned()).collect();
                    if inner_program != "find" {
                        effects(bash, &inner_program, &inner_arguments, &inner, at);
                    }
                }
            }
        }
        "crontab" if !has("-l") => bash.found(&PERSIST, at, program),
        "systemctl" | "service" => {
            let stops = plain.iter().any(|word| ["stop", "disable", "mask"].contains(&word.as_str()));
            bash.found(if stops { &TRACES } else { &PERSIST }, at, program);
        }
        "history" if short('c') || short('w') => bash.found(&TRACES, at, program),
        "journalctl" if arguments.iter().any(|argument| argument.starts_with("--vacuum")) => {
            bash.found(&TRACES, at, program)
        }
        "sysctl" if short('w') => bash.found(&HOST, at, program),
        "docker" | "podman" | "nerdctl" | "kubectl" => {
            let text = arguments.join(" ");
            let host = [
                "--privileged",
                "--pid=host",
                "--pid host",
                "-v /:",
                "docker.sock",
                "--cap-add",
                "--volume /:",
                "source=/,",
                "hostPID",
                "--net=host",
            ];
            let breaks = host.iter().any(|flag| text.contains(flag));
            bash.found(if breaks { &HOST } else { &SPAWN }, at, program);
        }
        "git" => {
            if has("config") && (has("--global") || has("--system"))
                || arguments.iter().any(|a| {
                    a.contains("core.hooksPath") || a.contains("core.sshCommand") || a.contains("core.fsmonitor")
                })
            {
                bash.found(&PERSIST, at, "git config");
            }
            if has("clone") || has("push") || has("pull") || has("fetch") || has("submodule") {
                addresses(bash, program, arguments, at);
            }
        }
        "gpg" if arguments.iter().any(|argument| argument.contains("export-secret")) => {
            bash.found(&CREDENTIAL, at, program)
        }
        "security"
            if arguments.iter().any(|argument| argument.contains("password") || argument.contains("keychain")) =>
        {
            bash.found(&CREDENTIAL, at, program)
        }
        "gcloud" | "aws" | "az" | "gh" | "vault" | "op" => {
            let text = arguments.join(" ");
            let gives = [
                "print-access-token",
                "auth token",
                "get-session-token",
                "get-access-token",
                "get-secret-value",
                "export-credentials",
                "assume-role",
                "item get",
                "kv get",
            ];
            bash.found(if gives.iter().any(|verb| text.contains(verb)) { &CREDENTIAL } else { &CONNECT }, at, program);
        }
        "alias" | "trap" => {
            for argument in arguments {
                let code =
                    if program == "alias" { argument.split_once('=').map_or("", |(_, code)| code) } else { argument };
                embed(bash, "bash", code, at);
            }
            if program == "alias"
                && arguments
                    .iter()
                    .any(|argument| ["sudo=", "ssh=", "su="].iter().any(|name| argument.starts_with(name)))
            {
                bash.found(&PATCH, at, "alias");
            }
        }
        "enable" if short('f') => bash.found(&NATIVE, at, program),
        "ld.so" | "ldconfig" => bash.found(&NATIVE, at, program),
        _ if program.starts_with("ld-linux") => bash.found(&NATIVE, at, program),
        _ => {}
    }
    if is_one_of(program, READERS) && program != "cp" && program != "dd" {
        // A pattern or a script comes first for some, and is no path.
        let skip = usize::from(["grep", "egrep", "fgrep", "rg", "awk", "sed", "jq"].contains(&program));
        for path in plain.iter().skip(skip).filter(|path| program != "find" && !path.is_empty()) {
            if let Some(rule) = places::path(path, Act::Read, bash.findings.declared) {
                bash.found(rule, at, path);
            }
        }
    }
}

/// Interpreters, `eval`, `source`.
fn runs(bash: &mut Bash<'_, '_, '_>, program: &str, arguments: &[String], words: &[Value], at: usize) {
    let taint = taint_of(words.get(1..).unwrap_or_default());
    let flag = arguments.iter().position(|argument| match program {
        "python" | "python3" | "python2" => {
            argument.starts_with('-') && !argument.starts_with("--") && argument.ends_with('c')
        }
        "node" => ["-e", "--eval", "-p", "--print", "-pe"].contains(&argument.as_str()),
        "perl" | "ruby" | "lua" => argument.starts_with('-') && argument.ends_with('e'),
        "php" => argument == "-r",
        shell if is_shell(shell) => argument.starts_with('-') && !argument.starts_with("--") && argument.ends_with('c'),
        _ => false,
    });
    let code: Option<Value> = match (program, flag) {
        ("eval", _) => {
            Some(words.iter().skip(1).fold(Value::text(""), |sum, word| sum.concat(&Value::text(" ")).concat(word)))
        }
        (_, Some(index)) => words.get(index + 2).cloned(),
        _ => None,
    };
    let executes = code.is_some() || ["source", "."].contains(&program) || is_shell(program);
    if executes && taint.has(Taint::DECODED) {
        bash.found(&DECODED, at, program);
    } else if executes && taint.has(Taint::REMOTE)
        || code.is_none() && arguments.iter().any(|argument| bash.downloads.contains(base_name(argument)))
    {
        bash.found(&REMOTE_CODE, at, program);
    }
    if let Some(code) = code {
        match code.first_text().map(str::to_owned) {
            Some(text) => {
                if text.trim_matches([HOLE, ' ', '{', '}']).is_empty() || program == "eval" && text.contains(HOLE) {
                    bash.found(&DYNAMIC, at, program);
                }
                embed(bash, program, &text, at);
            }
            None => bash.found(&DYNAMIC, at, program),
        }
    } else if ["source", "."].contains(&program) {
        let path = arguments.first().map_or("\u{0}", String::as_str);
        if path.starts_with(HOLE) {
            bash.found(&DYNAMIC, at, program);
        }
        if let Some(rule) = places::path(path, Act::Read, bash.findings.declared) {
            bash.found(rule, at, path);
        }
    }
}

/// Code in a word, in the language of the program that gets it.
fn embed(bash: &mut Bash<'_, '_, '_>, program: &str, code: &str, at: usize) {
    if !bash.reports {
        return;
    }
    let code = code.replace(HOLE, "_");
    let language = match program {
        "python" | "python3" | "python2" => Language::Python,
        "node" => Language::JavaScript,
        "perl" | "ruby" | "php" | "lua" => {
            let lower = code.to_ascii_lowercase();
            if ["socket", "fsockopen", "/dev/tcp"].iter().any(|word| lower.contains(word))
                && ["exec", "system", "sh", "popen"].iter().any(|word| lower.contains(word))
            {
                bash.found(&REMOTE_SHELL, at, program);
            } else {
                bash.found(&DYNAMIC, at, program);
            }
            return;
        }
        _ => Language::Bash,
    };
    bash.findings.embed(language, &code, at);
}

/// What a command writes to its output.
fn outcome(
    bash: &mut Bash<'_, '_, '_>,
    program: &str,
    arguments: &[String],
    words: &[Value],
    command: &Command<'_>,
) -> Value {
    let input = command.input;
    let has = |flags: &[&str]| arguments.iter().any(|argument| flags.contains(&argument.as_str()));
    let taint = taint_of(words).with(input.taint);
    match program {
        "echo" | "printf" => {
            let spelled = arguments
                .iter()
                .any(|argument| argument.contains("\\x") || argument.contains("\\1") || argument.contains("\\0"));
            let texts: Vec<&str> = arguments
                .iter()
                .map(String::as_str)
                .filter(|argument| !(argument.starts_with('-') && argument.len() < 4))
                .collect();
            let text = texts.join(" ");
            let text = if spelled { unescape(&text) } else { text };
            Value::text(text).with(taint).with(if spelled { Taint::DECODED } else { Taint::default() })
        }
        "base64" | "base32" | "basenc" if has(&["-d", "-D", "--decode", "-di"]) => {
            // Of a file when it names one.
            decoded(Codec::Base64, input, taint)
        }
        "xxd" if arguments.iter().any(|argument| argument.starts_with('-') && argument.contains('r')) => {
            decoded(Codec::Hex, input, taint)
        }
        "openssl" if has(&["-d"]) => decoded(Codec::Base64, input, taint),
        "rev" => input.map(|text| text.chars().rev().collect()).with(taint).with(Taint::DECODED),
        "tr" => {
            let rot13 = arguments.first().is_some_and(|set| set == "A-Za-z" || set == "a-zA-Z")
                && arguments.get(1).is_some_and(|set| set.starts_with("N-ZA-M") || set.starts_with("n-za-m"));
            let taint = if has(&["-d", "-s", "-dc", "-cd"]) { taint } else { taint.with(Taint::DECODED) };
            if rot13 { decoded(Codec::Rot13, input, taint) } else { Value::tainted(taint) }
        }
        "gunzip" | "zcat" | "bunzip2" | "bzcat" | "unxz" | "xzcat" | "uudecode" | "zstdcat" => {
            Value::tainted(taint.with(Taint::DECODED))
        }
        "gzip" | "bzip2" | "xz" | "gpg" | "zstd" | "age" if has(&["-d", "-dc", "-cd", "--decompress", "--decrypt"]) => {
            Value::tainted(taint.with(Taint::DECODED))
        }
        "env" | "printenv" | "set"
            if arguments.iter().all(|argument| argument.starts_with('-') && argument != "-i")
                && !arguments.iter().any(|argument| argument.len() > 1 && program == "set") =>
        {
            bash.found(&ENV_ALL, command.at, program);
            Value::tainted(Taint::GATHERED)
        }
        "compgen" | "export" if has(&["-e", "-p"]) => {
            bash.found(&ENV_ALL, command.at, program);
            Value::tainted(Taint::GATHERED)
        }
        "whoami" | "hostname" | "id" | "uname" | "ifconfig" | "ip" | "ps" | "netstat" | "ss" | "lsof" | "last"
        | "w" | "who" | "arp" | "dmesg" | "lscpu" | "crontab" => Value::tainted(taint.with(Taint::GATHERED)),
        "cat" | "head" | "tail" | "less" | "tac" | "grep" | "awk" | "sed" | "strings" | "sort" | "xxd" | "base64"
        | "tar" | "gzip" | "find" | "zip" | "jq" | "cut" => {
            let gathered = arguments.iter().filter(|argument| !argument.starts_with('-')).any(|path| {
                places::path(path, Act::Read, bash.findings.declared)
                    .is_some_and(|rule| rule.id != OUTSIDE.id || path.starts_with("/etc") || path.starts_with('~'))
            });
            let taint = if gathered { taint.with(Taint::GATHERED) } else { taint };
            // Through these a text comes as it is.
            let texts = if ["cat", "head", "tail"].contains(&program)
                && arguments.iter().all(|argument| argument.starts_with('-'))
            {
                input.texts.clone()
            } else {
                Vec::new()
            };
            Value { texts, taint, ..Value::default() }
        }
        "curl" | "wget" | "nc" | "ncat" | "http" | "dig" | "nslookup" | "aria2c" | "lynx" | "w3m" | "ssh" | "socat"
        | "telnet" => Value::tainted(Taint::REMOTE),
        "eval" | "cd" | "mkdir" | "rm" => Value::default(),
        _ => Value::tainted(taint),
    }
}

fn decoded(codec: Codec, input: &Value, taint: Taint) -> Value {
    let texts = input.texts.iter().filter_map(|text| decode::decode(codec, text.trim())).map(Into::into).collect();
    Value { texts, taint: taint.with(Taint::DECODED), ..Value::default() }
}
