//! Ends the attempt in failure; the policy decides whether there is another.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::ExecutionId;
use crate::journal::{NewEntries, StepEntry, StepIdentity};
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Ends the attempt in failure; the policy decides whether there is another.
    Fail "fail" Post "/v1/executions/{execution_id}/fail" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
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
    /// The failed journal entry that ends the attempt: a retry runs it again, and no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<StepIdentity>,
    /// Journal entries that are recorded in the same commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the first of these entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_number: Option<u64>,
}

/// The answer.
pub type Outcome = crate::execution::FailOutcome;

impl Args {
    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(self.first_number, &self.entries)
    }

    /// Refuses texts and waits that are too long, and entries that are malformed.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        if let Some(cause) = &self.cause {
            cause.validate()?;
            if self.first_number.is_none() {
                return Err(Error::invalid("first_number", "must say where the journal is when there is a cause"));
            }
        }
        text::text("reason", &self.reason)?;
        parts::optional(self.category.as_deref(), "category", text::label)?;
        parts::optional_number(self.retry_after_ms, "retry_after_ms", text::duration_ms)
    }
}
