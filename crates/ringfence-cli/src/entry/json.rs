//! The entry in JSON. The parser tells where things stand; text is put in or cut out there, and nothing is printed anew.

use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::{Range, Ranged};
use jsonc_parser::tokens::{Token, TokenAndRange};
use jsonc_parser::{CollectOptions, CommentCollectionStrategy, ParseOptions, parse_to_ast, parse_to_serde_value};

use super::{Entry, EntryError, NAME};

/// What the clients accept: comments and trailing commas, and nothing else that JSON does not have.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};
const MARK: char = '\u{feff}';

pub fn put(text: &str, list: &str, entry: &Entry) -> Result<String, EntryError> {
    // Clients write an empty file when they have nothing to say yet.
    let text = if text.trim_start_matches(MARK).trim().is_empty() { "{}\n" } else { text };
    let parsed = parse(text)?;
    let layout = Layout::of(text);
    let root = object(text, parsed.value.as_ref(), "the file")?;
    let new = match only(text, root, list)? {
        None => {
            let inner = layout.object(&[(NAME, layout.entry(entry, 2))], 1);
            insert(text, root, &parsed.tokens, &layout, 1, &format!("{}: {inner}", quoted(list)))
        }
        Some(servers) => {
            let servers = object(text, Some(&servers.value), list)?;
            match only(text, servers, NAME)? {
                None => {
                    let property = format!("{}: {}", quoted(NAME), layout.entry(entry, 2));
                    insert(text, servers, &parsed.tokens, &layout, 2, &property)
                }
                Some(there) => {
                    let range = there.value.range();
                    if same(&text[range.start..range.end], entry) {
                        return Ok(text.to_owned());
                    }
                    splice(text, &[(range.start, range.end, layout.entry(entry, 2))])
                }
            }
        }
    };
    // The edit is checked by reading it again: the list has the entry, and all else is as before.
    let (mut before, after) = (value(text)?, value(&new)?);
    before[list][NAME] = wanted(entry);
    if before == after { Ok(new) } else { Err(EntryError::Wrong) }
}

pub fn take(text: &str, list: &str) -> Result<String, EntryError> {
    if text.trim_start_matches(MARK).trim().is_empty() {
        return Ok(text.to_owned());
    }
    let parsed = parse(text)?;
    let root = object(text, parsed.value.as_ref(), "the file")?;
    let Some(property) = only(text, root, list)? else { return Ok(text.to_owned()) };
    let servers = object(text, Some(&property.value), list)?;
    let Some(there) = only(text, servers, NAME)? else { return Ok(text.to_owned()) };
    // A list that has nothing else goes with it, as it came with it; a comment in it is somebody's.
    let within = |range: Range| range.start >= servers.range.start && range.end <= servers.range.end;
    let commented = parsed
        .tokens
        .iter()
        .any(|token| matches!(token.token, Token::CommentLine(_) | Token::CommentBlock(_)) && within(token.range));
    let whole = servers.properties.len() == 1 && !commented;
    let new =
        splice(text, &if whole { cuts(root, property, &parsed.tokens) } else { cuts(servers, there, &parsed.tokens) });
    let (mut before, after) = (value(text)?, value(&new)?);
    match (before.as_object_mut(), whole) {
        (Some(root), true) => drop(root.remove(list)),
        (Some(root), false) => {
            root.get_mut(list).and_then(serde_json::Value::as_object_mut).and_then(|servers| servers.remove(NAME));
        }
        (None, _) => {}
    }
    if before == after { Ok(new) } else { Err(EntryError::Wrong) }
}

struct Parsed<'a> {
    value: Option<Value<'a>>,
    tokens: Vec<TokenAndRange<'a>>,
}

fn parse(text: &str) -> Result<Parsed<'_>, EntryError> {
    let collect = CollectOptions { comments: CommentCollectionStrategy::AsTokens, tokens: true };
    let result = parse_to_ast(text, &collect, &OPTIONS)?;
    Ok(Parsed { value: result.value, tokens: result.tokens.unwrap_or_default() })
}

fn value(text: &str) -> Result<serde_json::Value, EntryError> {
    Ok(parse_to_serde_value::<serde_json::Value>(text, &OPTIONS)?)
}

fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn object<'a, 'b>(text: &str, value: Option<&'b Value<'a>>, name: &str) -> Result<&'b Object<'a>, EntryError> {
    let at = value.map_or(0, |value| value.range().start);
    let wrong = || EntryError::NotAnObject { name: name.to_owned(), line: line(text, at) };
    value.and_then(Value::as_object).ok_or_else(wrong)
}

/// The property of this name; a second one would leave open which of them counts.
fn only<'a, 'b>(text: &str, object: &'b Object<'a>, name: &str) -> Result<Option<&'b ObjectProp<'a>>, EntryError> {
    let mut all = object.properties.iter().filter(|property| property.name.as_str() == name);
    let first = all.next();
    match all.next() {
        Some(second) => Err(EntryError::Twice { name: name.to_owned(), line: line(text, second.range.start) }),
        None => Ok(first),
    }
}

fn wanted(entry: &Entry) -> serde_json::Value {
    let mut value = serde_json::json!({ "command": entry.command, "args": entry.args });
    if let Some(kind) = entry.kind {
        value["type"] = kind.into();
    }
    value
}

fn same(text: &str, entry: &Entry) -> bool {
    value(text).is_ok_and(|value| value == wanted(entry))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// How the file is laid out: what a line ends with, and what a step of indentation is.
struct Layout {
    newline: &'static str,
    step: String,
}

impl Layout {
    fn of(text: &str) -> Layout {
        let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
        let indents = text.lines().map(|line| &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]);
        let step = indents.filter(|indent| !indent.is_empty()).min_by_key(|indent| indent.len()).unwrap_or("  ");
        Layout { newline, step: step.to_owned() }
    }

    fn object(&self, properties: &[(&str, String)], depth: usize) -> String {
        let (newline, inner) = (self.newline, self.step.repeat(depth + 1));
        let lines: Vec<String> =
            properties.iter().map(|(name, value)| format!("{newline}{inner}{}: {value}", quoted(name))).collect();
        format!("{{{}{newline}{}}}", lines.join(","), self.step.repeat(depth))
    }

    fn entry(&self, entry: &Entry, depth: usize) -> String {
        let args: Vec<String> = entry.args.iter().map(|arg| quoted(arg)).collect();
        let kind = entry.kind.map(|kind| ("type", quoted(kind)));
        let rest = [("command", quoted(&entry.command)), ("args", format!("[{}]", args.join(", ")))];
        self.object(&kind.into_iter().chain(rest).collect::<Vec<_>>(), depth)
    }
}

/// Puts a property at the end of an object, behind the comments there.
fn insert(
    text: &str,
    object: &Object<'_>,
    tokens: &[TokenAndRange<'_>],
    layout: &Layout,
    depth: usize,
    property: &str,
) -> String {
    let close = object.range.end - 1;
    let before_close =
        tokens.iter().rev().find(|token| token.range.end <= close && token.range.start >= object.range.start);
    let end = before_close.map_or(object.range.start + 1, |token| token.range.end);
    let indent = object.properties.first().and_then(|first| own_line(text, first.range.start));
    let indent = indent.map_or_else(|| layout.step.repeat(depth), str::to_owned);
    let newline = layout.newline;
    // The brace keeps the line that it has, or gets one.
    let closed = if text[end..close].contains('\n') {
        String::new()
    } else {
        format!("{newline}{}", layout.step.repeat(depth - 1))
    };
    let Some(last) = object.properties.last().map(|last| last.range.end) else {
        return splice(text, &[(end, end, format!("{newline}{indent}{property}{closed}"))]);
    };
    let trailing =
        tokens.iter().find(|token| token.range.start >= last).is_some_and(|token| token.token == Token::Comma);
    let comma = if trailing { "," } else { "" };
    let one_line = !text[object.range.start..close].contains('\n');
    let added = match one_line {
        true => format!(" {}{comma}", property.split(newline).map(str::trim_start).collect::<Vec<_>>().join(" ")),
        false => format!("{newline}{indent}{property}{comma}{closed}"),
    };
    // A comma behind the last property, whatever comment follows it; then the new one.
    match trailing {
        true => splice(text, &[(end, end, added)]),
        false => splice(text, &[(last, last, ",".to_owned()), (end, end, added)]),
    }
}

/// The indentation before a place, when nothing else is before it on its line.
fn own_line(text: &str, at: usize) -> Option<&str> {
    let start = text[..at].rfind('\n')? + 1;
    text[start..at].chars().all(|c| c == ' ' || c == '\t').then(|| &text[start..at])
}

/// What goes with a property: from the end of what stands before it, and one comma.
fn cuts(object: &Object<'_>, property: &ObjectProp<'_>, tokens: &[TokenAndRange<'_>]) -> Vec<(usize, usize, String)> {
    let before = tokens.iter().rev().find(|token| token.range.end <= property.range.start);
    let after = tokens.iter().find(|token| token.range.start >= property.range.end);
    let start = before.map_or(object.range.start + 1, |token| token.range.end);
    let comma = after.filter(|token| token.token == Token::Comma);
    let cut = |from: usize, to: usize| (from, to, String::new());
    if let Some(comma) = comma {
        return vec![cut(start, comma.range.end)];
    }
    if object.properties.len() == 1 {
        // Nothing but the braces is left, when there is no comment.
        let close = object.range.end - 1;
        let bare = before.is_some_and(|token| token.token == Token::OpenBrace)
            && after.is_some_and(|token| token.range.start == close);
        return vec![cut(start, if bare { close } else { property.range.end })];
    }
    // The last one: the comma before it goes, which a comment may follow.
    let previous =
        tokens.iter().rev().find(|token| token.range.end <= property.range.start && token.token == Token::Comma);
    match previous.map(|token| token.range) {
        Some(comma) if comma.end == start => vec![cut(comma.start, property.range.end)],
        Some(comma) => vec![cut(comma.start, comma.end), cut(start, property.range.end)],
        None => vec![cut(start, property.range.end)],
    }
}

/// Replaces ranges, which are in order and apart.
fn splice(text: &str, changes: &[(usize, usize, String)]) -> String {
    let mut out = String::with_capacity(text.len() + 256);
    let mut at = 0;
    for (from, to, new) in changes {
        out.push_str(&text[at..*from]);
        out.push_str(new);
        at = *to;
    }
    out.push_str(&text[at..]);
    out
}
