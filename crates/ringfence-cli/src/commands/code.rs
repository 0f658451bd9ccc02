//! `ringfence code`: from a file to one result.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ringfence::code::{self, Code, CodeException, CodeResult, File, LANGUAGES, Language, Ran, Status};
use ringfence::policy::suggest::Suggestion;
use ringfence::records::{self, Seen, SkillRun};
use ringfence::{Capture, Ended, Engine, EngineError, Outcome, Reason};
use ringfence_linux::sys;

use crate::args::{self, Given};
use crate::commands::{context, failed_in_json, requirements};
use crate::failure::{Failure, Kind};
use crate::output;
use crate::record::{self, Entry};
use crate::situation::Situation;

/// More is not read from a file: the library refuses less.
const MAX_FILE: u64 = 64 << 20;
/// Without `--profile`.
const PROFILE: &str = "skill";

pub fn run(mut args: args::Code) -> Result<ExitCode, Failure> {
    if args.session.is_none() {
        args.policy.profile.get_or_insert_with(|| PROFILE.to_owned());
    }
    let code = read(&args).inspect_err(|failure| {
        if args.json {
            failed_in_json(failure);
        }
    })?;
    let done = match &args.session {
        Some(session) => context::run(&args, session, &code),
        None => execute(&args, &code),
    };
    match done {
        Ok(mut result) => {
            let written = keep_files(&result, args.given.out_dir.as_deref());
            if args.json {
                // The result is told, whatever became of the files: they are in it.
                result.error = written.as_ref().err().map(|failure| failure.message.clone()).or(result.error);
                output::json(&result)?;
                return written.map(|()| ExitCode::from(exit_code(result.status)));
            }
            // Told whatever became of the files.
            show(&result)?;
            written.map(|()| ExitCode::from(exit_code(result.status)))
        }
        Err(failure) => {
            if args.json {
                let mut result = CodeResult::failed(&code, &failure.message);
                result.id = failure.record.clone().unwrap_or_default();
                output::json(&result)?;
            }
            Err(failure)
        }
    }
}

fn execute(args: &args::Code, code: &Code) -> Result<CodeResult, Failure> {
    let command: Vec<OsString> = vec!["code".into(), code.language.name.into(), args.source.clone().into()];
    let situation = Situation::gather(&args.policy).map_err(|failure| record::refused(&command, failure))?;
    situation.warn(false);
    recorded(code, &situation, &command, None, signals)
}

/// Becomes readable when somebody wants the program to end.
pub fn signals() -> Result<impl AsFd, Failure> {
    let wanted: Vec<i32> =
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().filter(|signal| !sys::is_ignored(*signal)).collect();
    sys::signal_fd(&wanted).map_err(|errno| Failure::from(EngineError::Stdio(errno)))
}

/// What cancels: to be asked for, or at hand.
enum Cancel<F, C> {
    Later(F),
    Now(C),
}

impl<C, F: FnOnce() -> Result<C, Failure>> Cancel<F, C> {
    fn ask(self) -> Result<C, Failure> {
        match self {
            Cancel::Later(ask) => ask(),
            Cancel::Now(cancel) => Ok(cancel),
        }
    }
}

/// Runs code and records it. `cancel` is asked when everything is prepared; what it gives cancels when it becomes readable.
pub fn recorded<C: AsFd>(
    code: &Code,
    situation: &Situation,
    command: &[OsString],
    skill: Option<&SkillRun>,
    cancel: impl FnOnce() -> Result<C, Failure>,
) -> Result<CodeResult, Failure> {
    record::prepare(situation);
    let policy = &situation.resolved.policy;
    let failed = |failure| record::failed(situation, command, skill, failure);
    let (equipped, cancel) = match &code.requirements {
        None => (None, Cancel::Later(cancel)),
        Some(wanted) => {
            let cancel = cancel().map_err(failed)?;
            let installed = requirements::install(code.language, wanted, situation, cancel.as_fd()).map_err(failed)?;
            (Some(Code { installed: Some(installed), ..code.clone() }), Cancel::Now(cancel))
        }
    };
    let code = equipped.as_ref().unwrap_or(code);
    let prepared = code::prepare(code, policy, &situation.facts, situation.resolved.engine);
    let prepared = prepared.map_err(|error| failed(error.into()))?;
    let mut report = prepared.report.clone();
    let entry = Entry::begin(situation, command, skill, prepared.engine, &prepared.plan, &mut report)?;
    let ran = cancel.ask().and_then(|cancel| match prepared.engine {
        Engine::Docker => context::once(code, prepared.policy, situation, cancel.as_fd()).map(seen_from_outside),
        _ => Ok(prepared.run(&situation.facts, Some(cancel.as_fd()))?),
    });
    match ran {
        Ok(Ran { mut result, mut outcome, captures }) => {
            // An interpreter exits with 0 also when its code has failed: a record says how the code ended.
            if outcome.ended == Ended::Exited(0) {
                outcome.ended = Ended::Exited(i32::from(exit_code(result.status)));
            }
            // The result has the id of its record.
            if let Some(id) = entry.end(&outcome, seen(&captures, policy.records.output), &mut report) {
                result.id = id;
            }
            Ok(result)
        }
        Err(failure) => Err(entry.failed(failure)),
    }
}

/// What a record is made of, from the result of code in a container.
fn seen_from_outside(result: CodeResult) -> Ran {
    let reason = match result.status {
        Status::Timeout => Some(Reason::Time),
        Status::Memory => Some(Reason::Memory),
        Status::Cancelled => Some(Reason::Cancelled),
        _ => None,
    };
    let outcome = Outcome {
        ended: Ended::Exited(0),
        reason,
        duration: Duration::from_millis(result.usage.duration_ms),
        cpu: Duration::from_millis(result.usage.cpu_ms),
        peak_memory: result.usage.peak_memory,
        denied: Vec::new(),
    };
    Ran { captures: captured(&result), outcome, result }
}

/// What the code wrote, as far as a record keeps it.
pub fn captured(result: &CodeResult) -> [Capture; 2] {
    [&result.stdout, &result.stderr].map(|text| {
        let mut capture = records::capture();
        capture.push(text.as_bytes());
        capture
    })
}

/// What a record has of it: the output itself, or how much that was.
pub fn seen(captures: &[Capture; 2], keeps: bool) -> [Seen<'_>; 2] {
    match keeps {
        true => captures.each_ref().map(Seen::Output),
        false => captures.each_ref().map(|capture| Seen::Bytes(capture.total())),
    }
}

/// What the command line asks for.
fn read(args: &args::Code) -> Result<Code, Failure> {
    let language = language(&args.language)?;
    let mut code = Code::new(language, read_source(&args.source)?);
    if args.source != Path::new("-") {
        // A name that messages can have in them; another does as well.
        let name = args.source.file_name().and_then(|name| name.to_str());
        code.name =
            name.filter(|name| !name.starts_with(['-', '~']) && !name.contains(char::is_control)).map(str::to_owned);
    }
    if let Some(inputs) = inputs(&args.given)? {
        code.inputs = inputs;
    }
    equip(&mut code, &args.given)?;
    code.requirements = requirements::read(language, &args.required)?;
    Ok(code)
}

/// Gives it all but its inputs, which a skill has looked at before.
pub fn equip(code: &mut Code, given: &Given) -> Result<(), Failure> {
    code.files = files(&given.file)?;
    code.out.clone_from(&given.out);
    code.packages = given.packages;
    Ok(())
}

/// A language by any of its names.
pub fn language(name: &str) -> Result<&'static Language, Failure> {
    let names = || LANGUAGES.iter().map(|language| language.name);
    Language::named(name).ok_or_else(|| {
        let suggestion = Suggestion::among(name, names()).to_string();
        let known: Vec<&str> = names().collect();
        Failure::new(Kind::Usage, format!("no language `{name}`{suggestion}"))
            .hint(format!("there are {}", known.join(", ")))
    })
}

/// The text of a file, or of stdin (`-`).
pub fn read_source(path: &Path) -> Result<String, Failure> {
    let is_stdin = path == Path::new("-");
    if is_stdin && std::io::stdin().is_terminal() {
        output::say("ringfence: type or paste the code, then end it with Ctrl-D");
    }
    let bytes = if is_stdin { read_all(std::io::stdin(), path)? } else { read_file(path)? };
    String::from_utf8(bytes).map_err(|_| Failure::new(Kind::Usage, format!("`{}` is not UTF-8 text", path.display())))
}

/// Inputs as the command line or a file says them.
pub fn inputs(given: &Given) -> Result<Option<serde_json::Value>, Failure> {
    let (text, place) = match (&given.input, &given.input_file) {
        (Some(text), _) => (text.clone(), "--input".to_owned()),
        (None, Some(path)) => {
            (String::from_utf8_lossy(&read_file(path)?).into_owned(), format!("`{}`", path.display()))
        }
        (None, None) => return Ok(None),
    };
    let inputs = serde_json::from_str(&text);
    inputs.map(Some).map_err(|error| Failure::new(Kind::Usage, format!("{place} is not JSON: {error}")))
}

/// Files that go in, by their names alone.
fn files(paths: &[PathBuf]) -> Result<Vec<File>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(Failure::new(Kind::Usage, format!("`{}` has no name that could be used", path.display())));
        };
        files.push(File { path: name.to_owned(), data: read_file(path)? });
    }
    Ok(files)
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::new(Kind::Usage, format!("cannot read `{}`: {error}", path.display())))?;
    read_all(file, path)
}

fn read_all(from: impl Read, path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = from.take(MAX_FILE + 1).read_to_end(&mut bytes);
    let count =
        read.map_err(|error| Failure::new(Kind::Usage, format!("cannot read `{}`: {error}", path.display())))?;
    if count as u64 > MAX_FILE {
        return Err(Failure::new(Kind::Usage, format!("`{}` is larger than 64 MiB", path.display())));
    }
    Ok(bytes)
}

/// Puts the files that came out where they were asked for.
pub fn keep_files(result: &CodeResult, directory: Option<&Path>) -> Result<(), Failure> {
    if let (Some(directory), false) = (directory, result.files.is_empty()) {
        std::fs::create_dir_all(directory).map_err(|error| Failure::output(&error))?;
    }
    result.files.iter().try_for_each(|file| write(directory.unwrap_or(Path::new(".")), file))
}

/// A result for people.
pub fn show(result: &CodeResult) -> Result<(), Failure> {
    let mut text = result.stdout.clone();
    if let Some(value) = &result.value {
        text.push_str(&format!("{value}\n"));
    } else if let Some(shown) = &result.text {
        text.push_str(&format!("{shown}\n"));
    }
    let mut errors = result.stderr.clone();
    if !errors.is_empty() && !errors.ends_with('\n') {
        errors.push('\n');
    }
    output::of_code(&text, &errors)?;
    if let Some(exception) = &result.exception {
        for frame in &exception.trace {
            let line = frame.line.map_or_else(String::new, |line| format!(":{line}"));
            output::say(&format!("  {}{line}  {}", frame.file, frame.text.as_deref().unwrap_or_default()));
        }
        output::say(&format!("{}: {}", exception.kind, exception.message));
    }
    let host = result.exception.iter().flat_map(CodeException::chain).find_map(|one| one.host.as_deref());
    let note = match (result.status, host) {
        (Status::Timeout, _) => Some("ended: its time was up; --timeout allows more".to_owned()),
        (Status::Memory, _) => Some("ended: its memory was used up; --memory allows more".to_owned()),
        (Status::Denied, Some(host)) => Some(format!("the sandbox refused a connection to `{host}`")),
        (Status::Denied, None) => Some("the sandbox refused something; --json says what the system answered".to_owned()),
        (Status::Cancelled, _) => Some("cancelled".to_owned()),
        _ => None,
    };
    if let Some(note) = note {
        output::say(&format!("ringfence: {note}"));
    }
    Ok(())
}

pub fn exit_code(status: Status) -> u8 {
    match status {
        Status::Ok => 0,
        Status::Error | Status::Denied => 1,
        Status::Timeout => 124,
        Status::SandboxError => 125,
        Status::Cancelled => 130,
        Status::Memory => 137,
    }
}

/// Writes a file that came out. Its name was chosen in the box: nothing that is there is replaced, and no link followed.
fn write(directory: &Path, file: &File) -> Result<(), Failure> {
    let fail = |path: &Path, error: std::io::Error| {
        Failure::new(Kind::Output, format!("cannot write `{}`: {error}", path.display()))
    };
    let mut path = PathBuf::from(directory);
    let mut parts = file.path.split('/').peekable();
    while let Some(part) = parts.next() {
        path.push(part);
        if parts.peek().is_some() {
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(fail(&path, error)),
                _ => {}
            }
            let data = std::fs::symlink_metadata(&path).map_err(|error| fail(&path, error))?;
            if !data.is_dir() {
                return Err(fail(&path, std::io::ErrorKind::NotADirectory.into()));
            }
        }
    }
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(|error| fail(&path, error).hint("nothing is replaced: name another place with --out-dir DIR"))?;
    out.write_all(&file.data).map_err(|error| fail(&path, error))
}
