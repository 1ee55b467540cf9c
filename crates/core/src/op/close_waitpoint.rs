//! Closes a pending waitpoint; it takes no more signals.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{ExecutionId, WaitpointId};
use crate::op::operation;

operation! {
    /// Closes a pending waitpoint; it takes no more signals.
    CloseWaitpoint "close_waitpoint" Post "/v1/executions/{execution_id}/waitpoints/{waitpoint_id}/close" Operator administrative
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CloseWaitpointArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CloseWaitpointOutcome")]
pub struct Outcome {
    /// It was open before.
    pub changed: bool,
}
