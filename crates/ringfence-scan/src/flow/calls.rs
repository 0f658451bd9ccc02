//! What functions of the outside world do when they are called.

use std::rc::Rc;

use super::super::Language;
use super::super::apis::Effect;
use super::super::bash;
use super::super::decode::Codec;
use super::super::places::{self, Act};
use super::super::rules::*;
use super::super::value::{HOLE, Taint, Value};
use super::text::{characters, decoded, join};
use super::{Flow, HOOKS, module_name};

impl Flow<'_, '_> {
    /// Something calls a function that was handed to it. One that hands on in turn ends here.
    pub(super) fn hand(&mut self, function: &Value, arguments: &[Value], at: usize) {
        for name in function.names.iter().take(4) {
            if let Some(effect) = self.apis.effect(name).filter(|effect| !matches!(effect, Effect::Later)) {
                self.apply(name, effect, function, arguments, at);
            }
        }
    }

    /// What a function of the outside world does.
    pub(super) fn apply(
        &mut self,
        name: &str,
        effect: Effect,
        callee: &Value,
        arguments: &[Value],
        at: usize,
    ) -> Value {
        let empty = Value::default();
        let plain: Vec<&Value> = arguments.iter().filter(|argument| argument.label.is_none()).collect();
        let first = plain.first().copied().or(arguments.first()).unwrap_or(&empty);
        let second = plain.get(1).copied().unwrap_or(&empty);
        let all = arguments.iter().fold(Taint::default(), |taint, argument| taint.with(argument.taint));
        let labelled = |label: &str| arguments.iter().find(|argument| argument.label.as_deref() == Some(label));
        match effect {
            Effect::Find(rule) | Effect::Calls(rule) => self.found(rule, at, name),
            Effect::Spawn | Effect::Shell => {
                let shell = matches!(effect, Effect::Shell)
                    || labelled("shell").is_some()
                    || second.items.is_none() && nested(arguments, "shell");
                return self.start(name, shell, first, second, arguments, at);
            }
            Effect::Eval => self.evaluate(name, first, all, at),
            Effect::Import => return self.import(name, first, at),
            Effect::Member => {
                // `operator.methodcaller("system")` has only a name.
                if let Some(text) = second.whole_text() {
                    let text = text.to_owned();
                    self.pieces(first, second, &text, at);
                    return self.member(first, &text, at);
                }
                if self.is_powerful(first) {
                    let rule = if second.taint.has(Taint::DECODED) { &DECODED } else { &REFLECTION };
                    self.found(rule, at, name);
                }
            }
            Effect::SetMember => {
                if let Some(text) = second.first_text() {
                    let text = text.to_owned();
                    self.assign_member(first, &text, at);
                } else if self.is_powerful(first) {
                    self.found(&PATCH, at, name);
                }
            }
            Effect::Names => {
                return match first.names.is_empty() {
                    true if arguments.is_empty() => Value::name("()"),
                    true => Value::tainted(all),
                    false => Value { names: first.names.clone(), ..Value::default() },
                };
            }
            Effect::Decode(codec) => return decoded(codec, first),
            Effect::DecodeBy => {
                let codec = match second.first_text().or(labelled("encoding").and_then(|value| value.first_text())) {
                    Some("base64" | "base64url" | "base64_codec") => Codec::Base64,
                    Some("hex" | "hex_codec") => Codec::Hex,
                    Some("rot13" | "rot_13") => Codec::Rot13,
                    Some("zlib" | "bz2" | "uu" | "unicode_escape" | "latin1" | "binary") => Codec::Opaque,
                    None if first.items.is_some() => return characters(first),
                    _ => return Value { label: None, pending: false, ..first.clone() },
                };
                return decoded(codec, first);
            }
            Effect::Characters if arguments.len() > 1 && self.language != Language::Python => {
                return characters(&Value::list(arguments.to_vec()));
            }
            Effect::Characters => return characters(first),
            Effect::Join => {
                // `new URL(path, base)`.
                let reversed = name == "URL" && arguments.len() == 2;
                let joined = if reversed { join(&[second.clone(), first.clone()]) } else { join(arguments) };
                return Value {
                    names: if name.starts_with("pathlib") { vec!["pathlib.Path()".into()] } else { Vec::new() },
                    ..joined
                };
            }
            Effect::Same => return Value { label: None, pending: false, ..first.clone() },
            Effect::Text(text) => {
                let names = if name.starts_with("pathlib") { vec!["pathlib.Path()".into()] } else { Vec::new() };
                return Value { names, ..Value::text(text) };
            }
            Effect::Connect => return self.connect(name, arguments, all, at),
            Effect::Socket => return Value::tainted(Taint::SOCKET),
            Effect::Receive => return Value::tainted(Taint::REMOTE),
            Effect::Getter => {
                if let Some(text) = callee.whole_text() {
                    let text = text.to_owned();
                    return self.member(first, &text, at);
                }
            }
            Effect::Caller => {
                if let Some(text) = callee.whole_text() {
                    let text = text.to_owned();
                    let member = self.member(first, &text, at);
                    self.refer(&member, at);
                }
            }
            Effect::Later => {
                // `Thread(target=f, args=(x,))`, `Timer(5, f, [x])`, `start_new_thread(f, (x,))`.
                let place = usize::from(name.ends_with("Timer"));
                let function = labelled("target").or(labelled("function")).or(plain.get(place).copied());
                let list = labelled("args").or(plain.get(place + 1).copied()).and_then(|list| list.items.clone());
                if let Some(function) = function {
                    self.hand(function, list.as_deref().unwrap_or_default(), at);
                }
            }
            Effect::Partial => {
                let bound = Value::list(arguments.get(1..).unwrap_or_default().to_vec());
                let depth = first.depth.max(bound.depth);
                return Value { label: None, pending: false, items: bound.items, depth, ..first.clone() };
            }
            Effect::Enter => self.here = first.texts.first().cloned(),
            Effect::SetVariable => {
                let items = arguments.iter().flat_map(|argument| argument.items.iter().flat_map(|items| items.iter()));
                let labels = arguments.iter().chain(items).filter_map(|value| value.label.as_deref());
                let hook = labels.chain(first.first_text()).find(|name| HOOKS.contains(name)).map(str::to_owned);
                if let Some(hook) = hook {
                    self.found(&ENV_HOOK, at, &hook);
                }
            }
            Effect::Duplicate => {
                if all.has(Taint::SOCKET) || callee.taint.has(Taint::SOCKET) {
                    self.found(&REMOTE_SHELL, at, name);
                }
            }
            Effect::Load | Effect::LoadUnlessSafe => {
                if matches!(effect, Effect::LoadUnlessSafe) && is_safe_load(name, arguments) {
                    return Value::default();
                }
                let foreign = first.taint.has(Taint::REMOTE) || first.taint.has(Taint::DECODED);
                self.found(if foreign { &DESERIALISE_FOREIGN } else { &DESERIALISE }, at, name);
                return Value::tainted(all.with(if name.starts_with("marshal") {
                    Taint::DECODED
                } else {
                    Taint::default()
                }));
            }
            Effect::Open | Effect::Read | Effect::Write | Effect::Remove | Effect::RemoveTree | Effect::Copy => {
                return self.file(name, effect, callee, arguments, at);
            }
            Effect::Environment => {
                self.found(&ENV_ALL, at, name);
                return Value::tainted(Taint::GATHERED);
            }
            Effect::Variable => {
                return match first.whole_text() {
                    Some(variable) => self.variable(variable, at),
                    None => {
                        self.found(&ENV, at, name);
                        Value::default()
                    }
                };
            }
        }
        Value::tainted(all)
    }

    /// Programs and shells; what comes out of them.
    fn start(
        &mut self,
        name: &str,
        shell: bool,
        first: &Value,
        second: &Value,
        arguments: &[Value],
        at: usize,
    ) -> Value {
        let all = arguments.iter().fold(Taint::default(), |taint, argument| taint.with(argument.taint));
        let input = arguments.iter().find(|argument| argument.label.as_deref() == Some("input"));
        let input = input.map_or(Taint::default(), |input| input.taint);
        let listed = first.items.as_deref().or(second.items.as_deref().filter(|_| !shell));
        let words: Vec<&Value> = match (&first.items, listed) {
            (None, Some(list)) => std::iter::once(first).chain(list).collect(),
            (_, list) => list.into_iter().flatten().collect(),
        };
        // What a program gets is data to it, unless it runs what it gets.
        let program = |word: &&Value| word.whole_text().map(bash::base_name).map(str::to_owned);
        let fixed = !shell
            && words.first().and_then(program).is_some()
            && !words.iter().filter_map(program).any(|word| bash::runs_other(&word));
        let code = match words.first() {
            Some(program) if fixed => program.taint,
            Some(_) => words.iter().fold(input, |taint, word| taint.with(word.taint)),
            None => first.taint.with(input),
        };
        let rule = match () {
            () if all.has(Taint::SOCKET) => &REMOTE_SHELL,
            () if code.has(Taint::DECODED) => &DECODED,
            () if code.has(Taint::REMOTE) => &REMOTE_CODE,
            () if shell => &SHELL,
            () => &SPAWN,
        };
        self.found(rule, at, name);
        // What is known of the command line is read as a shell would.
        let lines: Vec<String> = match words.is_empty() {
            true => first.texts.iter().map(|text| (**text).to_owned()).collect(),
            false => {
                let words = words.iter().map(|word| quoted(word.first_text().unwrap_or("\u{0}")));
                vec![words.collect::<Vec<_>>().join(" ")]
            }
        };
        if self.reports {
            for line in lines.iter().take(2) {
                self.findings.embed(Language::Bash, &line.replace(HOLE, "_"), at);
            }
        }
        let fetched = lines.iter().any(|line| bash::fetches(line));
        Value::tainted(if fetched { all.with(Taint::REMOTE) } else { all })
    }

    /// Text as code.
    fn evaluate(&mut self, name: &str, code: &Value, all: Taint, at: usize) {
        if name.starts_with("timeit.") && code.texts.is_empty() {
            return;
        }
        // Of `setTimeout(f)` and `new Worker("file.js")` only text that is code counts.
        if name.ends_with("Worker")
            && !code.taint.has(Taint::DECODED)
            && code.first_text().is_none_or(|text| !text.contains('('))
        {
            return;
        }
        let compiles = name.ends_with("compile");
        let rule = match () {
            () if all.has(Taint::DECODED) => &DECODED,
            () if all.has(Taint::REMOTE) => &REMOTE_CODE,
            () if compiles && code.whole_text().is_some() => return,
            () => &DYNAMIC,
        };
        self.found(rule, at, name);
        if self.reports {
            for text in code.texts.clone().iter().take(2) {
                self.findings.embed(self.language, &text.replace(HOLE, "_"), at);
            }
        }
    }

    fn import(&mut self, name: &str, module: &Value, at: usize) -> Value {
        let texts: Vec<String> =
            module.texts.iter().filter(|text| !text.contains(HOLE)).map(|text| (**text).to_owned()).collect();
        if texts.is_empty() {
            let rule = match () {
                () if module.taint.has(Taint::DECODED) => &DECODED,
                () if module.taint.has(Taint::REMOTE) => &REMOTE_CODE,
                () => &IMPORT,
            };
            self.found(rule, at, name);
            return Value::default();
        }
        if module.taint.has(Taint::PIECES) && !texts.iter().any(|text| text.starts_with(['.', '/'])) {
            self.found(&PIECES, at, &texts.join(" "));
        }
        if name.contains("mainModule") || name.contains("constructor") {
            self.found(&ESCAPE, at, name);
        }
        if self.language != Language::Python {
            for text in &texts {
                if text.ends_with(".node") {
                    self.found(&NATIVE, at, text);
                }
                if places::is_address(text) {
                    self.found(&REMOTE_CODE, at, text);
                }
            }
            return Value {
                names: texts.iter().map(|text| module_name(text).into()).collect(),
                pending: true,
                ..Value::default()
            };
        }
        // `__import__("a.b")` is `a`, `import_module("a.b")` is `a.b`.
        let of = |text: &String| {
            if name.contains("__import__") {
                text.split('.').next().unwrap_or_default().to_owned()
            } else {
                text.replace(':', ".")
            }
        };
        Value { names: texts.iter().map(|text| Rc::from(of(text))).collect(), ..Value::default() }
    }

    /// Addresses among the arguments.
    fn connect(&mut self, name: &str, arguments: &[Value], all: Taint, at: usize) -> Value {
        let mut addresses: Vec<Rc<str>> = Vec::new();
        let mut relative = false;
        for (index, argument) in arguments.iter().enumerate() {
            gather(argument, index == 0, 0, &mut addresses, &mut relative);
        }
        let declared = self.findings.declared;
        let mut rules: Vec<(&'static Rule, &str)> =
            addresses.iter().filter_map(|text| places::address(text, declared).map(|rule| (rule, &**text))).collect();
        // Neither an address nor a path below one that was given before.
        let sessions =
            ["Session()", "session()", "Client()", "ClientSession()", "create()"].iter().any(|of| name.contains(of));
        let makes = ["Client", "AsyncClient", "create", "Redis", "MongoClient", "ioredis", "extend"]
            .iter()
            .any(|of| name.ends_with(of));
        if addresses.is_empty()
            && !(relative && sessions)
            && (!sessions || is_verb(name))
            && !(makes && arguments.iter().all(|a| a.texts.is_empty() && a.items.is_none()))
        {
            rules.push((&CONNECT, "a computed address"));
        }
        let undeclared = !rules.is_empty();
        self.reaches_out |= undeclared;
        for (rule, text) in rules {
            let text = text.to_owned();
            self.found(rule, at, &text);
        }
        if undeclared && all.has(Taint::GATHERED) {
            self.found(&EXFILTRATION, at, name);
        }
        let socket = ["net.", "tls.", "socket.", "WebSocket", "ws"].iter().any(|start| name.starts_with(start));
        Value::tainted(if socket { Taint::REMOTE.with(Taint::SOCKET) } else { Taint::REMOTE })
    }

    fn file(&mut self, name: &str, effect: Effect, callee: &Value, arguments: &[Value], at: usize) -> Value {
        let empty = Value::default();
        // Of a path object the path is the object itself.
        let object =
            callee.member.as_ref().filter(|member| member.0.names.iter().any(|name| &**name == "pathlib.Path()"));
        let (path, mode) = match object {
            Some(member) => (&member.0, arguments.first()),
            None => (arguments.first().unwrap_or(&empty), arguments.get(1)),
        };
        let mode = arguments.iter().find(|a| matches!(a.label.as_deref(), Some("mode" | "flags"))).or(mode);
        let writes =
            mode.and_then(Value::first_text).is_some_and(|mode| mode.len() < 5 && mode.contains(['w', 'a', 'x', '+']));
        let recursive = nested(arguments, "recursive") || !name.starts_with("fs.");
        let act = match effect {
            Effect::Open if writes => Act::Write,
            Effect::Write => Act::Write,
            Effect::Remove => Act::Remove,
            Effect::RemoveTree if recursive => Act::RemoveTree,
            Effect::RemoveTree => Act::Remove,
            _ => Act::Read,
        };
        let declared = self.findings.declared;
        let mut taint = Taint::default();
        let mut uses: Vec<(&Value, Act)> = vec![(path, act)];
        if matches!(effect, Effect::Copy) {
            uses.extend(arguments.get(1).map(|target| (target, Act::Write)));
        }
        for (path, act) in uses {
            for text in path.texts.clone() {
                let text = match &self.here {
                    Some(here) if places::is_here(&text) => here.clone(),
                    _ => text,
                };
                if let Some(rule) = places::path(&text, act, declared) {
                    self.found(rule, at, &text);
                    if act == Act::Read {
                        taint = taint.with(Taint::GATHERED);
                    }
                }
            }
        }
        // What is found by walking through the user's files, and then changed.
        if act != Act::Read && path.taint.has(Taint::GATHERED) {
            self.found(&DESTROY, at, "files that were found outside");
        }
        if taint == Taint::default() && path.texts.is_empty() {
            taint = path.taint;
        }
        Value::tainted(taint)
    }
}

/// Addresses in an argument, in lists and objects too.
fn gather(value: &Value, main: bool, depth: usize, addresses: &mut Vec<Rc<str>>, relative: &mut bool) {
    let label = value.label.as_deref();
    let is_host =
        matches!(label, Some("host" | "hostname" | "url" | "baseURL" | "base_url" | "uri" | "server" | "endpoint_url"));
    for text in &value.texts {
        let hole = text.starts_with(HOLE);
        if places::is_address(text) || is_host && !text.starts_with('/') && !hole {
            addresses.push(text.clone());
        } else if main && (text.starts_with('/') || hole) {
            *relative |= text.starts_with('/');
        } else if main && label.is_none() && looks_like_host(text) {
            addresses.push(text.clone());
        }
    }
    if depth < 3 {
        for (index, item) in value.items.iter().flat_map(|items| items.iter()).enumerate().take(64) {
            gather(item, main && index == 0, depth + 1, addresses, relative);
        }
    }
}

fn looks_like_host(text: &str) -> bool {
    !text.is_empty()
        && ![
            "get", "post", "put", "patch", "delete", "head", "options", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD",
        ]
        .contains(&text)
        && !text.contains(' ')
}

fn is_verb(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    ["get", "post", "put", "patch", "delete", "head", "options", "request", "send", "stream"].contains(&last)
}

/// Whether an argument, or an object among the arguments, has this label.
fn nested(arguments: &[Value], label: &str) -> bool {
    arguments.iter().any(|argument| {
        argument.label.as_deref() == Some(label)
            || argument.items.iter().flat_map(|items| items.iter()).any(|item| item.label.as_deref() == Some(label))
    })
}

fn is_safe_load(name: &str, arguments: &[Value]) -> bool {
    let safe_class =
        |value: &Value| value.names.iter().any(|name| name.contains("Safe") || name.contains("BaseLoader"));
    let labelled = |label: &str| arguments.iter().any(|argument| argument.label.as_deref() == Some(label));
    match name {
        "yaml.load" => arguments.iter().skip(1).any(safe_class),
        "torch.load" => labelled("weights_only"),
        _ => !labelled("allow_pickle"),
    }
}

/// A word for the shell.
fn quoted(text: &str) -> String {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-_./:=@%+,~".contains(c));
    if plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}
