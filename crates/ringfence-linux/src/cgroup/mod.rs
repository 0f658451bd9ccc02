//! Limits on a whole tree of processes, and the systemd scope that a user's groups are made in.

pub mod limits;
pub mod scope;
