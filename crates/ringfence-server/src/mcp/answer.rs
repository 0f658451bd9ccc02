//! Answers that a model can use: text and structure, and errors that say what to do next.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

use ringfence::policy::Failure;
use ringfence::session::SessionError;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use rustix::io::Errno;
use serde::Serialize;

use super::client_roots;
use super::live::Opened;
use super::owner::{Cure, Refusal};

/// What a tool did not do, and what the model can do about it. Reaches the model as it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", advice.map(|advice| format!(" {advice}")).unwrap_or_default())]
pub struct Trouble {
    pub message: String,
    pub advice: Option<&'static str>,
    /// Where it is about the sandbox itself, for programs.
    pub failure: Option<Box<Failure>>,
}

/// The key of a failure in `_meta`. What a tool's structure is says its schema, and clients hold errors to that as well.
const FAILURE: &str = "ringfence/failure";

pub const ASK_OWNER: &str = "The sandbox's policy does not allow it; session_info says what is allowed. Only the owner can allow more: ask them.";
const NEXT_CALL: &str =
    "The next call starts a new one: the working directory is as it was, processes and /tmp are gone.";

impl Trouble {
    pub fn new(message: impl Into<String>) -> Trouble {
        Trouble { message: without_numbers(&message.into()), advice: None, failure: None }
    }

    pub fn advise(mut self, advice: &'static str) -> Trouble {
        self.advice = Some(advice);
        self
    }

    pub fn into_result(self) -> CallToolResult {
        let mut result = CallToolResult::error(vec![ContentBlock::text(self.to_string())]);
        let failure = self.failure.and_then(|failure| serde_json::to_value(failure).ok());
        result.meta = failure.map(|failure| MetaObject([(FAILURE.to_owned(), failure)].into_iter().collect()));
        result
    }
}

/// System errors carry their numbers (`(os error 13)`); the words say it.
fn without_numbers(message: &str) -> String {
    let mut parts = message.split(" (os error ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(')'));
    }
    text
}

impl From<SessionError> for Trouble {
    fn from(error: SessionError) -> Trouble {
        let mut trouble = Trouble::new(format!("{error}."));
        trouble.failure = error.failure().map(Box::new);
        match error {
            SessionError::File { errno: Errno::ACCESS | Errno::PERM | Errno::ROFS, .. } => trouble.advise(ASK_OWNER),
            SessionError::File { errno: Errno::NOENT | Errno::NOTDIR, .. } => {
                trouble.advise("list_files shows what is there.")
            }
            SessionError::File { errno: Errno::NOSPC | Errno::DQUOT, .. } => {
                trouble.advise("The space is used up: remove something, or ask the owner for more.")
            }
            SessionError::Execute { errno: Errno::NOENT, .. } => {
                trouble.advise("No such program in the sandbox: look with `command -v NAME`, or ask the owner.")
            }
            SessionError::Execute { errno: Errno::ACCESS | Errno::PERM, .. } => trouble.advise(ASK_OWNER),
            SessionError::TimeoutAboveCeiling { .. } => {
                trouble.advise("Nothing was run. Ask for less time, or for a background command in parts.")
            }
            SessionError::Ended { .. } | SessionError::Lost { .. } | SessionError::CommandLost { .. } => {
                trouble.advise(NEXT_CALL)
            }
            _ => trouble,
        }
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Trouble {
        let mut trouble = Trouble::new(format!("{}.", refusal.message.trim_end_matches('.')));
        trouble.failure = refusal.failure;
        trouble.advise(match refusal.cure {
            Cure::TellOwner => "Tell the owner.",
            Cure::AskOwner => ASK_OWNER,
            Cure::Arguments => "Nothing was run.",
        })
    }
}

/// Says where a path of the host is inside, when the model used one.
pub fn with_place(trouble: Trouble, path: &str, opened: &Opened) -> Trouble {
    match client_roots::inside(Path::new(path), &opened.places.workdir, &opened.at) {
        Some(inside) => {
            let message = format!("{} Inside the sandbox this path is `{}`.", trouble.message, inside.display());
            Trouble { message, advice: None, ..trouble }
        }
        None => trouble,
    }
}

/// Begins the lines of an answer that are not what a command or code wrote. Made when that is there, so that nothing in it can
/// be such a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    pub fn unlike<'a>(texts: impl IntoIterator<Item = &'a str> + Clone) -> Mark {
        loop {
            // Its keys are random, and known to this process alone.
            let random = RandomState::new().build_hasher().finish();
            let mark = format!("[{:08x}]", random as u32);
            if !texts.clone().into_iter().any(|text| text.contains(&mark)) {
                return Mark(mark);
            }
        }
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A result with its structure, and a text that says the same.
pub fn done(structure: &impl Serialize, text: String) -> Result<CallToolResult, Trouble> {
    let value = serde_json::to_value(structure).map_err(|error| Trouble::new(format!("cannot answer: {error}")))?;
    let mut result = CallToolResult::structured(value);
    result.content = vec![ContentBlock::text(text)];
    Ok(result)
}

#[cfg(test)]
mod tests;
