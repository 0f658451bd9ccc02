//! Decodes constants as the code would, to read what is hidden in them. Bounded; never runs anything.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// How a text is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    Base64,
    Hex,
    Rot13,
    /// `%41`.
    Percent,
    /// Known to hide, but not undone here.
    Opaque,
}

/// The text in it, when it is one.
pub fn decode(codec: Codec, text: &str) -> Option<String> {
    let bytes = match codec {
        Codec::Base64 => base64(text)?,
        Codec::Hex => hex(text)?,
        Codec::Rot13 => return Some(text.chars().map(rot13).collect()),
        Codec::Percent => percent(text),
        Codec::Opaque => return None,
    };
    String::from_utf8(bytes).ok()
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let standard = GeneralPurpose::new(&alphabet::STANDARD, config);
    let url = GeneralPurpose::new(&alphabet::URL_SAFE, config);
    standard.decode(&text).or_else(|_| url.decode(&text)).ok()
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    (digits.len().is_multiple_of(2)).then(|| digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn rot13(c: char) -> char {
    match c {
        'a'..='m' | 'A'..='M' => (c as u8 + 13) as char,
        'n'..='z' | 'N'..='Z' => (c as u8 - 13) as char,
        c => c,
    }
}

fn percent(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let pair = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) if bytes[at] == b'%' => {
                out.push(byte);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

/// Undoes the backslash escapes that Python, JavaScript and `$'…'` of bash share.
pub fn unescape(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let number = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>, radix: u32, most: usize| {
        let mut value = 0_u32;
        let mut count = 0;
        while count < most {
            let Some(digit) = chars.peek().and_then(|c| c.to_digit(radix)) else { break };
            value = value.wrapping_mul(radix).wrapping_add(digit);
            chars.next();
            count += 1;
        }
        (count > 0).then(|| char::from_u32(value).unwrap_or('\u{FFFD}'))
    };
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            None => out.push('\\'),
            Some('\n') => {}
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('x') => out.extend(number(&mut chars, 16, 2)),
            Some('u') if chars.peek() == Some(&'{') => {
                chars.next();
                out.extend(number(&mut chars, 16, 6));
                if chars.peek() == Some(&'}') {
                    chars.next();
                }
            }
            Some('u') => out.extend(number(&mut chars, 16, 4)),
            Some('U') => out.extend(number(&mut chars, 16, 8)),
            Some(digit @ '0'..='7') => {
                let mut value = digit.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(next) = chars.peek().and_then(|c| c.to_digit(8)) else { break };
                    value = value * 8 + next;
                    chars.next();
                }
                out.push(char::from_u32(value).unwrap_or('\u{FFFD}'));
            }
            Some(other) => out.push(other),
        }
    }
    out
}

/// Whether a text is spelled in escapes although it is plain: `\x6f\x73`.
pub fn is_spelled_out(raw: &str) -> bool {
    let escapes = raw.match_indices("\\x").count() + raw.match_indices("\\u00").count();
    if escapes < 4 || escapes * 6 < raw.len() {
        return false;
    }
    let plain = unescape(raw);
    let letters = plain.chars().filter(|c| c.is_ascii_alphanumeric()).count();
    letters * 10 >= plain.chars().count() * 7
}

/// Whether a text is a long run of nothing that a person could read.
pub fn is_opaque(text: &str) -> bool {
    if text.len() < 512 || text.contains(' ') && !text.contains("\\x") {
        return false;
    }
    let dense = text.bytes().filter(|b| b.is_ascii_alphanumeric() || b"+/=_-\\".contains(b)).count();
    if dense * 100 < text.len() * 97 {
        return false;
    }
    let distinct = text.bytes().collect::<std::collections::HashSet<u8>>().len();
    distinct >= 14
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes() {
        assert_eq!(decode(Codec::Base64, "aGVs bG8").as_deref(), Some("hello"));
        assert_eq!(decode(Codec::Hex, "68656c6c6f").as_deref(), Some("hello"));
        assert_eq!(decode(Codec::Rot13, "uryyb").as_deref(), Some("hello"));
        assert_eq!(decode(Codec::Percent, "%68ello%").as_deref(), Some("hello%"));
        assert_eq!(decode(Codec::Hex, "6"), None);
        assert_eq!(unescape(r"\x68\u0065\154\u{6c}o\q\"), "helloq\\");
        assert!(is_spelled_out(r"\x6f\x73\x2e\x73"));
        assert!(!is_spelled_out(r"\x00\x01\x02\xff"));
    }
}
