//! Presets: named sets of file rules, kept as data. `@name` adds one, `!@name` takes it away again.

mod paths;

use std::path::{Path, PathBuf};

use paths::{
    AGENTS, AGENTS_EXECUTE, AUTOSTART, CACHES, CACHES_MADE, CONFIGURATION, EXECUTED, LINT_GO, LINT_PYTHON, LINT_RUST,
    LINT_TS, OPENED, PROGRAMS, PROGRAMS_MADE, SECRETS, STARTUP,
};

use crate::git;
use crate::look::{End, Lookup};
use crate::rules::{Access, FileRule, Kind, LayerKind, Missing, Origin, Pattern, PlaceholderText};
use crate::suggest::Suggestion;

/// One preset that is not made of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Preset {
    /// Working directory `rw`, home `ro`.
    Base,
    /// Credentials, keys, browsers' profiles and shell histories excluded.
    Secrets,
    /// `.env` and `.env.*` of the project excluded.
    EnvFiles,
    /// Caches of tools writable.
    Caches,
    /// Agents' own state writable, and what they execute from it on the host read-only.
    Agents,
    /// Where programs are installed for the user writable.
    Programs,
    /// What git executes or follows in the repository protected.
    Git,
    /// Tags and other branches read-only.
    GitStrict,
    /// TypeScript lint configuration read-only.
    LintTs,
    /// Go lint configuration read-only.
    LintGo,
    /// Python lint configuration read-only.
    LintPython,
    /// Rust lint configuration read-only.
    LintRust,
    /// Shell start-up files, editor and agent configuration of the project protected.
    Dotfiles,
    /// Part of `@dotfiles`, where [`Preset::Agents`] is not in force: what agents execute from home is read-only, and at
    /// home their directories are as in any project.
    AgentsHeld,
}

/// A name that users write: what it adds, and what it takes away.
struct Entry {
    name: &'static str,
    adds: &'static [Preset],
    removes: &'static [Preset],
    help: &'static str,
}

use Preset::{
    Agents, AgentsHeld, Base, Caches, Dotfiles, EnvFiles, Git, GitStrict, LintGo, LintPython, LintRust, LintTs,
    Programs, Secrets,
};

/// Every name.
///
/// `@all` is the default of `agent`, so it holds what nobody misses: no preset of it hides a file of the project or stops
/// ordinary work. `@env-files` is not in it because programs under development need their `.env`, and `@git-strict` is
/// not because agents are asked to work on several branches. Lint configuration is in it: weakening the linter is what
/// an agent under pressure does first, and a user who wants it changed says `!@lint/all`.
const ENTRIES: &[Entry] = &[
    Entry {
        name: "@base",
        adds: &[Base, Secrets],
        removes: &[Base, Secrets],
        help: "working directory writable, home read-only, secrets hidden",
    },
    Entry {
        name: "@secrets",
        adds: &[Secrets],
        removes: &[Secrets],
        help: "credentials, keys, browsers' profiles and histories hidden (part of @base)",
    },
    Entry {
        name: "@env-files",
        adds: &[EnvFiles],
        removes: &[EnvFiles],
        help: "`.env` and `.env.*` of the project hidden",
    },
    Entry { name: "@caches", adds: &[Caches], removes: &[Caches], help: "caches of tools writable" },
    Entry {
        name: PROGRAMS_PRESET,
        adds: &[Programs],
        removes: &[Programs],
        help: "where programs are installed for the user (`~/.local/bin`, pipx) writable",
    },
    Entry { name: "@agents", adds: &[Agents], removes: &[Agents], help: "agents' own configuration writable" },
    Entry {
        name: "@git",
        adds: &[Git],
        removes: &[Git, GitStrict],
        help: "hooks and configuration of the repository protected",
    },
    Entry {
        name: "@git-strict",
        adds: &[Git, GitStrict],
        removes: &[GitStrict],
        help: "as @git, and tags and other branches read-only",
    },
    Entry { name: "@lint/ts", adds: &[LintTs], removes: &[LintTs], help: "TypeScript lint configuration read-only" },
    Entry { name: "@lint/go", adds: &[LintGo], removes: &[LintGo], help: "Go lint configuration read-only" },
    Entry {
        name: "@lint/python",
        adds: &[LintPython],
        removes: &[LintPython],
        help: "Python lint configuration read-only",
    },
    Entry { name: "@lint/rust", adds: &[LintRust], removes: &[LintRust], help: "Rust lint configuration read-only" },
    Entry {
        name: "@lint/all",
        adds: &[LintTs, LintGo, LintPython, LintRust],
        removes: &[LintTs, LintGo, LintPython, LintRust],
        help: "all lint configuration read-only",
    },
    Entry {
        name: "@dotfiles",
        adds: &[Dotfiles, AgentsHeld],
        removes: &[Dotfiles, AgentsHeld],
        help: "shell, editor and agent configuration of the project protected",
    },
    Entry {
        name: "@all",
        adds: &[Base, Secrets, Caches, Agents, Git, LintTs, LintGo, LintPython, LintRust, Dotfiles, AgentsHeld],
        removes: &[
            Base, Secrets, EnvFiles, Caches, Agents, Programs, Git, GitStrict, LintTs, LintGo, LintPython, LintRust,
            Dotfiles, AgentsHeld,
        ],
        help: "the default: @base, @caches, @agents, @git, @lint/all and @dotfiles",
    },
];

/// Every name with a line of help, for the documentation and for completions.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    ENTRIES.iter().map(|entry| (entry.name, entry.help))
}

impl Preset {
    /// The name under which it stands in messages.
    pub fn name(self) -> &'static str {
        self.place().trim_start_matches("preset ")
    }

    /// The place that its rules come from.
    fn place(self) -> &'static str {
        match self {
            Base => "preset @base",
            Secrets => "preset @secrets",
            EnvFiles => "preset @env-files",
            Caches => "preset @caches",
            Agents => "preset @agents",
            Programs => "preset @programs",
            Git => "preset @git",
            GitStrict => "preset @git-strict",
            LintTs => "preset @lint/ts",
            LintGo => "preset @lint/go",
            LintPython => "preset @lint/python",
            LintRust => "preset @lint/rust",
            Dotfiles | AgentsHeld => DOTFILES,
        }
    }

    /// Whether it shows or opens something by itself.
    pub fn grants(self) -> bool {
        matches!(self, Base | Caches | Agents | Programs)
    }
}

const DOTFILES: &str = "preset @dotfiles";
/// The preset that lets programs be installed for the user.
pub const PROGRAMS_PRESET: &str = "@programs";

/// Whether [`PROGRAMS_PRESET`] makes a path writable.
pub fn installs(home: &Path, path: &Path) -> bool {
    let below = path.strip_prefix(home);
    below.is_ok_and(|below| PROGRAMS_MADE.iter().chain(PROGRAMS).any(|name| below.starts_with(name)))
}

/// Whether a rule is one of those that `@dotfiles` has for what [`PROGRAMS_PRESET`] opens.
pub(crate) fn gives_way(rule: &FileRule, home: &Path) -> bool {
    rule.origin.place == DOTFILES && matches!(&rule.pattern, Pattern::Exact(path) if installs(home, path))
}

/// The preset that protects a name wherever it stands, if one does; `replaced`: also those that are kept as they are where they
/// are there.
pub(crate) fn held_name(is: impl Fn(&str) -> bool, replaced: bool) -> Option<&'static str> {
    let dotfiles = OPENED.iter().chain(STARTUP).chain(CONFIGURATION);
    if dotfiles.into_iter().any(|name| is(name)) {
        return Some(Dotfiles.name());
    }
    let lint = [(LintTs, LINT_TS), (LintGo, LINT_GO), (LintPython, LINT_PYTHON), (LintRust, LINT_RUST)];
    let held = lint.into_iter().find(|(_, names)| replaced && names.iter().any(|name| is(name)));
    held.map(|(preset, _)| preset.name())
}

/// The preset that protects or hides a path below home, if one does.
pub(crate) fn held_at_home(is: impl Fn(&str) -> bool) -> Option<&'static str> {
    let agents = AGENTS.iter().chain(AGENTS_EXECUTE.iter().map(|(name, _)| name));
    if AUTOSTART.iter().chain(EXECUTED).any(|name| is(name)) {
        Some(Dotfiles.name())
    } else if agents.into_iter().any(|name| is(name)) {
        Some(Agents.name())
    } else {
        SECRETS.iter().any(|name| is(name)).then(|| Secrets.name())
    }
}

/// Whether a rule that makes this path read-only is there to protect it. Such a rule shows nothing.
pub(crate) fn only_protects(origin: &Origin, path: &Path, workdir: &Path) -> bool {
    // A repository that belongs to the working directory may lie outside, and git has to see it.
    let of_project = |name: &str| name.starts_with("@git") || name.starts_with("@lint/");
    let preset = origin.preset();
    preset == Some("@dotfiles") && path != workdir || path.starts_with(workdir) && preset.is_some_and(of_project)
}

/// `@name` or `!@name`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// The name, with its `@`.
    pub name: &'static str,
    /// `!@name`: takes away.
    pub remove: bool,
    /// What it adds or takes away.
    pub presets: &'static [Preset],
}

impl Selection {
    /// Reads `@name` or `!@name`.
    pub fn parse(text: &str) -> Result<Selection, UnknownPreset> {
        let (remove, name) = match text.strip_prefix('!') {
            Some(name) => (true, name),
            None => (false, text),
        };
        match ENTRIES.iter().find(|entry| entry.name == name) {
            Some(entry) => {
                Ok(Selection { name: entry.name, remove, presets: if remove { entry.removes } else { entry.adds } })
            }
            None => Err(UnknownPreset {
                name: name.to_owned(),
                suggestion: Suggestion::among(name, ENTRIES.iter().map(|entry| entry.name)),
            }),
        }
    }
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.remove { "!" } else { "" }, self.name)
    }
}

/// There is no preset of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown preset `{name}`{suggestion}")]
pub struct UnknownPreset {
    /// The name that is not known.
    pub name: String,
    /// What may have been meant.
    pub suggestion: Suggestion,
}

/// Where presets look.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// The working directory: absolute and canonical.
    pub workdir: &'a Path,
    /// The caller's home directory: absolute and canonical.
    pub home: &'a Path,
    /// Configuration of git besides the repository's.
    pub git: &'a git::Outer,
    /// Looks paths up, each once.
    pub lookup: &'a Lookup,
}

/// Something that a preset found and that the user should know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// A repository is not what it should be.
    #[error(transparent)]
    Git(#[from] git::Suspicion),
    /// The working directory is read-only, since it is such a place or lies in one.
    #[error("`{}` is a place from which programs are started later, outside: it is read-only; `--rw {}` opens it", .0.display(), .0.display())]
    Autostart(PathBuf),
}

/// The rules of one preset, as of this layer.
pub fn rules(preset: Preset, places: Places<'_>, layer: LayerKind) -> (Vec<FileRule>, Vec<Warning>) {
    let Places { workdir, home, git: outer, lookup } = places;
    let mut rules = Rules { origin: Origin { layer, place: preset.place().into() }, out: Vec::new() };
    let mut warnings = Vec::new();
    match preset {
        Base => {
            rules.add(Access::Rw, workdir, Missing::Fail);
            // In one layer `ro` beats `rw` on the same path: a working directory that is home stays writable.
            if workdir != home {
                rules.add(Access::Ro, home, Missing::Ignore);
            }
        }
        Secrets => rules.all(Access::Exclude, home, SECRETS),
        EnvFiles => {
            rules.add(Access::Exclude, workdir.join(".env"), Missing::Protect(Kind::Dir));
            for pattern in ["**/.env", "**/.env.*"] {
                let glob = crate::glob::Glob::parse_under(workdir, pattern);
                rules.push(Access::Exclude, Pattern::Glob(glob.expect("a constant pattern")), Missing::Ignore);
            }
        }
        Caches => {
            for name in CACHES_MADE {
                rules.add(Access::Rw, home.join(name), Missing::Make);
            }
            rules.all(Access::Rw, home, CACHES);
        }
        Agents => {
            rules.all(Access::Rw, home, AGENTS);
            for (name, missing) in AGENTS_EXECUTE {
                rules.add(Access::Ro, home.join(name), *missing);
            }
        }
        Programs => {
            for name in PROGRAMS_MADE {
                rules.add(Access::Rw, home.join(name), Missing::Make);
            }
            rules.all(Access::Rw, home, PROGRAMS);
        }
        Git => {
            let (found, suspicions) = git::protect(workdir, home, outer);
            for (access, path, missing) in found {
                rules.add(access, path, missing);
            }
            warnings.extend(suspicions.into_iter().map(Warning::Git));
        }
        GitStrict => {
            let (found, suspicions) = git::protect_refs(workdir, home);
            for (access, path, missing) in found {
                rules.add(access, path, missing);
            }
            warnings.extend(suspicions.into_iter().map(Warning::Git));
        }
        LintTs => rules.all(Access::Ro, workdir, LINT_TS),
        LintGo => rules.all(Access::Ro, workdir, LINT_GO),
        LintPython => rules.all(Access::Ro, workdir, LINT_PYTHON),
        LintRust => rules.all(Access::Ro, workdir, LINT_RUST),
        Dotfiles => {
            let at_home = workdir == home;
            for name in OPENED {
                // Where the project is home itself, an agent's directory in it is `@agents`' or `AgentsHeld`'s.
                if !(at_home && AGENTS.contains(name)) {
                    rules.add(Access::Ro, workdir.join(name), Missing::Protect(Kind::Dir));
                }
            }
            // Planted start-up files only run where a shell looks for them: in home.
            let missing = if at_home { Missing::Protect(Kind::Dir) } else { Missing::Ignore };
            for name in STARTUP {
                rules.add(Access::Ro, workdir.join(name), missing);
            }
            for name in CONFIGURATION {
                if !(at_home && AGENTS.contains(name)) {
                    rules.add(Access::Ro, workdir.join(name), Missing::Ignore);
                }
            }
            // Whichever part of home the working directory is.
            for (name, missing) in AUTOSTART.iter().map(|n| (n, Missing::Protect(Kind::Dir))).chain(executed()) {
                let path = home.join(name);
                if workdir.starts_with(&path) {
                    rules.add(Access::Ro, workdir, Missing::Fail);
                    warnings.push(Warning::Autostart(workdir.to_path_buf()));
                } else if path.starts_with(workdir) {
                    rules.add(Access::Ro, path, missing);
                }
            }
            if at_home {
                // Hidden where they are; where they are not, planting one would run something later, or let somebody in.
                for name in [".ssh", ".gnupg", ".npmrc", ".netrc", ".kube", ".aws"] {
                    if !home.join(name).exists() {
                        rules.add(Access::Exclude, home.join(name), Missing::Protect(Kind::Dir));
                    }
                }
            } else {
                // Dotfiles are kept in projects, and home has links to them.
                for name in STARTUP.iter().chain(AUTOSTART).chain(EXECUTED).chain(&[".ssh/config"]) {
                    if let Some(path) =
                        linked_from(lookup, home, name).filter(|p| p.starts_with(workdir) && p != workdir)
                    {
                        rules.add(Access::Ro, path, Missing::Ignore);
                    }
                }
            }
        }
        AgentsHeld => {
            if workdir == home {
                let opened = OPENED.iter().map(|name| (name, Missing::Protect(Kind::Dir)));
                let kept = CONFIGURATION.iter().map(|name| (name, Missing::Ignore));
                for (name, missing) in opened.chain(kept).filter(|(name, _)| AGENTS.contains(name)) {
                    rules.add(Access::Ro, home.join(name), missing);
                }
            }
            for (name, missing) in AGENTS_EXECUTE {
                rules.add(Access::Ro, home.join(name), held(name, *missing));
            }
        }
    }
    (rules.out, warnings)
}

fn executed() -> impl Iterator<Item = (&'static &'static str, Missing)> {
    EXECUTED.iter().map(|name| (name, Missing::Ignore))
}

/// No agent keeps its state here, so that a placeholder for what is missing stops none.
fn held(name: &str, missing: Missing) -> Missing {
    match (missing, name.rsplit_once('.')) {
        (Missing::Ignore, Some((_, "json"))) => Missing::ProtectText(PlaceholderText::EmptyObject),
        (Missing::Ignore, Some((_, "toml" | "yml"))) => Missing::Protect(Kind::File),
        (Missing::Ignore, _) => Missing::Protect(Kind::Dir),
        (missing, _) => missing,
    }
}

/// Where a name at home leads, when it or a directory above it is a link.
fn linked_from(lookup: &Lookup, home: &Path, name: &str) -> Option<PathBuf> {
    let walk = lookup.walk(&home.join(name)).ok()?;
    (!walk.links.is_empty() && walk.end != End::Missing).then_some(walk.real)
}

struct Rules {
    origin: Origin,
    out: Vec<FileRule>,
}

impl Rules {
    fn push(&mut self, access: Access, pattern: Pattern, missing: Missing) {
        self.out.push(FileRule { access, pattern, missing, origin: self.origin.clone() });
    }

    fn add(&mut self, access: Access, path: impl Into<PathBuf>, missing: Missing) {
        self.push(access, Pattern::exact(path.into()), missing);
    }

    fn all(&mut self, access: Access, base: &Path, names: &[&str]) {
        self.out.reserve(names.len());
        for name in names {
            self.add(access, base.join(name), Missing::Ignore);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::decide;

    fn all(workdir: &str, home: &str, names: &[&str]) -> Vec<FileRule> {
        let outer = git::Outer::default();
        let lookup = Lookup::default();
        let (workdir, home) = (Path::new(workdir), Path::new(home));
        let places = Places { workdir, home, git: &outer, lookup: &lookup };
        let presets = names.iter().flat_map(|n| Selection::parse(n).unwrap().presets);
        // As in a policy: `@agents` is in force.
        presets.filter(|p| **p != AgentsHeld).flat_map(|p| rules(*p, places, LayerKind::Profile).0).collect()
    }

    #[test]
    fn what_all_decides() {
        let rules = all("/h/u/p", "/h/u", &["@all"]);
        let table = [
            ("/h/u/p/src/main.rs", Some(Access::Rw)),
            ("/h/u/other", Some(Access::Ro)),
            ("/h/u/.ssh/id_ed25519", Some(Access::Exclude)),
            ("/h/u/.cargo/credentials.toml", Some(Access::Exclude)),
            ("/h/u/.cargo/registry/x", Some(Access::Rw)),
            ("/h/u/.cargo/bin/x", Some(Access::Ro)),
            ("/h/u/.cache/mozilla/x", Some(Access::Exclude)),
            ("/h/u/.cache/pip", Some(Access::Rw)),
            ("/h/u/.claude/projects/x", Some(Access::Rw)),
            ("/h/u/.claude/settings.json", Some(Access::Ro)),
            ("/h/u/p/.vscode/tasks.json", Some(Access::Ro)),
            ("/h/u/p/.env", Some(Access::Rw)),
            ("/h/u/p/clippy.toml", Some(Access::Ro)),
            ("/h/u/p/.git", Some(Access::Ro)),
            ("/etc/passwd", None),
        ];
        for (path, access) in table {
            assert_eq!(decide(&rules, Path::new(path)).map(|r| r.access), access, "{path}");
        }
    }

    #[test]
    fn home_as_working_directory() {
        let rules = all("/h/u", "/h/u", &["@all"]);
        let table = [
            ("/h/u/x", Access::Rw),
            ("/h/u/.ssh/x", Access::Exclude),
            ("/h/u/.bash_profile", Access::Ro),
            ("/h/u/.claude/projects", Access::Rw),
            ("/h/u/.vscode", Access::Ro),
            ("/h/u/.local/bin/x", Access::Ro),
        ];
        for (path, access) in table {
            assert_eq!(decide(&rules, Path::new(path)).map(|r| r.access), Some(access), "{path}");
        }
    }

    #[test]
    fn autostart_places_wherever_in_home_the_working_directory_is() {
        let table = [
            ("/h/u/.config", "/h/u/.config/autostart/x.desktop", Access::Ro),
            ("/h/u/.config", "/h/u/.config/systemd/user/x.service", Access::Ro),
            ("/h/u/.config", "/h/u/.config/app/settings", Access::Rw),
            ("/h/u/.config/systemd", "/h/u/.config/systemd/user/x.service", Access::Ro),
            ("/h/u/.config/systemd/user", "/h/u/.config/systemd/user/x.service", Access::Ro),
            ("/h/u/.config/systemd/user/deep", "/h/u/.config/systemd/user/deep/x.service", Access::Ro),
            ("/h/u/.local", "/h/u/.local/bin/x", Access::Ro),
            ("/h/u/.local", "/h/u/.local/share/systemd/user/x.service", Access::Ro),
            ("/h/u/.local", "/h/u/.local/x", Access::Rw),
            ("/h/u/.local/share", "/h/u/.local/share/applications/x.desktop", Access::Ro),
            ("/h/u/.local/bin", "/h/u/.local/bin/x", Access::Ro),
            ("/h/u/bin", "/h/u/bin/x", Access::Ro),
            ("/h/u/.cargo", "/h/u/.cargo/bin/x", Access::Ro),
            ("/h/u/binary", "/h/u/binary/x", Access::Rw),
        ];
        for (workdir, path, access) in table {
            let rules = all(workdir, "/h/u", &["@all"]);
            assert_eq!(decide(&rules, Path::new(path)).map(|r| r.access), Some(access), "{path} from {workdir}");
        }
        assert!(installs(Path::new("/h/u"), Path::new("/h/u/.local/bin/x")));
        assert!(!installs(Path::new("/h/u"), Path::new("/h/u/.local/share/applications")));
    }

    #[test]
    fn env_files_when_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        let rules = all(root, "/h/u", &["@all", "@env-files"]);
        for name in [".env", ".env.local", "sub/.env", "sub/.env.prod"] {
            assert_eq!(decide(&rules, &dir.path().join(name)).unwrap().access, Access::Exclude, "{name}");
        }
        assert_eq!(decide(&rules, &dir.path().join("x.env")).unwrap().access, Access::Rw);
    }

    #[test]
    fn names_and_their_negation() {
        assert_eq!(Selection::parse("!@git").unwrap().presets, [Git, GitStrict]);
        assert_eq!(Selection::parse("!@git-strict").unwrap().presets, [GitStrict]);
        assert_eq!(Selection::parse("@git-strict").unwrap().presets, [Git, GitStrict]);
        let error = Selection::parse("@lint/tss").unwrap_err().to_string();
        assert_eq!(error, "unknown preset `@lint/tss` (did you mean `@lint/ts`?)");
        assert!(Selection::parse("base").unwrap_err().to_string().contains("`@base`"));
    }

    #[test]
    fn no_secret_is_exposed_by_a_cache_or_an_agent() {
        for secret in SECRETS {
            for open in CACHES.iter().chain(AGENTS) {
                assert!(!Path::new(open).starts_with(secret), "{open} lies in {secret}");
            }
        }
    }
}
