//! A flow's graph in the making.

use std::collections::BTreeMap;

use ff_core::op::CreateFlow;
use ff_core::op::create_flow::{Args, Outcome};
use ff_core::op::{GraphEdge, NodeRequest};
use ff_core::{ExecutionId, FlowId, JoinPolicy};

use crate::client::Client;
use crate::error::{Result, SdkError};
use crate::execution::Execution;
use crate::submit::Submission;

/// A graph of executions, created in one call.
///
/// ```
/// # async fn example(client: flowfabric::Client) -> flowfabric::Result<()> {
/// let flow = client
///     .new_flow("report")
///     .node("fetch", client.submit("fetch").input(&"https://example.com"))
///     .node("render", client.submit("render"))
///     .edge("fetch", "render")
///     .create()
///     .await?;
/// let page: String = flow.node("render").expect("it was just created").result().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is created before `create`"]
pub struct FlowBuilder {
    client: Client,
    args: Args,
    broken: Option<SdkError>,
}

impl Client {
    /// Begins a flow of some kind.
    pub fn new_flow(&self, kind: impl Into<String>) -> FlowBuilder {
        let args = Args { kind: Some(kind.into()), ..Args::default() };
        FlowBuilder { client: self.clone(), args, broken: None }
    }
}

impl FlowBuilder {
    /// Adds a node that runs when all of its upstreams have succeeded.
    pub fn node(self, name: impl Into<String>, submission: Submission) -> Self {
        self.add(name.into(), submission, None)
    }

    /// Adds a node with another rule for its upstreams.
    pub fn joining_node(self, name: impl Into<String>, submission: Submission, join: JoinPolicy) -> Self {
        self.add(name.into(), submission, Some(join))
    }

    fn add(mut self, name: String, submission: Submission, join: Option<JoinPolicy>) -> Self {
        match submission.into_args() {
            Ok(request) => self.args.nodes.push(NodeRequest { name, request, join }),
            Err(broken) => self.broken = Some(broken),
        }
        self
    }

    /// The second node waits for the first, and can read its result.
    pub fn edge(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.args.edges.push(GraphEdge { from: from.into(), to: to.into(), kind: None, data_ref: None });
        self
    }

    /// Adds a tag.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.args.tags.insert(key.into(), value.into());
        self
    }

    /// The same key means the same flow.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.args.idempotency_key = Some(key.into());
        self
    }

    /// Creates the flow and all of its executions at once.
    pub async fn create(self) -> Result<CreatedFlow> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let created = self.client.call::<CreateFlow>(self.args).await?;
        let (flow_id, executions) = match created {
            Outcome::Created { flow_id, executions, .. } | Outcome::AlreadyExists { flow_id, executions, .. } => {
                (flow_id, executions)
            }
            Outcome::Unknown(variant) => match (variant.field("flow_id"), variant.field("executions")) {
                (Some(flow_id), Some(executions)) => (flow_id, executions),
                _ => return Err(SdkError::Unreadable(variant.json().to_owned())),
            },
        };
        Ok(CreatedFlow { client: self.client, flow_id, executions })
    }
}

/// A flow that was just created.
#[derive(Debug, Clone)]
pub struct CreatedFlow {
    client: Client,
    flow_id: FlowId,
    executions: BTreeMap<String, ExecutionId>,
}

impl CreatedFlow {
    /// Its id.
    pub fn id(&self) -> FlowId {
        self.flow_id
    }

    /// The execution behind a node.
    pub fn node(&self, name: &str) -> Option<Execution> {
        self.executions.get(name).map(|id| self.client.execution(*id))
    }

    /// All nodes with their executions.
    pub fn executions(&self) -> &BTreeMap<String, ExecutionId> {
        &self.executions
    }
}
