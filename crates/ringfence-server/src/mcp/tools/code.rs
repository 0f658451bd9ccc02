//! `run_code`: a piece of code in a box of its own, under the same policy, with one result.

use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ringfence::code::{Code, CodeResult, Language, Status};
use rmcp::model::{CallToolResult, ContentBlock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Act, Desk, Nature};
use crate::mcp::answer::{ASK_OWNER, Trouble, done};
use crate::mcp::owner::Refusal;

/// The most that one answer carries of each stream.
const PAGE: usize = 24 << 10;
/// Of a stream that is longer, so much of its end.
const END: usize = 8 << 10;
/// The longest value that an answer carries, as JSON.
const LONGEST_VALUE: usize = 24 << 10;
/// Pictures that an answer carries, and how large each may be in Base64.
const PICTURES: usize = 4;
const LARGEST_PICTURE: usize = 2 << 20;

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
    const ABOUT: &'static str = "Runs Python, JavaScript, TypeScript or bash in a fresh box with the sandbox's policy, and \
        returns output, value or exception apart. Variables and /tmp do not stay for the next call; files in the working \
        directory do.";
    const NATURE: Nature = Nature::Runs;

    async fn act(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let ceiling = desk.opened.allowed.policy.limits.timeout_ceiling;
        let timeout = super::command::timeout(self.timeout_seconds, ceiling)?;
        let language =
            Language::named(self.language.name()).ok_or_else(|| Trouble::new("There is no such language."))?;
        let mut code = Code::new(language, self.code);
        code.inputs = Value::Object(self.inputs);
        code.packages = true;
        let result = run(code, timeout, desk).await?;
        if result.status == Status::SandboxError {
            let why = result.error.unwrap_or_else(|| "it did not start".to_owned());
            return Err(Trouble::new(format!("The sandbox failed: {why}.")).advise("Tell the owner."));
        }
        let pictures = pictures(&result);
        let answer = CodeAnswer::new(result, pictures.len());
        let text = answer.says();
        let mut done = done(&answer, text)?;
        done.content.extend(pictures);
        Ok(done)
    }
}

/// Runs it on a thread of its own, where it can be cancelled.
async fn run(code: Code, timeout: Option<Duration>, desk: &Desk<'_>) -> Result<CodeResult, Trouble> {
    let failed = |error: &dyn std::fmt::Display| Trouble::new(format!("cannot run it: {error}"));
    let (cancelled, cancel) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed(&e))?;
    let (live, opened) = (desk.live.clone(), desk.opened.clone());
    let mut running = tokio::task::spawn_blocking(move || -> Result<CodeResult, Refusal> {
        (live.owner().run)(&code, &opened.places.workdir, &opened.places.also, timeout, cancelled.as_fd())
    });
    let result = tokio::select! {
        result = &mut running => result,
        () = desk.context.ct.cancelled() => {
            end(&cancel);
            running.await
        }
    };
    result.map_err(|e| failed(&e))?.map_err(|refusal| failed(&refusal).advise("Tell the owner."))
}

fn end(cancel: &OwnedFd) {
    // It has ended by itself when nobody reads.
    let _ = rustix::io::write(cancel, b"x");
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
        CodeAnswer {
            status: status(result.status),
            stdout: shortened(result.stdout),
            stderr: shortened(result.stderr),
            value: result.value.filter(|_| !large),
            text: result.text.map(shortened),
            exception,
            pictures,
            duration_ms: result.usage.duration_ms,
            note: note.or(left_out),
        }
    }

    fn says(&self) -> String {
        let mut text = format!("{}, {} ms", self.status, self.duration_ms);
        let value = self.value.as_ref().map(Value::to_string);
        let parts = [
            ("stdout", Some(&self.stdout)),
            ("stderr", Some(&self.stderr)),
            ("value", value.as_ref().or(self.text.as_ref())),
        ];
        for (name, part) in parts {
            if let Some(part) = part.filter(|part| !part.is_empty()) {
                let _ = write!(text, "\n--- {name}\n{}", part.trim_end_matches('\n'));
            }
        }
        if let Some(exception) = &self.exception {
            let _ = write!(text, "\n--- exception\n{}: {}", exception.kind, exception.message);
            exception.trace.iter().for_each(|frame| text.push_str(&format!("\n  {frame}")));
        }
        if let Some(note) = &self.note {
            let _ = write!(text, "\n--- note\n{note}");
        }
        text
    }
}

fn status(status: Status) -> &'static str {
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
fn shortened(text: String) -> String {
    if text.len() <= PAGE {
        return text;
    }
    let head = text.floor_char_boundary(PAGE - END);
    let tail = text.ceil_char_boundary(text.len() - END);
    format!("{}\n[{} bytes left out: write to a file what is long]\n{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_head_and_end() {
        assert_eq!(shortened("é".to_owned()), "é");
        let text = format!("a{}z", "é".repeat(PAGE));
        let short = shortened(text);
        assert!(short.len() < PAGE + 100 && short.starts_with("aé") && short.ends_with("éz"), "{}", short.len());
    }
}
