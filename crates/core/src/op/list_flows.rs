//! Lists flows, newest first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::flow::FlowState;
use crate::op::operation;
use crate::op::parts;
use crate::op::view::FlowView;
use crate::text;

operation! {
    /// Lists flows, newest first.
    ListFlows "list_flows" Get "/v1/flows" Reader validated filtered
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListFlowsArgs")]
pub struct Args {
    /// Their namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<FlowState>,
    /// Only with this tag, as `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListFlowsOutcome")]
pub struct Outcome {
    /// The flows.
    pub items: Vec<FlowView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Args {
    /// Refuses bad names and pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::tag_filter(self.tag.as_deref())?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.kind.as_deref(), "kind", text::kind)?;
        parts::page(self.limit)
    }
}
