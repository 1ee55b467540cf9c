//! Appends entries to the journal of the execution. A repeat with the same numbers is the same entries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::ExecutionId;
use crate::journal::{NewEntries, StepEntry};
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::operation;
use crate::op::parts;

operation! {
    /// Appends entries to the journal of the execution. A repeat with the same numbers is the same entries.
    RecordSteps "record_steps" Post "/v1/executions/{execution_id}/steps" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// Entries for the journal, numbered by the lease holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RecordStepsArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The number of the first entry; the others follow.
    pub first_number: u64,
    /// The entries, 1 to 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
}

/// Where the journal is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RecordStepsOutcome")]
pub struct Outcome {
    /// The number of the last entry that was recorded.
    pub last_number: u64,
    /// The number the next entry gets.
    pub next_number: u64,
}

impl Args {
    /// Refuses no entries, too many, and entries that are malformed or too large.
    pub fn validate(&self) -> Result<()> {
        parts::some_at_most("entries", self.entries.len(), limits::STEPS_PER_RECORD_MAX)?;
        NewEntries::of(Some(self.first_number), &self.entries).map(drop)
    }
}
