use super::*;

const JSON: Form = Form::Json { list: "mcpServers" };
const TOML: Form = Form::Toml { list: "mcp_servers" };

fn entry() -> Entry {
    Entry { kind: None, command: "/opt/ring fence".to_owned(), args: vec!["mcp".to_owned()] }
}

/// What was put in, and at how many places; everything else must be there as before.
fn added<'a>(before: &str, after: &'a str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let diff = similar::TextDiff::from_chars(before, after);
    assert!(diff.iter_all_changes().all(|change| change.tag() != similar::ChangeTag::Delete), "{before}\n→\n{after}");
    let mut at = 0;
    let mut open: Option<usize> = None;
    for change in diff.iter_all_changes() {
        let length = change.value().len();
        match (change.tag(), open) {
            (similar::ChangeTag::Insert, None) => open = Some(at),
            (similar::ChangeTag::Equal, Some(from)) => {
                parts.push(&after[from..at]);
                open = None;
            }
            _ => {}
        }
        at += length;
    }
    parts.extend(open.map(|from| &after[from..at]));
    parts
}

#[test]
fn json_is_put_in_and_taken_out_without_touching_the_rest() {
    let table = [
        // (before, after)
        ("", "{\n  \"mcpServers\": {\n    \"ringfence\": ENTRY\n  }\n}\n"),
        ("{}", "{\n  \"mcpServers\": {\n    \"ringfence\": ENTRY\n  }\n}"),
        ("{\n}\n", "{\n  \"mcpServers\": {\n    \"ringfence\": ENTRY\n  }\n}\n"),
        ("{\n  \"mcpServers\": {}\n}\n", "{\n  \"mcpServers\": {\n    \"ringfence\": ENTRY\n  }\n}\n"),
        (
            "{\n  // mine\n  \"mcpServers\": {\n    \"b\": { \"command\": \"x\" }, // first\n    /* second */ \"a\": {} // last\n    // end\n  },\n  \"z\": 1.50\n}\n",
            "{\n  // mine\n  \"mcpServers\": {\n    \"b\": { \"command\": \"x\" }, // first\n    /* second */ \"a\": {}, // last\n    // end\n    \"ringfence\": ENTRY\n  },\n  \"z\": 1.50\n}\n",
        ),
        (
            "{\n  \"mcpServers\": {\n    \"a\": {},\n  },\n}\n",
            "{\n  \"mcpServers\": {\n    \"a\": {},\n    \"ringfence\": ENTRY,\n  },\n}\n",
        ),
        (
            "{\n  \"theme\": \"dark\" // nice\n}\n",
            "{\n  \"theme\": \"dark\", // nice\n  \"mcpServers\": {\n    \"ringfence\": ENTRY\n  }\n}\n",
        ),
    ];
    let written = "{\n      \"command\": \"/opt/ring fence\",\n      \"args\": [\"mcp\"]\n    }";
    for (before, after) in table {
        let after = after.replace("ENTRY", written);
        let new = put(JSON, before, &entry()).unwrap();
        assert_eq!(new, after, "{before}");
        assert!(added(before, &new).len() <= 2, "{before}");
        assert_eq!(put(JSON, &new, &entry()).unwrap(), new, "again");
        let gone = take(JSON, &new).unwrap();
        assert_eq!(take(JSON, &gone).unwrap(), gone);
        // A list that has nothing else in it is nobody's.
        match before.contains("mcpServers") && !before.contains("mcpServers\": {}") {
            true => assert_eq!(gone, before),
            false => {
                assert!(!gone.contains("mcpServers") && gone.contains("dark") == before.contains("dark"), "{gone}")
            }
        }
    }
}

#[test]
fn json_keeps_its_layout() {
    let tabs = "{\r\n\t\"mcpServers\": {\r\n\t\t\"a\": {}\r\n\t}\r\n}\r\n";
    let new = put(JSON, tabs, &entry()).unwrap();
    assert!(new.contains("{},\r\n\t\t\"ringfence\": {\r\n\t\t\t\"command\": "), "{new:?}");
    assert_eq!(new.matches('\n').count(), new.matches("\r\n").count());
    assert_eq!(take(JSON, &new).unwrap(), tabs);

    let line = r#"{"numStartups":3,"mcpServers":{"a":{"command":"x"}},"é":"\u00e9"}"#;
    let new = put(JSON, line, &entry()).unwrap();
    assert_eq!(added(line, &new).len(), 1, "{new}");
    assert!(
        !new.contains('\n') && new.starts_with(r#"{"numStartups":3,"mcpServers":{"a":{"command":"x"}, "ringfence""#)
    );
    assert_eq!(take(JSON, &new).unwrap(), line);
}

#[test]
fn json_replaces_an_older_entry_only() {
    let old = "{\n  \"mcpServers\": {\n    \"ringfence\": { \"command\": \"old\" }, // here\n    \"b\": {}\n  }\n}\n";
    let new = put(JSON, old, &entry()).unwrap();
    let (head, tail) = ("{\n  \"mcpServers\": {\n    \"ringfence\": ", ", // here\n    \"b\": {}\n  }\n}\n");
    assert!(new.starts_with(head) && new.ends_with(tail), "{new}");
    assert_eq!(take(JSON, &new).unwrap(), "{\n  \"mcpServers\": { // here\n    \"b\": {}\n  }\n}\n");
    // The first of several, and one in the middle.
    let first = "{\"mcpServers\": {\"ringfence\": {}, \"b\": {}}}";
    assert_eq!(take(JSON, first).unwrap(), "{\"mcpServers\": { \"b\": {}}}");
    let middle = "{\"mcpServers\": {\"a\": {}, \"ringfence\": {}, \"b\": {}}}";
    assert_eq!(take(JSON, middle).unwrap(), "{\"mcpServers\": {\"a\": {}, \"b\": {}}}");
}

#[test]
fn broken_files_are_refused_with_their_line() {
    let table = [
        (JSON, "{\n  \"a\": 1\n  \"b\": 2\n}", "line 2"),
        (JSON, "{\n  \"mcpServers\": [\n]}", "line 2: `mcpServers` is not an object"),
        (JSON, "[]", "`the file` is not an object"),
        (
            JSON,
            "{\"mcpServers\": {\"ringfence\": {},\n \"ringfence\": {}}}",
            "line 2: `ringfence` is there a second time",
        ),
        (JSON, "{\"mcpServers\": {},\n\n\"mcpServers\": {}}", "line 3: `mcpServers` is there a second time"),
        (JSON, "{\"a\": 'x'}", "line 1"),
        (TOML, "a = 1\nb = = 2\n", "line 2"),
        (TOML, "mcp_servers = 3\n", "not an object"),
        (TOML, "[a]\r\nb = 1\n", "different ways"),
    ];
    for (form, text, why) in table {
        let error = put(form, text, &entry()).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn toml_is_put_in_and_taken_out_without_touching_the_rest() {
    let written = "[mcp_servers.ringfence]\ncommand = \"/opt/ring fence\"\nargs = [\"mcp\"]\n";
    let table = [
        "",
        "model = \"x\" # mine\n",
        "# top\nmodel   =   'x'\n\n[mcp_servers.docs] # d\ncommand = \"npx\"\nargs = [ \"-y\", # why\n  \"docs\" ]\n\n[mcp_servers.docs.env]\nA = \"1\"\n\n# about profiles\n[profiles.fast]\nmodel = \"y\"\n# the end\n",
        "[mcp_servers]\n\n[tui]\nx = 1\n",
    ];
    for before in table {
        for before in [before.to_owned(), before.replace('\n', "\r\n")] {
            let new = put(TOML, &before, &entry()).unwrap();
            let plain = new.replace("\r\n", "\n");
            assert!(plain.contains(written), "{new}");
            assert_eq!(added(&before, &new).len(), 1, "{new}");
            assert_eq!(put(TOML, &new, &entry()).unwrap(), new);
            assert_eq!(take(TOML, &new).unwrap(), before);
        }
    }
    let inline = "mcp_servers = { docs = { command = \"x\" } }\n";
    let new = put(TOML, inline, &entry()).unwrap();
    assert!(new.contains("ringfence = { command = \"/opt/ring fence\", args = [\"mcp\"] }"), "{new}");
    let old = put(TOML, "[mcp_servers.ringfence]\ncommand = \"old\"\nenabled = true\n", &entry()).unwrap();
    assert_eq!(old, written);
}
