//! The registry of worker processes in the system partition.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ff_core::execution::Execution;
use ff_core::lease::LeaseEnd;
use ff_core::tool::Tool;
use ff_core::worker::{Registration, Worker};
use ff_core::{Code, Document, Error, Indexed, Key, LeaseEpoch, Partition, Result};
use ff_store::{Answer, Fence, Query};

use crate::caller::check_lane_among;
use crate::env;
use crate::renewal::Renew;
use crate::transaction::{Command, Transactor, Tx};

/// How many registrations are remembered; beyond that all are forgotten and read again.
const CAPACITY: usize = 10_000;

/// For how long a count of leases is kept up to date by what this engine commits. After that it is counted anew, because
/// the worker may also talk to other servers.
const COUNT_LASTS_MS: i64 = 1_000;

/// For how long a server that is alone goes by such a count before a claim begins to wait. It heard of every lease that
/// began or ended since, so the count is renewed only in case that something was missed.
const COUNT_STANDS_MS: i64 = 300_000;

/// The registry of worker processes.
#[derive(Clone)]
pub(crate) struct Registry {
    transactor: Transactor,
    sessions: Arc<Sessions>,
    held: Arc<Mutex<Counts>>,
}

/// The counts of leases that are remembered.
#[derive(Default)]
struct Counts {
    by_worker: BTreeMap<Key, CountedLeases>,
    /// How many registrations have changed. A count that was begun before that may be of the capacity of before.
    changes: u64,
}

/// What a count of a worker's leases has to know of the moment in which it is begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountBegun {
    /// How many leases of the worker commits of this engine had begun, ever.
    began: u64,
    changes: u64,
    at: i64,
}

/// A worker's capacity, and the leases it holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldLeases {
    pub(crate) capacity: u64,
    pub(crate) leases: u64,
}

impl HeldLeases {
    /// A worker that named no capacity, or never registered: its leases are not counted.
    pub(crate) const UNBOUNDED: Self = Self { capacity: u64::MAX, leases: 0 };
}

/// The leases of a worker as they were counted, corrected by those that commits of this engine began and ended since.
struct CountedLeases {
    held: HeldLeases,
    counted_at: i64,
    /// How many leases commits of this engine began, ever. A count does not say whether it saw those that began while
    /// it was made, so these are added to it.
    began: u64,
    /// Leases that ended since the count and whose room was not given to other tasks yet. Those that were handed back
    /// are not among them, because nobody had seen whether there was room for them.
    freed: u64,
    /// When the last of them ended.
    freed_at: i64,
}

impl CountedLeases {
    fn is_far_from_full(&self, asked: u64) -> bool {
        self.held.leases.saturating_add(asked) <= self.held.capacity
    }
}

/// The part of a registration that heartbeats need, so that they cost one commit and no read.
#[derive(Default)]
struct Sessions(Mutex<BTreeMap<Key, (LeaseEpoch, i64)>>);

impl Sessions {
    fn get(&self, key: &Key) -> Option<(LeaseEpoch, i64)> {
        self.sessions().get(key).copied()
    }

    fn remember(&self, key: Key, epoch: LeaseEpoch, ttl_ms: i64) {
        let mut sessions = self.sessions();
        if sessions.len() >= CAPACITY {
            sessions.clear();
        }
        sessions.insert(key, (epoch, ttl_ms));
    }

    fn forget(&self, key: &Key) {
        self.sessions().remove(key);
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, (LeaseEpoch, i64)>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Registry {
    pub(crate) fn new(transactor: Transactor) -> Self {
        Self { transactor, sessions: Arc::default(), held: Arc::default() }
    }

    /// Forgets a registration, so that its next heartbeat reads it and the next claim of the worker is counted.
    pub(crate) fn forget(&self, key: &Key) {
        self.sessions.forget(key);
        self.registration_changed(key);
    }

    /// Forgets how many leases a worker holds and how many it may hold, because it may have registered anew.
    pub(crate) fn registration_changed(&self, key: &Key) {
        let mut counts = self.held();
        counts.by_worker.remove(key);
        counts.changes += 1;
    }

    /// Registers a process, or replaces its earlier registration. Its tools take the place of none in a lane that its token
    /// is not good for; a token without lanes is good for all.
    pub(crate) async fn register(&self, registration: Registration, lanes: &[String]) -> Result<(Worker, i64)> {
        let command = self.transactor.fresh_command();
        let verb = Register { registration, lanes };
        let (worker, until) = self.transactor.transact(Partition::SYSTEM, command, &verb).await?;
        self.forget(&worker.key());
        self.sessions.remember(worker.key(), worker.epoch, worker.ttl_ms);
        Ok((worker, until))
    }

    /// Keeps a registration alive; returns until when.
    pub(crate) async fn keep_registration(&self, namespace: &str, instance_id: &str, nonce: &str) -> Result<i64> {
        let key = Worker::key_of(namespace, instance_id);
        if let Some((epoch, ttl_ms)) = self.sessions.get(&key)
            && let Some(until) = self.renew_registration(&key, nonce, epoch, ttl_ms).await?
        {
            return Ok(until);
        }
        self.forget(&key);
        let absent = || Error::of(Code::WorkerNotFound).with("instance_id", instance_id);
        let (worker, lease_until) = self.registered(&key).await?.ok_or_else(absent)?;
        worker.check_heartbeat(nonce, lease_until, self.transactor.now())?;
        let renewed = self.renew_registration(&key, nonce, worker.epoch, worker.ttl_ms).await?;
        let until = renewed.ok_or_else(absent)?;
        self.sessions.remember(key, worker.epoch, worker.ttl_ms);
        Ok(until)
    }

    async fn renew_registration(&self, key: &Key, nonce: &str, epoch: LeaseEpoch, ttl_ms: i64) -> Result<Option<i64>> {
        let held = Worker { nonce: nonce.to_owned(), epoch, ttl_ms, ..Default::default() }.document_lease();
        let fence = Fence { epoch: held.epoch, lease: held.lease_id };
        let verb = Renew { key: key.clone(), fence, ttl_ms };
        let ((), prepared) = self.transactor.prepare(Partition::SYSTEM, self.transactor.fresh_command(), &verb).await?;
        let results = self.transactor.send_all_timed(Partition::SYSTEM, vec![prepared]).await?;
        Ok(results.into_iter().next().and_then(|result| result.ok()).map(|at| at + ttl_ms))
    }

    /// A registration as the store has it now, and when it ends.
    async fn registered(&self, key: &Key) -> Result<Option<(Worker, i64)>> {
        let found = self.transactor.store().documents(Partition::SYSTEM, vec![key.clone()]).await?;
        let Some(stored) = found.into_iter().next().flatten() else { return Ok(None) };
        Ok(Some((Worker::decode(&stored.body)?, stored.lease_until)))
    }

    /// How many leases each of these processes holds, over all flow partitions; one read for each partition.
    pub(crate) async fn leases_held(&self, namespace: &str, instances: &[&str]) -> Result<Vec<u64>> {
        let mut held = vec![0; instances.len()];
        if instances.is_empty() {
            return Ok(held);
        }
        let counts = self.transactor.flow_partitions().map(|partition| {
            let queries =
                instances.iter().map(|instance| Query::count_all(ff_core::index::worker(namespace, instance)));
            self.transactor.read(partition, queries.collect())
        });
        for answers in futures_util::future::join_all(counts).await {
            for (sum, answer) in held.iter_mut().zip(answers?.answers) {
                *sum += answer_count(answer);
            }
        }
        Ok(held)
    }

    /// How many leases a process holds, as far as the partitions answer within a time, and whether all did.
    pub(crate) async fn leases_counted(&self, namespace: &str, instance: &str, ms: i64) -> Result<(u64, bool)> {
        let partitions: Vec<Partition> = self.transactor.flow_partitions().collect();
        let counts = partitions.iter().map(|partition| {
            let count = Query::count_all(ff_core::index::worker(namespace, instance));
            self.transactor.read(*partition, vec![count])
        });
        let (mut held, mut answered) = (0, 0);
        for answers in env::those_within(self.transactor.env_handle(), ms, counts).await {
            match answers {
                Ok(answers) => {
                    answered += 1;
                    held += answers.answers.into_iter().map(answer_count).sum::<u64>();
                }
                Err(error) if error.code == Code::Unavailable => {}
                Err(error) => return Err(error),
            }
        }
        Ok((held, answered == partitions.len()))
    }

    /// Forgets all counts, because registrations may have changed unheard.
    pub(crate) fn forget_counts(&self) {
        let mut counts = self.held();
        counts.by_worker.clear();
        counts.changes += 1;
    }

    /// To be asked before the leases of a worker are counted.
    pub(crate) fn begin_count(&self, key: &Key, now: i64) -> CountBegun {
        let counts = self.held();
        CountBegun { began: counts.by_worker.get(key).map_or(0, |count| count.began), changes: counts.changes, at: now }
    }

    /// Remembers a count of a worker's leases, unless a registration changed while it was made.
    pub(crate) fn remember_held(&self, key: Key, mut held: HeldLeases, begun: CountBegun) {
        let counts = &mut *self.held();
        if counts.changes != begun.changes {
            return;
        }
        if counts.by_worker.len() >= CAPACITY {
            counts.by_worker.clear();
        }
        let began = counts.by_worker.get(&key).map_or(0, |count| count.began);
        held.leases = held.leases.saturating_add(began.saturating_sub(begun.began));
        counts.by_worker.insert(key, CountedLeases { held, counted_at: begun.at, began, freed: 0, freed_at: 0 });
    }

    /// Whether a worker was counted in the last minutes and has room for the tasks that it asks for, by what the commits of
    /// this engine did since. Other engines may have given it leases.
    pub(crate) fn had_room(&self, key: &Key, asked: u64, now: i64) -> bool {
        let counts = self.held();
        let count = counts.by_worker.get(key).filter(|count| now - count.counted_at <= COUNT_STANDS_MS);
        count.is_some_and(|count| count.is_far_from_full(asked))
    }

    /// Whether a worker could perhaps not take as many tasks again as it asked for: by the last count, or because its count
    /// was forgotten meanwhile.
    pub(crate) fn may_be_nearly_full(&self, key: &Key, asked: u64) -> bool {
        self.held().by_worker.get(key).is_none_or(|count| !count.is_far_from_full(asked))
    }

    /// Whether the worker had no room according to the last count.
    pub(crate) fn was_full(&self, key: &Key) -> bool {
        self.held().by_worker.get(key).is_some_and(|count| count.held.leases >= count.held.capacity)
    }

    /// Whether a worker certainly has room for the tasks that it has just taken: as many others ended, or it is so far
    /// from its capacity that it could take as many again as it asked for. False if there is no recent count.
    pub(crate) fn has_room(&self, key: &Key, taken: u64, asked: u64, now: i64) -> bool {
        let mut counts = self.held();
        let Some(count) = counts.by_worker.get_mut(key) else { return false };
        if now - count.freed_at > COUNT_LASTS_MS {
            count.freed = 0;
        }
        if taken <= count.freed {
            count.freed -= taken;
            return true;
        }
        now - count.counted_at <= COUNT_LASTS_MS && count.is_far_from_full(asked)
    }

    /// Commits of this engine began and ended leases of these executions.
    pub(crate) fn leases_changed(&self, executions: &[Arc<Execution>], leases: &[(Key, Option<i64>)], now: i64) {
        if leases.is_empty() || self.held().by_worker.is_empty() {
            return;
        }
        for execution in executions {
            let key = execution.key();
            let change = leases.iter().find(|(leased, _)| *leased == key).map(|(_, ttl_ms)| *ttl_ms);
            let (Some(ttl_ms), Some(lease)) = (change, &execution.lease) else { continue };
            let worker = self.transactor.named_keys().worker(&execution.namespace, &lease.instance_id);
            let mut counts = self.held();
            let Some(count) = counts.by_worker.get_mut(&worker) else { continue };
            if ttl_ms.is_some() {
                count.began += 1;
                count.held.leases += 1;
                continue;
            }
            count.held.leases = count.held.leases.saturating_sub(1);
            if lease.end != LeaseEnd::Returned {
                count.freed += 1;
                count.freed_at = now;
            }
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.held.lock().expect("no holder of this lock panics")
    }
}

fn answer_count(answer: Answer) -> u64 {
    answer.into_count().unwrap_or(0)
}

struct Register<'a> {
    registration: Registration,
    /// The lanes that the caller's token is good for; all when empty.
    lanes: &'a [String],
}

impl Command for Register<'_> {
    type Outcome = (Worker, i64);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(Worker, i64)> {
        let key = Worker::key_of(&self.registration.namespace, &self.registration.instance_id);
        let existing = tx.load::<Worker>(key).await?;
        let known = existing.as_ref().map(|loaded| (&loaded.document, loaded.lease_until));
        let worker = Worker::register(known, self.registration.clone(), tx.now)?;
        for definition in &self.registration.tools {
            let tool = Tool::define(&self.registration, definition, tx.now);
            let known = tx.load::<Tool>(tool.key()).await?.map(|loaded| loaded.document);
            if let Some(known) = &known {
                // Calls of the tool would go to the caller's lane from now on, instead of to the one they go to.
                check_lane_among(self.lanes, &known.lane).map_err(|refusal| refusal.with("kind", &known.kind))?;
            }
            if known.is_none_or(|known| !known.says_the_same(&tool)) {
                tx.save(&tool);
            }
        }
        tx.save(&worker);
        tx.renew(&worker);
        let until = tx.now + worker.ttl_ms;
        Ok((worker, until))
    }
}
