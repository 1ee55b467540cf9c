//! The report: a page for people and the same as JSON.

use std::fmt::Write;

use serde_json::json;

use super::figures::{Summary, median, problems};
use super::{Session, targets};

/// Scenarios in the order of the page: name, title, and whether more is better.
pub(crate) const SCENARIOS: [(&str, &str, bool); 32] = [
    ("throughput", "S1: empty tasks a second, end to end", true),
    ("throughput-everysec", "S1 with a file that is synced every second", true),
    ("throughput-replicated", "S1 with a replica: ours waits for it before it acknowledges, others do not", true),
    ("throughput-10k", "S1 with an input of 10 KiB", true),
    ("throughput-100k", "S1 with an input of 100 KiB", true),
    ("throughput-spread", "S1 on Valkey with more servers of ours or a cluster, all on the same cores", true),
    ("wake", "S8: submit to task in hand, one idle worker (p50, ms)", false),
    ("suspend-resume", "S2: signal to task back in hand (p50, ms)", false),
    ("chain", "S4: chain of ten, one at a time (p50, ms)", false),
    ("chains", "S4: chains of ten a second, 100 at once", true),
    ("steps", "S10: a function of ten durable steps, one at a time (p50, ms)", false),
    ("steps-at-once", "S10: functions of ten durable steps a second, 100 at once", true),
    ("steps-1", "S10: a function of one durable step (p50, ms)", false),
    ("steps-3", "S10: a function of three durable steps (p50, ms)", false),
    ("steps-9", "S10: a function of nine durable steps (p50, ms)", false),
    ("reserve-settle", "S11: reservations that are settled, a second, 64 workers on one budget", true),
    ("governed", "S11: tasks with a budget and a quota, as a share of the rate without", true),
    ("routed", "S5: tasks routed by capability a second, end to end", true),
    ("quorum-cancel-10", "S6: one success cancels the other 9 (p50, ms)", false),
    ("quorum-cancel-100", "S6: one success cancels the other 99 (p50, ms)", false),
    ("quorum-cancel-1000", "S6: one success cancels the other 998 (p50, ms)", false),
    ("idle", "S7: commands a second on Valkey with 16 idle workers", false),
    ("idle-store", "S7: what 16 idle workers ask of each store, a second", false),
    ("round-trips-per-task", "Round trips to the store for a task (reads and commits)", false),
    ("server-time-per-task", "Time inside of Valkey for a task (µs)", false),
    ("own-time-per-task", "Processor time of our process for a task (µs)", false),
    ("tasks-per-core", "Tasks for a second of processor time, ours and inside of the store", true),
    ("allocations-per-task", "Allocations of our process for a task", false),
    ("allocated-bytes-per-task", "Bytes our process allocates for a task", false),
    ("bytes-waiting", "S9: bytes in the store for an execution that waits", false),
    ("bytes-completed", "S9: bytes in the store for an execution that has ended", false),
    ("limit", "The limit: function calls a second of Valkey alone", true),
];

/// The page.
pub(crate) fn markdown(session: &Session, summaries: &[Summary]) -> String {
    let mut page = String::new();
    let machine = &session.machine;
    let short = if session.quick { " A short run: for a look, not for quoting." } else { "" };
    let _ = writeln!(page, "# FlowFabric and others, {}\n", session.date);
    let _ = writeln!(
        page,
        "One machine ({} cores, {} GiB, {}), one session, systems one after another in {} round(s): the median, and in parentheses the \
         least and the most.{short} Figures of one session may be compared; those of two machines or two hours may not. Windows and \
         guarantees differ: see the notes before quoting a ratio. `load` is that of the last minute before each round.\n",
        machine.cores, machine.memory_gib, machine.kernel, session.rounds
    );
    let _ = writeln!(page, "With {}.\n", machine.programs.join(", "));
    let _ = writeln!(page, "![bar chart]({}.svg)\n", session.date);
    page.push_str(&judged(summaries));
    for (scenario, title, more_is_better) in SCENARIOS {
        page.push_str(&table(scenario, title, more_is_better, summaries));
    }
    let found = problems(&session.runs);
    if !found.is_empty() {
        page.push_str("## Not measured\n\n| system | why |\n|---|---|\n");
        for (what, why) in found {
            let _ = writeln!(page, "| {what} | {why} |");
        }
        page.push('\n');
    }
    page.push_str("Made by `cargo xtask bench compare`; what each system ran is in `bench/peers`.\n");
    page
}

fn judged(summaries: &[Summary]) -> String {
    let mut text =
        "## Our targets\n\n| target | ours | other | ratio | asked | |\n|---|---|---|---|---|---|\n".to_owned();
    for target in targets::judge(summaries) {
        let ours = target.ours.map_or("-".into(), |value| format!("{} {}", figure(value), target.unit));
        let other = target.other.map_or("-".into(), |(who, value)| format!("{who}: {}", figure(value)));
        let ratio = target.ratio.map_or("-".into(), |ratio| format!("{ratio:.2} ×"));
        let _ =
            writeln!(text, "| {} | {ours} | {other} | {ratio} | {} | {} |", target.what, target.asked, target.verdict);
    }
    text.push('\n');
    text
}

fn table(scenario: &str, title: &str, more_is_better: bool, summaries: &[Summary]) -> String {
    let mut rows: Vec<&Summary> = summaries.iter().filter(|summary| summary.scenario == scenario).collect();
    if rows.is_empty() {
        return String::new();
    }
    rows.sort_by(|one, another| one.median().total_cmp(&another.median()));
    if more_is_better {
        rows.reverse();
    }
    let latency = rows.iter().any(|row| !row.p99.is_empty());
    let mut text = format!(
        "## {title}\n\n| system | version | store, durability | {} | load | window |\n",
        if latency { "p50 | p95 | p99" } else { "rate" }
    );
    text.push_str(if latency { "|---|---|---|---|---|---|---|---|\n" } else { "|---|---|---|---|---|---|\n" });
    for row in rows {
        let mut cells = spread(&row.values);
        if latency {
            let tail = |values: &[f64]| if values.is_empty() { "-".into() } else { figure(median(values)) };
            let _ = write!(cells, " | {} | {}", tail(&row.p95), tail(&row.p99));
        }
        let loads: Vec<String> = row.loads.iter().map(|load| format!("{load:.1}")).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {}; {} | {cells} | {} | {} |",
            row.label(),
            row.version,
            row.store,
            row.durability,
            loads.join(", "),
            row.note
        );
    }
    text.push('\n');
    text
}

/// The median and, of several, the least and the most.
fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match values.len() {
        0 | 1 => figure(median(values)),
        _ => format!("{} ({}-{})", figure(median(values)), figure(least), figure(most)),
    }
}

/// Three digits that mean something, with commas between thousands.
pub(crate) fn figure(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.2}");
    }
    if value < 100.0 {
        return format!("{value:.1}");
    }
    thousands(&format!("{value:.0}"))
}

/// Digits with commas between thousands.
pub(crate) fn thousands(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Everything, each line that was printed included.
pub(crate) fn json(session: &Session, summaries: &[Summary]) -> String {
    let machine = &session.machine;
    let value = json!({
        "date": session.date, "quick": session.quick, "rounds": session.rounds,
        "machine": { "cores": machine.cores, "memory_gib": machine.memory_gib, "kernel": machine.kernel, "programs": machine.programs },
        "targets": targets::judge(summaries).iter().map(|target| json!({
            "target": target.what, "ours": target.ours, "unit": target.unit, "ratio": target.ratio, "asked": target.asked,
            "other": target.other.as_ref().map(|(who, value)| json!({ "system": who, "value": value })), "verdict": target.verdict,
        })).collect::<Vec<_>>(),
        "figures": summaries.iter().map(|summary| json!({
            "scenario": summary.scenario, "system": summary.label(), "version": summary.version, "store": summary.store,
            "durability": summary.durability, "unit": summary.unit, "note": summary.note, "median": summary.median(),
            "values": summary.values, "p95": summary.p95, "p99": summary.p99, "load_before": summary.loads,
        })).collect::<Vec<_>>(),
        "runs": session.runs.iter().map(|run| json!({
            "system": run.name, "round": run.round, "load_before": run.load, "lines": run.lines,
        })).collect::<Vec<_>>(),
    });
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_that_mean_something() {
        assert_eq!(figure(0.8164), "0.82");
        assert_eq!(figure(25.61), "25.6");
        assert_eq!(figure(348.4), "348");
        assert_eq!(figure(10_432.0), "10,432");
        assert_eq!(figure(1_234_567.0), "1,234,567");
    }

    #[test]
    fn the_spread_of_one_is_just_that_one() {
        assert_eq!(spread(&[5.0]), "5.00");
        assert_eq!(spread(&[100.0, 300.0, 200.0]), "200 (100-300)");
    }
}
