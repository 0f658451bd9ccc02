use serde_json::json;

use super::*;

impl Schema {
    pub(super) fn says(&self, value: &Value) -> Result<(), Vec<String>> {
        self.check(&Arc::new(value.clone()), None, || false).map_err(|unfit| match unfit {
            Unfit::Reasons(reasons) => reasons,
            Unfit::Ended(status) => panic!("{status:?}"),
        })
    }
}

#[test]
fn inputs_are_checked() {
    let schema = json!({
        "type": "object", "required": ["year"], "additionalProperties": false,
        "properties": { "year": { "type": "integer", "minimum": 1900 }, "name": { "type": "string", "pattern": "^[a-z]+$" } },
    });
    let schema = Schema::parse(&schema.to_string(), "s.json").unwrap();
    assert!(schema.says(&json!({ "year": 2024, "name": "abc" })).is_ok());
    for (value, word) in [
        (json!({}), "year"),
        (json!({ "year": 3 }), "/year: "),
        (json!({ "year": "2024" }), "/year: "),
        (json!({ "year": 2024, "name": "A" }), "/name: "),
        (json!({ "year": 2024, "more": 1 }), "more"),
        (json!([]), "object"),
    ] {
        let reasons = schema.says(&value).unwrap_err();
        assert!(reasons.join(" ").contains(word), "{value}: {reasons:?}");
    }
    let secret = schema.says(&json!({ "year": "hunter2" })).unwrap_err().join(" ");
    assert!(!secret.contains("hunter2"), "{secret}");
}

/// What is said is whole: where, and what would be right.
#[test]
fn reasons_are_not_cut() {
    let say = |text: &str| Schema::parse(text, "s.json").unwrap_err().to_string();
    let types = say(r#"{"properties": {"a": {"type": "strin"}, "b": {"minimum": "x"}}, "required": "a"}"#);
    for part in ["/properties/a/type: must be one of", "\"string\"", "/properties/b/minimum: want number", "/required"]
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
    let reasons = schema.says(&json!({ "m": 1 })).unwrap_err();
    assert_eq!(reasons[0], "missing properties 'a', 'b', 'c'");
    assert!(reasons[1].starts_with("/m: must be one of \"the value with the number 0\", "), "{reasons:?}");
    assert!(reasons[1].ends_with("\" and 34 others"), "{reasons:?}");
    let long = json!({ "pattern": "word ".repeat(200) }).to_string();
    let reasons = Schema::parse(&long, "s.json").unwrap().says(&json!("x")).unwrap_err();
    assert!(reasons[0].starts_with("does not match `word word") && reasons[0].ends_with("word …"), "{reasons:?}");
    let many = json!({ "properties": (0..9).map(|n| (n.to_string(), json!({ "type": "null" }))).collect::<serde_json::Map<_, _>>() });
    let value = json!((0..9).map(|n| (n.to_string(), json!(1))).collect::<serde_json::Map<_, _>>());
    let reasons = Schema::parse(&many.to_string(), "s.json").unwrap().says(&value).unwrap_err();
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
    for (pattern, reason) in [(r"\w".repeat(50_000), "too many escapes"), (r"\p{L}{1,600}".to_owned(), "when compiled")]
    {
        for schema in [json!({ "pattern": pattern }), json!({ "items": { "patternProperties": { pattern: {} } } })] {
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
    assert!(schema.says(&json!(format!("{}b", "a".repeat(100_000)))).is_err());
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
        let reasons = schema.says(&value).unwrap_err();
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
    assert_eq!(table.says(&rows), Ok(()));
    rows[19_999]["tags"][1] = json!("x");
    assert_eq!(table.says(&rows), Err(vec!["/19999/tags/1: must be one of \"a\", \"b\", \"c\"".to_owned()]));
    let list = Schema::parse(r#"{"items": {"type": "number"}}"#, "s.json").unwrap();
    assert_eq!(list.says(&numbers(500_000)), Ok(()));
    let wrong = list.says(&json!(vec!["x"; 500_000])).unwrap_err();
    assert_eq!((wrong.len(), wrong[0].as_str(), wrong[5].as_str()), (6, "/0: want number, but got string", "and more"));
    let note = Schema::parse(r#"{"properties": {"text": {"type": "string", "maxLength": 40000000}}}"#, "s.json");
    assert_eq!(note.unwrap().says(&json!({ "text": "x".repeat(32 << 20) })), Ok(()));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!("\npeak {}", most.trim().trim_end_matches(" kB"));
}

/// A check that takes long is not waited for, and it ends by itself.
#[test]
fn a_check_ends_in_time() {
    let (schema, value) = costly();
    let value = Arc::new(value);
    let started = Instant::now();
    let until = started.checked_add(Duration::from_millis(1));
    assert_eq!(schema.check(&value, until, || false), Err(Unfit::Ended(Status::Timeout)));
    assert_eq!(schema.check(&value, None, || true), Err(Unfit::Ended(Status::Cancelled)));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // Both have let go of the value when they end.
    while Arc::strong_count(&value) > 1 {
        assert!(started.elapsed() < Duration::from_secs(30));
        std::thread::sleep(LOOK);
    }
    let cheap = Schema::parse(r#"{"type": "string"}"#, "s.json").unwrap();
    let soon = Instant::now().checked_add(Duration::from_secs(5));
    assert_eq!(cheap.check(&Arc::new(json!("x")), soon, || false), Ok(()));
}

/// Just below the bound of memory.
fn costly() -> (Schema, Value) {
    let schema = json!({ "items": { "anyOf": vec![json!({ "type": "null" }); 100] } });
    (Schema::parse(&schema.to_string(), "s.json").unwrap(), json!(vec![7; 6_000]))
}
