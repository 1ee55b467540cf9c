//! Lists executions by (creation, partition, id), over all partitions, newest or oldest first.
//!
//! The page is a merge of ordered indexes. The cursor is a place in that order, so an execution that changes its state
//! between two pages is neither shown twice nor passed over: its place stays the same. All indexes that can be scanned
//! have the same order, so the next page may scan another one than the last.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ff_core::execution::Execution;
use ff_core::op::{ListExecutions, ListExecutionsArgs, ListExecutionsOutcome, ListOrder};
use ff_core::{Edge, EdgeRole, ExecutionId, FlowId, IndexName, Key, Partition, PublicState, Result, index, limits};
use ff_store::{Answer, IndexEntry, Query, Scan};
use uuid::Uuid;

use crate::engine::{Caller, Engine, Handle};
use crate::{cursor, view};

/// Entries one call looks at; a filter that matches little answers with fewer items and a cursor.
const SCANNED_MAX: usize = 10_000;
/// Entries read at once from each index at the least.
const CHUNK_MIN: usize = 16;

/// A place in the list: creation, partition, id.
pub(crate) type Position = (i64, u16, [u8; 16]);

impl Handle<ListExecutions> for Engine {
    async fn handle(&self, caller: &Caller, args: ListExecutionsArgs) -> Result<ListExecutionsOutcome> {
        let filter = self.filter(caller.namespace(args.namespace.as_deref())?, &args).await?;
        let limit = self.limits().page(args.limit)?;
        let after = cursor::decode::<Position>(args.cursor.as_deref())?;
        let mut sources = self.sources(&filter, after).await?;
        let partitions: BTreeSet<Partition> = sources.iter().map(|source| source.partition).collect();
        let chunk = (limit / partitions.len().max(1)).clamp(CHUNK_MIN, limits::PAGE_MAX);
        sources.iter_mut().for_each(|source| source.scan.limit = chunk);
        let mut items = Vec::new();
        let mut position = after;
        let mut seen = BTreeSet::new();
        for _ in 0..SCANNED_MAX {
            self.refill(&mut sources).await?;
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
pub(crate) struct Filter<'a> {
    namespace: String,
    args: &'a ListExecutionsArgs,
    states: Vec<PublicState>,
    tags: BTreeMap<&'a str, Vec<&'a str>>,
    /// The flow in which everything is that can match, and in which partition.
    flow: Option<FlowId>,
    /// What the parent that was asked for spawned; `None` where none was asked for.
    children: Option<BTreeSet<ExecutionId>>,
}

impl<'a> Filter<'a> {
    fn new(namespace: String, args: &'a ListExecutionsArgs) -> Result<Self> {
        let (states, tags) = (args.states(), args.tags()?);
        let mut filter = Self { namespace, args, states, tags, flow: args.flow_id, children: None };
        // Other filters say something about the state, too: then fewer indexes have to be gone through.
        if args.worker.is_some() {
            filter.keep_states(|state| state == PublicState::Active);
        }
        if args.ended_from.is_some() || args.ended_to.is_some() {
            filter.keep_states(PublicState::is_terminal);
        }
        Ok(filter)
    }

    /// Only states in which this holds are asked for.
    pub(crate) fn keep_states(&mut self, keep: impl Fn(PublicState) -> bool) {
        self.states.retain(|state| keep(*state));
    }

    /// Nothing can match.
    fn match_nothing(&mut self) {
        self.states.clear();
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

    /// Whether an execution is what was asked for. One whose removal has begun reads as gone.
    pub(crate) fn matches(&self, execution: &Execution) -> bool {
        let args = self.args;
        let among = |values: &[String], value: &str| values.is_empty() || values.iter().any(|one| one == value);
        let tagged = |(key, values): (&&str, &Vec<&str>)| {
            execution.tags.get(*key).is_some_and(|found| values.contains(&found.as_str()))
        };
        let failure = execution.failure.as_ref().map_or("", |failure| failure.category.as_str());
        let holder = execution.lease.as_ref().filter(|lease| lease.ended_at == 0).map(|lease| &lease.instance_id);
        let ended = args.ended_from.is_none() && args.ended_to.is_none() || execution.ended_at != 0;
        execution.namespace == self.namespace
            && execution.removal.is_none()
            && self.children.as_ref().is_none_or(|children| children.contains(&execution.id))
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
    pub(crate) fn scan(&self, partition: Partition, index: IndexName, after: Option<Position>) -> Option<Scan> {
        let newest = self.order() == ListOrder::Newest;
        let mut scan = Scan { descending: newest, ..Scan::first(index, CHUNK_MIN).with_documents() };
        scan.min = self.args.created_from.unwrap_or(i64::MIN);
        // What ended before an instant was created before it.
        let created_to = self.args.created_to.into_iter().chain(self.args.ended_to).min();
        scan.max = created_to.map_or(i64::MAX, |to| to.saturating_sub(1));
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
    /// Reads the filters of a call, and what they refer to.
    pub(crate) async fn filter<'a>(&self, namespace: String, args: &'a ListExecutionsArgs) -> Result<Filter<'a>> {
        let mut filter = Filter::new(namespace, args)?;
        let Some(parent) = &args.parent else { return Ok(filter) };
        if parent.check(self.partitions()).is_err() {
            filter.match_nothing();
            return Ok(filter);
        }
        let found = self.find::<Execution>(parent.partition(), Execution::key_of(parent)).await?;
        // A parent has children in its own flow only; one that spawned none may have no flow at all.
        match found.filter(|found| found.namespace == filter.namespace).and_then(|found| found.flow) {
            Some(flow) if filter.flow.is_none_or(|asked| asked == flow) => {
                filter.flow = Some(flow);
                filter.children = Some(self.children_of(parent).await?);
            }
            _ => filter.match_nothing(),
        }
        Ok(filter)
    }

    /// The executions that one spawned, of which a flow bounds the number.
    async fn children_of(&self, parent: &ExecutionId) -> Result<BTreeSet<ExecutionId>> {
        let edges = self.named_in::<Edge>(parent.partition(), index::edges_to(parent.uuid), None).await?;
        let children = edges.into_iter().filter(|edge| edge.role == EdgeRole::Child);
        Ok(children.map(|edge| edge.upstream).collect())
    }

    /// The flow partitions in which something can match.
    pub(crate) fn searched<'f>(&self, filter: &'f Filter<'_>) -> impl Iterator<Item = Partition> + use<'f> {
        // The runs of a schedule live where it lives, and the members of a flow where that lives.
        let schedule = filter.args.schedule.as_ref();
        let schedule = schedule.map(|name| self.partitions().schedule_partition(&filter.namespace, name));
        let partitions: Vec<Partition> = self.flow_partitions().collect();
        let flow = filter.flow.as_ref().map(FlowId::partition);
        partitions.into_iter().filter(move |partition| {
            flow.is_none_or(|flow| flow == *partition) && schedule.is_none_or(|home| home == *partition)
        })
    }

    /// The narrowest indexes that hold everything the filters can match, in each of these partitions.
    pub(crate) async fn searched_indexes(
        &self,
        filter: &Filter<'_>,
        partitions: &[Partition],
    ) -> Result<Vec<IndexName>> {
        match &filter.flow {
            Some(flow) => Ok(filter.states.iter().map(|state| index::member(flow.uuid, *state)).collect()),
            None => self.narrowest(filter.candidates(), partitions).await,
        }
    }

    async fn sources(&self, filter: &Filter<'_>, after: Option<Position>) -> Result<Vec<Source>> {
        let partitions: Vec<Partition> = self.searched(filter).collect();
        let indexes = self.searched_indexes(filter, &partitions).await?;
        let places = partitions.into_iter().flat_map(|at| indexes.iter().map(move |index| (at, index.clone())));
        let source = |(partition, index)| {
            let scan = filter.scan(partition, index, after)?;
            Some(Source { partition, scan, buffer: VecDeque::new(), exhausted: false })
        };
        Ok(places.filter_map(source).collect())
    }

    /// The set with the fewest entries. There is something to count only where tags are asked for.
    async fn narrowest(&self, mut candidates: Vec<Vec<IndexName>>, partitions: &[Partition]) -> Result<Vec<IndexName>> {
        if candidates.len() > 1 {
            let mut sizes = vec![0; candidates.len()];
            let counted = |index: &IndexName| Query::count_up_to(index.clone(), limits::COUNTED_MAX);
            let queries: Vec<Query> = candidates.iter().flatten().map(counted).collect();
            let reads = partitions.iter().map(|partition| self.read(*partition, queries.clone()));
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

    /// Reads on where a buffer ran dry: one read for each partition. A filter that lets little through reads twice as much
    /// each time, so that a page costs few reads however far it has to look.
    async fn refill(&self, sources: &mut [Source]) -> Result<()> {
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
            let scans = places.iter().map(|place| sources[*place].scan.clone());
            let queries: Vec<Query> = scans.map(Query::Scan).collect();
            async move { (places, self.read(partition, queries).await) }
        });
        for (places, answers) in futures_util::future::join_all(reads).await {
            for (place, answer) in places.into_iter().zip(answers?.answers) {
                let page = answer.into_scan().unwrap_or_default();
                let source = &mut sources[place];
                source.exhausted = page.entries.len() < source.scan.limit;
                source.scan.limit = (source.scan.limit * 2).min(limits::PAGE_MAX);
                if let Some(last) = page.entries.last() {
                    source.scan.after = Some((last.score, last.member.clone()));
                }
                source.buffer.extend(page.entries);
            }
        }
        Ok(())
    }
}
