//! The figures over all rounds.

use serde_json::Value;

/// One system in one round.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) round: usize,
    /// Of the machine, just before.
    pub(crate) load: f64,
    pub(crate) lines: Vec<Value>,
}

/// One scenario of one system in one shape: a value for every round, a rate or the p50 of a latency.
pub(crate) struct Summary {
    pub(crate) scenario: String,
    pub(crate) system: String,
    pub(crate) version: String,
    pub(crate) variant: String,
    pub(crate) store: String,
    pub(crate) durability: String,
    pub(crate) unit: String,
    pub(crate) note: String,
    pub(crate) values: Vec<f64>,
    /// Of a latency; empty for a rate.
    pub(crate) p95: Vec<f64>,
    pub(crate) p99: Vec<f64>,
    /// Before each round.
    pub(crate) loads: Vec<f64>,
}

impl Summary {
    pub(crate) fn median(&self) -> f64 {
        median(&self.values)
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.system.starts_with("FlowFabric")
    }

    /// As it is called in tables and charts.
    pub(crate) fn label(&self) -> String {
        let on = if self.is_ours() { format!(" on {}", self.store) } else { String::new() };
        let variant = if self.variant.is_empty() { String::new() } else { format!(", {}", self.variant) };
        format!("{}{on}{variant}", self.system)
    }
}

/// The value in the middle, the lower one of two; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Why a system has no figure: its name, the scenario if it was one, and the reason.
pub(crate) fn problems(runs: &[Run]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for run in runs {
        for line in &run.lines {
            let Some(why) = line.get("failed").or(line.get("skipped")).and_then(Value::as_str) else { continue };
            let what = format!("{} {}", run.name, text(line, "scenario"));
            let how = if line.get("skipped").is_some() { "skipped" } else { "failed" };
            let problem = (what.trim().to_owned(), format!("{how}: {why}"));
            if !found.contains(&problem) {
                found.push(problem);
            }
        }
    }
    found
}

/// Joins the rounds; in the order in which things were first measured.
pub(crate) fn summarise(runs: &[Run]) -> Vec<Summary> {
    let mut summaries: Vec<Summary> = Vec::new();
    for run in runs {
        for line in &run.lines {
            let Some(value) = number(line, "rate").or(number(line, "p50")) else { continue };
            let same = |summary: &Summary| {
                summary.system == text(line, "system")
                    && summary.scenario == text(line, "scenario")
                    && summary.variant == text(line, "variant")
                    && summary.store == text(line, "store")
            };
            let at = summaries.iter().position(same).unwrap_or_else(|| {
                summaries.push(empty(line));
                summaries.len() - 1
            });
            summaries[at].values.push(value);
            summaries[at].p95.extend(number(line, "p95"));
            summaries[at].p99.extend(number(line, "p99"));
            summaries[at].loads.push(run.load);
        }
    }
    summaries
}

fn empty(line: &Value) -> Summary {
    Summary {
        scenario: text(line, "scenario"),
        system: text(line, "system"),
        version: text(line, "version"),
        variant: text(line, "variant"),
        store: text(line, "store"),
        durability: text(line, "durability"),
        unit: text(line, "unit"),
        note: text(line, "note"),
        values: Vec::new(),
        p95: Vec::new(),
        p99: Vec::new(),
        loads: Vec::new(),
    }
}

fn text(line: &Value, name: &str) -> String {
    line.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(line: &Value, name: &str) -> Option<f64> {
    line.get(name).and_then(Value::as_f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(round: usize, lines: Vec<Value>) -> Run {
        Run { name: "peer", round, load: 0.5, lines }
    }

    #[test]
    fn rounds_are_joined_and_shapes_are_kept_apart() {
        let line =
            |variant: &str, rate: f64| json!({ "system": "P", "scenario": "s", "variant": variant, "rate": rate });
        let runs = [
            run(1, vec![line("a", 30.0), line("b", 1.0)]),
            run(2, vec![line("a", 10.0)]),
            run(3, vec![line("a", 20.0)]),
        ];
        let summaries = summarise(&runs);
        assert_eq!(summaries.len(), 2);
        assert_eq!(summaries[0].values, [30.0, 10.0, 20.0]);
        assert_eq!(summaries[0].median(), 20.0);
        assert_eq!(summaries[1].median(), 1.0);
    }

    #[test]
    fn a_failure_is_told_once_and_is_no_figure() {
        let failed = || vec![json!({ "system": "P", "failed": "no disk" })];
        let runs = [run(1, failed()), run(2, failed())];
        assert!(summarise(&runs).is_empty());
        assert_eq!(problems(&runs), [("peer".to_owned(), "failed: no disk".to_owned())]);
    }
}
