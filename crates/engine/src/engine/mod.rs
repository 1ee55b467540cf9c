//! The engine: a store, an environment, and the services that run between them, put together.

mod serves;

use std::sync::{Arc, Mutex};

use ff_core::journal::StepView;
use ff_core::op::{HookReceipt, Operation};
use ff_core::planted::{Bug, planted};
use ff_core::session::Session;
use ff_core::stream::FrameId;
use ff_core::{ExecutionId, Partition, PartitionConfig, Result};
use ff_store::Store;

use crate::board::Board;
use crate::bulk::Bulk;
use crate::caller::Caller;
use crate::counts::Counts;
use crate::delivery::Deliveries;
use crate::dispatch::Dispatch;
use crate::env::{BoxFuture, Env};
use crate::follow::{JournalSeen, Seen, StreamUpdate};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::op::{EventWatch, HookMessage};
use crate::options::Options;
use crate::providers::Providers;
use crate::reconcile::{Reconciled, Reconciler};
use crate::registry::Registry;
use crate::resolver::Resolver;
use crate::scheduler::Scheduler;
use crate::secrets::Secrets;
use crate::servers::Servers;
use crate::services::{Services, SharedServices};
use crate::shared::Shared;
use crate::submission::Submissions;
use crate::subscription::Subscriptions;
use crate::supervision::{self, ServiceHealth};
use crate::system::SystemDocuments;
use crate::timers::Timers;
use crate::transaction::{Listener, Transactor};

pub use serves::Serves;

/// How long a reading that many ask for is shared: counts, and which namespaces there are.
const READING_FRESH_MS: i64 = 2_000;

/// A running engine; clones share it.
#[derive(Clone)]
pub struct Engine {
    pub(crate) services: Services,
}

impl Engine {
    /// Opens a deployment on a store and starts the services.
    ///
    /// The futures of this and of other methods are boxed for the reason that [`serves`] gives.
    pub fn start(store: Arc<dyn Store>, env: Arc<dyn Env>, options: Options) -> BoxFuture<'static, Result<Self>> {
        Box::pin(Self::open(store, env, options))
    }

    async fn open(store: Arc<dyn Store>, env: Arc<dyn Env>, options: Options) -> Result<Self> {
        options.validate()?;
        let transactor = Transactor::open(store, env, options).await?;
        let engine = Self { services: assemble(transactor) };
        engine.services.shared.secrets.install_secret().await?;
        if engine.options().services {
            engine.services.shared.servers.join().await?;
        }
        engine.start_services();
        Ok(engine)
    }

    fn start_services(&self) {
        let transactor = &self.services.transactor;
        self.services.scheduler.ready().sweep_begins(transactor.flow_partitions());
        // Watching begins before the first sweep, so that nothing between the two is missed.
        let hints = Arc::new(Mutex::new(Some(self.store().watch())));
        self.run("hints", move |services| services.shared.dispatch.clone().listen(hints.clone()));
        self.run("sweeps", |services| services.shared.timers.clone().run_sweeps());
        self.run("openings", |services| services.scheduler.clone().run_openings());
        if self.options().services {
            self.run("heartbeats", |services| services.shared.servers.clone().run());
            self.run("timers", |services| services.shared.timers.clone().run());
            self.run("reconciler", |services| services.shared.reconciler.clone().run());
            self.run("subscriptions", |services| services.shared.subscriptions.clone().run());
            if self.options().courier.is_some() {
                self.run("deliveries", |services| Deliveries::new(services.clone()).run());
            }
        }
    }

    /// Runs a service; it keeps the whole engine alive until that closes.
    fn run<R>(&self, name: &'static str, run: impl Fn(&Services) -> R + Send + Sync + 'static)
    where
        R: Future<Output = ()> + Send + 'static,
    {
        let services = self.services.clone();
        supervision::run_service(&self.services.transactor, name, move || run(&services));
    }

    /// Carries out an operation. Its future must be polled to its end or dropped: a claim that is kept without being
    /// polled blocks the candidates that it was about to take.
    pub async fn call<O: Operation>(&self, caller: &Caller, args: O::Args) -> Result<O::Outcome>
    where
        Self: Serves<O>,
    {
        self.serve(caller, args).await
    }

    /// Ends every wait with `shutting_down`. Operations under way are answered, and the services go on.
    pub fn stop_waits(&self) {
        self.services.transactor.runtime().close(!planted(Bug::StopHangs));
        self.services.scheduler.ready().wake_all();
        self.services.scheduler.wake_gates();
        self.services.shared.board.wake_all();
        if let Some(clock) = &self.options().test_clock {
            clock.changed();
        }
    }

    /// Stops the services, and waiting operations with `shutting_down`. A program lets operations that are under way
    /// end before that: the farewell makes the other servers look for work that this one has left, so it comes last.
    pub fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.stop_waits();
            self.services.transactor.runtime().tasks.abort_all();
            self.services.shared.servers.leave().await;
        })
    }

    /// The store behind the engine.
    pub fn store(&self) -> &dyn Store {
        self.services.transactor.store()
    }

    /// How the deployment is partitioned.
    pub fn partitions(&self) -> &PartitionConfig {
        self.services.transactor.partitions()
    }

    /// How the engine is set up.
    pub fn options(&self) -> &Options {
        self.services.transactor.options()
    }

    /// The limits of one call.
    pub fn limits(&self) -> &Limits {
        self.services.transactor.limits()
    }

    /// The counters of the engine.
    pub fn metrics(&self) -> &Metrics {
        self.services.transactor.metrics()
    }

    /// The health of the services of this engine.
    pub fn services(&self) -> Vec<ServiceHealth> {
        supervision::health(&self.services.transactor)
    }

    /// How many things the engine keeps in memory for calls that are under way. For tests: at rest there are none.
    #[doc(hidden)]
    pub fn kept_for_calls(&self) -> [(&'static str, usize); 2] {
        [("locks", self.services.transactor.locks().len()), ("topics", self.services.shared.board.len())]
    }

    /// The time of the system partition, as far as the engine knows it.
    pub fn now(&self) -> i64 {
        self.services.transactor.now()
    }

    /// Checks everything in one partition now.
    pub fn reconcile(&self, partition: Partition) -> BoxFuture<'_, Reconciled> {
        Box::pin(self.services.shared.reconciler.reconcile(partition))
    }

    /// The next thing a viewer sees, waiting for it if there is nothing yet.
    pub fn follow<'a>(
        &'a self,
        caller: &'a Caller,
        id: &'a ExecutionId,
        seen: Seen,
        count: usize,
        wait_ms: i64,
    ) -> BoxFuture<'a, Result<StreamUpdate>> {
        Box::pin(self.services.follow(caller, id, seen, count, wait_ms))
    }

    /// The entries of a journal behind those that a viewer has seen, waiting for them if there are none yet. Another
    /// generation is seen from its first own entry on: what it took over was seen before.
    pub fn follow_journal<'a>(
        &'a self,
        caller: &'a Caller,
        id: &'a ExecutionId,
        seen: JournalSeen,
        count: usize,
        wait_ms: i64,
    ) -> BoxFuture<'a, Result<(JournalSeen, Vec<StepView>)>> {
        Box::pin(self.services.follow_journal(caller, id, seen, count, wait_ms))
    }

    /// The last frame of the current attempt; `n-0` while it has none.
    pub fn stream_end<'a>(&'a self, id: &'a ExecutionId) -> BoxFuture<'a, Result<FrameId>> {
        Box::pin(self.services.stream_end(id))
    }

    /// Begins to watch for events: watch first, then list, then wait.
    pub fn watch_events(&self) -> EventWatch {
        self.services.watch_events()
    }

    /// Verifies a message that was posted to a hook from outside, and does what the hook says, once for each message. A
    /// hook that does not exist and a signature that is wrong are refused alike.
    pub fn receive_hook(&self, message: HookMessage) -> BoxFuture<'_, Result<HookReceipt>> {
        Box::pin(self.services.receive_hook(message))
    }

    /// The caller behind an API token. Wrong, unknown, expired and revoked ones read the same; a revocation holds
    /// within a second.
    pub async fn authenticate(&self, bearer: &str) -> Result<Caller> {
        self.services.shared.system.authenticate(bearer).await
    }

    /// A session for the holder of an API token. It ends with the token, and before that after its own time.
    pub async fn begin_session(&self, bearer: &str) -> Result<Session> {
        self.services.shared.system.begin_session(bearer).await
    }

    /// The caller behind a session of an API token; refusals read as those of [`Engine::authenticate`].
    pub async fn authenticate_session(&self, session: &Session) -> Result<Caller> {
        self.services.shared.system.authenticate_session(session).await
    }

    /// The caller behind a ticket, and the one execution it is good for. Wrong, old and foreign ones read the same.
    pub fn redeem_ticket<'a>(&'a self, ticket: &'a str) -> BoxFuture<'a, Result<(Caller, Option<ExecutionId>)>> {
        Box::pin(self.services.redeem_ticket(ticket))
    }

    /// Refuses a caller whose token was revoked, has expired, or is another one by now. One without a stored token, from
    /// the configuration or from a server without tokens, stays what it is.
    pub async fn confirm_caller(&self, caller: &Caller) -> Result<()> {
        self.services.shared.system.confirm_caller(caller).await
    }
}

/// Puts the services together, from the bottom up.
fn assemble(transactor: Transactor) -> Services {
    let board = Board::default();
    let system = SystemDocuments::new(transactor.clone());
    let secrets = Secrets::new(system.clone());
    let servers = Servers::new(transactor.clone());
    let submissions = Submissions::new(system.clone());
    let scheduler = Scheduler::new(system.clone(), servers.ranks());
    let providers = Providers::new(transactor.clone());
    let resolver = Resolver::new(scheduler.clone());
    let bulk = Bulk::new(servers.clone());
    let subscriptions = Subscriptions::new(servers.clone(), submissions.clone());
    let timers = Timers {
        transactor: transactor.clone(),
        servers: servers.clone(),
        scheduler: scheduler.clone(),
        resolver: resolver.clone(),
        providers: providers.clone(),
        bulk: bulk.clone(),
        submissions: submissions.clone(),
        subscriptions: subscriptions.clone(),
    };
    let registry = Registry::new(transactor.clone());
    let dispatch = Arc::new(Dispatch {
        transactor: transactor.clone(),
        board: board.clone(),
        system: system.clone(),
        servers: servers.clone(),
        scheduler: scheduler.clone(),
        resolver,
        registry: registry.clone(),
        subscriptions: subscriptions.clone(),
    });
    let listener: Arc<dyn Listener> = dispatch.clone();
    transactor.set_listener(Arc::downgrade(&listener));
    let shared = SharedServices {
        reconciler: Reconciler::new(servers.clone(), scheduler.clone()),
        registry,
        board,
        system,
        secrets,
        servers,
        submissions,
        providers,
        bulk,
        subscriptions,
        timers,
        dispatch,
        counts: Counts::shared_for_ms(transactor.clone(), READING_FRESH_MS),
        namespaces_seen: Shared::for_ms(READING_FRESH_MS),
    };
    Services { transactor, scheduler, shared: Arc::new(shared) }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("store", &self.store().info().kind).finish_non_exhaustive()
    }
}
