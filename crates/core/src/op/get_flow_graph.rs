//! Shows the nodes and edges of a flow with their states.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::FlowId;
use crate::op::operation;
use crate::op::view::GraphView;

operation! {
    /// Shows the nodes and edges of a flow with their states.
    GetFlowGraph "get_flow_graph" Get "/v1/flows/{flow_id}/graph" Reader
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GetFlowGraphArgs")]
pub struct Args {
    /// The flow.
    pub flow_id: FlowId,
}

/// The answer.
pub type Outcome = GraphView;
