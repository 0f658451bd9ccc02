//! Characters that make code read differently from what runs.

use unicode_normalization::UnicodeNormalization;
use unicode_security::{MixedScript, confusable_detection::skeleton};

use super::rules::{BIDI, HIDDEN_NAME, INVISIBLE, LOOKALIKE};
use super::{Findings, Language};

/// Names longer than this are not compared.
const MAX_NAME: usize = 100;

fn is_bidi(c: char) -> bool {
    matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Text can be written in these without a trace on the screen.
fn is_smuggled(c: char) -> bool {
    matches!(c, '\u{E0000}'..='\u{E007F}' | '\u{E0100}'..='\u{E01EF}')
}

fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}' | '\u{180B}'..='\u{180F}'
            | '\u{200B}'..='\u{200F}' | '\u{2060}'..='\u{2065}' | '\u{206A}'..='\u{206F}' | '\u{2800}' | '\u{3164}'
            | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF9}'..='\u{FFFB}'
    )
}

/// Whether a screen would not show it.
pub fn is_hidden(c: char) -> bool {
    is_bidi(c) || is_smuggled(c) || is_invisible(c)
}

/// Joiners and variation selectors have their place in emoji and in many scripts, after something visible that is not ASCII.
fn belongs(before: Option<char>, c: char, after: Option<char>) -> bool {
    let wide = |c: Option<char>| c.is_some_and(|c| !c.is_ascii() && !is_invisible(c));
    match c {
        '\u{FE00}'..='\u{FE0F}' => before.is_some_and(|c| !is_hidden(c) && !c.is_alphanumeric() || c.is_ascii_digit()),
        '\u{200C}' | '\u{200D}' => (wide(before) || before == Some('\u{FE0F}')) && wide(after),
        '\u{200E}' | '\u{200F}' | '\u{61C}' => wide(before) || wide(after),
        _ => false,
    }
}

/// Looks at each character, then at each name.
pub fn look(language: Language, text: &str, findings: &mut Findings<'_>) {
    if text.is_ascii() {
        return;
    }
    let mut before: Option<char> = None;
    let mut flag = false;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let after = chars.peek().map(|(_, c)| *c);
        if is_bidi(c) {
            findings.add(&BIDI, at, &format!("U+{:04X}", c as u32));
        } else if is_smuggled(c) {
            // The flags of England, Scotland and Wales are spelled so.
            if !flag {
                findings.add(&HIDDEN_NAME, at, &format!("U+{:04X}", c as u32));
            }
        } else if is_invisible(c) && !(at == 0 && c == '\u{FEFF}') && !belongs(before, c, after) {
            let letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            // Selectors in a row are a way to write bytes.
            let row = matches!(c, '\u{FE00}'..='\u{FE0F}') && before.is_some_and(is_invisible);
            let rule = if letter(before) && letter(after) || row { &HIDDEN_NAME } else { &INVISIBLE };
            findings.add(rule, at, &format!("U+{:04X}", c as u32));
        }
        flag = c == '\u{1F3F4}' || flag && is_smuggled(c);
        before = Some(c);
    }
    names(language, text, findings);
}

/// Words that mix look-alike letters of two scripts, or that Python reads as an ASCII name.
fn names(language: Language, text: &str, findings: &mut Findings<'_>) {
    let mut at = 0;
    for word in text.split(|c: char| !c.is_alphanumeric() && c != '_') {
        if !word.is_ascii() && word.len() <= MAX_NAME && is_lookalike(language, word) {
            findings.add(&LOOKALIKE, at, word);
        }
        at += word.len();
        at += text[at..].chars().next().map_or(0, char::len_utf8);
    }
}

fn is_lookalike(language: Language, word: &str) -> bool {
    // Python takes `ｅval` for `eval`.
    if language == Language::Python {
        let normal: String = word.nfkc().collect();
        if normal.is_ascii() && normal.chars().all(|c| c.is_ascii_alphabetic() || c == '_') && normal.len() > 2 {
            return true;
        }
    }
    let latin = word.chars().any(|c| c.is_ascii_alphabetic());
    let others =
        word.chars().any(|c| matches!(c, '\u{370}'..='\u{52F}' | '\u{13A0}'..='\u{13FF}' | '\u{AB70}'..='\u{ABBF}'));
    if !others || word.chars().count() < 3 {
        return false;
    }
    let looks_ascii = skeleton(word).all(|c| c.is_ascii());
    // `Δx` and `μs` look like nothing else; a whole word of Cyrillic is a word of Cyrillic.
    looks_ascii && latin && !word.is_single_script()
}

#[cfg(test)]
mod tests {
    use super::super::{Declared, Language, scan};

    #[test]
    fn told_apart() {
        let table: &[(&str, &[&str])] = &[
            ("x = 'naïve café 😀 👨‍👩‍👧 ❤️ 🏴\u{E0067}\u{E0062}\u{E0065}\u{E006E}\u{E0067}\u{E007F}'", &[]),
            ("имя = 'Анна'", &[]),
            ("Δx = 3\nμs = 1", &[]),
            ("s = 'می\u{200C}خواهم'", &[]),
            ("\u{FEFF}x = 1", &[]),
            ("x = 'a\u{202E}b'", &["unicode.bidi"]),
            ("ad\u{200B}min = 1", &["unicode.hidden-name"]),
            ("x = 1 # \u{200B}", &["unicode.invisible"]),
            ("x = '\u{E0061}\u{E0062}'", &["unicode.hidden-name"]),
            ("p\u{430}yload = 1", &["unicode.lookalike"]),
            ("x = '😀\u{FE01}\u{FE02}\u{FE03}'", &["unicode.hidden-name"]),
        ];
        for (source, rules) in table {
            let scan = scan(Language::Python, source.as_bytes(), &Declared::default());
            let found: Vec<&str> =
                scan.findings.iter().map(|f| f.rule.as_str()).filter(|r| r.starts_with("unicode")).collect();
            assert_eq!(found, *rules, "{source:?}");
        }
    }
}
