//! Lists what happened to an execution, as far as the log reaches back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::ExecutionId;
use crate::op::operation;
use crate::op::parts;
use crate::op::view::EventView;

operation! {
    /// Lists what happened to an execution, as far as the log reaches back.
    ListExecutionEvents "list_execution_events" Get "/v1/executions/{execution_id}/events" Reader validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListExecutionEventsArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListExecutionEventsOutcome")]
pub struct Outcome {
    /// The events, oldest first.
    pub items: Vec<EventView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Args {
    /// Refuses pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::page(self.limit)
    }
}
