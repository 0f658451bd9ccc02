//! Labels: what says that an object at the daemon is ours, whose, and for what. Nothing without them is ever touched.
//!
//! The owner's label is for finding and sharing; anyone can write it. What is removed also has a proof, made with a
//! [`Key`].

use std::collections::HashMap;

use super::key::Key;
use super::names::Name;

/// Prefix of every label.
const OWNER: &str = "ringfence.owner";
const PROOF: &str = "ringfence.proof";
const PURPOSE: &str = "ringfence.purpose";
const SESSION: &str = "ringfence.session";
const PROFILE: &str = "ringfence.profile";
const POLICY: &str = "ringfence.policy";
const CREATED: &str = "ringfence.created";
const VERSION: &str = "ringfence.version";

/// What an object is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A session's container.
    Sandbox,
    /// The shared network.
    Network,
    /// A package cache.
    Cache,
    /// The home of a session.
    Home,
}

impl Purpose {
    /// The word for it in a label.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Sandbox => "sandbox",
            Purpose::Network => "network",
            Purpose::Cache => "cache",
            Purpose::Home => "home",
        }
    }
}

/// Who an object belongs to: one state directory of one user of this host.
///
/// A daemon can have several users, and a user several state directories (tests have); none clears up after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner(String);

impl Owner {
    /// The owner with this user id and state directory.
    pub fn new(uid: u32, state: &std::path::Path) -> Owner {
        use std::os::unix::ffi::OsStrExt;
        let hash = ringfence_policy::layers::content_hash(state.as_os_str().as_bytes());
        let digits = hash.trim_start_matches("sha256:");
        Owner(format!("{uid}-{}", digits.get(..16).unwrap_or(digits)))
    }

    /// The owner as a label has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The labels of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox<'a> {
    /// The id of its session.
    pub session: &'a str,
    /// The profile of its policy.
    pub profile: &'a str,
    /// Hash of everything that the container is made from.
    pub policy: &'a str,
    /// Seconds since 1970.
    pub created: u64,
}

fn base(owner: &Owner, purpose: Purpose) -> HashMap<String, String> {
    let pairs = [(OWNER, owner.as_str()), (PURPOSE, purpose.name()), (VERSION, env!("CARGO_PKG_VERSION"))];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Labels of what is one owner's, with the proof that it is.
fn proven(key: &Key, purpose: Purpose, session: &str, name: &Name) -> HashMap<String, String> {
    let mut labels = base(key.owner(), purpose);
    labels.insert(SESSION.to_owned(), session.to_owned());
    labels.insert(PROOF.to_owned(), key.prove(purpose, session, name.as_str()));
    labels
}

/// Labels of the container of this name.
pub fn sandbox(key: &Key, name: &Name, sandbox: &Sandbox<'_>) -> HashMap<String, String> {
    let mut labels = proven(key, Purpose::Sandbox, sandbox.session, name);
    labels.insert(PROFILE.to_owned(), sandbox.profile.to_owned());
    labels.insert(POLICY.to_owned(), sandbox.policy.to_owned());
    labels.insert(CREATED.to_owned(), sandbox.created.to_string());
    labels
}

/// Labels of a volume or a network. These are shared by all users of the daemon who use the same names, so the owner is
/// everybody. None of them is ever removed.
pub fn shared(purpose: Purpose) -> HashMap<String, String> {
    base(&Owner("shared".to_owned()), purpose)
}

/// Labels of the home of this name, which is one user's.
pub fn home(key: &Key, name: &Name, session: &str) -> HashMap<String, String> {
    proven(key, Purpose::Home, session, name)
}

/// Whether the labels say that it is ours and for this purpose. That is enough to use it, and not enough to remove it.
pub fn is(labels: &HashMap<String, String>, owner: Option<&Owner>, purpose: Purpose) -> bool {
    let says = |key: &str, value: &str| labels.get(key).is_some_and(|found| found == value);
    says(PURPOSE, purpose.name()) && says(OWNER, owner.map_or("shared", Owner::as_str))
}

/// Whether the labels prove that the object of this name is ours and for this purpose, so that it may be removed.
pub fn prove(labels: &HashMap<String, String>, key: &Key, purpose: Purpose, name: &str) -> bool {
    let proof = labels.get(PROOF).zip(session(labels));
    is(labels, Some(key.owner()), purpose)
        && proof.is_some_and(|(proof, session)| key.accepts(proof, purpose, session, name))
}

/// The session that an object belongs to.
pub fn session(labels: &HashMap<String, String>) -> Option<&str> {
    labels.get(SESSION).map(String::as_str)
}

/// Filters for a list of what is ours and for a purpose.
pub fn filters(owner: &Owner, purpose: Purpose) -> HashMap<String, Vec<String>> {
    let labels = vec![format!("{OWNER}={}", owner.as_str()), format!("{PURPOSE}={}", purpose.name())];
    HashMap::from([("label".to_owned(), labels)])
}
