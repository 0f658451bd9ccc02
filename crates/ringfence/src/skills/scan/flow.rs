//! What names, texts and calls stand for, for languages with expressions: import aliases, constants, simple functions.
//!
//! The source is gone through several times. What a name was bound to is kept from one time to the next, so that the order
//! of definition and use does not matter; findings are only made the last time.

use std::collections::HashMap;
use std::rc::Rc;

use super::apis::{Apis, Effect};
use super::bash;
use super::decode::{self, Codec};
use super::places::{self, Act};
use super::rules::*;
use super::value::{HOLE, Taint, Value};
use super::{Findings, Language};

/// How often a source is gone through.
pub const ROUNDS: usize = 4;
/// Names with these words in them are for secrets.
const SECRET_WORDS: &[&str] =
    &["SECRET", "TOKEN", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "PRIVATE_KEY", "ACCESS_KEY", "CREDENTIAL", "AUTH"];
/// Variables that make programs load code.
const HOOKS: &[&str] = &[
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "PYTHONSTARTUP",
    "NODE_OPTIONS",
    "BASH_ENV",
    "GIT_SSH_COMMAND",
    "PROMPT_COMMAND",
    "PERL5OPT",
    "PYTHONINSPECT",
];
/// Members that lead from any object into the interpreter.
const CLIMBS: &[&str] = &[
    "__subclasses__",
    "__globals__",
    "__builtins__",
    "__bases__",
    "__mro__",
    "f_globals",
    "f_builtins",
    "f_back",
    "gi_frame",
    "cr_frame",
    "__loader__",
    "tb_frame",
    "func_globals",
    "__reduce__",
    "__reduce_ex__",
];
/// Those of them that honest code uses.
const MILD: &[&str] = &[
    "__bases__",
    "__mro__",
    "f_back",
    "__loader__",
    "__reduce__",
    "__reduce_ex__",
    "tb_frame",
    "f_globals",
    "gi_frame",
    "cr_frame",
];
/// Modules whose members are worth hiding.
const POWERFUL: &[&str] = &[
    "os",
    "sys",
    "subprocess",
    "builtins",
    "socket",
    "ctypes",
    "shutil",
    "importlib",
    "posix",
    "child_process",
    "process",
    "fs",
    "net",
    "globalThis",
    "pty",
];

/// Modules that other modules import.
const IMPORTED: &[&str] =
    &["os", "sys", "subprocess", "builtins", "socket", "ctypes", "shutil", "importlib", "posix", "pickle"];

/// A function of the source.
#[derive(Debug, Default)]
struct Function {
    parameters: Vec<(Rc<str>, Value)>,
    returns: Value,
}

/// What is known while going through a source.
pub struct Flow<'f, 's> {
    pub findings: &'f mut Findings<'s>,
    pub apis: &'static Apis,
    pub language: Language,
    /// The last time through.
    pub reports: bool,
    /// Functions that we are in, from the outside; the first is the module itself.
    inside: Vec<usize>,
    names: HashMap<(usize, Rc<str>), Value>,
    functions: Vec<Function>,
    by_place: HashMap<usize, usize>,
    /// Modules all of whose names were imported.
    pub stars: Vec<Rc<str>>,
    /// A host was reached that was not declared.
    reaches_out: bool,
    /// The directory that was gone to last.
    here: Option<Rc<str>>,
}

impl<'f, 's> Flow<'f, 's> {
    pub fn new(language: Language, apis: &'static Apis, findings: &'f mut Findings<'s>) -> Flow<'f, 's> {
        Flow {
            findings,
            apis,
            language,
            reports: false,
            inside: vec![0],
            names: HashMap::new(),
            functions: vec![Function::default()],
            by_place: HashMap::new(),
            stars: Vec::new(),
            reaches_out: false,
            here: None,
        }
    }

    pub fn begin(&mut self, last: bool) {
        self.reports = last;
        self.inside = vec![0];
        self.here = None;
    }

    pub fn found(&mut self, rule: &'static Rule, at: usize, detail: &str) {
        if self.reports {
            self.findings.add(rule, at, &detail.replace(HOLE, "…"));
        }
    }

    // Names.

    pub fn enter_function(&mut self, at: usize) {
        let next = self.functions.len();
        let id = *self.by_place.entry(at).or_insert(next);
        if id == next {
            self.functions.push(Function::default());
        }
        self.inside.push(id);
    }

    /// Leaves a function; what stands for it.
    pub fn leave_function(&mut self) -> Value {
        if self.inside.len() < 2 {
            return Value::default();
        }
        Value { function: self.inside.pop(), ..Value::default() }
    }

    /// A parameter of the function that we are in; it may be what callers hand over.
    pub fn parameter(&mut self, name: &str) {
        let id = self.inside.last().copied().unwrap_or(0);
        let function = &mut self.functions[id];
        let index = function.parameters.iter().position(|(known, _)| &**known == name).unwrap_or_else(|| {
            function.parameters.push((name.into(), Value::default()));
            function.parameters.len() - 1
        });
        let value = function.parameters[index].1.clone();
        self.names.entry((id, name.into())).or_default().merge(&value);
    }

    pub fn returns(&mut self, value: &Value) {
        let id = self.inside.last().copied().unwrap_or(0);
        if id > 0 {
            self.functions[id].returns.merge(value);
        }
    }

    pub fn bind(&mut self, name: &str, value: &Value) {
        let id = self.inside.last().copied().unwrap_or(0);
        self.names.entry((id, name.into())).or_default().merge(value);
    }

    /// Binds where the name is known already.
    pub fn rebind(&mut self, name: &str, value: &Value) {
        let key: Rc<str> = name.into();
        let known = self.inside.iter().rev().copied().find(|id| self.names.contains_key(&(*id, key.clone())));
        let id = known.or(self.inside.last().copied()).unwrap_or(0);
        self.names.entry((id, key)).or_default().merge(value);
    }

    /// For `self.x = …`: known everywhere.
    pub fn bind_everywhere(&mut self, name: &str, value: &Value) {
        self.names.entry((0, name.into())).or_default().merge(value);
    }

    pub fn known(&self, name: &str) -> Option<&Value> {
        let key: Rc<str> = name.into();
        self.inside.iter().rev().find_map(|id| self.names.get(&(*id, key.clone())))
    }

    /// A name that is used; `global` is what it means when nothing here binds it.
    pub fn look_up(&mut self, name: &str, global: Option<String>) -> Value {
        let mut value = match self.known(name) {
            Some(value) => value.clone(),
            None => global.map_or_else(Value::default, |global| Value::name(&global)),
        };
        if !self.stars.is_empty() && self.known(name).is_none() {
            let stars =
                self.stars.iter().map(|star| format!("{star}.{name}")).find(|full| self.apis.effect(full).is_some());
            value.names.extend(stars.map(Rc::from));
        }
        value.pending = true;
        value
    }

    // Uses.

    /// A name that is used for something that is not known: handed on, stored, compared.
    pub fn refer(&mut self, value: &Value, at: usize) {
        if !value.pending || !self.reports {
            return;
        }
        for name in value.names.clone() {
            let rule = match self.apis.effect(&name) {
                Some(Effect::Find(rule)) => rule,
                Some(Effect::Spawn) => &SPAWN,
                Some(Effect::Shell) => &SHELL,
                Some(Effect::Eval) if !name.ends_with("compile") => &DYNAMIC,
                Some(Effect::Load) => &DESERIALISE,
                Some(Effect::Environment) => &ENV_ALL,
                _ => continue,
            };
            self.found(rule, at, &name);
        }
    }

    /// A member of something.
    pub fn member(&mut self, of: &Value, name: &str, at: usize) -> Value {
        if of.names.iter().any(|n| matches!(self.apis.effect(n), Some(Effect::Environment)))
            && self
                .apis
                .effect(&format!("os.environ.{name}"))
                .is_none_or(|effect| matches!(effect, Effect::Environment))
            && self.language != Language::Python
        {
            return self.variable(name, at);
        }
        if of.names.iter().any(|name| &**name == "()") {
            let global = self.global(name);
            return self.look_up(name, global);
        }
        let climbs = CLIMBS.contains(&name)
            || name == "constructor" && of.member.as_ref().is_some_and(|member| &*member.1 == "constructor");
        if climbs {
            // `Plugin.__subclasses__()` is how plugins are found; of `object` it is how everything is.
            let above = of.member.as_ref().is_some_and(|member| member.1.starts_with("__"));
            let own = name == "__subclasses__"
                && !above
                && !of.names.iter().any(|name| ["builtins.object", "builtins.type"].contains(&&**name));
            let rule = if own || MILD.contains(&name) { &REFLECTION } else { &ESCAPE };
            self.found(rule, at, name);
        }
        let labelled = of.items.iter().flat_map(|items| items.iter()).find(|item| item.label.as_deref() == Some(name));
        if let Some(item) = labelled {
            return Value { label: None, pending: true, ..item.clone() };
        }
        let mut value = of.member(name);
        value.pending = true;
        if value.names.iter().any(|name| matches!(self.apis.effect(name), Some(Effect::Environment))) {
            value.taint = value.taint.with(Taint::GATHERED);
        }
        // Ways around: `os.__dict__`, `f.call`. Each language has its own: `subprocess.call` of Python is a function.
        let transparent = match self.language {
            Language::Python => ["__dict__", "__func__", "__wrapped__", "__call__"],
            _ => ["call", "apply", "bind", "default"],
        };
        if self.language == Language::Python {
            value.names.iter_mut().for_each(|full| *full = canonical(full).into());
        }
        if transparent.contains(&name) {
            value.names = of.names.clone();
            value.function = of.function;
        }
        if climbs && name == "constructor" {
            value.names = vec!["Function".into()];
        }
        if name == "__builtins__" {
            value.names = vec!["builtins".into()];
        }
        value
    }

    /// An element of something, by a key.
    pub fn index(&mut self, of: &Value, key: &Value, at: usize) -> Value {
        if let (Some(items), Some(number)) = (&of.items, key.number) {
            let length = items.len() as i64;
            let place = if number < 0 { length + number } else { number };
            if let Some(item) = usize::try_from(place).ok().and_then(|place| items.get(place)) {
                return item.clone();
            }
        }
        if of.names.iter().any(|n| matches!(self.apis.effect(n), Some(Effect::Environment))) {
            return match key.whole_text() {
                Some(name) => self.variable(name, at),
                None => {
                    self.found(&ENV, at, "");
                    Value::default()
                }
            };
        }
        if let Some(text) = key.whole_text() {
            let text = text.to_owned();
            self.pieces(of, key, &text, at);
            if text == "__builtins__" && of.member.is_some() {
                self.found(&ESCAPE, at, &text);
                return Value { pending: true, ..Value::name("builtins") };
            }
            // All global names, or all modules.
            if of.names.iter().any(|name| &**name == "sys.modules") {
                return Value { pending: true, ..Value::name(&text) };
            }
            if of.names.iter().any(|name| &**name == "()") {
                let global = self.global(&text);
                return self.look_up(&text, global);
            }
            let labelled =
                of.items.iter().flat_map(|items| items.iter()).find(|item| item.label.as_deref() == Some(&*text));
            if let Some(item) = labelled {
                return Value { label: None, ..item.clone() };
            }
            if key.texts.len() == 1 && self.language != Language::Python || !of.names.is_empty() {
                return self.member(of, &text, at).with(Taint::default());
            }
        } else if self.is_powerful(of) && key.number.is_none() {
            let rule = if key.taint.has(Taint::DECODED) { &DECODED } else { &REFLECTION };
            self.found(rule, at, &of.names.join(" "));
        }
        let mut element = of.element();
        // `__mro__[1]` leads on as `__mro__` does.
        element.member = of.member.clone().filter(|member| member.1.starts_with("__"));
        element.depth = if element.member.is_some() { of.depth } else { element.depth };
        element.taint = element.taint.with(key.taint);
        element
    }

    /// A member that means something, by a name in pieces.
    fn pieces(&mut self, of: &Value, key: &Value, text: &str, at: usize) {
        let means = of.names.iter().any(|name| self.apis.effect(&format!("{name}.{text}")).is_some());
        if key.taint.has(Taint::PIECES) && (means || self.is_powerful(of)) {
            self.found(&PIECES, at, text);
        }
    }

    fn is_powerful(&self, value: &Value) -> bool {
        value.names.iter().any(|name| POWERFUL.contains(&&**name) || &**name == "()")
    }

    fn global(&self, name: &str) -> Option<String> {
        Some(match self.language {
            Language::Python if name == "__builtins__" => "builtins".to_owned(),
            Language::Python => format!("builtins.{name}"),
            _ => name.to_owned(),
        })
    }

    fn variable(&mut self, name: &str, at: usize) -> Value {
        let upper = name.to_ascii_uppercase();
        if upper == "HOME" || upper == "USERPROFILE" {
            return Value::text("~");
        }
        let secret = SECRET_WORDS.iter().any(|word| upper.contains(word));
        self.found(if secret { &ENV_SECRET } else { &ENV }, at, name);
        Value::default()
    }

    /// `os.environ[key] = …` and the like.
    pub fn assign_index(&mut self, of: &Value, key: &Value, at: usize) {
        let environment = of.names.iter().any(|n| matches!(self.apis.effect(n), Some(Effect::Environment)));
        if environment && key.first_text().is_some_and(|name| HOOKS.contains(&name)) {
            self.found(&ENV_HOOK, at, key.first_text().unwrap_or_default());
        }
        if of.names.iter().any(|name| ["builtins", "sys.modules", "()", "require.cache"].contains(&&**name)) {
            self.found(&PATCH, at, &of.names.join(" "));
        }
    }

    /// `os.system = …`, `Array.prototype.x = …`.
    pub fn assign_member(&mut self, of: &Value, name: &str, at: usize) {
        let environment = of.names.iter().any(|n| matches!(self.apis.effect(n), Some(Effect::Environment)));
        if environment && HOOKS.contains(&name) {
            self.found(&ENV_HOOK, at, name);
        }
        let patched = of.names.iter().any(|known| {
            let full = format!("{known}.{name}");
            &**known == "builtins" || self.apis.effect(&full).is_some() && !known.ends_with("()") && !environment
        });
        if patched || name == "__code__" || name == "__proto__" {
            self.found(&PATCH, at, name);
        }
    }

    /// A text that stands in the source; `raw` is how it is written.
    pub fn literal(&mut self, text: &str, raw: &str, at: usize) {
        if !self.reports {
            return;
        }
        if decode::is_spelled_out(raw) {
            self.found(&ESCAPES, at, "");
        }
        if decode::is_opaque(raw) {
            self.found(&OPAQUE, at, &format!("{} characters", raw.len()));
        }
        if let Some(rule) = places::is_sensitive(text) {
            let rule = if rule.id == HOST.id { rule } else { &CREDENTIAL_PATH };
            self.found(rule, at, text);
        }
        if text.len() < 4096
            && (places::is_address(text)
                || text.parse::<std::net::Ipv4Addr>().is_ok()
                || text.contains("/api/webhooks/"))
        {
            let rule = places::address(text, self.findings.declared);
            if let Some(rule) = rule.filter(|rule| rule.id != CONNECT.id) {
                self.found(rule, at, text);
            }
        }
    }

    // Calls.

    /// A call: what it does, and what it returns.
    pub fn call(&mut self, callee: &Value, arguments: &[Value], at: usize) -> Value {
        // Arguments that are there already.
        let joined = callee.items.as_deref().map(|before| [before, arguments].concat());
        let arguments = joined.as_deref().unwrap_or(arguments);
        let taint = arguments.iter().fold(callee.taint, |taint, argument| taint.with(argument.taint));
        let mut result = Value::tainted(taint);
        for name in callee.names.iter().take(4) {
            if name.len() < 150 {
                result.names.push(format!("{name}()").into());
            }
            let effect = self.apis.effect(name);
            if let Some(effect) = effect {
                let returned = self.apply(name, effect, callee, arguments, at);
                if !returned.names.is_empty() && !matches!(effect, Effect::Open | Effect::Socket) {
                    result.names.clear();
                }
                result.merge(&returned);
                if matches!(effect, Effect::Variable) {
                    result.taint = result.taint.without(Taint::GATHERED);
                }
            }
        }
        if let Some(function) = callee.function.and_then(|id| self.functions.get_mut(id)) {
            let labels = arguments.iter().enumerate();
            for (index, argument) in labels {
                let parameter = match &argument.label {
                    Some(label) => function.parameters.iter_mut().find(|(name, _)| name == label),
                    None => function.parameters.get_mut(index),
                };
                if let Some((_, value)) = parameter {
                    value.merge(argument);
                }
            }
            result.merge(&function.returns.clone());
        }
        if let Some(member) = callee.member.clone() {
            let (of, name) = &*member;
            let child = |value: &Value| value.names.iter().any(|name| name.starts_with("child_process."));
            let socket = |value: &Value| value.taint.has(Taint::SOCKET);
            if &**name == "pipe" && arguments.iter().any(|to| child(of) && socket(to) || child(to) && socket(of)) {
                self.found(&REMOTE_SHELL, at, "pipe");
            }
            // What is written to a connection leaves as what it was opened with does.
            let open = socket(of) || of.names.iter().any(|name| name.starts_with("http"));
            let writes = ["write", "end", "send", "sendall"].contains(&&**name) && open && self.reaches_out;
            if writes && arguments.iter().any(|argument| argument.taint.has(Taint::GATHERED)) {
                self.found(&EXFILTRATION, at, name);
            }
            // What was promised is handed on, to a function of the outside world too.
            if let (true, Some(argument)) = (&**name == "then", arguments.first()) {
                self.hand(argument, std::slice::from_ref(of), at);
            }
            if let (true, Some(id)) = (&**name == "then", arguments.first().and_then(|argument| argument.function))
                && let Some((_, value)) =
                    self.functions.get_mut(id).and_then(|function| function.parameters.first_mut())
            {
                value.merge(of);
            }
            let returned = self.method(of, name, arguments, at);
            result.pending |= returned.pending;
            result.merge(&returned);
        }
        // A function that is handed over gets what the callee has, and what it returns comes out.
        for id in arguments.iter().filter_map(|argument| argument.function) {
            if let Some(function) = self.functions.get_mut(id) {
                let handed = Value::tainted(result.taint);
                function.parameters.iter_mut().for_each(|(_, value)| value.merge(&handed));
                result.taint = result.taint.with(function.returns.taint);
            }
        }
        result
    }

    /// Something calls a function that was handed to it. One that hands on in turn ends here.
    fn hand(&mut self, function: &Value, arguments: &[Value], at: usize) {
        for name in function.names.iter().take(4) {
            if let Some(effect) = self.apis.effect(name).filter(|effect| !matches!(effect, Effect::Later)) {
                self.apply(name, effect, function, arguments, at);
            }
        }
    }

    /// What a function of the outside world does.
    fn apply(&mut self, name: &str, effect: Effect, callee: &Value, arguments: &[Value], at: usize) -> Value {
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

    /// Methods of texts and lists.
    fn method(&mut self, of: &Value, name: &str, arguments: &[Value], at: usize) -> Value {
        let text = |index: usize| arguments.get(index).and_then(Value::whole_text);
        // `os.__dict__` is `os` to us.
        let looks_up = of.names.iter().any(|name| ["()", "sys.modules"].contains(&&**name))
            || self.language == Language::Python && self.is_powerful(of);
        if let (true, Some(text)) = (["__getattribute__", "__getattr__"].contains(&name), text(0)) {
            let text = text.to_owned();
            return self.member(of, &text, at);
        }
        if looks_up && ["get", "__getitem__", "pop"].contains(&name) {
            return self.index(of, &arguments.first().cloned().unwrap_or_default(), at);
        }
        let codec = || text(0).or_else(|| arguments.first().and_then(|a| a.first_text()));
        match name {
            "decode" | "toString" | "encode" => match codec() {
                Some("base64" | "base64_codec") if name != "toString" => decoded(Codec::Base64, of),
                Some("hex" | "hex_codec") if name != "toString" => decoded(Codec::Hex, of),
                Some("rot13" | "rot_13") => decoded(Codec::Rot13, of),
                _ => Value { names: Vec::new(), ..of.clone() },
            },
            "strip" | "trim" | "lstrip" | "rstrip" | "copy" | "slice" | "read" | "expanduser" | "resolve"
            | "absolute" | "as_posix" | "getvalue" | "concat"
                if arguments.iter().all(|argument| argument.texts.is_empty()) =>
            {
                let names =
                    if of.names.iter().any(|name| &**name == "pathlib.Path()") { of.names.clone() } else { Vec::new() };
                Value { names, ..of.clone() }
            }
            "joinpath" => Value { names: of.names.clone(), ..join(&[std::slice::from_ref(of), arguments].concat()) },
            "concat" => arguments.iter().fold(of.clone(), |sum, argument| sum.concat(argument)),
            "lower" | "toLowerCase" => of.map(str::to_lowercase),
            "upper" | "toUpperCase" => of.map(str::to_uppercase),
            "replace" | "replaceAll" => match (text(0), text(1)) {
                (Some(from), Some(to)) if !from.is_empty() => {
                    // Fillers that are taken out again.
                    let taint = if to.is_empty() { Taint::DECODED } else { Taint::default() };
                    of.map(|text| text.replace(from, to)).with(of.taint).with(taint)
                }
                _ => Value::tainted(of.taint),
            },
            "translate" | "swapcase" => Value::tainted(of.taint.with(Taint::DECODED)),
            "reverse" if of.items.is_some() => {
                let mut items: Vec<Value> = of.items.iter().flat_map(|items| items.iter().cloned()).collect();
                items.reverse();
                Value::list(items).with(of.taint).with(Taint::DECODED)
            }
            "split" => match (of.whole_text(), text(0)) {
                (Some(whole), Some("")) => {
                    Value::list(whole.chars().take(4096).map(|c| Value::text(c.to_string())).collect())
                }
                (Some(whole), Some(by)) => Value::list(whole.split(by).take(4096).map(Value::text).collect()),
                (Some(whole), None) => Value::list(whole.split_whitespace().take(4096).map(Value::text).collect()),
                _ => Value::tainted(of.taint),
            },
            "join" => {
                let python = self.language == Language::Python;
                let (list, by) =
                    if python { (arguments.first(), of.whole_text()) } else { (Some(of), text(0).or(Some(","))) };
                let Some(list) = list else { return Value::default() };
                let taint = list.taint.with(of.taint);
                match (&list.items, by) {
                    (Some(items), Some(by)) => {
                        let parts: Vec<&str> = items.iter().map(|item| item.first_text().unwrap_or("\u{0}")).collect();
                        let pieces = items.len() > 1 && items.iter().all(|item| item.whole_text().is_some());
                        let taint = if pieces { taint.with(Taint::PIECES) } else { taint };
                        Value::text(parts.join(by)).with(taint)
                    }
                    _ => Value::tainted(taint),
                }
            }
            "format" => {
                let mut value = of.clone();
                value.names.clear();
                let fill = arguments.first().and_then(Value::first_text).unwrap_or("\u{0}").to_owned();
                value.map(|text| text.replacen("{}", &fill, 1).replace("{}", "\u{0}")).with(of.taint)
            }
            _ => Value::default(),
        }
    }
}

/// What a module imported is a member of it: `shutil.os` is `os`.
pub fn canonical(name: &str) -> &str {
    match name.rsplit_once('.') {
        // `socket.socket` is a class.
        Some((of, last))
            if IMPORTED.contains(&last) && of != last && !of.starts_with("builtins") && !of.ends_with(')') =>
        {
            last
        }
        _ => name,
    }
}

/// `fs/promises` and `node:fs` are `fs`.
pub fn module_name(text: &str) -> String {
    text.strip_prefix("node:").unwrap_or(text).replace('/', ".").trim_end_matches(".js").to_owned()
}

fn decoded(codec: Codec, of: &Value) -> Value {
    let texts = of.texts.iter().filter_map(|text| decode::decode(codec, text)).map(Rc::from).collect();
    let taint = if codec == Codec::Percent { of.taint } else { of.taint.with(Taint::DECODED) };
    Value { texts, taint, ..Value::default() }
}

/// Text from numbers.
fn characters(of: &Value) -> Value {
    let letter = |number: i64| u32::try_from(number).ok().and_then(char::from_u32);
    if let Some(number) = of.number {
        return letter(number)
            .map_or_else(Value::default, |c| Value::text(c.to_string()))
            .with(of.taint)
            .with(Taint::DECODED);
    }
    if !of.texts.is_empty() {
        return Value { label: None, pending: false, ..of.clone() };
    }
    let letters: Option<String> =
        of.items.as_ref().and_then(|items| items.iter().map(|item| item.number.and_then(letter)).collect());
    let text = letters.map_or_else(Value::default, Value::text);
    text.with(of.taint).with(Taint::DECODED)
}

/// Parts of a path; an absolute one replaces what is before.
pub fn join(parts: &[Value]) -> Value {
    let mut path = String::new();
    let mut taint = Taint::default();
    for part in parts {
        taint = taint.with(part.taint);
        let text = part.first_text().unwrap_or("\u{0}");
        if text.starts_with(['/', '~']) || path.is_empty() {
            path = text.to_owned();
        } else {
            path = format!("{}/{}", path.trim_end_matches('/'), text);
        }
    }
    if parts.iter().all(|part| part.texts.is_empty()) { Value::tainted(taint) } else { Value::text(path).with(taint) }
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
