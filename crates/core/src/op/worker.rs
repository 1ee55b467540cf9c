//! The registry of workers.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::capability::CapabilitySet;
use crate::error::Result;
use crate::op::operation;
use crate::op::parts::{self, Renewal, RenewalOutcome};
use crate::worker::{WorkerView, check_kinds, check_lanes};
use crate::{limits, text};

operation! {
    /// Registers a worker process, or replaces what it said before.
    RegisterWorker(RegisterWorkerArgs) -> RegisterWorkerOutcome,
    "register_worker" Put "/v1/workers/{instance_id}" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterWorkerArgs {
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
    /// The kinds it serves; all when empty. Claims name theirs themselves; this is what people are shown.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub kinds: BTreeSet<String>,
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
pub struct RegisterWorkerOutcome {
    /// When the registration runs out without a heartbeat.
    pub expires_at: i64,
    /// How long it lasts from each heartbeat.
    pub ttl_ms: i64,
}

impl RegisterWorkerArgs {
    /// Refuses bad names, no lanes, bad capabilities and numbers out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        text::name("worker_id", &self.worker_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        check_lanes(&self.lanes)?;
        self.capabilities.check()?;
        check_kinds(&self.kinds)?;
        self.capacity.map_or(Ok(()), |n| text::within("capacity", n, 1..=limits::WORKER_CAPACITY_MAX))?;
        parts::optional(self.version.as_deref(), "version", text::label)?;
        text::label("nonce", &self.nonce)?;
        parts::optional_number(self.lease_ttl_ms, "lease_ttl_ms", text::lease_ttl)
    }
}

operation! {
    /// Keeps a registration and all leases the worker names, each on its own.
    HeartbeatWorker(HeartbeatWorkerArgs) -> HeartbeatWorkerOutcome,
    "heartbeat_worker" Post "/v1/workers/{instance_id}/heartbeat" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatWorkerArgs {
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
pub struct HeartbeatWorkerOutcome {
    /// When the registration runs out without a further heartbeat.
    pub expires_at: i64,
    /// What became of each lease, in the same order.
    pub leases: Vec<RenewalOutcome>,
}

impl HeartbeatWorkerArgs {
    /// Refuses bad names and too many leases.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        text::label("nonce", &self.nonce)?;
        parts::renewals("leases", &self.leases)
    }
}

operation! {
    /// Removes a registration: by the process itself when it stops, or by an operator.
    DeregisterWorker(DeregisterWorkerArgs) -> DeregisterWorkerOutcome,
    "deregister_worker" Delete "/v1/workers/{instance_id}" Operator administrative validated with_roles
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeregisterWorkerArgs {
    /// The very process.
    pub instance_id: String,
    /// Where it works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What it registered with; an operator sends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeregisterWorkerOutcome {
    /// It was registered.
    pub changed: bool,
}

impl DeregisterWorkerArgs {
    /// A process may remove itself; everything else takes an operator.
    pub fn role(&self) -> Role {
        if self.nonce.is_some() { Role::Worker } else { Role::Operator }
    }

    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.nonce.as_deref(), "nonce", text::label)
    }
}

operation! {
    /// Lists live workers by instance id.
    ListWorkers(ListWorkersArgs) -> ListWorkersOutcome,
    "list_workers" Get "/v1/workers" Reader validated filtered
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListWorkersArgs {
    /// Their namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only those that serve this lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListWorkersOutcome {
    /// The workers.
    pub items: Vec<WorkerView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListWorkersArgs {
    /// Refuses bad names and pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.lane.as_deref(), "lane", text::name)?;
        parts::page(self.limit)
    }
}
