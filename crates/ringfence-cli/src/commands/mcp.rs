//! `ringfence mcp`: the MCP server at standard input and output. Nothing but the protocol goes to stdout.

use std::io::IsTerminal;
use std::process::ExitCode;

use ringfence::HostError;
use ringfence::host::Request;
use ringfence::policy::plan;
use ringfence::session::{self, SessionError};
use ringfence_server::mcp::{self, Owner};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Mcp;
use crate::failure::{Failure, Kind};
use crate::{host, output};

/// The profile when none is named.
const PROFILE: &str = "shell";

pub fn mcp(args: &Mcp) -> Result<ExitCode, Failure> {
    let mut flags = args.policy.clone();
    flags.profile.get_or_insert_with(|| PROFILE.to_owned());
    if let Some(name) = args.keep.as_ref().filter(|name| !session::is_name(name)) {
        return Err(SessionError::BadName(name.clone()).into());
    }
    let host = host::here()?;
    let roots = match args.root.as_slice() {
        [] => vec![host.workdir(flags.cwd.as_deref())?],
        roots => {
            let wrong = |error: HostError| {
                Failure::new(Kind::Policy, error.to_string()).hint("name a directory that exists with --root DIR")
            };
            roots.iter().map(|root| host.workdir(Some(root)).map_err(wrong)).collect::<Result<_, _>>()?
        }
    };
    // What the owner got wrong is said now, and to the owner.
    let request = flags.request()?;
    for (number, root) in roots.iter().enumerate() {
        let sandbox = host.resolve(&Request { workdir: Some(root.clone()), ..request.clone() })?;
        plan::plan(sandbox.policy(), sandbox.facts(), &["/bin/sh".into()])
            .map_err(|error| Failure::from(error).hint("ringfence mcp --root DIR names where the agent may work"))?;
        if number == 0 {
            host::warn(&sandbox, false);
        }
    }
    if std::io::stdin().is_terminal() {
        output::say(
            "ringfence: this speaks MCP with a program, and waits for one; `ringfence install` makes it known to an agent \
             (Ctrl-C ends it)",
        );
    }
    let owner = Owner::new(host, request, roots, args.keep.clone())?;
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
