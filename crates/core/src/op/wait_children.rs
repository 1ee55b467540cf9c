//! Releases the lease; the same attempt continues when the children it spawned have ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::state::PublicState;

operation! {
    /// Releases the lease; the same attempt continues when the children it spawned have ended.
    WaitChildren "wait_children" Post "/v1/executions/{execution_id}/wait-children" Worker
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WaitChildrenArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WaitChildrenOutcome")]
pub struct Outcome {
    /// How many it waits for; with none it is eligible at once.
    pub open_children: u32,
    /// Its state now.
    pub public_state: PublicState,
}
