//! The library: a policy becomes a plan, an engine carries it out, and the outcome says what was really enforced.
//!
//! It never prints, never exits, and never reads the user's configuration by itself.
#![forbid(unsafe_code)]

pub mod capture;
pub mod code;
pub mod denials;
pub mod engines;
pub mod facts;
pub mod guest;
mod keeper;
pub mod records;
pub mod report;
pub mod sandbox;
pub mod session;
mod sets;
pub mod skills;
pub mod supervise;

pub use capture::Capture;
pub use engines::{Engine, EngineError, Parked, Pool, Prepared, Running, StdioSpec, select};
pub use report::{Report, State};
pub use ringfence_policy as policy;
pub use ringfence_policy::profiles::EngineChoice;
pub use sandbox::{Sandbox, SandboxError};
pub use session::{Event, Output, Session, Sessions};
pub use supervise::{Companion, Ended, Outcome, Reason, signal_name, supervise};
