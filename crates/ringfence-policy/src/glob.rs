//! Globs of file rules.
use std::path::PathBuf;

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(String);
impl Glob {
    pub fn as_str(&self) -> &str {
        &self.0
    }
    pub fn expand(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}
