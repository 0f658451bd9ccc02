//! The figures as a chart: plain SVG that follows the reader's light or dark theme.

use std::fmt::Write;

use crate::Results;
use crate::pass::{AT_ONCE, Pass};
use crate::peers::TRUE;
use crate::table;

const WIDTH: f64 = 760.0;
const LABELS: f64 = 210.0;
const FIGURES: f64 = 90.0;
const BAR: f64 = 18.0;
const STEP: f64 = 26.0;
const HEAD: f64 = 44.0;

const STYLE: &str = "\
text { font: 13px system-ui, sans-serif; fill: #24292f; } .title { font-weight: 600; font-size: 15px; } \
.small { font-size: 11px; fill: #57606a; } .bar { fill: #8c959f; } .ours { fill: #0969da; } .cut { stroke: #ffffff; } \
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .small { fill: #9198a1; } .bar { fill: #6e7681; } \
.ours { fill: #58a6ff; } .cut { stroke: #0d1117; } }";

struct Bar {
    name: String,
    value: f64,
    text: String,
}

pub fn render(results: &Results) -> String {
    let mut body = String::new();
    let mut y = 0.0;
    for pass in &results.passes {
        let title = format!("Cold run of {TRUE}, × a bare fork+exec, as {} (less is better)", pass.user);
        y = panel(&mut body, y, &title, &cold(pass), true);
        let title = format!("Sandboxes a second, {AT_ONCE} at once, as {} (more is better)", pass.user);
        y = panel(&mut body, y, &title, &crowd(pass), false);
    }
    let idle: Vec<Bar> = results
        .idle
        .iter()
        .map(|idle| Bar { name: idle.name.clone(), value: idle.sum_kib, text: format!("{:.0} KiB", idle.sum_kib) })
        .collect();
    y = panel(&mut body, y, "Memory of an idle sandbox, the kernel's included (less is better)", &idle, true);
    let machine = escape(&results.machine.to_string());
    let _ = writeln!(body, "<text class=\"small\" x=\"0\" y=\"{}\">{machine}</text>", y + 24.0);
    let height = y + 34.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"What a sandbox costs\">\n<style>{STYLE}</style>\n{body}</svg>\n"
    )
}

fn cold(pass: &Pass) -> Vec<Bar> {
    let rows = table::ratios(pass).into_iter();
    rows.map(|(t, ratio, _)| Bar { name: t.name.clone(), value: ratio, text: format!("{ratio:.1}×") }).collect()
}

fn crowd(pass: &Pass) -> Vec<Bar> {
    let mut bars: Vec<Bar> = pass
        .crowd
        .iter()
        .map(|r| Bar { name: r.name.clone(), value: r.median_per_second, text: format!("{:.0}", r.median_per_second) })
        .collect();
    bars.sort_by(|a, b| b.value.total_cmp(&a.value));
    bars
}

/// One group of bars; returns where it ends. `cut`: who is far off does not press all others flat.
fn panel(body: &mut String, top: f64, title: &str, bars: &[Bar], cut: bool) -> f64 {
    if bars.is_empty() {
        return top;
    }
    let _ = writeln!(body, "<text class=\"title\" x=\"0\" y=\"{}\">{}</text>", top + 28.0, escape(title));
    let largest = largest(bars, cut);
    let room = WIDTH - LABELS - FIGURES;
    for (index, bar) in bars.iter().enumerate() {
        let y = top + HEAD + index as f64 * STEP;
        let middle = y + BAR - 4.5;
        let width = (bar.value / largest * room).clamp(1.0, room);
        let class = if bar.name.starts_with("ringfence") { "ours" } else { "bar" };
        let _ = write!(
            body,
            "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{LABELS}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\"/>",
            LABELS - 8.0,
            escape(&bar.name)
        );
        if bar.value > largest {
            let x = LABELS + room - 34.0;
            let _ = write!(
                body,
                "<path class=\"cut\" d=\"M{x} {0}l8 {1}m4 -{1}l8 {1}\" stroke-width=\"3\" fill=\"none\"/>",
                y - 2.0,
                BAR + 4.0
            );
        }
        let _ = writeln!(body, "<text x=\"{:.1}\" y=\"{middle}\">{}</text>", LABELS + width + 6.0, escape(&bar.text));
    }
    top + HEAD + bars.len() as f64 * STEP
}

/// The value of a full bar. With `cut`, a value more than three times the one before ends the scale there.
fn largest(bars: &[Bar], cut: bool) -> f64 {
    let mut values: Vec<f64> = bars.iter().map(|bar| bar.value).collect();
    values.sort_by(f64::total_cmp);
    let mut largest = values.first().copied().unwrap_or(1.0);
    for (seen, value) in values.iter().enumerate().skip(1) {
        if cut && seen >= 3 && *value > 3.0 * largest {
            return largest * 1.25;
        }
        largest = *value;
    }
    largest
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(values: &[f64]) -> Vec<Bar> {
        values.iter().map(|v| Bar { name: String::new(), value: *v, text: String::new() }).collect()
    }

    #[test]
    fn who_is_far_off_is_cut() {
        assert_eq!(largest(&bars(&[1.0, 2.0, 3.0, 4.0]), true), 4.0);
        assert_eq!(largest(&bars(&[1.0, 2.0, 4.0, 300.0]), true), 5.0);
        assert_eq!(largest(&bars(&[1.0, 2.0, 4.0, 300.0]), false), 300.0);
    }
}
