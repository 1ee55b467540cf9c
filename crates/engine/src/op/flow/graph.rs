//! Flows as a whole: creating, reading and cancelling them.

use ff_core::execution::{CancelSource, Execution};
use ff_core::flow::{CancelFlowPolicy, CancelFlowResult, Flow, FlowState, MemberCounts};
use ff_core::index::{self, kind};
use ff_core::op::view::{EdgeView, FlowView, GraphNode, GraphView, JoinView};
use ff_core::op::{
    CancelFlow, CancelFlowArgs, CreateFlow, CreateFlowArgs, CreateFlowOutcome, GetFlow, GetFlowArgs, GetFlowGraph,
    GetFlowGraphArgs, ListFlows, ListFlowsArgs, ListFlowsOutcome,
};
use ff_core::partition::digest16;
use ff_core::{Code, Edge, Error, Family, FlowId, IndexName, JoinPolicy, Key, Partition, PublicState, Result, limits};
use ff_store::{Answer, Query, Scan, StoredDocument};
use uuid::Uuid;

use crate::caller::Caller;
use crate::flow::{self, cursor_of, end_if_complete, load_flow, parse_cursor, save_flow};
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::view::{join, some_instant, some_text};
use crate::{cursor, env};

/// A reader of a flow whose members have all ended waits so long for its end to be decided.
const END_PATIENCE_MS: i64 = 1_000;

impl Handle<CreateFlow> for Services {
    async fn handle(&self, caller: &Caller, args: CreateFlowArgs) -> Result<CreateFlowOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let id = self.new_flow_id(&namespace, &args)?;
        let verb = self.shared.submissions.flow_to_write(caller, id, &args).await?;
        self.transactor.transact(id.partition(), self.transactor.fresh_command(), &verb).await
    }
}

impl Services {
    /// The id the caller brought, the one its key stands for, or a fresh one.
    fn new_flow_id(&self, namespace: &str, args: &CreateFlowArgs) -> Result<FlowId> {
        if let Some(id) = args.flow_id {
            id.check(self.transactor.partitions())?;
            return Ok(id);
        }
        if let Some(key) = &args.idempotency_key {
            let digest = digest16(&[b"create_flow", namespace.as_bytes(), key.as_bytes()]);
            let partition = self.transactor.partitions().key_partition(namespace, key).number;
            return Ok(FlowId { partition, uuid: Uuid::from_bytes(digest) });
        }
        Ok(FlowId::mint(self.transactor.partitions(), &env::mint(self.transactor.env(), self.transactor.now())))
    }
}

/// Shows a flow: its state is exact, because its members are counted from their index, and its end is waited for in the
/// moment after its last member has ended.
impl Handle<GetFlow> for Services {
    async fn handle(&self, caller: &Caller, args: GetFlowArgs) -> Result<FlowView> {
        let (flow, counts) = self.settled_flow(caller, &args.flow_id).await?;
        Ok(flow::view(&flow, counts))
    }
}

impl Services {
    /// A flow for an answer that shows it, with its members counted. A caller that has seen the last member end expects the flow to have
    /// ended, too, so the moment in which that is yet to be decided is waited for.
    pub(crate) async fn settled_flow(&self, caller: &Caller, id: &FlowId) -> Result<(Flow, MemberCounts)> {
        let found = self.transactor.visible_flow(caller, id).await?;
        if !found.0.is_about_to_end(&found.1) {
            return Ok(found);
        }
        let deadline = self.transactor.env().now_ms() + END_PATIENCE_MS;
        let mut listener = self.shared.board.listen(id.partition(), Flow::key_of(id));
        loop {
            let (flow, counts) = self.transactor.visible_flow(caller, id).await?;
            let left = deadline - self.transactor.env().now_ms();
            if left <= 0 || !flow.is_about_to_end(&counts) || self.transactor.refuse_if_closing().is_err() {
                return Ok((flow, counts));
            }
            env::within(self.transactor.env_handle(), left, listener.changed()).await;
        }
    }
}

/// Pages one call looks through; a filter that matches little answers with fewer items and a cursor.
const LISTING_ROUNDS_MAX: usize = 20;

impl Handle<ListFlows> for Services {
    async fn handle(&self, caller: &Caller, args: ListFlowsArgs) -> Result<ListFlowsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.transactor.limits().page(args.limit)?;
        let mut after = parse_cursor(args.cursor.as_deref())?;
        let mut items = Vec::new();
        for _ in 0..LISTING_ROUNDS_MAX {
            let page = self.flow_page(&namespace, after.clone(), limit).await?;
            let full = page.len() == limit;
            for (position, found) in page {
                after = Some(position);
                let Some(found) = found.filter(|flow| flow_matches(&args, flow)) else { continue };
                let answers = self.transactor.read(found.id.partition(), flow::count_queries(&found.id)).await?;
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

impl Services {
    /// The next flows of a namespace. Places are comparable across partitions, so one place is a cursor over all.
    async fn flow_page(&self, namespace: &str, after: Option<(i64, Key)>, limit: usize) -> Result<Vec<Listed>> {
        let mut scan = Scan::last(index::listing(kind::FLOW, namespace), limit).with_documents();
        scan.after = after;
        let partitions: Vec<Partition> =
            self.transactor.partitions().all().filter(|partition| partition.family == Family::Flow).collect();
        let reads =
            partitions.into_iter().map(|partition| self.transactor.read(partition, vec![Query::Scan(scan.clone())]));
        let mut listed = Vec::new();
        for answers in futures_util::future::try_join_all(reads).await? {
            for entry in answers.into_only(Answer::into_scan).map_err(ff_core::Error::from)?.entries {
                let flow = entry.document.and_then(|stored| self.transactor.readable::<Flow>(&stored));
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

impl Handle<GetFlowGraph> for Services {
    async fn handle(&self, caller: &Caller, args: GetFlowGraphArgs) -> Result<GraphView> {
        let (found, counts) = self.settled_flow(caller, &args.flow_id).await?;
        let members = self.members(&found).await?;
        let edges = self.edges(&found, &members).await?;
        Ok(GraphView { flow: flow::view(&found, counts), nodes: members.iter().map(node).collect(), edges })
    }
}

impl Services {
    /// Every member, oldest first.
    async fn members(&self, flow: &Flow) -> Result<Vec<Execution>> {
        let mut members = std::collections::BTreeMap::new();
        let indexes = PublicState::ALL.iter().map(|state| index::member(flow.id.uuid, *state)).collect();
        for stored in self.everything(flow, indexes).await? {
            // One that changed its state while it was looked at may have been seen twice.
            if let Some(member) = self.transactor.readable::<Execution>(&stored) {
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
                stored
                    .iter()
                    .filter_map(|stored| self.transactor.readable(stored))
                    .map(|edge: Edge| flow::edge_view(&edge)),
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
            let answers = self.transactor.read(flow.id.partition(), queries).await?.answers;
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
        join: member.join.as_deref().map_or_else(without_upstreams, join),
        attempt: member.attempt.as_ref().map(|attempt| attempt.index),
        created_at: member.created_at,
        started_at: some_instant(member.started_at),
        completed_at: some_instant(member.ended_at),
    }
}

impl Handle<CancelFlow> for Services {
    async fn handle(&self, caller: &Caller, args: CancelFlowArgs) -> Result<CancelFlowResult> {
        let id = &args.flow_id;
        self.transactor.check_flow_id(id)?;
        let members_seen = self.transactor.check_lanes_of_members(caller, id).await?;
        let identity = self.transactor.callers_identity::<CancelFlow>(caller, &args, None);
        self.transactor.answer_once(id.partition(), identity, self.cancel_flow(caller, &args, members_seen)).await
    }
}

impl Services {
    async fn cancel_flow(
        &self,
        caller: &Caller,
        args: &CancelFlowArgs,
        members_seen: Option<u32>,
    ) -> Result<CancelFlowResult> {
        let id = &args.flow_id;
        let after = cursor::decode::<(i64, Vec<u8>)>(args.cursor.as_deref())?;
        let deadline = self.transactor.env().now_ms() + limits::WAIT_MAX_MS;
        let mut listener = self.shared.board.listen(id.partition(), Flow::key_of(id));
        let verb = BeginCancellation { caller, args, members_seen };
        let identity = self.transactor.identity::<CancelFlow>(caller, args, None);
        let found = self.transactor.transact_once(id.partition(), identity, &verb).await?;
        // A repeat finds it further on than the first call left it.
        let (mut flow, mut counts) = self.transactor.visible_flow(caller, id).await?;
        let outstanding = |flow: &Flow| flow.cancellation.as_ref().is_some_and(|cancellation| cancellation.outstanding);
        while args.wait && outstanding(&flow) {
            self.transactor.refuse_if_closing()?;
            let left = deadline - self.transactor.env().now_ms();
            if left <= 0 {
                break;
            }
            env::within(self.transactor.env_handle(), left, listener.changed()).await;
            (flow, counts) = self.transactor.visible_flow(caller, id).await?;
        }
        if found.had_ended {
            let (members, next_cursor) = self.transactor.flow_members(id, PublicState::ALL, after, |_| true).await?;
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
        let policy = flow.cancellation.as_ref().map(|cancellation| cancellation.policy).unwrap_or_default();
        let (members, _) =
            self.transactor.flow_members(id, CANCELLABLE, None, |member| concerns(policy, member)).await?;
        if !outstanding(&flow) || counts.ended() == counts.total() {
            // Cancelling a member cannot fail for good: a crash or a conflict only makes it take longer.
            let member_count = flow.node_count;
            return Ok(CancelFlowResult::Cancelled { policy, member_count, members, failed: Vec::new() });
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
        (None, CancelFlowPolicy::FlowOnly | CancelFlowPolicy::Unknown(_)) => false,
    }
}

/// The findings of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Found {
    /// It had ended, or had been cancelled by another call.
    had_ended: bool,
}

struct BeginCancellation<'a> {
    caller: &'a Caller,
    args: &'a CancelFlowArgs,
    /// How many members were seen to be in the caller's lanes, if its token is limited to lanes.
    members_seen: Option<u32>,
}

impl Command for BeginCancellation<'_> {
    type Outcome = Found;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Found> {
        let mut flow = load_flow(tx, self.caller, &self.args.flow_id).await?;
        // Its last member may have ended without a look at the flow since.
        let ended_now = flow.ended.is_none() && flow.node_count > 0 && end_if_complete(tx, &mut flow).await?;
        if flow.ended.is_some() {
            if ended_now {
                save_flow(tx, &flow);
            }
            return Ok(Found { had_ended: true });
        }
        if self.members_seen.is_some_and(|seen| seen != flow.node_count) {
            // The new member may be in any lane; a repeat looks at it.
            return Err(Error::new(Code::Contention, "the flow got another member meanwhile").retry_after(100));
        }
        let reason = self.args.reason.as_deref().unwrap_or_default();
        let began = flow.cancel(self.args.policy.unwrap_or_default(), reason, tx.now)?;
        if began {
            if flow.node_count == 0 {
                end_if_complete(tx, &mut flow).await?;
            }
            save_flow(tx, &flow);
        }
        Ok(Found { had_ended: !began })
    }
}
