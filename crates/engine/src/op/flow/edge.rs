//! The edges between the members of a flow.

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::op::view::UpstreamView;
use ff_core::op::{
    ApplyDependencyToChild, ApplyDependencyToChildArgs, ApplyDependencyToChildOutcome, ListUpstreams,
    ListUpstreamsArgs, ListUpstreamsOutcome, StageDependencyEdge, StageDependencyEdgeArgs, StageDependencyEdgeOutcome,
};
use ff_core::{
    Code, CycleSearch, Document, Edge, EdgeState, Error, ExecutionId, Indexed, Join, Key, NewEdge, Result, index,
};
use ff_store::{Answer, Query, Scan};

use crate::caller::Caller;
use crate::flow::{
    cancel_siblings, check_cancellable, connect, cursor_of, load_flow, load_member, new_edge, parse_cursor, save_flow,
};
use crate::op::{Handle, Request};
use crate::payload::Which;
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::view::{failure, some_text};
use crate::visibility::check_reachable;

/// Executions whose downstreams are read at once.
const EXPAND_AT_ONCE: usize = 32;
/// Edges read at once of one execution.
const EDGES_PAGE: usize = 500;

impl Handle<StageDependencyEdge> for Services {
    async fn handle(&self, caller: &Caller, args: StageDependencyEdgeArgs) -> Result<StageDependencyEdgeOutcome> {
        self.transactor.check_flow_id(&args.flow_id)?;
        let partition = args.flow_id.partition();
        let identity = self.transactor.callers_identity::<StageDependencyEdge>(caller, &args, None);
        self.transactor
            .transact_once(partition, identity, &Request::<StageDependencyEdge> { caller, args: &args })
            .await
    }
}

impl Command for Request<'_, StageDependencyEdge> {
    type Outcome = StageDependencyEdgeOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<StageDependencyEdgeOutcome> {
        let args = self.args;
        let mut flow = load_flow(tx, self.caller, &args.flow_id).await?;
        let new = NewEdge {
            kind: args.kind.clone().unwrap_or_default(),
            data_ref: args.data_ref.clone(),
            ..new_edge(&flow.id, args.upstream, args.downstream)
        };
        load_member(tx, &flow, &args.upstream).await?;
        let downstream = load_member(tx, &flow, &args.downstream).await?;
        check_reachable(self.caller, &downstream)?;
        let edge = Edge::stage(new.clone(), tx.now)?;
        if let Some(existing) = tx.load::<Edge>(edge.key()).await? {
            existing.document.check_same(&new)?;
            return Ok(StageDependencyEdgeOutcome::Staged { edge_id: edge.id, graph_revision: flow.graph_revision });
        }
        let graph_revision = flow.stage_edge(args.expected_graph_revision)?;
        // Every edge changes the flow, which this commit guards: what the search has not seen is not there.
        refuse_cycle(tx, args.upstream, args.downstream).await?;
        tx.save(&edge);
        save_flow(tx, &flow);
        Ok(StageDependencyEdgeOutcome::Staged { edge_id: edge.id, graph_revision })
    }
}

/// Refuses an edge that would close a cycle, by following every edge from its downstream.
pub(crate) async fn refuse_cycle(tx: &mut Tx<'_>, upstream: ExecutionId, downstream: ExecutionId) -> Result<()> {
    if upstream == downstream {
        return Err(Error::new(Code::CycleDetected, "an execution would wait for itself").with("path", [upstream]));
    }
    let mut search = CycleSearch::new(upstream, downstream);
    loop {
        let wanted = search.next_wanted(EXPAND_AT_ONCE);
        if wanted.is_empty() {
            return Ok(());
        }
        let mut open: Vec<(ExecutionId, Option<(i64, Key)>)> = wanted.into_iter().map(|id| (id, None)).collect();
        while !open.is_empty() {
            let scan = |(id, after): &(ExecutionId, Option<(i64, Key)>)| {
                let mut scan = Scan::first(index::edges_from(id.uuid), EDGES_PAGE).with_documents();
                scan.after.clone_from(after);
                Query::Scan(scan)
            };
            let answers = tx.read(open.iter().map(scan).collect()).await?;
            let mut unfinished = Vec::new();
            for ((id, _), page) in open.into_iter().zip(answers.into_iter().filter_map(Answer::into_scan)) {
                let next = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
                let full = page.entries.len() == EDGES_PAGE;
                let stored = page.entries.into_iter().filter_map(|entry| entry.document);
                let edges = stored.map(|stored| Edge::decode(&stored.body)).collect::<Result<Vec<_>>>()?;
                search.expand(id, edges.into_iter().map(|edge| edge.downstream))?;
                if full {
                    unfinished.push((id, next));
                }
            }
            open = unfinished;
        }
    }
}

impl Handle<ApplyDependencyToChild> for Services {
    async fn handle(&self, caller: &Caller, args: ApplyDependencyToChildArgs) -> Result<ApplyDependencyToChildOutcome> {
        self.transactor.check_flow_id(&args.flow_id)?;
        let partition = args.flow_id.partition();
        let identity = self.transactor.callers_identity::<ApplyDependencyToChild>(caller, &args, None);
        self.transactor
            .transact_once(partition, identity, &Request::<ApplyDependencyToChild> { caller, args: &args })
            .await
    }
}

impl Command for Request<'_, ApplyDependencyToChild> {
    type Outcome = ApplyDependencyToChildOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ApplyDependencyToChildOutcome> {
        let args = self.args;
        let flow = load_flow(tx, self.caller, &args.flow_id).await?;
        let loaded = tx.load::<Edge>(Edge::key_of(&args.edge_id)).await?.map(|loaded| loaded.document);
        let edge = loaded
            .filter(|edge| edge.flow == flow.id)
            .ok_or_else(|| Error::of(Code::EdgeNotFound).with("edge_id", args.edge_id))?;
        let mut child = load_member(tx, &flow, &edge.downstream).await?;
        check_reachable(self.caller, &child)?;
        let unsatisfied = |child: &Execution| child.join.as_deref().map_or(0, Join::unsatisfied);
        if edge.state != EdgeState::Staged {
            if let (Some(join), Some(policy)) = (child.join.as_deref(), &args.join) {
                join.check_policy(policy)?;
            }
            return Ok(ApplyDependencyToChildOutcome::AlreadyApplied { unsatisfied_count: unsatisfied(&child) });
        }
        flow.check_graph(args.expected_graph_revision)?;
        tx.pin(&ff_core::Flow::key_of(&flow.id));
        let upstream = load_member(tx, &flow, &edge.upstream).await?;
        let mut effects = Effects::default();
        child.add_dependency(args.join.as_ref(), tx.now)?;
        check_cancellable(self.caller, &child, &upstream)?;
        child.expect_further_edges(flow.stays_open);
        let edge = connect(tx, edge, &upstream, &mut child, &mut effects)?;
        let unsatisfied_count = unsatisfied(&child);
        tx.save(&edge);
        tx.save_execution(&child, effects);
        let fresh = if edge.state == EdgeState::Pending { vec![edge.upstream] } else { Vec::new() };
        cancel_siblings(tx, &child, &fresh).await?;
        Ok(ApplyDependencyToChildOutcome::Applied { unsatisfied_count })
    }
}

impl Handle<ListUpstreams> for Services {
    async fn handle(&self, caller: &Caller, args: ListUpstreamsArgs) -> Result<ListUpstreamsOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let limit = self.transactor.limits().page(args.limit)?;
        let mut after = parse_cursor(args.cursor.as_deref())?;
        let mut items = Vec::new();
        loop {
            let mut scan = Scan::first(index::edges_to(execution.id.uuid), limit).with_documents();
            scan.after = after;
            let answers = self.transactor.read(execution.id.partition(), vec![Query::Scan(scan)]).await?;
            let page = answers.into_only(Answer::into_scan).map_err(ff_core::Error::from)?;
            let full = page.entries.len() == limit;
            after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            let mut edges = Vec::new();
            for entry in page.entries {
                let edge = entry.document.and_then(|stored| self.transactor.readable::<Edge>(&stored));
                edges.extend(edge.map(|edge| ((entry.score, entry.member), edge)));
            }
            edges.retain(|(_, edge)| args.edge_id.is_none_or(|wanted| wanted == edge.id));
            let keys = edges.iter().map(|(_, edge)| Execution::key_of(&edge.upstream)).collect();
            let upstreams = self.transactor.store().documents(execution.id.partition(), keys).await?;
            for ((position, edge), stored) in edges.into_iter().zip(upstreams) {
                let Some(upstream) = stored.and_then(|stored| self.transactor.readable::<Execution>(&stored)) else {
                    continue;
                };
                if args.node.as_ref().is_some_and(|node| *node != upstream.node) {
                    continue;
                }
                items.push(self.upstream(&edge, &upstream, args.results).await?);
                if items.len() == limit {
                    let at_the_end = !full && after.as_ref() == Some(&position);
                    return Ok(ListUpstreamsOutcome {
                        items,
                        next_cursor: (!at_the_end).then(|| cursor_of(&position)),
                    });
                }
            }
            if !full {
                return Ok(ListUpstreamsOutcome { items, next_cursor: None });
            }
        }
    }
}

impl Services {
    async fn upstream(&self, edge: &Edge, upstream: &Execution, results: bool) -> Result<UpstreamView> {
        let result = match upstream.result.as_ref().filter(|_| results) {
            Some(result) => Some(self.transactor.content(Which::Result, &upstream.id, result).await?),
            None => None,
        };
        Ok(UpstreamView {
            edge_id: edge.id,
            execution_id: upstream.id,
            node: some_text(&upstream.node),
            role: edge.role,
            kind: some_text(&edge.kind),
            data_ref: edge.data_ref.clone(),
            edge_state: edge.state,
            public_state: upstream.public_state(),
            last_failure: failure(upstream),
            result,
        })
    }
}
