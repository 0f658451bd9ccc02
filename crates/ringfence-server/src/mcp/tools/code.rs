//! `run_code`: a piece of code with one result, in a box of its own under the same policy, or in an interpreter of the session
//! that stays.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use ringfence::code::{Code, CodeError, CodeResult, ContextError, Contexts, Language, Status};
use rmcp::model::{CallToolResult, ContentBlock, ProgressNotificationParam};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Act, Desk, Nature};
use crate::mcp::answer::{ASK_OWNER, Mark, Trouble, done};
use crate::mcp::client_roots::Places;
use crate::mcp::owner::{Owner, Refusal};

/// The most that one answer carries of each stream.
const PAGE: usize = 24 << 10;
/// Of a stream that is longer, so much of its end.
const END: usize = 8 << 10;
/// The longest value that an answer carries, as JSON.
const LONGEST_VALUE: usize = 24 << 10;
/// Pictures that an answer carries, and how large each may be in Base64.
const PICTURES: usize = 4;
const LARGEST_PICTURE: usize = 2 << 20;
/// A client that asked for progress hears this often that it still runs.
const BEAT: Duration = Duration::from_secs(1);

/// Runs code.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCode {
    /// The language of the code.
    language: Tongue,
    /// The code. The value of its last expression, or of `result`, comes back.
    code: String,
    /// What the code has as variables, and all together as `inputs`.
    #[serde(default)]
    inputs: Map<String, Value>,
    /// Run it in the interpreter of this name, which keeps its variables and imports for the next call (Python and
    /// JavaScript); started when there is none. Without it, every call is a fresh box.
    context: Option<String>,
    /// End the interpreter of `context` first, so that the code starts without its variables.
    #[serde(default)]
    restart: bool,
    /// Time after which it is ended; the owner sets the default and the most that can be asked for.
    #[schemars(range(min = 1))]
    timeout_seconds: Option<u64>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Tongue {
    Python,
    Javascript,
    Typescript,
    Bash,
}

impl Tongue {
    fn name(self) -> &'static str {
        match self {
            Tongue::Python => "python",
            Tongue::Javascript => "javascript",
            Tongue::Typescript => "typescript",
            Tongue::Bash => "bash",
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CodeAnswer {
    /// ok, error, timeout, memory, denied or cancelled.
    status: &'static str,
    stdout: String,
    stderr: String,
    /// The value of the last expression, or of `result`, where it can be said in JSON.
    value: Option<Value>,
    /// How the value shows itself, where it cannot.
    text: Option<String>,
    exception: Option<Exception>,
    /// Pictures that come with this answer.
    pictures: usize,
    duration_ms: u64,
    /// What to know or to do about it.
    note: Option<String>,
    /// Begins each line that the code did not write: in the text, and where output was left out. No output has it.
    mark: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Exception {
    kind: String,
    message: String,
    /// Where it came from, in the code: `file:line text`.
    trace: Vec<String>,
}

impl Act for RunCode {
    type Output = CodeAnswer;
    const NAME: &'static str = "run_code";
    const TITLE: &'static str = "Run code";
    const ABOUT: &'static str = "Runs Python, JavaScript, TypeScript or bash with the sandbox's policy, and returns output, \
        value or exception apart. Without `context`, in a fresh interpreter, and in a fresh box where the engine has \
        one for each: variables do not stay for the next call, files in the working directory do. With `context`, in an interpreter that keeps its variables, as a notebook does.";
    const NATURE: Nature = Nature::Runs;

    async fn act(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let ceiling = desk.opened.allowed.sandbox.policy().limits.timeout_ceiling;
        let timeout = super::command::timeout(self.timeout_seconds, ceiling)?;
        if self.restart && self.context.is_none() {
            return Err(Trouble::new("`restart` needs a `context`: every other call is fresh. Nothing was run."));
        }
        let language =
            Language::named(self.language.name()).ok_or_else(|| Trouble::new("There is no such language."))?;
        let mut code = Code::new(language, self.code);
        code.inputs = Value::Object(self.inputs);
        code.packages = true;
        let result = match &self.context {
            Some(name) => in_context(name, self.restart, &code, timeout, desk).await?,
            None if desk.opened.sessions_only => once(&code, timeout, desk).await?,
            None => boxed(desk, move |owner, places, cancel| owner.run_code(&code, places, timeout, cancel)).await?,
        };
        let context = self.context.map_or_else(String::new, |name| format!(" in context {name}"));
        desk.live.ran(&format!("{} code{context}", language.name), &result);
        answer(result, |answer| done(answer, answer.says()))
    }
}

/// A result as an answer, with its pictures.
pub fn answer(
    result: CodeResult,
    done: impl FnOnce(&CodeAnswer) -> Result<CallToolResult, Trouble>,
) -> Result<CallToolResult, Trouble> {
    if result.status == Status::SandboxError {
        let why = result.error.unwrap_or_else(|| "it did not start".to_owned());
        return Err(Trouble::new(format!("The sandbox failed: {why}.")).advise("Tell the owner."));
    }
    let pictures = pictures(&result);
    let mut done = done(&CodeAnswer::new(result, pictures.len()))?;
    done.content.extend(pictures);
    Ok(done)
}

/// Runs what has a box of its own, on a thread of its own, where it can be cancelled.
pub async fn boxed(
    desk: &Desk<'_>,
    run: impl FnOnce(&Owner, &Places, BorrowedFd<'_>) -> Result<CodeResult, Refusal> + Send + 'static,
) -> Result<CodeResult, Trouble> {
    let failed = |error: &dyn std::fmt::Display| Trouble::new(format!("cannot run it: {error}"));
    let _room = tokio::select! {
        room = desk.live.boxes.acquire() => room.map_err(|e| failed(&e))?,
        () = desk.context.ct.cancelled() => return Err(Trouble::new("Cancelled before it began.")),
    };
    let (cancelled, cancel) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed(&e))?;
    let (live, opened) = (desk.live.clone(), desk.opened.clone());
    let mut running = tokio::task::spawn_blocking(move || run(live.owner(), &opened.places, cancelled.as_fd()));
    let result = tokio::select! {
        result = &mut running => result,
        () = beat(desk) => running.await,
        () = desk.context.ct.cancelled() => {
            end(&cancel);
            running.await
        }
    };
    Ok(result.map_err(|e| failed(&e))??)
}

fn end(cancel: &OwnedFd) {
    // It has ended by itself when nobody reads.
    let _ = rustix::io::write(cancel, b"x");
}

/// Tells a client that asked for it that something still runs; never returns.
async fn beat(desk: &Desk<'_>) {
    let Some(token) = desk.context.meta.get_progress_token() else { return std::future::pending().await };
    for seconds in 1_u32.. {
        tokio::time::sleep(BEAT).await;
        let progress = ProgressNotificationParam::new(token.clone(), f64::from(seconds));
        let progress = progress.with_message(format!("running for {seconds} s"));
        // A client that is gone ends the session anyway.
        let _ = desk.context.peer.notify_progress(progress).await;
    }
}

/// Runs it in the session, in an interpreter that does not stay.
async fn once(code: &Code, timeout: Option<Duration>, desk: &Desk<'_>) -> Result<CodeResult, Trouble> {
    if code.language.name == Tongue::Bash.name() {
        return Err(Trouble::new("On this engine, bash runs by run_command. Nothing was run."));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = format!("once-{}", now.as_nanos());
    let ran = in_context(&name, false, code, timeout, desk).await;
    // It may have ended by itself.
    let _ = Contexts::of(desk.opened.session.clone()).restart(&name).await;
    ran
}

/// Runs it in an interpreter that stays, and records it.
async fn in_context(
    name: &str,
    restart: bool,
    code: &Code,
    timeout: Option<Duration>,
    desk: &Desk<'_>,
) -> Result<CodeResult, Trouble> {
    let info = match desk.opened.session.info().await {
        Ok(info) => info,
        Err(error) => return Err(desk.live.trouble(error).await),
    };
    let command: Vec<OsString> = ["code", code.language.name, "-", "--context", name].map(OsString::from).to_vec();
    let note = desk.live.owner().note(&info, &command)?;
    let contexts = Contexts::of(desk.opened.session.clone());
    let ran = async {
        if restart {
            match contexts.restart(name).await {
                // There was nothing to end.
                Ok(()) | Err(ContextError::NoContext(_)) => {}
                Err(error) => return Err(error),
            }
        }
        tokio::select! {
            ran = contexts.run(name, code, timeout, desk.context.ct.cancelled()) => ran,
            () = beat(desk) => std::future::pending().await,
        }
    };
    match ran.await {
        Ok(result) => {
            note.end(&result);
            Ok(result)
        }
        Err(error) => {
            note.failed(&error.to_string());
            Err(context_trouble(error, desk).await)
        }
    }
}

async fn context_trouble(error: ContextError, desk: &Desk<'_>) -> Trouble {
    let trouble = Trouble::new(format!("{error}."));
    match error {
        ContextError::Session(error) => desk.live.trouble(error).await,
        ContextError::Name(_) => trouble.advise("Nothing was run."),
        ContextError::Language(_) => trouble.advise("Nothing was run. Leave `context` out, or use another language."),
        ContextError::OtherLanguage { .. } => trouble.advise("Nothing was run. Use another name, or `restart` it."),
        ContextError::Code(CodeError::NotStarted { .. } | CodeError::NoInterpreter { .. }) => {
            trouble.advise("See which interpreters there are with run_command, or ask the owner.")
        }
        _ => trouble,
    }
}

/// Pictures for the client; the model sees them.
fn pictures(result: &CodeResult) -> Vec<ContentBlock> {
    let one = |rich: &ringfence::code::Rich| {
        let (kind, data) = rich.iter().find(|(kind, _)| matches!(kind.as_str(), "image/png" | "image/jpeg"))?;
        (data.len() <= LARGEST_PICTURE).then(|| ContentBlock::image(data.clone(), kind.clone()))
    };
    result.rich.iter().filter_map(one).take(PICTURES).collect()
}

impl CodeAnswer {
    fn new(result: CodeResult, pictures: usize) -> CodeAnswer {
        let note = note(&result);
        let large = result.value.as_ref().is_some_and(|value| value.to_string().len() > LONGEST_VALUE);
        let left_out =
            large.then(|| "The value is too large for an answer: write it to a file, or return less.".to_owned());
        let exception = result.exception.map(|exception| Exception {
            kind: exception.kind,
            message: exception.message,
            trace: exception
                .trace
                .iter()
                .map(|frame| {
                    let line = frame.line.map_or_else(String::new, |line| format!(":{line}"));
                    format!("{}{line} {}", frame.file, frame.text.as_deref().unwrap_or_default()).trim_end().to_owned()
                })
                .collect(),
        });
        let value = result.value.as_ref().map(Value::to_string).unwrap_or_default();
        let of_exception = exception.iter().flat_map(|exception| {
            [&exception.kind, &exception.message].into_iter().chain(&exception.trace).map(String::as_str)
        });
        let text = result.text.as_deref().unwrap_or_default();
        let said = [result.stdout.as_str(), &result.stderr, text, &value];
        let mark = Mark::unlike(said.into_iter().chain(of_exception).collect::<Vec<_>>());
        CodeAnswer {
            status: status(result.status),
            stdout: shortened(result.stdout, &mark),
            stderr: shortened(result.stderr, &mark),
            value: result.value.filter(|_| !large),
            text: result.text.map(|text| shortened(text, &mark)),
            exception,
            pictures,
            duration_ms: result.usage.duration_ms,
            note: note.or(left_out),
            mark: mark.to_string(),
        }
    }

    pub fn says(&self) -> String {
        let mark = &self.mark;
        let mut text = format!("{mark} {}, {} ms", self.status, self.duration_ms);
        let value = self.value.as_ref().map(Value::to_string);
        let parts = [
            ("stdout", Some(&self.stdout)),
            ("stderr", Some(&self.stderr)),
            ("value", value.as_ref().or(self.text.as_ref())),
        ];
        for (name, part) in parts {
            if let Some(part) = part.filter(|part| !part.is_empty()) {
                let _ = write!(text, "\n{mark} {name}\n{}", part.trim_end_matches('\n'));
            }
        }
        if let Some(exception) = &self.exception {
            let _ = write!(text, "\n{mark} exception\n{}: {}", exception.kind, exception.message);
            exception.trace.iter().for_each(|frame| text.push_str(&format!("\n  {frame}")));
        }
        if let Some(note) = &self.note {
            let _ = write!(text, "\n{mark} note: {note}");
        }
        text
    }
}

pub fn status(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Error => "error",
        Status::Timeout => "timeout",
        Status::Memory => "memory",
        Status::Denied => "denied",
        Status::Cancelled => "cancelled",
        Status::SandboxError => "sandbox_error",
    }
}

fn note(result: &CodeResult) -> Option<String> {
    match result.status {
        Status::Timeout => Some("It was ended by its time limit. What it had printed until then is above.".to_owned()),
        Status::Memory => Some("It was ended by the memory limit. Use less, or ask the owner for more.".to_owned()),
        Status::Denied => Some(ASK_OWNER.to_owned()),
        _ => None,
    }
}

/// Head and end of a text that is too long for an answer.
fn shortened(text: String, mark: &Mark) -> String {
    if text.len() <= PAGE {
        return text;
    }
    let head = text.floor_char_boundary(PAGE - END);
    let tail = text.ceil_char_boundary(text.len() - END);
    let left_out = tail - head;
    format!("{}\n{mark} {left_out} bytes left out: write to a file what is long\n{}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_head_and_end() {
        let mark = Mark::unlike([]);
        assert_eq!(shortened("é".to_owned(), &mark), "é");
        let text = format!("a{}z", "é".repeat(PAGE));
        let short = shortened(text, &mark);
        assert!(short.len() < PAGE + 100 && short.starts_with("aé") && short.ends_with("éz"), "{}", short.len());
    }
}
