//! The build: an installer in a box of its own, which sees nothing of the user's and has the network.
//!
//! Packages are unpacked and nothing of theirs runs: wheels only, and no install scripts of npm. What the installer writes
//! lands in one directory beside the place of the set, whose size is watched from outside.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_policy::facts::Facts;
use ringfence_policy::limits::{GIB, Limits, MIB};
use ringfence_policy::plan::{self, Plan, PlanError};
use ringfence_policy::policy::{Caches, EnvPolicy, Network, Policy, Root, User};
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::rules::{Access, FileRule, LayerKind, Missing, Origin, Pattern};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::store::{self, Installed, Kept, Lock, Store, failed};
use super::{Requirements, RequirementsError};
use crate::capture::Capture;
use crate::code::Language;
use crate::code::channel::Channel;
use crate::code::language::Wire;
use crate::engines::{self, Engine, EngineError, StdioSpec};
use crate::report::Report;
use crate::supervise::{Ended, Outcome, supervise};

/// Where the box has its working directory.
const INSIDE: &str = "/workspace";
/// What the installer says at its end goes into the error.
const LAST_WORDS: usize = 2000;
/// How often the size is looked at.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// What installs packages, and for which interpreter.
#[derive(Debug)]
pub(super) struct Installer {
    language: &'static Language,
    kind: Kind,
    command: Vec<OsString>,
    /// The interpreter on this host.
    program: PathBuf,
    /// Another one has another size or another time.
    version: (u64, i64, i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pip,
    Npm,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Pip => "pip",
            Kind::Npm => "npm",
        }
    }

    /// What it fills, below the working directory.
    fn makes(self) -> &'static str {
        match self {
            Kind::Pip => "site-packages",
            Kind::Npm => "node_modules",
        }
    }
}

const IMAGE: &str = "an image, which has programs of its own";
const PIP: &[&str] = &[
    "-I",
    "-m",
    "pip",
    "--isolated",
    "--no-input",
    "--disable-pip-version-check",
    "--no-cache-dir",
    "install",
    "--quiet",
    "--progress-bar",
    "off",
    "--root-user-action",
    "ignore",
    "--only-binary",
    ":all:",
    "--target",
    "site-packages",
    "-r",
    "requirements.txt",
];
const NPM: &[&str] = &[
    "ci",
    "--ignore-scripts",
    "--no-bin-links",
    "--omit=dev",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--loglevel=error",
    "--globalconfig=/dev/null",
    "--cache=tmp/npm",
];

impl Installer {
    /// The installer of the interpreter that code under this policy would have.
    pub fn find(
        language: &'static Language,
        requirements: &Requirements,
        policy: &Policy,
        facts: &Facts,
    ) -> Result<Installer, RequirementsError> {
        if policy.root != Root::Programs {
            let other = if policy.root == Root::Host { "the host's root, which has no place for them" } else { IMAGE };
            return Err(RequirementsError::OtherPrograms(other));
        }
        let kind = match language.wire {
            Wire::Marshal => Kind::Pip,
            Wire::Json => Kind::Npm,
            Wire::Lines => return Err(RequirementsError::Language(language.name)),
        };
        let bare = Policy { rules: Vec::new(), ..policy.clone() };
        let there = |name: &str| match plan::plan(&bare, facts, &[name.into()]) {
            Ok(plan) => Ok(Some(plan.command.program)),
            Err(PlanError::ProgramNotFound(_)) => Ok(None),
            Err(error) => Err(error),
        };
        let mut program = None;
        for interpreter in language.interpreters {
            program = program.or(there(interpreter)?);
        }
        let program = program.ok_or(RequirementsError::NoInstaller(kind.name()))?;
        let (mut command, fixed, index) = match kind {
            Kind::Pip => (vec![program.clone().into()], PIP, "--index-url"),
            Kind::Npm => {
                let npm = there("npm")?.ok_or(RequirementsError::NoInstaller("npm"))?;
                (vec![npm.into()], NPM, "--registry")
            }
        };
        command.extend(fixed.iter().map(OsString::from));
        if let Some(address) = &requirements.index {
            command.extend([index.into(), address.into()]);
        }
        let data = fs::metadata(&program).map_err(failed("find", &program))?;
        let version = (data.len(), data.mtime(), data.mtime_nsec());
        Ok(Installer { language, kind, command, program, version })
    }

    /// Everything but the requirements that decides what is installed.
    pub fn decides(&self) -> Vec<String> {
        let (size, seconds, nanoseconds) = self.version;
        let words = self.command.iter().map(|word| word.to_string_lossy().into_owned());
        let program = format!("{} {size} {seconds}.{nanoseconds}", self.program.display());
        words.chain([program, std::env::consts::ARCH.to_owned()]).collect()
    }
}

/// Packages that are to be installed. Nothing has started, and nobody else installs the same meanwhile.
#[derive(Debug)]
pub struct Build {
    installer: Installer,
    requirements: Requirements,
    store: Store,
    id: String,
    lock: Lock,
    policy: Policy,
    pub plan: Plan,
    pub engine: Engine,
    pub report: Report,
}

/// Packages that were installed, and what a record is made of.
#[derive(Debug)]
pub struct Built {
    pub installed: Result<Installed, RequirementsError>,
    pub outcome: Outcome,
    /// stdout and stderr.
    pub captures: [Capture; 2],
}

impl Build {
    #[allow(clippy::too_many_arguments, reason = "the store hands over what it has found")]
    pub(super) fn new(
        installer: Installer,
        requirements: &Requirements,
        store: Store,
        id: String,
        lock: Lock,
        policy: &Policy,
        facts: &Facts,
        choice: EngineChoice,
    ) -> Result<Build, RequirementsError> {
        let beside = store.beside(&id);
        // Of one that was killed.
        store::remove_tree(&beside)?;
        let work = beside.join("work");
        for dir in [&beside, &work, &work.join("tmp"), &work.join(installer.kind.makes())] {
            fs::DirBuilder::new().mode(0o700).create(dir).map_err(failed("make", dir))?;
        }
        let write = |name: &str, text: String| {
            let path = work.join(name);
            fs::write(&path, text).map_err(failed("write", &path))
        };
        match installer.kind {
            Kind::Pip => write("requirements.txt", requirements.lines()?.join("\n"))?,
            Kind::Npm => {
                let (lock, manifest) = requirements.lock()?;
                write("package-lock.json", lock.to_string())?;
                write("package.json", manifest.to_string())?;
            }
        }
        let policy = policy_for(policy, &work);
        let plan = plan::plan(&policy, facts, &installer.command)?;
        let (engine, report) = engines::select(choice, &plan, facts)?;
        if engine == Engine::Docker {
            return Err(RequirementsError::OtherPrograms(IMAGE));
        }
        let requirements = requirements.clone();
        Ok(Build { installer, requirements, store, id, lock, policy, plan, engine, report })
    }

    /// The command, for a record.
    pub fn command(&self) -> &[OsString] {
        &self.installer.command
    }

    /// Installs the packages. Nothing is left of those that could not be.
    pub fn run(self, facts: &Facts, cancel: Option<BorrowedFd<'_>>) -> Result<Built, RequirementsError> {
        let (beside, kind) = (self.store.beside(&self.id), self.installer.kind);
        let ran = self.carry_out(&beside.join("work"), facts, cancel);
        let (outcome, captures, end) = ran.inspect_err(|_| {
            // The next one clears it too.
            let _ = store::remove_tree(&beside);
        })?;
        let installed = end.map_or_else(|| done(kind, &outcome, &captures), Err).and_then(|()| self.keep(&beside));
        if installed.is_err() {
            let _ = store::remove_tree(&beside);
        }
        Ok(Built { installed, outcome, captures })
    }

    fn keep(self, beside: &Path) -> Result<Installed, RequirementsError> {
        let made = beside.join("work").join(self.installer.kind.makes());
        let (bytes, files) = self.store.check(&made)?;
        let kept = Kept {
            id: self.id,
            language: self.installer.language.name.to_owned(),
            installed: store::now(),
            bytes,
            files,
            requirements: names(self.installer.kind, &self.requirements),
            index: self.requirements.index,
        };
        self.store.keep(&kept, beside, &made, self.lock)
    }

    /// Runs the installer while a thread watches what it writes.
    fn carry_out(
        &self,
        work: &Path,
        facts: &Facts,
        cancel: Option<BorrowedFd<'_>>,
    ) -> Result<(Outcome, [Capture; 2], Option<RequirementsError>), RequirementsError> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(EngineError::Stdio);
        let ((stop, stops), (over, ends)) = (pipe()?, pipe()?);
        let (mut channel, stdio) =
            Channel::open(Vec::new(), self.plan.limits.output, Some(stop.as_fd())).map_err(EngineError::Stdio)?;
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(&self.store, work, cancel, over, stops));
            let ran = engines::start(self.engine, &self.plan, facts, StdioSpec::Files(stdio))
                .and_then(|running| supervise(running, &self.policy, facts, &mut channel));
            drop(ends);
            // It does nothing that could panic.
            let end = watcher.join().unwrap_or_default();
            let parts = channel.into_parts();
            Ok((ran?, [parts.stdout, parts.stderr], end))
        })
    }
}

/// Watches until `over` closes. Closing `stops` ends the box: it is cancelled, or has written too much.
fn watch(
    store: &Store,
    work: &Path,
    cancel: Option<BorrowedFd<'_>>,
    over: OwnedFd,
    stops: OwnedFd,
) -> Option<RequirementsError> {
    loop {
        let mut fds = vec![PollFd::new(&over, PollFlags::IN)];
        fds.extend(cancel.map(|cancel| PollFd::from_borrowed_fd(cancel, PollFlags::IN)));
        match poll(&mut fds, Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Some(EngineError::Stdio(errno).into()),
        }
        if !fds[0].revents().is_empty() {
            return None;
        }
        let end = match store.check(work) {
            _ if fds.get(1).is_some_and(|cancel| !cancel.revents().is_empty()) => RequirementsError::Cancelled,
            Err(error) => error,
            Ok(_) => continue,
        };
        drop(stops);
        return Some(end);
    }
}

/// Whether the installer did what it was asked for; what it said where it did not.
fn done(kind: Kind, outcome: &Outcome, captures: &[Capture; 2]) -> Result<(), RequirementsError> {
    if outcome.reason.is_none() && outcome.ended == Ended::Exited(0) {
        return Ok(());
    }
    let mut said = match (outcome.reason, outcome.ended) {
        (Some(reason), _) => format!("ended by a limit ({reason:?})").to_lowercase(),
        (None, Ended::Exited(code)) => format!("it exited with {code}"),
        (None, Ended::Signaled(signal)) => format!("it died by signal {signal}"),
    };
    for capture in captures.iter().rev() {
        let bytes = capture.clone().into_bytes(|_| String::new());
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(LAST_WORDS)..]).trim().to_owned();
        if !text.is_empty() {
            said = format!("{said}\n{text}");
        }
    }
    Err(RequirementsError::Failed { installer: kind.name(), said })
}

/// What a list shows of requirements: a few names.
fn names(kind: Kind, requirements: &Requirements) -> String {
    let names: Vec<String> = match kind {
        Kind::Pip => {
            let lines = requirements.lines().unwrap_or_default();
            lines.iter().map(|line| line.split(" --").next().unwrap_or_default().to_owned()).collect()
        }
        Kind::Npm => {
            let lock: serde_json::Value = serde_json::from_str(&requirements.text).unwrap_or_default();
            let wanted = lock["packages"][""]["dependencies"].as_object();
            wanted
                .into_iter()
                .flatten()
                .map(|(name, range)| format!("{name}@{}", range.as_str().unwrap_or("?")))
                .collect()
        }
    };
    names.join(", ").chars().take(200).collect()
}

/// The box of the installer: the same wherever code is to run, but for what its policy does without.
fn policy_for(policy: &Policy, work: &Path) -> Policy {
    let origin = Origin { layer: LayerKind::Profile, place: "requirements".into() };
    let pattern = Pattern::Exact(work.to_path_buf());
    let tmp = || OsString::from(format!("{INSIDE}/tmp"));
    let set = [("HOME".to_owned(), tmp()), ("TMPDIR".to_owned(), tmp())].into();
    Policy {
        profile: "requirements".to_owned(),
        workdir: work.to_path_buf(),
        workdir_at: Some(PathBuf::from(INSIDE)),
        root: Root::Programs,
        rules: vec![FileRule { access: Access::Rw, pattern, missing: Missing::Fail, origin }],
        shown: Vec::new(),
        network: Network::Open,
        caches: Caches::default(),
        keep_home: false,
        tmp_exec: false,
        docker: false,
        nesting: false,
        env: EnvPolicy { set, ..EnvPolicy::default() },
        user: User::Ids { uid: 1000, gid: 1000 },
        limits: Limits {
            memory: Some(GIB),
            cpus: Some(2.0),
            pids: Some(256),
            files: Some(4096),
            timeout: Some(Duration::from_secs(600)),
            timeout_ceiling: None,
            cpu_time: None,
            tmp_size: 64 * MIB,
            tmp_inodes: 4096,
            output: MIB,
        },
        commands: Default::default(),
        allow_syscalls: Vec::new(),
        trace_denials: false,
        warm: 0,
        ..policy.clone()
    }
}
