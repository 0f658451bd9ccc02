//! `ringfence code` through the program. What each status and language does is the library's test.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::Place;

#[test]
fn results_and_exit_codes() {
    let place = Place::new();
    place.write("project/double.py", "print('hello')\nx * 2");
    place.write("project/fail.py", "\nraise ValueError('no')");
    place.write("project/data.csv", "a,b\n");
    place.write("project/copy.sh", "cp data.csv out.txt");
    let done = place.ringfence(&["code", "python", "double.py", "--input", "{\"x\": 21}"]);
    assert_eq!((done.code, done.out.as_str()), (0, "hello\n42\n"), "{}", done.err);
    let done = place.ringfence(&["code", "py", "fail.py"]);
    assert_eq!(done.code, 1);
    assert!(done.err.contains("fail.py:2") && done.err.contains("ValueError: no"), "{}", done.err);
    let done = place.ringfence(&["code", "python", "fail.py", "--json"]);
    let result: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((done.code, &result["status"]), (1, &"error".into()));
    // The record says the same, whatever the interpreter exited with.
    let recorded = |id: &serde_json::Value| {
        let shown = place.ringfence(&["history", "show", id.as_str().unwrap(), "--json"]);
        serde_json::from_str::<serde_json::Value>(&shown.out).unwrap()["exit_code"].clone()
    };
    assert_eq!(recorded(&result["id"]), 1);
    let fine = place.ringfence(&["code", "python", "double.py", "--input", "{\"x\": 1}", "--json"]);
    assert_eq!(recorded(&serde_json::from_str::<serde_json::Value>(&fine.out).unwrap()["id"]), 0);
    let done =
        place.ringfence(&["code", "bash", "copy.sh", "--file", "data.csv", "--out", "*.txt", "--out-dir", "new"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(std::fs::read_to_string(place.project.join("new/out.txt")).unwrap(), "a,b\n");
    // Nothing is replaced.
    let done =
        place.ringfence(&["code", "bash", "copy.sh", "--file", "data.csv", "--out", "*.txt", "--out-dir", "new"]);
    assert_eq!(done.code, 125, "{}", done.err);
    // What the code said is not lost for that.
    place.write("project/say.sh", "echo said; cp data.csv out.txt; result=7");
    let done = place.ringfence(&["code", "bash", "say.sh", "--file", "data.csv", "--out", "*.txt", "--out-dir", "new"]);
    assert_eq!((done.code, done.out.as_str()), (125, "said\n7\n"), "{}", done.err);
    // Into a pipe goes what was written, as it is.
    place.write("project/raw.py", "import sys\nsys.stderr.write('a\\x1b[1mb\\u202ec')");
    let done = place.ringfence(&["code", "python", "raw.py"]);
    assert_eq!((done.code, done.err.as_str()), (0, "a\x1b[1mb\u{202e}c\n"));
    // The sandbox's failures have a code of their own.
    for args in [
        &["code", "pyton", "double.py"][..],
        &["code", "python", "missing.py"],
        &["code", "python", "double.py", "--input", "{"],
    ] {
        assert_eq!(place.ringfence(args).code, 125, "{args:?}");
    }
}
