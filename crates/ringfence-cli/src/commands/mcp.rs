//! `ringfence mcp`: the MCP server at standard input and output. Nothing but the protocol goes to stdout.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ringfence::engines;
use ringfence::policy::plan;
use ringfence::policy::rules::{Access, FileRule, LayerKind, Missing, Origin, Pattern};
use ringfence::session::Sessions;
use ringfence_server::mcp::{self, Allowed, Owner, Refusal};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Mcp, PolicyFlags};
use crate::failure::{Failure, Kind};
use crate::files::Places;
use crate::situation::{self, Situation};

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
    situation.warn(false);
    let places = Places::new(&situation.facts);
    let sessions = Sessions::new(places.sessions, "/proc/self/exe");
    let decide = Box::new(move |workdir: &Path, also: &[PathBuf]| {
        allowed(&flags, workdir, also).map_err(|failure| Refusal(failure.message))
    });
    let owner = Owner { sessions, roots, keep: args.keep.clone(), decide };
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

/// What the owner allows in these directories.
fn allowed(flags: &PolicyFlags, workdir: &Path, also: &[PathBuf]) -> Result<Allowed, Failure> {
    let situation = Situation::gather(&at(flags, workdir))?;
    let choice = situation.choice()?;
    let mut policy = situation.resolved.policy;
    // Looked up a second time: a link must not have taken its place.
    if policy.workdir != workdir {
        let message = format!("`{}` is a link by now, to `{}`", workdir.display(), policy.workdir.display());
        return Err(Failure::new(Kind::Policy, message));
    }
    policy.rules.extend(also.iter().map(|root| FileRule {
        access: Access::Rw,
        pattern: Pattern::Exact(root.clone()),
        missing: Missing::Fail,
        origin: Origin { layer: LayerKind::Flags, place: "--root".into() },
    }));
    let facts = situation.facts;
    let plan = plan::plan(&policy, &facts, &["/bin/sh".into()])?;
    let (_, report) = engines::select(choice, &plan, &facts)?;
    Ok(Allowed { policy, facts, choice, report })
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
