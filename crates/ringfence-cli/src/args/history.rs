//! `ringfence history …`: its subcommands and their flags.

use clap::{Args, Subcommand, ValueEnum};
use ringfence::records::Status;

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

    /// List what ran in this session (its id, or its name as long as that is known)
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
#[command(defer = true)]
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
    /// Its session ended under it.
    Lost,
}

impl From<StatusFlag> for Status {
    fn from(flag: StatusFlag) -> Status {
        match flag {
            StatusFlag::Running => Status::Running,
            StatusFlag::Exited => Status::Exited,
            StatusFlag::Signaled => Status::Signaled,
            StatusFlag::Failed => Status::Failed,
            StatusFlag::Interrupted => Status::Interrupted,
            StatusFlag::Lost => Status::Lost,
        }
    }
}
