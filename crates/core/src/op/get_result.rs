//! Fetches the result of an execution: its bytes and their content type.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::op::operation;
use crate::op::parts::Content;

operation! {
    /// Fetches the result of an execution: its bytes and their content type.
    GetResult "get_result" Get "/v1/executions/{execution_id}/result" Reader
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GetResultArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer.
pub type Outcome = Content;
