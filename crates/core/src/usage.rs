//! Reports of usage: how a budget answers them, and which of them are the same report.

use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::idempotency::Identity;
use crate::key::Key;
use crate::partition::digest16;

/// The answer to a report of usage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
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
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(ReportUsageResult);

/// The identity of a report with a dedup key: a repeat with it is the same report of a budget. The key of a lease
/// holder belongs to its execution, so that two executions may use the same one; an operator's belongs to the budget.
pub fn identity(budget: &Key, execution: Option<&ExecutionId>, dedup_key: &str, kept_ms: i64) -> Identity {
    let mut parts = vec![b"usage".as_slice(), budget.as_bytes()];
    parts.extend(execution.map(|execution| execution.uuid.as_bytes().as_slice()));
    parts.push(dedup_key.as_bytes());
    Identity::of_digest(digest16(&parts), kept_ms)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::budget::Budget;

    #[test]
    fn a_dedup_key_belongs_to_one_budget_and_a_holders_to_its_execution() {
        let execution = |uuid| ExecutionId { partition: 0, uuid: Uuid::from_u128(uuid) };
        let key = |budget, execution: Option<&ExecutionId>, dedup_key| {
            identity(&Budget::key_of("team", budget), execution, dedup_key, 1_000).key()
        };
        let keys = [
            key("a", None, "k"),
            key("b", None, "k"),
            key("a", None, "l"),
            key("a", Some(&execution(1)), "k"),
            key("a", Some(&execution(2)), "k"),
        ];
        for (place, one) in keys.iter().enumerate() {
            assert!(!keys[..place].contains(one), "{place}");
        }
    }

    #[test]
    fn answers_speak_in_names() {
        let answer = ReportUsageResult::HardBreach { dimension: "tokens".into(), current: 100, limit: 100 };
        let json = serde_json::json!({ "outcome": "hard_breach", "dimension": "tokens", "current": 100, "limit": 100 });
        assert_eq!(serde_json::to_value(&answer).unwrap(), json);
        assert_eq!(serde_json::from_value::<ReportUsageResult>(json).unwrap(), answer);
    }
}
