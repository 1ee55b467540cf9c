//! Shows an execution.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::op::operation;
use crate::op::view::ExecutionView;

operation! {
    /// Shows an execution.
    GetExecution "get_execution" Get "/v1/executions/{execution_id}" Reader
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GetExecutionArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer.
pub type Outcome = ExecutionView;
