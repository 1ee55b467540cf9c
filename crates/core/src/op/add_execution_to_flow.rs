//! Adds an execution that lives in the flow's partition.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::id::{ExecutionId, FlowId};
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Adds an execution that lives in the flow's partition.
    AddExecutionToFlow "add_execution_to_flow" Post "/v1/flows/{flow_id}/members" Submitter validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AddExecutionToFlowArgs")]
pub struct Args {
    /// The flow.
    pub flow_id: FlowId,
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its name in the flow's graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[schemars(rename = "AddExecutionToFlowOutcome")]
pub enum Outcome {
    /// It is a member.
    Added {
        /// How many members the flow has.
        node_count: u32,
    },
    /// It was one before.
    AlreadyMember {
        /// How many members the flow has.
        node_count: u32,
    },
}

impl Args {
    /// Refuses names that are too long, and an execution that cannot be in this flow.
    pub fn validate(&self) -> Result<()> {
        if self.execution_id.partition != self.flow_id.partition {
            return Err(Error::of(Code::PartitionMismatch).with("field", "execution_id"));
        }
        parts::optional(self.node.as_deref(), "node", text::label)
    }
}
