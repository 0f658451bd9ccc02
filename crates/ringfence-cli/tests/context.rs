//! Contexts: interpreters that keep their variables, in real sessions.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/sessions.rs"]
mod sessions;
mod support;

use std::time::{Duration, Instant};

use ringfence::code::{Code, CodeResult, ContextError, Contexts, Language, Status};
use ringfence::session::Session;
use serde_json::json;
use sessions::Home;

fn code(language: &str, source: &str) -> Code {
    Code::new(Language::named(language).unwrap(), source)
}

async fn run(session: &Session, name: &str, code: &Code) -> CodeResult {
    let time = Some(Duration::from_secs(60));
    Contexts::of(session.clone()).run(name, code, time, std::future::pending()).await.unwrap()
}

/// Each call by a connection of its own, as separate programs have it.
#[tokio::test]
async fn variables_are_kept() {
    let home = Home::new();
    let session = home.session().await;
    for (language, first, second, third) in [
        ("python", "import math\nx = 20\nprint('one')", "print('two')\nx += 1\nx", "x + math.floor(0.5)"),
        ("javascript", "let x = 20; console.log('one')", "console.log('two'); x += 1; x", "x"),
    ] {
        let again = async || home.sessions.open(session.id()).await.unwrap();
        let one = run(&again().await, language, &code(language, first)).await;
        assert_eq!((one.status, one.stdout.as_str()), (Status::Ok, "one\n"), "{one:?}");
        let two = run(&again().await, language, &code(language, second)).await;
        assert_eq!((two.value, two.stdout.as_str()), (Some(json!(21)), "two\n"), "{language}");
        let broken = run(&again().await, language, &code(language, "\nnobody_knows_this()")).await;
        assert_eq!(broken.status, Status::Error);
        assert_eq!(broken.exception.unwrap().trace[0].line, Some(2));
        let three = run(&again().await, language, &code(language, third)).await;
        assert_eq!(three.value, Some(json!(21)));
        // Another one has variables of its own.
        let other = run(&session, &format!("other-{language}"), &code(language, "x")).await;
        assert_eq!(other.status, Status::Error, "{other:?}");
    }
    let contexts = Contexts::of(session.clone());
    let names: Vec<String> = contexts.list().await.unwrap().into_iter().map(|context| context.name).collect();
    assert_eq!(names, ["javascript", "other-javascript", "other-python", "python"]);
    let wrong = contexts.run("python", &code("javascript", "1"), None, std::future::pending()).await;
    assert!(matches!(wrong, Err(ContextError::OtherLanguage { .. })), "{wrong:?}");
    contexts.restart("python").await.unwrap();
    assert_eq!(run(&session, "python", &code("python", "x")).await.status, Status::Error);
    for name in ["", "a b", "../x"] {
        let refused = contexts.run(name, &code("python", "1"), None, std::future::pending()).await;
        assert!(matches!(refused, Err(ContextError::Name(_))));
    }
    assert!(matches!(contexts.interrupt("nobody").await, Err(ContextError::NoContext(_))));
    let bash = contexts.run("b", &code("bash", "true"), None, std::future::pending()).await;
    assert!(matches!(bash, Err(ContextError::Language(_))));
}

#[tokio::test]
async fn interrupts_time_and_crashes() {
    let home = Home::new();
    let session = home.session().await;
    let contexts = Contexts::of(session.clone());
    for (language, first, endless, crash) in [
        ("python", "x = 7", "while True: pass", "import os; os.kill(os.getpid(), 9)"),
        ("javascript", "var x = 7", "for (;;) {}", "process.kill(process.pid, 9); for (;;) {}"),
    ] {
        run(&session, language, &code(language, first)).await;
        // Its time is up: the code ends, the variables stay.
        let late = Some(Duration::from_millis(700));
        let timeout = contexts.run(language, &code(language, endless), late, std::future::pending()).await.unwrap();
        assert_eq!(timeout.status, Status::Timeout, "{language}");
        // Somebody else interrupts it.
        let forever = code(language, endless);
        let (cancelled, ()) = tokio::join!(run(&session, language, &forever), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let other = home.sessions.open(session.id()).await.unwrap();
            Contexts::of(other).interrupt(language).await.unwrap();
        });
        assert_eq!(cancelled.status, Status::Cancelled, "{language}");
        // The caller cancels.
        let soon = tokio::time::sleep(Duration::from_millis(500));
        let cancelled = contexts.run(language, &code(language, endless), None, soon).await.unwrap();
        assert_eq!(cancelled.status, Status::Cancelled, "{language}");
        assert_eq!(run(&session, language, &code(language, "x")).await.value, Some(json!(7)), "{language}");
        // A crash is said, and the next call has a new interpreter.
        let crashed = run(&session, language, &code(language, crash)).await;
        assert_eq!(crashed.status, Status::Error, "{language}");
        assert!(crashed.exception.unwrap().message.contains("signal 9"));
        assert_eq!(run(&session, language, &code(language, "1 + 1")).await.value, Some(json!(2)));
        assert_eq!(run(&session, language, &code(language, "x")).await.status, Status::Error);
    }
    // One that does not listen is ended.
    let deaf = code("python", "import signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass");
    let ended = contexts.run("deaf", &deaf, Some(Duration::from_millis(500)), std::future::pending()).await.unwrap();
    assert_eq!(ended.status, Status::Timeout);
    assert!(contexts.list().await.unwrap().iter().all(|context| context.name != "deaf"));
}

/// Code that waits or imports at its top level is no script, and yet what it declares stays.
#[tokio::test]
async fn what_javascript_declares_beside_await() {
    let home = Home::new();
    let session = home.session().await;
    let js = async |text: &str| run(&session, "js", &code("javascript", text)).await;
    let first = js("const x = await Promise.resolve(5)\nlet {a, b: [c = 2, ...d]} = {a: 1, b: [undefined, 3]}\n\
         function f() { return x + 1 }\nclass K { m() { return 9 } }\nfor (var i = 0; i < 3; i++) { var v = i }\nf()")
    .await;
    assert_eq!((first.status, &first.value), (Status::Ok, &Some(json!(6))), "{first:?}");
    assert_eq!(js("[x, a, c, d, f(), new K().m(), i, v]").await.value, Some(json!([5, 1, 2, [3], 6, 9, 3, 2])));
    let imported = js("import p, {join as j} from 'path'; import * as n from 'os'\nj('a', 'b')").await;
    assert_eq!(imported.value, Some(json!("a/b")), "{imported:?}");
    assert_eq!(js("[p.join('c', 'd'), j('e'), typeof n.cpus]").await.value, Some(json!(["c/d", "e", "function"])));
    // Once more, as a cell is run again; also where a script would take it for a call.
    assert_eq!(js("const x = await (async () => 7)()\nx").await.value, Some(json!(7)));
    assert_eq!(js("export const result = x + 1").await.value, Some(json!(8)));
    for (text, kind, line) in [
        ("1\nawait 2\nthrow new Error('here')", "Error", Some(3)),
        ("await 1\n\nconst = 2", "SyntaxError", Some(3)),
        ("let taken = 1", "", None),
        ("await 1\nlet taken = 2", "SyntaxError", Some(2)),
        ("import {nothing} from 'path'", "SyntaxError", None),
    ] {
        let exception = js(text).await.exception.unwrap_or_default();
        let at = exception.trace.first().and_then(|frame| frame.line);
        assert_eq!((exception.kind.as_str(), at), (kind, line), "{text}: {exception:?}");
    }
    // What came before a failure is kept.
    assert_eq!(js("const before = await 1; nobody()").await.status, Status::Error);
    assert_eq!(js("before").await.value, Some(json!(1)));
    // What nobody waited for is told.
    let dropped = js("Promise.reject(new Error('dropped')); 1").await;
    assert_eq!((dropped.status, dropped.exception.unwrap().message), (Status::Error, "dropped".to_owned()));
    assert_eq!(js("x").await.value, Some(json!(7)));
}

/// An interpreter that ends takes nothing with it that was written.
#[tokio::test]
async fn output_before_an_end() {
    let home = Home::new();
    let session = home.session().await;
    for (language, text, signal) in [
        ("python", "import os, sys\nprint('out'); print('err', file=sys.stderr); os._exit(3)", None),
        ("python", "import os, sys\nprint('out'); print('err', file=sys.stderr); os.kill(os.getpid(), 11)", Some(11)),
        ("javascript", "console.log('out'); console.error('err'); process.exit(3)", None),
        ("javascript", "console.log('out'); console.error('err'); process.kill(process.pid, 9); for (;;) {}", Some(9)),
    ] {
        let ended = run(&session, "a", &code(language, text)).await;
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("out\n", "err\n"), "{ended:?}");
        let message = ended.exception.unwrap().message;
        let expected = signal.map_or("exit status 3".to_owned(), |signal| format!("signal {signal}"));
        assert!(ended.status == Status::Error && message.contains(&expected), "{message}");
    }
    let flood = "import os\nfor _ in range(30): print('y' * 100_000)\nos._exit(0)";
    let flood = run(&session, "a", &code("python", flood)).await;
    assert!(
        flood.stdout_dropped == 30 * 100_001 - (1 << 20) && flood.stdout.len() < 2 << 20,
        "{}",
        flood.stdout_dropped
    );
    // One that does not listen, as well.
    let deaf = code("python", "import signal\nprint('deaf')\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass");
    let time = Some(Duration::from_millis(500));
    let ended = Contexts::of(session.clone()).run("a", &deaf, time, std::future::pending()).await.unwrap();
    assert_eq!((ended.status, ended.stdout.as_str()), (Status::Timeout, "deaf\n"));
}

/// Code that breaks what it runs in has failed, and so has the next one: the sandbox has not.
#[tokio::test]
async fn a_broken_context_is_the_codes_fault() {
    let home = Home::new();
    let session = home.session().await;
    for (language, text) in [
        ("python", "import os; os.closerange(3, 64)"),
        ("python", "import posix; del posix.read"),
        ("python", "import sys; sys.modules['__main__'].__builtins__.__dict__.clear()"),
        ("python", "import os; os.write(3, b'\\n' * 100)"),
        ("javascript", "require('fs').closeSync(3); 1"),
        ("javascript", "require('fs').closeSync(0); 1"),
        ("javascript", "Buffer.concat = Buffer.from = JSON.parse = null; 1"),
        ("javascript", "Array.prototype.filter = Array.prototype.map = null; var process, Promise = 1; 1"),
    ] {
        let contexts = Contexts::of(session.clone());
        for text in [text, "1", "1 + 1"] {
            let time = Some(Duration::from_secs(4));
            let ran = contexts.run("a", &code(language, text), time, std::future::pending()).await;
            assert!(ran.is_ok(), "{language}: {text}: {ran:?}");
        }
        // One of them was its end, or it was not broken at all.
        let after = run(&session, "a", &code(language, "40 + 2")).await;
        assert_eq!(after.value, Some(json!(42)), "{text}: {after:?}");
        let _ = contexts.restart("a").await;
    }
    // A real failure is still one.
    let missing = Contexts::of(session.clone());
    let mut none = code("python", "1");
    none.files = vec![ringfence::code::File { path: "a/b".into(), data: vec![] }; 2];
    none.files[0].path = "a".into();
    assert!(missing.run("b", &none, None, std::future::pending()).await.is_err());
}

/// The next one finds a context that listens, with its variables.
#[tokio::test]
async fn a_context_after_its_caller_died() {
    let home = Home::new();
    let session = home.session().await;
    for (language, first, endless) in [
        ("python", "x = 7", "while True: pass"),
        ("javascript", "var x = 7", "for (;;) {}"),
        ("javascript", "var x = 7", "await new Promise((done) => setTimeout(done, 1e6))"),
    ] {
        run(&session, language, &code(language, first)).await;
        let contexts = Contexts::of(home.sessions.open(session.id()).await.unwrap());
        let endless = code(language, endless);
        let call = contexts.run(language, &endless, Some(Duration::from_secs(60)), std::future::pending());
        assert!(tokio::time::timeout(Duration::from_millis(500), call).await.is_err());
        drop(contexts);
        let started = Instant::now();
        for _ in 0..3 {
            let next = run(&session, language, &code(language, "x")).await;
            assert_eq!((next.status, next.value), (Status::Ok, Some(json!(7))), "{language}");
        }
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

/// What it took is known also where an interpreter stays.
#[tokio::test]
async fn usage_of_a_call() {
    let home = Home::new();
    let session = home.session().await;
    for (language, works) in [
        ("python", "import time\nwhile time.process_time() < 0.3: pass\nx = b'1' * (30 << 20)"),
        ("javascript", "while (process.cpuUsage().user < 3e5); globalThis.x = Buffer.alloc(30 << 20, 1); 0"),
    ] {
        for kept in [true, false] {
            let (contexts, time) = (Contexts::of(session.clone()), Some(Duration::from_secs(60)));
            let ran = match kept {
                true => run(&session, language, &code(language, works)).await,
                false => contexts.once("once", &code(language, works), time, std::future::pending()).await.unwrap(),
            };
            assert!(ran.usage.cpu_ms >= 150 && ran.usage.peak_memory > 30 << 20, "{language} {kept}: {:?}", ran.usage);
        }
        let idle = run(&session, language, &code(language, "1")).await;
        assert!(idle.usage.cpu_ms < 150, "{language}: {:?}", idle.usage);
    }
}

/// What does not fit into the session's `/tmp` is not the next call's.
#[test]
fn a_flood_stays_in_its_call() {
    let place = support::Place::new();
    let created = place.ringfence(&["session", "create", "work", "--tmp-size", "8m"]);
    assert_eq!(created.code, 0, "{}", created.err);
    place.write(
        "project/flood.py",
        "import sys\nwhile True:\n    print('flood' * 100)\n    sys.stderr.write('flood' * 7)",
    );
    place.write("project/flood.js", "for (;;) console.log('flood'.repeat(100))");
    place.write("project/mine.py", "import sys\nprint('mine')\nprint('too', file=sys.stderr)");
    place.write("project/mine.js", "console.log('mine'); console.error('too')");
    for (language, end) in [("python", "py"), ("node", "js")] {
        let run = |file: &str| {
            let file = format!("{file}.{end}");
            place.ringfence(&[
                "code",
                language,
                &file,
                "--session",
                "work",
                "--context",
                end,
                "--timeout",
                "5s",
                "--json",
            ])
        };
        for _ in 0..2 {
            let flood = run("flood").json();
            assert!(flood["stdout_dropped"].as_u64().unwrap() > 1 << 20, "{language}: {}", flood["status"]);
            assert!(flood["stdout"].as_str().unwrap().len() < 2 << 20, "{language}");
            let mine = run("mine").json();
            let said = |key: &str| mine[key].as_str().unwrap().chars().take(200).collect::<String>();
            assert_eq!((said("stdout"), said("stderr")), ("mine\n".to_owned(), "too\n".to_owned()), "{language}");
        }
    }
    assert_eq!(place.ringfence(&["session", "rm", "work"]).code, 0);
}

/// An interpreter that takes more than the session has is ended, and the next call has another one.
#[test]
fn memory_that_is_used_up() {
    let place = support::Place::new();
    let created = place.ringfence(&["session", "create", "work", "--memory", "192m"]);
    assert_eq!(created.code, 0, "{}", created.err);
    for (language, more) in [
        ("python", "x = [bytearray(1 << 20) for _ in range(1000)]"),
        ("node", "globalThis.x = []; for (let n = 0; n < 1000; n++) x.push(Buffer.alloc(1 << 20, 1)); 0"),
    ] {
        place.write("project/more", more);
        place.write("project/less", "40 + 2");
        let call = |file: &str| {
            place.ringfence(&["code", language, file, "--session", "work", "--context", language, "--json"])
        };
        assert_eq!(call("less").json()["value"], 42);
        let used = call("more");
        assert_eq!((used.code, &used.json()["status"]), (137, &"memory".into()), "{used:?}");
        assert_eq!(used.json()["limit"], "memory");
        assert_eq!(call("less").json()["value"], 42, "{language}");
    }
    assert_eq!(place.ringfence(&["session", "rm", "work"]).code, 0);
}

/// Node comes to run code where its helper threads have no room.
#[test]
fn little_memory() {
    let place = support::Place::new();
    assert_eq!(place.ringfence(&["session", "create", "work", "--memory", "40m"]).code, 0);
    place.write("project/less", "40 + 2");
    let done = place.ringfence(&["code", "node", "less", "--session", "work", "--timeout", "20s", "--json"]);
    assert_eq!(done.json()["value"], 42, "{done:?}");
    assert_eq!(place.ringfence(&["session", "rm", "work"]).code, 0);
}

#[tokio::test]
async fn large_results_are_whole() {
    let home = Home::new();
    let session = home.session().await;
    let long = run(&session, "a", &code("python", "'x' * 3_000_000")).await;
    assert_eq!(long.value.unwrap().as_str().unwrap().len(), 3_000_000);
    let mut files = code("python", "open('/tmp/f', 'wb').write(b'x' * 9_000_000)\nimport os; os.chdir('/tmp'); 1");
    files.out = vec!["f".into()];
    let made = run(&session, "a", &files).await;
    assert_eq!((made.status, made.files[0].data.len()), (Status::Ok, 9_000_000));
    let mut inputs = code("python", "len(text)");
    inputs.inputs = json!({ "text": "é".repeat(2_000_000) });
    assert_eq!(run(&session, "a", &inputs).await.value, Some(json!(2_000_000)));
    let flood = run(&session, "a", &code("python", "for _ in range(60): print('y' * 100_000)")).await;
    assert!(flood.stdout.len() < 2 << 20 && flood.stdout_dropped > 4_000_000, "{}", flood.stdout_dropped);
    // Two at once wait for each other.
    let slow = code("python", "import time; time.sleep(0.3); n = globals().get('n', 0) + 1; n");
    let (one, two) = tokio::join!(run(&session, "b", &slow), run(&session, "b", &slow));
    let mut both = [one.value.unwrap().as_i64().unwrap(), two.value.unwrap().as_i64().unwrap()];
    both.sort_unstable();
    assert_eq!(both, [1, 2]);
}

/// What one context does to the results of another.
#[tokio::test]
async fn results_cannot_be_forged() {
    let home = Home::new();
    let session = home.session().await;
    let own = run(&session, "victim", &code("python", "import os; os.getpid()")).await.value.unwrap();
    let mut attack = code(
        "python",
        "import os\nfound = []\nfor n in range(10):\n    for mode in (os.O_RDONLY, os.O_WRONLY):\n        try:\n            \
         os.close(os.open(f'/proc/{pid}/fd/{n}', mode))\n            found.append(n)\n        except OSError: pass\n\
         try:\n    open(f'/proc/{pid}/mem', 'rb')\n    found.append('mem')\nexcept OSError: pass\nfound",
    );
    attack.inputs = json!({ "pid": own });
    let found = run(&session, "attacker", &attack).await;
    assert_eq!(found.value, Some(json!([])), "{found:?}");
    // Its own results are all that it can lie about.
    let lie = "import os\nos.write(3, b'\\n' + b'0' * 32 + b'\\nr 25\\n{\"status\":\"ok\",\"value\":1}')\n2";
    run(&session, "attacker", &code("python", lie)).await;
    assert_eq!(run(&session, "attacker", &code("python", "4")).await.value, Some(json!(4)));
    assert_eq!(run(&session, "victim", &code("python", "3")).await.value, Some(json!(3)));
}

/// The caller is killed: the supervisor ends the code in time.
#[tokio::test]
async fn a_caller_that_dies() {
    let home = Home::new();
    let session = home.session().await;
    run(&session, "a", &code("python", "1")).await;
    let other = home.sessions.open(session.id()).await.unwrap();
    let contexts = Contexts::of(other);
    let endless = code("python", "while True: pass");
    let call = contexts.run("a", &endless, Some(Duration::from_secs(1)), std::future::pending());
    // Given up in the middle, as if its process had been killed.
    assert!(tokio::time::timeout(Duration::from_millis(400), call).await.is_err());
    drop(contexts);
    let started = Instant::now();
    let contexts = Contexts::of(session.clone());
    while !contexts.list().await.unwrap().is_empty() {
        assert!(started.elapsed() < Duration::from_secs(30), "it still runs");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // One that waits has its session's time.
    run(&session, "a", &code("python", "1")).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(contexts.list().await.unwrap().len(), 1);
}

/// A context that waits does not keep its session; one that works does, whatever its time limit is.
#[tokio::test]
async fn a_waiting_context_is_idle() {
    use ringfence::session::{End, State};
    for timeout in [None, Some(Duration::from_secs(60))] {
        let home = Home::new();
        let mut create = home.create();
        (create.policy.limits.timeout, create.policy.limits.timeout_ceiling) = (timeout, None);
        let session = home.sessions.create(create.idle(Some(Duration::from_secs(1)))).await.unwrap();
        let contexts = Contexts::of(session.clone());
        let call =
            async |text: &str| contexts.run("a", &code("python", text), None, std::future::pending()).await.unwrap();
        assert_eq!(call("x = 1").await.status, Status::Ok);
        // Longer than the idle time, and nothing is asked of it meanwhile.
        let long = call("import time; time.sleep(3); x + 1").await;
        assert_eq!((long.status, long.value), (Status::Ok, Some(json!(2))), "{timeout:?}");
        assert_eq!(contexts.list().await.unwrap().len(), 1);
        tokio::time::timeout(Duration::from_secs(20), session.closed()).await.expect("it is kept");
        let state = home.sessions.info(session.id()).await.unwrap().state;
        assert_eq!(state, State::Ended(End::Idle), "{timeout:?}");
    }
}

#[test]
fn through_the_program() {
    let place = support::Place::new();
    place.write("project/one.py", "x = 41");
    place.write("project/two.py", "x + 1");
    let created = place.ringfence(&["session", "create", "work"]);
    assert_eq!(created.code, 0, "{}", created.err);
    let call = |file: &str| place.ringfence(&["code", "python", file, "--session", "work", "--context", "main"]);
    assert_eq!(call("one.py").code, 0);
    let two = call("two.py");
    assert_eq!((two.code, two.out.as_str()), (0, "42\n"), "{}", two.err);
    let list = place.ringfence(&["context", "list", "work", "--json"]);
    assert!(list.out.contains("\"name\":\"main\""), "{}", list.out);
    assert_eq!(place.ringfence(&["context", "restart", "work", "main"]).code, 0);
    assert_eq!(call("two.py").code, 1);
    // Without a name nothing is kept.
    let once = place.ringfence(&["code", "python", "one.py", "--session", "work", "--json"]);
    assert_eq!(once.code, 0, "{}", once.err);
    let id = serde_json::from_str::<serde_json::Value>(&once.out).unwrap()["id"].as_str().unwrap().to_owned();
    let record = place.ringfence(&["history", "show", &id, "--json"]);
    assert!(record.out.contains("one.py") && record.out.contains("\"exit_code\":0"), "{}", record.out);
    // Which limit it was is in the result, and in its record.
    place.write("project/endless.py", "while True: pass");
    let endless =
        ["code", "python", "endless.py", "--session", "work", "--context", "main", "--timeout", "1s", "--json"];
    let late = place.ringfence(&endless).json();
    assert_eq!((&late["status"], &late["limit"]), (&"timeout".into(), &"timeout".into()), "{late}");
    let record = place.ringfence(&["history", "show", late["id"].as_str().unwrap(), "--json"]);
    assert!(record.out.contains("\"reason\":\"time\""), "{}", record.out);
    let list = place.ringfence(&["context", "list", "work"]).out;
    assert!(!list.contains("once") && list.starts_with("NAME"), "{list}");
    // A file that goes in replaces nothing of the project's.
    place.write("project/data.csv", "mine");
    place.write("other/data.csv", "another");
    let other = place.home.join("other/data.csv");
    for (language, code) in
        [("python", "open('data.csv').read()"), ("node", "require('fs').readFileSync('data.csv', 'utf8')")]
    {
        place.write("project/read", code);
        let call =
            |file: &str| place.ringfence(&["code", language, "read", "--session", "work", "--file", file, "--json"]);
        let refused = call(other.to_str().unwrap());
        assert_eq!((refused.code, &refused.json()["status"]), (125, &"sandbox_error".into()), "{refused:?}");
        assert_eq!(std::fs::read_to_string(place.project.join("data.csv")).unwrap(), "mine");
        // The same is no replacement.
        assert_eq!(call("data.csv").json()["value"], "mine");
    }
    // A request that is wrong is no failure of the sandbox.
    for (language, context) in [("node", "main"), ("bash", "other"), ("python", "no/name")] {
        let wrong = place.ringfence(&["code", language, "one.py", "--session", "work", "--context", context, "--json"]);
        assert_eq!((wrong.code, &wrong.json()["status"]), (125, &"failed".into()), "{wrong:?}");
    }
    // What the history has of it is what was asked for.
    let history = place.ringfence(&["history", "--limit", "0"]).out;
    assert!(history.contains("context python main") && !history.contains("sh -c"), "{history}");
    for args in [
        &["code", "python", "one.py", "--context", "main"][..],
        &["code", "python", "one.py", "--session", "nobody", "--context", "main"],
        &["code", "python", "one.py", "--session", "work", "--memory", "1g"],
        &["code", "bash", "one.py", "--session", "work", "--context", "b"],
        &["context", "interrupt", "work", "nobody"],
    ] {
        assert_eq!(place.ringfence(args).code, 125, "{args:?}");
    }
    assert_eq!(place.ringfence(&["session", "rm", "work"]).code, 0);
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
