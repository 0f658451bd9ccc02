//! What went wrong, for people and for programs: the one place that maps errors to a kind, an exit code and hints.

use std::io;
use std::path::Path;

use ringfence::code::requirements::RequirementsError;
use ringfence::code::{CodeError, ContextError};
use ringfence::denials::Grant;
use ringfence::facts::FactsError;
use ringfence::host::FileError;
use ringfence::policy::Cure;
use ringfence::policy::config::ConfigError;
use ringfence::policy::layers::LayerError;
use ringfence::policy::limits::format_size;
use ringfence::policy::plan::PlanError;
use ringfence::policy::policy::Network;
use ringfence::policy::tree::{PRIVATE, TreeError};
use ringfence::records::StoreError;
use ringfence::session::SessionError;
use ringfence::skills::SkillError;
use ringfence::{EngineError, HostError, SandboxError, StandardStream};
use rustix::io::Errno;
use serde::Serialize;

use crate::args::BadFlag;
use crate::client_file::ClientFileError;

/// Why Ringfence did not do what it was asked to.
#[derive(Debug)]
pub struct Failure {
    pub kind: Kind,
    pub message: String,
    pub hints: Vec<String>,
    /// The id of the record that tells of it.
    pub record: Option<String>,
}

/// What kind of failure, by a name that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The command line cannot be understood.
    Usage,
    /// A configuration file cannot be read or understood.
    Config,
    /// The project's file loosens and is not trusted.
    Untrusted,
    /// The policy cannot be applied to this host.
    Policy,
    /// No engine can honour the policy, or it failed to.
    Engine,
    NotExecutable,
    NotFound,
    /// A session that is not there, has ended, or cannot be used so.
    Session,
    /// Output could not be written.
    Output,
    /// Records of the past cannot be used.
    Records,
    /// A skill that is not there, or may not run.
    Skill,
    /// Somebody ended it before it began.
    Cancelled,
}

impl Kind {
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::NotExecutable => 126,
            Kind::NotFound => 127,
            Kind::Cancelled => 130,
            _ => 125,
        }
    }
}

/// A failure in JSON.
#[derive(Debug, Serialize)]
pub struct Described {
    pub kind: Kind,
    pub message: String,
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(kind: Kind, message: impl Into<String>) -> Failure {
        Failure { kind, message: ringfence::sandbox::plain(&message.into()), hints: Vec::new(), record: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hints.push(hint.into());
        self
    }

    /// With what helps; `otherwise` where nobody knows.
    fn cured(self, helps: &[Cure], otherwise: &str) -> Failure {
        if helps.is_empty() { self.hint(otherwise) } else { self.hint(cures(helps)) }
    }

    pub fn recorded(self, record: Option<String>) -> Failure {
        Failure { record, ..self }
    }

    /// Records and sessions are the host's, and hidden from every sandbox: what is said of them inside is not about them.
    pub fn inside(self, inside: bool) -> Failure {
        if !inside || !matches!(self.kind, Kind::Records | Kind::Session) {
            return self;
        }
        let hints = vec!["this is inside a sandbox, which sees no records and no sessions: do it outside".to_owned()];
        Failure { hints, ..self }
    }

    pub fn output(error: &io::Error) -> Failure {
        Failure::new(Kind::Output, format!("cannot write the output: {error}"))
    }

    pub fn describe(&self) -> Described {
        let hint = (!self.hints.is_empty()).then(|| self.hints.join("; "));
        Described { kind: self.kind, message: self.message.clone(), hint }
    }

    /// The lines for stderr.
    pub fn render(&self) -> String {
        // A name that somebody in a box chose may have lines in it: none of them begins where ours do.
        let indented = |text: &str| text.replace("\n  ", "\n").replace('\n', "\n  ");
        let mut text = format!("error: {}", indented(&self.message));
        for hint in &self.hints {
            text.push_str("\nhint: ");
            text.push_str(&indented(hint));
        }
        text
    }
}

impl From<BadFlag> for Failure {
    fn from(error: BadFlag) -> Failure {
        Failure::new(Kind::Usage, error.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::new(Kind::Config, error.to_string())
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Failure {
        let failure = Failure::new(Kind::Config, error.to_string());
        match error {
            FileError::Link(_) => failure.hint("put the file itself there, or name the other one with --config FILE"),
            _ => failure,
        }
    }
}

impl From<ClientFileError> for Failure {
    fn from(error: ClientFileError) -> Failure {
        let failure = Failure::new(Kind::Config, error.to_string());
        match error {
            ClientFileError::LeadsOut { .. } | ClientFileError::Link(_) => {
                failure.hint("edit the file where it really is, or put the file itself there")
            }
            ClientFileError::Directory(_) => failure.hint(HELD),
            ClientFileError::Changed(_) => failure.hint("try again"),
            ClientFileError::LookUp { .. }
            | ClientFileError::Read { .. }
            | ClientFileError::NotAFile(_)
            | ClientFileError::TooLarge(_)
            | ClientFileError::NotText(_)
            | ClientFileError::MakeDirectory { .. }
            | ClientFileError::Write { .. } => failure,
        }
    }
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Failure {
        match error {
            HostError::Facts(error) => error.into(),
            HostError::File(error) => error.into(),
            HostError::Config(error) => error.into(),
            HostError::Layer(error) => error.into(),
            HostError::Session(error) => error.into(),
            HostError::Workdir { .. } => {
                Failure::new(Kind::Policy, error.to_string()).hint("name a directory that exists with -C DIR")
            }
            HostError::NotGiven(_) => Failure::new(Kind::Policy, error.to_string()),
        }
    }
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Failure {
        match error {
            SandboxError::Host(error) => error.into(),
            SandboxError::Layer(error) => error.into(),
            SandboxError::Narrow(_) => Failure::new(Kind::Policy, error.to_string()),
            SandboxError::Plan(error) => error.into(),
            SandboxError::Engine(error) => error.into(),
            SandboxError::Session(error) => error.into(),
            SandboxError::Code(error) => error.into(),
            SandboxError::Context(error) => error.into(),
            SandboxError::Requirements(error) => error.into(),
            SandboxError::Skill(error) => error.into(),
            SandboxError::Store(error) => error.into(),
            SandboxError::Recorded { error, record } => Failure::from(*error).recorded(Some(record)),
            SandboxError::Wrapper { .. } => {
                Failure::new(Kind::Config, error.to_string()).hint("name an executable file, or leave the line away")
            }
            SandboxError::Pipe(_)
            | SandboxError::Thread(_)
            | SandboxError::Wait(_)
            | SandboxError::Read(_)
            | SandboxError::NoSignal(_)
            | SandboxError::Unwatched => Failure::new(Kind::Engine, error.to_string()),
        }
    }
}

impl From<FactsError> for Failure {
    fn from(error: FactsError) -> Failure {
        let failure = Failure::new(Kind::Policy, error.to_string());
        match error {
            FactsError::NoHome => failure.hint("set HOME to your home directory"),
            FactsError::Home { .. } => failure.hint("set HOME to a directory that exists"),
            FactsError::Read { .. } => failure,
        }
    }
}

impl From<LayerError> for Failure {
    fn from(error: LayerError) -> Failure {
        match &error {
            LayerError::Untrusted { .. } => Failure::new(Kind::Untrusted, error.to_string())
                .hint("read the file; `ringfence trust` allows it as it is now, until it is changed"),
            LayerError::UnknownEngine { .. }
            | LayerError::UnknownProfile { .. }
            | LayerError::ProfileCycle { .. }
            | LayerError::ProfileTwice { .. }
            | LayerError::Path { .. } => Failure::new(Kind::Config, error.to_string()),
            LayerError::TimeoutAboveCeiling { .. } => Failure::new(Kind::Config, error.to_string()).hint(CEILING),
            LayerError::WorkdirExcluded { .. } => Failure::new(Kind::Policy, error.to_string()).hint(ANOTHER_DIRECTORY),
        }
    }
}

/// No flag raises it.
const CEILING: &str =
    "ask for less with --timeout, or raise `timeout_ceiling` in `[limits]` of your configuration file";
const REUSE: &str = "`ringfence session create NAME --reuse` makes a session of a name, or takes the live one";
/// What placeholders do to a name that is missing.
pub const HELD: &str = "while a sandbox runs in the project, a directory holds the name: end the sandbox first";
const ANOTHER_DIRECTORY: &str = "work in another directory (-C DIR)";

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Failure {
        let message = error.to_string();
        match error {
            PlanError::ProgramNotFound(program) => not_found(message, &program),
            PlanError::ProgramNotExecutable(_) => Failure::new(Kind::NotExecutable, message),
            PlanError::NoCommand => Failure::new(Kind::Usage, message),
            PlanError::Wrapper { .. } | PlanError::NoGuard(_) => Failure::new(Kind::Policy, message),
            PlanError::DockerSocketMissing(_) | PlanError::DockerSocketWrong(_) => Failure::new(Kind::Policy, message)
                .hint("start Docker, set DOCKER_HOST=unix://PATH to where its socket is, or leave --docker away"),
            PlanError::Tree(error) => error.into(),
        }
    }
}

/// A program that is not found. A whole command in quotes is taken for the name of one.
fn not_found(message: String, program: &Path) -> Failure {
    let failure = Failure::new(Kind::NotFound, message);
    match program.to_string_lossy().contains(char::is_whitespace) {
        true => {
            failure.hint("write the command as words, without quotes around all of it; for a line of shell: sh -c '…'")
        }
        false => failure,
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        let message = error.to_string();
        match error {
            SessionError::Plan(error) => error.into(),
            SessionError::Engine(error) => error.into(),
            SessionError::Execute { errno: Errno::NOENT | Errno::NOTDIR, program, .. } => {
                not_found(message, Path::new(&program))
            }
            SessionError::Execute { .. } => Failure::new(Kind::NotExecutable, message),
            SessionError::NotFound(name) => {
                let failure = Failure::new(Kind::Session, message).hint("`ringfence session list` shows all");
                if ringfence::session::is_name(&name) { failure.hint(REUSE) } else { failure }
            }
            SessionError::CommandLost { id } => Failure::new(Kind::Session, message)
                .hint(format!("if it did, it is in the records: ringfence history --session {id}")),
            SessionError::Ended { id, .. } => Failure::new(Kind::Session, message)
                .hint(format!("what it ran is in the records: ringfence history --session {id}"))
                .hint(REUSE),
            SessionError::NameTaken(_) => Failure::new(Kind::Session, message)
                .hint("use it, take it with --reuse, or end it with `ringfence session stop`"),
            SessionError::OtherPolicy(name) => Failure::new(Kind::Session, message)
                .hint(format!("end it with `ringfence session stop {name}`, or take another name")),
            SessionError::NoSet(_) => Failure::new(Kind::Session, message).hint(
                "make it anew, its home stays: ringfence session create NAME --profile home --requirements FILE, \
                 with the flags that it had",
            ),
            SessionError::BadName(name) => {
                let failure = Failure::new(Kind::Usage, message);
                let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
                match name.chars().next() {
                    Some(first @ ('-' | '.')) => failure.hint(format!("a name does not begin with `{first}`")),
                    Some(_) if plain && name.len() <= 64 => failure.hint("it looks like an id, which a name must not"),
                    _ => failure,
                }
            }
            SessionError::BadRequest => Failure::new(Kind::Usage, message),
            SessionError::Frozen { id } => {
                Failure::new(Kind::Session, message).hint(format!("let it go on: ringfence session thaw {id}"))
            }
            SessionError::TimeoutAboveCeiling { .. } => {
                Failure::new(Kind::Policy, message).hint(format!("{CEILING} before the session is created"))
            }
            SessionError::Start(failure) => Failure::new(Kind::Engine, message).cured(&failure.cures, DOCTOR),
            _ => Failure::new(Kind::Session, message),
        }
    }
}

impl From<TreeError> for Failure {
    fn from(error: TreeError) -> Failure {
        let failure = Failure::new(Kind::Policy, error.to_string());
        match error {
            TreeError::Missing { .. } => failure.hint("make it first, or leave the rule away"),
            TreeError::HardLinked { path, .. } => failure.hint(format!(
                "remove the other names (find / -xdev -samefile {}), or accept it with --optional fs.secrets-hidden",
                path.display()
            )),
            TreeError::Synthetic { .. } => failure.hint("leave the rule away: /proc and /dev are never the host's"),
            TreeError::WorkdirExcluded { .. } | TreeError::WorkdirTooWide(_) | TreeError::WorkdirPrivate(_) => {
                failure.hint(ANOTHER_DIRECTORY)
            }
            TreeError::WorkdirNotShown(_) => failure.hint("show it with --ro . or --rw ."),
            TreeError::LinkInWritable { .. } => {
                failure.hint("a sandbox could have planted it: name what it leads to, or replace the link")
            }
            TreeError::Lookup { .. } | TreeError::Moved { .. } => failure,
        }
    }
}

impl From<CodeError> for Failure {
    fn from(error: CodeError) -> Failure {
        match error {
            CodeError::Plan(error) => error.into(),
            CodeError::Engine(error) => error.into(),
            CodeError::NoInterpreter { .. } => Failure::new(Kind::NotFound, error.to_string())
                .hint("install it where the sandbox can see it: in /usr or /opt, not in a home directory"),
            CodeError::InputName { .. } => {
                Failure::new(Kind::Usage, error.to_string()).hint("give the input another name")
            }
            CodeError::NoRoom { .. } => Failure::new(Kind::Usage, error.to_string()).hint("--tmp-size allows more"),
            CodeError::TooLittleMemory { least, .. } => Failure::new(Kind::Policy, error.to_string())
                .hint(format!("--memory {} allows it", format_size(2 * least))),
            CodeError::Unwritten(_) => Failure::new(Kind::Output, error.to_string()),
            CodeError::NotStarted { .. } | CodeError::Channel(_) | CodeError::Worker(_) => {
                Failure::new(Kind::Engine, error.to_string())
            }
            _ => Failure::new(Kind::Usage, error.to_string()),
        }
    }
}

/// What an installer says, and what then helps. It decides nothing.
const CURES: [(&[&str], &str); 2] = [
    // First: where nothing is reached, nothing is found either.
    (
        &["CERTIFICATE_VERIFY_FAILED", "SELF_SIGNED_CERT", "UNABLE_TO_VERIFY", "UNABLE_TO_GET_ISSUER"],
        "the index shows a certificate that this host does not believe: add its authority to the system's, or name a file \
         with all authorities by SSL_CERT_FILE",
    ),
    (
        &["No matching distribution found"],
        "only wheels are installed, since a source would run code: where a package has none for this Python, take another \
         version, build one (`pip wheel NAME`) for an index of your own (--index URL), or use an --image that has it",
    ),
];

impl From<RequirementsError> for Failure {
    fn from(error: RequirementsError) -> Failure {
        let message = error.to_string();
        match error {
            RequirementsError::Plan(error) => error.into(),
            RequirementsError::Engine(error) => error.into(),
            RequirementsError::NoInstaller(_) => Failure::new(Kind::NotFound, message)
                .hint("it must be where the sandbox sees it, such as /usr: apt install python3-pip, or npm"),
            RequirementsError::Session(error) => error.into(),
            RequirementsError::NotInImage { .. } => Failure::new(Kind::NotFound, message)
                .hint("use an image with pip or npm in it, or one that has the packages already"),
            RequirementsError::NoPlace => {
                Failure::new(Kind::Policy, message).hint("use a profile such as `skill` or `shell`")
            }
            RequirementsError::MappedIds => Failure::new(Kind::Policy, message)
                .hint("use an engine of this host, or an image that has the packages already"),
            RequirementsError::Failed { said, .. } => {
                let cure = CURES.iter().find(|(words, _)| words.iter().any(|word| said.contains(word)));
                let failure = Failure::new(Kind::Engine, message);
                match cure {
                    Some((_, cure)) => failure.hint(*cure),
                    None => failure,
                }
            }
            RequirementsError::TooMuch(_) => Failure::new(Kind::Engine, message),
            RequirementsError::Cancelled => Failure::new(Kind::Cancelled, message),
            RequirementsError::Set(_) | RequirementsError::Store { .. } => Failure::new(Kind::Output, message),
            RequirementsError::Language(_)
            | RequirementsError::TooLarge(_)
            | RequirementsError::Line { .. }
            | RequirementsError::Lock(_)
            | RequirementsError::Elsewhere { .. }
            | RequirementsError::Index(_) => Failure::new(Kind::Usage, message),
        }
    }
}

impl From<ContextError> for Failure {
    fn from(error: ContextError) -> Failure {
        let message = error.to_string();
        match error {
            ContextError::Code(error) => error.into(),
            ContextError::Session(error) => error.into(),
            ContextError::NoContext(_) => {
                Failure::new(Kind::Session, message).hint("`ringfence context list SESSION` shows all")
            }
            ContextError::OtherSet { .. } => {
                Failure::new(Kind::Session, message).hint("make a session with these: --requirements FILE")
            }
            ContextError::OtherLanguage { .. } => Failure::new(Kind::Usage, message).hint("name another context"),
            ContextError::Name(_) | ContextError::Language(_) => Failure::new(Kind::Usage, message),
            ContextError::Mark(_) => Failure::new(Kind::Session, message),
        }
    }
}

impl From<SkillError> for Failure {
    fn from(error: SkillError) -> Failure {
        let message = error.to_string();
        match error {
            SkillError::Store(error) => error.into(),
            SkillError::NoSkill(_) => Failure::new(Kind::Skill, message).hint("`ringfence skill list` shows all"),
            SkillError::NoVersion { name, .. } | SkillError::Ambiguous { name, .. } => {
                Failure::new(Kind::Skill, message).hint(format!("`ringfence skill show {name}` lists its versions"))
            }
            SkillError::Disabled { name, version } => Failure::new(Kind::Skill, message)
                .hint(format!("`ringfence skill enable {name}@{version}` lets it run again")),
            SkillError::Verdict { name, verdict, .. } => Failure::new(Kind::Skill, message)
                .hint(format!("`ringfence skill show {name}` says why; --verdict {verdict} runs it all the same")),
            SkillError::VersionTaken { .. } => {
                Failure::new(Kind::Skill, message).hint("name another version, or leave --version away")
            }
            SkillError::OfTheCommunity { name, .. } => Failure::new(Kind::Usage, message)
                .hint(format!("`ringfence skill rm {name}` forgets it, if you have looked at it and vouch for it")),
            SkillError::NotScanned { name, version } => {
                Failure::new(Kind::Skill, message).hint(format!("`ringfence skill scan {name}@{version}` scans it"))
            }
            SkillError::Scanner(error) => {
                let failure = Failure::from(*error);
                Failure { message: format!("cannot scan the code in a sandbox: {}", failure.message), ..failure }
            }
            SkillError::VersionIsHash(version) => {
                Failure::new(Kind::Usage, message).hint(format!("write `v{version}`, or put a dot in it"))
            }
            SkillError::SandboxRequired => Failure::new(Kind::Usage, message).hint("leave --sandbox-optional away"),
            SkillError::Corrupt(_) => Failure::new(Kind::Records, message)
                .hint("somebody changed the database: remove the skill and add it again"),
            SkillError::Inputs { .. }
            | SkillError::NotChecked { .. }
            | SkillError::OtherLanguage(_)
            | SkillError::Language { .. } => Failure::new(Kind::Skill, message),
            SkillError::Name(_)
            | SkillError::Version(_)
            | SkillError::TooLarge(_)
            | SkillError::Nul
            | SkillError::Host(_)
            | SkillError::Schema(..) => Failure::new(Kind::Usage, message),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let failure = Failure::new(Kind::Records, error.to_string());
        match error {
            StoreError::Open { .. } | StoreError::Database(_) => failure.hint(
                "runs are recorded all the same, in the journal beside it; a database that is broken can be moved away",
            ),
            StoreError::Newer { known, .. } => failure
                .hint(format!("use the newer Ringfence, or let it go back: ringfence history migrate --to {known}")),
            StoreError::Ambiguous { .. } => failure.hint("write more of it"),
            StoreError::NoRecord(_) => failure.hint("`ringfence history` lists them"),
            StoreError::Migrate { .. }
            | StoreError::NoVersion(_)
            | StoreError::Journal(_)
            | StoreError::Lock { .. } => failure,
        }
    }
}

/// The place of the sandbox's own that hides a program which the host has.
fn private_place(program: &Path) -> Option<&'static str> {
    PRIVATE.into_iter().find(|place| program.starts_with(place)).filter(|_| program.exists())
}

/// The interpreter that a script of the host names in its first line, where the host does not have it either.
fn interpreter(program: &Path) -> Option<String> {
    let mut first = [0; 256];
    let length = std::fs::File::open(program).ok().and_then(|mut file| io::Read::read(&mut file, &mut first).ok())?;
    let line = first[..length].strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let name = String::from_utf8_lossy(line).split_whitespace().next()?.to_owned();
    (!Path::new(&name).exists()).then(|| crate::output::one_line(&name))
}

/// Each refusal, and each cure once.
fn no_engine(refusals: &[EngineError]) -> Failure {
    // An engine that was made for something else, such as images, is no help.
    let about = |refusal: &&EngineError| !matches!(refusal, EngineError::Cannot { .. });
    let mut told: Vec<&EngineError> = refusals.iter().filter(about).collect();
    if told.is_empty() {
        told = refusals.iter().collect();
    }
    let mut message = "no engine can honour this policy".to_owned();
    let mut hints: Vec<(String, String)> = Vec::new();
    for refusal in told {
        message.push_str(&format!("\n  {refusal}"));
        let ringfence::policy::Failure { engine: Some(engine), cures: helps, .. } = refusal.failure() else {
            continue;
        };
        if !helps.is_empty() {
            hints.push((engine, cures(&helps)));
        }
    }
    let same = hints.iter().all(|(_, cure)| *cure == hints[0].1);
    let hints = match same {
        true => hints.into_iter().take(1).map(|(_, cure)| cure).collect(),
        false => hints.into_iter().map(|(engine, cure)| format!("{engine}: {cure}")).collect(),
    };
    Failure { kind: Kind::Engine, message, hints, record: None }
        .hint("`ringfence doctor` looks at everything they need")
}

const DOCTOR: &str = "`ringfence doctor` looks at everything the engines need";

/// What helps, as a person writes it on a command line: the one place where a cure becomes a flag.
pub fn cures(cures: &[Cure]) -> String {
    cures.iter().map(cure).collect::<Vec<_>>().join(", or ")
}

fn cure(cure: &Cure) -> String {
    match cure {
        Cure::Host(words) => words.to_string(),
        Cure::BuildImage => "build it: ringfence image build".to_owned(),
        Cure::PrepareHost => {
            "as root, once after each start of the machine: ringfence doctor --prepare-network".to_owned()
        }
        Cure::SetOutside { key, value } if value == "true" => format!("start the outer sandbox with {}", flag(key)),
        Cure::SetOutside { key, value } => format!("start the outer sandbox with {} {value}", flag(key)),
        Cure::Set { key, value } => match (&**key, value.as_deref()) {
            ("engine", None) => "use another engine (--engine)".to_owned(),
            ("image", None) => "name an image (--image NAME)".to_owned(),
            ("optional", Some(id)) => format!("list `{id}` under `optional`"),
            ("strict", _) => "leave `strict` off to accept this".to_owned(),
            ("user", Some(user)) => format!("run as {user}: --user {user}"),
            (key, None) => format!("{} takes another value", flag(key)),
            (key, Some("false")) => format!("leave {} away", flag(key)),
            (key, Some("true")) => format!("use {}", flag(key)),
            (key, Some(value)) => format!("use {} {value}", flag(key)),
        },
    }
}

/// What allows what was denied, as a person writes it on a command line.
pub fn grant(grant: &Grant) -> String {
    match grant {
        Grant::Path { access, path, missing } => {
            let first = if *missing { " (make it first)" } else { "" };
            format!("{} {}{first}", flag(&access.to_string()), crate::output::one_line(&path.to_string_lossy()))
        }
        Grant::AddedPreset { with } => format!("{} {with}", flag("preset")),
        Grant::Preset { without } => format!("{} '!{without}'", flag("preset")),
        Grant::Network { network: Network::Open } => flag("network"),
        Grant::Network { network } => format!("{}={}", flag("network"), network.name()),
    }
}

/// The flag of a setting.
fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        let message = error.to_string();
        match error {
            EngineError::Execute { errno: Errno::NOENT | Errno::NOTDIR, program } => {
                let failure = not_found(message, &program);
                let interpreter = interpreter(&program);
                match private_place(&program) {
                    _ if interpreter.is_some() => failure.hint(format!(
                        "its first line names `{}`, which the sandbox does not have",
                        interpreter.unwrap_or_default()
                    )),
                    Some(place) => failure.hint(format!(
                        "every sandbox has a {place} of its own: show it with --ro {}, or work where it lies",
                        program.parent().unwrap_or(&program).display()
                    )),
                    None => failure,
                }
            }
            EngineError::Execute { .. } => Failure::new(Kind::NotExecutable, message),
            EngineError::NotThere(_) | EngineError::Unknown(_) => {
                let names: Vec<&str> = ringfence::engines::all().into_iter().map(|engine| engine.name()).collect();
                Failure::new(Kind::Engine, message).hint(format!("choose an engine: --engine {}", names.join(" or ")))
            }
            EngineError::Device { .. } => Failure::new(Kind::Engine, message)
                .hint("remove the device from the policy: no engine supports devices yet"),
            EngineError::NoEngine(refusals) => no_engine(&refusals),
            EngineError::Setup { errno: Errno::NOSPC, .. } => Failure::new(Kind::Engine, message)
                .hint("the private space is too small for what stands in it: --tmp-inodes and --tmp-size allow more"),
            EngineError::Setup { .. } | EngineError::UserNamespace(_) | EngineError::Fork(_) => {
                Failure::new(Kind::Engine, message).hint(DOCTOR)
            }
            EngineError::Unfit { stream, .. } => Failure::new(Kind::Usage, message).hint(match stream {
                StandardStream::Stdin => "redirect a file or a pipe to it, or nothing: < /dev/null",
                StandardStream::Stdout => "redirect it to a file or a pipe, or to nothing: > /dev/null",
                StandardStream::Stderr => "redirect it to a file or a pipe, or to nothing: 2> /dev/null",
            }),
            EngineError::Nul(_) => Failure::new(Kind::Usage, message),
            EngineError::Arguments { source: Errno::TOOBIG, .. } => Failure::new(Kind::NotExecutable, message)
                .hint("pass fewer or shorter arguments, or a smaller environment"),
            error => {
                let cures = error.failure().cures;
                let failure = Failure::new(Kind::Engine, message);
                if cures.is_empty() { failure } else { failure.hint(self::cures(&cures)) }
            }
        }
    }
}
