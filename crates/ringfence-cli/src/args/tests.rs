//! The command line.

use super::*;

#[test]
fn a_switch_with_a_separated_value_is_noticed() {
    let read = |words: &[&str]| {
        let line: Vec<_> = [&["ringfence"], words].concat().iter().map(OsString::from).collect();
        Cli::of(&line).map(drop).map_err(|error| error.to_string())
    };
    for (switch, wrong) in [
        ("--network false", &["run", "--network", "false"][..]),
        ("--strict no", &["run", "--strict", "no", "x"]),
        ("--network false", &["run", "--network", "false", "--", "x", "--strict", "no"]),
        ("--network false", &["session", "create", "--network", "false"]),
    ] {
        let refused = read(wrong).unwrap_err();
        assert!(refused.contains(&format!("`{switch}`")), "{refused}");
    }
    for fine in [
        &["run", "--network=false", "true"][..],
        &["run", "--json", "true"],
        &["run", "--", "x", "--network", "false"],
        // What belongs to the command.
        &["run", "x", "--network", "false"],
        &["run", "--network=false", "true", "--strict", "no"],
        &["session", "exec", "s", "x", "--network", "false"],
        &["session", "shell", "s", "x", "--network", "false"],
    ] {
        assert_eq!(read(fine), Ok(()), "{fine:?}");
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
