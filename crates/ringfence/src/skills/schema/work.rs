//! What checking one value against a schema may take, counted before the check: the check runs outside every sandbox, and
//! nothing can end it once it runs. One that is not waited for any more is to end by itself, in about two seconds.
//!
//! The count walks the parts of the schema and the members of the value as the check does, but it evaluates nothing: every
//! alternative counts, and everything may be an error. It stops when a bound is reached, so it is cheap itself.

use std::collections::HashMap;
use std::mem::size_of;

use boon::{InstanceToken, ValidationError};
use regex_automata::nfa::thompson::{Config, NFA};
use serde_json::Value;

use super::cost::{Graph, Member};

/// Steps of one check. A step is the check of one keyword, and took at most 0.42 microseconds.
const MAX_STEPS: u64 = 5_000_000;
/// Bytes of one check: the library makes all errors before it returns any.
const MAX_MEMORY: u64 = 256 << 20;
/// Bytes that all patterns of a schema may take when they are compiled.
const MAX_COMPILED: usize = 10 << 20;
/// Bytes that are read to compile the patterns. A pattern is read again for each escape in it.
const MAX_READ: u64 = 16 << 20;
/// One error in a list that has room for more, and the text that it may own.
const ERROR: u64 = 2 * size_of::<ValidationError<'static, 'static>>() as u64 + 64;
/// One step of the path to the place of an error.
const TOKEN: u64 = size_of::<InstanceToken<'static>>() as u64;
/// A pattern remembers what it found out about a text, in two tables of at most 2 MiB.
const MAX_REMEMBERED: u64 = 4 << 20;

/// Keywords that cannot fail by themselves. `type`, `const` and `enum` are here because nothing else is checked when one fails.
#[rustfmt::skip]
const NO_ERROR: &[&str] = &[
    "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment", "$defs", "definitions",
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "type", "const", "enum",
    "properties", "patternProperties", "items", "prefixItems", "minContains", "then", "else",
];

/// Reads patterns, with bounds for all of them together.
#[derive(Debug, Default)]
pub struct Patterns {
    compiled: usize,
}

/// A pattern, in bytes of its compiled form.
#[derive(Debug, Clone, Copy)]
struct Pattern(u64);

impl Patterns {
    /// Refuses patterns that take too long to read. `patterns` are all that the schema has.
    pub fn check<'a>(patterns: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let read = |text: &str| {
            let escapes = text.bytes().filter(|byte| *byte == b'\\').count() as u64;
            (escapes + 1).saturating_mul(text.len() as u64 + 16 * escapes)
        };
        match patterns.fold(0, |sum: u64, text| sum.saturating_add(read(text))) > MAX_READ {
            true => Err("its patterns are too long, or have too many escapes".to_owned()),
            false => Ok(()),
        }
    }

    fn add(&mut self, text: &str) -> Result<Pattern, String> {
        let config = Config::new().nfa_size_limit(Some(MAX_COMPILED - self.compiled.min(MAX_COMPILED)));
        match NFA::compiler().configure(config).build(&plain_classes(text)) {
            Ok(nfa) => {
                self.compiled += nfa.memory_usage();
                Ok(Pattern(nfa.memory_usage() as u64))
            }
            Err(error) if error.size_limit().is_some() => {
                Err(format!("a pattern cannot be used: its patterns take more than {MAX_COMPILED} bytes when compiled"))
            }
            // Compiling the schema says what is wrong with it.
            Err(_) => Ok(Pattern(0)),
        }
    }
}

/// The pattern with the classes that are ASCII in a schema, as the library writes them.
fn plain_classes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, chars.clone().next()) {
            ('\\', Some(escaped)) => {
                chars.next();
                match escaped {
                    'd' => plain.push_str("[0-9]"),
                    'D' => plain.push_str("[^0-9]"),
                    'w' => plain.push_str("[A-Za-z0-9_]"),
                    'W' => plain.push_str("[^A-Za-z0-9_]"),
                    // A control character: `\cA`.
                    'c' => {}
                    escaped => plain.extend(['\\', escaped]),
                }
            }
            _ => plain.push(c),
        }
    }
    plain
}

/// What a part of a schema takes, apart from the parts that it leads to.
#[derive(Debug)]
struct Part<'a> {
    /// For each value that is checked.
    steps: u64,
    errors: u64,
    /// Names that may be missing.
    names: u64,
    pattern: Option<Pattern>,
    /// Of the names of properties.
    name_patterns: Vec<Pattern>,
    /// Bytes of a text for one step.
    text_step: u64,
    /// Checked in time that grows with the square of the text.
    square: bool,
    unique: bool,
    /// Looks for its target in everything that led here.
    looks_back: bool,
    properties: HashMap<&'a str, usize>,
    /// Of the first items, in order.
    items: Vec<usize>,
    /// The same value, and members that are not named.
    others: Vec<(&'a Member<'a>, usize)>,
}

impl<'a> Part<'a> {
    fn of(value: &Value, edges: &'a [(Member<'a>, usize)], patterns: &mut Patterns) -> Result<Part<'a>, String> {
        let mut part = Part {
            steps: 1,
            errors: 0,
            names: 0,
            pattern: None,
            name_patterns: Vec::new(),
            text_step: u64::MAX,
            square: false,
            unique: false,
            looks_back: false,
            properties: HashMap::new(),
            items: Vec::new(),
            others: Vec::new(),
        };
        for (member, to) in edges {
            match member {
                Member::Property(name) => drop(part.properties.insert(name, *to)),
                Member::Item(_) => part.items.push(*to),
                member => part.others.push((member, *to)),
            }
        }
        let Some(members) = value.as_object() else {
            part.errors = u64::from(*value == Value::Bool(false));
            return Ok(part);
        };
        for (keyword, value) in members {
            part.steps += 1;
            part.errors += u64::from(!NO_ERROR.contains(&keyword.as_str()));
            match (keyword.as_str(), value) {
                ("const" | "enum", value) => part.steps += nodes(value, u64::MAX),
                ("required", Value::Array(names)) => part.names += names.len() as u64,
                ("dependentRequired" | "dependencies" | "dependentSchemas", Value::Object(members)) => {
                    part.steps += members.len() as u64;
                    let lists = members.values().filter_map(Value::as_array);
                    part.names += lists.map(|names| names.len() as u64).sum::<u64>();
                    part.errors += members.len() as u64;
                }
                ("pattern", Value::String(text)) => part.pattern = Some(patterns.add(text)?),
                ("patternProperties", Value::Object(members)) => {
                    for text in members.keys() {
                        part.name_patterns.push(patterns.add(text)?);
                    }
                }
                ("format", Value::String(name)) => {
                    part.square |= name == "regex" || name.starts_with("idn");
                    part.text_step = 16;
                }
                ("minLength" | "maxLength", _) => part.text_step = part.text_step.min(64),
                (word, _) if word.starts_with("content") => part.text_step = 16,
                ("uniqueItems", value) => part.unique = *value == Value::Bool(true),
                ("$dynamicRef" | "$recursiveRef", _) => part.looks_back = true,
                _ => {}
            }
        }
        // The one of `type`, `const` and `enum`, and the one that holds those of the members.
        let may_fail = ["type", "const", "enum"].iter().any(|word| members.contains_key(*word));
        part.errors = part.errors.max(u64::from(may_fail)) + u64::from(!edges.is_empty());
        part.steps += part.names;
        Ok(part)
    }
}

/// A schema whose checks can be counted.
#[derive(Debug)]
pub struct Work<'a> {
    parts: Vec<Part<'a>>,
    /// A part asks which members nothing has looked at, so that every part keeps a list of them.
    unevaluated: bool,
}

impl<'a> Work<'a> {
    pub fn of(graph: &'a Graph<'a>) -> Result<Work<'a>, String> {
        let mut patterns = Patterns::default();
        let parts = graph.parts().map(|(part, edges)| Part::of(part, edges, &mut patterns));
        let parts: Vec<Part<'_>> = parts.collect::<Result<_, _>>()?;
        let mut others = parts.iter().flat_map(|part| &part.others);
        let unevaluated =
            others.any(|(member, _)| matches!(member, Member::UnevaluatedProperties | Member::UnevaluatedItems));
        Ok(Work { parts, unevaluated })
    }

    /// Why a value cannot be checked within the bounds.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let mut count = Count { work: self, steps: 0, memory: 0, remembered: vec![0; self.parts.len()] };
        count.visit(0, value, 0, 0).map_err(|OverBound(bound)| {
            format!("checking them against their schema could take more than {bound}: make them smaller")
        })
    }
}

/// Which bound was reached.
struct OverBound(String);

struct Count<'a> {
    work: &'a Work<'a>,
    steps: u64,
    memory: u64,
    /// What the patterns of each part remember.
    remembered: Vec<u64>,
}

impl Count<'_> {
    fn add(&mut self, steps: u64, memory: u64) -> Result<(), OverBound> {
        self.steps = self.steps.saturating_add(steps);
        self.memory = self.memory.saturating_add(memory);
        if self.steps > MAX_STEPS {
            return Err(OverBound(format!("{MAX_STEPS} steps")));
        }
        match self.memory > MAX_MEMORY {
            true => Err(OverBound(format!("{} MiB of memory", MAX_MEMORY >> 20))),
            false => Ok(()),
        }
    }

    /// One value and one part. `depth`: of the value; `back`: parts that led here.
    fn visit(&mut self, index: usize, value: &Value, depth: u64, back: u64) -> Result<(), OverBound> {
        let work = self.work;
        let part = &work.parts[index];
        let errors = part.errors * (ERROR + TOKEN * depth);
        self.add(part.steps + if part.looks_back { back } else { 0 }, errors + 16 * part.names)?;
        match value {
            Value::String(text) => self.text(index, part, text.len() as u64)?,
            Value::Array(items) => {
                let length = items.len() as u64;
                let listed = if work.unevaluated { length } else { 0 };
                self.add(listed, 16 * listed)?;
                if part.unique {
                    // A short list compares each with each.
                    let times = if length <= 20 { 20 } else { 2 };
                    let left = (MAX_STEPS - self.steps) / times;
                    self.add(times * nodes(value, left), 48 * length)?;
                }
                for (item, to) in items.iter().zip(&part.items) {
                    self.visit(*to, item, depth + 1, back + 1)?;
                }
            }
            Value::Object(members) => {
                let length = members.len() as u64;
                let listed = if work.unevaluated { length } else { 0 };
                // Names that nothing allows are listed too.
                self.add(length + listed, (16 * listed).saturating_add(24 * length))?;
                for (name, value) in members {
                    for pattern in &part.name_patterns {
                        self.matched(index, *pattern, name.len() as u64)?;
                    }
                    if let Some(to) = part.properties.get(name.as_str()) {
                        self.visit(*to, value, depth + 1, back + 1)?;
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        for (member, to) in &part.others {
            match (member, value) {
                (Member::Itself, _) => self.visit(*to, value, depth, back + 1)?,
                (Member::Name, Value::Object(members)) => {
                    for name in members.keys() {
                        self.add(1, 2 * name.len() as u64)?;
                        self.visit(*to, &Value::String(name.clone()), depth + 1, 0)?;
                    }
                }
                (member, Value::Object(members)) if !member.is_item() => {
                    let named = |name: &str| part.properties.contains_key(name);
                    let all = **member != Member::OtherProperties;
                    for (_, value) in members.iter().filter(|(name, _)| all || !named(name)) {
                        self.visit(*to, value, depth + 1, back + 1)?;
                    }
                }
                (member, Value::Array(items)) if member.is_item() => {
                    let first = if **member == Member::OtherItems { part.items.len() } else { 0 };
                    for item in items.iter().skip(first) {
                        self.visit(*to, item, depth + 1, back + 1)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn text(&mut self, index: usize, part: &Part<'_>, length: u64) -> Result<(), OverBound> {
        let square = if part.square { length.saturating_mul(length) / 16 } else { 0 };
        self.add(square.saturating_add(length / part.text_step), 0)?;
        part.pattern.map_or(Ok(()), |pattern| self.matched(index, pattern, length))
    }

    /// At worst every byte of a text goes through all of the pattern.
    fn matched(&mut self, index: usize, Pattern(size): Pattern, length: u64) -> Result<(), OverBound> {
        let most = MAX_REMEMBERED * (1 + self.work.parts[index].name_patterns.len() as u64);
        let before = self.remembered[index];
        self.remembered[index] = before.saturating_add(64 * length).min(most);
        self.add((length + 1).saturating_mul(size.max(64)) / 2048, self.remembered[index] - before)
    }
}

/// Values in a value, with the length of their texts. Stops behind `most`.
fn nodes(value: &Value, most: u64) -> u64 {
    let mut count = 0;
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        count += 1;
        match value {
            Value::String(text) => count += text.len() as u64 / 64,
            Value::Array(items) => left.extend(items),
            Value::Object(members) => {
                count += members.keys().map(|name| 1 + name.len() as u64 / 64).sum::<u64>();
                left.extend(members.values());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        if count > most {
            break;
        }
    }
    count
}
