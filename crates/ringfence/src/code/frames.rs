//! Frames from the runner, read as hostile: `KIND LENGTH\n`, then so many bytes. Whatever comes, memory stays bounded.
//!
//! | kind | what it carries |
//! |---|---|
//! | `w` | the interpreter is ready for code |
//! | `u` | the code does not start: a file that goes in cannot be written |
//! | `v` | the code does not start: the shell has a variable with the name of an input |
//! | `s` | the code starts now |
//! | `d` | a rich result: a JSON object of media types |
//! | `f` | a file: the length of its path, its path, its bytes |
//! | `n` | how many more files there were than were sent |
//! | `t` | what a context took: milliseconds of CPU, most bytes of memory |
//! | `o`, `e` | what a context wrote to stdout or stderr: how much was dropped, then the rest |
//! | `r` | the result: a JSON object |
//! | `b` | the result of bash: status, line and interruption, then `=` and the value, or `~` and the beginning of one that is too large |

use super::{File, MAX_FILE_BYTES, MAX_FILES, Rich, is_below};

/// Bytes of a result or a rich result.
const MAX_MESSAGE: usize = 5 << 20;
/// Rich results, and bytes of all of them.
const MAX_RICH: usize = 64;
const MAX_RICH_BYTES: usize = 16 << 20;
/// Bytes of a reason.
const MAX_REASON: usize = 4 << 10;
/// Bytes of numbers.
const MAX_NUMBERS: usize = 64;
/// Nobody has more files than that.
const MOST_FILES: u64 = 1 << 40;
/// `f 33554432`, with room.
const MAX_HEAD: usize = 24;

/// What came.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Received {
    /// The runner had started and was about to run the code.
    pub started: bool,
    /// The interpreter was ready before there was code.
    pub warm: bool,
    pub result: Option<Result>,
    pub rich: Vec<Rich>,
    pub files: Vec<File>,
    /// Files that were sent, and are too many or too large.
    pub files_dropped: u64,
    /// A file that goes in cannot be written, and why. Code that has started cannot say so.
    pub unwritten: Option<String>,
    /// An input whose name the interpreter has for itself. Code that has started cannot say so.
    pub taken: Option<String>,
    /// Of a context: what was written to stdout and stderr, and how much of it was dropped.
    pub written: [Option<(u64, Vec<u8>)>; 2],
    /// Of a context: milliseconds of CPU and most bytes of memory, as it says itself.
    pub used: (u64, u64),
    /// Something was too much or not to be understood, and was left away.
    pub cut: bool,
}

/// The result as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Result {
    Json(serde_json::Value),
    Shell { status: i32, line: u32, value: Option<Shown> },
}

/// The value that a shell has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    Whole(String),
    /// Only its beginning.
    Cut(String),
}

/// Takes bytes in any portions.
#[derive(Debug, Default)]
pub struct Decoder {
    received: Received,
    head: Vec<u8>,
    body: Option<Body>,
    rich_bytes: usize,
    file_bytes: usize,
    broken: bool,
}

#[derive(Debug)]
struct Body {
    kind: u8,
    missing: usize,
    /// `None`: it is read over.
    data: Option<Vec<u8>>,
}

impl Decoder {
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.broken {
            match &mut self.body {
                None => {
                    let byte = bytes[0];
                    bytes = &bytes[1..];
                    if byte == b'\n' {
                        self.begin();
                    } else if self.head.len() < MAX_HEAD {
                        self.head.push(byte);
                    } else {
                        self.give_up();
                    }
                }
                Some(body) => {
                    let (now, later) = bytes.split_at(bytes.len().min(body.missing));
                    if let Some(data) = &mut body.data {
                        data.extend_from_slice(now);
                    }
                    body.missing -= now.len();
                    bytes = later;
                    if body.missing == 0 {
                        self.end();
                    }
                }
            }
        }
    }

    pub(super) fn received(&self) -> &Received {
        &self.received
    }

    /// Whether the last frame is there.
    pub(super) fn has_result(&self) -> bool {
        let Received { result, unwritten, taken, .. } = &self.received;
        result.is_some() || unwritten.is_some() || taken.is_some() || self.broken
    }

    /// What came until now; a frame that is not whole is lost.
    pub fn into_received(mut self) -> Received {
        self.received.cut |= self.body.is_some() || !self.head.is_empty();
        self.received
    }

    /// Nothing after this can be understood.
    fn give_up(&mut self) {
        self.broken = true;
        self.received.cut = true;
        self.head.clear();
        self.body = None;
    }

    fn begin(&mut self) {
        let head = std::mem::take(&mut self.head);
        let parsed = std::str::from_utf8(&head).ok().and_then(|head| {
            let (kind, length) = head.split_once(' ')?;
            let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            Some((
                *kind.as_bytes().first().filter(|_| kind.len() == 1)?,
                digits.then(|| length.parse::<usize>().ok())??,
            ))
        });
        let Some((kind, length)) = parsed else { return self.give_up() };
        let room = match kind {
            b's' | b'w' => 0,
            b'u' | b'v' => MAX_REASON,
            b'n' | b't' => MAX_NUMBERS,
            b'r' | b'b' | b'o' | b'e' => MAX_MESSAGE,
            b'd' if self.received.rich.len() < MAX_RICH => MAX_MESSAGE.min(MAX_RICH_BYTES - self.rich_bytes),
            b'f' if self.received.files.len() < MAX_FILES => (MAX_FILE_BYTES - self.file_bytes).saturating_add(300),
            b'd' | b'f' => 0,
            _ => return self.give_up(),
        };
        let keep = length <= room && (matches!(kind, b's' | b'w') || room > 0);
        self.received.cut |= !keep;
        self.received.files_dropped += u64::from(kind == b'f' && !keep);
        // Memory is taken as bytes come, not as they are announced.
        self.body = Some(Body { kind, missing: length, data: keep.then(Vec::new) });
        if length == 0 {
            self.end();
        }
    }

    fn end(&mut self) {
        let Some(Body { kind, data, .. }) = self.body.take() else { return };
        let Some(data) = data else {
            if matches!(kind, b'r' | b'b') {
                self.received.result.get_or_insert_with(|| unreadable(b""));
            }
            return;
        };
        let understood = match kind {
            b's' => {
                self.received.started = true;
                true
            }
            b'w' => {
                self.received.warm = true;
                true
            }
            b'u' | b'v' if self.received.started => false,
            b'u' | b'v' => {
                let place = if kind == b'u' { &mut self.received.unwritten } else { &mut self.received.taken };
                place.get_or_insert_with(|| String::from_utf8_lossy(&data).into_owned());
                true
            }
            // The first one counts.
            b'r' | b'b' if self.received.result.is_some() => true,
            b'r' => {
                let read = serde_json::from_slice(&data).ok().map(Result::Json);
                let understood = read.is_some();
                self.received.result = Some(read.unwrap_or_else(|| unreadable(&data)));
                understood
            }
            b'b' => {
                let read = shell(&data);
                let understood = read.is_some();
                self.received.result = Some(read.unwrap_or_else(|| unreadable(b"")));
                understood
            }
            b'o' | b'e' => {
                let written = written(&data);
                let understood = written.is_some();
                self.received.written[usize::from(kind == b'e')] = written;
                understood
            }
            b'n' => {
                let count = numbers(&data, |count| Some(*count.first()?));
                self.received.files_dropped +=
                    count.unwrap_or(0).min(MOST_FILES - self.received.files_dropped.min(MOST_FILES));
                self.received.cut |= count.is_some_and(|count| count > 0);
                count.is_some()
            }
            b't' => {
                let used = numbers(&data, |used| Some((*used.first()?, *used.get(1)?)));
                self.received.used = used.unwrap_or_default();
                used.is_some()
            }
            b'd' => {
                self.rich_bytes += data.len();
                let rich = serde_json::from_slice::<Rich>(&data).ok();
                let understood = rich.is_some();
                self.received.rich.extend(rich);
                understood
            }
            _ => {
                let file = file(data);
                if file.as_ref().is_some_and(|file| self.received.files.iter().any(|known| clash(known, file))) {
                    self.received.cut = true;
                    return;
                }
                let bytes = file.as_ref().map_or(0, |file| file.data.len());
                let fits = file.is_some() && self.file_bytes + bytes <= MAX_FILE_BYTES;
                if fits {
                    self.file_bytes += bytes;
                    self.received.files.extend(file);
                } else {
                    self.received.files_dropped += 1;
                }
                fits
            }
        };
        self.received.cut |= !understood;
    }
}

/// A result that is too large or not to be understood. What is not known to have done well has not.
fn unreadable(data: &[u8]) -> Result {
    let did_well = data.starts_with(br#"{"status":"ok","#);
    Result::Json(match did_well {
        true => serde_json::json!({ "status": "ok" }),
        false => {
            let message = "what came of it cannot be read: it is too large, or not well-formed";
            serde_json::json!({ "status": "error", "exception": { "type": "ResultError", "message": message } })
        }
    })
}

fn numbers<T>(data: &[u8], take: impl FnOnce(&[u64]) -> Option<T>) -> Option<T> {
    let words = std::str::from_utf8(data).ok()?.split(' ');
    take(&words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?)
}

fn written(data: &[u8]) -> Option<(u64, Vec<u8>)> {
    let end = data.iter().take(20).position(|byte| *byte == b'\n')?;
    let dropped = std::str::from_utf8(&data[..end]).ok()?.parse().ok()?;
    Some((dropped, data[end + 1..].to_vec()))
}

fn file(data: Vec<u8>) -> Option<File> {
    let end = data.iter().take(8).position(|byte| *byte == b'\n')?;
    let length: usize = std::str::from_utf8(&data[..end]).ok()?.parse().ok()?;
    let path = data.get(end + 1..(end + 1).checked_add(length)?)?;
    let path = std::str::from_utf8(path).ok().filter(|path| is_below(path))?.to_owned();
    Some(File { path, data: data[end + 1 + length..].to_vec() })
}

/// Whether only one of them can be there.
fn clash(one: &File, other: &File) -> bool {
    let (one, other) = (std::path::Path::new(&one.path), std::path::Path::new(&other.path));
    one.starts_with(other) || other.starts_with(one)
}

fn shell(data: &[u8]) -> Option<Result> {
    let end = data.iter().take(64).position(|byte| *byte == b'\n')?;
    let mut words = std::str::from_utf8(&data[..end]).ok()?.split(' ');
    let status = words.next()?.parse().ok().filter(|status| (0..=255).contains(status))?;
    let line = words.next()?.parse().ok()?;
    let text = |value| String::from_utf8_lossy(value).into_owned();
    let value = match &data[end + 1..] {
        [b'=', value @ ..] => Some(Shown::Whole(text(value))),
        [b'~', value @ ..] => Some(Shown::Cut(text(value))),
        _ => None,
    };
    Some(Result::Shell { status, line, value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn received(bytes: &[u8]) -> Received {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        decoder.into_received()
    }

    #[test]
    fn frames_are_read() {
        let got = received(b"s 0\nd 21\n{\"text/html\":\"<b>\"}\n f 0\n");
        assert!(got.started && got.rich.len() == 1 && got.cut);
        let got = received(b"s 0\nf 7\n3\na/bxyr 15\n{\"status\":\"ok\"}r 4\nnull");
        assert_eq!(got.files, vec![File { path: "a/b".into(), data: b"xy".to_vec() }]);
        assert_eq!(got.result, Some(Result::Json(serde_json::json!({"status": "ok"}))));
        assert!(!got.cut);
        assert_eq!(
            received(b"b 10\n3 12 0\n=hi").result,
            Some(Result::Shell { status: 3, line: 12, value: Some(Shown::Whole("hi".into())) })
        );
    }

    /// What cannot lie beside what is there already.
    #[test]
    fn a_path_comes_once() {
        let frame = |path: &str| format!("f {}\n{}\n{path}", path.len() + path.len().to_string().len() + 1, path.len());
        let got = received(["a", "b/c", "a", "a/x", "b", "ab"].map(frame).concat().as_bytes());
        let paths: Vec<_> = got.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!((paths, got.cut, got.files_dropped), (vec!["a", "b/c", "ab"], true, 0));
    }

    #[test]
    fn numbers_are_read() {
        let got = received(b"s 0\nn 3\n500n 20\n18446744073709551615t 7\n12 4096r 15\n{\"status\":\"ok\"}");
        assert_eq!((got.files_dropped, got.used), (MOST_FILES, (12, 4096)));
        for bytes in [&b"n 1\nx"[..], b"t 1\n1", b"t 5\n1 2 x", b"n 0\n"] {
            let got = received(bytes);
            assert!(got.cut && got.used == (0, 0) && got.files_dropped == 0, "{bytes:?}");
        }
    }

    #[test]
    fn lies_are_bounded() {
        for bytes in [
            &b"x 5\nhello"[..],
            b"r 99999999999999999999999\n",
            b"r -1\n",
            b"r 18446744073709551615\nabc",
            b"f 9\n4\n../x1234",
            b"f 99\n99999999\n",
            b"r 2\n{",
            b"b 4\n1 2",
            b"sandbox_error 0\n",
            b"rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr",
        ] {
            let got = received(bytes);
            assert!(got.cut && got.result.is_none() && got.files.is_empty(), "{bytes:?}");
        }
        // What cannot be read is no success, unless it says so itself.
        let status = |bytes: &[u8]| match received(bytes).result {
            Some(Result::Json(message)) => message["status"].as_str().map(str::to_owned),
            other => panic!("{other:?}"),
        };
        assert_eq!(status(b"b 3\n1 2").as_deref(), Some("error"));
        assert_eq!(status(b"r 3\n{{{").as_deref(), Some("error"));
        assert_eq!(status(b"r 22\n{\"status\":\"ok\",\"value\"").as_deref(), Some("ok"));
        // A frame that is too large is read over, and the next one counts.
        let mut decoder = Decoder::default();
        decoder.push(format!("d {}\n", 6 << 20).as_bytes());
        for _ in 0..6 << 10 {
            decoder.push(&[b'x'; 1 << 10]);
        }
        decoder.push(b"r 4\nnull");
        let got = decoder.into_received();
        assert!(got.cut && got.rich.is_empty() && got.result.is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_portions(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..64)) {
            let mut decoder = Decoder::default();
            parts.iter().for_each(|part| decoder.push(part));
            let whole = received(&parts.concat());
            prop_assert_eq!(decoder.into_received(), whole);
        }

        #[test]
        fn frames_in_any_portions(
            kinds in proptest::collection::vec((proptest::sample::select(b"swudfrboexnt".to_vec()), 0_usize..40), 0..20),
            size in 1_usize..50,
        ) {
            let bytes: Vec<u8> = kinds
                .iter()
                .flat_map(|(kind, length)| [format!("{} {length}\n", char::from(*kind)).into_bytes(), vec![b'1'; *length]].concat())
                .collect();
            let mut decoder = Decoder::default();
            bytes.chunks(size).for_each(|chunk| decoder.push(chunk));
            prop_assert_eq!(decoder.into_received(), received(&bytes));
        }
    }
}
