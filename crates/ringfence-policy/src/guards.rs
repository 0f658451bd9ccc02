//! Guards: what stands in front of a program and tells an agent the safe way before work is lost.
//!
//! A guard is a courtesy and not a wall. It reads the arguments of one call of one program. Whoever wants around it gets
//! around it: by another name of the program, by another program, by writing into `.git` directly. What must hold is held
//! by mounts and the other walls; a guard keeps a well-meaning agent from an accident and names the alternative.
//!
//! A guard is a pure function of the arguments and of facts that its caller looks up: this crate starts no process.

use std::ffi::OsString;

use crate::policy::Guard;

pub mod git;

pub use git::{AskGit, GitFacts, git};

/// What a guard says about one call.
///
/// The texts are fixed: nothing of the command line, which may hold anything, gets into a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The call may go on.
    Allow,
    /// The call is refused.
    Refuse {
        /// The refused action: `git reset --hard`.
        what: &'static str,
        /// What it would do: `it throws away uncommitted work`.
        why: &'static str,
        /// What to do instead, one sentence without a full stop.
        instead: &'static str,
    },
}

impl Verdict {
    /// The line for stderr, without a newline; `None` when the call is allowed.
    pub fn message(self) -> Option<String> {
        match self {
            Verdict::Allow => None,
            Verdict::Refuse { what, why, instead } => {
                Some(format!("ringfence: {what} is blocked here, because {why}; instead: {instead}"))
            }
        }
    }
}

/// The line for stderr when the policy blocks a program altogether (`program = false`).
pub fn blocked(program: &str) -> String {
    format!("ringfence: {program} is blocked here by the policy; do without it, or ask the user to allow it")
}

/// The guard that a configuration calls `@name`.
pub fn named(name: &str) -> Option<Guard> {
    match name {
        "@git" => Some(Guard::Git),
        _ => None,
    }
}

/// What `guard` says about a call with `args` (without the program's own name).
pub fn check(guard: Guard, args: &[OsString], facts: &dyn GitFacts) -> Verdict {
    match guard {
        Guard::Git => git(args, facts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_act_the_reason_and_the_way() {
        let refusal = Verdict::Refuse { what: "git x", why: "it loses y", instead: "do z" };
        assert_eq!(
            refusal.message().as_deref(),
            Some("ringfence: git x is blocked here, because it loses y; instead: do z")
        );
        assert_eq!(Verdict::Allow.message(), None);
    }

    #[test]
    fn guards_are_found_by_name() {
        assert_eq!(named("@git"), Some(Guard::Git));
        assert_eq!(named("git"), None);
        assert_eq!(named("@docker"), None);
    }
}
