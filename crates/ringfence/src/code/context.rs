//! Contexts: interpreters that stay in a session and keep their variables from one call to the next, as a notebook does.
//!
//! A context is an execution of its session, and nothing else knows about it: it is listed, interrupted and ended as one, and
//! goes with its session. Requests go to its standard input, and what comes back stands in its standard output after a mark
//! that only this request has in it; so nothing that was sent before, and nothing that another context sends, passes for the
//! answer. The code itself can lie about its own result. Its time is the supervisor's to enforce, also when the caller dies.

use std::collections::HashMap;
use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringfence_policy::limits::Limits;
use serde::Serialize;

use super::frames::{Decoder, Received};
use super::language::Wire;
use super::{Code, CodeError, CodeResult, Status, request, result};
use crate::session::{Event, Exec, Execution, ExecutionState, Session, SessionError};
use crate::supervise::{Ended, Outcome, Reason};

/// From an interrupt to the end of the interpreter.
const GRACE: Duration = Duration::from_secs(2);
/// So much longer than the caller waits, the supervisor does.
const SLACK: Duration = Duration::from_secs(5);
/// Most characters of a name.
const LONGEST: usize = 64;
/// Bytes that the interpreter wrote for itself and that go into a message.
const TAIL: usize = 400;

/// Starts the first interpreter that is there. Results go where its output would, and its output into two files, which it
/// removes at once.
const START: &str = r#"
for p in $1; do
    if command -v "$p" >/dev/null; then
        o=${TMPDIR:-/tmp}/.ringfence-$$-out e=${TMPDIR:-/tmp}/.ringfence-$$-err
        umask 077
        set -C
        : >"$o" && : >"$e" || exit 70
        shift
        # Under a limit on each process, Node waits for ever for helper threads that cannot be started.
        d=$(ulimit -d 2>/dev/null)
        case $p-$d in
            *[!0-9]) ;;
            node*-*) [ "$d" -ge 131072 ] || set -- --v8-pool-size=0 "--max-old-space-size=$((d / 2048))" "$@" ;;
        esac
        exec 3>&1 1>>"$o" 2>>"$e"
        exec "$p" "$@" 3 "$o" "$e"
    fi
done
echo "none of $1 is there" >&2
exit 127
"#;

/// A context of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Context {
    pub name: String,
    pub language: String,
    /// The execution that it is.
    pub execution: String,
}

/// What went wrong around a context; never the code's failure.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    #[error("`{0}` cannot be the name of a context: letters, digits, `.`, `_` and `-`, at most 64")]
    Name(String),
    #[error("there are no contexts for {0}: for python, javascript and typescript")]
    Language(&'static str),
    #[error("context `{name}` is in {language}")]
    OtherLanguage { name: String, language: String },
    #[error("there is no context `{0}`")]
    NoContext(String),
    #[error("the code requires the set of packages `{asked}`, and its session has {}", named(.has))]
    OtherSet { asked: String, has: Option<String> },
    #[error("part of what came from context `{0}` was lost: it is more than the session keeps")]
    Lost(String),
    #[error("cannot make a mark for a request: {0}")]
    Mark(rustix::io::Errno),
    #[error(transparent)]
    Code(#[from] CodeError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// The contexts of a session.
#[derive(Debug, Clone)]
pub struct Contexts {
    session: Session,
}

impl Contexts {
    pub fn of(session: Session) -> Contexts {
        Contexts { session }
    }

    /// Those that are there.
    pub async fn list(&self) -> Result<Vec<Context>, ContextError> {
        let mut all: Vec<Context> = Vec::new();
        for execution in self.session.executions().await? {
            if let (Some(key), ExecutionState::Running) = (execution.context, execution.state)
                && let Some((language, name)) = key.split_once('/')
            {
                let (name, language) = (name.to_owned(), language.to_owned());
                all.push(Context { name, language, execution: execution.id });
            }
        }
        // One that ends makes room for the next of its name.
        let latest: HashMap<String, String> = all.iter().map(|c| (c.name.clone(), c.execution.clone())).collect();
        all.retain(|context| latest.get(&context.name) == Some(&context.execution));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Runs code in a context, which is started when there is none. `cancel` interrupts it.
    pub async fn run(
        &self,
        name: &str,
        code: &Code,
        timeout: Option<Duration>,
        cancel: impl Future<Output = ()>,
    ) -> Result<CodeResult, ContextError> {
        // Its runner ends with its code.
        if code.language.wire == Wire::Lines {
            return Err(ContextError::Language(code.language.name));
        }
        self.call(name, code, timeout, cancel).await
    }

    /// Runs code in an interpreter of its own, which is gone afterwards; for every language.
    pub async fn once(
        &self,
        name: &str,
        code: &Code,
        timeout: Option<Duration>,
        cancel: impl Future<Output = ()>,
    ) -> Result<CodeResult, ContextError> {
        let ran = self.call(name, code, timeout, cancel).await;
        // It may have ended by itself.
        let _ = self.restart(name).await;
        ran
    }

    async fn call(
        &self,
        name: &str,
        code: &Code,
        timeout: Option<Duration>,
        cancel: impl Future<Output = ()>,
    ) -> Result<CodeResult, ContextError> {
        check(name)?;
        code.check()?;
        // A session has what it was made with.
        if code.requirements.is_some() && code.installed.is_none() {
            return Err(CodeError::NotInstalled.into());
        }
        let (mut cancel, turn) = (std::pin::pin!(cancel), format!("context-{name}"));
        // What is cancelled before its turn never starts, and whoever has the turn is not interrupted for it.
        let _turn = tokio::select! {
            biased;
            () = &mut cancel => return Ok(CodeResult::cancelled(code)),
            turn = self.session.turn(&turn) => turn?,
        };
        let info = self.session.info().await?;
        let time = timeout.or(info.timeout);
        if let (Some(asked), Some(ceiling)) = (timeout, info.timeout_ceiling)
            && asked > ceiling
        {
            let text = ringfence_policy::limits::format_duration;
            let (asked, ceiling) = (text(asked), text(ceiling));
            return Err(SessionError::TimeoutAboveCeiling { asked, ceiling }.into());
        }
        let mark = mark()?;
        let set = info.requirements.iter().find(|set| set.at == code.language.requirements_at());
        if let Some(asked) = code.installed.as_ref().filter(|asked| set.is_none_or(|set| set.id != asked.id)) {
            return Err(ContextError::OtherSet { asked: asked.id.clone(), has: set.map(|set| set.id.clone()) });
        }
        let request = request::encode(code, Some(&mark), set.is_some())?;
        let execution = match self.find(name).await? {
            Some(context) if context.language != code.language.name => {
                return Err(ContextError::OtherLanguage { name: name.to_owned(), language: context.language });
            }
            Some(context) => self.session.attach(&context.execution).await?,
            None => self.start(name, code).await?,
        };
        let call = Call { name, code, mark, request, time, engine: &info.engine };
        call.run(execution, cancel).await
    }

    /// Interrupts what runs in a context, as Ctrl-C would; its variables stay.
    pub async fn interrupt(&self, name: &str) -> Result<(), ContextError> {
        let context = self.find(name).await?.ok_or_else(|| ContextError::NoContext(name.to_owned()))?;
        let execution = self.session.attach(&context.execution).await?;
        execution.signal(libc::SIGINT).await?;
        // Until it is on its way: this connection may be gone right after.
        self.session.info().await?;
        Ok(())
    }

    /// Ends a context; the next call starts another, without its variables.
    pub async fn restart(&self, name: &str) -> Result<(), ContextError> {
        let context = self.find(name).await?.ok_or_else(|| ContextError::NoContext(name.to_owned()))?;
        stop(self.session.attach(&context.execution).await?).await
    }

    async fn find(&self, name: &str) -> Result<Option<Context>, ContextError> {
        Ok(self.list().await?.into_iter().find(|context| context.name == name))
    }

    async fn start(&self, name: &str, code: &Code) -> Result<Execution, ContextError> {
        let language = code.language;
        let names = language.interpreters.join(" ");
        let mut command = vec!["sh".to_owned(), "-c".to_owned(), START.to_owned(), "sh".to_owned()];
        // The interpreter's own name is looked up inside.
        let limits = Limits { memory: None, ..Limits::UNLIMITED };
        command.extend(language.command(&names, code, &limits, true));
        let exec = Exec::new(command)
            .env("MPLBACKEND", "Agg")
            .stdin(true)
            .background(true)
            .context(format!("{}/{name}", language.name));
        Ok(self.session.exec(exec).await?)
    }
}

fn named(set: &Option<String>) -> String {
    set.as_ref().map_or_else(|| "none".to_owned(), |id| format!("`{id}`"))
}

fn check(name: &str) -> Result<(), ContextError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let good = (1..=LONGEST).contains(&name.len()) && name.chars().all(plain);
    if good { Ok(()) } else { Err(ContextError::Name(name.to_owned())) }
}

/// Nobody can know it before the request is there.
fn mark() -> Result<String, ContextError> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty()).map_err(ContextError::Mark)?;
    Ok(format!("{:032x}", u128::from_le_bytes(random)))
}

/// Ends an interpreter and waits until it is gone.
async fn stop(mut execution: Execution) -> Result<(), ContextError> {
    execution.stop().await?;
    while execution.next().await.is_some() {}
    Ok(())
}

/// One request to a context.
struct Call<'a> {
    name: &'a str,
    code: &'a Code,
    mark: String,
    request: Vec<u8>,
    time: Option<Duration>,
    engine: &'a str,
}

impl Call<'_> {
    async fn run(self, mut execution: Execution, cancel: impl Future<Output = ()>) -> Result<CodeResult, ContextError> {
        let started = Instant::now();
        let controls = execution.controls();
        // However this process ends, the code does not run for longer.
        controls.allow(Some(self.time.map_or(Duration::MAX, |time| time + GRACE + SLACK))).await?;
        let mut answer = Answer::new(&self.mark);
        let mut stopped = None;
        let mut ended = None;
        let mut said = Vec::new();
        let mut writing = std::pin::pin!(controls.write(&self.request));
        let mut cancel = std::pin::pin!(cancel);
        let (mut written, mut until) = (false, self.time.map(|time| tokio::time::Instant::now() + time));
        while !answer.is_whole() && ended.is_none() {
            let limit = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = execution.next() => match event {
                    Some(Event::Stdout(bytes)) => answer.push(&bytes),
                    Some(Event::Stderr(bytes)) => keep_tail(&mut said, &bytes),
                    Some(Event::Ended(outcome)) => ended = Some(outcome),
                    None => ended = Some(lost(started.elapsed())),
                },
                done = &mut writing, if !written => {
                    done?;
                    written = true;
                }
                () = &mut cancel, if stopped.is_none() => {
                    stopped = Some(Status::Cancelled);
                    until = Some(tokio::time::Instant::now() + GRACE);
                    controls.signal(libc::SIGINT).await?;
                }
                () = limit => {
                    if stopped.is_none() {
                        stopped = Some(Status::Timeout);
                        until = Some(tokio::time::Instant::now() + GRACE);
                        controls.signal(libc::SIGINT).await?;
                    } else {
                        // It does not listen.
                        until = None;
                        controls.stop().await?;
                    }
                }
            }
        }
        if ended.is_none() {
            controls.allow(None).await?;
        }
        if execution.skipped()[0] > 0 && answer.began && !answer.is_whole() {
            return Err(ContextError::Lost(self.name.to_owned()));
        }
        // Before there is a request, a runner says where its results go why it cannot begin.
        if !answer.began {
            said.extend_from_slice(&answer.before);
        }
        self.result(answer.into_received(), ended, stopped, &said, started.elapsed())
    }

    fn result(
        &self,
        mut received: Received,
        ended: Option<Outcome>,
        stopped: Option<Status>,
        said: &[u8],
        duration: Duration,
    ) -> Result<CodeResult, ContextError> {
        if let (Some(reason), false, None) = (received.unwritten.take(), received.started, stopped) {
            return Err(CodeError::Unwritten(reason).into());
        }
        if let Some(outcome) = &ended {
            if outcome.reason == Some(Reason::Lost) {
                let reason = crate::engines::EngineError::Lost("its session ended while the code ran".to_owned());
                return Err(CodeError::Engine(reason).into());
            }
            if !received.started && stopped.is_none() && outcome.reason.is_none() {
                let said = String::from_utf8_lossy(said).trim().to_owned();
                let reason = if said.is_empty() { result::ended(outcome.ended) } else { said };
                return Err(CodeError::NotStarted { language: self.code.language.name, reason }.into());
            }
        }
        Ok(result::in_context(self.code, self.engine, received, ended.as_ref(), stopped, duration))
    }
}

fn lost(duration: Duration) -> Outcome {
    let ended = Ended::Signaled(libc::SIGKILL);
    Outcome { ended, reason: Some(Reason::Lost), duration, cpu: Duration::ZERO, peak_memory: 0, denied: Vec::new() }
}

fn keep_tail(said: &mut Vec<u8>, bytes: &Bytes) {
    said.extend_from_slice(bytes);
    let over = said.len().saturating_sub(TAIL);
    said.drain(..over);
}

/// What comes after the mark of a request.
struct Answer {
    mark: Vec<u8>,
    /// What came last, as long as no mark was in it.
    before: Vec<u8>,
    began: bool,
    decoder: Decoder,
}

impl Answer {
    fn new(mark: &str) -> Answer {
        let mark = format!("\n{mark}\n").into_bytes();
        Answer { mark, before: Vec::new(), began: false, decoder: Decoder::default() }
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.began {
            return self.decoder.push(bytes);
        }
        self.before.extend_from_slice(bytes);
        let found = self.before.windows(self.mark.len()).position(|window| window == self.mark);
        match found {
            Some(at) => {
                self.began = true;
                let rest = std::mem::take(&mut self.before).split_off(at + self.mark.len());
                self.decoder.push(&rest);
            }
            None => {
                let over = self.before.len().saturating_sub(TAIL.max(self.mark.len() - 1));
                self.before.drain(..over);
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.decoder.has_result()
    }

    fn into_received(self) -> Received {
        self.decoder.into_received()
    }
}
