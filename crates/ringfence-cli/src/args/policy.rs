//! Flags that shape the policy, and the [`Layer`] that they make.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use ringfence::engines;
use ringfence::host::Request;
use ringfence::policy::Guarantee;
use ringfence::policy::layer::{Layer, SettingError};
use ringfence::policy::profiles::EngineChoice;
use ringfence::policy::suggest::Suggestion;

// Flags that shape the policy. Doc comments would become the help of the commands that have them.
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

    /// Make the box of this container image (on an engine with images)
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    pub image: Option<String>,

    /// Run as these ids inside, or as yourself (`caller`)
    #[arg(long, value_name = "UID:GID", help_heading = "Policy")]
    pub user: Option<String>,

    /// Share a package cache with other boxes: cargo, go, npm, pip, pnpm, uv, yarn (repeatable; on an engine with volumes)
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
    let engines = engines::all().into_iter().map(|engine| PossibleValue::new(engine.name()).help(engine.about()));
    let auto = PossibleValue::new(EngineChoice::AUTO).help("The first that can honour the policy");
    PossibleValuesParser::new([auto].into_iter().chain(engines)).map(EngineChoice::from_name)
}

fn parse_guarantee(text: &str) -> Result<Guarantee, String> {
    text.parse().map_err(|error| {
        format!("{error}{}", Suggestion::among(text, Guarantee::ALL.iter().map(|guarantee| guarantee.id())))
    })
}

/// A flag whose value cannot be understood, by its name.
#[derive(Debug, thiserror::Error)]
#[error("--{flag}: {source}")]
pub struct BadFlag {
    flag: &'static str,
    source: SettingError,
}

impl PolicyFlags {
    /// What the flags ask of a host.
    pub fn request(&self) -> Result<Request, BadFlag> {
        Ok(Request { layer: self.layer()?, config: self.config.clone(), workdir: self.cwd.clone() })
    }

    /// The layer that the flags make.
    fn layer(&self) -> Result<Layer, BadFlag> {
        let mut layer = Layer::flags();
        if let Some(name) = &self.profile {
            layer.profile(name);
        }
        if let Some(engine) = self.engine.clone() {
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
        type Set = fn(&mut Layer, &str) -> Result<(), SettingError>;
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

/// Names of the flags that are on or off, without their dashes.
pub fn switches() -> Vec<String> {
    let definitions = PolicyFlags::augment_args(clap::Command::new("flags"));
    let switch = |arg: &&clap::Arg| arg.get_value_names().is_some_and(|names| names == ["BOOL"]);
    definitions.get_arguments().filter(switch).filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}
