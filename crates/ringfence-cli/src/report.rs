//! Reports for people and for programs.

use ringfence::{Report, State};

/// One line for each guarantee: state, id, mechanism.
pub fn table(report: &Report) -> String {
    let mut text = format!("engine {}\n", report.engine);
    for answer in &report.guarantees {
        let line = format!("{:<10} {:<24} {}", state(answer.state), answer.id.id(), answer.by);
        text.push_str(line.trim_end());
        text.push('\n');
    }
    for device in &report.devices {
        text.push_str(&format!("{:<10} {device}\n", "device"));
    }
    text
}

pub fn json(report: &Report) -> String {
    let mut text = serde_json::to_string(report).unwrap_or_default();
    text.push('\n');
    text
}

fn state(state: State) -> &'static str {
    match state {
        State::Enforced => "enforced",
        State::Weakened => "weakened",
        State::Missing => "missing",
        State::NotAsked => "not asked",
    }
}

#[cfg(test)]
mod tests;
