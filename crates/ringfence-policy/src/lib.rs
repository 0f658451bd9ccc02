//! What a sandbox may read, write, reach and spend, as pure data, and the plan that enforces it.
//!
//! Flags, configuration files and requests become [`Layer`]s, layers become one [`Policy`], and a policy with the
//! facts of this host becomes a [`Plan`](plan::Plan). This crate looks paths up; it starts no process, writes no file and
//! knows no engine.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod caches;
pub mod canonical;
pub mod config;
pub mod env;
pub mod explain;
pub mod facts;
pub mod failure;
#[allow(missing_docs, reason = "a suspicion's text says what it is")]
pub mod git;
pub mod glob;
pub mod guarantee;
pub mod guarded;
pub mod guards;
pub mod layer;
pub mod layers;
pub mod limits;
pub mod look;
pub mod narrow;
pub mod outcome;
pub mod plan;
pub mod policy;
pub mod presets;
pub mod profiles;
pub mod records;
pub mod report;
pub mod rules;
pub mod secrets;
pub mod service;
pub mod suggest;
pub mod syscalls;
pub mod tree;
pub mod wire;

pub use failure::{Cure, Failure};
pub use guarantee::Guarantee;
pub use guarded::Guarded;
pub use layer::Layer;
pub use layers::{Inputs, Resolved, resolve};
pub use outcome::{Ended, Outcome, Reason};
pub use policy::Policy;
pub use report::Report;
pub use service::ServiceSettings;
