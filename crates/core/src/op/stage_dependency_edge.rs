//! Puts an edge into the graph; it takes effect when it is applied to the child.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::id::{EdgeId, ExecutionId, FlowId};
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Puts an edge into the graph; it takes effect when it is applied to the child.
    StageDependencyEdge "stage_dependency_edge" Post "/v1/flows/{flow_id}/edges" Submitter validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "StageDependencyEdgeArgs")]
pub struct Args {
    /// The flow.
    pub flow_id: FlowId,
    /// What must end first.
    pub upstream: ExecutionId,
    /// What waits for it.
    pub downstream: ExecutionId,
    /// What the caller calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Under which name the worker reads the upstream's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ref: Option<String>,
    /// Only if the graph still has this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_graph_revision: Option<u64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[schemars(rename = "StageDependencyEdgeOutcome")]
pub enum Outcome {
    /// The edge is in the graph.
    Staged {
        /// The edge.
        edge_id: EdgeId,
        /// The graph's revision with it.
        graph_revision: u64,
    },
}

impl Args {
    /// Refuses an edge from an execution to itself, and names that are too long.
    pub fn validate(&self) -> Result<()> {
        if self.upstream == self.downstream {
            return Err(Error::of(Code::SelfReferencingEdge));
        }
        parts::optional(self.kind.as_deref(), "kind", text::label)?;
        parts::optional(self.data_ref.as_deref(), "data_ref", text::label)
    }
}
