//! The figures for people.

use std::fmt::Write;

use crate::Results;
use crate::docker;
use crate::measure::Times;
use crate::pass::{AT_ONCE, BARE, CLI, Pass};
use crate::peers::TRUE;
use crate::session::{self, Figures};

pub fn render(results: &Results) -> String {
    let mut out = format!("{}\n", results.machine);
    if results.machine.is_busy() {
        out.push_str("THE MACHINE WAS BUSY WHEN THIS BEGAN: do not rely on these figures.\n");
    }
    for pass in &results.passes {
        cold(&mut out, pass);
        crowd(&mut out, pass);
    }
    work(&mut out, results);
    session(&mut out, &results.session);
    docker(&mut out, &results.docker);
    idle(&mut out, results);
    mcp(&mut out, results);
    code(&mut out, results);
    skips(&mut out, results);
    let _ = writeln!(out, "\n{:.0} s in all.", results.seconds);
    out
}

/// The contenders of a pass by what they cost beside bare, cheapest first.
pub fn ratios(pass: &Pass) -> Vec<(&Times, f64, f64)> {
    let Some(bare) = pass.cold.iter().find(|t| t.name == BARE) else { return Vec::new() };
    let ratio = |t| (t, times(t).0 / bare.median_ms, times(t).1 / bare.min_ms);
    let mut rows: Vec<_> = pass.cold.iter().map(ratio).collect();
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    rows
}

fn times(t: &Times) -> (f64, f64) {
    (t.median_ms, t.min_ms)
}

fn cold(out: &mut String, pass: &Pass) {
    let rows = ratios(pass);
    if rows.is_empty() {
        return;
    }
    let mut table = Table::new(["", "median ms", "min ms", "× bare, median", "× bare, min", "samples"]);
    for (t, by_median, by_min) in rows {
        table.row([
            t.name.clone(),
            format!("{:.2}", t.median_ms),
            format!("{:.2}", t.min_ms),
            format!("{by_median:.2}"),
            format!("{by_min:.2}"),
            t.samples.to_string(),
        ]);
    }
    let _ = write!(out, "\nCold run of {TRUE}, as {}\n{table}", pass.user);
}

fn crowd(out: &mut String, pass: &Pass) {
    if pass.crowd.is_empty() {
        return;
    }
    let bwrap = pass.crowd.iter().find(|r| r.name == "bwrap").map(|r| r.median_per_second);
    let mut table = Table::new(["", "a second, median", "best", "× bwrap"]);
    let mut rows: Vec<_> = pass.crowd.iter().collect();
    rows.sort_by(|a, b| b.median_per_second.total_cmp(&a.median_per_second));
    for rate in rows {
        table.row([
            rate.name.clone(),
            format!("{:.1}", rate.median_per_second),
            format!("{:.1}", rate.best_per_second),
            bwrap.map_or_else(|| "-".to_owned(), |bwrap| format!("{:.2}", rate.median_per_second / bwrap)),
        ]);
    }
    let _ = write!(out, "\n{AT_ONCE} at once, as {}\n{table}", pass.user);
}

/// What the start of a box costs, where it was measured.
fn start_ms(results: &Results) -> Option<f64> {
    let cold = &results.passes.first()?.cold;
    let median = |name| cold.iter().find(|t| t.name == name).map(|t| t.median_ms);
    Some(median(CLI)? - median(BARE)?)
}

fn work(out: &mut String, results: &Results) {
    if results.work.is_empty() {
        return;
    }
    let start = start_ms(results);
    let mut table = Table::new(["", "outside ms", "inside ms", "difference", "less the start", "by minima", "samples"]);
    for work in &results.work {
        table.row([
            work.name.clone(),
            format!("{:.0}", work.outside.median_ms),
            format!("{:.0}", work.inside.median_ms),
            format!("{:+.1}%", work.percent(0.0)),
            start.map_or_else(|| "-".to_owned(), |start| format!("{:+.1}%", work.percent(start))),
            format!("{:+.1}%", work.inside.min_ms / work.outside.min_ms * 100.0 - 100.0),
            work.inside.samples.to_string(),
        ]);
    }
    let _ = write!(out, "\nCommands inside and outside, medians\n{table}");
    for work in &results.work {
        if let (Some(percent), Some(traced)) = (work.trace_percent(), &work.traced) {
            let by_min = traced.min_ms / work.inside.min_ms * 100.0 - 100.0;
            let _ = writeln!(
                out,
                "  --trace-denials on {}: {percent:+.1}% of inside without it ({:.0} ms; by minima {by_min:+.1}%)",
                work.name, traced.median_ms
            );
        }
    }
}

/// Times beside those of `base`.
fn beside(out: &mut String, title: &str, rows: &[Times], base: &str) {
    let Some(base) = rows.iter().find(|t| t.name == base) else { return };
    let mut table = Table::new(["", "median ms", "min ms", "ratio, median", "ratio, min", "samples"]);
    for t in rows {
        table.row([
            t.name.clone(),
            format!("{:.2}", t.median_ms),
            format!("{:.2}", t.min_ms),
            format!("{:.2}", t.median_ms / base.median_ms),
            format!("{:.2}", t.min_ms / base.min_ms),
            t.samples.to_string(),
        ]);
    }
    let _ = write!(out, "\n{title}\n{table}");
}

fn session(out: &mut String, figures: &Figures) {
    beside(out, &format!("{TRUE} in a live session"), &figures.exec, BARE);
    beside(out, "A session made, beside a run", &figures.create, session::RUN);
    let size = figures.size >> 20;
    let (files, pipes): (Vec<Times>, Vec<Times>) =
        figures.bytes.iter().cloned().partition(|t| ["cp", "file in", "file out"].contains(&t.name.as_str()));
    beside(out, &format!("{size} MiB in and out of a session"), &files, "cp");
    beside(out, &format!("{size} MiB written by a command"), &pipes, "pipe");
    if let Some(recording) = figures.recording {
        let _ = writeln!(
            out,
            "\nRecording one execution: median {:.1} µs, 99th percentile {:.1} µs of {}",
            recording.median_us, recording.worst_us, recording.executions
        );
    }
    if let Some(load) = &figures.load {
        let _ = writeln!(
            out,
            "\n{} sessions, {} executing, {} s: {} executions, {} failures; median of the first and last tenth {:.1} ms, \
             {:.1} ms; memory of all supervisors {} KiB, {} KiB",
            load.sessions,
            load.executing,
            load.seconds,
            load.executions,
            load.failures,
            load.first_ms,
            load.last_ms,
            load.first_kib,
            load.last_kib
        );
    }
}

fn docker(out: &mut String, figures: &docker::Figures) {
    beside(out, &format!("{TRUE} in a live container, beside the native engine"), &figures.exec, docker::NATIVE);
    beside(out, "A container made", &figures.create, docker::PEER_CREATE);
    beside(out, "A container removed", &figures.remove, docker::PEER_REMOVE);
    let Some(peer) = figures.crowd.first() else { return };
    let mut table = Table::new(["", "a second, median", "best", "× Docker"]);
    for rate in &figures.crowd {
        let times = rate.median_per_second / peer.median_per_second;
        let figures = [rate.median_per_second, rate.best_per_second, times].map(|figure| format!("{figure:.2}"));
        table.row([rate.name.clone()].into_iter().chain(figures));
    }
    let _ = write!(out, "\n{AT_ONCE} containers at once\n{table}");
}

fn idle(out: &mut String, results: &Results) {
    if results.idle.is_empty() {
        return;
    }
    let mut table =
        Table::new(["KiB each", "count", "processes", "owner", "kernel", "tmpfs", "sum", "(less available)"]);
    for idle in &results.idle {
        let figures = [idle.processes_kib, idle.owner_kib, idle.kernel_kib, idle.tmpfs_kib, idle.sum_kib];
        let figures = figures.into_iter().chain([idle.available_kib]).map(|kib| format!("{kib:.0}"));
        table.row([idle.name.clone(), idle.count.to_string()].into_iter().chain(figures));
    }
    let _ = write!(out, "\nIdle at once\n{table}");
    for idle in &results.idle {
        let Some((none, all)) = idle.run_beside_none_ms.zip(idle.run_beside_all_ms) else { continue };
        let _ = writeln!(
            out,
            "  {}: a whole run takes {none:.2} ms beside none, {all:.2} ms beside {} ({:.2}×); starting alone, first and \
             last tenth: {:.2} ms, {:.2} ms",
            idle.name,
            idle.count,
            all / none,
            idle.first_starts_ms,
            idle.last_starts_ms
        );
    }
}

fn mcp(out: &mut String, results: &Results) {
    let mcp = &results.mcp;
    let rows = [
        ("start to the answer of initialize", &mcp.initialize),
        ("the Python client's ping", &mcp.ping),
        ("run_command of true", &mcp.run_command),
    ];
    let mut table = Table::new(["", "median ms", "min ms", "samples"]);
    for (name, spread) in rows.iter().filter_map(|(name, spread)| spread.as_ref().map(|spread| (name, spread))) {
        let [median, min] = [spread.median_ms, spread.min_ms].map(|ms| format!("{ms:.2}"));
        table.row([(*name).to_owned(), median, min, spread.samples.to_string()]);
    }
    if table.rows.len() == 1 {
        return;
    }
    let _ = write!(out, "\nMCP\n{table}");
    if let (Some(ping), Some(run)) = (&mcp.ping, &mcp.run_command) {
        let _ = writeln!(out, "  a command costs {:.2} ms more than a ping", run.median_ms - ping.median_ms);
    }
}

fn code(out: &mut String, results: &Results) {
    let code = &results.code;
    let Some(bare) = code.rows.first() else { return };
    let mut table = Table::new(["", "median ms", "min ms", "× bare, median", "× bare, min", "samples"]);
    for row in &code.rows {
        let ratios = [row.median_ms / bare.median_ms, row.min_ms / bare.min_ms];
        let [median, min, by_median, by_min] =
            [row.median_ms, row.min_ms, ratios[0], ratios[1]].map(|n| format!("{n:.2}"));
        table.row([row.name.clone(), median, min, by_median, by_min, row.samples.to_string()]);
    }
    let _ = write!(out, "\nCode: a snippet of Python\n{table}");
    if let (Some(rate), Some((before, after))) = (code.rate, code.left) {
        let busy = code.busy_ms.map(|ms| format!(", {ms:.2} ms of the machine's processors each")).unwrap_or_default();
        let _ = writeln!(out, "  {rate:.0} in a second from a pool{busy}");
        let mut table = Table::new([&format!("{} executions", code.executions), "before", "after"]);
        for ((name, before), (_, after)) in before.named().into_iter().zip(after.named()) {
            table.row([name.to_owned(), before.to_string(), after.to_string()]);
        }
        let _ = write!(out, "{table}");
    }
}

fn skips(out: &mut String, results: &Results) {
    let passes = results.passes.iter().flat_map(|pass| pass.skips.iter().map(move |skip| (skip, Some(&pass.user))));
    let mut lines: Vec<String> = Vec::new();
    for (skip, user) in passes.chain(results.skips.iter().map(|skip| (skip, None))) {
        let who = user.filter(|_| skip.reason != "not installed").map(|u| format!(" (as {u})")).unwrap_or_default();
        let line = format!("  {}{who}: {}\n", skip.name, skip.reason);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if !lines.is_empty() {
        let _ = write!(out, "\nSKIP\n{}", lines.concat());
    }
}

/// Columns: the first to the left, figures to the right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new<const N: usize>(head: [&str; N]) -> Table {
        Table { rows: vec![head.map(str::to_owned).to_vec()] }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let wide = |row: &Vec<String>, i: usize| row.get(i).map_or(0, |cell| cell.chars().count());
        let widths: Vec<usize> =
            (0..columns).map(|i| self.rows.iter().map(|row| wide(row, i)).max().unwrap_or_default()).collect();
        for row in &self.rows {
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if i == 0 { write!(f, "  {cell:<width$}")? } else { write!(f, "  {cell:>width$}")? }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["", "× bare"]);
        table.row(["longer".to_owned(), "1".to_owned()]);
        assert_eq!(table.to_string(), "          × bare\n  longer       1\n");
    }
}
