//! The command line.

use super::*;

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

/// A doc comment of flags that several commands share would take the place of their own when they are made.
#[test]
fn commands_keep_their_help() {
    fn compare(named: &clap::Command, made: &clap::Command) {
        for named in named.get_subcommands() {
            let made = made.find_subcommand(named.get_name()).unwrap();
            let about = |command: &clap::Command| command.get_about().map(ToString::to_string);
            assert!(about(named).is_some() && about(named) == about(made), "{}", named.get_name());
            compare(named, made);
        }
    }
    let mut made = Cli::command();
    made.build();
    compare(&Cli::command(), &made);
}
