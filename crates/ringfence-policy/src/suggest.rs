//! The nearest valid name, for messages about a wrong one.

use std::fmt;

/// What to say after an unknown name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suggestion {
    /// This name is near.
    Nearest(String),
    /// Nothing is near: all that is valid.
    OneOf(Vec<String>),
}

impl Suggestion {
    /// The candidate nearest to `name`, or all of them when none is near.
    pub fn among<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Suggestion {
        let candidates: Vec<&str> = candidates.into_iter().collect();
        let length = name.chars().count();
        let (edits, nearest) = candidates.iter().map(|c| (distance(name, c), *c)).min().unwrap_or((usize::MAX, ""));
        // A part of it, or a beginning with one mistake, says more than two edits in a short name.
        let begins = |c: &str| distance(name, &c.chars().take(length).collect::<String>()) <= 1;
        let parts: Vec<&str> =
            candidates.iter().copied().filter(|c| length > 3 && (c.contains(name) || begins(c))).collect();
        let named = |names: Vec<&str>| match names[..] {
            [one] => Suggestion::Nearest(one.to_owned()),
            _ => Suggestion::OneOf(names.into_iter().map(str::to_owned).collect()),
        };
        match edits {
            0..=1 => named(vec![nearest]),
            _ if !parts.is_empty() => named(parts),
            _ if edits <= (length / 3).max(2) => named(vec![nearest]),
            _ => Suggestion::OneOf(candidates.into_iter().map(str::to_owned).collect()),
        }
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Suggestion::Nearest(name) => write!(f, " (did you mean `{name}`?)"),
            Suggestion::OneOf(names) if names.is_empty() => Ok(()),
            Suggestion::OneOf(names) => write!(f, " (expected one of `{}`)", names.join("`, `")),
        }
    }
}

/// Edits between two names: insert, delete, replace, swap of neighbours. Names longer than 64 characters are cut, so
/// that a hostile file costs nothing.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name() {
        let keys = ["network", "nesting", "presets"];
        assert_eq!(Suggestion::among("netwrok", keys).to_string(), " (did you mean `network`?)");
        assert_eq!(Suggestion::among("preset", keys).to_string(), " (did you mean `presets`?)");
        let presets = ["@git", "@lint/ts", "@lint/go", "@git-strict"];
        assert_eq!(Suggestion::among("@lint", presets).to_string(), " (expected one of `@lint/ts`, `@lint/go`)");
        assert_eq!(Suggestion::among("@gti", presets).to_string(), " (did you mean `@git`?)");
        assert_eq!(Suggestion::among("@git-strct", presets).to_string(), " (did you mean `@git-strict`?)");
        let guarantees = ["fs.secrets-hidden", "fs.temp-private", "net.isolated"];
        for name in ["secrets", "fs.secrt", "fs.secret-hidden"] {
            assert_eq!(Suggestion::among(name, guarantees).to_string(), " (did you mean `fs.secrets-hidden`?)");
        }
        assert_eq!(Suggestion::among("zzzzzz", keys).to_string(), " (expected one of `network`, `nesting`, `presets`)");
    }
}
