//! What functions of libraries do, as data: a name and an effect. `x.*` means everything below `x`, `x()` what a call of
//! `x` returns.

pub mod javascript;
pub mod python;

use std::collections::HashMap;

use super::decode::Codec;
use super::rules::Rule;

/// What using a name means.
#[derive(Debug, Clone, Copy)]
pub enum Effect {
    /// A finding, however it is used.
    Find(&'static Rule),
    /// A finding when it is called.
    Calls(&'static Rule),
    /// Starts a program: the first argument names it.
    Spawn,
    /// Hands its first argument to a shell.
    Shell,
    /// Runs its first argument as code.
    Eval,
    /// Stands for the module that its first argument names.
    Import,
    /// Stands for the member of its first argument that the second names.
    Member,
    /// Sets a member, as `Member` reads one.
    SetMember,
    /// Stands for the members of its first argument, or for all global names.
    Names,
    /// Decodes its first argument.
    Decode(Codec),
    /// Decodes its first argument as the second says.
    DecodeBy,
    /// Puts characters together from numbers.
    Characters,
    /// Joins paths.
    Join,
    /// Its first argument, as it is.
    Same,
    /// This text.
    Text(&'static str),
    /// Reaches an address that is among its arguments; what comes back is not to be trusted.
    Connect,
    /// Makes a connection.
    Socket,
    /// What comes out of a connection.
    Receive,
    /// Takes code and data apart from a format that can hold both.
    Load,
    /// The same, unless an argument says otherwise.
    LoadUnlessSafe,
    /// Opens a file; the second argument may say for what.
    Open,
    Read,
    Write,
    Remove,
    RemoveTree,
    /// Copies or moves from the first to the second.
    Copy,
    /// The environment; a member or index of it is a variable.
    Environment,
    /// A variable that the first argument names.
    Variable,
    /// Stands for the member of its first argument that it was made with.
    Getter,
    /// Calls that member.
    Caller,
    /// Calls a function that it gets with arguments that it gets.
    Later,
    /// Stands for its first argument, with more arguments already there.
    Partial,
    /// Goes to a directory.
    Enter,
    /// Sets variables of the environment.
    SetVariable,
    /// Ties its arguments together: descriptors.
    Duplicate,
}

/// The effects of a language.
#[derive(Debug)]
pub struct Apis {
    by_name: HashMap<&'static str, Effect>,
}

impl Apis {
    fn new(tables: &[&'static [(Effect, &'static str)]]) -> Apis {
        let rows = tables.iter().flat_map(|table| table.iter());
        let by_name = rows.flat_map(|(effect, names)| names.split_whitespace().map(|name| (name, *effect))).collect();
        Apis { by_name }
    }

    /// What a name means: by itself, or by the nearest `….*` above it.
    pub fn effect(&self, name: &str) -> Option<Effect> {
        if let Some(effect) = self.by_name.get(name) {
            return Some(*effect);
        }
        let last = name.rsplit('.').next().unwrap_or(name);
        // `PIPE`, `TimeoutExpired`, `HTTPError`: constants and errors do nothing.
        let constant = last.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        if constant || ["Error", "Exception", "Expired", "Warning"].iter().any(|end| last.ends_with(end)) {
            return None;
        }
        let mut above = name;
        while let Some(at) = above.rfind('.') {
            above = &above[..at];
            if let Some(effect) = self.by_name.get(format!("{above}.*").as_str()) {
                return Some(*effect);
            }
        }
        None
    }
}
