//! Reads the document that the `summary` frames of an attempt add up to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::encoding::JsonText;
use crate::id::{AttemptIndex, ExecutionId};
use crate::op::operation;

operation! {
    /// Reads the document that the `summary` frames of an attempt add up to.
    ReadSummary "read_summary" Get "/v1/executions/{execution_id}/attempts/{attempt}/summary" Reader
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReadSummaryArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The attempt.
    pub attempt: AttemptIndex,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ReadSummaryOutcome")]
pub struct Outcome {
    /// The merged document; an empty object when nothing was written.
    pub document: JsonText,
    /// The last frame that went into it; 0 for none.
    pub last_sequence: u64,
}
