//! The bubblewrap engine.
use super::{EngineError, StdioSpec};
use crate::report::Report;
use ringfence_linux::launch::Spec;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::Plan;
pub(super) fn promise(_plan: &Plan, _facts: &Facts) -> Result<Report, EngineError> {
    Err(EngineError::Lost("not yet".into()))
}
pub(super) fn describe(_plan: &Plan, _facts: &Facts) -> Result<String, EngineError> {
    Err(EngineError::Lost("not yet".into()))
}
pub(super) fn spec(_plan: &Plan, _facts: &Facts, _stdio: StdioSpec) -> Result<Spec, EngineError> {
    Err(EngineError::Lost("not yet".into()))
}
