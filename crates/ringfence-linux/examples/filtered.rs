//! Runs a program under the filter: `filtered [--nesting] [--unix-only] [--allow NAME]… PROGRAM ARGUMENTS…`. With no program,
//! tells how long the filter is and how long the kernel takes to load it.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Instant;

use ringfence_linux::seccomp::{self, Options, SockFilter, Sockets};
use rustix::thread::set_no_new_privs;

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut allow = Vec::new();
    let mut options = Options::default();
    while args.first().is_some_and(|arg| arg.starts_with("--")) {
        match args.remove(0).as_str() {
            "--nesting" => options.nesting = true,
            "--unix-only" => options.sockets = Sockets::UnixOnly,
            "--allow" if !args.is_empty() => allow.push(args.remove(0)),
            other => {
                eprintln!("filtered: no such option: {other}");
                return ExitCode::from(125);
            }
        }
    }
    let allow: Vec<&str> = allow.iter().map(String::as_str).collect();
    options.allow = &allow;
    let program = match seccomp::program(&options) {
        Ok(program) => program,
        Err(e) => {
            eprintln!("filtered: {e}");
            return ExitCode::from(125);
        }
    };
    if let Err(e) = set_no_new_privs(true) {
        eprintln!("filtered: no_new_privs: {e}");
        return ExitCode::from(125);
    }
    if args.is_empty() {
        measure(&program);
        return ExitCode::SUCCESS;
    }
    if let Err(e) = seccomp::install(&program) {
        eprintln!("filtered: {e}");
        return ExitCode::from(125);
    }
    eprintln!("filtered: {}: {}", args[0], Command::new(&args[0]).args(&args[1..]).exec());
    ExitCode::from(127)
}

/// Loads the filter in a thousand fresh threads, since one thread would stack them.
fn measure(program: &[SockFilter]) {
    let load = || {
        let start = Instant::now();
        seccomp::install(program).expect("the filter loads");
        start.elapsed().as_nanos()
    };
    let mut times: Vec<u128> = (0..1000)
        .map(|_| std::thread::scope(|scope| scope.spawn(load).join().expect("the thread does not panic")))
        .collect();
    times.sort_unstable();
    println!("{} instructions, load {} ns median, {} ns minimum", program.len(), times[500], times[0]);
}
