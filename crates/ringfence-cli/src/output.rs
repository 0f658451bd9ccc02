//! Data goes to stdout, talk to stderr. The only place that writes to either.

use std::io::{self, IsTerminal, Write};

use ringfence::records::redact;

use crate::failure::{Failure, Kind};

/// Writes data to stdout. That nobody reads it any more is no failure.
pub fn data(text: &str) -> Result<(), Failure> {
    bytes(text.as_bytes())
}

fn bytes(data: &[u8]) -> Result<(), Failure> {
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

/// One JSON object on stdout.
pub fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string(value).map_err(|error| Failure::output(&error.into()))?;
    text.push('\n');
    data(&text)
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
        if redact::acts(c) && c != '\n' { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// The same, on one line.
pub fn one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
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
    prompt(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::output(&error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// As [`say`], without the end of the line.
pub fn prompt(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
