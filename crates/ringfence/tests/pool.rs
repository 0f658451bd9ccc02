//! Warm interpreters, on real ones: each is used once, all that a cold sandbox promises holds, and nothing is left.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ringfence::Engine;
use ringfence::code::{Code, CodeError, CodeResult, Language, Pool, Status, Warm};
use ringfence::policy::facts::Facts;
use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::policy::policy::Policy;
use serde_json::json;

struct Host {
    facts: Facts,
    policy: Policy,
    _dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let facts = ringfence::facts::gather().unwrap();
        let dir = tempfile::tempdir_in(&facts.home).unwrap();
        let mut flags = Layer::flags();
        flags.profile("skill");
        let inputs = Inputs::new(dir.path().canonicalize().unwrap(), facts.home.clone(), flags);
        let mut policy = layers::resolve(inputs).unwrap().policy;
        // Other tests run beside this one.
        policy.limits.cpus = Some(2.0);
        policy.warm = 2;
        policy.warm_fork = false;
        Host { facts, policy, _dir: dir }
    }

    /// Where interpreters are forked.
    fn forking() -> Host {
        let mut host = Host::new();
        host.policy.warm_fork = true;
        host
    }

    fn pool(&self, language: &str, preload: &[&str]) -> Pool {
        let preload = preload.iter().map(|module| (*module).to_owned()).collect();
        let warm = Warm { language: Language::named(language).unwrap(), packages: false, preload };
        Pool::new(warm, &self.policy, &self.facts, Engine::Native.into()).unwrap()
    }
}

fn run(pool: &Pool, language: &str, source: &str) -> CodeResult {
    pool.run(&Code::new(Language::named(language).unwrap(), source), None).unwrap().result
}

fn is_ready(pool: &Pool) {
    let started = Instant::now();
    while pool.ready() < 2 {
        assert!(started.elapsed() < Duration::from_secs(60), "it does not get ready");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn each_is_used_once() {
    let host = Host::new();
    let pool = host.pool("python", &["json", "decimal"]);
    let mut seen = HashSet::new();
    for n in 0..6 {
        let source = "import os, sys\nos.path.exists('/tmp/left') and 1/0\nopen('/tmp/left', 'w').close()\n\
                      print('out')\nprint('err', file=sys.stderr)\n\
                      [hash('x'), id([]), 'decimal' in sys.modules, 'left' in globals(), globals().update(left=1)]";
        let result = run(&pool, "python", source);
        assert_eq!(result.status, Status::Ok, "{result:?}");
        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("out\n", "err\n"));
        let value = result.value.unwrap();
        assert_eq!((&value[2], &value[3]), (&json!(true), &json!(false)), "{n}");
        // A hash seed and an address layout of its own.
        assert!(seen.insert(value[0].to_string()) && seen.insert(value[1].to_string()), "{value}");
    }
    let node = host.pool("javascript", &["crypto"]);
    for _ in 0..3 {
        let value =
            run(&node, "javascript", "const was = globalThis.left; globalThis.left = 1; [was ?? null, 20 + 1]").value;
        assert_eq!(value, Some(json!([null, 21])));
    }
}

#[test]
fn statuses_and_walls() {
    statuses(Host::new());
}

#[test]
fn statuses_and_walls_of_forks() {
    statuses(Host::forking());
}

fn statuses(mut host: Host) {
    host.policy.limits.timeout = Some(Duration::from_secs(3));
    let pool = host.pool("python", &[]);
    is_ready(&pool);
    assert_eq!(pool.forks(), host.policy.warm_fork);
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
        let result = run(&pool, "python", source);
        assert_eq!(result.status, status, "{source}: {result:?}");
    }
    let home = host.facts.home.display().to_string();
    let mut hidden = Code::new(Language::named("python").unwrap(), "import os; os.path.exists(home)");
    hidden.inputs = json!({ "home": home });
    assert_eq!(pool.run(&hidden, None).unwrap().result.value, Some(json!(false)));
    // A lie ends the liar.
    let lie = "import os, time\nfor n in range(3, 20):\n    try: os.write(n, b's 0\\nr 25\\n{\"status\":\"ok\",\"value\":1}')\n    \
               except OSError: pass\ntime.sleep(60)";
    let started = Instant::now();
    assert_eq!(run(&pool, "python", lie).value, Some(json!(1)));
    assert_eq!(run(&pool, "python", "2").value, Some(json!(2)));
    assert!(started.elapsed() < Duration::from_secs(3));

    let (reader, writer) = std::io::pipe().unwrap();
    let endless = Code::new(Language::named("python").unwrap(), "while True: pass");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.run(&endless, Some(reader.as_fd())));
        std::thread::sleep(Duration::from_millis(500));
        drop(writer);
        assert_eq!(waits.join().unwrap().unwrap().result.status, Status::Cancelled);
    });
}

#[test]
fn what_a_pool_is_not_for() {
    let mut host = Host::new();
    let pool = host.pool("python", &[]);
    assert_eq!(run(&pool, "bash", "result=7").value, Some(json!(7)));
    let missing = host.pool("python", &["no_such_module"]);
    let error = missing.run(&Code::new(Language::named("python").unwrap(), "1"), None).unwrap_err();
    assert!(matches!(&error, CodeError::NotStarted { reason, .. } if reason.contains("no_such_module")), "{error}");
    host.policy.warm = 0;
    let off = host.pool("python", &[]);
    assert_eq!((run(&off, "python", "1").value, off.ready()), (Some(json!(1)), 0));
}

/// More at once than there are boxes, and a pool that goes: no descriptor and no process is left.
#[test]
fn nothing_is_left() {
    leaves_nothing(&Host::new());
}

#[test]
fn nothing_is_left_of_forks() {
    leaves_nothing(&Host::forking());
}

fn leaves_nothing(host: &Host) {
    let busy = host.pool("python", &[]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope
                .spawn(|| (0..5).for_each(|n| assert_eq!(run(&busy, "python", &format!("{n}")).value, Some(json!(n)))));
        }
    });
    let boxed = run(&busy, "python", "import os; os.readlink('/proc/self/ns/pid')").value.unwrap();
    drop(busy);
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut spaces = processes.filter_map(|entry| std::fs::read_link(entry.path().join("ns/pid")).ok());
    assert!(spaces.all(|space| Some(space.to_string_lossy().as_ref()) != boxed.as_str()));
}
