//! What a case is: an act that works outside, an allowed one that works inside, a forbidden one that does not; and
//! stories, for what takes more than one act to tell.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use containment::sandbox::How;
use containment::{Place, Ran, Refusal, Sandbox, Scene, bare_kernel, host, program};
use ringfence::policy::Guarantee;
use ringfence::{Ended, EngineError, EngineRef, State};

/// Where cases run.
#[derive(Debug, Clone)]
pub struct Stage {
    pub engine: EngineRef,
    pub how: How,
    pub probe: PathBuf,
    pub launcher: PathBuf,
}

impl Stage {
    pub fn scene(&self, place: Place) -> Scene {
        let mut scene = Scene::new(place, &self.probe);
        scene.policy.network(false);
        scene
    }

    /// Gives the files of a scene to whom the box runs as: Docker maps no ids, and runs nobody as root.
    pub fn hand_over(&self, scene: &Scene) {
        if self.engine == ringfence::engines::docker::ENGINE {
            scene.hand_over();
        }
    }

    pub fn sandbox<'a>(&'a self, scene: &'a Scene) -> Sandbox<'a> {
        Sandbox { engine: self.engine, how: self.how, scene, launcher: &self.launcher }
    }

    /// Runs acts of the probe in a box.
    pub fn inside(&self, scene: &Scene, acts: &str) -> Result<Ran, String> {
        self.sandbox(scene).probe(acts).map_err(|refusal| format!("no box for `{acts}`: {refusal}"))
    }

    /// What the probe answers in a box, a line for each act.
    pub fn answers(&self, scene: &Scene, acts: &str) -> Result<Vec<String>, String> {
        let ran = self.inside(scene, acts)?;
        match ran.stdout.lines().next() {
            Some(_) => Ok(ran.stdout.lines().map(str::to_owned).collect()),
            None if ran.outcome.ended == Ended::Signaled(libc::SIGSYS) => Ok(vec!["SIGSYS".to_owned()]),
            None => Err(format!("`{acts}` said nothing: {:?} {}", ran.outcome, ran.stderr)),
        }
    }

    /// What the probe answers on the host.
    pub fn outside(&self, scene: &Scene, acts: &str) -> Result<Vec<String>, String> {
        let output = Command::new(&self.probe)
            .args(scene.act(acts))
            .current_dir(&scene.project)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("cannot start the probe outside: {e}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }
}

/// What a case can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// Started by root, who can prepare it.
    Root,
    /// The same, and a kernel with overlays.
    RootOverlay,
    /// Started by an ordinary user.
    User,
    Program(&'static str),
    Docker,
    /// A kernel whose Landlock is at least this old.
    Landlock(i32),
    /// Control groups that this user may use.
    Groups,
}

pub enum Met {
    Yes,
    /// Not a case of this user's.
    NotHere,
    /// Something that `./test` sets up is missing.
    No(String),
    /// This kernel cannot.
    Cannot(String),
}

impl Needs {
    pub fn met(self) -> Met {
        let only = |holds: bool| if holds { Met::Yes } else { Met::NotHere };
        match self {
            Needs::Nothing => Met::Yes,
            Needs::Root => only(host::is_root()),
            Needs::RootOverlay if host::is_root() => match std::fs::read_to_string("/proc/filesystems") {
                Ok(known) if known.lines().any(|line| line.ends_with("\toverlay")) => Met::Yes,
                _ => Met::Cannot("this kernel has no overlays".to_owned()),
            },
            Needs::RootOverlay => Met::NotHere,
            Needs::User => only(!host::is_root()),
            Needs::Program(name) if program(name).is_some() => Met::Yes,
            Needs::Program(name) => Met::No(format!("`{name}` is not installed")),
            Needs::Docker if bare_kernel() => Met::No("there is no Docker in this machine".to_owned()),
            Needs::Docker => match Command::new("docker").args(["version"]).output() {
                Ok(output) if output.status.success() => Met::Yes,
                Ok(output) => Met::No(String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ")),
                Err(e) => Met::No(format!("cannot start `docker`: {e}")),
            },
            Needs::Landlock(least) => match landlock() {
                abi if abi >= least => Met::Yes,
                abi => Met::Cannot(format!("this kernel has Landlock ABI {abi}, and the case needs {least}")),
            },
            Needs::Groups => match containment_groups() {
                Ok(()) => Met::Yes,
                Err(reason) => Met::Cannot(reason),
            },
        }
    }
}

pub fn landlock() -> i32 {
    // SAFETY: with the version flag the kernel takes a null attribute of size 0.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, 1u32) };
    version.max(0) as i32
}

/// Whether limits are kept by control groups here.
fn containment_groups() -> Result<(), String> {
    if host::is_root() || bare_kernel() { Ok(()) } else { Err("control groups of this host belong to root".to_owned()) }
}

/// What the forbidden act does outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// It works.
    Works,
    /// It works for root, and takes privileges that a user does not have outside either.
    WorksForRoot,
    /// It depends on the kernel, or cannot be tried without harm.
    Untried,
}

/// One act, three proofs.
#[derive(Debug)]
pub struct Case {
    pub guarantee: Guarantee,
    pub id: &'static str,
    pub place: Place,
    pub needs: Needs,
    pub given: fn(&mut Scene),
    /// What may be done, inside.
    pub works: &'static str,
    /// What may not be done, and works outside.
    pub fails: &'static str,
    /// What the probe may say to that, inside.
    pub answers: &'static [&'static str],
    pub outside: Outside,
    /// The forbidden act makes something in the project on its way.
    pub untidy: bool,
    /// It also counts that the engine says it cannot: it refuses, or the report calls the guarantee weakened.
    pub or_reported: bool,
    /// Nothing else may run beside it.
    pub alone: bool,
    /// On this engine only.
    pub only: Option<EngineRef>,
    /// What may be done on Docker instead, and what the forbidden act answers there.
    pub on_docker: Option<(&'static str, &'static [&'static str])>,
}

/// A case with nothing special about it: allowed act, forbidden act, expected answers.
pub const fn act(
    guarantee: Guarantee,
    id: &'static str,
    works: &'static str,
    fails: &'static str,
    answers: &'static [&'static str],
) -> Case {
    Case {
        guarantee,
        id,
        place: Place::Home,
        needs: Needs::Nothing,
        given: |_| {},
        works,
        fails,
        answers,
        outside: Outside::Works,
        untidy: false,
        or_reported: false,
        alone: false,
        only: None,
        on_docker: None,
    }
}

impl Case {
    pub const fn at(mut self, place: Place) -> Case {
        self.place = place;
        self
    }

    pub const fn needs(mut self, needs: Needs) -> Case {
        self.needs = needs;
        self
    }

    pub const fn given(mut self, given: fn(&mut Scene)) -> Case {
        self.given = given;
        self
    }

    pub const fn outside(mut self, outside: Outside) -> Case {
        self.outside = outside;
        self
    }

    pub const fn answers(mut self, answers: &'static [&'static str]) -> Case {
        self.answers = answers;
        self
    }

    pub const fn or_reported(mut self) -> Case {
        self.or_reported = true;
        self
    }

    pub const fn alone(mut self) -> Case {
        self.alone = true;
        self
    }

    pub const fn only(mut self, engine: EngineRef) -> Case {
        self.only = Some(engine);
        self
    }

    pub const fn on_docker(mut self, works: &'static str, answers: &'static [&'static str]) -> Case {
        self.on_docker = Some((works, answers));
        self
    }

    pub const fn untidy(mut self) -> Case {
        self.untidy = true;
        self
    }

    pub const fn works(mut self, works: &'static str) -> Case {
        self.works = works;
        self
    }

    pub fn name(&self) -> String {
        format!("{}/{}", self.guarantee, self.id)
    }

    fn scene(&self, stage: &Stage) -> Scene {
        let mut scene = stage.scene(self.place);
        (self.given)(&mut scene);
        stage.hand_over(&scene);
        scene
    }

    /// Whether the engine itself says that it does not keep this promise.
    fn reported(&self, stage: &Stage) -> bool {
        match stage.sandbox(&self.scene(stage)).probe("call getpid") {
            // Docker mounts less than a plan can ask for, and may refuse for another promise: there is no box either way.
            Err(Refusal::Engine(EngineError::Unmet { engine: "docker", .. })) => true,
            Err(Refusal::Engine(EngineError::Unmet { guarantee, .. })) => guarantee == self.guarantee,
            Err(_) => false,
            Ok(ran) => {
                let answer = ran.report.guarantees.iter().find(|a| a.id == self.guarantee);
                answer.is_some_and(|a| matches!(a.state, State::Weakened | State::Missing))
            }
        }
    }

    /// Whether the forbidden act takes all of something that the host needs as well.
    fn uses_up(&self) -> bool {
        use Guarantee::{FsDiskBounded, LimitFiles, LimitProcesses};
        matches!(self.guarantee, FsDiskBounded | LimitFiles | LimitProcesses)
    }

    pub fn prove(&self, stage: &Stage) -> Result<(), String> {
        let (_alone, _shared) = lock(self.alone);
        if self.or_reported && self.reported(stage) {
            return Ok(());
        }
        let (works, answers) = match self.on_docker {
            Some(there) if stage.engine == ringfence::engines::docker::ENGINE => there,
            _ => (self.works, self.answers),
        };
        let expected = |line: &str| answers.contains(&line);
        let last = |lines: Vec<String>| lines.last().cloned().unwrap_or_default();

        let tried = match self.outside {
            Outside::Works => true,
            Outside::WorksForRoot => host::is_root(),
            Outside::Untried => false,
        };
        if tried {
            let scene = self.scene(stage);
            let mut line = last(stage.outside(&scene, self.fails)?);
            // A program that was just written is busy while a case beside this one forks: the copy has its descriptor.
            for _ in 0..20 {
                if line != "errno 26" {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(50));
                line = last(stage.outside(&scene, self.fails)?);
            }
            if !line.starts_with("ok") || expected(&line) {
                return Err(format!("`{}` must work outside: {line}", self.fails));
            }
        }

        let scene = self.scene(stage);
        let before = scene.snapshot();
        for line in stage.answers(&scene, works)? {
            if !line.starts_with("ok") {
                return Err(format!("`{works}` must work inside: {line}"));
            }
        }
        let changes = scene.changed_since(&before, Some(&scene.project));
        if !changes.is_empty() {
            return Err(format!("`{works}` left its place: {changes}"));
        }

        let scene = self.scene(stage);
        let before = scene.snapshot();
        let line = last(stage.answers(&scene, self.fails)?);
        if !expected(&line) {
            return Err(format!("`{}` must fail inside with {answers:?}: {line}", self.fails));
        }
        if self.uses_up() {
            host::healthy()?;
        }
        let changes = scene.changed_since(&before, self.untidy.then_some(scene.project.as_path()));
        if changes.is_empty() { Ok(()) } else { Err(format!("`{}` changed the host: {changes}", self.fails)) }
    }
}

/// Taken whole by stories that count what is on the host, shared by everything else.
static ALONE: RwLock<()> = RwLock::new(());

type Locks = (Option<RwLockWriteGuard<'static, ()>>, Option<RwLockReadGuard<'static, ()>>);

fn lock(alone: bool) -> Locks {
    match alone {
        true => (Some(ALONE.write().unwrap_or_else(PoisonError::into_inner)), None),
        false => (None, Some(ALONE.read().unwrap_or_else(PoisonError::into_inner))),
    }
}

/// What takes more than one act to tell.
#[derive(Debug)]
pub struct Story {
    pub guarantee: Guarantee,
    pub id: &'static str,
    pub needs: Needs,
    /// Nothing else may run beside it.
    pub alone: bool,
    /// On this engine only.
    pub only: Option<EngineRef>,
    pub tell: fn(&Stage) -> Result<(), String>,
}

pub const fn story(guarantee: Guarantee, id: &'static str, tell: fn(&Stage) -> Result<(), String>) -> Story {
    Story { guarantee, id, needs: Needs::Nothing, alone: false, only: None, tell }
}

impl Story {
    pub const fn needs(mut self, needs: Needs) -> Story {
        self.needs = needs;
        self
    }

    pub const fn only(mut self, engine: EngineRef) -> Story {
        self.only = Some(engine);
        self
    }

    pub const fn alone(mut self) -> Story {
        self.alone = true;
        self
    }

    pub fn name(&self) -> String {
        format!("{}/{}", self.guarantee, self.id)
    }

    pub fn prove(&self, stage: &Stage) -> Result<(), String> {
        let (_alone, _shared) = lock(self.alone);
        (self.tell)(stage)
    }
}

/// An error unless it holds.
pub fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// An error unless both are equal.
pub fn same<A: PartialEq<B> + std::fmt::Debug, B: std::fmt::Debug>(what: &str, is: A, should: B) -> Result<(), String> {
    if is == should { Ok(()) } else { Err(format!("{what} is {is:?} and should be {should:?}")) }
}
