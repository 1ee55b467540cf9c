//! Reports of usage: how a budget answers them, and the evidence that one with a dedup key was counted.

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::encoding::{Blob, Document};
use crate::index::{Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::{document, vocabulary};

/// The answer to a report of usage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ReportUsageResult {
    /// It was counted.
    Ok,
    /// A report with this dedup key was counted before; this one was not.
    AlreadyApplied,
    /// It was counted, and usage is past a soft limit.
    SoftBreach {
        /// The first dimension past its limit.
        dimension: String,
        /// Usage now.
        current: i64,
        /// The soft limit.
        limit: i64,
    },
    /// It would pass a hard limit: not counted with `enforce`, counted with `observe`.
    HardBreach {
        /// The first dimension that would pass.
        dimension: String,
        /// Usage now.
        current: i64,
        /// The hard limit.
        limit: i64,
    },
}

vocabulary! {
    /// Which of the counted answers a usage record remembers.
    pub enum UsageOutcome {
        /// See [`ReportUsageResult::Ok`].
        Ok "ok",
        /// See [`ReportUsageResult::SoftBreach`].
        SoftBreach "soft_breach",
        /// See [`ReportUsageResult::HardBreach`].
        HardBreach "hard_breach",
    }
}

document! {
    /// Evidence that a report with a dedup key was counted, and how it was answered. It expires.
    pub struct UsageRecord {
        /// A digest of the budget's key and the dedup key; the record's own key.
        "k" digest: Blob,
        /// What it was answered with.
        "o" outcome: UsageOutcome = UsageOutcome::Ok,
        /// The dimension of a breach.
        "d" dimension: String,
        /// Usage at the breach.
        "c" current: i64,
        /// The limit of the breach.
        "l" limit: i64,
        /// When it was counted.
        "t" at: i64,
    }
}

impl Document for UsageRecord {
    const KIND: u8 = kind::RECORD;
}

impl Indexed for UsageRecord {
    fn key(&self) -> Key {
        Key::new(kind::RECORD, &[&self.digest])
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        Vec::new()
    }
}

impl UsageRecord {
    /// The key under which a report of this dedup key is remembered.
    pub fn key_of(budget: &Key, dedup_key: &str) -> Key {
        Key::new(kind::RECORD, &[&Self::digest_of(budget, dedup_key)])
    }

    /// The record of a report that was counted; `None` for answers that leave the dedup key free.
    pub fn of(budget: &Budget, dedup_key: &str, answer: &ReportUsageResult, now: i64) -> Option<Self> {
        if !budget.counted(answer) {
            return None;
        }
        let digest = Self::digest_of(&budget.key(), dedup_key).to_vec().into();
        let record = Self { digest, at: now, ..Default::default() };
        Some(match answer {
            ReportUsageResult::SoftBreach { dimension, current, limit } => {
                record.breach(UsageOutcome::SoftBreach, dimension, *current, *limit)
            }
            ReportUsageResult::HardBreach { dimension, current, limit } => {
                record.breach(UsageOutcome::HardBreach, dimension, *current, *limit)
            }
            ReportUsageResult::Ok | ReportUsageResult::AlreadyApplied => record,
        })
    }

    /// The answer the report got.
    pub fn answer(&self) -> ReportUsageResult {
        let (dimension, current, limit) = (self.dimension.clone(), self.current, self.limit);
        match self.outcome {
            UsageOutcome::Ok => ReportUsageResult::Ok,
            UsageOutcome::SoftBreach => ReportUsageResult::SoftBreach { dimension, current, limit },
            UsageOutcome::HardBreach => ReportUsageResult::HardBreach { dimension, current, limit },
        }
    }

    /// When the dedup key may be used anew, for a window of [`DEDUP_WINDOW_MS`](crate::limits::DEDUP_WINDOW_MS) or as configured.
    pub fn expires_at(&self, window_ms: i64) -> i64 {
        self.at.saturating_add(window_ms)
    }

    fn digest_of(budget: &Key, dedup_key: &str) -> [u8; 16] {
        digest16(&[b"usage", budget.as_bytes(), dedup_key.as_bytes()])
    }

    fn breach(self, outcome: UsageOutcome, dimension: &str, current: i64, limit: i64) -> Self {
        Self { outcome, dimension: dimension.to_owned(), current, limit, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::budget::{BudgetDefinition, Enforcement, Limits};
    use crate::gate::Defined;
    use crate::limits;

    fn budget(enforcement: Enforcement) -> Budget {
        let limits = Limits { hard: 100, soft: 50, ..Default::default() };
        let definition = BudgetDefinition {
            dimensions: BTreeMap::from([("tokens".into(), limits)]),
            enforcement,
            ..Default::default()
        };
        let Defined::Created(budget) = Budget::define(None, ("team", "b"), definition, 1_000).unwrap() else {
            panic!("the name was free");
        };
        budget
    }

    fn report(budget: &mut Budget, tokens: i64) -> ReportUsageResult {
        budget.report(&BTreeMap::from([("tokens".into(), tokens)]), 2_000).unwrap()
    }

    #[test]
    fn a_counted_report_leaves_a_record_with_its_answer() {
        let mut budget = budget(Enforcement::Observe);
        for tokens in [40, 20, 90] {
            let answer = report(&mut budget, tokens);
            let record = UsageRecord::of(&budget, "call-1", &answer, 2_000).unwrap();
            assert_eq!(record.answer(), answer);
            assert_eq!(record.key(), UsageRecord::key_of(&budget.key(), "call-1"));
            assert_eq!(UsageRecord::decode(&record.encode()).unwrap(), record);
            assert_eq!(record.expires_at(limits::DEDUP_WINDOW_MS), 2_000 + limits::DEDUP_WINDOW_MS);
        }
    }

    #[test]
    fn a_refused_report_leaves_its_dedup_key_free() {
        let mut budget = budget(Enforcement::Enforce);
        let answer = report(&mut budget, 101);
        assert!(matches!(answer, ReportUsageResult::HardBreach { .. }));
        assert_eq!(UsageRecord::of(&budget, "call-1", &answer, 2_000), None);
    }

    #[test]
    fn a_dedup_key_belongs_to_one_budget() {
        let keys = [("a", "k"), ("b", "k"), ("a", "l")]
            .map(|(budget, dedup_key)| UsageRecord::key_of(&Budget::key_of("team", budget), dedup_key));
        assert!(keys[0] != keys[1] && keys[0] != keys[2]);
    }

    #[test]
    fn answers_speak_in_names() {
        let answer = ReportUsageResult::HardBreach { dimension: "tokens".into(), current: 100, limit: 100 };
        let json = serde_json::json!({ "outcome": "hard_breach", "dimension": "tokens", "current": 100, "limit": 100 });
        assert_eq!(serde_json::to_value(&answer).unwrap(), json);
        assert_eq!(serde_json::from_value::<ReportUsageResult>(json).unwrap(), answer);
    }
}
