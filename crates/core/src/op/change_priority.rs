//! Changes the priority of an execution that has not ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::op::operation;

operation! {
    /// Changes the priority of an execution that has not ended.
    ChangePriority "change_priority" Put "/v1/executions/{execution_id}/priority" Operator administrative
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ChangePriorityArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Higher goes first; clamped to 0..=9000.
    pub priority: i64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ChangePriorityOutcome")]
pub struct Outcome {
    /// The priority it has now.
    pub priority: i64,
}
