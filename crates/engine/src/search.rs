//! Which executions a search is about: its filters, and the narrowest indexes that hold everything they can match.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use ff_core::execution::Execution;
use ff_core::op::{ListExecutionsArgs, ListOrder};
use ff_core::{Edge, EdgeRole, ExecutionId, FlowId, IndexName, Key, Partition, PublicState, Result, index, limits};
use ff_store::{Answer, Query, Scan};

use crate::transaction::Transactor;

/// Entries read at once from each index at the least.
pub(crate) const CHUNK_MIN: usize = 16;

/// A place in the list: creation, partition, id.
pub(crate) type Position = (i64, u16, [u8; 16]);

/// The filters of one call, read once.
pub(crate) struct Filter<'a> {
    namespace: String,
    args: &'a ListExecutionsArgs,
    states: Vec<PublicState>,
    tags: BTreeMap<&'a str, Vec<&'a str>>,
    /// The flow in which everything is that can match, and in which partition.
    flow: Option<FlowId>,
    /// The children of the parent that was asked for; `None` where none was asked for.
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

    pub(crate) fn order(&self) -> ListOrder {
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
            && args.schedule.as_ref().is_none_or(|name| execution.scheduled_run().is_some_and(|run| run.name == *name))
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
        // An execution that ended before an instant was created before it.
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

impl Transactor {
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
}
