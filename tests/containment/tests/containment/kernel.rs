//! The system-call filter, and the wall behind the mounts.

use std::process::Command;
use std::time::Duration;

use containment::{Place, Scene, host};
use ringfence::State;
use ringfence::policy::Guarantee::{FsDiskBounded, KernelFiltered, KernelSecondWall, ProcIsolated};
use ringfence::policy::layer::At;
use ringfence::policy::syscalls::SyscallGroup;
use ringfence_linux::landlock::Abi;

use crate::case::{Case, Needs, Outside, Stage, Story, act, ensure, same, story};

const fn filtered(id: &'static str, fails: &'static str, answers: &'static [&'static str]) -> Case {
    act(KernelFiltered, id, "call getpid", fails, answers)
}

/// Docker's filter answers calls of another ABI by the end of the program.
const ENDED: &[&str] = &["SIGSYS"];

const fn refused(id: &'static str, fails: &'static str) -> Case {
    filtered(id, fails, &["EPERM"])
}

/// A request to a file; that the size of what can be read is asked for works.
const fn request(id: &'static str, fails: &'static str) -> Case {
    refused(id, fails).works("ioctl {project}/file 0x541b").outside(Outside::Untried)
}

pub const CASES: &[Case] = &[
    request("flags of a file", "ioctl {project}/file 0x40086602"),
    request("attributes of a file", "ioctl {project}/file 0x401c5820"),
    request("a snapshot of btrfs", "ioctl {project} 0x50009401"),
    request("a subvolume of btrfs", "ioctl {project} 0x5000940e"),
    request("verity of a file", "ioctl {project}/file 0x40806685"),
    request("the console's output", "ioctl /dev/null 0x541d"),
    refused("io_uring_setup", "call io_uring_setup").outside(Outside::Untried),
    refused("io_uring_enter", "call io_uring_enter").outside(Outside::Untried),
    refused("io_uring_register", "call io_uring_register").outside(Outside::Untried),
    refused("userfaultfd", "call userfaultfd").outside(Outside::WorksForRoot),
    refused("bpf", "call bpf").outside(Outside::WorksForRoot),
    refused("perf_event_open", "call perf_event_open"),
    refused("keyctl", "call keyctl").outside(Outside::Untried),
    refused("add_key", "call add_key").outside(Outside::Untried),
    refused("request_key", "call request_key").outside(Outside::Untried),
    refused("kcmp", "call kcmp").outside(Outside::Untried),
    refused("mount", "call mount").outside(Outside::WorksForRoot),
    refused("fsopen", "call fsopen").outside(Outside::WorksForRoot),
    refused("open_tree", "call open_tree"),
    refused("move_mount", "call move_mount").outside(Outside::WorksForRoot),
    refused("mount_setattr", "call mount_setattr").outside(Outside::WorksForRoot),
    refused("pivot_root", "call pivot_root").outside(Outside::WorksForRoot),
    refused("setns", "call setns"),
    refused("init_module", "call init_module").outside(Outside::Untried),
    refused("finit_module", "call finit_module").outside(Outside::Untried),
    refused("kexec_load", "call kexec_load").outside(Outside::Untried),
    refused("fanotify_mark", "call fanotify_mark"),
    refused("move_pages", "call move_pages").outside(Outside::Untried),
    refused("clock_settime", "call clock_settime"),
    refused("swapon", "call swapon").outside(Outside::WorksForRoot),
    refused("syslog", "call syslog").outside(Outside::Untried),
    refused("acct", "call acct").outside(Outside::Untried),
    refused("modify_ldt", "call modify_ldt").outside(Outside::Untried),
    // Namespaces, by every call that makes one.
    refused("unshare, user", "unshare 0x10000000"),
    refused("unshare, mount", "unshare 0x20000").outside(Outside::WorksForRoot),
    refused("unshare, network", "unshare 0x40000000").outside(Outside::WorksForRoot),
    refused("unshare, with high bits", "unshare 0x110000000").outside(Outside::Untried),
    refused("clone, user", "clone 0x10000000"),
    refused("clone, process ids", "clone 0x20000000").outside(Outside::WorksForRoot),
    filtered("clone3, user", "clone3 0x10000000", &["ENOSYS"]),
    filtered("clone3, nothing", "clone3 0", &["ENOSYS"]),
    // Families of sockets.
    filtered("AF_ALG", "socket 38 5 0", &["EAFNOSUPPORT"]).outside(Outside::Untried),
    filtered("AF_VSOCK", "socket 40 1 0", &["EAFNOSUPPORT"]).outside(Outside::Untried),
    filtered("AF_PACKET", "socket 17 3 0", &["EAFNOSUPPORT"]).outside(Outside::Untried),
    filtered("AF_KEY", "socket 15 3 2", &["EAFNOSUPPORT"]).outside(Outside::Untried),
    filtered("AF_BLUETOOTH", "socket 31 3 1", &["EAFNOSUPPORT"]).outside(Outside::Untried),
    filtered("AF_XDP", "socket 44 3 0", &["EAFNOSUPPORT"]).outside(Outside::Untried),
    refused("raw sockets", "socket 2 3 1").outside(Outside::WorksForRoot),
    filtered("MPTCP", "socket 2 1 262", &["EPROTONOSUPPORT"]).outside(Outside::Untried),
    filtered("SCTP", "socket 2 1 132", &["EPROTONOSUPPORT"]).outside(Outside::Untried),
    filtered("netlink but for routes", "socket 16 3 9", &["EPROTONOSUPPORT"]).outside(Outside::Untried),
    // Other ways into the kernel.
    filtered("int 0x80, getpid", "int80 20", &["ENOSYS"]).outside(Outside::Untried).on_docker("call getpid", ENDED),
    filtered("int 0x80, io_uring_setup", "int80 425", &["ENOSYS"])
        .outside(Outside::Untried)
        .on_docker("call getpid", ENDED),
    filtered("int 0x80, unshare", "int80 310", &["ENOSYS"]).outside(Outside::Untried).on_docker("call getpid", ENDED),
    filtered("x32, getpid", "x32 39", &["ENOSYS"]).outside(Outside::Untried).on_docker("call getpid", ENDED),
    filtered("x32, mount", "x32 165", &["ENOSYS"]).outside(Outside::Untried).on_docker("call getpid", ENDED),
    filtered("a call of the future", "number 999", &["ENOSYS"]).outside(Outside::Untried),
    // Arguments.
    refused("personality, executable memory", "personality 0x0400000"),
    refused("prctl, PR_SET_MM", "prctl 35").outside(Outside::Untried),
    refused("keys typed, no terminal", "type-into 0").outside(Outside::Untried),
    refused("keys typed, high bits", "type-into-high 0").outside(Outside::Untried),
];

pub const STORIES: &[Story] = &[
    story(KernelFiltered, "nesting opens namespaces and says so", nesting),
    story(KernelFiltered, "a named call is opened and said so", named_call),
    story(ProcIsolated, "a box in a box with nesting", nested),
    story(ProcIsolated, "a box in a box without nesting only tightens", stacked),
    story(KernelFiltered, "groups that a policy refuses", refused_groups),
    story(KernelSecondWall, "in the report", second_wall_reported),
    story(KernelSecondWall, "holds when the mounts do not", second_wall_holds).needs(Needs::Root),
];

fn state(ran: &containment::Ran, id: ringfence::policy::Guarantee) -> Option<State> {
    ran.report.guarantees.iter().find(|a| a.id == id).map(|a| a.state)
}

fn nesting(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.nesting(true);
    let ran = stage.inside(&scene, "unshare 0x10000000 + call io_uring_setup + socket 38 5 0 + x32 39")?;
    same("answers", ran.lines(), ["ok", "EPERM", "EAFNOSUPPORT", "ENOSYS"])?;
    same("filter in the report", state(&ran, KernelFiltered), Some(State::Weakened))?;
    // Nothing bounds a tmpfs that is mounted there, and no capability there is one over process 1.
    same("private space in the report", state(&ran, FsDiskBounded), Some(State::Weakened))?;
    let ran = stage.inside(&scene, "unshare 0x10000000 + trace 1")?;
    same("answers", ran.lines(), ["ok", "EPERM"])?;
    let ran = stage.inside(&stage.scene(Place::Home), "unshare 0x10000000")?;
    same("answers", ran.lines(), ["EPERM"])?;
    same("filter in the report", state(&ran, KernelFiltered), Some(State::Enforced))
}

fn named_call(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.allow_syscall("kcmp").map_err(|e| e.to_string())?;
    let ran = stage.inside(&scene, "call kcmp + call keyctl")?;
    same("answers", ran.lines(), ["ok", "EPERM"])?;
    same("filter in the report", state(&ran, KernelFiltered), Some(State::Weakened))
}

/// Starts the launcher in a box, which makes another box there.
fn inner(stage: &Stage, scene: &Scene, acts: &str) -> Result<containment::Ran, String> {
    let (home, project) = (scene.home.display().to_string(), scene.project.display().to_string());
    let mut command = vec![stage.launcher.display().to_string(), "native".into(), home, project, "--".into()];
    command.push(scene.probe.display().to_string());
    command.extend(scene.act(acts));
    stage.sandbox(scene).run(&command).map_err(|e| e.to_string())
}

fn nested(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.nesting(true);
    let acts = "create {project}/new + read {home}/.netrc + create {home}/new + read {home}/notes + interfaces";
    let ran = inner(stage, &scene, acts)?;
    // Linux lets nobody map id 0 again who has no capability: the inner run of root's box is stacked, which takes scopes.
    if rustix::process::getuid().is_root() && !Abi::of_this_kernel().scopes() {
        return ensure(ran.stdout.is_empty() && ran.stderr.contains("cannot promise net.isolated"), || {
            format!("{ran:?}")
        });
    }
    same("answers", ran.lines(), ["ok", "EACCES", "EROFS", "ok plain", "ok lo"])
        .map_err(|e| format!("{e} {}", ran.stderr))
}

/// Without user namespaces the inner run is stacked on the outer one, or refused: never weaker.
fn stacked(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let acts = "create {project}/new + read {home}/.netrc + create {home}/new + read {home}/notes + socket 2 1 0";
    let ran = inner(stage, &scene, acts)?;
    if ran.stdout.is_empty() {
        return ensure(ran.stderr.contains("cannot promise"), || format!("{ran:?}"));
    }
    let lines = ran.lines();
    ensure(lines[0] == "ok" && lines[3] == "ok plain", || format!("{lines:?}"))?;
    ensure(!lines[1].starts_with("ok") && !lines[2].starts_with("ok") && !lines[4].starts_with("ok"), || {
        format!("{lines:?}")
    })
}

fn refused_groups(stage: &Stage) -> Result<(), String> {
    let calls = ["ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "vmsplice", "seccomp"];
    let calls: Vec<String> = calls.iter().map(|name| format!("call {name}")).collect();
    let acts = format!("{} + personality 0xffffffff + prctl 22 + call getpid", calls.join(" + "));
    let reached = ["ok", "ok", "ok", "ok", "ok", "ok", "ok", "EINVAL", "ok"];
    let mut scene = stage.scene(Place::Home);
    same("outside", stage.outside(&scene, &acts)?, reached)?;
    same("not refused", stage.answers(&scene, &acts)?, reached)?;
    scene.policy.settings.refuse_syscalls.extend(SyscallGroup::ALL.map(|group| At::new(group, "test")));
    let ran = stage.inside(&scene, &acts)?;
    let mut refused = ["EPERM"; 9];
    refused[8] = "ok";
    same("refused", ran.lines(), refused)?;
    same("filter in the report", state(&ran, KernelFiltered), Some(State::Enforced))
}

/// bwrap puts up no second wall.
fn has_second_wall(stage: &Stage) -> bool {
    stage.engine != ringfence::engines::bubblewrap::ENGINE
}

fn second_wall_reported(stage: &Stage) -> Result<(), String> {
    let ran = stage.inside(&stage.scene(Place::Home), "ids")?;
    let expected = if has_second_wall(stage) { State::Enforced } else { State::Missing };
    same("second wall", state(&ran, KernelSecondWall), Some(expected))
}

/// The host's root makes a read-only place writable in the sandbox's own mounts; Landlock still refuses.
fn second_wall_holds(stage: &Stage) -> Result<(), String> {
    if !has_second_wall(stage) {
        return Ok(());
    }
    let scene = stage.scene(Place::Home);
    stage.hand_over(&scene);
    // Of the files that the sandbox's user owns, those that it sees read-only.
    let in_container = stage.engine == ringfence::engines::docker::ENGINE;
    let (home, file) = match in_container {
        true => (scene.elsewhere.display().to_string(), "file"),
        false => (scene.home.display().to_string(), "notes"),
    };
    let (tag, probe) = (scene.words["tag"].clone(), scene.probe.display().to_string());
    let script = format!(
        "while [ ! -e go ]; do sleep 0.05; done; {p} write {home}/{file} + create {home}/new + write {pr}/file; : {tag}",
        p = scene.probe.display(),
        pr = scene.project.display()
    );
    let sandbox = stage.sandbox(&scene);
    let command = ["sh".to_owned(), "-c".to_owned(), script];
    std::thread::scope(|scope| {
        let box_ = scope.spawn(|| sandbox_run(&sandbox, &command));
        let mut found = Vec::new();
        let there = host::eventually(Duration::from_secs(10), || {
            found = host::processes_with(&tag);
            found.iter().any(|pid| in_own_mounts(*pid))
        });
        let opened = found.iter().find(|pid| in_own_mounts(**pid)).map(|pid| {
            Command::new("nsenter").args(["-t", &pid.to_string(), "-m", &probe, "remount-writable", &home]).output()
        });
        std::fs::write(scene.project.join("go"), "").map_err(|e| e.to_string())?;
        let ran = box_.join().map_err(|_| "the box panicked".to_owned())??;
        ensure(there, || "the box did not start".to_owned())?;
        match opened {
            Some(Ok(output)) if output.stdout == b"ok\n" => {}
            other => return Err(format!("the mount could not be opened from outside: {other:?}")),
        }
        same("answers", ran.lines(), ["EACCES", "EACCES", "ok"])
    })
}

fn sandbox_run(sandbox: &containment::Sandbox<'_>, command: &[String]) -> Result<containment::Ran, String> {
    sandbox.run(command).map_err(|e| e.to_string())
}

fn in_own_mounts(pid: i32) -> bool {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let theirs = namespace(&pid.to_string());
    theirs.is_some() && theirs != namespace("self")
}
