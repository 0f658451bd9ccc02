//! The report: asks an engine about each promise of a plan.

use ringfence_policy::plan::Plan;
pub use ringfence_policy::report::{Answer, Report, State, Verdict};
use ringfence_policy::{Cure, Guarantee};

use crate::engines::EngineError;

/// It is kept, by this mechanism.
pub fn enforced(by: impl Into<String>) -> Verdict {
    Verdict::Enforced(by.into())
}

/// What engines say of guarantees that the finished view keeps.
pub const VERIFIED: &str = "the finished view was verified from inside";

/// A guarantee that the finished view keeps, which is looked at before the command starts.
pub fn verified(by: &str) -> Verdict {
    enforced(format!("{by}; {VERIFIED}"))
}

/// Less than all of it is kept; what is missing.
pub fn weakened(by: impl Into<String>) -> Verdict {
    Verdict::Weakened(by.into())
}

/// It is not kept, for this reason.
pub fn missing(reason: impl Into<String>, cures: impl Into<Vec<Cure>>) -> Verdict {
    Verdict::Missing { reason: reason.into(), cures: cures.into() }
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

/// The answer to `record.complete`, which the library gives.
pub fn recorded() -> Verdict {
    enforced("every execution is recorded outside of the sandbox")
}

/// Asks an engine about every promise of a plan. A promise that it cannot keep, and that the policy does not call optional,
/// is an error: nothing is ever weakened in silence.
pub fn answer(engine: &'static str, plan: &Plan, ask: impl Fn(Guarantee) -> Verdict) -> Result<Report, EngineError> {
    let mut guarantees = Vec::with_capacity(Guarantee::ALL.len());
    for id in Guarantee::ALL.iter().copied() {
        let (state, by) = match plan.promises.iter().find(|p| p.guarantee == id) {
            None => (State::NotAsked, String::new()),
            Some(promise) => match with(ask(id), plan, id) {
                Verdict::Enforced(by) => (State::Enforced, by),
                Verdict::Weakened(by) if !plan.strict || promise.optional => (State::Weakened, by),
                Verdict::Weakened(reason) => {
                    let cures = vec![Cure::set("strict", "false")];
                    return Err(EngineError::Unmet { engine, guarantee: id, reason, cures });
                }
                Verdict::Missing { reason, .. } if promise.optional && !plan.strict => (State::Missing, reason),
                Verdict::Missing { reason, cures } => {
                    return Err(EngineError::Unmet { engine, guarantee: id, reason, cures });
                }
            },
        };
        guarantees.push(Answer { id, state, by });
    }
    let devices = plan.devices.iter().map(|device| device.path.display().to_string()).collect();
    Ok(Report { engine: engine.into(), guarantees, devices })
}
