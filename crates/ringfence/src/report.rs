//! The report: per guarantee whether it was enforced, and by which mechanism.

use ringfence_policy::Guarantee;
use serde::Serialize;

/// What was promised, and how each promise was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub engine: &'static str,
    pub guarantees: Vec<Answer>,
}

/// The answer for one guarantee.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    pub id: Guarantee,
    pub state: State,
    /// The mechanism that enforces it, or the reason why nothing does.
    pub by: String,
}

/// How far a guarantee was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Enforced,
    /// Less than the whole promise; `by` says what is missing.
    Weakened,
    /// Not met; only possible where the policy calls it optional.
    Missing,
    /// The policy does not ask for it.
    NotAsked,
}
