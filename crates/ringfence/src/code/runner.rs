//! The runner of Python as the interpreter compiles it, kept from one execution to the next: compiling it takes a seventh of
//! the time in which an interpreter starts.
//!
//! It is compiled in a box like any other, which gets nothing but the runner. What is kept lies in Ringfence's own state, which
//! no box can change, is used with that very interpreter alone, and is executed in boxes alone. Nothing is kept for interpreters
//! of images, and nothing is lost where nothing can be kept.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_policy::facts::Facts;
use ringfence_policy::plan::{Command, Plan, Runs};

use super::language::PYTHON;

/// So many are kept; one more, and all others go.
const MOST: usize = 16;
/// No runner is larger.
const LARGEST: u64 = 1 << 20;

/// What makes it, in a box: it has nothing but its inputs, and says which interpreters understand it.
pub(super) const COMPILE: &str = "import marshal, _frozen_importlib_external\n\
    [_frozen_importlib_external.MAGIC_NUMBER.hex(), marshal.dumps(compile(inputs, '<string>', 'exec')).hex()]";

/// A compiled runner.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Runner {
    /// Which interpreters understand it, in hexadecimal.
    magic: String,
    code: Vec<u8>,
}

impl Runner {
    /// From what [`COMPILE`] gives.
    pub fn from_value(value: &serde_json::Value) -> Option<Runner> {
        let [magic, code] = value.as_array()?.as_slice() else { return None };
        let (magic, code) = (magic.as_str()?.to_owned(), from_hex(code.as_str()?)?);
        from_hex(&magic).filter(|magic| (1..=64).contains(&magic.len()))?;
        Some(Runner { magic, code })
    }

    /// Has the interpreter of this plan read it before its request, which is what is returned. One that does not understand it
    /// compiles its own.
    pub fn start(self, plan: &mut Plan, request: Vec<u8>) -> Vec<u8> {
        let Runner { magic, mut code } = self;
        let boot = format!(
            "import marshal, posix, sys, _frozen_importlib_external as i\n\
             c = b''\n\
             while len(c) < {length}:\n p = posix.read(0, {length} - len(c))\n c += p or posix._exit(0)\n\
             exec(marshal.loads(c) if i.MAGIC_NUMBER.hex() == '{magic}' else sys.argv[1])",
            length = code.len(),
        );
        let Runs::Command(Command { args, .. }) = &mut plan.runs else { return request };
        if args.last().is_none_or(|last| last != PYTHON) {
            return request;
        }
        args.pop();
        args.extend([boot.into(), PYTHON.into()]);
        code.extend(request);
        code
    }
}

/// Where that of one interpreter is kept.
#[derive(Debug)]
pub(super) struct Place(PathBuf);

impl Place {
    /// `None` where nothing is kept.
    pub fn of(interpreter: &Path, facts: &Facts) -> Option<Place> {
        let data = std::fs::metadata(interpreter).ok()?;
        let mut hasher = DefaultHasher::new();
        (data.dev(), data.ino(), data.size(), data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec())
            .hash(&mut hasher);
        (interpreter, PYTHON).hash(&mut hasher);
        Some(Place(facts.runners.as_ref()?.join(in_hex(&hasher))))
    }

    pub fn read(&self) -> Option<Runner> {
        let mut file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&self.0).ok()?;
        let data = file.metadata().ok()?;
        let own = data.uid() == rustix::process::geteuid().as_raw() && data.mode() & 0o022 == 0;
        if !(own && data.is_file() && data.len() <= LARGEST) {
            return None;
        }
        let mut bytes = Vec::with_capacity(data.len() as usize);
        file.read_to_end(&mut bytes).ok()?;
        let at = bytes.iter().position(|b| *b == b'\n')?;
        let code = bytes.split_off(at + 1);
        let (magic, sum) = std::str::from_utf8(bytes.trim_ascii_end()).ok()?.split_once(' ')?;
        // A crash may have left half of it, and an interpreter trusts it.
        (sum == sum_of(&code)).then(|| Runner { magic: magic.to_owned(), code })
    }

    /// Whoever reads meanwhile finds all of it or nothing.
    pub fn write(&self, runner: &Runner) -> std::io::Result<()> {
        let Some(dir) = self.0.parent() else { return Ok(()) };
        match std::fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // Those of interpreters that are gone.
        let others: Vec<_> = std::fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
        if others.len() >= MOST {
            others.iter().try_for_each(std::fs::remove_file)?;
        }
        let new = self.0.with_extension(std::process::id().to_string());
        let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let written = made.and_then(|mut file| {
            file.write_all(format!("{} {}\n", runner.magic, sum_of(&runner.code)).as_bytes())?;
            file.write_all(&runner.code)
        });
        written.and_then(|()| std::fs::rename(&new, &self.0)).inspect_err(|_| drop(std::fs::remove_file(&new)))
    }
}

fn in_hex(hasher: &DefaultHasher) -> String {
    format!("{:016x}", hasher.finish())
}

fn sum_of(code: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    code.hash(&mut hasher);
    in_hex(&hasher)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut facts = crate::facts::gather().unwrap();
        facts.runners = Some(dir.path().join("runners"));
        let interpreter = dir.path().join("python");
        std::fs::write(&interpreter, "one").unwrap();
        let place = Place::of(&interpreter, &facts).unwrap();
        assert_eq!(place.read(), None);
        let runner = Runner { magic: "a70d0d0a".into(), code: b"\n\0code\n".to_vec() };
        place.write(&runner).unwrap();
        assert_eq!(place.read(), Some(runner));
        // Another interpreter in its place.
        std::fs::write(&interpreter, "another").unwrap();
        assert_eq!(Place::of(&interpreter, &facts).unwrap().read(), None);
        // Somebody else could have written it.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o622);
        std::fs::set_permissions(&place.0, mode).unwrap();
        assert_eq!(place.read(), None);
        facts.runners = None;
        assert!(Place::of(&interpreter, &facts).is_none());
    }

    /// On a real interpreter, in a box.
    #[test]
    fn it_is_compiled_once_and_used_by_the_next() {
        use ringfence_policy::profiles::EngineChoice;
        use ringfence_policy::{Inputs, Layer, resolve};

        use super::super::{Code, Language, run};

        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let mut facts = crate::facts::gather().unwrap();
        facts.runners = Some(base.join("runners"));
        let mut layer = Layer::flags();
        layer.profile("skill");
        let policy = resolve(Inputs::new(base.clone(), facts.home.clone(), layer)).unwrap().policy;
        let python = Language::named("python").unwrap();
        let value = |source: &str, inputs: serde_json::Value| {
            let code = Code { inputs, ..Code::new(python, source) };
            let result = run(&code, &policy, &facts, EngineChoice::Auto, None).unwrap();
            result.value.clone().unwrap_or_else(|| panic!("{result:?}"))
        };
        let answer = || value("x = 20\nx + 22", serde_json::Value::Null);
        assert_eq!(answer(), 42);
        let kept: Vec<_> =
            std::fs::read_dir(base.join("runners")).unwrap().map(|entry| entry.unwrap().path()).collect();
        let [path] = kept.as_slice() else { panic!("{kept:?}") };
        let place = Place(path.clone());
        let runner = place.read().unwrap();
        assert_eq!(answer(), 42);
        // It is what runs: another one says something else.
        let other = PYTHON.replace("% text", "% 7");
        assert_ne!(other, PYTHON);
        place.write(&Runner::from_value(&value(COMPILE, other.into())).unwrap()).unwrap();
        assert_eq!(answer(), 7);
        // One that the interpreter does not understand, and one of which a half is left, are not used.
        place.write(&Runner { magic: "00".into(), code: b"nonsense".to_vec() }).unwrap();
        assert_eq!(answer(), 42);
        std::fs::write(path, b"a70d0d0a 0\nnonsense").unwrap();
        assert_eq!(answer(), 42);
        assert_eq!(place.read(), Some(runner));
    }

    #[test]
    fn what_a_box_says_is_checked() {
        let runner = |value| Runner::from_value(&value);
        assert!(runner(serde_json::json!(["a70d0d0a", "e300"])).is_some());
        for wrong in [
            serde_json::json!(null),
            serde_json::json!(["a70d0d0a"]),
            serde_json::json!(["", "e3"]),
            serde_json::json!(["x'y", "e3"]),
            serde_json::json!(["a70d0d0a", "e"]),
            serde_json::json!(["a70d0d0a", "e3", "x"]),
        ] {
            assert_eq!(runner(wrong.clone()), None, "{wrong}");
        }
    }
}
