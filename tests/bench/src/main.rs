//! `./bench`: what a sandbox costs, as ratios to a bare fork+exec in the same run. It measures and never asserts.
#![forbid(unsafe_code)]

mod args;
mod chart;
mod code;
mod docker;
mod idle;
mod library;
mod line;
mod machine;
mod mcp;
mod measure;
mod pass;
mod peers;
mod recording;
mod session;
mod table;
mod work;

use std::process::ExitCode;

use args::{Args, ArgsError, Section};
use machine::Machine;
use measure::{Failure, Skip};
use pass::{Account, Pass, Scene, say};
use peers::Peers;
use serde::Serialize;

// As the program has it: musl's own would be measured.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: ringfence_linux::Allocator = ringfence_linux::Allocator;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    pub machine: Machine,
    pub quick: bool,
    /// By account: our own first.
    pub passes: Vec<Pass>,
    pub work: Vec<work::Work>,
    pub session: session::Figures,
    pub docker: docker::Figures,
    pub idle: Vec<idle::Idle>,
    pub mcp: mcp::Mcp,
    pub code: code::Figures,
    pub skips: Vec<Skip>,
    pub seconds: f64,
}

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(ArgsError::Help) => {
            println!("{}", args::HELP);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            say(&error.to_string());
            return ExitCode::from(2);
        }
    };
    if !args.work_in.join("ringfence").is_file() {
        say(&ArgsError::NotFromScript.to_string());
        return ExitCode::from(2);
    }
    match if args.pass { second_pass(&args) } else { measure_all(&args) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            say(&reason);
            ExitCode::FAILURE
        }
    }
}

/// The pass of another account: its figures go to the process that started it.
fn second_pass(args: &Args) -> Result<(), Failure> {
    let user = Account::own();
    let place = args.work_in.join(format!("as-{user}"));
    let scene = Scene::set(&place, &args.work_in.join("ringfence"))?;
    let pass = pass::measure(args, &scene, &Peers::find(&place), user);
    println!("{}", serde_json::to_string(&pass).map_err(|e| e.to_string())?);
    Ok(())
}

fn measure_all(args: &Args) -> Result<(), Failure> {
    let begun = std::time::Instant::now();
    // Where the caller is, before we go elsewhere.
    let caller = std::env::current_dir().map_err(|e| e.to_string())?;
    let machine = Machine::look();
    say(&format!("{machine}"));
    let scene = Scene::set(&args.work_in, &args.work_in.join("ringfence"))?;
    let peers = Peers::find(&args.work_in);
    let mut results = Results {
        machine,
        quick: args.quick,
        passes: vec![pass::measure(args, &scene, &peers, Account::own())],
        work: Vec::new(),
        session: session::Figures::default(),
        docker: docker::Figures::default(),
        idle: Vec::new(),
        mcp: mcp::Mcp::default(),
        code: code::Figures::default(),
        skips: Vec::new(),
        seconds: 0.0,
    };
    if rustix::process::getuid().is_root() && (args.wants(Section::Cold) || args.wants(Section::Crowd)) {
        match Account::ordinary(args.user.as_deref()).and_then(|account| pass::measure_as(&account, args)) {
            Ok(pass) => results.passes.push(pass),
            Err(reason) => results.skips.push(Skip { name: "an ordinary account".to_owned(), reason }),
        }
    }
    if args.wants(Section::Work) {
        let (work, skips) = work::measure(&scene, args.quick);
        results.work = work;
        results.skips.extend(skips);
    }
    if args.wants(Section::Session) {
        let (figures, skips) = session::measure(&scene, args.quick, args.load);
        results.session = figures;
        results.skips.extend(skips);
    }
    if args.wants(Section::Docker) {
        let (figures, skips) = docker::measure(&scene, args.quick);
        results.docker = figures;
        results.skips.extend(skips);
    }
    if args.wants(Section::Idle) {
        let (idle, skips) = idle::measure(&scene, &peers, args.idle);
        results.idle = idle;
        results.skips.extend(skips);
    }
    if args.wants(Section::Mcp) {
        let (mcp, skips) = mcp::measure(&scene, args.quick);
        results.mcp = mcp;
        results.skips.extend(skips);
    }
    if args.wants(Section::Code) {
        let (figures, skips) = code::measure(&scene, args.quick, args.code);
        results.code = figures;
        results.skips.extend(skips);
    }
    results.seconds = begun.elapsed().as_secs_f64();
    print!("{}", table::render(&results));
    let write = |path: &std::path::Path, text: String| {
        let path = caller.join(path);
        std::fs::write(&path, text).map_err(|e| format!("cannot write `{}`: {e}", path.display()))
    };
    if let Some(path) = &args.json {
        write(path, serde_json::to_string_pretty(&results).map_err(|e| e.to_string())? + "\n")?;
    }
    if let Some(path) = &args.svg {
        write(path, chart::render(&results))?;
    }
    Ok(())
}
