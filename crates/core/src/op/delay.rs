//! Releases the lease; the same attempt continues at or after an instant.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::ExecutionId;
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::text;

operation! {
    /// Releases the lease; the same attempt continues at or after an instant.
    Delay "delay" Post "/v1/executions/{execution_id}/delay" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DelayArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The instant; this or `delay_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// The time from now; this or `until`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<i64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "DelayOutcome")]
pub struct Outcome {
    /// When it may be claimed again.
    pub at: i64,
}

impl Args {
    /// Refuses neither, both, and what is out of range.
    pub fn validate(&self) -> Result<()> {
        match (self.until, self.delay_ms) {
            (Some(until), None) => text::instant("until", until),
            (None, Some(delay_ms)) => text::duration_ms("delay_ms", delay_ms),
            _ => Err(Error::invalid("until", "or delay_ms must be given, not both")),
        }
    }
}
