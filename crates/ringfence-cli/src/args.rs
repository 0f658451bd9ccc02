//! The command line: names, help and parsers. Raw arguments become a [`Layer`] here, and nothing else is decided.

mod skill;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};
use ringfence::policy::Guarantee;
use ringfence::policy::layer::{FlagError, Layer};
use ringfence::policy::limits::parse_duration;
use ringfence::policy::profiles::EngineChoice;
use ringfence::policy::suggest::Suggestion;
use ringfence::records::Status;

pub use skill::{Skill, SkillAdd, SkillRun, SkillScan};

use crate::clients::{Client, Scope};

/// Runs commands that an AI agent chose in a sandbox whose walls you can read.
#[derive(Debug, Parser)]
#[command(name = "ringfence", version, max_term_width = 100, propagate_version = false)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads the command line.
    pub fn read() -> Result<Cli, clap::Error> {
        let mut args = std::env::args_os().skip(1);
        if args.next().is_some_and(|name| name == "run")
            && let Some(run) = Run::read_plain(args)
            && separated(std::env::args_os().skip(1)).is_none()
        {
            return Ok(Cli { command: Command::Run(run) });
        }
        if let Some(exec) = SessionExec::read_plain(std::env::args_os().skip(1)) {
            return Ok(Cli { command: Command::Session(Session::Exec(exec)) });
        }
        let cli = Cli::try_parse()?;
        if let Some((flag, value)) = separated(std::env::args_os().skip(1)) {
            let message = format!(
                "`{flag} {value}` would switch it on and run `{value}`: write `{flag}={value}`, or `--` before the command"
            );
            return Err(Cli::command().error(clap::error::ErrorKind::ArgumentConflict, message));
        }
        Ok(cli)
    }
}

/// A switch that takes its value by `=` alone, followed by what looks like one: the box would start the other way round.
fn separated(args: impl Iterator<Item = OsString>) -> Option<(String, String)> {
    const SWITCHES: [&str; 5] = ["--network", "--docker", "--nesting", "--strict", "--trace-denials"];
    const VALUES: [&str; 6] = ["true", "false", "yes", "no", "on", "off"];
    let args: Vec<String> = args.map_while(|arg| arg.into_string().ok()).take_while(|arg| arg != "--").collect();
    let pair =
        args.windows(2).find(|pair| SWITCHES.contains(&pair[0].as_str()) && VALUES.contains(&pair[1].as_str()))?;
    Some((pair[0].clone(), pair[1].clone()))
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a sandbox (without one: your shell)
    #[command(after_help = RUN_HELP, after_long_help = run_help())]
    Run(Run),
    /// Run a piece of Python, JavaScript, TypeScript or bash in a sandbox, and bring back one result
    #[command(after_help = CODE_HELP)]
    Code(Code),
    /// Skills: registered pieces of code, scanned, run in a sandbox and accounted for
    #[command(subcommand)]
    Skill(Skill),
    /// Interpreters that keep variables between calls of `code --session … --context NAME`
    #[command(subcommand)]
    Context(Context),
    /// Live sandboxes: create one, run many commands in it, move files, end it
    #[command(subcommand)]
    Session(Session),
    /// Clear what sessions left that have ended or were killed
    Gc,
    /// Build the image of sandboxes that name none
    #[command(subcommand)]
    Image(Image),
    /// Say whether this is inside a sandbox: exit code 0 inside, 1 outside
    Check,
    /// Look at everything that the engines depend on, and say how to repair what is missing
    Doctor(Doctor),
    /// Look at the configuration
    #[command(subcommand)]
    Config(Config),
    /// Say whether a path could be read or written, or a host reached, and which rule decides
    Explain(Explain),
    /// List what was run, and how it ended
    History(History),
    /// Trust a project's `.ringfence.toml` with what it would loosen
    Trust(Trust),
    /// Make `ringfence mcp` known to an agent, after showing the change
    Install(Install),
    /// Give an agent the sandbox as tools, by MCP over standard input and output
    Mcp(Mcp),
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page
    Man,
}

const CODE_HELP: &str = "\
Exit codes: 0 it ran to its end, 1 it failed, 124 time limit, 125 Ringfence could not run it, 130 cancelled, 137 memory limit. \
--json tells all of them apart.";

impl Command {
    /// Whether its JSON object tells of a failure as well: it has more to say than others.
    pub fn says_its_failure(&self) -> bool {
        matches!(
            self,
            Command::Run(_) | Command::Code(_) | Command::Skill(Skill::Run(_)) | Command::Session(Session::Exec(_))
        )
    }
}

const RUN_HELP: &str = "\
Exit codes: the command's own; 124 time limit, 125 Ringfence could not run it, 126 it could not be executed, \
127 it was not found, 128+n it died by signal n.";

#[derive(Debug, Args)]
pub struct Code {
    #[command(flatten)]
    pub policy: PolicyFlags,

    /// The inputs, as JSON: `inputs` in the code, and a variable for each member
    #[arg(long, value_name = "JSON", conflicts_with = "input_file", help_heading = "Code")]
    pub input: Option<String>,

    /// The same from a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Code")]
    pub input_file: Option<PathBuf>,

    /// Put a copy of a file into the working directory of the code (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Code")]
    pub file: Vec<PathBuf>,

    /// Bring files back whose names match, such as `*.png` (repeatable)
    #[arg(long, value_name = "PATTERN", help_heading = "Code")]
    pub out: Vec<String>,

    /// Where they are put; nothing there is replaced
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Code")]
    pub out_dir: Option<PathBuf>,

    /// Let Python import installed packages
    #[arg(long, help_heading = "Code")]
    pub packages: bool,

    /// Run it in this session, under its policy
    #[arg(long, value_name = "SESSION", help_heading = "Code")]
    pub session: Option<String>,

    /// Keep its variables under this name for the next call
    #[arg(long, value_name = "NAME", requires = "session", help_heading = "Code")]
    pub context: Option<String>,

    /// Print the whole result as one JSON object
    #[arg(long)]
    pub json: bool,

    /// python, javascript, typescript or bash
    pub language: String,

    /// The file with the code; `-` is stdin
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub source: PathBuf,
}

/// For `--help`: what the names mean that `--preset` takes.
fn run_help() -> String {
    let presets = ringfence::policy::presets::names().map(|(name, help)| format!("  {name:<13} {help}\n"));
    format!("{RUN_HELP}\n\nPresets:\n{}", presets.collect::<String>())
}

#[derive(Debug, Default, PartialEq, Args)]
pub struct Run {
    #[command(flatten)]
    pub policy: PolicyFlags,

    /// Print what would be done, and start nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Say how each guarantee was enforced, on stderr or in FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, value_hint = ValueHint::FilePath)]
    pub report: Option<Option<PathBuf>>,

    /// Capture the output, and print one JSON object in its place
    #[arg(long)]
    pub json: bool,

    /// Say more on stderr
    #[arg(short, long)]
    pub verbose: bool,

    /// The command and its arguments; flags of Ringfence end here
    #[arg(value_name = "COMMAND", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

impl Run {
    /// Reads the plainest command lines without clap, whose definitions take a good part of the time in which a sandbox
    /// starts. `None` for everything else and for every doubt: then clap reads, and says what is wrong.
    fn read_plain(args: impl Iterator<Item = OsString>) -> Option<Run> {
        let mut run = Run::default();
        let mut args = args.peekable();
        while let Some(flag) = args.next_if(|arg| arg.as_encoded_bytes().starts_with(b"-")) {
            let (name, value) = match flag.to_str()?.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag.to_str()?, None),
            };
            let switch = match value {
                None | Some("true") => Some(true),
                Some("false") => Some(false),
                Some(_) => None,
            };
            let policy = &mut run.policy;
            let text = match name {
                "--" if value.is_none() => break,
                "--network" if policy.network.is_none() => {
                    policy.network = Some(switch?);
                    continue;
                }
                "--docker" if policy.docker.is_none() => {
                    policy.docker = Some(switch?);
                    continue;
                }
                "--profile" => &mut policy.profile,
                "--timeout" => &mut policy.timeout,
                "--memory" => &mut policy.memory,
                "--cpus" => &mut policy.cpus,
                "--pids" => &mut policy.pids,
                "--json" if value.is_none() && !run.json => {
                    run.json = true;
                    continue;
                }
                _ => return None,
            };
            let given = match value {
                Some(value) => value.to_owned(),
                None => args.next()?.into_string().ok()?,
            };
            // Said twice, or a flag in the place of a value.
            if text.is_some() || given.is_empty() || given.starts_with('-') {
                return None;
            }
            *text = Some(given);
        }
        run.command = args.collect();
        Some(run)
    }
}

/// Flags that shape the policy.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct PolicyFlags {
    /// What enforces the policy
    #[arg(long, value_parser = engine_parser(), value_name = "ENGINE", help_heading = "Policy")]
    pub engine: Option<EngineChoice>,

    /// Start from this profile: agent, shell, skill, home, or one of your own
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    pub profile: Option<String>,

    /// Use this configuration file instead of the project's `.ringfence.toml`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Policy")]
    pub config: Option<PathBuf>,

    /// Work in this directory
    #[arg(short = 'C', long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Policy")]
    pub cwd: Option<PathBuf>,

    /// Make the box of this container image (only Docker can)
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    pub image: Option<String>,

    /// Run as these ids inside, or as yourself (`caller`)
    #[arg(long, value_name = "UID:GID", help_heading = "Policy")]
    pub user: Option<String>,

    /// Share a package cache with other boxes: cargo, go, npm, pip, pnpm, uv, yarn (repeatable; only Docker can)
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    pub cache: Vec<String>,

    /// Let the network in, or keep it out (`--network=false`)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = clap::builder::BoolishValueParser::new(), help_heading = "Policy")]
    pub network: Option<bool>,

    /// Let the Docker socket in: whoever reaches it is root on this machine
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = clap::builder::BoolishValueParser::new(), help_heading = "Policy")]
    pub docker: Option<bool>,

    /// Leave user namespaces open inside, for a sandbox in the sandbox
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = clap::builder::BoolishValueParser::new(), help_heading = "Policy")]
    pub nesting: Option<bool>,

    /// Refuse what stands in for a guarantee, such as a watchdog for a control group
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = clap::builder::BoolishValueParser::new(), help_heading = "Policy")]
    pub strict: Option<bool>,

    /// Start also without this guarantee (repeatable)
    #[arg(long, value_name = "GUARANTEE", value_parser = parse_guarantee, help_heading = "Policy")]
    pub optional: Vec<Guarantee>,

    /// Watch for what the policy denies, and name it at the end
    #[arg(long, help_heading = "Policy")]
    pub trace_denials: bool,

    /// Make a path readable (repeatable; globs allowed)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    pub ro: Vec<String>,

    /// Make a path writable (repeatable; globs allowed)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    pub rw: Vec<String>,

    /// Hide what is in a path (repeatable; globs allowed)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Files")]
    pub exclude: Vec<String>,

    /// Add a preset of rules, or take it away with `!@name` (repeatable)
    #[arg(long, value_name = "@NAME", help_heading = "Files")]
    pub preset: Vec<String>,

    /// Pass a variable of the environment, or set it (repeatable)
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Environment")]
    pub env: Vec<OsString>,

    /// Memory of all processes together, such as 512m
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub memory: Option<String>,

    /// Processors, such as 0.5
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub cpus: Option<String>,

    /// Processes and threads
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub pids: Option<String>,

    /// Open files of each process
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub files: Option<String>,

    /// Time until the command is ended, such as 30s
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub timeout: Option<String>,

    /// Processor time of all processes together
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub cpu_time: Option<String>,

    /// Size of the private /tmp
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub tmp_size: Option<String>,

    /// Files and directories that the private /tmp can hold
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub tmp_inodes: Option<String>,

    /// Output that is kept when it is captured (--json)
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub output_limit: Option<String>,

    /// Let a system call through that the filter refuses (repeatable)
    #[arg(long, value_name = "NAME", help_heading = "Limits")]
    pub allow_syscall: Vec<String>,
}

/// The engines that a flag can name.
fn engine_parser() -> impl TypedValueParser<Value = EngineChoice> {
    let value = |engine: EngineChoice, help: &'static str| PossibleValue::new(engine.name()).help(help);
    let values = [
        value(EngineChoice::Auto, "The first that can honour the policy"),
        value(EngineChoice::Native, "Linux itself"),
        value(EngineChoice::Bubblewrap, "The bwrap program"),
        value(EngineChoice::Docker, "Containers"),
    ];
    PossibleValuesParser::new(values).map(|name| EngineChoice::from_name(&name).unwrap_or_default())
}

fn parse_guarantee(text: &str) -> Result<Guarantee, String> {
    text.parse().map_err(|error| {
        format!("{error}{}", Suggestion::among(text, Guarantee::ALL.iter().map(|guarantee| guarantee.id())))
    })
}

#[derive(Debug, Subcommand)]
pub enum Context {
    /// List the contexts of a session
    List {
        #[arg(value_name = "SESSION")]
        session: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Interrupt the code that runs in a context; its variables stay
    Interrupt {
        #[arg(value_name = "SESSION")]
        session: String,
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Begin a context anew, without its variables
    Restart {
        #[arg(value_name = "SESSION")]
        session: String,
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Image {
    /// Build the standard image from Debian packages (Python, Node, git, common tools), and give it to Docker
    Build {
        /// The archive as it was at a time, such as 20250520T000000Z: the same image every time
        #[arg(long, value_name = "TIME")]
        snapshot: Option<String>,
        /// Take packages from this mirror of Debian, as they are now
        #[arg(long, value_name = "URL", default_value = "http://deb.debian.org/debian", conflicts_with = "snapshot")]
        mirror: String,
        /// Call it so
        #[arg(long, value_name = "NAME")]
        tag: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum Session {
    /// Make a session, and print its id
    Create(Box<SessionCreate>),
    /// Run a command in a session
    #[command(after_help = RUN_HELP)]
    Exec(SessionExec),
    /// A terminal in a session
    Shell(SessionShell),
    /// List sessions
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Say everything about a session, and how each guarantee is kept
    Show {
        #[arg(value_name = "SESSION")]
        session: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print what was written in a session, as far as it is kept
    Logs(SessionLogs),
    /// Give a session more time
    Extend {
        #[arg(value_name = "SESSION")]
        session: String,
        /// What is left of its life from now on, such as 2h
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        life: Option<Duration>,
        /// It ends when it was idle for so long
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        idle: Option<Duration>,
    },
    /// End a session with everything in it, or one execution
    Stop {
        #[arg(value_name = "SESSION")]
        session: String,
        #[arg(value_name = "EXECUTION")]
        execution: Option<String>,
    },
    /// End sessions if they live, and forget them; a home of its own stays
    Rm {
        #[arg(value_name = "SESSION", required = true)]
        sessions: Vec<String>,
        /// Remove the home too, with all that is in it
        #[arg(long)]
        home: bool,
        /// Do not ask
        #[arg(long, requires = "home")]
        yes: bool,
    },
    /// Copy files and directories in (`SRC SESSION:DST`) or out (`SESSION:SRC DST`)
    Cp {
        #[arg(value_hint = ValueHint::AnyPath)]
        from: OsString,
        #[arg(value_hint = ValueHint::AnyPath)]
        to: OsString,
    },
    /// Let local programs connect to a port in a session
    Forward {
        #[arg(value_name = "SESSION")]
        session: String,
        /// The port inside; another one on this side with LOCAL:PORT, any free one with 0:PORT
        #[arg(value_name = "[LOCAL:]PORT", value_parser = parse_ports)]
        ports: (u16, u16),
    },
}

#[derive(Debug, Args)]
pub struct SessionCreate {
    /// A name for it, which no other live session has
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// Take the live session of this name if there is one
    #[arg(long, requires = "name")]
    pub reuse: bool,

    /// End it when it was idle for so long (`never`: do not)
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = parse_span)]
    pub idle: Span,

    /// End it after so long (`never`: do not)
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_span)]
    pub life: Span,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub policy: PolicyFlags,
}

/// A time that may be without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Option<Duration>);

#[derive(Debug, Default, PartialEq, Args)]
pub struct SessionExec {
    #[arg(value_name = "SESSION")]
    pub session: String,

    /// Time until the command is ended, such as 30s, up to the session's ceiling
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub timeout: Option<Duration>,

    /// Start in this directory of the session
    #[arg(short = 'C', long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,

    /// Pass a variable of the environment, or set it (repeatable)
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,

    /// Pass our standard input on; without, the command's is empty
    #[arg(long)]
    pub stdin: bool,

    /// Capture the output, and print one JSON object in its place
    #[arg(long)]
    pub json: bool,

    /// Print the id of the execution and leave it running
    #[arg(long, conflicts_with = "stdin")]
    pub background: bool,

    /// The command and its arguments; flags of Ringfence end here
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

impl SessionExec {
    /// Reads the plainest command lines without clap: see [`Run::read_plain`].
    fn read_plain(args: impl Iterator<Item = OsString>) -> Option<SessionExec> {
        let mut args = args;
        if args.next()? != "session" || args.next()? != "exec" {
            return None;
        }
        let mut exec = SessionExec::default();
        loop {
            let arg = args.next()?;
            match arg.to_str()? {
                "--" => break,
                "--json" if !exec.json => exec.json = true,
                "--stdin" if !exec.stdin => exec.stdin = true,
                text if text.starts_with('-') || text.is_empty() || !exec.session.is_empty() => return None,
                text => exec.session = text.to_owned(),
            }
        }
        exec.command = args.collect();
        (!exec.session.is_empty() && !exec.command.is_empty()).then_some(exec)
    }
}

#[derive(Debug, Args)]
pub struct SessionShell {
    #[arg(value_name = "SESSION")]
    pub session: String,

    /// Start in this directory of the session
    #[arg(short = 'C', long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,

    /// A program instead of a shell
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct SessionLogs {
    #[arg(value_name = "SESSION")]
    pub session: String,

    /// Of this execution alone, and nothing but what it wrote
    #[arg(value_name = "EXECUTION")]
    pub execution: Option<String>,

    /// Go on until it has ended
    #[arg(short, long, requires = "execution")]
    pub follow: bool,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

fn parse_span(text: &str) -> Result<Span, String> {
    if text == "never" { Ok(Span(None)) } else { parse_time(text).map(|time| Span(Some(time))) }
}

/// The local port and the one inside.
fn parse_ports(text: &str) -> Result<(u16, u16), String> {
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("`{text}` is not a port"));
    let (local, inside) = match text.split_once(':') {
        Some((local, inside)) => (port(local)?, port(inside)?),
        None => (port(text)?, port(text)?),
    };
    if inside == 0 { Err("port 0 is nobody's".to_owned()) } else { Ok((local, inside)) }
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// As root: make Docker's network of sandboxes, and close this host's services to it (once after each start)
    #[arg(long)]
    pub prepare_network: bool,
}

#[derive(Debug, Subcommand)]
pub enum Config {
    /// Print the resolved policy, with the origin of every value
    Show(ConfigShow),
}

#[derive(Debug, Args)]
pub struct ConfigShow {
    #[command(flatten)]
    pub policy: PolicyFlags,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Explain {
    #[command(flatten)]
    pub policy: PolicyFlags,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// A path (with a slash in it, or there), or the name or address of a host; without it: the working directory
    #[arg(value_name = "PATH|HOST", value_hint = ValueHint::AnyPath)]
    pub what: Option<OsString>,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct History {
    #[command(subcommand)]
    pub command: Option<HistoryCommand>,

    #[command(flatten)]
    pub list: HistoryList,
}

#[derive(Debug, Args)]
pub struct HistoryList {
    /// List the latest so many; 0 lists all
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: u64,

    /// List what began since then: `2h`, `2026-01-31`, `2026-01-31T12:00:00Z`
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,

    /// List what ended, or stands, like this
    #[arg(long, value_enum, value_name = "STATUS")]
    pub status: Option<StatusFlag>,

    /// List what ran under this profile
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,

    /// List commands with this text in them
    #[arg(long, value_name = "TEXT")]
    pub command: Option<String>,

    /// List what ran in this session
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum HistoryCommand {
    /// Print everything about one record
    Show {
        /// The id, or the beginning of it
        id: String,

        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove old records; without flags: as configured
    Prune(HistoryPrune),
    /// Change the tables of the database to another version, for an older Ringfence
    Migrate {
        /// The version
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
        to: i64,
    },
}

#[derive(Debug, Args)]
pub struct HistoryPrune {
    /// Remove what began longer ago than this, such as 30d
    #[arg(long, value_name = "TIME")]
    pub older_than: Option<String>,

    /// Remove the oldest until the rest is no larger than this, such as 100m
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The statuses that a flag can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusFlag {
    /// Not ended yet
    Running,
    /// The command ended by itself
    Exited,
    /// A signal ended it
    Signaled,
    /// Ringfence could not run it
    Failed,
    /// Whoever ran it was killed
    Interrupted,
}

impl From<StatusFlag> for Status {
    fn from(flag: StatusFlag) -> Status {
        match flag {
            StatusFlag::Running => Status::Running,
            StatusFlag::Exited => Status::Exited,
            StatusFlag::Signaled => Status::Signaled,
            StatusFlag::Failed => Status::Failed,
            StatusFlag::Interrupted => Status::Interrupted,
        }
    }
}

#[derive(Debug, Args)]
pub struct Trust {
    /// The file; without it: `.ringfence.toml` of this directory
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    /// Take the trust back
    #[arg(long, conflicts_with = "yes")]
    pub remove: bool,

    /// List what is trusted
    #[arg(long, conflicts_with_all = ["file", "yes", "remove"])]
    pub list: bool,
}

#[derive(Debug, Args)]
pub struct Mcp {
    #[command(flatten)]
    pub policy: PolicyFlags,

    /// A directory that the agent may work in (repeatable); without it: this one
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "cwd")]
    pub root: Vec<PathBuf>,

    /// Keep the sandbox under this name when the agent goes, and use it again
    #[arg(long, value_name = "NAME")]
    pub keep: Option<String>,
}

#[derive(Debug, Args)]
pub struct Install {
    /// The agent
    #[arg(value_enum)]
    pub client: Client,

    /// For you, or for everybody who works in this project
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,

    /// Take the entry out again
    #[arg(long)]
    pub remove: bool,

    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    /// Print the change, and write nothing
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}

/// A flag whose value cannot be understood, by its name.
#[derive(Debug, thiserror::Error)]
#[error("--{flag}: {source}")]
pub struct BadFlag {
    flag: &'static str,
    source: FlagError,
}

impl PolicyFlags {
    /// The layer that the flags make.
    pub fn layer(&self) -> Result<Layer, BadFlag> {
        let mut layer = Layer::flags();
        if let Some(name) = &self.profile {
            layer.profile(name);
        }
        if let Some(engine) = self.engine {
            layer.engine(engine);
        }
        type Switch = fn(&mut Layer, bool);
        let switches: [(Option<bool>, Switch); 5] = [
            (self.network, Layer::network),
            (self.docker, Layer::docker),
            (self.nesting, Layer::nesting),
            (self.strict, Layer::strict),
            (self.trace_denials.then_some(true), Layer::trace_denials),
        ];
        for (value, set) in switches {
            if let Some(value) = value {
                set(&mut layer, value);
            }
        }
        self.ro.iter().for_each(|path| layer.ro(path));
        self.rw.iter().for_each(|path| layer.rw(path));
        self.exclude.iter().for_each(|path| layer.exclude(path));
        self.optional.iter().for_each(|guarantee| layer.optional(*guarantee));
        for variable in &self.env {
            layer.env(variable).map_err(|source| BadFlag { flag: "env", source })?;
        }
        self.texts(&mut layer)?;
        Ok(layer)
    }

    fn texts(&self, layer: &mut Layer) -> Result<(), BadFlag> {
        type Set = fn(&mut Layer, &str) -> Result<(), FlagError>;
        let repeated: [(&'static str, &[String], Set); 3] = [
            ("preset", &self.preset, Layer::preset),
            ("cache", &self.cache, Layer::cache),
            ("allow-syscall", &self.allow_syscall, Layer::allow_syscall),
        ];
        let single: [(&'static str, &Option<String>, Set); 11] = [
            ("image", &self.image, Layer::image),
            ("user", &self.user, Layer::user),
            ("memory", &self.memory, Layer::memory),
            ("cpus", &self.cpus, Layer::cpus),
            ("pids", &self.pids, Layer::pids),
            ("files", &self.files, Layer::files),
            ("timeout", &self.timeout, Layer::timeout),
            ("cpu-time", &self.cpu_time, Layer::cpu_time),
            ("tmp-size", &self.tmp_size, Layer::tmp_size),
            ("tmp-inodes", &self.tmp_inodes, Layer::tmp_inodes),
            ("output-limit", &self.output_limit, Layer::output_limit),
        ];
        let single = single.iter().map(|(flag, text, set)| (*flag, text.as_slice(), *set));
        for (flag, texts, set) in repeated.into_iter().chain(single) {
            for text in texts {
                set(layer, text).map_err(|source| BadFlag { flag, source })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What clap makes of `ringfence run` with these arguments.
    fn by_clap(args: &[&str]) -> Option<Run> {
        match Cli::try_parse_from([&["ringfence", "run"], args].concat()).ok()?.command {
            Command::Run(run) => Some(run),
            _ => None,
        }
    }

    fn plain(args: &[&str]) -> Option<Run> {
        Run::read_plain(args.iter().map(OsString::from))
    }

    #[test]
    fn plain_lines_are_read_as_clap_reads_them() {
        let words = [
            "--network",
            "--network=false",
            "--network=true",
            "--docker=false",
            "--json",
            "--profile",
            "--profile=shell",
            "--timeout",
            "--timeout=1s",
            "--memory",
            "--cpus=0.5",
            "--pids",
            "--",
            "ls",
            "-la",
            "64",
            "",
            "--bogus",
            "--json=x",
            "--network=maybe",
            "--profile=",
            "--help",
            "-v",
        ];
        let mut read = 0;
        for a in words {
            for b in words {
                for c in words {
                    let line = [a, b, c];
                    if let Some(run) = plain(&line) {
                        assert_eq!(Some(run), by_clap(&line), "{line:?}");
                        read += 1;
                    }
                }
            }
        }
        assert!(read > 1000, "{read}");
        assert!(plain(&[]).is_some() && plain(&["--network=false", "--", "/bin/true"]).is_some());
    }

    #[test]
    fn plain_session_lines_are_read_as_clap_reads_them() {
        let words =
            ["s", "--json", "--stdin", "--", "ls", "-la", "--cwd", "--timeout=1s", "", "--bogus", "--background"];
        let mut read = 0;
        for a in words {
            for b in words {
                for c in words {
                    for d in words {
                        let line = ["session", "exec", a, b, c, d];
                        let Some(plain) = SessionExec::read_plain(line.iter().map(OsString::from)) else { continue };
                        let clap = Cli::try_parse_from([&["ringfence"], &line[..]].concat()).ok();
                        let clap = clap.and_then(|cli| match cli.command {
                            Command::Session(Session::Exec(exec)) => Some(exec),
                            _ => None,
                        });
                        assert_eq!(Some(plain), clap, "{line:?}");
                        read += 1;
                    }
                }
            }
        }
        assert!(read > 50, "{read}");
    }

    #[test]
    fn definitions_are_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
