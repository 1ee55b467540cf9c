//! Lists executions, newest first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::FlowId;
use crate::op::operation;
use crate::op::parts;
use crate::op::view::ExecutionSummary;
use crate::state::PublicState;
use crate::text;

operation! {
    /// Lists executions, newest first.
    ListExecutions "list_executions" Get "/v1/executions" Reader validated filtered
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListExecutionsArgs")]
pub struct Args {
    /// Their namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only in this lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Only of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PublicState>,
    /// Only in this flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Only with this tag, as `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Only created at this instant or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_from: Option<i64>,
    /// Only created before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_to: Option<i64>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListExecutionsOutcome")]
pub struct Outcome {
    /// The executions.
    pub items: Vec<ExecutionSummary>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Args {
    /// The tag as its key and value.
    pub fn tag(&self) -> Result<Option<(&str, &str)>> {
        parts::tag_filter(self.tag.as_deref())
    }

    /// Refuses filters that can match nothing.
    pub fn validate(&self) -> Result<()> {
        self.tag()?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.lane.as_deref(), "lane", text::name)?;
        parts::optional(self.kind.as_deref(), "kind", text::kind)?;
        parts::optional_number(self.created_from, "created_from", text::instant)?;
        parts::optional_number(self.created_to, "created_to", text::instant)?;
        parts::page(self.limit)
    }
}
