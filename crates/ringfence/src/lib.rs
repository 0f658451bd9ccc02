//! The library: a policy becomes a plan, an engine carries it out, and the outcome says what was really enforced.
//!
//! It never prints, never exits, and never reads the user's configuration by itself.
#![forbid(unsafe_code)]

pub mod engines;
pub mod facts;
pub mod report;
mod stubs;

pub use engines::{Choice, Engine, EngineError, Running, StdioSpec, select};
pub use report::{Report, State};
pub use ringfence_policy as policy;
