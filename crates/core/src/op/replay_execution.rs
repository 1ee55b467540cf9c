//! Runs an execution that has ended once more.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{AttemptIndex, CommandId, ExecutionId};
use crate::op::operation;
use crate::state::PublicState;

operation! {
    /// Runs an execution that has ended once more.
    ReplayExecution "replay_execution" Post "/v1/executions/{execution_id}/replay" Operator administrative
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReplayExecutionArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The same id means the same replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ReplayExecutionOutcome")]
pub struct Outcome {
    /// The number its new attempt will have.
    pub attempt: AttemptIndex,
    /// How often it was replayed.
    pub replay_count: u32,
    /// Its state now.
    pub public_state: PublicState,
}
