//! Resumes a suspended execution by an operator's decision.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::{CommandId, ExecutionId, SuspensionId};
use crate::op::operation;
use crate::op::parts;
use crate::state::PublicState;
use crate::text;

operation! {
    /// Resumes a suspended execution by an operator's decision.
    ResumeExecution "resume_execution" Post "/v1/executions/{execution_id}/resume" Operator administrative validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ResumeExecutionArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same id means the same decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ResumeExecutionOutcome")]
pub struct Outcome {
    /// The suspension that ended.
    pub suspension_id: SuspensionId,
    /// Its state now.
    pub public_state: PublicState,
}

impl Args {
    /// Refuses reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }
}
