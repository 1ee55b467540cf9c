//! The shared parts of the operations on flows: finding a flow and its members, edges to upstreams that may have ended,
//! and flows as answers show them.

use std::sync::Arc;

use ff_core::event::Effects;
use ff_core::execution::{CancelSource, Execution};
use ff_core::flow::{Flow, FlowCancellation, MemberCounts};
use ff_core::join::{JoinDecision, JoinState};
use ff_core::op::view::{EdgeView, FlowCancellationView, FlowView};
use ff_core::{
    Code, Document, Edge, EdgeRole, EdgeState, Error, ExecutionId, FlowId, Indexed, Key, NewEdge, PublicState, Result,
    Role, index, limits,
};
use ff_store::{Answer, Fence, Query, Scan};

use crate::caller::Caller;
use crate::cursor;
use crate::execution_data::close_waitpoints;
use crate::hint::Item;
use crate::transaction::{Transactor, Tx};
use crate::view::{some_instant, some_text};

/// Why upstreams that are no longer needed are cancelled.
const QUORUM_SATISFIED: &str = "sibling_quorum_satisfied";
const QUORUM_IMPOSSIBLE: &str = "sibling_quorum_impossible";

pub(crate) fn flow_not_found(id: &FlowId) -> Error {
    Error::of(Code::FlowNotFound).with("flow_id", id)
}

/// Loads a flow for a caller that may see it.
pub(crate) async fn load_flow(tx: &mut Tx<'_>, caller: &Caller, id: &FlowId) -> Result<Flow> {
    let loaded = tx.load::<Flow>(Flow::key_of(id)).await?;
    match loaded.map(|loaded| loaded.document) {
        Some(flow) if caller.sees(&flow.namespace) && !flow.removing => Ok(flow),
        _ => Err(flow_not_found(id)),
    }
}

/// The cancellation of a flow that a decision about one of its members rests on; a flow that cannot be decoded has none.
pub(crate) async fn find_cancellation(tx: &mut Tx<'_>, key: Key) -> Result<Option<FlowCancellation>> {
    let flow = tx.load_readable::<Flow>(vec![key]).await?.pop().flatten();
    Ok(flow.and_then(|loaded| loaded.document.cancellation))
}

/// Saves a flow. Claims of its members are guarded by its version, so every engine forgets the old one.
pub(crate) fn save_flow(tx: &mut Tx<'_>, flow: &Flow) {
    tx.save(flow);
    tx.hint(Item::Changed(flow.key()));
}

/// The questions whose answers [`counts`] puts together.
pub(crate) fn count_queries(flow: &FlowId) -> Vec<Query> {
    let count = |state: &PublicState| Query::count_all(index::member(flow.uuid, *state));
    PublicState::ALL.iter().map(count).collect()
}

/// Members by state, from the answers to [`count_queries`].
pub(crate) fn counts(answers: impl IntoIterator<Item = Answer>) -> MemberCounts {
    let counted = answers.into_iter().map(|answer| answer.into_count().unwrap_or(0));
    PublicState::ALL.iter().copied().zip(counted).collect()
}

/// Ends a flow whose members have all ended; returns whether it did. The caller saves the flow.
pub(crate) async fn end_if_complete(tx: &mut Tx<'_>, flow: &mut Flow) -> Result<bool> {
    let answers = tx.read(count_queries(&flow.id)).await?;
    let retention_ms = tx.transactor.options().retention_ms;
    Ok(flow.end(&counts(answers), Some(retention_ms), tx.now))
}

/// A flow as answers show it.
pub(crate) fn view(flow: &Flow, counts: MemberCounts) -> FlowView {
    FlowView {
        flow_id: flow.id,
        namespace: flow.namespace.clone(),
        kind: some_text(&flow.kind),
        tags: flow.tags.clone(),
        state: flow.state(&counts),
        member_count: flow.node_count,
        counts,
        graph_revision: flow.graph_revision,
        created_at: flow.created_at,
        ended_at: flow.ended.as_ref().and_then(|end| some_instant(end.at)),
        schedule: flow.schedule.as_ref().map(|run| run.name.clone()),
        scheduled_for: flow.schedule.as_ref().map(|run| run.scheduled_for),
        cancellation: flow.cancellation.as_ref().map(|cancellation| FlowCancellationView {
            policy: cancellation.policy,
            reason: some_text(&cancellation.reason),
            cancelled_at: cancellation.at,
        }),
    }
}

/// An edge as answers show it.
pub(crate) fn edge_view(edge: &Edge) -> EdgeView {
    EdgeView {
        edge_id: edge.id,
        upstream: edge.upstream,
        downstream: edge.downstream,
        role: edge.role,
        kind: some_text(&edge.kind),
        data_ref: edge.data_ref.clone(),
        state: edge.state,
    }
}

/// The member of a flow under an id, or the refusal. Members live beside their flow, so an id of another partition is
/// that of no member.
pub(crate) async fn load_member(tx: &mut Tx<'_>, flow: &Flow, id: &ExecutionId) -> Result<Execution> {
    if id.partition != flow.id.partition {
        return Err(not_in_flow(flow, id));
    }
    let member = tx.execution(id).await?;
    check_member(flow, &member)?;
    Ok(member)
}

pub(crate) fn check_member(flow: &Flow, execution: &Execution) -> Result<()> {
    if execution.namespace != flow.namespace {
        return Err(crate::visibility::not_found(&execution.id));
    }
    if execution.flow != Some(flow.id) {
        return Err(not_in_flow(flow, &execution.id));
    }
    Ok(())
}

fn not_in_flow(flow: &Flow, id: &ExecutionId) -> Error {
    Error::of(Code::ExecutionNotInFlow).with("execution_id", id).with("flow_id", flow.id)
}

/// The effect of one edge on its child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EdgeEffect {
    /// The child's upstreams that still live are to be cancelled.
    pub(crate) cancel_siblings: bool,
}

/// Applies the end of an upstream to an edge and its child, both of which the caller saves. Counters change if and only
/// if the edge does. Returns `None` if the edge was not waiting.
pub(crate) fn resolve_edge(
    edge: &mut Edge,
    upstream: &Execution,
    child: &mut Execution,
    now: i64,
    effects: &mut Effects,
) -> Result<Option<EdgeEffect>> {
    let mut resolved = edge.clone();
    let Some(success) = resolved.resolve(upstream.state.terminal_outcome, now) else { return Ok(None) };
    let decision = match edge.role {
        EdgeRole::Child => {
            child.child_ended(now)?;
            JoinDecision::StillWaiting
        }
        EdgeRole::Dependency | EdgeRole::Unknown(_) => child.upstream_ended(success, now)?,
    };
    *edge = resolved;
    if matches!(decision, JoinDecision::Impossible { .. }) && waits_for_its_first_start(child) {
        let name = if upstream.node.is_empty() { upstream.id.to_string() } else { upstream.node.clone() };
        child.skip(&format!("its upstream {name} ended {}", upstream.public_state().as_str()), now, effects)?;
    }
    Ok(Some(EdgeEffect { cancel_siblings: wants_siblings_cancelled(child) }))
}

/// Tells the end of an execution to the downstreams that wait for nothing else, in the commit that ends it. That takes
/// no read: the downstreams are known as the commit that created the graph left them, and their versions are guarded.
/// The flow's version is guarded, too; it changes with every edge, so there are no other downstreams. If any of this
/// has changed, the commit meets a conflict, and its next try leaves a mark for the resolver instead, as it does if
/// less is known or more is to be done.
pub(crate) fn tell_downstreams(tx: &mut Tx<'_>, upstream: &mut Execution) {
    let Some(flow) = upstream.flow.filter(|_| upstream.owes_resolution && !tx.is_repeat()) else { return };
    let Some(known) = tx.transactor.downstreams().take(&upstream.key()) else { return };
    let mut told = Vec::with_capacity(known.all.len());
    for (edge, child) in &known.all {
        let (mut resolved, mut freed) = (edge.clone(), Execution::clone(child));
        let mut effects = Effects::default();
        let decided = resolve_edge(&mut resolved, upstream, &mut freed, tx.now, &mut effects);
        // A downstream that lives on also keeps the flow from ending here.
        if !matches!(decided, Ok(Some(EdgeEffect { cancel_siblings: false }))) || freed.is_terminal() {
            return;
        }
        told.push((resolved, freed, effects));
    }
    for ((edge, child), (resolved, freed, effects)) in known.all.iter().zip(told) {
        tx.know(edge, known.version, Fence::default());
        tx.save(&resolved);
        tx.know(&**child, known.version, Fence::default());
        tx.save_shared(Arc::new(freed), effects);
    }
    tx.require_version(&Flow::key_of(&flow), known.version);
    upstream.owes_resolution = false;
}

pub(crate) fn waits_for_its_first_start(execution: &Execution) -> bool {
    execution.state.lifecycle_phase == ff_core::LifecyclePhase::Runnable && !execution.has_started()
}

/// Whether a child's join is decided and its upstreams that still live are to be cancelled.
pub(crate) fn wants_siblings_cancelled(child: &Execution) -> bool {
    child.join.as_ref().is_some_and(|join| {
        join.policy.cancels_remaining() && join.unsatisfied() > 0 && join.state() != JoinState::Waiting
    })
}

/// Refuses an edge to a child that may cancel its upstreams, if the caller may not cancel this one: it is in a lane that
/// the caller's token is not good for, or somebody else submitted it.
pub(crate) fn check_cancellable(caller: &Caller, child: &Execution, upstream: &Execution) -> Result<()> {
    if !child.join.as_deref().is_some_and(|join| join.policy.cancels_remaining()) {
        return Ok(());
    }
    let refuse = |why: &str| {
        let detail = format!("the join may cancel {}, {why}", upstream.id);
        Err(Error::new(Code::Forbidden, detail).with("lane", &upstream.lane).with("execution_id", upstream.id))
    };
    match caller.role {
        _ if !caller.reaches(&upstream.lane) => refuse("whose lane this token does not reach"),
        Role::Submitter if !caller.submitted(upstream) => refuse("which this token did not submit"),
        _ => Ok(()),
    }
}

/// The reason its upstreams are cancelled with.
pub(crate) fn sibling_reason(child: &Execution) -> &'static str {
    match child.join.as_deref().map(ff_core::Join::state) {
        Some(JoinState::Impossible) => QUORUM_IMPOSSIBLE,
        _ => QUORUM_SATISFIED,
    }
}

/// Upstreams of a child that it no longer needs and that may still live, at most so many, by their open edges.
pub(crate) async fn open_upstreams(tx: &mut Tx<'_>, child: &Execution, limit: usize) -> Result<Vec<ExecutionId>> {
    let mut found = Vec::new();
    let mut after: Option<(i64, Key)> = None;
    let chunk = tx.transactor.chunk(limits::RESOLVE_CHUNK);
    loop {
        let mut scan = Scan::first(index::edges_to(child.id.uuid), chunk).with_documents();
        scan.after = after.take();
        let page = tx.scan(scan).await?;
        let full = page.entries.len() == chunk;
        after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
        for stored in page.entries.into_iter().filter_map(|entry| entry.document) {
            let Some(edge) = tx.transactor.readable::<Edge>(&stored) else { continue };
            if edge.state == EdgeState::Pending && edge.role == EdgeRole::Dependency {
                found.push(edge.upstream);
            }
        }
        if !full || found.len() >= limit {
            found.truncate(limit);
            return Ok(found);
        }
    }
}

/// The other downstreams of an upstream whose edges wait for it.
pub(crate) async fn other_downstreams(
    tx: &mut Tx<'_>,
    upstream: &ExecutionId,
    child: &ExecutionId,
) -> Result<Vec<Key>> {
    let mut found = Vec::new();
    let mut after: Option<(i64, Key)> = None;
    let chunk = tx.transactor.chunk(limits::RESOLVE_CHUNK);
    loop {
        let mut scan = Scan::first(index::edges_from(upstream.uuid), chunk).with_documents();
        scan.after = after.take();
        let page = tx.scan(scan).await?;
        let full = page.entries.len() == chunk;
        after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
        for stored in page.entries.into_iter().filter_map(|entry| entry.document) {
            let Some(edge) = tx.transactor.readable::<Edge>(&stored) else { continue };
            let waits = edge.state == EdgeState::Pending && edge.role == EdgeRole::Dependency;
            if waits && edge.downstream != *child {
                found.push(Execution::key_of(&edge.downstream));
            }
        }
        if !full {
            return Ok(found);
        }
    }
}

/// Whether a downstream still needs its upstreams; it does not if its join is decided.
pub(crate) fn needs_upstreams(downstream: &Execution) -> bool {
    let decided = downstream.join.as_ref().is_some_and(|join| join.state() != JoinState::Waiting);
    !downstream.is_terminal() && !decided
}

/// Cancels an execution on behalf of its flow; returns whether it was alive. The caller saves it.
pub(crate) async fn cancel_member(
    tx: &mut Tx<'_>,
    execution: &mut Execution,
    reason: &str,
    effects: &mut Effects,
) -> Result<bool> {
    let suspension = execution.suspension.clone();
    if execution.cancel(CancelSource::Flow, reason, tx.now, effects)? == ff_core::execution::Cancelled::AlreadyEnded {
        return Ok(false);
    }
    if let Some(suspension) = suspension {
        close_waitpoints(tx, &suspension, execution).await?;
    }
    Ok(true)
}

/// Adds an applied edge from an upstream to a child that is being made or changed; an upstream that has ended takes
/// effect at once. The upstream is guarded, so that its end cannot slip in between. The caller saves the child.
pub(crate) fn connect(
    tx: &mut Tx<'_>,
    mut edge: Edge,
    upstream: &Execution,
    child: &mut Execution,
    effects: &mut Effects,
) -> Result<Edge> {
    edge.apply(tx.now);
    tx.pin(&upstream.key());
    if upstream.is_terminal() {
        resolve_edge(&mut edge, upstream, child, tx.now, effects)?;
    }
    Ok(edge)
}

/// Cancels upstreams that a child's decided join no longer needs, as many as one commit may hold. The rest are
/// cancelled when the next of them ends. `fresh` are upstreams whose edges this very commit makes.
pub(crate) async fn cancel_siblings(tx: &mut Tx<'_>, child: &Execution, fresh: &[ExecutionId]) -> Result<()> {
    if !wants_siblings_cancelled(child) {
        return Ok(());
    }
    let reason = sibling_reason(child);
    let chunk = tx.transactor.chunk(limits::RESOLVE_CHUNK);
    let mut siblings = open_upstreams(tx, child, chunk).await?;
    siblings.extend_from_slice(fresh);
    for id in siblings.into_iter().take(chunk) {
        let Some(mut sibling) = tx.find_execution(&id).await? else { continue };
        let others = other_downstreams(tx, &id, &child.id).await?;
        let others = tx.load_readable::<Execution>(others).await?;
        if others.iter().flatten().any(|other| needs_upstreams(&other.document)) {
            continue;
        }
        let mut effects = Effects::default();
        if cancel_member(tx, &mut sibling, reason, &mut effects).await? {
            tx.save_execution(&sibling, effects);
        }
    }
    Ok(())
}

/// A dependency as a request describes it.
pub(crate) fn new_edge(flow: &FlowId, upstream: ExecutionId, downstream: ExecutionId) -> NewEdge {
    NewEdge { flow: *flow, upstream, downstream, ..Default::default() }
}

/// Where a page ended, as an opaque text.
pub(crate) fn cursor_of((score, member): &(i64, Key)) -> String {
    let hex: String = member.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{score}.{hex}")
}

/// The place behind which the next page begins.
pub(crate) fn parse_cursor(cursor: Option<&str>) -> Result<Option<(i64, Key)>> {
    let Some(cursor) = cursor else { return Ok(None) };
    let parse = || {
        let (score, hex) = cursor.split_once('.')?;
        let pairs = (hex.is_ascii() && hex.len() % 2 == 0 && !hex.is_empty()).then_some(hex.len() / 2)?;
        let byte = |pair: usize| u8::from_str_radix(hex.get(2 * pair..2 * pair + 2)?, 16).ok();
        let bytes = (0..pairs).map(byte).collect::<Option<Vec<u8>>>()?;
        Some((score.parse().ok()?, Key::from_bytes(bytes)))
    };
    match parse() {
        Some(position) => Ok(Some(position)),
        None => Err(Error::invalid("cursor", "is not one that a list returned")),
    }
}

impl Transactor {
    /// Refuses a flow id whose partition this deployment does not have: nothing can live there.
    pub(crate) fn check_flow_id(&self, id: &FlowId) -> Result<()> {
        id.check(self.partitions()).map_err(|_| flow_not_found(id))
    }

    /// A flow that the caller may see, with its members counted, in one read.
    pub(crate) async fn visible_flow(&self, caller: &Caller, id: &FlowId) -> Result<(Flow, MemberCounts)> {
        self.check_flow_id(id)?;
        let mut queries = count_queries(id);
        queries.push(Query::Documents(vec![Flow::key_of(id)]));
        let mut answers = self.read(id.partition(), queries).await?.answers;
        let found = answers.pop().and_then(Answer::into_documents).and_then(|mut found| found.pop()).flatten();
        let flow = Flow::decode(&found.ok_or_else(|| flow_not_found(id))?.body)?;
        if !caller.sees(&flow.namespace) || flow.removing {
            return Err(flow_not_found(id));
        }
        Ok((flow, counts(answers)))
    }

    /// Refuses an act on a whole flow to a caller whose lanes are not those of all its members. A caller without a limit
    /// costs nothing. Says how many members were looked at: the flow may get another one before the act is committed.
    pub(crate) async fn check_lanes_of_members(&self, caller: &Caller, id: &FlowId) -> Result<Option<u32>> {
        if caller.lanes.is_empty() {
            return Ok(None);
        }
        let (flow, _) = self.visible_flow(caller, id).await?;
        let mut after = None;
        loop {
            let elsewhere = |member: &Execution| !caller.reaches(&member.lane);
            let (found, next) = self.flow_members(id, PublicState::ALL, after.take(), elsewhere).await?;
            if let Some(member) = found.first() {
                let detail = "this token does not reach the lane of every member";
                return Err(Error::new(Code::Forbidden, detail).with("execution_id", member));
            }
            if next.is_none() {
                return Ok(Some(flow.node_count));
            }
            after = cursor::decode::<(i64, Vec<u8>)>(next.as_deref())?;
        }
    }

    /// The members of a flow in some states that fit, in the order of their creation, and where the next page begins.
    pub(crate) async fn flow_members(
        &self,
        id: &FlowId,
        states: &[PublicState],
        after: Option<(i64, Vec<u8>)>,
        fits: impl Fn(&Execution) -> bool,
    ) -> Result<(Vec<ExecutionId>, Option<String>)> {
        let limit = limits::FLOW_CANCEL_LISTED_MAX;
        let scan = |state: &PublicState| {
            let mut scan = Scan::first(index::member(id.uuid, *state), limit + 1).with_documents();
            scan.after = after.as_ref().map(|(score, key)| (*score, Key::from_bytes(key)));
            Query::Scan(scan)
        };
        let answers = self.read(id.partition(), states.iter().map(scan).collect()).await?.answers;
        let mut members: Vec<(i64, Key, Option<ExecutionId>)> = Vec::new();
        for entry in answers.into_iter().filter_map(Answer::into_scan).flat_map(|page| page.entries) {
            let member = entry.document.and_then(|stored| self.readable::<Execution>(&stored));
            let member = member.filter(|member| fits(member)).map(|member| member.id);
            members.push((entry.score, entry.member, member));
        }
        members.sort();
        let more = members.len() > limit;
        members.truncate(limit);
        let last = members.last().filter(|_| more);
        let cursor = last.map(|(score, key, _)| cursor::encode(&(*score, key.as_bytes())));
        Ok((members.into_iter().filter_map(|(_, _, member)| member).collect(), cursor))
    }
}
