//! One entry in a client's list of MCP servers: text in, text out. Everything outside the entry stays as it is, byte for
//! byte. What is not understood is refused, never repaired.

mod json;
mod toml;

/// The name of the entry.
pub const NAME: &str = "ringfence";

/// How a file holds its list of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// JSON, with comments and trailing commas where the client allows them; an object of this name.
    Json { list: &'static str },
    /// TOML; a table of this name.
    Toml { list: &'static str },
}

/// What the client starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// How the client talks to it, where that has to be said.
    pub kind: Option<&'static str>,
    pub command: String,
    pub args: Vec<String>,
}

/// A file that the entry cannot be put into, or taken out of.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    #[error("it is not valid JSON: {0}")]
    Json(#[from] jsonc_parser::errors::ParseError),
    #[error("it is not valid TOML: {0}")]
    Toml(#[from] toml_edit::TomlError),
    #[error("line {line}: `{name}` is not an object")]
    NotAnObject { name: String, line: usize },
    #[error("line {line}: `{name}` is there a second time")]
    Twice { name: String, line: usize },
    #[error("its lines end in different ways")]
    MixedLines,
    #[error("the edited text would not say what it should")]
    Wrong,
}

/// The text with the entry in it. The same text when it is there already.
pub fn put(form: Form, text: &str, entry: &Entry) -> Result<String, EntryError> {
    match form {
        Form::Json { list } => json::put(text, list, entry),
        Form::Toml { list } => toml::put(text, list, entry),
    }
}

/// The text without the entry. The same text when it is not there.
pub fn take(form: Form, text: &str) -> Result<String, EntryError> {
    match form {
        Form::Json { list } => json::take(text, list),
        Form::Toml { list } => toml::take(text, list),
    }
}

#[cfg(test)]
mod tests;
