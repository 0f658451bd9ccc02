//! What owners of sandboxes and their user's watcher say to each other, over a socket of messages.
//!
//! An owner's first message is one byte, with descriptors: the sandbox's mount namespace, a file with a [`List`], and the
//! directory of its placeholders where it has one. From then on each message is an [`Order`] or a [`Notice`].

use serde::{Deserialize, Serialize};

/// How the guest's program is called as a watcher.
pub const NAME: &str = "ringfence-watch";
/// The watcher's directory, in the user's registry of living sandboxes. Its number changes with the messages, so that releases
/// which do not understand each other have watchers of their own.
pub const DIR: &str = "watch-1";
/// The socket, in that directory, which is the watcher's only argument.
pub const SOCKET: &str = "socket";
/// Who holds it may start a watcher, or end as one.
pub const LOCK: &str = "lock";
/// No list is longer.
pub const MOST_BYTES: u64 = 8 << 20;

/// What must stay covered in one sandbox.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct List {
    /// Ids that the sandbox's user namespace has.
    pub uid: u32,
    pub gid: u32,
    /// Directories come before what is in them.
    pub names: Vec<Name>,
    /// Directories whose new names the owner is asked about.
    pub asks: Vec<Vec<u8>>,
}

/// One name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Name {
    /// Its absolute path in the sandbox.
    pub inside: Vec<u8>,
    /// Its absolute path on the host.
    pub outside: Vec<u8>,
    pub cover: Cover,
    /// What takes the name when it is gone. `None`: the sandbox could not make it, or may.
    pub placeholder: Option<Placeholder>,
}

/// What is mounted on a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cover {
    /// Something empty that cannot be read.
    Hidden,
    /// What is there, read-only.
    Protected,
    /// The directory itself, so that it cannot be renamed.
    Pinned,
}

/// An empty directory, or a file with this text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placeholder {
    Directory,
    File(Vec<u8>),
}

/// What an owner says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Cover this name too.
    Cover(Name),
}

/// What the watcher says. Names are numbered as they came.
#[derive(Debug, Serialize, Deserialize)]
pub enum Notice {
    /// All names of the list were looked at, and are watched.
    Watches,
    /// This one was not covered, and is again.
    Restored(u32),
    /// This one is not covered, for this reason.
    Open(u32, String),
    /// A name appeared in one of the directories that the owner is asked about.
    Appeared(Vec<u8>),
    /// The owner did not read fast enough. What happened is not known.
    Missed,
    /// Nothing is watched, for this reason.
    Failed(String),
}

/// The bytes of a message. What is sent here is always encodable.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).unwrap_or_default()
}

/// `None`: another release speaks, or bytes are missing.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}
