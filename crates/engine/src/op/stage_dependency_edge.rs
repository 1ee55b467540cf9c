//! Puts an edge into a flow's graph, unless it would close a cycle.

use ff_core::op::StageDependencyEdge;
use ff_core::op::stage_dependency_edge::{Args, Outcome};
use ff_core::{Code, CycleSearch, Document, Edge, Error, ExecutionId, Indexed, Key, NewEdge, Result, index};
use ff_store::{Answer, Query, Scan};

use super::flow::{load_flow, load_member, new_edge, save_flow};
use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

/// Executions whose downstreams are read at once.
const EXPAND_AT_ONCE: usize = 32;
/// Edges read at once of one execution.
const EDGES_PAGE: usize = 500;

impl Handle<StageDependencyEdge> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_flow_id(&args.flow_id)?;
        let partition = args.flow_id.partition();
        let identity = self.callers_identity::<StageDependencyEdge>(caller, &args, None);
        self.transact_once(partition, identity, &Verb { caller, args: &args }).await
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    args: &'a Args,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let args = self.args;
        let mut flow = load_flow(tx, self.caller, &args.flow_id).await?;
        let new = NewEdge {
            kind: args.kind.clone().unwrap_or_default(),
            data_ref: args.data_ref.clone(),
            ..new_edge(&flow.id, args.upstream, args.downstream)
        };
        for end in [&args.upstream, &args.downstream] {
            load_member(tx, &flow, end).await?;
        }
        let edge = Edge::stage(new.clone(), tx.now)?;
        if let Some(existing) = tx.load::<Edge>(edge.key()).await? {
            existing.document.check_same(&new)?;
            return Ok(Outcome::Staged { edge_id: edge.id, graph_revision: flow.graph_revision });
        }
        let graph_revision = flow.stage_edge(args.expected_graph_revision)?;
        // Every edge changes the flow, which this commit guards: what the search has not seen is not there.
        refuse_cycle(tx, args.upstream, args.downstream).await?;
        tx.save(&edge);
        save_flow(tx, &flow);
        Ok(Outcome::Staged { edge_id: edge.id, graph_revision })
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
