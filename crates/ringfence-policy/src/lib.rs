//! What a sandbox may read, write, reach and spend, as pure data, and the plan that enforces it.
//!
//! Flags, configuration files and requests become [`Layer`]s, layers become one [`Policy`], and a policy with the
//! facts of this host becomes a [`Plan`](plan::Plan). This crate looks paths up; it starts no process, writes no file and
//! knows no engine.
#![forbid(unsafe_code)]

pub mod caches;
pub mod config;
pub mod env;
pub mod explain;
pub mod facts;
pub mod git;
pub mod glob;
pub mod guarantee;
pub mod guards;
pub mod layer;
pub mod layers;
pub mod limits;
pub mod look;
pub mod plan;
pub mod policy;
pub mod presets;
pub mod profiles;
pub mod records;
pub mod rules;
pub mod suggest;
pub mod tree;
pub mod wire;

pub use guarantee::Guarantee;
pub use layer::Layer;
pub use layers::{Inputs, Resolved, resolve};
pub use policy::Policy;
