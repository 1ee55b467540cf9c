//! Submissions of executions and flows: everything about them that does not depend on stored documents is decided here
//! before the commit, and written in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ff_core::event::Effects;
use ff_core::execution::{DEFAULT_LANE, Execution, NewExecution};
use ff_core::flow::{Flow, NewFlow};
use ff_core::idempotency::IdempotencyRecord;
use ff_core::op::{CreateExecutionArgs, CreateExecutionOutcome, CreateFlowArgs, CreateFlowOutcome, Debounce};
use ff_core::partition::digest16;
use ff_core::planted::{Bug, planted};
use ff_core::policy::Policy;
use ff_core::{
    Blob, Code, Edge, Error, ExecutionId, FlowId, Indexed, JoinPolicy, Mint, NewEdge, PolicyRequest, Result, Sharing,
    limits,
};

use crate::caller::Caller;
use crate::flow::save_flow;
use crate::limits::bytes;
use crate::system::{SubmissionTerms, SystemDocuments};
use crate::transaction::{Command, Transactor, Tx};
use crate::{env, payload};

/// Decides about submissions.
#[derive(Clone)]
pub(crate) struct Submissions {
    pub(crate) transactor: Transactor,
    system: SystemDocuments,
}

/// A submission with everything decided before its commit, so that a repeated try is the same request.
#[derive(Debug, Clone)]
pub(crate) struct Submission {
    pub(crate) request: NewExecution,
    pub(crate) blob: Option<Bytes>,
    /// The idempotency key and how long it is remembered.
    pub(crate) key: Option<(String, i64)>,
    /// The caller brought the id.
    pub(crate) own_id: bool,
    /// How its debounce key delays it, if it has one.
    pub(crate) debounce: Option<Debounce>,
    /// The lanes that its caller's token is good for; all when empty. Its debounce key replaces nothing in others.
    pub(crate) lanes: Vec<String>,
    /// Whether its creation is an event.
    pub(crate) announced: bool,
    /// Why its lane takes nothing new. A repeat is answered all the same, so that this is said only where a new execution
    /// would be written.
    pub(crate) refusal: Option<Error>,
}

impl Submission {
    /// Whether it is created as a member of a flow: in a given flow, as a child, or behind dependencies.
    pub(crate) fn joins_a_flow(&self, args: &CreateExecutionArgs) -> bool {
        args.flow_id.is_some() || args.parent.is_some() || !args.dependencies.is_empty()
    }

    /// Whether it is created by itself, and not in one commit call with others.
    pub(crate) fn is_apart(&self, args: &CreateExecutionArgs) -> bool {
        self.joins_a_flow(args) || self.request.sharing.single.is_some() || self.refusal.is_some()
    }

    /// Refuses to write a new execution into a lane that takes none.
    pub(crate) fn check_new(&self) -> Result<()> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    /// The record of the idempotency key that the store keeps.
    pub(crate) fn record(&self) -> Option<(IdempotencyRecord, i64)> {
        let (key, window_ms) = self.key.as_ref().filter(|_| !planted(Bug::DedupNotWritten))?;
        let record = IdempotencyRecord {
            namespace: self.request.namespace.clone(),
            idempotency_key: key.clone(),
            execution_id: self.request.id,
            request_hash: self.request.request_hash.clone(),
            ..Default::default()
        };
        Some((record, *window_ms))
    }

    /// Takes the id that is recorded under its key; a repeat creates this execution if no earlier call has. One that may be
    /// answered with another execution keeps its key, to be recorded beside that one.
    pub(crate) fn take_recorded(&mut self, id: ExecutionId) {
        self.request.id = id;
        self.key.take_if(|_| self.request.sharing.single.is_none());
        self.own_id = true;
    }

    /// The answer when the execution is there already: the same request, or a conflict.
    pub(crate) fn duplicate_of(&self, existing: &Execution) -> Result<CreateExecutionOutcome> {
        if existing.request_hash != self.request.request_hash || existing.namespace != self.request.namespace {
            return Err(Error::of(Code::IdempotencyConflict).with("execution_id", existing.id));
        }
        Ok(existing_outcome(existing))
    }
}

/// The answer to a submission that another execution stands for.
pub(crate) fn existing_outcome(existing: &Execution) -> CreateExecutionOutcome {
    CreateExecutionOutcome {
        execution_id: existing.id,
        duplicate: true,
        flow_id: existing.flow,
        public_state: existing.public_state(),
        superseded: None,
    }
}

impl Submissions {
    pub(crate) fn new(system: SystemDocuments) -> Self {
        Self { transactor: system.transactor().clone(), system }
    }

    /// Decides everything about a submission that does not depend on stored documents.
    pub(crate) async fn submission(&self, caller: &Caller, args: &CreateExecutionArgs) -> Result<Submission> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let lane = args.lane.clone().unwrap_or_else(|| DEFAULT_LANE.to_owned());
        caller.check_lane(&lane)?;
        let SubmissionTerms { aging_ms, announced, refusal } = self.system.submission_terms(&namespace, &lane).await?;
        let input = args.input()?;
        let size = input.as_ref().map_or(0, |input| input.bytes.len());
        bytes("input", size, self.transactor.limits().input_max_bytes)?;
        let required = self.transactor.limits().capabilities(&args.required_capabilities);
        required.map_err(|error| error.with("field", "required_capabilities"))?;
        let (input, blob) = payload::divide(input);
        let id = self.submission_id(&namespace, args)?;
        let policy = self.policy(&namespace, args.policy.as_ref());
        let request = NewExecution {
            id,
            namespace,
            lane,
            kind: args.kind.clone(),
            priority: args.priority.unwrap_or(0),
            creator: args.creator.clone().unwrap_or_default(),
            submitted_by: caller.submitter(),
            idempotency_key: args.idempotency_key.clone().unwrap_or_default(),
            tags: args.tags.clone(),
            policy,
            capabilities: args.required_capabilities.clone(),
            budgets: args.budget_ids.clone(),
            quota: args.quota_policy_id.clone(),
            input,
            delay_until: args.delay_until,
            deadline_at: args.deadline_at,
            flow: args.flow_id,
            node: args.node.clone().unwrap_or_default(),
            request_hash: Blob::from(args.content_digest()[..16].to_vec()),
            trace_context: args.trace_context.clone().unwrap_or_default(),
            schedule: None,
            sharing: Sharing { aging_ms, ..args.sharing() },
        };
        request.validate()?;
        let window_ms = args.dedup_window_ms.unwrap_or(self.transactor.options().dedup_window_ms);
        let key = args.idempotency_key.clone().map(|key| (key, window_ms));
        let (debounce, lanes) = (args.debounce.clone(), caller.lanes.clone());
        Ok(Submission { request, blob, key, own_id: args.execution_id.is_some(), debounce, lanes, announced, refusal })
    }

    /// The policy of a submission: what it says, over the defaults of its namespace, over the built-in ones.
    fn policy(&self, namespace: &str, said: Option<&PolicyRequest>) -> Arc<Policy> {
        let options = self.transactor.options();
        let defaults = options.policies.get(namespace);
        let kept_ms = Some(options.retention_ms).filter(|kept_ms| *kept_ms != limits::RETENTION_DEFAULT_MS);
        if said.is_none() && defaults.is_none() && kept_ms.is_none() {
            return Policy::built_in();
        }
        let defaults = defaults.cloned().unwrap_or_default();
        let mut policy = said.map_or_else(|| defaults.clone(), |said| said.over(&defaults));
        policy.retention_ms = policy.retention_ms.or(kept_ms);
        Arc::new(policy)
    }

    /// Decides everything about a new flow that does not depend on stored documents.
    pub(crate) async fn flow_to_write<'a>(
        &self,
        caller: &Caller,
        id: FlowId,
        args: &'a CreateFlowArgs,
    ) -> Result<WriteFlow<'a>> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let ends = args.graph()?;
        let new = NewFlow {
            id,
            namespace: namespace.clone(),
            kind: args.kind.clone().unwrap_or_default(),
            tags: args.tags.clone(),
            request_hash: request_hash(args),
            schedule: None,
        };
        let mut members = Vec::with_capacity(args.nodes.len());
        for (place, node) in args.nodes.iter().enumerate() {
            let mut request = node.request.clone();
            request.execution_id = Some(request.execution_id.unwrap_or_else(|| member_id(&id, &node.name)));
            request.namespace = Some(namespace.clone());
            request.flow_id = Some(id);
            request.node = Some(node.name.clone());
            let within = |error: Error| error.inside(&format!("nodes[{place}].request")).with("node", &node.name);
            let submission = self.submission(caller, &request).await.map_err(within)?;
            members.push((submission, node.join.clone()));
        }
        Ok(WriteFlow { new, members, ends, args })
    }

    /// Its id, which decides its partition: the caller's own id, or one beside its flow or parent, in the partition of
    /// its key, or in any.
    fn submission_id(&self, namespace: &str, args: &CreateExecutionArgs) -> Result<ExecutionId> {
        if let Some(id) = args.execution_id {
            id.check(self.transactor.partitions())?;
            return Ok(id);
        }
        let mint = self.transactor.rising(env::mint(self.transactor.env(), self.transactor.now()));
        if let Some(flow) = &args.flow_id {
            flow.check(self.transactor.partitions())?;
            return Ok(ExecutionId::for_flow(flow, &mint));
        }
        if let Some(parent) = &args.parent {
            parent.execution_id.check(self.transactor.partitions())?;
            return Ok(ExecutionId::in_partition(parent.execution_id.partition(), &mint));
        }
        Ok(match args.single_key().or(args.idempotency_key.as_deref()) {
            Some(key) => ExecutionId::in_partition(self.transactor.partitions().key_partition(namespace, key), &mint),
            None => ExecutionId::solo(self.transactor.partitions(), &mint),
        })
    }
}

impl Transactor {
    /// Whether the record of the idempotency key lies in another partition than the execution. Then the execution's id
    /// is recorded there first.
    pub(crate) fn key_is_elsewhere(&self, submission: &Submission) -> bool {
        let Submission { request, key, .. } = submission;
        let home = key.as_ref().map(|(key, _)| self.partitions().key_partition(&request.namespace, key));
        home.is_some_and(|home| home != request.id.partition())
    }
}

/// Writes a new execution with its input, and the event of its creation where a subscription asks for that.
pub(crate) fn write_new(tx: &mut Tx<'_>, execution: Execution, blob: Option<Bytes>, announced: bool) {
    payload::write(tx, payload::Which::Input, &execution.id, blob, None);
    if announced {
        tx.apply(&execution.id, Effects { events: vec![execution.creation_event()], ..Default::default() });
    }
    tx.create_execution(Arc::new(execution));
}

/// The id of a node that brought none: made from flow and name, so that a repeated request names the same members.
fn member_id(flow: &FlowId, node: &str) -> ExecutionId {
    let digest = digest16(&[b"member", flow.uuid.as_bytes(), node.as_bytes()]);
    let mut random = [0u8; 10];
    random.copy_from_slice(&digest[..10]);
    let now_ms = flow.uuid.as_bytes()[..6].iter().fold(0, |time, byte| (time << 8) | i64::from(*byte));
    ExecutionId::for_flow(flow, &Mint { now_ms, random })
}

/// A digest of what two requests for the same flow must have in common.
fn request_hash(args: &CreateFlowArgs) -> Blob {
    let content = CreateFlowArgs { flow_id: None, idempotency_key: None, ..args.clone() };
    let bytes = rmp_serde::to_vec_named(&content).expect("arguments hold only types that msgpack can express");
    Blob::from(digest16(&[&bytes]).to_vec())
}

/// A new flow with its whole graph.
pub(crate) struct WriteFlow<'a> {
    pub(crate) new: NewFlow,
    members: Vec<(Submission, Option<JoinPolicy>)>,
    /// The edges of the request, as positions in `members`.
    ends: Vec<(usize, usize)>,
    args: &'a CreateFlowArgs,
}

impl Command for WriteFlow<'_> {
    type Outcome = CreateFlowOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<CreateFlowOutcome> {
        if (tx.is_repeat() || self.members.iter().any(|(member, _)| member.refusal.is_some()))
            && let Some(outcome) = self.find_duplicate(tx).await?
        {
            return Ok(outcome);
        }
        let flow = self.write(tx)?;
        Ok(CreateFlowOutcome::Created {
            flow_id: flow.id,
            graph_revision: flow.graph_revision,
            executions: self.names(),
        })
    }
}

impl WriteFlow<'_> {
    /// Creates the flow and everything in it.
    pub(crate) fn write(&self, tx: &mut Tx<'_>) -> Result<Flow> {
        for (member, _) in &self.members {
            member.check_new().map_err(|error| error.with("node", &member.request.node))?;
        }
        let mut flow = Flow::new(self.new.clone(), tx.now)?;
        flow.stays_open = self.members.is_empty() && !self.args.complete;
        flow.keep_empty_for(tx.transactor.options().retention_ms);
        self.members.iter().for_each(|(member, _)| flow.keep_for(member.request.policy.retention_ms));
        if !self.members.is_empty() {
            flow.add_members(u32::try_from(self.members.len()).unwrap_or(u32::MAX))?;
        }
        let mut executions = self
            .members
            .iter()
            .map(|(submission, _)| Execution::create(submission.request.clone(), tx.now))
            .collect::<Result<Vec<_>>>()?;
        executions.iter_mut().for_each(|member| member.flow_schedule.clone_from(&self.new.schedule));
        let mut edges = Vec::with_capacity(self.ends.len());
        for ((upstream, downstream), wanted) in self.ends.iter().zip(&self.args.edges) {
            let new = NewEdge {
                kind: wanted.kind.clone().unwrap_or_default(),
                data_ref: wanted.data_ref.clone(),
                ..crate::flow::new_edge(&flow.id, executions[*upstream].id, executions[*downstream].id)
            };
            let mut edge = Edge::stage(new, tx.now)?;
            edge.apply(tx.now);
            executions[*downstream].add_dependency(self.members[*downstream].1.as_ref(), tx.now)?;
            tx.create(&edge);
            edges.push(edge);
        }
        self.note_downstreams(tx, &executions, edges);
        tx.create(&flow);
        save_flow(tx, &flow);
        for (execution, (submission, _)) in executions.into_iter().zip(&self.members) {
            write_new(tx, execution, submission.blob.clone(), submission.announced);
        }
        Ok(flow)
    }

    /// Notes the members that have only a few downstreams that wait for nothing else; the commit that ends such a
    /// member tells them.
    fn note_downstreams(&self, tx: &mut Tx<'_>, executions: &[Execution], edges: Vec<Edge>) {
        let most = tx.transactor.chunk(limits::DOWNSTREAMS_TOLD_MAX);
        let mut from: BTreeMap<usize, Vec<(usize, Edge)>> = BTreeMap::new();
        for ((upstream, downstream), edge) in self.ends.iter().zip(edges) {
            from.entry(*upstream).or_default().push((*downstream, edge));
        }
        let alone = |child: usize| executions[child].join.as_ref().is_some_and(|join| join.total == 1);
        for (upstream, edges) in from {
            if edges.len() <= most && edges.iter().all(|(downstream, _)| alone(*downstream)) {
                tx.followed_by(executions[upstream].key(), edges.into_iter().map(|(_, edge)| edge).collect());
            }
        }
    }

    fn names(&self) -> BTreeMap<String, ExecutionId> {
        self.members.iter().map(|(member, _)| (member.request.node.clone(), member.request.id)).collect()
    }

    /// Finds what stands in the way of the creation: this very flow, another flow, or an execution of another caller
    /// under one of its ids.
    async fn find_duplicate(&self, tx: &mut Tx<'_>) -> Result<Option<CreateFlowOutcome>> {
        if let Some(existing) = tx.load::<Flow>(Flow::key_of(&self.new.id)).await? {
            let flow = existing.document;
            if flow.namespace != self.new.namespace {
                return Err(Error::of(Code::IdempotencyConflict).with("flow_id", flow.id));
            }
            flow.check_same(&self.new.request_hash)?;
            return Ok(Some(CreateFlowOutcome::AlreadyExists {
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
