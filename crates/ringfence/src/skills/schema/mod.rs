//! Declared inputs: a JSON Schema, checked before a run. It fetches nothing, whatever a schema refers to, and a hostile pattern
//! costs no more than the text is long.
//!
//! A child process with limits would need no such counting, but there is no simple one. A process with threads cannot fork
//! safely; the library has no program of its own to execute; and the skill's sandbox has nothing that knows JSON Schema.
//! Schemas are also read where nothing runs, for each skill of a list.

mod cost;
mod work;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use boon::{CompileError, Compiler, ErrorKind, SchemaIndex, Schemas, UrlLoader, ValidationError};
use serde::Serialize;
use serde_json::Value;

use self::work::Work;
use super::SkillError;
use crate::code::Status;

/// Bytes of a schema.
const MAX_SCHEMA: usize = 256 << 10;
/// Reasons that are told.
const MAX_REASONS: usize = 5;
/// Characters of a reason, and of the values that it lists.
const MAX_REASON: usize = 400;
const MAX_VALUES: usize = 200;
/// Bytes of stack for each part in a row, for inputs that are nested as deeply as they can be.
const STACK: usize = 1 << 20;
/// So many checks run at once; more wait. One that is not waited for any more counts until it ends.
const MOST_CHECKS: usize = 4;
/// How often it is looked whether a check was cancelled.
const LOOK: Duration = Duration::from_millis(20);
/// What the schema is called while it is compiled; nothing is there.
const PLACE: &str = "https://ringfence.invalid/inputs.json";

/// What inputs must be like.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Schema {
    value: Value,
    /// Parts in a row.
    #[serde(skip)]
    row: usize,
}

/// Why a value was not found to fit.
#[derive(Debug, PartialEq)]
pub(super) enum Unfit {
    /// With the places of what is wrong.
    Reasons(Vec<String>),
    /// It is not known: the check ended before.
    Ended(Status),
}

/// One of the checks that run.
struct Turn;

impl Turn {
    fn take() -> Option<Turn> {
        let free = |running| (running < MOST_CHECKS).then_some(running + 1);
        RUNNING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok().map(|_| Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Loads nothing.
struct Nothing;

impl UrlLoader for Nothing {
    fn load(&self, url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        Err(format!("`{url}` is somewhere else, and nothing is fetched").into())
    }
}

impl Schema {
    /// Reads a schema; `place` is what messages call it.
    pub fn parse(text: &str, place: &str) -> Result<Schema, SkillError> {
        let bad = |reason: String| SkillError::Schema(place.to_owned(), shortened(&reason));
        if text.len() > MAX_SCHEMA {
            return Err(bad(format!("it has {} bytes, more than {MAX_SCHEMA}", text.len())));
        }
        let value = serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(text))
            .map_err(|error| bad(error.to_string()))?;
        let (graph, row) = cost::check(&value).map_err(bad)?;
        Work::of(&graph).map_err(bad)?;
        let schema = Schema { row, value };
        schema.compile().map_err(bad)?;
        Ok(schema)
    }

    /// Whether a value fits. One that cannot be checked in bounded time and memory does not. It is checked on another thread,
    /// which is waited for until this time is over, and while it is not cancelled.
    pub(super) fn check(
        &self,
        value: &Arc<Value>,
        until: Option<Instant>,
        cancelled: impl Fn() -> bool,
    ) -> Result<(), Unfit> {
        let failed = |why: &str| Unfit::Reasons(vec![format!("they cannot be checked{why}")]);
        let over = || match until {
            _ if cancelled() => Err(Unfit::Ended(Status::Cancelled)),
            Some(until) if until <= Instant::now() => Err(Unfit::Ended(Status::Timeout)),
            _ => Ok(()),
        };
        let turn = loop {
            match Turn::take() {
                Some(turn) => break turn,
                None => over()?,
            }
            std::thread::sleep(LOOK);
        };
        let (schema, given) = (self.clone(), value.clone());
        let (tell, told) = mpsc::channel();
        let check = move || {
            let fits = schema.validate(&given);
            drop((given, turn));
            // It may not be waited for any more.
            let _ = tell.send(fits);
        };
        let thread = std::thread::Builder::new().stack_size((self.row + 1) * STACK).spawn(check);
        thread.map_err(|error| failed(&format!(": {error}")))?;
        loop {
            match told.recv_timeout(LOOK) {
                Ok(fits) => return fits.map_err(Unfit::Reasons),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(failed("")),
                Err(mpsc::RecvTimeoutError::Timeout) => over()?,
            }
        }
    }

    fn validate(&self, value: &Value) -> Result<(), Vec<String>> {
        let refused = |reason: String| vec![shortened(&reason)];
        let (graph, _) = cost::check(&self.value).map_err(refused)?;
        Work::of(&graph).and_then(|work| work.check(value)).map_err(refused)?;
        let (schemas, index) = self.compile().map_err(refused)?;
        schemas.validate(value, index).map_err(|error| reasons(&error))
    }

    /// The schema itself.
    pub fn as_value(&self) -> &Value {
        &self.value
    }

    /// What it costs is checked before.
    fn compile(&self) -> Result<(Schemas, SchemaIndex), String> {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.use_loader(Box::new(Nothing));
        // It has no address.
        let said = |error: CompileError| match error {
            CompileError::ValidationError { src, .. } => reasons(&src).join("; "),
            // Of a pattern: the rest is what the library calls it.
            CompileError::Bug(src) | CompileError::InvalidRegex { src, .. } => {
                format!("a pattern cannot be used: {src}")
            }
            error => error.to_string().replace(PLACE, ""),
        };
        compiler.add_resource(PLACE, self.value.clone()).map_err(said)?;
        let index = compiler.compile(PLACE, &mut schemas).map_err(said)?;
        Ok((schemas, index))
    }
}

/// The first of the innermost reasons, each once, and that there are more.
fn reasons(error: &ValidationError<'_, '_>) -> Vec<String> {
    let mut reasons = Vec::new();
    collect(error, &mut reasons);
    let more = reasons.len().saturating_sub(MAX_REASONS);
    if more > 0 {
        reasons.truncate(MAX_REASONS);
        reasons.push("and more".to_owned());
    }
    reasons
}

fn collect(error: &ValidationError<'_, '_>, reasons: &mut Vec<String>) {
    if reasons.len() > MAX_REASONS {
        return;
    }
    error.causes.iter().for_each(|cause| collect(cause, reasons));
    if error.causes.is_empty() {
        let place = error.instance_location.to_string();
        let place = if place.is_empty() { String::new() } else { format!("{place}: ") };
        let what = match &error.kind {
            // The value itself may be a secret.
            ErrorKind::Pattern { want, .. } => format!("does not match `{want}`"),
            ErrorKind::Format { want, .. } => format!("is no {want}"),
            ErrorKind::Enum { want } => format!("must be one of {}", values(want)),
            ErrorKind::Minimum { want, .. } => format!("must be at least {want}"),
            ErrorKind::Maximum { want, .. } => format!("must be at most {want}"),
            ErrorKind::ExclusiveMinimum { want, .. } => format!("must be more than {want}"),
            ErrorKind::ExclusiveMaximum { want, .. } => format!("must be less than {want}"),
            ErrorKind::MultipleOf { want, .. } => format!("must be a multiple of {want}"),
            ErrorKind::ContentEncoding { want, .. } | ErrorKind::ContentMediaType { want, .. } => {
                format!("is no {want}")
            }
            kind => kind.to_string(),
        };
        let reason = shortened(&format!("{place}{what}"));
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
}

impl std::fmt::Display for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

/// As many of them as there is room for, each whole, and how many there are besides.
fn values(all: &[Value]) -> String {
    let mut text = String::new();
    for (index, value) in all.iter().map(Value::to_string).enumerate() {
        if index > 0 && text.chars().count() + value.chars().count() > MAX_VALUES {
            return format!("{text} and {} others", all.len() - index);
        }
        text = if index > 0 { format!("{text}, {value}") } else { value };
    }
    text
}

/// In one line. What is too long ends between two words.
fn shortened(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let Some((end, _)) = plain.char_indices().nth(MAX_REASON) else { return plain };
    let word = plain[..end].rfind(' ').filter(|word| *word > end / 2).unwrap_or(end);
    format!("{} …", plain[..word].trim_end())
}

#[cfg(test)]
mod tests;
