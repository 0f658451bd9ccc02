//! Starts one box and waits for it: what is killed in the tests of a launcher's sudden end.
//!
//! Also what supervises sessions in these tests (`launcher session supervise`).
//!
//! `launcher ENGINE HOME PROJECT [limits] [timeout] -- COMMAND…`, with the standard descriptors that it was started with.

use std::path::PathBuf;
use std::process::ExitCode;

use containment::sandbox::{Nobody, Refusal};
use ringfence::policy::plan::plan_with;
use ringfence::policy::tree::Tree;
use ringfence::policy::{Inputs, Layer, resolve};
use ringfence::{Ended, StdioSpec, engines, select, supervise};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).take(2).collect();
    if args == ["session", "supervise"] {
        return supervise_session();
    }
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(refusal) => {
            use std::io::Write;
            // There is nobody else to tell.
            let _ = writeln!(std::io::stderr(), "{refusal}");
            ExitCode::from(125)
        }
    }
}

/// What `ringfence session supervise` is: the process that owns the box of a session.
fn supervise_session() -> ExitCode {
    let duplicate = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).expect("a standard descriptor");
    let (request, answer) = (duplicate(rustix::stdio::stdin()), duplicate(rustix::stdio::stdout()));
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").expect("the null device");
    rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .expect("nothing to read or write");
    match ringfence::session::supervise(std::fs::File::from(request), answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run() -> Result<u8, Refusal> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = || Refusal::Policy("launcher ENGINE HOME PROJECT [limits] [timeout] -- COMMAND…".to_owned());
    let split = args.iter().position(|a| a == "--").ok_or_else(usage)?;
    let (options, command) = (&args[..split], &args[split + 1..]);
    let [engine, home, project, rest @ ..] = options else { return Err(usage()) };
    let engine = engines::find(engine).ok_or_else(usage)?;
    let mut flags = Layer::flags();
    flags.network(false);
    if rest.iter().any(|r| r == "limits") {
        let set = flags.memory("256m").and(flags.pids("64")).and(flags.cpus("1"));
        set.map_err(|e| Refusal::Policy(e.to_string()))?;
    }
    if rest.iter().any(|r| r == "timeout") {
        flags.timeout("3s").map_err(|e| Refusal::Policy(e.to_string()))?;
    }
    let mut facts = ringfence::facts::gather().map_err(|e| Refusal::Policy(e.to_string()))?;
    facts.home = PathBuf::from(home);
    let inputs = Inputs::new(PathBuf::from(project), facts.home.clone(), flags);
    let policy = resolve(inputs).map_err(|e| Refusal::Policy(e.to_string()))?.policy;
    let command: Vec<_> = command.iter().map(Into::into).collect();
    let lookup = Tree::lookup(&policy, &facts);
    let plan = plan_with(&lookup, &policy, &facts, &command).map_err(Refusal::Plan)?;
    let (engine, report) = select(&engine.into(), &plan, &facts).map_err(Refusal::Engine)?;
    let duplicate = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).expect("a standard descriptor");
    let stdio =
        [duplicate(rustix::stdio::stdin()), duplicate(rustix::stdio::stdout()), duplicate(rustix::stdio::stderr())];
    let running = engines::start(engine, &plan, &report, &facts, StdioSpec::Files(stdio)).map_err(Refusal::Engine)?;
    let outcome = supervise(running, &policy, &facts, &mut Nobody).map_err(Refusal::Engine)?;
    Ok(match outcome.ended {
        Ended::Exited(code) => code as u8,
        Ended::Signaled(signal) => 128 + signal as u8,
    })
}
