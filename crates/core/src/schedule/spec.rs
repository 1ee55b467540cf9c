//! When a schedule runs: by a cron expression, at an interval, or at given instants.

use super::cron::{Cron, DEFAULT_TIME_ZONE};
use crate::error::{Error, Result};
use crate::{document, limits, text};

document! {
    /// When a schedule runs. Exactly one of `cron`, `every_ms` and `at` is given.
    pub api struct ScheduleSpec {
        /// A cron expression of five fields, or of six with the seconds first.
        "c" cron: Option<String>,
        /// The time zone of the expression; `UTC` when absent.
        "z" time_zone: Option<String>,
        /// An interval, counted from `starts_at` or from when the schedule was created.
        "e" every_ms: Option<i64>,
        /// Instants, each of which runs once.
        "a" at: Vec<i64>,
    }
}

impl ScheduleSpec {
    /// By a cron expression in a time zone.
    pub fn cron(expression: impl Into<String>, time_zone: impl Into<String>) -> Self {
        Self { cron: Some(expression.into()), time_zone: Some(time_zone.into()), ..Default::default() }
    }

    /// At an interval.
    pub fn every(every_ms: i64) -> Self {
        Self { every_ms: Some(every_ms), ..Default::default() }
    }

    /// At given instants.
    pub fn at(instants: impl Into<Vec<i64>>) -> Self {
        Self { at: instants.into(), ..Default::default() }
    }

    /// Reads it; intervals count from the anchor. A refusal names the field and says why.
    pub(super) fn read(&self, anchor: i64) -> Result<Pattern> {
        if self.time_zone.is_some() && self.cron.is_none() {
            return Err(Error::invalid(
                "spec.time_zone",
                "belongs to a cron expression: intervals and instants have none",
            ));
        }
        match (&self.cron, self.every_ms, self.at.as_slice()) {
            (Some(expression), None, []) => {
                let zone = self.time_zone.as_deref().unwrap_or(DEFAULT_TIME_ZONE);
                Cron::parse(expression, zone).map(|cron| Pattern::Cron(Box::new(cron)))
            }
            (None, Some(every_ms), []) => {
                text::within("spec.every_ms", every_ms, limits::SCHEDULE_EVERY_MIN_MS..=limits::DURATION_MAX_MS)?;
                Ok(Pattern::Every { every_ms, anchor })
            }
            (None, None, [_, ..]) => {
                if self.at.len() > limits::SCHEDULE_INSTANTS_MAX {
                    return Err(text::too_many("spec.at", self.at.len(), limits::SCHEDULE_INSTANTS_MAX));
                }
                self.at.iter().try_for_each(|instant| text::instant("spec.at", *instant))?;
                let mut instants = self.at.clone();
                instants.sort_unstable();
                instants.dedup();
                Ok(Pattern::At(instants))
            }
            _ => Err(Error::invalid("spec", "must have one of cron, every_ms and at")),
        }
    }
}

/// A spec that was read.
pub(super) enum Pattern {
    Cron(Box<Cron>),
    Every { every_ms: i64, anchor: i64 },
    At(Vec<i64>),
}

impl Pattern {
    fn after(&self, instant: i64) -> Option<i64> {
        match self {
            Pattern::Cron(cron) => cron.after(instant),
            Pattern::Every { every_ms, anchor } => {
                let passed = (instant - anchor).div_euclid(*every_ms);
                anchor.checked_add(every_ms.checked_mul(passed + 1)?)
            }
            Pattern::At(instants) => instants.get(instants.partition_point(|known| *known <= instant)).copied(),
        }
    }
}

/// The instants of a schedule, within its bounds.
pub struct Instants {
    pattern: Pattern,
    /// None before this one.
    starts_at: Option<i64>,
    /// None behind this one.
    ends_at: Option<i64>,
}

/// Spans in which the last instants before another one are looked for, each longer than the one before.
const LOOK_BACK_MS: [i64; 9] = [
    60_000,
    10 * 60_000,
    3_600_000,
    6 * 3_600_000,
    24 * 3_600_000,
    32 * 24 * 3_600_000,
    366 * 24 * 3_600_000,
    9 * 366 * 24 * 3_600_000,
    i64::MAX,
];

impl Instants {
    pub(super) fn new(pattern: Pattern, starts_at: Option<i64>, ends_at: Option<i64>) -> Self {
        Self { pattern, starts_at, ends_at }
    }

    /// The first instant behind this one.
    pub fn after(&self, instant: i64) -> Option<i64> {
        // Instants begin behind the epoch: where one is kept, 0 means none.
        let from = self.starts_at.map_or(instant, |starts_at| instant.max(starts_at - 1)).max(0);
        let found = self.pattern.after(from).filter(|found| *found <= limits::SCORE_MAX)?;
        self.ends_at.is_none_or(|ends_at| found <= ends_at).then_some(found)
    }

    /// The instants behind the first and up to the second of these, at most so many.
    pub fn within(&self, after: i64, until: i64, max: usize) -> Vec<i64> {
        let mut found = Vec::new();
        let mut next = self.after(after);
        while let Some(instant) = next.filter(|instant| *instant <= until && found.len() < max) {
            found.push(instant);
            next = self.after(instant);
        }
        found
    }

    /// The last of the instants behind the first and up to the second of these, at most so many, in their order.
    pub fn last_within(&self, after: i64, until: i64, max: usize) -> Vec<i64> {
        if max == 0 {
            return Vec::new();
        }
        let mut last = std::collections::VecDeque::new();
        for span_ms in LOOK_BACK_MS {
            let from = after.max(until.saturating_sub(span_ms));
            last.clear();
            let mut next = self.after(from);
            while let Some(instant) = next.filter(|instant| *instant <= until) {
                if last.len() == max {
                    last.pop_front();
                }
                last.push_back(instant);
                next = self.after(instant);
            }
            if last.len() == max || from == after {
                break;
            }
        }
        last.into()
    }
}
