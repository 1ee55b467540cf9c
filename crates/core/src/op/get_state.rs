//! Shows the state of an execution.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::op::operation;
use crate::state::{PublicState, StateVector};

operation! {
    /// Shows the state of an execution.
    GetState "get_state" Get "/v1/executions/{execution_id}/state" Reader
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GetStateArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GetStateOutcome")]
pub struct Outcome {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The one word people see.
    pub public_state: PublicState,
    /// The six dimensions behind it.
    pub state: StateVector,
}
