//! The library: a policy becomes a plan, an engine carries it out, and the outcome says what was really enforced.
//!
//! [`Host`] is the front door: it makes a [`Sandbox`] for commands that each have a box of their own, and a [`Session`] for
//! commands in one box that stays.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let host = ringfence::Host::here()?;
//! let sandbox = host.sandbox("agent").network(false).memory("2g")?.build()?;
//! let output = sandbox.exec(["make", "test"]).await?.output().await?;
//! # Ok(())
//! # }
//! ```
//!
//! It never prints and never exits. Only [`Host::here`] reads the user's configuration, trust and environment.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod code;
pub mod host;
pub mod sandbox;
pub mod session;
mod sets;
pub mod skills;

pub use host::{Host, HostError, Notice};
pub use ringfence_engine::engines::{
    Engine, EngineError, EngineRef, Running, StandardStream, StdioSpec, Unfit, select,
};
pub(crate) use ringfence_engine::janitor;
pub use ringfence_engine::report::{Report, State};
pub use ringfence_engine::supervise::{Companion, Ended, Outcome, Reason, Wanted, signal_name};
pub use ringfence_engine::{denials, engines, facts, guest, report, supervise, watch};
pub use ringfence_policy as policy;
pub use ringfence_policy::profiles::EngineChoice;
pub use ringfence_records as records;
pub use ringfence_records::capture::{self, Capture};
pub use sandbox::{Sandbox, SandboxError};
pub use session::{Event, Output, Session, Sessions};
