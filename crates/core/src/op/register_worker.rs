//! Registers a worker process, or replaces what it said before.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capability::CapabilitySet;
use crate::error::Result;
use crate::limits;
use crate::op::operation;
use crate::op::parts;
use crate::text;
use crate::worker::check_lanes;

operation! {
    /// Registers a worker process, or replaces what it said before.
    RegisterWorker "register_worker" Put "/v1/workers/{instance_id}" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RegisterWorkerArgs")]
pub struct Args {
    /// The very process.
    pub instance_id: String,
    /// The worker's logical name.
    pub worker_id: String,
    /// Where it works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The lanes it serves, at least one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lanes: BTreeSet<String>,
    /// What it can do.
    #[serde(default, skip_serializing_if = "CapabilitySet::is_empty")]
    pub capabilities: CapabilitySet,
    /// How many tasks it runs at once; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// What it calls its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Chosen anew by each process, so that a second one with the same instance id is noticed.
    pub nonce: String,
    /// The TTL of its leases; its registration lives twice as long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_ms: Option<i64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RegisterWorkerOutcome")]
pub struct Outcome {
    /// When the registration runs out without a heartbeat.
    pub expires_at: i64,
    /// How long it lasts from each heartbeat.
    pub ttl_ms: i64,
}

impl Args {
    /// Refuses bad names, no lanes, bad capabilities and numbers out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        text::name("worker_id", &self.worker_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        check_lanes(&self.lanes)?;
        self.capabilities.check()?;
        self.capacity.map_or(Ok(()), |n| text::within("capacity", n, 1..=limits::WORKER_CAPACITY_MAX))?;
        parts::optional(self.version.as_deref(), "version", text::label)?;
        text::label("nonce", &self.nonce)?;
        parts::optional_number(self.lease_ttl_ms, "lease_ttl_ms", text::lease_ttl)
    }
}
