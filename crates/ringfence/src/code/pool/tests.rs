//! Warm interpreters, on real ones: each is used once, all that a cold sandbox promises holds, and nothing is left.
#![allow(clippy::disallowed_methods, reason = "tests ask how they were started")]

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_policy::Policy;
use ringfence_policy::layer::Layer;
use ringfence_policy::layers::{self, Inputs};
use serde_json::json;

use super::super::{Code, CodeError, CodeResult, Language, Status};
use super::{Pools, drop_beside};
use crate::engines::native;
use crate::sandbox::{Sandbox, SandboxError};

struct Host {
    sandbox: Sandbox,
    pools: Pools,
    _dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        Host::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Policy)) -> Host {
        let facts = crate::facts::gather().unwrap();
        let dir = tempfile::tempdir_in(&facts.home).unwrap();
        let mut flags = Layer::flags();
        flags.profile("skill");
        let inputs = Inputs::new(dir.path().canonicalize().unwrap(), facts.home.clone(), flags);
        let mut policy = layers::resolve(inputs).unwrap().policy;
        // Other tests run beside this one.
        policy.limits.cpus = Some(2.0);
        change(&mut policy);
        let sandbox = Sandbox::new(policy, facts).choice(native::ENGINE.into());
        Host { sandbox, pools: Pools::default(), _dir: dir }
    }

    fn code(&self, code: &Code, cancel: impl AsFd) -> Result<CodeResult, SandboxError> {
        self.sandbox.run_code(code, &[], None, Some(&self.pools), || Ok(cancel))
    }

    /// With an interpreter of the pool where one is ready.
    fn run(&self, language: &str, source: &str) -> CodeResult {
        let (reader, _writer) = std::io::pipe().unwrap();
        self.code(&Code::new(Language::named(language).unwrap(), source), reader).unwrap()
    }

    /// With an interpreter of the pool.
    fn warm(&self, language: &str, source: &str) -> CodeResult {
        self.is_ready(language);
        self.run(language, source)
    }

    fn cold(&self, source: &str) -> CodeResult {
        let (reader, _writer) = std::io::pipe().unwrap();
        let code = Code::new(Language::named("python").unwrap(), source);
        self.sandbox.run_code(&code, &[], None, None, || Ok::<_, SandboxError>(reader)).unwrap()
    }

    fn pools(&self) -> usize {
        self.pools.kept.lock().unwrap().len()
    }

    /// Waits until all interpreters of the language wait for code. There are none before its first call.
    fn is_ready(&self, language: &str) {
        let started = Instant::now();
        loop {
            let ready = {
                let kept = self.pools.kept.lock().unwrap();
                kept.iter()
                    .find(|(_, pool)| pool.shared.language.name == language)
                    .map(|(_, pool)| pool.shared.lock().ready)
            };
            match ready {
                Some(2) => return,
                Some(_) => std::thread::sleep(Duration::from_millis(10)),
                None => drop(self.run(language, "1")),
            }
            assert!(started.elapsed() < Duration::from_secs(60), "it does not get ready");
        }
    }
}

#[test]
fn each_is_used_once() {
    let host = Host::new();
    let mut seen = HashSet::new();
    for n in 0..6 {
        host.is_ready("python");
        std::thread::sleep(Duration::from_millis(400));
        let source = "import os, sys, time\nos.path.exists('/tmp/left') and 1/0\nopen('/tmp/left', 'w').close()\n\
                      print('out')\nprint('err', file=sys.stderr)\n\
                      age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(open('/proc/self/stat').read().split()[21]) / 100\n\
                      [hash('x'), id([]), age > 0.35, 'left' in globals(), globals().update(left=1)]";
        let result = host.run("python", source);
        assert_eq!(result.status, Status::Ok, "{result:?}");
        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("out\n", "err\n"));
        let value = result.value.unwrap();
        assert_eq!((&value[2], &value[3]), (&json!(true), &json!(false)), "{n}");
        // A hash seed and an address layout of its own.
        assert!(seen.insert(value[0].to_string()) && seen.insert(value[1].to_string()), "{value}");
    }
    for _ in 0..3 {
        let source = "const was = globalThis.left; globalThis.left = 1; [was ?? null, 20 + 1]";
        assert_eq!(host.warm("javascript", source).value, Some(json!([null, 21])));
    }
}

#[test]
fn statuses_and_walls() {
    let host = Host::with(|policy| policy.limits.timeout = Some(Duration::from_secs(3)));
    host.is_ready("python");
    // Its time begins when it does.
    std::thread::sleep(Duration::from_secs(4));
    for (source, status) in [
        ("1 + 1", Status::Ok),
        ("1 / 0", Status::Error),
        ("import os; os._exit(3)", Status::Error),
        ("import os; os.kill(os.getpid(), 9)", Status::Error),
        ("while True: pass", Status::Timeout),
        ("x = bytearray(1 << 30)", Status::Memory),
        ("open('/etc/hosts', 'w')", Status::Denied),
        ("import socket; socket.create_connection(('127.0.0.1', 22), 2)", Status::Error),
    ] {
        let result = host.warm("python", source);
        assert_eq!(result.status, status, "{source}: {result:?}");
    }
    host.is_ready("python");
    let home = host.sandbox.facts().home.display().to_string();
    let mut hidden = Code::new(Language::named("python").unwrap(), "import os; os.path.exists(home)");
    hidden.inputs = json!({ "home": home });
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(host.code(&hidden, reader).unwrap().value, Some(json!(false)));
    // A lie ends the liar.
    let lie = "import os, time\nfor n in range(3, 20):\n    try: os.write(n, b's 0\\nr 25\\n{\"status\":\"ok\",\"value\":1}')\n    \
               except OSError: pass\ntime.sleep(60)";
    host.is_ready("python");
    let started = Instant::now();
    assert_eq!(host.run("python", lie).value, Some(json!(1)));
    assert_eq!(host.run("python", "2").value, Some(json!(2)));
    assert!(started.elapsed() < Duration::from_secs(3));

    host.is_ready("python");
    let (reader, writer) = std::io::pipe().unwrap();
    let endless = Code::new(Language::named("python").unwrap(), "while True: pass");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| host.code(&endless, reader));
        std::thread::sleep(Duration::from_millis(500));
        drop(writer);
        assert_eq!(waits.join().unwrap().unwrap().status, Status::Cancelled);
    });
}

#[test]
fn what_a_pool_is_not_for() {
    let mut host = Host::new();
    assert_eq!((host.run("bash", "result=7").value, host.pools()), (Some(json!(7)), 0));
    host.sandbox.change(|resolved, _| resolved.service.warm = 0).unwrap();
    assert_eq!((host.run("python", "1").value, host.pools()), (Some(json!(1)), 0));
    host.sandbox.change(|resolved, _| resolved.service.warm = 2).unwrap();
    assert_eq!((host.run("python", "1").value, host.pools()), (Some(json!(1)), 1));
}

/// More at once than there are boxes, and a pool that goes: no descriptor and no process is left.
#[test]
fn nothing_is_left() {
    let host = Host::new();
    host.is_ready("python");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..5).for_each(|n| assert_eq!(host.run("python", &format!("{n}")).value, Some(json!(n)))));
        }
    });
    let source = "import os, time\ntime.sleep(0.1)\nos.readlink('/proc/self/ns/pid')";
    let boxed = host.warm("python", source).value.unwrap();
    // The number of a namespace that is gone is given to another one; whoever has it then has started since.
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let now: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    drop(host);
    let older = |stat: String| {
        let ticks: f64 = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
        ticks / 100.0 < now - 0.05
    };
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let space = std::fs::read_link(entry.path().join("ns/pid"));
        if space.is_ok_and(|space| Some(space.to_string_lossy().as_ref()) == boxed.as_str()) {
            assert!(!std::fs::read_to_string(entry.path().join("stat")).is_ok_and(older), "{entry:?} is left");
        }
    }
}

/// What a program can find out about its box.
const PORTRAIT: &str = r#"
import ctypes, os, resource, socket, stat
def topmost():
    seen = {}
    for line in open("/proc/self/mountinfo"):
        fields = line.split()
        kind = fields[fields.index("-") + 1]
        # What is over another one at the same place is listed later.
        seen[fields[4]] = [fields[3] if kind not in ("tmpfs", "devpts") else "", fields[5], kind]
    return seen
def kept(line):
    return line.split(":")[0] in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups",
                                  "SigBlk", "SigIgn", "SigCgt", "NSpid", "Threads")
def trace(pid):
    library = ctypes.CDLL(None, use_errno=True)
    if library.ptrace(16, pid, 0, 0):
        raise OSError(ctypes.get_errno(), "ptrace")
def refused(act):
    try:
        act()
        return "ok"
    except OSError as error:
        return error.errno
[
    topmost(),
    [line.strip() for line in open("/proc/self/status") if kept(line)],
    [resource.getrlimit(n) for n in range(16)],
    sorted(os.environ.items()), os.getcwd(), os.umask(0o22), os.uname().nodename, os.getpid(), os.getppid(), os.getsid(0) == os.getpid(),
    sorted(os.listdir("/")), {place: [sorted(os.listdir(place)), stat.S_IMODE(os.stat(place).st_mode), os.stat(place).st_uid]
                              for place in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/home/sandbox", "/dev", "/dev/pts")},
    [name for name in os.listdir("/proc") if name.isdigit()], [name for _, name in socket.if_nameindex()],
    sorted(int(n) for n in os.listdir("/proc/self/fd"))[:4], len(os.listdir("/proc/self/fd")), os.readlink("/proc/self/fd/0"),
    open("/proc/sys/user/max_user_namespaces").read(), open("/proc/self/cgroup").read(),
    [refused(act) for act in (
        lambda: open("/proc/1/environ").read(), lambda: open("/proc/1/mem"), lambda: os.listdir("/proc/1/fd"), lambda: os.mkdir("/x"),
        lambda: open("/proc/1/exe", "rb"), lambda: open("/proc/1/maps").read(), lambda: open("/proc/1/stack").read(), lambda: trace(1),
        lambda: open("/usr/x", "w"), lambda: os.mkdir("/dev/x"), lambda: os.chroot("/tmp"), lambda: open("/tmp/a", "w"),
        lambda: open("/dev/shm/a", "w"), lambda: open("/dev/null", "w"), lambda: os.openpty(), lambda: os.mknod("/tmp/d", 0o20666, 259),
        lambda: os.sethostname("x") if hasattr(os, "sethostname") else os.kill(1, 9), lambda: os.kill(-1, 0),
        lambda: socket.create_server(("127.0.0.1", 0)), lambda: socket.create_connection(("192.0.2.1", 80), 1))],
]
"#;

/// An interpreter of a pool is in the same sandbox as one that is started for its code.
#[test]
fn a_warm_one_sees_what_a_cold_one_sees() {
    let host = Host::new();
    let cold = host.cold(PORTRAIT);
    assert_eq!(cold.status, Status::Ok, "{cold:?}");
    let (cold, warm) = (cold.value.unwrap(), host.warm("python", PORTRAIT).value.unwrap());
    for (index, (cold, warm)) in cold.as_array().unwrap().iter().zip(warm.as_array().unwrap()).enumerate() {
        assert_eq!(cold, warm, "{index}");
    }
}

/// A cold interpreter runs most code without a syntax tree, a warm one with: the result is the same.
#[test]
fn code_means_the_same_in_a_warm_one() {
    let host = Host::new();
    host.is_ready("python");
    for source in [
        "1 + 1",
        "a = 1\na, 2",
        "1, 2,",
        "x = 1\nx; 2",
        "for i in range(3):\n    pass\ni",
        "print('hi')",
        "result = 4\nprint(result)",
        "def f():\n    return f.__code__.co_filename\nf()",
        "import traceback\ntry:\n    1/0\nexcept Exception:\n    traceback.print_exc()\n'#'  # comment",
        "'''\nfoo\n'''",
        "x = '''\nfoo\n'''",
        "(1,\n2\n)",
        "*range(3), 4",
        "[x for x in range(3)]",
        "x = 1\n# comment",
        "from __future__ import annotations\nf'{1}'",
        "if 1:\n  2",
        "if 1:\n  2\n3",
        "a = 1\r\na",
        "print(0)\nx for x in range(3)",
        "print(0)\ny := 5",
        "print(0)\n1)+(2",
        "print(0)\n1]+[2",
        "print(0)\nyield 3",
        "print(0)\n(yield 3)",
        "print(0)\n[(yield)]",
        "print(0)\n1, *[2]",
        "print(0)\nx = 1\nx is 1",
        "import warnings\nx = 1\nx is 1",
        "import warnings\nwarnings.simplefilter('error')\n'\\d'",
        "import warnings\nwarnings.warn('hey')\nlen(warnings.filters)",
        "assert (1, 'x')\n3",
        "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('x')",
        "print(0)\n1), print('early') or (2",
        "print(0)\n1), undefined or (2",
        "print(0)\n1 \"\"\"), print('early'), ([0",
        "print(0)\n1 \"\"\") or [0",
        "f'{1}' \"\"\"a\"\"\"",
        "import sys\nseen = []\nsys.settrace(lambda frame, event, argument: seen.append(event))\nseen[0]",
        "print(0)\nf(",
        "print(0)\n1 \\",
        "print(0)\n x",
        "print(0)\n@x\nf",
        "print(0)\nawait 1",
        "print(0)\n'\0'",
        "print(0)\n1\u{a0}\n",
        "\u{feff}print(0)\n1",
        "print(0)\n\n1 / 0",
        "def f():\n    raise ValueError('mine')\n\nf()",
        "raise SyntaxError('mine')",
        "exec('bad bad')\n1",
        "import sys\nsys.settrace(lambda *a: None)\nsys.gettrace() is None",
        "import sys\n[sys.gettrace(), sys._getframe().f_code.co_name, __name__]",
        "import sys\nsys.exit(3)",
    ] {
        let (cold, warm) = (host.cold(source), host.warm("python", source));
        let said = |result: CodeResult| {
            (result.status, result.value, result.text, result.exception, result.stdout, result.stderr)
        };
        assert_eq!(said(cold), said(warm), "{source}");
    }
}

/// Two interpreters at the same time have no namespace and no random number in common, and a third finds nothing of theirs.
#[test]
fn interpreters_are_apart() {
    let host = Host::new();
    host.is_ready("python");
    let source = "import ctypes, os, random, tempfile, time\n\
                  spaces = [os.readlink('/proc/self/ns/' + n) for n in ('user', 'mnt', 'pid', 'ipc', 'net', 'uts', 'cgroup')]\n\
                  drawn = [random.random(), random.getrandbits(64), next(tempfile._get_candidate_names())]\n\
                  tries = []\n\
                  for name, args in ('unshare', (0x10000000,)), ('unshare', (0x20000,)), ('setns', (0, 0)), ('ioctl', (3, 0x8912, 0)), \
                                    ('mount', (b'x', b'/tmp', b'tmpfs', 0, 0)), ('umount2', (b'/tmp', 2)), ('umount2', (b'/proc', 2)):\n    \
                      done = getattr(ctypes.CDLL(None, use_errno=True), name)(*args)\n    tries.append([done, ctypes.get_errno()])\n\
                  was = os.listdir('/tmp')\nopen('/tmp/mine', 'w').close()\ntime.sleep(1)\n\
                  [spaces, drawn, tries, was, os.listdir('/tmp')]";
    let both: Vec<serde_json::Value> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(|| host.run("python", source))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().value.unwrap()).collect()
    });
    let mut seen = HashSet::new();
    for name in ["user", "mnt", "pid", "ipc", "net", "uts", "cgroup"] {
        seen.insert(std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap().to_string_lossy().into_owned());
    }
    for one in &both {
        for space in one[0].as_array().unwrap().iter().chain(one[1].as_array().unwrap()) {
            let text = space.as_str().map_or_else(|| space.to_string(), str::to_owned);
            assert!(seen.insert(text.clone()), "{text} is not its own: {both:?}");
        }
        // Refused by the filter: EPERM, or as if there were no such call.
        for done in one[2].as_array().unwrap() {
            assert!(*done == json!([-1, 1]) || *done == json!([-1, 38]), "{one}");
        }
        assert_eq!((&one[3], &one[4]), (&json!([]), &json!(["mine"])));
    }
    assert_eq!(host.run("python", "import os; os.listdir('/tmp')").value, Some(json!([])));
    // What is open at descriptor 0 is its own: flags and locks go with it.
    let mark = "import fcntl, os\nwas = fcntl.fcntl(0, fcntl.F_GETFL) & os.O_APPEND\n\
                fcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND)\n[was, fcntl.fcntl(0, fcntl.F_GETFL) & os.O_APPEND]";
    for _ in 0..6 {
        assert_eq!(host.run("python", mark).value, Some(json!([0, 1024])));
    }
}

/// Limits of an interpreter are its own, whatever its siblings use.
#[test]
fn limits_are_its_own() {
    let host = Host::new();
    host.is_ready("python");
    let bomb = "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n        n += 1\nexcept OSError: pass\nn";
    let count = host.run("python", bomb).value.unwrap().as_u64().unwrap();
    assert!((50..=64).contains(&count), "{count}");
    let fill = "n = 0\ntry:\n    with open('/tmp/f', 'wb', 0) as f, open('/dev/shm/f', 'wb', 0) as g:\n        while True: n += f.write(bytes(1 << 16)) + g.write(bytes(1 << 16))\n\
                except OSError as e: n = [n >> 20, e.errno]\nn";
    let filled = host.run("python", fill).value.unwrap();
    assert!((8..=10).contains(&filled[0].as_u64().unwrap()) && filled[1] == 28, "{filled}");
    let children = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)\nos.wait()[1]";
    assert_eq!(host.run("python", children).value, Some(json!(0)));
    assert_eq!(
        host.run("python", "import os; [n for n in os.listdir('/proc') if n.isdigit()]").value,
        Some(json!(["1", "2"]))
    );
}

/// Somebody kills the sandboxes that wait. The code had not started, and gets another one.
#[test]
fn killed_while_it_waits() {
    // Started once more for this test alone: other tests have sandboxes below this process.
    if std::env::var_os(HOLD).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let passed = command
            .args(["--exact", "code::pool::tests::killed_while_it_waits", "--nocapture"])
            .env(HOLD, "1")
            .status();
        return assert!(passed.unwrap().success());
    }
    let host = Host::new();
    host.is_ready("python");
    let children = |pid: &str| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    // Process 1 of a sandbox has an interpreter below it; a janitor has none.
    let boxes: Vec<String> = children("self").into_iter().filter(|pid| !children(pid).is_empty()).collect();
    assert_eq!(boxes.len(), 2);
    for pid in &boxes {
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    for n in 0..8 {
        assert_eq!(host.run("python", &format!("{n}")).value, Some(json!(n)));
    }
}

/// Less memory than an interpreter takes: that is said of the sandbox, every time, and nothing hangs.
#[test]
fn less_memory_than_it_takes() {
    for mib in [1, 2, 3, 4, 5, 6, 8, 12, 16, 24] {
        let host = Host::with(|policy| policy.limits.memory = Some(mib << 20));
        for n in 0..6 {
            let (reader, _writer) = std::io::pipe().unwrap();
            match host.code(&Code::new(Language::named("python").unwrap(), format!("{n}")), reader) {
                // With a cgroup it is known why it ended.
                Ok(result) if result.status == Status::Memory => assert!(mib < 16, "{mib} MiB: {result:?}"),
                Ok(result) => {
                    assert!(mib > 2, "{mib} MiB are enough?");
                    assert_eq!(result.value, Some(json!(n)), "{mib} MiB: {result:?}");
                }
                Err(SandboxError::Code(CodeError::NotStarted { reason, .. })) => {
                    assert!(mib < 16 && !rustix::process::geteuid().is_root(), "{mib} MiB: {reason}");
                }
                Err(error) => assert!(mib < 16 && !rustix::process::geteuid().is_root(), "{mib} MiB: {error}"),
            }
        }
    }
}

/// For the test below, which starts this program once more with only this test in it.
#[test]
fn holds_a_pool() {
    if std::env::var_os(HOLD).is_none() {
        return;
    }
    let host = Host::new();
    host.is_ready("python");
    let endless = "import os, time\nos.fork()\nprint(os.readlink('/proc/self/ns/pid'))\ntime.sleep(600)";
    std::thread::scope(|scope| {
        scope.spawn(|| host.run("python", endless));
        std::thread::sleep(Duration::from_millis(300));
        println!("holding");
        std::thread::sleep(Duration::from_secs(600));
    });
}

const HOLD: &str = "RINGFENCE_TEST_HOLD";

/// Whoever owns the pool is killed: nothing of it goes on.
#[test]
fn a_killed_owner() {
    use std::io::BufRead;
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "code::pool::tests::holds_a_pool", "--nocapture"])
        .env(HOLD, "1")
        .stdout(std::process::Stdio::piped());
    let mut owner = command.spawn().unwrap();
    let mut lines = std::io::BufReader::new(owner.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("holding")));
    let mut below = vec![owner.id().to_string()];
    let mut next = 0;
    while let Some(pid) = below.get(next).cloned() {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            below.extend(children.split_whitespace().map(str::to_owned));
        }
        next += 1;
    }
    // The owner, two interpreters with their process 1, and what the code forked; janitors where there are control groups.
    assert!(below.len() >= 6, "{below:?}");
    owner.kill().unwrap();
    owner.wait().unwrap();
    let groups = |name: &str| {
        let places = ["", "memory", "pids", "cpu", "unified"].map(|c| std::path::Path::new("/sys/fs/cgroup").join(c));
        let mut entries = places.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
        entries.any(|entry| entry.file_name().to_string_lossy().starts_with(name))
    };
    let (name, since) = (format!("ringfence-{}-", owner.id()), Instant::now());
    let lives = |pid: &String| std::path::Path::new("/proc").join(pid).exists();
    while below.iter().any(lives) || groups(&name) {
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "{:?}",
            below.iter().filter(|p| lives(p)).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A pool can give way while its last code runs: who asked for that code does not wait for its workers.
#[test]
fn a_pool_that_gave_way_is_not_waited_for() {
    let host = Host::new();
    host.is_ready("python");
    let (view, pool) = host.pools.kept.lock().unwrap().remove(0);
    let mut pool = Arc::into_inner(pool).unwrap();
    pool.workers.push(std::thread::spawn(|| std::thread::sleep(Duration::from_secs(20))));
    let pool = Arc::new(pool);
    host.pools.kept.lock().unwrap().push((view, pool.clone()));
    // One that others have goes on.
    drop_beside(pool);
    assert_eq!(host.run("python", "'still there'").value, Some(json!("still there")));
    host.is_ready("python");
    let started = Instant::now();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| host.run("python", "import time; time.sleep(1); 'ran'"));
        std::thread::sleep(Duration::from_millis(500));
        drop(host.pools.kept.lock().unwrap().pop());
        assert_eq!(running.join().unwrap().value, Some(json!("ran")));
    });
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}
