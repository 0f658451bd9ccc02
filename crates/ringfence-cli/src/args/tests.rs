//! Commands that are read with their own definition alone mean the same as with all definitions.

use super::*;

/// Every line of up to `length` of these words, after the name of the command. How many of them could be read.
fn compare(name: &[&str], words: &[&str], length: usize) -> usize {
    let mut lines: Vec<Vec<&str>> = vec![Vec::new()];
    let mut read = 0;
    for _ in 0..length {
        lines = lines.iter().flat_map(|line| words.iter().map(|word| [&line[..], &[*word]].concat())).collect();
        for line in &lines {
            let line: Vec<OsString> = [&["ringfence"], name, line].concat().iter().map(OsString::from).collect();
            let alone = Command::read_alone(&line);
            let all = Cli::try_parse_from(&line).ok().map(|cli| cli.command);
            assert_eq!(format!("{alone:?}"), format!("{all:?}"), "{line:?}");
            read += usize::from(alone.is_some());
        }
    }
    read
}

#[test]
fn run_is_read_alone_as_with_all_definitions() {
    let words = [
        "--network",
        "--network=false",
        "--json",
        "--profile",
        "--timeout=1s",
        "--report",
        "--",
        "ls",
        "-la",
        "",
        "--bogus",
        "--network=maybe",
        "--help",
        "-v",
    ];
    assert!(compare(&["run"], &words, 3) > 500);
}

#[test]
fn session_exec_is_read_alone_as_with_all_definitions() {
    let words = ["s", "--json", "--stdin", "--", "ls", "-la", "--timeout=1s", "", "--bogus", "--background"];
    assert!(compare(&["session", "exec"], &words, 3) > 5);
}

#[test]
fn code_is_read_alone_as_with_all_definitions() {
    let words = ["python", "-", "--json", "--input", "{}", "--session", "--context=c", "--help", "", "--", "--cpus=-1"];
    assert!(compare(&["code"], &words, 3) > 5);
}

#[test]
fn a_switch_with_a_separated_value_is_noticed() {
    let line = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    assert_eq!(separated(&line(&["ringfence", "run", "--network", "false"])), Some(("--network", "false")));
    assert_eq!(separated(&line(&["ringfence", "run", "--strict", "no", "x"])), Some(("--strict", "no")));
    for fine in [&["--network=false", "true"][..], &["--json", "true"], &["--", "--network", "false"]] {
        assert_eq!(separated(&line(fine)), None, "{fine:?}");
    }
}

#[test]
fn definitions_are_sound() {
    Cli::command().debug_assert();
}
