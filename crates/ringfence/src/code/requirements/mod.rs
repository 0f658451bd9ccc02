//! Requirements: packages that a piece of code imports, named in a file.
//!
//! They are installed once, in a box of their own (`build`), and kept by a hash of all that decides what is installed
//! (`store`); code then sees them read-only. Here the file is read: only packages of an index by their names, so that
//! installing reaches nothing else and runs nothing of theirs. Nothing here starts a process.

mod authorities;
mod build;
mod container;
mod store;
mod tree;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use self::build::{Build, Built};
pub use self::store::{Found, Installed, Kept, Store};
use super::Language;
use super::language::Wire;
use crate::engines::EngineError;
use crate::session::SessionError;
pub use crate::sets::SetError;
use ringfence_policy::plan::PlanError;

/// Bytes of a file of requirements.
const LARGEST: usize = 4 << 20;
const BY_NAME: &str = "only packages of the index, by their names";
const LONGEST_INDEX: usize = 1024;
/// Where a lock of npm says that packages come from, unless its author had another registry.
const NPM: &str = "https://registry.npmjs.org/";

/// What a piece of code needs: a checked file, and where its packages come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirements {
    /// Lines as of pip, or the lock of npm.
    text: String,
    /// The index or registry; the public one when `None`.
    index: Option<String>,
}

/// Why packages cannot be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum RequirementsError {
    /// This language has no packages.
    #[error("{0} has no packages to require")]
    Language(&'static str),
    /// The requirements have this many bytes, which is too many.
    #[error("the requirements have {0} bytes, more than {LARGEST}")]
    TooLarge(usize),
    /// A line of the requirements cannot be understood or is not allowed.
    #[error("requirements, line {line}: {reason}: `{text}`")]
    Line { line: usize, reason: &'static str, text: String },
    /// The lock file cannot be understood.
    #[error("the requirements are no package-lock.json: {0}")]
    Lock(String),
    /// The lock file takes a package from outside its registry.
    #[error("the lock has `{package}` from elsewhere than its registry: `{from}`")]
    Elsewhere { package: String, from: String },
    /// This text is not the address of a package index.
    #[error("`{0}` is no index: an address with http:// or https://, and without a user's name in it")]
    Index(String),
    /// The store of packages could not be read or written.
    #[error("cannot {step} `{}`: {source}", .path.display())]
    Store { step: &'static str, path: std::path::PathBuf, source: std::io::Error },
    /// This host has no such installer.
    #[error("no {0} was found to install packages with")]
    NoInstaller(&'static str),
    /// The image has no program to install packages with.
    #[error("image `{image}` has no {wanted}, and requirements are installed by its own")]
    NotInImage { image: String, wanted: &'static str },
    /// The sandbox shows the root of the host, where packages have no place.
    #[error("requirements cannot be had with the host's root, which has no place for them")]
    NoPlace,
    /// The Docker daemon maps user ids, so the files would belong to another user.
    #[error(
        "requirements cannot be installed by a Docker daemon that maps ids: what it writes would belong to nobody here"
    )]
    MappedIds,
    /// A set of packages cannot be used.
    #[error(transparent)]
    Set(#[from] SetError),
    /// The policy gives no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No engine can start the sandbox of the installer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The session of the installer failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The installer failed. `said` is the end of its output.
    #[error("{installer} could not install the requirements: {said}")]
    Failed { installer: &'static str, said: String },
    /// The packages are larger than these bounds.
    #[error("the packages have more than {} MiB or {} files", .0.bytes >> 20, .0.files)]
    TooMuch(Bounds),
    /// The installation was cancelled.
    #[error("cancelled while packages were installed")]
    Cancelled,
}

/// What packages may have on disk, while they are installed and afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { bytes: 2 << 30, files: 200_000 }
    }
}

impl Requirements {
    /// Reads a file of requirements: `requirements.txt` for Python, `package-lock.json` for JavaScript and TypeScript.
    pub fn new(language: &Language, text: String, index: Option<String>) -> Result<Requirements, RequirementsError> {
        if text.len() > LARGEST {
            return Err(RequirementsError::TooLarge(text.len()));
        }
        if let Some(index) = index.as_ref().filter(|index| !is_address(index)) {
            // Its password is nobody's to read here.
            let shown = index.rsplit_once('@').map_or(index.as_str(), |(_, host)| host);
            return Err(RequirementsError::Index(shown.to_owned()));
        }
        let requirements = Requirements { text, index };
        match language.wire {
            Wire::Marshal => drop(requirements.lines()?),
            Wire::Json => drop(requirements.lock()?),
            Wire::Lines => return Err(RequirementsError::Language(language.name)),
        }
        Ok(requirements)
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Looks at one that was kept somewhere as if it were new.
    pub(crate) fn checked(self, language: &Language) -> Result<Requirements, RequirementsError> {
        Requirements::new(language, self.text, self.index)
    }

    /// What pip is given: names with versions and hashes, each in one line, and nothing that leads elsewhere: no options, no
    /// addresses, no paths, no other files, and no comment that changes how it is read.
    fn lines(&self) -> Result<Vec<String>, RequirementsError> {
        let mut lines: Vec<String> = Vec::new();
        let mut continued = false;
        for (number, line) in self.text.lines().enumerate() {
            let wrong =
                |reason| Err(RequirementsError::Line { line: number + 1, reason, text: line.trim().to_owned() });
            // Characters that end a line for others.
            if line.contains(|c: char| (c.is_control() && c != '\t') || matches!(c, '\u{2028}' | '\u{2029}')) {
                return wrong("a character that stands in no name");
            }
            let comment =
                line.match_indices('#').find(|(at, _)| line[..*at].chars().next_back().is_none_or(char::is_whitespace));
            let words = line[..comment.map_or(line.len(), |(at, _)| at)].trim();
            let more = comment.is_none() && words.ends_with('\\');
            let words = words.trim_end_matches('\\').trim();
            let start = !std::mem::replace(&mut continued, more);
            if words.is_empty() {
                continue;
            }
            if words.contains(['/', '@', '\\', '#']) || words.contains("${") {
                return wrong(BY_NAME);
            }
            let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
            let line = match lines.pop_if(|_| !start) {
                Some(last) => format!("{last} {words}"),
                None => words,
            };
            // From the first option on pip reads options alone, quoted ones too.
            if !line.split(' ').skip_while(|word| !word.starts_with('-')).all(is_hash) {
                return wrong("only `--hash=` is taken of pip's options");
            }
            if !is_named(&line) {
                return wrong(BY_NAME);
            }
            lines.push(line);
        }
        Ok(lines)
    }

    /// The lock, with what npm reads of it and nothing else, and the manifest that it is the lock of.
    fn lock(&self) -> Result<(Value, Value), RequirementsError> {
        let wrong = |reason: &str| RequirementsError::Lock(reason.to_owned());
        let lock: Value = serde_json::from_str(&self.text).map_err(|error| wrong(&error.to_string()))?;
        let version = lock["lockfileVersion"].as_u64().filter(|version| matches!(version, 2 | 3));
        let version = version.ok_or_else(|| wrong("`lockfileVersion` is not 2 or 3; npm 7 and newer write that"))?;
        let packages = lock["packages"].as_object().ok_or_else(|| wrong("it has no `packages`"))?;
        let root = packages.get("").and_then(Value::as_object).ok_or_else(|| wrong("it has no package of its own"))?;
        let mut kept = Map::new();
        for (place, package) in packages.iter().filter(|(place, _)| !place.is_empty()) {
            kept.insert(place.clone(), self.package(place, package)?);
        }
        let mut manifest = Map::from_iter([
            ("name".to_owned(), json!("requirements")),
            ("version".to_owned(), json!("0.0.0")),
            ("private".to_owned(), json!(true)),
        ]);
        for kind in ["dependencies", "optionalDependencies", "devDependencies", "peerDependencies"] {
            let Some(wanted) = root.get(kind) else { continue };
            check_ranges(wanted)?;
            manifest.insert(kind.to_owned(), wanted.clone());
        }
        kept.insert(String::new(), Value::Object(manifest.clone()));
        manifest.insert("overrides".to_owned(), overrides(&kept, &manifest));
        let (name, own) = (&manifest["name"], &manifest["version"]);
        let lock = json!({
            "name": name, "version": own, "lockfileVersion": version, "requires": true, "packages": kept,
        });
        Ok((lock, Value::Object(manifest)))
    }

    /// One package of the lock, with nothing that npm would fetch from elsewhere or run.
    fn package(&self, place: &str, package: &Value) -> Result<Value, RequirementsError> {
        let inside =
            place.starts_with("node_modules/") && !place.split('/').any(|part| matches!(part, ".." | "." | ""));
        if !inside || !matches!(package.get("link"), None | Some(Value::Bool(false))) {
            return Err(elsewhere(place, "a directory"));
        }
        if let Some(name) = package.get("name").filter(|name| !name.as_str().is_some_and(is_package)) {
            return Err(elsewhere(place, &name.to_string()));
        }
        if let Some(resolved) = package.get("resolved") {
            let from = resolved.as_str().ok_or_else(|| elsewhere(place, &resolved.to_string()))?;
            let registries = [Some(NPM), self.index.as_deref()];
            let below = |registry: &str| {
                let rest = from.strip_prefix(registry.trim_end_matches('/'));
                rest.is_some_and(|rest| rest.starts_with('/'))
            };
            if !registries.into_iter().flatten().any(below) {
                return Err(elsewhere(place, from));
            }
        }
        // Without an address it is looked up by its version, which could be one too.
        let version = package["version"].as_str().unwrap_or_default();
        if version.is_empty() || !version.chars().all(|c| c.is_ascii_alphanumeric() || ".+-".contains(c)) {
            return Err(elsewhere(place, version));
        }
        let mut kept = Map::new();
        for (key, value) in KEPT.iter().filter_map(|key| Some((*key, package.get(*key)?))) {
            if key.ends_with("ependencies") {
                check_ranges(value)?;
            }
            kept.insert(key.to_owned(), value.clone());
        }
        Ok(Value::Object(kept))
    }
}

/// What is taken of a package in a lock. npm reads more, such as `_resolved`, which is an address too.
const KEPT: [&str; 18] = [
    "name",
    "version",
    "resolved",
    "integrity",
    "dependencies",
    "optionalDependencies",
    "peerDependencies",
    "peerDependenciesMeta",
    "dev",
    "optional",
    "devOptional",
    "peer",
    "extraneous",
    "inBundle",
    "engines",
    "os",
    "cpu",
    "libc",
];

/// What `overrides` of the project may have chosen is not in its lock but by its outcome. So each version of the lock is
/// called an override where that can be said: of a package that is there once, by its own name, and is not asked for by the
/// project itself. It changes nothing of what is installed, which is the lock's to say.
fn overrides(packages: &Map<String, Value>, manifest: &Map<String, Value>) -> Value {
    let mut chosen: BTreeMap<&str, Option<&Value>> = BTreeMap::new();
    for (place, package) in packages.iter().filter(|(place, _)| !place.is_empty()) {
        let name = place.rsplit_once("node_modules/").map_or("", |(_, name)| name);
        let plain = package.get("name").is_none() && package.get("inBundle").is_none();
        // Nothing for one that is there twice.
        chosen.entry(name).and_modify(|version| *version = None).or_insert(plain.then_some(&package["version"]));
    }
    let direct = |name: &str| manifest.values().any(|wanted| wanted.get(name).is_some());
    let pairs = chosen.into_iter().filter(|(name, _)| !direct(name));
    Value::Object(pairs.filter_map(|(name, version)| Some((name.to_owned(), version?.clone()))).collect())
}

/// Versions that are asked for, by name: none is an address or a path.
fn check_ranges(wanted: &Value) -> Result<(), RequirementsError> {
    for (package, range) in wanted.as_object().into_iter().flatten() {
        let range = range.as_str().ok_or_else(|| elsewhere(package, &range.to_string()))?;
        let plain = range.strip_prefix("npm:").unwrap_or(range);
        if !is_package(package) || plain.contains(':') || (plain.contains('/') && !range.starts_with("npm:@")) {
            return Err(elsewhere(package, range));
        }
    }
    Ok(())
}

/// Whether this names a package of a registry: `name`, or `@scope/name`.
fn is_package(name: &str) -> bool {
    let plain = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-~".contains(c))
    };
    match name.strip_prefix('@').map(|scoped| scoped.split_once('/')) {
        Some(Some((scope, name))) => plain(scope) && plain(name),
        Some(None) => false,
        None => plain(name),
    }
}

/// Whether this is a hash as pip takes it.
fn is_hash(word: &str) -> bool {
    let hash = word.strip_prefix("--hash=").and_then(|hash| hash.split_once(':'));
    hash.is_some_and(|(kind, digits)| {
        kind.bytes().all(|b| b.is_ascii_alphanumeric()) && digits.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

fn elsewhere(package: &str, from: &str) -> RequirementsError {
    let short = |text: &str| text.chars().take(200).collect();
    RequirementsError::Elsewhere { package: short(package), from: short(from) }
}

/// What pip takes for a file by the end of its name.
const ARCHIVES: &[&str] =
    &[".whl", ".zip", ".tar", ".tgz", ".tbz", ".txz", ".tlz", ".gz", ".bz2", ".xz", ".lz", ".lzma"];

/// Whether a line begins with the name of a package, and not with a path.
fn is_named(line: &str) -> bool {
    let name: usize =
        line.chars().take_while(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).map(char::len_utf8).sum();
    let rest = line[name..].trim_start();
    let whole = line.split([';', '[', ' ']).next().unwrap_or_default().to_ascii_lowercase();
    line.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !ARCHIVES.iter().any(|archive| whole.ends_with(archive))
        && (rest.is_empty() || rest.starts_with(['[', '=', '<', '>', '!', '~', ';', '(', '-']))
}

fn is_address(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let plain = |c: char| c.is_ascii_graphic() && !"@\\\"'`<>".contains(c);
    text.len() <= LONGEST_INDEX && rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(text: &str) -> Result<Requirements, RequirementsError> {
        Requirements::new(Language::named("python").unwrap(), text.to_owned(), None)
    }

    fn node(text: &Value, index: Option<&str>) -> Result<Requirements, RequirementsError> {
        Requirements::new(Language::named("javascript").unwrap(), text.to_string(), index.map(str::to_owned))
    }

    #[test]
    fn lines_that_name_packages() {
        let good = "# what we need\nrequests\nnumpy==1.26.4  # pinned\nDjango[argon2]>=4,<5 ; python_version > '3.8'\n\n\
                    x.y-z ~= 1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\nfoo (>=2)\n";
        let lines = python(good).unwrap().lines().unwrap();
        let wanted = [
            "requests",
            "numpy==1.26.4",
            "Django[argon2]>=4,<5 ; python_version > '3.8'",
            "x.y-z ~= 1.0 --hash=sha256:00 --hash=sha256:11",
            "foo (>=2)",
        ];
        assert_eq!(lines, wanted);
        // How it is to be read is not the file's to say.
        assert_eq!(python("# coding: utf-7\nx\r\n").unwrap().lines().unwrap(), ["x"]);
        for bad in [
            "-r other.txt",
            "--index-url https://example.com",
            "--no-binary :all:",
            "-e .",
            "./local",
            "/etc/passwd",
            "foo/bar",
            "x @ https://example.com/x.whl",
            "git+https://example.com/x",
            "https://example.com/x.whl",
            "x.whl",
            "x-1.0.tar.gz ; python_version > '3'",
            "X.ZIP[a]",
            "x --config-settings=a=b",
            "x \\\n  --global-option=y",
            "${SECRET}",
            // Lines for Python's `splitlines`, and other characters for its decoders.
            "x==1\x1c--no-binary=:all:",
            "x==1\x0c-r y",
            "x==1\u{2028}-r y",
            "x==1\u{85}-r y",
            "\u{feff}x",
            "# a comment \\\n./local",
            "x \\\n./local -r y",
            // pip takes options that are quoted.
            "x==1 --hash=sha256:00 \"--no-binary\" x",
            "x==1 --hash=sha256:00 '--no-binary' x",
            "x==1 --hash=sha256:00'",
            "x==1/../../../usr/lib",
        ] {
            assert!(python(bad).is_err(), "{bad}");
        }
        assert!(Requirements::new(Language::named("bash").unwrap(), String::new(), None).is_err());
    }

    #[test]
    fn locks_that_stay_in_their_registry() {
        let lock = |place: &str, package: Value| {
            json!({ "lockfileVersion": 3, "packages": {
                "": { "name": "mine", "scripts": { "postinstall": "x" }, "dependencies": { "a": "^1.0.0" } },
                place: package,
            }})
        };
        let a = "node_modules/a";
        let good = node(
            &lock(a, json!({ "version": "1.0.0", "resolved": "https://registry.npmjs.org/a/-/a-1.0.0.tgz" })),
            None,
        );
        let (_, manifest) = good.unwrap().lock().unwrap();
        assert_eq!(manifest["dependencies"], json!({ "a": "^1.0.0" }));
        assert_eq!(manifest.get("scripts"), None);
        let own = json!({ "version": "1.0.0", "resolved": "http://127.0.0.1:99/a.tgz" });
        node(&lock(a, own.clone()), Some("http://127.0.0.1:99")).unwrap();
        for (place, package) in [
            (a, own),
            (a, json!({ "version": "1.0.0", "resolved": "git+ssh://git@example.com/a.git" })),
            (a, json!({ "version": "1.0.0", "resolved": "https://registry.npmjs.org.example.com/a.tgz" })),
            (a, json!({ "version": "file:../a" })),
            (a, json!({ "version": "1.0.0", "link": true })),
            (a, json!({ "version": "1.0.0", "link": 1 })),
            (a, json!({ "version": "1.0.0", "resolved": ["http://127.0.0.1/a.tgz"] })),
            (a, json!({ "version": "1.0.0", "name": "http://127.0.0.1/a.tgz#" })),
            (a, json!({ "version": "1.0.0", "dependencies": { "b": "git+ssh://git@example.com/b.git" } })),
            (a, json!({ "version": "1.0.0", "dependencies": { "b": 1 } })),
            (a, json!({})),
            ("../a", json!({ "version": "1.0.0" })),
            ("node_modules/../../a", json!({ "version": "1.0.0" })),
        ] {
            assert!(node(&lock(place, package.clone()), None).is_err(), "{place} {package}");
        }
        // What npm would read besides is not handed on.
        let more = json!({ "version": "1.0.0", "_resolved": "http://127.0.0.1/a.tgz", "scripts": { "install": "x" } });
        let (handed, _) = node(&lock(a, more), None).unwrap().lock().unwrap();
        assert_eq!(handed["packages"][a], json!({ "version": "1.0.0" }));
        let alias =
            json!({ "name": "@scope/b", "version": "1.0.0", "integrity": "sha512-x", "dependencies": { "c": "^2" } });
        let (handed, _) = node(&lock(a, alias.clone()), None).unwrap().lock().unwrap();
        assert_eq!(handed["packages"][a], alias);
        let mut asks = lock(a, json!({ "version": "1.0.0" }));
        asks["packages"][""]["dependencies"]["a"] = json!("http://127.0.0.1/a.tgz");
        assert!(node(&asks, None).is_err());
        assert!(node(&json!({ "dependencies": { "a": "1" } }), None).is_err());
    }

    #[test]
    fn what_overrides_have_chosen() {
        let version = |version: &str| json!({ "version": version, "integrity": "sha512-x" });
        let lock = json!({ "lockfileVersion": 3, "packages": {
            "": { "dependencies": { "a": "^1" }, "overrides": { "evil": "http://127.0.0.1/x.tgz" } },
            "node_modules/a": version("1.0.0"),
            "node_modules/b": version("2.0.0"),
            "node_modules/@scope/c": version("3.0.0"),
            "node_modules/d": version("4.0.0"),
            "node_modules/b/node_modules/d": version("5.0.0"),
            "node_modules/e": { "name": "other", "version": "6.0.0", "integrity": "sha512-x" },
        }});
        let (handed, manifest) = node(&lock, None).unwrap().lock().unwrap();
        assert_eq!(manifest["overrides"], json!({ "@scope/c": "3.0.0", "b": "2.0.0" }));
        assert!(handed["packages"][""].get("overrides").is_none());
    }

    #[test]
    fn addresses_without_names() {
        let index =
            |text: &str| Requirements::new(Language::named("python").unwrap(), String::new(), Some(text.into()));
        index("https://pypi.example.com/simple").unwrap();
        for bad in ["", "pypi.example.com", "file:///x", "https://", "https://user:secret@example.com/", "http://a b"] {
            let error = index(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
