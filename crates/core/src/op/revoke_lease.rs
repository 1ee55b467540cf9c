//! Takes the lease away from its holder; the execution is eligible again at once.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::{CommandId, ExecutionId, LeaseEpoch, LeaseId};
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Takes the lease away from its holder; the execution is eligible again at once.
    RevokeLease "revoke_lease" Post "/v1/executions/{execution_id}/revoke-lease" Operator administrative validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RevokeLeaseArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Only if this is the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_lease_id: Option<LeaseId>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same id means the same revocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[schemars(rename = "RevokeLeaseOutcome")]
pub enum Outcome {
    /// The lease is gone.
    Revoked {
        /// Which.
        lease_id: LeaseId,
        /// Its epoch.
        epoch: LeaseEpoch,
    },
    /// It was gone before.
    AlreadyRevoked {
        /// How it ended.
        reason: String,
    },
    /// Nobody holds the execution, or not by the lease named.
    NoActiveLease,
}

impl Args {
    /// Refuses reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }
}
