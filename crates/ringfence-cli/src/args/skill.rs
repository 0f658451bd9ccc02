//! `ringfence skill`: names, help and parsers.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueHint};
use ringfence::policy::service::Verdict;
use ringfence::skills::Source;

use super::{Given, PolicyFlags, Required};

#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum Skill {
    /// Scan a piece of code and register it; the same name again is another version
    Add(SkillAdd),
    /// Say what a person should look at, in a registered skill or in a file
    #[command(after_help = "Exit codes: 0 clean, 1 review, 2 dangerous.")]
    Scan(SkillScan),
    /// Run a registered skill in a sandbox
    #[command(after_help = super::CODE_HELP)]
    Run(Box<SkillRun>),
    /// List skills, the latest version of each
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Say everything about a skill: its versions, what its inputs must be like, what the scan found
    Show {
        /// NAME, NAME@VERSION or NAME@HASH
        skill: String,
        /// Print the code itself
        #[arg(long, conflicts_with = "json")]
        code: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// List what ran of a skill, also when it was removed
    History {
        #[arg(value_name = "NAME")]
        name: String,
        /// List the latest so many; 0 lists all
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u64,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let a skill run no more: all versions, or NAME@VERSION
    Disable(SkillChange),
    /// Let a skill run again: all versions, or NAME@VERSION
    Enable(SkillChange),
    /// Remove a skill: all versions, or NAME@VERSION; its history stays
    Rm(SkillChange),
}

#[derive(Debug, Args)]
pub struct SkillChange {
    /// NAME, NAME@VERSION or NAME@HASH
    pub skill: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SkillAdd {
    /// The file with the code; `-` is stdin
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,

    /// What it is called; without it: the name of the file
    #[arg(long)]
    pub name: Option<String>,

    /// Where it comes from; without it: as its latest version, or local
    #[arg(long, value_parser = source_parser())]
    pub source: Option<Source>,

    /// The version; without it: the next number
    #[arg(long)]
    pub version: Option<String>,

    /// python, javascript, typescript or bash; without it: by the name of the file
    #[arg(long)]
    pub language: Option<String>,

    /// A JSON Schema of its inputs, which are checked before it runs
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub inputs: Option<PathBuf>,

    /// A host that it is known to reach: no finding for the scan; it opens nothing (repeatable)
    #[arg(long, value_name = "HOST")]
    pub host: Vec<String>,

    #[command(flatten)]
    pub required: Required,

    /// Tell other programs that it may run without a sandbox; Ringfence always uses one
    #[arg(long)]
    pub sandbox_optional: bool,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SkillScan {
    /// NAME, NAME@VERSION or NAME@HASH: scanned again, and the result is kept
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub skill: Option<String>,

    /// A file that is not registered; `-` is stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    /// python, javascript, typescript or bash; without it: by the name of the file
    #[arg(long, requires = "file")]
    pub language: Option<String>,

    /// A host that it is known to reach: no finding (repeatable)
    #[arg(long, value_name = "HOST", requires = "file")]
    pub host: Vec<String>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SkillRun {
    /// NAME, NAME@VERSION or NAME@HASH; without a version: the latest
    pub skill: String,

    #[command(flatten)]
    pub policy: PolicyFlags,

    /// Run it although the scan says so: clean, review or dangerous
    #[arg(long, value_parser = verdict_parser(), help_heading = "Policy")]
    pub verdict: Option<Verdict>,

    #[command(flatten)]
    pub given: Given,

    /// Print the whole result as one JSON object
    #[arg(long)]
    pub json: bool,
}

fn source_parser() -> impl TypedValueParser<Value = Source> {
    PossibleValuesParser::new(Source::ALL.map(Source::name))
        .map(|name| Source::from_name(&name).unwrap_or(Source::Community))
}

fn verdict_parser() -> impl TypedValueParser<Value = Verdict> {
    PossibleValuesParser::new(Verdict::ALL.map(Verdict::name))
        .map(|name| Verdict::from_name(&name).unwrap_or(Verdict::Clean))
}
