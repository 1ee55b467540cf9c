//! Everything one run shares: the store, the servers on it, the weather between them, and the checkers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::op::Operation;
use ff_core::{ExecutionId, LeaseId, Mint, Partition, Result};
use ff_engine::{Caller, Engine, Serves};
use ff_store::memory::{Contents, MemoryStore};
use ff_store::{Batch, Outcome};
use futures_util::future::select;
use serde_json::Value;
use tokio::sync::{Notify, oneshot};

use crate::checker::{Before, Checker, Commit, Facts, touched};
use crate::clocks::Clocks;
use crate::desk::Desk;
use crate::executor::{Executor, Owner};
use crate::guards::GuardCounts;
use crate::history::History;
use crate::profile::{Focus, Profile};
use crate::random::Random;
use crate::store::{NextPlan, Weather};

/// Commits on their way to the store.
pub(crate) const NETWORK: Owner = Owner(0);
/// Workers, clients and the troublemaker.
pub(crate) const OUTSIDE: Owner = Owner(1);
/// The store's time at the start.
pub(crate) const START: i64 = 1_800_000_000_000;

/// A process with an engine, or the place of one that is dead.
pub(crate) struct Server {
    /// The owner of its tasks.
    pub owner: Owner,
    /// `None` while it is dead or starting.
    pub engine: Option<Engine>,
}

/// The reply that a caller hears.
#[derive(Debug)]
pub(crate) enum Reply<T> {
    /// The answer.
    Answer(Result<T>),
    /// The server died, or there is none.
    Lost,
}

/// One run.
pub(crate) struct World {
    /// Time and tasks.
    pub executor: Executor,
    /// The one store.
    pub store: MemoryStore,
    /// The plan for the store's next commit.
    pub next_plan: Arc<NextPlan>,
    /// The profile of the run.
    pub profile: Profile,
    /// The one lease id that workers without imagination use.
    pub habit: LeaseId,
    /// The clocks of the store's partitions.
    pub clocks: Arc<Clocks>,
    /// The documents of a commit that was never applied, which a planted bug shows to readers.
    pub doomed: crate::defects::Doomed,
    servers: Mutex<Vec<Server>>,
    checker: Mutex<Checker>,
    history: Mutex<History>,
    random: Mutex<Random>,
    desk: Mutex<Desk>,
    called: Mutex<BTreeSet<&'static str>>,
    guards: Mutex<GuardCounts>,
    /// How many claims each server has under way.
    claims: Mutex<BTreeMap<Owner, usize>>,
    /// The partition that cannot be reached now.
    out: Mutex<Option<Partition>>,
    /// The present instant, and the steps taken in it.
    instant: Mutex<(i64, u64)>,
    stormy: AtomicBool,
    /// Wakes every call that the storm holds up.
    calmed: Notify,
    /// No actor works or asks any more; only time passes.
    over: AtomicBool,
}

impl World {
    /// An empty deployment.
    pub(crate) fn new(seed: u64, focus: Option<Focus>, keep_history: bool) -> Arc<Self> {
        let mut random = Random::new(seed);
        let executor = Executor::new(&mut random);
        let profile = Profile::new(&mut random);
        let profile = if let Some(focus) = focus { profile.focus(focus) } else { profile };
        let admission_lag_ms = profile.admission_lag_ms();
        let clocks = Arc::new(Clocks::new(&executor));
        if profile.skew_ms > 0 {
            for partition in profile.partitions.all() {
                clocks.set(partition, random.between(-profile.skew_ms, profile.skew_ms));
            }
        }
        let shown = Arc::clone(&clocks);
        let next_plan = Arc::new(NextPlan::default());
        let store = MemoryStore::with_partition_clocks(Arc::new(move |partition| shown.read(partition)))
            .with_faults(next_plan.clone());
        Arc::new(Self {
            executor,
            store,
            next_plan,
            profile,
            habit: LeaseId::mint(&Mint { now_ms: START, random: [7; 10] }),
            clocks,
            doomed: crate::defects::Doomed::default(),
            servers: Mutex::default(),
            checker: Mutex::new(Checker::new(admission_lag_ms)),
            history: Mutex::new(History::new(keep_history)),
            random: Mutex::new(random),
            desk: Mutex::default(),
            called: Mutex::default(),
            guards: Mutex::default(),
            claims: Mutex::default(),
            out: Mutex::default(),
            instant: Mutex::default(),
            stormy: AtomicBool::new(true),
            calmed: Notify::new(),
            over: AtomicBool::new(false),
        })
    }

    /// How often each guard was judged.
    pub(crate) fn guards(&self) -> MutexGuard<'_, GuardCounts> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many claims a server has under way.
    pub(crate) fn claims_at(&self, owner: Owner) -> usize {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).get(&owner).copied().unwrap_or(0)
    }

    fn count_claim(&self, owner: Owner, add: bool) {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let count = claims.entry(owner).or_default();
        *count = if add { *count + 1 } else { count.saturating_sub(1) };
    }

    /// The partition that cannot be reached now.
    pub(crate) fn out(&self) -> Option<Partition> {
        *self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A partition goes out of reach, or comes back.
    pub(crate) fn set_out(&self, partition: Option<Partition>) {
        self.note(format_args!("out of reach: {partition:?}"));
        *self.out.lock().unwrap_or_else(PoisonError::into_inner) = partition;
        self.checker().disturbed(self.executor.now_ms(), partition);
    }

    /// Counts a step, and answers how many were taken at this instant.
    pub(crate) fn steps_within(&self, now_ms: i64) -> u64 {
        let mut instant = self.instant.lock().unwrap_or_else(PoisonError::into_inner);
        *instant = if instant.0 == now_ms { (now_ms, instant.1 + 1) } else { (now_ms, 1) };
        instant.1
    }

    /// The time of every partition.
    pub(crate) fn times(&self) -> impl Fn(Partition) -> i64 + use<> {
        let partitions = self.profile.partitions.all();
        let times: BTreeMap<Partition, i64> =
            partitions.map(|partition| (partition, self.store.now_in(partition))).collect();
        move |partition| times.get(&partition).copied().unwrap_or(0)
    }

    /// Whether all actors have stopped.
    pub(crate) fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Stops all actors.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// The servers.
    pub(crate) fn servers(&self) -> MutexGuard<'_, Vec<Server>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The checkers.
    pub(crate) fn checker(&self) -> MutexGuard<'_, Checker> {
        self.checker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The history.
    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Random numbers of the workload and the weather.
    pub(crate) fn random(&self) -> MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The messages of the actors to each other.
    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operations that were called.
    pub(crate) fn called(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether trouble is still made.
    pub(crate) fn stormy(&self) -> bool {
        self.stormy.load(Ordering::Relaxed)
    }

    /// No more trouble: what is unfinished must come to its end.
    pub(crate) fn calm(&self) {
        self.stormy.store(false, Ordering::Relaxed);
        self.calmed.notify_waiters();
        self.checker().calm(self.executor.now_ms());
    }

    /// Writes a line of history.
    pub(crate) fn note(&self, event: std::fmt::Arguments<'_>) {
        self.history().line(self.executor.now_ms(), event);
    }

    /// The weather of the next call.
    pub(crate) fn weather(&self) -> Weather {
        if self.stormy() { self.profile.weather(&mut self.random()) } else { Weather::default() }
    }

    /// Waits, unless there is nothing to wait for.
    pub(crate) async fn wait(&self, ms: i64) {
        if ms > 0 {
            self.executor.sleep(ms).await;
        }
    }

    /// A call is held up this long, or until the storm is over.
    pub(crate) async fn gust(&self, ms: i64) {
        if ms <= 0 {
            return;
        }
        let mut calmed = std::pin::pin!(self.calmed.notified());
        calmed.as_mut().enable();
        if self.stormy() {
            select(self.executor.sleep(ms), calmed).await;
        }
    }

    /// A number in a range, both ends included.
    pub(crate) fn between(&self, low: i64, high: i64) -> i64 {
        self.random().between(low, high)
    }

    /// True this many times in a thousand.
    pub(crate) fn chance(&self, per_mille: i64) -> bool {
        self.random().chance(per_mille)
    }

    /// One of several, which must not be none.
    pub(crate) fn pick<T: Copy>(&self, choices: &[T]) -> T {
        let place = self.random().below(choices.len());
        choices[place]
    }

    /// The values to mint an id from.
    pub(crate) fn mint(&self) -> Mint {
        let (high, low) = (self.executor.entropy().to_be_bytes(), self.executor.entropy().to_be_bytes());
        let mut random = [0u8; 10];
        random[..8].copy_from_slice(&high);
        random[8..].copy_from_slice(&low[..2]);
        Mint { now_ms: self.store.now(), random }
    }

    /// An id for an execution in a partition that can be reached.
    pub(crate) fn mint_reachable(&self) -> ExecutionId {
        let out = self.out();
        let mut id = self.mint_execution();
        while Some(id.partition()) == out {
            id = self.mint_execution();
        }
        id
    }

    /// An id for an execution of its own.
    pub(crate) fn mint_execution(&self) -> ExecutionId {
        ExecutionId::solo(&self.profile.partitions, &self.mint())
    }

    /// An id for a lease.
    pub(crate) fn mint_lease(&self) -> LeaseId {
        LeaseId::mint(&self.mint())
    }

    /// The documents a batch touches, as they are.
    pub(crate) fn look_before(&self, partition: Partition, batch: &Batch) -> Before {
        self.store.inspect(|contents| {
            let Some(contents) = contents.partition(partition) else { return Before::new() };
            let found = touched(batch).into_iter();
            found.filter_map(|key| contents.document(&key).cloned().map(|document| (key, document))).collect()
        })
    }

    /// Shows a batch to the checkers.
    pub(crate) fn look_after(
        &self,
        owner: Owner,
        partition: Partition,
        batch: &Batch,
        before: &Before,
        outcome: &Outcome,
    ) {
        self.guards().judged(batch, outcome);
        match outcome {
            Outcome::Conflict(conflict) => {
                self.note(format_args!("server {} {partition} {} conflict {conflict:?}", owner.0, batch.command));
            }
            Outcome::Applied(applied) => {
                let (puts, deletes) = (batch.puts.iter().map(|put| &put.key).collect::<Vec<_>>(), &batch.deletes);
                self.note(format_args!(
                    "server {} {partition} {} at {} puts {puts:?} deletes {deletes:?} leases {}",
                    owner.0,
                    batch.command,
                    applied.at,
                    batch.leases.len()
                ));
                self.store.inspect(|contents| {
                    if let Some(contents) = contents.partition(partition) {
                        let elapsed_ms = self.executor.now_ms();
                        let commit = Commit { owner, partition, batch, at: applied.at, elapsed_ms, before, contents };
                        self.checker().applied(commit);
                    }
                });
            }
        }
    }

    /// Everything stored, and what the checkers know of it.
    pub(crate) fn snapshot(&self) -> (Contents, Facts) {
        (self.store.snapshot(), self.checker().facts.clone())
    }

    /// The store forgets everything after a snapshot.
    pub(crate) fn fail_over(&self, (contents, facts): (Contents, Facts)) {
        self.note(format_args!("the store forgets"));
        self.checker().forget(facts, self.executor.now_ms());
        self.store.restore(contents);
        self.see_lanes();
    }

    fn see_lanes(&self) {
        let now_ms = self.executor.now_ms();
        self.store.inspect(|contents| self.checker().lanes_anew(contents, now_ms));
    }

    /// One partition forgets everything after a snapshot; the others do not.
    pub(crate) fn fail_over_partition(&self, partition: Partition, (contents, facts): (Contents, Facts)) {
        self.note(format_args!("{partition} forgets"));
        let config = self.profile.partitions;
        self.checker().forget_partition(partition, facts, &config, self.executor.now_ms());
        let kept = contents.partition(partition).cloned().unwrap_or_default();
        self.store.restore_partition(partition, kept);
        self.see_lanes();
    }

    /// Calls an operation of some server, as one request of a client.
    pub(crate) async fn call<O: Operation>(self: &Arc<Self>, args: &Value) -> Reply<O::Outcome>
    where
        Engine: Serves<O>,
        O::Outcome: 'static,
    {
        let Some(server) = self.choose() else {
            self.wait(50).await;
            return Reply::Lost;
        };
        self.call_at::<O>(server, args).await
    }

    /// Some server that is up.
    pub(crate) fn choose(&self) -> Option<(Owner, Engine)> {
        let servers = self.servers();
        let alive: Vec<(Owner, Engine)> =
            servers.iter().filter_map(|server| Some((server.owner, server.engine.clone()?))).collect();
        self.random().pick(&alive).cloned()
    }

    /// Calls an operation of this server.
    pub(crate) async fn call_at<O: Operation>(
        self: &Arc<Self>,
        (owner, engine): (Owner, Engine),
        args: &Value,
    ) -> Reply<O::Outcome>
    where
        Engine: Serves<O>,
        O::Outcome: 'static,
    {
        self.checker().will_call(O::NAME, args);
        let args: O::Args = match serde_json::from_str(&args.to_string()) {
            Ok(args) => args,
            Err(error) => panic!("{} cannot read {args}: {error}", O::NAME),
        };
        self.called().insert(O::NAME);
        let (reply, answer) = oneshot::channel();
        let request = async move {
            let caller = Caller::system();
            // A caller that has gone does not hear the answer.
            let _ = reply.send(engine.call::<O>(&caller, args).await);
        };
        let _claim = (O::NAME == ff_core::op::Claim::NAME).then(|| ClaimUnderWay::new(self, owner));
        // Dropped with this future: a caller that gives up takes its request with it.
        let _request = self.executor.spawn(owner, Box::pin(request));
        match answer.await {
            Ok(answer) => Reply::Answer(answer),
            Err(_) => Reply::Lost,
        }
    }

    /// Repeats an operation with one identity until its outcome is known. `None`: it never was.
    pub(crate) async fn insist<O: Operation>(self: &Arc<Self>, args: &Value) -> Option<Result<O::Outcome>>
    where
        Engine: Serves<O>,
        O::Outcome: 'static,
    {
        for attempt in 0..12 {
            match self.call::<O>(args).await {
                Reply::Answer(Err(error)) if error.code.retryable() => {
                    self.note(format_args!("{} {} tries again: {}", O::NAME, args, error.code.as_str()));
                }
                Reply::Answer(answer) => {
                    let shown = answer.as_ref().map_or_else(|error| error.code.as_str().to_owned(), |_| "ok".into());
                    self.note(format_args!("{} {args} -> {shown}", O::NAME));
                    return Some(answer);
                }
                Reply::Lost => self.note(format_args!("{} {args} is lost", O::NAME)),
            }
            let pause = self.between(1, 100 << attempt.min(5));
            self.wait(pause).await;
        }
        None
    }
}

/// Counts a claim for as long as it is under way.
struct ClaimUnderWay {
    world: Arc<World>,
    owner: Owner,
}

impl ClaimUnderWay {
    fn new(world: &Arc<World>, owner: Owner) -> Self {
        world.count_claim(owner, true);
        Self { world: Arc::clone(world), owner }
    }
}

impl Drop for ClaimUnderWay {
    fn drop(&mut self) {
        self.world.count_claim(self.owner, false);
    }
}
