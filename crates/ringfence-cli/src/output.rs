//! Data goes to stdout, talk to stderr. The only place that writes to either.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use ringfence::records::redact;

use crate::failure::{Failure, Kind};

/// Writes data to stdout, without what acts on a terminal.
pub fn data(text: &str) -> Result<(), Failure> {
    bytes(printable(text).as_bytes())
}

/// Writes bytes to stdout as they are. That nobody reads them any more is no failure.
pub fn bytes(data: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(data).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::output(&error)),
        _ => Ok(()),
    }
}

/// Writes what code wrote: as it is into a pipe or a file, and without what acts on a terminal to one.
pub fn of_code(stdout: &[u8], stderr: &[u8]) -> Result<(), Failure> {
    let shown = |raw: &[u8], terminal| match terminal {
        true => printable(&String::from_utf8_lossy(raw)).into_bytes(),
        false => raw.to_vec(),
    };
    bytes(&shown(stdout, io::stdout().is_terminal()))?;
    let _ = io::stderr().lock().write_all(&shown(stderr, io::stderr().is_terminal()));
    Ok(())
}

/// What commands wrote, on its way as it comes: as it is into a pipe or a file, and without what acts on a terminal to one.
#[derive(Debug, Default)]
pub struct Written {
    /// Of each stream, the beginning of a character whose end did not come yet.
    rest: [Vec<u8>; 2],
}

impl Written {
    /// What is to be written in the place of these bytes.
    pub fn harmless<'a>(&mut self, stderr: bool, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let terminal = if stderr { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        if terminal { Cow::Owned(self.printable(stderr, bytes).into_bytes()) } else { Cow::Borrowed(bytes) }
    }

    fn printable(&mut self, stderr: bool, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.rest[usize::from(stderr)]);
        all.extend_from_slice(bytes);
        let (mut text, mut left) = (String::new(), all.as_slice());
        while !left.is_empty() {
            let (valid, after) = match std::str::from_utf8(left) {
                Ok(valid) => (valid, None),
                Err(error) => {
                    let (valid, after) = left.split_at(error.valid_up_to());
                    (std::str::from_utf8(valid).unwrap_or_default(), Some((after, error.error_len())))
                }
            };
            text.push_str(&printable(valid));
            match after {
                None => break,
                Some((after, Some(bad))) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    left = &after[bad..];
                }
                Some((after, None)) => {
                    self.rest[usize::from(stderr)] = after.to_vec();
                    break;
                }
            }
        }
        text
    }
}

/// One JSON object on stdout.
pub fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = inert(&serde_json::to_string(value).map_err(|error| Failure::output(&error.into()))?);
    text.push('\n');
    data(&text)
}

/// JSON leaves alone what acts on a terminal but is no ASCII. Only strings have such characters, and so they can be escaped.
fn inert(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        match redact::acts(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
            false => out.push(c),
        }
    }
    out
}

/// Says something on stderr. There is nobody to tell that it failed.
pub fn say(text: &str) {
    let mut line = printable(text);
    line.push('\n');
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Names of files and keys may come from a project: their control characters must not reach the terminal.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        if redact::acts(c) && !matches!(c, '\n' | '\t') { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// The same, on one line.
pub fn one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// A long text without its middle.
pub fn shortened(text: &str) -> String {
    const SIDE: usize = 100;
    let cut = |n: usize| text.char_indices().nth(n).map(|(at, _)| at);
    let count = text.chars().count();
    match (cut(SIDE), cut(count.saturating_sub(SIDE))) {
        (Some(head), Some(tail)) if count > 2 * SIDE + 1 => format!("{}…{}", &text[..head], &text[tail..]),
        _ => text.to_owned(),
    }
}

/// Columns as wide as what stands in them.
pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Asks a person. Without one, that is a failure with this hint.
pub fn confirm(question: &str, otherwise: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        let message = "cannot ask: stdin is not a terminal";
        return Err(Failure::new(Kind::Usage, message).hint(otherwise));
    }
    prompt(&format!("{} [y/N] ", one_line(question)));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::output(&error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// As [`say`], without the end of the line.
pub fn prompt(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_shown_as_text() {
        let mut written = Written::default();
        let text = "a\u{1b}]0;title\u{7}\u{e4}\u{20ac}\n".as_bytes();
        let mut shown = String::new();
        for byte in text {
            shown += &written.printable(false, &[*byte]);
            assert_eq!(written.printable(true, b""), "");
        }
        assert_eq!(shown, "a\\u{1b}]0;title\\u{7}\u{e4}\u{20ac}\n");
        assert_eq!(written.printable(false, b"\xff\xc3x"), "\u{fffd}\u{fffd}x");
    }

    #[test]
    fn json_does_not_act_on_a_terminal() {
        let text = "a\u{1b}\u{7f}\u{9b}31m\u{202e}\u{e4}\u{1f600}\n\t\"";
        let json = inert(&serde_json::to_string(text).unwrap_or_default());
        assert_eq!(json, "\"a\\u001b\\u007f\\u009b31m\\u202e\u{e4}\u{1f600}\\n\\t\\\"\"");
        assert_eq!(serde_json::from_str::<String>(&json).ok().as_deref(), Some(text));
    }

    #[test]
    fn names_stay_on_their_line() {
        assert_eq!(one_line("a\nb\tc\u{1b}"), "a\\nb\\tc\\u{1b}");
        assert_eq!(printable("a\nb\tc\u{1b}"), "a\nb\tc\\u{1b}");
    }

    #[test]
    fn long_texts_lose_their_middle() {
        assert_eq!(shortened(&"x".repeat(201)).len(), 201);
        let cut = shortened(&format!("begin{}end", "\u{e4}".repeat(1000)));
        assert!(cut.starts_with("begin") && cut.ends_with("end") && cut.chars().count() == 201, "{cut}");
    }
}
