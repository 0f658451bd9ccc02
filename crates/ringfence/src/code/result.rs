//! The result of running code: one object, whatever happened.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::channel::Parts;
use super::frames::{self, Received, Shown};
use super::{Code, CodeError, File, matches};
use crate::capture::Capture;
use crate::denials::Denial;
use crate::engines::{EngineError, EngineRef};
use crate::supervise::{Ended, Outcome, Reason, signal_name};

/// Errors of the system that mean a wall was in the way.
const REFUSALS: &[&str] = &["EPERM", "EACCES", "EROFS", "ENETUNREACH"];
/// The same where there is no network: nobody is there who could find a name.
const NAMELESS: &[&str] = &["EAI_AGAIN"];
/// Lines of a trace that are kept.
const MAX_TRACE: usize = 100;
/// Characters of stderr that go into a message.
const TAIL: usize = 400;

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It ran to its end.
    Ok,
    /// The code failed: an exception, an exit status, a signal.
    Error,
    /// Its time was up.
    Timeout,
    /// Its memory was used up.
    Memory,
    /// It failed because the sandbox refused something.
    Denied,
    /// Somebody ended it.
    Cancelled,
    /// The sandbox failed; nothing is said about the code.
    SandboxError,
}

/// Media types, and what a value looks like in each; pictures are Base64.
pub type Rich = BTreeMap<String, String>;

/// One object, whatever happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CodeResult {
    /// How the code ended.
    pub status: Status,
    /// What it wrote to stdout, as text.
    pub stdout: String,
    /// What it wrote to stderr, as text.
    pub stderr: String,
    /// Bytes dropped from the middle of stdout.
    pub stdout_dropped: u64,
    /// The same of stderr.
    pub stderr_dropped: u64,
    /// The value of the last expression, or of `result`, where it can be said in JSON.
    pub value: Option<Value>,
    /// How the value shows itself, where it cannot.
    pub text: Option<String>,
    /// What the code threw.
    pub exception: Option<CodeException>,
    /// Figures, tables, pictures.
    pub rich: Vec<Rich>,
    /// Files that were asked for.
    pub files: Vec<File>,
    /// How many more there were than are taken, or too large ones.
    pub files_dropped: u64,
    /// Something of the result was too large, or not to be understood, and was left away.
    pub cut: bool,
    /// The time and memory it took.
    pub usage: Usage,
    /// The engine that ran it; `None` when there was no sandbox.
    pub engine: Option<String>,
    /// The name of the language.
    pub language: String,
    /// Of this execution.
    pub id: String,
    /// What failed when the sandbox did.
    pub error: Option<String>,
    /// The limit that ended it, as `[limits]` calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// What the policy refused, where that was traced.
    #[serde(default, skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<Denial>,
    /// stdout and stderr as they were written, where that is no text.
    #[serde(skip)]
    pub raw: [Option<Vec<u8>>; 2],
}

/// What the code threw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CodeException {
    /// Its class, as the language names it.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its message.
    pub message: String,
    /// The name of the system's error, where it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<String>,
    /// The host that it was about, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Frames of the code itself, the innermost last.
    #[serde(deserialize_with = "few")]
    pub trace: Vec<Frame>,
    /// What was behind it, the nearest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<CodeException>>,
}

impl CodeException {
    /// It, and what was behind it.
    pub fn chain(&self) -> impl Iterator<Item = &CodeException> {
        std::iter::successors(Some(self), |exception| exception.cause.as_deref())
    }
}

/// A line of the code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// The file, as the interpreter names it.
    pub file: String,
    /// Counted from 1.
    #[serde(deserialize_with = "or_none")]
    pub line: Option<u32>,
    /// Counted from 1.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "or_none")]
    pub column: Option<u32>,
    /// The function the line is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The line itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What it took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Milliseconds from start to end.
    pub duration_ms: u64,
    /// Milliseconds of CPU time.
    pub cpu_ms: u64,
    /// Bytes of memory at most.
    pub peak_memory: u64,
}

impl Usage {
    /// What was seen from outside counts more than what an interpreter says about itself.
    pub(super) fn measured(&mut self, outcome: &Outcome) {
        self.cpu_ms = self.cpu_ms.max(u64::try_from(outcome.cpu.as_millis()).unwrap_or(u64::MAX));
        self.peak_memory = self.peak_memory.max(outcome.peak_memory);
    }
}

/// The lines of a trace: runners send 40, and hostile code makes up millions.
fn few<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Frame>, D::Error> {
    struct Few;
    impl<'de> serde::de::Visitor<'de> for Few {
        type Value = Vec<Frame>;

        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("lines of a trace")
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<Frame>, A::Error> {
            let mut frames = Vec::new();
            while let (true, Some(frame)) = (frames.len() < MAX_TRACE, items.next_element()?) {
                frames.push(frame);
            }
            while items.next_element::<serde::de::IgnoredAny>()?.is_some() {}
            Ok(frames)
        }
    }
    deserializer.deserialize_seq(Few)
}

/// A number that a hostile runner may have made up.
fn or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_u64().and_then(|number| u32::try_from(number).ok()))
}

impl CodeResult {
    /// The result when the sandbox failed.
    pub fn failed(code: &Code, error: &str) -> CodeResult {
        let empty = || Capture::new(0);
        let parts = Parts { stdout: empty(), stderr: empty(), received: Received::default() };
        let mut result = blank(code, None, parts).0;
        result.status = Status::SandboxError;
        result.error = Some(error.to_owned());
        result
    }

    /// The result when it ended before it began.
    pub fn not_begun(code: &Code, status: Status, duration: Duration) -> CodeResult {
        let mut result = CodeResult { status, error: None, ..CodeResult::failed(code, "") };
        result.usage.duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        result.limit = limit_name(None, status);
        result
    }
}

fn blank(code: &Code, engine: Option<&str>, parts: Parts) -> (CodeResult, Option<frames::Result>, bool) {
    let Received {
        started,
        warm: _,
        unwritten: _,
        taken: _,
        result,
        rich,
        files,
        files_dropped,
        written: _,
        cut,
        used,
    } = parts.received;
    let (stdout_dropped, stderr_dropped) = (parts.stdout.dropped(), parts.stderr.dropped());
    let ((stdout, raw_stdout), (stderr, raw_stderr)) = (captured(parts.stdout), captured(parts.stderr));
    let blank = CodeResult {
        status: Status::Ok,
        stdout,
        stderr,
        stdout_dropped,
        stderr_dropped,
        value: None,
        text: None,
        exception: None,
        rich,
        files,
        files_dropped,
        cut,
        usage: Usage { cpu_ms: used.0, peak_memory: used.1, duration_ms: 0 },
        engine: engine.map(str::to_owned),
        language: code.language.name.to_owned(),
        id: crate::records::new_id(),
        error: None,
        limit: None,
        denied: Vec::new(),
        raw: [raw_stdout, raw_stderr],
    };
    (blank, result, started)
}

/// What came of it: the limits and the end as seen from outside decide, then what the runner says.
pub(super) fn result(
    code: &Code,
    engine: EngineRef,
    outcome: &Outcome,
    mut parts: Parts,
) -> Result<CodeResult, CodeError> {
    let (unwritten, taken) = (parts.received.unwritten.take(), parts.received.taken.take());
    let (mut result, sent, started) = blank(code, Some(engine.name()), parts);
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    result.usage =
        Usage { duration_ms: millis(outcome.duration), cpu_ms: millis(outcome.cpu), peak_memory: outcome.peak_memory };
    keep_asked(&mut result, code);
    let limit = match outcome.reason {
        Some(Reason::Time | Reason::CpuTime) => Some(Status::Timeout),
        Some(Reason::Memory) => Some(Status::Memory),
        Some(Reason::Cancelled) => Some(Status::Cancelled),
        Some(Reason::Lost) => {
            return Err(EngineError::Lost("it was killed from outside while the code ran".to_owned()).into());
        }
        Some(Reason::Processes) | None => None,
    };
    result.denied.clone_from(&outcome.denied);
    if let (Some(reason), false, None) = (unwritten, started, limit) {
        return Err(CodeError::Unwritten(reason));
    }
    if let (Some(name), false, None) = (taken, started, limit) {
        return Err(code.input_name(name));
    }
    if !started && limit.is_none() {
        let tail: String = result.stderr.trim().chars().rev().take(TAIL).collect();
        let said: String = tail.chars().rev().collect();
        let reason = if said.is_empty() { ended(outcome.ended) } else { said };
        return Err(CodeError::NotStarted { language: code.language.name, reason });
    }
    let interpreter_ended = sent.is_none();
    match sent {
        Some(frames::Result::Json(message)) => take_message(&mut result, &message),
        Some(frames::Result::Shell { status, line, value }) => take_shell(&mut result, code, status, line, value),
        None => take_end(&mut result, outcome.ended),
    }
    // Where no control group saw it, it is what the interpreter says about itself.
    if result.status == Status::Error && interpreter_ended && code.language.starved(&result.stderr) {
        result.status = Status::Memory;
    }
    if let Some(limit) = limit {
        result.status = limit;
    }
    result.limit = limit_name(outcome.reason, result.status);
    Ok(result)
}

/// What the runner sends is not what was asked for until that was looked at.
fn keep_asked(result: &mut CodeResult, code: &Code) {
    let sent = result.files.len();
    result.files.retain(|file| code.out.iter().any(|pattern| matches(pattern, &file.path)));
    result.cut |= result.files.len() < sent;
}

/// What came of code in a context: an interpreter that ended, an interrupt and its reason as seen from outside decide, then
/// what the runner says.
pub(super) fn in_context(
    code: &Code,
    engine: &str,
    mut received: Received,
    ended: Option<&Outcome>,
    stopped: Option<Status>,
    duration: Duration,
) -> CodeResult {
    let written = std::mem::take(&mut received.written);
    let empty = || Capture::new(0);
    let (mut result, sent, _) = blank(code, Some(engine), Parts { stdout: empty(), stderr: empty(), received });
    let [stdout, stderr] = written.map(Option::unwrap_or_default);
    (result.stdout_dropped, result.stderr_dropped) = (stdout.0, stderr.0);
    (result.stdout, result.raw[0]) = text(stdout.1);
    (result.stderr, result.raw[1]) = text(stderr.1);
    result.usage.duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if let Some(outcome) = ended {
        result.usage.measured(outcome);
    }
    keep_asked(&mut result, code);
    let mut interrupted = false;
    match (sent, ended) {
        (Some(frames::Result::Json(message)), _) => {
            interrupted = message.get("status").and_then(Value::as_str) == Some("cancelled");
            take_message(&mut result, &message);
        }
        (Some(frames::Result::Shell { status, line, value }), _) => {
            // As a shell says that it was interrupted; code can say so too.
            interrupted = stopped.is_some() && status == 128 + libc::SIGINT;
            take_shell(&mut result, code, status, line, value);
        }
        (_, Some(outcome)) => {
            take_end(&mut result, outcome.ended);
            let message = format!("the interpreter has ended ({}): its variables are gone", self::ended(outcome.ended));
            let kind = result.exception.map_or_else(|| "ExitStatus".to_owned(), |exception| exception.kind);
            result.exception = Some(CodeException { kind, message, ..CodeException::default() });
            let starved = code.language.starved(&result.stderr);
            result.status = match outcome.reason {
                Some(Reason::Time | Reason::CpuTime) => Status::Timeout,
                Some(Reason::Memory) => Status::Memory,
                Some(Reason::Cancelled) => Status::Cancelled,
                // Where no control group saw it, it is what the interpreter says about itself.
                _ if starved => Status::Memory,
                _ => Status::Error,
            };
        }
        _ => {
            let message = "what came of it cannot be read: the code broke the way that results go".to_owned();
            result.exception =
                Some(CodeException { kind: "ResultError".to_owned(), message, ..CodeException::default() });
            result.status = Status::Error;
        }
    }
    // What ended by itself in the last moment has ended by itself.
    match stopped {
        Some(status) if interrupted || ended.is_some() => result.status = status,
        None if interrupted => result.status = Status::Cancelled,
        _ => {}
    }
    result.limit = limit_name(ended.and_then(|outcome| outcome.reason), result.status);
    result
}

fn take_message(result: &mut CodeResult, message: &Value) {
    result.value = message.get("value").filter(|value| !value.is_null()).cloned();
    result.cut |= message.get("cut") == Some(&Value::Bool(true));
    result.text = message.get("text").and_then(Value::as_str).map(str::to_owned);
    result.exception = message.get("exception").and_then(|exception| CodeException::deserialize(exception).ok());
    let isolated = message.get("isolated") == Some(&Value::Bool(true));
    let wall = |name: &str| REFUSALS.contains(&name) || (isolated && NAMELESS.contains(&name));
    let refused = |exception: &CodeException| exception.chain().any(|one| one.errno.as_deref().is_some_and(wall));
    result.status = match (message.get("status").and_then(Value::as_str), &result.exception) {
        (Some("ok"), None) => Status::Ok,
        (_, Some(exception)) if starved(exception) => Status::Memory,
        (_, Some(exception)) if refused(exception) => Status::Denied,
        _ => Status::Error,
    };
}

/// Whether the interpreter itself says that it got no more memory. Libraries have names of their own for it.
fn starved(exception: &CodeException) -> bool {
    let name = exception.kind.rsplit('.').next().unwrap_or_default();
    name.ends_with("MemoryError")
        || (name == "RangeError" && exception.message.contains("Array buffer allocation failed"))
        || exception.errno.as_deref().is_some_and(|errno| errno == "ENOMEM")
}

fn take_shell(result: &mut CodeResult, code: &Code, status: i32, line: u32, value: Option<Shown>) {
    match value {
        // As JSON where it is; every other text is a text.
        Some(Shown::Whole(text)) => result.value = Some(serde_json::from_str(&text).unwrap_or(Value::String(text))),
        Some(Shown::Cut(text)) => (result.text, result.cut) = (Some(text), true),
        None => {}
    }
    if status == 0 {
        return;
    }
    let text = (line > 0).then(|| code.source().lines().nth(line as usize - 1)).flatten();
    let frame = Frame {
        file: code.name().to_owned(),
        line: Some(line),
        text: text.map(|text| text.trim().chars().take(200).collect()),
        ..Frame::default()
    };
    let trace = if line > 0 { vec![frame] } else { Vec::new() };
    let message = format!("exit status {status}");
    result.exception =
        Some(CodeException { kind: "ExitStatus".to_owned(), message, trace, ..CodeException::default() });
    // What bash answers when it may not execute something.
    result.status = if status == 126 { Status::Denied } else { Status::Error };
}

/// The interpreter ended before it could send a result.
fn take_end(result: &mut CodeResult, end: Ended) {
    if end == Ended::Exited(0) {
        return;
    }
    let kind = if matches!(end, Ended::Exited(_)) { "ExitStatus" } else { "Signal" };
    result.exception = Some(CodeException { kind: kind.to_owned(), message: ended(end), ..CodeException::default() });
    result.status = if end == Ended::Signaled(libc::SIGSYS) { Status::Denied } else { Status::Error };
}

pub(super) fn ended(end: Ended) -> String {
    match end {
        Ended::Exited(status) => format!("exit status {status}"),
        Ended::Signaled(signal) => format!("ended by {}", signal_name(signal)),
    }
}

/// The limit that a status is about, as `[limits]` calls it.
fn limit_name(reason: Option<Reason>, status: Status) -> Option<String> {
    let name = match (reason, status) {
        (Some(Reason::CpuTime), _) => "cpu_time",
        (_, Status::Timeout) => "timeout",
        (_, Status::Memory) => "memory",
        _ => return None,
    };
    Some(name.to_owned())
}

fn captured(capture: Capture) -> (String, Option<Vec<u8>>) {
    text(capture.into_bytes(|dropped| format!("\n[{dropped} bytes dropped]\n")))
}

/// A text, and the bytes themselves where they are none.
fn text(bytes: Vec<u8>) -> (String, Option<Vec<u8>>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(error.into_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_bounded() {
        let text = format!("{{\"type\":\"E\",\"message\":\"m\",\"trace\":[{{\"line\":1}}{}]}}", ",{}".repeat(100_000));
        let exception: CodeException = serde_json::from_str(&text).unwrap();
        assert_eq!((exception.trace.len(), exception.trace[0].line), (MAX_TRACE, Some(1)));
    }
}
