//! Lists executions by (creation, partition, id), over all partitions, newest or oldest first.
//!
//! The page is a merge of ordered indexes. The cursor is a place in that order, so an execution that changes its state
//! between two pages is neither shown twice nor passed over: its place stays the same. All indexes that can be scanned
//! have the same order, so the next page may scan another one than the last.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ff_core::execution::Execution;
use ff_core::op::{ListExecutions, ListExecutionsArgs, ListExecutionsOutcome, ListOrder};
use ff_core::{IndexName, Key, Partition, PublicState, Result, index, limits};
use ff_store::{Answer, IndexEntry, Query, Scan};
use uuid::Uuid;

use crate::engine::{Caller, Engine, Handle};
use crate::{cursor, view};

/// Entries one call looks at; a filter that matches little answers with fewer items and a cursor.
const SCANNED_MAX: usize = 10_000;
/// Entries read at once from each index at the least.
const CHUNK_MIN: usize = 16;

/// A place in the list: creation, partition, id.
type Position = (i64, u16, [u8; 16]);

impl Handle<ListExecutions> for Engine {
    async fn handle(&self, caller: &Caller, args: ListExecutionsArgs) -> Result<ListExecutionsOutcome> {
        let filter = Filter::new(caller.namespace(args.namespace.as_deref())?, &args)?;
        let limit = self.limits().page(args.limit)?;
        let after = cursor::decode::<Position>(args.cursor.as_deref())?;
        let mut sources = self.sources(&filter, after).await?;
        let partitions: BTreeSet<Partition> = sources.iter().map(|source| source.partition).collect();
        let chunk = (limit / partitions.len().max(1)).clamp(CHUNK_MIN, limits::PAGE_MAX);
        let mut items = Vec::new();
        let mut position = after;
        let mut seen = BTreeSet::new();
        for _ in 0..SCANNED_MAX {
            self.refill(&mut sources, chunk).await?;
            let heads = sources.iter_mut().filter(|source| source.head().is_some());
            let head = match filter.order() {
                ListOrder::Newest => heads.max_by_key(|source| source.head()),
                ListOrder::Oldest => heads.min_by_key(|source| source.head()),
            };
            let Some(source) = head else { return Ok(ListExecutionsOutcome { items, next_cursor: None }) };
            // Another entry is there, so the page that is full now has a successor.
            if items.len() == limit {
                break;
            }
            position = source.head();
            let entry = source.buffer.pop_front().and_then(|entry| entry.document);
            let Some(execution) = entry.and_then(|stored| self.readable::<Execution>(&stored)) else { continue };
            if filter.matches(&execution) && seen.insert(execution.id) {
                items.push(view::summary(&execution));
            }
        }
        Ok(ListExecutionsOutcome { items, next_cursor: position.map(|position| cursor::encode(&position)) })
    }
}

/// The filters of one call, read once.
struct Filter<'a> {
    namespace: String,
    args: &'a ListExecutionsArgs,
    states: Vec<PublicState>,
    tags: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Filter<'a> {
    fn new(namespace: String, args: &'a ListExecutionsArgs) -> Result<Self> {
        Ok(Self { namespace, args, states: args.states(), tags: args.tags()? })
    }

    fn order(&self) -> ListOrder {
        self.args.order.unwrap_or_default()
    }

    /// The sets of indexes each of which holds everything that the filters can match.
    fn candidates(&self) -> Vec<Vec<IndexName>> {
        let namespace = &self.namespace;
        let by_state = self.states.iter().map(|state| index::state(namespace, *state)).collect();
        let by_tag = self.tags.iter().map(|(key, values)| {
            let values: BTreeSet<&str> = values.iter().copied().collect();
            values.into_iter().map(|value| index::tag(namespace, key, value)).collect()
        });
        by_tag.chain([by_state]).collect()
    }

    fn matches(&self, execution: &Execution) -> bool {
        let args = self.args;
        let among = |values: &[String], value: &str| values.is_empty() || values.iter().any(|one| one == value);
        let tagged = |(key, values): (&&str, &Vec<&str>)| {
            execution.tags.get(*key).is_some_and(|found| values.contains(&found.as_str()))
        };
        let failure = execution.failure.as_ref().map_or("", |failure| failure.category.as_str());
        let holder = execution.lease.as_ref().filter(|lease| lease.ended_at == 0).map(|lease| &lease.instance_id);
        let ended = args.ended_from.is_none() && args.ended_to.is_none() || execution.ended_at != 0;
        execution.namespace == self.namespace
            && self.states.contains(&execution.public_state())
            && among(&args.lane, &execution.lane)
            && among(&args.kind, &execution.kind)
            && among(&args.failure_category, failure)
            && args.flow_id.is_none_or(|flow| execution.flow == Some(flow))
            && args
                .schedule
                .as_ref()
                .is_none_or(|name| execution.schedule.as_ref().is_some_and(|run| run.name == *name))
            && args.worker.as_ref().is_none_or(|worker| holder == Some(worker))
            && ended
            && args.ended_from.is_none_or(|from| execution.ended_at >= from)
            && args.ended_to.is_none_or(|to| execution.ended_at < to)
            && self.tags.iter().all(tagged)
    }

    /// The part of an index behind a position; `None` when nothing of it can be there.
    fn scan(&self, partition: Partition, index: IndexName, after: Option<Position>) -> Option<Scan> {
        let newest = self.order() == ListOrder::Newest;
        let mut scan = Scan { descending: newest, ..Scan::first(index, CHUNK_MIN).with_documents() };
        scan.min = self.args.created_from.unwrap_or(i64::MIN);
        scan.max = self.args.created_to.map_or(i64::MAX, |to| to.saturating_sub(1));
        if let Some((created_at, number, uuid)) = after {
            // At the same instant, partitions on one side of the position were shown and those on the other were not.
            let place = partition.number.cmp(&number);
            let shown = place == if newest { Ordering::Greater } else { Ordering::Less };
            match newest {
                true => scan.max = scan.max.min(created_at.saturating_sub(shown.into())),
                false => scan.min = scan.min.max(created_at.saturating_add(shown.into())),
            }
            if place == Ordering::Equal {
                scan.after = Some((created_at, Key::new(index::kind::EXECUTION, &[&uuid])));
            }
        }
        (scan.min <= scan.max).then_some(scan)
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
    async fn sources(&self, filter: &Filter<'_>, after: Option<Position>) -> Result<Vec<Source>> {
        let source = |partition: Partition, index: IndexName| {
            let scan = filter.scan(partition, index, after)?;
            Some(Source { partition, scan, buffer: VecDeque::new(), exhausted: false })
        };
        if let Some(flow) = &filter.args.flow_id {
            if flow.check(self.partitions()).is_err() {
                return Ok(Vec::new());
            }
            let indexes = filter.states.iter().map(|state| index::member(flow.uuid, *state));
            return Ok(indexes.filter_map(|index| source(flow.partition(), index)).collect());
        }
        let indexes = self.narrowest(filter.candidates()).await?;
        // The runs of a schedule live where it lives.
        let home = filter.args.schedule.as_ref();
        let home = home.map(|name| self.partitions().schedule_partition(&filter.namespace, name));
        let partitions = self.flow_partitions().filter(|partition| home.is_none_or(|home| home == *partition));
        let places = partitions.flat_map(|at| indexes.iter().map(move |index| (at, index.clone())));
        Ok(places.filter_map(|(partition, index)| source(partition, index)).collect())
    }

    /// The set with the fewest entries. There is something to count only where tags are asked for.
    async fn narrowest(&self, mut candidates: Vec<Vec<IndexName>>) -> Result<Vec<IndexName>> {
        if candidates.len() > 1 {
            let mut sizes = vec![0; candidates.len()];
            let counted = |index: &IndexName| Query::count_up_to(index.clone(), limits::COUNTED_MAX);
            let queries: Vec<Query> = candidates.iter().flatten().map(counted).collect();
            let reads = self.flow_partitions().map(|partition| self.read(partition, queries.clone()));
            for answers in futures_util::future::join_all(reads).await {
                let mut counts = answers?.answers.into_iter().map(|answer| Answer::into_count(answer).unwrap_or(0));
                for (size, candidate) in sizes.iter_mut().zip(&candidates) {
                    *size += counts.by_ref().take(candidate.len()).sum::<u64>();
                }
            }
            let smallest = sizes.iter().enumerate().min_by_key(|(_, size)| **size).map_or(0, |(place, _)| place);
            return Ok(candidates.swap_remove(smallest));
        }
        Ok(candidates.pop().unwrap_or_default())
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
