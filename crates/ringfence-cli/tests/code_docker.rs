//! `ringfence code --engine docker --image`: one piece of code in a container of its own, on a real daemon.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../ringfence/tests/docker/dockerd.rs"]
mod dockerd;
mod support;

use std::process::Command;

use dockerd::{containers, docker_at as docker};
use serde_json::{Value, json};
use support::Place;

/// An image of this host's Python and shell, which goes with the test. Nothing is pulled.
struct Image(String);

impl Image {
    fn new() -> Image {
        let name = format!("ringfence-test-python:{}", std::process::id());
        let script = r#"set -eu
            python=$(readlink -f /usr/bin/python3)
            library=$("$python" -I -S -c 'import sys; print(sys.path[1])')
            files=$( (ldd "$python"; ldd /bin/sh) | grep -o '/[^ ]*' | sort -u)
            tar -c -h --exclude=dist-packages --exclude=test --exclude=__pycache__ "$python" /usr/bin/python3 /bin/sh "$library" $files |
                docker import - "$1" >&2"#;
        let made = Command::new("sh").args(["-c", script, "sh", &name]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Image(name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        docker(None, &["image", "rm", "--force", &self.0]);
    }
}

#[test]
fn in_a_container_of_its_own() {
    if !docker(None, &["version"]).0 {
        support::skip("code on Docker", "no daemon answers");
        return;
    }
    let (place, image) = (Place::new(), Image::new());
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
    place.write("project/act.sh", "true");
    let done = place.ringfence(&["code", "bash", "act.sh", "--engine", "docker", "--image", &image.0]);
    assert!(done.code == 125 && done.err.contains("python and javascript"), "{}", done.err);
    assert_eq!(containers(None, &place.home), Vec::<String>::new());
}
