//! Shows the nodes and edges of a flow.

use ff_core::execution::Execution;
use ff_core::flow::Flow;
use ff_core::op::GetFlowGraph;
use ff_core::op::get_flow_graph::Args;
use ff_core::op::view::{EdgeView, GraphNode, GraphView, JoinView};
use ff_core::{Edge, IndexName, JoinPolicy, PublicState, Result, index, limits};
use ff_store::{Answer, Query, Scan, StoredDocument};

use super::flow;
use super::view::{join, some_instant, some_text};
use crate::engine::{Caller, Engine, Handle};

/// Members whose edges are read at once.
const MEMBERS_AT_ONCE: usize = 100;

impl Handle<GetFlowGraph> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<GraphView> {
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
