//! Counts of the executions of a namespace. States are counted by their indexes, waiting work by the names of the queues
//! it stands in, so that no task pays for being counted.
//!
//! A reading remembers which queues it found in each partition. The next one asks for states, names and those queues at
//! once, and a second time only for queues that have appeared since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use ff_core::execution::Execution;
use ff_core::op::{Count, GetCountsOutcome, WaitingCount};
use ff_core::{IndexName, Partition, PublicState, Result, index, limits};
use ff_store::{Answer, Query, Scan};
use futures_util::{StreamExt, TryStreamExt};

use crate::shared::Shared;
use crate::transaction::Transactor;

/// Reads that are under way at once.
const READS_AT_ONCE: usize = 16;
/// The same where a store walks through what it counts. Such a store has few readers, and others need them, too.
const WALKS_AT_ONCE: usize = 4;
/// Entries that a store walks through for one read, so that several readers share the work and none is busy for long.
const WALKED_AT_ONCE_MAX: u64 = 2 * limits::COUNTED_MAX;
/// A partition counts this part of its share more than its share at first.
const SHARE_PARTS: u64 = 10;
/// Queues of one partition that are looked at.
const QUEUES_MAX: usize = 1_000;
/// Entries of all queues of one partition that a store walks through for one reading.
const WALKED_MAX: u64 = 20_000;
/// Names of queues that are remembered; past it all are forgotten and asked for again.
const KNOWN_MAX: usize = 100_000;

/// Counts that many ask for.
pub(crate) struct Counts {
    transactor: Transactor,
    shared: Shared<GetCountsOutcome>,
    known: KnownQueues,
}

/// The queues that the last reading found, by namespace and partition.
#[derive(Default)]
struct KnownQueues(Mutex<BTreeMap<(String, Partition), Vec<IndexName>>>);

/// Something that a partition is asked for.
enum Question {
    /// How many are in a state, up to a limit.
    State(PublicState, u64),
    /// Which queues there are.
    Queues,
    /// How many stand in a queue, up to a limit, and the first of them.
    Queue(IndexName, u64),
}

/// A partition and its queues.
type QueuesOf = (Partition, Vec<IndexName>);

/// A lane, and the kind of work where workers ask for it by kind.
type Place = (String, Option<String>);

/// What partitions stopped counting although the sum could still have been shown as it is.
#[derive(Default)]
struct Further {
    states: BTreeSet<PublicState>,
    places: BTreeSet<Place>,
}

impl Further {
    fn is_empty(&self) -> bool {
        self.states.is_empty() && self.places.is_empty()
    }

    fn concerns(&self, queue: &IndexName) -> bool {
        index::QueueName::parse(queue).is_some_and(|queue| self.places.contains(&(queue.lane, queue.kind)))
    }
}

/// The counts of some questions, or of several partitions.
#[derive(Default)]
struct Counted {
    states: BTreeMap<PublicState, Count>,
    waiting: BTreeMap<Place, (Count, Option<i64>)>,
    /// The queues that there are, where they were asked for.
    queues: Vec<QueuesOf>,
    at: i64,
}

impl Counts {
    /// A reading is shared for so long.
    pub(crate) fn shared_for_ms(transactor: Transactor, fresh_ms: i64) -> Self {
        Self { transactor, shared: Shared::for_ms(fresh_ms), known: KnownQueues::default() }
    }

    /// The counts of a namespace.
    pub(crate) async fn of(&self, namespace: &str) -> Result<GetCountsOutcome> {
        self.shared.get(namespace, || self.transactor.env().now_ms(), self.count_namespace(namespace)).await
    }

    async fn count_namespace(&self, namespace: &str) -> Result<GetCountsOutcome> {
        let mut sum = self.count_partitions(namespace, self.first_limit()).await?;
        let further = sum.take_stopped_too_soon();
        if !further.is_empty() {
            sum.add(self.count_further(namespace, &further, &sum.queues).await?);
        }
        let states = sum.states.into_iter().map(|(state, count)| (state, self.shown(count))).collect();
        let waiting = sum.waiting.into_iter().map(|((lane, kind), (count, next_created_at))| WaitingCount {
            lane,
            kind,
            count: self.shown(count),
            next_created_at,
        });
        Ok(GetCountsOutcome { namespace: namespace.to_owned(), states, waiting: waiting.collect(), counted_at: sum.at })
    }

    /// A sum as it is shown: not past the limit, unless the store counts for free.
    fn shown(&self, count: Count) -> Count {
        match count.value > limits::COUNTED_MAX && !self.counts_for_free() {
            true => Count::capped(count.value, limits::COUNTED_MAX),
            false => count,
        }
    }

    fn counts_for_free(&self) -> bool {
        self.transactor.store().counts_for_free()
    }

    /// How far each partition counts at first. A sum past the limit is shown as the limit, and most executions are spread
    /// evenly: a little more than its share of the limit is enough.
    fn first_limit(&self) -> u64 {
        if self.counts_for_free() {
            return u64::MAX - 1;
        }
        let share = limits::COUNTED_MAX.div_ceil(u64::from(self.transactor.partitions().flow));
        (share + share.div_ceil(SHARE_PARTS)).min(limits::COUNTED_MAX)
    }

    /// Counts again, up to the limit in each partition, what is not spread evenly.
    async fn count_further(&self, namespace: &str, further: &Further, queues: &[QueuesOf]) -> Result<Counted> {
        let questions = queues.iter().map(|(partition, queues)| {
            let states = further.states.iter().map(|state| Question::State(*state, limits::COUNTED_MAX));
            let places = queues.iter().filter(|queue| further.concerns(queue));
            let all = states.chain(self.about_queues(places, queues.len(), limits::COUNTED_MAX));
            (*partition, all.collect())
        });
        self.ask(namespace, questions.collect()).await
    }

    /// The sum over all partitions, each of which counts up to the limit.
    async fn count_partitions(&self, namespace: &str, limit: u64) -> Result<Counted> {
        let mut known = BTreeMap::new();
        let mut questions = Vec::new();
        for partition in self.transactor.flow_partitions() {
            let queues = self.known.of(namespace, partition);
            let states = PublicState::ALL.iter().map(|state| Question::State(*state, limit));
            let all = states.chain([Question::Queues]).chain(self.about_queues(queues.iter(), queues.len(), limit));
            questions.push((partition, all.collect()));
            known.insert(partition, queues);
        }
        let mut sum = self.ask(namespace, questions).await?;
        let mut appeared = Vec::new();
        for (partition, queues) in &sum.queues {
            let known = &known[partition];
            let new = queues.iter().filter(|queue| known.binary_search(queue).is_err());
            let questions: Vec<Question> = self.about_queues(new, queues.len(), limit).collect();
            if !questions.is_empty() {
                appeared.push((*partition, questions));
            }
            if known != queues {
                self.known.remember(namespace, *partition, queues.clone());
            }
        }
        sum.add(self.ask(namespace, appeared).await?);
        Ok(sum)
    }

    /// Questions about queues of a partition that has so many in all.
    fn about_queues<'a>(
        &self,
        queues: impl Iterator<Item = &'a IndexName>,
        in_all: usize,
        limit: u64,
    ) -> impl Iterator<Item = Question> {
        let limit = match self.counts_for_free() {
            true => limit,
            false => limit.min(WALKED_MAX / in_all.max(1) as u64),
        };
        queues.map(move |queue| Question::Queue(queue.clone(), limit))
    }

    /// The sum of all answers.
    async fn ask(&self, namespace: &str, questions: Vec<(Partition, Vec<Question>)>) -> Result<Counted> {
        let (at_once, walked_max) = match self.counts_for_free() {
            true => (READS_AT_ONCE, u64::MAX),
            false => (WALKS_AT_ONCE, WALKED_AT_ONCE_MAX),
        };
        let portions = questions.into_iter().flat_map(|(partition, questions)| {
            portions(questions, walked_max).into_iter().map(move |portion| (partition, portion))
        });
        let reads = portions.map(|(partition, portion)| self.read(namespace, partition, portion));
        let all: Vec<Counted> = futures_util::stream::iter(reads).buffer_unordered(at_once).try_collect().await?;
        let mut sum = Counted::default();
        all.into_iter().for_each(|counted| sum.add(counted));
        Ok(sum)
    }

    /// Asks a partition in one read.
    async fn read(&self, namespace: &str, partition: Partition, questions: Vec<Question>) -> Result<Counted> {
        let queries = questions.iter().flat_map(|question| question.queries(namespace)).collect();
        let answers = self.transactor.read(partition, queries).await?;
        let mut counted = Counted { at: answers.at, ..Counted::default() };
        let mut answers = answers.answers.into_iter();
        for question in questions {
            match question {
                Question::State(state, limit) => {
                    let count = answers.next().and_then(Answer::into_count).unwrap_or(0);
                    counted.states.insert(state, Count::capped(count, limit));
                }
                Question::Queues => {
                    let queues = answers.next().and_then(Answer::into_indexes).unwrap_or_default();
                    counted.queues.push((partition, queues));
                }
                Question::Queue(queue, limit) => {
                    let count = answers.next().and_then(Answer::into_count).unwrap_or(0);
                    let head = answers.next().and_then(Answer::into_scan).unwrap_or_default();
                    let head = head.entries.into_iter().next().and_then(|entry| entry.document);
                    let head = head.and_then(|stored| self.transactor.readable::<Execution>(&stored));
                    let Some(place) = index::QueueName::parse(&queue).filter(|_| count > 0) else { continue };
                    let created_at = head.map(|head| head.created_at);
                    counted.add_waiting((place.lane, place.kind), Count::capped(count, limit), created_at);
                }
            }
        }
        Ok(counted)
    }
}

impl Question {
    fn queries(&self, namespace: &str) -> Vec<Query> {
        match self {
            Question::State(state, limit) => vec![Query::count_up_to(index::state(namespace, *state), limit + 1)],
            Question::Queues => {
                let prefix = index::queues_of_namespace(namespace);
                vec![Query::Indexes { prefix, after: None, limit: QUEUES_MAX }]
            }
            Question::Queue(queue, limit) => {
                let head = Query::Scan(Scan::first(queue.clone(), 1).with_documents());
                vec![Query::count_up_to(queue.clone(), limit + 1), head]
            }
        }
    }

    /// About how many entries a store may have to walk through for the answer.
    fn walked_max(&self) -> u64 {
        match self {
            Question::State(_, limit) | Question::Queue(_, limit) => *limit,
            Question::Queues => 0,
        }
    }
}

/// Divides questions so that a store walks through so many entries at most for each portion, unless one question alone
/// needs more.
fn portions(questions: Vec<Question>, walked_max: u64) -> Vec<Vec<Question>> {
    let mut portions: Vec<Vec<Question>> = Vec::new();
    let mut walked = 0_u64;
    for question in questions {
        walked = walked.saturating_add(question.walked_max());
        match portions.last_mut() {
            Some(portion) if walked <= walked_max => portion.push(question),
            _ => {
                walked = question.walked_max();
                portions.push(vec![question]);
            }
        }
    }
    portions
}

impl Counted {
    fn add(&mut self, other: Counted) {
        for (state, count) in other.states {
            let sum = self.states.entry(state).or_default();
            *sum = sum.plus(count);
        }
        for (place, (count, oldest)) in other.waiting {
            self.add_waiting(place, count, oldest);
        }
        self.queues.extend(other.queues);
        self.at = self.at.max(other.at);
    }

    fn add_waiting(&mut self, place: Place, count: Count, oldest: Option<i64>) {
        let (sum, oldest_known) = self.waiting.entry(place).or_default();
        *sum = sum.plus(count);
        *oldest_known = oldest_known.iter().copied().chain(oldest).min();
    }

    /// Takes out what partitions stopped counting although the sum could still have been shown as it is.
    fn take_stopped_too_soon(&mut self) -> Further {
        let too_soon = |count: &Count| count.more && count.value < limits::COUNTED_MAX;
        let states: BTreeSet<_> =
            self.states.iter().filter(|(_, count)| too_soon(count)).map(|(one, _)| *one).collect();
        let places: BTreeSet<_> =
            self.waiting.iter().filter(|(_, (count, _))| too_soon(count)).map(|(one, _)| one.clone()).collect();
        self.states.retain(|state, _| !states.contains(state));
        self.waiting.retain(|place, _| !places.contains(place));
        Further { states, places }
    }
}

impl KnownQueues {
    /// The queues of a partition in the order of their names.
    fn of(&self, namespace: &str, partition: Partition) -> Vec<IndexName> {
        self.queues().get(&(namespace.to_owned(), partition)).cloned().unwrap_or_default()
    }

    fn remember(&self, namespace: &str, partition: Partition, queues: Vec<IndexName>) {
        let mut all = self.queues();
        let others: usize = all.values().map(Vec::len).sum();
        if others + queues.len() > KNOWN_MAX {
            all.clear();
        }
        all.insert((namespace.to_owned(), partition), queues);
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<(String, Partition), Vec<IndexName>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}
