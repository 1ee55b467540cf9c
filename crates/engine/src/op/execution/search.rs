//! Lists executions by (creation, partition, id), over all partitions, newest or oldest first.
//!
//! The page is a merge of ordered indexes. The cursor is a place in that order, so an execution that changes its state
//! between two pages is neither shown twice nor passed over: its place stays the same. All indexes that can be scanned
//! have the same order, so the next page may scan another one than the last.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ff_core::execution::Execution;
use ff_core::op::{ListExecutions, ListExecutionsArgs, ListExecutionsOutcome, ListOrder};
use ff_core::{Partition, Result, limits};
use ff_store::{IndexEntry, Query, Scan};
use uuid::Uuid;

use crate::caller::Caller;
use crate::op::Handle;
use crate::search::{CHUNK_MIN, Filter, Position};
use crate::services::Services;
use crate::{cursor, view};

/// Entries one call looks at; a filter that matches little answers with fewer items and a cursor.
const SCANNED_MAX: usize = 5_000;

impl Handle<ListExecutions> for Services {
    async fn handle(&self, caller: &Caller, args: ListExecutionsArgs) -> Result<ListExecutionsOutcome> {
        let filter = self.transactor.filter(caller.namespace(args.namespace.as_deref())?, &args).await?;
        let limit = self.transactor.limits().page(args.limit)?;
        let after = cursor::decode::<Position>(args.cursor.as_deref())?;
        let mut sources = self.sources(&filter, after).await?;
        let partitions: BTreeSet<Partition> = sources.iter().map(|source| source.partition).collect();
        let chunk = (limit / partitions.len().max(1)).clamp(CHUNK_MIN, limits::PAGE_MAX);
        sources.iter_mut().for_each(|source| source.scan.limit = chunk);
        let mut items = Vec::new();
        let mut position = after;
        let mut seen = BTreeSet::new();
        // The first entry of each source, so that the next of all is found without looking at every source.
        let mut heads = BTreeSet::new();
        self.refill(&filter, position, &mut sources, &mut heads).await?;
        for _ in 0..SCANNED_MAX {
            let next = match filter.order() {
                ListOrder::Newest => heads.pop_last(),
                ListOrder::Oldest => heads.pop_first(),
            };
            let Some((head, place)) = next else { return Ok(ListExecutionsOutcome { items, next_cursor: None }) };
            // Another entry is there, so the page that is full now has a successor.
            if items.len() == limit {
                break;
            }
            position = Some(head);
            let entry = sources[place].buffer.pop_front().and_then(|entry| entry.document);
            match sources[place].head() {
                Some(following) => drop(heads.insert((following, place))),
                None => self.refill(&filter, position, &mut sources, &mut heads).await?,
            }
            let Some(execution) = entry.and_then(|stored| self.transactor.readable::<Execution>(&stored)) else {
                continue;
            };
            if filter.matches(&execution) && seen.insert(execution.id) {
                items.push(view::summary(&execution));
            }
        }
        Ok(ListExecutionsOutcome { items, next_cursor: position.map(|position| cursor::encode(&position)) })
    }
}

/// One ordered index of one partition, read in chunks.
struct Source {
    partition: Partition,
    scan: Scan,
    buffer: VecDeque<IndexEntry>,
    exhausted: bool,
    /// It was read before.
    asked: bool,
}

impl Source {
    fn head(&self) -> Option<Position> {
        let entry = self.buffer.front()?;
        let uuid = entry.member.uuid().unwrap_or(Uuid::nil());
        Some((entry.score, self.partition.number, uuid.into_bytes()))
    }
}

impl Source {
    /// Empties the buffer, and says what fills it again from behind a position on; `None` when nothing of it can be there.
    /// A buffer that ran dry is filled with twice as much.
    fn ask_behind(&mut self, filter: &Filter<'_>, position: Option<Position>) -> Option<Scan> {
        let ran_dry = self.buffer.is_empty() && !self.exhausted;
        let limit = if ran_dry && self.asked { self.scan.limit * 2 } else { self.scan.limit };
        self.asked = true;
        self.buffer.clear();
        self.exhausted = true;
        self.scan = Scan {
            limit: limit.min(limits::PAGE_MAX),
            ..filter.scan(self.partition, self.scan.index.clone(), position)?
        };
        Some(self.scan.clone())
    }
}

impl Services {
    async fn sources(&self, filter: &Filter<'_>, after: Option<Position>) -> Result<Vec<Source>> {
        let partitions: Vec<Partition> = self.transactor.searched(filter).collect();
        let indexes = self.transactor.searched_indexes(filter, &partitions).await?;
        let places = partitions.into_iter().flat_map(|at| indexes.iter().map(move |index| (at, index.clone())));
        let source = |(partition, index)| {
            let scan = filter.scan(partition, index, after)?;
            Some(Source { partition, scan, buffer: VecDeque::new(), exhausted: false, asked: false })
        };
        Ok(places.filter_map(source).collect())
    }

    /// Reads on where a buffer ran dry: one read for each partition, of all its sources. An execution that changes its state
    /// between two reads moves from one source to another, and would be missed if only the dry one were read again. A
    /// filter that lets little through reads twice as much each time, so that a page costs few reads however far it has
    /// to look.
    async fn refill(
        &self,
        filter: &Filter<'_>,
        position: Option<Position>,
        sources: &mut [Source],
        heads: &mut BTreeSet<(Position, usize)>,
    ) -> Result<()> {
        let is_dry = |source: &&Source| source.buffer.is_empty() && !source.exhausted;
        let dry: BTreeSet<Partition> = sources.iter().filter(is_dry).map(|source| source.partition).collect();
        let mut asked: BTreeMap<Partition, (Vec<usize>, Vec<Query>)> = BTreeMap::new();
        for (place, source) in sources.iter_mut().enumerate().filter(|(_, source)| dry.contains(&source.partition)) {
            if let Some(head) = source.head() {
                heads.remove(&(head, place));
            }
            if let Some(scan) = source.ask_behind(filter, position) {
                let (places, queries) = asked.entry(source.partition).or_default();
                places.push(place);
                queries.push(Query::Scan(scan));
            }
        }
        let reads = asked.into_iter().map(|(partition, (places, queries))| async move {
            (places, self.transactor.read(partition, queries).await)
        });
        for (places, answers) in futures_util::future::join_all(reads).await {
            for (place, answer) in places.into_iter().zip(answers?.answers) {
                let page = answer.into_scan().unwrap_or_default();
                let source = &mut sources[place];
                source.exhausted = page.entries.len() < source.scan.limit;
                source.buffer.extend(page.entries);
                heads.extend(source.head().map(|head| (head, place)));
            }
        }
        Ok(())
    }
}
