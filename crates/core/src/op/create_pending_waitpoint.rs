//! Opens a waitpoint before suspending; signals sent meanwhile are buffered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::{ExecutionId, WaitpointId};
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::operation;
use crate::op::parts;
use crate::op::parts::Secret;
use crate::text;

operation! {
    /// Opens a waitpoint before suspending; signals sent meanwhile are buffered.
    CreatePendingWaitpoint "create_pending_waitpoint" Post "/v1/executions/{execution_id}/waitpoints" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CreatePendingWaitpointArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// An id the caller minted; the same id means the same waitpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waitpoint_id: Option<WaitpointId>,
    /// Its name; `wpk:<id>` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waitpoint_key: Option<String>,
    /// How long it lasts unused; 24 hours when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<i64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CreatePendingWaitpointOutcome")]
pub struct Outcome {
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// The same by name.
    pub waitpoint_key: String,
    /// Who has it may signal.
    pub token: Secret,
    /// When it closes unused.
    pub expires_at: i64,
}

impl Args {
    /// Refuses keys and lives that are out of range.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.waitpoint_key.as_deref(), "waitpoint_key", text::label)?;
        let life = |life_ms| text::within("expires_in_ms", life_ms, 1..=limits::DURATION_MAX_MS);
        self.expires_in_ms.map_or(Ok(()), life)
    }
}
