//! `ringfence check`: inside or outside.

use std::process::ExitCode;

use ringfence::facts::inside_sandbox;

use crate::args::Check;
use crate::failure::Failure;
use crate::output;

pub fn check(args: &Check) -> Result<ExitCode, Failure> {
    let inside = inside_sandbox();
    match args.json {
        true => output::json(&serde_json::json!({ "inside": inside }))?,
        false => output::data(if inside { "inside\n" } else { "outside\n" })?,
    }
    Ok(if inside { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
