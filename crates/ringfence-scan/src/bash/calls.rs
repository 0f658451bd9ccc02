//! Functions of a script: what they are called with, and what comes out of them.

use std::collections::HashMap;

use super::super::value::{Taint, Value};

/// Calls of a function that are kept.
const MAX_CALLS: usize = 128;

/// What is known of functions; the script itself is the one without a name, and `set --` calls it.
#[derive(Debug, Default)]
pub struct Calls {
    arguments: HashMap<String, Vec<Vec<Value>>>,
    output: HashMap<String, Taint>,
}

impl Calls {
    /// A function is called with these words after its name; `false` when there are too many calls to keep.
    pub fn add(&mut self, function: &str, words: &[Value]) -> bool {
        let calls = self.arguments.entry(function.to_owned()).or_default();
        let same = |known: &Vec<Value>| {
            known.len() == words.len()
                && known.iter().zip(words).all(|(a, b)| (&a.texts, a.taint) == (&b.texts, b.taint))
        };
        if calls.iter().any(same) {
            return true;
        }
        if calls.len() >= MAX_CALLS {
            return false;
        }
        // What a call is made of is no list to look into: lists in lists would grow with each round.
        let plain = |word: &Value| Value { texts: word.texts.clone(), taint: word.taint, ..Value::default() };
        calls.push(words.iter().map(plain).collect());
        true
    }

    /// All that a function is called with.
    pub fn of(&self, function: &str) -> &[Vec<Value>] {
        self.arguments.get(function).map_or(&[], Vec::as_slice)
    }

    /// What `$1` may be in a function.
    pub fn parameter(&self, function: &str, number: usize) -> Option<Value> {
        let words: Vec<&Value> =
            self.of(function).iter().filter_map(|words| words.get(number.checked_sub(1)?)).collect();
        let taint = words.iter().fold(Taint::default(), |taint, word| taint.with(word.taint));
        // Few alternatives are kept of a text: places outside first.
        let mut texts: Vec<_> = words.iter().flat_map(|word| word.texts.iter().cloned()).collect();
        texts.sort_by_key(|text| !text.starts_with(['/', '~']));
        (!words.is_empty()).then_some(Value { texts, taint, ..Value::default() })
    }

    pub fn returns(&mut self, function: &str, taint: Taint) {
        let known = self.output.entry(function.to_owned()).or_default();
        *known = known.with(taint);
    }

    pub fn output(&self, function: &str) -> Taint {
        self.output.get(function).copied().unwrap_or_default()
    }
}
