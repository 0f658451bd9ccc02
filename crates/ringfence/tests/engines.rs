//! The same commands on every engine give the same results. What the walls hold is the containment suite's business.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence::engines::{self, Command, Event};
use ringfence::policy::facts::Facts;
use ringfence::policy::limits::Limits;
use ringfence::policy::plan::{Mount, Plan, plan};
use ringfence::policy::policy::{Caches, EnvPolicy, Network, Root, User};
use ringfence::policy::rules::{Access, FileRule, Kind, LayerKind, Missing, Origin, Pattern};
use ringfence::policy::{Guarantee, Policy};
use ringfence::{Engine, EngineError, Pool, Prepared, Running, StdioSpec};
use rustix::io::Errno;

/// A project to run in, gone with the test.
struct Project {
    dir: tempfile::TempDir,
    facts: Facts,
    policy: Policy,
}

impl Project {
    fn new() -> Self {
        let mut facts = ringfence::facts::gather().unwrap();
        // Not in a private place such as /tmp; another user than the one who built this has only a home.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir_in(&facts.home));
        let dir = dir.unwrap();
        let workdir = std::fs::canonicalize(dir.path()).unwrap();
        facts.env = BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
        let rule = FileRule {
            access: Access::Rw,
            pattern: Pattern::Exact(workdir.clone()),
            missing: Missing::Fail,
            origin: Origin { layer: LayerKind::Profile, place: "test".into() },
        };
        let policy = Policy {
            profile: "test".to_owned(),
            workdir,
            workdir_at: None,
            root: Root::Host,
            rules: vec![rule],
            network: Network::None,
            caches: Caches::default(),
            keep_home: false,
            tmp_exec: true,
            docker: false,
            nesting: false,
            env: EnvPolicy { inherit: true, ..EnvPolicy::default() },
            user: User::Caller,
            records: Default::default(),
            limits: Limits {
                memory: None,
                cpus: None,
                pids: None,
                files: None,
                timeout: None,
                timeout_ceiling: None,
                cpu_time: None,
                tmp_size: 1 << 20,
                tmp_inodes: 1024,
                output: 1 << 20,
            },
            commands: BTreeMap::new(),
            allow_syscalls: Vec::new(),
            optional: BTreeSet::from([Guarantee::KernelSecondWall]),
            strict: false,
            trace_denials: false,
            skill_verdict: Default::default(),
            warm: 0,
            shown: Vec::new(),
            warm_fork: false,
            idle: None,
            life: None,
        };
        Self { dir, facts, policy }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn plan(&self, command: &[&str]) -> Plan {
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        plan(&self.policy, &self.facts, &command).unwrap()
    }

    fn start(&self, engine: Engine, command: &[&str]) -> Started {
        self.start_plan(engine, &self.plan(command))
    }

    fn start_plan(&self, engine: Engine, plan: &Plan) -> Started {
        let (stdout, out) = pipe();
        let (stderr, err) = pipe();
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let running = engines::start(engine, plan, &self.facts, StdioSpec::Files([null, out, err])).unwrap();
        Started { running, stdout, stderr }
    }

    /// Runs a shell script to its end.
    fn sh(&self, engine: Engine, script: &str) -> Ended {
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
            $(#[test] fn $test() { super::$test(super::Engine::Native) })*
        }
        mod bubblewrap {
            $(#[test] fn $test() { super::$test(super::Engine::Bubblewrap) })*
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
    prepared_once_started_often
}

/// A neighbour's socket, there when the plan was made: the box is made without it, and what stays is hidden.
fn a_hidden_name_that_went(engine: Engine) {
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

fn exit_status_passes(engine: Engine) {
    let project = Project::new();
    for expected in [0, 1, 7, 125, 127, 255] {
        assert_eq!(project.sh(engine, &format!("exit {expected}")).code, expected);
    }
    assert_eq!(project.sh(engine, "kill -9 $$").code, 137);
}

fn stdout_and_stderr_are_apart(engine: Engine) {
    let project = Project::new();
    let ended = project.sh(engine, "echo out; echo err >&2; ls /proc/self/fd");
    assert_eq!(ended, Ended { code: 0, stdout: "out\n0\n1\n2\n3\n".to_owned(), stderr: "err\n".to_owned() });
}

fn closed_output_ends(engine: Engine) {
    let project = Project::new();
    let mut started = project.start(engine, &["sh", "-c", "echo last; exec >&- 2>&-; exec sleep 1000"]);
    assert_eq!(read(&mut started.stdout), "last\n");
    assert_eq!(read(&mut started.stderr), "");
    started.running.finish().unwrap();
}

fn files_belong_to_the_caller(engine: Engine) {
    use std::os::unix::fs::MetadataExt;
    let project = Project::new();
    std::fs::write(project.path("secret"), "mine").unwrap();
    std::fs::set_permissions(project.path("secret"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let ended = project.sh(engine, "cat secret && echo >made && ! echo >/etc/ringfence-test");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "mine"), "{}", ended.stderr);
    let made = std::fs::metadata(project.path("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (project.facts.uid, project.facts.gid));
}

fn ids_inside(engine: Engine) {
    let mut project = Project::new();
    project.policy.user = User::Ids { uid: 1000, gid: 1000 };
    let ended = project.sh(engine, "id -u; id -g; echo >made");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "1000\n1000\n"), "{}", ended.stderr);
    files_belong_to_the_caller(engine);
}

fn limits_of_a_process(engine: Engine) {
    let mut project = Project::new();
    project.policy.limits.files = Some(77);
    assert_eq!(project.sh(engine, "ulimit -n").stdout, "77\n");
}

fn missing_program(engine: Engine) {
    let project = Project::new();
    let error = project.start(engine, &["./missing"]).error();
    assert!(matches!(error, EngineError::Execute { errno: Errno::NOENT, .. }), "{error:?}");
}

fn unexecutable_program(engine: Engine) {
    let project = Project::new();
    std::fs::write(project.path("plain"), "").unwrap();
    let error = project.start(engine, &["./plain"]).error();
    assert!(matches!(error, EngineError::Execute { errno: Errno::ACCESS, .. }), "{error:?}");
}

fn script_without_interpreter(engine: Engine) {
    let project = Project::new();
    std::fs::write(project.path("script"), "echo \"$1\"; exit 3\n").unwrap();
    std::fs::set_permissions(project.path("script"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let ended = project.start(engine, &["./script", "a b"]).end();
    assert_eq!((ended.code, ended.stdout.as_str()), (3, "a b\n"));
}

fn failed_set_up(engine: Engine) {
    let project = Project::new();
    let mut plan = project.plan(&["sh", "-c", "echo started"]);
    let missing = project.path("missing");
    plan.mounts.push(Mount::Bind { source: missing.clone(), target: missing, writable: false, kind: Kind::Dir });
    let error = project.start_plan(engine, &plan).error();
    assert!(matches!(error, EngineError::Setup { .. } | EngineError::Builder { .. }), "{error:?}");
    assert!(error.to_string().contains("missing"), "{error}");
}

fn missing_working_directory(engine: Engine) {
    let project = Project::new();
    let mut plan = project.plan(&["sh", "-c", "echo started"]);
    plan.workdir = PathBuf::from("/etc/missing");
    let error = project.start_plan(engine, &plan).error();
    assert!(matches!(error, EngineError::Setup { .. } | EngineError::Builder { .. }), "{error:?}");
}

fn term_is_handled(engine: Engine) {
    let project = Project::new();
    let script = "trap 'echo handled; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut started = project.start(engine, &["sh", "-c", script]);
    assert_eq!(started.line(), "ready");
    started.running.signal(libc::SIGTERM).unwrap();
    let ended = started.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (3, "handled\n"));
}

fn early_signal_is_not_lost(engine: Engine) {
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

fn interrupt_reaches_the_group(engine: Engine) {
    let project = Project::new();
    let seconds = sleep_of_our_own();
    let script = format!("trap 'exit 4' INT; echo ready; sleep {seconds}; exit 5");
    let mut started = project.start(engine, &["sh", "-c", &script]);
    assert_eq!(started.line(), "ready");
    wait_until("the child starts", || alive(&seconds));
    started.running.signal(libc::SIGINT).unwrap();
    assert_eq!(started.end().code, 4);
}

fn signals_are_not_blocked(engine: Engine) {
    let project = Project::new();
    let ended = project.sh(engine, "grep -E 'Sig(Blk|Ign)' /proc/self/status");
    let masks = ended.stdout.lines().map(|l| u64::from_str_radix(l.split_once('\t').unwrap().1, 16).unwrap());
    // 32 and 33 belong to the C library, which does not let their meaning be changed back.
    assert_eq!(masks.map(|m| m & !(0b11 << 31)).collect::<Vec<_>>(), [0, 0]);
}

fn nothing_survives_the_command(engine: Engine) {
    let project = Project::new();
    let seconds = sleep_of_our_own();
    let script = format!("setsid sleep {seconds} & sleep {seconds} & echo ready; exit 0");
    assert_eq!(project.sh(engine, &script).code, 0);
    assert!(!alive(&seconds));
}

fn nothing_survives_the_end(engine: Engine) {
    let project = Project::new();
    let seconds = sleep_of_our_own();
    let script = format!("trap '' TERM INT HUP; setsid sleep {seconds} & echo ready; sleep {seconds}");
    let mut started = project.start(engine, &["sh", "-c", &script]);
    assert_eq!(started.line(), "ready");
    wait_until("the child starts", || alive(&seconds));
    started.running.finish().unwrap();
    assert!(!alive(&seconds));
}

fn nothing_survives_process_one(engine: Engine) {
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

fn launcher_environment_is_not_there(engine: Engine) {
    let mut project = Project::new();
    project.facts.env.insert("TOKEN".into(), "s3cret-of-the-test".into());
    let script =
        "echo $TOKEN; cat /proc/1/environ /proc/1/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c 's3cret-[o]f'";
    let ended = project.sh(engine, script);
    assert_eq!(ended.stdout, "s3cret-of-the-test\n0\n");
}

/// Starts a script on a terminal of its own; returns the master side as well.
fn on_terminal(project: &Project, engine: Engine, script: &str) -> (Running, std::fs::File) {
    let plan = project.plan(&["sh", "-c", script]);
    let stdio = StdioSpec::Terminal { rows: 33, columns: 77, stderr: None };
    let running = engines::start(engine, &plan, &project.facts, stdio).unwrap();
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

fn terminal_of_its_own(engine: Engine) {
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

fn terminal_stops_and_continues(engine: Engine) {
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

fn interactive_shell_has_job_control(engine: Engine) {
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

fn programs_root(engine: Engine) {
    let mut project = Project::new();
    // Below a directory that only the caller may enter.
    let inner = project.policy.workdir.join("inner");
    std::fs::create_dir(&inner).unwrap();
    project.policy.rules[0].pattern = Pattern::Exact(inner.clone());
    project.policy.workdir = inner;
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
        pattern: Pattern::Exact(project.policy.workdir.join(name)),
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
    assert_eq!(project.start_plan(Engine::Native, &plan).end().stdout, ".kept\n");
    let gone = Mount::Bind { source: project.path("gone"), target: "/mnt".into(), kind: Kind::Dir, writable: false };
    plan.mounts.insert(1, gone);
    for _ in 0..50 {
        let error = project.start_plan(Engine::Native, &plan).error();
        assert!(matches!(error, EngineError::Setup { .. }), "{error:?}");
        assert!(!project.path(".kept").exists());
    }
}

/// A name that the plan does not have, since a neighbour's was there when it was made. Process 1 has begun by then.
#[test]
fn a_neighbours_name_that_went_since_planning() {
    let mut project = Project::new();
    keep(&mut project, "above/.kept");
    let neighbour = project.start(Engine::Native, &["sleep", "60"]);
    assert!(project.path("above/.kept").is_dir());
    let plan = project.plan(&["ls", "-A", "above"]);
    assert_eq!(plan.stubs.len(), 1, "{:?}", plan.stubs);
    assert_eq!(project.start_plan(Engine::Native, &plan).end().stdout, ".kept\n");
    neighbour.running.finish().unwrap();
    assert!(!project.path("above").exists());
    for _ in 0..10 {
        assert_eq!(project.start_plan(Engine::Native, &plan).end().stdout, ".kept\n");
        assert!(!project.path("above").exists());
    }
}

/// Many boxes from one plan; their stand-ins are there from its making to its end.
fn prepared_once_started_often(engine: Engine) {
    let mut project = Project::new();
    keep(&mut project, ".kept");
    let plan = project.plan(&["sh", "-c", "mkdir .kept/x 2>/dev/null && echo planted; echo $$"]);
    let prepared = Prepared::new(engine, &plan, &project.facts).unwrap();
    assert!(project.path(".kept").is_dir());
    for _ in 0..3 {
        assert!(!again(&prepared).contains("planted"));
        assert!(project.path(".kept").is_dir());
    }
    drop(prepared);
    assert!(!project.path(".kept").exists());
}

/// Runs the command of a plan once more.
fn again(prepared: &Prepared) -> String {
    let (mut stdout, out) = pipe();
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let running = prepared.start(StdioSpec::Files([null(), out.try_clone().unwrap(), out])).unwrap();
    assert_eq!(code(&running).unwrap(), 0);
    running.finish().unwrap();
    read(&mut stdout)
}

/// What a box sees of its mounts: without what is covered, and without the numbers and sizes of file systems. A stand-in in
/// private space is in another one in a copy.
fn visible_mounts(mountinfo: &str) -> BTreeMap<&str, Vec<&str>> {
    let lines = mountinfo.lines().filter_map(|line| line.rsplit_once(' '));
    lines.filter_map(|(line, _)| Some((line.split(' ').nth(4)?, line.split(' ').skip(3).collect()))).collect()
}

/// A copy covers the procfs of what it was copied from.
fn count_procfs(text: &str) -> usize {
    text.lines().filter(|line| line.contains(" /proc ") && line.contains(" - proc ")).count()
}

/// Looks until a box is a copy: whenever somebody mounts anything on the host, the next is built.
fn until_copied(built: usize, look: impl Fn() -> usize) {
    assert!((0..10).any(|_| look() > built));
}

/// The first two boxes of a plan are built, and the others are copies: they are the same to whoever is in there.
#[test]
fn copies_are_what_was_built() {
    let mut project = Project::new();
    keep(&mut project, ".kept");
    let look = "cat /proc/self/mountinfo; echo ---; id; umask; hostname; pwd; ulimit -a; ls -lan --time-style=+ /dev /tmp; \
        echo /proc/[0-9]*; grep -E '^(Cap|NoNew|Seccomp|Groups|Uid|Gid)' /proc/self/status; cat /proc/self/[ug]id_map; \
        cat /proc/sys/user/max_user_namespaces /proc/self/cgroup /proc/net/dev; cat /proc/1/environ /proc/1/mem 2>&1; \
        for dir in /tmp /var/tmp /run /dev/shm; do ls $dir; echo >$dir/mine; done 2>&1; ls -A; for at in / /usr /dev /proc .kept; do \
        touch $at/x 2>&1; done; unshare -U true 2>&1; df -k /tmp /dev/shm | awk '{ print $2 }'; grep -c . /proc/net/unix";
    let plan = project.plan(&["sh", "-c", look]);
    let prepared = Prepared::new(Engine::Native, &plan, &project.facts).unwrap();
    let built = again(&prepared);
    let (mounts, rest) = built.split_once("---").unwrap();
    assert_eq!(count_procfs(&again(&prepared)), count_procfs(mounts));
    let mut seen = vec![again(&prepared), again(&prepared)];
    let parked = || {
        let (mut stdout, out) = pipe();
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let stdio = StdioSpec::Files([null, out.try_clone().unwrap(), out]);
        let running = prepared.park().unwrap().start(None, stdio).unwrap();
        assert_eq!(code(&running).unwrap(), 0);
        running.finish().unwrap();
        read(&mut stdout)
    };
    seen.extend([parked(), parked()]);
    // At the same time, with nothing begun ahead for most of them.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(|| again(&prepared))).collect();
        seen.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    });
    let mut copies = 0;
    for copy in seen {
        let (own_mounts, own_rest) = copy.split_once("---").unwrap();
        assert_eq!(own_rest, rest);
        assert_eq!(visible_mounts(own_mounts), visible_mounts(mounts));
        copies += usize::from(count_procfs(own_mounts) > count_procfs(mounts));
    }
    assert!(copies > 2, "{copies}");
}

/// What is mounted on a file goes with it, also in what boxes are copied from. They are built then, and protect what is there.
#[test]
fn copies_keep_up_with_the_host() {
    let mut project = Project::new();
    let rule = |access, path: PathBuf| FileRule {
        access,
        pattern: Pattern::Exact(path),
        missing: Missing::Fail,
        origin: Origin { layer: LayerKind::Profile, place: "test".into() },
    };
    let workdir = project.policy.workdir.clone();
    let shown = tempfile::tempdir_in(workdir.parent().unwrap()).unwrap();
    let shown = shown.path().join("shown");
    let (fixed, open) = (workdir.join("fixed"), workdir.join("open"));
    for dir in [&workdir.join("dir/sub"), &shown, &fixed, &open] {
        std::fs::create_dir_all(dir).unwrap();
    }
    let files = [workdir.join("secret"), workdir.join("dir/sub/secret"), shown.join("open")];
    files.iter().for_each(|file| std::fs::write(file, "first\n").unwrap());
    project.policy.rules.extend([
        rule(Access::Exclude, files[0].clone()),
        rule(Access::Exclude, files[1].clone()),
        rule(Access::Rw, shown.clone()),
        rule(Access::Ro, fixed.clone()),
        rule(Access::Rw, open.clone()),
    ]);
    let script = format!(
        "touch fixed/x && echo planted; touch open/x || echo refused; cat secret dir/sub/secret; cat {}; cat /proc/self/mountinfo",
        files[2].display()
    );
    let prepared = Prepared::new(Engine::Native, &project.plan(&["sh", "-c", &script]), &project.facts).unwrap();
    let look = |open: &str| {
        let seen = again(&prepared);
        let said: Vec<&str> = seen.lines().take_while(|line| !line.contains(" / ")).collect();
        assert_eq!(said.iter().filter(|line| line.ends_with("Permission denied")).count(), 2, "{said:?}");
        assert!(said[0].ends_with("Read-only file system") && said[1].contains("secret"), "{said:?}");
        assert_eq!(said.last(), Some(&open), "{said:?}");
        count_procfs(&seen)
    };
    let built = look("first");
    until_copied(built, || look("first"));
    let replace = |file: &Path| {
        let other = file.with_extension("new");
        std::fs::write(&other, "second\n").unwrap();
        std::fs::rename(other, file).unwrap();
    };
    let changes: [(&str, &dyn Fn()); 6] = [
        // As an editor saves.
        ("first", &|| replace(&files[0])),
        ("first", &|| {
            std::fs::remove_file(&files[0]).unwrap();
            std::fs::write(&files[0], "second\n").unwrap();
        }),
        ("first", &|| {
            std::fs::rename(workdir.join("dir"), workdir.join("old")).unwrap();
            std::fs::create_dir_all(workdir.join("dir/sub")).unwrap();
            std::fs::write(&files[1], "second\n").unwrap();
        }),
        ("second", &|| {
            std::fs::rename(&shown, shown.with_extension("old")).unwrap();
            std::fs::create_dir(&shown).unwrap();
            std::fs::write(&files[2], "second\n").unwrap();
        }),
        // Each has a mount then, and it is the other's.
        ("second", &|| {
            std::fs::rename(&fixed, workdir.join("between")).unwrap();
            std::fs::rename(&open, &fixed).unwrap();
            std::fs::rename(workdir.join("between"), &open).unwrap();
        }),
        ("third", &|| std::fs::write(&files[2], "third\n").unwrap()),
    ];
    for (number, (open, change)) in changes.into_iter().enumerate() {
        change();
        let seen = look(open);
        // What only has other contents is no change to it.
        assert!(seen == built || number == 5, "{number}");
        until_copied(built, || look(open));
    }
}

/// What is made in private space is made in each copy; what the host has there cannot be, and such a box is built.
#[test]
fn private_space_of_copies() {
    let project = Project::new();
    let mut plan =
        project.plan(&["sh", "-c", "ls -d /run/made/here && echo >/run/made/here/x; cat /proc/self/mountinfo"]);
    for dir in ["/run/made", "/run/made/here"] {
        plan.mounts.push(Mount::Dir { target: dir.into(), mode: 0o755 });
    }
    let prepared = Prepared::new(Engine::Native, &plan, &project.facts).unwrap();
    let built = count_procfs(&again(&prepared));
    until_copied(built, || {
        let seen = again(&prepared);
        assert!(seen.starts_with("/run/made/here\n"), "{seen}");
        count_procfs(&seen)
    });
}

/// The mounts of the host are not a copy's to keep. Needs root, in a mount namespace of its own.
#[test]
fn copies_go_with_the_mounts_of_the_host() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    const TEST: &str = "copies_go_with_the_mounts_of_the_host";
    const INSIDE: &str = "RINGFENCE_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_none() {
        let mut inside = std::process::Command::new("unshare");
        inside.arg("-m").arg(std::env::current_exe().unwrap()).args(["--exact", TEST, "--nocapture"]).env(INSIDE, "1");
        return assert!(inside.status().unwrap().success());
    }
    let project = Project::new();
    let place = tempfile::tempdir_in(project.dir.path().parent().unwrap()).unwrap();
    let run = |program: &str, args: &[&str]| {
        assert!(std::process::Command::new(program).args(args).arg(place.path()).status().unwrap().success());
    };
    let look = format!("ls {}; cat /proc/self/mountinfo", place.path().display());
    let prepared = Prepared::new(Engine::Native, &project.plan(&["sh", "-c", &look]), &project.facts).unwrap();
    let built = count_procfs(&again(&prepared));
    for (copied, mounted) in [(0, true), (1, true), (0, false), (1, false), (0, true), (1, true), (0, false)] {
        let now = std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(place.path().to_str().unwrap());
        if mounted && !now {
            run("mount", &["-t", "tmpfs", "none"]);
            std::fs::write(place.path().join("on-it"), "").unwrap();
        } else if now && !mounted {
            run("umount", &[]);
        }
        let seen = again(&prepared);
        assert_eq!(seen.starts_with("on-it\n"), mounted, "{seen}");
        assert_eq!(count_procfs(&seen), built + copied);
    }
    // A private place that is renamed while a box is begun: what the box has on it goes along.
    std::fs::create_dir(place.path().join("tmp")).unwrap();
    assert!(
        std::process::Command::new("mount").arg("--bind").arg(place.path()).arg("/var").status().unwrap().success()
    );
    let plan = project.plan(&["sh", "-c", "ls /var/tmp; cat /proc/self/mountinfo"]);
    let prepared = Prepared::new(Engine::Native, &plan, &project.facts).unwrap();
    for replace in [false, false, false, true, false] {
        if replace {
            // That what is begun ahead has its mounts by now.
            std::thread::sleep(Duration::from_millis(50));
            std::fs::rename("/var/tmp", "/var/old").unwrap();
            std::fs::create_dir("/var/tmp").unwrap();
            std::fs::write("/var/tmp/of-the-host", "").unwrap();
        }
        let seen = again(&prepared);
        assert!(!seen.contains("of-the-host"), "{seen}");
    }
}

/// What stands in private space cannot be in a copy, whose private space is new.
#[test]
fn what_cannot_be_copied_is_built() {
    let project = Project::new();
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::write(dir.path().join("file"), "shown\n").unwrap();
    let mut plan = project.plan(&["cat", dir.path().join("file").to_str().unwrap()]);
    let target = dir.path().to_path_buf();
    plan.mounts.push(Mount::Dir { target: target.clone(), mode: 0o755 });
    plan.mounts.push(Mount::Bind { source: target.clone(), target, kind: Kind::Dir, writable: false });
    let prepared = Prepared::new(Engine::Native, &plan, &project.facts).unwrap();
    for _ in 0..4 {
        assert_eq!(again(&prepared), "shown\n");
    }
}

/// How many mount namespaces this process and its children hold open.
fn held_namespaces() -> usize {
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap();
    let pids = children.split_whitespace().chain(["self"]);
    let links = pids.flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd"))).flatten().flatten();
    let to = links.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    // A seed has the descriptors of this process.
    to.filter(|to| to.to_string_lossy().starts_with("mnt:[")).collect::<BTreeSet<_>>().len()
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

/// What is begun ahead ends with the thread that began it, at any moment, and leaves no descriptor.
#[test]
fn a_thread_that_ends_leaves_nothing() {
    if !is_alone("a_thread_that_ends_leaves_nothing") {
        return;
    }
    let project = Project::new();
    let prepared = Prepared::new(Engine::Native, &project.plan(&["true"]), &project.facts).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for round in 0..200 {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let stdio = StdioSpec::Files([null(), null(), null()]);
        let start = || {
            let running = prepared.start(stdio).unwrap();
            std::thread::sleep(Duration::from_micros(round * 10));
            running
        };
        let running = std::thread::scope(|scope| scope.spawn(start).join().unwrap());
        assert_eq!(code(&running).unwrap(), 0);
        running.finish().unwrap();
    }
    drop(prepared);
    assert!(open() <= before, "{} and {before}", open());
}

/// The mounts of a box that has ended are gone at once, or in the keeper's own time: nobody waits for the next box.
#[test]
fn mounts_go_while_the_plan_stays() {
    // Boxes of other tests have some too.
    if !is_alone("mounts_go_while_the_plan_stays") {
        return;
    }
    let mut project = Project::new();
    keep(&mut project, ".kept");
    let prepared = Prepared::new(Engine::Native, &project.plan(&["true"]), &project.facts).unwrap();
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let stdio = || StdioSpec::Files([null(), null(), null()]);
    let start = || prepared.start(stdio()).unwrap();
    let park = || {
        let mut parked = prepared.park().unwrap();
        parked.wait().unwrap();
        // And one that nobody uses.
        drop(prepared.park().unwrap());
        parked.start(None, stdio()).unwrap()
    };
    for begin in [&start as &dyn Fn() -> Running, &park] {
        for round in 0..20 {
            let running = begin();
            assert_eq!(code(&running).unwrap(), 0);
            // Nothing was begun ahead for the first.
            assert!(round == 0 || held_namespaces() > 0);
            running.finish().unwrap();
        }
    }
    // Begun ahead, the next box has one; and there is what it is copied from.
    let begun = Instant::now();
    while held_namespaces() > 2 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{}", held_namespaces());
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(prepared);
    assert_eq!(held_namespaces(), 0);
}

#[test]
fn parked_runs_what_it_is_told() {
    let project = Project::new();
    let plan = project.plan(&["sh", "-c", "echo planned"]);
    let pool = Pool::new(Prepared::new(Engine::Native, &plan, &project.facts).unwrap(), 2);
    pool.fill().unwrap();
    assert_eq!(pool.len(), 2);
    let own = Command {
        program: "/bin/sh".into(),
        args: ["sh", "-c", "pwd; echo $A $$; cat; ls /proc/self/fd | wc -l; echo err >&2; exit 7"]
            .map(OsString::from)
            .into(),
        env: vec![("A".into(), "b c".into())],
        workdir: "/usr".into(),
    };
    for (command, expected) in [
        (None, Ended { code: 0, stdout: "planned\n".into(), stderr: "".into() }),
        (Some(&own), Ended { code: 7, stdout: "/usr\nb c 2\nin4\n".into(), stderr: "err\n".into() }),
        // More than there were: the pool builds another.
        (None, Ended { code: 0, stdout: "planned\n".into(), stderr: "".into() }),
    ] {
        let (stdout, out) = pipe();
        let (stderr, err) = pipe();
        let (stdin, input) = pipe();
        std::fs::File::from(input).write_all(b"in").unwrap();
        let running = pool.take().unwrap().start(command, StdioSpec::Files([stdin.into(), out, err])).unwrap();
        assert_eq!(Started { running, stdout, stderr }.end(), expected);
    }
}

#[test]
fn parked_refuses_what_it_cannot_take() {
    let project = Project::new();
    let plan = project.plan(&["true"]);
    let prepared = Prepared::new(Engine::Native, &plan, &project.facts).unwrap();
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let nothing = || StdioSpec::Files([null(), null(), null()]);
    let command =
        |argument: String| Command { args: vec!["true".into(), argument.into()], ..prepared.command().clone() };
    let error = prepared.park().unwrap().start(Some(&command("x".repeat(1 << 20))), nothing()).unwrap_err();
    assert!(matches!(error, EngineError::TooLong), "{error}");
    let error = prepared.park().unwrap().start(Some(&command("a\0b".into())), nothing()).unwrap_err();
    assert!(matches!(error, EngineError::Nul(_)), "{error}");
    let missing = Command { program: "/does/not/exist".into(), ..prepared.command().clone() };
    let running = prepared.park().unwrap().start(Some(&missing), nothing()).unwrap();
    let error = code(&running).unwrap_err();
    assert!(matches!(error, EngineError::Execute { errno: Errno::NOENT, .. }), "{error}");
    let error = prepared.park().unwrap().start(None, StdioSpec::Terminal { rows: 1, columns: 1, stderr: None });
    assert!(matches!(error, Err(EngineError::Stdio(_))));
}

/// A box that is parked ends with what holds it, and a set-up that fails is told when it is waited for.
#[test]
fn parked_ends_and_fails() {
    let project = Project::new();
    let plan = project.plan(&["true"]);
    let prepared = Prepared::new(Engine::Native, &plan, &project.facts).unwrap();
    let mut parked = prepared.park().unwrap();
    parked.wait().unwrap();
    let pid = parked.pid();
    drop(parked);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    let mut broken = project.plan(&["true"]);
    broken.mounts.push(Mount::Seal { target: "/not/there".into() });
    let prepared = Prepared::new(Engine::Native, &broken, &project.facts).unwrap();
    let error = prepared.park().unwrap().wait().unwrap_err();
    assert!(matches!(error, EngineError::Setup { .. }), "{error}");
}
