//! Workers, lanes and the audit trail.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capability::CapabilitySet;
use crate::op::pending::LaneState;

/// A registered worker process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerView {
    /// The very process.
    pub instance_id: String,
    /// The worker's logical name.
    pub worker_id: String,
    /// Its namespace.
    pub namespace: String,
    /// The lanes it serves.
    pub lanes: Vec<String>,
    /// What it can do.
    pub capabilities: CapabilitySet,
    /// How many tasks it runs at once.
    pub capacity: u32,
    /// What it calls its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When it registered.
    pub registered_at: i64,
    /// When it was last heard of.
    pub last_heartbeat_at: i64,
    /// When its registration runs out.
    pub expires_at: i64,
    /// How many leases it holds.
    pub leases_held: u64,
}

/// A lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LaneView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub lane: String,
    /// Whether work is taken and given.
    pub state: LaneState,
    /// Why it is in that state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who changed it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<i64>,
    /// How many executions are queued in it.
    pub waiting: u64,
}

/// One administrative act.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditRecord {
    /// Unique and growing.
    pub audit_id: String,
    /// When.
    pub happened_at: i64,
    /// Who: the name of the token.
    pub actor: String,
    /// What, by the operation's name.
    pub operation: String,
    /// On what.
    pub target: String,
    /// In which namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// `ok`, or the code of the refusal.
    pub outcome: String,
    /// More about it; never a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
