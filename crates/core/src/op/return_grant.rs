//! Hands a grant back; the execution is queued again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::{ExecutionId, LeaseId};
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Hands a grant back; the execution is queued again.
    ReturnGrant "return_grant" Delete "/v1/workers/{instance_id}/grants/{grant_id}" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReturnGrantArgs")]
pub struct Args {
    /// The very process.
    pub instance_id: String,
    /// The grant.
    pub grant_id: LeaseId,
    /// What was granted.
    pub execution_id: ExecutionId,
    /// Where the worker works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ReturnGrantOutcome")]
pub struct Outcome {
    /// The grant was outstanding.
    pub changed: bool,
}

impl Args {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}
