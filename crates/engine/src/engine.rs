//! The engine: a store, an environment, and the services that run between them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ff_core::deployment::Deployment;
use ff_core::op::{GetCountsOutcome, Operation};
use ff_core::planted::{Bug, planted};
use ff_core::policy::Policy;
use ff_core::{Code, CommandId, Error, Key, LogLimit, Mint, Partition, PartitionConfig, Result, Rising, Role, limits};
use ff_store::{Answers, Batch, Outcome, Query, Signal, Store, StoreError};

use crate::board::{Board, Listener};
use crate::bulk::BulkTurns;
use crate::cache::{Cache, DownstreamCache};
use crate::clock::StoreClocks;
use crate::delivery::Courier;
use crate::env::{self, BoxFuture, Env, Tasks};
use crate::hint::{Item, Message};
use crate::journal::JournalSizes;
use crate::limits::Limits;
use crate::locks::Locks;
use crate::metrics::Metrics;
use crate::providers::Providers;
use crate::registry::Registry;
use crate::resolver::Resolver;
use crate::scheduler::Scheduler;
use crate::scheduler::concurrency::ConcurrencyKeys;
use crate::scheduler::quotas::Quotas;
use crate::secrets::SecretState;
use crate::servers::Servers;
use crate::serves::Serves;
use crate::service::Services;
use crate::shared::Shared;
use crate::subscription::Subscriptions;
use crate::system::SystemCache;
use crate::test_clock::TestClock;
use crate::timers::Timers;
use crate::transaction::{Command, Gathering, Tx};
use crate::usage::Charges;

/// How long a reading that many ask for is shared: counts, and which namespaces there are.
const READING_FRESH_MS: i64 = 2_000;

/// What a caller is called that has nothing but a waitpoint's token.
pub(crate) const WAITPOINT_TOKEN: &str = "waitpoint_token";

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Partition counts; `None` adopts what is stored, or the store's default at the first start.
    pub partitions: Option<PartitionConfig>,
    /// Only these lanes exist; `None`: using a lane creates it.
    pub lanes: Option<Vec<String>>,
    /// How long terminal executions are kept when their policy says nothing.
    pub retention_ms: i64,
    /// How long idempotency and dedup keys are remembered.
    pub dedup_window_ms: i64,
    /// One full look at every partition takes this long.
    pub sweep_ms: i64,
    /// One full check of every document takes this long; 0 switches it off.
    pub reconcile_ms: i64,
    /// The first waitpoint secret in hex; generated when absent.
    pub waitpoint_secret: Option<String>,
    /// How long a rotated waitpoint secret still verifies.
    pub secret_grace_ms: i64,
    /// Run timers, resolver, sweeps and reconcilers here. Without them another engine must.
    pub services: bool,
    /// The policy of executions that bring none, by namespace.
    pub policies: BTreeMap<String, Policy>,
    /// What one call may ask for.
    pub limits: Limits,
    /// What this process calls itself in the registry of servers.
    pub address: String,
    /// The clock that the store is on, where only a test moves it.
    pub test_clock: Option<Arc<TestClock>>,
    /// What sends webhooks; without it they wait for an engine that has one.
    pub courier: Option<Arc<dyn Courier>>,
    /// Entries that one read or commit of the engine's own work takes at the most, where its own limit is higher. Tests
    /// draw it tight, so that a small graph is larger than every chunk.
    pub chunk_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            partitions: None,
            lanes: None,
            retention_ms: limits::RETENTION_DEFAULT_MS,
            dedup_window_ms: limits::DEDUP_WINDOW_MS,
            sweep_ms: 120_000,
            reconcile_ms: 300_000,
            waitpoint_secret: None,
            secret_grace_ms: limits::SECRET_GRACE_DEFAULT_MS,
            services: true,
            policies: BTreeMap::new(),
            limits: Limits::default(),
            address: String::new(),
            test_clock: None,
            courier: None,
            chunk_max: usize::MAX,
        }
    }
}

/// How much is known of who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// Nobody has to prove who they are: the process itself, or a server without tokens. What a caller says of senders
    /// is taken as it is.
    #[default]
    Open,
    /// It has an API token, and is whom that names.
    Token,
    /// It has an API token and is believed about whom it speaks for.
    Relay,
    /// It has no API token. All it may do is to use a waitpoint's.
    Stranger,
}

/// On whose behalf an operation runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who, for the audit log.
    pub name: String,
    /// The one namespace it may see; `None` for all.
    pub namespace: Option<String>,
    /// What it may do.
    pub role: Role,
    /// What it calls this very call, so that a repeat is the same call; `None` where it does not say.
    pub idempotency_key: Option<String>,
    /// How much is known of it.
    pub standing: Standing,
    /// The lanes that it submits to, claims from and acts on; all when empty.
    pub lanes: Vec<String>,
    /// When its stored API token was made, which tells it from a later one of the same name; 0 where it has none.
    pub token_created_at: i64,
    /// Its role does not reach this operation, and it may carry it out for what it submitted itself.
    pub only_own: bool,
}

impl Caller {
    /// A caller that is believed what it says, with every right of a role.
    pub fn new(name: impl Into<String>, namespace: Option<String>, role: Role) -> Self {
        Self {
            name: name.into(),
            namespace,
            role,
            idempotency_key: None,
            standing: Standing::Open,
            lanes: Vec::new(),
            token_created_at: 0,
            only_own: false,
        }
    }

    /// The process itself: everything is allowed.
    pub fn system() -> Self {
        Self::new("system", None, Role::Admin)
    }

    /// Somebody without an API token who has a waitpoint's.
    pub fn stranger() -> Self {
        Self { standing: Standing::Stranger, ..Self::new(WAITPOINT_TOKEN, None, Role::Reader) }
    }

    /// The namespace an operation works in: the one asked for, if the caller may see it.
    pub(crate) fn namespace(&self, asked: Option<&str>) -> Result<String> {
        match (asked, &self.namespace) {
            (None, None) => Ok(ff_core::execution::DEFAULT_NAMESPACE.to_owned()),
            (None, Some(own)) => Ok(own.clone()),
            (Some(asked), own) => {
                ff_core::text::name("namespace", asked)?;
                if own.as_ref().is_none_or(|own| own == asked) {
                    return Ok(asked.to_owned());
                }
                Err(Error::new(Code::Forbidden, format!("this token does not reach namespace {asked:?}")))
            }
        }
    }

    /// Whether the caller's token is good for a lane.
    pub fn reaches(&self, lane: &str) -> bool {
        self.lanes.is_empty() || self.lanes.iter().any(|one| one == lane)
    }

    /// Refuses a lane that the caller's token is not good for.
    pub(crate) fn check_lane(&self, lane: &str) -> Result<()> {
        if self.reaches(lane) {
            return Ok(());
        }
        let detail = format!("this token does not reach lane {lane:?}");
        Err(Error::new(Code::Forbidden, detail).with("lane", lane))
    }

    /// What an execution keeps of its submitter: nothing where the caller may do more than submit anyway.
    pub(crate) fn submitter(&self) -> String {
        if self.role == Role::Submitter { self.name.clone() } else { String::new() }
    }

    /// Refuses an act on the whole deployment or namespace to a caller that is limited to lanes.
    pub(crate) fn check_every_lane(&self) -> Result<()> {
        if self.lanes.is_empty() {
            return Ok(());
        }
        Err(Error::new(Code::Forbidden, "this reaches every lane, and the token some only").with("lanes", &self.lanes))
    }

    /// Whether the caller is shown the ids of leases. With one of them it could act in the place of its holder.
    pub(crate) fn sees_fences(&self) -> bool {
        self.role.allows(Role::Operator)
    }

    /// Whether something of this namespace exists for the caller.
    pub fn sees(&self, namespace: &str) -> bool {
        self.namespace.as_ref().is_none_or(|own| own == namespace)
    }
}

/// Carries out one operation. Each stands in its own file under `op/`.
pub(crate) trait Handle<O: Operation> {
    /// Does it, on behalf of a caller.
    fn handle(&self, caller: &Caller, args: O::Args) -> impl Future<Output = Result<O::Outcome>> + Send;
}

/// A running engine; clones share it.
///
/// The handle of a call with several parts has a place where their commits are gathered. Clones have none: what goes on
/// beside the call commits by itself.
pub struct Engine(Arc<Inner>, Option<Arc<Gathering>>);

impl Clone for Engine {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), None)
    }
}

struct Inner {
    store: Arc<dyn Store>,
    env: Arc<dyn Env>,
    options: Options,
    partitions: PartitionConfig,
    clocks: StoreClocks,
    cache: Cache,
    downstreams: DownstreamCache,
    board: Board,
    locks: Locks,
    charges: Charges,
    quotas: Quotas,
    providers: Providers,
    concurrency_keys: ConcurrencyKeys,
    journal_sizes: JournalSizes,
    rising: Rising,
    scheduler: Scheduler,
    timers: Timers,
    resolver: Resolver,
    subscriptions: Subscriptions,
    system: SystemCache,
    registry: Registry,
    servers: Servers,
    services: Services,
    secrets: SecretState,
    metrics: Metrics,
    tasks: Tasks,
    log_limit: LogLimit,
    counts: Shared<GetCountsOutcome>,
    namespaces_seen: Shared<Vec<String>>,
    bulk_turns: BulkTurns,
    origin: CommandId,
    closing: AtomicBool,
}

impl Engine {
    /// Opens a deployment on a store and starts the services.
    pub async fn start(store: Arc<dyn Store>, env: Arc<dyn Env>, options: Options) -> Result<Self> {
        Self::starting(store, env, options).await
    }

    /// Boxed in a function of its own for the reason that [`serves`](crate::serves) gives.
    fn starting(store: Arc<dyn Store>, env: Arc<dyn Env>, options: Options) -> BoxFuture<'static, Result<Self>> {
        Box::pin(Self::open(store, env, options))
    }

    async fn open(store: Arc<dyn Store>, env: Arc<dyn Env>, options: Options) -> Result<Self> {
        if let Some(partitions) = &options.partitions {
            partitions.validate()?;
        }
        options.limits.validate()?;
        for (namespace, policy) in &options.policies {
            ff_core::text::name("namespace", namespace)?;
            policy.validate().map_err(|error| error.with("namespace", namespace))?;
        }
        let asked_us = env.now_us();
        let answers = store.read(Partition::SYSTEM, vec![Query::Documents(vec![Deployment::key_of()])]).await?;
        let clocks = StoreClocks::default();
        clocks.observe(store.clock_of(Partition::SYSTEM), env.as_ref(), asked_us, answers.at);
        let origin = env::command_id(env.as_ref(), answers.at);
        let default = options.partitions.unwrap_or(store.info().default_partitions);
        let resolver = Resolver::new(options.chunk_max.clamp(1, limits::RESOLVE_CHUNK));
        let inner = Inner {
            store,
            env,
            options,
            partitions: default,
            clocks,
            cache: Cache::default(),
            downstreams: DownstreamCache::default(),
            board: Board::default(),
            locks: Locks::default(),
            charges: Charges::default(),
            quotas: Quotas::default(),
            providers: Providers::default(),
            concurrency_keys: ConcurrencyKeys::default(),
            journal_sizes: JournalSizes::default(),
            rising: Rising::default(),
            scheduler: Scheduler::default(),
            timers: Timers::default(),
            resolver,
            subscriptions: Subscriptions::default(),
            system: SystemCache::default(),
            registry: Registry::default(),
            servers: Servers::default(),
            services: Services::default(),
            secrets: SecretState::default(),
            metrics: Metrics::default(),
            tasks: Tasks::default(),
            log_limit: LogLimit::new(),
            counts: Shared::for_ms(READING_FRESH_MS),
            namespaces_seen: Shared::for_ms(READING_FRESH_MS),
            bulk_turns: BulkTurns::default(),
            origin,
            closing: AtomicBool::new(false),
        };
        let opening = Self(Arc::new(inner), None);
        let stored = opening.transact(Partition::SYSTEM, opening.fresh_command(), &Pin { wanted: default }).await?;
        if let Some(configured) = &opening.0.options.partitions {
            configured.check_against(&stored)?;
        }
        let mut inner = Arc::into_inner(opening.0).expect("nothing else holds an engine that is not open yet");
        inner.partitions = stored;
        let engine = Self(Arc::new(inner), None);
        engine.install_secret().await?;
        if engine.options().services {
            engine.join_servers().await?;
        }
        engine.start_services();
        Ok(engine)
    }

    fn start_services(&self) {
        self.scheduler().ready().sweep_begins(self.flow_partitions());
        // Before the first sweep: what happens from now on is heard of.
        let hints = Arc::new(Mutex::new(Some(self.store().watch())));
        self.run_service("hints", move |engine| engine.listen(hints.clone()));
        self.run_service("sweeps", Engine::run_sweeps);
        self.run_service("openings", Engine::run_openings);
        if self.options().services {
            self.run_service("heartbeats", Engine::run_heartbeats);
            self.run_service("timers", Engine::run_timers);
            self.run_service("reconciler", Engine::run_reconciler);
            self.run_service("subscriptions", Engine::run_subscriptions);
            if self.options().courier.is_some() {
                self.run_service("deliveries", Engine::run_deliveries);
            }
        }
    }

    /// Carries out an operation.
    pub async fn call<O: Operation>(&self, caller: &Caller, args: O::Args) -> Result<O::Outcome>
    where
        Self: Serves<O>,
    {
        self.serve(caller, args).await
    }

    /// The same, and counts it.
    pub(crate) async fn carry_out<O: Operation>(&self, caller: &Caller, args: O::Args) -> Result<O::Outcome>
    where
        Self: Handle<O>,
    {
        let started = self.env().now_us();
        let outcome = if O::is_audited(&args) {
            self.administer::<O>(caller, args).await
        } else {
            self.perform::<O>(caller, args).await
        };
        self.metrics().operation(
            O::NAME,
            outcome.as_ref().err().map(|error| error.code),
            self.env().now_us() - started,
        );
        outcome
    }

    /// Does it, if the arguments make sense and the caller may.
    pub(crate) async fn perform<O: Operation>(&self, caller: &Caller, args: O::Args) -> Result<O::Outcome>
    where
        Self: Handle<O>,
    {
        let required = O::role(&args);
        if O::takes_any_role(&args) || caller.role.allows(required) {
            O::validate(&args)?;
            return Handle::<O>::handle(self, caller, args).await;
        }
        // A submitter is let through, and refused where it comes to what somebody else submitted.
        if O::OWN && caller.role == Role::Submitter {
            O::validate(&args)?;
            let caller = Caller { only_own: true, ..caller.clone() };
            return Handle::<O>::handle(self, &caller, args).await;
        }
        let detail = format!("this needs the role {required}, the caller has {}", caller.role);
        Err(Error::new(Code::Forbidden, detail).with("required", required))
    }

    /// Ends every wait with `shutting_down`. Operations under way are answered, and the services go on.
    pub fn stop_waits(&self) {
        self.0.closing.store(!planted(Bug::StopHangs), Ordering::SeqCst);
        self.scheduler().ready().wake_all();
        self.board().wake_all();
        if let Some(clock) = &self.options().test_clock {
            clock.changed();
        }
    }

    /// Stops the services, and waiting operations with `shutting_down`. Whoever has operations under way lets them end
    /// before: the farewell is what makes the other servers look for what this one has left, so it comes last.
    pub async fn close(&self) {
        self.stop_waits();
        self.0.tasks.abort_all();
        self.leave().await;
    }

    /// Acts on hints of other engines until the store is closed.
    async fn listen(self, first: Arc<Mutex<Option<ff_store::Hints>>>) {
        let taken = first.lock().expect("no holder of this lock panics").take();
        let mut hints = taken.unwrap_or_else(|| {
            // Those between the end of the former listener and now were lost.
            self.resync();
            self.store().watch()
        });
        let own = Message::beginning(self.origin());
        while let Some(signal) = hints.next().await {
            match signal {
                Signal::Hint(hint) if hint.payload.starts_with(&own) => {}
                Signal::Hint(hint) => {
                    if let Some(message) = Message::decode(&hint.payload) {
                        self.act_on(hint.partition, &message.items);
                    }
                }
                Signal::Resync => self.resync(),
            }
        }
    }

    /// Hints may have been lost: whatever was known may have changed.
    fn resync(&self) {
        self.cache().clear();
        self.downstreams().clear();
        self.system().clear();
        self.subscriptions().forget_places();
        self.servers().look_again();
        self.timers().sweep_now();
        self.board().wake_all();
        self.scheduler().ready().wake_all();
    }

    /// What follows from a hint, whether it is our own or another engine's.
    pub(crate) fn act_on(&self, partition: Partition, items: &[Item]) {
        for item in items {
            match item {
                Item::Ready(..) if planted(Bug::WaitersNotWoken) => {}
                Item::Ready(index, score) => {
                    let queue = crate::scheduler::ready::QueueId { partition, index: index.clone() };
                    self.scheduler().ready().announce(&queue, *score, self.env().now_ms());
                }
                Item::Due(at) => self.timers().hear(partition, *at, self.now_in(partition)),
                Item::Changed(key) => {
                    self.scheduler().forget_flow(key);
                    self.board().wake(partition, key);
                }
                Item::Log(key) => {
                    self.board().wake(partition, key);
                    if *key == crate::logs::events() {
                        self.subscriptions().note(partition);
                    }
                }
                // The engine that left it has no resolver of its own.
                Item::Mark(key) if self.rank(partition) == 0 => self.resolve_soon(partition, key.clone()),
                Item::Mark(_) => {}
                Item::Gate(index) => self.gate_opened(index),
                Item::System(key) => {
                    self.system().forget(key);
                    if key.kind() == ff_core::index::kind::SERVER {
                        self.servers().look_again();
                    }
                    if key.kind() == ff_core::index::kind::SUBSCRIPTION {
                        self.subscriptions().look_again();
                    }
                    // A lane that gives out work again has people waiting for it.
                    if key.kind() == ff_core::index::kind::LANE {
                        self.scheduler().ready().wake_all();
                    }
                }
            }
        }
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
    pub(crate) fn commit_batches(
        &self,
        partition: Partition,
        batches: Vec<Batch>,
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
        self.observe(partition, asked_us, answers.at);
        Ok(answers)
    }

    /// Asks a partition for the time if none of its clock is known yet: what is dated there must not be dated by another
    /// clock.
    pub(crate) async fn learn_clock(&self, partition: Partition) -> Result<()> {
        if !self.0.clocks.knows(self.store().clock_of(partition)) {
            self.read(partition, Vec::new()).await?;
        }
        Ok(())
    }

    /// Spawns a task that ends with the engine.
    pub(crate) fn spawn_owned(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.own(self.env().spawn(Box::pin(task)));
    }

    /// Spawns a short task that runs to its end.
    pub(crate) fn spawn_short(&self, task: impl Future<Output = ()> + Send + 'static) {
        let engine = self.clone();
        let contained = async move {
            let work = async move {
                task.await;
                Ok(())
            };
            // The panic was counted and logged; whatever the task was for is found again by a sweep or a caller.
            drop(engine.contain("tasks", work).await);
        };
        self.env().spawn(Box::pin(contained)).detach();
    }

    pub(crate) fn refuse_if_closing(&self) -> Result<()> {
        if self.0.closing.load(Ordering::SeqCst) {
            Err(Error::of(Code::ShuttingDown).retry_after(1_000))
        } else {
            Ok(())
        }
    }

    /// Whether a line that a loop may repeat is to be written now: then how many of it were suppressed.
    pub(crate) fn may_log(&self, line: &'static str) -> Option<u64> {
        self.0.log_limit.admit(line, self.env().now_ms())
    }

    /// Listens to a document or log; see [`Board::listen`].
    pub(crate) fn listen_to(&self, partition: Partition, key: Key) -> Listener {
        self.board().listen(partition, key)
    }

    pub(crate) fn counts(&self) -> &Shared<GetCountsOutcome> {
        &self.0.counts
    }

    pub(crate) fn namespaces_seen(&self) -> &Shared<Vec<String>> {
        &self.0.namespaces_seen
    }

    pub(crate) fn bulk_turns(&self) -> &BulkTurns {
        &self.0.bulk_turns
    }

    /// The store behind the engine.
    pub fn store(&self) -> &dyn Store {
        self.0.store.as_ref()
    }

    /// How the deployment is partitioned.
    pub fn partitions(&self) -> &PartitionConfig {
        &self.0.partitions
    }

    /// How the engine is set up.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// What one call may ask for.
    pub fn limits(&self) -> &Limits {
        &self.0.options.limits
    }

    /// What the engine counts.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// How many things the engine keeps in memory for calls that are under way. For tests: at rest there are none.
    #[doc(hidden)]
    pub fn kept_for_calls(&self) -> [(&'static str, usize); 2] {
        [("locks", self.locks().len()), ("topics", self.board().len())]
    }

    /// The time of the system partition, as far as the engine knows it.
    pub fn now(&self) -> i64 {
        self.now_in(Partition::SYSTEM)
    }

    /// The time of a partition, as far as the engine knows it. One that has not answered yet is taken for the system
    /// partition, which is good enough for what is only looked at; a transaction learns its clock first.
    pub(crate) fn now_in(&self, partition: Partition) -> i64 {
        if let Some(clock) = &self.options().test_clock {
            return clock.now();
        }
        let clock = |partition| self.0.clocks.now(self.store().clock_of(partition), self.env());
        clock(partition).or_else(|| clock(Partition::SYSTEM)).unwrap_or_else(|| self.env().now_ms())
    }

    /// An instant of one partition's clock, on that of another.
    pub(crate) fn instant_in(&self, at: i64, of: Partition, partition: Partition) -> i64 {
        self.now_in(partition).saturating_add(at.saturating_sub(self.now_in(of)))
    }

    /// Events each flow partition keeps.
    pub(crate) fn events_cap(&self) -> u64 {
        (self.limits().events_kept / u64::from(self.partitions().flow)).max(limits::EVENTS_PER_PARTITION_MIN)
    }

    /// The store, asked at that instant of the process's clock, said what time it is.
    pub(crate) fn observe(&self, partition: Partition, asked_us: i64, store_now: i64) {
        self.0.clocks.observe(self.store().clock_of(partition), self.env(), asked_us, store_now);
    }

    pub(crate) fn fresh_command(&self) -> CommandId {
        env::command_id(self.env(), self.now())
    }

    pub(crate) fn env(&self) -> &dyn Env {
        self.0.env.as_ref()
    }

    pub(crate) fn env_handle(&self) -> &Arc<dyn Env> {
        &self.0.env
    }

    pub(crate) fn journal_sizes(&self) -> &JournalSizes {
        &self.0.journal_sizes
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// What is known to follow executions.
    pub(crate) fn downstreams(&self) -> &DownstreamCache {
        &self.0.downstreams
    }

    pub(crate) fn board(&self) -> &Board {
        &self.0.board
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.0.locks
    }

    pub(crate) fn charges(&self) -> &Charges {
        &self.0.charges
    }

    /// For ids that say what came first.
    pub(crate) fn rising(&self, fresh: Mint) -> Mint {
        self.0.rising.next(fresh)
    }

    pub(crate) fn providers(&self) -> &Providers {
        &self.0.providers
    }

    pub(crate) fn quotas(&self) -> &Quotas {
        &self.0.quotas
    }

    pub(crate) fn concurrency_keys(&self) -> &ConcurrencyKeys {
        &self.0.concurrency_keys
    }

    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.0.scheduler
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.0.timers
    }

    /// How much one read or commit takes whose own limit is this.
    pub(crate) fn chunk(&self, limit: usize) -> usize {
        limit.min(self.options().chunk_max).max(1)
    }

    pub(crate) fn resolver(&self) -> &Resolver {
        &self.0.resolver
    }

    pub(crate) fn subscriptions(&self) -> &Subscriptions {
        &self.0.subscriptions
    }

    pub(crate) fn system(&self) -> &SystemCache {
        &self.0.system
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    pub(crate) fn servers(&self) -> &Servers {
        &self.0.servers
    }

    pub(crate) fn service_states(&self) -> &Services {
        &self.0.services
    }

    /// The partitions that executions live in.
    pub(crate) fn flow_partitions(&self) -> impl Iterator<Item = Partition> + use<> {
        self.partitions().all().filter(|partition| partition.family == ff_core::Family::Flow)
    }

    pub(crate) fn secret_state(&self) -> &SecretState {
        &self.0.secrets
    }

    pub(crate) fn origin(&self) -> CommandId {
        self.0.origin
    }

    /// Whether an entry at this instant must be told to other engines; see [`Timers::announce`].
    pub(crate) fn announce_due(&self, partition: Partition, at: i64) -> bool {
        self.timers().announce(partition, at, self.now_in(partition))
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("store", &self.store().info().kind).finish_non_exhaustive()
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
