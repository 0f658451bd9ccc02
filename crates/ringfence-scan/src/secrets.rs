//! Secrets written into code. The shapes of tokens are those that records are redacted by.

use std::ops::Range;

use super::Findings;
use super::rules::SECRET;
use ringfence_policy::secrets::TOKENS;

/// A key in text form.
const KEY_BLOCK: (&str, &str) = ("-----BEGIN ", "PRIVATE KEY-----");
/// Names whose literal value is a secret.
const NAMES: &[&str] =
    &["password", "passwd", "secret", "api_key", "apikey", "auth_token", "access_token", "private_key", "secret_key"];
/// What stands where a secret would, in examples.
const PLACEHOLDERS: &[&str] = &[
    "example",
    "changeme",
    "change_me",
    "your",
    "xxx",
    "...",
    "placeholder",
    "dummy",
    "test",
    "<",
    "{",
    "$",
    "****",
    "redacted",
    "none",
    "null",
    "env",
    "/",
    " ",
];

/// Where secrets stand in a text.
pub fn find(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    for (prefix, least) in TOKENS {
        for (at, _) in text.match_indices(prefix) {
            let inside = text[..at].chars().next_back().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
            let rest = &text[at + prefix.len()..];
            let length = rest.find(|c| !is_token(c)).unwrap_or(rest.len());
            let body = &rest[..length];
            let varied = body.chars().any(|c| c.is_ascii_digit()) && body.chars().any(|c| c.is_ascii_alphabetic());
            if !inside && length >= *least && varied {
                found.push(at..at + prefix.len() + length);
            }
        }
    }
    for (at, _) in text.match_indices(KEY_BLOCK.0) {
        let line = text[at..].lines().next().unwrap_or_default();
        if line.contains(KEY_BLOCK.1) {
            found.push(at..at + line.len());
        }
    }
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if line.len() < 2000 {
            found.extend(assigned(line).map(|range| start + range.start..start + range.end));
        }
        start += line.len();
    }
    found.sort_by_key(|range| (range.start, usize::MAX - range.end));
    let mut end = 0;
    found.retain(|range| {
        let fresh = range.start >= end;
        end = end.max(range.end);
        fresh
    });
    found
}

/// The literal in `password = "…"`, `"api_key": "…"`, `export SECRET=…`.
fn assigned(line: &str) -> Option<Range<usize>> {
    let lower = line.to_ascii_lowercase();
    let (at, name) = NAMES.iter().filter_map(|name| lower.find(name).map(|at| (at, name))).min()?;
    let rest = &line[at + name.len()..];
    // The rest of a longer name, a closing quote, a type.
    let skip = rest.find(['=', ':'])?;
    if !rest[..skip].chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '"' | '\'' | ' ' | ']')) {
        return None;
    }
    let value = rest[skip + 1..].trim_start_matches([' ', '=']);
    let from = line.len() - value.len();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inner = &value[1..];
    let length = inner.find(quote)?;
    let literal = &inner[..length];
    let low = literal.to_ascii_lowercase();
    let varied = literal.chars().any(|c| c.is_ascii_digit()) && literal.chars().any(|c| c.is_ascii_alphabetic());
    let plain = PLACEHOLDERS.iter().any(|placeholder| low.contains(placeholder));
    ((8..=200).contains(&length) && varied && !plain).then(|| from + 1..from + 1 + length)
}

/// A finding for each.
pub fn look(text: &str, findings: &mut Findings<'_>) {
    for range in find(text) {
        findings.add(&SECRET, range.start, "");
    }
}

/// The text with all but the beginning of each secret taken out: a report must not spread it.
pub fn mask(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut end = 0;
    for range in find(text) {
        out.push_str(&text[end..range.start]);
        out.extend(text[range.clone()].chars().take(4));
        out.push('…');
        end = range.end;
    }
    out.push_str(&text[end..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_and_masks() {
        let token = format!("ghp_{}", "a1B2".repeat(9));
        assert_eq!(mask(&format!("x = '{token}'")), "x = 'ghp_…'");
        assert_eq!(mask("password = 'hunter2hunter2'"), "password = 'hunt…'");
        assert_eq!(mask("\"api_key\": \"9f8e7d6c5b4a\","), "\"api_key\": \"9f8e…\",");
        for plain in
            ["password = os.environ['PASSWORD1']", "api_key = 'your-api-key-1'", "secret = ''", "def password(x1): 'y'"]
        {
            assert_eq!(mask(plain), plain);
        }
    }
}
