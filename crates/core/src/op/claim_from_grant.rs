//! Turns a grant into a lease; an interrupted attempt continues.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capability::CapabilitySet;
use crate::error::Result;
use crate::id::{ExecutionId, LeaseId};
use crate::op::operation;
use crate::op::parts;
use crate::op::view::Task;
use crate::text;

operation! {
    /// Turns a grant into a lease; an interrupted attempt continues.
    ClaimFromGrant "claim_from_grant" Post "/v1/workers/{instance_id}/grants/{grant_id}/claim" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ClaimFromGrantArgs")]
pub struct Args {
    /// The very process.
    pub instance_id: String,
    /// The grant; it becomes the id of the lease.
    pub grant_id: LeaseId,
    /// What was granted.
    pub execution_id: ExecutionId,
    /// Where the worker works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What the worker can do; this set decides.
    #[serde(default, skip_serializing_if = "CapabilitySet::is_empty")]
    pub capabilities: CapabilitySet,
    /// How long the lease lasts without a renewal; 30 seconds when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_ms: Option<i64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ClaimFromGrantOutcome")]
pub struct Outcome {
    /// The work.
    pub task: Task,
}

impl Args {
    /// Refuses bad names, bad capabilities and TTLs out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        self.capabilities.check()?;
        parts::optional_number(self.lease_ttl_ms, "lease_ttl_ms", text::lease_ttl)
    }
}
