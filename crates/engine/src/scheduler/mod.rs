//! Finding work for workers that ask for it.
//!
//! A claim looks at what this engine knows of the queues, reads the heads it does not know, and commits the lease under
//! guards. With no work it waits, which costs the store nothing, until a hint, a gate or the end of its patience.
//!
//! A partition that does not answer holds up no claim: reads and commits of one claim go on beside each other, none is
//! waited for longer than a named patience while there is something else to take, and a partition that failed is left
//! alone for a second.

pub(crate) mod admission;
mod candidate;
pub(crate) mod charging;
mod claiming;
pub(crate) mod concurrency;
mod estimates;
mod held;
pub(crate) mod parking;
pub(crate) mod quotas;
pub(crate) mod reads;
pub(crate) mod ready;
mod returning;
mod unparking;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ff_core::execution::{ClaimedAttempt, Execution};
use ff_core::lease::ClaimGrant;
use ff_core::worker::Worker;
use ff_core::{Key, LeaseId, Result};
use ff_store::Version;

use self::admission::BudgetReads;
use self::charging::Charges;
use self::claiming::Claiming;
use self::concurrency::ConcurrencyKeys;
use self::quotas::Quotas;
use self::ready::{Criteria, Ready};
use self::unparking::TurnsAtGates;
use crate::env;
use crate::groups::Name;
use crate::metrics::ClaimExit;
use crate::ranks::Ranks;
use crate::system::SystemDocuments;
use crate::transaction::{CallerGone, Transactor};

/// Finds work for workers that ask for it.
#[derive(Clone)]
pub(crate) struct Scheduler {
    transactor: Transactor,
    memory: Arc<Memory>,
}

/// The scheduler's memory.
struct Memory {
    ready: Mutex<Ready>,
    /// Versions of flows whose members were claimed: a member's claim is guarded by its flow.
    flows: Mutex<BTreeMap<Key, (Version, FlowAdmits)>>,
    turn: AtomicUsize,
    /// How long commits of claims take, the newest weighing an eighth.
    usual_commit_us: AtomicI64,
    /// Requests to quotas on their way.
    quotas: Quotas,
    /// Reads of budgets on their way.
    budget_reads: BudgetReads,
    /// Charges to budgets on their way.
    charges: Charges,
    /// Requests to concurrency keys on their way.
    concurrency_keys: ConcurrencyKeys,
    /// Gates that are looked at once more for what they left.
    looked_at: Mutex<BTreeSet<Name>>,
    /// The turns that keys have had at gates.
    turns_at_gates: Mutex<TurnsAtGates>,
    system: SystemDocuments,
}

impl Scheduler {
    pub(crate) fn new(system: SystemDocuments, ranks: Ranks) -> Self {
        let memory = Memory {
            ready: Mutex::new(Ready::new(ranks)),
            flows: Mutex::default(),
            turn: AtomicUsize::default(),
            usual_commit_us: AtomicI64::default(),
            quotas: Quotas::default(),
            budget_reads: BudgetReads::default(),
            charges: Charges::default(),
            concurrency_keys: ConcurrencyKeys::default(),
            looked_at: Mutex::default(),
            turns_at_gates: Mutex::default(),
            system,
        };
        Self { transactor: memory.system.transactor().clone(), memory: Arc::new(memory) }
    }

    pub(crate) fn transactor(&self) -> &Transactor {
        &self.transactor
    }

    /// The same scheduler, whose commits go through this handle.
    pub(crate) fn through(&self, transactor: &Transactor) -> Self {
        Self { transactor: transactor.part(), memory: Arc::clone(&self.memory) }
    }

    /// The same handle for a part of a call that needs one of its own.
    fn part(&self) -> Self {
        self.through(&self.transactor)
    }

    pub(crate) fn ready(&self) -> std::sync::MutexGuard<'_, Ready> {
        self.memory.ready()
    }

    /// A flow has changed, and may let its members do something else.
    pub(crate) fn forget_flow(&self, key: &Key) {
        self.memory.forget_flow(key);
    }

    /// A flow was created under this version; nothing forbids its members to run.
    pub(crate) fn flow_created(&self, key: Key, version: Version) {
        self.memory.remember_flow(key, version, FlowAdmits { starts: true, continuations: true });
    }
}

impl Memory {
    fn ready(&self) -> std::sync::MutexGuard<'_, Ready> {
        self.ready.lock().expect("no holder of this lock panics")
    }

    fn usual_commit_ms(&self) -> i64 {
        self.usual_commit_us.load(Ordering::Relaxed) / 1_000
    }

    fn commit_took(&self, us: i64) {
        let usual = self.usual_commit_us.load(Ordering::Relaxed);
        self.usual_commit_us.store(usual + (us - usual) / 8, Ordering::Relaxed);
    }

    fn forget_flow(&self, key: &Key) {
        self.flows.lock().expect("no holder of this lock panics").remove(key);
    }

    fn flow(&self, key: &Key) -> Option<(Version, FlowAdmits)> {
        self.flows.lock().expect("no holder of this lock panics").get(key).copied()
    }

    fn remember_flow(&self, key: Key, version: Version, admits: FlowAdmits) {
        let mut flows = self.flows.lock().expect("no holder of this lock panics");
        if flows.len() >= 10_000 {
            flows.clear();
        }
        flows.insert(key, (version, admits));
    }
}

/// The worker that asks for work, and for how much.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) criteria: Arc<Criteria>,
    /// The logical name behind the instance, once there is something to take: a worker that only waits need not be
    /// looked up.
    pub(crate) worker_id: OnceLock<String>,
    pub(crate) instance_id: String,
    /// One for each task wanted: first those that the caller chose, then fresh ones.
    pub(crate) lease_ids: Vec<LeaseId>,
    /// How many of them the caller chose. It can ask for these again, and for no others.
    pub(crate) chosen_ids: usize,
    pub(crate) ttl_ms: i64,
    pub(crate) wait_ms: i64,
    /// Grants of this length instead of leases.
    pub(crate) grant_ttl_ms: Option<i64>,
    /// The caller has gone: what is under way is finished, and nothing more is waited for.
    pub(crate) gone: Arc<CallerGone>,
}

impl Ask {
    /// Whether a caller that was told of no lease may ask for this one again.
    fn is_chosen(&self, id: &LeaseId) -> bool {
        self.lease_ids.iter().take(self.chosen_ids).any(|chosen| chosen == id)
    }
}

/// The work that was taken.
#[derive(Debug, Clone)]
pub(crate) enum Taken {
    Lease {
        execution: Arc<Execution>,
        claimed: ClaimedAttempt,
        lease_until: i64,
        /// It was found and not taken now: its holder may have written under it.
        found: bool,
    },
    Grant(ClaimGrant),
}

impl Taken {
    /// A lease begins when the store has committed it. The engine's estimate of that instant may be ahead of it, and no
    /// worker is promised more than the store keeps.
    fn since(self, at: i64, ttl_ms: i64) -> Self {
        match self {
            Taken::Lease { execution, claimed, found, .. } => {
                Taken::Lease { execution, claimed, lease_until: at + ttl_ms, found }
            }
            grant @ Taken::Grant(_) => grant,
        }
    }

    pub(crate) fn lease_id(&self) -> LeaseId {
        match self {
            Taken::Lease { claimed, .. } => claimed.fence.lease_id,
            Taken::Grant(grant) => grant.grant_id,
        }
    }

    fn lane(&self) -> Option<&str> {
        match self {
            Taken::Lease { execution, .. } => Some(&execution.lane),
            Taken::Grant(grant) => Some(&grant.lane),
        }
    }
}

impl Scheduler {
    /// Waits for work and takes it. An empty answer means that nothing was claimable for the whole wait.
    pub(crate) async fn take_work(&self, ask: &Arc<Ask>) -> Result<Vec<Taken>> {
        let started = self.transactor.env().now_us();
        let taken = Claiming::new(self, ask).run().await;
        let us = self.transactor.env().now_us() - started;
        let lanes = || ask.criteria.lanes.iter().map(String::as_str);
        match &taken {
            Ok(taken) if !taken.is_empty() => {
                let from: BTreeSet<&str> = taken.iter().filter_map(Taken::lane).collect();
                self.transactor.metrics().claim_ended(from.into_iter(), ClaimExit::Taken, us);
            }
            Ok(_) if ask.gone.is_said() => self.transactor.metrics().claim_ended(lanes(), ClaimExit::Gone, us),
            Ok(_) => self.transactor.metrics().claim_ended(lanes(), ClaimExit::Empty, us),
            Err(_) => self.transactor.metrics().claim_ended(lanes(), ClaimExit::Failed, us),
        }
        taken
    }

    /// The logical name of a claimer, as it registered; one that did not is known by its instance.
    pub(crate) async fn worker_id<'a>(&self, ask: &'a Ask) -> Result<&'a str> {
        if let Some(known) = ask.worker_id.get() {
            return Ok(known);
        }
        let key = Worker::key_of(&ask.criteria.namespace, &ask.instance_id);
        let worker = self.memory.system.system_document::<Worker>(&key).await?;
        let name = worker.map_or_else(|| ask.instance_id.clone(), |worker| worker.worker_id);
        Ok(ask.worker_id.get_or_init(|| name))
    }

    /// The lanes among those asked for that give out work now.
    async fn open_lanes<'a>(&self, criteria: &'a Criteria) -> Result<Cow<'a, Criteria>> {
        let mut criteria = Cow::Borrowed(criteria);
        for lane in &criteria.clone().lanes {
            if self.memory.system.lane(&criteria.namespace, lane).await?.is_some_and(|lane| !lane.admits_claims()) {
                criteria.to_mut().lanes.retain(|open| open != lane);
            }
        }
        Ok(criteria)
    }

    /// Opens what has waited for its time: closed gates, and queues whose partition failed. It costs nothing while there
    /// is nothing of the kind.
    pub(crate) async fn run_openings(self) {
        let noted = self.ready().opening_noted();
        loop {
            let next = self.ready().next_opening();
            let now = self.transactor.env().now_ms();
            match next {
                None => noted.notified().await,
                Some(at) if at > now => {
                    env::within(self.transactor.env_handle(), at - now, noted.notified()).await;
                }
                Some(_) => self.ready().open_due(now),
            }
        }
    }

    /// Closes a gate until an instant of the store.
    pub(crate) fn close_gate(&self, namespace: &str, gate: &str, until: i64) {
        let local = self.transactor.env().now_ms() + (until - self.transactor.now()).max(0);
        self.ready().close_gate(namespace, gate, local);
    }
}

/// Whether a flow lets its members start.
#[derive(Debug, Clone, Copy)]
struct FlowAdmits {
    starts: bool,
    continuations: bool,
}

impl FlowAdmits {
    fn admit(self, member: &Execution) -> bool {
        if member.has_started() { self.continuations } else { self.starts }
    }
}
