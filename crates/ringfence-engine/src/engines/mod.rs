//! Engines: what enforces a plan. Each compiles it by a pure function and carries the result out, or refuses.
//!
//! No engine decides policy and none knows another; which one is taken is decided here.

pub mod bubblewrap;
#[cfg(feature = "docker")]
pub mod docker;
mod error;
mod identity;
mod limits;
mod live;
pub mod names;
pub mod native;
pub mod registry;
mod reopened;
mod running;
mod start;
mod view;

use std::borrow::Cow;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ringfence_linux::landlock;
use ringfence_linux::limits::Home;
use ringfence_linux::seccomp::Sockets;
use ringfence_linux::sys::{PointerList, sysctl};
use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{self, Mount, Plan, Runs};
use ringfence_policy::policy::Network;
use ringfence_policy::profiles::EngineChoice;
use ringfence_policy::{Cure, Guarantee};

use crate::report::{Report, Verdict, enforced, missing, weakened};

pub use error::EngineError;
pub use identity::has_roots_rights;
pub use limits::GUEST_PROCESSES;
pub use live::{About, Cache, Control, GuestSandbox, Helper, await_first_word, first_words};
pub use registry::{all, find};
pub use ringfence_linux::launch::Event;
pub use running::{Running, StandardStream, StdioSpec, Unfit};

/// What enforces plans. Adding one: a module with this trait, and a line in [`registry`].
///
/// An engine never decides policy, and knows no other engine. Callers ask for its [`Abilities`], never for its name.
pub trait Engine: fmt::Debug + Send + Sync {
    /// How people name it: small letters.
    fn name(&self) -> &'static str;

    /// What it is, in a few words for people.
    fn about(&self) -> &'static str;

    /// What it can do.
    fn abilities(&self) -> Abilities;

    /// What it answers for each promise of the plan; an error when one that is not optional cannot be kept.
    fn promise(&self, plan: &Plan, facts: &Facts) -> Result<Report, EngineError>;

    /// What it makes of a plan, for people: nothing is started.
    fn describe(&self, plan: &Plan, facts: &Facts) -> Result<String, EngineError>;

    /// Starts a sandbox for one command. Only with [`Abilities::commands`].
    fn start(&self, _plan: &Plan, _facts: &Facts, _stdio: StdioSpec) -> Result<Running, EngineError> {
        Err(EngineError::unable(self.name(), "commands without a session"))
    }

    /// Starts a sandbox with a guest in it. What comes with it is the guest's socket, from which its first frame can be read;
    /// the sandbox ends when it is closed. The plan's environment becomes that of the sandbox.
    fn start_guest(
        &self,
        plan: &mut Plan,
        facts: &Facts,
        about: About<'_>,
    ) -> Result<(Box<dyn GuestSandbox>, OwnedFd), EngineError>;

    /// Removes what sandboxes left that nobody looks after any more.
    fn sweep(&self, _left: &Left<'_>) -> Result<(), EngineError> {
        Ok(())
    }

    /// What root does once after each start of the machine, for everybody.
    fn prepare_host(&self, _facts: &Facts, _state: &Path) -> Result<(), EngineError> {
        Ok(())
    }

    /// What `doctor` shows of what this engine needs. No sandbox is started, and nothing is changed.
    fn look(&self, _facts: &Facts, _tried: Tried<'_>) -> Vec<Finding> {
        Vec::new()
    }

    /// Variables of the caller's that say where homes are. Only with [`Abilities::volumes`].
    fn variables(&self) -> &'static [&'static str] {
        &[]
    }

    /// The id of an image, which is fetched when it is not there. Only with [`Abilities::images`].
    fn find_image(&self, _facts: &Facts, _name: &str, _progress: OnProgress<'_>) -> Result<String, EngineError> {
        Err(EngineError::unable(self.name(), "images"))
    }

    /// Whether what a sandbox writes to this host belongs to its caller.
    fn writes_as_caller(&self, _facts: &Facts) -> Result<bool, EngineError> {
        Ok(true)
    }

    /// A hash of all that the sandbox of a plan would be made from now. Only with [`Abilities::volumes`].
    fn made_from(&self, _plan: &Plan, _facts: &Facts) -> Result<String, EngineError> {
        Err(EngineError::unable(self.name(), "volumes"))
    }

    /// Removes the home that is kept by a name. Only with [`Abilities::volumes`].
    fn remove_home(&self, _facts: &Facts, _state: &Path, _keys: &Path, _name: &str) -> Result<(), EngineError> {
        Err(EngineError::unable(self.name(), "volumes"))
    }
}

/// What an engine can do, as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities {
    /// It starts a command by itself. What it lacks goes through a guest.
    pub commands: bool,
    /// Descriptors reach the guest beside its frames.
    pub descriptors: bool,
    /// The root of a sandbox is an image. Without, it is made from this host.
    pub images: bool,
    /// It keeps space under a name: homes and caches.
    pub volumes: bool,
    /// A sandbox can be frozen where its host lets it.
    pub freeze: bool,
    /// It needs no network to say whether it can honour a policy: `auto` may choose it.
    pub local: bool,
}

/// What is swept: sandboxes of sessions that do not live.
pub struct Left<'a> {
    /// Where state of this user lies.
    pub state: &'a Path,
    /// As [`About::keys`].
    pub keys: &'a Path,
    /// What is known of this host.
    pub facts: &'a Facts,
    /// Whether the session of this id lives.
    pub lives: &'a dyn Fn(&str) -> bool,
}

impl fmt::Debug for Left<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Left").field("state", &self.state).field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// Something that an engine needs, and how it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is needed.
    pub fact: &'static str,
    /// How it stands.
    pub state: Standing,
    /// What was found, in words.
    pub detail: String,
    /// What helps.
    pub cures: Vec<Cure>,
}

/// How something that an engine needs stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// As it should be.
    Ok,
    /// Good enough for less.
    Degraded,
    /// Not there.
    Missing,
}

impl Finding {
    /// It is as it should be.
    pub fn ok(fact: &'static str, detail: impl Into<String>) -> Finding {
        Finding { fact, state: Standing::Ok, detail: detail.into(), cures: Vec::new() }
    }

    /// It is good enough for less.
    pub fn degraded(fact: &'static str, detail: impl Into<String>, cures: impl Into<Vec<Cure>>) -> Finding {
        Finding { fact, state: Standing::Degraded, detail: detail.into(), cures: cures.into() }
    }

    /// It is not there.
    pub fn missing(fact: &'static str, detail: impl Into<String>, cures: impl Into<Vec<Cure>>) -> Finding {
        Finding { fact, state: Standing::Missing, detail: detail.into(), cures: cures.into() }
    }
}

/// What became of a command that `doctor` ran in a sandbox of an engine.
#[derive(Debug, Clone, Copy)]
pub enum Tried<'a> {
    /// None was run.
    Not,
    /// It ran.
    Ran,
    /// What the engine said, where the failure was its own.
    Failed(Option<&'a EngineError>),
}

/// How far an image has come that is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Short id of the layer; `None` for the image as a whole.
    pub layer: Option<String>,
    /// What is being done, in the daemon's words.
    pub status: String,
    /// Bytes so far, and of how many.
    pub bytes: Option<(u64, u64)>,
}

/// Told about an image while it is fetched.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) + Sync);

/// An engine of the registry.
pub type EngineRef = &'static dyn Engine;

impl PartialEq for dyn Engine {
    fn eq(&self, other: &dyn Engine) -> bool {
        self.name() == other.name()
    }
}

impl fmt::Display for dyn Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// This one and no other.
impl From<&dyn Engine> for EngineChoice {
    fn from(engine: &dyn Engine) -> EngineChoice {
        EngineChoice::Named(engine.name().into())
    }
}

/// Takes the engine that will enforce the plan: the one asked for, or the first that can honour it.
pub fn select(choice: &EngineChoice, plan: &Plan, facts: &Facts) -> Result<(EngineRef, Report), EngineError> {
    choose(choice, fit(plan), |engine| promise(engine, plan, facts))
}

/// Whether an engine has what the plan is made of, and not something else: a root from this host, or an image.
fn fit(plan: &Plan) -> impl Fn(&Abilities) -> bool + use<> {
    let (images, volumes) = (plan.image.is_some(), has_volumes(plan) || plan.network == Network::Bridge);
    move |can| can.images == images && (can.volumes || !volumes)
}

fn has_volumes(plan: &Plan) -> bool {
    plan.mounts.iter().any(|mount| matches!(mount, Mount::Volume { .. }))
}

/// The engine asked for, or the first whose answer is not a refusal. None is ever asked for less than another.
fn choose(
    choice: &EngineChoice,
    fits: impl Fn(&Abilities) -> bool,
    ask: impl Fn(EngineRef) -> Result<Report, EngineError>,
) -> Result<(EngineRef, Report), EngineError> {
    let only = |engine: EngineRef| ask(engine).map(|report| (engine, report));
    match choice {
        EngineChoice::Named(name) => only(registry::get(name)?),
        EngineChoice::Auto => {
            let local = || registry::all().into_iter().filter(|engine| engine.abilities().local);
            let mut fitting: Vec<_> = local().filter(|engine| fits(&engine.abilities())).collect();
            // Then each says what it lacks.
            if fitting.is_empty() {
                fitting = local().collect();
            }
            let mut refusals = Vec::new();
            for engine in fitting {
                match only(engine) {
                    Ok(chosen) => return Ok(chosen),
                    Err(refusal) => refusals.push(refusal),
                }
            }
            // Where there was no choice, it is this one's own refusal.
            Err(if refusals.len() == 1 { refusals.remove(0) } else { EngineError::NoEngine(refusals) })
        }
    }
}

/// What the engine answers for each promise of the plan; an error when one that is not optional cannot be kept.
fn promise(engine: EngineRef, plan: &Plan, facts: &Facts) -> Result<Report, EngineError> {
    refuse_unenforced(engine.name(), plan)?;
    refuse_unable(engine, plan)?;
    engine.promise(plan, facts)
}

/// What no engine does yet. A plan that has it is refused whatever its policy calls optional, and on every way to a start:
/// the sandbox would have more than its policy allows, or less than it needs.
pub(crate) fn refuse_unenforced(engine: &'static str, plan: &Plan) -> Result<(), EngineError> {
    if let Network::Allowlist(_) = plan.network {
        let (guarantee, reason) = (Guarantee::NetByName, NO_GATEWAY.to_owned());
        return Err(EngineError::Unmet { engine, guarantee, reason, cures: gateway_cures() });
    }
    // Each call that its filter reports waits until the report is read, and nothing would read it here.
    if plan.trace_denials && plan.runs.is_guest() {
        let (what, cures) = ("way to trace denials in a session", vec![Cure::set("trace_denials", "false")]);
        return Err(EngineError::Cannot { engine, what, cures });
    }
    match plan.devices.first() {
        Some(device) => Err(EngineError::Device { engine, device: device.path.clone() }),
        None => Ok(()),
    }
}

/// Why nothing answers for `net.by-name`.
const NO_GATEWAY: &str = "there is no gateway yet that could enforce an allow list";

fn gateway_cures() -> Vec<Cure> {
    vec![Cure::set("network", "none"), Cure::set("network", "open")]
}

/// The answer to `net.by-name`.
pub(crate) fn no_gateway() -> Verdict {
    missing(NO_GATEWAY, gateway_cures())
}

/// The answer to `kernel.second-wall`, where Landlock is put up. `files_open`: why it leaves files to the mounts.
pub fn second_wall(files_open: Option<&str>) -> Verdict {
    let landlock::Abi(abi) = landlock::Abi::of_this_kernel();
    let scopes = if abi >= 6 { ", scopes signals and abstract sockets" } else { "" };
    match (abi, files_open) {
        (0, _) => missing(
            "this kernel has no Landlock",
            [Cure::host("boot with Landlock on (lsm=landlock,…)"), Cure::optional(Guarantee::KernelSecondWall)],
        ),
        (1, _) => missing(
            "Landlock ABI 1 would refuse every rename between directories",
            [Cure::host("use Linux 5.19 or later"), Cure::optional(Guarantee::KernelSecondWall)],
        ),
        (_, Some(why)) => weakened(format!("Landlock ABI {abi}{scopes}; {why}")),
        (_, None) => enforced(format!("Landlock ABI {abi} confines writes{scopes}")),
    }
}

/// What the plan needs and the engine says that it does not have.
fn refuse_unable(engine: EngineRef, plan: &Plan) -> Result<(), EngineError> {
    let can = engine.abilities();
    match plan {
        Plan { image: Some(_), .. } if !can.images => Err(EngineError::unable(engine.name(), "images")),
        Plan { image: None, .. } if can.images => {
            let what = "root but an image's";
            Err(EngineError::Cannot { engine: engine.name(), what, cures: vec![Cure::another("image")] })
        }
        Plan { network: Network::Bridge, .. } if !can.volumes => {
            Err(EngineError::unable(engine.name(), "bridge network"))
        }
        _ if has_volumes(plan) && !can.volumes => Err(EngineError::unable(engine.name(), "volumes")),
        _ => Ok(()),
    }
}

/// The name that a step mounts on.
fn mounts_on(mount: &Mount) -> Option<&Path> {
    match mount {
        Mount::Dir { .. } | Mount::File { .. } | Mount::Symlink { .. } | Mount::Seal { .. } => None,
        mount => Some(mount.target()),
    }
}

/// The symlink that a step would mount on, where an earlier one shows it. Whoever mounts by name follows it, so that the
/// link itself would stay open to be replaced.
fn symlink_in_bind<'a>(earlier: &[Mount], mount: &'a Mount) -> Option<&'a Path> {
    let target = mounts_on(mount)?;
    // What the box sees at the target's place so far: the last mount above it decides.
    let above = earlier.iter().filter(|m| mounts_on(m).is_some_and(|t| target.starts_with(t)));
    let Some(Mount::Bind { source, target: at, .. }) = above.max_by_key(|m| mounts_on(m).map(|t| t.as_os_str().len()))
    else {
        return None;
    };
    let below = target.strip_prefix(at).ok().filter(|below| !below.as_os_str().is_empty())?;
    std::fs::symlink_metadata(source.join(below)).is_ok_and(|m| m.is_symlink()).then_some(target)
}

/// The compiled form of a plan, for people: nothing is started.
pub fn describe(engine: EngineRef, plan: &Plan, facts: &Facts) -> Result<String, EngineError> {
    let devices: String =
        plan.devices.iter().map(|device| format!("let in the device `{}`\n", device.path.display())).collect();
    Ok(devices + &engine.describe(plan, facts)?)
}

/// Starts a sandbox for one command, on an engine with that ability, as its report says.
pub fn start(
    engine: EngineRef,
    plan: &Plan,
    report: &Report,
    facts: &Facts,
    stdio: StdioSpec,
) -> Result<Running, EngineError> {
    refuse_unkept(engine, plan, report)?;
    engine.start(plan, facts, stdio)
}

/// As [`start`], until the sandbox is built and its view was verified. When names of this host changed meanwhile, it is done
/// once more, with what `anew` plans and promises.
pub fn start_verified<E: From<EngineError>>(
    engine: EngineRef,
    plan: &Plan,
    report: &Report,
    facts: &Facts,
    stdio: StdioSpec,
    anew: impl FnOnce() -> Result<(Plan, Report), E>,
) -> Result<Running, E> {
    let copy = stdio.try_clone().map_err(EngineError::Stdio)?;
    match start(engine, plan, report, facts, stdio).and_then(Running::verified) {
        Err(error) if error.is_outdated() => {}
        result => return Ok(result?),
    }
    let (plan, report) = anew()?;
    Ok(start(engine, &plan, &report, facts, copy)?.verified()?)
}

/// Starts a sandbox with a guest in it as its report says, for a plan made by
/// [`plan_guest`](ringfence_policy::plan::plan_guest).
pub fn start_guest(
    engine: EngineRef,
    plan: &mut Plan,
    report: &Report,
    facts: &Facts,
    about: About<'_>,
) -> Result<(Box<dyn GuestSandbox>, OwnedFd), EngineError> {
    refuse_unkept(engine, plan, report)?;
    match engine.start_guest(plan, facts, about) {
        // Names of this host changed while it was made: a second look can do.
        Err(error) if error.is_outdated() => engine.start_guest(plan, facts, about),
        result => result,
    }
}

/// What a start would not keep of the plan, or of the report that was made of it. Only engines that start commands
/// themselves make cgroups.
fn refuse_unkept(engine: EngineRef, plan: &Plan, report: &Report) -> Result<(), EngineError> {
    refuse_unenforced(engine.name(), plan)?;
    if engine.abilities().commands {
        limits::refuse_fallbacks(report, Home::take)?;
    }
    Ok(())
}

/// What helps where a symlink is in the way of an engine that mounts by name.
fn link_cures() -> [Cure; 2] {
    [Cure::host("replace the link by what it leads to"), Cure::another("engine")]
}

/// Why the kernel's switches keep user namespaces from a process, and what helps. `ordinary`: it is not root's.
fn namespaces_closed(ordinary: bool) -> Option<(&'static str, Vec<Cure>)> {
    let is_off = |name| sysctl(name).as_deref() == Some("0");
    if is_off("user.max_user_namespaces") {
        let outside = Cure::SetOutside { key: "nesting".into(), value: "true".into() };
        let here = Cure::host("outside of any sandbox: sysctl -w user.max_user_namespaces=15000");
        return Some(("user namespaces are switched off (user.max_user_namespaces = 0)", vec![outside, here]));
    }
    let cure = || vec![Cure::host("sysctl -w kernel.unprivileged_userns_clone=1")];
    (ordinary && is_off("kernel.unprivileged_userns_clone"))
        .then(|| ("user namespaces are reserved to root (kernel.unprivileged_userns_clone = 0)", cure()))
}

/// Tells two boxes of one process apart.
fn nonce() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

fn c_string(text: &OsStr) -> Result<CString, EngineError> {
    CString::new(text.as_bytes()).map_err(|_| EngineError::Nul(text.to_owned()))
}

/// What process 1 executes. The guest is an open file, for which any name will do.
fn program(plan: &Plan) -> Cow<'_, plan::Command> {
    match &plan.runs {
        Runs::Command(command) => Cow::Borrowed(command),
        Runs::Guest => Cow::Owned(plan::Command { program: "guest".into(), args: vec!["guest".into()] }),
    }
}

/// What the filter lets the command do with sockets.
fn sockets(plan: &Plan) -> Sockets {
    if plan.handed_socket { Sockets::Handed } else { Sockets::All }
}

fn c_path(path: &Path) -> Result<CString, EngineError> {
    c_string(path.as_os_str())
}

fn pointers<'a>(strings: impl IntoIterator<Item = &'a OsStr>) -> Result<PointerList, EngineError> {
    Ok(PointerList::new(strings.into_iter().map(c_string).collect::<Result<_, _>>()?))
}

/// `NAME=value` strings for `execve`.
fn env_strings(env: &[(OsString, OsString)]) -> Result<Vec<CString>, EngineError> {
    let join = |(name, value): &(OsString, OsString)| {
        let mut entry = name.clone();
        entry.push("=");
        entry.push(value);
        c_string(&entry)
    };
    env.iter().map(join).collect()
}

#[cfg(test)]
mod tests {
    use ringfence_policy::policy::{Device, NetworkRules, Policy};

    use super::*;

    const NOWHERE: &str = "/nonexistent";

    /// Standard descriptors that lead nowhere.
    fn nothing() -> StdioSpec {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        StdioSpec::Files([null(), null(), null()])
    }

    fn report(engine: EngineRef) -> Report {
        Report { engine: engine.name().into(), guarantees: Vec::new(), devices: Vec::new() }
    }

    fn refusal(engine: EngineRef) -> EngineError {
        let (guarantee, reason) = (Guarantee::ProcIsolated, "not here".to_owned());
        EngineError::Unmet { engine: engine.name(), guarantee, reason, cures: vec![Cure::host("another host")] }
    }

    /// Chooses where these engines can honour the policy.
    fn chosen(choice: &EngineChoice, able: &[EngineRef]) -> Result<EngineRef, EngineError> {
        let ask = |engine: EngineRef| if able.contains(&engine) { Ok(report(engine)) } else { Err(refusal(engine)) };
        let (engine, report) = choose(choice, |_| true, ask)?;
        assert_eq!(report.engine, engine.name());
        Ok(engine)
    }

    const NATIVE: EngineRef = native::ENGINE;
    const BUBBLEWRAP: EngineRef = bubblewrap::ENGINE;

    fn about() -> About<'static> {
        let nowhere = Path::new(NOWHERE);
        About { session: "s", name: None, profile: "skill", state: nowhere, keys: nowhere }
    }

    #[test]
    fn a_device_has_a_line_and_is_refused() {
        let facts = crate::facts::gather().unwrap();
        let with = |devices: &[&str]| {
            plan(|policy| {
                policy.devices = devices.iter().map(|path| Device { path: path.into() }).collect();
            })
        };
        let (without, two) = (with(&[]), with(&["/dev/kfd", "/dev/dri"]));
        let text = describe(NATIVE, &two, &facts).unwrap();
        assert!(text.starts_with("let in the device `/dev/kfd`\nlet in the device `/dev/dri`\n"), "{text}");
        assert!(text.ends_with(&describe(NATIVE, &without, &facts).unwrap()), "{text}");
        let reported = |plan| crate::report::answer("any", plan, |_| crate::report::enforced("it")).unwrap().devices;
        assert_eq!((reported(&two), reported(&without)), (vec!["/dev/kfd".to_owned(), "/dev/dri".to_owned()], vec![]));
        let refused = |error: EngineError| {
            let message = error.to_string();
            assert!(message.ends_with("cannot let in the device `/dev/kfd`"), "{message}");
        };
        for engine in all() {
            assert!(refuse_unenforced(engine.name(), &without).is_ok());
            refused(select(&engine.into(), &two, &facts).unwrap_err());
        }
        for engine in [NATIVE, BUBBLEWRAP] {
            refused(start(engine, &two, &report(engine), &facts, nothing()).unwrap_err());
        }
        for engine in all() {
            refused(start_guest(engine, &mut two.clone(), &report(engine), &facts, about()).map(drop).unwrap_err());
        }
    }

    /// A plan of the skill profile for a directory that is not there: nothing is started.
    fn plan(change: impl FnOnce(&mut Policy)) -> Plan {
        let mut flags = ringfence_policy::Layer::flags();
        flags.profile("skill");
        let inputs = ringfence_policy::Inputs::new("/no-home/project".into(), "/no-home".into(), flags);
        let mut policy = ringfence_policy::resolve(inputs).unwrap().policy;
        change(&mut policy);
        ringfence_policy::plan::plan(&policy, &Facts::default(), &["/bin/true".into()]).unwrap()
    }

    #[test]
    fn an_allow_list_is_refused_by_name_even_where_it_is_optional() {
        let (open, facts) = (plan(|policy| policy.network = Network::Open), Facts::default());
        let listed = plan(|policy| {
            let allow = ["example.com".to_owned()].into();
            policy.network = Network::Allowlist(NetworkRules { allow, ..NetworkRules::default() });
            policy.optional.insert(Guarantee::NetByName);
        });
        let by_name = |error: EngineError| {
            assert!(matches!(error, EngineError::Unmet { guarantee: Guarantee::NetByName, .. }), "{error}");
            assert!(error.to_string().contains("net.by-name"), "{error}");
        };
        for engine in all() {
            assert!(refuse_unenforced(engine.name(), &open).is_ok());
            by_name(select(&engine.into(), &listed, &facts).unwrap_err());
        }
        for engine in [NATIVE, BUBBLEWRAP] {
            by_name(start(engine, &listed, &report(engine), &facts, nothing()).unwrap_err());
        }
        for engine in all() {
            by_name(start_guest(engine, &mut listed.clone(), &report(engine), &facts, about()).map(drop).unwrap_err());
        }
    }

    /// Whichever process made the report: what it says of a cgroup is not kept by fallbacks.
    #[test]
    fn a_limit_that_is_enforced_has_a_cgroup() {
        use ringfence_linux::limits::LimitError;

        use crate::report::{Answer, State};
        let none = || Home::None("it is gone".to_owned());
        let group = || Home::V2("/nowhere".into());
        let said = |id, state| {
            let by = String::new();
            Report { guarantees: vec![Answer { id, state, by }], ..report(NATIVE) }
        };
        for id in [Guarantee::LimitMemory, Guarantee::LimitCpu, Guarantee::LimitProcesses] {
            let refused = limits::refuse_fallbacks(&said(id, State::Enforced), none);
            assert!(matches!(&refused, Err(LimitError::NotTaken(why)) if why == "it is gone"), "{refused:?}");
            assert!(limits::refuse_fallbacks(&said(id, State::Enforced), group).is_ok());
            for honest in [State::Weakened, State::Missing, State::NotAsked] {
                assert!(limits::refuse_fallbacks(&said(id, honest), none).is_ok());
            }
        }
        assert!(limits::refuse_fallbacks(&said(Guarantee::LimitFiles, State::Enforced), none).is_ok());
        // Every start asks.
        let (promised, plain) = (said(Guarantee::LimitMemory, State::Enforced), plan(|_| ()));
        let there = !matches!(Home::take(), Home::None(_));
        for engine in [NATIVE, BUBBLEWRAP] {
            assert!(refuse_unkept(engine, &plain, &report(engine)).is_ok());
            let asked = refuse_unkept(engine, &plain, &promised);
            assert!(if there { asked.is_ok() } else { matches!(asked, Err(EngineError::Limits(_))) }, "{asked:?}");
            if !there {
                let guest = start_guest(engine, &mut plain.clone(), &promised, &Facts::default(), about());
                assert!(matches!(guest.map(drop), Err(EngineError::Limits(LimitError::NotTaken(_)))));
                let command = start(engine, &plain, &promised, &Facts::default(), nothing());
                assert!(matches!(command.map(drop), Err(EngineError::Limits(LimitError::NotTaken(_)))));
            }
        }
    }

    #[test]
    fn denials_are_traced_for_commands_alone() {
        let mut traced = plan(|policy| policy.trace_denials = true);
        assert!(refuse_unenforced("any", &traced).is_ok());
        traced.runs = Runs::Guest;
        for engine in all() {
            let refused =
                start_guest(engine, &mut traced, &report(engine), &Facts::default(), about()).map(drop).unwrap_err();
            assert!(refused.to_string().contains("trace denials in a session"), "{refused}");
        }
        traced.trace_denials = false;
        assert!(refuse_unenforced("any", &traced).is_ok());
    }

    #[test]
    fn the_first_engine_that_can_honour_the_policy() {
        assert_eq!(chosen(&EngineChoice::Auto, &[NATIVE, BUBBLEWRAP]).unwrap(), NATIVE);
        assert_eq!(chosen(&EngineChoice::Auto, &[BUBBLEWRAP]).unwrap(), BUBBLEWRAP);
        assert_eq!(chosen(&BUBBLEWRAP.into(), &[NATIVE, BUBBLEWRAP]).unwrap(), BUBBLEWRAP);
    }

    #[test]
    fn never_another_than_the_one_asked_for_and_never_a_weaker_one() {
        let only = chosen(&NATIVE.into(), &[BUBBLEWRAP]).unwrap_err();
        assert!(matches!(only, EngineError::Unmet { engine: "native", .. }), "{only}");
        match chosen(&EngineChoice::Auto, &[]).unwrap_err() {
            EngineError::NoEngine(refusals) => {
                let engines: Vec<String> = refusals.iter().map(ToString::to_string).collect();
                assert_eq!(engines.len(), all().len());
                assert!(engines[0].contains("native") && engines[1].contains("bubblewrap"), "{engines:?}");
            }
            other => panic!("{other}"),
        }
        let named = |name: &'static str| select(&EngineChoice::from_name(name), &plan(|_| {}), &Facts::default());
        assert!(matches!(named("kubernetes").unwrap_err(), EngineError::NotThere(_)));
        assert!(matches!(named("no-such").unwrap_err(), EngineError::Unknown(_)));
    }

    #[test]
    fn what_went_wrong_crosses_boundaries_whole() {
        let refused = refusal(BUBBLEWRAP);
        let failure = refused.failure();
        assert_eq!((failure.engine.as_deref(), failure.guarantee), (Some("bubblewrap"), Some(Guarantee::ProcIsolated)));
        assert_eq!((&failure.message, failure.cures.len()), (&refused.to_string(), 1));
        let text = serde_json::to_string(&failure).unwrap();
        assert_eq!(serde_json::from_str::<ringfence_policy::Failure>(&text).unwrap(), failure);
    }
}
