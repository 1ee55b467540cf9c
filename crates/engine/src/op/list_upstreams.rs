//! Lists what an execution depends on and the children it spawned, with outcomes and, if asked for, results.

use ff_core::execution::Execution;
use ff_core::op::ListUpstreams;
use ff_core::op::list_upstreams::{Args, Outcome};
use ff_core::op::view::UpstreamView;
use ff_core::{Edge, Result, index};
use ff_store::{Answer, Query, Scan};

use super::flow::{cursor_of, parse_cursor};
use super::payload::Which;
use super::view::{failure, some_text};
use crate::engine::{Caller, Engine, Handle};

impl Handle<ListUpstreams> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        let limit = self.limits().page(args.limit)?;
        let mut after = parse_cursor(args.cursor.as_deref())?;
        let mut items = Vec::new();
        loop {
            let mut scan = Scan::first(index::edges_to(execution.id.uuid), limit).with_documents();
            scan.after = after;
            let answers = self.read(execution.id.partition(), vec![Query::Scan(scan)]).await?;
            let page = answers.into_only(Answer::into_scan).map_err(ff_core::Error::from)?;
            let full = page.entries.len() == limit;
            after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            let mut edges = Vec::new();
            for entry in page.entries {
                let edge = entry.document.and_then(|stored| self.readable::<Edge>(&stored));
                edges.extend(edge.map(|edge| ((entry.score, entry.member), edge)));
            }
            edges.retain(|(_, edge)| args.edge_id.is_none_or(|wanted| wanted == edge.id));
            let keys = edges.iter().map(|(_, edge)| Execution::key_of(&edge.upstream)).collect();
            let upstreams = self.store().documents(execution.id.partition(), keys).await?;
            for ((position, edge), stored) in edges.into_iter().zip(upstreams) {
                let Some(upstream) = stored.and_then(|stored| self.readable::<Execution>(&stored)) else { continue };
                if args.node.as_ref().is_some_and(|node| *node != upstream.node) {
                    continue;
                }
                items.push(self.upstream(&edge, &upstream, args.results).await?);
                if items.len() == limit {
                    let at_the_end = !full && after.as_ref() == Some(&position);
                    return Ok(Outcome { items, next_cursor: (!at_the_end).then(|| cursor_of(&position)) });
                }
            }
            if !full {
                return Ok(Outcome { items, next_cursor: None });
            }
        }
    }
}

impl Engine {
    async fn upstream(&self, edge: &Edge, upstream: &Execution, results: bool) -> Result<UpstreamView> {
        let result = match upstream.result.as_ref().filter(|_| results) {
            Some(result) => Some(self.content(Which::Result, &upstream.id, result).await?),
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
