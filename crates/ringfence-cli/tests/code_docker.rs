//! `ringfence code --engine docker --image`: one piece of code in a container of its own, on a real daemon.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../ringfence-engine/tests/docker/dockerd.rs"]
mod dockerd;
#[path = "support/image.rs"]
mod image;
mod support;

use std::process::Command;

use dockerd::{containers, docker_at as docker};
use image::Image;
use serde_json::{Value, json};
use support::Place;

#[test]
fn in_a_container_of_its_own() {
    if !docker(None, &["version"]).0 {
        support::skip("code on Docker", "no daemon answers");
        return;
    }
    let (place, image) = (Place::new(), Image::python());
    place.write("project/mine.txt", "mine");
    let run = |source: &str, more: &[&str]| -> (i32, Value) {
        place.write("project/act.py", source);
        let args = ["code", "python", "act.py", "--engine", "docker", "--image", &image.0, "--json"];
        let done = place.ringfence(&[&args, more].concat());
        let value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{}{}", done.out, done.err));
        (done.code, value)
    };
    let source = "import os, sys\nprint('said')\nprint('loud', file=sys.stderr)\nopen('made.txt', 'w').write(name)\n\
                  {'uid': os.getuid(), 'pid': os.getpid() > 1, 'mine': os.path.exists(mine), 'twice': inputs['n'] * 2}";
    let mine = place.home.join("project/mine.txt").display().to_string();
    let inputs = json!({ "n": 21, "name": "ä\"", "mine": mine }).to_string();
    let (code, ran) = run(source, &["--input", &inputs, "--out", "*.txt", "--out-dir", "."]);
    assert_eq!((code, &ran["status"], &ran["engine"]), (0, &json!("ok"), &json!("docker")), "{ran}");
    assert_eq!(ran["value"], json!({ "uid": 1000, "pid": true, "mine": false, "twice": 42 }), "{ran}");
    assert_eq!((&ran["stdout"], &ran["stderr"]), (&json!("said\n"), &json!("loud\n")));
    assert_eq!(std::fs::read_to_string(place.home.join("project/made.txt")).unwrap(), "ä\"");
    for (source, code, status) in [
        ("1 / 0", 1, "error"),
        ("open('/usr/x', 'w')", 1, "denied"),
        ("import socket; socket.create_connection(('192.0.2.1', 80), 2)", 1, "denied"),
        ("while True: pass", 124, "timeout"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", 137, "memory"),
    ] {
        let time = if status == "timeout" { "2s" } else { "30s" };
        let (got, ran) = run(source, &["--timeout", time, "--cpus", "1"]);
        assert_eq!((got, &ran["status"]), (code, &json!(status)), "{source}: {ran}");
    }
    // What it is recorded as.
    let history = place.ringfence(&["history", "--json"]);
    assert!(history.out.contains("docker"), "{}", history.out);
    let done = place.ringfence(&["code", "python", "act.py", "--engine", "docker", "--image", "no-such:1", "--json"]);
    let failed: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((done.code, &failed["status"]), (125, &json!("sandbox_error")), "{failed}");
    // What an image does not have is said.
    for (language, wanted) in [("bash", "none of bash is there"), ("typescript", "none of node nodejs is there")] {
        let args = ["code", language, "act.py", "--engine", "docker", "--image", &image.0];
        let done = place.ringfence(&args);
        assert!(done.code == 125 && done.err.contains(wanted), "{language}: {}", done.err);
    }
    assert_eq!(containers(None, &place.home), Vec::<String>::new());
}

/// Every status, of a shell in a container of its own.
#[test]
fn bash_in_a_container() {
    if !docker(None, &["version"]).0 {
        support::skip("bash on Docker", "no daemon answers");
        return;
    }
    let (place, image) = (Place::new(), Image::of("bash", "bash head tail wc rm mkdir cat sleep"));
    let run = |source: &str, more: &[&str]| -> (i32, Value) {
        place.write("project/act.sh", source);
        let args = ["code", "bash", "act.sh", "--engine", "docker", "--image", &image.0, "--json", "--cpus", "1"];
        let done = place.ringfence(&[&args, more].concat());
        let value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{}{}", done.out, done.err));
        (done.code, value)
    };
    place.write("project/data.txt", "from outside");
    let source = "echo said; echo loud >&2; cat data.txt >made.txt; [[ $name == 'ä\"' ]] || exit 9; result='[1, 2]'";
    let more = ["--input", r#"{"name": "ä\""}"#, "--file", "data.txt", "--out", "made.txt", "--out-dir", "."];
    let (code, ran) = run(source, &more);
    assert_eq!((code, &ran["status"], &ran["engine"]), (0, &json!("ok"), &json!("docker")), "{ran}");
    assert_eq!((&ran["stdout"], &ran["stderr"], &ran["value"]), (&json!("said\n"), &json!("loud\n"), &json!([1, 2])));
    assert_eq!(std::fs::read_to_string(place.home.join("project/made.txt")).unwrap(), "from outside");
    let (_, ran) = run("for ((i = 0; i < 40000; i++)); do echo 0123456789012345678901234567890123456789; done", &[]);
    assert!(ran["stdout_dropped"].as_u64().unwrap() > 0 && ran["stdout"].as_str().unwrap().contains("bytes dropped"));
    for (source, code, status) in [
        ("false", 1, "error"),
        ("echo 1\nexit 3", 1, "error"),
        ("if", 1, "error"),
        ("kill -9 $$", 1, "error"),
        ("exit 130", 1, "error"),
        ("echo 'exit 0' >/tmp/x; /tmp/x", 1, "denied"),
        ("while :; do :; done", 124, "timeout"),
        ("sleep 60", 124, "timeout"),
        ("x=x; while :; do x=$x$x; done", 137, "memory"),
    ] {
        let time = if status == "timeout" { "2s" } else { "30s" };
        let (got, ran) = run(source, &["--timeout", time]);
        assert_eq!((got, &ran["status"]), (code, &json!(status)), "{source}: {ran}");
    }
    let (_, ran) = run("echo 1\nfalse", &[]);
    assert_eq!(ran["exception"]["trace"][0]["line"], json!(2), "{ran}");
    let bare = Image::of("bash-alone", "bash");
    let done = place.ringfence(&["code", "bash", "act.sh", "--engine", "docker", "--image", &bare.0]);
    assert!(done.code == 125 && done.err.contains("bash needs `head` beside it"), "{}", done.err);
    assert_eq!(containers(None, &place.home), Vec::<String>::new());
}

/// Every status, of TypeScript on a real Node that strips types; `./test` fetches one.
#[test]
fn typescript_in_a_container() {
    let node = std::env::var_os("RINGFENCE_TEST_NODE").map(std::path::PathBuf::from).filter(|node| node.is_file());
    let Some(node) = node.filter(|_| docker(None, &["version"]).0) else {
        support::skip("TypeScript on Docker", "no daemon answers, or RINGFENCE_TEST_NODE names no Node 22.13 or newer");
        return;
    };
    let (place, image) = (Place::new(), Image::of("node", node.to_str().unwrap()));
    let run = |source: &str, more: &[&str]| -> (i32, Value) {
        place.write("project/act.ts", source);
        let args = ["code", "typescript", "act.ts", "--engine", "docker", "--image", &image.0, "--json", "--cpus", "1"];
        let done = place.ringfence(&[&args, more].concat());
        let value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{}{}", done.out, done.err));
        (done.code, value)
    };
    let source = "interface Wanted { n: number }\nconst twice = (wanted: Wanted): number => wanted.n * 2;\n\
                  console.log('said'); console.error('loud');\ntwice(inputs as Wanted)";
    let (code, ran) = run(source, &["--input", r#"{"n": 21}"#]);
    assert_eq!((code, &ran["status"], &ran["value"]), (0, &json!("ok"), &json!(42)), "{ran}");
    assert_eq!((&ran["stdout"], &ran["stderr"]), (&json!("said\n"), &json!("loud\n")));
    for (source, code, status) in [
        ("const x: number = 1;\nthrow new Error('no' as string)", 1, "error"),
        ("const x: = 1", 1, "error"),
        ("process.exit(3)", 1, "error"),
        ("require('fs').writeFileSync('/usr/x' as string, '')", 1, "denied"),
        ("for (let x: number = 0; ; x++) ;", 124, "timeout"),
        ("const x: Buffer[] = []; for (;;) x.push(Buffer.alloc(1 << 20, 1))", 137, "memory"),
    ] {
        let time = if status == "timeout" { "3s" } else { "30s" };
        let (got, ran) = run(source, &["--timeout", time]);
        assert_eq!((got, &ran["status"]), (code, &json!(status)), "{source}: {ran}");
    }
    let (_, ran) = run("const x: number = 1;\nthrow new Error('no' as string)", &[]);
    assert_eq!(ran["exception"]["trace"][0]["line"], json!(2), "{ran}");
    let version = Command::new("node").arg("--version").output().is_ok_and(|out| out.stdout.starts_with(b"v20."));
    if version {
        let old = Image::of("node-old", "node");
        let done = place.ringfence(&["code", "ts", "act.ts", "--engine", "docker", "--image", &old.0]);
        assert!(done.code == 125 && done.err.contains("needs Node 22.13"), "{}", done.err);
    }
    assert_eq!(containers(None, &place.home), Vec::<String>::new());
}
