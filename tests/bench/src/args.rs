//! The command line of `./bench`.

use std::path::PathBuf;

pub const HELP: &str = "\
Usage: ./bench [--quick] [--json FILE] [--svg FILE] [--only SECTIONS] [--user NAME] [--load N,M,S] [--idle N] [--code N]

  --quick          fewer samples, about a minute
  --json FILE      every figure as JSON
  --svg FILE       a chart
  --only SECTIONS  some of cold,crowd,work,session,docker,idle,mcp,code (with commas)
  --user NAME      as root: the account for the second pass (else ringfence-test, the caller of sudo, or nobody)
  --load N,M,S     N sessions, M of them executing at any time, for S seconds (500,50,600 is what is promised)
  --idle N         idle sandboxes at once (1000; with --quick 100)
  --code N         executions of code from a pool, for their rate and for what they leave (10000; with --quick 500)

The table goes to stdout, talk to stderr. Figures are ratios to a bare fork+exec of the same command in the same run.";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Cold,
    Crowd,
    Work,
    Session,
    Docker,
    Idle,
    Mcp,
    Code,
}

impl Section {
    pub const ALL: [Section; 8] = [
        Section::Cold,
        Section::Crowd,
        Section::Work,
        Section::Session,
        Section::Docker,
        Section::Idle,
        Section::Mcp,
        Section::Code,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Section::Cold => "cold",
            Section::Crowd => "crowd",
            Section::Work => "work",
            Section::Session => "session",
            Section::Docker => "docker",
            Section::Idle => "idle",
            Section::Mcp => "mcp",
            Section::Code => "code",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Args {
    pub quick: bool,
    pub json: Option<PathBuf>,
    pub svg: Option<PathBuf>,
    pub sections: Vec<Section>,
    pub user: Option<String>,
    pub idle: usize,
    /// Executions of code from a pool.
    pub code: u64,
    /// Sessions, how many of them execute, and for how many seconds.
    pub load: Option<(usize, usize, u64)>,
    /// The directory that `./bench` made and removes, with the programs in it.
    pub work_in: PathBuf,
    /// The pass of another account: JSON on stdout, for the process that started it.
    pub pass: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    #[error("{HELP}")]
    Help,
    #[error("{0} needs a value")]
    NoValue(String),
    #[error("`{0}` is not understood; ./bench --help")]
    Unknown(String),
    #[error("start it as ./bench")]
    NotFromScript,
}

impl Args {
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Args, ArgsError> {
        let mut parsed = Args {
            quick: false,
            json: None,
            svg: None,
            sections: Section::ALL.to_vec(),
            user: None,
            idle: 0,
            code: 0,
            load: None,
            work_in: PathBuf::new(),
            pass: false,
        };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let (flag, inline) = match arg.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (arg, None),
            };
            let mut value = || inline.clone().or_else(|| args.next()).ok_or_else(|| ArgsError::NoValue(flag.clone()));
            match flag.as_str() {
                "--help" | "-h" => return Err(ArgsError::Help),
                "--quick" => parsed.quick = true,
                "--pass" => parsed.pass = true,
                "--json" => parsed.json = Some(value()?.into()),
                "--svg" => parsed.svg = Some(value()?.into()),
                "--work-in" => parsed.work_in = value()?.into(),
                "--user" => parsed.user = Some(value()?),
                "--only" => parsed.sections = value()?.split(',').map(section).collect::<Result<_, _>>()?,
                "--load" => {
                    let text = value()?;
                    let numbers: Vec<u64> = text.split(',').filter_map(|n| n.parse().ok()).filter(|n| *n > 0).collect();
                    let [sessions, executing, seconds] = numbers[..] else { return Err(ArgsError::Unknown(text)) };
                    parsed.load = Some((sessions as usize, executing as usize, seconds));
                }
                "--idle" => {
                    let text = value()?;
                    parsed.idle = text.parse().ok().filter(|n| *n > 0).ok_or(ArgsError::Unknown(text))?;
                }
                "--code" => {
                    let text = value()?;
                    parsed.code = text.parse().ok().filter(|n| *n > 0).ok_or(ArgsError::Unknown(text))?;
                }
                _ => return Err(ArgsError::Unknown(flag)),
            }
        }
        if parsed.work_in.as_os_str().is_empty() {
            return Err(ArgsError::NotFromScript);
        }
        if parsed.idle == 0 {
            parsed.idle = if parsed.quick { 100 } else { 1000 };
        }
        if parsed.code == 0 {
            parsed.code = if parsed.quick { 500 } else { 10_000 };
        }
        Ok(parsed)
    }

    pub fn wants(&self, section: Section) -> bool {
        self.sections.contains(&section)
    }
}

fn section(name: &str) -> Result<Section, ArgsError> {
    Section::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| ArgsError::Unknown(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Args, ArgsError> {
        Args::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn flags() {
        let args = parse("--work-in /w --quick --json=a.json --only cold,idle").unwrap();
        assert!(args.quick && args.idle == 100 && args.json == Some("a.json".into()));
        assert!(args.wants(Section::Idle) && !args.wants(Section::Work));
        assert_eq!(parse("--work-in /w --idle 7").unwrap().idle, 7);
        assert_eq!(parse("--work-in /w --load 500,50,600").unwrap().load, Some((500, 50, 600)));
        for wrong in [
            "",
            "--work-in",
            "--work-in /w --idle 0",
            "--work-in /w --only hot",
            "--work-in /w --load 5,0",
            "--work-in /w x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
