//! The walls from inside Python and Node, on every engine that is here, Docker included, as root and as an ordinary user. Each case has an
//! act that is allowed beside the one that is not.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../ringfence-engine/tests/docker/dockerd.rs"]
mod dockerd;
#[path = "support/image.rs"]
mod image;
mod support;

use std::io::Read;
use std::net::TcpListener;

use image::Image;
use serde_json::{Value, json};
use support::Place;

/// What it is about, an expression that gives true, and one that must fail; with the errors that it may fail with.
type Case = (&'static str, &'static str, &'static str, &'static [&'static str]);

const PYTHON: &[Case] = &[
    ("secrets", "open('/tmp/own', 'w').write('x') == 1", "open(i['home'] + '/.ssh/id')", &["ENOENT", "EACCES"]),
    (
        "project",
        "open('/tmp/own', 'w').write('x') == 1",
        "open(i['home'] + '/project/mine.txt')",
        &["ENOENT", "EACCES"],
    ),
    ("root", "bool(os.listdir('/usr/bin'))", "open('/usr/bin/planted', 'w')", &["EROFS", "EACCES", "EPERM"]),
    (
        "remove",
        "os.mkdir('/tmp/d') is None",
        "os.remove('/etc/passwd')",
        &["EROFS", "EACCES", "EPERM", "ENOENT", "EBUSY"],
    ),
    ("processes", "os.kill(os.getpid(), 0) is None", "os.kill(i['pid'], 0)", &["ESRCH", "EPERM"]),
    (
        "network",
        "bool(socket.create_server(('127.0.0.1', 0)))",
        "socket.create_connection(('127.0.0.1', i['port']), 2)",
        &["ECONNREFUSED", "ENETUNREACH", "EPERM"],
    ),
    ("outside", "bool(socket.socket())", "socket.create_connection(('192.0.2.1', 80), 2)", &["ENETUNREACH", "EPERM"]),
    ("user", "os.getuid() > 0", "os.setuid(0)", &["EPERM", "EINVAL"]),
    ("host name", "bool(socket.gethostname())", "socket.sethostname('x')", &["EPERM"]),
];

const NODE: &[Case] = &[
    (
        "secrets",
        "fs.writeFileSync('/tmp/own', 'x') === undefined",
        "fs.readFileSync(i.home + '/.ssh/id')",
        &["ENOENT", "EACCES"],
    ),
    ("project", "fs.existsSync('/usr/bin')", "fs.readFileSync(i.home + '/project/mine.txt')", &["ENOENT", "EACCES"]),
    (
        "root",
        "fs.readdirSync('/usr/bin').length > 0",
        "fs.writeFileSync('/usr/bin/planted', 'x')",
        &["EROFS", "EACCES", "EPERM"],
    ),
    (
        "remove",
        "fs.mkdirSync('/tmp/d') === undefined",
        "fs.rmSync('/etc/passwd')",
        &["EROFS", "EACCES", "EPERM", "ENOENT", "EBUSY"],
    ),
    ("processes", "process.kill(process.pid, 0)", "process.kill(i.pid, 0)", &["ESRCH", "EPERM"]),
    ("network", "await listen()", "await connect('127.0.0.1', i.port)", &["ECONNREFUSED", "ENETUNREACH", "EPERM"]),
    ("outside", "await listen()", "await connect('192.0.2.1', 80)", &["ENETUNREACH", "EPERM"]),
    ("user", "process.getuid() > 0", "process.setuid(0)", &["EPERM", "EINVAL"]),
];

const NODE_HELPERS: &str = "
const fs = await import('node:fs'), net = await import('node:net'), i = inputs;
const listen = () => new Promise((ok) => { const s = net.createServer().listen(0, '127.0.0.1', () => { s.close(); ok(true); }); });
const connect = (host, port) => new Promise((ok, no) => net.connect({ host, port }).on('connect', ok).on('error', no));
";

fn run(place: &Place, engine: &str, image: Option<&Image>, language: &str, source: &str, inputs: &Value) -> Value {
    place.write("project/act", source);
    let inputs = inputs.to_string();
    let mut args = vec![
        "code",
        language,
        "act",
        "--engine",
        engine,
        "--cpus",
        "2",
        "--json",
        "--timeout",
        "30s",
        "--input",
        &inputs,
    ];
    args.extend(image.iter().flat_map(|image| ["--image", &image.0]));
    let done = place.ringfence(&args);
    serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{engine} {language}: {}{}", done.out, done.err))
}

#[test]
fn from_inside_python_and_node() {
    let place = Place::new();
    place.write(".ssh/id", "secret");
    place.write("project/mine.txt", "mine");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Outside, all of it can be done.
    assert!(std::fs::File::open(place.home.join(".ssh/id")).unwrap().read(&mut [0]).unwrap() == 1);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let inputs = json!({ "home": place.home, "pid": std::process::id(), "port": port });
    let mut engines = support::engines();
    match dockerd::docker_at(None, &["version"]).0 {
        true => engines.push("docker"),
        false => support::skip("engine docker", "no daemon answers this user"),
    }
    for engine in engines {
        for (language, cases) in [("python", PYTHON), ("javascript", NODE)] {
            let image = match (engine, language) {
                ("docker", "python") => Some(Image::python()),
                ("docker", _) => Some(Image::of("node", "node")),
                _ => None,
            };
            let run = |source: &str| run(&place, engine, image.as_ref(), language, source, &inputs);
            for (what, allowed, forbidden, errors) in cases {
                let source = |act: &str| match language {
                    "python" => format!("import os, socket\ni = inputs\n{act}\n"),
                    _ => format!("{NODE_HELPERS}{act}\n"),
                };
                let good = run(&source(allowed));
                assert_eq!(good["value"], json!(true), "{engine} {language} {what}: {good}");
                let bad = run(&source(forbidden));
                let errno = bad["exception"]["errno"].as_str().unwrap_or_default();
                assert!(errors.contains(&errno), "{engine} {language} {what}: {bad}");
            }
        }
    }
}

/// Each status, in each language.
#[test]
fn statuses() {
    let place = Place::new();
    let table = [
        ("python", "1", "ok"),
        ("python", "1 / 0", "error"),
        ("python", "while True: pass", "timeout"),
        ("python", "x = bytearray(1 << 30)", "memory"),
        ("python", "open('/usr/x', 'w')", "denied"),
        ("javascript", "1", "ok"),
        ("javascript", "nobody", "error"),
        ("javascript", "for (;;) {}", "timeout"),
        ("javascript", "const x = []; for (;;) x.push(Buffer.alloc(1 << 20, 1))", "memory"),
        ("javascript", "const x = []; for (;;) x.push({ a: [1, 2, 3] })", "memory"),
        ("javascript", "new Array(1e9).fill(0)", "memory"),
        ("javascript", "require('fs').writeFileSync('/usr/x', '')", "denied"),
        ("bash", "true", "ok"),
        ("bash", "false", "error"),
        ("bash", "while :; do :; done", "timeout"),
        ("bash", "x=x; while :; do x=$x$x; done", "memory"),
        ("bash", "a=(); while :; do a+=(xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{1..100}); done", "memory"),
        // The words alone are no proof: it went on after them.
        ("bash", "echo 'xmalloc: cannot allocate' >&2; false", "error"),
        ("bash", "/etc/passwd", "denied"),
    ];
    for (language, source, status) in table {
        place.write("project/act", source);
        let time = if status == "memory" { "30s" } else { "4s" };
        let done = place.ringfence(&["code", language, "act", "--cpus", "2", "--json", "--timeout", time]);
        let result: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{}{}", done.out, done.err));
        assert_eq!(result["status"], status, "{language} {source}: {result}");
    }
    for language in ["python", "javascript"] {
        place.write("project/act", "1");
        // The sandbox's own failure: neither can start in so little.
        let done = place.ringfence(&["code", language, "act", "--memory", "1m", "--json"]);
        let result: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{}{}", done.out, done.err));
        let status = result["status"].as_str().unwrap_or_default();
        assert!(["sandbox_error", "memory"].contains(&status), "{language}: {result}");
    }
    for (language, source) in [
        ("python", "open('made', 'w').close()"),
        ("javascript", "require('fs').writeFileSync('made', '')"),
        ("bash", ": >made"),
    ] {
        place.write("project/act", source);
        // What is there already is not replaced: the code did well, and what it made cannot be handed out.
        for (status, code) in [("ok", 0), ("sandbox_error", 125)] {
            let out = ["--out", "made", "--out-dir", language, "--json"];
            let done = place.ringfence(&[&["code", language, "act"], &out[..]].concat());
            assert_eq!((done.code, &done.json()["status"]), (code, &json!(status)), "{language}: {done:?}");
        }
    }
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
