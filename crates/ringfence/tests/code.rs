//! Code on real interpreters: every status, every language, every engine that is there.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests
#![allow(clippy::disallowed_methods, reason = "tests ask how they were started")]

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ringfence::EngineRef;
use ringfence::code::{self, Code, CodeError, CodeResult, File, Language, Status};
use ringfence::policy::facts::Facts;
use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::policy::policy::Policy;
use serde_json::{Value, json};

struct Host {
    facts: Facts,
    policy: Policy,
    _dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let facts = ringfence::facts::gather().unwrap();
        let dir = ringfence_testing::project_dir(env!("CARGO_TARGET_TMPDIR"));
        let mut flags = Layer::flags();
        flags.profile("skill");
        let inputs = Inputs::new(dir.path().canonicalize().unwrap(), facts.home.clone(), flags);
        let mut policy = layers::resolve(inputs).unwrap().policy;
        // Other tests run beside this one.
        policy.limits.cpus = Some(2.0);
        Host { facts, policy, _dir: dir }
    }

    fn run(&self, engine: EngineRef, code: &Code) -> Result<CodeResult, CodeError> {
        code::run(code, &self.policy, &self.facts, engine.into(), None)
    }
}

fn engines() -> Vec<EngineRef> {
    // Docker takes an image with the interpreters in it, which no registry gives here.
    let there = |engine: &EngineRef| engine.name() == "native" || which("bwrap");
    let (present, missing): (Vec<EngineRef>, Vec<EngineRef>) =
        [ringfence::engines::native::ENGINE, ringfence::engines::bubblewrap::ENGINE].into_iter().partition(there);
    assert!(missing.is_empty() || std::env::var_os("RINGFENCE_REQUIRE_ENGINES").is_none(), "missing: {missing:?}");
    missing.iter().for_each(|engine| println!("SKIP {engine}: not installed"));
    present
}

fn which(program: &str) -> bool {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(program).is_file())
}

fn language(name: &str) -> &'static Language {
    Language::named(name).unwrap()
}

fn on_all(test: impl Fn(&Host, EngineRef)) {
    let host = Host::new();
    for engine in engines() {
        test(&host, engine);
    }
}

fn run(host: &Host, engine: EngineRef, name: &str, source: &str) -> CodeResult {
    host.run(engine, &Code::new(language(name), source)).unwrap_or_else(|error| panic!("{engine} {name}: {error}"))
}

#[test]
fn values() {
    let table: &[(&str, &str, Value)] = &[
        ("python", "1 + 1", json!(2)),
        ("python", "result = {'a': [1, None, True, 'é', 2.5]}", json!({"a": [1, null, true, "é", 2.5]})),
        (
            "python",
            "from __future__ import annotations\ndef f(x: Missing) -> None: pass\nf.__annotations__['x']",
            json!("Missing"),
        ),
        ("python", "if __name__ == '__main__':\n    result = __name__", json!("__main__")),
        ("python", "\n\n    \nimport os.path\nos.path.basename(__file__)", json!("main.py")),
        (
            "python",
            "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\ndataclasses.asdict(P(3))",
            json!({"x": 3}),
        ),
        ("python", "result = 5\nprint('x')", json!(5)),
        ("python", "2 ** 63", json!(9_223_372_036_854_775_808_u64)),
        ("javascript", "1 + 1", json!(2)),
        ("javascript", "const result = { a: [1, null, 'é'] };", json!({"a": [1, null, "é"]})),
        ("javascript", "const x = await Promise.resolve(20);\nx + 1", json!(21)),
        ("javascript", "import path from 'node:path';\nexport const result = path.basename('/a/b');", json!("b")),
        ("javascript", "// ü\nimport os from 'os';\ntypeof os.cpus", json!("function")),
        ("javascript", "require('path').join('a', 'b')", json!("a/b")),
        ("javascript", "(await import('node:path')).basename('/a/b')", json!("b")),
        ("bash", "result=$((1 + 1))", json!(2)),
        ("bash", "declare -A m=([a]=x)\nresult=${m[a]}", json!("x")),
        ("bash", "result='{\"a\": [1]}'", json!({"a": [1]})),
    ];
    on_all(|host, engine| {
        for (name, source, value) in table {
            let result = run(host, engine, name, source);
            assert_eq!(result.status, Status::Ok, "{engine} {source:?}: {result:?}");
            assert_eq!(result.value.as_ref(), Some(value), "{engine} {source:?}");
        }
    });
}

/// Any JSON goes in and comes out as it is.
#[test]
fn inputs() {
    let inputs = json!({
        "x": 21, "text": "a 'b' \"c\" \\ \n \u{1F600} $(id) `id` ${x}", "big": 9_007_199_254_740_993_u64, "negative": -5_000_000_000_i64,
        "float": 0.1, "list": [1, [2, [3, {}]]], "none": null, "true": true, "not an identifier": 1, "__class__": 2, "large": "é".repeat(700_000),
    });
    on_all(|host, engine| {
        // `null` is an input as any other.
        for (name, source) in [
            ("python", "inputs is None"),
            ("javascript", "inputs === null"),
            ("bash", "[[ $inputs == null ]] && result=true"),
        ] {
            let code = Code { inputs: Value::Null, ..Code::new(language(name), source) };
            assert_eq!(host.run(engine, &code).unwrap().value, Some(json!(true)), "{engine} {name}");
        }
        let with = |name: &str, source: &str| {
            let mut inputs = inputs.clone();
            // Names that begin so are the runner's of bash.
            if name == "bash" {
                inputs.as_object_mut().unwrap().remove("__class__");
            }
            let code = Code { inputs, ..Code::new(language(name), source) };
            let result = host.run(engine, &code).unwrap();
            assert_eq!(result.status, Status::Ok, "{engine} {name}: {:?} {}", result.exception, result.stderr);
            result
        };
        assert!(with("python", "inputs").value.as_ref() == Some(&inputs), "{engine}");
        assert_eq!(run(host, engine, "python", "2 ** 70").text.as_deref(), Some("1180591620717411303424"));
        assert_eq!(
            with("python", "[x, text, len(large), none]").value,
            Some(json!([21, inputs["text"], 700_000, null]))
        );
        assert_eq!(with("javascript", "[x, text, large.length]").value, Some(json!([21, inputs["text"], 700_000])));
        assert_eq!(with("javascript", "inputs.list").value, Some(inputs["list"].clone()));
        assert_eq!(with("bash", "result=$text").value, Some(inputs["text"].clone()));
        assert_eq!(with("bash", "result=\"$x ${#large}\"").stderr, "");
        assert_eq!(with("bash", "result=$inputs").value.unwrap()["list"], inputs["list"]);
    });
}

/// A value that bash would evaluate if it were given to an integer.
const HOSTILE: &str = "a[$(touch made)]";

#[test]
fn no_input_is_a_variable_that_bash_has() {
    on_all(|host, engine| {
        let with = |language_name: &str, inputs: Value, source: &str| {
            host.run(engine, &Code { inputs, ..Code::new(language(language_name), source) })
        };
        let taken = [
            "RANDOM",
            "SRANDOM",
            "OPTIND",
            "HISTCMD",
            "SECONDS",
            "EPOCHSECONDS",
            "LINENO",
            "BASH_ARGV0",
            "BASH_ENV",
            "COMP_WORDS",
            "FUNCNAME",
            "GROUPS",
            "DIRSTACK",
            "UID",
            "PPID",
            "SHELLOPTS",
            "IFS",
            "PATH",
            "HOME",
            "PS4",
            "PROMPT_COMMAND",
            "ENV",
            "LD_PRELOAD",
            "LC_ALL",
            "_",
            "__channel",
            "inputs",
            "result",
        ];
        for name in taken {
            // Beside others that are free.
            let refused = with("bash", json!({ "a": 1, name: HOSTILE, "z": 1 }), "ls made");
            assert!(matches!(&refused, Err(CodeError::InputName { name: said, .. }) if said == name), "{refused:?}");
            assert!(refused.unwrap_err().to_string().contains(&format!("`{name}`")));
        }
        // What the environment has, the shell has too.
        let mut shown = Host::new();
        shown.policy.env.set.insert("MODE".to_owned(), "set".into());
        let code = Code { inputs: json!({ "MODE": HOSTILE }), ..Code::new(language("bash"), "result=$MODE") };
        let refused = shown.run(engine, &code);
        assert!(matches!(&refused, Err(CodeError::InputName { name, .. }) if name == "MODE"), "{refused:?}");
        let result = host.run(engine, &code).unwrap();
        assert_eq!(result.value, Some(json!(HOSTILE)), "{engine}");
        // No other language has such variables.
        assert_eq!(with("python", json!({ "RANDOM": 4 }), "RANDOM").unwrap().value, Some(json!(4)));
    });
}

/// Whatever an input holds arrives as text, and nothing of it is executed.
#[test]
fn hostile_values_are_text_in_bash() {
    on_all(|host, engine| {
        let nested = json!({ "RANDOM": HOSTILE, "list": [HOSTILE, { "OPTIND": "$(touch made)" }] });
        let values = [
            json!(HOSTILE),
            json!("$(touch made)"),
            json!("`touch made`"),
            json!("'; touch made; '"),
            json!("-v RANDOM"),
            json!("%s\\n$((a[$(touch made)]))"),
            nested,
            json!([HOSTILE]),
        ];
        for value in values {
            // Names that no variable can have are in `inputs` alone.
            let inputs = json!({ "random": value, "DIRECTORY": value, "a[$(touch made)]": value, "a-b": value });
            let source =
                "[[ $random == \"$DIRECTORY\" && ! -e made ]] && result=\"[$inputs,$(ls -A | wc -l)]\" text=$random";
            let code = Code { inputs: inputs.clone(), ..Code::new(language("bash"), source) };
            let result = host.run(engine, &code).unwrap();
            assert_eq!(result.value, Some(json!([inputs, 0])), "{engine} {value}: {result:?}");
            let code = Code { inputs, ..Code::new(language("bash"), "printf %s \"$random\"") };
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(host.run(engine, &code).unwrap().stdout, text, "{engine}");
        }
        // The same text is executed where the code itself evaluates it: the probe works.
        let code = Code {
            inputs: json!({ "x": HOSTILE }),
            ..Code::new(language("bash"), "(( x )); [[ -e made ]] && result=true")
        };
        assert_eq!(host.run(engine, &code).unwrap().value, Some(json!(true)), "{engine}");
    });
}

#[test]
fn errors_have_true_lines() {
    let table: &[(&str, &str, &str, u32)] = &[
        ("python", "\n\ndef f():\n    return 1 / 0\n\nf()", "ZeroDivisionError", 4),
        ("python", "x = 1\ny = (\n", "SyntaxError", 2),
        ("python", "  x = 1", "IndentationError", 1),
        ("python", "import sys\nsys.exit(3)", "SystemExit", 2),
        ("javascript", "\nfunction f() {\n  throw new TypeError('no');\n}\nf();", "TypeError", 3),
        ("javascript", "let a = 1;\nlet b = ;\n", "SyntaxError", 2),
        ("javascript", "await 1;\n\nthrow new RangeError('far');", "RangeError", 3),
        ("bash", "true\nfalse\nexit 3", "ExitStatus", 2),
    ];
    on_all(|host, engine| {
        for (name, source, kind, line) in table {
            let result = run(host, engine, name, source);
            assert_eq!(result.status, Status::Error, "{engine} {source:?}");
            let exception = result.exception.unwrap();
            assert_eq!(exception.kind, *kind, "{engine} {source:?}");
            assert_eq!(exception.trace.last().unwrap().line, Some(*line), "{engine} {source:?}: {:?}", exception.trace);
            assert!(exception.trace.iter().all(|frame| !frame.file.contains("ringfence")), "{:?}", exception.trace);
        }
    });
}

/// An interpreter that ends in the middle is the code's failure.
#[test]
fn sudden_ends() {
    let table: &[(&str, &str, &str)] = &[
        ("python", "import os; os._exit(4)", "exit status 4"),
        ("python", "import os; os.kill(os.getpid(), 9)", "SIGKILL (signal 9)"),
        ("javascript", "process.exit(4)", "exit status 4"),
        ("bash", "kill -9 $$", "SIGKILL (signal 9)"),
    ];
    on_all(|host, engine| {
        for (name, source, message) in table {
            let result = run(host, engine, name, source);
            let message_of = result.exception.unwrap().message;
            // bwrap says a signal as a shell does.
            let message_of = message_of.replace("ended by ", "").replace("exit status 137", "SIGKILL (signal 9)");
            assert_eq!((result.status, message_of.as_str()), (Status::Error, *message), "{engine} {source}");
        }
    });
}

#[test]
fn time_is_up() {
    on_all(|host, engine| {
        let mut policy = host.policy.clone();
        policy.limits.timeout = Some(Duration::from_secs(2));
        for (name, source) in [
            ("python", "print('before')\nwhile True: pass"),
            ("javascript", "console.log('before'); for (;;) {}"),
            ("bash", "echo before; while :; do :; done"),
        ] {
            let result =
                code::run(&Code::new(language(name), source), &policy, &host.facts, engine.into(), None).unwrap();
            assert_eq!((result.status, result.stdout.as_str()), (Status::Timeout, "before\n"), "{engine} {name}");
        }
        // Time that was spent before counts.
        policy.limits.timeout = Some(Duration::from_secs(60));
        for (spent, status) in [(0, Status::Ok), (50, Status::Ok), (59, Status::Timeout), (100, Status::Timeout)] {
            let code = Code::new(language("bash"), "sleep 1.5");
            let code = Code { spent: Duration::from_secs(spent), ..code };
            let result = code::run(&code, &policy, &host.facts, engine.into(), None).unwrap();
            assert_eq!(result.status, status, "{engine} {spent}");
        }
    });
}

#[test]
fn memory_is_used_up() {
    on_all(|host, engine| {
        for (name, source) in [
            ("python", "x = []\nwhile True: x.append(bytearray(1 << 20))"),
            ("javascript", "const x = []; for (;;) x.push(Buffer.alloc(1 << 20, 1));"),
            ("bash", "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done"),
        ] {
            let result = run(host, engine, name, source);
            assert_eq!(result.status, Status::Memory, "{engine} {name}: {:?} {}", result.exception, result.stderr);
        }
    });
}

/// Node neither waits for helpers that cannot be started, nor fights with the kernel for the pages of its own program.
#[test]
fn little_memory_is_told_soon() {
    on_all(|host, engine| {
        let mut policy = host.policy.clone();
        policy.limits.memory = Some(40 << 20);
        let run = |policy: &Policy, source: &str| {
            let (code, start) = (Code::new(language("javascript"), source), Instant::now());
            (code::run(&code, policy, &host.facts, engine.into(), None), start.elapsed())
        };
        assert_eq!(run(&policy, "1 + 1").0.unwrap().value, Some(json!(2)), "{engine}");
        for source in [
            "const x = []; for (let i = 0; ; i++) x.push({ i, s: 'a' + i });",
            "const x = []; for (;;) x.push(Buffer.alloc(1 << 20, 1));",
        ] {
            let (result, took) = run(&policy, source);
            let result = result.unwrap();
            // Without a cgroup an allocation fails instead, and Node may crash over that.
            let crashed = !rustix::process::geteuid().is_root()
                && result.exception.as_ref().is_some_and(|exception| exception.message.contains("SIGSEGV"));
            assert!(result.status == Status::Memory || crashed, "{engine} {source}: {result:?}");
            // Its time is 30 s, and the neighbours are many.
            assert!(took < Duration::from_secs(20), "{engine} {source}: {took:?}");
        }
        policy.limits.memory = Some(20 << 20);
        let refused = run(&policy, "1").0;
        assert!(matches!(refused, Err(CodeError::TooLittleMemory { .. })), "{engine}: {refused:?}");
    });
}

#[test]
fn walls_are_named() {
    on_all(|host, engine| {
        for (name, denied, allowed) in [
            ("python", "open('/usr/x', 'w')", "open('x', 'w').close()"),
            ("javascript", "require('fs').writeFileSync('/usr/x', '')", "require('fs').writeFileSync('x', '')"),
            ("bash", "/etc/passwd", "echo > x"),
        ] {
            let result = run(host, engine, name, denied);
            assert_eq!(result.status, Status::Denied, "{engine} {name}: {:?}", result.exception);
            assert_eq!(run(host, engine, name, allowed).status, Status::Ok, "{engine} {name}");
        }
        let result = run(host, engine, "python", "import socket\nsocket.create_connection(('1.1.1.1', 53), 2)");
        assert_eq!(result.status, Status::Denied, "{engine}: {:?}", result.exception);
    });
}

/// Libraries wrap what the system answered, and the wall stays a wall.
#[test]
fn walls_behind_libraries_are_named() {
    let python = "import urllib.request\nurllib.request.urlopen('http://HOST/', timeout=5)";
    let wrapped = "import http.client\ntry:\n    http.client.HTTPConnection('HOST').request('GET', '/')\nexcept OSError as e:\n    raise RuntimeError('no') from ExceptionGroup('g', [e])";
    let args = "import socket\ntry:\n    socket.create_connection(('HOST', 80))\nexcept OSError as e:\n    kept = e\nraise RuntimeError(kept)";
    let node = "await fetch('http://HOST/')";
    let errors = "import net from 'net';\nconst e = await new Promise((done) => net.connect(80, 'HOST').on('error', done));\nthrow new AggregateError([new Error('x'), e], 'all');";
    on_all(|host, engine| {
        for name in ["nowhere.test", "192.0.2.7"] {
            for (language, source) in [
                ("python", python),
                ("python", wrapped),
                ("python", args),
                ("javascript", node),
                ("javascript", errors),
            ] {
                let result = run(host, engine, language, &source.replace("HOST", name));
                let exception = result.exception.unwrap();
                assert_eq!(result.status, Status::Denied, "{engine} {source}: {exception:?}");
                let named: Vec<&str> = exception.chain().filter_map(|one| one.host.as_deref()).collect();
                assert!(named.contains(&name), "{engine} {source}: {exception:?}");
            }
        }
        // What the system answered to something else is not what failed, and an endless chain has an end.
        for (language, source) in [
            ("python", "try:\n    open('/usr/x', 'w')\nexcept OSError:\n    open('missing')"),
            ("python", "try:\n    open('/usr/x', 'w')\nexcept OSError:\n    raise ValueError('x') from None"),
            ("python", "a, b = ValueError('a'), ValueError('b')\na.reason, b.reason = b, a\nraise a"),
            ("javascript", "const e = new Error('x'); e.cause = { cause: e }; throw e"),
            ("javascript", "await fetch('http://127.0.0.1:81/')"),
            // Causes that fail themselves.
            (
                "python",
                "class E(OSError):\n    @property\n    def reason(self): raise ValueError\n    errno = reason\nraise E('x')",
            ),
            ("javascript", "throw new Error('x', { cause: Object.create(null) })"),
            (
                "javascript",
                "const e = new Error('x'); Object.defineProperty(e, 'cause', { get() { throw 1 } }); throw e",
            ),
        ] {
            let result = run(host, engine, language, source);
            assert_eq!(result.status, Status::Error, "{engine} {source}: {:?}", result.exception);
            assert!(!result.exception.unwrap().trace.is_empty() || source.contains("fetch"), "{engine} {source}");
        }
        // With a network, a name that is not found is the code's affair.
        let mut policy = host.policy.clone();
        policy.network = ringfence::policy::policy::Network::Open;
        let code = Code::new(language("python"), "import socket\nsocket.getaddrinfo('nowhere.invalid', 80)");
        let result = code::run(&code, &policy, &host.facts, engine.into(), None).unwrap();
        assert_eq!(result.status, Status::Error, "{engine}: {:?}", result.exception);
    });
}

#[test]
fn cancelled_from_outside() {
    on_all(|host, engine| {
        for (name, source) in [
            ("python", "import time; time.sleep(20)"),
            ("javascript", "setTimeout(() => 1, 20000)"),
            ("bash", "sleep 20"),
        ] {
            let (read, write) = rustix::pipe::pipe().unwrap();
            let start = Instant::now();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(1500));
                rustix::io::write(&write, b"x").unwrap();
            });
            let code = Code::new(language(name), source);
            let result = code::run(&code, &host.policy, &host.facts, engine.into(), Some(read.as_fd())).unwrap();
            thread.join().unwrap();
            assert_eq!(result.status, Status::Cancelled, "{engine} {name}");
            assert!(start.elapsed() < Duration::from_secs(15));
        }
    });
}

/// What was refused, and by which rule, where that is asked for.
#[test]
fn denials_are_named_where_traced() {
    let mut host = Host::new();
    host.policy.trace_denials = true;
    let denied = |source: &str| run(&host, ringfence::engines::native::ENGINE, "python", source).denied;
    assert_eq!(denied("open('/tmp/x', 'w').write('x')"), []);
    let refused = |path: &str| {
        let refused = denied(&format!("open('{path}', 'w')"));
        refused.iter().any(|denial| denial.object == path && denial.act == ringfence::denials::Act::Write)
    };
    let own = host._dir.path().canonicalize().unwrap().join("x");
    assert!(refused(own.to_str().unwrap()));
    // What the caller could not write outside either was not refused by a rule.
    assert_eq!(refused("/usr/x"), ringfence_testing::is_root());
}

/// The channel is a socket of the host's network: it tells nothing of that, and takes no name there.
#[test]
fn the_channel_tells_nothing_of_the_host() {
    // SIOCGIFCONF, SIOCGIFHWADDR, SIOCGIWESSID; SO_BINDTOIFINDEX, SO_BINDTODEVICE, SO_NETNS_COOKIE; then a name.
    let source = "import array, fcntl, os, socket, stat
said = []
def is_socket(fd):
    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: return False
for fd in [fd for fd in range(3, 10) if is_socket(fd)]:
    room = array.array('B', bytes(4096))
    for request, argument in (0x8912, (4096).to_bytes(8, 'little') + room.buffer_info()[0].to_bytes(8, 'little')), (0x8927, b'lo' + bytes(62)), (0x8b1b, b'lo' + bytes(62)):
        try:
            said.append(fcntl.ioctl(fd, request, argument) and 'told')
        except OSError as error:
            said.append(error.errno)
    fcntl.ioctl(fd, 0x541b, b'four')
    for option in 62, 25, 71:
        try:
            end = socket.socket(fileno=os.dup(fd))
            said.append(end.setsockopt(1, 62, 1) or 'told' if option == 62 else end.getsockopt(1, option, 16) and 'told')
        except OSError as error:
            said.append(error.errno)
    try:
        socket.socket(fileno=os.dup(fd)).bind('\\0ringfence-test')
        said.append('bound')
    except OSError as error:
        said.append(error.errno)
";
    let outside = std::process::Command::new("/usr/bin/python3")
        .args(["-c", &format!("import socket\npair = socket.socketpair()\n{source}print(said)")])
        .output()
        .unwrap();
    let outside = String::from_utf8_lossy(&outside.stdout).into_owned();
    assert!(outside.starts_with("['told', 'told', "), "{outside}");
    assert!(outside.contains("'bound'"), "{outside}");
    on_all(|host, engine| {
        let said = run(host, engine, "python", &format!("{source}said")).value.unwrap();
        let said = said.as_array().unwrap();
        assert!(!said.is_empty(), "{engine}");
        for said in said.chunks(7) {
            assert_eq!(json!(said), json!([1, 1, 1, 1, 1, 1, 22]), "{engine}");
        }
        // Of its own network it may know what netlink tells; one interface by its name is asked for by any socket.
        let own = "import socket; [socket.if_nameindex(), socket.create_server(('127.0.0.1', 0)).getsockname()[0]]";
        assert_eq!(run(host, engine, "python", own).value, Some(json!([[[1, "lo"]], "127.0.0.1"])), "{engine}");
        let one = "import socket\ntry: socket.if_nametoindex('lo')\nexcept OSError: result = 'refused'";
        assert_eq!(run(host, engine, "python", one).value, Some(json!("refused")), "{engine}");
    });
}

/// Whatever the code writes to the channel, it cannot say that the sandbox failed, nor grow our memory.
#[test]
fn forged_frames() {
    on_all(|host, engine| {
        let flood = "import os\nfd = 3\ntry:\n    while True: os.write(fd, b'x' * 65536)\nexcept OSError: pass";
        let table = [
            ("import os\nos.write(3, b'r 26\\n{\"status\":\"sandbox_error\"}')\nos._exit(0)", Status::Error),
            ("import os\nos.write(3, b'garbage without end' * 100)\n5", Status::Ok),
            ("import os\nos.write(3, b'r 999999999999\\n')\n5", Status::Ok),
            ("import os\nos.close(3)\nos._exit(7)", Status::Error),
        ];
        for (source, status) in table {
            assert_eq!(run(host, engine, "python", source).status, status, "{engine} {source:?}");
        }
        let mut policy = host.policy.clone();
        policy.limits.timeout = Some(Duration::from_secs(2));
        let result =
            code::run(&Code::new(language("python"), flood), &policy, &host.facts, engine.into(), None).unwrap();
        assert_eq!(result.status, Status::Timeout, "{engine}");
        assert!(result.cut);
    });
}

#[test]
fn a_value_that_is_too_large_is_cut() {
    on_all(|host, engine| {
        let result = run(host, engine, "python", "list(range(3_000_000))");
        assert!(result.cut && result.value.is_none() && result.text.is_some(), "{engine}: {:?}", result.status);
        for source in ["'x'.repeat(10_000_000)", "new Set(Array(100_000).keys())"] {
            let result = run(host, engine, "javascript", source);
            assert!(
                result.cut && result.value.is_none() && result.text.is_some(),
                "{engine} {source}: {:?}",
                result.text
            );
        }
        for source in ["new Set([1])", "x => x"] {
            let result = run(host, engine, "javascript", source);
            assert!(!result.cut && result.text.is_some(), "{engine} {source}: {result:?}");
        }
        let result = run(host, engine, "python", "object");
        assert!(!result.cut && result.text.is_some(), "{engine}: {result:?}");
    });
}

#[test]
fn files_in_and_out() {
    let data: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    on_all(|host, engine| {
        for (name, source) in [
            (
                "python",
                "import os\nos.makedirs('o/d.bin', exist_ok=True)\nopen('o/copy.bin', 'wb').write(open('d/in.bin', 'rb').read())\nos.symlink('/etc/passwd', 'o/link.bin')",
            ),
            (
                "javascript",
                "const fs = require('fs'); fs.mkdirSync('o/d.bin', { recursive: true }); fs.copyFileSync('d/in.bin', 'o/copy.bin'); fs.symlinkSync('/etc/passwd', 'o/link.bin')",
            ),
            ("bash", "mkdir -p o/d.bin; cp d/in.bin o/copy.bin; ln -s /etc/passwd o/link.bin"),
        ] {
            let code = Code {
                files: vec![File { path: "d/in.bin".into(), data: data.clone() }],
                out: vec!["o/*.bin".into()],
                ..Code::new(language(name), source)
            };
            let result = host.run(engine, &code).unwrap();
            assert_eq!(result.status, Status::Ok, "{engine} {name}: {:?} {}", result.exception, result.stderr);
            assert_eq!(result.files, vec![File { path: "o/copy.bin".into(), data: data.clone() }], "{engine} {name}");
        }
    });
}

/// One that cannot be written stops the code and is named, and what comes after it in the request is not taken for its rest.
#[test]
fn files_that_cannot_be_written() {
    on_all(|host, engine| {
        let file = |path: &str, bytes: usize| File { path: path.to_owned(), data: vec![b'x'; bytes] };
        for name in ["python", "javascript", "bash"] {
            let code = Code { files: vec![file("large", 12 << 20)], ..Code::new(language(name), "1") };
            let tried = host.run(engine, &code);
            assert!(matches!(tried, Err(CodeError::NoRoom { .. })), "{engine} {name}: {tried:?}");
        }
        // What is there takes room too; and one below a file.
        for (files, named) in [
            (vec![file("first", 10), file("large", (10 << 20) - 20), file("last", 10)], "large"),
            (vec![file("first", 10), file("first/below", 1 << 20), file("last", 10)], "first/below"),
        ] {
            for name in ["python", "javascript", "bash"] {
                let code = Code { files: files.clone(), ..Code::new(language(name), "1") };
                match host.run(engine, &code) {
                    Err(CodeError::Unwritten(reason)) => {
                        assert!(reason.starts_with(named), "{engine} {name}: {reason}")
                    }
                    other => panic!("{engine} {name} {named}: {other:?}"),
                }
            }
        }
        // Code that has started cannot say so.
        let forged = run(host, engine, "python", "import os\nos.write(3, b'u 1\\nx')\n5");
        assert_eq!((forged.status, forged.value, forged.cut), (Status::Ok, Some(json!(5)), true), "{engine}");
    });
}

/// What editors and people put into a file.
#[test]
fn odd_sources_and_outputs() {
    on_all(|host, engine| {
        for (name, source) in [
            ("python", "\u{feff}print('x')\n1 + 1"),
            ("javascript", "\u{feff}1 + 1"),
            ("javascript", "\u{feff}await 0; 1 + 1"),
            ("bash", "\u{feff}result=$((1 + 1))"),
        ] {
            assert_eq!(run(host, engine, name, source).value, Some(json!(2)), "{engine} {source:?}");
        }
        for end in ["", "\n"] {
            let result = run(host, engine, "bash", &format!("echo 1\nif true; then\necho 2{end}"));
            // As bash says it of a file.
            assert!(
                result.stderr.contains("line 4: syntax error: unexpected end of file"),
                "{engine}: {}",
                result.stderr
            );
        }
        let raw = run(
            host,
            engine,
            "python",
            "import sys\nn = sys.stdout.buffer.write(b'\\xffa\\0')\nprint('b', file=sys.stderr)",
        );
        assert_eq!(raw.stdout, "\u{fffd}a\0", "{engine}");
        assert_eq!(raw.raw, [Some(b"\xffa\0".to_vec()), None], "{engine}");
    });
}

#[test]
fn rich_results() {
    on_all(|host, engine| {
        let source = "class Table:\n    def _repr_html_(self): return '<table>'\n    def _repr_png_(self): return b'\\x89PNG'\nTable()";
        let result = run(host, engine, "python", source);
        assert_eq!(result.rich[0]["text/html"], "<table>", "{engine}");
        assert_eq!(result.rich[0]["image/png"], "iVBORw==", "{engine}");
        assert!(result.text.unwrap().contains("Table object"));
    });
}

/// Failures of the sandbox are errors of their own.
#[test]
fn what_is_not_the_codes_fault() {
    on_all(|host, engine| {
        let code =
            Code { files: vec![File { path: "../x".into(), data: Vec::new() }], ..Code::new(language("python"), "1") };
        assert!(matches!(host.run(engine, &code), Err(CodeError::Path(_))));
        // A box too small for the interpreter to start is no failure of the code.
        let mut policy = host.policy.clone();
        policy.limits.files = Some(3);
        let small = code::run(&Code::new(language("python"), "1"), &policy, &host.facts, engine.into(), None);
        assert!(!matches!(&small, Ok(result) if result.status == Status::Error), "{small:?}");
        let result = host.run(engine, &Code::new(language("typescript"), "const x: number = 1; x"));
        match result {
            Ok(result) => assert_eq!((result.status, result.value), (Status::Ok, Some(json!(1)))),
            Err(CodeError::NotStarted { reason, .. }) => assert!(reason.contains("Node 22.13"), "{reason}"),
            Err(error) => panic!("{error}"),
        }
    });
}

/// As the interpreters do by themselves.
#[test]
fn ends_that_languages_know() {
    on_all(|host, engine| {
        for (name, source, status, message) in [
            ("python", "exit(3)", Status::Error, "3"),
            ("python", "quit()", Status::Ok, ""),
            ("javascript", "process.exitCode = 3; 1", Status::Error, "exit status 3"),
            ("javascript", "process.exitCode = 0; 1", Status::Ok, ""),
            ("javascript", "if (require.main !== module) throw new Error('not main'); 1", Status::Ok, ""),
            ("python", "class E(Exception): __module__ = None\nraise E('odd')", Status::Error, "odd"),
            (
                "python",
                "class M(type):\n    __module__ = property(lambda s: 1 / 0)\nclass E(Exception, metaclass=M): pass\nraise E('odd')",
                Status::Error,
                "",
            ),
            (
                "python",
                "class _ArrayMemoryError(MemoryError): pass\nraise _ArrayMemoryError('none')",
                Status::Memory,
                "none",
            ),
            ("javascript", "new ArrayBuffer(2 ** 52)", Status::Memory, "Array buffer allocation failed"),
            ("python", "import errno\nraise OSError(errno.ENOMEM, 'none')", Status::Memory, "none"),
        ] {
            let ran = run(host, engine, name, source);
            let said = ran.exception.clone().map(|exception| exception.message).unwrap_or_default();
            assert!(ran.status == status && said.contains(message), "{source}: {ran:?}");
        }
    });
}

/// Files of the code do not take the place of what a runner imports, and all that are too many are counted.
#[test]
fn many_files_beside_modules() {
    on_all(|host, engine| {
        let python = "import os\nos.makedirs('o/p')\nfor n in range(300): open(f'o/{n}.txt', 'w').write('x')\n\
             open('o/p/deep.txt', 'w').close()\nopen('o/.hidden.txt', 'w').close()\n\
             for m in ('glob', 'os', 'stat', 'json', 'fnmatch'): open(m + '.py', 'w').write('raise SystemExit(9)')";
        let node = "const fs = require('fs'); fs.mkdirSync('o/p', {recursive: true})\n\
             for (let n = 0; n < 300; n++) fs.writeFileSync(`o/${n}.txt`, 'x')\nfs.writeFileSync('o/p/deep.txt', ''); 0";
        for (name, source) in [("python", python), ("javascript", node)] {
            for (pattern, count) in
                [("o/*.txt", 300), ("**/*.txt", 301), ("o/**", 301), ("o/1?.txt", 10), ("o/p/deep.txt", 1)]
            {
                let mut code = Code::new(language(name), source);
                code.out = vec![pattern.to_owned()];
                let ran = host.run(engine, &code).unwrap();
                assert_eq!(ran.status, Status::Ok, "{name}: {ran:?}");
                assert_eq!(ran.files.len() as u64 + ran.files_dropped, count, "{name}: {pattern}");
            }
        }
    });
}

#[test]
fn as_an_ordinary_user() {
    ringfence_testing::as_an_ordinary_user(&[]);
}
