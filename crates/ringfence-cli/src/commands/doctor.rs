//! `ringfence doctor`: every fact that the engines depend on, and how to repair what is missing.

use std::borrow::Cow;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use ringfence::engines::native::{self, AppArmor};
use ringfence::engines::{self, bubblewrap};
use ringfence::host::Directories;
use ringfence::policy::facts::Facts;
use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::policy::plan;
use ringfence::records::Journal;
use ringfence::{EngineRef, StdioSpec, supervise};
use ringfence_linux::limits::Home;
use ringfence_linux::sys::sysctl;
use ringfence_linux::{landlock, userns};
use serde::Serialize;

use crate::args::Doctor;
use crate::companions::signals::Signals;
use crate::companions::through::Through;
use crate::failure::{self, Failure, Kind};
use crate::output;

/// How a fact stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Ok,
    Degraded,
    Missing,
}

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

/// Exit code 0 when some engine works here, 1 when none does.
pub fn doctor(args: &Doctor) -> Result<ExitCode, Failure> {
    let facts = crate::host::here()?.facts()?;
    if args.prepare_network {
        for engine in engines::all() {
            engine.prepare_host(&facts, &Directories::new(&facts).sessions)?;
        }
        output::say("ringfence: the network of sandboxes is there, and the services of this host are closed to it");
        return Ok(ExitCode::SUCCESS);
    }
    // What an engine says of itself, and what a command in a sandbox of its own shows.
    let all = engines::all();
    let told: Vec<Finding> = all.iter().filter_map(|engine| said(*engine, &facts)).collect();
    let engines: Vec<Finding> =
        all.iter().filter(|engine| engine.abilities().commands).map(|engine| tried(*engine, &facts)).collect();
    let works = engines.iter().any(|finding| finding.state != State::Missing);
    let inside = native::stacked::inside();
    let mut findings = vec![
        sandbox(inside),
        kernel(),
        user_namespaces(&facts),
        apparmor(&AppArmor::of_this_process(), &facts),
        id_mapped_mounts(&facts, &engines[0]),
        procfs(&engines[0]),
        landlock(),
        seccomp(),
        control_groups(),
        bwrap(),
        docker(&facts),
    ];
    findings.extend(told);
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

fn user_namespaces(facts: &Facts) -> Finding {
    const FACT: &str = "user namespaces";
    if stacked_only() {
        return degraded(FACT, "closed by the sandbox around this", "start the outer one with --nesting");
    }
    if sysctl("user.max_user_namespaces").as_deref() == Some("0") {
        let cure = "sysctl -w user.max_user_namespaces=15000";
        return missing(FACT, "switched off (user.max_user_namespaces = 0)", cure);
    }
    if facts.uid != 0 && sysctl("kernel.unprivileged_userns_clone").as_deref() == Some("0") {
        let cure = "sysctl -w kernel.unprivileged_userns_clone=1";
        return missing(FACT, "reserved to root (kernel.unprivileged_userns_clone = 0)", cure);
    }
    match userns::try_one() {
        Ok(()) => ok(FACT, "one was made"),
        Err(error) => missing(
            FACT,
            format!("cannot make one: {error}"),
            "in a container: allow them (Docker: --security-opt seccomp=unconfined, or --privileged)",
        ),
    }
}

fn apparmor(apparmor: &AppArmor, facts: &Facts) -> Finding {
    const FACT: &str = "AppArmor";
    if !apparmor.is_on() {
        return ok(FACT, "does not restrict user namespaces");
    }
    if facts.uid == 0 {
        return ok(FACT, "restricts user namespaces of ordinary users, not root's");
    }
    if !apparmor.restricts(facts.uid) {
        return ok(FACT, "restricts user namespaces, and this program has a profile");
    }
    let program = facts.program.display();
    missing(
        FACT,
        "restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns = 1)",
        format!(
            "put this into /etc/apparmor.d/ringfence, then: sudo apparmor_parser -r /etc/apparmor.d/ringfence\n\
             abi <abi/4.0>,\n\
             include <tunables/global>\n\
             profile ringfence \"{program}\" flags=(unconfined) {{\n  userns,\n  include if exists <local/ringfence>\n}}"
        ),
    )
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

/// Root's box has ids of its own, and sees root's files through id-mapped mounts: tried by the box that was run.
fn id_mapped_mounts(facts: &Facts, native: &Finding) -> Finding {
    const FACT: &str = "id-mapped mounts";
    if facts.uid != 0 {
        return ok(FACT, "not needed by an ordinary user");
    }
    if stacked_only() {
        return ok(FACT, "not needed in a sandbox");
    }
    match native.state {
        State::Missing if native.detail.contains("bind") => missing(
            FACT,
            native.detail.clone(),
            "work on a file system that has them (ext4, xfs, btrfs, tmpfs from Linux 6.3), or as an ordinary user",
        ),
        State::Missing => degraded(FACT, "not tried: no native sandbox could be made", "see engine native"),
        _ => ok(FACT, "used by the sandbox that was run"),
    }
}

fn procfs(native: &Finding) -> Finding {
    const FACT: &str = "procfs";
    if stacked_only() {
        return ok(FACT, "that of the sandbox around this");
    }
    match native.state {
        State::Missing if native.detail.contains("/proc") || native.detail.contains("procfs") => missing(
            FACT,
            native.detail.clone(),
            "in a container: let all of /proc be seen (Docker: --security-opt systempaths=unconfined)",
        ),
        State::Missing => degraded(FACT, "not tried: no native sandbox could be made", "see engine native"),
        _ => ok(FACT, "mounted by the sandbox that was run"),
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
    match Home::find() {
        Home::V2(path) => ok(FACT, format!("v2, below {}", path.display())),
        Home::V1 { memory, .. } => ok(FACT, format!("v1, below {}", memory.display())),
        Home::None(reason) => degraded(
            FACT,
            format!("{reason}; limits are kept by stand-ins"),
            "with systemd and cgroup v2: log in, or set XDG_RUNTIME_DIR to /run/user/UID, where your manager listens",
        ),
    }
}

/// By the same rule as the engine: not in `PATH`, and not set-user-id.
fn bwrap() -> Finding {
    const FACT: &str = "bubblewrap";
    let path = match bubblewrap::find() {
        Ok(path) => path,
        Err(error) => {
            let Failure { message, hints, .. } = error.into();
            return missing(FACT, message, format!("only needed for --engine bubblewrap: {}", hints.join("; ")));
        }
    };
    let version = Command::new(&path).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    match version {
        Ok(output) if output.status.success() => {
            ok(FACT, format!("{} ({})", String::from_utf8_lossy(&output.stdout).trim(), path.display()))
        }
        _ => missing(FACT, format!("{} cannot be run", path.display()), "install it anew: apt install bubblewrap"),
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

fn said(engine: EngineRef, facts: &Facts) -> Option<Finding> {
    let engines::Finding { cures, detail } = engine.look(facts)?;
    let fact = format!("engine {engine}");
    Some(match cures {
        None => ok(fact, detail),
        Some(cures) => {
            let cure = if cures.is_empty() { "see above".to_owned() } else { failure::cures(&cures) };
            degraded(fact, detail, format!("only needed for --engine {engine}: {cure}"))
        }
    })
}

/// Whether a run could be recorded: the journal is opened as a run opens it, and nothing is written.
fn records(facts: &Facts) -> Finding {
    const FACT: &str = "records";
    let journal = Journal::new(&Directories::new(facts).records());
    match journal.check() {
        Ok(()) => ok(FACT, format!("in {}", journal.dir().display())),
        Err(_) if native::stacked::inside() => ok(FACT, "hidden in a sandbox; the run around this has one"),
        Err(error) => degraded(
            FACT,
            Failure::new(Kind::Records, error.to_string()).message,
            "runs go on without a record: make the place writable, or set XDG_STATE_HOME to another",
        ),
    }
}

/// Runs `/bin/true` in a real box.
fn tried(engine: EngineRef, facts: &Facts) -> Finding {
    let fact = format!("engine {engine}");
    match try_engine(engine, facts) {
        Ok(0) => ok(fact, "ran /bin/true in a sandbox"),
        Ok(code) => missing(fact, format!("/bin/true ended with {code} in a sandbox"), "please report this"),
        Err(failure) => {
            let cure = if failure.hints.is_empty() { "see above".to_owned() } else { failure.hints.join("\n") };
            missing(fact, failure.message, cure)
        }
    }
}

/// Whether this is in a box that lets nobody make another: what can be done then is stacked.
fn stacked_only() -> bool {
    native::stacked::inside() && sysctl("user.max_user_namespaces").as_deref() == Some("0")
}

fn try_engine(engine: EngineRef, facts: &Facts) -> Result<i32, Failure> {
    let scratch = Scratch::make()?;
    // What is protected here is so already, by the sandbox around this; nothing could be in a new directory.
    let here =
        native::stacked::inside().then(|| crate::host::here().and_then(|host| Ok(host.workdir(None)?))).transpose()?;
    let mut flags = Layer::flags();
    flags.network(false);
    let workdir = here.unwrap_or_else(|| scratch.0.clone());
    let policy = layers::resolve(Inputs::new(workdir, facts.home.clone(), flags))?.policy;
    let plan = plan::plan(&policy, facts, &["/bin/true".into()])?;
    let (engine, _) = engines::select(&engine.into(), &plan, facts)?;
    let null = || {
        let file = fs::File::options().read(true).write(true).open("/dev/null");
        file.map(OwnedFd::from).map_err(|error| Failure::output(&error))
    };
    let signals = Signals::take(None).map_err(|error| Failure::new(Kind::Engine, error.to_string()))?;
    let running = engines::start(engine, &plan, facts, StdioSpec::Files([null()?, null()?, null()?]))?;
    match supervise(running, &policy, facts, &mut Through::new(signals))?.ended {
        ringfence::Ended::Exited(code) => Ok(code),
        ringfence::Ended::Signaled(signal) => Ok(128 + signal),
    }
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
    fn apparmor_is_named_and_its_profile_printed() {
        let of = |switch: Option<&str>, profile: Option<&str>, uid: u32| {
            let facts = Facts { uid, program: "/opt/my tools/ringfence".into(), ..Facts::default() };
            apparmor(&AppArmor { switch: switch.map(str::to_owned), profile: profile.map(str::to_owned) }, &facts)
        };
        let table = [
            (None, None, 1000, State::Ok),
            (Some("0"), Some("unconfined"), 1000, State::Ok),
            (Some("1"), Some("unconfined"), 0, State::Ok),
            (Some("1"), Some("ringfence (unconfined)"), 1000, State::Ok),
            (Some("1"), Some("unconfined"), 1000, State::Missing),
        ];
        for (switch, profile, uid, state) in table {
            let finding = of(switch, profile, uid);
            assert_eq!(finding.state, state, "{switch:?} {profile:?} {uid}");
            assert_eq!(finding.cure.is_none(), state == State::Ok);
        }
        let text = render(&of(Some("1"), Some("unconfined"), 1000));
        for part in [
            "kernel.apparmor_restrict_unprivileged_userns = 1",
            "/etc/apparmor.d/ringfence",
            "apparmor_parser -r",
            "profile ringfence \"/opt/my tools/ringfence\" flags=(unconfined) {",
            "userns,",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn inside_and_outside_are_told_apart() {
        assert_eq!((sandbox(true).state, sandbox(false).state), (State::Degraded, State::Ok));
    }
}
