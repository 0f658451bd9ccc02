//! Captured output: the head and the tail of a stream within a fixed amount of memory, and how much was dropped between.

use std::collections::VecDeque;

/// Keeps at most so many bytes of a stream: the first half of them from its head, the rest from its tail.
#[derive(Debug, Clone)]
pub struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    dropped: u64,
}

impl Capture {
    pub fn new(limit: u64) -> Capture {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let head_limit = limit / 2;
        Capture { head: Vec::new(), tail: VecDeque::new(), head_limit, tail_limit: limit - head_limit, dropped: 0 }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_limit - self.head.len()));
        self.head.extend_from_slice(head);
        // Only the last of them can stay.
        let skipped = rest.len().saturating_sub(self.tail_limit);
        let rest = &rest[skipped..];
        let over = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..over);
        self.tail.extend(rest);
        self.dropped += (skipped + over) as u64;
    }

    /// Bytes that were dropped between head and tail.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes that came, kept or not.
    pub fn total(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64 + self.dropped
    }

    /// What is kept from this place of the stream on, so many bytes at most, and where it really begins: later when the
    /// place was dropped. Head and tail do not come in one page when something is missing between them.
    pub fn page(&self, from: u64, limit: usize) -> (u64, Vec<u8>) {
        let head = self.head.len() as u64;
        if from < head {
            let rest = &self.head[from as usize..];
            let mut bytes = rest[..rest.len().min(limit)].to_vec();
            if bytes.len() == rest.len() && self.dropped == 0 {
                bytes.extend(self.tail.iter().take(limit - bytes.len()));
            }
            return (from, bytes);
        }
        let begin = head + self.dropped;
        let at = from.clamp(begin, self.total());
        (at, self.tail.iter().skip((at - begin) as usize).take(limit).copied().collect())
    }

    /// Head and tail, one after the other; where something was dropped, `gap` stands between them.
    pub fn into_bytes(self, gap: impl FnOnce(u64) -> String) -> Vec<u8> {
        let mut bytes = self.head;
        if self.dropped > 0 {
            bytes.extend_from_slice(gap(self.dropped).as_bytes());
        }
        let (front, back) = self.tail.as_slices();
        bytes.extend_from_slice(front);
        bytes.extend_from_slice(back);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(limit: u64, chunks: &[&str]) -> (String, u64) {
        let mut capture = Capture::new(limit);
        chunks.iter().for_each(|chunk| capture.push(chunk.as_bytes()));
        let dropped = capture.dropped();
        (String::from_utf8(capture.into_bytes(|_| "…".to_owned())).unwrap(), dropped)
    }

    #[test]
    fn head_and_tail() {
        let table: &[(u64, &[&str], &str, u64)] = &[
            (8, &[], "", 0),
            (8, &["abc"], "abc", 0),
            (8, &["abcdefgh"], "abcdefgh", 0),
            (8, &["abcdefghi"], "abcd…fghi", 1),
            (8, &["abc", "def", "ghi", "jkl"], "abcd…ijkl", 4),
            (8, &["abcdefghijklmnopqrstuvwxyz"], "abcd…wxyz", 18),
            (3, &["abcdef"], "a…ef", 3),
            (1, &["ab", "c"], "…c", 2),
            (0, &["ab", "c"], "…", 3),
        ];
        for (limit, chunks, text, dropped) in table {
            assert_eq!(captured(*limit, chunks), ((*text).to_owned(), *dropped), "{limit} {chunks:?}");
        }
    }

    #[test]
    fn pages_go_on_where_the_last_one_ended() {
        let mut capture = Capture::new(8);
        capture.push(b"abcdef");
        let page = |capture: &Capture, from, limit| {
            let (at, bytes) = capture.page(from, limit);
            (at, String::from_utf8(bytes).unwrap())
        };
        assert_eq!(page(&capture, 0, 100), (0, "abcdef".into()));
        assert_eq!(page(&capture, 3, 2), (3, "de".into()));
        assert_eq!(page(&capture, 9, 2), (6, String::new()));
        capture.push(b"ghijkl");
        assert_eq!(capture.total(), 12);
        assert_eq!(page(&capture, 0, 100), (0, "abcd".into()));
        assert_eq!(page(&capture, 4, 3), (8, "ijk".into()));
        assert_eq!(page(&capture, 11, 100), (11, "l".into()));
    }

    #[test]
    fn a_flood_costs_constant_memory() {
        let mut capture = Capture::new(1 << 10);
        for _ in 0..10_000 {
            capture.push(&[b'x'; 1 << 12]);
        }
        assert_eq!(capture.dropped(), 10_000 * (1 << 12) - (1 << 10));
        assert!(capture.head.capacity() + capture.tail.capacity() <= 1 << 12);
    }
}
