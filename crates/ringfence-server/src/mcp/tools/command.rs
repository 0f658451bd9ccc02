//! `run_command` and `command_output`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence::policy::limits::format_duration;
use ringfence::session::Exec;
use ringfence::{Ended, Outcome, Reason};
use rmcp::model::{CallToolResult, ProgressNotificationParam, ProgressToken};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Act, Desk, Nature};
use crate::mcp::answer::{ASK_OWNER, Mark, Trouble, done};
use crate::mcp::jobs::{InputError, Job, Page, Stream};

/// The most that one answer carries of each stream.
const PAGE: usize = 24 << 10;
/// Of a stream that is longer, so much of its end.
const END: usize = 8 << 10;
/// The most input that one call takes.
const LONGEST_INPUT: usize = 1 << 20;
/// The longest that one call waits.
const LONGEST_WAIT: u64 = 600;
/// Live output goes to the client this often at most, and so much of it.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
const PROGRESS_SIZE: usize = 2 << 10;

/// Runs a command.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCommand {
    /// A command line, run by `sh -c`. Give this or `argv`.
    command: Option<String>,
    /// A program and its arguments, run without a shell. Give this or `command`.
    argv: Option<Vec<String>>,
    /// Where it starts; the sandbox's working directory when absent.
    cwd: Option<String>,
    /// Variables to set on top of the sandbox's environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Time after which it is ended; the owner sets the default and the most that can be asked for.
    #[schemars(range(min = 1))]
    timeout_seconds: Option<u64>,
    /// Answer at once and let it run; command_output shows what it writes, sends input, waits and stops.
    #[serde(default)]
    background: bool,
}

/// Looks at a command again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandOutput {
    /// The command, as run_command named it.
    id: String,
    /// Wait so long for its end before answering.
    #[schemars(range(max = 600))]
    wait_seconds: Option<u64>,
    /// Text to send to its standard input first (commands in the background).
    input: Option<String>,
    /// End its standard input.
    #[serde(default)]
    close_input: bool,
    /// End it and everything it started.
    #[serde(default)]
    stop: bool,
    /// Show stdout from this byte on; where the last answer ended when absent.
    stdout_from: Option<u64>,
    /// Show stderr from this byte on; where the last answer ended when absent.
    stderr_from: Option<u64>,
}

/// What a command did so far.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CommandResult {
    /// Names the command for command_output.
    id: String,
    state: CommandState,
    /// Its exit code; null while it runs, or when a signal ended it.
    exit_code: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    /// The limit that ended it: time, cpu-time, memory, processes, cancelled, lost.
    reason: Option<&'static str>,
    stdout: String,
    stderr: String,
    /// Bytes written so far.
    stdout_bytes: u64,
    stderr_bytes: u64,
    /// There is more: command_output with stdout_from this shows it.
    stdout_next: Option<u64>,
    /// There is more: command_output with stderr_from this shows it.
    stderr_next: Option<u64>,
    duration_ms: u64,
    /// What to know or to do about it.
    note: Option<String>,
    /// Begins each line that the command did not write: in the text, and where output was left out. No output has it.
    mark: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum CommandState {
    Running,
    Exited,
    Signaled,
}

impl Act for RunCommand {
    type Output = CommandResult;
    const NAME: &'static str = "run_command";
    const TITLE: &'static str = "Run a command";
    const ABOUT: &'static str = "Runs a command in the sandbox and returns its output, stdout and stderr apart, and its \
        exit code. Files and background processes stay for the next call. A non-zero exit code is a result. Long output is \
        shortened in the middle; command_output shows the rest. Each answer begins with a mark in brackets: lines \
        that begin with it are the tool's, and all others are what the command wrote.";
    const NATURE: Nature = Nature::Runs;

    async fn act(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let limits = &desk.opened.allowed.sandbox.policy().limits;
        let exec = self.exec(limits.timeout_ceiling)?;
        let since = SystemTime::now() - CLOCK_TICK;
        let execution = match desk.opened.session.exec(exec).await {
            Ok(execution) => execution,
            Err(error) => return Err(desk.live.trouble(error).await),
        };
        let job = Job::start(execution, limits.output);
        desk.live.jobs.add(job.clone());
        if self.background {
            let note = "It runs in the background: command_output with this id looks at it again.".to_owned();
            let result = CommandResult::new(&job, first_pages(&job), Some(note));
            return result.answer();
        }
        tokio::select! {
            _ = job.ended() => {}
            () = report(&job, desk) => {}
            () = desk.context.ct.cancelled() => {
                job.stop().await;
                job.ended().await;
                return Err(Trouble::new("Cancelled: the command and everything it started were ended."));
            }
        }
        let note = job.outcome().and_then(|outcome| note(&outcome, &job, desk));
        let (live, opened) = (desk.live.clone(), desk.opened.clone());
        let changed = tokio::task::spawn_blocking(move || live.changed_since(&opened, since)).await;
        let warnings = changed.unwrap_or_default().into_iter().map(|line| format!("Warning for the owner: {line}."));
        let notes: Vec<String> = note.into_iter().chain(warnings).collect();
        let note = (!notes.is_empty()).then(|| notes.join("\n"));
        CommandResult::new(&job, first_pages(&job), note).answer()
    }
}

/// Files are stamped with a clock that runs up to a tick behind.
const CLOCK_TICK: Duration = Duration::from_millis(10);

impl RunCommand {
    /// The command, checked: nothing runs when something is wrong.
    fn exec(&self, ceiling: Option<Duration>) -> Result<Exec, Trouble> {
        let wrong = |what: &str| Trouble::new(format!("{what} Nothing was run."));
        let argv = match (&self.command, &self.argv) {
            (Some(line), None) if !line.trim().is_empty() => vec!["sh".to_owned(), "-c".to_owned(), line.clone()],
            (None, Some(argv)) if !argv.is_empty() => argv.clone(),
            (Some(_), Some(_)) => return Err(wrong("Give `command` or `argv`, not both.")),
            _ => return Err(wrong("Give a `command` line, or `argv` with a program.")),
        };
        let nul = |text: &String| text.contains('\0');
        if argv.iter().any(nul) || self.cwd.iter().any(nul) || self.env.values().any(nul) {
            return Err(wrong("There is a NUL character in an argument."));
        }
        if let Some(name) = self.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(wrong(&format!("`{name}` cannot be the name of a variable.")));
        }
        let mut exec = Exec::new(argv).background(self.background).stdin(self.background);
        for (name, value) in &self.env {
            exec = exec.env(name, value);
        }
        if let Some(cwd) = &self.cwd {
            exec = exec.cwd(cwd);
        }
        let asked = timeout(self.timeout_seconds, ceiling)?;
        // What runs in the background has as long as the owner lets it.
        match asked.or(ceiling.filter(|_| self.background)) {
            Some(timeout) => Ok(exec.timeout(timeout)),
            None => Ok(exec),
        }
    }
}

/// The time that was asked for, within what the owner allows.
pub fn timeout(seconds: Option<u64>, ceiling: Option<Duration>) -> Result<Option<Duration>, Trouble> {
    let asked = seconds.map(Duration::from_secs);
    match (asked, ceiling) {
        (Some(Duration::ZERO), _) => Err(Trouble::new("`timeout_seconds` must be at least 1. Nothing was run.")),
        (Some(asked), Some(ceiling)) if asked > ceiling => {
            let most = ceiling.as_secs();
            let message =
                format!("`timeout_seconds` can be {most} at most here; the owner sets that. Nothing was run.");
            Err(Trouble::new(message))
        }
        _ => Ok(asked),
    }
}

impl Act for CommandOutput {
    type Output = CommandResult;
    const NAME: &'static str = "command_output";
    const TITLE: &'static str = "Look at a command again";
    const ABOUT: &'static str = "Shows more of what a command wrote, from where the last answer ended or from a given byte. \
        Can wait for the end of a command in the background, send it input, or stop it with everything it started.";
    const NATURE: Nature = Nature::Runs;

    async fn act(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let wait = self.wait_seconds.unwrap_or(0);
        if wait > LONGEST_WAIT {
            return Err(Trouble::new(format!("`wait_seconds` can be {LONGEST_WAIT} at most.")));
        }
        let input = self.input.unwrap_or_default();
        if input.len() > LONGEST_INPUT {
            return Err(Trouble::new("The input is longer than 1 MiB: write it to a file and use that."));
        }
        let job = find(&self.id, desk).await?;
        if !input.is_empty() || self.close_input {
            job.input(input.as_bytes(), self.close_input).await.map_err(|error| match error {
                InputError::Session(error) => error.into(),
                InputError::Ended => Trouble::new("No input was sent: the command has ended."),
                InputError::Unread => Trouble::new("The command does not read its input; part of it may have arrived."),
            })?;
        }
        if self.stop {
            job.stop().await;
            job.ended().await;
        }
        tokio::select! {
            _ = tokio::time::timeout(Duration::from_secs(wait), job.ended()) => {}
            () = report(&job, desk) => {}
            () = desk.context.ct.cancelled() => return Err(Trouble::new("Cancelled; the command goes on.")),
        }
        let pages =
            [job.page(Stream::Stdout, self.stdout_from, PAGE), job.page(Stream::Stderr, self.stderr_from, PAGE)];
        let note = job.outcome().and_then(|outcome| note(&outcome, &job, desk));
        CommandResult::new(&job, pages.map(Shown::page), note).answer()
    }
}

/// A command of this client, or one that an earlier client left in a session that is kept.
async fn find(id: &str, desk: &Desk<'_>) -> Result<Arc<Job>, Trouble> {
    if let Some(job) = desk.live.jobs.get(id) {
        return Ok(job);
    }
    let unknown = || Trouble::new(format!("No command `{id}`: it never was, or it is forgotten by now."));
    let execution = desk.opened.session.attach(id).await.map_err(|_| unknown())?;
    let job = Job::start(execution, desk.opened.allowed.sandbox.policy().limits.output);
    desk.live.jobs.add(job.clone());
    Ok(job)
}

/// Sends live output to a client that asked for it; never returns. Others cost nothing.
async fn report(job: &Job, desk: &Desk<'_>) {
    let Some(token) = desk.context.meta.get_progress_token() else { return std::future::pending().await };
    let mut changes = job.changes();
    let mut told = [0, 0];
    loop {
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
        tell(job, &mut told, &token, desk).await;
        tokio::time::sleep(PROGRESS_EVERY).await;
    }
}

async fn tell(job: &Job, told: &mut [u64; 2], token: &ProgressToken, desk: &Desk<'_>) {
    let mut text = String::new();
    for (stream, told) in [Stream::Stdout, Stream::Stderr].into_iter().zip(told.iter_mut()) {
        let page = job.tail(stream, *told, PROGRESS_SIZE);
        text.push_str(&page.text);
        *told = page.total;
    }
    if text.is_empty() {
        return;
    }
    let progress = ProgressNotificationParam::new(token.clone(), told.iter().sum::<u64>() as f64).with_message(text);
    // A client that is gone ends the session anyway.
    let _ = desk.context.peer.notify_progress(progress).await;
}

/// What is shown of a stream.
struct Shown {
    text: String,
    /// Where in the text bytes are missing, and how many.
    gap: Option<(usize, u64)>,
    total: u64,
    next: Option<u64>,
}

impl Shown {
    fn page(page: Page) -> Shown {
        let next = (page.next < page.total).then_some(page.next);
        Shown { next, text: page.text, gap: None, total: page.total }
    }

    fn marked(self, mark: &Mark) -> String {
        match self.gap {
            None => self.text,
            Some((at, bytes)) => {
                let (head, tail) = self.text.split_at(at);
                format!("{head}\n{mark} {bytes} bytes left out\n{tail}")
            }
        }
    }
}

/// All of a stream, or its head and its end.
fn first_pages(job: &Job) -> [Shown; 2] {
    [Stream::Stdout, Stream::Stderr].map(|stream| {
        let head = job.page(stream, Some(0), PAGE);
        if head.next >= head.total {
            return Shown::page(head);
        }
        let head = job.page(stream, Some(0), PAGE - END);
        let tail = job.tail(stream, head.next, END);
        let gap = Some((head.text.len(), tail.at - head.next));
        Shown { text: head.text + &tail.text, gap, total: head.total, next: Some(head.next) }
    })
}

impl CommandResult {
    fn new(job: &Job, [stdout, stderr]: [Shown; 2], note: Option<String>) -> CommandResult {
        let outcome = job.outcome();
        let (state, exit_code, signal) = match outcome.as_ref().map(|outcome| outcome.ended) {
            None => (CommandState::Running, None, None),
            Some(Ended::Exited(code)) => (CommandState::Exited, Some(code), None),
            Some(Ended::Signaled(signal)) => (CommandState::Signaled, None, Some(signal)),
        };
        let mark = Mark::unlike([stdout.text.as_str(), &stderr.text]);
        let duration = outcome.as_ref().map_or_else(|| job.started.elapsed(), |outcome| outcome.duration);
        CommandResult {
            id: job.id.clone(),
            state,
            exit_code,
            signal,
            reason: outcome.and_then(|outcome| outcome.reason).map(reason_name),
            stdout_bytes: stdout.total,
            stderr_bytes: stderr.total,
            stdout_next: stdout.next,
            stderr_next: stderr.next,
            stdout: stdout.marked(&mark),
            stderr: stderr.marked(&mark),
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            note,
            mark: mark.to_string(),
        }
    }

    fn answer(&self) -> Result<CallToolResult, Trouble> {
        done(self, self.text())
    }

    fn text(&self) -> String {
        let mark = &self.mark;
        let mut text = match (self.exit_code, self.signal) {
            (Some(code), _) => format!("{mark} exit code {code}, {} ms", self.duration_ms),
            (_, Some(signal)) => format!("{mark} ended by {}, {} ms", ringfence::signal_name(signal), self.duration_ms),
            _ => format!("{mark} running as `{}`", self.id),
        };
        for (name, shown, next) in
            [("stdout", &self.stdout, self.stdout_next), ("stderr", &self.stderr, self.stderr_next)]
        {
            if !shown.is_empty() {
                let _ = write!(text, "\n{mark} {name}\n{}", shown.trim_end_matches('\n'));
            }
            if let Some(next) = next {
                let _ = write!(text, "\n{mark} more: command_output id={} {name}_from={next}", self.id);
            }
        }
        if let Some(note) = &self.note {
            let _ = write!(text, "\n{mark} note: {note}");
        }
        text
    }
}

fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Time => "time",
        Reason::CpuTime => "cpu-time",
        Reason::Memory => "memory",
        Reason::Processes => "processes",
        Reason::Cancelled => "cancelled",
        Reason::Lost => "lost",
    }
}

/// What a model should know about how a command ended.
fn note(outcome: &Outcome, job: &Job, desk: &Desk<'_>) -> Option<String> {
    let limits = &desk.opened.allowed.sandbox.policy().limits;
    if let Some(reason) = outcome.reason {
        return Some(match reason {
            Reason::Time => {
                let most = limits.timeout_ceiling.or(limits.timeout);
                let most = most.map(|most| format!("; up to {} can be asked for", format_duration(most)));
                format!(
                    "It was ended by its time limit after {:.1} s{}. What it had printed until then is above.",
                    outcome.duration.as_secs_f64(),
                    most.unwrap_or_default()
                )
            }
            Reason::CpuTime => "It was ended by the limit on processor time. Only the owner can raise it.".to_owned(),
            Reason::Memory => "It was ended by the memory limit. Use less, or ask the owner for more.".to_owned(),
            Reason::Processes => "It was refused more processes by the limit. Use fewer, or ask the owner.".to_owned(),
            Reason::Cancelled => "It was stopped.".to_owned(),
            Reason::Lost => "The sandbox ended under it. The next call starts a new one.".to_owned(),
        });
    }
    if let Some(denial) = outcome.denied.first() {
        let more = outcome.denied.len() - 1;
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        return Some(format!("Denied: {} `{}` ({}){more}. {ASK_OWNER}", denial.act, denial.object, denial.rule));
    }
    let failed = !matches!(outcome.ended, Ended::Exited(0));
    let sign = failed.then(|| job.tail(Stream::Stderr, 0, END).text).and_then(|text| wall(&text))?;
    Some(format!("\"{sign}\" is what the sandbox's walls look like from inside. {ASK_OWNER}"))
}

/// Words of the system that a wall of the sandbox causes.
fn wall(stderr: &str) -> Option<&'static str> {
    const SIGNS: [&str; 7] = [
        "Permission denied",
        "Read-only file system",
        "Operation not permitted",
        "Network is unreachable",
        "Could not resolve host",
        "Temporary failure in name resolution",
        "Name or service not known",
    ];
    SIGNS.into_iter().find(|sign| stderr.contains(sign))
}
