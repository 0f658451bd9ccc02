//! The same commands on every engine give the same results. What the walls hold is the containment suite's business.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_engine::engines::{self, Event};
use ringfence_engine::policy::facts::Facts;
use ringfence_engine::policy::plan::{Mount, Plan, plan, plan_with};
use ringfence_engine::policy::policy::{Root, User, Workspace};
use ringfence_engine::policy::rules::{Access, FileRule, Kind, LayerKind, Missing, Origin, Pattern};
use ringfence_engine::policy::tree::Tree;
use ringfence_engine::policy::{Guarantee, Policy};
use ringfence_engine::report::Report;
use ringfence_engine::{EngineError, EngineRef, Running, StandardStream, StdioSpec, Unfit};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// A project to run in, gone with the test.
struct Project {
    dir: tempfile::TempDir,
    facts: Facts,
    policy: Policy,
}

impl Project {
    fn new() -> Self {
        let mut facts = ringfence_engine::facts::gather().unwrap();
        let dir = ringfence_testing::project_dir(env!("CARGO_TARGET_TMPDIR"));
        let workdir = std::fs::canonicalize(dir.path()).unwrap();
        facts.env = BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
        let policy = ringfence_testing::policy(&workdir);
        Self { dir, facts, policy }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn plan(&self, command: &[&str]) -> Plan {
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        plan(&self.policy, &self.facts, &command).unwrap()
    }

    fn start(&self, engine: EngineRef, command: &[&str]) -> Started {
        self.start_plan(engine, &self.plan(command))
    }

    fn start_plan(&self, engine: EngineRef, plan: &Plan) -> Started {
        let (stdout, out) = pipe();
        let (stderr, err) = pipe();
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let running = engines::start(
            engine,
            plan,
            &report(engine, plan, &self.facts),
            &self.facts,
            StdioSpec::Files([null, out, err]),
        )
        .unwrap();
        Started { running, stdout, stderr }
    }

    /// Runs a shell script to its end.
    fn sh(&self, engine: EngineRef, script: &str) -> Ended {
        self.start(engine, &["sh", "-c", script]).end()
    }
}

fn pipe() -> (std::fs::File, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (read.into(), write)
}

struct Started {
    running: Running,
    stdout: std::fs::File,
    stderr: std::fs::File,
}

#[derive(Debug, PartialEq, Eq)]
struct Ended {
    /// As a shell tells it: 128 and the signal's number for one that was killed.
    code: i32,
    stdout: String,
    stderr: String,
}

impl Started {
    fn end(mut self) -> Ended {
        let code = code(&self.running).unwrap();
        self.running.finish().unwrap();
        Ended { code, stdout: read(&mut self.stdout), stderr: read(&mut self.stderr) }
    }

    /// Waits for a line.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while self.stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// What it failed with, and that nothing was written to the command's descriptors.
    fn error(mut self) -> EngineError {
        let error = code(&self.running).unwrap_err();
        self.running.finish().unwrap();
        assert_eq!((read(&mut self.stdout), read(&mut self.stderr)), (String::new(), String::new()));
        error
    }
}

fn read(file: &mut std::fs::File) -> String {
    let mut text = Vec::new();
    file.read_to_end(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn code(running: &Running) -> Result<i32, EngineError> {
    loop {
        match running.next_event()? {
            Event::Exited { status } if libc::WIFSIGNALED(status) => return Ok(128 + libc::WTERMSIG(status)),
            Event::Exited { status } => return Ok(libc::WEXITSTATUS(status)),
            Event::Closed => panic!("process 1 went without a word"),
            _ => {}
        }
    }
}

/// Whether a process with this argument is there.
fn alive(argument: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        cmdline.split(|b| *b == 0).any(|word| word == argument.as_bytes())
    })
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A number of seconds that no other process sleeps.
fn sleep_of_our_own() -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{}.{next}", 100_000 + std::process::id())
}

/// Makes a test of each function for each engine.
macro_rules! on_both {
    ($($test:ident)*) => {
        mod native {
            $(#[test] fn $test() { super::$test(ringfence_engine::engines::native::ENGINE) })*
        }
        mod bubblewrap {
            $(#[test] fn $test() { super::$test(ringfence_engine::engines::bubblewrap::ENGINE) })*
        }
    };
}

on_both! {
    exit_status_passes
    stdout_and_stderr_are_apart
    closed_output_ends
    files_belong_to_the_caller
    ids_inside
    limits_of_a_process
    missing_program
    unexecutable_program
    script_without_interpreter
    failed_set_up
    missing_working_directory
    term_is_handled
    early_signal_is_not_lost
    interrupt_reaches_the_group
    signals_are_not_blocked
    nothing_survives_the_command
    nothing_survives_the_end
    nothing_survives_process_one
    launcher_environment_is_not_there
    terminal_of_its_own
    terminal_stops_and_continues
    interactive_shell_has_job_control
    programs_root
    a_hidden_name_that_went
    a_neighbours_name_that_went_while_planning
    what_leads_out_is_not_handed_in
    one_plan_is_started_often
    a_cover_that_is_covered
    a_directory_that_became_a_link
    a_file_that_became_a_link
    a_directory_that_is_swapped_all_the_time
}

/// A neighbour's socket, there when the plan was made: the box is made without it, and what stays is hidden.
fn a_hidden_name_that_went(engine: EngineRef) {
    let mut project = Project::new();
    let neighbour = tempfile::tempdir_in(project.dir.path().parent().unwrap()).unwrap();
    let place = std::fs::canonicalize(neighbour.path()).unwrap();
    let (stays, goes) = (place.join("stays"), place.join("sub/goes"));
    std::fs::create_dir(place.join("sub")).unwrap();
    let sockets = [&stays, &goes].map(|path| std::os::unix::net::UnixListener::bind(path).unwrap());
    project.facts.sockets = vec![stays.clone(), goes.clone()];
    let plan = project.plan(&["sh", "-c", &format!("echo in; [ -S {0} ] || echo hidden", stays.display())]);
    std::fs::remove_dir_all(place.join("sub")).unwrap();
    let ended = project.start_plan(engine, &plan).end();
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "in\nhidden\n"), "{}", ended.stderr);
    drop(sockets);
}

fn exit_status_passes(engine: EngineRef) {
    let project = Project::new();
    for expected in [0, 1, 7, 125, 127, 255] {
        assert_eq!(project.sh(engine, &format!("exit {expected}")).code, expected);
    }
    assert_eq!(project.sh(engine, "kill -9 $$").code, 137);
}

fn stdout_and_stderr_are_apart(engine: EngineRef) {
    let project = Project::new();
    let ended = project.sh(engine, "echo out; echo err >&2; ls /proc/self/fd");
    assert_eq!(ended, Ended { code: 0, stdout: "out\n0\n1\n2\n3\n".to_owned(), stderr: "err\n".to_owned() });
}

fn closed_output_ends(engine: EngineRef) {
    let project = Project::new();
    let mut started = project.start(engine, &["sh", "-c", "echo last; exec >&- 2>&-; exec sleep 1000"]);
    assert_eq!(read(&mut started.stdout), "last\n");
    assert_eq!(read(&mut started.stderr), "");
    started.running.finish().unwrap();
}

fn files_belong_to_the_caller(engine: EngineRef) {
    use std::os::unix::fs::MetadataExt;
    let project = Project::new();
    std::fs::write(project.path("secret"), "mine").unwrap();
    std::fs::set_permissions(project.path("secret"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let ended = project.sh(engine, "cat secret && echo >made && ! echo >/etc/ringfence-test");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "mine"), "{}", ended.stderr);
    let made = std::fs::metadata(project.path("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (project.facts.uid, project.facts.gid));
}

fn ids_inside(engine: EngineRef) {
    let mut project = Project::new();
    project.policy.user = User::Ids { uid: 1000, gid: 1000 };
    let ended = project.sh(engine, "id -u; id -g; echo >made");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "1000\n1000\n"), "{}", ended.stderr);
    files_belong_to_the_caller(engine);
}

fn limits_of_a_process(engine: EngineRef) {
    let mut project = Project::new();
    project.policy.limits.files = Some(77);
    assert_eq!(project.sh(engine, "ulimit -n").stdout, "77\n");
}

fn missing_program(engine: EngineRef) {
    let project = Project::new();
    let error = project.start(engine, &["./missing"]).error();
    assert!(matches!(error, EngineError::Execute { errno: Errno::NOENT, .. }), "{error:?}");
}

fn unexecutable_program(engine: EngineRef) {
    let project = Project::new();
    std::fs::write(project.path("plain"), "").unwrap();
    let error = project.start(engine, &["./plain"]).error();
    assert!(matches!(error, EngineError::Execute { errno: Errno::ACCESS, .. }), "{error:?}");
}

fn script_without_interpreter(engine: EngineRef) {
    let project = Project::new();
    std::fs::write(project.path("script"), "echo \"$1\"; exit 3\n").unwrap();
    std::fs::set_permissions(project.path("script"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let ended = project.start(engine, &["./script", "a b"]).end();
    assert_eq!((ended.code, ended.stdout.as_str()), (3, "a b\n"));
}

fn failed_set_up(engine: EngineRef) {
    let project = Project::new();
    let mut plan = project.plan(&["sh", "-c", "echo started"]);
    let missing = project.path("missing");
    plan.mounts.push(Mount::Bind { source: missing.clone(), target: missing, writable: false, kind: Kind::Dir });
    let error = after(&project, engine, &plan, || ());
    assert!(matches!(error, EngineError::Setup { .. } | EngineError::View { .. }), "{error:?}");
    assert!(error.to_string().contains("missing"), "{error}");
}

fn missing_working_directory(engine: EngineRef) {
    let project = Project::new();
    let mut plan = project.plan(&["sh", "-c", "echo started"]);
    plan.workdir = PathBuf::from("/etc/missing");
    let error = project.start_plan(engine, &plan).error();
    assert!(matches!(error, EngineError::Setup { .. } | EngineError::Builder { .. }), "{error:?}");
}

fn term_is_handled(engine: EngineRef) {
    let project = Project::new();
    let script = "trap 'echo handled; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut started = project.start(engine, &["sh", "-c", script]);
    assert_eq!(started.line(), "ready");
    started.running.signal(libc::SIGTERM).unwrap();
    let ended = started.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (3, "handled\n"));
}

fn early_signal_is_not_lost(engine: EngineRef) {
    let project = Project::new();
    for pause in [0, 1, 2, 4, 8] {
        let started = project.start(engine, &["sleep", "1000"]);
        // Before process 1 takes signals over, one would end it: what must not happen is that it goes unnoticed.
        std::thread::sleep(Duration::from_millis(pause));
        started.running.signal(libc::SIGTERM).unwrap();
        let event = started.running.next_event().unwrap();
        assert!(matches!(event, Event::Exited { .. } | Event::Closed), "{event:?}");
        started.running.finish().unwrap();
    }
}

fn interrupt_reaches_the_group(engine: EngineRef) {
    let project = Project::new();
    let seconds = sleep_of_our_own();
    let script = format!("trap 'exit 4' INT; echo ready; sleep {seconds}; exit 5");
    let mut started = project.start(engine, &["sh", "-c", &script]);
    assert_eq!(started.line(), "ready");
    wait_until("the child starts", || alive(&seconds));
    started.running.signal(libc::SIGINT).unwrap();
    assert_eq!(started.end().code, 4);
}

fn signals_are_not_blocked(engine: EngineRef) {
    let project = Project::new();
    let ended = project.sh(engine, "grep -E 'Sig(Blk|Ign)' /proc/self/status");
    let masks = ended.stdout.lines().map(|l| u64::from_str_radix(l.split_once('\t').unwrap().1, 16).unwrap());
    // 32 and 33 belong to the C library, which does not let their meaning be changed back.
    assert_eq!(masks.map(|m| m & !(0b11 << 31)).collect::<Vec<_>>(), [0, 0]);
}

fn nothing_survives_the_command(engine: EngineRef) {
    let project = Project::new();
    let seconds = sleep_of_our_own();
    let script = format!("setsid sleep {seconds} & sleep {seconds} & echo ready; exit 0");
    assert_eq!(project.sh(engine, &script).code, 0);
    assert!(!alive(&seconds));
}

fn nothing_survives_the_end(engine: EngineRef) {
    let project = Project::new();
    let seconds = sleep_of_our_own();
    let script = format!("trap '' TERM INT HUP; setsid sleep {seconds} & echo ready; sleep {seconds}");
    let mut started = project.start(engine, &["sh", "-c", &script]);
    assert_eq!(started.line(), "ready");
    wait_until("the child starts", || alive(&seconds));
    started.running.finish().unwrap();
    assert!(!alive(&seconds));
}

fn nothing_survives_process_one(engine: EngineRef) {
    let project = Project::new();
    let seconds = sleep_of_our_own();
    let script = format!("setsid sleep {seconds} & echo ready; sleep {seconds}");
    let mut started = project.start(engine, &["sh", "-c", &script]);
    assert_eq!(started.line(), "ready");
    wait_until("the child starts", || alive(&seconds));
    let pid = rustix::process::Pid::from_raw(started.running.pid()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_until("everything ends", || !alive(&seconds));
    started.running.finish().unwrap();
}

fn launcher_environment_is_not_there(engine: EngineRef) {
    let mut project = Project::new();
    project.facts.env.insert("TOKEN".into(), "s3cret-of-the-test".into());
    let script =
        "echo $TOKEN; cat /proc/1/environ /proc/1/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c 's3cret-[o]f'";
    let ended = project.sh(engine, script);
    assert_eq!(ended.stdout, "s3cret-of-the-test\n0\n");
}

/// What the engine answers for a plan.
fn report(engine: EngineRef, plan: &Plan, facts: &Facts) -> Report {
    engine.promise(plan, facts).unwrap()
}

/// Starts a script on a terminal of its own; returns the master side as well.
fn on_terminal(project: &Project, engine: EngineRef, script: &str) -> (Running, std::fs::File) {
    let plan = project.plan(&["sh", "-c", script]);
    let stdio = StdioSpec::Terminal { rows: 33, columns: 77, stderr: None };
    let running = engines::start(engine, &plan, &report(engine, &plan, &project.facts), &project.facts, stdio).unwrap();
    match running.next_event().unwrap() {
        Event::Terminal(master) => (running, master.into()),
        other => panic!("{other:?}"),
    }
}

/// Reads from a terminal until this text came.
fn expect(master: &mut std::fs::File, text: &str) {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(text.as_bytes()) {
        match master.read(&mut byte) {
            Ok(1) => seen.push(byte[0]),
            end => panic!("{end:?} instead of {text:?} after {:?}", String::from_utf8_lossy(&seen)),
        }
    }
}

fn terminal_of_its_own(engine: EngineRef) {
    let project = Project::new();
    // Without noflsh the kernel now and then drops what is written right after Ctrl-C, also on a plain terminal.
    let script = "stty size; stty noflsh; [ -t 0 ] && [ -t 2 ] && : >/dev/tty && trap 'echo got; exit 6' INT && echo ready; while :; do sleep 0.05; done";
    let (running, mut master) = on_terminal(&project, engine, script);
    expect(&mut master, "33 77\r\n");
    expect(&mut master, "ready\r\n");
    master.write_all(b"\x03").unwrap();
    expect(&mut master, "got\r\n");
    assert_eq!(code(&running).unwrap(), 6);
    running.finish().unwrap();
}

fn terminal_stops_and_continues(engine: EngineRef) {
    let project = Project::new();
    let (running, mut master) = on_terminal(&project, engine, "echo ready; read line; echo got $line");
    expect(&mut master, "ready\r\n");
    master.write_all(b"\x1a").unwrap();
    let event = running.next_event().unwrap();
    assert!(matches!(event, Event::Stopped(libc::SIGTSTP)), "{event:?}");
    running.signal(libc::SIGCONT).unwrap();
    master.write_all(b"word\n").unwrap();
    expect(&mut master, "got word\r\n");
    assert_eq!(code(&running).unwrap(), 0);
    running.finish().unwrap();
}

fn interactive_shell_has_job_control(engine: EngineRef) {
    let project = Project::new();
    let seconds = sleep_of_our_own();
    let (running, mut master) = on_terminal(&project, engine, "PS1='ask> ' exec bash --norc --noprofile -i");
    expect(&mut master, "ask> ");
    master.write_all(format!("sleep {seconds}\n").as_bytes()).unwrap();
    wait_until("the child starts", || alive(&seconds));
    master.write_all(b"\x1a").unwrap();
    expect(&mut master, "Stopped");
    expect(&mut master, "ask> ");
    master.write_all(b"fg; echo status $?\n").unwrap();
    expect(&mut master, &format!("sleep {seconds}\r\n"));
    // The shell hands the terminal over after it has said so.
    std::thread::sleep(Duration::from_millis(100));
    master.write_all(b"\x03").unwrap();
    expect(&mut master, "ask> ");
    master.write_all(b"exit 9\n").unwrap();
    assert_eq!(code(&running).unwrap(), 9);
    assert!(!alive(&seconds));
    running.finish().unwrap();
}

fn programs_root(engine: EngineRef) {
    let mut project = Project::new();
    // Below a directory that only the caller may enter.
    let inner = project.policy.workdir().join("inner");
    std::fs::create_dir(&inner).unwrap();
    project.policy.rules[0].pattern = Pattern::Exact(inner.clone());
    project.policy.workspace = Workspace::HostDirectory(inner);
    project.policy.root = Root::Programs;
    project.policy.user = User::Ids { uid: 1000, gid: 1000 };
    project.policy.workdir_at = Some(PathBuf::from("/workspace"));
    let ended = project.sh(engine, "pwd; id -un; echo >made; ls /; ! touch /x 2>/dev/null");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.starts_with("/workspace\nsandbox\n"), "{}", ended.stdout);
    assert!(!ended.stdout.lines().any(|l| Path::new("/root").ends_with(l)), "{}", ended.stdout);
    assert!(project.path("inner/made").exists());
}

/// A protected name that is not there.
fn keep(project: &mut Project, name: &str) {
    project.policy.rules.push(FileRule {
        access: Access::Ro,
        pattern: Pattern::Exact(project.policy.workdir().join(name)),
        missing: Missing::Protect(Kind::Dir),
        origin: Origin { layer: LayerKind::Profile, place: "test".into() },
    });
}

/// A box that fails while its names are made tells why, whichever of the two is faster, and leaves none.
#[test]
fn a_failure_before_the_names_are_there() {
    let mut project = Project::new();
    keep(&mut project, ".kept");
    let mut plan = project.plan(&["ls", "-A"]);
    assert_eq!(project.start_plan(ringfence_engine::engines::native::ENGINE, &plan).end().stdout, ".kept\n");
    let gone = Mount::Bind { source: project.path("gone"), target: "/mnt".into(), kind: Kind::Dir, writable: false };
    plan.mounts.insert(1, gone);
    for _ in 0..50 {
        let error = project.start_plan(ringfence_engine::engines::native::ENGINE, &plan).error();
        assert!(matches!(error, EngineError::Setup { .. }), "{error:?}");
        assert!(!project.path(".kept").exists());
    }
}

/// A name that the plan does not have, since a neighbour's was there when it was made.
#[test]
fn a_neighbours_name_that_went_since_planning() {
    let mut project = Project::new();
    keep(&mut project, "above/.kept");
    let neighbour = project.start(ringfence_engine::engines::native::ENGINE, &["sleep", "60"]);
    assert!(project.path("above/.kept").is_dir());
    let plan = project.plan(&["ls", "-A", "above"]);
    assert_eq!(plan.stubs.len(), 1, "{:?}", plan.stubs);
    assert_eq!(project.start_plan(ringfence_engine::engines::native::ENGINE, &plan).end().stdout, ".kept\n");
    neighbour.running.finish().unwrap();
    assert!(!project.path("above").exists());
    for _ in 0..10 {
        assert_eq!(project.start_plan(ringfence_engine::engines::native::ENGINE, &plan).end().stdout, ".kept\n");
        assert!(!project.path("above").exists());
    }
}

/// The planner saw a neighbour's placeholder, which went before the plan was made. It is planned as a missing name: it is held
/// while the sandbox lives, and nothing can be planted there, also when another neighbour comes and goes.
fn a_neighbours_name_that_went_while_planning(engine: EngineRef) {
    let mut project = Project::new();
    keep(&mut project, ".kept");
    let neighbour = project.start(ringfence_engine::engines::native::ENGINE, &["sleep", "60"]);
    let lookup = Tree::lookup(&project.policy, &project.facts);
    assert!(lookup.exists(&project.path(".kept")));
    neighbour.running.finish().unwrap();
    assert!(!project.path(".kept").exists());
    let script = "echo up; until [ -e go ]; do sleep 0.01; done
        for act in 'mkdir .kept/planted' 'rmdir .kept' 'mv .kept away' 'touch .kept/planted'; do
            $act 2>/dev/null && echo \"$act\"
        done; mkdir allowed && echo ended";
    let command: Vec<OsString> = ["sh", "-c", script].map(OsString::from).into();
    let plan = plan_with(&lookup, &project.policy, &project.facts, &command).unwrap();
    let kept = project.policy.workdir().join(".kept");
    assert!(plan.stubs.iter().any(|stub| stub.path == kept && !stub.present), "{:?}", plan.stubs);
    let mut started = project.start_plan(engine, &plan);
    assert_eq!(started.line(), "up");
    project.start(ringfence_engine::engines::native::ENGINE, &["true"]).end();
    assert!(project.path(".kept").is_dir());
    std::fs::write(project.path("go"), "").unwrap();
    let ended = started.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "ended\n"), "{}", ended.stderr);
    assert!(project.path("allowed").is_dir() && !project.path(".kept").exists());
}

/// A directory, or a handle of anything, leads from a sandbox to the host. A file, a pipe, a socket and a device do not.
fn what_leads_out_is_not_handed_in(engine: EngineRef) {
    let project = Project::new();
    std::fs::write(project.path("file"), "contents\n").unwrap();
    let open = |name: &str, flags| {
        let flags = flags | OFlags::CLOEXEC;
        rustix::fs::open(project.path(name), flags, rustix::fs::Mode::empty()).unwrap()
    };
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let epoll = || rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let unfit: [(&dyn Fn() -> OwnedFd, Unfit); 5] = [
        (&|| open(".", OFlags::RDONLY), Unfit::Directory),
        (&|| open(".", OFlags::PATH), Unfit::Directory),
        (&|| open("file", OFlags::PATH), Unfit::PathHandle),
        (&epoll, Unfit::Other),
        (&|| open("/proc/self/ns/mnt", OFlags::RDONLY), Unfit::Other),
    ];
    let plan = project.plan(&["cat"]);
    let report = report(engine, &plan, &project.facts);
    let expect = |running: Result<Running, EngineError>, stream: StandardStream, why: Unfit| match running {
        Err(EngineError::Unfit { stream: at, unfit }) => assert_eq!((at, unfit), (stream, why)),
        other => panic!("{why:?} as {stream}: {other:?}"),
    };
    for (make, why) in unfit {
        for (index, stream) in
            [StandardStream::Stdin, StandardStream::Stdout, StandardStream::Stderr].into_iter().enumerate()
        {
            let stdio = || {
                let mut stdio = [null(), null(), null()];
                stdio[index] = make();
                StdioSpec::Files(stdio)
            };
            expect(engines::start(engine, &plan, &report, &project.facts, stdio()), stream, why);
        }
        // With a terminal of its own, only standard error is handed in.
        let stdio = StdioSpec::Terminal { rows: 24, columns: 80, stderr: Some(make()) };
        expect(engines::start(engine, &plan, &report, &project.facts, stdio), StandardStream::Stderr, why);
    }
    let (mut socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
    socket.write_all(b"contents\n").unwrap();
    drop(socket);
    let (stdin, mut input) = pipe();
    std::fs::File::from(input.try_clone().unwrap()).write_all(b"contents\n").unwrap();
    input = null();
    let fit =
        [(open("file", OFlags::RDONLY), "contents\n"), (stdin.into(), "contents\n"), (other.into(), "contents\n")];
    for (stdin, expected) in fit.into_iter().chain([(input, "")]) {
        let (stdout, out) = pipe();
        let (stderr, err) = pipe();
        let running =
            engines::start(engine, &plan, &report, &project.facts, StdioSpec::Files([stdin, out, err])).unwrap();
        let ended = Started { running, stdout, stderr }.end();
        assert_eq!((ended.code, ended.stdout.as_str()), (0, expected), "{}", ended.stderr);
    }
}

/// Many boxes from one plan; its stand-ins are there as long as one of them lives.
fn one_plan_is_started_often(engine: EngineRef) {
    let mut project = Project::new();
    keep(&mut project, ".kept");
    let plan = project.plan(&["sh", "-c", "mkdir .kept/x 2>/dev/null && echo planted; read line; echo $line"]);
    let neighbour = project.start(engine, &["sleep", "60"]);
    for _ in 0..3 {
        let ended = project.start_plan(engine, &plan).end();
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("\n", ""));
        assert!(project.path(".kept").is_dir());
    }
    neighbour.running.finish().unwrap();
    assert!(!project.path(".kept").exists());
}

/// A rule for a name of the project.
fn rule(project: &mut Project, name: &str, access: Access) {
    project.policy.rules.push(FileRule {
        access,
        pattern: Pattern::Exact(project.policy.workdir().join(name)),
        missing: Missing::Ignore,
        origin: Origin { layer: LayerKind::Profile, place: "test".into() },
    });
}

/// Where something lies over a cover, the sandbox does not start, though each step of the plan was carried out.
fn a_cover_that_is_covered(engine: EngineRef) {
    for (access, broken) in [(Access::Exclude, Guarantee::FsSecretsHidden), (Access::Ro, Guarantee::FsProtectedPaths)] {
        let mut project = Project::new();
        std::fs::write(project.path("note"), "contents\n").unwrap();
        rule(&mut project, "note", access);
        let mut plan = project.plan(&["sh", "-c", "echo planted >note; cat note"]);
        let held = if access == Access::Ro { "contents\n" } else { "" };
        assert_eq!(project.start_plan(engine, &plan).end().stdout, held);
        let whole = project.policy.workdir().to_path_buf();
        let target = whole.clone();
        plan.mounts.push(Mount::Bind { source: whole.clone(), target, writable: true, kind: Kind::Dir });
        match project.start_plan(engine, &plan).error() {
            EngineError::View { guarantee, path, .. } => assert_eq!((guarantee, path), (broken, whole.join("note"))),
            other => panic!("{other:?}"),
        }
        assert_eq!(std::fs::read_to_string(project.path("note")).unwrap(), "contents\n");
    }
}

/// Starts a plan after its names were swapped, and says why there is no sandbox.
fn after(project: &Project, engine: EngineRef, plan: &Plan, swap: impl FnOnce()) -> EngineError {
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let report = report(engine, plan, &project.facts);
    swap();
    let stdio = StdioSpec::Files([null(), null(), null()]);
    let started = engines::start(engine, plan, &report, &project.facts, stdio).and_then(Running::verified);
    started.map(|running| running.finish()).unwrap_err()
}

/// What a plan names is swapped for a link before it is mounted: the link is not followed.
fn a_directory_that_became_a_link(engine: EngineRef) {
    let mut project = Project::new();
    for name in ["dir", "other"] {
        std::fs::create_dir_all(project.path(name).join("below")).unwrap();
        std::fs::write(project.path(name).join("below/note"), name).unwrap();
    }
    rule(&mut project, "dir/below", Access::Ro);
    let plan = project.plan(&["cat", "dir/below/note"]);
    assert_eq!(project.start_plan(engine, &plan).end().stdout, "dir");
    let error = after(&project, engine, &plan, || {
        std::fs::rename(project.path("dir"), project.path("moved")).unwrap();
        std::os::unix::fs::symlink("other", project.path("dir")).unwrap();
    });
    assert!(error.is_outdated() || matches!(error, EngineError::Unmet { .. }), "{error:?}");
    std::fs::remove_file(project.path("dir")).unwrap();
    std::fs::rename(project.path("moved"), project.path("dir")).unwrap();
    assert_eq!(project.start_plan(engine, &plan).end().stdout, "dir");
}

fn a_file_that_became_a_link(engine: EngineRef) {
    let mut project = Project::new();
    std::fs::write(project.path("note"), "note").unwrap();
    std::fs::write(project.path("other"), "other").unwrap();
    rule(&mut project, "note", Access::Ro);
    let plan = project.plan(&["cat", "note"]);
    assert_eq!(project.start_plan(engine, &plan).end().stdout, "note");
    let error = after(&project, engine, &plan, || {
        std::fs::remove_file(project.path("note")).unwrap();
        std::os::unix::fs::symlink("other", project.path("note")).unwrap();
    });
    assert!(error.is_outdated() || matches!(error, EngineError::Unmet { .. }), "{error:?}");
}

/// A neighbour exchanges a directory for a link to a place outside all the time. Nothing is ever written there, and sandboxes
/// that start write where they may.
fn a_directory_that_is_swapped_all_the_time(engine: EngineRef) {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let mut project = Project::new();
    let outside = tempfile::tempdir_in(project.dir.path().parent().unwrap()).unwrap();
    std::fs::create_dir_all(outside.path().join("out")).unwrap();
    std::fs::create_dir_all(project.path("dir/out")).unwrap();
    std::os::unix::fs::symlink(outside.path(), project.path("swap")).unwrap();
    rule(&mut project, "", Access::Ro);
    rule(&mut project, "dir/out", Access::Rw);
    let plan = project.plan(&["sh", "-c", "touch dir/out/planted 2>/dev/null; :"]);
    assert_eq!(project.start_plan(engine, &plan).end().code, 0);
    assert!(project.path("dir/out/planted").exists());
    let (over, report) = (AtomicBool::new(false), report(engine, &plan, &project.facts));
    let (dir, swap) = (project.path("dir"), project.path("swap"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            while !over.load(Relaxed) {
                rustix::fs::renameat_with(rustix::fs::CWD, &dir, rustix::fs::CWD, &swap, exchange).unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        for _ in 0..100 {
            let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
            let stdio = StdioSpec::Files([null(), null(), null()]);
            if let Ok(running) = engines::start(engine, &plan, &report, &project.facts, stdio) {
                let _ = code(&running);
                running.finish().unwrap();
            }
        }
        over.store(true, Relaxed);
    });
    assert!(!outside.path().join("out/planted").exists());
}

/// Whether this is a process in which no other test runs; else that has been started, and has passed.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "RINGFENCE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", test, "--nocapture"]).env(ALONE, "1");
    assert!(alone.status().unwrap().success());
    false
}

/// Boxes that are started and ended, from a thread that ends and a thread that stays, leave no descriptor and no process.
#[test]
fn boxes_leave_nothing_in_their_owner() {
    if !is_alone("boxes_leave_nothing_in_their_owner") {
        return;
    }
    let mut project = Project::new();
    keep(&mut project, ".kept");
    project.policy.limits.pids = Some(64);
    let plan = project.plan(&["true"]);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let run = || assert_eq!(project.start_plan(ringfence_engine::engines::native::ENGINE, &plan).end().code, 0);
    run();
    let before = open();
    for round in 0..50 {
        if round % 2 == 0 { run() } else { std::thread::scope(|scope| scope.spawn(run).join().unwrap()) }
    }
    // One that is dropped half-way.
    drop(project.start(ringfence_engine::engines::native::ENGINE, &["sleep", "60"]).running);
    assert!(open() <= before, "{} and {before}", open());
    assert_eq!(std::fs::read_to_string("/proc/thread-self/children").unwrap(), "");
    assert!(!project.path(".kept").exists());
}

#[test]
fn as_an_ordinary_user() {
    ringfence_testing::as_an_ordinary_user(&[]);
}
