//! Declared inputs: a JSON Schema, checked before a run. It fetches nothing, whatever a schema refers to, and a hostile pattern
//! costs no more than the text is long.

mod cost;
mod work;

use boon::{CompileError, Compiler, ErrorKind, SchemaIndex, Schemas, UrlLoader, ValidationError};
use serde::Serialize;
use serde_json::Value;

use self::work::Work;
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
        let (graph, _) = cost::check(&schema.0).map_err(bad)?;
        Work::of(&graph).map_err(bad)?;
        schema.compile().map_err(bad)?;
        Ok(schema)
    }

    /// Why a value does not fit, with the places of what is wrong. A value that cannot be checked in bounded time and memory
    /// does not fit.
    pub fn check(&self, value: &Value) -> Result<(), Vec<String>> {
        let refused = |reason: String| vec![shortened(&reason)];
        let (graph, row) = cost::check(&self.0).map_err(refused)?;
        let work = Work::of(&graph).map_err(refused)?;
        let validate = || {
            work.check(value).map_err(refused)?;
            let (schemas, index) = self.compile().map_err(refused)?;
            schemas.validate(value, index).map_err(|error| reasons(&error))
        };
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
        compiler.add_resource(PLACE, self.0.clone()).map_err(said)?;
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
        // Each escape has a pattern read again, and what a pattern becomes takes memory.
        let started = std::time::Instant::now();
        for (pattern, reason) in
            [(r"\w".repeat(50_000), "too many escapes"), (r"\p{L}{1,600}".to_owned(), "when compiled")]
        {
            for schema in [json!({ "pattern": pattern }), json!({ "items": { "patternProperties": { pattern: {} } } })]
            {
                let said = Schema::parse(&schema.to_string(), "s.json").unwrap_err().to_string();
                assert!(said.contains(reason), "{said}");
            }
        }
        let many: Vec<_> = (0..2000).map(|n| json!({ "pattern": format!("^(a{{1,500}}){{1,100}}{n}$") })).collect();
        let said = Schema::parse(&json!({ "anyOf": many }).to_string(), "s.json").unwrap_err().to_string();
        assert!(said.contains("when compiled"), "{said}");
        let many: Vec<_> = (0..500).map(|n| json!({ "pattern": format!(r"^[\w.-]{{1,64}}@{n}\.com$") })).collect();
        assert!(Schema::parse(&json!({ "anyOf": many }).to_string(), "s.json").is_ok());
        let schema = Schema::parse(r#"{"pattern": "^(a+)+$"}"#, "s.json").unwrap();
        assert!(schema.check(&json!(format!("{}b", "a".repeat(100_000)))).is_err());
        assert!(started.elapsed() < std::time::Duration::from_secs(20));
    }

    /// Whatever schema and inputs are, a check ends soon and takes little memory.
    #[allow(clippy::disallowed_methods, reason = "a test asks how it was started")]
    #[test]
    fn checks_are_bounded() {
        const CHILD: &str = "RINGFENCE_TEST_CHECKS_ARE_BOUNDED";
        if std::env::var_os(CHILD).is_none() {
            // The most memory that a process ever had is only known for a whole process.
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "skills::schema::tests::checks_are_bounded", "--nocapture"]).env(CHILD, "1");
            let output = child.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
            let most: u64 = said.lines().find_map(|line| line.strip_prefix("peak ")?.parse().ok()).unwrap();
            assert!(most < 512 << 10, "{most} KiB");
            return;
        }
        let text = json!({ "type": "string" });
        let numbers = |count| json!(vec![7; count]);
        let names: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
        let empty = |count| json!(vec![json!({}); count]);
        let old = "http://json-schema.org/draft-07/schema#";
        let many: Vec<_> = (0..1000).map(|n| json!({ "pattern": format!("(a|b)*a(a|b){{12}}{n}") })).collect();
        for (schema, value) in [
            // Errors.
            (json!({ "items": { "allOf": vec![text.clone(); 20] } }), numbers(400_000)),
            (json!({ "items": { "anyOf": vec![text.clone(); 2000] } }), numbers(400_000)),
            (json!({ "items": { "required": names.clone() } }), empty(400_000)),
            (
                json!({ "additionalProperties": { "type": "null" } }),
                json!((0..800_000).map(|n| (n.to_string(), json!(1))).collect::<serde_json::Map<_, _>>()),
            ),
            // Comparisons.
            (json!({ "items": { "enum": names } }), numbers(400_000)),
            (
                json!({ "$ref": "#/$defs/a", "$defs": { "a": { "uniqueItems": true, "items": { "$ref": "#/$defs/a" } } } }),
                (0..20).fold(numbers(1_000_000), |inner, _| json!([inner])),
            ),
            // Lists of what nothing has looked at.
            (json!({ "allOf": vec![json!({ "unevaluatedItems": true }); 2000] }), numbers(400_000)),
            // Texts.
            (json!({ "pattern": "(a{1,200}){1,20}b" }), json!("a".repeat(4 << 20))),
            (json!({ "allOf": many }), json!("ab".repeat(1 << 20))),
            (json!({ "$schema": old, "format": "regex" }), json!("\\w".repeat(1 << 20))),
            (
                json!({ "propertyNames": { "allOf": vec![text; 5000] } }),
                json!((0..10_000).map(|n| (n.to_string(), json!(1))).collect::<serde_json::Map<_, _>>()),
            ),
        ] {
            let started = std::time::Instant::now();
            let name = schema.to_string().chars().take(100).collect::<String>();
            let schema = Schema::parse(&schema.to_string(), "s.json").unwrap();
            let reasons = schema.check(&value).unwrap_err();
            assert!(reasons[0].contains("could take more than"), "{name}: {reasons:?}");
            assert!(started.elapsed() < std::time::Duration::from_secs(20), "{name}: {:?}", started.elapsed());
        }
        // What is large and ordinary is checked.
        let row = json!({
            "type": "object", "required": ["id", "name", "tags"], "additionalProperties": false,
            "properties": {
                "id": { "type": "integer", "minimum": 0 }, "name": { "type": "string", "pattern": "^[a-z]+ [0-9]+$" },
                "tags": { "type": "array", "items": { "enum": ["a", "b", "c"] }, "uniqueItems": true },
            },
        });
        let table = Schema::parse(&json!({ "type": "array", "items": row }).to_string(), "s.json").unwrap();
        let rows: Vec<_> =
            (0..20_000).map(|n| json!({ "id": n, "name": format!("row {n}"), "tags": ["a", "b"] })).collect();
        let mut rows = json!(rows);
        assert_eq!(table.check(&rows), Ok(()));
        rows[19_999]["tags"][1] = json!("x");
        assert_eq!(table.check(&rows), Err(vec!["/19999/tags/1: must be one of \"a\", \"b\", \"c\"".to_owned()]));
        let list = Schema::parse(r#"{"items": {"type": "number"}}"#, "s.json").unwrap();
        assert_eq!(list.check(&numbers(500_000)), Ok(()));
        let wrong = list.check(&json!(vec!["x"; 500_000])).unwrap_err();
        assert_eq!(
            (wrong.len(), wrong[0].as_str(), wrong[5].as_str()),
            (6, "/0: want number, but got string", "and more")
        );
        let note = Schema::parse(r#"{"properties": {"text": {"type": "string", "maxLength": 40000000}}}"#, "s.json");
        assert_eq!(note.unwrap().check(&json!({ "text": "x".repeat(32 << 20) })), Ok(()));
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        println!("\npeak {}", most.trim().trim_end_matches(" kB"));
    }
}
