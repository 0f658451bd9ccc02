//! The MCP server: from its start to the answer of `initialize`, and a command through a client that somebody else wrote.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::measure::{Failure, Skip, median};
use crate::pass::{Scene, say};

/// Names the Python that has the official client.
const PYTHON: &str = "RINGFENCE_MCP_PYTHON";
const ROUND_TRIP: &str = include_str!("../../mcp/round_trip.py");
const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"#,
    r#""clientInfo":{"name":"bench","version":"0"}}}"#,
    "\n"
);

/// In milliseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Mcp {
    pub initialize: Option<Spread>,
    pub ping: Option<Spread>,
    pub run_command: Option<Spread>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Spread {
    pub median_ms: f64,
    pub min_ms: f64,
    pub samples: usize,
}

#[derive(Debug, Deserialize)]
struct Rounds {
    ping: Vec<f64>,
    run: Vec<f64>,
}

pub fn measure(scene: &Scene, quick: bool) -> (Mcp, Vec<Skip>) {
    say("MCP: start to initialize, and a command through the Python client");
    let (mut mcp, mut skips) = (Mcp::default(), Vec::new());
    let starts: Result<Vec<f64>, Failure> =
        (0..if quick { 15 } else { 100 }).map(|_| start(&scene.ringfence)).collect();
    match starts {
        Ok(times) => mcp.initialize = Some(spread(times)),
        Err(reason) => skips.push(Skip { name: "mcp: initialize".to_owned(), reason }),
    }
    match round_trips(&scene.ringfence, if quick { 100 } else { 500 }) {
        Ok(rounds) => {
            mcp.ping = Some(spread(rounds.ping));
            mcp.run_command = Some(spread(rounds.run));
        }
        Err(reason) => skips.push(Skip { name: "mcp: run_command".to_owned(), reason }),
    }
    (mcp, skips)
}

fn spread(times: Vec<f64>) -> Spread {
    let min_ms = times.iter().copied().fold(f64::INFINITY, f64::min);
    Spread { samples: times.len(), min_ms, median_ms: median(&times) }
}

/// Starts the server, and waits for the answer to the first message.
fn start(program: &Path) -> Result<f64, Failure> {
    let mut command = Command::new(program);
    command.arg("mcp").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let begun = Instant::now();
    let mut child = command.spawn().map_err(|e| format!("cannot start {}: {e}", program.display()))?;
    let answered = first_answer(&mut child);
    let time = begun.elapsed();
    // Its stdin is closed, which ends it; waiting makes sure.
    drop(child.stdin.take());
    child.wait().map_err(|e| e.to_string())?;
    answered.map(|()| time.as_secs_f64() * 1000.0)
}

fn first_answer(child: &mut Child) -> Result<(), Failure> {
    let (Some(stdin), Some(stdout)) = (&mut child.stdin, &mut child.stdout) else { return Err("no pipes".to_owned()) };
    stdin.write_all(INITIALIZE.as_bytes()).map_err(|e| e.to_string())?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).map_err(|e| e.to_string())?;
    if line.contains("\"protocolVersion\"") { Ok(()) } else { Err(format!("a strange answer: {line}")) }
}

fn round_trips(program: &Path, rounds: usize) -> Result<Rounds, Failure> {
    let python = std::env::var_os(PYTHON).ok_or("the Python client is not installed: ./test installs it")?;
    let output = Command::new(python)
        .args(["-c", ROUND_TRIP])
        .arg(program)
        .arg(rounds.to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout)
        .map_err(|_| said.lines().last().unwrap_or("it said nothing").chars().take(160).collect())
}
