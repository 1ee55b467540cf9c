//! Keeps an execution from being claimed until it is released.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::ExecutionId;
use crate::op::operation;
use crate::op::parts;
use crate::state::PublicState;
use crate::text;

operation! {
    /// Keeps an execution from being claimed until it is released.
    HoldExecution "hold_execution" Post "/v1/executions/{execution_id}/hold" Operator administrative validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "HoldExecutionArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "HoldExecutionOutcome")]
pub struct Outcome {
    /// It was not held before.
    pub changed: bool,
    /// Its state now.
    pub public_state: PublicState,
}

impl Args {
    /// Refuses reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }
}
