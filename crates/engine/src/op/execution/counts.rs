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

/// The counts of one partition.
#[derive(Default)]
struct Counted {
    states: BTreeMap<PublicState, u64>,
    waiting: BTreeMap<(String, Option<String>), (Count, Option<i64>)>,
    at: i64,
}

impl Rooms {
    async fn count_namespace(&self, namespace: &str) -> Result<GetCountsOutcome> {
        let reads = self.transactor.flow_partitions().map(|partition| self.count_partition(partition, namespace));
        let all: Vec<Counted> = futures_util::stream::iter(reads).buffer_unordered(AT_ONCE).try_collect().await?;
        let mut sum = Counted::default();
        for counted in all {
            for (state, count) in counted.states {
                *sum.states.entry(state).or_default() += count;
            }
            for (place, (count, oldest)) in counted.waiting {
                let entry = sum.waiting.entry(place).or_default();
                entry.0 = entry.0.plus(count);
                entry.1 = entry.1.into_iter().chain(oldest).min();
            }
            sum.at = sum.at.max(counted.at);
        }
        let states = sum.states.into_iter().map(|(state, count)| (state, self.shown(count))).collect();
        let waiting = sum.waiting.into_iter().map(|((lane, kind), (count, next_created_at))| WaitingCount {
            lane,
            kind,
            count: if count.more { count } else { self.shown(count.value) },
            next_created_at,
        });
        Ok(GetCountsOutcome { namespace: namespace.to_owned(), states, waiting: waiting.collect(), counted_at: sum.at })
    }

    /// A sum as it is shown: one past the limit came from counts that stopped there, unless the store counts for free.
    fn shown(&self, count: u64) -> Count {
        let limit = if self.transactor.store().counts_for_free() { u64::MAX } else { limits::COUNTED_MAX };
        Count::capped(count, limit)
    }

    async fn count_partition(&self, partition: Partition, namespace: &str) -> Result<Counted> {
        let at_most = if self.transactor.store().counts_for_free() { u64::MAX } else { limits::COUNTED_MAX + 1 };
        let states = PublicState::ALL.iter().map(|state| Query::count_up_to(index::state(namespace, *state), at_most));
        let prefix = index::queues_of_namespace(namespace);
        let names = Query::Indexes { prefix, after: None, limit: QUEUES_MAX };
        let answers = self.transactor.read(partition, states.chain([names]).collect()).await?;
        let mut counted = Counted { at: answers.at, ..Counted::default() };
        let mut answers = answers.answers.into_iter();
        for state in PublicState::ALL {
            let count = answers.next().and_then(Answer::into_count).unwrap_or(0);
            counted.states.insert(*state, count);
        }
        let queues = answers.next().and_then(Answer::into_indexes).unwrap_or_default();
        if !queues.is_empty() {
            self.count_queues(partition, &queues, &mut counted).await?;
        }
        Ok(counted)
    }

    async fn count_queues(&self, partition: Partition, queues: &[IndexName], counted: &mut Counted) -> Result<()> {
        let limit = if self.transactor.store().counts_for_free() {
            u64::MAX - 1
        } else {
            (WALKED_MAX / queues.len() as u64).min(limits::COUNTED_MAX)
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
