//! `ringfence check`: inside or outside.

use std::process::ExitCode;

use ringfence::engines::native::stacked;

use crate::failure::Failure;
use crate::output;

pub fn check() -> Result<ExitCode, Failure> {
    let inside = stacked::inside();
    output::data(if inside { "inside\n" } else { "outside\n" })?;
    Ok(if inside { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
