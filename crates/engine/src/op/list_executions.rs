//! Lists executions, newest first by (creation, partition, id), over all partitions.
//!
//! The page is a merge of ordered indexes. The cursor is a place in that order, so an execution that changes its state
//! between two pages is neither shown twice nor passed over: its place stays the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ff_core::execution::Execution;
use ff_core::op::ListExecutions;
use ff_core::op::list_executions::{Args, Outcome};
use ff_core::{IndexName, Key, Partition, PublicState, Result, index, limits};
use ff_store::{IndexEntry, Query, Scan};
use uuid::Uuid;

use super::view;
use crate::cursor;
use crate::engine::{Caller, Engine, Handle};

/// Entries one call looks at; a filter that matches little answers with fewer items and a cursor.
const SCANNED_MAX: usize = 10_000;
/// Entries read at once from each index at the least.
const CHUNK_MIN: usize = 16;

/// A place in the list: creation, partition, id.
type Position = (i64, u16, [u8; 16]);

impl Handle<ListExecutions> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.limits().page(args.limit)?;
        let after = cursor::decode::<Position>(args.cursor.as_deref())?;
        let mut sources = self.sources(&namespace, &args, after)?;
        let partitions: BTreeSet<Partition> = sources.iter().map(|source| source.partition).collect();
        let chunk = (limit / partitions.len().max(1)).clamp(CHUNK_MIN, limits::PAGE_MAX);
        let mut items = Vec::new();
        let mut position = after;
        let mut seen = BTreeSet::new();
        for _ in 0..SCANNED_MAX {
            self.refill(&mut sources, chunk).await?;
            let head = sources.iter_mut().filter(|source| source.head().is_some()).max_by_key(|source| source.head());
            let Some(source) = head else { return Ok(Outcome { items, next_cursor: None }) };
            // Another entry is there, so the page that is full now has a successor.
            if items.len() == limit {
                break;
            }
            position = source.head();
            let entry = source.buffer.pop_front().and_then(|entry| entry.document);
            let Some(execution) = entry.and_then(|stored| self.readable::<Execution>(&stored)) else { continue };
            if matches(&namespace, &args, &execution)? && seen.insert(execution.id) {
                items.push(view::summary(&execution));
            }
        }
        Ok(Outcome { items, next_cursor: position.map(|position| cursor::encode(&position)) })
    }
}

/// One ordered index of one partition, read in chunks.
struct Source {
    partition: Partition,
    scan: Scan,
    buffer: VecDeque<IndexEntry>,
    exhausted: bool,
}

impl Source {
    fn head(&self) -> Option<Position> {
        let entry = self.buffer.front()?;
        let uuid = entry.member.uuid().unwrap_or(Uuid::nil());
        Some((entry.score, self.partition.number, uuid.into_bytes()))
    }
}

impl Engine {
    /// The narrowest indexes that hold everything the filters can match.
    fn sources(&self, namespace: &str, args: &Args, after: Option<Position>) -> Result<Vec<Source>> {
        let states = args.state.as_ref().map_or(PublicState::ALL, std::slice::from_ref);
        let mut sources = Vec::new();
        let mut add = |partition: Partition, index: IndexName| {
            sources.extend(scan_from(partition, index, args, after).map(|scan| Source {
                partition,
                scan,
                buffer: VecDeque::new(),
                exhausted: false,
            }));
        };
        if let Some(flow) = &args.flow_id {
            if flow.check(self.partitions()).is_ok() {
                states.iter().for_each(|state| add(flow.partition(), index::member(flow.uuid, *state)));
            }
            return Ok(sources);
        }
        for partition in self.flow_partitions() {
            match args.tag()? {
                Some((key, value)) => add(partition, index::tag(namespace, key, value)),
                None => states.iter().for_each(|state| add(partition, index::state(namespace, *state))),
            }
        }
        Ok(sources)
    }

    /// Reads on where a buffer ran dry: one read for each partition.
    async fn refill(&self, sources: &mut [Source], chunk: usize) -> Result<()> {
        let mut dry: BTreeMap<Partition, Vec<usize>> = BTreeMap::new();
        for (place, source) in sources.iter().enumerate() {
            if source.buffer.is_empty() && !source.exhausted {
                dry.entry(source.partition).or_default().push(place);
            }
        }
        if dry.is_empty() {
            return Ok(());
        }
        let reads = dry.into_iter().map(|(partition, places)| {
            let scans = places.iter().map(|place| Scan { limit: chunk, ..sources[*place].scan.clone() });
            let queries: Vec<Query> = scans.map(Query::Scan).collect();
            async move { (places, self.read(partition, queries).await) }
        });
        for (places, answers) in futures_util::future::join_all(reads).await {
            for (place, answer) in places.into_iter().zip(answers?.answers) {
                let page = answer.into_scan().unwrap_or_default();
                let source = &mut sources[place];
                source.exhausted = page.entries.len() < chunk;
                if let Some(last) = page.entries.last() {
                    source.scan.after = Some((last.score, last.member.clone()));
                }
                source.buffer.extend(page.entries);
            }
        }
        Ok(())
    }
}

/// The part of an index behind a position; `None` when nothing of it can be there.
fn scan_from(partition: Partition, index: IndexName, args: &Args, after: Option<Position>) -> Option<Scan> {
    let mut scan = Scan::last(index, CHUNK_MIN).with_documents();
    scan.min = args.created_from.unwrap_or(i64::MIN);
    scan.max = args.created_to.map_or(i64::MAX, |to| to.saturating_sub(1));
    if let Some((created_at, number, uuid)) = after {
        // At the same instant, higher partitions were shown and lower ones were not.
        match partition.number.cmp(&number) {
            std::cmp::Ordering::Less => scan.max = scan.max.min(created_at),
            std::cmp::Ordering::Greater => scan.max = scan.max.min(created_at.saturating_sub(1)),
            std::cmp::Ordering::Equal => {
                scan.max = scan.max.min(created_at);
                scan.after = Some((created_at, Key::new(index::kind::EXECUTION, &[&uuid])));
            }
        }
    }
    (scan.min <= scan.max).then_some(scan)
}

fn matches(namespace: &str, args: &Args, execution: &Execution) -> Result<bool> {
    let tag = args.tag()?;
    Ok(execution.namespace == namespace
        && args.state.is_none_or(|state| state == execution.public_state())
        && args.lane.as_ref().is_none_or(|lane| *lane == execution.lane)
        && args.kind.as_ref().is_none_or(|kind| *kind == execution.kind)
        && args.flow_id.is_none_or(|flow| execution.flow == Some(flow))
        && tag.is_none_or(|(key, value)| execution.tags.get(key).is_some_and(|found| found == value)))
}
