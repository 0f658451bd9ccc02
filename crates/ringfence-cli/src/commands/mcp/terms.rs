//! What the owner's flags and files mean for the MCP server: asked for each session, piece of code and skill.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfence::code::{Code, CodeResult};
use ringfence::engines;
use ringfence::policy::limits::Limits;
use ringfence::policy::plan;
use ringfence::policy::policy::{Network, Policy};
use ringfence::policy::rules::{Access, FileRule, LayerKind, Missing, Origin, Pattern};
use ringfence::records::Place;
use ringfence::session::Info;
use ringfence::skills::{Registry, Skill, SkillError};
use ringfence_server::mcp::{Allowed, Cure, Noted, Reach, Refusal, Terms};

use crate::archive::Archive;
use crate::args::PolicyFlags;
use crate::commands::code::recorded;
use crate::commands::context::Note;
use crate::failure::{Failure, Kind};
use crate::situation::Situation;
use crate::{output, record};

/// The profile of skills.
const SKILL: &str = "skill";

/// The owner's flags, with the files that they go with.
pub struct Flags {
    flags: PolicyFlags,
    /// Where skills are.
    archive: OnceLock<Result<Archive, String>>,
    /// That they cannot be read was said already.
    said: AtomicBool,
}

impl Flags {
    pub fn new(flags: PolicyFlags) -> Flags {
        Flags { flags, archive: OnceLock::new(), said: AtomicBool::new(false) }
    }

    /// Looked up when it is needed first: a start is not to wait for it.
    fn archive(&self) -> Result<&Archive, Refusal> {
        let archive = self.archive.get_or_init(|| Archive::find().map_err(|failure| failure.message));
        archive.as_ref().map_err(|message| owners(message.clone()))
    }

    /// The policy of a skill: profile `skill`, and in nothing more than the session has.
    fn skill_situation(&self, workdir: &Path, also: &[PathBuf]) -> Result<Situation, Failure> {
        let session = situated(&self.flags, workdir, also)?;
        let PolicyFlags { engine, config, image, strict, optional, .. } = self.flags.clone();
        let flags = PolicyFlags { engine, config, image, strict, optional, ..PolicyFlags::default() };
        let flags = PolicyFlags { profile: Some(SKILL.to_owned()), ..flags };
        let mut own = Situation::gather(&at(&flags, workdir))?;
        tighten(&mut own.resolved.policy, &session.resolved.policy);
        Ok(own)
    }

    fn read_skills(&self) -> Result<Vec<Skill>, Refusal> {
        let archive = self.archive()?;
        // Nothing is made only because somebody looks.
        if matches!(&archive.place, Place::File(path) if !path.exists()) {
            return Ok(Vec::new());
        }
        let store = archive.connect().map_err(|failure| owners(failure.message))?;
        // One that cannot be believed is no tool, and hides no other; `ringfence skill list` names it.
        let listed = Registry::of(store).list().map_err(|error| owners(error.to_string()))?;
        Ok(listed.skills)
    }
}

impl Terms for Flags {
    fn allowed(&self, workdir: &Path, also: &[PathBuf]) -> Result<Allowed, Refusal> {
        allowed(&self.flags, workdir, also).map_err(|failure| owners(failure.message))
    }

    fn run_code(
        &self,
        code: &Code,
        workdir: &Path,
        also: &[PathBuf],
        timeout: Option<Duration>,
        cancel: BorrowedFd<'_>,
    ) -> Result<CodeResult, Refusal> {
        let command: Vec<OsString> = vec!["code".into(), code.language.name.into(), "-".into()];
        let run = || {
            let situation = situated(&self.flags, workdir, also);
            let mut situation = situation.map_err(|failure| record::refused(&command, failure))?;
            if timeout.is_some() {
                situation.resolved.policy.limits.timeout = timeout;
            }
            recorded(code, &situation, &command, None, || Ok(cancel))
        };
        run().map_err(|failure: Failure| owners(failure.message))
    }

    fn note(&self, session: &Info, command: &[OsString]) -> Result<Noted, Refusal> {
        let note = Note::begin(session, command).map_err(|failure| owners(failure.message))?;
        Ok(Box::new(move |ran| match ran {
            Ok(result) => note.end(result),
            Err(why) => note.failed(why),
        }))
    }

    fn skills(&self) -> Result<Vec<Skill>, Refusal> {
        self.read_skills().inspect_err(|refusal| {
            if !self.said.swap(true, Ordering::Relaxed) {
                output::say(&format!("warning: there are no skills: {}", refusal.message));
            }
        })
    }

    fn skills_mark(&self) -> Option<u64> {
        let Place::File(path) = &self.archive().ok()?.place else { return None };
        let mut mark = DefaultHasher::new();
        // SQLite writes to the one, and to the other until that is folded in.
        for path in [path.clone(), path.with_extension("db-wal")] {
            let data = std::fs::metadata(path).ok();
            data.map(|data| (data.ino(), data.len(), data.mtime(), data.mtime_nsec())).hash(&mut mark);
        }
        Some(mark.finish())
    }

    fn skills_reach(&self, workdir: &Path, also: &[PathBuf]) -> Result<Reach, Refusal> {
        let situation = self.skill_situation(workdir, also).map_err(|failure| owners(failure.message))?;
        let policy = &situation.resolved.policy;
        let writes = policy.docker || policy.rules.iter().any(|rule| rule.access == Access::Rw);
        Ok(Reach { writes, network: policy.network != Network::None })
    }

    fn run_skill(
        &self,
        skill: &Skill,
        inputs: serde_json::Value,
        workdir: &Path,
        also: &[PathBuf],
        cancel: BorrowedFd<'_>,
    ) -> Result<CodeResult, Refusal> {
        let command: Vec<OsString> = vec!["skill".into(), "run".into(), skill.name.clone().into()];
        let situation = self.skill_situation(workdir, also);
        let situation = situation.map_err(|failure| owners(record::refused(&command, failure).message))?;
        let run = skill.run();
        let code = skill.code(inputs, situation.resolved.policy.skill_verdict).map_err(|error| {
            let cure = match &error {
                SkillError::Inputs { .. } => Cure::Arguments,
                SkillError::Verdict { .. } | SkillError::Disabled { .. } => Cure::AskOwner,
                _ => Cure::TellOwner,
            };
            let message = record::failed(&situation, &command, Some(&run), error.into()).message;
            Refusal { message, cure }
        })?;
        recorded(&code, &situation, &command, Some(&run), || Ok(cancel)).map_err(|failure| owners(failure.message))
    }
}

/// Something that the owner has to mend.
fn owners(message: String) -> Refusal {
    Refusal { message, cure: Cure::TellOwner }
}

/// Takes away from a policy what another one does not have: network, limits, verdicts and what its owner hid.
fn tighten(policy: &mut Policy, other: &Policy) {
    policy.network = policy.network.min(other.network);
    policy.skill_verdict = policy.skill_verdict.min(other.skill_verdict);
    policy.strict |= other.strict;
    policy.nesting &= other.nesting;
    policy.docker &= other.docker;
    let hidden = |rule: &&FileRule| rule.access == Access::Exclude && rule.origin.layer == LayerKind::Flags;
    policy.rules.extend(other.rules.iter().filter(hidden).cloned());
    let (own, most) = (&mut policy.limits, &other.limits);
    *own = Limits {
        memory: least(own.memory, most.memory),
        cpus: least(own.cpus, most.cpus),
        pids: least(own.pids, most.pids),
        files: least(own.files, most.files),
        timeout: least(own.timeout, most.timeout_ceiling),
        timeout_ceiling: least(own.timeout_ceiling, most.timeout_ceiling),
        cpu_time: least(own.cpu_time, most.cpu_time),
        tmp_size: own.tmp_size.min(most.tmp_size),
        tmp_inodes: own.tmp_inodes.min(most.tmp_inodes),
        output: own.output.min(most.output),
    };
}

/// The smaller limit; none is larger than every other.
fn least<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) if other < one => Some(other),
        (None, other) => other,
        (one, _) => one,
    }
}

pub fn at(flags: &PolicyFlags, workdir: &Path) -> PolicyFlags {
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
    Ok(Allowed { policy: resolved.policy, facts, choice, report, stubs: plan.stubs, records: Some(records) })
}
