//! Says how far the work is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::ExecutionId;
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::op::parts;
use crate::op::parts::Done;
use crate::text;

operation! {
    /// Says how far the work is.
    Progress "progress" Post "/v1/executions/{execution_id}/progress" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ProgressArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// How far, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pct: Option<u8>,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The answer.
pub type Outcome = Done;

impl Args {
    /// Refuses more than all, and messages that are too long.
    pub fn validate(&self) -> Result<()> {
        self.pct.map_or(Ok(()), |pct| text::within("pct", pct, 0..=100))?;
        parts::optional(self.message.as_deref(), "message", text::text)
    }
}
