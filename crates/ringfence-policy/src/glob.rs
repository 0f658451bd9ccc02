//! Globs of file rules.

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(String);
