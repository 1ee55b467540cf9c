//! Cancels an execution. One that has ended keeps its outcome.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::error::Result;
use crate::id::ExecutionId;
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::op::parts;
use crate::state::PublicState;
use crate::text;

operation! {
    /// Cancels an execution. One that has ended keeps its outcome.
    CancelExecution "cancel_execution" Post "/v1/executions/{execution_id}/cancel" Operator administrative validated with_roles
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CancelExecutionArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The lease, when its holder cancels; an operator sends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<LeaseFence>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[schemars(rename = "CancelExecutionOutcome")]
pub enum Outcome {
    /// It is cancelled.
    Cancelled {
        /// Since when.
        cancelled_at: i64,
    },
    /// It had ended before, and nothing changed.
    AlreadyTerminal {
        /// How.
        public_state: PublicState,
    },
}

impl Args {
    /// A lease holder may cancel what it holds; everything else takes an operator.
    pub fn role(&self) -> Role {
        if self.fence.is_some() { Role::Worker } else { Role::Operator }
    }

    /// Refuses reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }
}
