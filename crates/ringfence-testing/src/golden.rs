//! Files that pin the bytes of messages and the text of documents. A file only grows: a line that is no longer written must
//! still be understood as what it was.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::PathBuf;

use ringfence_guest::frame::{self, Decoder, Kind, MAX_REQUEST, Message};

/// A golden file, and what is written today.
#[derive(Debug)]
pub struct Golden {
    file: PathBuf,
    known: Vec<String>,
    lines: Vec<String>,
    understood: BTreeSet<String>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn payload(line: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    line.as_bytes().chunks(2).skip(frame::HEADER).map(byte).collect()
}

/// Reads a message, and writes it again.
fn read<T: Message>(payload: &[u8]) -> Option<(T, Vec<u8>)> {
    let frame = frame::Frame { stream: 1, kind: Kind::Open, payload };
    let message = frame.message::<T>().ok()?;
    let again = postcard::to_allocvec(&message).ok()?;
    Some((message, again))
}

impl Golden {
    pub fn open(file: impl Into<PathBuf>) -> Golden {
        let file = file.into();
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let known = text.lines().map(str::to_owned).collect();
        Golden { file, known, lines: Vec::new(), understood: BTreeSet::new() }
    }

    pub fn bytes(&mut self, name: &str, bytes: &[u8]) {
        self.lines.push(format!("{name} {}", hex(bytes)));
    }

    /// Messages: each variant at least once.
    pub fn messages<T: Message + PartialEq + Debug>(&mut self, kind: Kind, name: fn(&T) -> &'static str, all: &[T]) {
        let mut seen = BTreeSet::new();
        for message in all {
            let mut bytes = Vec::new();
            frame::put_message(&mut bytes, 1, kind, message).unwrap();
            seen.insert(bytes[frame::HEADER]);
            self.bytes(&format!("{kind:?}.{}", name(message)), &bytes);
            let mut decoder = Decoder::new(MAX_REQUEST);
            decoder.feed(&bytes);
            assert_eq!(&decoder.next_frame().unwrap().unwrap().message::<T>().unwrap(), message);
        }
        // None is left out, and the number that comes next is the one that the type calls unknown.
        if let Some(known) = T::VARIANTS {
            let of = std::any::type_name::<T>();
            assert_eq!(seen.len(), known as usize, "{of} has a variant without a golden line");
            let next = [&[known as u8][..], &[0; 64]].concat();
            postcard::from_bytes::<T>(&next).expect_err("VARIANTS is too small");
        }
        self.understands(|line| {
            let Some((title, line)) = line.split_once(' ') else { return false };
            let Some(was) = payload(line) else { return false };
            // Fields that were added since are zero.
            read::<T>(&was).is_some_and(|(message, again)| {
                let added = again.strip_prefix(&was[..]);
                title == format!("{kind:?}.{}", name(&message)) && added.is_some_and(|a| a.iter().all(|b| *b == 0))
            })
        });
    }

    /// A document as text. An older one is still a line of the file when `reads` reads it.
    pub fn document(&mut self, text: String, reads: impl Fn(&str) -> bool) {
        self.lines.push(format!("document {text}"));
        self.understands(|line| line.strip_prefix("document ").is_some_and(&reads));
    }

    /// Lines of the file that may have another text today.
    fn understands(&mut self, reads: impl Fn(&str) -> bool) {
        let still = self.known.iter().filter(|line| reads(line)).cloned();
        self.understood.extend(still);
    }

    /// Compares. With `RINGFENCE_BLESS=1`, lines that are new are appended; none is ever changed.
    #[allow(clippy::disallowed_methods, reason = "tests ask how they were started")]
    pub fn settle(self) {
        let Golden { file, known, lines, understood } = self;
        for line in &known {
            assert!(lines.contains(line) || understood.contains(line), "no longer written or understood: {line}");
        }
        let new: Vec<String> = lines.into_iter().filter(|line| !known.contains(line)).collect();
        if std::env::var_os("RINGFENCE_BLESS").is_some() {
            let all: String = known.into_iter().chain(new).map(|line| line + "\n").collect();
            std::fs::write(&file, all).unwrap();
        } else {
            assert!(new.is_empty(), "{} lacks lines, which RINGFENCE_BLESS=1 appends: {new:#?}", file.display());
        }
    }
}
