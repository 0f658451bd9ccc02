//! Declared inputs: a JSON Schema, checked before a run. It fetches nothing, whatever a schema refers to, and a hostile pattern
//! costs no more than the text is long.

mod cost;

use boon::{CompileError, Compiler, ErrorKind, SchemaIndex, Schemas, UrlLoader, ValidationError};
use serde::Serialize;
use serde_json::Value;

use super::SkillError;

/// Bytes of a schema.
const MAX_SCHEMA: usize = 256 << 10;
/// Reasons that are told.
const MAX_REASONS: usize = 5;
/// Characters of a reason, and of the values that it lists.
const MAX_REASON: usize = 400;
const MAX_VALUES: usize = 200;
/// Bytes of stack for each part in a row, for inputs that are nested as deeply as they can be.
const STACK: usize = 1 << 20;
/// What the schema is called while it is compiled; nothing is there.
const PLACE: &str = "https://ringfence.invalid/inputs.json";

/// What inputs must be like.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Schema(Value);

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
        let schema = Schema(value);
        schema.compile().map_err(bad)?;
        Ok(schema)
    }

    /// Why a value does not fit, with the places of what is wrong.
    pub fn check(&self, value: &Value) -> Result<(), Vec<String>> {
        let (schemas, index, row) = self.compile().map_err(|reason| vec![shortened(&reason)])?;
        let validate = || schemas.validate(value, index).map_err(|error| reasons(&error));
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size((row + 1) * STACK).spawn_scoped(scope, validate);
            let thread = thread.map_err(|error| vec![format!("they cannot be checked: {error}")])?;
            thread.join().unwrap_or_else(|_| Err(vec!["they cannot be checked".to_owned()]))
        })
    }

    /// The schema itself.
    pub fn as_value(&self) -> &Value {
        &self.0
    }

    /// Also how many parts stand in a row.
    fn compile(&self) -> Result<(Schemas, SchemaIndex, usize), String> {
        let row = cost::check(&self.0)?;
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
        compiler.add_resource(PLACE, self.0.clone()).map_err(said)?;
        let index = compiler.compile(PLACE, &mut schemas).map_err(said)?;
        Ok((schemas, index, row))
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
        self.0.fmt(f)
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
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn inputs_are_checked() {
        let schema = json!({
            "type": "object", "required": ["year"], "additionalProperties": false,
            "properties": { "year": { "type": "integer", "minimum": 1900 }, "name": { "type": "string", "pattern": "^[a-z]+$" } },
        });
        let schema = Schema::parse(&schema.to_string(), "s.json").unwrap();
        assert!(schema.check(&json!({ "year": 2024, "name": "abc" })).is_ok());
        for (value, word) in [
            (json!({}), "year"),
            (json!({ "year": 3 }), "/year: "),
            (json!({ "year": "2024" }), "/year: "),
            (json!({ "year": 2024, "name": "A" }), "/name: "),
            (json!({ "year": 2024, "more": 1 }), "more"),
            (json!([]), "object"),
        ] {
            let reasons = schema.check(&value).unwrap_err();
            assert!(reasons.join(" ").contains(word), "{value}: {reasons:?}");
        }
        let secret = schema.check(&json!({ "year": "hunter2" })).unwrap_err().join(" ");
        assert!(!secret.contains("hunter2"), "{secret}");
    }

    /// What is said is whole: where, and what would be right.
    #[test]
    fn reasons_are_not_cut() {
        let say = |text: &str| Schema::parse(text, "s.json").unwrap_err().to_string();
        let types = say(r#"{"properties": {"a": {"type": "strin"}, "b": {"minimum": "x"}}, "required": "a"}"#);
        for part in
            ["/properties/a/type: must be one of", "\"string\"", "/properties/b/minimum: want number", "/required"]
        {
            assert!(types.contains(part), "{types}");
        }
        assert!(!types.contains('…') && !types.contains("ringfence.invalid"), "{types}");
        assert!(say(r#"{"pattern": "("}"#).ends_with("/pattern: is no regex"), "{}", say(r#"{"pattern": "("}"#));
        let names: Vec<String> = (0..40).map(|n| format!("the value with the number {n}")).collect();
        let schema = json!({
            "required": ["a", "b", "c"], "additionalProperties": false,
            "properties": { "m": { "enum": names }, "t": { "pattern": format!("^{}$", "word |".repeat(200)) } },
        });
        let schema = Schema::parse(&schema.to_string(), "s.json").unwrap();
        let reasons = schema.check(&json!({ "m": 1 })).unwrap_err();
        assert_eq!(reasons[0], "missing properties 'a', 'b', 'c'");
        assert!(reasons[1].starts_with("/m: must be one of \"the value with the number 0\", "), "{reasons:?}");
        assert!(reasons[1].ends_with("\" and 34 others"), "{reasons:?}");
        let long = json!({ "pattern": "word ".repeat(200) }).to_string();
        let reasons = Schema::parse(&long, "s.json").unwrap().check(&json!("x")).unwrap_err();
        assert!(reasons[0].starts_with("does not match `word word") && reasons[0].ends_with("word …"), "{reasons:?}");
        let many = json!({ "properties": (0..9).map(|n| (n.to_string(), json!({ "type": "null" }))).collect::<serde_json::Map<_, _>>() });
        let value = json!((0..9).map(|n| (n.to_string(), json!(1))).collect::<serde_json::Map<_, _>>());
        let reasons = Schema::parse(&many.to_string(), "s.json").unwrap().check(&value).unwrap_err();
        assert_eq!((reasons.len(), reasons[5].as_str()), (6, "and more"), "{reasons:?}");
    }

    #[test]
    fn hostile_schemas() {
        for text in [
            "",
            "nonsense",
            r#"{"type": "nonsense"}"#,
            r#"{"$ref": "http://127.0.0.1:9/x.json"}"#,
            r#"{"$ref": "file:///etc/passwd"}"#,
            r#"{"pattern": "("}"#,
            // Backtracking.
            r#"{"pattern": "(a)\\1"}"#,
            r#"{"pattern": "((a{1,1000}){1,1000}){1,1000}"}"#,
            r#"{"patternProperties": {"((a{1,1000}){1,1000}){1,1000}": true}}"#,
            r##"{"$ref": "#"}"##,
        ] {
            assert!(Schema::parse(text, "s.json").is_err(), "{text}");
        }
        let started = std::time::Instant::now();
        let schema = Schema::parse(r#"{"pattern": "^(a+)+$"}"#, "s.json").unwrap();
        assert!(schema.check(&json!(format!("{}b", "a".repeat(100_000)))).is_err());
        assert!(started.elapsed() < std::time::Duration::from_secs(20));
    }
}
