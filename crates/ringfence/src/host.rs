//! What Ringfence knows of this machine and this user, and how policies are made from it.
//!
//! [`Host::here`] is the one place of the library that reads the user's configuration, trust and environment. A host that
//! is made by [`Host::builder`] has what it was given, and reads nothing else of the kind.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let host = ringfence::Host::here()?;
//! let sandbox = host.sandbox("agent").network(false).memory("2g")?.build()?;
//! let output = sandbox.exec(["make", "test"]).await?.output().await?;
//! println!("{:?}: {}", output.exit_code(), String::from_utf8_lossy(&output.stdout));
//! # Ok(())
//! # }
//! ```

mod archive;
mod builder;
mod files;
mod here;
mod trust;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_policy::config::{self, ConfigError};
use ringfence_policy::facts::Facts;
use ringfence_policy::git;
use ringfence_policy::layer::Layer;
use ringfence_policy::layers::{self, Inputs, LayerError, Loosening};
use ringfence_policy::look::Lookup;
use ringfence_policy::rules::LayerKind;

use crate::engines::Progress;
use crate::facts::FactsError;
use crate::janitor;
use crate::records::{JournalError, StoreError};
use crate::sandbox::Sandbox;
use crate::session::{SessionError, Sessions};
use crate::watch::Loss;

pub use archive::{Archive, Unwritable};
pub use builder::{Builder, SandboxBuilder, SessionBuilder};
pub use files::{Directories, FileError, Links, PROJECT_FILE, read};
pub use trust::{Entry, TrustStore};

/// What this machine and this user are to Ringfence: facts, directories, configuration files and trust. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Host {
    source: Source,
    directories: Option<Directories>,
    /// The `ringfence` program that supervises sessions; `None`: the one of `PATH`.
    program: Option<PathBuf>,
    notices: Notices,
}

/// Where a host has it from.
#[derive(Debug, Clone)]
enum Source {
    /// This process and this user's files, read anew for each sandbox.
    Here,
    Given(Arc<Given>),
}

/// What a host was given by hand.
#[derive(Debug)]
struct Given {
    facts: Facts,
    workdir: Option<PathBuf>,
    global: Option<Layer>,
    project: Option<Layer>,
}

/// What is asked for on top of configuration files.
#[derive(Debug, Clone)]
pub struct Request {
    /// The settings, as flags have them.
    pub layer: Layer,
    /// A configuration file in the place of the project's.
    pub config: Option<PathBuf>,
    /// Where to work; without, where this process works.
    pub workdir: Option<PathBuf>,
}

impl Request {
    /// Nothing but a profile.
    pub fn new(profile: &str) -> Request {
        let mut layer = Layer::flags();
        layer.profile(profile);
        Request { layer, config: None, workdir: None }
    }
}

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum HostError {
    /// Something about this host could not be found out.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A configuration file has an error.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Flags and files give no policy.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The working directory cannot be used.
    #[error("cannot work in `{}`: {source}", path.display())]
    Workdir { path: PathBuf, source: io::Error },
    /// The host was built by hand without this value.
    #[error("a host that was made by hand has no {0}")]
    NotGiven(&'static str),
    /// A session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// What somebody may want to know while something goes on. The library prints nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// The execution that begins is not recorded.
    NotRecorded(&'a JournalError),
    /// The end of an execution is not recorded.
    EndNotRecorded(&'a JournalError),
    /// Packages are about to be installed, in a sandbox of their own.
    Installing,
    /// How far the pull of an image has come; `None`: nothing is pulled any more.
    Pull(Option<Progress>),
    /// So many lines of the journal could not be understood.
    BrokenLines(u64),
    /// Records are shown as they are, and cannot be written.
    RecordsUnwritable {
        /// What went wrong.
        trouble: &'a StoreError,
        /// What kind of trouble it is, where that is known.
        why: Option<Unwritable>,
    },
    /// The latest executions are missing in what is shown.
    LatestNotShown(&'a StoreError),
    /// Skills cannot be read, for this reason.
    NoSkills(&'a str),
    /// A sandbox left in its working directory what git outside would go into, a line each.
    Changed(&'a [String]),
    /// A guarantee of a command that runs does not hold any more as its report said.
    Weakened(&'a Loss),
    /// The session of this name had ended, and is started again under the policy that it was made with.
    StartedAgain(&'a str),
}

/// Who is told.
#[derive(Clone)]
struct Notices(Arc<dyn Fn(Notice<'_>) + Send + Sync>);

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}

/// A host that is made by hand. It has what it is given here and reads nothing else.
///
/// ```no_run
/// # fn example(facts: ringfence::policy::facts::Facts) -> Result<(), Box<dyn std::error::Error>> {
/// use ringfence::host::{Directories, Host};
///
/// let directories = Directories::new(&facts);
/// let host = Host::builder(facts).workdir("/srv/project").directories(directories).build();
/// let sandbox = host.sandbox("shell").build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct HostBuilder {
    given: Given,
    directories: Option<Directories>,
    program: Option<PathBuf>,
}

impl HostBuilder {
    /// Where sandboxes work that name no directory: absolute and canonical.
    pub fn workdir(mut self, workdir: impl Into<PathBuf>) -> HostBuilder {
        self.given.workdir = Some(workdir.into());
        self
    }

    /// Where Ringfence keeps what it needs. Without, nothing is recorded and there are no sessions.
    pub fn directories(mut self, directories: Directories) -> HostBuilder {
        self.directories = Some(directories);
        self
    }

    /// The text of a user's configuration file. The path is for messages.
    pub fn global(mut self, text: &str, path: &Path) -> Result<HostBuilder, ConfigError> {
        self.given.global = Some(config::parse(text, &path.display().to_string(), LayerKind::Global)?);
        Ok(self)
    }

    /// The text of a project's file, which is not trusted. The path is for messages.
    pub fn project(mut self, text: &str, path: &Path) -> Result<HostBuilder, ConfigError> {
        self.given.project = Some(config::parse(text, &path.display().to_string(), LayerKind::Project)?);
        Ok(self)
    }

    /// The `ringfence` program that supervises sessions and stands in front of programs.
    pub fn program(mut self, program: impl Into<PathBuf>) -> HostBuilder {
        self.program = Some(program.into());
        self
    }

    /// The host.
    pub fn build(self) -> Host {
        let HostBuilder { given, directories, program } = self;
        Host { source: Source::Given(Arc::new(given)), directories, program, notices: nobody() }
    }
}

fn nobody() -> Notices {
    Notices(Arc::new(|_| {}))
}

impl Host {
    /// This machine and the user of this process. Reads little: files, trust and facts are read anew for each sandbox.
    pub fn here() -> Result<Host, HostError> {
        let directories = Some(here::directories()?);
        Ok(Host { source: Source::Here, directories, program: None, notices: nobody() })
    }

    /// A host of these facts, and of nothing else.
    pub fn builder(facts: Facts) -> HostBuilder {
        let given = Given { facts, workdir: None, global: None, project: None };
        HostBuilder { given, directories: None, program: None }
    }

    /// The `ringfence` program that supervises sessions and stands in front of programs, instead of the one of `PATH`.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Host {
        self.program = Some(program.into());
        self
    }

    /// Who is told what goes on.
    pub fn notices(mut self, told: impl Fn(Notice<'_>) + Send + Sync + 'static) -> Host {
        self.notices = Notices(Arc::new(told));
        self
    }

    /// Tells it to whoever wanted to be told.
    pub fn notice(&self, notice: Notice<'_>) {
        (self.notices.0)(notice);
    }

    /// Facts of this moment.
    pub fn facts(&self) -> Result<Facts, FactsError> {
        let mut facts = match &self.source {
            Source::Here => crate::facts::gather()?,
            Source::Given(given) => given.facts.clone(),
        };
        // The `ringfence` program stands in front of others inside, and never the program that uses this library.
        match (&self.program, &self.source) {
            (Some(program), _) if program.components().count() > 1 => {
                facts.program = program.canonicalize().unwrap_or_else(|_| program.clone());
            }
            (Some(program), Source::Here) => facts.program = here::program(program.as_os_str()).unwrap_or_default(),
            (None, Source::Here) => facts.program = here::program("ringfence".as_ref()).unwrap_or_default(),
            (_, Source::Given(_)) => {}
        }
        if let Some(directories) = &self.directories {
            facts.runners.get_or_insert_with(|| directories.state.join("runners"));
        }
        Ok(facts)
    }

    /// The environment, whose values must not be in records.
    pub(crate) fn variables(&self) -> Vec<(OsString, OsString)> {
        match &self.source {
            Source::Here => here::variables(),
            Source::Given(given) => given.facts.env.clone().into_iter().collect(),
        }
    }

    /// Ringfence's own directories.
    pub fn directories(&self) -> Result<&Directories, HostError> {
        self.directories.as_ref().ok_or(HostError::NotGiven("directories"))
    }

    /// The sessions of this user.
    pub fn sessions(&self) -> Result<Sessions, HostError> {
        let directories = self.directories()?;
        let program = match (&self.program, &self.source) {
            (Some(program), _) => program.clone(),
            (None, Source::Here) => here::program("ringfence".as_ref()).unwrap_or_else(|| "ringfence".into()),
            (None, Source::Given(_)) => return Err(HostError::NotGiven("program")),
        };
        Ok(Sessions::new(&directories.sessions, program).homes(directories.state.join("homes")).on(self.clone()))
    }

    /// Clears what killed sandboxes left, moves this process to where it may make control groups, and makes what every
    /// sandbox hides: what is not there is not hidden. Before a policy is made that something is started with.
    pub fn prepare(&self) -> Result<(), HostError> {
        match &self.source {
            Source::Here => janitor::sweep(&janitor::registry()),
            Source::Given(given) => janitor::sweep(&given.facts.registry),
        }
        // Plans promise what there is then.
        ringfence_linux::limits::Home::take();
        if let Some(directories) = &self.directories {
            directories.make_closed();
        }
        Ok(())
    }

    /// Where a sandbox works that was asked to work here: an absolute path without links.
    pub fn workdir(&self, asked: Option<&Path>) -> Result<PathBuf, HostError> {
        let given = match &self.source {
            Source::Here => None,
            Source::Given(given) => Some(given.workdir.as_deref().ok_or(HostError::NotGiven("working directory"))),
        };
        let path = match (asked, given) {
            (Some(asked), _) => asked,
            (None, Some(given)) => given?,
            (None, None) => Path::new("."),
        };
        let fail = |source: io::Error| HostError::Workdir { path: path.to_path_buf(), source };
        // Where the kernel says we are, there are no links on the way.
        let here = (path == Path::new(".")).then(here::workdir).flatten();
        let real = here.map_or_else(|| path.canonicalize(), Ok).map_err(fail)?;
        if real.is_dir() { Ok(real) } else { Err(fail(io::ErrorKind::NotADirectory.into())) }
    }

    /// The user's configuration file.
    fn global(&self) -> Result<Option<Layer>, HostError> {
        match &self.source {
            Source::Here => {
                Ok(parsed(&self.directories()?.global_file(), LayerKind::Global, Links::Follow)?.map(|f| f.0))
            }
            Source::Given(given) => Ok(given.global.clone()),
        }
    }

    /// The layers that make a policy in a directory.
    pub(crate) fn inputs(&self, request: &Request, facts: &Facts) -> Result<Inputs, HostError> {
        let workdir = self.workdir(request.workdir.as_deref())?;
        let mut inputs = Inputs::new(workdir, facts.home.clone(), request.layer.clone());
        inputs.engines = crate::engines::registry::known();
        inputs.other_homes = facts.other_homes(&inputs.workdir);
        inputs.global = self.global()?;
        if let Some(path) = &request.config {
            let parsed = parsed(path, LayerKind::Project, Links::Follow)?;
            inputs.project = Some(parsed.ok_or_else(|| FileError::Missing(path.clone()))?.0);
            // The user named it.
            inputs.project_trusted = true;
        } else if let Source::Given(given) = &self.source {
            inputs.project.clone_from(&given.project);
        } else {
            let path = inputs.workdir.join(PROJECT_FILE);
            if let Some((layer, text)) = parsed(&path, LayerKind::Project, Links::Refuse)? {
                inputs.project = Some(layer);
                inputs.project_trusted = TrustStore::read(self.directories()?)?.trusts(&path, &text);
            }
        }
        if let Some(directories) = &self.directories {
            inputs.records_dir = Some(directories.records());
            inputs.own_dirs = directories.own_dirs(&inputs.other_homes);
            inputs.sessions_dirs = directories.closed_dirs(facts.uid, &inputs.other_homes);
        }
        inputs.git = git::Outer::new(&facts.home, &facts.env);
        inputs.git.passwd = matches!(self.source, Source::Here).then_some(here::passwd);
        inputs.other_homes.iter().for_each(|home| inputs.git.add_home(home));
        Ok(inputs)
    }

    /// The sandbox that a request means here and now. It changes nothing on the host: what is to start something is made
    /// after [`Host::prepare`]. Until the sandbox has started, no placeholder that is found now is removed.
    pub fn resolve(&self, request: &Request) -> Result<Sandbox, HostError> {
        let facts = self.facts()?;
        let guard = janitor::hold(&facts.registry, &self.workdir(request.workdir.as_deref())?, &facts.home).ok();
        let inputs = self.inputs(request, &facts)?;
        let lookup = Lookup::of_places(&facts.home, &inputs.workdir).guarded(guard);
        let resolved = layers::resolve_with(&lookup, inputs.clone())?;
        Ok(Sandbox::judged(self.clone(), facts, resolved, inputs, lookup))
    }

    /// What a project's file with this text would loosen.
    pub fn loosened(&self, path: &Path, text: &str) -> Result<Vec<Loosening>, HostError> {
        let workdir = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        let mut inputs = Inputs::new(workdir, self.directories()?.home.clone(), Layer::flags());
        inputs.engines = crate::engines::registry::known();
        inputs.global = self.global()?;
        inputs.project = Some(config::parse(text, &path.display().to_string(), LayerKind::Project)?);
        inputs.project_trusted = true;
        Ok(layers::resolve(inputs)?.loosened)
    }
}

/// A configuration file and its text; `None` when it is not there.
fn parsed(path: &Path, kind: LayerKind, links: Links) -> Result<Option<(Layer, String)>, HostError> {
    let Some(text) = read(path, links)? else { return Ok(None) };
    Ok(Some((config::parse(&text, &path.display().to_string(), kind)?, text)))
}
