//! Keeps a registration and all leases the worker names, each on its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::op::operation;
use crate::op::parts;
use crate::op::parts::{Renewal, RenewalOutcome};
use crate::text;

operation! {
    /// Keeps a registration and all leases the worker names, each on its own.
    HeartbeatWorker "heartbeat_worker" Post "/v1/workers/{instance_id}/heartbeat" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "HeartbeatWorkerArgs")]
pub struct Args {
    /// The very process.
    pub instance_id: String,
    /// Where it works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What it registered with.
    pub nonce: String,
    /// The leases it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<Renewal>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "HeartbeatWorkerOutcome")]
pub struct Outcome {
    /// When the registration runs out without a further heartbeat.
    pub expires_at: i64,
    /// What became of each lease, in the same order.
    pub leases: Vec<RenewalOutcome>,
}

impl Args {
    /// Refuses bad names and too many leases.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        text::label("nonce", &self.nonce)?;
        parts::renewals("leases", &self.leases)
    }
}
