//! Skills: registered pieces of code with a source, a scan verdict and a history.
//!
//! A [`Registry`] keeps them beside the records, every version by the hash of its code. [`Skill::code`] is the only way from a
//! skill to something that runs, and it is where all that can be refused is refused: a skill that is disabled, a verdict that
//! the policy does not let through, inputs that do not fit. Nothing here runs code but the scanner, which reads a skill in a
//! sandbox, and the sandbox of the skill holds whatever the scan says.
//!
//! ```no_run
//! use ringfence::skills::{Registry, registry::Which};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let mut registry = Registry::of(ringfence::Host::here()?.archive()?.open()?);
//! let skill = registry.find(&Which::parse("greet@1.0.0"))?;
//! println!("{}: {:?}", skill.name, skill.scan.map(|scan| scan.verdict));
//! # Ok(())
//! # }
//! ```

pub mod registry;
mod scanner;
mod schema;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use registry::Registry;
pub use ringfence_scan as scan;
pub use scanner::{Scanner, WORDS as SCANNER_WORDS, scan_inside};
pub use schema::Schema;

use self::scan::{Scan, Verdict};
use self::schema::Unfit;
use crate::code::requirements::Requirements;
use crate::code::{Code, CodeResult, Language};
use crate::records::database::DatabaseError;
use crate::records::{SkillRun, StoreError};

/// Where a skill comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Written here.
    Local,
    /// By somebody whom nobody here knows: only ever in a sandbox.
    Community,
    /// By a service that the user has an account with. What was there before sources were is that.
    Cloud,
}

impl Source {
    /// Every source.
    pub const ALL: [Source; 3] = [Source::Local, Source::Community, Source::Cloud];

    /// Its name in commands and records.
    pub fn name(self) -> &'static str {
        match self {
            Source::Local => "local",
            Source::Community => "community",
            Source::Cloud => "cloud",
        }
    }

    /// The source of this name.
    pub fn from_name(name: &str) -> Option<Source> {
        Self::ALL.into_iter().find(|source| source.name() == name)
    }
}

/// A skill that is to be registered.
#[derive(Debug, Clone)]
pub struct New {
    /// Its name.
    pub name: String,
    /// The next whole number when `None`.
    pub version: Option<String>,
    /// The language of its code.
    pub language: &'static Language,
    /// Its code.
    pub code: String,
    /// As of its latest version, or local, when `None`.
    pub source: Option<Source>,
    /// Packages that it needs.
    pub requirements: Option<Requirements>,
    /// What its inputs must be like; anything goes when `None`.
    pub inputs: Option<Schema>,
    /// Hosts that it is declared to reach. The scan has no finding for them; the network is the policy's to open.
    pub hosts: Vec<String>,
    /// Whether it must run in a sandbox. Ringfence runs everything in one; this is for other programs that read the registry.
    pub sandbox_required: bool,
}

/// One version of a skill.
#[derive(Debug, Clone, Serialize)]
pub struct Skill {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Of the code: `sha256:…`.
    pub hash: String,
    /// The name of its language.
    pub language: String,
    /// Where its code came from.
    pub source: Source,
    /// Whether it must run in a sandbox.
    pub sandbox_required: bool,
    /// Whether it is kept from running.
    pub disabled: bool,
    /// Milliseconds since 1970.
    pub added: i64,
    /// What its inputs must be like; anything goes when `None`.
    pub inputs: Option<Schema>,
    /// Hosts that it is declared to reach.
    pub hosts: Vec<String>,
    /// Packages that it needs.
    pub requirements: Option<Requirements>,
    /// Nothing when it was never scanned.
    pub scan: Option<Scan>,
    /// When it was scanned, in milliseconds since 1970.
    pub scanned: Option<i64>,
    /// Its code.
    #[serde(skip)]
    pub code: String,
}

/// A version that the registry has and that cannot be believed. It does not run, and neither does an earlier one in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error(
    "the registry has other code for skill `{name}` {version} than its hash {hash} says, or a value that it cannot have ({what})"
)]
pub struct Unreadable {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The hash it is registered with.
    pub hash: String,
    /// Which of its values.
    pub what: &'static str,
}

/// What went wrong with a skill; nothing has run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum SkillError {
    /// This text cannot be the name of a skill.
    #[error(
        "`{0}` cannot be the name of a skill: letters, digits, `.`, `_` and `-`, at most 64, a letter or digit first"
    )]
    Name(String),
    /// This text cannot be a version.
    #[error("`{0}` cannot be a version: letters, digits, `.`, `_`, `-` and `+`, at most 64, a letter or digit first")]
    Version(String),
    /// This version could be the beginning of a hash.
    #[error("`{0}` cannot be a version: `NAME@{0}` could mean a hash that begins like this")]
    VersionIsHash(String),
    /// The code has this many bytes, which is too many.
    #[error("the code of a skill is at most {most} bytes, and not {0}", most = crate::code::MAX_SOURCE)]
    TooLarge(usize),
    /// The code has a NUL character.
    #[error("the code has a NUL character in it")]
    Nul,
    /// This text is not the name of a host.
    #[error("`{0}` is not the name of a host")]
    Host(String),
    /// The source of the skill demands the sandbox.
    #[error("a community skill always needs the sandbox")]
    SandboxRequired,
    /// The community's code cannot become a skill of another source.
    #[error("the same code is there as `{name}@{version}`, from the community, and stays so")]
    OfTheCommunity { name: String, version: String },
    /// The version exists with other code or other requirements.
    #[error("skill `{name}` has a version {version} already, with other code or requirements")]
    VersionTaken { name: String, version: String },
    /// The code is registered in this other language.
    #[error("the same code is registered as {0} already")]
    OtherLanguage(String),
    /// No skill has this name.
    #[error("there is no skill `{0}`")]
    NoSkill(String),
    /// The skill has no such version.
    #[error("skill `{name}` has no version {version}")]
    NoVersion { name: String, version: String },
    /// More than one version fits the beginning of a hash.
    #[error("skill `{name}` has more than one version whose hash begins with {hash}")]
    Ambiguous { name: String, hash: String },
    /// The version is disabled.
    #[error("skill `{name}` {version} is disabled")]
    Disabled { name: String, version: String },
    /// The verdict of the scan is worse than the policy allows.
    #[error("skill `{name}` {version} is {verdict}, and the policy lets nothing run that is worse than {allowed}")]
    Verdict { name: String, version: String, verdict: Verdict, allowed: Verdict },
    /// The version was never scanned.
    #[error("skill `{name}` {version} was never scanned")]
    NotScanned { name: String, version: String },
    /// The scan's own sandbox did not start.
    #[error("cannot scan the code in a sandbox: {0}")]
    Scanner(#[source] Box<crate::SandboxError>),
    /// The inputs do not fit the schema.
    #[error("the inputs of skill `{name}` do not fit: {}", .reasons.join("; "))]
    Inputs { name: String, reasons: Vec<String> },
    /// The time ended before the inputs were checked.
    #[error("the inputs of skill `{name}` were not checked before it ended")]
    NotChecked {
        name: String,
        /// What it ended with.
        result: Box<CodeResult>,
    },
    /// The schema cannot be used: its text and the reason.
    #[error("`{0}` is not a JSON Schema: {1}")]
    Schema(String, String),
    /// The registry contradicts itself.
    #[error(transparent)]
    Corrupt(#[from] Unreadable),
    /// The language is unknown to this release.
    #[error("skill `{name}` is in {language}, which this program does not know")]
    Language { name: String, language: String },
    /// The registry could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<DatabaseError> for SkillError {
    fn from(error: DatabaseError) -> SkillError {
        SkillError::Store(error.into())
    }
}

impl Skill {
    /// What there is to run with these inputs under a policy that lets `allowed` run. The time that this takes counts as
    /// part of the run, whose limit is `limit`. Cancelled when `cancel` becomes readable.
    pub fn code(
        &self,
        inputs: Value,
        allowed: Verdict,
        limit: Option<Duration>,
        cancel: Option<BorrowedFd<'_>>,
    ) -> Result<Code, SkillError> {
        let started = Instant::now();
        let (name, version) = (|| self.name.clone(), || self.version.clone());
        if self.disabled {
            return Err(SkillError::Disabled { name: name(), version: version() });
        }
        let language = self.known_language()?;
        let Some(Scan { verdict, .. }) = self.scan else {
            return Err(SkillError::NotScanned { name: name(), version: version() });
        };
        if verdict > allowed {
            return Err(SkillError::Verdict { name: name(), version: version(), verdict, allowed });
        }
        let mut code = Code::new(language, self.code.clone());
        let inputs = Arc::new(inputs);
        if let Some(schema) = &self.inputs {
            let cancelled = || {
                let poll = |fd| {
                    rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default()))
                };
                cancel.is_some_and(|fd| poll(fd).is_ok_and(|ready| ready > 0))
            };
            let until = limit.and_then(|limit| started.checked_add(limit));
            schema.check(&inputs, until, cancelled).map_err(|unfit| match unfit {
                Unfit::Reasons(reasons) => SkillError::Inputs { name: name(), reasons },
                Unfit::Ended(status) => {
                    let result = CodeResult::not_begun(&code, status, started.elapsed());
                    SkillError::NotChecked { name: name(), result: Box::new(result) }
                }
            })?;
        }
        code.name = Some(format!("{}.{}", self.name, language.extension));
        code.inputs = Arc::unwrap_or_clone(inputs);
        code.requirements.clone_from(&self.requirements);
        code.spent = started.elapsed();
        Ok(code)
    }

    /// For the record of a run.
    pub fn run(&self) -> SkillRun {
        SkillRun { name: self.name.clone(), version: Some(self.version.clone()), hash: self.hash.clone() }
    }

    fn known_language(&self) -> Result<&'static Language, SkillError> {
        let (name, language) = (&self.name, &self.language);
        let unknown = || SkillError::Language { name: name.clone(), language: language.clone() };
        Language::named(language).ok_or_else(unknown)
    }
}
