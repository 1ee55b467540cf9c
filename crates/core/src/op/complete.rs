//! Ends the attempt, and with it the execution, with a result.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, JsonText};
use crate::error::Result;
use crate::id::ExecutionId;
use crate::journal::{NewEntries, StepEntry};
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::operation;
use crate::op::parts;
use crate::op::parts::Content;
use crate::state::PublicState;

operation! {
    /// Ends the attempt, and with it the execution, with a result.
    Complete "complete" Post "/v1/executions/{execution_id}/complete" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CompleteArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The result. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub result: Option<JsonText>,
    /// The same as bytes; not both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Blob>,
    /// What the bytes are; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Journal entries that are recorded in the same commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the first of these entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_number: Option<u64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CompleteOutcome")]
pub struct Outcome {
    /// `completed`.
    pub public_state: PublicState,
    /// When it ended.
    pub completed_at: i64,
}

impl Args {
    /// The bytes of the result, if any.
    pub fn result(&self) -> Result<Option<Content>> {
        parts::Sent {
            field: "result",
            json: self.result.as_ref(),
            base64: self.result_base64.as_ref(),
            content_type: self.content_type.as_deref(),
            max_bytes: limits::RESULT_MAX_BYTES,
        }
        .content()
    }

    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(self.first_number, &self.entries)
    }

    /// Refuses a result that is too large, and entries that are malformed.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        self.result().map(drop)
    }
}
