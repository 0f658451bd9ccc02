//! `ringfence mcp`: the MCP server at standard input and output. Nothing but the protocol goes to stdout.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ringfence::code::{Code, CodeResult};
use ringfence::engines;
use ringfence::policy::plan;
use ringfence::policy::rules::{Access, FileRule, LayerKind, Missing, Origin, Pattern};
use ringfence_server::mcp::{self, Allowed, Owner, Refusal};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Mcp, PolicyFlags};
use crate::failure::{Failure, Kind};
use crate::situation::{self, Situation};
use crate::{commands, output, record};

/// The profile when none is named.
const PROFILE: &str = "shell";

pub fn mcp(args: &Mcp) -> Result<ExitCode, Failure> {
    let mut flags = args.policy.clone();
    flags.profile.get_or_insert_with(|| PROFILE.to_owned());
    let roots = match args.root.as_slice() {
        [] => vec![situation::workdir(flags.cwd.as_deref())?],
        roots => roots.iter().map(|root| situation::workdir(Some(root))).collect::<Result<_, _>>()?,
    };
    // What the owner got wrong is said now, and to the owner.
    let situation = Situation::gather(&at(&flags, &roots[0]))?;
    plan::plan(&situation.resolved.policy, &situation.facts, &["/bin/sh".into()])
        .map_err(|error| Failure::from(error).hint("ringfence mcp --root DIR names where the agent may work"))?;
    situation.warn(false);
    if std::io::stdin().is_terminal() {
        output::say(
            "ringfence: this speaks MCP with a program, and waits for one; `ringfence install` makes it known to an agent \
             (Ctrl-C ends it)",
        );
    }
    let sessions = commands::session::sessions()?;
    let flags = Arc::new(flags);
    let policies = flags.clone();
    let decide = Box::new(move |workdir: &Path, also: &[PathBuf]| {
        allowed(&policies, workdir, also).map_err(|failure| Refusal(failure.message))
    });
    let run = Box::new(
        move |code: &Code, workdir: &Path, also: &[PathBuf], timeout: Option<Duration>, cancel: BorrowedFd<'_>| {
            run_code(code, situated(&flags, workdir, also), timeout, cancel).map_err(|failure| Refusal(failure.message))
        },
    );
    let owner = Owner { sessions, roots, keep: args.keep.clone(), decide, run };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Kind::Engine, format!("cannot start: {error}")))?;
    let served = runtime.block_on(async {
        let ended = ended().map_err(|error| Failure::new(Kind::Engine, format!("cannot wait for signals: {error}")))?;
        mcp::serve(owner, ended).await.map_err(|error| Failure::new(Kind::Engine, error.to_string()))
    });
    // A read of stdin may be under way on a thread of its own.
    runtime.shutdown_background();
    served.map(|()| ExitCode::SUCCESS)
}

fn at(flags: &PolicyFlags, workdir: &Path) -> PolicyFlags {
    PolicyFlags { cwd: Some(workdir.to_path_buf()), ..flags.clone() }
}

/// What the owner's flags and files mean in these directories.
fn situated(flags: &PolicyFlags, workdir: &Path, also: &[PathBuf]) -> Result<Situation, Failure> {
    let mut situation = Situation::gather(&at(flags, workdir))?;
    let policy = &mut situation.resolved.policy;
    // Looked up a second time: a link must not have taken its place.
    if policy.workdir != workdir {
        let message = format!("`{}` is a link by now, to `{}`", workdir.display(), policy.workdir.display());
        return Err(Failure::new(Kind::Policy, message));
    }
    for root in also {
        policy.rules.push(FileRule {
            access: Access::Rw,
            pattern: Pattern::Exact(root.clone()),
            missing: Missing::Fail,
            origin: Origin { layer: LayerKind::Flags, place: "--root".into() },
        });
        // What the presets and its own file protect there, as in a working directory.
        let there = Situation::gather(&at(flags, root))?.resolved.policy.rules;
        let below = |pattern: &Pattern| match pattern {
            Pattern::Exact(path) => path.starts_with(root),
            Pattern::Glob(glob) => Path::new(glob.as_str()).starts_with(root),
        };
        // A `ro` outside of it would show what the box does not see.
        let protects = |rule: &FileRule| match rule.access {
            Access::Rw => false,
            Access::Ro => below(&rule.pattern),
            Access::Exclude => true,
        };
        policy.rules.extend(there.into_iter().filter(protects));
    }
    Ok(situation)
}

fn allowed(flags: &PolicyFlags, workdir: &Path, also: &[PathBuf]) -> Result<Allowed, Failure> {
    let situation = situated(flags, workdir, also)?;
    // There before the plan is made, which hides it.
    record::prepare(&situation);
    let choice = situation.resolved.engine;
    let Situation { facts, resolved, records, .. } = situation;
    let plan = plan::plan(&resolved.policy, &facts, &["/bin/sh".into()])?;
    let (_, report) = engines::select(choice, &plan, &facts)?;
    Ok(Allowed { policy: resolved.policy, facts, choice, report, records: Some(records) })
}

fn run_code(
    code: &Code,
    situation: Result<Situation, Failure>,
    timeout: Option<Duration>,
    cancel: BorrowedFd<'_>,
) -> Result<CodeResult, Failure> {
    let command: Vec<OsString> = vec!["code".into(), code.language.name.into(), "-".into()];
    let mut situation = situation.map_err(|failure| record::refused(&command, failure))?;
    if timeout.is_some() {
        situation.resolved.policy.limits.timeout = timeout;
    }
    commands::code::recorded(code, &situation, &command, None, || Ok(cancel))
}

/// Somebody wants the server to end.
fn ended() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}
