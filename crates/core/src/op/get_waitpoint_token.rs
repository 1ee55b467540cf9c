//! Signs a waitpoint's token with the current secret. The answer must not be stored on its way.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{ExecutionId, WaitpointId};
use crate::op::operation;
use crate::op::parts::Secret;

operation! {
    /// Signs a waitpoint's token with the current secret. The answer must not be stored on its way.
    GetWaitpointToken "get_waitpoint_token" Get "/v1/executions/{execution_id}/waitpoints/{waitpoint_id}/token" Operator
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GetWaitpointTokenArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GetWaitpointTokenOutcome")]
pub struct Outcome {
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// The same by name.
    pub waitpoint_key: String,
    /// Who has it may signal.
    pub token: Secret,
    /// The secret that signed it.
    pub kid: String,
}
