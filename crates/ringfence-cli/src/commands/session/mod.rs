//! `ringfence session`: live sandboxes, and `ringfence gc`.

mod copy;
mod exec;
mod forward;
mod once;
mod shell;
mod show;

use std::collections::BTreeMap;
use std::future::Future;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use ringfence::Sandbox;
use ringfence::policy::limits::format_duration;
use ringfence::policy::policy::Root;
use ringfence::sandbox::raise_descriptors;
use ringfence::session::{Create, Session as Live, SessionError, Sessions};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::args::{PolicyFlags, Session, SessionCreate, Span};
use crate::commands::requirements;
use crate::companions::let_go;
use crate::failure::{Failure, Kind};
use crate::host;
use crate::output;

/// The profile of sessions that name none.
const PROFILE: &str = "shell";

/// Becomes the supervisor of a session, when that is what this process was started for. Before anything else: it reads no
/// configuration and has no environment.
pub fn supervise() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != "session" || args.next()? != "supervise" {
        return None;
    }
    let ends = (|| {
        let request = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let answer = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        Ok::<_, rustix::io::Errno>((request, answer))
    })();
    let Ok((request, answer)) = ends else { return Some(ExitCode::FAILURE) };
    let_go(true);
    // Its creator was told; afterwards there is nobody.
    let result = ringfence::session::supervise(std::fs::File::from(request), answer);
    Some(if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Freezes a session or thaws it.
fn freeze(session: &str, freeze: bool, json: bool) -> Result<ExitCode, Failure> {
    within(async |sessions| {
        let session = sessions.open_live(session).await?;
        match freeze {
            true => session.freeze().await?,
            false => session.thaw().await?,
        }
        if json {
            output::json(&json!({ "session": session.id(), "frozen": freeze }))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

pub fn session(command: &Session) -> Result<ExitCode, Failure> {
    match command {
        Session::Create(args) => create(args),
        Session::Exec(args) => exec::exec(args),
        Session::Shell(args) => shell::shell(args),
        Session::List { json } => show::list(*json),
        Session::Show { session, json } => show::show(session, *json),
        Session::Logs(args) => show::logs(args),
        Session::Extend { session, life, idle, json } => within(async |sessions| {
            let session = sessions.open_live(session).await?;
            let info = session.info().await?;
            let left = info.expires.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default());
            no_less("life", *life, left)?;
            no_less("idle", *idle, info.idle)?;
            let time = |span: &Span| span.0.unwrap_or(Duration::MAX);
            session.extend(life.as_ref().map(time), idle.as_ref().map(time)).await?;
            if *json {
                let all = show::described(&session.info().await?);
                let keys = ["id", "name", "expires_ms", "idle_ms", "idle_at_ms"];
                output::json(&keys.map(|key| (key, &all[key])).into_iter().collect::<BTreeMap<_, _>>())?;
            }
            Ok(ExitCode::SUCCESS)
        }),
        Session::Freeze { session, json } => freeze(session, true, *json),
        Session::Thaw { session, json } => freeze(session, false, *json),
        Session::Stop { session, execution: None, json } => within(async |sessions| {
            let id = sessions.id(session)?;
            match sessions.stop(&id).await {
                Ok(()) => {
                    // Somebody may have removed it since.
                    let left = sessions.info(&id).await.ok().and_then(|info| info.left);
                    if let Some(left) = left {
                        let message = format!("the session has ended, and something of it is left: {left}");
                        return Err(Failure::new(Kind::Session, message).hint("`ringfence session rm` tries again"));
                    }
                }
                // As it was wanted.
                Err(SessionError::Ended { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            say_changed(&sessions, &id, None).await;
            if *json {
                output::json(&json!({ "session": sessions.id(session).ok(), "execution": null, "state": "ended" }))?;
            }
            Ok(ExitCode::SUCCESS)
        }),
        Session::Stop { session, execution: Some(id), json } => within(async |sessions| {
            let mut execution = sessions.open_live(session).await?.attach(id).await?;
            execution.stop().await?;
            while execution.next().await?.is_some() {}
            if *json {
                output::json(&json!({ "session": execution.session(), "execution": id, "state": "ended" }))?;
            }
            Ok(ExitCode::SUCCESS)
        }),
        Session::Rm { sessions: names, home, yes, json } => {
            let question = format!("Remove the home of {} for good?", names.join(", "));
            if *home && !yes && !output::confirm(&question, "--yes does not ask")? {
                output::say("ringfence: nothing was removed");
                return Ok(ExitCode::FAILURE);
            }
            within(async |sessions| {
                let mut worst = None;
                let (mut gone, mut failed) = (Vec::new(), Vec::new());
                for name in names {
                    let removed = if *home { sessions.remove_home(name).await } else { sessions.remove(name).await };
                    match removed {
                        Ok(()) => {
                            if names.len() > 1 && !json {
                                output::say(&format!("ringfence: `{name}` is removed"));
                            }
                            gone.push(name);
                        }
                        // The others are removed all the same; the last failure is told by the caller.
                        Err(error) => {
                            failed.push(json!({ "session": name, "error": error.to_string() }));
                            if let Some(failure) = worst.replace(Failure::from(error)) {
                                output::say(&failure.render());
                            }
                        }
                    }
                }
                if *json {
                    output::json(&json!({ "removed": gone, "failed": failed }))?;
                    // The one object has been printed.
                    if let Some(failure) = worst {
                        output::say(&failure.render());
                        return Ok(ExitCode::from(failure.kind.exit_code()));
                    }
                    return Ok(ExitCode::SUCCESS);
                }
                worst.map_or(Ok(ExitCode::SUCCESS), Err)
            })
        }
        Session::Cp { from, to, max_size, include_protected } => copy::copy(from, to, max_size.0, *include_protected),
        Session::Forward { session, ports } => forward::forward(session, *ports),
    }
}

pub use once::once;

pub fn gc(json: bool) -> Result<ExitCode, Failure> {
    let left = requirements::clear();
    match &left {
        Ok(1) if !json => output::say("ringfence: cleared one installation that was not finished"),
        Ok(left @ 2..) if !json => {
            output::say(&format!("ringfence: cleared {left} installations that were not finished"));
        }
        _ => {}
    }
    let code = within(async |sessions| {
        let cleared = sessions.gc().await?;
        if json {
            let installations = left.as_ref().ok();
            output::json(&json!({ "ended": cleared.ended, "lost": cleared.lost, "installations": installations }))?;
            return Ok(ExitCode::SUCCESS);
        }
        for id in &cleared.ended {
            let how = if cleared.lost.contains(id) { " (its supervisor was killed)" } else { "" };
            output::data(&format!("{id}{how}\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    })?;
    // Sessions are cleared whatever became of the others.
    left.map(|_| code)
}

/// To extend is to give: what a session has already is not taken.
fn no_less(flag: &str, asked: Option<Span>, has: Option<Duration>) -> Result<(), Failure> {
    let seconds = |time: Duration| format_duration(Duration::from_secs(time.as_secs()));
    let has = match (asked, has) {
        (Some(Span(Some(asked))), Some(has)) if asked < has => seconds(has),
        (Some(Span(Some(_))), None) => "no end".to_owned(),
        _ => return Ok(()),
    };
    let message = format!("--{flag}: it has {has} already, and extending takes nothing away");
    Err(Failure::new(Kind::Session, message).hint("`ringfence session stop` ends it now"))
}

fn create(args: &SessionCreate) -> Result<ExitCode, Failure> {
    let mut flags: PolicyFlags = args.policy.clone();
    flags.profile.get_or_insert_with(|| PROFILE.to_owned());
    let host = host::here()?;
    host.sessions()?.prepare()?;
    host.prepare()?;
    let mut sandbox = host.resolve(&flags.request()?)?;
    host::warn(&sandbox, false);
    let made = Made {
        packages_asked: args.required.requirements.is_some(),
        with_caches: !sandbox.policy().caches.names.is_empty(),
        begun: SystemTime::now(),
    };
    // Packages belong to one image. A session with packages names the image by its id, which is not known yet here.
    let by_id = made.packages_asked && matches!(sandbox.policy().root, Root::Image(_));
    // One that is there needs nothing. Whether one with a home is still the same is seen when all that makes it is there.
    if let (Some(name), true, false) = (&args.name, args.reuse, sandbox.policy().keep_home || by_id) {
        let create = wanted(args, &sandbox)?;
        let there = within(async |sessions| match sessions.open_alike(name, &create).await? {
            Some(session) => made.tell(args, &sessions, &session).await.map(Some),
            None => Ok(None),
        });
        if let Some(code) = there? {
            return Ok(code);
        }
    }
    // Held until the session holds it itself.
    let _installed = requirements::install_for_all(&args.required, &mut sandbox)?;
    sandbox.fetch_image()?;
    let create = wanted(args, &sandbox)?;
    within(async |sessions| {
        let session = match &args.name {
            Some(name) if args.reuse => sessions.open_or_create(name, create).await?,
            Some(name) => sessions.create(create.name(name)).await?,
            None => sessions.create(create).await?,
        };
        made.tell(args, &sessions, &session).await
    })
}

/// What is asked for. A session that is there is compared with it, and a new one is made from it.
fn wanted(args: &SessionCreate, sandbox: &Sandbox) -> Result<Create, Failure> {
    let mut create = sandbox.create()?;
    if let Some(Span(idle)) = args.idle {
        create = create.idle(idle);
    }
    if let Some(Span(life)) = args.life {
        create = create.life(life);
    }
    Ok(create)
}

/// What decides what is said of a session that was made, or was there.
struct Made {
    packages_asked: bool,
    with_caches: bool,
    begun: SystemTime,
}

impl Made {
    async fn tell(&self, args: &SessionCreate, sessions: &Sessions, session: &Live) -> Result<ExitCode, Failure> {
        if args.reuse && self.packages_asked && session.info().await?.created < self.begun {
            output::say(
                "ringfence: the session is there already, with the packages that it was made with: --requirements \
                 changes nothing",
            );
        }
        if self.with_caches {
            say_caches(session).await?;
        }
        let told = match args.json {
            true => output::json(&show::described(&session.info().await?)),
            false => output::data(&format!("{}\n", session.id())),
        };
        let Err(failure) = told else { return Ok(ExitCode::SUCCESS) };
        // Nobody would know of it. One that was there already is somebody's.
        let made = session.info().await.is_ok_and(|info| info.created >= self.begun);
        Err(match made && sessions.remove(session.id()).await.is_ok() {
            true => failure.hint("the session was ended again: nobody would know of it"),
            false => failure.hint(format!("the session is there: {}", session.id())),
        })
    }
}

/// Says which caches a new box has, and which it runs without and why.
async fn say_caches(session: &Live) -> Result<(), Failure> {
    for line in show::caches(&session.info().await?) {
        output::say(&format!("ringfence: {line}"));
    }
    Ok(())
}

/// The id of a session that goes, or went, by this name; else the text itself.
pub fn id_of(name: &str) -> Result<String, Failure> {
    within(async |sessions| Ok(sessions.info(name).await.map_or_else(|_| name.to_owned(), |info| info.id)))
}

/// Says what commands of a session left in its working directory that git outside would go into; without a time, since the
/// session was made.
async fn say_changed(sessions: &Sessions, id: &str, since: Option<SystemTime>) {
    let Ok(info) = sessions.info(id).await else { return };
    if info.workdir.is_absolute() {
        let home = std::env::home_dir().unwrap_or_default();
        let home = home.canonicalize().unwrap_or(home);
        super::run::say_changed(&info.workdir, &home, since.unwrap_or(info.created));
    }
}

/// Does something with sessions, on a runtime of this thread alone.
pub fn within<F, T>(act: impl FnOnce(Sessions) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let (runtime, result) = on_runtime(act)?;
    // A thread that still reads our standard input must not hold us up.
    runtime.shutdown_background();
    result
}

/// The same, as the last that this process does: what would be taken down piece by piece goes with it.
pub fn within_at_last<F, T>(act: impl FnOnce(Sessions) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let (runtime, result) = on_runtime(act)?;
    std::mem::forget(runtime);
    result
}

fn on_runtime<F, T>(act: impl FnOnce(Sessions) -> F) -> Result<(Runtime, Result<T, Failure>), Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let sessions = host::here()?.sessions()?;
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|e| Failure::new(Kind::Session, format!("cannot wait for anything: {e}")))?;
    let result = runtime.block_on(act(sessions));
    Ok((runtime, result))
}

/// A path of a session: `SESSION:PATH`. A path of the host that has a colon is written with a slash before it.
fn split(text: &std::ffi::OsStr) -> Option<(String, std::path::PathBuf)> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = text.as_bytes();
    let colon = bytes.iter().position(|b| *b == b':')?;
    let session = std::str::from_utf8(&bytes[..colon]).ok().filter(|name| !name.is_empty() && !name.contains('/'))?;
    let path = std::ffi::OsString::from_vec(bytes[colon + 1..].to_vec());
    Some((session.to_owned(), path.into()))
}

/// A note for stderr when a limit or the session's end ended a command.
fn note(outcome: &ringfence::Outcome, asked: Option<std::time::Duration>) -> Option<String> {
    use ringfence::Reason;
    use ringfence::policy::limits::format_duration;
    let text = match outcome.reason? {
        Reason::Time => {
            let after = asked.unwrap_or(std::time::Duration::from_secs(outcome.duration.as_secs()));
            format!("ended after {} (limit.time); --timeout allows more, up to the ceiling", format_duration(after))
        }
        Reason::Memory => "ended for too much memory (limit.memory)".to_owned(),
        Reason::Processes => "failed when it wanted too many processes (limit.processes)".to_owned(),
        Reason::CpuTime => "ended for too much processor time (limit.cpu)".to_owned(),
        Reason::Cancelled => "ended by force".to_owned(),
        Reason::Lost => "lost: the session ended under it".to_owned(),
    };
    Some(format!("ringfence: {text}"))
}

/// `NAME=value` as it is, `NAME` from our own environment.
fn variables(env: &[std::ffi::OsString]) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let os = |bytes: &[u8]| std::ffi::OsString::from_vec(bytes.to_vec());
    env.iter()
        .filter_map(|entry| match entry.as_bytes().iter().position(|b| *b == b'=') {
            Some(at) => Some((os(&entry.as_bytes()[..at]), os(&entry.as_bytes()[at + 1..]))),
            None => std::env::var_os(entry).map(|value| (entry.clone(), value)),
        })
        .collect()
}

pub async fn open(sessions: &Sessions, name: &str) -> Result<Live, Failure> {
    Ok(sessions.open(name).await?)
}
