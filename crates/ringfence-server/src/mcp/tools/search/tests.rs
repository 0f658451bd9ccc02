use super::*;

fn finder(asked: serde_json::Value) -> Finder {
    let asked: SearchFiles = serde_json::from_value(asked).unwrap();
    Finder::new(&asked, asked.context.unwrap_or(0)).unwrap_or_else(|trouble| panic!("{trouble}"))
}

fn search(asked: serde_json::Value, text: &str) -> Vec<(u64, String, bool)> {
    let room = asked["max_matches"].as_u64().unwrap_or(100) as usize;
    let found = finder(asked).search("f".to_owned(), text.as_bytes(), room, 0, || false);
    assert_eq!(found.incomplete, None);
    found.lines.into_iter().map(|line| (line.line, line.text, line.context)).collect()
}

#[test]
fn lines_are_found_as_ripgrep_finds_them() {
    let text = "fn main() {\n    Call(1);\n}\n";
    let json = |value| value;
    assert_eq!(search(json(serde_json::json!({"pattern": "^fn \\w+"})), text), [(1, "fn main() {".into(), false)]);
    assert_eq!(search(serde_json::json!({"pattern": "call"}), text), []);
    let found = search(serde_json::json!({"pattern": "call(", "fixed": true, "ignore_case": true, "context": 1}), text);
    assert_eq!(
        found.iter().map(|(line, _, context)| (*line, *context)).collect::<Vec<_>>(),
        [(1, true), (2, false), (3, true)]
    );
    assert_eq!(search(serde_json::json!({"pattern": "x", "max_matches": 2}), "x\nx\nx\n").len(), 2);
    assert_eq!(search(serde_json::json!({"pattern": "x"}), "a\0b\nx\n"), [], "binary");
    let long = "x".repeat(10_000);
    assert!(search(serde_json::json!({"pattern": "x"}), &long)[0].1.ends_with("[9600 bytes more]"));
}

#[test]
fn bad_questions_are_refused() {
    for asked in [
        serde_json::json!({"pattern": "("}),
        serde_json::json!({"pattern": "x", "glob": "["}),
        serde_json::json!({"pattern": "x", "max_matches": 0}),
        serde_json::json!({"pattern": "x", "context": 11}),
        serde_json::json!({"pattern": "(a{1000}){1000}{1000}"}),
    ] {
        let asked: SearchFiles = serde_json::from_value(asked).unwrap();
        assert!(Search::new(&asked, None).is_err(), "{asked:?}");
    }
}

fn any_search() -> Search {
    let asked: SearchFiles = serde_json::from_value(serde_json::json!({"pattern": "x"})).unwrap();
    Search::new(&asked, None).unwrap_or_else(|trouble| panic!("{trouble}"))
}

#[test]
fn ignore_files_are_read_where_they_lie() {
    let mut search = any_search();
    let top = search.ignores(Path::new(""), "target/\n*.log\n/only-top\n# a comment\n", None);
    let all = search.ignores(Path::new("sub"), "!keep.log\nlocal\n*.{tmp,bak}\n", top);
    let gone = |path: &str, is_dir| ignored(all.as_deref(), Path::new(path), is_dir);
    assert!(gone("target", true) && gone("a.log", false) && gone("only-top", false) && gone("sub/local", false));
    assert!(gone("sub/a.tmp", false) && gone("sub/a.bak", false) && !gone("sub/a.txt", false));
    assert!(!gone("sub/keep.log", false) && !gone("sub/only-top", false) && !gone("src", true));
    assert_eq!((search.patterns, search.incomplete), (6, None));
}

/// Every directory has what the one above leaves out, once in memory however many there are.
#[test]
fn ignore_files_are_shared() {
    let mut search = any_search();
    let text: String = (0..2500).map(|n| format!("**/*{n:x}*[a-z]*?/**\n")).collect();
    let top = search.ignores(Path::new(""), &text, None);
    assert!(ignored(top.as_deref(), Path::new("a/x7fby1/z"), false), "it has a say");
    let mut queue = Queue::default();
    for n in 0..20_000 {
        // One without an ignore file, and one whose ignore file says nothing.
        let ignores =
            if n % 2 == 0 { top.clone() } else { search.ignores(Path::new("d"), "# nothing\n\n", top.clone()) };
        assert!(queue.push(Waiting { path: PathBuf::from(format!("d{n}")), depth: 1, ignores }));
    }
    assert_eq!(top.as_ref().map(Arc::strong_count), Some(20_001), "each holds the same");
    let last = queue.waiting.back().and_then(|directory| directory.ignores.as_deref());
    assert!(ignored(last, Path::new("a/x7fby1/z"), false));
}

#[test]
fn patterns_and_directories_are_bounded() {
    let mut search = any_search();
    let text = "*.log\n".repeat(MOST_PATTERNS / 2);
    let first = search.ignores(Path::new(""), &text, None);
    let second = search.ignores(Path::new("a"), &text, first);
    assert_eq!(search.incomplete, None);
    let third = search.ignores(Path::new("a/b"), "*.txt\n", second);
    assert!(search.incomplete.is_some_and(|why| why.contains("20000 patterns")));
    let gone = |path: &str| ignored(third.as_deref(), Path::new(path), false);
    assert!(gone("a/b/x.log") && !gone("a/b/x.txt"));

    // Few and long ones: what they are compiled to is larger still.
    let mut search = any_search();
    let long = format!("{}\n", "?".repeat(4000)).repeat(15);
    for number in 0..8 {
        search.ignores(Path::new(&format!("d{number}")), &long, None);
    }
    assert_eq!(search.incomplete, None);
    search.ignores(Path::new("d8"), &long, None);
    assert!(search.incomplete.is_some_and(|why| why.contains("512 KiB")));

    let mut queue = Queue::default();
    let push =
        |queue: &mut Queue, path: String| queue.push(Waiting { path: PathBuf::from(path), depth: 1, ignores: None });
    assert!((0..MOST_WAITING).all(|n| push(&mut queue, n.to_string())) && !push(&mut queue, "more".into()));
    assert_eq!(queue.pop().map(|directory| directory.path), Some(PathBuf::from("0")));
    assert!(push(&mut queue, "more".into()));
    let mut queue = Queue::default();
    let long = "x/".repeat(2000);
    assert!(!(0..MOST_WAITING).all(|_| push(&mut queue, long.clone())) && queue.paths <= MOST_PATHS);
    while queue.pop().is_some() {}
    assert_eq!(queue.paths, 0);
}

/// They are read by recursion: a server must not run out of stack because of a file in the sandbox.
#[test]
fn nested_braces_are_not_read() {
    let bomb = format!("{}a{}", "{".repeat(32_000), "}".repeat(32_000));
    let mut search = any_search();
    let ignores = search.ignores(Path::new(""), &format!("{bomb}\n*.log\n"), None);
    assert!(
        ignored(ignores.as_deref(), Path::new("x.log"), false) && !ignored(ignores.as_deref(), Path::new("a"), false)
    );
    let asked = |glob: &str| serde_json::from_value(serde_json::json!({"pattern": "x", "glob": glob})).unwrap();
    assert!(Search::new(&asked(&bomb), None).is_err());
    assert!(Search::new(&asked("*.{rs,{toml,lock}}"), None).is_ok());
}

#[test]
fn an_answer_is_bounded() {
    let asked = serde_json::json!({"pattern": "x", "max_matches": 500, "context": 10});
    let asked: SearchFiles = serde_json::from_value(asked).unwrap();
    let mut search = Search::new(&asked, None).unwrap_or_else(|trouble| panic!("{trouble}"));
    let text = format!("x\n{}", "y\n".repeat(20)).repeat(500);
    let path = "d/".repeat(2000);
    for _ in 0..2 {
        search.add(search.finder.search(
            path.clone(),
            text.as_bytes(),
            search.wanted - search.matches,
            search.answer,
            || false,
        ));
    }
    assert!(search.over() && search.answer < MOST_ANSWER + 200_000, "{}", search.answer);
    assert!(search.incomplete.is_some_and(|why| why.contains("an answer can carry")), "{:?}", search.incomplete);
}

/// A pattern that remembers every combination, just not too large to be used.
fn hostile() -> Finder {
    finder(serde_json::json!({"pattern": "[01]*1[01]{3000}[2]"}))
}

fn ones(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        b'0' + (state >> 63) as u8
    };
    (0..length).map(next).collect()
}

/// One line of 8 MiB, and lines as long as they may be: the search ends when it is told to. That memory stays small is
/// tried on a whole server (`tests/mcp/test_hostile.py`, `test_a_hostile_pattern`).
#[test]
fn a_hostile_pattern_is_searched_in_pieces() {
    let finder = hostile();
    let started = Instant::now();
    let one = finder.search("f".to_owned(), &[&ones(8 << 20), &b"\n"[..]].concat(), 100, 0, || false);
    assert_eq!((one.incomplete, one.lines.len()), (Some(LONG_LINES), 0));
    let mut lines = ones(8 << 20);
    lines.iter_mut().skip(finder.longest - 1).step_by(finder.longest).for_each(|byte| *byte = b'\n');
    let until = Instant::now() + std::time::Duration::from_millis(300);
    let many = finder.search("f".to_owned(), &lines, 100, 0, || Instant::now() > until);
    assert_eq!(many.incomplete, Some(TOO_LONG));
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn ordinary_patterns_find_in_long_lines() {
    let text = format!("{}\nneedle 1\n{}needle 2\n", "x".repeat(3 << 20), "x ".repeat(30_000));
    let found = finder(serde_json::json!({"pattern": "needle [0-9]", "context": 1}));
    let found = found.search("f".to_owned(), text.as_bytes(), 100, 0, || false);
    let lines: Vec<_> = found.lines.iter().map(|line| (line.line, line.context, line.text.len() > 8)).collect();
    // The line that is left out counts.
    assert_eq!(lines, [(1, true, false), (2, false, false), (3, false, true)]);
    assert_eq!(found.incomplete, Some(LONG_LINES));
    assert_eq!(search(serde_json::json!({"pattern": r"\w+\s*=\s*\w+\("}), &text[3 << 20..]), []);
    assert_eq!(search(serde_json::json!({"pattern": r"\w+ \d$"}), &text[3 << 20..]).len(), 2);
    // A binary file is not searched, and nothing is said of its lines.
    let binary = [vec![b'x'; 3 << 20], vec![0], b"\nneedle\n".to_vec()].concat();
    let found = finder(serde_json::json!({"pattern": "needle"})).search("f".to_owned(), &binary, 100, 0, || false);
    assert_eq!((found.lines.len(), found.incomplete), (0, None));
    // UTF-16 without a line end that is one in bytes, too.
    let wide: Vec<u8> = [0xff, 0xfe].into_iter().chain(vec![0x0a; 8 << 20]).collect();
    let found = finder(serde_json::json!({"pattern": "needle"})).search("f".to_owned(), &wide, 100, 0, || false);
    assert_eq!((found.lines.len(), found.incomplete), (0, Some(LONG_LINES)));
}
