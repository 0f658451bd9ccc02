//! What clients and supervisors say to each other, as bytes.

mod golden;
mod strangers;
mod transcripts;
