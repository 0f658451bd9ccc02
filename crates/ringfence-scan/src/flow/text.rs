//! Texts and lists: what becomes of them.

use std::rc::Rc;

use super::super::Language;
use super::super::decode::{self, Codec};
use super::super::value::{Taint, Value};
use super::Flow;

impl Flow<'_, '_> {
    /// Methods of texts and lists.
    pub(super) fn method(&mut self, of: &Value, name: &str, arguments: &[Value], at: usize) -> Value {
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

pub(super) fn decoded(codec: Codec, of: &Value) -> Value {
    let texts = of.texts.iter().filter_map(|text| decode::decode(codec, text)).map(Rc::from).collect();
    let taint = if codec == Codec::Percent { of.taint } else { of.taint.with(Taint::DECODED) };
    Value { texts, taint, ..Value::default() }
}

/// Text from numbers.
pub(super) fn characters(of: &Value) -> Value {
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
