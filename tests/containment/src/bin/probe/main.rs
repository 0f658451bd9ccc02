//! The probe: tries acts, inside a box or outside, and says for each what the kernel answered: `ok`, with what was found,
//! or the name of the error. One line for each act; acts are separated by `+`.

mod files;
mod kernel;
mod load;
mod net;
mod procs;
mod sys;

use std::io::{self, Write};

/// What an act found, or the error that it met.
type Found = io::Result<String>;
type Act = fn(&[&str]) -> Found;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    for act in words.split(|word| *word == "+") {
        let line = match act {
            [name, rest @ ..] => match find(name) {
                Some(act) => answer(act(rest)),
                None => format!("no act `{name}`"),
            },
            [] => "no act".to_owned(),
        };
        // Nobody may be left to read it, which is the reader's affair.
        let _ = writeln!(io::stdout(), "{line}");
    }
}

fn find(name: &str) -> Option<Act> {
    let tables = [files::ACTS, net::ACTS, procs::ACTS, kernel::ACTS, load::ACTS];
    tables.into_iter().flatten().find(|(known, _)| *known == name).map(|(_, act)| *act)
}

fn answer(found: Found) -> String {
    match found {
        Ok(text) if text.is_empty() => "ok".to_owned(),
        Ok(text) => format!("ok {}", text.trim_end().replace('\n', "\\n")),
        Err(e) => match e.raw_os_error() {
            Some(code) => sys::error_name(code),
            None => format!("error {e}"),
        },
    }
}

/// The argument at `index`; a missing one is the caller's mistake and shows as an error of its own.
fn arg<'a>(args: &[&'a str], index: usize) -> io::Result<&'a str> {
    args.get(index).copied().ok_or_else(|| io::Error::other("argument missing"))
}

fn number(args: &[&str], index: usize) -> io::Result<i64> {
    let text = arg(args, index)?;
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| io::Error::other(format!("`{text}` is not a number")))
}

fn done<T>(_: T) -> String {
    String::new()
}
