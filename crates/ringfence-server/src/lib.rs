//! Ringfence for programs: servers that offer sandboxes to others. Today that is [`mcp`].
//!
//! It never prints, never reads the user's configuration, and never decides policy: whoever starts a server hands in what
//! the owner allows.
#![forbid(unsafe_code)]

pub mod mcp;
