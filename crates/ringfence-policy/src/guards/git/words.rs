//! Aliases as words: git's own way of splitting them, and a simple reading of shell text.

use std::ffi::{OsStr, OsString};
use std::mem;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The words of an alias, split as git does: by white space, with quotes and backslashes. What has an open quote is none.
pub fn split(text: &OsStr) -> Option<Vec<OsString>> {
    let mut lexer = Lexer { shell: false, ..Lexer::default() };
    lexer.read(text.as_bytes()).then(|| lexer.finish().into_iter().flatten().collect())
}

/// The simple commands in shell text, each as its words: a reading by separators and quotes, which knows no expansion.
pub fn commands(text: &OsStr) -> Vec<Vec<OsString>> {
    let mut lexer = Lexer { shell: true, ..Lexer::default() };
    lexer.read(text.as_bytes());
    lexer.finish()
}

#[derive(Default)]
struct Lexer {
    shell: bool,
    commands: Vec<Vec<OsString>>,
    command: Vec<OsString>,
    word: Option<Vec<u8>>,
}

impl Lexer {
    /// Whether all quotes were closed.
    fn read(&mut self, text: &[u8]) -> bool {
        let mut quote = None;
        let mut bytes = text.iter().copied().peekable();
        while let Some(byte) = bytes.next() {
            match (quote, byte) {
                (Some(open), _) if byte == open => quote = None,
                (Some(b'\''), _) => self.push(byte),
                (_, b'\\') => match bytes.next() {
                    // In a shell a backslash at the end of a line joins it with the next.
                    Some(b'\n') if self.shell => {}
                    Some(next) => self.push(next),
                    None => return false,
                },
                (Some(_), _) => self.push(byte),
                (None, b'\'' | b'"') => {
                    self.word.get_or_insert_default();
                    quote = Some(byte);
                }
                (None, b'$') if self.shell && bytes.peek() == Some(&b'(') => self.end_command(),
                (None, b';' | b'&' | b'|' | b'(' | b')' | b'`' | b'\n') if self.shell => self.end_command(),
                (None, byte) if byte.is_ascii_whitespace() => self.end_word(),
                (None, byte) => self.push(byte),
            }
        }
        quote.is_none()
    }

    fn push(&mut self, byte: u8) {
        self.word.get_or_insert_default().push(byte);
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take() {
            self.command.push(OsString::from_vec(word));
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.command.is_empty() {
            self.commands.push(mem::take(&mut self.command));
        }
    }

    fn finish(mut self) -> Vec<Vec<OsString>> {
        self.end_command();
        self.commands
    }
}

/// `words` with `$@`, `$*`, `$1` … replaced by the alias's arguments.
pub fn with_arguments(words: Vec<OsString>, args: &[OsString]) -> Vec<OsString> {
    let mut out = Vec::with_capacity(words.len());
    for word in words {
        let name = word.to_str().and_then(|word| word.strip_prefix('$')).map(|name| name.trim_matches(['{', '}']));
        match name {
            Some("@" | "*") => out.extend_from_slice(args),
            Some(name) if name.parse::<usize>().is_ok_and(|n| n > 0) => {
                let n: usize = name.parse().unwrap_or(1);
                out.extend(args.get(n - 1).cloned());
            }
            _ => out.push(word),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(words: &[OsString]) -> String {
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn aliases_are_split_as_git_does() {
        for (text, words) in [
            ("reset --hard", Some("reset|--hard")),
            ("  log   --format='%h %s' ", Some("log|--format=%h %s")),
            (r#"commit -m "a \"b\"" x"#, Some(r#"commit|-m|a "b"|x"#)),
            (r"re\set --h'ar'd", Some("reset|--hard")),
            ("commit -m ''", Some("commit|-m|")),
            ("log; reset", Some("log;|reset")),
            ("log 'open", None),
            ("log \\", None),
        ] {
            assert_eq!(split(OsStr::new(text)).as_deref().map(joined).as_deref(), words, "{text}");
        }
    }

    #[test]
    fn shell_text_is_cut_into_simple_commands() {
        for (text, expected) in [
            ("git fetch && git reset --hard", "git|fetch // git|reset|--hard"),
            ("f() { git push \"$@\"; }; f", "f // {|git|push|$@ // } // f"),
            ("x=$(git stash pop)", "x= // git|stash|pop"),
            ("echo 'a; b'", "echo|a; b"),
            ("git \\\n reset", "git|reset"),
        ] {
            let commands: Vec<_> = commands(OsStr::new(text)).iter().map(|words| joined(words)).collect();
            assert_eq!(commands.join(" // "), expected, "{text}");
        }
    }

    #[test]
    fn arguments_take_their_places() {
        let args = ["a", "b"].map(OsString::from);
        let words = ["x", "$@", "$2", "${1}", "$9", "$x"].map(OsString::from);
        assert_eq!(joined(&with_arguments(words.to_vec(), &args)), "x|a|b|b|a|$x");
    }
}
