//! Keeps secrets out of records: finds what must not be written, and makes the rest safe to show.
//!
//! Values of variables that are secret by name or by the policy, tokens by their shape, and whatever follows a word such as
//! `password=`. Written by hand: it is on the way of every run, and to compile as many regular expressions takes longer than
//! a run may wait. It never decides whether something is recorded, only what of it is seen.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::ops::{Bound, Range};
use std::os::unix::ffi::OsStrExt;

use ringfence_policy::env::name_matches;

use ringfence_policy::secrets::{
    FLAGGED, Flagged, SECRET_ALONE, SECRET_INPUTS, SECRET_INPUTS_OF, SECRET_LINES, SECRET_NAMES, SECRET_PARTS,
    SECRET_WORDS, TOKENS,
};

/// What stands in the place of a secret.
pub const MARK: &str = "[redacted]";
/// A shorter value of a variable is not looked for: it would be found everywhere.
pub const SHORTEST_VALUE: usize = 6;
/// Kept of a command line.
const COMMAND: usize = 4 << 10;
/// How much around what is kept is looked at, so that a secret on its edge is seen whole.
pub(super) const SLACK: usize = 4 << 10;

/// Knows the secrets of one caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redactor {
    /// In order, so that a caller who declares very many does not slow a command down.
    values: BTreeSet<Vec<u8>>,
    /// Bytes that a value begins with, a bit for each.
    begin: [u64; 4],
}

impl Redactor {
    /// The secrets of an environment: variables whose names say so, and those that the policy names.
    pub fn new<'a>(env: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>, named: &[String]) -> Redactor {
        let mut redactor = Redactor::default();
        redactor.add_all(env, named);
        redactor
    }

    /// The secrets of one more environment.
    pub fn add_all<'a>(&mut self, env: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>, named: &[String]) {
        for (name, value) in env {
            if is_secret_variable(name) || named.iter().any(|pattern| name_matches(pattern, name)) {
                self.add(value);
            }
        }
    }

    /// One more value that must not be seen.
    pub fn add(&mut self, value: &OsStr) {
        let value = value.as_bytes().trim_ascii();
        if value.len() >= SHORTEST_VALUE {
            self.begin[usize::from(value[0] / 64)] |= 1 << (value[0] % 64);
            self.values.insert(value.to_vec());
        }
    }

    /// The length of the longest value that a text begins with.
    fn value_length(&self, text: &[u8]) -> Option<usize> {
        let first = *text.first()?;
        if self.begin[usize::from(first / 64)] & 1 << (first % 64) == 0 {
            return None;
        }
        let mut most = text;
        loop {
            let range = (Bound::Unbounded, Bound::Included(most));
            let value = self.values.range::<[u8], _>(range).next_back()?;
            if most.starts_with(value) {
                return Some(value.len());
            }
            // A value that the text begins with is not longer than what both have in common.
            let common = value.iter().zip(most).take_while(|(a, b)| a == b).count();
            most = &most[..common];
            if common < SHORTEST_VALUE {
                return None;
            }
        }
    }

    /// Values, also where they are written in base64, alone or in the middle of something.
    fn values(&self, raw: &[u8], found: &mut Vec<Range<usize>>) {
        if self.values.is_empty() {
            return;
        }
        let has = |text: &[u8]| (0..text.len()).any(|at| self.value_length(&text[at..]).is_some());
        let mut at = 0;
        while at < raw.len() {
            found.extend(self.value_length(&raw[at..]).map(|length| at..at + length));
            let starts = is_base64(raw[at]) && (at == 0 || !is_base64(raw[at - 1]));
            let length = if starts { run(raw, at, is_base64) } else { 0 };
            // The bytes of a value begin at any of four places.
            if length > SHORTEST_VALUE && (0..4).any(|skip| has(&decoded(&raw[at + skip..at + length]))) {
                found.push(at..at + length + run_up_to(raw, at + length, 2, |b| b == b'='));
            }
            at += 1;
        }
    }

    /// A text of one line: no control character is left in it.
    pub fn line(&self, text: &str) -> String {
        self.part(text.as_bytes(), 0..text.len().min(COMMAND), Lines::Escape)
    }

    /// A command: each argument redacted and made one line, bounded as a whole, with a last `…` where it was cut.
    pub fn command(&self, command: &[OsString]) -> Vec<String> {
        let mut room = COMMAND;
        let mut out = Vec::with_capacity(command.len().min(64));
        let has_key_id = |argument: &OsString| has_key_id(&argument.as_bytes()[..argument.len().min(COMMAND)]);
        let beside_key = command.iter().take(COMMAND).any(has_key_id);
        let (mut follows, mut flagged) = (Follows::Nothing, None);
        for argument in command {
            if room == 0 {
                out.push("…".to_owned());
                break;
            }
            let bytes = argument.as_bytes();
            let bytes = &bytes[..bytes.len().min(COMMAND + SLACK)];
            let keep = bytes.len().min(room);
            let own = flagged.and_then(|flagged| joined(flagged, bytes));
            let mut text = match follows.range(bytes).or(own) {
                Some(range) => write(bytes, 0..keep, &[range], Lines::Escape),
                None => write(bytes, 0..keep, &self.find(bytes, beside_key), Lines::Escape),
            };
            if keep < argument.len() {
                text.push('…');
            }
            out.push(text);
            // An empty argument costs something too: there may be many.
            room = room.saturating_sub(keep + 1);
            follows = match flagged {
                Some(flagged) if flagged.apart && is_flag(flagged, bytes) => Follows::Secret,
                _ => Follows::after(bytes),
            };
            // It may stand behind `env` or `sudo`.
            flagged = flagged_program(bytes.rsplit(|b| *b == b'/').next().unwrap_or(bytes)).or(flagged);
        }
        out
    }

    /// The head of an output: `raw` is more than is kept of it, where there is more.
    pub(super) fn head(&self, raw: &[u8], keep: usize) -> String {
        self.part(raw, 0..keep.min(raw.len()), Lines::Keep)
    }

    /// The tail of an output: `raw` begins before what is kept of it, where there is more.
    pub(super) fn tail(&self, raw: &[u8], keep: usize) -> String {
        self.part(raw, raw.len().saturating_sub(keep)..raw.len(), Lines::Keep)
    }

    fn part(&self, raw: &[u8], keep: Range<usize>, lines: Lines) -> String {
        write(raw, keep, &self.find(raw, has_key_id(raw)), lines)
    }

    /// Every secret, in order and apart from each other. `beside_key`: the id of a key of Amazon's stands in the same text.
    fn find(&self, raw: &[u8], beside_key: bool) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        self.values(raw, &mut found);
        private_keys(raw, &mut found);
        if beside_key {
            keys_of_amazon(raw, &mut found);
        }
        for at in (0..raw.len()).filter(|at| *at == 0 || !is_word(raw[*at - 1])) {
            by_flag(raw, at, &mut found);
        }
        let mut at = 0;
        while at < raw.len() {
            let known = found.len();
            if at == 0 || !is_word(raw[at - 1]) {
                at_boundary(raw, at, &mut found);
            }
            // What is in a secret is none of its own.
            at = found[known..].iter().map(|range| range.end).fold(at + 1, usize::max);
        }
        found.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::with_capacity(found.len());
        for range in found.into_iter().filter(|range| !range.is_empty()) {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        merged
    }
}

/// Whether the name of a variable says that its value is a secret.
pub fn is_secret_variable(name: &OsStr) -> bool {
    let plain = plain_name(name.as_bytes());
    let (_, last) = words(name.as_bytes());
    !matches!(plain.as_str(), "pwd" | "oldpwd")
        && (SECRET_NAMES.iter().any(|end| plain.ends_with(end))
            || SECRET_PARTS.iter().any(|part| plain.contains(part))
            || SECRET_WORDS.iter().any(|word| last.eq_ignore_ascii_case(word.as_bytes())))
}

/// What a name begins with, and its last word.
fn words(name: &[u8]) -> (&[u8], &[u8]) {
    let at = name.iter().rposition(|b| !b.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
    name.split_at(at)
}

fn plain_name(name: &[u8]) -> String {
    let letters = name.iter().filter(|b| b.is_ascii_alphanumeric());
    letters.map(|b| char::from(b.to_ascii_lowercase())).collect()
}

fn is_secret_name(name: &[u8]) -> bool {
    // Longer than any name.
    name.len() <= 128 && {
        let plain = plain_name(name);
        let (first, last) = words(name);
        // Alone they are words of every day: `pass: 12`.
        let word = !first.is_empty() && SECRET_WORDS.iter().any(|word| last.eq_ignore_ascii_case(word.as_bytes()));
        word || SECRET_NAMES.iter().any(|end| plain.ends_with(end))
    }
}

/// What an argument says about the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follows {
    Nothing,
    /// A secret.
    Secret,
    /// `user:password`
    User,
}

impl Follows {
    fn after(argument: &[u8]) -> Follows {
        let Some(flag) = argument.strip_prefix(b"-").filter(|flag| flag.iter().all(|b| is_word(*b) || *b == b'-'))
        else {
            return Follows::Nothing;
        };
        match flag.strip_prefix(b"-").unwrap_or(flag) {
            b"u" | b"user" | b"proxy-user" => Follows::User,
            name if is_user_among_letters(name) && !argument.starts_with(b"--") => Follows::User,
            name if is_secret_name(name) => Follows::Secret,
            _ => Follows::Nothing,
        }
    }

    /// The secret in the next argument, which stands alone.
    fn range(self, next: &[u8]) -> Option<Range<usize>> {
        match self {
            Follows::Nothing => None,
            Follows::Secret => (!next.starts_with(b"--") && !is_reference(next)).then_some(0..next.len()),
            Follows::User => password(next),
        }
    }
}

/// `-sSu`, as `-u` with others before it.
fn is_user_among_letters(flags: &[u8]) -> bool {
    (2..=5).contains(&flags.len()) && flags.ends_with(b"u") && flags.iter().all(u8::is_ascii_alphabetic)
}

/// Which flag of this program is a password.
fn flagged_program(name: &[u8]) -> Option<&'static Flagged> {
    FLAGGED.iter().find(|flagged| flagged.programs.iter().any(|program| program.as_bytes() == name))
}

/// The flag alone: `-p`.
fn is_flag(flagged: &Flagged, word: &[u8]) -> bool {
    matches!(word, [b'-', letter] if flagged.letters.contains(letter))
}

/// The password in `-pPASSWORD`, or in `pass:PASSWORD`.
fn joined(flagged: &Flagged, word: &[u8]) -> Option<Range<usize>> {
    let by_letter = flagged.joined && matches!(word, [b'-', letter, ..] if flagged.letters.contains(letter));
    let by_prefix = flagged.prefix.filter(|prefix| word.starts_with(prefix.as_bytes()));
    let start = if by_letter { 2 } else { by_prefix?.len() };
    let rest = &word[start..];
    (!rest.is_empty() && !is_reference(rest)).then_some(start..word.len())
}

/// `mysql -u me -pPASSWORD`, up to the end of the command.
fn by_flag(raw: &[u8], at: usize, found: &mut Vec<Range<usize>>) {
    let name = run_up_to(raw, at, 17, |b| is_word(b) || b == b'-');
    let Some(flagged) = flagged_program(&raw[at..at + name]) else { return };
    let mut next = at + name;
    let end = next + run_up_to(raw, next, 512, |b| !matches!(b, b'\n' | b';' | b'|' | b'&'));
    while next < end {
        next += run(raw, next, |b| matches!(b, b' ' | b'\t'));
        let (start, word) = value(raw, next);
        let after = start + word.len();
        let quote = |at: usize| raw.get(at).filter(|b| matches!(b, b'"' | b'\''));
        if let Some(range) = joined(flagged, word) {
            found.push(start + range.start..start + range.end);
        } else if is_flag(flagged, word) && (flagged.apart || flagged.joined && quote(after).is_some()) {
            let (start, secret) = value(raw, after);
            if !is_reference(secret) {
                found.push(start..start + secret.len());
            }
        }
        let was_quoted = start > next && quote(start - 1).is_some() && quote(after) == quote(start - 1);
        next = (after + usize::from(was_quoted)).max(next + 1);
    }
}

/// The password of `user:password`; ids of a user and a group are none.
fn password(word: &[u8]) -> Option<Range<usize>> {
    let colon = word.iter().position(|b| *b == b':')?;
    let rest = &word[colon + 1..];
    let counts = !rest.is_empty() && !rest.iter().all(u8::is_ascii_digit) && !is_reference(rest);
    counts.then_some(colon + 1..word.len())
}

/// `$NAME` and `${NAME}`: where a secret comes from is none.
fn is_reference(value: &[u8]) -> bool {
    value.first() == Some(&b'$')
        && value.get(1).is_some_and(|b| b.is_ascii_alphabetic() || matches!(b, b'{' | b'_' | b'('))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'=' | b'~')
}

/// How many bytes from `at` on are like this.
fn run(raw: &[u8], at: usize, is: impl Fn(u8) -> bool) -> usize {
    run_up_to(raw, at, usize::MAX, is)
}

/// As [`run`], where it is asked at every word: without a bound the time would grow with the square of the text.
fn run_up_to(raw: &[u8], at: usize, most: usize, is: impl Fn(u8) -> bool) -> usize {
    raw[at.min(raw.len())..].iter().take(most).take_while(|b| is(**b)).count()
}

fn position(raw: &[u8], wanted: &[u8]) -> Option<usize> {
    raw.windows(wanted.len()).position(|window| window == wanted)
}

/// What begins here, where a word can begin.
fn at_boundary(raw: &[u8], at: usize, found: &mut Vec<Range<usize>>) {
    let rest = &raw[at..];
    for (prefix, least) in TOKENS {
        if rest.starts_with(prefix.as_bytes()) {
            let length = run_up_to(raw, at, 4096, is_token);
            let body = &rest[prefix.len()..length.max(prefix.len())];
            if body.len() >= *least && body.iter().any(u8::is_ascii_digit) {
                found.push(at..at + length);
            }
        }
    }
    if rest.starts_with(b"eyJ") {
        let length = run_up_to(raw, at, 8192, |b| is_token(b) && b != b'+');
        if length >= 24 && rest[..length].iter().filter(|b| **b == b'.').count() >= 1 {
            found.push(at..at + length);
        }
    }
    if rest.len() > 7 && rest[..6].eq_ignore_ascii_case(b"bearer") && rest[6] == b' ' {
        let length = run(raw, at + 7, |b| is_token(b) || b == b'/');
        if length >= 8 {
            found.push(at + 7..at + 7 + length);
        }
    }
    if let Some(host) = rest.strip_prefix(b"hooks.slack.com/services/".as_slice()) {
        let start = at + rest.len() - host.len();
        found.push(start..start + run(raw, start, |b| is_token(b) || b == b'/'));
    }
    named_value(raw, at, found);
    netrc(raw, at, found);
    piped(raw, at, found);
    url(raw, at, found);
    random(raw, at, found);
}

/// `password=x`, `"token": "x"`, `--secret x`, `Authorization: Basic x`, `-u name:x`.
fn named_value(raw: &[u8], at: usize, found: &mut Vec<Range<usize>>) {
    let length = run_up_to(raw, at, 129, |b| is_word(b) || matches!(b, b'-' | b'.'));
    let name = &raw[at..at + length];
    let end = at + length;
    let after_dash = at > 0 && raw[at - 1] == b'-';
    let one_dash = after_dash && (at < 2 || matches!(raw[at - 2], b' ' | b'\t' | b'"' | b'\'' | b'('));
    if one_dash && name.len() > 1 && name[0] == b'u' && raw.get(end) == Some(&b':') {
        let (start, value) = value(raw, at + 1);
        found.extend(password(value).map(|range| start + range.start..start + range.end));
        return;
    }
    let user = matches!(name, b"u" | b"user" | b"proxy-user") || one_dash && is_user_among_letters(name);
    if after_dash && user && matches!(raw.get(end), Some(b' ' | b'=')) {
        let (start, value) = value(raw, end + 1);
        found.extend(password(value).map(|range| start + range.start..start + range.end));
        return;
    }
    let header = name.eq_ignore_ascii_case(b"cookie") || name.eq_ignore_ascii_case(b"set-cookie");
    let alone = SECRET_ALONE.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()));
    if !header && !alone && !is_secret_name(name) {
        return;
    }
    // The quote that ends a quoted name, which is escaped where it stands in another text.
    let quote = end + run_up_to(raw, end, 8, |b| b == b'\\');
    let mut next = if matches!(raw.get(quote), Some(b'"' | b'\'')) { quote + 1 } else { end };
    let sign = match raw.get(next) {
        Some(sign @ (b'=' | b':')) => *sign,
        Some(b' ' | b'\t') if after_dash && next == end => b' ',
        // `name = value`
        Some(b' ') if raw.get(next + 1) == Some(&b'=') => {
            next += 1;
            b'='
        }
        _ => return,
    };
    // `name => value`
    if sign == b'=' && raw.get(next + 1) == Some(&b'>') {
        next += 1;
    }
    if alone && sign != b'=' {
        return;
    }
    // A comparison, or a path of modules.
    if matches!(raw.get(next + 1), Some(b'=')) || sign == b':' && raw.get(next + 1) == Some(&b':') {
        return;
    }
    let quoted = |at: usize| matches!(raw.get(at), Some(b'"' | b'\''));
    let blank = run(raw, next + 1, |b| matches!(b, b' ' | b'\t'));
    if header || name.eq_ignore_ascii_case(b"authorization") || name.eq_ignore_ascii_case(b"proxy-authorization") {
        let start = next + 1 + blank;
        let start = start + usize::from(quoted(start));
        found.push(start..start + run(raw, start, |b| !matches!(b, b'"' | b'\'' | b'\n' | b'\r')));
        return;
    }
    let (start, value) = value(raw, next + 1);
    let dashed = sign == b' ' && value.starts_with(b"--");
    // After a colon stands prose as well: `unexpected token: end`.
    let prose =
        sign == b':' && !quoted(start.wrapping_sub(1)) && !value.iter().any(u8::is_ascii_digit) && value.len() < 16;
    let is_password = plain_name(name).contains("pass");
    let directory = value.starts_with(b"/") && plain_name(name).ends_with("pwd");
    if !dashed && !is_reference(value) && !directory && (is_password || !prose) {
        found.push(start..start + value.len());
    }
}

/// The value that begins at `at`, after blanks: a quoted text without its quotes, or a word.
fn value(raw: &[u8], at: usize) -> (usize, &[u8]) {
    let at = (at + run(raw, at, |b| matches!(b, b' ' | b'\t'))).min(raw.len());
    let escapes = run_up_to(raw, at, 8, |b| b == b'\\');
    match raw.get(at + escapes) {
        Some(quote @ (b'"' | b'\'')) => {
            let start = at + escapes + 1;
            let length = run(raw, start, |b| b != *quote && b != b'\n' && (escapes == 0 || b != b'\\'));
            (start, &raw[start..start + length])
        }
        _ => {
            let stops =
                |b: u8| b.is_ascii_whitespace() || matches!(b, b'"' | b'\'' | b'&' | b';' | b',' | b'|' | b')' | b'}');
            let length = run(raw, at, |b| !stops(b));
            (at, &raw[at..at + length])
        }
    }
}

/// `machine host login me password x`, and a line that is nothing but `password x`.
fn netrc(raw: &[u8], at: usize, found: &mut Vec<Range<usize>>) {
    let is_line = |at: usize| raw[..at].iter().rev().find(|b| !matches!(b, b' ' | b'\t')).is_none_or(|b| *b == b'\n');
    // The next word, also on the next line.
    let word = |at: usize| {
        let start = at + run_up_to(raw, at, 64, |b| b.is_ascii_whitespace());
        start..start + run_up_to(raw, start, 512, |b| !b.is_ascii_whitespace())
    };
    let first = word(at);
    if first.start != at {
        return;
    }
    if SECRET_LINES.iter().any(|name| raw[first.clone()] == *name.as_bytes()) && is_line(at) {
        let value = at + first.len() + run(raw, first.end, |b| matches!(b, b' ' | b'\t'));
        let value = value..value + run(raw, value, |b| !b.is_ascii_whitespace());
        let ends = value.end + run(raw, value.end, |b| matches!(b, b' ' | b'\t' | b'\r'));
        if value.start > first.end && raw.get(ends).is_none_or(|b| *b == b'\n') && !is_reference(&raw[value.clone()]) {
            found.push(value);
        }
    }
    if raw[first.clone()] == *b"machine" {
        let mut key = word(word(first.end).end);
        for _ in 0..8 {
            let value = word(key.end);
            match &raw[key.clone()] {
                b"password" | b"account" if !is_reference(&raw[value.clone()]) => found.push(value.clone()),
                b"login" | b"user" | b"password" | b"account" => {}
                _ => return,
            }
            key = word(value.end);
        }
    }
}

/// `echo x | docker login --password-stdin`
fn piped(raw: &[u8], at: usize, found: &mut Vec<Range<usize>>) {
    let rest = &raw[at..];
    if !["echo ", "printf "].iter().any(|writer| rest.starts_with(writer.as_bytes())) {
        return;
    }
    let mut next = at + run(raw, at, |b| b != b' ');
    let mut secrets = Vec::new();
    loop {
        next += run(raw, next, |b| matches!(b, b' ' | b'\t'));
        match raw.get(next) {
            Some(b'|') => break,
            None | Some(b'\n' | b';' | b'&' | b')') => return,
            Some(_) if secrets.len() > 64 => return,
            Some(_) => {}
        }
        let (start, word) = value(raw, next);
        let skipped = word.is_empty() || word.starts_with(b"-") || word.starts_with(b"%") || is_reference(word);
        if !skipped {
            secrets.push(start..start + word.len());
        }
        // Behind the quote that ended it.
        let end = start + word.len();
        next = (end + usize::from(matches!(raw.get(end), Some(b'"' | b'\'')))).max(next + 1);
    }
    let reader = next + 1;
    let reader =
        &raw[reader..reader + run_up_to(raw, reader, 512, |b| !matches!(b, b'\n' | b';' | b'|' | b'&' | b')'))];
    let words = || reader.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let has = |wanted: &str| words().any(|word| word.rsplit(|b| *b == b'/').next() == Some(wanted.as_bytes()));
    if SECRET_INPUTS.iter().any(|word| has(word)) || SECRET_INPUTS_OF.iter().any(|(name, flag)| has(name) && has(flag))
    {
        found.append(&mut secrets);
    }
}

/// Whether the id of a key of Amazon's stands in a text: its secret stands beside it, and has no shape of its own.
fn has_key_id(raw: &[u8]) -> bool {
    let is_id = |at: usize| {
        let rest = &raw[at..];
        (rest.starts_with(b"AKIA") || rest.starts_with(b"ASIA"))
            && (at == 0 || !is_word(raw[at - 1]))
            && run_up_to(raw, at, 64, |b| b.is_ascii_uppercase() || b.is_ascii_digit()) == 20
    };
    (0..raw.len()).any(|at| raw[at] == b'A' && is_id(at))
}

/// Forty characters of base64, as the secret of such a key has.
fn keys_of_amazon(raw: &[u8], found: &mut Vec<Range<usize>>) {
    let is_key = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let mut at = 0;
    while at < raw.len() {
        let length = run(raw, at, is_key);
        let word = &raw[at..at + length];
        let has = |is: fn(&u8) -> bool| word.iter().any(is);
        if length == 40 && has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit) {
            found.push(at..at + length);
        }
        at += length.max(1);
    }
}

/// Of base64, with either alphabet.
fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}

/// The bytes that a text of base64 stands for.
fn decoded(text: &[u8]) -> Vec<u8> {
    let (mut bits, mut count, mut out) = (0u32, 0, Vec::with_capacity(text.len() * 3 / 4));
    for byte in text {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            _ => 63,
        };
        (bits, count) = (bits << 6 | u32::from(six), count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}

/// `scheme://user:password@host`, `scheme://token@host`
fn url(raw: &[u8], at: usize, found: &mut Vec<Range<usize>>) {
    let scheme = run_up_to(raw, at, 32, |b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    let start = at + scheme + 3;
    if scheme == 0 || !raw[at + scheme..].starts_with(b"://") {
        return;
    }
    let stops = |b: u8| b.is_ascii_whitespace() || matches!(b, b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>' | b'`');
    let authority = &raw[start..start + run(raw, start, |b| !stops(b))];
    // The last one: a password may have one in it.
    let Some(end) = authority.iter().rposition(|b| *b == b'@') else { return };
    match password(&authority[..end]) {
        Some(range) => found.push(start + range.start..start + range.end),
        None if end >= 16 && !authority[..end].contains(&b':') => found.push(start..start + end),
        None => {}
    }
}

/// Long, of capital and small letters and digits, and without a pattern. Hashes are written in hexadecimal and stay.
fn random(raw: &[u8], at: usize, found: &mut Vec<Range<usize>>) {
    // In the middle of one it was looked at before; after the dash of a flag it was not.
    let follows = |b: u8| matches!(b, b'+' | b'-');
    if !is_word(raw[at]) || at > 1 && follows(raw[at - 1]) && is_word(raw[at - 2]) {
        return;
    }
    let length = run_up_to(raw, at, 4096, |b| is_word(b) || matches!(b, b'+' | b'=' | b'-'));
    if length < 32 {
        return;
    }
    let word = &raw[at..at + length];
    let count = |is: fn(&u8) -> bool| word.iter().filter(|b| is(b)).count();
    let mixed =
        [u8::is_ascii_uppercase, u8::is_ascii_lowercase, u8::is_ascii_digit].into_iter().all(|is| count(is) >= 3);
    if mixed && entropy(word) >= 4.3 {
        found.push(at..at + length);
    }
}

/// Bits for each byte.
fn entropy(word: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    word.iter().for_each(|b| counts[usize::from(*b)] += 1);
    let length = word.len() as f64;
    counts.iter().filter(|n| **n > 0).map(|n| f64::from(*n) / length).map(|p| -p * p.log2()).sum()
}

/// Blocks of private keys; one that is cut off at either end counts up to there.
fn private_keys(raw: &[u8], found: &mut Vec<Range<usize>>) {
    const BEGIN: &[u8] = b"-----BEGIN ";
    const END: &[u8] = b"-----END ";
    let line = |at: usize| &raw[at..at + run(raw, at, |b| b != b'\n').min(64)];
    let private = |at: usize| position(line(at), b"PRIVATE KEY").is_some();
    let mut at = 0;
    let mut seen = false;
    while let Some(index) = position(&raw[at..], b"-----") {
        let here = at + index;
        if raw[here..].starts_with(BEGIN) && private(here) {
            let end = position(&raw[here + BEGIN.len()..], END).map(|end| here + BEGIN.len() + end);
            let end = end.map_or(raw.len(), |end| (end + line(end).len()).min(raw.len()));
            found.push(here..end);
            seen = true;
            at = end.max(here + 5);
        } else if raw[here..].starts_with(END) && private(here) && !seen {
            found.push(0..here + line(here).len());
            seen = true;
            at = here + 5;
        } else {
            at = here + 5;
        }
        if at >= raw.len() {
            return;
        }
    }
}

/// What becomes of line breaks and tabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    Keep,
    Escape,
}

/// The part that is kept, with marks for secrets. What is left has no character that acts on a terminal or on the order of
/// what is read.
fn write(raw: &[u8], keep: Range<usize>, secrets: &[Range<usize>], lines: Lines) -> String {
    let mut out = String::with_capacity(keep.len() + 16);
    let mut at = keep.start;
    for secret in secrets {
        if secret.end <= at || secret.start >= keep.end {
            continue;
        }
        clean(&raw[at..secret.start.max(at)], lines, &mut out);
        out.push_str(MARK);
        at = secret.end.min(keep.end);
    }
    clean(&raw[at..keep.end], lines, &mut out);
    out
}

/// A name that comes from outside, as one harmless line.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    clean(text.as_bytes(), Lines::Escape, &mut out);
    out
}

fn clean(raw: &[u8], lines: Lines, out: &mut String) {
    for chunk in raw.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' | '\t' if lines == Lines::Keep => out.push(c),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                c if acts(c) => out.extend(c.escape_unicode()),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
}

/// Control characters, and those that hide or turn round what stands beside them.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests;
