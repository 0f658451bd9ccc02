//! `ringfence doctor`: every fact that the engines depend on, and how to repair what is missing.

use std::borrow::Cow;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ringfence::engines::{self, EngineError, Standing as State, Tried};
use ringfence::facts::inside_sandbox;
use ringfence::host::Directories;
use ringfence::policy::facts::Facts;
use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::policy::plan;
use ringfence::records::Journal;
use ringfence::{EngineRef, StdioSpec, supervise};
use ringfence_linux::landlock;
use ringfence_linux::limits::Home;
use ringfence_linux::sys::sysctl;
use serde::Serialize;

use crate::args::{Doctor, PolicyFlags};
use crate::companions::signals::Signals;
use crate::companions::through::Through;
use crate::failure::{self, Failure, Kind};
use crate::output;

/// One fact.
#[derive(Debug, Serialize)]
struct Finding {
    fact: Cow<'static, str>,
    state: State,
    detail: String,
    /// What to do about it.
    cure: Option<String>,
}

fn ok(fact: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Finding {
    Finding { fact: fact.into(), state: State::Ok, detail: detail.into(), cure: None }
}

fn degraded(fact: impl Into<Cow<'static, str>>, detail: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { fact: fact.into(), state: State::Degraded, detail: detail.into(), cure: Some(cure.into()) }
}

fn missing(fact: impl Into<Cow<'static, str>>, detail: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { fact: fact.into(), state: State::Missing, detail: detail.into(), cure: Some(cure.into()) }
}

/// Exit code 0 when some engine works here and the configuration can be read, else 1.
pub fn doctor(args: &Doctor) -> Result<ExitCode, Failure> {
    let facts = crate::host::here()?.facts()?;
    if args.prepare_network {
        for engine in engines::all() {
            engine.prepare_host(&facts, &Directories::new(&facts).sessions)?;
        }
        output::say("ringfence: the network of sandboxes is there, and the services of this host are closed to it");
        return Ok(ExitCode::SUCCESS);
    }
    // What a command in a sandbox of an engine's shows, and what the engine says of itself.
    let (mut told, mut engines) = (Vec::new(), Vec::new());
    for (index, engine) in engines::all().into_iter().enumerate() {
        if engine.abilities().commands {
            let (finding, found) = tried(engine, index == 0, &facts);
            engines.push(finding);
            told.extend(found);
        } else {
            told.extend(engine.look(&facts, Tried::Not).into_iter().map(|found| said(engine, index == 0, found)));
        }
    }
    let works = engines.iter().any(|finding| finding.state != State::Missing);
    let inside = inside_sandbox();
    let mut findings = vec![sandbox(inside), kernel(), landlock(), seccomp(), control_groups(), docker(&facts)];
    findings.extend(told);
    let configuration = configuration();
    let works = works && configuration.state == State::Ok;
    findings.push(configuration);
    findings.push(records(&facts));
    findings.extend(engines);
    if args.json {
        output::json(&serde_json::json!({ "works": works, "inside": inside, "facts": findings }))?;
    } else {
        output::data(&findings.iter().map(render).collect::<String>())?;
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn render(finding: &Finding) -> String {
    let state = match finding.state {
        State::Ok => "ok",
        State::Degraded => "degraded",
        State::Missing => "missing",
    };
    let mut text = format!("{state:<9} {:<19} {}\n", finding.fact, finding.detail);
    if let Some(cure) = &finding.cure {
        let mut lines = cure.lines();
        text.push_str(&format!("          hint: {}\n", lines.next().unwrap_or_default()));
        lines.for_each(|line| text.push_str(&format!("            {line}\n")));
    }
    text
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        (0..=4, _) | (5, 0..12) => {
            missing("kernel", format!("Linux {release}"), "Linux 5.12 or later is needed (mount_setattr)")
        }
        (5, _) | (6, 0..12) => degraded(
            "kernel",
            format!("Linux {release}"),
            "nothing must be done; from Linux 6.12 on Landlock also scopes signals and abstract sockets",
        ),
        _ => ok("kernel", format!("Linux {release}")),
    }
}

/// Whether this runs in a box: then the findings are about what the box leaves, not about the host.
fn sandbox(inside: bool) -> Finding {
    const FACT: &str = "sandbox";
    match inside {
        true => degraded(
            FACT,
            "this is inside a sandbox: what follows is what it leaves, not what the host has",
            "run `ringfence doctor` outside to look at the host",
        ),
        false => ok(FACT, "this is outside of any"),
    }
}

fn landlock() -> Finding {
    const FACT: &str = "Landlock";
    let optional = "or --optional kernel.second-wall";
    match landlock::Abi::of_this_kernel().0 {
        ..=0 => missing(FACT, "not there", format!("boot with lsm=landlock,… {optional}")),
        1 => missing(FACT, "ABI 1 refuses every rename between directories", format!("use Linux 5.19, {optional}")),
        abi @ 2..6 => degraded(
            FACT,
            format!("ABI {abi}: signals and abstract sockets are not scoped"),
            "nothing must be done; Linux 6.12 has ABI 6",
        ),
        abi => ok(FACT, format!("ABI {abi}")),
    }
}

fn seccomp() -> Finding {
    const FACT: &str = "system-call filter";
    match sysctl("kernel.seccomp.actions_avail") {
        Some(actions) if actions.contains("errno") => ok(FACT, "seccomp is there"),
        _ if fs::read_to_string("/proc/self/status").is_ok_and(|text| text.contains("\nSeccomp:")) => {
            ok(FACT, "seccomp is there")
        }
        _ => missing(FACT, "seccomp is not there", "use a kernel with CONFIG_SECCOMP_FILTER"),
    }
}

fn control_groups() -> Finding {
    const FACT: &str = "control groups";
    match Home::look() {
        Home::V2(path) => ok(FACT, format!("v2, below {}", path.display())),
        Home::V1 { memory, .. } => ok(FACT, format!("v1, below {}", memory.display())),
        Home::None(reason) => degraded(
            FACT,
            format!("{reason}; limits are kept by stand-ins"),
            "with systemd and cgroup v2: log in, or set XDG_RUNTIME_DIR to /run/user/UID, where your manager listens",
        ),
    }
}

fn docker(facts: &Facts) -> Finding {
    const FACT: &str = "Docker socket";
    let asked = facts.env.get(std::ffi::OsStr::new("DOCKER_HOST")).and_then(|host| host.to_str());
    let path = asked.and_then(|host| host.strip_prefix("unix://")).unwrap_or("/var/run/docker.sock");
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => ok(FACT, format!("{path}; masked unless --docker")),
        Err(error) => degraded(FACT, format!("{path}: {error}"), "only needed for --docker: start Docker"),
    }
}

/// What an engine says of itself. Only the first is needed: the others are asked where it will not do.
fn said(engine: EngineRef, first: bool, found: engines::Finding) -> Finding {
    let engines::Finding { fact, state, detail, cures } = found;
    let cure = (state != State::Ok).then(|| {
        let cure = if cures.is_empty() { "see above".to_owned() } else { failure::cures(&cures) };
        if first { cure } else { format!("only needed for --engine {engine}: {cure}") }
    });
    Finding { fact: fact.into(), state, detail, cure }
}

/// Whether a run here would get a policy: the same files, read the same way.
fn configuration() -> Finding {
    const FACT: &str = "configuration";
    let resolved = || Ok(crate::host::here()?.resolve(&PolicyFlags::default().request()?)?);
    match resolved() {
        Ok(_) => ok(FACT, "of yours and of this directory: without errors"),
        Err(Failure { message, hints, .. }) if hints.is_empty() => {
            missing(FACT, message, "repair the file, or remove it")
        }
        Err(Failure { message, hints, .. }) => missing(FACT, message, hints.join("\n")),
    }
}

/// Whether a run could be recorded: the journal is opened as a run opens it, and nothing is written.
fn records(facts: &Facts) -> Finding {
    const FACT: &str = "records";
    let journal = Journal::new(&Directories::new(facts).records());
    match journal.check() {
        Ok(()) => ok(FACT, format!("in {}", journal.dir().display())),
        Err(_) if inside_sandbox() => ok(FACT, "hidden in a sandbox; the run around this has one"),
        Err(error) => degraded(
            FACT,
            Failure::new(Kind::Records, error.to_string()).message,
            "runs go on without a record: make the place writable, or set XDG_STATE_HOME to another",
        ),
    }
}

/// Why no command ran in a sandbox of an engine.
enum NotRun {
    Engine(EngineError),
    Other(Failure),
}

impl<E: Into<Failure>> From<E> for NotRun {
    fn from(error: E) -> NotRun {
        NotRun::Other(error.into())
    }
}

/// Runs `/bin/true` in a real box: what came of it, and what the engine says of itself then.
fn tried(engine: EngineRef, first: bool, facts: &Facts) -> (Finding, Vec<Finding>) {
    let result = try_engine(engine, facts);
    let tried = match &result {
        Ok(_) => Tried::Ran,
        Err(NotRun::Engine(error)) => Tried::Failed(Some(error)),
        Err(NotRun::Other(_)) => Tried::Failed(None),
    };
    let told = engine.look(facts, tried).into_iter().map(|found| said(engine, first, found)).collect();
    let fact = format!("engine {engine}");
    let failed = |failure: Failure| {
        let cure = if failure.hints.is_empty() { "see above".to_owned() } else { failure.hints.join("\n") };
        missing(fact.clone(), failure.message, cure)
    };
    let finding = match result {
        Ok(0) => ok(fact, "ran /bin/true in a sandbox"),
        Ok(code) => missing(fact, format!("/bin/true ended with {code} in a sandbox"), "please report this"),
        Err(NotRun::Engine(error)) => failed(error.into()),
        Err(NotRun::Other(failure)) => failed(failure),
    };
    (finding, told)
}

fn try_engine(engine: EngineRef, facts: &Facts) -> Result<i32, NotRun> {
    let scratch = Scratch::make()?;
    // What is protected here is so already, by the sandbox around this; nothing could be in a new directory.
    let here = inside_sandbox().then(|| crate::host::here().and_then(|host| Ok(host.workdir(None)?))).transpose()?;
    let mut flags = Layer::flags();
    flags.network(false);
    let workdir = here.unwrap_or_else(|| scratch.0.clone());
    let policy = layers::resolve(Inputs::new(workdir, facts.home.clone(), flags))?.policy;
    let plan = plan::plan(&policy, facts, &["/bin/true".into()])?;
    let (engine, report) = engines::select(&engine.into(), &plan, facts).map_err(NotRun::Engine)?;
    let null = || {
        let file = fs::File::options().read(true).write(true).open("/dev/null");
        file.map(OwnedFd::from).map_err(|error| Failure::output(&error))
    };
    let signals = Signals::take(None).map_err(|error| Failure::new(Kind::Engine, error.to_string()))?;
    let stdio = StdioSpec::Files([null()?, null()?, null()?]);
    let running = engines::start(engine, &plan, &report, facts, stdio).map_err(NotRun::Engine)?;
    let outcome = supervise(running, &policy, facts, &mut Through::new(signals)).map_err(NotRun::Engine)?;
    Ok(match outcome.ended {
        ringfence::Ended::Exited(code) => code,
        ringfence::Ended::Signaled(signal) => 128 + signal,
    })
}

/// A directory to work in, removed afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Result<Scratch, Failure> {
        let base = std::env::temp_dir().canonicalize().unwrap_or_else(|_| PathBuf::from("/tmp"));
        let path = base.join(format!("ringfence-doctor-{}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Failure::new(Kind::Output, format!("cannot make `{}`: {error}", path.display())))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Empty: the box is gone, and its stand-ins with it.
        let _ = fs::remove_dir(Path::new(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_and_outside_are_told_apart() {
        assert_eq!((sandbox(true).state, sandbox(false).state), (State::Degraded, State::Ok));
    }
}
