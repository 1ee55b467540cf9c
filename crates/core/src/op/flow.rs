//! Flows, their members, and the edges between these.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::flow::{CancelFlowPolicy, CancelFlowResult, FlowState};
use crate::id::{EdgeId, ExecutionId, FlowId};
use crate::join::JoinPolicy;
use crate::limits;
use crate::op::parts::Removed;
use crate::op::view::{FlowView, GraphView, UpstreamView};
use crate::op::{Created, Minting, create_execution, operation, parts};
use crate::text::{self, Tags};

operation! {
    /// Creates a flow, empty or with its whole graph in one atomic call.
    CreateFlow(CreateFlowArgs) -> CreateFlowOutcome,
    "create_flow" Post "/v1/flows" Submitter validated body(limits::BATCH_BODY_MAX_BYTES) namespaced identified("idempotency_key") creates
}

/// The arguments of `create_flow`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct CreateFlowArgs {
    /// An id the caller minted; the same id with the same content means the same flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Where it belongs; the caller's default namespace when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The kind of the flow, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// For filters.
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
    /// Its members, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeRequest>,
    /// The edges of the graph, by the names of their nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<GraphEdge>,
    /// The same key means the same flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// A flow without a graph stays open for members until `close_flow`. With this it needs no such call: it ends with the
    /// last member that it has by then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub complete: bool,
}
crate::newer::open_struct!(CreateFlowArgs);

/// The answer to `create_flow`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum CreateFlowOutcome {
    /// It was created, with all its members.
    Created {
        /// The flow.
        flow_id: FlowId,
        /// The revision of its graph.
        graph_revision: u64,
        /// Its members by node name.
        executions: BTreeMap<String, ExecutionId>,
    },
    /// It existed before.
    AlreadyExists {
        /// The flow.
        flow_id: FlowId,
        /// The revision of its graph.
        graph_revision: u64,
        /// The members of this request by node name.
        executions: BTreeMap<String, ExecutionId>,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CreateFlowOutcome);

/// A member of a new flow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct NodeRequest {
    /// Its name in the graph, unique in the flow.
    pub name: String,
    /// The execution to create; the flow decides namespace, flow, node and dependencies.
    pub request: create_execution::Args,
    /// When its dependencies let it run; all of them when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinPolicy>,
}
crate::newer::open_struct!(NodeRequest);

/// A dependency between two nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct GraphEdge {
    /// The node that must end first.
    pub from: String,
    /// The node that waits for it.
    pub to: String,
    /// The submitter's name for this kind of edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Under which name the worker reads the upstream's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ref: Option<String>,
}
crate::newer::open_struct!(GraphEdge);

impl CreateFlowOutcome {
    /// The flow, unless a newer server does not say it.
    pub fn flow_id(&self) -> Option<FlowId> {
        match self {
            Self::Created { flow_id, .. } | Self::AlreadyExists { flow_id, .. } => Some(*flow_id),
            Self::Unknown(variant) => variant.field("flow_id"),
        }
    }

    /// The flow, if this call created it.
    pub fn created(&self) -> Created {
        match self {
            Self::Created { flow_id, .. } => Created::Id(flow_id.to_string()),
            Self::AlreadyExists { .. } | Self::Unknown(_) => Created::Nothing,
        }
    }
}

impl CreateFlowArgs {
    /// Checks the graph as a whole; its edges as positions in the list of nodes.
    pub fn graph(&self) -> Result<Vec<(usize, usize)>> {
        let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let pairs: Vec<(&str, &str)> = self.edges.iter().map(|edge| (edge.from.as_str(), edge.to.as_str())).collect();
        crate::graph::validate_graph(&names, &pairs)
    }

    /// Refuses graphs that are too large or do not fit together. Cycles are found by the engine when it builds the
    /// graph.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.kind.as_deref(), "kind", text::kind)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.idempotency_key.as_deref(), "idempotency_key", text::label)?;
        text::tags("tags", &self.tags)?;
        parts::at_most("nodes", self.nodes.len(), limits::GRAPH_NODES_MAX)?;
        parts::at_most("edges", self.edges.len(), limits::GRAPH_EDGES_MAX)?;
        let (mut names, mut ids) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
        for (place, node) in self.nodes.iter().enumerate() {
            let within = |field: &str| format!("nodes[{place}].{field}");
            text::label(&within("name"), &node.name)?;
            if !names.insert(node.name.as_str()) {
                return Err(Error::invalid(&within("name"), format!("{:?} stands twice", node.name)));
            }
            if node.request.execution_id.is_some_and(|id| !ids.insert(id)) {
                let refused = Error::invalid(&within("request.execution_id"), "is the id of another node");
                return Err(refused.with("node", &node.name));
            }
            node.validate(&format!("nodes[{place}]"))?;
        }
        let mut pairs = std::collections::BTreeSet::new();
        for (place, edge) in self.edges.iter().enumerate() {
            let field = format!("edges[{place}]");
            for (end, node) in [("from", &edge.from), ("to", &edge.to)] {
                if !names.contains(node.as_str()) {
                    return Err(Error::invalid(&format!("{field}.{end}"), format!("names {node:?}, which is no node")));
                }
            }
            if edge.from == edge.to {
                return Err(Error::of(Code::SelfReferencingEdge).with("field", field).with("node", &edge.from));
            }
            if !pairs.insert((edge.from.as_str(), edge.to.as_str())) {
                let detail = format!("repeats the edge from {:?} to {:?}", edge.from, edge.to);
                return Err(Error::invalid(&field, detail));
            }
            parts::object(&field, parts::optional(edge.kind.as_deref(), "kind", text::kind))?;
            parts::object(&field, parts::optional(edge.data_ref.as_deref(), "data_ref", text::label))?;
        }
        parts::items("nodes", &self.nodes, |node| self.check_quorum(node))
    }
}

impl CreateFlowArgs {
    /// Refuses a join that waits for more successes than there are dependencies: it could never be satisfied.
    fn check_quorum(&self, node: &NodeRequest) -> Result<()> {
        let Some(JoinPolicy::Quorum(quorum)) = &node.join else { return Ok(()) };
        let upstreams = self.edges.iter().filter(|edge| edge.to == node.name).count();
        if usize::try_from(quorum.k).is_ok_and(|k| k <= upstreams) {
            return Ok(());
        }
        let detail = format!("of {:?} waits for {} of {upstreams} dependencies", node.name, quorum.k);
        Err(Error::invalid("join", detail))
    }

    /// Mints the id of the flow.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        if self.idempotency_key.is_none() {
            self.flow_id.get_or_insert_with(|| FlowId::mint(minting.partitions, &minting.fresh()));
        }
    }
}

impl NodeRequest {
    fn validate(&self, place: &str) -> Result<()> {
        let request = &self.request;
        let decided = request.namespace.is_some()
            || request.flow_id.is_some()
            || request.node.is_some()
            || request.parent.is_some()
            || request.join.is_some()
            || request.idempotency_key.is_some()
            || !request.dependencies.is_empty();
        if decided {
            let detail = "must not have namespace, flow_id, node, parent, join, idempotency_key or dependencies: \
                          the flow decides them";
            return Err(Error::invalid(&format!("{place}.request"), detail).with("node", &self.name));
        }
        if request.single_key().is_some() {
            // An execution that a key stands for lives in the key's partition; a member lives in that of its flow.
            let field = format!("{place}.request.{}", request.single_field());
            return Err(Error::invalid(&field, "must not be given for a node of a flow").with("node", &self.name));
        }
        let join = self.join.as_ref().map_or(Ok(()), JoinPolicy::validate).map_err(|error| error.inside(place));
        let request = request.validate().map_err(|error| error.inside(&format!("{place}.request")));
        join.and(request).map_err(|error| error.with("node", &self.name))
    }
}

operation! {
    /// Shows a flow.
    GetFlow(GetFlowArgs) -> FlowView,
    "get_flow" Get "/v1/flows/{flow_id}" Reader
}

/// The arguments of `get_flow`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetFlowArgs {
    /// The flow.
    pub flow_id: FlowId,
}

operation! {
    /// Lists flows, newest first.
    ListFlows(ListFlowsArgs) -> ListFlowsOutcome,
    "list_flows" Get "/v1/flows" Reader validated filtered namespaced
}

/// The arguments of `list_flows`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListFlowsArgs {
    /// Their namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only flows of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only flows in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<FlowState>,
    /// Only with this tag, as `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer to `list_flows`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListFlowsOutcome {
    /// The flows.
    pub items: Vec<FlowView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListFlowsArgs {
    /// Refuses bad names and pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::tag_filter(self.tag.as_deref())?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.kind.as_deref(), "kind", text::kind)?;
        parts::page(self.limit)
    }
}

operation! {
    /// Shows the nodes and edges of a flow with their states.
    GetFlowGraph(GetFlowGraphArgs) -> GraphView,
    "get_flow_graph" Get "/v1/flows/{flow_id}/graph" Reader
}

/// The arguments of `get_flow_graph`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetFlowGraphArgs {
    /// The flow.
    pub flow_id: FlowId,
}

operation! {
    /// Adds an execution that lives in the flow's partition.
    AddExecutionToFlow(AddExecutionToFlowArgs) -> AddExecutionToFlowOutcome,
    "add_execution_to_flow" Post "/v1/flows/{flow_id}/members" Operator own validated
}

/// The arguments of `add_execution_to_flow`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AddExecutionToFlowArgs {
    /// The flow.
    pub flow_id: FlowId,
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its name in the flow's graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// The answer to `add_execution_to_flow`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum AddExecutionToFlowOutcome {
    /// It is a member.
    Added {
        /// How many members the flow has.
        node_count: u32,
    },
    /// It was one before.
    AlreadyMember {
        /// How many members the flow has.
        node_count: u32,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(AddExecutionToFlowOutcome);

impl AddExecutionToFlowArgs {
    /// Refuses names that are too long, and an execution that cannot be in this flow.
    pub fn validate(&self) -> Result<()> {
        if self.execution_id.partition != self.flow_id.partition {
            return Err(Error::of(Code::PartitionMismatch).with("field", "execution_id"));
        }
        parts::optional(self.node.as_deref(), "node", text::label)
    }
}

operation! {
    /// Puts an edge into the graph; it takes effect when it is applied to the child.
    StageDependencyEdge(StageDependencyEdgeArgs) -> StageDependencyEdgeOutcome,
    "stage_dependency_edge" Post "/v1/flows/{flow_id}/edges" Operator own validated
}

/// The arguments of `stage_dependency_edge`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StageDependencyEdgeArgs {
    /// The flow.
    pub flow_id: FlowId,
    /// The execution that must end first.
    pub upstream: ExecutionId,
    /// The execution that waits for it.
    pub downstream: ExecutionId,
    /// The caller's name for this kind of edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Under which name the worker reads the upstream's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ref: Option<String>,
    /// Only if the graph still has this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_graph_revision: Option<u64>,
}

/// The answer to `stage_dependency_edge`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum StageDependencyEdgeOutcome {
    /// The edge is in the graph.
    Staged {
        /// The edge.
        edge_id: EdgeId,
        /// The graph's revision with it.
        graph_revision: u64,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(StageDependencyEdgeOutcome);

impl StageDependencyEdgeArgs {
    /// Refuses an edge from an execution to itself, and names that are too long.
    pub fn validate(&self) -> Result<()> {
        if self.upstream == self.downstream {
            return Err(Error::of(Code::SelfReferencingEdge));
        }
        parts::optional(self.kind.as_deref(), "kind", text::kind)?;
        parts::optional(self.data_ref.as_deref(), "data_ref", text::label)
    }
}

operation! {
    /// Makes a child wait for a staged edge.
    ApplyDependencyToChild(ApplyDependencyToChildArgs) -> ApplyDependencyToChildOutcome,
    "apply_dependency_to_child" Post "/v1/flows/{flow_id}/edges/apply" Operator own validated
}

/// The arguments of `apply_dependency_to_child`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ApplyDependencyToChildArgs {
    /// The flow.
    pub flow_id: FlowId,
    /// The edge.
    pub edge_id: EdgeId,
    /// Only if the graph still has this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_graph_revision: Option<u64>,
    /// The child's join policy; fixed by its first edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinPolicy>,
}

/// The answer to `apply_dependency_to_child`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum ApplyDependencyToChildOutcome {
    /// The child waits for it, unless its upstream has ended.
    Applied {
        /// How many upstreams the child waits for.
        unsatisfied_count: u32,
    },
    /// It did before.
    AlreadyApplied {
        /// How many upstreams the child waits for.
        unsatisfied_count: u32,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(ApplyDependencyToChildOutcome);

impl ApplyDependencyToChildArgs {
    /// Refuses join policies that no child could have.
    pub fn validate(&self) -> Result<()> {
        self.join.as_ref().map_or(Ok(()), JoinPolicy::validate)
    }
}

operation! {
    /// Lists what an execution depends on, with outcomes and, if asked for, results.
    ListUpstreams(ListUpstreamsArgs) -> ListUpstreamsOutcome,
    "list_upstreams" Get "/v1/executions/{execution_id}/upstreams" Reader validated
}

/// The arguments of `list_upstreams`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListUpstreamsArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Only the upstream with this node name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only the upstream of this edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_id: Option<EdgeId>,
    /// With results.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub results: bool,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer to `list_upstreams`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListUpstreamsOutcome {
    /// The upstreams.
    pub items: Vec<UpstreamView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListUpstreamsArgs {
    /// Refuses pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.node.as_deref(), "node", text::label)?;
        parts::page(self.limit)
    }
}

operation! {
    /// Cancels a flow; none of its members starts after the answer. A flow that had ended or been cancelled before is told
    /// with its state and its members.
    CancelFlow(CancelFlowArgs) -> CancelFlowResult,
    "cancel_flow" Post "/v1/flows/{flow_id}/cancel" Operator administrative validated keyed
}

/// The arguments of `cancel_flow`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelFlowArgs {
    /// The flow.
    pub flow_id: FlowId,
    /// Which members it concerns; `cancel_all` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<CancelFlowPolicy>,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Answer when the members are cancelled, not when that is certain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wait: bool,
    /// Where the last page of the members of a flow that had ended or been cancelled before ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl CancelFlowArgs {
    /// Refuses reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }
}

operation! {
    /// Removes a flow that has ended, with its members and everything they have.
    RemoveFlow(RemoveFlowArgs) -> Removed,
    "remove_flow" Delete "/v1/flows/{flow_id}" Operator administrative keyed
}

/// Which flow is to be removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RemoveFlowArgs {
    /// The flow.
    pub flow_id: FlowId,
}

operation! {
    /// Says that a flow which is made step by step is complete: it ends with its last member. A flow that was created with
    /// its graph needs no such call.
    CloseFlow(CloseFlowArgs) -> CloseFlowOutcome,
    "close_flow" Post "/v1/flows/{flow_id}/close" Operator own
}

/// Which flow is complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CloseFlowArgs {
    /// The flow.
    pub flow_id: FlowId,
}

/// The flow after the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CloseFlowOutcome {
    /// It was open before.
    pub changed: bool,
    /// Its state now.
    pub state: FlowState,
}
