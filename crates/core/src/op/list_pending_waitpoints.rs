//! Lists the waitpoints of an execution that take signals, without their tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::op::operation;
use crate::waitpoint::PendingWaitpointInfo;

operation! {
    /// Lists the waitpoints of an execution that take signals, without their tokens.
    ListPendingWaitpoints "list_pending_waitpoints" Get "/v1/executions/{execution_id}/pending-waitpoints" Reader
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListPendingWaitpointsArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListPendingWaitpointsOutcome")]
pub struct Outcome {
    /// The waitpoints.
    pub items: Vec<PendingWaitpointInfo>,
}
