//! Captured output: the head and the tail of a stream within a fixed amount of memory, and how much was dropped between.

use std::collections::VecDeque;

/// No stream is as long: what somebody says was skipped may be anything.
const MOST_DROPPED: u64 = 1 << 60;

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
    /// Keeps this many bytes.
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

    /// So many bytes came that nobody has. What came last before them is not the tail any more.
    pub fn skip(&mut self, bytes: u64) {
        // Bounded, so that positions in the stream can be counted on from there.
        let dropped = self.dropped.saturating_add(bytes).saturating_add(self.tail.len() as u64);
        self.dropped = dropped.min(MOST_DROPPED.max(self.dropped));
        self.tail.clear();
        // The head ends where something is missing.
        self.head_limit = self.head.len();
    }

    /// Drops all that is kept, as if it had been dropped when it came.
    pub fn forget(&mut self) {
        let dropped = self.total();
        *self = Capture { head_limit: 0, dropped, ..Capture::new(self.tail_limit as u64) };
    }

    /// Bytes that were dropped between head and tail.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How many bytes came.
    pub fn total(&self) -> u64 {
        self.dropped.saturating_add((self.head.len() + self.tail.len()) as u64)
    }

    /// What is kept: the head, and what came last.
    pub fn parts(&self) -> (&[u8], Vec<u8>) {
        (&self.head, self.tail.iter().copied().collect())
    }

    /// What is kept from a position of the stream on: how much of it is missing there, and the next bytes.
    pub fn at(&self, position: u64) -> (u64, &[u8]) {
        let from = |slice: &'_ [u8], start: u64| usize::try_from(start).map_or(slice.len(), |n| n.min(slice.len()));
        if position < self.head.len() as u64 {
            return (0, &self.head[position as usize..]);
        }
        let tail = self.head.len() as u64 + self.dropped;
        let skipped = tail.saturating_sub(position);
        let start = (position + skipped) - tail;
        let (front, back) = self.tail.as_slices();
        match start.checked_sub(front.len() as u64) {
            None => (skipped, &front[from(front, start)..]),
            Some(start) => (skipped, &back[from(back, start)..]),
        }
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
    fn any_number_of_bytes_may_be_skipped() {
        let mut capture = Capture::new(8);
        for _ in 0..3 {
            capture.push(b"abcdefghij");
            capture.skip(u64::MAX);
        }
        capture.push(b"xyz");
        let (skipped, bytes) = capture.at(4);
        assert_eq!(bytes, b"xyz");
        assert_eq!(4 + skipped + 3, capture.total());
    }

    #[test]
    fn read_from_any_position() {
        let mut capture = Capture::new(8);
        let mut written = 0u64;
        for chunk in ["abc", "def", "ghi", "jkl", "mnopqrstuvwx", "y"] {
            capture.push(chunk.as_bytes());
            written += chunk.len() as u64;
            assert_eq!(capture.total(), written);
            for start in 0..=written {
                let (mut at, mut seen) = (start, Vec::new());
                loop {
                    let (skipped, bytes) = capture.at(at);
                    if bytes.is_empty() {
                        break;
                    }
                    at += skipped;
                    seen.extend((0..bytes.len() as u64).map(|i| (at + i, bytes[i as usize])));
                    at += bytes.len() as u64;
                }
                assert_eq!(at, written);
                assert!(seen.iter().all(|(at, byte)| *byte == b'a' + *at as u8), "{seen:?}");
            }
        }
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
