//! Presets: named sets of file rules, kept as data. `@name` adds one, `!@name` takes it away again.

use std::path::{Path, PathBuf};

use crate::git;
use crate::rules::{Access, FileRule, Kind, LayerKind, Missing, Origin, Pattern};
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
    /// What git executes or follows in the repository protected.
    Git,
    /// Tags and other branches read-only.
    GitStrict,
    LintTs,
    LintGo,
    LintPython,
    LintRust,
    /// Shell start-up files, editor and agent configuration of the project protected.
    Dotfiles,
}

/// A name that users write: what it adds, and what it takes away.
struct Entry {
    name: &'static str,
    adds: &'static [Preset],
    removes: &'static [Preset],
    help: &'static str,
}

use Preset::{Agents, Base, Caches, Dotfiles, EnvFiles, Git, GitStrict, LintGo, LintPython, LintRust, LintTs, Secrets};

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
        adds: &[Dotfiles],
        removes: &[Dotfiles],
        help: "shell, editor and agent configuration of the project protected",
    },
    Entry {
        name: "@all",
        adds: &[Base, Secrets, Caches, Agents, Git, LintTs, LintGo, LintPython, LintRust, Dotfiles],
        removes: &[
            Base, Secrets, EnvFiles, Caches, Agents, Git, GitStrict, LintTs, LintGo, LintPython, LintRust, Dotfiles,
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
            Git => "preset @git",
            GitStrict => "preset @git-strict",
            LintTs => "preset @lint/ts",
            LintGo => "preset @lint/go",
            LintPython => "preset @lint/python",
            LintRust => "preset @lint/rust",
            Dotfiles => "preset @dotfiles",
        }
    }
}

/// `@name` or `!@name`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    pub name: &'static str,
    /// `!@name`: takes away.
    pub remove: bool,
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
    pub name: String,
    pub suggestion: Suggestion,
}

/// Where presets look.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// The working directory: absolute and canonical.
    pub workdir: &'a Path,
    pub home: &'a Path,
    /// Configuration of git besides the repository's ([`git::outer_configs`]).
    pub git_configs: &'a [PathBuf],
}

/// Something that a preset found and that the user should know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    #[error(transparent)]
    Git(#[from] git::Suspicion),
}

/// The rules of one preset, as of this layer.
pub fn rules(preset: Preset, places: Places<'_>, layer: LayerKind) -> (Vec<FileRule>, Vec<Warning>) {
    let Places { workdir, home, git_configs } = places;
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
        Git => {
            let (found, suspicions) = git::protect(workdir, home, git_configs);
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
                // Where the project is home itself, an agent's directory in it is `@agents`'.
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
            if at_home {
                rules.all(Access::Ro, home, AUTOSTART);
            }
        }
    }
    (rules.out, warnings)
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
        self.push(access, Pattern::Exact(path.into()), missing);
    }

    fn all(&mut self, access: Access, base: &Path, names: &[&str]) {
        self.out.reserve(names.len());
        for name in names {
            self.add(access, base.join(name), Missing::Ignore);
        }
    }
}

/// What only the user may read, below home. Files that builds cannot do without (`~/.m2/settings.xml`,
/// `~/.gradle/gradle.properties`) are not here although a token may stand in them: `exclude` them where one does.
const SECRETS: &[&str] = &[
    // Keys
    ".ssh",
    ".gnupg",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".age",
    ".config/age",
    ".config/sops",
    // Clouds and clusters
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/doctl",
    ".config/hcloud",
    ".config/linode-cli",
    ".config/scw",
    ".config/openstack",
    ".oci",
    ".bluemix",
    ".aliyun",
    ".kube",
    ".fly",
    ".terraform.d/credentials.tfrc.json",
    ".terraformrc",
    ".pulumi/credentials.json",
    ".vault-token",
    ".config/rclone",
    ".s3cfg",
    ".boto",
    // Container registries
    ".docker/config.json",
    ".config/containers/auth.json",
    // Hosts and package registries
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh/hosts.yml",
    ".config/glab-cli/config.yml",
    ".config/hub",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".local/share/gem/credentials",
    ".composer/auth.json",
    ".config/composer/auth.json",
    ".m2/settings-security.xml",
    ".config/huggingface",
    ".cache/huggingface/token",
    ".huggingface/token",
    // Databases
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    // Password managers
    ".config/op",
    ".config/1Password",
    ".config/Bitwarden",
    ".config/Bitwarden CLI",
    ".config/keepassxc",
    ".config/rbw",
    ".local/share/rbw",
    // Browsers: native, snap, flatpak
    ".mozilla",
    ".librewolf",
    ".zen",
    ".thunderbird",
    ".config/google-chrome",
    ".config/google-chrome-beta",
    ".config/google-chrome-unstable",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/opera",
    ".config/vivaldi",
    ".config/epiphany",
    ".local/share/epiphany",
    ".cache/mozilla",
    ".cache/google-chrome",
    ".cache/chromium",
    ".cache/BraveSoftware",
    ".cache/microsoft-edge",
    "snap/firefox",
    "snap/chromium",
    "snap/brave",
    "snap/opera",
    "snap/thunderbird",
    ".var/app/org.mozilla.firefox",
    ".var/app/org.mozilla.Thunderbird",
    ".var/app/io.gitlab.librewolf-community",
    ".var/app/org.chromium.Chromium",
    ".var/app/com.google.Chrome",
    ".var/app/com.brave.Browser",
    ".var/app/com.microsoft.Edge",
    ".var/app/com.opera.Opera",
    ".var/app/com.vivaldi.Vivaldi",
    // Chat
    ".config/Signal",
    ".config/Slack",
    ".config/discord",
    // Histories: tokens are typed on command lines
    ".bash_history",
    ".zsh_history",
    ".histfile",
    ".local/share/fish/fish_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".mysql_history",
    ".sqlite_history",
    ".rediscli_history",
];

/// What tools write while they build, below home. Downloads and results only: places from which the host starts
/// programs (`~/.cargo/bin`, `~/.rustup/toolchains`, `~/.local/bin`, `~/.nvm`) are not here. A poisoned cache is a risk
/// that remains; `!@caches` takes it away at the price of downloads that fail.
const CACHES: &[&str] = &[
    ".pnpm-store",
    ".local/share/pnpm/store",
    ".yarn/berry",
    ".yarn/cache",
    ".bun/install/cache",
    ".node-gyp",
    ".electron",
    ".cargo/git",
    ".cargo/.package-cache",
    ".cargo/.package-cache-mutate",
    ".cargo/.global-cache",
    "go/pkg/mod",
    "go/pkg/sumdb",
    ".gradle/caches",
    ".gradle/daemon",
    ".gradle/native",
    ".gradle/notifications",
    ".gradle/wrapper",
    ".m2/repository",
    ".ivy2/cache",
    ".ivy2/local",
    ".sbt/boot",
    ".konan/cache",
    ".nuget/packages",
    ".local/share/NuGet",
    ".conda/pkgs",
    ".composer/cache",
    ".bundle/cache",
    ".pub-cache/hosted",
    ".hex/packages",
    ".cabal/packages",
    ".stack/pantry",
    ".terraform.d/plugin-cache",
    ".ccache",
    ".nv/ComputeCache",
];

/// Caches without which the tool fails at its first use: home is read-only, so that it could not make them itself.
const CACHES_MADE: &[&str] = &[".cache", ".npm", ".cargo/registry"];

/// Agents' own state, below home: sessions, history, sign-in, settings.
///
/// What is promised: an agent starts, signs in, remembers. What is not: that an agent which was talked into it leaves
/// nothing for its own next start. Its state has to be writable, and some of it (`~/.claude.json` names MCP servers) is
/// executed by the next run. What has no other purpose than to be executed or to say what is, is taken out again in
/// [`AGENTS_EXECUTE`]. An agent that is always started through Ringfence never executes the rest outside.
const AGENTS: &[&str] = &[
    ".claude",
    ".claude.json",
    ".claude.json.backup",
    ".config/claude",
    ".local/share/claude",
    ".local/state/claude",
    ".codex",
    ".pi",
    ".gemini",
    ".config/opencode",
    ".local/share/opencode",
    ".local/state/opencode",
    ".cursor",
    ".config/cursor",
    ".copilot",
    ".config/github-copilot",
    ".aider",
    ".aider.conf.yml",
    ".config/goose",
    ".local/share/goose",
    ".local/state/goose",
    ".qwen",
    ".continue",
    ".config/crush",
    ".local/share/crush",
    ".config/amp",
    ".local/share/amp",
    ".factory",
    ".openhands",
    ".kiro",
];

/// What agents execute, or what tells them what to execute, below [`AGENTS`]. Where an empty stand-in reads as no
/// settings it is protected also when missing; an empty JSON file stops some agents, so these are only kept as they are.
const AGENTS_EXECUTE: &[(&str, Missing)] = &[
    (".claude/settings.json", Missing::ProtectText("{}\n")),
    (".claude/settings.local.json", Missing::Ignore),
    (".claude/hooks", Missing::Protect(Kind::Dir)),
    (".claude/local", Missing::Ignore),
    (".claude/plugins", Missing::Ignore),
    (".local/share/claude/versions", Missing::Ignore),
    (".codex/config.toml", Missing::Ignore),
    (".gemini/settings.json", Missing::Ignore),
    (".gemini/extensions", Missing::Ignore),
    (".config/opencode/plugin", Missing::Protect(Kind::Dir)),
    (".config/opencode/plugins", Missing::Protect(Kind::Dir)),
    (".config/opencode/opencode.json", Missing::Ignore),
    (".pi/agent/extensions", Missing::Ignore),
    (".cursor/mcp.json", Missing::Ignore),
    (".cursor/hooks.json", Missing::Ignore),
    (".cursor/extensions", Missing::Ignore),
    (".aider.conf.yml", Missing::Ignore),
];

/// Executed when an editor, an agent or a shell opens the project: protected also when missing. Each costs a name in the
/// project while the box lives, so the list is short. Stand-ins are directories, whatever the name would hold: git passes
/// empty directories over, so that `git status` and `git add --all` do not see them.
const OPENED: &[&str] = &[".vscode", ".idea", ".devcontainer", ".claude", ".cursor", ".mcp.json", ".envrc"];

/// Start-up files of shells.
const STARTUP: &[&str] = &[
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".kshrc",
    ".cshrc",
    ".tcshrc",
    ".login",
    ".inputrc",
    ".xprofile",
    ".xinitrc",
    ".xsession",
    ".xsessionrc",
    ".pam_environment",
    ".gitconfig",
];

/// Configuration of editors, agents and tools that is read-only when it is there.
const CONFIGURATION: &[&str] = &[
    ".zed",
    ".fleet",
    ".vim",
    ".vimrc",
    ".nvimrc",
    ".exrc",
    ".nvim.lua",
    ".emacs.d",
    ".dir-locals.el",
    ".sublime-project",
    ".devcontainer.json",
    ".codex",
    ".gemini",
    ".opencode",
    "opencode.json",
    "opencode.jsonc",
    ".pi",
    ".aider.conf.yml",
    ".continue",
    ".windsurf",
    ".windsurfrules",
    ".cursorrules",
    ".clinerules",
    ".roo",
    ".kiro",
    ".amp",
    ".goosehints",
    ".husky",
    ".lefthook.yml",
    "lefthook.yml",
    ".pre-commit-config.yaml",
    ".mise.toml",
    "mise.toml",
    ".tool-versions",
    ".direnvrc",
    ".gdbinit",
    ".lldbinit",
];

/// What is started with the session, below home; only when home is the working directory.
const AUTOSTART: &[&str] = &[
    ".config/autostart",
    ".config/systemd",
    ".config/environment.d",
    ".config/fish",
    ".config/git",
    ".config/nvim",
    ".local/bin",
    ".local/share/applications",
    "bin",
    ".cargo/bin",
    ".cargo/config.toml",
    ".cargo/env",
    ".rustup/toolchains",
    ".nvm",
];

const LINT_TS: &[&str] = &[
    ".eslintrc",
    ".eslintrc.js",
    ".eslintrc.cjs",
    ".eslintrc.mjs",
    ".eslintrc.json",
    ".eslintrc.yml",
    ".eslintrc.yaml",
    ".eslintignore",
    "eslint.config.js",
    "eslint.config.mjs",
    "eslint.config.cjs",
    "eslint.config.ts",
    "eslint.config.mts",
    "eslint.config.cts",
    ".prettierrc",
    ".prettierrc.json",
    ".prettierrc.yml",
    ".prettierrc.yaml",
    ".prettierrc.toml",
    ".prettierrc.js",
    ".prettierrc.cjs",
    ".prettierrc.mjs",
    ".prettierignore",
    "prettier.config.js",
    "prettier.config.cjs",
    "prettier.config.mjs",
    "prettier.config.ts",
    "biome.json",
    "biome.jsonc",
    ".oxlintrc.json",
    "dprint.json",
    ".stylelintrc",
    ".stylelintrc.json",
    "stylelint.config.js",
    "tslint.json",
];

const LINT_GO: &[&str] =
    &[".golangci.yml", ".golangci.yaml", ".golangci.toml", ".golangci.json", "staticcheck.conf", "revive.toml"];

const LINT_PYTHON: &[&str] = &[
    "ruff.toml",
    ".ruff.toml",
    ".flake8",
    ".pylintrc",
    "pylintrc",
    ".pylintrc.toml",
    "mypy.ini",
    ".mypy.ini",
    "pyrightconfig.json",
    ".bandit",
    ".isort.cfg",
    ".style.yapf",
];

const LINT_RUST: &[&str] =
    &["clippy.toml", ".clippy.toml", "rustfmt.toml", ".rustfmt.toml", "deny.toml", ".cargo-deny.toml"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::decide;

    fn all(workdir: &str, home: &str, names: &[&str]) -> Vec<FileRule> {
        let places = Places { workdir: Path::new(workdir), home: Path::new(home), git_configs: &[] };
        let presets = names.iter().flat_map(|n| Selection::parse(n).unwrap().presets);
        presets.flat_map(|p| rules(*p, places, LayerKind::Profile).0).collect()
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
