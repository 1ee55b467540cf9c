//! Shows a flow.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::FlowId;
use crate::op::operation;
use crate::op::view::FlowView;

operation! {
    /// Shows a flow.
    GetFlow "get_flow" Get "/v1/flows/{flow_id}" Reader
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GetFlowArgs")]
pub struct Args {
    /// The flow.
    pub flow_id: FlowId,
}

/// The answer.
pub type Outcome = FlowView;
