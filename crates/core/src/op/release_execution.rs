//! Ends an operator's hold.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::op::operation;
use crate::state::PublicState;

operation! {
    /// Ends an operator's hold.
    ReleaseExecution "release_execution" Post "/v1/executions/{execution_id}/release" Operator administrative
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReleaseExecutionArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ReleaseExecutionOutcome")]
pub struct Outcome {
    /// It was held before.
    pub changed: bool,
    /// Its state now.
    pub public_state: PublicState,
}
