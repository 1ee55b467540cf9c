//! Lists live workers by instance id.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::op::operation;
use crate::op::parts;
use crate::text;
use crate::worker::WorkerView;

operation! {
    /// Lists live workers by instance id.
    ListWorkers "list_workers" Get "/v1/workers" Reader validated filtered
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListWorkersArgs")]
pub struct Args {
    /// Their namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only those that serve this lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListWorkersOutcome")]
pub struct Outcome {
    /// The workers.
    pub items: Vec<WorkerView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Args {
    /// Refuses bad names and pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.lane.as_deref(), "lane", text::name)?;
        parts::page(self.limit)
    }
}
