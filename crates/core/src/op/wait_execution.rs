//! Waits until an execution has ended, or the time is up.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::ExecutionId;
use crate::limits;
use crate::op::operation;
use crate::op::view::ExecutionView;
use crate::text;

operation! {
    /// Waits until an execution has ended, or the time is up.
    WaitExecution "wait_execution" Get "/v1/executions/{execution_id}/wait" Reader validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WaitExecutionArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// How long; 30 seconds at the most and when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<i64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WaitExecutionOutcome")]
pub struct Outcome {
    /// It has ended; otherwise the time was up.
    pub terminal: bool,
    /// The execution.
    pub execution: ExecutionView,
}

impl Args {
    /// Refuses waits that are too long.
    pub fn validate(&self) -> Result<()> {
        self.wait_ms.map_or(Ok(()), |wait_ms| text::within("wait_ms", wait_ms, 0..=limits::WAIT_MAX_MS))
    }
}
