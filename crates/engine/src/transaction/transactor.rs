//! The transactor: a store, its clocks, and the caches of this engine's own commits. Every read and commit of the
//! engine goes through it. It knows none of the services that act on commits, and tells its [`Listener`] instead.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use ff_core::deployment::Deployment;
use ff_core::{CommandId, Mint, Partition, PartitionConfig, Result, Rising, limits};
use ff_store::{Answers, Batch, Outcome, Query, Store, StoreError};
use futures_util::FutureExt as _;

use super::commit::RoundTrip;
use super::{Command, Gathering, Listener, Tx};
use crate::cache::{AdmissionCache, Cache, DownstreamCache, JournalSizes, NamedKeys};
use crate::clock::StoreClocks;
use crate::due::DueTimes;
use crate::env::{self, BoxFuture, Env};
use crate::limits::Limits;
use crate::locks::Locks;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::runtime::Runtime;

/// Reads and commits; clones share everything but the gathering.
///
/// The handle of a call with several parts has a gathering, where their commits meet. Clones have none, so that work
/// that goes on beside the call commits by itself.
pub(crate) struct Transactor(Arc<Inner>, Option<Arc<Gathering>>);

impl Clone for Transactor {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), None)
    }
}

struct Inner {
    store: Arc<dyn Store>,
    runtime: Runtime,
    options: Options,
    partitions: PartitionConfig,
    clocks: StoreClocks,
    cache: Cache,
    downstreams: DownstreamCache,
    admission: AdmissionCache,
    journal_sizes: JournalSizes,
    named_keys: NamedKeys,
    locks: Locks,
    due: DueTimes,
    rising: Rising,
    origin: CommandId,
    /// Set once, when the engine is put together. The listener owns services that own transactors, so this reference is
    /// weak.
    listener: OnceLock<Weak<dyn Listener>>,
}

impl Transactor {
    /// Opens a deployment on a store: learns its time and how it is partitioned.
    pub(crate) async fn open(store: Arc<dyn Store>, env: Arc<dyn Env>, options: Options) -> Result<Self> {
        let asked_us = env.now_us();
        let answers = store.read(Partition::SYSTEM, vec![Query::Documents(vec![Deployment::key_of()])]).await?;
        let clocks = StoreClocks::default();
        clocks.observe(store.clock_of(Partition::SYSTEM), asked_us, env.now_us(), answers.at);
        let origin = env::command_id(env.as_ref(), answers.at);
        let default = options.partitions.unwrap_or(store.info().default_partitions);
        let inner = Inner {
            store,
            runtime: Runtime::new(env),
            options,
            partitions: default,
            clocks,
            cache: Cache::default(),
            downstreams: DownstreamCache::default(),
            admission: AdmissionCache::default(),
            journal_sizes: JournalSizes::default(),
            named_keys: NamedKeys::default(),
            locks: Locks::default(),
            due: DueTimes::default(),
            rising: Rising::default(),
            origin,
            listener: OnceLock::new(),
        };
        let opening = Self(Arc::new(inner), None);
        let stored = opening.transact(Partition::SYSTEM, opening.fresh_command(), &Pin { wanted: default }).await?;
        if let Some(configured) = &opening.0.options.partitions {
            configured.check_against(&stored)?;
        }
        let mut inner = Arc::into_inner(opening.0).expect("nothing else holds a transactor that is not open yet");
        inner.partitions = stored;
        Ok(Self(Arc::new(inner), None))
    }

    /// Sets the listener that is told of commits from now on.
    pub(crate) fn set_listener(&self, listener: Weak<dyn Listener>) {
        debug_assert!(self.0.listener.get().is_none(), "an engine is put together once");
        drop(self.0.listener.set(listener));
    }

    pub(super) fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.0.listener.get()?.upgrade()
    }

    /// A handle for a call with several parts, whose commits are gathered.
    pub(crate) fn gather(&self) -> Self {
        Self(Arc::clone(&self.0), Some(Arc::default()))
    }

    /// The same handle for a part that needs one of its own.
    pub(crate) fn part(&self) -> Self {
        Self(Arc::clone(&self.0), self.1.clone())
    }

    /// Runs the parts of a call, and sends what they commit through this handle.
    pub(crate) async fn run_parts<T>(&self, parts: impl Future<Output = T>) -> T {
        match &self.1 {
            Some(gathering) => gathering.run(self.store(), parts).await,
            None => parts.await,
        }
    }

    /// Commits batches, together with those of other parts of the same call.
    pub(super) fn commit_batches(
        &self,
        partition: Partition,
        batches: Arc<[Batch]>,
    ) -> BoxFuture<'_, std::result::Result<Vec<Outcome>, StoreError>> {
        match &self.1 {
            Some(gathering) => Box::pin(gathering.commit(self.store(), partition, batches)),
            None => self.store().commit(partition, batches),
        }
    }

    /// Several questions about one partition.
    pub(crate) async fn read(&self, partition: Partition, queries: Vec<Query>) -> Result<Answers> {
        self.metrics().reads.fetch_add(1, Ordering::Relaxed);
        let asked_us = self.env().now_us();
        let answers = self.store().read(partition, queries).await?;
        self.observe(partition, RoundTrip { asked_us, answered_us: self.env().now_us() }, answers.at);
        Ok(answers)
    }

    /// Asks a partition for the time if nothing is known of its clock yet, because documents there must not be dated by
    /// another clock.
    pub(crate) async fn learn_clock(&self, partition: Partition) -> Result<()> {
        if !self.0.clocks.knows(self.store().clock_of(partition)) {
            self.read(partition, Vec::new()).await?;
        }
        Ok(())
    }

    /// Spawns a task that ends with the engine.
    pub(crate) fn spawn_owned(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime().tasks.own(self.env().spawn(Box::pin(task)));
    }

    /// Spawns a short task that runs to its end.
    pub(crate) fn spawn_short(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_contained(Box::pin(task));
    }

    /// Takes the task as a box, so that this is compiled once and not for each kind of task.
    fn spawn_contained(&self, task: BoxFuture<'static, ()>) {
        let transactor = self.clone();
        let contained = async move {
            // The panic was counted and logged; a sweep or a caller finds the unfinished work again.
            drop(transactor.contain("tasks", task.map(Ok)).await);
        };
        self.env().spawn(Box::pin(contained)).detach();
    }

    /// Runs a future whose panic must not affect others; see [`Runtime::contain`].
    pub(crate) fn contain<T>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> impl Future<Output = Result<T>> {
        self.runtime().contain(name, work)
    }

    pub(crate) fn refuse_if_closing(&self) -> Result<()> {
        self.runtime().refuse_if_closing()
    }

    /// See [`Runtime::may_log`].
    pub(crate) fn may_log(&self, line: &'static str) -> Option<u64> {
        self.runtime().may_log(line)
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.0.store.as_ref()
    }

    pub(crate) fn partitions(&self) -> &PartitionConfig {
        &self.0.partitions
    }

    /// The partitions that executions live in.
    pub(crate) fn flow_partitions(&self) -> impl Iterator<Item = Partition> + use<> {
        self.partitions().all().filter(|partition| partition.family == ff_core::Family::Flow)
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    /// The limits of one call.
    pub(crate) fn limits(&self) -> &Limits {
        &self.0.options.limits
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.runtime().metrics
    }

    pub(crate) fn env(&self) -> &dyn Env {
        self.runtime().env.as_ref()
    }

    pub(crate) fn env_handle(&self) -> &Arc<dyn Env> {
        &self.runtime().env
    }

    /// The time of the system partition, as far as the engine knows it.
    pub(crate) fn now(&self) -> i64 {
        self.now_in(Partition::SYSTEM)
    }

    /// The time of a partition, as far as the engine knows it. For a partition that has not answered yet, the time of
    /// the system partition is used. That is good enough for reading; a transaction learns the clock of its partition
    /// first.
    pub(crate) fn now_in(&self, partition: Partition) -> i64 {
        self.now_in_at(partition, self.env().now_us())
    }

    /// The same for a caller that has just looked at the process's clock.
    pub(super) fn now_in_at(&self, partition: Partition, now_us: i64) -> i64 {
        if let Some(clock) = &self.options().test_clock {
            return clock.now();
        }
        let clock = |partition| self.0.clocks.now(self.store().clock_of(partition), now_us);
        clock(partition).or_else(|| clock(Partition::SYSTEM)).unwrap_or(now_us / 1_000)
    }

    /// An instant of one partition's clock, on that of another.
    pub(crate) fn instant_in(&self, at: i64, of: Partition, partition: Partition) -> i64 {
        self.now_in(partition).saturating_add(at.saturating_sub(self.now_in(of)))
    }

    /// Takes a time that the store reported.
    pub(super) fn observe(&self, partition: Partition, trip: RoundTrip, store_now: i64) {
        let RoundTrip { asked_us, answered_us } = trip;
        self.0.clocks.observe(self.store().clock_of(partition), asked_us, answered_us, store_now);
    }

    /// Events each flow partition keeps.
    pub(super) fn events_cap(&self) -> u64 {
        (self.limits().events_kept / u64::from(self.partitions().flow)).max(limits::EVENTS_PER_PARTITION_MIN)
    }

    pub(crate) fn fresh_command(&self) -> CommandId {
        env::command_id(self.env(), self.now())
    }

    /// The values for an id that is greater than every earlier one, so that ids show the order of creation.
    pub(crate) fn rising(&self, fresh: Mint) -> Mint {
        self.0.rising.next(fresh)
    }

    /// The chunk size of a read or a commit whose own limit is this.
    pub(crate) fn chunk(&self, limit: usize) -> usize {
        limit.min(self.options().chunk_max).max(1)
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// The downstreams of executions, as far as they are known.
    pub(crate) fn downstreams(&self) -> &DownstreamCache {
        &self.0.downstreams
    }

    /// The documents of admission, as far as this engine wrote them.
    pub(crate) fn admission(&self) -> &AdmissionCache {
        &self.0.admission
    }

    pub(crate) fn journal_sizes(&self) -> &JournalSizes {
        &self.0.journal_sizes
    }

    /// The keys of lanes and workers.
    pub(crate) fn named_keys(&self) -> &NamedKeys {
        &self.0.named_keys
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.0.locks
    }

    /// The instants at which partitions have something due.
    pub(crate) fn due(&self) -> &DueTimes {
        &self.0.due
    }

    /// The name of this engine in hints to others.
    pub(crate) fn origin(&self) -> CommandId {
        self.0.origin
    }
}

/// Fixes the partition counts at the first start, and reads them ever after.
struct Pin {
    wanted: PartitionConfig,
}

impl Command for Pin {
    type Outcome = PartitionConfig;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<PartitionConfig> {
        if let Some(stored) = tx.load::<Deployment>(Deployment::key_of()).await? {
            return Ok(stored.document.partitions());
        }
        let deployment = Deployment::new(&self.wanted, tx.now);
        tx.save(&deployment);
        Ok(deployment.partitions())
    }
}
