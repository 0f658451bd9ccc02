//! What names, texts and calls stand for, for languages with expressions: import aliases, constants, simple functions.
//!
//! The source is gone through several times. What a name was bound to is kept from one time to the next, so that the order
//! of definition and use does not matter; findings are only made the last time.

mod calls;
mod text;

use std::collections::HashMap;
use std::rc::Rc;

pub use self::text::join;
use super::apis::{Apis, Effect};
use super::decode;
use super::places;
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

    /// Whether to stop reading.
    pub fn stop(&self) -> bool {
        if self.reports { self.findings.out_of_time() } else { self.findings.knows_enough() }
    }

    /// A member, and what was bound to its whole name as it is written.
    pub fn member_as_written(&mut self, of: &Value, name: &str, written: &str, at: usize) -> Value {
        let mut member = self.member(of, name, at);
        if written.len() < 100
            && let Some(known) = self.known(written).cloned()
        {
            let itself = member.member.take();
            member.merge(&known);
            member.member = itself;
        }
        member
    }

    /// A text that was put together from the parts of one literal. They are no pieces, unless all of it is escapes.
    pub fn string(&mut self, mut value: Value, written: &str, at: usize) -> Value {
        if let Some(text) = value.first_text().map(str::to_owned) {
            self.literal(&text, written, at);
        }
        let spelled = decode::is_spelled_out(written);
        value.taint = if spelled { value.taint.with(Taint::PIECES) } else { value.taint.without(Taint::PIECES) };
        value
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
        // Arguments that may be there already.
        if let Some(before) = &callee.items {
            self.hand(callee, &[before, arguments].concat(), at);
        }
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
