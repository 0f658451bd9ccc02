//! What is said and stored, as bytes, and what other releases say and store.

mod golden;
mod refused;
mod strangers;
mod transcripts;
mod upgrades;
