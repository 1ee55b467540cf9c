//! The figures of a scenario: one line says what was set and what was measured. Repetitions of a line become one, with
//! the median and the spread.

use serde_json::{Map, Value, json};

use crate::latency::Latencies;

/// One line of figures.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    /// The settings: the same in every repetition.
    settings: Vec<(&'static str, Value)>,
    /// The measured values.
    measured: Vec<(&'static str, f64)>,
}

impl Figures {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a setting.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.settings.push((name, value.into()));
        self
    }

    /// Adds a measured value.
    pub(crate) fn measured(mut self, name: &'static str, value: f64) -> Self {
        // More digits say nothing.
        self.measured.push((name, (value * 1000.0).round() / 1000.0));
        self
    }

    /// Adds a value that not every store tells.
    pub(crate) fn known(self, name: &'static str, value: Option<f64>) -> Self {
        match value {
            Some(value) => self.measured(name, value),
            None => self,
        }
    }

    /// How long something took: the middle and the tail.
    pub(crate) fn latency(self, latencies: &mut Latencies) -> Self {
        self.measured("p50_ms", latencies.percentile_ms(50))
            .measured("p95_ms", latencies.percentile_ms(95))
            .measured("p99_ms", latencies.percentile_ms(99))
    }
}

/// A line with every repetition of it.
#[derive(Debug)]
pub(crate) struct Repeated {
    settings: Vec<(&'static str, Value)>,
    measured: Vec<(&'static str, Vec<f64>)>,
}

/// Joins lines with the same settings, in the order in which they came first.
pub(crate) fn join(lines: Vec<Figures>) -> Vec<Repeated> {
    let mut joined: Vec<Repeated> = Vec::new();
    for line in lines {
        let known = joined.iter().position(|repeated| repeated.settings == line.settings);
        let at = known.unwrap_or_else(|| {
            joined.push(Repeated { settings: line.settings, measured: Vec::new() });
            joined.len() - 1
        });
        let measured = &mut joined[at].measured;
        for (name, value) in line.measured {
            match measured.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(value),
                None => measured.push((name, vec![value])),
            }
        }
    }
    joined
}

impl Repeated {
    /// For programs: the medians by name, and with several repetitions the least and the most of each.
    pub(crate) fn json(&self) -> Map<String, Value> {
        let mut line: Map<String, Value> =
            self.settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let mut spread = Map::new();
        for (name, values) in &self.measured {
            let (least, median, most) = spread_of(values);
            line.insert((*name).to_owned(), json!(median));
            if values.len() > 1 {
                spread.insert((*name).to_owned(), json!([least, most]));
            }
        }
        if !spread.is_empty() {
            line.insert("spread".into(), Value::Object(spread));
        }
        line
    }

    /// For people: a name and a value a line.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.settings {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.push_str(&format!("  {name:<28} {value}\n"));
        }
        for (name, values) in &self.measured {
            let (least, median, most) = spread_of(values);
            let range = if values.len() > 1 { format!("  ({least} to {most})") } else { String::new() };
            text.push_str(&format!("  {name:<28} {median}{range}\n"));
        }
        text
    }
}

/// The least, the one in the middle (the lower one of two), and the most.
fn spread_of(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    let last = sorted.len().saturating_sub(1);
    (at(0), at(last / 2), at(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_of_a_line_become_its_median_and_spread() {
        let line = |queued: u64, rate: f64| Figures::new().with("queued", queued).measured("per_s", rate);
        let joined = join(vec![line(1, 30.0), line(2, 5.0), line(1, 10.0), line(1, 20.0)]);
        assert_eq!(joined.len(), 2);
        assert_eq!(
            Value::Object(joined[0].json()),
            json!({ "queued": 1, "per_s": 20.0, "spread": { "per_s": [10.0, 30.0] } })
        );
        assert_eq!(
            joined[0].text(),
            "  queued                       1\n  per_s                        20  (10 to 30)\n"
        );
        assert_eq!(Value::Object(joined[1].json()), json!({ "queued": 2, "per_s": 5.0 }));
    }

    #[test]
    fn what_a_store_does_not_tell_is_left_out() {
        let joined = join(vec![Figures::new().known("calls", None).known("reads", Some(1.23456))]);
        assert_eq!(Value::Object(joined[0].json()), json!({ "reads": 1.235 }));
    }
}
