//! Lists the signals that resumed the current attempt.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::op::operation;
use crate::suspension::ResumeSignal;

operation! {
    /// Lists the signals that resumed the current attempt.
    ListResumeSignals "list_resume_signals" Get "/v1/executions/{execution_id}/resume-signals" Reader
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListResumeSignalsArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListResumeSignalsOutcome")]
pub struct Outcome {
    /// The signals.
    pub items: Vec<ResumeSignal>,
}
