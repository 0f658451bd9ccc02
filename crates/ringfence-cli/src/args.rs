//! The command line: names, help and parsers. Raw arguments become a `Layer` here, and nothing else is decided.

mod history;
mod policy;
mod session;
#[cfg(test)]
mod tests;

mod skill;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};

pub use history::{History, HistoryCommand, HistoryList, HistoryPrune};
pub use policy::{BadFlag, PolicyFlags, switches};
pub use session::{Session, SessionCreate, SessionExec, SessionLogs, SessionShell, Span};

pub use skill::{Skill, SkillAdd, SkillChange, SkillRun, SkillScan};

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
        Cli::of(&std::env::args_os().collect::<Vec<_>>())
    }

    fn of(args: &[OsString]) -> Result<Cli, clap::Error> {
        let cli = Cli::try_parse_from(args)?;
        // Up to the first word of the command, which may be meant as a value. The others are the command's own.
        let others = cli.command.words().len().saturating_sub(1);
        if let Some((flag, value)) = separated(&args[..args.len() - others]) {
            let message = format!(
                "`{flag} {value}` would switch it on and run `{value}`: write `{flag}={value}`, or `--` before the command"
            );
            return Err(Cli::command().error(clap::error::ErrorKind::ArgumentConflict, message));
        }
        Ok(cli)
    }
}

/// A switch that takes its value by `=` alone, followed by what looks like one: the sandbox would start the other way round.
fn separated(args: &[OsString]) -> Option<(&str, &str)> {
    const VALUES: [&str; 6] = ["true", "false", "yes", "no", "on", "off"];
    let args: Vec<&str> = args.iter().map_while(|arg| arg.to_str()).take_while(|arg| *arg != "--").collect();
    let mut pairs = args.windows(2).filter(|pair| pair[0].starts_with("--") && VALUES.contains(&pair[1]));
    let pair = pairs.find(|pair| switches().iter().any(|switch| pair[0][2..] == *switch))?;
    Some((pair[0], pair[1]))
}

// `defer`: only the definition of the command that is named is made. All of them take a good part of the time in which a
// sandbox starts.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// Run a command in a sandbox (without one: your shell)
    #[command(after_help = RUN_HELP, after_long_help = run_help())]
    Run(Run),
    /// Run a piece of Python, JavaScript, TypeScript or bash in a sandbox, and bring back one result
    #[command(after_help = CODE_HELP)]
    Code(Box<Code>),
    /// Skills: registered pieces of code, scanned, run in a sandbox and accounted for
    #[command(subcommand)]
    Skill(Skill),
    /// Packages that were installed for `--requirements`
    #[command(subcommand)]
    Requirements(Requirements),
    /// Interpreters that keep variables between calls of `code --session … --context NAME`
    #[command(subcommand)]
    Context(Context),
    /// Live sandboxes: create one, run many commands in it, move files, end it
    #[command(subcommand)]
    Session(Session),
    /// Clear what sessions and installations left that have ended or were killed
    Gc {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Build the image of sandboxes that name none
    #[cfg(feature = "docker")]
    #[command(subcommand)]
    Image(Image),
    /// Say whether this is inside a sandbox: exit code 0 inside, 1 outside
    Check(Check),
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

    /// What is run in the sandbox: the last words of the command line.
    fn words(&self) -> &[OsString] {
        match self {
            Command::Run(run) => &run.command,
            Command::Session(Session::Exec(exec)) => &exec.command,
            Command::Session(Session::Shell(shell)) => &shell.command,
            _ => &[],
        }
    }
}

const RUN_HELP: &str = "\
Exit codes: the command's own; 124 time limit, 125 Ringfence could not run it, 126 it could not be executed, \
127 it was not found, 128+n it died by signal n.";

// What code is given, and what is brought back. No doc comment: it would become the help of the commands that have this.
#[derive(Debug, Default, PartialEq, Args)]
pub struct Given {
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
}

// Packages that code needs.
#[derive(Debug, Default, PartialEq, Args)]
pub struct Required {
    /// Install the packages that this file names, once, and let the code import them: a requirements.txt, or a
    /// package-lock.json
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Code")]
    pub requirements: Option<PathBuf>,

    /// Where they come from, instead of PyPI or npm's registry
    #[arg(long, value_name = "URL", requires = "requirements", help_heading = "Code")]
    pub index: Option<String>,
}

#[derive(Debug, Default, PartialEq, Args)]
pub struct Code {
    #[command(flatten)]
    pub policy: PolicyFlags,

    #[command(flatten)]
    pub given: Given,

    /// Run it in this session, under its policy
    #[arg(long, value_name = "SESSION", help_heading = "Code")]
    pub session: Option<String>,

    /// Keep its variables under this name for the next call
    #[arg(long, value_name = "NAME", requires = "session", help_heading = "Code")]
    pub context: Option<String>,

    #[command(flatten)]
    pub required: Required,

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

#[derive(Debug, Subcommand)]
pub enum Requirements {
    /// List what is installed, the latest first
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove what is installed; code that needs it installs it again
    Rm {
        /// Ids, as `requirements list` shows them
        #[arg(value_name = "ID", required_unless_present = "all")]
        ids: Vec<String>,
        /// Everything that no code uses now
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum Context {
    /// List the contexts of a session
    List {
        /// Id or name of the session
        #[arg(value_name = "SESSION")]
        session: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Interrupt the code that runs in a context; its variables stay
    Interrupt {
        /// Id or name of the session
        #[arg(value_name = "SESSION")]
        session: String,
        /// Name of the context
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Begin a context anew, without its variables
    Restart {
        /// Id or name of the session
        #[arg(value_name = "SESSION")]
        session: String,
        /// Name of the context
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[cfg(feature = "docker")]
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
pub struct Check {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
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

    /// With --list: print one JSON object
    #[arg(long, requires = "list")]
    pub json: bool,
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
