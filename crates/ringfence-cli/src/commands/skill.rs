//! `ringfence skill`: registers, scans, runs and accounts for skills.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use ringfence::code::{CodeResult, Language};
use ringfence::policy::service::Verdict;
use ringfence::records::SkillRun;
use ringfence::skills::registry::{Changed, Listed, Which, check_hosts};
use ringfence::skills::scan::Scan;
use ringfence::skills::{New, Registry, SCANNER_WORDS, Scanner, Schema, Skill, SkillError, scan_inside};
use serde::Serialize;

use crate::args::{self, SkillAdd, SkillChange, SkillScan};
use crate::commands::code::Room;
use crate::commands::{code, failed_in_json, history, requirements};
use crate::failure::{Failure, Kind};
use crate::host;
use crate::output::{self, printable};

/// Without `--profile`.
const PROFILE: &str = "skill";

pub fn skill(command: args::Skill) -> Result<ExitCode, Failure> {
    match command {
        args::Skill::Add(add) => self::add(&add),
        args::Skill::Scan(scan) => self::scan(&scan),
        args::Skill::Run(run) => self::run(*run),
        args::Skill::List { json } => list(json),
        args::Skill::Show { skill, code, json } => show(&Which::parse(&skill), code, json),
        args::Skill::History { name, limit, json } => executions(&name, limit, json),
        args::Skill::Disable(change) => self::change(&change, Act::Disabled),
        args::Skill::Enable(change) => self::change(&change, Act::Enabled),
        args::Skill::Rm(change) => self::change(&change, Act::Removed),
    }
}

/// Becomes the scanner in its sandbox, when that is what this process was started for.
pub fn scanner_inside() -> Option<ExitCode> {
    let args = std::env::args_os().skip(1);
    if !args.eq(SCANNER_WORDS) {
        return None;
    }
    let scanned = scan_inside(std::io::stdin().lock(), std::io::stdout().lock());
    Some(if scanned.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn scanner() -> Result<Scanner, Failure> {
    Ok(Scanner::Sandboxed(Box::new(host::here()?)))
}

fn registry() -> Result<Registry, Failure> {
    Ok(Registry::of(host::here()?.archive()?.connect()?))
}

/// To be looked at: nothing is made.
fn shown() -> Result<Registry, Failure> {
    Ok(Registry::of(host::here()?.archive()?.connect_to_look()?))
}

fn add(args: &SkillAdd) -> Result<ExitCode, Failure> {
    let stem = args.file.file_stem().and_then(|stem| stem.to_str()).filter(|stem| *stem != "-");
    let name = args.name.clone().or_else(|| stem.map(str::to_owned));
    let name = name.ok_or_else(|| Failure::new(Kind::Usage, "a skill needs a name").hint("write --name NAME"))?;
    let inputs = args.inputs.as_deref().map(|path| {
        let text = code::read_source(path)?;
        Ok::<_, Failure>(Schema::parse(&text, &path.display().to_string())?)
    });
    let language = language(args.language.as_deref(), &args.file)?;
    let new = New {
        name,
        version: args.version.clone(),
        language,
        code: code::read_source(&args.file)?,
        source: args.source,
        requirements: requirements::read(language, &args.required)?,
        inputs: inputs.transpose()?,
        hosts: args.host.clone(),
        sandbox_required: !args.sandbox_optional,
    };
    let mut registry = registry()?;
    let skill = registry.add(&new, &scanner()?)?;
    if args.json {
        output::json(&skill)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::data(&format!("{}@{} {}\n", skill.name, skill.version, skill.hash))?;
    let versions = registry.versions(&Which { name: skill.name.clone(), version: None })?.skills;
    let mut others = versions.iter().filter(|other| other.version != skill.version);
    if let Some(same) = others.clone().find(|other| other.hash == skill.hash) {
        output::say(&format!("ringfence: the same code is there as {}@{} too", same.name, same.version));
    }
    if args.inputs.is_none() && skill.inputs.is_some() && others.next().is_some() {
        output::say("ringfence: it has the input schema that was there before; --inputs names another");
    }
    if let Some(scan) = &skill.scan {
        output::say(findings(scan).trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// The language that is named, or the one of the file's name.
fn language(named: Option<&str>, file: &Path) -> Result<&'static Language, Failure> {
    if let Some(name) = named {
        return code::language(name);
    }
    let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    Language::named(extension).ok_or_else(|| {
        let message = format!("the name `{}` does not say which language it is", file.display());
        Failure::new(Kind::Usage, message).hint("write --language python, javascript, typescript or bash")
    })
}

fn scan(args: &SkillScan) -> Result<ExitCode, Failure> {
    let scan = match (&args.skill, &args.file) {
        (Some(skill), _) => registry()?.rescan(&Which::parse(skill), &scanner()?)?.scan,
        (None, Some(file)) => {
            let language = language(args.language.as_deref(), file)?;
            check_hosts(&args.host)?;
            Some(scanner()?.scan(language, &code::read_source(file)?, &args.host)?)
        }
        (None, None) => None,
    };
    let scan = scan.ok_or_else(|| Failure::new(Kind::Usage, "nothing to scan"))?;
    if args.json {
        output::json(&scan)?
    } else {
        output::data(&findings(&scan))?
    }
    Ok(ExitCode::from(match scan.verdict {
        Verdict::Clean => 0,
        Verdict::Review => 1,
        Verdict::Dangerous => 2,
    }))
}

/// A line for each finding, then the verdict.
fn findings(scan: &Scan) -> String {
    let mut text = String::new();
    for finding in &scan.findings {
        let severity = serde_json::to_value(finding.severity).unwrap_or_default();
        let place = format!("{}:{}", finding.line, finding.column);
        text.push_str(&format!(
            "{place:<8} {:<7} {:<20} {}\n",
            severity.as_str().unwrap_or(""),
            finding.rule,
            finding.reason
        ));
    }
    if scan.truncated {
        text.push_str("there are more findings than are shown\n");
    }
    text.push_str(&format!("{}\n", scan.verdict));
    printable(&text)
}

/// A result with the skill that it is of.
#[derive(Debug, Serialize)]
struct Ran<'a> {
    skill: &'a str,
    version: &'a str,
    hash: &'a str,
    #[serde(flatten)]
    result: &'a CodeResult,
}

fn run(mut args: args::SkillRun) -> Result<ExitCode, Failure> {
    args.policy.profile.get_or_insert_with(|| PROFILE.to_owned());
    let failed = |failure: &Failure| {
        if args.json {
            failed_in_json(failure);
        }
    };
    let (skill, mut result, room) = execute(&args).inspect_err(failed)?;
    // The result is told, whatever became of the files.
    let written = code::keep_files(&mut result, args.given.out_dir.as_deref());
    if args.json {
        output::json(&Ran { skill: &skill.name, version: &skill.version, hash: &skill.hash, result: &result })?;
    } else {
        code::show(&result, room)?;
    }
    written.map(|()| ExitCode::from(result.status.exit_code()))
}

fn execute(args: &args::SkillRun) -> Result<(Skill, CodeResult, Room), Failure> {
    let command: Vec<OsString> = vec!["skill".into(), "run".into(), args.skill.clone().into()];
    let sandbox = host::sandbox(&args.policy, &command)?;
    let verdict = args.verdict.unwrap_or(sandbox.resolved().service.skill_verdict);
    host::warn(&sandbox, false);
    let skill = shown()?.find(&Which::parse(&args.skill))?;
    let run: SkillRun = skill.run();
    let inputs = code::inputs(&args.given)?;
    let inputs = inputs.unwrap_or_else(|| serde_json::json!({}));
    let room = Room::under(&sandbox.policy().limits);
    let mut code = match skill.code(inputs, verdict, sandbox.policy().limits.timeout, None) {
        Ok(code) => code,
        Err(SkillError::NotChecked { result, .. }) => {
            return Ok((skill, sandbox.not_begun(*result, &command, &run), room));
        }
        Err(error) => {
            let failure = Failure::from(error);
            let record = sandbox.failed(&command, Some(&run), &failure.message);
            return Err(failure.recorded(record));
        }
    };
    code::equip(&mut code, &args.given)?;
    let result = sandbox.run_code(&code, &command, Some(&run), None, code::signals)?;
    Ok((skill, result, room))
}

fn list(json: bool) -> Result<ExitCode, Failure> {
    let listed = shown()?.list()?;
    if json {
        output::json(&listed)?;
        return Ok(ExitCode::SUCCESS);
    }
    tell(&listed);
    let row = |skill: &Skill| {
        let verdict = skill.scan.as_ref().map_or("not scanned", |scan| scan.verdict.name());
        let state = if skill.disabled { "disabled" } else { "enabled" };
        [&skill.name, &skill.version, &skill.language, skill.source.name(), verdict, state].map(printable)
    };
    let head = ["NAME", "VERSION", "LANGUAGE", "SOURCE", "VERDICT", "STATE"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(listed.skills.iter().map(row)).collect();
    output::data(&output::table(&rows))?;
    Ok(ExitCode::SUCCESS)
}

/// Names what is there and cannot be believed.
fn tell(listed: &Listed) {
    listed.unreadable.iter().for_each(|row| output::say(&format!("ringfence: {}", printable(&row.to_string()))));
}

fn show(which: &Which, code: bool, json: bool) -> Result<ExitCode, Failure> {
    let mut registry = shown()?;
    let skill = registry.find(which)?;
    if code {
        output::of_code(skill.code.as_bytes(), b"")?;
        return Ok(ExitCode::SUCCESS);
    }
    let versions = registry.versions(&Which { name: which.name.clone(), version: None })?;
    if json {
        let unreadable = &versions.unreadable;
        let versions: Vec<_> = versions
            .skills
            .iter()
            .map(|s| serde_json::json!({ "version": s.version, "hash": s.hash, "added": s.added, "disabled": s.disabled }))
            .collect();
        output::json(&serde_json::json!({ "skill": skill, "versions": versions, "unreadable": unreadable }))?;
        return Ok(ExitCode::SUCCESS);
    }
    tell(&versions);
    let mut text = String::new();
    let mut add = |key: &str, value: &str| text.push_str(&format!("{key:<9} {value}\n"));
    add("name", &skill.name);
    add("version", &skill.version);
    add("hash", &skill.hash);
    add("language", &skill.language);
    add("source", skill.source.name());
    add("sandbox", if skill.sandbox_required { "required" } else { "optional for other programs" });
    add("added", &history::time(skill.added));
    if skill.disabled {
        add("disabled", "it does not run");
    }
    if let Some(inputs) = &skill.inputs {
        add("inputs", &inputs.to_string());
    }
    skill.hosts.iter().for_each(|host| add("host", host));
    if let Some(wanted) = &skill.requirements {
        wanted.text().lines().filter(|line| !line.trim().is_empty()).take(20).for_each(|line| add("requires", line));
    }
    for version in &versions.skills {
        let mark = if version.disabled { " disabled" } else { "" };
        add("version", &format!("{} {} {}{mark}", version.version, version.hash, history::time(version.added)));
    }
    match &skill.scan {
        Some(scan) => text.push_str(&findings(scan)),
        None => text.push_str("not scanned\n"),
    }
    output::data(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn executions(name: &str, limit: u64, json: bool) -> Result<ExitCode, Failure> {
    let mut registry = Registry::of(host::here()?.archive()?.look()?);
    let records = registry.executions(name, (limit > 0).then_some(limit))?;
    if records.is_empty() {
        // A name that was mistyped is not a skill that never ran.
        registry.find(&Which { name: name.to_owned(), version: None })?;
    }
    if json {
        output::json(&serde_json::json!({ "records": records }))?;
    } else {
        output::data(&history::rows(&records))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What can be done to versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Act {
    Disabled,
    Enabled,
    Removed,
}

/// What was done, in JSON.
#[derive(Debug, Serialize)]
struct Done<'a> {
    #[serde(flatten)]
    changed: &'a Changed,
    state: Act,
}

fn change(args: &SkillChange, act: Act) -> Result<ExitCode, Failure> {
    let which = Which::parse(&args.skill);
    let mut registry = registry()?;
    let changed = match act {
        Act::Removed => registry.remove(&which)?,
        Act::Disabled | Act::Enabled => registry.set_disabled(&which, act == Act::Disabled)?,
    };
    if args.json {
        output::json(&Done { changed: &changed, state: act })?;
    } else {
        output::say(&format!("ringfence: {}", printable(&said(&changed, act))));
    }
    Ok(ExitCode::SUCCESS)
}

/// Which versions it was done to, which not, and what stays of those that are gone.
fn said(changed: &Changed, act: Act) -> String {
    let Changed { name, versions, others } = changed;
    let named: Vec<_> = versions.iter().map(|version| format!("{name}@{}", version.version)).collect();
    let what = match act {
        Act::Disabled => "disabled",
        Act::Enabled => "enabled",
        Act::Removed => "removed",
    };
    let others = match (others, versions.len()) {
        (0, 1) => ", its only version".to_owned(),
        (0, _) => ", all its versions".to_owned(),
        (1, _) => "; 1 other version is as it was".to_owned(),
        (others, _) => format!("; {others} other versions are as they were"),
    };
    let history = match act {
        Act::Removed => format!("; what it ran stays in `ringfence skill history {name}`"),
        Act::Disabled | Act::Enabled => String::new(),
    };
    format!("{what} {}{others}{history}", named.join(", "))
}
