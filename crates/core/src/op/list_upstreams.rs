//! Lists what an execution depends on, with outcomes and, if asked for, results.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::{EdgeId, ExecutionId};
use crate::op::operation;
use crate::op::parts;
use crate::op::view::UpstreamView;
use crate::text;

operation! {
    /// Lists what an execution depends on, with outcomes and, if asked for, results.
    ListUpstreams "list_upstreams" Get "/v1/executions/{execution_id}/upstreams" Reader validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListUpstreamsArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Only the upstream with this node name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only the upstream of this edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_id: Option<EdgeId>,
    /// With results.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub results: bool,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListUpstreamsOutcome")]
pub struct Outcome {
    /// The upstreams.
    pub items: Vec<UpstreamView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Args {
    /// Refuses pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.node.as_deref(), "node", text::label)?;
        parts::page(self.limit)
    }
}
