//! Our targets: a multiple of what others reach in the same session, or a bound.

use super::figures::{Summary, median};

/// A target and what the session says about it.
pub(crate) struct Judged {
    pub(crate) what: &'static str,
    pub(crate) ours: Option<f64>,
    pub(crate) unit: &'static str,
    /// The system we are compared with, and its figure.
    pub(crate) other: Option<(String, f64)>,
    /// Ours over theirs, for a rate.
    pub(crate) ratio: Option<f64>,
    pub(crate) asked: String,
    pub(crate) verdict: &'static str,
}

struct Target {
    what: &'static str,
    scenario: &'static str,
    store: &'static str,
    unit: &'static str,
    /// The 99th percentile instead of the median.
    tail: bool,
    /// Which of ours: in process, through a server, or by an SDK.
    system: &'static str,
    asks: Asks,
}

enum Asks {
    /// At least so many times the fastest of these systems; must, and goal.
    Times(f64, f64, &'static [&'static str]),
    /// At most this; must, and goal.
    AtMost(f64, f64),
    /// At least this; must, and goal.
    AtLeast(f64, f64),
}

const fn target(
    what: &'static str,
    (scenario, unit): (&'static str, &'static str),
    store: &'static str,
    asks: Asks,
) -> Target {
    Target { what, scenario, store, unit, tail: false, system: "FlowFabric", asks }
}

const fn tail(target: Target) -> Target {
    Target { tail: true, ..target }
}

const fn through_a_server(target: Target) -> Target {
    Target { system: "FlowFabric over HTTP", ..target }
}

const fn by(system: &'static str, target: Target) -> Target {
    Target { system, ..target }
}

const THROUGHPUT: (&str, &str) = ("throughput", "tasks/s");
const WAKE: (&str, &str) = ("wake", "ms");

const TARGETS: [Target; 25] = [
    target("S1 throughput, Valkey, against BullMQ", THROUGHPUT, "Valkey", Asks::Times(1.3, 2.0, &["BullMQ"])),
    target("S1 throughput, SQLite, against Restate", THROUGHPUT, "SQLite", Asks::Times(2.0, 2.0, &["Restate"])),
    target(
        "S1 throughput, PostgreSQL, against the fastest queue on it",
        THROUGHPUT,
        "PostgreSQL",
        Asks::Times(2.0, 2.0, &["graphile-worker", "pg-boss"]),
    ),
    through_a_server(target(
        "S1 throughput through a server, Valkey",
        THROUGHPUT,
        "Valkey",
        Asks::AtLeast(4_300.0, 7_150.0),
    )),
    by(
        "FlowFabric Python",
        target("S1 throughput of one Python worker", THROUGHPUT, "Valkey", Asks::AtLeast(1_000.0, 1_000.0)),
    ),
    by(
        "FlowFabric Node",
        target("S1 throughput of one Node worker", THROUGHPUT, "Valkey", Asks::AtLeast(3_000.0, 3_000.0)),
    ),
    target("S2 signal to task in hand, p50", ("suspend-resume", "ms"), "Valkey", Asks::AtMost(2.0, 2.0)),
    through_a_server(target(
        "S2 signal to task in hand through a server, p50",
        ("suspend-resume", "ms"),
        "Valkey",
        Asks::AtMost(3.0, 3.0),
    )),
    target("S4 chain of ten, one at a time, p50", ("chain", "ms"), "Valkey", Asks::AtMost(10.0, 5.0)),
    target(
        "S4 chains of ten, 100 at once, against BullMQ",
        ("chains", "flows/s"),
        "Valkey",
        Asks::Times(1.0, 1.5, &["BullMQ"]),
    ),
    target("S5 tasks routed by capability, Valkey", ("routed", "tasks/s"), "Valkey", Asks::AtLeast(6_200.0, 6_200.0)),
    tail(target("S6 one success cancels 9, p99", ("quorum-cancel-10", "ms"), "Valkey", Asks::AtMost(20.0, 20.0))),
    tail(target("S6 one success cancels 99, p99", ("quorum-cancel-100", "ms"), "Valkey", Asks::AtMost(100.0, 100.0))),
    tail(target("S6 one success cancels 998, p99", ("quorum-cancel-1000", "ms"), "Valkey", Asks::AtMost(500.0, 500.0))),
    target("S7 commands with 16 idle workers", ("idle", "commands/s"), "Valkey", Asks::AtMost(25.0, 25.0)),
    target("S8 submit to task in hand, idle, p50", WAKE, "Valkey", Asks::AtMost(1.0, 1.0)),
    tail(target("S8 submit to task in hand, idle, p99", WAKE, "Valkey", Asks::AtMost(3.0, 3.0))),
    through_a_server(target(
        "S8 submit to task in hand through a server, idle, p50",
        WAKE,
        "Valkey",
        Asks::AtMost(2.0, 2.0),
    )),
    through_a_server(tail(target(
        "S8 submit to task in hand through a server, idle, p99",
        WAKE,
        "Valkey",
        Asks::AtMost(6.0, 6.0),
    ))),
    target(
        "S9 bytes for an execution that waits",
        ("bytes-waiting", "bytes"),
        "Valkey",
        Asks::AtMost(1_024.0, 1_024.0),
    ),
    target("S10 ten durable steps alone, p50", ("steps", "ms"), "Valkey", Asks::AtMost(4.0, 4.0)),
    target("S10 ten durable steps alone on SQLite, p50", ("steps", "ms"), "SQLite", Asks::AtMost(12.0, 12.0)),
    target(
        "S10 ten durable steps, 100 at once on SQLite, against Restate",
        ("steps-at-once", "functions/s"),
        "SQLite",
        Asks::Times(3.0, 3.0, &["Restate"]),
    ),
    target("function calls for a task", ("calls-per-task", "calls"), "Valkey", Asks::AtMost(3.5, 3.5)),
    target("time inside of Valkey for a task", ("server-time-per-task", "µs"), "Valkey", Asks::AtMost(70.0, 70.0)),
];

/// Every target, in the order of the scenarios.
pub(crate) fn judge(summaries: &[Summary]) -> Vec<Judged> {
    TARGETS.iter().map(|target| target.judge(summaries)).collect()
}

impl Target {
    fn judge(&self, summaries: &[Summary]) -> Judged {
        let of_scenario = || summaries.iter().filter(|summary| summary.scenario == self.scenario);
        let found =
            of_scenario().find(|summary| summary.system == self.system && summary.store.starts_with(self.store));
        let ours = found.map(|summary| if self.tail { median(&summary.p99) } else { summary.median() });
        let unit = self.unit;
        match self.asks {
            Asks::AtMost(must, goal) => Judged {
                what: self.what,
                ours,
                asked: asked("≤", must, goal, &format!(" {unit}")),
                unit,
                other: None,
                ratio: None,
                verdict: verdict(ours, |value| value <= must, |value| value <= goal),
            },
            Asks::AtLeast(must, goal) => Judged {
                what: self.what,
                ours,
                asked: asked("≥", must, goal, &format!(" {unit}")),
                unit,
                other: None,
                ratio: None,
                verdict: verdict(ours, |value| value >= must, |value| value >= goal),
            },
            Asks::Times(must, goal, others) => {
                let fastest = of_scenario()
                    .filter(|summary| others.contains(&summary.system.as_str()))
                    .max_by(|one, another| one.median().total_cmp(&another.median()));
                let ratio = ours.zip(fastest).map(|(ours, other)| ours / other.median());
                Judged {
                    what: self.what,
                    ours,
                    unit,
                    other: fastest.map(|summary| (summary.label(), summary.median())),
                    ratio,
                    asked: asked("≥", must, goal, " ×"),
                    verdict: verdict(ratio, |value| value >= must, |value| value >= goal),
                }
            }
        }
    }
}

fn asked(sign: &str, must: f64, goal: f64, unit: &str) -> String {
    let also = if must == goal { String::new() } else { format!(" (goal {goal}{unit})") };
    format!("{sign} {must}{unit}{also}")
}

fn verdict(value: Option<f64>, must: impl Fn(f64) -> bool, goal: impl Fn(f64) -> bool) -> &'static str {
    match value {
        None => "not measured",
        Some(value) if goal(value) => "met",
        Some(value) if must(value) => "met, goal not",
        Some(_) => "missed",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::figures::{Run, summarise};
    use super::*;

    fn judged(lines: Vec<serde_json::Value>, what: &str) -> Judged {
        let runs = [Run { name: "all", round: 1, load: 0.0, lines }];
        let all = judge(&summarise(&runs));
        all.into_iter().find(|judged| judged.what == what).expect("the target is in the table")
    }

    #[test]
    fn a_multiple_is_of_the_fastest_shape_of_the_other() {
        let ours = json!({ "system": "FlowFabric", "scenario": "throughput", "store": "SQLite", "rate": 3000.0 });
        let other = |variant: &str, rate: f64| json!({ "system": "Restate", "scenario": "throughput", "store": "log", "variant": variant, "rate": rate });
        let judged =
            judged(vec![ours, other("slow", 100.0), other("fast", 1000.0)], "S1 throughput, SQLite, against Restate");
        assert_eq!(judged.ratio, Some(3.0));
        assert_eq!(judged.verdict, "met");
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        let what = "S4 chain of ten, one at a time, p50";
        assert_eq!(judged(Vec::new(), what).verdict, "not measured");
        let slow = json!({ "system": "FlowFabric", "scenario": "chain", "store": "Valkey", "p50": 11.0 });
        assert_eq!(judged(vec![slow], what).verdict, "missed");
        let fair = json!({ "system": "FlowFabric", "scenario": "chain", "store": "Valkey", "p50": 7.0 });
        assert_eq!(judged(vec![fair], what).verdict, "met, goal not");
    }
}
