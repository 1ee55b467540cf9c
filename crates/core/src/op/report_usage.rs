//! Charges what an attempt has spent to every budget of its execution that counts the dimension.
//! Usage is accounting: it counts once for each dedup key, also when the lease is lost.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::ExecutionId;
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::op::parts;
use crate::text;
use crate::usage::ReportUsageResult;

operation! {
    /// Charges what an attempt has spent to every budget of its execution that counts the dimension.
    ReportUsage "report_usage" Post "/v1/executions/{execution_id}/usage" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReportUsageArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// A lease the caller holds or held.
    pub fence: LeaseFence,
    /// What was spent, by dimension.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub usage: BTreeMap<String, i64>,
    /// Only this one of its budgets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// The same key counts once; an empty key is none. It belongs to the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_key: Option<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ReportUsageOutcome")]
pub struct Outcome {
    /// What each budget answered, by name.
    pub budgets: BTreeMap<String, ReportUsageResult>,
}

impl Args {
    /// Refuses empty reports and amounts that are out of range.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.budget.as_deref(), "budget", text::name)?;
        parts::optional(self.dedup_key.as_deref(), "dedup_key", text::optional_label)?;
        parts::usage(&self.usage)
    }
}
