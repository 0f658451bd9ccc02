//! Plain command lines are read without clap: they mean the same.

use super::*;

/// What clap makes of `ringfence run` with these arguments.
fn by_clap(args: &[&str]) -> Option<Run> {
    match Cli::try_parse_from([&["ringfence", "run"], args].concat()).ok()?.command {
        Command::Run(run) => Some(run),
        _ => None,
    }
}

fn plain(args: &[&str]) -> Option<Run> {
    Run::read_plain(args.iter().map(OsString::from))
}

#[test]
fn plain_lines_are_read_as_clap_reads_them() {
    let words = [
        "--network",
        "--network=false",
        "--network=true",
        "--docker=false",
        "--json",
        "--profile",
        "--profile=shell",
        "--timeout",
        "--timeout=1s",
        "--memory",
        "--cpus=0.5",
        "--pids",
        "--",
        "ls",
        "-la",
        "64",
        "",
        "--bogus",
        "--json=x",
        "--network=maybe",
        "--profile=",
        "--help",
        "-v",
    ];
    let mut read = 0;
    for a in words {
        for b in words {
            for c in words {
                let line = [a, b, c];
                if let Some(run) = plain(&line) {
                    assert_eq!(Some(run), by_clap(&line), "{line:?}");
                    read += 1;
                }
            }
        }
    }
    assert!(read > 1000, "{read}");
    assert!(plain(&[]).is_some() && plain(&["--network=false", "--", "/bin/true"]).is_some());
}

#[test]
fn plain_session_lines_are_read_as_clap_reads_them() {
    let words = ["s", "--json", "--stdin", "--", "ls", "-la", "--cwd", "--timeout=1s", "", "--bogus", "--background"];
    let mut read = 0;
    for a in words {
        for b in words {
            for c in words {
                for d in words {
                    let line = ["session", "exec", a, b, c, d];
                    let Some(plain) = SessionExec::read_plain(line.iter().map(OsString::from)) else { continue };
                    let clap = Cli::try_parse_from([&["ringfence"], &line[..]].concat()).ok();
                    let clap = clap.and_then(|cli| match cli.command {
                        Command::Session(Session::Exec(exec)) => Some(exec),
                        _ => None,
                    });
                    assert_eq!(Some(plain), clap, "{line:?}");
                    read += 1;
                }
            }
        }
    }
    assert!(read > 50, "{read}");
}

#[test]
fn code_lines_are_read_alone_as_with_all_definitions() {
    let words = [
        "python",
        "-",
        "--json",
        "--input",
        "{}",
        "--timeout=1s",
        "--session",
        "--context=c",
        "--help",
        "",
        "--bogus",
        "--",
        "--cpus=-1",
    ];
    let (mut read, mut plainly) = (0, 0);
    for a in words {
        for b in words {
            for c in words {
                for d in words {
                    let line = ["ringfence", "code", a, b, c, d];
                    let alone = Code::read_alone(line.iter().map(OsString::from));
                    let all = match Cli::try_parse_from(line).ok().map(|cli| cli.command) {
                        Some(Command::Code(code)) => Some(*code),
                        _ => None,
                    };
                    assert_eq!(alone, all, "{line:?}");
                    if let Some(plain) = Code::read_plain(line.iter().skip(1).map(OsString::from)) {
                        assert_eq!(Some(plain), all, "{line:?}");
                        plainly += 1;
                    }
                    read += usize::from(alone.is_some());
                }
            }
        }
    }
    assert!(read > 50 && plainly > 20, "{read} {plainly}");
}

#[test]
fn definitions_are_sound() {
    <Cli as clap::CommandFactory>::command().debug_assert();
}
