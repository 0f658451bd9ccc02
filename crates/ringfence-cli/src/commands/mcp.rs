//! `ringfence mcp`: the MCP server at standard input and output. Nothing but the protocol goes to stdout.

mod terms;

use std::io::IsTerminal;
use std::process::ExitCode;

use ringfence::policy::plan;
use ringfence::session::{self, SessionError};
use ringfence_server::mcp::{self, Owner};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Mcp;
use crate::failure::{Failure, Kind};
use crate::situation::{self, Situation};
use crate::{commands, output};

/// The profile when none is named.
const PROFILE: &str = "shell";

pub fn mcp(args: &Mcp) -> Result<ExitCode, Failure> {
    let mut flags = args.policy.clone();
    flags.profile.get_or_insert_with(|| PROFILE.to_owned());
    if let Some(name) = args.keep.as_ref().filter(|name| !session::is_name(name)) {
        return Err(SessionError::BadName(name.clone()).into());
    }
    let roots = match args.root.as_slice() {
        [] => vec![situation::workdir(flags.cwd.as_deref())?],
        roots => roots.iter().map(|root| situation::workdir(Some(root))).collect::<Result<_, _>>()?,
    };
    // What the owner got wrong is said now, and to the owner.
    let situation = Situation::gather(&terms::at(&flags, &roots[0]))?;
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
    let terms = Box::new(terms::Flags::new(flags));
    let owner = Owner { sessions, roots, keep: args.keep.clone(), terms };
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
