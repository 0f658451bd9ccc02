//! The agents that speak MCP, and where each keeps its list of servers. Data only: nothing is read or written here.
//!
//! Where the paths come from stands in `docs/design/install.md`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ringfence::policy::facts::Facts;

use crate::entry::{Entry, Form};

/// A program that Ringfence can be made known to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Client {
    /// Claude Code
    Claude,
    /// Codex: command line, IDE extension and app
    Codex,
    /// Cursor
    Cursor,
    /// VS Code
    Vscode,
    /// Gemini CLI
    Gemini,
}

/// For whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Scope {
    /// You, in every project
    #[default]
    User,
    /// Everybody who works in this project
    Project,
}

/// One file of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The directory that the file must not be led out of by links.
    pub base: PathBuf,
    /// The file, below it.
    pub file: &'static str,
    pub form: Form,
    /// Links below the base are followed: it is the user's own, and no project, where a sandbox may have made them.
    pub follows: bool,
}

/// Where a client keeps the list, and in which form.
struct Row {
    /// Below home.
    user: &'static str,
    /// A variable that names another directory, and the file below that.
    moved: Option<(&'static str, &'static str)>,
    /// Below the project.
    project: &'static str,
    form: Form,
}

impl Client {
    fn row(self) -> Row {
        match self {
            Client::Claude => Row {
                user: ".claude.json",
                moved: Some(("CLAUDE_CONFIG_DIR", ".claude.json")),
                project: ".mcp.json",
                form: Form::Json { list: "mcpServers" },
            },
            Client::Codex => Row {
                user: ".codex/config.toml",
                moved: Some(("CODEX_HOME", "config.toml")),
                project: ".codex/config.toml",
                form: Form::Toml { list: "mcp_servers" },
            },
            Client::Cursor => Row {
                user: ".cursor/mcp.json",
                moved: None,
                project: ".cursor/mcp.json",
                form: Form::Json { list: "mcpServers" },
            },
            Client::Vscode => Row {
                user: ".config/Code/User/mcp.json",
                moved: Some(("XDG_CONFIG_HOME", "Code/User/mcp.json")),
                project: ".vscode/mcp.json",
                form: Form::Json { list: "servers" },
            },
            Client::Gemini => Row {
                user: ".gemini/settings.json",
                moved: None,
                project: ".gemini/settings.json",
                form: Form::Json { list: "mcpServers" },
            },
        }
    }

    /// The file that holds the list for this scope.
    pub fn target(self, scope: Scope, facts: &Facts, project: &Path) -> Target {
        let row = self.row();
        if scope == Scope::Project {
            return Target { base: project.to_path_buf(), file: row.project, form: row.form, follows: false };
        }
        let moved = row.moved.and_then(|(variable, file)| {
            let base = facts.env.get(OsStr::new(variable)).map(PathBuf::from).filter(|path| path.is_absolute())?;
            Some(Target { base, file, form: row.form, follows: true })
        });
        moved.unwrap_or_else(|| Target { base: facts.home.clone(), file: row.user, form: row.form, follows: true })
    }

    /// What is written: which program the client starts, and how.
    pub fn entry(self, scope: Scope, program: &Path) -> Entry {
        // A project's file goes to other machines, where the program lies elsewhere.
        let command = match scope {
            Scope::User => program.display().to_string(),
            Scope::Project => "ringfence".to_owned(),
        };
        let mut args = vec!["mcp".to_owned()];
        // Editors start servers in a directory of their own choice, and say which folder is open only in this way.
        let folder = match (self, scope) {
            (Client::Vscode, _) | (Client::Cursor, Scope::Project) => Some("${workspaceFolder}"),
            _ => None,
        };
        args.extend(folder.into_iter().flat_map(|folder| ["--root".to_owned(), folder.to_owned()]));
        Entry { kind: matches!(self, Client::Vscode | Client::Claude).then_some("stdio"), command, args }
    }

    pub fn name(self) -> &'static str {
        match self {
            Client::Claude => "Claude Code",
            Client::Codex => "Codex",
            Client::Cursor => "Cursor",
            Client::Vscode => "VS Code",
            Client::Gemini => "Gemini CLI",
        }
    }
}
