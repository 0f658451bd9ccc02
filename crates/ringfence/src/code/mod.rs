//! Code: runs a piece of Python, JavaScript, TypeScript or bash in a box, and brings back one result.
//!
//! The code never becomes part of a command line or of other code. It goes to a runner program in the box over a socket,
//! which is the runner's descriptor 0, and the result comes back the same way, apart from stdout and stderr. Code in the box
//! can write to that socket too; then it lies about its own result. Whether the sandbox failed, how long it took and which
//! limit ended it is decided here, from outside.
//!
//! ```no_run
//! use ringfence::code::{Code, Language};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let sandbox = ringfence::Host::here()?.sandbox("skill").build()?;
//! let python = Language::named("python").ok_or("no such language")?;
//! let code = Code { inputs: serde_json::json!({ "x": 21 }), ..Code::new(python, "x * 2") };
//! // What becomes readable here cancels the run; nothing comes from this pipe.
//! let (cancel, _held) = std::io::pipe()?;
//! let result = sandbox.run_code(&code, &["python".into()], None, None, || Ok::<_, ringfence::SandboxError>(cancel))?;
//! println!("{:?}", result.value);
//! # Ok(())
//! # }
//! ```

pub(crate) mod channel;
mod context;
mod frames;
mod javascript;
mod language;
mod pool;
mod request;
pub mod requirements;
mod result;
mod runner;
mod variables;

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ringfence_linux::limits::Home;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::format_size;
use ringfence_policy::look::Lookup;
use ringfence_policy::plan::{self, Mount, Plan, PlanError};
use ringfence_policy::policy::{Network, Policy};
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::tree::Tree;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use self::channel::Channel;
pub use self::context::{Context, ContextError, Contexts};
use self::language::Wire;
pub use self::language::{LANGUAGES, Language};
pub use self::pool::Pools;
use self::requirements::{Installed, Requirements};
pub use self::result::{CodeException, CodeResult, Frame, Rich, Status, Usage};
use self::runner::{Place, Runner};
use crate::capture::Capture;
use crate::engines::{self, EngineError, EngineRef, StdioSpec};
use crate::report::Report;
use crate::supervise::{Outcome, supervise};

/// Bytes of code.
pub const MAX_SOURCE: usize = 4 << 20;
/// Bytes of inputs, as JSON.
pub(crate) const MAX_INPUTS: usize = 64 << 20;
/// Files that go in or come out.
pub const MAX_FILES: usize = 64;
/// Bytes of all files that go in, and of all that come out.
pub const MAX_FILE_BYTES: usize = 32 << 20;
/// Patterns of files that come out.
const MAX_PATTERNS: usize = 32;
const MAX_PATH: usize = 255;

/// A piece of code to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Code {
    /// The language that it is written in.
    pub language: &'static Language,
    /// The program.
    pub source: String,
    /// What messages call it; the language's own name for a program when `None`.
    pub name: Option<String>,
    /// Any JSON. The code has it as `inputs`, and each member of an object as a variable where its name can be one. Bash
    /// has variables that do more than hold a value: a member with the name of one is refused.
    pub inputs: serde_json::Value,
    /// Files that are there when it starts, in its working directory.
    pub files: Vec<File>,
    /// Which files come back: `*` and `?` within a name, `**` across directories.
    pub out: Vec<String>,
    /// Whether packages that the host or the image has can be imported; costs time at the start.
    pub packages: bool,
    /// Packages that are installed for it.
    pub requirements: Option<Requirements>,
    /// The set that they are; code with requirements does not run without.
    pub installed: Option<Installed>,
    /// Time that was spent on it before it runs. It counts: the time limit of the run is shorter by it.
    pub spent: Duration,
}

/// A file that goes in or came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Below the working directory.
    /// Where it is, relative to the working directory.
    pub path: String,
    /// Its content.
    #[serde(with = "base64_text")]
    pub data: Vec<u8>,
}

/// Why code could not be run: the sandbox's failure, never the code's.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum CodeError {
    /// The code has this many bytes, which is too many.
    #[error("the code has {0} bytes, more than {MAX_SOURCE}")]
    SourceTooLarge(usize),
    /// The inputs have this many bytes, which is too many.
    #[error("the inputs have {0} bytes, more than {MAX_INPUTS}")]
    InputsTooLarge(usize),
    /// The inputs are nested too deeply to be read.
    #[error("the inputs are nested too deeply")]
    InputsTooDeep,
    /// The name of an input is a word or a variable of the language.
    #[error("input `{name}` cannot be a variable: {language} has one of this name")]
    InputName { language: &'static str, name: String },
    /// So many files were given, which is too many.
    #[error("{0} files, more than {MAX_FILES}")]
    TooManyFiles(usize),
    /// The files have this many bytes together, which is too many.
    #[error("the files have {0} bytes, more than {MAX_FILE_BYTES}")]
    FilesTooLarge(usize),
    /// The files do not fit into the private space of the sandbox.
    #[error("the files have {bytes} bytes, and there is room for {room} in `/tmp`")]
    NoRoom { bytes: u64, room: u64 },
    /// The interpreter needs more memory than the policy allows.
    #[error("{language} needs {} of memory to start, and the limit is {}", format_size(*least), format_size(*limit))]
    TooLittleMemory { language: &'static str, least: u64, limit: u64 },
    /// A file could not be written into the sandbox, for this reason.
    #[error("cannot write a file into the sandbox: {0}")]
    Unwritten(String),
    /// This path cannot be that of a file.
    #[error("`{0}` is no path below the working directory: at most {MAX_PATH} bytes, and no control characters")]
    Path(String),
    /// No interpreter was found under the names that were tried.
    #[error("no interpreter for {language} was found: {}", .tried.join(", "))]
    NoInterpreter { language: &'static str, tried: Vec<&'static str> },
    /// The required packages are not installed.
    #[error("the packages that the code requires are not installed")]
    NotInstalled,
    /// The required packages were installed for another interpreter.
    #[error("the packages that the code requires are installed for other programs than those of this sandbox")]
    OtherPrograms,
    /// The policy gives no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No engine can start the sandbox.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The channel to the sandbox could not be made.
    #[error("cannot make a channel to the sandbox: {0}")]
    Channel(Errno),
    /// No thread or process could be started to run the code.
    #[error("cannot start a worker: {0}")]
    Worker(std::io::Error),
    /// The interpreter ended before it ran any code.
    #[error("the {language} interpreter did not start: {reason}")]
    NotStarted { language: &'static str, reason: String },
}

impl Code {
    /// Code of this language, without inputs.
    pub fn new(language: &'static Language, source: impl Into<String>) -> Code {
        Code {
            language,
            source: source.into(),
            name: None,
            inputs: serde_json::Value::Object(serde_json::Map::new()),
            files: Vec::new(),
            out: Vec::new(),
            packages: false,
            requirements: None,
            installed: None,
            spent: Duration::ZERO,
        }
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.language.program)
    }

    /// The code as an interpreter reads it from a file: without a mark of its encoding.
    fn source(&self) -> &str {
        self.source.strip_prefix('\u{feff}').unwrap_or(&self.source)
    }

    /// An input that would be one of the shell's own variables.
    fn taken_input(&self) -> Option<&str> {
        let members = self.inputs.as_object().filter(|_| self.language.wire == Wire::Lines)?;
        members.keys().map(String::as_str).find(|name| variables::is_taken(name))
    }

    fn input_name(&self, name: impl Into<String>) -> CodeError {
        CodeError::InputName { language: self.language.name, name: name.into() }
    }

    fn check(&self) -> Result<(), CodeError> {
        if self.source.len() > MAX_SOURCE {
            return Err(CodeError::SourceTooLarge(self.source.len()));
        }
        if self.files.len() > MAX_FILES {
            return Err(CodeError::TooManyFiles(self.files.len()));
        }
        if self.out.len() > MAX_PATTERNS {
            return Err(CodeError::TooManyFiles(self.out.len()));
        }
        if let Some(name) = self.taken_input() {
            return Err(self.input_name(name));
        }
        let bytes = self.files.iter().map(|file| file.data.len()).sum();
        if bytes > MAX_FILE_BYTES {
            return Err(CodeError::FilesTooLarge(bytes));
        }
        if let Some(name) = self.name.as_ref().filter(|name| name.starts_with(['-', '~'])) {
            return Err(CodeError::Path(name.clone()));
        }
        let paths = self.files.iter().map(|file| &file.path).chain(&self.out).chain(&self.name);
        match paths.into_iter().find(|path| !is_below(path)) {
            Some(path) => Err(CodeError::Path(path.clone())),
            None => Ok(()),
        }
    }
}

/// Whether a path stays below where it starts, and has nothing in it that a runner would read otherwise.
fn is_below(path: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    !path.is_empty()
        && path.len() <= MAX_PATH
        && !path.starts_with('/')
        && !path.contains(|c| char::is_control(c) || is_direction(c))
        && path.split('/').all(plain)
}

/// Whether a character changes the order in which others are shown, so that a name looks like another one.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a path matches a pattern: `*` and `?` within a name, `**` across directories.
fn matches(pattern: &str, path: &str) -> bool {
    let name = |pattern: &&str, text: &&str| {
        let chars = |text: &str| text.chars().collect::<Vec<char>>();
        wild(&chars(pattern), &chars(text), &'*', |c, t| *c == '?' || c == t)
    };
    let split = |text| str::split(text, '/').collect::<Vec<&str>>();
    // As in a shell, what is hidden is asked for by its dot: `.envrc` or a hook of git's may be read by others.
    let asked =
        |part: &&str| !part.starts_with('.') || split(pattern).iter().any(|p| p.starts_with('.') && name(p, part));
    // `**` at the end means every file below.
    wild(&split(pattern), &split(path), &"**", name) && split(path).iter().all(asked)
}

/// Whether a pattern matches all of a text, `any` standing for any part of it. Only the last `any` is ever tried again: the
/// time is the product of both lengths at most, whatever names a box thinks of.
fn wild<T: PartialEq>(pattern: &[T], text: &[T], any: &T, fits: impl Fn(&T, &T) -> bool) -> bool {
    let (mut p, mut t) = (0, 0);
    // Behind the last `any`, and how far it reaches.
    let mut again: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p).is_some_and(|part| part == any) {
            p += 1;
            again = Some((p, t));
        } else if pattern.get(p).is_some_and(|part| fits(part, &text[t])) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((behind, reached)) = again {
            (p, t) = (behind, reached + 1);
            again = Some((behind, t));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|part| part == any)
}

/// Runs code in a box of its own, and waits for its end. It is cancelled when `cancel` becomes readable.
pub fn run(
    code: &Code,
    policy: &Policy,
    facts: &Facts,
    choice: EngineChoice,
    cancel: Option<BorrowedFd<'_>>,
) -> Result<CodeResult, CodeError> {
    let lookup = Tree::lookup(policy, facts);
    prepare(&lookup, code, policy, facts, choice)?.run(facts, cancel).map(|ran| ran.result)
}

/// Code with the plan of its box: nothing has started.
#[derive(Debug)]
pub(crate) struct Prepared<'a> {
    code: &'a Code,
    /// That of the code, with what it needs.
    pub policy: Policy,
    request: Vec<u8>,
    pub plan: Plan,
    pub engine: EngineRef,
    pub report: Report,
    /// Where a runner is kept, or can be, that the interpreter need not compile.
    runner: Option<Place>,
}

/// Code that has run: its result, and what a record is made of.
#[derive(Debug)]
pub(crate) struct Ran {
    pub result: CodeResult,
    pub outcome: Outcome,
    /// stdout and stderr.
    pub captures: [Capture; 2],
}

impl Ran {
    fn of(code: &Code, engine: EngineRef, outcome: Outcome, channel: Channel) -> Result<Ran, CodeError> {
        let parts = channel.into_parts();
        let captures = [parts.stdout.clone(), parts.stderr.clone()];
        Ok(Ran { result: result::result(code, engine, &outcome, parts)?, outcome, captures })
    }
}

/// Checks everything that can be checked before a box is there. `lookup` is what the policy was judged with.
pub(crate) fn prepare<'a>(
    lookup: &Lookup,
    code: &'a Code,
    policy: &Policy,
    facts: &Facts,
    choice: EngineChoice,
) -> Result<Prepared<'a>, CodeError> {
    code.check()?;
    let request = request::encode(code, None, code.installed.is_some())?;
    let mut policy = with_packages(with_environment(policy), code)?;
    policy.limits.timeout = policy.limits.timeout.map(|limit| time_left(limit, code.spent));
    let plan = plan_for(lookup, code, &policy, facts)?;
    let (engine, report) = engines::select(&choice, &plan, facts)?;
    let runner = kept_runner(code.language, &plan, engine, facts);
    Ok(Prepared { code, policy, request, plan, engine, report, runner })
}

/// Where a runner is kept that its interpreter need not compile.
fn kept_runner(language: &Language, plan: &Plan, engine: EngineRef, facts: &Facts) -> Option<Place> {
    let own = language.wire == Wire::Marshal && engine.abilities().commands;
    plan.runs.command().filter(|_| own).and_then(|command| Place::of(&command.program, facts))
}

/// Has the runner compiled, for later ones. When that cannot be, each compiles its own.
fn keep_runner(language: &'static Language, policy: &Policy, facts: &Facts, engine: EngineRef, place: &Place) {
    let mut code = Code::new(language, runner::COMPILE);
    code.inputs = language::PYTHON.into();
    let none = Facts { runners: None, ..facts.clone() };
    let compiled = run(&code, policy, &none, engine.into(), None).ok().and_then(|result| result.value);
    if let Some(runner) = compiled.as_ref().and_then(Runner::from_value) {
        // What cannot be kept is compiled.
        let _ = place.write(&runner);
    }
}

impl Prepared<'_> {
    pub fn run(self, facts: &Facts, cancel: Option<BorrowedFd<'_>>) -> Result<Ran, CodeError> {
        let Prepared { code, policy, mut request, mut plan, engine, report, runner: mut unkept } = self;
        if let Some(runner) = unkept.as_ref().and_then(Place::read) {
            request = runner.start(&mut plan, request);
            unkept = None;
        }
        let (mut channel, stdio) = Channel::open(request, plan.limits.output, cancel).map_err(CodeError::Channel)?;
        let running = engines::start(engine, &plan, &report, facts, StdioSpec::Files(stdio))?;
        let outcome = supervise(running, &policy, facts, &mut channel)?;
        let ran = Ran::of(code, engine, outcome, channel)?;
        if let (Some(place), Status::Ok) = (unkept, ran.result.status) {
            keep_runner(code.language, &policy, facts, engine, &place);
        }
        Ok(ran)
    }
}

/// What is left of a time limit. When nothing is, the run ends at once, as every other that is out of time.
fn time_left(limit: Duration, spent: Duration) -> Duration {
    // Below this it makes no difference, and messages are to name the limit that was set.
    if spent < Duration::from_millis(50) { limit } else { limit.saturating_sub(spent).max(Duration::from_millis(1)) }
}

/// The box's own directory, and figures without a screen.
fn with_environment(policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    for (name, value) in [("HOME", "/tmp"), ("MPLBACKEND", "Agg"), ("MPLCONFIGDIR", "/tmp/.matplotlib")] {
        policy.env.set.entry(name.to_owned()).or_insert_with(|| OsString::from(value));
    }
    policy
}

/// Shows the packages that the code requires.
fn with_packages(mut policy: Policy, code: &Code) -> Result<Policy, CodeError> {
    match (&code.requirements, &code.installed) {
        (None, _) => {}
        (Some(_), None) => return Err(CodeError::NotInstalled),
        (Some(_), Some(installed)) => installed.show(code.language, &mut policy)?,
    }
    Ok(policy)
}

/// The plan for the first interpreter that is there.
fn plan_for(lookup: &Lookup, code: &Code, policy: &Policy, facts: &Facts) -> Result<Plan, CodeError> {
    let least = code.language.least;
    if let Some(limit) = policy.limits.memory.filter(|limit| *limit < least) {
        return Err(CodeError::TooLittleMemory { language: code.language.name, least, limit });
    }
    let grouped = policy.limits.memory.is_some() && !matches!(Home::look(), Home::None(_));
    for interpreter in code.language.interpreters {
        let command = code.language.command(interpreter, code, &policy.limits, grouped);
        let command: Vec<OsString> = command.into_iter().map(OsString::from).collect();
        match plan::plan_with(lookup, policy, facts, &command) {
            Err(PlanError::ProgramNotFound(_)) => {}
            plan => {
                let mut plan = plan?;
                // The channel. What it would tell of the host's network is refused.
                plan.handed_socket = matches!(plan.network, Network::None | Network::Allowlist(_));
                has_room(code, &plan)?;
                return Ok(plan);
            }
        }
    }
    Err(CodeError::NoInterpreter { language: code.language.name, tried: code.language.interpreters.to_vec() })
}

/// Files that cannot be there are no failure of the code.
fn has_room(code: &Code, plan: &Plan) -> Result<(), CodeError> {
    let bytes = code.files.iter().map(|file| file.data.len() as u64).sum();
    // What is mounted last is what is there.
    let room = plan.mounts.iter().rev().find_map(|mount| match mount {
        Mount::Tmpfs { target, size, .. } if plan.workdir.starts_with(target) => Some(Some(*size)),
        Mount::Bind { target, .. } | Mount::Volume { target, .. } if plan.workdir.starts_with(target) => Some(None),
        _ => None,
    });
    match room.flatten() {
        Some(room) if bytes > room => Err(CodeError::NoRoom { bytes, room }),
        _ => Ok(()),
    }
}

/// Bytes in JSON.
mod base64_text {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(data))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod context_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, path) in [
            ("*.png", "a.png"),
            ("o/*", "o/x"),
            ("**/*.txt", "a.txt"),
            ("**/*.txt", "a/b/c.txt"),
            ("a/**", "a/b/c"),
            ("?.x", "é.x"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in
            [("*.png", "a/b.png"), ("*.png", ".bashrc"), ("o/*", "o/x/y"), ("a", "b"), ("?", "ab"), ("a/*", "a")]
        {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
        // Names that the box chooses cost no more than their length.
        let start = std::time::Instant::now();
        assert!(!matches(&"*a".repeat(20), &"a".repeat(200).replace("aaaaaaaaaa", "aaaaaaaaab")));
        assert!(!matches(&format!("{}x", "**/a/".repeat(20)), &format!("{}y", "a/".repeat(100))));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn time_that_was_spent_counts() {
        let [limit, short] = [Duration::from_secs(30), Duration::from_millis(10)];
        assert_eq!(time_left(limit, Duration::from_secs(2)), Duration::from_secs(28));
        assert_eq!(time_left(limit, short), limit);
        assert_eq!(time_left(limit, limit * 2), Duration::from_millis(1));
    }

    #[test]
    fn paths_stay_below() {
        for good in ["a", "a/b.txt", "*.png", "**/x", "a b", ".hidden", "é", "-rf", "~x"] {
            assert!(is_below(good), "{good}");
        }
        for bad in ["", "/a", "../a", "a/../b", "a//b", "./a", "a/", "a\tb", "a\nb", "a\0b"] {
            assert!(!is_below(bad), "{bad:?}");
        }
    }
}
