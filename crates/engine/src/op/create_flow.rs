//! Opens a flow, with its whole graph in one atomic commit if the caller brings one.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::flow::{Flow, NewFlow};
use ff_core::op::CreateFlow;
use ff_core::op::create_flow::{Args, Outcome};
use ff_core::partition::digest16;
use ff_core::{Blob, Code, Edge, Error, ExecutionId, FlowId, JoinPolicy, Mint, NewEdge, Result};
use uuid::Uuid;

use super::create_execution::{Submission, write_new};
use super::flow::save_flow;
use crate::engine::{Caller, Engine, Handle};
use crate::env;
use crate::transaction::{Command, Tx};

impl Handle<CreateFlow> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let id = self.new_flow_id(&namespace, &args)?;
        let ends = args.graph()?;
        let new = NewFlow {
            id,
            namespace: namespace.clone(),
            kind: args.kind.clone().unwrap_or_default(),
            tags: args.tags.clone(),
            request_hash: request_hash(&args),
        };
        let mut members = Vec::with_capacity(args.nodes.len());
        for node in &args.nodes {
            let mut request = node.request.clone();
            request.execution_id = Some(request.execution_id.unwrap_or_else(|| member_id(&id, &node.name)));
            request.namespace = Some(namespace.clone());
            request.flow_id = Some(id);
            request.node = Some(node.name.clone());
            let submission = self.submission(caller, &request).await.map_err(|error| error.with("node", &node.name))?;
            members.push((submission, node.join.clone()));
        }
        let verb = Verb { new, members, ends, args: &args };
        self.transact(id.partition(), self.fresh_command(), &verb).await
    }
}

impl Engine {
    /// The id the caller brought, the one its key stands for, or a fresh one.
    fn new_flow_id(&self, namespace: &str, args: &Args) -> Result<FlowId> {
        if let Some(id) = args.flow_id {
            id.check(self.partitions())?;
            return Ok(id);
        }
        if let Some(key) = &args.idempotency_key {
            let digest = digest16(&[b"create_flow", namespace.as_bytes(), key.as_bytes()]);
            let partition = self.partitions().key_partition(namespace, key).number;
            return Ok(FlowId { partition, uuid: Uuid::from_bytes(digest) });
        }
        Ok(FlowId::mint(self.partitions(), &env::mint(self.env(), self.now())))
    }
}

/// The id of a node that brought none: made from flow and name, so that a repeated request names the same members.
fn member_id(flow: &FlowId, node: &str) -> ExecutionId {
    let digest = digest16(&[b"member", flow.uuid.as_bytes(), node.as_bytes()]);
    let mut random = [0u8; 10];
    random.copy_from_slice(&digest[..10]);
    let now_ms = flow.uuid.as_bytes()[..6].iter().fold(0, |time, byte| (time << 8) | i64::from(*byte));
    ExecutionId::for_flow(flow, &Mint { now_ms, random })
}

/// What two requests for the same flow must have in common.
fn request_hash(args: &Args) -> Blob {
    let content = Args { flow_id: None, idempotency_key: None, ..args.clone() };
    let bytes = rmp_serde::to_vec_named(&content).expect("arguments hold only types that msgpack can express");
    Blob::from(digest16(&[&bytes]).to_vec())
}

struct Verb<'a> {
    new: NewFlow,
    members: Vec<(Submission, Option<JoinPolicy>)>,
    /// The edges of the request, as positions in `members`.
    ends: Vec<(usize, usize)>,
    args: &'a Args,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        if tx.is_repeat()
            && let Some(outcome) = self.find_duplicate(tx).await?
        {
            return Ok(outcome);
        }
        let mut flow = Flow::new(self.new.clone(), tx.now)?;
        flow.keep_empty_for(tx.engine.options().retention_ms);
        self.members.iter().for_each(|(member, _)| flow.keep_for(member.request.policy.retention_ms));
        if !self.members.is_empty() {
            flow.add_members(u32::try_from(self.members.len()).unwrap_or(u32::MAX))?;
        }
        let mut executions = self
            .members
            .iter()
            .map(|(submission, _)| Execution::create(submission.request.clone(), tx.now))
            .collect::<Result<Vec<_>>>()?;
        for ((upstream, downstream), wanted) in self.ends.iter().zip(&self.args.edges) {
            let new = NewEdge {
                kind: wanted.kind.clone().unwrap_or_default(),
                data_ref: wanted.data_ref.clone(),
                ..super::flow::new_edge(&flow.id, executions[*upstream].id, executions[*downstream].id)
            };
            let mut edge = Edge::stage(new, tx.now)?;
            edge.apply(tx.now);
            executions[*downstream].add_dependency(self.members[*downstream].1.as_ref(), tx.now)?;
            tx.create(&edge);
        }
        tx.create(&flow);
        save_flow(tx, &flow);
        for (execution, (submission, _)) in executions.into_iter().zip(&self.members) {
            write_new(tx, execution, submission.blob.clone());
        }
        Ok(Outcome::Created { flow_id: flow.id, graph_revision: flow.graph_revision, executions: self.names() })
    }
}

impl Verb<'_> {
    fn names(&self) -> BTreeMap<String, ExecutionId> {
        self.members.iter().map(|(member, _)| (member.request.node.clone(), member.request.id)).collect()
    }

    /// Something is there: this very flow, or another one, or somebody's execution under an id of ours.
    async fn find_duplicate(&self, tx: &mut Tx<'_>) -> Result<Option<Outcome>> {
        if let Some(existing) = tx.load::<Flow>(Flow::key_of(&self.new.id)).await? {
            let flow = existing.document;
            if flow.namespace != self.new.namespace {
                return Err(Error::of(Code::IdempotencyConflict).with("flow_id", flow.id));
            }
            flow.check_same(&self.new.request_hash)?;
            return Ok(Some(Outcome::AlreadyExists {
                flow_id: flow.id,
                graph_revision: flow.graph_revision,
                executions: self.names(),
            }));
        }
        let keys = self.members.iter().map(|(member, _)| Execution::key_of(&member.request.id)).collect();
        match tx.load_many::<Execution>(keys).await?.into_iter().flatten().next() {
            Some(taken) => Err(Error::of(Code::IdempotencyConflict).with("execution_id", taken.document.id)),
            None => Ok(None),
        }
    }
}
