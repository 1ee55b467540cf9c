//! Lists the attempts of an execution with their leases, oldest first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::op::operation;
use crate::op::view::AttemptView;

operation! {
    /// Lists the attempts of an execution with their leases, oldest first.
    ListAttempts "list_attempts" Get "/v1/executions/{execution_id}/attempts" Reader
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListAttemptsArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListAttemptsOutcome")]
pub struct Outcome {
    /// The attempts.
    pub items: Vec<AttemptView>,
}
