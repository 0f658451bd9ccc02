//! Who runs an execution: whom it is for, and which process must be alive while it runs.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::redact;

/// Who asked for an execution: the process that started this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// Its user id.
    pub uid: u32,
    /// Its process id.
    pub pid: i32,
    /// The name of its program, as the kernel has it.
    pub program: Option<String>,
}

impl Caller {
    /// The caller of this process.
    pub fn of_this_process() -> Caller {
        Caller::of(rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get()))
    }

    /// A process of this user.
    pub fn of(pid: i32) -> Caller {
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        Caller {
            uid: rustix::process::getuid().as_raw(),
            pid,
            program: program.map(|name| redact::plain(name.trim_end_matches('\n'))),
        }
    }
}

/// The process that will write the end. A number alone could be somebody else's by then: it counts together with when the
/// process began, and with the start of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its process id.
    pub pid: i32,
    /// In ticks since the machine started; 0 when that could not be found out.
    pub start: u64,
    /// This start of the machine.
    pub boot: String,
    /// The name of the machine.
    pub machine: String,
    /// The namespace in which the number counts.
    pub namespace: String,
}

impl Owner {
    /// This process.
    pub fn of_this_process() -> Owner {
        static KNOWN: OnceLock<Owner> = OnceLock::new();
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let look = || {
            let start = start("/proc/self/stat".as_ref()).unwrap_or(0);
            Owner { pid, start, boot: boot(), machine: machine(), namespace: namespace() }
        };
        // Looked up once: a supervisor writes many records. A fork is another process.
        let known = KNOWN.get_or_init(look);
        if known.pid == pid { known.clone() } else { look() }
    }

    /// Whether it is gone. Not sure is no.
    pub fn is_gone(&self, now: &Here) -> bool {
        if self.boot != now.boot {
            // Another start of this machine, or another machine: that one knows.
            return now.alone || self.machine == now.machine;
        }
        if self.namespace != now.namespace {
            return false;
        }
        match start(format!("/proc/{}/stat", self.pid).as_ref()) {
            Some(start) => self.start != 0 && start != self.start,
            None => !Path::new(&format!("/proc/{}", self.pid)).exists(),
        }
    }
}

/// Whoever looks at records.
#[derive(Debug)]
pub struct Here {
    boot: String,
    machine: String,
    namespace: String,
    /// Nobody on another machine writes to the same records.
    alone: bool,
}

impl Here {
    pub fn look(alone: bool) -> Here {
        Here { boot: boot(), machine: machine(), namespace: namespace(), alone }
    }
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

fn machine() -> String {
    redact::plain(&rustix::system::uname().nodename().to_string_lossy())
}

fn namespace() -> String {
    fs::read_link("/proc/self/ns/pid").map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// When a process began: the 22nd field; the second is a name, which may have anything in it.
fn start(path: &Path) -> Option<u64> {
    let text = fs::read(path).ok()?;
    let after_name = text.iter().rposition(|b| *b == b')')? + 2;
    let fields = std::str::from_utf8(text.get(after_name..)?).ok()?;
    // A zombie has ended: nobody has reaped it yet.
    if fields.starts_with('Z') {
        return Some(u64::MAX);
    }
    fields.split(' ').nth(19)?.parse().ok()
}
