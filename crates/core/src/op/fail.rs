//! Ends the attempt in failure; the policy decides whether there is another.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::ExecutionId;
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Ends the attempt in failure; the policy decides whether there is another.
    Fail "fail" Post "/v1/executions/{execution_id}/fail" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FailArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// What went wrong.
    pub reason: String,
    /// What kind of thing went wrong; the policy names the kinds that are retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// How long to wait before a retry, instead of the policy's backoff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<i64>,
}

/// The answer.
pub type Outcome = crate::execution::FailOutcome;

impl Args {
    /// Refuses texts and waits that are too long.
    pub fn validate(&self) -> Result<()> {
        text::text("reason", &self.reason)?;
        parts::optional(self.category.as_deref(), "category", text::label)?;
        parts::optional_number(self.retry_after_ms, "retry_after_ms", text::duration_ms)
    }
}
