//! Submits up to 1,000 executions; each is accepted or refused on its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits;
use crate::op::create_execution;
use crate::op::operation;
use crate::op::parts;

operation! {
    /// Submits up to 1,000 executions; each is accepted or refused on its own.
    CreateExecutions "create_executions" Post "/v1/executions/batch" Submitter validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CreateExecutionsArgs")]
pub struct Args {
    /// The submissions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executions: Vec<create_execution::Args>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CreateExecutionsOutcome")]
pub struct Outcome {
    /// What became of each, in the same order.
    pub results: Vec<CreateResult>,
}

/// What became of one submission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum CreateResult {
    /// It was accepted, now or before.
    Created(create_execution::Outcome),
    /// It was refused.
    Refused {
        /// Why.
        error: Error,
    },
}

impl Args {
    /// Refuses too many at once. Each submission is checked on its own, because each has its own answer.
    pub fn validate(&self) -> Result<()> {
        parts::some_at_most("executions", self.executions.len(), limits::BATCH_CREATE_MAX)
    }
}
