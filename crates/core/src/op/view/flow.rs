//! Flows, their graphs and dependencies.

use serde::{Deserialize, Serialize};

use crate::edge::{EdgeRole, EdgeState};
use crate::flow::{CancelFlowPolicy, FlowState, MemberCounts};
use crate::id::{AttemptIndex, EdgeId, ExecutionId, FlowId};
use crate::join::JoinPolicy;
use crate::op::parts::Content;
use crate::op::view::FailureView;
use crate::state::PublicState;
use crate::text::Tags;

/// A flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowView {
    /// Its id.
    pub flow_id: FlowId,
    /// Its namespace.
    pub namespace: String,
    /// The kind of the flow, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its tags.
    pub tags: Tags,
    /// Its state, exact and current.
    pub state: FlowState,
    /// How many executions are in it.
    pub member_count: u32,
    /// Its members by state.
    pub counts: MemberCounts,
    /// Grows with every change of the graph.
    pub graph_revision: u64,
    /// When it was created.
    pub created_at: i64,
    /// When its last member ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
    /// The schedule that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The instant of that schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<i64>,
    /// How it was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancellation: Option<FlowCancellationView>,
}

/// How a flow was cancelled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowCancellationView {
    /// Which members it concerns.
    pub policy: CancelFlowPolicy,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was cancelled.
    pub cancelled_at: i64,
}

/// A flow's graph, for pictures of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GraphView {
    /// The flow.
    pub flow: FlowView,
    /// Its members, oldest first.
    pub nodes: Vec<GraphNode>,
    /// Their dependencies.
    pub edges: Vec<EdgeView>,
}

/// A member in the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GraphNode {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The kind of work; workers choose their handler by it.
    pub kind: String,
    /// Its state.
    pub public_state: PublicState,
    /// How it joins its upstreams.
    pub join: JoinView,
    /// Its current or last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptIndex>,
    /// When it was created.
    pub created_at: i64,
    /// When its first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<i64>,
}

/// How a child joins its upstreams, and how far they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JoinView {
    /// When it may run.
    pub policy: JoinPolicy,
    /// Upstreams it has.
    pub total: u32,
    /// Upstreams that ended well.
    pub succeeded: u32,
    /// Upstreams that ended otherwise.
    pub failed: u32,
}

/// A dependency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EdgeView {
    /// Its id.
    pub edge_id: EdgeId,
    /// The execution that must end first.
    pub upstream: ExecutionId,
    /// The execution that waits for it.
    pub downstream: ExecutionId,
    /// Whether it is a dependency, or leads from a child to the parent that spawned it.
    pub role: EdgeRole,
    /// Its creator's name for this kind of edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Under which name the downstream knows the upstream's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ref: Option<String>,
    /// The state of the edge.
    pub state: EdgeState,
}

/// An upstream, as its downstream's worker reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UpstreamView {
    /// The edge.
    pub edge_id: EdgeId,
    /// The upstream.
    pub execution_id: ExecutionId,
    /// Its name in the flow's graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether it is a dependency or a child.
    pub role: EdgeRole,
    /// The edge's kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name of its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ref: Option<String>,
    /// The state of the edge.
    pub edge_state: EdgeState,
    /// The upstream's state.
    pub public_state: PublicState,
    /// Its last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<FailureView>,
    /// Its result, when asked for and there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Content>,
}
