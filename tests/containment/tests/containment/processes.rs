//! Processes: whom a box sees, what it may do, what it starts with.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use containment::sandbox::Started;
use containment::scene::{PLAIN, SECRET};
use containment::{Place, Refusal, Scene, host};
use ringfence::policy::Guarantee::{
    FsProtectedPaths, FsWritesConfined, ProcCleanStart, ProcIsolated, ProcUnprivileged,
};
use ringfence::{EngineError, StdioSpec, Unfit, supervise};

use crate::case::{Case, Needs, Outside, Stage, Story, act, ensure, same, story};

const DENIED_OR_CLOSED: &[&str] = &["EACCES", "EPERM", "ENOENT"];

const NOT_THERE: &[&str] = &["ESRCH", "ENOENT"];

const fn isolated(id: &'static str, works: &'static str, fails: &'static str) -> Case {
    act(ProcIsolated, id, works, fails, NOT_THERE).given(|s| {
        s.bystander("pid");
    })
}

const fn unprivileged(id: &'static str, fails: &'static str, answers: &'static [&'static str]) -> Case {
    act(ProcUnprivileged, id, "status Uid", fails, answers)
}

pub const CASES: &[Case] = &[
    isolated("see a process", "exists /proc/self/stat", "exists /proc/{pid}"),
    isolated("environment of a process", "read /proc/self/stat", "read /proc/{pid}/environ"),
    isolated("memory of a process", "read /proc/self/stat", "read /proc/{pid}/maps"),
    isolated("descriptors of a process", "list /proc/self/fd", "list /proc/{pid}/fd"),
    isolated("signal a process", "signal 1", "signal {pid}"),
    isolated("kill a process", "signal 1", "kill {pid}"),
    isolated("handle of a process", "pidfd 1", "pidfd {pid}"),
    isolated("trace a process", "trace-child", "trace {pid}"),
    isolated("read a process", "status Pid", "vm-read {pid} {pid-address}"),
    isolated("root of a process", "exists /proc/self/root", "exists /proc/{pid}/root/etc"),
    isolated("environments of all", "pids", "find-bystander").answers(&["ok nothing"]),
    // Process 1 holds the box together: nobody inside stops, reads or traces it.
    act(ProcIsolated, "trace process 1", "trace-child", "trace 1", &["EPERM", "EACCES"]).outside(Outside::Untried),
    act(ProcIsolated, "read process 1", "trace-child", "vm-read 1 0x400000", &["EPERM", "EACCES", "EFAULT"])
        .outside(Outside::Untried),
    act(ProcIsolated, "memory of process 1", "read /proc/self/stat", "read /proc/1/maps", &["EACCES", "EPERM"])
        .outside(Outside::Untried),
    act(ProcIsolated, "descriptors of process 1", "read /proc/self/fd/0", "read /proc/1/fd/0", DENIED_OR_CLOSED)
        .outside(Outside::Untried),
    act(ProcIsolated, "shared memory", "shm-own", "shm {shm}", &["ENOENT"]).given(shared_memory),
    act(ProcIsolated, "message queue", "shm-own", "mqueue {mq}", &["ENOENT"]).given(message_queue),
    act(ProcIsolated, "host name", "hostname", "hostname", &["ok ringfence"]),
    act(ProcIsolated, "set the host name", "hostname", "set-hostname", &["EPERM"]).outside(Outside::Untried),
    unprivileged(
        "capabilities",
        "status CapInh,CapPrm,CapEff,CapBnd,CapAmb",
        &[
            "ok CapInh=0000000000000000 CapPrm=0000000000000000 CapEff=0000000000000000 CapBnd=0000000000000000 CapAmb=0000000000000000",
        ],
    ),
    unprivileged("no new privileges", "status NoNewPrivs", &["ok NoNewPrivs=1"]),
    unprivileged("filtered", "status Seccomp", &["ok Seccomp=2"]),
    unprivileged("make a device", "mknod {project}/device", &["EPERM"]).outside(Outside::WorksForRoot),
    unprivileged("give a file away", "chown {project}/file 1", &["EPERM", "EINVAL", "EOVERFLOW"])
        .outside(Outside::WorksForRoot)
        .needs(Needs::User),
    unprivileged("become another user", "become 1", &["EPERM", "EINVAL"]).outside(Outside::WorksForRoot),
    unprivileged("raise its priority", "priority", &["EACCES", "EPERM"]).outside(Outside::WorksForRoot),
    unprivileged("a set-user-id program", "exec {tool} ids", &["ok ok 0 0 0"])
        .needs(Needs::Root)
        .on_docker("status Uid", &["ok ok 1000 1000 1000"])
        .given(|s| {
            let tool = s.project.join("tool");
            std::fs::copy(&s.probe, &tool).unwrap();
            std::os::unix::fs::chown(&tool, Some(1), Some(1)).unwrap();
            std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o6755)).unwrap();
            s.word("tool", tool.display());
        }),
    unprivileged("read what only root may", "read /etc/shadow", &["EACCES", "ENOENT"]).outside(Outside::WorksForRoot),
    unprivileged("read kernel memory", "read /proc/kcore", &["EACCES", "EPERM", "ENOENT"]).outside(Outside::Untried),
];

fn shared_memory(s: &mut Scene) {
    static NEXT: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0x5246_0000);
    struct Segment(i32);
    impl Drop for Segment {
        fn drop(&mut self) {
            // SAFETY: removes a segment that is ours; no pointer is given.
            unsafe { libc::shmctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
    let key = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) ^ ((std::process::id() as i32) << 4);
    // SAFETY: integers only.
    let id = unsafe { libc::shmget(key, 4096, libc::IPC_CREAT | 0o666) };
    assert!(id >= 0, "shared memory: {}", std::io::Error::last_os_error());
    s.keep(Segment(id));
    s.word("shm", key);
}

fn message_queue(s: &mut Scene) {
    struct Queue(std::ffi::CString);
    impl Drop for Queue {
        fn drop(&mut self) {
            // SAFETY: a live string.
            unsafe { libc::mq_unlink(self.0.as_ptr()) };
        }
    }
    let tag = containment::scene::tag();
    let name = std::ffi::CString::new(format!("/{tag}")).unwrap();
    // SAFETY: a live string, a mode, and no attributes.
    let queue = unsafe { libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600, std::ptr::null::<u8>()) };
    assert!(queue >= 0, "message queue: {}", std::io::Error::last_os_error());
    // SAFETY: a descriptor of ours, closed once.
    unsafe { libc::mq_close(queue) };
    s.keep(Queue(name));
    s.word("mq", tag);
}

pub const STORIES: &[Story] = &[
    story(ProcIsolated, "only its own processes", only_own_processes),
    story(ProcIsolated, "a signal to all reaches nobody outside", signal_to_all),
    story(ProcIsolated, "keys typed into the outer terminal", typed_keys),
    story(ProcIsolated, "the outer terminal", outer_terminal),
    story(ProcUnprivileged, "ids on the host", ids_on_the_host),
    story(ProcUnprivileged, "a file that was made set-user-id inside", made_inside),
    story(ProcCleanStart, "descriptors", descriptors),
    story(ProcCleanStart, "a directory as a standard descriptor", directory_as_descriptor),
    story(FsProtectedPaths, "a protected file as standard input", protected_file_as_descriptor),
    story(ProcCleanStart, "a file as standard input is as outside", file_as_descriptor),
    story(ProcCleanStart, "environment", environment_is_the_policy_s),
    story(ProcCleanStart, "a clean one for the other profiles", clean_environment),
    story(ProcCleanStart, "the launcher's environment is nowhere", launcher_is_nowhere),
    story(ProcCleanStart, "signals and mask", signals),
    story(FsWritesConfined, "an inherited directory", inherited_directory),
];

fn only_own_processes(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let lines = stage.answers(&scene, "pids")?;
    let pids: Vec<i32> = lines[0].split(' ').skip(1).filter_map(|p| p.parse().ok()).collect();
    // Process 1, what an engine needs beside it, and the probe.
    ensure(!pids.is_empty() && pids.len() <= 3 && pids.iter().all(|p| *p < 10), || format!("{lines:?}"))
}

fn signal_to_all(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    let bystander = scene.bystander("pid");
    // Everybody that it may signal, with everything that ends a process.
    let script = "kill -TERM -1; kill -KILL -1; kill -KILL 1; echo alive";
    let ran = stage.sandbox(&scene).run(&["sh".into(), "-c".into(), script.into()]).map_err(|e| e.to_string())?;
    ensure(std::path::Path::new(&format!("/proc/{bystander}/stat")).exists(), || format!("a bystander died: {ran:?}"))
}

/// A terminal of the host's: master and slave.
fn terminal() -> Result<(File, File), String> {
    use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).map_err(|e| e.to_string())?;
    unlockpt(&master).map_err(|e| e.to_string())?;
    let name = ptsname(&master, Vec::new()).map_err(|e| e.to_string())?;
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let slave = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).map_err(|e| e.to_string())?;
    Ok((master.into(), slave.into()))
}

/// Runs acts with a terminal of the host's as standard input; what the probe said.
fn with_terminal(stage: &Stage, scene: &Scene, acts: &str) -> Result<String, String> {
    let (_master, slave) = terminal()?;
    let said = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    let out = || said.as_file().try_clone().map_err(|e| e.to_string());
    let mut command = vec![scene.probe.display().to_string()];
    command.extend(scene.act(acts));
    let stdio = StdioSpec::Files([slave.into(), out()?.into(), out()?.into()]);
    let started = stage.sandbox(scene).start(&command, stdio).map_err(|e| e.to_string())?;
    let containment::sandbox::Started { running, policy, facts, .. } = started;
    supervise(running, &policy, &facts, &mut containment::sandbox::Nobody).map_err(|e| e.to_string())?;
    std::fs::read_to_string(said.path()).map_err(|e| e.to_string())
}

fn typed_keys(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    if host::is_root() && !containment::bare_kernel() {
        let (_master, slave) = terminal()?;
        let output = Command::new(&stage.probe).args(["type-into", "0"]).stdin(Stdio::from(slave)).output();
        let said = String::from_utf8_lossy(&output.map_err(|e| e.to_string())?.stdout).into_owned();
        same("outside", said.as_str(), "ok\n")?;
    }
    let said = with_terminal(stage, &scene, "type-into 0 + type-into-high 0")?;
    same("inside", said.as_str(), "EPERM\nEPERM\n")
}

/// The terminal that the launcher was started from cannot be opened again by name.
fn outer_terminal(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let said = with_terminal(stage, &scene, "terminal + list /dev/pts")?;
    let lines: Vec<&str> = said.lines().collect();
    ensure(lines[0] == "ENXIO", || format!("/dev/tty: {said}"))?;
    ensure(lines[1] == "ok ptmx", || format!("/dev/pts: {said}"))
}

fn ids_on_the_host(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.word("held", containment::scene::tag());
    let mut command = vec![scene.probe.display().to_string()];
    command.extend(scene.act("hold 1000 {held}"));
    let stdio = StdioSpec::Files([containment::sandbox::null(), null_out(), null_out()]);
    let started = stage.sandbox(&scene).start(&command, stdio).map_err(|e| e.to_string())?;
    let held = scene.words["held"].clone();
    let mut seen = Vec::new();
    host::eventually(std::time::Duration::from_secs(10), || {
        seen = host::processes_with(&held);
        !seen.is_empty()
    });
    let mut ids = Vec::new();
    for pid in &seen {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        ids.extend(status.lines().filter(|l| l.starts_with("Uid:") || l.starts_with("Gid:")).map(str::to_owned));
        ids.extend(status.lines().filter(|l| l.starts_with("Groups:")).map(str::to_owned));
    }
    started.running.finish().map_err(|e| e.to_string())?;
    ensure(!ids.is_empty(), || "the command was not found on the host".to_owned())?;
    let number = |line: &String| line.split_whitespace().skip(1).all(|n| n.parse::<u32>().is_ok_and(|n| n != 0));
    if host::is_root() {
        ensure(ids.iter().all(number), || format!("root on the host: {ids:?}"))
    } else {
        let own = rustix::process::getuid().as_raw().to_string();
        let uids = ids.iter().filter(|l| l.starts_with("Uid:"));
        ensure(uids.clone().all(|l| l.split_whitespace().skip(1).all(|n| n == own)), || format!("{ids:?}"))
    }
}

fn null_out() -> std::os::fd::OwnedFd {
    File::options().write(true).open("/dev/null").expect("the null device").into()
}

/// Set-user-id, inside and outside, of a file that a box made: nobody's privileges but the box's own.
fn made_inside(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Apart);
    let script = format!("cp {} tool; chmod 4755 tool; ./tool ids", scene.probe.display());
    let ran = stage.sandbox(&scene).run(&["sh".into(), "-c".into(), script]).map_err(|e| e.to_string())?;
    let uid = rustix::process::getuid().as_raw();
    ensure(ran.stdout.is_empty() || ran.stdout == format!("ok {uid} {uid} {uid}\n"), || format!("{ran:?}"))
}

fn descriptors(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    // Open in this process, not closed by an exec: a directory, and a file that is secret.
    let root = File::open("/").map_err(|e| e.to_string())?;
    let secret = File::open(scene.home.join(".netrc")).map_err(|e| e.to_string())?;
    for file in [&root, &secret] {
        rustix::io::fcntl_setfd(file.as_fd(), rustix::io::FdFlags::empty()).map_err(|e| e.to_string())?;
    }
    let acts =
        format!("descriptors + read /proc/self/fd/{} + list /proc/self/fd/{}", secret.as_raw_fd(), root.as_raw_fd());
    let outside = stage.outside(&scene, &acts)?;
    same("outside", outside[1].as_str(), format!("ok {SECRET}").as_str())?;
    same("inside", stage.answers(&scene, &acts)?, ["ok 0 1 2", "ENOENT", "ENOENT"])
}

fn inherited_directory(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let home = File::open(&scene.home).map_err(|e| e.to_string())?;
    rustix::io::fcntl_setfd(home.as_fd(), rustix::io::FdFlags::empty()).map_err(|e| e.to_string())?;
    let act = format!("create /proc/self/fd/{}/new", home.as_raw_fd());
    same("inside", stage.answers(&scene, &act)?, ["ENOENT"])?;
    same("outside", stage.outside(&scene, &act)?, ["ok"])
}

/// A directory of the host leads to what lies above it, whatever is hidden inside. A file leads nowhere.
fn directory_as_descriptor(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let way = ["cat", "/proc/self/fd/0/../.npmrc"].map(str::to_owned);
    let directory = || File::open(&scene.project).map_err(|e| e.to_string());
    let outside = Command::new(&way[0]).args(&way[1..]).stdin(directory()?).output().map_err(|e| e.to_string())?;
    same("outside", String::from_utf8_lossy(&outside.stdout).as_ref(), SECRET)?;
    let inside = |stdin: OwnedFd, command: &[String]| {
        let said = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
        let out = || said.as_file().try_clone().map(OwnedFd::from).map_err(|e| e.to_string());
        let started = stage.sandbox(&scene).start(command, StdioSpec::Files([stdin, out()?, out()?]));
        let Started { running, policy, facts, .. } = match started {
            Ok(started) => started,
            Err(Refusal::Engine(EngineError::Unfit { unfit, .. })) => return Ok(Err(unfit)),
            Err(other) => return Err(other.to_string()),
        };
        supervise(running, &policy, &facts, &mut containment::sandbox::Nobody).map_err(|e| e.to_string())?;
        std::fs::read_to_string(said.path()).map(Ok).map_err(|e| e.to_string())
    };
    same("a directory", inside(directory()?.into(), &way)?, Err(Unfit::Directory))?;
    for (path, unfit) in [(&scene.project, Unfit::Directory), (&scene.project.join("file"), Unfit::PathHandle)] {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map_err(|e| e.to_string())?;
        same("a handle", inside(handle, &way)?, Err(unfit))?;
    }
    let file = || File::open(scene.project.join("file")).map(OwnedFd::from).map_err(|e| e.to_string());
    same("a file", inside(file()?, &["cat".to_owned()])?, Ok(PLAIN.to_owned()))?;
    let by_file = inside(file()?, &way)?.map_err(|unfit| unfit.to_string())?;
    ensure(!by_file.contains(SECRET), || format!("by a file: {by_file}"))
}

/// Runs a script with these standard descriptors; what it wrote to the last one.
fn with_files(stage: &Stage, scene: &Scene, stdin: File, script: &str) -> Result<String, String> {
    let said = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    let out = || said.as_file().try_clone().map_err(|e| e.to_string());
    let stdio = StdioSpec::Files([stdin.into(), out()?.into(), out()?.into()]);
    let command = ["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    let Started { running, policy, facts, .. } =
        stage.sandbox(scene).start(&command, stdio).map_err(|e| e.to_string())?;
    supervise(running, &policy, &facts, &mut containment::sandbox::Nobody).map_err(|e| e.to_string())?;
    std::fs::read_to_string(said.path()).map_err(|e| e.to_string())
}

/// It is open for reading, on a mount of the host's: its name in `/proc` must not lead there for writing.
fn protected_file_as_descriptor(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let file = scene.project.join(".git/hooks/pre-commit");
    let prepared = std::fs::create_dir_all(file.parent().unwrap_or(&scene.project))
        .and_then(|()| std::fs::write(&file, "plain\n"))
        .and_then(|()| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)));
    prepared.map_err(|e| e.to_string())?;
    let open = || File::open(&file).map_err(|e| e.to_string());
    let script = "cat; echo planted 2>&1 >>/proc/self/fd/0 && echo written; chmod 777 /proc/self/fd/0 && echo changed";
    let said = with_files(stage, &scene, open()?, script)?;
    ensure(said.starts_with("plain\n"), || format!("it must be readable: {said}"))?;
    ensure(!said.contains("written") && !said.contains("changed"), || said.clone())?;
    let mode = std::fs::metadata(&file).map_err(|e| e.to_string())?.permissions().mode() & 0o777;
    let text = std::fs::read_to_string(&file).map_err(|e| e.to_string())?;
    same("the file", (text.as_str(), mode), ("plain\n", 0o666))?;
    let outside = Command::new("sh").args(["-c", script]).stdin(open()?).output().map_err(|e| e.to_string())?;
    same("outside", String::from_utf8_lossy(&outside.stdout).as_ref(), "plain\nwritten\nchanged\n")
}

/// The position is the caller's before and after; the file can be mapped, read at any place, and grows.
fn file_as_descriptor(stage: &Stage) -> Result<(), String> {
    use std::io::{Read, Seek, SeekFrom, Write};
    let scene = stage.scene(Place::Home);
    let mut file = tempfile::NamedTempFile::new_in(&scene.home).map_err(|e| e.to_string())?;
    let text = |e: std::io::Error| e.to_string();
    file.write_all(b"zero\none\ntwo\n").map_err(text)?;
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o666)).map_err(text)?;
    let mut callers = File::open(file.path()).map_err(text)?;
    callers.seek(SeekFrom::Start(5)).map_err(text)?;
    let said = with_files(stage, &scene, callers.try_clone().map_err(text)?, "read line; echo got $line")?;
    same("the first line from there", said.as_str(), "got one\n")?;
    let mut rest = String::new();
    callers.read_to_string(&mut rest).map_err(text)?;
    same("what is left to the caller", rest.as_str(), "two\n")?;
    let script = "tail -c 4; test -f /proc/self/fd/0 && echo file; cat /dev/stdin | head -n 1";
    callers.rewind().map_err(text)?;
    let said = with_files(stage, &scene, callers, script)?;
    same("as a file", said.as_str(), "two\nfile\nzero\n")?;
    // What has lost its name is read as well.
    let unnamed = File::open(file.path()).map_err(text)?;
    file.close().map_err(text)?;
    same("without a name", with_files(stage, &scene, unnamed, "cat")?.as_str(), "zero\none\ntwo\n")
}

fn environment_is_the_policy_s(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    let dropped = [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "SSH_AUTH_SOCK",
        "SSH_AGENT_PID",
        "DBUS_SESSION_BUS_ADDRESS",
        "DOCKER_HOST",
        "GPG_AGENT_INFO",
        "BASH_ENV",
        "ENV",
        "PYTHONSTARTUP",
        "WAYLAND_DISPLAY",
        "DISPLAY",
        "XAUTHORITY",
        "CONTAINER_HOST",
        "TMUX",
    ];
    for name in dropped {
        scene.env.insert(name.into(), "/dropped-value".into());
    }
    for name in ["LANG", "EDITOR", "ANTHROPIC_API_KEY", "PYTHONPATH"] {
        scene.env.insert(name.into(), "kept".into());
    }
    scene.policy.env(std::ffi::OsStr::new("ADDED=by-flag")).map_err(|e| e.to_string())?;
    let lines = stage.answers(&scene, "own-environment")?;
    ensure(!lines[0].contains("dropped-value"), || lines[0].clone())?;
    for name in ["LANG=kept", "EDITOR=kept", "ANTHROPIC_API_KEY=kept", "PYTHONPATH=kept", "ADDED=by-flag"] {
        ensure(lines[0].contains(name), || format!("{name} is not in {}", lines[0]))?;
    }
    // A full name is meant.
    scene.policy.env(std::ffi::OsStr::new("SSH_AUTH_SOCK")).map_err(|e| e.to_string())?;
    let lines = stage.answers(&scene, "own-environment")?;
    ensure(lines[0].contains("SSH_AUTH_SOCK=/dropped-value"), || lines[0].clone())
}

fn clean_environment(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.env.insert("ANTHROPIC_API_KEY".into(), SECRET.into());
    scene.policy.profile("shell");
    let ran = stage.sandbox(&scene).run(&["env".into()]).map_err(|e| e.to_string())?;
    ensure(ran.stdout.contains("PATH=") && !ran.stdout.contains(SECRET), || ran.stdout.clone())?;
    scene.policy.env(std::ffi::OsStr::new("ANTHROPIC_API_KEY")).map_err(|e| e.to_string())?;
    let ran = stage.sandbox(&scene).run(&["env".into()]).map_err(|e| e.to_string())?;
    ensure(ran.stdout.contains(&format!("ANTHROPIC_API_KEY={SECRET}")), || ran.stdout.clone())
}

/// The launcher's environment and command line, in every process of the box.
fn launcher_is_nowhere(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    // A variable that is dropped, and an argument that only the launcher has.
    let hidden = "needle-in-the-launcher";
    let output = Command::new(&stage.launcher)
        .args([stage.engine.name(), &scene.home.display().to_string(), &scene.project.display().to_string()])
        .args([hidden, "--"])
        .arg(&scene.probe)
        .args(["find-launcher"])
        .env("SSH_AUTH_SOCK", hidden)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    same("what shows the launcher", said.as_str(), "ok nothing\n")
}

/// Nothing is blocked or ignored that the launcher blocked or ignored.
fn signals(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let lines = stage.answers(&scene, "status SigBlk,SigIgn")?;
    // Rust's own start-up ignores SIGPIPE in the probe; the C library keeps 32 and 33 for itself.
    let known = ["0000000000001000", "0000000080001000", "0000000180001000"];
    let fine = known.iter().any(|ignored| lines[0] == format!("ok SigBlk=0000000000000000 SigIgn={ignored}"));
    ensure(fine, || format!("{lines:?}"))
}
