//! `ringfence config show`: the resolved policy, with the origin of every value.

use std::process::ExitCode;

use ringfence::policy::rules::LayerKind;
use serde::Serialize;

use crate::args::ConfigShow;
use crate::failure::Failure;
use crate::host;
use crate::output;

#[derive(Debug, Serialize)]
struct Shown {
    key: String,
    value: String,
    layer: &'static str,
    origin: String,
}

pub fn show(args: &ConfigShow) -> Result<ExitCode, Failure> {
    let sandbox = host::look(&args.policy)?;
    host::warn(&sandbox, true);
    let values: Vec<Shown> = sandbox
        .resolved()
        .values()
        .into_iter()
        .map(|value| Shown {
            layer: layer_name(value.origin.layer),
            origin: value.origin.place.into_owned(),
            key: value.key,
            value: value.text,
        })
        .collect();
    if args.json {
        output::json(&serde_json::json!({ "values": values }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let lines: Vec<String> = values.iter().map(|v| output::one_line(&format!("{} = {}", v.key, v.value))).collect();
    // Long paths stand out; the rest is aligned.
    let width = lines.iter().map(|line| line.chars().count()).filter(|width| *width <= 60).max().unwrap_or(0);
    let text: String = lines
        .iter()
        .zip(&values)
        .map(|(line, value)| format!("{line:<width$}  # {}\n", output::one_line(&value.origin)))
        .collect();
    output::data(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub fn layer_name(layer: LayerKind) -> &'static str {
    match layer {
        LayerKind::Profile => "profile",
        LayerKind::Global => "global",
        LayerKind::Project => "project",
        LayerKind::Flags => "flags",
    }
}
