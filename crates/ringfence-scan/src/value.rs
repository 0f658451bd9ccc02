//! What an expression may stand for, as far as it can be told without running anything.

use std::rc::Rc;

/// In the place of what is not known, in a text that is known otherwise.
pub const HOLE: char = '\u{0}';
/// Alternatives that are kept of a text or a name.
const ALTERNATIVES: usize = 4;
/// Characters of a text that are kept.
pub const MAX_TEXT: usize = 1 << 16;
const MAX_NAME: usize = 200;
const MAX_ITEMS: usize = 1 << 12;
/// Lists in lists, members of members: deeper ones would cost stack when they are dropped.
const MAX_DEPTH: u8 = 16;

/// Where data comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taint(u8);

impl Taint {
    /// It was decoded, decompressed, deciphered or put together from characters.
    pub const DECODED: Taint = Taint(1);
    /// It came over the network.
    pub const REMOTE: Taint = Taint(2);
    /// It is the environment, or credentials.
    pub const GATHERED: Taint = Taint(4);
    /// It is a connection.
    pub const SOCKET: Taint = Taint(8);
    /// A known text that is spelled in pieces or escapes.
    pub const PIECES: Taint = Taint(16);

    pub fn has(self, other: Taint) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn with(self, other: Taint) -> Taint {
        Taint(self.0 | other.0)
    }

    pub fn without(self, other: Taint) -> Taint {
        Taint(self.0 & !other.0)
    }
}

/// What an expression may stand for.
#[derive(Debug, Clone, Default)]
pub struct Value {
    /// The texts that it may be.
    pub texts: Vec<Rc<str>>,
    /// The things of the outside world that it may be: `os.system`, `socket.socket()`.
    pub names: Vec<Rc<str>>,
    pub number: Option<i64>,
    pub items: Option<Rc<[Value]>>,
    /// A function of this source.
    pub function: Option<usize>,
    /// A member of something: what, and which one.
    pub member: Option<Rc<(Value, Rc<str>)>>,
    /// The name that an argument was given by.
    pub label: Option<Rc<str>>,
    pub taint: Taint,
    /// Named, and not yet used for anything.
    pub pending: bool,
    pub depth: u8,
}

impl Value {
    pub fn text(text: impl AsRef<str>) -> Value {
        let text = text.as_ref();
        let end = text.char_indices().nth(MAX_TEXT).map_or(text.len(), |(at, _)| at);
        Value { texts: vec![text[..end].into()], ..Value::default() }
    }

    pub fn name(name: &str) -> Value {
        Value { names: vec![name.into()], ..Value::default() }
    }

    /// A whole number as both languages write it.
    pub fn integer(written: &str) -> Value {
        let digits = written.replace('_', "").to_ascii_lowercase();
        let number = match digits.get(..2) {
            Some("0x") => i64::from_str_radix(&digits[2..], 16),
            Some("0o") => i64::from_str_radix(&digits[2..], 8),
            Some("0b") => i64::from_str_radix(&digits[2..], 2),
            _ => digits.parse(),
        };
        Value { number: number.ok(), ..Value::default() }
    }

    /// The items of a list, or the value alone.
    pub fn to_list(&self) -> Vec<Value> {
        self.items.as_deref().map_or_else(|| vec![self.clone()], <[Value]>::to_vec)
    }

    pub fn list(items: Vec<Value>) -> Value {
        let taint = items.iter().fold(Taint::default(), |taint, item| taint.with(item.taint));
        let depth = items.iter().map(|item| item.depth).max().unwrap_or(0) + 1;
        let items = (depth <= MAX_DEPTH).then(|| items.into_iter().take(MAX_ITEMS).collect());
        Value { depth: if items.is_some() { depth } else { 0 }, items, taint, ..Value::default() }
    }

    pub fn tainted(taint: Taint) -> Value {
        Value { taint, ..Value::default() }
    }

    pub fn with(mut self, taint: Taint) -> Value {
        self.taint = self.taint.with(taint);
        self
    }

    pub fn first_text(&self) -> Option<&str> {
        self.texts.first().map(|text| &**text)
    }

    /// The text, when it is one and all of it is known.
    pub fn whole_text(&self) -> Option<&str> {
        self.first_text().filter(|text| !text.contains(HOLE))
    }

    /// Adds what else it may be.
    pub fn merge(&mut self, other: &Value) {
        for text in &other.texts {
            if !self.texts.contains(text) {
                // The latest first: it is the likeliest.
                self.texts.insert(0, text.clone());
            }
        }
        self.texts.truncate(ALTERNATIVES);
        for name in &other.names {
            if self.names.len() < ALTERNATIVES && !self.names.contains(name) {
                self.names.push(name.clone());
            }
        }
        self.taint = self.taint.with(other.taint);
        self.number = other.number.or(self.number);
        self.function = other.function.or(self.function);
        self.items = other.items.clone().or(self.items.take());
        self.member = None;
        self.depth = self.depth.max(other.depth);
    }

    /// One text after the other; what is not known is a hole.
    pub fn concat(&self, other: &Value) -> Value {
        let hole: [Rc<str>; 1] = [HOLE.to_string().into()];
        let taint = self.taint.with(other.taint);
        if self.texts.is_empty() && other.texts.is_empty() {
            let items = match (&self.items, &other.items) {
                (Some(a), Some(b)) => Some(a.iter().chain(b.iter()).take(MAX_ITEMS).cloned().collect()),
                _ => None,
            };
            return Value { items, taint, depth: self.depth.max(other.depth), ..Value::default() };
        }
        // Constants that the writer could have written as one.
        let whole = |value: &Value| value.whole_text().is_some_and(|text| !text.is_empty());
        let taint = if whole(self) && whole(other) { taint.with(Taint::PIECES) } else { taint };
        let of = |value: &Value| if value.texts.is_empty() { hole.to_vec() } else { value.texts.clone() };
        let mut texts: Vec<Rc<str>> = Vec::new();
        for a in of(self) {
            for b in of(other) {
                if texts.len() < ALTERNATIVES && a.len() + b.len() <= MAX_TEXT {
                    texts.push(format!("{a}{b}").into());
                }
            }
        }
        Value { texts, taint, ..Value::default() }
    }

    /// Changes each text.
    pub fn map(&self, change: impl Fn(&str) -> String) -> Value {
        let texts = self.texts.iter().map(|text| change(text).into()).collect();
        Value { texts, taint: self.taint, ..Value::default() }
    }

    /// A member of each thing that it may be.
    pub fn member(&self, name: &str) -> Value {
        let names = self
            .names
            .iter()
            .filter(|of| of.len() + name.len() < MAX_NAME)
            .map(|of| Rc::from(format!("{of}.{name}")))
            .collect();
        let bare = Value { pending: false, member: None, label: None, ..self.clone() };
        let depth = self.depth + 1;
        let member = (depth <= MAX_DEPTH).then(|| Rc::new((bare, name.into())));
        Value { names, depth: if member.is_some() { depth } else { 0 }, member, taint: self.taint, ..Value::default() }
    }

    /// What a loop over it yields.
    pub fn element(&self) -> Value {
        let mut element = Value::tainted(self.taint);
        for item in self.items.iter().flat_map(|items| items.iter()).take(64) {
            element.merge(item);
        }
        element
    }
}
