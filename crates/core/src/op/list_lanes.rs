//! Lists lanes by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lane::LaneView;
use crate::op::operation;

operation! {
    /// Lists lanes by name.
    ListLanes "list_lanes" Get "/v1/lanes" Reader validated filtered
}

/// What the call says.
pub use crate::op::parts::NamespacePage as Args;

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListLanesOutcome")]
pub struct Outcome {
    /// The lanes.
    pub items: Vec<LaneView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
