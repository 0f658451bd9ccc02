//! Scans code in a sandbox of its own. A syntax tree of hostile text is made by parsers in C: what breaks out of them is
//! still behind the walls that the code itself would run behind.
//!
//! The sandbox runs the `ringfence` program, which becomes [`scan_inside`]. The code goes in over its standard input and the
//! findings come back over its standard output. They are the word of a process that read hostile text: code that took over
//! its scanner can call itself clean. The verdict is a gate by policy and never a wall.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use ringfence_policy::limits::MIB;
use ringfence_policy::plan;
use ringfence_policy::policy::{Network, Policy, Root};
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::rules::{Access, FileRule, LayerKind, Missing, Origin, Pattern};
use serde::{Deserialize, Serialize};

use super::SkillError;
use super::scan::{self, Declared, Scan};
use crate::code::Language;
use crate::code::channel::Channel;
use crate::engines::{self, EngineError, StdioSpec};
use crate::supervise::{Ended, supervise};
use crate::{Host, SandboxError};

/// The words that turn the `ringfence` program into the scanner.
pub const WORDS: [&str; 2] = ["skill", "scan-inside"];
/// What the scanner may spend. A scan itself stops after ten seconds.
const MEMORY: u64 = 512 * MIB;
const TIME: Duration = Duration::from_secs(20);

/// Who reads the code of skills.
#[derive(Debug, Clone)]
pub enum Scanner {
    /// The `ringfence` program of this host, in a sandbox.
    Sandboxed(Box<Host>),
    /// This process. For code that you wrote yourself.
    InProcess,
}

/// What goes into the sandbox.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    language: scan::Language,
    hosts: Vec<String>,
    code: String,
}

impl Scanner {
    /// Scans code that reaches these hosts by declaration. Code that ends its scanner is dangerous.
    pub fn scan(&self, language: &Language, code: &str, hosts: &[String]) -> Result<Scan, SkillError> {
        let request = Request { language: language.scanned, hosts: hosts.to_vec(), code: code.to_owned() };
        match self {
            Scanner::Sandboxed(host) => {
                in_sandbox(host, &request).map_err(|error| SkillError::Scanner(Box::new(error)))
            }
            Scanner::InProcess => Ok(look(request)),
        }
    }
}

fn look(request: Request) -> Scan {
    let declared = Declared { hosts: request.hosts, files: Vec::new() };
    scan::scan(request.language, request.code.as_bytes(), &declared)
}

/// What the program does in the sandbox: reads a request, and writes what was found.
pub fn scan_inside(mut input: impl Read, mut output: impl Write) -> std::io::Result<()> {
    let mut request = Vec::new();
    input.read_to_end(&mut request)?;
    let found = look(serde_json::from_slice(&request)?);
    output.write_all(&serde_json::to_vec(&found)?)
}

fn in_sandbox(host: &Host, request: &Request) -> Result<Scan, SandboxError> {
    let sandbox = host.sandbox("skill").build()?;
    let facts = sandbox.facts();
    let program = &facts.program;
    let policy = policy_for(sandbox.policy(), program);
    let command: Vec<_> = std::iter::once(program.into()).chain(WORDS.map(Into::into)).collect();
    let plan = plan::plan(&policy, facts, &command)?;
    let (engine, report) = engines::select(&EngineChoice::Auto, &plan, facts)?;
    let request = serde_json::to_vec(request).map_err(|error| EngineError::Lost(error.to_string()))?;
    let (mut channel, stdio) = Channel::open(request, policy.limits.output, None).map_err(EngineError::Stdio)?;
    let running = engines::start(engine, &plan, &report, facts, StdioSpec::Files(stdio))?;
    let outcome = supervise(running, &policy, facts, &mut channel)?;
    let found = channel.into_parts().stdout.into_bytes(|_| String::new());
    let read = serde_json::from_slice(&found).ok().filter(|_| outcome.ended == Ended::Exited(0));
    Ok(read.unwrap_or_else(|| {
        Scan::unread(&match (outcome.reason, outcome.ended) {
            (Some(reason), _) => format!("its scanner was ended by a limit ({reason:?})").to_lowercase(),
            (None, Ended::Signaled(signal)) => format!("its scanner died by signal {signal}"),
            (None, Ended::Exited(code)) => format!("its scanner exited with {code}"),
        })
    }))
}

/// Profile `skill` with the program in it, and nothing else of this host but libraries.
fn policy_for(policy: &Policy, program: &Path) -> Policy {
    let origin = Origin { layer: LayerKind::Profile, place: "scanner".into() };
    let pattern = Pattern::Exact(program.to_path_buf());
    let mut limits = policy.limits.clone();
    (limits.memory, limits.timeout, limits.output) = (Some(MEMORY), Some(TIME), MIB);
    Policy {
        profile: "scanner".to_owned(),
        root: Root::Programs,
        rules: vec![FileRule { access: Access::Ro, pattern, missing: Missing::Fail, origin }],
        shown: Vec::new(),
        network: Network::None,
        devices: Vec::new(),
        commands: Default::default(),
        allow_syscalls: Vec::new(),
        trace_denials: false,
        limits,
        ..policy.clone()
    }
}
