//! The native engine: Linux itself. A plan becomes a list of [`Step`]s, which process 1 carries out.

mod look;
mod stacked;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ringfence_linux::landlock::{self, Writable};
use ringfence_linux::launch::{Identity, Maps, Spec};
use ringfence_linux::seccomp::{self, Notify, SockFilter};
use ringfence_linux::setup::{Ids, Is, Room, StandIn, Step, Tmpfs};
use ringfence_linux::sys::{PointerList, Stack};
use ringfence_linux::userns;
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{Mount, Plan, Runs};
use ringfence_policy::policy::Network;
use ringfence_policy::rules::Kind;
use ringfence_policy::{Cure, Guarantee};

use super::identity::{self, HostIds, by_root};
use super::limits::{Limit, limit, limit_steps};
use super::{
    Abilities, About, Engine, EngineError, EngineRef, Finding, GuestSandbox, Left, Running, StdioSpec, Tried, c_path,
    env_strings, namespaces_closed, no_gateway, pointers, program, second_wall, sockets, start,
};
use crate::facts::inside_sandbox;
use crate::report::{Report, Verdict, answer, enforced, recorded, verified, weakened};

use look::AppArmor;

const NAME: &str = "native";

/// The engine `native`.
pub const ENGINE: EngineRef = &Native;

#[derive(Debug)]
struct Native;

impl Engine for Native {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "Linux itself"
    }

    fn abilities(&self) -> Abilities {
        Abilities { commands: true, descriptors: true, freeze: true, local: true, ..Abilities::default() }
    }

    fn promise(&self, plan: &Plan, facts: &Facts) -> Result<Report, EngineError> {
        if stacks(facts) && !plan.runs.is_guest() {
            return stacked::promise(plan, facts);
        }
        available(facts)?;
        let (by_root, home) = (by_root(facts), OnceCell::new());
        answer(NAME, plan, |guarantee| match guarantee {
            Guarantee::FsRootReadOnly => enforced("recursive read-only mounts in an own mount namespace"),
            Guarantee::FsWritesConfined => verified("own mount namespace, pivot_root, no device or set-user-id files"),
            Guarantee::FsSecretsHidden => {
                verified("empty unreadable stand-ins mounted over every name, aliases included")
            }
            Guarantee::FsProtectedPaths => verified("read-only mounts, pinned ancestors, stand-ins for missing names"),
            Guarantee::FsTempPrivate => verified("own tmpfs, parts of it at /tmp, /var/tmp, /dev/shm and /run"),
            Guarantee::FsDiskBounded if plan.nesting => {
                weakened("size and inode limit of private space; a sandbox made inside mounts a tmpfs of any size")
            }
            Guarantee::FsDiskBounded => enforced("size and inode limit of the tmpfs that they share"),
            Guarantee::NetIsolated => enforced("own network namespace with loopback only"),
            Guarantee::NetByName => no_gateway(),
            Guarantee::NetHostSocketsClosed => host_sockets(plan),
            Guarantee::ProcIsolated if plan.nesting => {
                weakened("own PID, IPC, UTS and cgroup namespaces; user namespaces are open inside")
            }
            Guarantee::ProcIsolated => {
                enforced("own PID, IPC, UTS, cgroup and user namespaces, own session and terminal")
            }
            Guarantee::ProcUnprivileged if by_root => {
                enforced("unprivileged host ids of its own, id-mapped mounts, no capability, no new privileges")
            }
            Guarantee::ProcUnprivileged => {
                enforced("user namespace of one id, no capability in any set, no new privileges")
            }
            Guarantee::ProcCleanStart => {
                enforced("all descriptors closed, environment from the policy, process 1 not readable")
            }
            Guarantee::KernelFiltered if plan.nesting => {
                weakened("system-call filter; namespaces and mounts are let through for nesting")
            }
            Guarantee::KernelFiltered if !plan.allow_syscalls.is_empty() => {
                weakened(format!("system-call filter, opened for {}", plan.allow_syscalls.join(", ")))
            }
            Guarantee::KernelFiltered => enforced("system-call filter (allow list, one ABI)"),
            Guarantee::KernelSecondWall => {
                second_wall(plan.nesting.then_some("files are left to the mounts, since nesting needs mounts"))
            }
            Guarantee::LifeNoSurvivors => {
                enforced("death of process 1 ends its PID namespace; a janitor removes what is left on the host")
            }
            Guarantee::LifeDiesWithOwner => enforced("process 1 ends when the socket to its owner closes"),
            Guarantee::LimitMemory => limit(Limit::Memory, plan, &home),
            Guarantee::LimitCpu => limit(Limit::Cpu, plan, &home),
            Guarantee::LimitProcesses => limit(Limit::Processes, plan, &home),
            Guarantee::LimitFiles => limit(Limit::Files, plan, &home),
            Guarantee::LimitTime => limit(Limit::Time, plan, &home),
            Guarantee::LimitOutput => limit(Limit::Output, plan, &home),
            Guarantee::RecordComplete => recorded(),
        })
    }

    /// The steps in words, one a line.
    fn describe(&self, plan: &Plan, facts: &Facts) -> Result<String, EngineError> {
        if stacks(facts) && !plan.runs.is_guest() {
            return Ok("stack Landlock and the system-call filter on what the outer sandbox enforces\n".to_owned());
        }
        let ids = by_root(facts).then(HostIds::for_this_process);
        let mut lines = Vec::new();
        lines.extend(plan.stubs.iter().map(|s| format!("keep the name `{}` until the end", s.path.display())));
        let network = if plan.network == Network::Open { "" } else { ", network" };
        lines.push(format!("enter new user, mount, PID, IPC, UTS, cgroup{network} namespaces"));
        lines.extend(compile(plan, ids)?.iter().map(ToString::to_string));
        lines.push("make it the only root".to_owned());
        if !plan.nesting {
            lines.push("close user namespaces".to_owned());
        }
        lines.push(format!("become {}:{} without any capability or new privileges", plan.uid, plan.gid));
        lines.extend(limit_steps(plan));
        let landlock::Abi(abi) = landlock::Abi::of_this_kernel();
        if landlock_rules(plan)?.is_some() {
            lines.push(format!("confine writes, signals and abstract sockets as far as Landlock ABI {abi} goes"));
        }
        lines.push(format!("install the system-call filter, {} instructions", filter(plan)?.len()));
        lines.extend(plan.refuse_syscalls.iter().map(|group| format!("refuse system calls for {group} too")));
        match &plan.runs {
            Runs::Guest => lines.push("become the guest".to_owned()),
            Runs::Command(command) => {
                lines.push(format!("enter `{}`", plan.workdir.display()));
                let args: Vec<String> =
                    command.args.iter().map(|a| String::from_utf8_lossy(a.as_bytes()).into_owned()).collect();
                lines.push(format!("execute `{}` as {args:?}", command.program.display()));
            }
        }
        // A name may hold the end of a line.
        Ok(lines.iter().map(|line| format!("{}\n", line.replace('\n', "\\n"))).collect())
    }

    fn start(&self, plan: &Plan, facts: &Facts, stdio: StdioSpec) -> Result<Running, EngineError> {
        start::start(plan, facts, stdio, |plan, facts| Ok((spec(plan, facts)?, None)))
    }

    fn start_guest(
        &self,
        plan: &mut Plan,
        facts: &Facts,
        _: About<'_>,
    ) -> Result<(Box<dyn GuestSandbox>, OwnedFd), EngineError> {
        super::live::start_on_host(plan, |stdio| self.start(plan, facts, stdio))
    }

    fn look(&self, facts: &Facts, tried: Tried<'_>) -> Vec<Finding> {
        look::findings(facts, tried)
    }

    fn sweep(&self, left: &Left<'_>) -> Result<(), EngineError> {
        crate::janitor::sweep(&left.facts.registry);
        ringfence_linux::limits::Home::look().sweep();
        Ok(())
    }
}

/// Whether this is a run inside a box that may not make namespaces.
pub(super) fn stacks(facts: &Facts) -> bool {
    inside_sandbox() && (available(facts).is_err() || stacked::filtered())
}

/// Compiles the mounts of a plan. Pure.
fn compile(plan: &Plan, ids: Option<HostIds>) -> Result<Vec<Step>, EngineError> {
    let owner = ids.map(|ids| (ids.host(plan.uid), ids.host(plan.gid)));
    let ids = |source: &Path| if ids.is_some() { identity::ids(plan, source) } else { Ids::AsTheyAre };
    let mounts = &plan.mounts;
    let mut steps = Steps { steps: Vec::with_capacity(mounts.len() + 24), owner, writable: None, fixed: false };
    for (index, mount) in mounts.iter().enumerate() {
        match mount {
            Mount::Bind { source, .. } if index == 0 => steps.push(Step::RootBind { source: c_path(source)? }),
            Mount::Tmpfs { mode, size, inodes, .. } if index == 0 => {
                steps.push(Step::RootTmpfs(Tmpfs::new(*mode, *size, *inodes, owner)));
            }
            Mount::Link { source, target } => steps.push(Step::Bind {
                source: c_path(source)?,
                target: inside(target)?,
                writable: false,
                is: Is::Link,
                ids: ids(source),
            }),
            Mount::Bind { source, target, writable, kind } => steps.push(Step::Bind {
                source: c_path(source)?,
                target: inside(target)?,
                writable: *writable,
                is: if *kind == Kind::Dir { Is::Directory } else { Is::File },
                ids: ids(source),
            }),
            Mount::Tmpfs { target, mode, .. } if is_sealed(mounts, target) => steps.fixed(target, *mode)?,
            Mount::Tmpfs { target, mode, size, inodes } => steps.private(target, *mode, *size, *inodes)?,
            Mount::Proc { target } => steps.push(Step::Proc { target: inside(target)? }),
            Mount::Dev { target, shm_size, shm_inodes } => steps.devices(target, *shm_size, *shm_inodes)?,
            Mount::Dir { target, mode } => steps.push(Step::Mkdir { target: inside(target)?, mode: *mode, owner }),
            Mount::File { target } => steps.push(Step::Touch { target: inside(target)? }),
            Mount::Symlink { target, to } => {
                steps.push(Step::Symlink { target: inside(target)?, to: c_path(to)? });
            }
            Mount::Hide { target, kind: Kind::Dir, passable: true, .. } => steps.fixed(target, 0o111)?,
            Mount::Hide { target, kind, fleeting, .. } => {
                let which = if *kind == Kind::Dir { StandIn::HiddenDir } else { StandIn::HiddenFile };
                steps.push(Step::StandIn { target: inside(target)?, which, if_there: *fleeting });
            }
            Mount::Empty { target, kind } => {
                let which = if *kind == Kind::Dir { StandIn::EmptyDir } else { StandIn::EmptyFile };
                steps.push(Step::StandIn { target: inside(target)?, which, if_there: false });
            }
            Mount::Text { target, text, mode } => {
                steps.push(Step::Write { target: inside(target)?, text: text.clone().into_bytes(), mode: *mode })
            }
            Mount::Seal { target } => steps.push(Step::Seal { target: inside(target)? }),
            Mount::Volume { .. } => return Err(EngineError::unable(NAME, "volumes")),
        }
    }
    Ok(steps.steps)
}

fn is_sealed(mounts: &[Mount], path: &Path) -> bool {
    mounts.iter().any(|m| matches!(m, Mount::Seal { target } if target == path))
}

/// Steps in the making.
struct Steps {
    steps: Vec<Step>,
    /// Who owns private places, as the host sees it.
    owner: Option<(u32, u32)>,
    /// Size and inodes of the space that writable places share, once it is there.
    writable: Option<(u64, u64)>,
    fixed: bool,
}

impl Steps {
    fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// A writable place. All of one size share one space of that size.
    fn private(&mut self, target: &Path, mode: u32, size: u64, inodes: u64) -> Result<(), EngineError> {
        let at = inside(target)?;
        if *self.writable.get_or_insert((size, inodes)) != (size, inodes) {
            self.push(Step::Tmpfs { target: at, tmpfs: Tmpfs::new(mode, size, inodes, self.owner) });
            return Ok(());
        }
        if !self.steps.iter().any(|s| matches!(s, Step::Room { room: Room::Writable, .. })) {
            let tmpfs = Tmpfs::new(0o755, size, inodes, None);
            self.push(Step::Room { room: Room::Writable, target: at, tmpfs });
        }
        self.part(Room::Writable, target, mode)
    }

    /// A place that is filled now and read-only afterwards.
    fn fixed(&mut self, target: &Path, mode: u32) -> Result<(), EngineError> {
        if !self.fixed {
            self.fixed = true;
            let tmpfs = Tmpfs::new(0o755, 8 << 20, 1 << 16, None);
            self.push(Step::Room { room: Room::Fixed, target: inside(target)?, tmpfs });
            self.push(Step::StandIns);
        }
        self.part(Room::Fixed, target, mode)
    }

    fn part(&mut self, room: Room, target: &Path, mode: u32) -> Result<(), EngineError> {
        let name = CString::new(self.steps.len().to_string()).unwrap_or_default();
        self.push(Step::Part { room, name, target: inside(target)?, mode, owner: self.owner });
        Ok(())
    }

    /// A `/dev` with the devices that every program expects, and nothing that a box could add to.
    fn devices(&mut self, dev: &Path, shm_size: u64, shm_inodes: u64) -> Result<(), EngineError> {
        let owner = self.owner;
        // Mode 755: on a sticky world-writable one, `>/dev/null` fails (protected_regular).
        self.fixed(dev, 0o755)?;
        for name in ["null", "zero", "full", "random", "urandom", "tty"] {
            let source = c_path(&Path::new("/dev").join(name))?;
            self.push(Step::Device { source, target: inside(&dev.join(name))? });
        }
        for (name, to) in [
            ("fd", c"/proc/self/fd"),
            ("stdin", c"/proc/self/fd/0"),
            ("stdout", c"/proc/self/fd/1"),
            ("stderr", c"/proc/self/fd/2"),
            ("ptmx", c"pts/ptmx"),
        ] {
            self.push(Step::Symlink { target: inside(&dev.join(name))?, to: to.to_owned() });
        }
        for name in ["pts", "shm", "ringfence"] {
            self.push(Step::Mkdir { target: inside(&dev.join(name))?, mode: 0o755, owner });
        }
        self.push(Step::Devpts { target: inside(&dev.join("pts"))? });
        self.private(&dev.join("shm"), 0o1777, shm_size, shm_inodes)?;
        self.push(Step::Seal { target: inside(dev)? });
        Ok(())
    }
}

/// A target as a path relative to the new root.
fn inside(target: &Path) -> Result<CString, EngineError> {
    c_path(target.strip_prefix("/").unwrap_or(target))
}

/// Everything that process 1 needs.
pub(super) fn spec(plan: &Plan, facts: &Facts) -> Result<Spec, EngineError> {
    if stacks(facts) && !plan.runs.is_guest() {
        return stacked::spec(plan);
    }
    let ids = by_root(facts).then(HostIds::for_this_process);
    let (namespaces, identity) = match ids {
        Some(ids) => {
            let prepare = |uids: &[_], gids: &[_]| userns::create(uids, gids).map_err(EngineError::UserNamespace);
            let userns = prepare(&[ids.range()], &[ids.range()])?;
            let idmaps = ids.idmaps(plan, facts)?;
            (namespaces(&plan.network), Identity::Entered { userns, idmaps, uid: plan.uid, gid: plan.gid })
        }
        None => {
            let maps = maps((plan.uid, plan.gid), (facts.uid, facts.gid));
            (namespaces(&plan.network) | libc::CLONE_NEWUSER as u64, Identity::Mapped(maps))
        }
    };
    base_spec(plan, namespaces, identity, compile(plan, ids)?, landlock_rules(plan)?, Some(filter(plan)?))
}

fn namespaces(network: &Network) -> u64 {
    let own_network = if *network == Network::Open { 0 } else { libc::CLONE_NEWNET };
    (libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | own_network) as u64
}

/// The one user and group of an ordinary user's box, and who that is outside.
fn maps((uid, gid): (u32, u32), caller: (u32, u32)) -> Maps {
    let map = |inside: u32, outside: u32| CString::new(format!("{inside} {outside} 1")).unwrap_or_default();
    Maps { uids: map(uid, caller.0), gids: map(gid, caller.1) }
}

/// What does not depend on how the box is made.
fn base_spec(
    plan: &Plan,
    namespaces: u64,
    identity: Identity,
    steps: Vec<Step>,
    landlock: Option<landlock::Rules>,
    filter: Option<Cow<'static, [SockFilter]>>,
) -> Result<Spec, EngineError> {
    let command = program(plan);
    let guest = plan.runs.is_guest();
    let becomes = guest.then(crate::guest::open).transpose().map_err(EngineError::Guest)?;
    let script = [std::ffi::OsStr::new("/bin/sh"), command.program.as_os_str()];
    Ok(Spec {
        namespaces,
        identity,
        steps,
        loopback: namespaces & libc::CLONE_NEWNET as u64 != 0,
        nesting: plan.nesting,
        lingers: false,
        rlimits: Vec::new(),
        processors: None,
        landlock,
        filter,
        listens: plan.trace_denials,
        workdir: c_path(&plan.workdir)?,
        program: c_path(&command.program)?,
        argv: pointers(command.args.iter().map(|a| a.as_os_str()))?,
        script_argv: pointers(script.into_iter().chain(command.args.iter().skip(1).map(|a| a.as_os_str())))?,
        env: PointerList::new(if guest { Vec::new() } else { env_strings(&plan.env)? }),
        becomes,
        stack: Stack::new(),
    })
}

/// What the filter of a box reports.
fn notify(plan: &Plan) -> Notify {
    if plan.trace_denials { Notify::Opens } else { Notify::Nothing }
}

fn filter(plan: &Plan) -> Result<Cow<'static, [SockFilter]>, EngineError> {
    let allow: Vec<&str> = plan.allow_syscalls.iter().map(String::as_str).collect();
    Ok(seccomp::program(&seccomp::Options {
        nesting: plan.nesting,
        sockets: sockets(plan),
        allow: &allow,
        refuse: plan.refuse_syscalls.iter().copied().collect(),
        notify: notify(plan),
    })?)
}

/// The second wall: writes only where the plan writes. A nested sandbox needs mounts, which Landlock would refuse.
fn landlock_rules(plan: &Plan) -> Result<Option<landlock::Rules>, EngineError> {
    let writable = if plan.nesting { None } else { Some(writable_places(plan)?) };
    Ok(landlock::Rules::new(landlock::Abi::of_this_kernel(), writable, false))
}

fn writable_places(plan: &Plan) -> Result<Vec<Writable>, EngineError> {
    let mut places: Vec<(&Path, bool)> = vec![(Path::new("/proc"), true), (Path::new("/dev"), true)];
    for mount in &plan.mounts {
        match mount {
            Mount::Bind { target, writable: true, kind, .. } => places.push((target, *kind == Kind::Dir)),
            Mount::Tmpfs { target, .. } if !is_sealed(&plan.mounts, target) => places.push((target, true)),
            _ => {}
        }
    }
    let covered = |path: &Path| places.iter().any(|(other, dir)| *dir && path != *other && path.starts_with(other));
    let outermost = places.iter().filter(|(path, _)| !covered(path));
    outermost.map(|(path, directory)| Ok(Writable { path: c_path(path)?, directory: *directory })).collect()
}

/// Abstract sockets belong to the network namespace: with the host's network, Landlock alone keeps them apart.
fn host_sockets(plan: &Plan) -> Verdict {
    let names = "private /run and /tmp, stand-ins over bound sockets";
    match &plan.network {
        _ if plan.docker => {
            weakened(format!("{names}; the Docker socket is open, and whoever has it is root on this host"))
        }
        Network::None | Network::Bridge | Network::Allowlist(_) => enforced(format!("{names}, own network namespace")),
        Network::Open if landlock::Abi::of_this_kernel().scopes() => {
            enforced(format!("{names}, Landlock scopes abstract sockets"))
        }
        Network::Open => {
            weakened(format!("{names}; abstract sockets are open: the kernel's Landlock is older than ABI 6"))
        }
    }
}

/// Whether an own box can be made here at all. Looks at what the kernel says, and starts nothing.
fn available(facts: &Facts) -> Result<(), EngineError> {
    let unmet = |reason: &str, cures| EngineError::Unmet {
        engine: NAME,
        guarantee: Guarantee::ProcIsolated,
        reason: reason.to_owned(),
        cures,
    };
    if let Some((reason, cures)) = namespaces_closed(facts.uid != 0) {
        return Err(unmet(reason, cures));
    }
    if by_root(facts) {
        return Ok(());
    }
    // A box of one id would be host root; and in a box, Linux lets nobody map id 0 who has no capability.
    if facts.uid == 0 {
        return Err(EngineError::Unmet {
            engine: NAME,
            guarantee: Guarantee::ProcUnprivileged,
            reason: "root without CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID cannot become somebody else".to_owned(),
            cures: vec![Cure::host("run as an ordinary user, or with these capabilities")],
        });
    }
    if AppArmor::of_this_process().restricts(facts.uid) {
        return Err(unmet(
            "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns = 1)",
            vec![Cure::host("install the AppArmor profile that `ringfence doctor` prints"), Cure::another("engine")],
        ));
    }
    Ok(())
}
