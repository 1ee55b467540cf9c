//! Makes a child wait for a staged edge.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::{EdgeId, FlowId};
use crate::join::JoinPolicy;
use crate::op::operation;

operation! {
    /// Makes a child wait for a staged edge.
    ApplyDependencyToChild "apply_dependency_to_child" Post "/v1/flows/{flow_id}/edges/apply" Submitter validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ApplyDependencyToChildArgs")]
pub struct Args {
    /// The flow.
    pub flow_id: FlowId,
    /// The edge.
    pub edge_id: EdgeId,
    /// Only if the graph still has this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_graph_revision: Option<u64>,
    /// The child's join policy; fixed by its first edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinPolicy>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[schemars(rename = "ApplyDependencyToChildOutcome")]
pub enum Outcome {
    /// The child waits for it, unless its upstream has ended.
    Applied {
        /// How many upstreams the child waits for.
        unsatisfied_count: u32,
    },
    /// It did before.
    AlreadyApplied {
        /// How many upstreams the child waits for.
        unsatisfied_count: u32,
    },
}

impl Args {
    /// Refuses join policies that no child could have.
    pub fn validate(&self) -> Result<()> {
        self.join.as_ref().map_or(Ok(()), JoinPolicy::validate)
    }
}
