//! The report: per guarantee whether it was enforced, and by which mechanism.

use std::borrow::Cow;

use ringfence_policy::Guarantee;
use ringfence_policy::plan::Plan;
use serde::{Deserialize, Serialize};

use crate::engines::{Engine, EngineError};

/// What was promised, and how each promise was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub engine: Cow<'static, str>,
    pub guarantees: Vec<Answer>,
}

/// The answer for one guarantee.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub id: Guarantee,
    pub state: State,
    /// The mechanism that enforces it, or the reason why nothing does.
    pub by: String,
}

/// How far a guarantee was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// What an engine says about one guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Enforced(String),
    Weakened(String),
    Missing { reason: String, cure: String },
}

pub(crate) fn enforced(by: impl Into<String>) -> Verdict {
    Verdict::Enforced(by.into())
}

pub(crate) fn weakened(by: impl Into<String>) -> Verdict {
    Verdict::Weakened(by.into())
}

pub(crate) fn missing(reason: impl Into<String>, cure: impl Into<String>) -> Verdict {
    Verdict::Missing { reason: reason.into(), cure: cure.into() }
}

/// What an engine says, less what the plan says that no engine can help.
fn with(verdict: Verdict, plan: &Plan, id: Guarantee) -> Verdict {
    let reasons: Vec<&str> = plan.weakened.iter().filter(|(of, _)| *of == id).map(|(_, by)| by.as_str()).collect();
    match verdict {
        Verdict::Enforced(by) | Verdict::Weakened(by) if !reasons.is_empty() => {
            Verdict::Weakened(format!("{by}; {}", reasons.join("; ")))
        }
        verdict => verdict,
    }
}

/// Asks an engine about every promise of a plan. A promise that it cannot keep, and that the policy does not call optional,
/// is an error: nothing is ever weakened in silence.
pub(crate) fn answer(engine: Engine, plan: &Plan, ask: impl Fn(Guarantee) -> Verdict) -> Result<Report, EngineError> {
    let mut guarantees = Vec::with_capacity(Guarantee::ALL.len());
    for id in Guarantee::ALL.iter().copied() {
        let (state, by) = match plan.promises.iter().find(|p| p.guarantee == id) {
            None => (State::NotAsked, String::new()),
            Some(promise) => match with(ask(id), plan, id) {
                Verdict::Enforced(by) => (State::Enforced, by),
                Verdict::Weakened(by) if !plan.strict || promise.optional => (State::Weakened, by),
                Verdict::Weakened(reason) => {
                    let cure = "leave `strict` off to accept this".to_owned();
                    return Err(EngineError::Unmet { engine, guarantee: id, reason, cure });
                }
                Verdict::Missing { reason, .. } if promise.optional && !plan.strict => (State::Missing, reason),
                Verdict::Missing { reason, cure } => {
                    return Err(EngineError::Unmet { engine, guarantee: id, reason, cure });
                }
            },
        };
        guarantees.push(Answer { id, state, by });
    }
    Ok(Report { engine: engine.name().into(), guarantees })
}
