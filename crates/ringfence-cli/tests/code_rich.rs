//! Rich results with the real matplotlib and pandas, as they are installed for the system's Python.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use serde_json::{Value, json};
use support::Place;

fn run(place: &Place, source: &str) -> Value {
    place.write("project/act.py", source);
    let args =
        ["code", "python", "act.py", "--packages", "--json", "--cpus", "2", "--memory", "512m", "--timeout", "30s"];
    let done = place.ringfence(&args);
    serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{}{}", done.out, done.err))
}

/// Whether a box sees these packages.
fn has(place: &Place, module: &str) -> bool {
    let found = run(place, &format!("import importlib.util\nimportlib.util.find_spec('{module}') is not None"));
    let found = found["value"] == json!(true);
    if !found {
        support::skip(&format!("rich results with {module}"), "it is not installed for /usr/bin/python3");
    }
    found
}

#[test]
fn figures_are_pictures() {
    let place = Place::new();
    if !has(&place, "matplotlib") {
        return;
    }
    let source = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.figure()\nplt.bar(['a', 'b'], [1, 2])\nplt.show()\n'drawn'";
    let drawn = run(&place, source);
    assert_eq!((&drawn["status"], &drawn["value"]), (&json!("ok"), &json!("drawn")), "{drawn}");
    let rich = drawn["rich"].as_array().unwrap();
    assert_eq!(rich.len(), 2, "{drawn}");
    for figure in rich {
        // How a PNG begins, in Base64.
        let picture = figure["image/png"].as_str().unwrap();
        assert!(picture.starts_with("iVBORw0KGgo") && picture.len() > 2000, "{picture}");
        assert!(figure["text/plain"].as_str().unwrap().starts_with("<Figure size"), "{figure}");
    }
}

#[test]
fn frames_are_tables() {
    let place = Place::new();
    if !has(&place, "pandas") {
        return;
    }
    let shown = run(&place, "import pandas as pd\npd.DataFrame({'city': ['Bern', '<b>'], 'n': [1, 2]})");
    assert_eq!(shown["status"], json!("ok"), "{shown}");
    let frame = &shown["rich"][0];
    let html = frame["text/html"].as_str().unwrap();
    // What is in a table is text there, and no markup.
    assert!(html.contains("<table") && html.contains("Bern") && html.contains("&lt;b&gt;"), "{html}");
    assert!(frame["text/plain"].as_str().unwrap().contains("city"), "{frame}");
    assert!(shown["text"].as_str().unwrap().contains("Bern"), "{shown}");
}
