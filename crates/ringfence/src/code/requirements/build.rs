//! The build: an installer in a box of its own, which sees nothing of the user's and has the network.
//!
//! Packages are unpacked and nothing of theirs runs: wheels only, no addresses, no install scripts of npm, and the installer
//! starts no other program. What it writes lands in one directory beside the place of the set, whose size is watched from outside. For an image the installer is the
//! image's own, in a container (`container`).

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_linux::sys;
use ringfence_policy::facts::Facts;
use ringfence_policy::limits::{GIB, Limits, MIB};
use ringfence_policy::plan::{self, Plan, PlanError};
use ringfence_policy::policy::{Caches, EnvPolicy, Network, Policy, Root, User, Workspace};
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::rules::{Access, FileRule, LayerKind, Missing, Origin, Pattern};
use ringfence_policy::syscalls::SyscallGroup;
use rustix::event::{PollFd, PollFlags};
use rustix::pipe::PipeFlags;

use super::store::{self, Installed, Kept, Store, failed};
use super::{Requirements, RequirementsError, authorities, container};
use crate::capture::Capture;
use crate::code::Language;
use crate::code::channel::Channel;
use crate::code::language::Wire;
use crate::engines::{self, EngineError, EngineRef, StdioSpec};
use crate::report::Report;
use crate::sets::Lock;
use crate::supervise::{Ended, Outcome, supervise};

/// Where the box has its working directory.
const INSIDE: &str = "/workspace";
/// Whom the installer runs as, where that need not be the caller.
const NOBODYS: (u32, u32) = (1000, 1000);
/// What the installer says at its end goes into the error.
const LAST_WORDS: usize = 2000;
/// How often the size is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// What installs packages, and for which interpreter.
#[derive(Debug)]
pub(super) struct Installer {
    pub(super) language: &'static Language,
    pub(super) kind: Kind,
    pub(super) command: Vec<OsString>,
    pub(super) target: Target,
}

/// Whose interpreter packages are for.
#[derive(Debug)]
pub(super) enum Target {
    /// One on this host. Another one has another size or another time.
    Host { program: PathBuf, version: (u64, i64, i64) },
    /// That of an image, whose id says all of it.
    Image { name: String, id: String },
}

impl Target {
    /// The id of the image.
    pub fn image(&self) -> Option<&str> {
        match self {
            Target::Host { .. } => None,
            Target::Image { id, .. } => Some(id),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Pip,
    Npm,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Pip => "pip",
            Kind::Npm => "npm",
        }
    }

    /// What it is held to, and the name of that file in its working directory.
    fn rules(self) -> (&'static str, &'static str) {
        match self {
            Kind::Pip => ("pip.py", include_str!("pip.py")),
            Kind::Npm => ("npm.cjs", include_str!("npm.cjs")),
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

const PIP: &[&str] = &[
    "-I",
    "pip.py",
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
        choice: &EngineChoice,
    ) -> Result<Installer, RequirementsError> {
        let kind = match language.wire {
            Wire::Marshal => Kind::Pip,
            Wire::Json => Kind::Npm,
            Wire::Lines => return Err(RequirementsError::Language(language.name)),
        };
        match &policy.root {
            Root::Programs => Installer::of_host(language, kind, requirements, policy, facts),
            Root::Image(name) => Installer::of_image(language, kind, requirements, name, facts, choice),
            Root::Host => Err(RequirementsError::NoPlace),
        }
    }

    fn of_host(
        language: &'static Language,
        kind: Kind,
        requirements: &Requirements,
        policy: &Policy,
        facts: &Facts,
    ) -> Result<Installer, RequirementsError> {
        let bare = Policy { rules: Vec::new(), ..policy.clone() };
        let there = |name: &str| match plan::plan(&bare, facts, &[name.into()]) {
            Ok(plan) => Ok(plan.runs.command().map(|command| command.program.clone())),
            Err(PlanError::ProgramNotFound(_)) => Ok(None),
            Err(error) => Err(error),
        };
        let mut program = None;
        for interpreter in language.interpreters {
            program = program.or(there(interpreter)?);
        }
        let program = program.ok_or(RequirementsError::NoInstaller(kind.name()))?;
        let installer = match kind {
            Kind::Pip => program.clone(),
            Kind::Npm => there("npm")?.ok_or(RequirementsError::NoInstaller("npm"))?,
        };
        let mut command = vec![installer.into()];
        command.extend(arguments(kind, requirements));
        let data = fs::metadata(&program).map_err(failed("find", &program))?;
        let version = (data.len(), data.mtime(), data.mtime_nsec());
        Ok(Installer { language, kind, command, target: Target::Host { program, version } })
    }

    /// What an image has is looked up in it: by the same names, in the same order as for the code itself.
    fn of_image(
        language: &'static Language,
        kind: Kind,
        requirements: &Requirements,
        name: &str,
        facts: &Facts,
        choice: &EngineChoice,
    ) -> Result<Installer, RequirementsError> {
        let id = engines::registry::with_images(choice)?.find_image(facts, name, &|_| {})?;
        let interpreters = language.interpreters.join(" ");
        let words = ["sh", "-c", container::INSTALL, "sh", &interpreters, kind.name()];
        let mut command: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        command.extend(arguments(kind, requirements));
        Ok(Installer { language, kind, command, target: Target::Image { name: name.to_owned(), id } })
    }

    /// Everything but the requirements that decides what is installed.
    pub fn decides(&self) -> Vec<String> {
        let words = self.command.iter().map(|word| word.to_string_lossy().into_owned());
        let target = match &self.target {
            Target::Host { program, version: (size, seconds, nanoseconds) } => {
                format!("{} {size} {seconds}.{nanoseconds}", program.display())
            }
            Target::Image { id, .. } => id.clone(),
        };
        words.chain([target, std::env::consts::ARCH.to_owned()]).collect()
    }
}

/// What the installer is told.
fn arguments(kind: Kind, requirements: &Requirements) -> impl Iterator<Item = OsString> {
    let (fixed, index) = match kind {
        Kind::Pip => (PIP, "--index-url"),
        Kind::Npm => (NPM, "--registry"),
    };
    let address = requirements.index.iter().flat_map(move |address| [index.into(), address.into()]);
    fixed.iter().map(OsString::from).chain(address.collect::<Vec<_>>())
}

/// Packages that are to be installed. Nothing has started, and nobody else installs the same meanwhile.
#[derive(Debug)]
pub struct Build {
    pub(super) installer: Installer,
    requirements: Requirements,
    pub(super) store: Store,
    id: String,
    lock: Lock,
    pub(super) policy: Policy,
    /// What the sandbox of the installer is.
    pub plan: Plan,
    /// The engine that starts it.
    pub engine: EngineRef,
    /// What of the plan the engine can keep.
    pub report: Report,
}

/// Packages that were installed, and what a record is made of.
#[derive(Debug)]
pub struct Built {
    /// The set of packages, or why there is none.
    pub installed: Result<Installed, RequirementsError>,
    /// How the installer ended.
    pub outcome: Outcome,
    /// stdout and stderr.
    pub captures: [Capture; 2],
}

/// How the installer ended, what it wrote, and why it was ended.
pub(super) type Ran = (Outcome, [Capture; 2], Option<RequirementsError>);

impl Build {
    #[allow(clippy::too_many_arguments, reason = "the store hands over what it has found")]
    pub(super) fn new(
        installer: Installer,
        requirements: &Requirements,
        store: &Store,
        id: &str,
        lock: Lock,
        policy: &Policy,
        facts: &Facts,
        choice: &EngineChoice,
    ) -> Result<Build, RequirementsError> {
        let beside = store.beside(id);
        // Of one that was killed.
        store::remove(&beside)?;
        let found = authorities::find(facts);
        let furnished = found.and_then(|believed| {
            let work = furnish(&beside, &installer, requirements, believed.as_deref(), facts)?;
            Ok((work, believed.is_some()))
        });
        let made = furnished.and_then(|(work, believes)| {
            let policy = policy_for(policy, &work, &installer, believes, facts);
            let plan = plan::plan(&policy, facts, &installer.command)?;
            let (engine, report) = engines::select(choice, &plan, facts)?;
            if !engine.writes_as_caller(facts)? {
                return Err(RequirementsError::MappedIds);
            }
            Ok((policy, plan, engine, report))
        });
        let (policy, plan, engine, report) = made.inspect_err(|_| {
            // The next one clears it too.
            let _ = store::remove(&beside);
        })?;
        let (requirements, store, id) = (requirements.clone(), store.clone(), id.to_owned());
        Ok(Build { installer, requirements, store, id, lock, policy, plan, engine, report })
    }

    /// The command, for a record.
    pub fn command(&self) -> &[OsString] {
        &self.installer.command
    }

    /// Installs the packages, on an engine of this host's processes. Nothing is left of those that could not be.
    pub fn run(self, facts: &Facts, cancel: Option<BorrowedFd<'_>>) -> Result<Built, RequirementsError> {
        let ran = self.carry_out(&self.work(), facts, cancel);
        self.settle(ran)
    }

    /// Where the installer works.
    pub(super) fn work(&self) -> PathBuf {
        self.store.beside(&self.id).join("work")
    }

    /// Keeps what was installed, or removes all of it.
    pub(super) fn settle(self, ran: Result<Ran, RequirementsError>) -> Result<Built, RequirementsError> {
        let (store, id) = (self.store.clone(), self.id.clone());
        let beside = store.beside(&id);
        let (outcome, captures, end) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                self.undo(&beside);
                return Err(error);
            }
        };
        let installed = match end.map_or_else(|| done(&self.installer, &outcome, &captures), Err) {
            Ok(()) => self.keep(&beside),
            Err(error) => {
                self.undo(&beside);
                Err(error)
            }
        };
        if installed.is_err() {
            store.tidy(&id);
        }
        Ok(Built { installed, outcome, captures })
    }

    /// Removes what was built, as long as the lock is here: whoever has it next builds in the same place.
    fn undo(self, beside: &Path) {
        // The next one clears it too.
        let _ = store::remove(beside);
        let Build { store, id, lock, .. } = self;
        drop(lock);
        store.tidy(&id);
    }

    fn keep(self, beside: &Path) -> Result<Installed, RequirementsError> {
        let made = beside.join("work").join(self.installer.kind.makes());
        let looked = self.store.check(&made).and_then(|found| {
            let opens = self.installer.target.image().is_some();
            if opens { container::open_to_all(&made).map(|()| found) } else { Ok(found) }
        });
        let (bytes, files) = match looked {
            Ok(found) => found,
            Err(error) => {
                self.undo(beside);
                return Err(error);
            }
        };
        let kept = Kept {
            id: self.id,
            image: match self.installer.target {
                Target::Host { .. } => None,
                Target::Image { id, .. } => Some(id),
            },
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
    fn carry_out(&self, work: &Path, facts: &Facts, cancel: Option<BorrowedFd<'_>>) -> Result<Ran, RequirementsError> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(EngineError::Stdio);
        let ((stop, stops), (over, ends)) = (pipe()?, pipe()?);
        let (mut channel, stdio) =
            Channel::open(Vec::new(), self.plan.limits.output, Some(stop.as_fd())).map_err(EngineError::Stdio)?;
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(&self.store, work, cancel, over, stops));
            let ran = engines::start(self.engine, &self.plan, &self.report, facts, StdioSpec::Files(stdio))
                .and_then(|running| supervise(running, &self.policy, facts, &mut channel));
            drop(ends);
            // It does nothing that could panic.
            let end = watcher.join().unwrap_or_default();
            let parts = channel.into_parts();
            Ok((ran?, [parts.stdout, parts.stderr], end))
        })
    }
}

/// Makes the directory that the installer works in, with what it reads.
fn furnish(
    beside: &Path,
    installer: &Installer,
    requirements: &Requirements,
    believed: Option<&[u8]>,
    facts: &Facts,
) -> Result<PathBuf, RequirementsError> {
    let work = beside.join("work");
    // Where no ids are mapped, what root's installer is to use must be its user's.
    let give = |path: &Path| match installer.target {
        Target::Image { .. } if facts.uid == 0 => {
            chown(path, Some(NOBODYS.0), Some(NOBODYS.1)).map_err(failed("give away", path))
        }
        _ => Ok(()),
    };
    fs::DirBuilder::new().mode(0o700).create(beside).map_err(failed("make", beside))?;
    for dir in [&work, &work.join("tmp"), &work.join(installer.kind.makes())] {
        fs::DirBuilder::new().mode(0o700).create(dir).map_err(failed("make", dir))?;
        give(dir)?;
    }
    let write = |name: &str, text: &[u8]| {
        let path = work.join(name);
        fs::write(&path, text).map_err(failed("write", &path))?;
        give(&path)
    };
    believed.map(|bytes| write(authorities::FILE, bytes)).transpose()?;
    let (name, rules) = installer.kind.rules();
    write(name, rules.as_bytes())?;
    match installer.kind {
        Kind::Pip => write("requirements.txt", requirements.lines()?.join("\n").as_bytes())?,
        Kind::Npm => {
            let (lock, manifest) = requirements.lock()?;
            write("package-lock.json", lock.to_string().as_bytes())?;
            write("package.json", manifest.to_string().as_bytes())?;
        }
    }
    Ok(work)
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
        if let Err(errno) = sys::poll_for(&mut fds, Some(LOOK)) {
            return Some(EngineError::Stdio(errno).into());
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
fn done(installer: &Installer, outcome: &Outcome, captures: &[Capture; 2]) -> Result<(), RequirementsError> {
    if outcome.reason.is_none() && outcome.ended == Ended::Exited(0) {
        return Ok(());
    }
    if let Some(missing) = container::missing(installer, outcome) {
        return Err(missing);
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
    Err(RequirementsError::Failed { installer: installer.kind.name(), said })
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
fn policy_for(policy: &Policy, work: &Path, installer: &Installer, believes: bool, facts: &Facts) -> Policy {
    let (root, network, (uid, gid)) = match &installer.target {
        Target::Host { .. } => (Root::Programs, Network::Open, NOBODYS),
        // What it writes must be the caller's to remove: nothing maps ids there.
        Target::Image { id, .. } => {
            let ids = if facts.uid == 0 { NOBODYS } else { (facts.uid, facts.gid) };
            (Root::Image(id.clone()), Network::Bridge, ids)
        }
    };
    let origin = Origin { layer: LayerKind::Profile, place: "requirements".into() };
    let pattern = Pattern::exact(work.to_path_buf());
    let tmp = || OsString::from(format!("{INSIDE}/tmp"));
    let own = ["HOME", "TMPDIR"].map(|name| (name.to_owned(), tmp()));
    let believed = authorities::VARIABLES.iter().filter(|_| believes);
    let believed = believed.map(|name| (name.to_string(), format!("{INSIDE}/{}", authorities::FILE).into()));
    let rules = (installer.kind == Kind::Npm)
        .then(|| ("NODE_OPTIONS".to_owned(), format!("--require={INSIDE}/{}", installer.kind.rules().0).into()));
    let set = own.into_iter().chain(believed).chain(rules).collect();
    Policy {
        profile: "requirements".to_owned(),
        workspace: Workspace::HostDirectory(work.to_path_buf()),
        workdir_at: Some(PathBuf::from(INSIDE)),
        narrowed: Vec::new(),
        root,
        rules: vec![FileRule { access: Access::Rw, pattern, missing: Missing::Fail, origin }],
        shown: Vec::new(),
        network,
        devices: Vec::new(),
        caches: Caches::default(),
        keep_home: false,
        tmp_exec: false,
        docker: false,
        nesting: false,
        env: EnvPolicy { set, ..EnvPolicy::default() },
        user: User::Ids { uid, gid },
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
        refuse_syscalls: SyscallGroup::ALL.into(),
        trace_denials: false,
        ..policy.clone()
    }
}
