//! Counts the executions of a namespace. States are counted by their indexes, waiting work by the names of the queues it
//! stands in, so that no task pays for being counted.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::op::{Count, GetCounts, GetCountsArgs, GetCountsOutcome, WaitingCount};
use ff_core::{IndexName, Partition, PublicState, Result, index, limits};
use ff_store::{Answer, Query, Scan};
use futures_util::{StreamExt, TryStreamExt};

use crate::caller::Caller;
use crate::op::Handle;
use crate::rooms::Rooms;

/// Partitions that are read at once.
const AT_ONCE: usize = 16;
/// Queues of one partition that are looked at.
const QUEUES_MAX: usize = 1_000;
/// Entries of all queues of one partition that a store walks through for one reading.
const WALKED_MAX: u64 = 100_000;

impl Handle<GetCounts> for Rooms {
    async fn handle(&self, caller: &Caller, args: GetCountsArgs) -> Result<GetCountsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        self.services.counts.get(&namespace, || self.transactor.env().now_ms(), self.count_namespace(&namespace)).await
    }
}

/// The counts of one partition, or of several.
#[derive(Default)]
struct Counted {
    states: BTreeMap<PublicState, Count>,
    waiting: BTreeMap<(String, Option<String>), (Count, Option<i64>)>,
    at: i64,
}

impl Counted {
    fn add(&mut self, other: Counted) {
        for (state, count) in other.states {
            let sum = self.states.entry(state).or_default();
            *sum = sum.plus(count);
        }
        for (place, (count, oldest)) in other.waiting {
            let (sum, oldest_known) = self.waiting.entry(place).or_default();
            *sum = sum.plus(count);
            *oldest_known = oldest_known.iter().copied().chain(oldest).min();
        }
        self.at = self.at.max(other.at);
    }

    /// Whether a partition stopped counting although the sum could still have been shown as it is.
    fn stopped_too_soon(&self) -> bool {
        let too_soon = |count: &Count| count.more && count.value < limits::COUNTED_MAX;
        self.states.values().any(too_soon) || self.waiting.values().any(|(count, _)| too_soon(count))
    }
}

impl Rooms {
    async fn count_namespace(&self, namespace: &str) -> Result<GetCountsOutcome> {
        let sum = if self.transactor.store().counts_for_free() {
            self.count_partitions(namespace, u64::MAX - 1).await?
        } else {
            // A sum past the limit is shown as the limit, and most executions are spread evenly: each partition counts
            // twice its share first. Only where they are not spread so do all count further.
            let share = (2 * limits::COUNTED_MAX).div_ceil(u64::from(self.transactor.partitions().flow));
            let share = share.min(limits::COUNTED_MAX);
            let quick = self.count_partitions(namespace, share).await?;
            match quick.stopped_too_soon() {
                true => self.count_partitions(namespace, limits::COUNTED_MAX).await?,
                false => quick,
            }
        };
        let states = sum.states.into_iter().map(|(state, count)| (state, self.shown(count))).collect();
        let waiting = sum.waiting.into_iter().map(|((lane, kind), (count, next_created_at))| WaitingCount {
            lane,
            kind,
            count: self.shown(count),
            next_created_at,
        });
        Ok(GetCountsOutcome { namespace: namespace.to_owned(), states, waiting: waiting.collect(), counted_at: sum.at })
    }

    /// The sum over all partitions, each of which counts up to the limit.
    async fn count_partitions(&self, namespace: &str, limit: u64) -> Result<Counted> {
        let partitions = self.transactor.flow_partitions();
        let reads = partitions.map(|partition| self.count_partition(partition, namespace, limit));
        let all: Vec<Counted> = futures_util::stream::iter(reads).buffer_unordered(AT_ONCE).try_collect().await?;
        let mut sum = Counted::default();
        all.into_iter().for_each(|counted| sum.add(counted));
        Ok(sum)
    }

    /// A sum as it is shown: not past the limit, unless the store counts for free.
    fn shown(&self, count: Count) -> Count {
        match count.value > limits::COUNTED_MAX && !self.transactor.store().counts_for_free() {
            true => Count::capped(count.value, limits::COUNTED_MAX),
            false => count,
        }
    }

    async fn count_partition(&self, partition: Partition, namespace: &str, limit: u64) -> Result<Counted> {
        let states =
            PublicState::ALL.iter().map(|state| Query::count_up_to(index::state(namespace, *state), limit + 1));
        let prefix = index::queues_of_namespace(namespace);
        let names = Query::Indexes { prefix, after: None, limit: QUEUES_MAX };
        let answers = self.transactor.read(partition, states.chain([names]).collect()).await?;
        let mut counted = Counted { at: answers.at, ..Counted::default() };
        let mut answers = answers.answers.into_iter();
        for state in PublicState::ALL {
            let count = answers.next().and_then(Answer::into_count).unwrap_or(0);
            counted.states.insert(*state, Count::capped(count, limit));
        }
        let queues = answers.next().and_then(Answer::into_indexes).unwrap_or_default();
        if !queues.is_empty() {
            self.count_queues(partition, &queues, limit, &mut counted).await?;
        }
        Ok(counted)
    }

    async fn count_queues(
        &self,
        partition: Partition,
        queues: &[IndexName],
        limit: u64,
        counted: &mut Counted,
    ) -> Result<()> {
        let limit = match self.transactor.store().counts_for_free() {
            true => limit,
            false => limit.min(WALKED_MAX / queues.len() as u64),
        };
        let questions = queues.iter().flat_map(|queue| {
            let head = Query::Scan(Scan::first(queue.clone(), 1).with_documents());
            [Query::count_up_to(queue.clone(), limit + 1), head]
        });
        let mut answers = self.transactor.read(partition, questions.collect()).await?.answers.into_iter();
        for queue in queues {
            let count = answers.next().and_then(Answer::into_count).unwrap_or(0);
            let head = answers.next().and_then(Answer::into_scan).unwrap_or_default();
            let head = head.entries.into_iter().next().and_then(|entry| entry.document);
            let created_at =
                head.and_then(|stored| self.transactor.readable::<Execution>(&stored)).map(|head| head.created_at);
            let Some(place) = index::QueueName::parse(queue).filter(|_| count > 0) else { continue };
            let entry = counted.waiting.entry((place.lane, place.kind)).or_default();
            entry.0 = entry.0.plus(Count::capped(count, limit));
            entry.1 = entry.1.into_iter().chain(created_at).min();
        }
        Ok(())
    }
}
