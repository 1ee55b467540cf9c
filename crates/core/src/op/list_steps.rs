//! Pages the journal of one generation of an execution, oldest record first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::ExecutionId;
use crate::journal::StepView;
use crate::op::operation;
use crate::op::parts;

operation! {
    /// Pages the journal of an execution, oldest record first. An entry may have several records; the last one holds.
    ListSteps "list_steps" Get "/v1/executions/{execution_id}/steps" Reader filtered validated
}

/// Which part of which journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListStepsArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The generation; the present one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Only records behind this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How many, 1 to 1,000; 100 when absent. A page also ends when its results have 4 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A page of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListStepsOutcome")]
pub struct Outcome {
    /// Which generation it is.
    pub generation: u32,
    /// The records, oldest first, with their results.
    pub items: Vec<StepView>,
    /// The number the next record will get.
    pub next_number: u64,
    /// Pass it as `after` for the next page; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<u64>,
}

impl Args {
    /// Refuses a page that is empty or too large.
    pub fn validate(&self) -> Result<()> {
        parts::page(self.limit)
    }
}
