//! Lists flows, newest first, over all partitions.

use ff_core::flow::{Flow, FlowState};
use ff_core::index::{self, kind};
use ff_core::op::ListFlows;
use ff_core::op::list_flows::{Args, Outcome};
use ff_core::{Family, Key, Partition, Result};
use ff_store::{Answer, Query, Scan};

use super::flow::{self, cursor_of, parse_cursor};
use crate::engine::{Caller, Engine, Handle};

/// Pages one call looks through; a filter that matches little answers with fewer items and a cursor.
const ROUNDS_MAX: usize = 20;

impl Handle<ListFlows> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.limits().page(args.limit)?;
        let mut after = parse_cursor(args.cursor.as_deref())?;
        let mut items = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let page = self.flow_page(&namespace, after.clone(), limit).await?;
            let full = page.len() == limit;
            for (position, found) in page {
                after = Some(position);
                let Some(found) = found.filter(|flow| matches(&args, flow)) else { continue };
                let answers = self.read(found.id.partition(), flow::count_queries(&found.id)).await?;
                let view = flow::view(&found, flow::counts(answers.answers));
                if args.state.is_none_or(|state: FlowState| state == view.state) {
                    items.push(view);
                }
                if items.len() == limit {
                    return Ok(Outcome { items, next_cursor: after.as_ref().map(cursor_of) });
                }
            }
            if !full {
                return Ok(Outcome { items, next_cursor: None });
            }
        }
        Ok(Outcome { items, next_cursor: after.as_ref().map(cursor_of) })
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

fn matches(args: &Args, flow: &Flow) -> bool {
    let tagged = |tag: &String| {
        tag.split_once('=').is_some_and(|(key, value)| flow.tags.get(key).is_some_and(|found| found == value))
    };
    args.kind.as_ref().is_none_or(|kind| *kind == flow.kind) && args.tag.as_ref().is_none_or(tagged)
}
