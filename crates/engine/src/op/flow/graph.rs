//! Flows as a whole: creating, reading and cancelling them.

use std::collections::BTreeMap;

use ff_core::execution::{CancelSource, Execution};
use ff_core::flow::{CancelFlowPolicy, CancelFlowResult, Flow, FlowState, NewFlow};
use ff_core::index::{self, kind};
use ff_core::op::view::{EdgeView, FlowView, GraphNode, GraphView, JoinView};
use ff_core::op::{
    CancelFlow, CancelFlowArgs, CreateFlow, CreateFlowArgs, CreateFlowOutcome, GetFlow, GetFlowArgs, GetFlowGraph,
    GetFlowGraphArgs, ListFlows, ListFlowsArgs, ListFlowsOutcome,
};
use ff_core::partition::digest16;
use ff_core::{
    Blob, Code, Edge, Error, ExecutionId, Family, FlowId, IndexName, Indexed, JoinPolicy, Key, Mint, NewEdge,
    Partition, PublicState, Result, limits,
};
use ff_store::{Answer, Query, Scan, StoredDocument};
use uuid::Uuid;

use crate::engine::{Caller, Engine, Handle};
use crate::flow::{self, cursor_of, end_if_complete, load_flow, parse_cursor, save_flow};
use crate::op::Request;
use crate::op::execution::create::{Submission, write_new};
use crate::transaction::{Command, Tx};
use crate::view::{join, some_instant, some_text};
use crate::{cursor, env};

impl Handle<CreateFlow> for Engine {
    async fn handle(&self, caller: &Caller, args: CreateFlowArgs) -> Result<CreateFlowOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let id = self.new_flow_id(&namespace, &args)?;
        let verb = self.flow_to_write(caller, id, &args).await?;
        self.transact(id.partition(), self.fresh_command(), &verb).await
    }
}

impl Engine {
    /// Decides everything about a new flow that does not depend on what is stored.
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
        for node in &args.nodes {
            let mut request = node.request.clone();
            request.execution_id = Some(request.execution_id.unwrap_or_else(|| member_id(&id, &node.name)));
            request.namespace = Some(namespace.clone());
            request.flow_id = Some(id);
            request.node = Some(node.name.clone());
            let submission = self.submission(caller, &request).await.map_err(|error| error.with("node", &node.name))?;
            members.push((submission, node.join.clone()));
        }
        Ok(WriteFlow { new, members, ends, args })
    }

    /// The id the caller brought, the one its key stands for, or a fresh one.
    fn new_flow_id(&self, namespace: &str, args: &CreateFlowArgs) -> Result<FlowId> {
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
        if tx.is_repeat()
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
        let mut flow = Flow::new(self.new.clone(), tx.now)?;
        flow.stays_open = self.members.is_empty() && !self.args.complete;
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
            write_new(tx, execution, submission.blob.clone());
        }
        Ok(flow)
    }

    /// Says which members have only a few downstreams that wait for nothing else: their end is told in its own commit.
    fn note_downstreams(&self, tx: &mut Tx<'_>, executions: &[Execution], edges: Vec<Edge>) {
        let most = tx.engine.chunk(limits::DOWNSTREAMS_TOLD_MAX);
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

    /// Something is there: this very flow, or another one, or somebody's execution under an id of ours.
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

/// Shows a flow: its state is exact, because its members are counted from their index, and its end is waited for in the
/// moment after its last member has ended.
impl Handle<GetFlow> for Engine {
    async fn handle(&self, caller: &Caller, args: GetFlowArgs) -> Result<FlowView> {
        let (flow, counts) = self.settled_flow(caller, &args.flow_id).await?;
        Ok(flow::view(&flow, counts))
    }
}

/// Pages one call looks through; a filter that matches little answers with fewer items and a cursor.
const LISTING_ROUNDS_MAX: usize = 20;

impl Handle<ListFlows> for Engine {
    async fn handle(&self, caller: &Caller, args: ListFlowsArgs) -> Result<ListFlowsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.limits().page(args.limit)?;
        let mut after = parse_cursor(args.cursor.as_deref())?;
        let mut items = Vec::new();
        for _ in 0..LISTING_ROUNDS_MAX {
            let page = self.flow_page(&namespace, after.clone(), limit).await?;
            let full = page.len() == limit;
            for (position, found) in page {
                after = Some(position);
                let Some(found) = found.filter(|flow| flow_matches(&args, flow)) else { continue };
                let answers = self.read(found.id.partition(), flow::count_queries(&found.id)).await?;
                let view = flow::view(&found, flow::counts(answers.answers));
                if args.state.is_none_or(|state: FlowState| state == view.state) {
                    items.push(view);
                }
                if items.len() == limit {
                    return Ok(ListFlowsOutcome { items, next_cursor: after.as_ref().map(cursor_of) });
                }
            }
            if !full {
                return Ok(ListFlowsOutcome { items, next_cursor: None });
            }
        }
        Ok(ListFlowsOutcome { items, next_cursor: after.as_ref().map(cursor_of) })
    }
}

/// A flow and its place in the list; none when it cannot be read.
type Listed = ((i64, Key), Option<Flow>);

impl Engine {
    /// The next flows of a namespace. Places are comparable across partitions, so one place is a cursor over all.
    async fn flow_page(&self, namespace: &str, after: Option<(i64, Key)>, limit: usize) -> Result<Vec<Listed>> {
        let mut scan = Scan::last(index::listing(kind::FLOW, namespace), limit).with_documents();
        scan.after = after;
        let partitions: Vec<Partition> =
            self.partitions().all().filter(|partition| partition.family == Family::Flow).collect();
        let reads = partitions.into_iter().map(|partition| self.read(partition, vec![Query::Scan(scan.clone())]));
        let mut listed = Vec::new();
        for answers in futures_util::future::try_join_all(reads).await? {
            for entry in answers.into_only(Answer::into_scan).map_err(ff_core::Error::from)?.entries {
                let flow = entry.document.and_then(|stored| self.readable::<Flow>(&stored));
                listed.push(((entry.score, entry.member), flow));
            }
        }
        listed.sort_by(|one, other| other.0.cmp(&one.0));
        listed.truncate(limit);
        Ok(listed)
    }
}

fn flow_matches(args: &ListFlowsArgs, flow: &Flow) -> bool {
    let tagged = |tag: &String| {
        tag.split_once('=').is_some_and(|(key, value)| flow.tags.get(key).is_some_and(|found| found == value))
    };
    args.kind.as_ref().is_none_or(|kind| *kind == flow.kind) && args.tag.as_ref().is_none_or(tagged)
}

/// Members whose edges are read at once.
const MEMBERS_AT_ONCE: usize = 100;

impl Handle<GetFlowGraph> for Engine {
    async fn handle(&self, caller: &Caller, args: GetFlowGraphArgs) -> Result<GraphView> {
        let (found, counts) = self.settled_flow(caller, &args.flow_id).await?;
        let members = self.members(&found).await?;
        let edges = self.edges(&found, &members).await?;
        Ok(GraphView { flow: flow::view(&found, counts), nodes: members.iter().map(node).collect(), edges })
    }
}

impl Engine {
    /// Every member, oldest first.
    async fn members(&self, flow: &Flow) -> Result<Vec<Execution>> {
        let mut members = std::collections::BTreeMap::new();
        let indexes = PublicState::ALL.iter().map(|state| index::member(flow.id.uuid, *state)).collect();
        for stored in self.everything(flow, indexes).await? {
            // One that changed its state while it was looked at may have been seen twice.
            if let Some(member) = self.readable::<Execution>(&stored) {
                members.insert((member.created_at, member.id), member);
            }
        }
        Ok(members.into_values().collect())
    }

    async fn edges(&self, flow: &Flow, members: &[Execution]) -> Result<Vec<EdgeView>> {
        let mut edges = Vec::new();
        for some in members.chunks(MEMBERS_AT_ONCE) {
            let indexes = some.iter().map(|member| index::edges_from(member.id.uuid)).collect();
            let stored = self.everything(flow, indexes).await?;
            edges.extend(
                stored.iter().filter_map(|stored| self.readable(stored)).map(|edge: Edge| flow::edge_view(&edge)),
            );
        }
        Ok(edges)
    }

    /// The documents of whole indexes.
    async fn everything(&self, flow: &Flow, indexes: Vec<IndexName>) -> Result<Vec<StoredDocument>> {
        let mut documents = Vec::new();
        let mut scans: Vec<Scan> =
            indexes.into_iter().map(|index| Scan::first(index, limits::PAGE_MAX).with_documents()).collect();
        while !scans.is_empty() {
            let queries = scans.iter().cloned().map(Query::Scan).collect();
            let answers = self.read(flow.id.partition(), queries).await?.answers;
            let mut unfinished = Vec::new();
            for (scan, page) in scans.into_iter().zip(answers.into_iter().filter_map(Answer::into_scan)) {
                if page.entries.len() == limits::PAGE_MAX
                    && let Some(last) = page.entries.last()
                {
                    unfinished.push(scan.after(last.score, last.member.clone()));
                }
                documents.extend(page.entries.into_iter().filter_map(|entry| entry.document));
            }
            scans = unfinished;
        }
        Ok(documents)
    }
}

fn node(member: &Execution) -> GraphNode {
    let without_upstreams = || JoinView { policy: JoinPolicy::AllOf, total: 0, succeeded: 0, failed: 0 };
    GraphNode {
        execution_id: member.id,
        node: some_text(&member.node),
        kind: member.kind.clone(),
        public_state: member.public_state(),
        join: member.join.as_ref().map_or_else(without_upstreams, join),
        attempt: member.attempt.as_ref().map(|attempt| attempt.index),
        created_at: member.created_at,
        started_at: some_instant(member.started_at),
        completed_at: some_instant(member.ended_at),
    }
}

impl Handle<CancelFlow> for Engine {
    async fn handle(&self, caller: &Caller, args: CancelFlowArgs) -> Result<CancelFlowResult> {
        let id = &args.flow_id;
        self.check_flow_id(id)?;
        let after = cursor::decode::<(i64, Vec<u8>)>(args.cursor.as_deref())?;
        self.check_lanes_of_members(caller, id).await?;
        let deadline = self.env().now_ms() + limits::WAIT_MAX_MS;
        let mut listener = self.listen_to(id.partition(), Flow::key_of(id));
        let verb = Request::<CancelFlow> { caller, args: &args };
        let identity = self.identity::<CancelFlow>(caller, &args, None);
        let found = self.transact_once(id.partition(), identity, &verb).await?;
        // A repeat finds it further on than the first call left it.
        let (mut flow, mut counts) = self.visible_flow(caller, id).await?;
        if found.had_ended {
            let (members, next_cursor) = self.flow_members(id, PublicState::ALL, after, |_| true).await?;
            let cancellation = flow.cancellation.as_ref();
            return Ok(CancelFlowResult::AlreadyTerminal {
                state: flow.state(&counts),
                policy: cancellation.map(|cancellation| cancellation.policy),
                reason: cancellation.and_then(|cancellation| some_text(&cancellation.reason)),
                member_count: flow.node_count,
                members,
                next_cursor,
            });
        }
        let outstanding = |flow: &Flow| flow.cancellation.as_ref().is_some_and(|cancellation| cancellation.outstanding);
        while args.wait && outstanding(&flow) {
            self.refuse_if_closing()?;
            let left = deadline - self.env().now_ms();
            if left <= 0 {
                break;
            }
            env::within(self.env_handle(), left, listener.changed()).await;
            (flow, counts) = self.visible_flow(caller, id).await?;
        }
        let policy = flow.cancellation.as_ref().map(|cancellation| cancellation.policy).unwrap_or_default();
        let (members, _) = self.flow_members(id, CANCELLABLE, None, |member| concerns(policy, member)).await?;
        if !outstanding(&flow) || counts.ended() == counts.total() {
            // Cancelling a member cannot fail for good: a crash or a conflict only makes it take longer.
            return Ok(CancelFlowResult::Cancelled { policy, members, failed: Vec::new() });
        }
        Ok(CancelFlowResult::CancellationScheduled { policy, member_count: flow.node_count, members })
    }
}

/// Where members may be that a cancellation concerns: those that have not ended, and those that it has ended.
const CANCELLABLE: &[PublicState] = &[
    PublicState::Waiting,
    PublicState::Delayed,
    PublicState::RateLimited,
    PublicState::WaitingChildren,
    PublicState::Active,
    PublicState::Suspended,
    PublicState::Cancelled,
];

/// Whether a cancellation with this policy ends a member, or has ended it.
fn concerns(policy: CancelFlowPolicy, member: &Execution) -> bool {
    match (&member.cancellation, policy) {
        (Some(cancellation), _) => cancellation.source == CancelSource::Flow,
        (None, CancelFlowPolicy::CancelAll) => true,
        (None, CancelFlowPolicy::CancelPending) => !member.has_started(),
        (None, CancelFlowPolicy::FlowOnly) => false,
    }
}

/// What a cancellation found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Found {
    had_ended: bool,
}

impl Command for Request<'_, CancelFlow> {
    type Outcome = Found;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Found> {
        let mut flow = load_flow(tx, self.caller, &self.args.flow_id).await?;
        // Its last member may have ended without anybody having looked at the flow since.
        let ended_now = flow.ended.is_none() && flow.node_count > 0 && end_if_complete(tx, &mut flow).await?;
        if flow.ended.is_some() {
            if ended_now {
                save_flow(tx, &flow);
            }
            return Ok(Found { had_ended: true });
        }
        let reason = self.args.reason.as_deref().unwrap_or_default();
        if flow.cancel(self.args.policy.unwrap_or_default(), reason, tx.now)? {
            if flow.node_count == 0 {
                end_if_complete(tx, &mut flow).await?;
            }
            save_flow(tx, &flow);
        }
        Ok(Found { had_ended: false })
    }
}
