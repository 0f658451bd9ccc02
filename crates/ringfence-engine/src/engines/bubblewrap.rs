//! The bubblewrap engine: a plan becomes arguments of `bwrap`, which builds the box.
//!
//! `bwrap` is started with an empty environment and takes its arguments from a sealed file, so that no value of the
//! environment is in a command line or in `/proc/1/environ`. What it executes in the finished box is the
//! [`starter`], process 1, which starts the command. What it cannot express is refused: see [`compile`] and [`promise`].

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ringfence_linux::builder::{Builder, FIRST_FILE, FromRoot};
use ringfence_linux::launch::{Identity, Spec};
use ringfence_linux::limits::Home;
use ringfence_linux::setup::{Step, Tmpfs};
use ringfence_linux::sys::view::{Place, PlaceIs, can_be_verified};
use ringfence_linux::sys::{PointerList, Stack};
use ringfence_linux::{seccomp, starter};
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{Expected, MARKER_DIR, Mount, Plan, Runs, Seen, Stub};
use ringfence_policy::policy::Network;
use ringfence_policy::rules::Kind;
use ringfence_policy::{Cure, Guarantee};
use rustix::io::Errno;

use super::identity::{self, HostIds, by_root};
use super::limits::{Limit, limit};
use super::view::identify;
use super::{
    Abilities, About, Engine, EngineError, EngineRef, Finding, GuestSandbox, Running, StdioSpec, Tried, c_path,
    c_string, link_cures, mounts_on, namespaces_closed, no_gateway, pointers, program, sockets, start, symlink_in_bind,
};
use crate::report::{Report, VERIFIED, Verdict, answer, enforced, missing, recorded, weakened};

const NAME: &str = "bubblewrap";

/// The engine `bubblewrap`.
pub const ENGINE: EngineRef = &Bubblewrap;

#[derive(Debug)]
struct Bubblewrap;

impl Engine for Bubblewrap {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "The bwrap program"
    }

    fn abilities(&self) -> Abilities {
        Abilities { commands: true, descriptors: true, freeze: true, local: true, ..Abilities::default() }
    }

    fn promise(&self, plan: &Plan, facts: &Facts) -> Result<Report, EngineError> {
        available()?;
        compile(plan, None, &Staged::default())?;
        if plan.trace_denials {
            let reason = "bwrap keeps the listener that would report denied opens".to_owned();
            let cures = [Cure::set("trace_denials", "false"), Cure::another("engine")];
            return Err(unmet(Guarantee::KernelFiltered, reason, cures));
        }
        let (by_root, home) = (by_root(facts), OnceCell::new());
        answer(NAME, plan, |guarantee| match guarantee {
            Guarantee::FsRootReadOnly => enforced("bwrap: read-only binds in an own mount namespace"),
            Guarantee::FsWritesConfined => verified("bwrap: own mount namespace, no device or set-user-id files"),
            Guarantee::FsSecretsHidden => verified("bwrap: unreadable stand-ins over every name, aliases included"),
            Guarantee::FsProtectedPaths => {
                verified("bwrap: read-only binds, pinned ancestors, stand-ins for missing names")
            }
            Guarantee::FsTempPrivate => verified("bwrap: own tmpfs at /tmp, /var/tmp, /dev/shm and /run"),
            Guarantee::FsDiskBounded if plan.nesting => {
                weakened("bwrap: size limit of each tmpfs; a sandbox made inside mounts a tmpfs of any size")
            }
            Guarantee::FsDiskBounded => weakened("bwrap: size limit of each tmpfs; it cannot limit inodes"),
            Guarantee::NetIsolated => enforced("bwrap: own network namespace with loopback only"),
            Guarantee::NetByName => no_gateway(),
            Guarantee::NetHostSocketsClosed if plan.docker => weakened(
                "bwrap: private /run and /tmp; the Docker socket is open, and whoever has it is root on this host",
            ),
            Guarantee::NetHostSocketsClosed if plan.network == Network::Open => weakened(
                "bwrap: private /run and /tmp, stand-ins over bound sockets; abstract sockets are open with the network",
            ),
            Guarantee::NetHostSocketsClosed => {
                enforced("bwrap: private /run and /tmp, stand-ins over bound sockets, own network namespace")
            }
            Guarantee::ProcIsolated if plan.nesting => {
                weakened("bwrap: own PID, IPC, UTS and cgroup namespaces; user namespaces are open inside")
            }
            Guarantee::ProcIsolated => {
                enforced("bwrap: own PID, IPC, UTS, cgroup and user namespaces; own session and terminal")
            }
            Guarantee::ProcUnprivileged if by_root => {
                enforced("unprivileged host ids of its own, id-mapped mounts; bwrap: no capability, no new privileges")
            }
            Guarantee::ProcUnprivileged => {
                enforced("bwrap: user namespace of one id, no capability in any set, no new privileges")
            }
            Guarantee::ProcCleanStart => enforced("all descriptors closed, bwrap started with an empty environment"),
            Guarantee::KernelFiltered if plan.nesting => {
                weakened("system-call filter; namespaces and mounts are let through for nesting")
            }
            Guarantee::KernelFiltered if !plan.allow_syscalls.is_empty() => {
                weakened(format!("system-call filter, opened for {}", plan.allow_syscalls.join(", ")))
            }
            Guarantee::KernelFiltered => enforced("system-call filter (allow list, one ABI)"),
            Guarantee::KernelSecondWall => missing(
                "bwrap applies no Landlock rules",
                [Cure::another("engine"), Cure::optional(Guarantee::KernelSecondWall)],
            ),
            Guarantee::LifeNoSurvivors => enforced("bwrap: PID namespace whose process 1 the command cannot trace"),
            Guarantee::LifeDiesWithOwner => {
                enforced("process 1 ends when the socket to its owner closes, bwrap when process 1 does")
            }
            Guarantee::LimitMemory => limit(Limit::Memory, plan, &home),
            Guarantee::LimitCpu => limit(Limit::Cpu, plan, &home),
            Guarantee::LimitProcesses => limit(Limit::Processes, plan, &home),
            Guarantee::LimitFiles => limit(Limit::Files, plan, &home),
            Guarantee::LimitTime => limit(Limit::Time, plan, &home),
            Guarantee::LimitOutput => limit(Limit::Output, plan, &home),
            Guarantee::RecordComplete => recorded(),
        })
    }

    /// The one command that builds the same box, to be pasted into a shell. Values that come from the caller's environment are
    /// named, not shown.
    fn describe(&self, plan: &Plan, facts: &Facts) -> Result<String, EngineError> {
        let bwrap = find()?;
        let mut out = String::new();
        if by_root(facts) {
            // There is no argument of bwrap for it, and as a stranger the box could not see what root alone may.
            let lines = "# Pasted by root, the command has root's id on the host, without any capability. Ringfence gives it an\n\
                         # id of its own there, and maps the ids of bound files, which bwrap cannot do.\n";
            out.push_str(lines);
        }
        let mut files = Files::default();
        let mut lines: Vec<String> = Vec::new();
        let mut redirection = "";
        for arg in compile(&in_memory(plan), filter(plan)?, &Staged::default())? {
            match &arg {
                Arg::Word(word) => match lines.last_mut() {
                    Some(line) if !word.as_bytes().starts_with(b"--") || qualifies(line) => {
                        *line += &format!(" {}", quote(word));
                    }
                    _ => lines.push(quote(word)),
                },
                Arg::Variable { name, value } => {
                    let shown = match facts.env.get(name) {
                        Some(callers) if callers == value => from_caller(name),
                        _ => quote(value),
                    };
                    lines.push(format!("--setenv {} {shown}", quote(name)));
                }
                Arg::Data { target, mode, bytes } => {
                    lines.push(format!("--ro-bind {} {}", files.with(*mode, bytes), quote(target.as_os_str())));
                }
                Arg::Filter(bytes) => {
                    redirection = " 9<\"$f\"";
                    files.filter = Some(octal(bytes));
                    lines.push("--seccomp 9".to_owned());
                }
            }
        }
        let command: Vec<String> = program(plan).args.iter().map(|a| quote(a)).collect();
        lines.push(format!("-- {}", command.join(" ")));
        let (make, clear) = stubs(&plan.stubs);
        let _ = writeln!(out, "(d=$(mktemp -d) && f=$d/filter && chmod 711 \"$d\" || exit");
        let _ = writeln!(out, "clear() {{ {clear}rm -rf \"$d\"; }}; trap clear EXIT");
        out += &make;
        out += &files.script();
        let _ = writeln!(out, "env -i {} {}{redirection})", quote(bwrap.as_os_str()), lines.join(" \\\n  "));
        Ok(out)
    }

    /// A name of the host's that was to be hidden and went since the plan was made, such as a neighbour's socket, stops a
    /// builder that mounts by name: the box is then made without it.
    fn start(&self, plan: &Plan, facts: &Facts, mut stdio: StdioSpec) -> Result<Running, EngineError> {
        let once = |plan: &Plan, stdio| {
            start::start(plan, facts, stdio, |plan, facts| {
                spec(plan, facts).map(|(spec, messages)| (spec, Some(messages)))
            })
        };
        let mut plan = Cow::Borrowed(plan);
        for _ in 0..MOST_TRIES {
            if !plan.is_fleeting() {
                break;
            }
            let copy = stdio.try_clone().map_err(EngineError::Stdio)?;
            let running = once(&plan, stdio)?;
            if running.is_built() {
                return Ok(running);
            }
            match plan.without_gone() {
                None => return Ok(running),
                Some(rest) => {
                    running.finish()?;
                    (plan, stdio) = (Cow::Owned(rest), copy);
                }
            }
        }
        once(&plan, stdio)
    }

    fn start_guest(
        &self,
        plan: &mut Plan,
        facts: &Facts,
        _: About<'_>,
    ) -> Result<(Box<dyn GuestSandbox>, OwnedFd), EngineError> {
        super::live::start_on_host(plan, |stdio| self.start(plan, facts, stdio))
    }

    /// By the same rule as a start.
    fn look(&self, _: &Facts, _: Tried<'_>) -> Vec<Finding> {
        let found = find().and_then(|path| Ok((check_version(&path)?, path)));
        vec![match found {
            Ok((version, path)) => Finding::ok(NAME, format!("{version} ({})", path.display())),
            Err(error) => Finding::missing(NAME, error.to_string(), error.failure().cures),
        }]
    }
}

/// So often a box is made anew because names went.
const MOST_TRIES: usize = 10;

/// Where `bwrap` is looked for. Not in `PATH`, which may lead into a place that a box can write.
const PLACES: [&str; 4] = ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap", "/run/current-system/sw/bin/bwrap"];
/// The first version with `--disable-userns` and `--size`.
const OLDEST: (u32, u32) = (0, 8);
/// `bwrap` refuses more.
const MAX_WORDS: usize = 9000;
/// Each takes a descriptor, of which a process often has 1024.
const MAX_FILES: usize = 400;

/// One argument of `bwrap`, or a few that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Arg {
    Word(OsString),
    /// `--setenv NAME VALUE`.
    Variable {
        name: OsString,
        value: OsString,
    },
    /// `--perms MODE --ro-bind-data FD TARGET`: a read-only file with these contents.
    Data {
        target: PathBuf,
        mode: u32,
        bytes: Vec<u8>,
    },
    /// `--seccomp FD`.
    Filter(Vec<u8>),
}

/// Compiles a plan. Pure but for looking up whether a mount point is a symlink. `staged`: what is bound is taken from where
/// it was put with ids mapped.
pub(super) fn compile(plan: &Plan, filter: Option<Vec<u8>>, staged: &Staged) -> Result<Vec<Arg>, EngineError> {
    let mut args = Args::default();
    // The two after `--unshare-all` make it fail where it would silently go on without.
    args.words(["--unshare-all", "--unshare-user", "--unshare-cgroup"]);
    if plan.network == Network::Open {
        args.words(["--share-net"]);
    }
    if !plan.nesting {
        args.words(["--disable-userns"]);
    }
    args.words(["--die-with-parent", "--cap-drop", "ALL", "--hostname", "ringfence"]);
    args.words(["--uid", &plan.uid.to_string(), "--gid", &plan.gid.to_string(), "--clearenv"]);
    for (name, value) in plan.env.iter().filter(|_| !plan.runs.is_guest()) {
        args.0.push(Arg::Variable { name: name.clone(), value: value.clone() });
    }
    for (index, mount) in plan.mounts.iter().enumerate() {
        refuse_symlink(&plan.mounts[..index], mount)?;
        args.mount(mount, &plan.mounts[index + 1..], staged);
    }
    args.words(["--chdir"]);
    args.path(&plan.workdir);
    args.0.extend(filter.map(Arg::Filter));
    args.check_size()?;
    Ok(args.0)
}

#[derive(Default)]
struct Args(Vec<Arg>);

impl Args {
    fn words<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.into_iter().map(|w| Arg::Word(w.into())));
    }

    fn path(&mut self, path: &Path) {
        self.0.push(Arg::Word(path.as_os_str().to_owned()));
    }

    fn mount(&mut self, mount: &Mount, later: &[Mount], staged: &Staged) {
        match mount {
            Mount::Bind { source, target, writable, .. } => {
                self.words([if *writable { "--bind" } else { "--ro-bind" }]);
                self.path(&staged.place(source));
                self.path(target);
            }
            Mount::Tmpfs { target, mode, size, .. } => self.tmpfs(target, *mode, Some(*size)),
            Mount::Proc { target } => {
                self.words(["--proc"]);
                self.path(target);
            }
            Mount::Dev { target, shm_size, .. } => {
                self.words(["--dev"]);
                self.path(target);
                self.tmpfs(&target.join("shm"), 0o1777, Some(*shm_size));
                self.words(["--perms", "0755", "--dir"]);
                self.path(Path::new(MARKER_DIR));
                self.seal(target);
            }
            Mount::Dir { target, mode } => {
                self.words(["--perms", &format!("{mode:04o}"), "--dir"]);
                self.path(target);
            }
            // `bwrap` makes the names that it mounts on by itself.
            Mount::File { target } if later.iter().any(|m| mounts_on(m) == Some(target)) => {}
            Mount::File { target } => self.data(target, 0o444, b""),
            Mount::Symlink { target, to } => {
                self.words(["--symlink"]);
                self.path(to);
                self.path(target);
            }
            Mount::Hide { target, kind: Kind::File, .. } => self.data(target, 0, b""),
            // Sealed by the plan when what it exposes is mounted.
            Mount::Hide { target, kind: Kind::Dir, passable: true, .. } => self.tmpfs(target, 0o111, Some(1 << 20)),
            Mount::Hide { target, kind: Kind::Dir, passable: false, .. } => {
                self.tmpfs(target, 0, None);
                self.seal(target);
            }
            Mount::Empty { target, kind: Kind::File } => self.data(target, 0o444, b""),
            Mount::Empty { target, kind: Kind::Dir } => {
                self.tmpfs(target, 0o555, None);
                self.seal(target);
            }
            Mount::Text { target, text, mode } => self.data(target, *mode, text.as_bytes()),
            Mount::Seal { target } => self.seal(target),
            // `promise` has refused them.
            Mount::Volume { .. } | Mount::Link { .. } => {}
        }
    }

    fn tmpfs(&mut self, target: &Path, mode: u32, size: Option<u64>) {
        self.words(["--perms", &format!("{mode:04o}")]);
        if let Some(size) = size {
            self.words(["--size", &size.to_string()]);
        }
        self.words(["--tmpfs"]);
        self.path(target);
    }

    fn seal(&mut self, target: &Path) {
        self.words(["--remount-ro"]);
        self.path(target);
    }

    fn data(&mut self, target: &Path, mode: u32, bytes: &[u8]) {
        self.0.push(Arg::Data { target: target.to_path_buf(), mode, bytes: bytes.to_vec() });
    }

    fn check_size(&self) -> Result<(), EngineError> {
        let words: usize = self.0.iter().map(Arg::words).sum();
        let files = self.0.iter().filter(|a| matches!(a, Arg::Data { .. })).count();
        let cures = || {
            let fewer = Cure::host("exclude or protect whole directories instead of the files in them");
            vec![fewer, Cure::another("engine")]
        };
        if files > MAX_FILES {
            let reason = format!("{files} files to stand in for, and bwrap takes a descriptor for each");
            return Err(unmet(Guarantee::FsSecretsHidden, reason, cures()));
        }
        if words > MAX_WORDS {
            let reason = format!("the plan takes {words} arguments, and bwrap takes {MAX_WORDS}");
            return Err(unmet(Guarantee::FsSecretsHidden, reason, cures()));
        }
        Ok(())
    }
}

impl Arg {
    /// How many arguments it is.
    fn words(&self) -> usize {
        match self {
            Arg::Word(_) => 1,
            Arg::Filter(_) => 2,
            Arg::Variable { .. } => 3,
            Arg::Data { .. } => 5,
        }
    }
}

/// `bwrap` follows a symlink that it is to mount on, so that the link itself would stay open to be replaced.
fn refuse_symlink(earlier: &[Mount], mount: &Mount) -> Result<(), EngineError> {
    let Some(target) = symlink_in_bind(earlier, mount) else { return Ok(()) };
    let reason = format!("`{}` is a symlink, and bwrap would mount on what it leads to", target.display());
    Err(unmet(Guarantee::FsProtectedPaths, reason, link_cures()))
}

fn unmet(guarantee: Guarantee, reason: String, cures: impl Into<Vec<Cure>>) -> EngineError {
    EngineError::Unmet { engine: NAME, guarantee, reason, cures: cures.into() }
}

/// The system-call filter, as `bwrap` takes it.
fn filter(plan: &Plan) -> Result<Option<Vec<u8>>, EngineError> {
    let allow: Vec<&str> = plan.allow_syscalls.iter().map(String::as_str).collect();
    let refuse = plan.refuse_syscalls.iter().copied().collect();
    let options =
        seccomp::Options { nesting: plan.nesting, sockets: sockets(plan), allow: &allow, refuse, ..Default::default() };
    Ok(Some(seccomp::to_bytes(&seccomp::program(&options)?)))
}

/// Where mapped trees are put: every box has a `/dev` of its own, so that nothing is bound from there.
const STAGING: &str = "/dev/shm";

/// Host trees that the box sees with ids mapped, when root starts it: the outermost of what is bound, the root excepted.
/// None when a user does, who is mapped by the user namespace alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Staged(Vec<(PathBuf, Kind)>);

impl Staged {
    fn new(plan: &Plan) -> Self {
        let sources = plan.mounts.iter().filter_map(|m| match m {
            Mount::Bind { source, kind, .. } if source != Path::new("/") => Some((source.clone(), *kind)),
            _ => None,
        });
        let mut sources: Vec<(PathBuf, Kind)> = sources.collect();
        // Parents before children; a tree brings all below it along.
        sources.sort_by(|(a, _), (b, _)| a.cmp(b));
        // Save where another's files begin, whose ids are mapped otherwise.
        let ids = |path: &Path| identity::ids(plan, path);
        sources.dedup_by(|(below, _), (above, _)| below.starts_with(&*above) && ids(below) == ids(above));
        Self(sources)
    }

    /// Where `bwrap` finds what is to be bound.
    fn place(&self, source: &Path) -> PathBuf {
        // The innermost: trees are in order.
        let found =
            self.0.iter().enumerate().rev().find_map(|(i, (tree, _))| Some((i, source.strip_prefix(tree).ok()?)));
        match found {
            None => source.to_path_buf(),
            Some((index, below)) if below.as_os_str().is_empty() => Path::new(STAGING).join(index.to_string()),
            Some((index, below)) => Path::new(STAGING).join(index.to_string()).join(below),
        }
    }

    fn steps(&self, plan: &Plan) -> Result<Vec<Step>, EngineError> {
        let tmpfs = Tmpfs::new(0o711, 1 << 20, 4096, None);
        let mut steps = vec![Step::Staging { at: c_path(Path::new(STAGING))?, tmpfs }];
        for (source, kind) in &self.0 {
            let (at, directory) = (c_path(&self.place(source))?, *kind == Kind::Dir);
            steps.push(Step::Stage { source: c_path(source)?, at, directory, ids: identity::ids(plan, source) });
        }
        Ok(steps)
    }
}

/// The plan with private places that share the memory limit, where no cgroup counts what is in them: `bwrap` makes a file
/// system for each.
fn in_memory(plan: &Plan) -> Cow<'_, Plan> {
    let unbounded = |_: &u64| matches!(Home::look(), Home::None(_));
    let Some(memory) = plan.limits.memory.filter(unbounded) else { return Cow::Borrowed(plan) };
    let mut plan = plan.clone();
    let sealed: Vec<PathBuf> = plan
        .mounts
        .iter()
        .filter_map(|mount| if let Mount::Seal { target } = mount { Some(target.clone()) } else { None })
        .collect();
    let sizes = plan.mounts.iter_mut().filter_map(|mount| match mount {
        Mount::Tmpfs { target, size, .. } if !sealed.contains(target) => Some(size),
        Mount::Dev { shm_size, .. } => Some(shm_size),
        _ => None,
    });
    let sizes: Vec<&mut u64> = sizes.collect();
    // Of 0 bytes, a tmpfs has no limit.
    let share = (memory / sizes.len().max(1) as u64).max(1);
    sizes.into_iter().for_each(|size| *size = (*size).min(share));
    Cow::Owned(plan)
}

/// Everything that process 1 needs, and where the messages of `bwrap` can be read.
pub(super) fn spec(plan: &Plan, facts: &Facts) -> Result<(Spec, OwnedFd), EngineError> {
    let bwrap = find()?;
    let failed = |source: Errno| EngineError::Arguments { program: bwrap.clone(), source };
    let staged = if by_root(facts) { Staged::new(plan) } else { Staged::default() };
    let mut files: Vec<OwnedFd> = Vec::new();
    let mut words: Vec<u8> = Vec::new();
    // A NUL in a word would make two of it: refused.
    let mut word = |word: &OsStr| -> Result<(), EngineError> {
        words.extend_from_slice(c_string(word)?.as_bytes_with_nul());
        Ok(())
    };
    let mut file = |bytes: &[u8]| -> Result<OsString, EngineError> {
        files.push(starter::sealed_file(c"ringfence", bytes).map_err(failed)?);
        // The first is the list of arguments itself.
        Ok((FIRST_FILE + files.len() as i32).to_string().into())
    };
    for arg in compile(&in_memory(plan), filter(plan)?, &staged)? {
        match &arg {
            Arg::Word(text) => word(text)?,
            Arg::Variable { name, value } => {
                [OsStr::new("--setenv"), name, value].into_iter().try_for_each(&mut word)?;
            }
            Arg::Data { target, mode, bytes } => {
                word(OsStr::new("--perms"))?;
                word(OsStr::new(&format!("{mode:04o}")))?;
                word(OsStr::new("--ro-bind-data"))?;
                word(&file(bytes)?)?;
                word(target.as_os_str())?;
            }
            Arg::Filter(bytes) => {
                word(OsStr::new("--seccomp"))?;
                word(&file(bytes)?)?;
            }
        }
    }
    files.insert(0, starter::sealed_file(c"ringfence", &words).map_err(failed)?);
    let from_root = by_root(facts).then(|| from_root(plan, facts)).transpose()?;
    let steps = if from_root.is_some() { staged.steps(plan)? } else { Vec::new() };
    let (reader, messages) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)
            .map_err(failed)?;
    let runs = program(plan);
    let (how, program) = match &plan.runs {
        // Handed over as an open file too; the starter executes it before that is closed.
        Runs::Guest => {
            files.push(crate::guest::open().map_err(EngineError::Guest)?);
            (starter::GUEST, format!("/proc/self/fd/{}", FIRST_FILE + files.len() as i32 - 1).into())
        }
        Runs::Command(command) => (starter::COMMAND, command.program.clone()),
    };
    let first = FIRST_FILE.to_string();
    // Process 1 of bwrap's own could be traced by the command, and then made to outlive everything.
    let argv = ["bwrap", "--args", &first, "--as-pid-1", "--", starter::PATH, how].map(OsStr::new).into_iter();
    let command = [program.as_os_str()].into_iter().chain(runs.args.iter().map(|a| a.as_os_str()));
    let spec = Spec {
        namespaces: if from_root.is_some() { libc::CLONE_NEWNS as u64 } else { 0 },
        identity: Identity::Outside(Builder {
            from_root,
            messages,
            starter: crate::guest::open_starter().map_err(failed)?,
            view: view(plan)?,
            files,
        }),
        steps,
        loopback: false,
        nesting: plan.nesting,
        lingers: false,
        rlimits: Vec::new(),
        processors: None,
        landlock: None,
        filter: None,
        listens: false,
        workdir: c"/".to_owned(),
        program: c_path(&bwrap)?,
        argv: pointers(argv.chain(command))?,
        script_argv: PointerList::new(Vec::new()),
        env: PointerList::new(Vec::new()),
        becomes: None,
        stack: Stack::new(),
    };
    Ok((spec, reader))
}

/// What the starter must see. `bwrap` follows names, so that what it mounted is compared with what the names lead to now.
fn view(plan: &Plan) -> Result<Vec<Place>, EngineError> {
    // The report says so.
    if !can_be_verified() {
        return Ok(Vec::new());
    }
    let place = |expected: Expected<'_>| {
        let is = match expected.seen {
            Seen::Host { source, writable, kind } => {
                PlaceIs::Host { file: Some(identify(&expected, source, Some(kind))?), writable }
            }
            Seen::Link { source } => PlaceIs::Host { file: Some(identify(&expected, source, None)?), writable: false },
            Seen::Hidden { kind, passable, fleeting } => {
                let permissions = if passable { 0o111 } else { 0 };
                PlaceIs::Closed { directory: kind == Kind::Dir, permissions, or_missing: fleeting }
            }
            Seen::Empty { kind: Kind::Dir } => {
                PlaceIs::Closed { directory: true, permissions: 0o555, or_missing: false }
            }
            Seen::Empty { kind: Kind::File } => {
                PlaceIs::Closed { directory: false, permissions: 0o444, or_missing: false }
            }
            Seen::Space { writable } => PlaceIs::Space { writable },
            Seen::Volume { writable } => PlaceIs::Host { file: None, writable },
        };
        Ok(Place { path: c_path(expected.target)?, is })
    };
    plan.expected().into_iter().map(place).collect()
}

/// Whom process 1 becomes when root starts it, so that the command is nobody on the host.
fn from_root(plan: &Plan, facts: &Facts) -> Result<FromRoot, EngineError> {
    let ids = HostIds::for_this_process();
    let idmaps = ids.idmaps(plan, facts)?;
    Ok(FromRoot { idmaps, uid: ids.host(plan.uid), gid: ids.host(plan.gid) })
}

/// Whether the last option of a line only says how the next is meant.
fn qualifies(line: &str) -> bool {
    matches!(line.rsplit(' ').nth(1), Some("--perms" | "--size"))
}

/// Shell commands that make the names of stand-ins, and that take away those which they made.
fn stubs(stubs: &[Stub]) -> (String, String) {
    let (mut make, mut clear) = (String::new(), String::new());
    for (index, Stub { path, kind, text, .. }) in stubs.iter().filter(|stub| !stub.present).enumerate() {
        let path = quote(path.as_os_str());
        let (making, clearing) = match kind {
            Kind::Dir => (format!("mkdir {path}"), "rmdir"),
            Kind::File => (format!("printf %s {} >{path}", quote(OsStr::new(text))), "rm -f"),
        };
        let _ = writeln!(make, "{{ [ -e {path} ] || {{ {making} && : >\"$d/made{index}\"; }}; }} &&");
        clear.insert_str(0, &format!("[ ! -e \"$d/made{index}\" ] || {clearing} {path}; "));
    }
    (make, clear)
}

/// Files that the described command makes in `$d`; each contents and mode once.
#[derive(Default)]
struct Files {
    made: Vec<(u32, Vec<u8>)>,
    filter: Option<String>,
}

impl Files {
    /// The name of the file with this mode and contents, for the shell.
    fn with(&mut self, mode: u32, bytes: &[u8]) -> String {
        let known = self.made.iter().position(|(m, b)| *m == mode && b == bytes);
        let index = known.unwrap_or_else(|| {
            self.made.push((mode, bytes.to_vec()));
            self.made.len() - 1
        });
        format!("\"$d/{index}\"")
    }

    fn script(&self) -> String {
        let mut out = String::new();
        for (index, (mode, bytes)) in self.made.iter().enumerate() {
            let text = quote(OsStr::from_bytes(bytes));
            let _ = writeln!(out, "printf %s {text} >\"$d/{index}\" && chmod {mode:04o} \"$d/{index}\" &&");
        }
        if let Some(filter) = &self.filter {
            let _ = writeln!(out, "printf '{filter}' >\"$f\" &&");
        }
        out
    }
}

fn octal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "\\{byte:03o}");
        text
    })
}

/// The value of one of the caller's variables, for the shell.
fn from_caller(name: &OsStr) -> String {
    let plain = name.as_bytes().iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
        && !name.as_bytes().first().is_none_or(u8::is_ascii_digit);
    if plain { format!("\"${}\"", name.display()) } else { format!("\"$(printenv {})\"", quote(name)) }
}

/// Quotes a word for the shell where it needs it.
fn quote(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// A `bwrap` that can be used, or why there is none.
fn find() -> Result<PathBuf, EngineError> {
    let install = "install bubblewrap 0.8 or later (Debian, Ubuntu: apt install bubblewrap)";
    let Some((path, data)) = PLACES.iter().find_map(|p| fs::metadata(p).ok().map(|data| (PathBuf::from(p), data)))
    else {
        let reason = format!("bwrap is not installed (looked for {})", PLACES.join(", "));
        return Err(unmet(Guarantee::FsRootReadOnly, reason, [Cure::host(install)]));
    };
    if data.permissions().mode() & 0o6000 != 0 {
        let reason = format!("`{}` is set-user-id: it would work with root's rights", path.display());
        let cure = Cure::host(format!("chmod u-s,g-s {}", path.display()));
        return Err(unmet(Guarantee::ProcUnprivileged, reason, [cure]));
    }
    Ok(path)
}

/// Asks `bwrap` how old it is: what it says.
fn check_version(bwrap: &Path) -> Result<String, EngineError> {
    let output = std::process::Command::new(bwrap).arg("--version").env_clear().output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
    match version(&text) {
        Some(found) if found >= OLDEST => Ok(text),
        _ => {
            let reason = format!("`{}` calls itself `{text}`, and 0.8 is the oldest that will do", bwrap.display());
            Err(unmet(Guarantee::ProcIsolated, reason, [Cure::host("install bubblewrap 0.8 or later")]))
        }
    }
}

/// `bubblewrap 0.8.0`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("bubblewrap ")?.split('.').map(|n| n.parse::<u32>().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// `bwrap` takes names and follows them: what came out is looked at from inside.
fn verified(by: &str) -> Verdict {
    if can_be_verified() {
        return enforced(format!("{by}; {VERIFIED}"));
    }
    weakened(format!(
        "{by}; a second sandbox in the same project could swap a directory for a link while it mounts, and this kernel \
         (before 5.8) does not tell what was mounted"
    ))
}

/// Whether `bwrap` can be used here at all. It is asked for its version; nothing else is started.
fn available() -> Result<(), EngineError> {
    check_version(&find()?)?;
    // By root too: `bwrap` is started by an id that is nobody.
    let closed = namespaces_closed(true);
    closed.map_or(Ok(()), |(reason, cures)| Err(unmet(Guarantee::ProcIsolated, reason.to_owned(), cures)))
}

#[cfg(test)]
mod tests;
