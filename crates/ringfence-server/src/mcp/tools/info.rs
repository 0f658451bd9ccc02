//! `session_info`: what is allowed, and what is left.

use std::time::SystemTime;

use ringfence::code::Contexts;
use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Act, Desk, Nature};
use crate::mcp::answer::{Trouble, done};
use crate::mcp::words::{self, Words};

/// Says what is allowed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionInfo {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionWords {
    id: String,
    profile: String,
    engine: String,
    /// Inside the sandbox.
    working_directory: String,
    /// The same directory on the owner's machine.
    working_directory_outside: String,
    allowed: Words,
    /// Commands so far, and those that run now.
    commands: u64,
    running: u32,
    /// Interpreters that keep their variables, for the `context` of run_code.
    contexts: Vec<ContextWords>,
    /// Seconds until the sandbox ends whatever happens; null when that is not fixed.
    seconds_left: Option<u64>,
    /// Directories that the client works in and the owner did not allow.
    directories_left_out: Vec<String>,
    /// How many more directories the client works in. They were not looked at, because it named too many.
    directories_not_looked_at: usize,
    note: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ContextWords {
    name: String,
    language: String,
}

const NOTE: &str = "No tool can change this. To get more, ask the owner.";

impl Act for SessionInfo {
    type Output = SessionWords;
    const NAME: &'static str = "session_info";
    const TITLE: &'static str = "What the sandbox allows";
    const ABOUT: &'static str = "Says in words what the sandbox may read, write, reach and spend, where its working \
        directory is, and what is left of its time.";
    const NATURE: Nature = Nature::Reads;

    async fn act(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let opened = &desk.opened;
        let info = match opened.session.info().await {
            Ok(info) => info,
            Err(error) => return Err(desk.live.trouble(error).await),
        };
        let left = info.expires.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default().as_secs());
        // One that cannot be listed is found by its name.
        let contexts = Contexts::of(opened.session.clone()).list().await.unwrap_or_default();
        let contexts = contexts.into_iter().map(|c| ContextWords { name: c.name, language: c.language }).collect();
        let words = SessionWords {
            contexts,
            id: info.id,
            profile: info.profile,
            engine: info.engine,
            working_directory: info.workdir_inside.display().to_string(),
            working_directory_outside: info.workdir.display().to_string(),
            allowed: words::of(opened.allowed.sandbox.policy(), &opened.at, &opened.places.also),
            commands: info.executions,
            running: info.running,
            seconds_left: left,
            directories_left_out: opened.places.left_out.clone(),
            directories_not_looked_at: opened.places.not_looked_at,
            note: NOTE.to_owned(),
        };
        let mut text = format!(
            "sandbox {} (profile {}, engine {})\nworking directory: {} ({} outside)\n{}",
            words.id,
            words.profile,
            words.engine,
            words.working_directory,
            words.working_directory_outside,
            words.allowed.text()
        );
        if !words.contexts.is_empty() {
            let names: Vec<String> = words.contexts.iter().map(|c| format!("{} ({})", c.name, c.language)).collect();
            text.push_str(&format!("contexts of run_code: {}\n", names.join(", ")));
        }
        if !words.directories_left_out.is_empty() {
            text.push_str(&format!("not allowed by the owner: {}\n", words.directories_left_out.join(", ")));
        }
        if words.directories_not_looked_at > 0 {
            let more = words.directories_not_looked_at;
            text.push_str(&format!("left out, because the client names too many: {more} more directories\n"));
        }
        text.push_str(&words.note);
        done(&words, text)
    }
}
