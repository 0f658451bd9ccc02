//! Contexts: a runner keeps its variables from one request to the next, and can be interrupted. On the interpreter itself:
//! the box around it is the same as for everything else.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringfence_policy::limits::Limits;

use super::frames::{Decoder, Result, Shown};
use super::request::Mark;
use super::{Code, Language, request};

struct Context {
    child: Child,
    socket: UnixStream,
    language: &'static Language,
}

impl Context {
    fn start(name: &str) -> Context {
        let language = Language::named(name).unwrap();
        let code = Code::new(language, "");
        let command =
            language.command(&format!("/usr/bin/{}", language.interpreters[0]), &code, &Limits::UNLIMITED, true);
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let stdin = std::os::fd::OwnedFd::from(theirs);
        let child = Command::new(&command[0]).args(&command[1..]).stdin(stdin).stdout(Stdio::null()).spawn().unwrap();
        Context { child, socket: ours, language }
    }

    /// Sends code; when it has started, `then`; waits for the result.
    fn run(&mut self, source: &str, then: impl FnOnce(&Child)) -> Result {
        self.socket
            .write_all(
                &request::encode(&Code::new(self.language, source), Some(Mark { text: "", keeps: true }), false)
                    .unwrap(),
            )
            .unwrap();
        let mut bytes = Vec::new();
        let mut then = Some(then);
        loop {
            let mut buffer = [0; 4096];
            let count = match self.socket.read(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                count => count.unwrap(),
            };
            assert!(count > 0, "the runner has ended: {:?}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&buffer[..count]);
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            let received = decoder.into_received();
            if let Some(result) = received.result {
                return result;
            }
            if let (true, Some(then)) = (received.started, then.take_if(|_| received.started)) {
                std::thread::sleep(Duration::from_millis(500));
                then(&self.child);
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

fn status(result: &Result) -> &str {
    match result {
        Result::Json(message) => message["status"].as_str().unwrap(),
        Result::Shell { status: 0, .. } => "ok",
        Result::Shell { .. } => "error",
    }
}

fn value(result: &Result) -> String {
    match result {
        Result::Json(message) => message["value"].to_string(),
        Result::Shell { value, .. } => match value {
            Some(Shown::Whole(text)) => text.clone(),
            other => format!("{other:?}"),
        },
    }
}

#[test]
fn variables_are_kept() {
    for (name, first, second) in [
        ("python", "x = 20\nimport math", "math.floor(x + 1.5)"),
        ("javascript", "const x = 20; function f() { return x + 1 }", "f()"),
    ] {
        let mut context = Context::start(name);
        assert_eq!(status(&context.run(first, |_| {})), "ok", "{name}");
        let broken = context.run("undefined_name", |_| {});
        assert_eq!(status(&broken), "error", "{name}");
        assert_eq!(value(&context.run(second, |_| {})), "21", "{name}");
    }
}

#[test]
fn an_interrupt_ends_the_code_and_not_the_context() {
    for (name, first, endless, last) in [
        ("python", "x = 7", "while True: pass", "x"),
        ("python", "x = 7", "import time; time.sleep(60)", "x"),
        ("javascript", "var x = 7", "for (;;) {}", "x"),
        ("javascript", "var x = 7", "await new Promise((r) => setTimeout(r, 60000))", "x"),
    ] {
        let mut context = Context::start(name);
        context.run(first, |_| {});
        assert_eq!(status(&context.run(endless, interrupt)), "cancelled", "{name} {endless}");
        assert_eq!(value(&context.run(last, |_| {})), "7", "{name} {endless}");
    }
}
