//! What enforces a plan: the engines, what they share, and the loop that looks after a sandbox from outside.
//!
//! Nothing here decides policy, prints, or reads the user's configuration.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod denials;
pub mod engines;
pub mod facts;
pub mod guest;
#[allow(missing_docs, reason = "only `ringfence` and tests use it")]
pub mod janitor;
pub mod report;
pub mod supervise;
pub mod watch;

pub use engines::{Engine, EngineError, EngineRef, Running, StandardStream, StdioSpec, Unfit, select};
pub use report::{Report, State};
pub use ringfence_policy as policy;
pub use supervise::{Companion, Ended, Outcome, Reason, signal_name, supervise, supervise_watched};
