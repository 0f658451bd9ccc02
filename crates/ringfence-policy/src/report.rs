//! The report: per guarantee whether it was enforced, and by which mechanism.

use std::borrow::Cow;
use std::fmt::Display;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Cure, Guarantee};

/// What was promised, and how each promise was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The engine that answers.
    pub engine: Cow<'static, str>,
    /// An answer for each promise.
    #[serde(deserialize_with = "known")]
    pub guarantees: Vec<Answer>,
    /// Paths of the host's devices that are let in.
    #[serde(default)]
    pub devices: Vec<String>,
}

/// Answers for promises that only a newer release knows are skipped.
fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Answer>, D::Error> {
    #[derive(Deserialize)]
    struct Read {
        id: String,
        state: State,
        by: String,
    }
    let answer = |Read { id, state, by }| id.parse().ok().map(|id| Answer { id, state, by });
    Ok(Vec::<Read>::deserialize(deserializer)?.into_iter().filter_map(answer).collect())
}

/// The answer for one guarantee.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The promise.
    pub id: Guarantee,
    /// How far it was met.
    pub state: State,
    /// The mechanism that enforces it, or the reason why nothing does.
    pub by: String,
}

/// How far a guarantee was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// All of it.
    Enforced,
    /// Less than the whole promise; `by` says what is missing.
    Weakened,
    /// The policy does not ask for it.
    NotAsked,
    /// Not met; only possible where the policy calls it optional. Also what a newer release says in a word of its own.
    #[serde(other)]
    Missing,
}

/// What an engine says about one guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "why it is not kept, and what helps")]
pub enum Verdict {
    /// It is kept, by this mechanism.
    Enforced(String),
    /// Less than all of it is kept; what is missing.
    Weakened(String),
    /// It is not kept.
    Missing { reason: String, cures: Vec<Cure> },
}

/// A report names no more reasons than fit here.
const LONGEST_REASON: usize = 2000;
const MORE: &str = "and more";

const RECORDED: &str = "journal, written before the start and after the end; secrets are redacted";

impl Report {
    /// Answers for `record.complete`: `trouble` is why a record could not be written.
    pub fn recorded<E: Display>(&mut self, trouble: Option<&E>) {
        match trouble {
            None => self.record_complete(State::Enforced, RECORDED.to_owned()),
            Some(error) => self.record_complete(State::Weakened, format!("not recorded: {error}")),
        }
    }

    /// The same for a session that begins: only a strict one waits for the record before it asks for the start.
    pub fn recorded_in_session(&mut self, strict: bool) {
        let by =
            if strict { RECORDED } else { "journal, written during the start and after the end; secrets are redacted" };
        self.record_complete(State::Enforced, by.to_owned());
    }

    /// A guarantee turned out not to hold as it was reported, for this reason.
    pub fn weaken(&mut self, id: Guarantee, reason: &str) {
        let held = |answer: &&mut Answer| answer.id == id && matches!(answer.state, State::Enforced | State::Weakened);
        let Some(answer) = self.guarantees.iter_mut().find(held) else { return };
        answer.state = State::Weakened;
        if answer.by.contains(reason) || answer.by.ends_with(MORE) {
            return;
        }
        let full = answer.by.len() > LONGEST_REASON;
        answer.by = format!("{}; {}", answer.by, if full { MORE } else { reason });
    }

    fn record_complete(&mut self, state: State, by: String) {
        if let Some(answer) = self.guarantees.iter_mut().find(|answer| answer.id == Guarantee::RecordComplete) {
            (answer.state, answer.by) = (state, by);
        }
    }
}
