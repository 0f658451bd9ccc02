//! What the owner allows: the directories, the policy for each, and the skills. Asked of the host each time, since flags'
//! files may have changed meanwhile.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfence::code::{Code, CodeResult, Pools};
use ringfence::host::{Archive, Request};
use ringfence::policy::limits::Limits;
use ringfence::policy::plan::Stub;
use ringfence::policy::policy::{Network, Workspace};
use ringfence::policy::rules::{Access, FileRule, LayerKind, Missing, Origin, Pattern};
use ringfence::policy::{Failure, Policy, Resolved};
use ringfence::records::{Place, SkillRun};
use ringfence::sandbox::{Note, plain};
use ringfence::session::{Info, Sessions};
use ringfence::skills::{Registry, Skill, SkillError};
use ringfence::{Host, HostError, Notice, Report, Sandbox, SandboxError};

use super::client_roots::Places;

/// The profile of skills.
const SKILL: &str = "skill";

/// What the owner allows in one directory.
#[derive(Debug, Clone)]
pub struct Allowed {
    pub sandbox: Sandbox,
    /// How each guarantee is enforced.
    pub report: Report,
    /// Names that stand in for what is protected and missing.
    pub stubs: Vec<Stub>,
}

/// Why something is not done, for people and models, and who can do something about it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub message: String,
    pub cure: Cure,
    /// Where it is about the sandbox itself.
    pub failure: Option<Box<Failure>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// Something is wrong on the owner's side.
    TellOwner,
    /// The policy says no.
    AskOwner,
    /// The arguments were wrong.
    Arguments,
}

/// What a box can do to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// It can change something that stays.
    pub writes: bool,
    pub network: bool,
}

/// Who started the server, and on which terms.
#[derive(Debug)]
pub struct Owner {
    host: Host,
    request: Request,
    pub sessions: Sessions,
    /// Canonical directories that the client may work in; the first is used when it does not choose. Not empty.
    pub roots: Vec<PathBuf>,
    /// The name of a session that is kept when the client goes.
    pub keep: Option<String>,
    /// Where skills are.
    archive: OnceLock<Result<Archive, String>>,
    /// That they cannot be read was said already.
    said: AtomicBool,
    /// Interpreters that wait for code and skills.
    pools: Pools,
}

impl Owner {
    /// The owner asks the same of each of these directories, which are canonical and at least one.
    pub fn new(host: Host, request: Request, roots: Vec<PathBuf>, keep: Option<String>) -> Result<Owner, HostError> {
        let sessions = host.sessions()?;
        let (archive, said, pools) = (OnceLock::new(), AtomicBool::new(false), Pools::default());
        Ok(Owner { host, request, sessions, roots, keep, archive, said, pools })
    }

    /// Before something is started.
    pub fn prepare(&self) -> Result<(), Refusal> {
        Ok(self.host.prepare().map_err(SandboxError::from)?)
    }

    /// Tells the owner, apart from what the client is told.
    pub fn notice(&self, notice: Notice<'_>) {
        self.host.notice(notice);
    }

    /// The policy for these directories. It is that of the owner's roots, of which nothing but them is given.
    pub fn allowed(&self, places: &Places) -> Result<Allowed, Refusal> {
        let sandbox = self.situated(places)?;
        let planned = sandbox.plan(&["/bin/sh".into()])?;
        Ok(Allowed { sandbox, report: planned.report, stubs: planned.plan.stubs })
    }

    /// Runs code in a box of its own under the policy for these directories, and records it. It has so much time, and is
    /// cancelled when the descriptor becomes readable.
    pub fn run_code(
        &self,
        code: &Code,
        places: &Places,
        timeout: Option<Duration>,
        cancel: BorrowedFd<'_>,
    ) -> Result<CodeResult, Refusal> {
        let command: Vec<OsString> = vec!["code".into(), code.language.name.into(), "-".into()];
        let mut sandbox = self.recorded(&command, places, || self.situated(places))?;
        if timeout.is_some() {
            sandbox.change(|resolved, _| resolved.policy.limits.timeout = timeout)?;
        }
        self.run(&sandbox, code, &command, None, cancel)
    }

    /// Begins the record of code that runs in a session.
    pub fn note(&self, session: &Info, command: &[OsString]) -> Result<Note, Refusal> {
        Ok(self.host.note(session, command)?)
    }

    /// The latest version of each skill, also of those that are disabled.
    pub fn skills(&self) -> Result<Vec<Skill>, Refusal> {
        self.read_skills().inspect_err(|refusal| {
            if !self.said.swap(true, Ordering::Relaxed) {
                self.host.notice(Notice::NoSkills(&refusal.message));
            }
        })
    }

    /// Another value when skills may have changed; costs next to nothing. `None` when that cannot be told.
    pub fn skills_mark(&self) -> Option<u64> {
        let Place::File(path) = &self.archive().ok()?.place else { return None };
        let mut mark = DefaultHasher::new();
        // SQLite writes to the one, and to the other until that is folded in.
        for path in [path.clone(), path.with_extension("db-wal")] {
            let data = std::fs::metadata(path).ok();
            data.map(|data| (data.ino(), data.len(), data.mtime(), data.mtime_nsec())).hash(&mut mark);
        }
        Some(mark.finish())
    }

    /// What skills can do to the world in these directories.
    pub fn skills_reach(&self, places: &Places) -> Result<Reach, Refusal> {
        let sandbox = self.of_skills(places)?;
        let policy = sandbox.policy();
        let writes = policy.docker || policy.rules.iter().any(|rule| rule.access == Access::Rw);
        Ok(Reach { writes, network: policy.network != Network::None })
    }

    /// Runs a skill in a box of its own, which has no more than the policy for these directories allows, and records it.
    /// What it requires is installed first where it is not there yet, in another box, which has the network and nothing else.
    pub fn run_skill(
        &self,
        skill: &Skill,
        inputs: serde_json::Value,
        places: &Places,
        cancel: BorrowedFd<'_>,
    ) -> Result<CodeResult, Refusal> {
        let command: Vec<OsString> = vec!["skill".into(), "run".into(), skill.name.clone().into()];
        let sandbox = self.recorded(&command, places, || self.of_skills(places))?;
        let run_of = skill.run();
        let (verdict, limit) = (sandbox.resolved().service.skill_verdict, sandbox.policy().limits.timeout);
        let code = match skill.code(inputs, verdict, limit, Some(cancel)) {
            Ok(code) => code,
            Err(SkillError::NotChecked { result, .. }) => return Ok(sandbox.not_begun(*result, &command, &run_of)),
            Err(error) => {
                let cure = match &error {
                    SkillError::Inputs { .. } => Cure::Arguments,
                    SkillError::Verdict { .. } | SkillError::Disabled { .. } => Cure::AskOwner,
                    _ => Cure::TellOwner,
                };
                let message = plain(&error.to_string());
                sandbox.failed(&command, Some(&run_of), &message);
                return Err(Refusal { message, cure, failure: None });
            }
        };
        self.run(&sandbox, &code, &command, Some(&run_of), cancel)
    }

    fn run(
        &self,
        sandbox: &Sandbox,
        code: &Code,
        command: &[OsString],
        skill: Option<&SkillRun>,
        cancel: BorrowedFd<'_>,
    ) -> Result<CodeResult, Refusal> {
        Ok(sandbox.run_code(code, command, skill, Some(&self.pools), || Ok::<_, SandboxError>(cancel))?)
    }

    /// Looked up when it is needed first: a start is not to wait for it.
    fn archive(&self) -> Result<&Archive, Refusal> {
        let archive = self.archive.get_or_init(|| self.host.archive().map_err(|error| plain(&error.to_string())));
        let refused = |message: &String| Refusal { message: message.clone(), cure: Cure::TellOwner, failure: None };
        archive.as_ref().map_err(refused)
    }

    fn read_skills(&self) -> Result<Vec<Skill>, Refusal> {
        let archive = self.archive()?;
        // Nothing is made only because somebody looks.
        if matches!(&archive.place, Place::File(path) if !path.exists()) {
            return Ok(Vec::new());
        }
        let store = archive.connect().map_err(SandboxError::from)?;
        // One that cannot be believed is no tool, and hides no other; `ringfence skill list` names it.
        let listed = Registry::of(store).list().map_err(SandboxError::from)?;
        Ok(listed.skills)
    }

    /// A sandbox for a command. That there is none is recorded.
    fn recorded(
        &self,
        command: &[OsString],
        places: &Places,
        make: impl FnOnce() -> Result<Sandbox, SandboxError>,
    ) -> Result<Sandbox, Refusal> {
        self.host.prepare().map_err(SandboxError::from).and_then(|()| make()).map_err(|error| {
            let refusal = Refusal::from(error);
            self.host.refused(command, Some(&places.workdir), &refusal.message);
            refusal
        })
    }

    /// What a request means in this directory.
    fn gathered(&self, request: &Request, dir: &Path) -> Result<Sandbox, SandboxError> {
        let sandbox = self.host.resolve(&at(request, dir))?;
        is_there(sandbox.policy(), dir)?;
        Ok(sandbox)
    }

    /// What it means in the owner's root around the working directory. Of it only the client's directories are given.
    fn rooted(&self, request: &Request, places: &Places) -> Result<Sandbox, SandboxError> {
        let nowhere = || HostError::NotGiven("directory to work in");
        let root = places.roots.first().ok_or_else(nowhere)?;
        let mut sandbox = self.gathered(request, &root.whole)?;
        sandbox.change(|resolved, _| {
            resolved.policy.workspace = Workspace::HostDirectory(places.workdir.clone());
            resolved.policy.narrowed = vec![root.clone()];
        })?;
        Ok(sandbox)
    }

    /// What the owner's request means in all of these directories, which are given.
    fn situated(&self, places: &Places) -> Result<Sandbox, SandboxError> {
        self.merged(&self.request, places, true)
    }

    /// What a request means in all of these directories. Of the further ones, the policy and the settings take something
    /// away, and add nothing but the directories themselves, where they are given.
    fn merged(&self, request: &Request, places: &Places, given: bool) -> Result<Sandbox, SandboxError> {
        let mut sandbox = self.rooted(request, places)?;
        let others = places.roots.iter().skip(1);
        let others = others.map(|root| (&root.whole, Some(root))).chain(places.stricter.iter().map(|dir| (dir, None)));
        for (dir, root) in others {
            let there = sandbox.beside(&at(request, dir))?;
            is_there(&there.policy, dir)?;
            sandbox.change(|Resolved { policy, service, .. }, lookup| {
                if let Some(root) = root.filter(|_| given) {
                    policy.rules.push(FileRule {
                        access: Access::Rw,
                        pattern: Pattern::exact(dir.clone()),
                        missing: Missing::Fail,
                        origin: Origin { layer: LayerKind::Flags, place: "--root".into() },
                    });
                    policy.narrowed.push(root.clone());
                }
                // Of its rules only what takes something away counts. The client chooses the order of the roots, so the
                // order must not decide whose file holds.
                let (rules, narrowed) = (policy.rules.clone(), policy.narrowed.clone());
                *policy = policy.narrowed_by(&Policy { rules, narrowed, ..there.policy.clone() }, lookup)?;
                *service = service.narrowed_by(&there.service);
                policy.rules.extend(protections(there, dir, given));
                Ok::<_, SandboxError>(())
            })??;
        }
        Ok(sandbox)
    }

    /// The policy of a skill: profile `skill`, and in nothing more than the session has.
    fn of_skills(&self, places: &Places) -> Result<Sandbox, SandboxError> {
        let session = self.situated(places)?;
        let mut request = Request { config: self.request.config.clone(), ..Request::new(SKILL) };
        let (asked, wanted) = (&self.request.layer.settings, &mut request.layer.settings);
        wanted.engine.clone_from(&asked.engine);
        wanted.image.clone_from(&asked.image);
        wanted.strict.clone_from(&asked.strict);
        wanted.optional.clone_from(&asked.optional);
        let mut own = self.merged(&request, places, false)?;
        own.change(|Resolved { policy, service, .. }, lookup| {
            let most = session.policy().clone();
            let hidden = |rule: &&FileRule| rule.access == Access::Exclude && rule.origin.layer == LayerKind::Flags;
            let hidden: Vec<FileRule> = most.rules.iter().filter(hidden).cloned().collect();
            // Files, user and environment are a skill's own: it sees less than a session. What a command has by default of
            // its time is no limit of a skill.
            let Policy { rules, narrowed, root, user, env, .. } = policy.clone();
            let limits = Limits { timeout: most.limits.timeout_ceiling, ..most.limits.clone() };
            let most = Policy { rules, narrowed, root, user, env, limits, ..most };
            *policy = policy.narrowed_by(&most, lookup)?;
            policy.rules.extend(hidden);
            *service = service.narrowed_by(&session.resolved().service);
            Ok::<_, SandboxError>(())
        })??;
        Ok(own)
    }
}

fn at(request: &Request, dir: &Path) -> Request {
    Request { workdir: Some(dir.to_path_buf()), ..request.clone() }
}

/// Looked up a second time: a link must not have taken its place.
fn is_there(policy: &Policy, dir: &Path) -> Result<(), SandboxError> {
    if policy.workdir() == dir {
        return Ok(());
    }
    let (path, to) = (dir.to_path_buf(), policy.workdir().display());
    let source = std::io::Error::other(format!("it is a link by now, to `{to}`"));
    Err(HostError::Workdir { path, source }.into())
}

/// Something that the owner has to mend.
impl From<SandboxError> for Refusal {
    fn from(error: SandboxError) -> Refusal {
        let failure = error.failure().map(Box::new);
        Refusal { message: plain(&error.to_string()), cure: Cure::TellOwner, failure }
    }
}

/// What the presets and its own file hide, and protect in a directory that is given, as in a working directory.
fn protections(there: Resolved, dir: &Path, given: bool) -> impl Iterator<Item = FileRule> {
    let below = move |pattern: &Pattern| match pattern {
        Pattern::Exact(path) => path.starts_with(dir),
        Pattern::Glob(glob) => Path::new(glob.as_str()).starts_with(dir),
    };
    // A `ro` outside of it would show what the box does not see.
    let protects = move |rule: &FileRule| match rule.access {
        Access::Rw => false,
        Access::Ro => given && below(&rule.pattern),
        Access::Exclude => true,
    };
    // A flag names what is in the owner's root: it need not be in every directory.
    let optional = |rule: FileRule| match rule.missing {
        Missing::Fail => FileRule { missing: Missing::Ignore, ..rule },
        _ => rule,
    };
    there.policy.rules.into_iter().filter(protects).map(optional)
}
