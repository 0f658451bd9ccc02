//! Contexts: interpreters that stay in a session and keep their variables from one call to the next, as a notebook does.
//!
//! A context is an execution of its session, and nothing else knows about it: it is listed, interrupted and ended as one, and
//! goes with its session. Requests go to its standard input, and what comes back stands in its standard output after a mark
//! that only this request has in it; so nothing that was sent before, and nothing that another context sends, passes for the
//! answer. The code itself can lie about its own result. Its time is the supervisor's to enforce, also when the caller dies.

use std::collections::HashMap;
use std::future::Future;
use std::time::{Duration, Instant};

use ringfence_policy::limits::Limits;
use serde::Serialize;

use super::frames::{Decoder, Received};
use super::language::{Language, Wire};
use super::request::Mark;
use super::{Code, CodeError, CodeResult, Status, request, result};
use crate::session::{Event, Exec, Execution, ExecutionState, Session, SessionError};
use crate::supervise::{Outcome, Reason};

/// From an interrupt to the end of the interpreter.
const GRACE: Duration = Duration::from_secs(2);
/// So much longer than the caller waits, the supervisor does.
const SLACK: Duration = Duration::from_secs(5);
/// Most characters of a name.
const LONGEST: usize = 64;
/// Bytes that the interpreter wrote for itself and that go into a message.
const TAIL: usize = 400;
/// Most bytes that are sent for an interpreter that has ended.
const LEFT: usize = 3 << 20;

/// Starts the first interpreter that is there. Results go where its output would, and its output into two files, which have
/// a name that nobody knows before and none afterwards. What an interpreter that has ended did not send of its output is sent
/// for it, as frames, where errors would be. Bash does that itself; and it could not be interrupted in the background.
const START: &str = r#"
for p in $1; do
    if command -v "$p" >/dev/null; then
        umask 077
        set -C
        f=${TMPDIR:-/tmp}/.ringfence-$2
        exec 3>&1 4>"$f-o" 6>"$f-e" && rm -f "$f-o" "$f-e"
        exec 5<>/dev/fd/4 7<>/dev/fd/6
        shift 2
        # Under a limit on each process, Node waits for ever for helper threads that cannot be started.
        l=$(ulimit -d 2>/dev/null)
        case $p-$l in
            *[!0-9]) ;;
            node*-*) [ "$l" -ge 131072 ] || set -- --v8-pool-size=0 "--max-old-space-size=$((l / 2048))" "$@" ;;
        esac
        case $p in bash) exec "$p" "$@" 3 5 7 1>>/dev/fd/4 2>>/dev/fd/6 4>&- 6>&- ;; esac
        # What the shell itself has to say about its end is said by the end.
        exec 8<&0 0</dev/null 9>&2 2>/dev/null
        trap : INT
        trap 'kill -9 "$c"' TERM
        "$p" "$@" 3 5 7 0<&8 8<&- 1>>/dev/fd/4 2>>/dev/fd/6 4>&- 6>&- 9>&- &
        c=$!
        exec 1>&- 3>&- 4>&- 6>&- 8<&-
        # An interrupt ends the waiting, not the interpreter.
        while wait "$c"; s=$?; kill -0 "$c" 2>/dev/null; do :; done
        trap '' INT TERM
        for k in o5 e7; do
            f=/dev/fd/${k#?} h=524288
            n=$(wc -c <"$f") && [ "$n" -gt 0 ] || continue
            if [ "$n" -le $((2 * h)) ]; then
                printf '%s %d\n0\n' "${k%?}" $((n + 2)) && head -c "$n" "$f"
            else
                m="[$((n - 2 * h)) bytes dropped]" g=$((n - 2 * h))
                printf '%s %d\n%d\n' "${k%?}" $((${#g} + 1 + 2 * h + ${#m} + 2)) "$g" && head -c $h "$f"
                printf '\n%s\n' "$m" && tail -c $h "$f"
            fi >&9
        done
        trap - INT TERM
        [ "$s" -le 128 ] || kill -$((s - 128)) $$
        exit "$s"
    fi
done
echo "none of $1 is there" >&2
exit 127
"#;

/// A context of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Context {
    /// What it is called in its session.
    pub name: String,
    /// The name of its language.
    pub language: String,
    /// The execution that it is.
    pub execution: String,
}

/// What went wrong around a context; never the code's failure.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum ContextError {
    /// This text cannot be the name of a context.
    #[error("`{0}` cannot be the name of a context: letters, digits, `.`, `_` and `-`, at most 64")]
    Name(String),
    /// Contexts cannot be had in this language.
    #[error("there are no contexts for {0}: for python, javascript and typescript")]
    Language(&'static str),
    /// A context of this name exists, in another language.
    #[error("context `{name}` is in {language}")]
    OtherLanguage { name: String, language: String },
    /// No context has this name.
    #[error("there is no context `{0}`")]
    NoContext(String),
    /// The code requires another set of packages than the session was made with.
    #[error("the code requires the set of packages `{asked}`, and its session has {}", named(.has))]
    OtherSet { asked: String, has: Option<String> },
    /// The kernel gave no random bytes to mark a request with.
    #[error("cannot make a mark for a request: {0}")]
    Mark(rustix::io::Errno),
    /// The code cannot be run.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// The session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// The contexts of a session.
#[derive(Debug, Clone)]
pub struct Contexts {
    session: Session,
}

impl Contexts {
    /// The contexts of this session.
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
        self.call(name, code, timeout, cancel, true).await
    }

    /// Runs code in an interpreter of its own, which is gone afterwards; for every language.
    pub async fn once(
        &self,
        name: &str,
        code: &Code,
        timeout: Option<Duration>,
        cancel: impl Future<Output = ()>,
    ) -> Result<CodeResult, ContextError> {
        let mut ran = self.call(name, code, timeout, cancel, false).await;
        // It may have ended by itself.
        let ended = self.end(name).await;
        if let (Ok(result), Ok(Some(outcome))) = (&mut ran, ended) {
            result.usage.measured(&outcome);
        }
        ran
    }

    async fn call(
        &self,
        name: &str,
        code: &Code,
        timeout: Option<Duration>,
        cancel: impl Future<Output = ()>,
        keeps: bool,
    ) -> Result<CodeResult, ContextError> {
        check(name)?;
        code.check()?;
        // A session has what it was made with.
        if code.requirements.is_some() && code.installed.is_none() {
            return Err(CodeError::NotInstalled.into());
        }
        let (mut cancel, turn) = (std::pin::pin!(cancel), format!("context-{name}"));
        // What is cancelled before its turn never starts, and whoever has the turn is not interrupted for it.
        let turn = tokio::select! {
            biased;
            () = &mut cancel => return Ok(CodeResult::not_begun(code, Status::Cancelled, Duration::ZERO)),
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
        let request = request::encode(code, Some(Mark { text: &mark, keeps }), set.is_some())?;
        let mut context = self.find(name).await?;
        if let Some(other) = context.as_ref().filter(|context| context.language != code.language.name) {
            return Err(ContextError::OtherLanguage { name: name.to_owned(), language: other.language.clone() });
        }
        if let (Some(left), true) = (&context, turn.was_left()?) {
            self.settle(&left.execution, code.language, &info.engine).await?;
            context = self.find(name).await?;
        }
        let served = context.is_some();
        let execution = match context {
            Some(context) => self.session.attach(&context.execution).await?,
            None => self.start(name, code).await?,
        };
        turn.busy(true)?;
        let call = Call { code, mark, request, time, engine: &info.engine, served };
        let ran = call.run(execution, cancel).await;
        turn.busy(false)?;
        ran
    }

    /// Whoever called last was killed, and its code may still run: it is interrupted. Afterwards the context waits for code;
    /// one that does not listen has ended.
    async fn settle(&self, execution: &str, language: &'static Language, engine: &str) -> Result<(), ContextError> {
        let execution = self.session.attach(execution).await?;
        execution.signal(libc::SIGINT).await?;
        let (nothing, mark) = (Code::new(language, ""), mark()?);
        let request = request::encode(&nothing, Some(Mark { text: &mark, keeps: false }), false)?;
        let call = Call { code: &nothing, mark, request, time: Some(GRACE), engine, served: true };
        call.run(execution, std::future::pending()).await.map(drop)
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
        self.end(name).await.map(drop)
    }

    async fn end(&self, name: &str) -> Result<Option<Outcome>, ContextError> {
        let context = self.find(name).await?.ok_or_else(|| ContextError::NoContext(name.to_owned()))?;
        stop(self.session.attach(&context.execution).await?).await
    }

    async fn find(&self, name: &str) -> Result<Option<Context>, ContextError> {
        Ok(self.list().await?.into_iter().find(|context| context.name == name))
    }

    async fn start(&self, name: &str, code: &Code) -> Result<Execution, ContextError> {
        let language = code.language;
        let names = language.interpreters.join(" ");
        // The interpreter's own name is looked up inside.
        let limits = Limits { memory: None, ..Limits::UNLIMITED };
        let mut interpreter = language.command(&names, code, &limits, true);
        interpreter.insert(1, mark()?);
        let mut command = vec!["sh".to_owned(), "-c".to_owned(), START.to_owned(), "sh".to_owned()];
        command.extend(interpreter);
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
async fn stop(mut execution: Execution) -> Result<Option<Outcome>, ContextError> {
    execution.stop().await?;
    let mut ended = None;
    while let Some(event) = execution.next().await? {
        if let Event::Ended(outcome) = event {
            ended = Some(outcome);
        }
    }
    Ok(ended)
}

/// One request to a context.
struct Call<'a> {
    code: &'a Code,
    mark: String,
    request: Vec<u8>,
    time: Option<Duration>,
    engine: &'a str,
    /// The interpreter has run code before: whatever it does, that code may have made it.
    served: bool,
}

impl Call<'_> {
    async fn run(self, mut execution: Execution, cancel: impl Future<Output = ()>) -> Result<CodeResult, ContextError> {
        let started = Instant::now();
        let controls = execution.controls();
        // However this process ends, the code does not run for longer.
        controls.allow(Some(self.time.map_or(Duration::MAX, |time| time.saturating_add(GRACE + SLACK)))).await?;
        let mut answer = Answer::new(&self.mark);
        let mut stopped = None;
        let mut ended = None;
        let mut said = Vec::new();
        let mut deaf = false;
        let mut writing = std::pin::pin!(controls.write(&self.request));
        let mut cancel = std::pin::pin!(cancel);
        let (mut written, mut until) =
            (false, self.time.and_then(|time| tokio::time::Instant::now().checked_add(time)));
        while !answer.is_whole() && ended.is_none() {
            let limit = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = execution.next() => match event? {
                    Some(Event::Stdout(bytes)) => answer.push(&bytes),
                    Some(Event::Stderr(bytes)) => said.extend_from_slice(&bytes[..bytes.len().min(LEFT - said.len())]),
                    Some(Event::Ended(outcome)) => ended = Some(outcome),
                    None => ended = Some(Outcome::lost(started.elapsed())),
                },
                done = &mut writing, if !written => {
                    // One that reads no more says so by its end, or takes its time.
                    if !self.served {
                        done?;
                    }
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
                    } else if !deaf {
                        // It does not listen: what started it ends it, and sends what it wrote.
                        deaf = true;
                        until = Some(tokio::time::Instant::now() + GRACE);
                        controls.signal(libc::SIGTERM).await?;
                    } else {
                        until = None;
                        controls.stop().await?;
                    }
                }
            }
        }
        if ended.is_none() {
            controls.allow(None).await?;
        }
        // Before there is a request, a runner says where its results go why it cannot begin.
        let before = if answer.began { Vec::new() } else { answer.before.clone() };
        let mut received = answer.into_received();
        if ended.is_some() {
            let mut left = Decoder::default();
            left.push(&said);
            let left = left.into_received().written;
            if received.written == [None, None] {
                received.written = left;
            }
        }
        said.extend(before);
        self.result(received, ended, stopped, &said, started.elapsed())
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
        if let (Some(name), false, None) = (received.taken.take(), received.started, stopped) {
            return Err(self.code.input_name(name).into());
        }
        if let Some(outcome) = &ended {
            if outcome.reason == Some(Reason::Lost) {
                let reason = crate::engines::EngineError::Lost("its session ended while the code ran".to_owned());
                return Err(CodeError::Engine(reason).into());
            }
            if !self.served && !received.started && stopped.is_none() && outcome.reason.is_none() {
                let tail = &said[said.len().saturating_sub(TAIL)..];
                let said = String::from_utf8_lossy(tail).trim().to_owned();
                let reason = if said.is_empty() { result::ended(outcome.ended) } else { said };
                return Err(CodeError::NotStarted { language: self.code.language.name, reason }.into());
            }
        }
        Ok(result::in_context(self.code, self.engine, received, ended.as_ref(), stopped, duration))
    }
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
