//! What the code beside the guest can do to it: nothing. The same acts on an ordinary neighbour show that they work.

use ringfence_guest::message::{Reply, Request, Step};

use crate::{Host, Place};

/// Makes a test of each function for each engine.
macro_rules! in_boxes {
    ($($test:ident)*) => {
        mod native {
            $(#[test] fn $test() { super::$test($crate::Place::Box(ringfence_engine::engines::native::ENGINE)) })*
        }
        mod bubblewrap {
            $(#[test] fn $test() { super::$test($crate::Place::Box(ringfence_engine::engines::bubblewrap::ENGINE)) })*
        }
    };
}

in_boxes! {
    is_process_one
    cannot_be_killed
    cannot_be_read_or_traced
    shows_nothing
    answers_beside_a_fork_bomb
    outlives_a_command_out_of_memory
    limits_hold_for_commands
}

fn is_process_one(place: Place) {
    let mut host = Host::new(place);
    assert_eq!(host.sh("cat /proc/1/comm; tr '\\0' ' ' </proc/1/cmdline").stdout, "guest\nguest ");
    // Orphans come to it, and are reaped.
    assert_eq!(host.sh("(setsid sh -c 'exit 3' &); sleep 0.2; ! grep -l '^State:.Z' /proc/[0-9]*/status").stdout, "");
}

fn cannot_be_killed(place: Place) {
    let mut host = Host::new(place);
    let every = "for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; echo done";
    assert_eq!(host.sh(every).stdout, "done\n");
    assert_eq!(
        host.run(&["python3", "-c", "import signal, os; signal.pidfd_send_signal(os.pidfd_open(1), 9)"]).code,
        0
    );
    host.ping();
    // A neighbour can be.
    let neighbour = host.start(&["sleep", "1000"]);
    let Reply::Started { pid } = host.reply(neighbour) else { panic!() };
    assert_eq!(host.sh(&format!("kill -9 {pid}")).code, 0);
    assert_eq!(host.end(neighbour).code, 137);
    assert_eq!(host.sh("echo there").stdout, "there\n");
}

/// Every way to look into a process or to change it, one a line.
const ACTS: &str = "
import ctypes, os, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
def act(name, f):
    try:
        r = f()
    except OSError as e:
        r = -e.errno
    print(name, 'ok' if r is None or r >= 0 else os.strerror(-r), flush=True)
def call(*args):
    r = libc.syscall(*args)
    return r if r >= 0 else -ctypes.get_errno()
def vm(number):
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8)
    address = 0x400000
    try: address = int(open('/proc/%d/maps' % pid).readline().split('-')[0], 16)
    except OSError: pass
    remote = (ctypes.c_uint64 * 2)(address, 8)
    return call(ctypes.c_long(number), ctypes.c_long(pid), local, ctypes.c_long(1), remote, ctypes.c_long(1), ctypes.c_long(0))
def trace():
    r = call(ctypes.c_long(101), ctypes.c_long(16), ctypes.c_long(pid), ctypes.c_long(0), ctypes.c_long(0))
    if r >= 0:
        os.waitpid(pid, 0x40000000)
        call(ctypes.c_long(101), ctypes.c_long(17), ctypes.c_long(pid), ctypes.c_long(0), ctypes.c_long(0))
    return r
def read(name):
    with open('/proc/%d/%s' % (pid, name), 'rb') as f: f.read(1)
def getfd():
    return call(ctypes.c_long(438), ctypes.c_long(os.pidfd_open(pid)), ctypes.c_long(0), ctypes.c_long(0))
for name in ['environ', 'maps', 'auxv']: act(name, lambda: read(name))
act('mem', lambda: os.close(os.open('/proc/%d/mem' % pid, os.O_RDWR)))
act('exe', lambda: len(os.readlink('/proc/%d/exe' % pid)))
act('fd', lambda: len(os.listdir('/proc/%d/fd' % pid)))
act('trace', trace)
act('readv', lambda: vm(310))
act('getfd', getfd)
if len(sys.argv) > 2: sys.exit()
act('limits', lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, resource.prlimit(pid, resource.RLIMIT_NOFILE)) and None)
act('scheduler', lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)))
act('affinity', lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)))
act('niceness', lambda: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)))
";

fn cannot_be_read_or_traced(place: Place) {
    let mut host = Host::new(place);
    let refused = host.run(&["python3", "-c", ACTS, "1"]);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for line in lines(&refused.stdout) {
        assert!(line.ends_with("Permission denied") || line.ends_with("not permitted"), "{line}");
    }
    assert_eq!(lines(&refused.stdout).len(), 13, "{}", refused.stderr);
    // A reaper can be killed, and is as closed as the guest. Only beside others a command has one.
    let beside = host.start(&["sleep", "1000"]);
    assert!(matches!(host.reply(beside), Reply::Started { .. }));
    let script = "[ $PPID -ne 1 ] || exit 9; [ \"$(cat /proc/$PPID/comm)\" = guest ] || exit 8
        exec python3 -c \"$1\" $PPID less";
    let refused = host.run(&["sh", "-c", script, "sh", ACTS]);
    assert_eq!(refused.code, 0, "its parent is a reaper: {}", refused.stderr);
    for line in lines(&refused.stdout) {
        assert!(line.ends_with("Permission denied") || line.ends_with("not permitted"), "of a reaper: {line}");
    }
    assert_eq!(lines(&refused.stdout).len(), 9, "{}", refused.stderr);
    // An ordinary process of the same box: everything can be done, as far as the host lets anybody trace.
    let tracing = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").is_ok_and(|scope| scope.trim() != "0");
    let neighbour = host.start(&["sleep", "1000"]);
    let Reply::Started { pid } = host.reply(neighbour) else { panic!() };
    let allowed = host.run(&["python3", "-c", ACTS, &pid.to_string()]);
    for line in lines(&allowed.stdout) {
        assert!(line.ends_with("ok") || tracing, "of a neighbour: {line}");
    }
    host.ping();
}

fn shows_nothing(place: Place) {
    let mut host = Host::new(place);
    // The launcher's environment and arguments are nowhere, and the socket is nobody's but the guest's.
    let out = host
        .sh("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; ls -l /proc/self/fd")
        .stdout;
    assert!(!out.contains("CARGO") && !out.contains("socket:"), "{out}");
    assert!(out.contains("HOME=/tmp"), "what may be seen is: {out}");
}

fn answers_beside_a_fork_bomb(place: Place) {
    let mut host = Host::with(place, |policy| policy.limits.pids = Some(60));
    std::fs::write(host.workdir.join("file"), "contents").unwrap();
    let bomb = host.start(&["bash", "-c", "f() { f | f & }; f; while :; do f; done"]);
    // Until there is no process left to be had.
    let mut refused = 0;
    let started = std::time::Instant::now();
    while refused < 20 {
        let stream = host.start(&["true"]);
        refused += match host.exited(stream) {
            Err((Step::Fork, libc::EAGAIN)) => 1,
            Ok(_) => 0,
            other => panic!("{other:?}"),
        };
        assert!(started.elapsed().as_secs() < 60, "the bomb fills its place");
    }
    for _ in 0..20 {
        host.ping();
    }
    let path = host.workdir.join("file").into_os_string().into_encoded_bytes();
    let stream = host.open(&Request::Read { path, offset: 0, length: None, piped: false });
    assert_eq!(host.reply(stream), Reply::Done { bytes: 8 });
    host.signal(bomb, libc::SIGKILL, true);
    host.exited(bomb).unwrap();
    assert_eq!(host.sh("echo there").stdout, "there\n", "and nothing of it is left");
}

fn outlives_a_command_out_of_memory(place: Place) {
    let mut host = Host::with(place, |policy| policy.limits.memory = Some(128 << 20));
    for _ in 0..3 {
        assert_ne!(host.run(&["python3", "-c", "x = bytearray(300 << 20)"]).code, 0);
        assert_eq!(host.run(&["python3", "-c", "x = bytearray(30 << 20)"]).code, 0);
    }
}

fn limits_hold_for_commands(place: Place) {
    let mut host = Host::with(place, |policy| {
        policy.limits.files = Some(50);
        policy.limits.cpu_time = Some(std::time::Duration::from_secs(1));
    });
    assert_eq!(host.sh("ulimit -n; ulimit -t").stdout, "50\n2\n");
    // The guest needs more than that, and has it.
    let streams: Vec<u32> = (0..60).map(|_| host.start(&["sleep", "0.5"])).collect();
    for stream in streams {
        assert_eq!(host.end(stream).code, 0);
    }
}
