//! `ringfence session …`: its subcommands and their flags.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueHint};
use ringfence::policy::limits::{LimitError, parse_duration, parse_size};

use super::{PolicyFlags, RUN_HELP, Required};

#[derive(Debug, Subcommand)]
#[command(defer = true)]
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
        /// Id or name of the session
        #[arg(value_name = "SESSION")]
        session: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print what was written in a session, as far as it is kept
    Logs(SessionLogs),
    /// Give a session more time
    #[command(group(ArgGroup::new("time").args(["life", "idle"]).required(true).multiple(true)))]
    Extend {
        /// Id or name of the session
        #[arg(value_name = "SESSION")]
        session: String,
        /// What is left of its life from now on, such as 2h (`never`: no end)
        #[arg(long, value_name = "TIME", value_parser = parse_span)]
        life: Option<Span>,
        /// It ends when it was idle for so long (`never`: it does not)
        #[arg(long, value_name = "TIME", value_parser = parse_span)]
        idle: Option<Span>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Stop everything in a session, without a signal, until it is thawed
    Freeze {
        /// Id or name of the session
        #[arg(value_name = "SESSION")]
        session: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let a frozen session go on
    Thaw {
        /// Id or name of the session
        #[arg(value_name = "SESSION")]
        session: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// End a session with everything in it, or one execution
    Stop {
        /// Id or name of the session
        #[arg(value_name = "SESSION")]
        session: String,
        /// The execution to end, by its number; without, the session ends
        #[arg(value_name = "EXECUTION")]
        execution: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// End sessions if they live, and forget them; a home of its own stays
    Rm {
        /// Ids or names of the sessions
        #[arg(value_name = "SESSION", required = true)]
        sessions: Vec<String>,
        /// Remove the home too, with all that is in it
        #[arg(long)]
        home: bool,
        /// Do not ask
        #[arg(long, requires = "home")]
        yes: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Copy files and directories in (`SRC SESSION:DST`) or out (`SESSION:SRC DST`)
    Cp {
        /// What is copied: a path, or SESSION:PATH
        #[arg(value_hint = ValueHint::AnyPath)]
        from: OsString,
        /// Where it goes: SESSION:PATH, or a path
        #[arg(value_hint = ValueHint::AnyPath)]
        to: OsString,
        /// How much may come out in all (`never`: no bound but the disk)
        #[arg(long, value_name = "SIZE", default_value = "10g", value_parser = parse_bound)]
        max_size: Bound,
        /// Copy out protected names too, such as `.git` and `.vscode`: programs outside execute what is in them
        #[arg(long)]
        include_protected: bool,
    },
    /// Let local programs connect to a port in a session
    Forward {
        /// Id or name of the session
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

    /// End it when it was idle for so long (`never`: do not); 30m unless the configuration says otherwise
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    pub idle: Option<Span>,

    /// End it after so long (`never`: do not); 24h unless the configuration says otherwise
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    pub life: Option<Span>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub required: Required,

    #[command(flatten)]
    pub policy: PolicyFlags,
}

/// A size that may be without bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound(pub Option<u64>);

/// A time that may be without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Option<Duration>);

#[derive(Debug, Default, PartialEq, Args)]
pub struct SessionExec {
    /// Id or name of the session
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

#[derive(Debug, Args)]
pub struct SessionShell {
    /// Id or name of the session
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
    /// Id or name of the session
    #[arg(value_name = "SESSION")]
    pub session: String,

    /// Of this execution alone, and nothing but what it wrote
    #[arg(value_name = "EXECUTION")]
    pub execution: Option<String>,

    /// Go on until it has ended
    #[arg(short, long, requires = "execution")]
    pub follow: bool,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// A limit is taken away with `none`, an end with `never`; both words do for both.
fn is_none(text: &str) -> bool {
    matches!(text, "never" | "none")
}

fn parse_span(text: &str) -> Result<Span, String> {
    match parse_duration(text) {
        _ if is_none(text) => Ok(Span(None)),
        Ok(time) => Ok(Span(Some(time))),
        Err(LimitError::NoTime) => Err("use at least 1s, or `never`".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_bound(text: &str) -> Result<Bound, String> {
    match text {
        none if is_none(none) => Ok(Bound(None)),
        size => parse_size(size).map(|size| Bound(Some(size))).map_err(|error| error.to_string()),
    }
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
