//! Creates a flow, empty or with its whole graph in one atomic call.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::id::{ExecutionId, FlowId};
use crate::join::JoinPolicy;
use crate::limits;
use crate::op::create_execution;
use crate::op::operation;
use crate::op::parts;
use crate::text;
use crate::text::Tags;

operation! {
    /// Creates a flow, empty or with its whole graph in one atomic call.
    CreateFlow "create_flow" Post "/v1/flows" Submitter validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CreateFlowArgs")]
pub struct Args {
    /// An id the caller minted; the same id with the same content means the same flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Where it belongs; the caller's default namespace when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What kind of flow it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// For filters.
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
    /// Its members, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeRequest>,
    /// What waits for what, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<GraphEdge>,
    /// The same key means the same flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[schemars(rename = "CreateFlowOutcome")]
pub enum Outcome {
    /// It is there, with all its members.
    Created {
        /// The flow.
        flow_id: FlowId,
        /// The revision of its graph.
        graph_revision: u64,
        /// Its members by node name.
        executions: BTreeMap<String, ExecutionId>,
    },
    /// It was there before.
    AlreadyExists {
        /// The flow.
        flow_id: FlowId,
        /// The revision of its graph.
        graph_revision: u64,
        /// The members of this request by node name.
        executions: BTreeMap<String, ExecutionId>,
    },
}

/// A member of a new flow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeRequest {
    /// Its name in the graph, unique in the flow.
    pub name: String,
    /// What is to be done; the flow decides namespace, flow, node and dependencies.
    pub request: create_execution::Args,
    /// When its dependencies let it run; all of them when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinPolicy>,
}

/// A dependency between two nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GraphEdge {
    /// What must end first.
    pub from: String,
    /// What waits for it.
    pub to: String,
    /// What the submitter calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Under which name the worker reads the upstream's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ref: Option<String>,
}

impl Args {
    /// Checks the graph as a whole; its edges as positions in the list of nodes.
    pub fn graph(&self) -> Result<Vec<(usize, usize)>> {
        let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let pairs: Vec<(&str, &str)> = self.edges.iter().map(|edge| (edge.from.as_str(), edge.to.as_str())).collect();
        crate::graph::validate_graph(&names, &pairs)
    }

    /// Refuses graphs that are too large or do not fit together. Cycles are found by whoever builds the graph.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.kind.as_deref(), "kind", text::kind)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.idempotency_key.as_deref(), "idempotency_key", text::label)?;
        text::tags("tags", &self.tags)?;
        parts::at_most("nodes", self.nodes.len(), limits::GRAPH_NODES_MAX)?;
        parts::at_most("edges", self.edges.len(), limits::GRAPH_EDGES_MAX)?;
        let mut names = std::collections::BTreeSet::new();
        for node in &self.nodes {
            text::label("nodes.name", &node.name)?;
            if !names.insert(node.name.as_str()) {
                return Err(Error::invalid("nodes.name", format!("{:?} stands twice", node.name)));
            }
            node.validate()?;
        }
        let mut pairs = std::collections::BTreeSet::new();
        for edge in &self.edges {
            for (field, end) in [("edges.from", &edge.from), ("edges.to", &edge.to)] {
                if !names.contains(end.as_str()) {
                    return Err(Error::invalid(field, format!("names {end:?}, which is no node")));
                }
            }
            if edge.from == edge.to {
                return Err(Error::of(Code::SelfReferencingEdge).with("node", &edge.from));
            }
            if !pairs.insert((edge.from.as_str(), edge.to.as_str())) {
                let detail = format!("has the edge from {:?} to {:?} twice", edge.from, edge.to);
                return Err(Error::invalid("edges", detail));
            }
            parts::optional(edge.kind.as_deref(), "edges.kind", text::label)?;
            parts::optional(edge.data_ref.as_deref(), "edges.data_ref", text::label)?;
        }
        Ok(())
    }
}

impl NodeRequest {
    fn validate(&self) -> Result<()> {
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
            return Err(Error::invalid("nodes.request", detail).with("node", &self.name));
        }
        self.join.as_ref().map_or(Ok(()), JoinPolicy::validate)?;
        request.validate().map_err(|error| error.with("node", &self.name))
    }
}
