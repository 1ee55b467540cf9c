//! Releases the lease; the same attempt continues at or after an instant.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::ExecutionId;
use crate::journal::{NewEntries, StepEntry};
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::operation;
use crate::text;

operation! {
    /// Releases the lease; the same attempt continues at or after an instant.
    Delay "delay" Post "/v1/executions/{execution_id}/delay" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DelayArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The instant; this or `delay_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// The time from now; this or `until`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<i64>,
    /// Journal entries that are recorded in the same commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the first of these entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_number: Option<u64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "DelayOutcome")]
pub struct Outcome {
    /// When it may be claimed again.
    pub at: i64,
}

impl Args {
    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(self.first_number, &self.entries)
    }

    /// Refuses neither, both, and what is out of range.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        match (self.until, self.delay_ms) {
            (Some(until), None) => text::instant("until", until),
            (None, Some(delay_ms)) => text::duration_ms("delay_ms", delay_ms),
            _ => Err(Error::invalid("until", "or delay_ms must be given, not both")),
        }
    }
}
