//! `ringfence code`: from a file to one result.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ringfence::EngineError;
use ringfence::code::{self, Code, CodeException, CodeResult, File, LANGUAGES, Language, Status};
use ringfence::policy::guarded::{self, Guarded, Held};
use ringfence::policy::limits::{Limits, format_size};
use ringfence::policy::suggest::Suggestion;
use ringfence_linux::sys;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::args::{self, Given};
use crate::commands::{context, failed_in_json, requirements};
use crate::failure::{Failure, Kind};
use crate::host;
use crate::output;

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
        Ok((mut result, room)) => {
            let written = keep_files(&mut result, args.given.out_dir.as_deref());
            // The result is told, whatever became of the files.
            if args.json {
                output::json(&result)?;
            } else {
                show(&result, room)?;
            }
            written.map(|()| ExitCode::from(result.status.exit_code()))
        }
        Err(failure) => {
            if args.json && failure.kind == Kind::Usage {
                failed_in_json(&failure);
            } else if args.json {
                let mut result = match failure.kind {
                    Kind::Cancelled => CodeResult::not_begun(&code, Status::Cancelled, Duration::ZERO),
                    _ => CodeResult::failed(&code, &failure.message),
                };
                result.id = failure.record.clone().unwrap_or_default();
                output::json(&result)?;
            }
            Err(failure)
        }
    }
}

fn execute(args: &args::Code, code: &Code) -> Result<(CodeResult, Room), Failure> {
    let command: Vec<OsString> = vec!["code".into(), code.language.name.into(), args.source.clone().into()];
    let sandbox = host::sandbox(&args.policy, &command)?;
    host::warn(&sandbox, false);
    let result = sandbox.run_code(code, &command, None, None, signals)?;
    Ok((result, Room::under(&sandbox.policy().limits)))
}

/// Which flags would allow more.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// `--timeout`: what is asked for is below the ceiling.
    pub timeout: bool,
    /// Those of the other limits.
    pub others: bool,
}

impl Room {
    pub fn under(limits: &Limits) -> Room {
        Room { timeout: Room::below(limits.timeout, limits.timeout_ceiling), others: true }
    }

    pub fn below(timeout: Option<Duration>, ceiling: Option<Duration>) -> bool {
        ceiling.is_none_or(|ceiling| timeout.is_some_and(|timeout| timeout < ceiling))
    }
}

/// Becomes readable when somebody wants the program to end.
pub fn signals() -> Result<impl AsFd, Failure> {
    let wanted: Vec<i32> =
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().filter(|signal| !sys::is_ignored(*signal)).collect();
    sys::signal_fd(&wanted).map_err(|errno| Failure::from(EngineError::Stdio(errno)))
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
            let place = format!("`{}`", path.display());
            let text = String::from_utf8(read_file(path)?);
            (text.map_err(|_| Failure::new(Kind::Usage, format!("{place} is not UTF-8 text")))?, place)
        }
        (None, None) => return Ok(None),
    };
    let inputs = serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(&text));
    inputs.map(Some).map_err(|error: serde_json::Error| {
        let said = error.to_string();
        // The library has no code for it.
        Failure::new(
            Kind::Usage,
            match said.starts_with("recursion limit exceeded") {
                true => format!("{place} is nested deeper than 127"),
                false => format!("{place} is not JSON: {said}"),
            },
        )
    })
}

/// Files that go in, by their names alone.
fn files(paths: &[PathBuf]) -> Result<Vec<File>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(Failure::new(Kind::Usage, format!("`{}` has no name that could be used", path.display())));
        };
        files.push(File { path: name.to_owned(), data: read_regular(path)? });
    }
    Ok(files)
}

/// A session may have put anything in its place: nothing is waited for. Where a link leads is said, since it goes in.
fn read_regular(path: &Path) -> Result<Vec<u8>, Failure> {
    let fail =
        |error: &dyn std::fmt::Display| Failure::new(Kind::Usage, format!("cannot read `{}`: {error}", path.display()));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| fail(&errno))?;
    let file = std::fs::File::from(file);
    if !file.metadata().map_err(|error| fail(&error))?.is_file() {
        return Err(fail(&"it is no regular file"));
    }
    if path.is_symlink()
        && let Ok(target) = path.canonicalize()
    {
        output::say(&format!("ringfence: `{}` is a link: the code gets `{}`", path.display(), target.display()));
    }
    read_all(file, path)
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

/// Puts the files that came out where they were asked for. That they cannot be there is no failure of the code, and the
/// result says so: what the code did is still in it.
pub fn keep_files(result: &mut CodeResult, directory: Option<&Path>) -> Result<(), Failure> {
    if result.files.is_empty() {
        return Ok(());
    }
    let directory = directory.unwrap_or(Path::new("."));
    let written = held(directory, &result.files).and_then(|held| {
        let free = result.files.iter().filter(|file| held.iter().all(|(name, _)| *name != file.path));
        free.into_iter().try_for_each(|file| write(directory, file))?;
        match held.first() {
            None => Ok(()),
            Some((name, why)) => {
                let others = held.len() - 1;
                let more = if others == 0 { String::new() } else { format!(", and {others} more") };
                let path = directory.join(name);
                Err(Failure::new(Kind::Output, format!("not written: `{}`: {why}{more}", path.display()))
                    .hint("have the code write it under another name"))
            }
        }
    });
    if let Err(failure) = &written {
        result.error = Some(failure.message.clone());
        // A failure of the code stays one.
        if result.status != Status::Ok {
            output::say(&failure.render());
            return Ok(());
        }
        result.status = Status::SandboxError;
    }
    written
}

/// A result for people.
pub fn show(result: &CodeResult, room: Room) -> Result<(), Failure> {
    let [raw_stdout, raw_stderr] = &result.raw;
    let mut text = raw_stdout.clone().unwrap_or_else(|| result.stdout.clone().into_bytes());
    if let Some(value) = &result.value {
        text.extend(format!("{value}\n").into_bytes());
    } else if let Some(shown) = &result.text {
        text.extend(format!("{shown}\n").into_bytes());
    }
    let mut errors = raw_stderr.clone().unwrap_or_else(|| result.stderr.clone().into_bytes());
    if !errors.is_empty() && !errors.ends_with(b"\n") {
        errors.push(b'\n');
    }
    output::of_code(&text, &errors)?;
    if let Some(exception) = &result.exception {
        for frame in &exception.trace {
            let line = frame.line.map_or_else(String::new, |line| format!(":{line}"));
            output::say(&format!("  {}{line}  {}", frame.file, frame.text.as_deref().unwrap_or_default()));
        }
        output::say(&format!("{}: {}", exception.kind, exception.message));
    }
    for (stream, dropped) in [("stdout", result.stdout_dropped), ("stderr", result.stderr_dropped)] {
        if dropped > 0 {
            output::say(&format!("ringfence: {dropped} bytes are left away in the middle of {stream}"));
        }
    }
    if result.files_dropped > 0 {
        let (left, most, bytes) = (result.files_dropped, code::MAX_FILES, format_size(code::MAX_FILE_BYTES as u64));
        let are = if left == 1 { "file is" } else { "files are" };
        output::say(&format!(
            "ringfence: {left} {are} left away: --out takes {most} back, {bytes} together, and names of at most 255 \
             bytes that are text without control characters"
        ));
    } else if result.cut {
        output::say("ringfence: part of the result was too large, or not to be understood, and is left away");
    }
    for denial in &result.denied {
        output::say(&super::run::denial(denial));
    }
    if let Some(note) = note(result, room) {
        output::say(&format!("ringfence: {note}"));
    }
    Ok(())
}

/// What allows more time where a flag cannot.
pub const CEILING: &str = "`timeout_ceiling` in `[limits]` of a configuration file";

/// What ended it, and the flag that would help.
fn note(result: &CodeResult, room: Room) -> Option<String> {
    let more = |there: bool, flag: &str| if there { format!("; {flag} allows more") } else { String::new() };
    let find = |part: fn(&CodeException) -> Option<&str>| {
        result.exception.iter().flat_map(CodeException::chain).find_map(part).map(str::to_owned)
    };
    match result.status {
        Status::Timeout if result.limit.as_deref() == Some("cpu_time") => {
            Some(format!("ended: its CPU time was used up{}", more(room.others, "--cpu-time")))
        }
        Status::Timeout => {
            let by = if room.timeout { "--timeout" } else { CEILING };
            Some(format!("ended: its time was up{}", more(true, by)))
        }
        Status::Memory => Some(format!("ended: its memory was used up{}", more(room.others, "--memory"))),
        Status::Denied => Some(match (find(|one| one.host.as_deref()), find(|one| one.errno.as_deref())) {
            (Some(host), _) => format!("the sandbox refused a connection to `{host}`"),
            (None, Some(errno)) => format!("the sandbox refused something: {errno}"),
            // What bash or the kernel says is all there is.
            (None, None) => "the sandbox refused something".to_owned(),
        }),
        Status::Cancelled => Some("cancelled".to_owned()),
        _ => None,
    }
}

/// The files whose names nothing in a sandbox may give to a file of the host, and why.
fn held(directory: &Path, files: &[File]) -> Result<Vec<(String, Held)>, Failure> {
    let fail = |error: &dyn std::fmt::Display| {
        Failure::new(Kind::Output, format!("cannot look at `{}`: {error}", directory.display()))
    };
    let facts = host::here()?.facts()?;
    let named = std::path::absolute(directory).map_err(|error| fail(&error))?;
    let named = named.canonicalize().unwrap_or(named);
    let guarded = Guarded::names(&facts.home);
    let mut chosen: BTreeMap<&Path, BTreeSet<&OsStr>> = BTreeMap::new();
    for file in files {
        for path in Path::new(&file.path).ancestors() {
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
                chosen.entry(parent).or_default().insert(name);
            }
        }
    }
    let mut parts: BTreeSet<PathBuf> = BTreeSet::new();
    for (parent, names) in &chosen {
        let there = |name: &str| named.join(parent).join(name).symlink_metadata().is_ok();
        parts.extend(guarded::layout(names, there).into_iter().map(|name| parent.join(name)));
    }
    let why = |file: &File| {
        let path = Path::new(&file.path);
        let is_part = path.ancestors().any(|above| parts.contains(above));
        let held = || guarded.holds(&named, &named.join(path), false);
        if is_part { Some(Held::Repository) } else { held() }
    };
    Ok(files.iter().filter_map(|file| Some((file.path.clone(), why(file)?))).collect())
}

/// Writes a file that came out. Its name was chosen in the box, which may also have planted links in the project: nothing that
/// is there is replaced, and no link followed, not even in the place that was asked for.
fn write(directory: &Path, file: &File) -> Result<(), Failure> {
    let path = directory.join(&file.path);
    let fail = |errno: Errno| Failure::new(Kind::Output, format!("cannot write `{}`: {errno}", path.display()));
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(fail(Errno::INVAL)) };
    let parent = make_and_open(parent).map_err(|errno| match errno {
        Errno::NOTDIR => {
            fail(errno).hint("no link is followed: name the directory that it leads to with --out-dir DIR")
        }
        _ => fail(errno),
    })?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let out = rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(0o666)).map_err(|errno| match errno {
        Errno::EXIST => fail(errno).hint("nothing is replaced: name another place with --out-dir DIR"),
        _ => fail(errno),
    })?;
    std::fs::File::from(out)
        .write_all(&file.data)
        .map_err(|error| fail(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
}

/// Opens a directory, step by step and without following a link, and makes what is missing of it.
fn make_and_open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let start = if path.is_absolute() { "/" } else { "." };
    let mut dir = rustix::fs::open(start, flags, Mode::empty())?;
    for part in path.components() {
        let name = match part {
            Component::Normal(name) => name,
            Component::ParentDir => OsStr::new(".."),
            _ => continue,
        };
        dir = match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                rustix::fs::openat(&dir, name, flags, Mode::empty())?
            }
            opened => opened?,
        };
    }
    Ok(dir)
}
