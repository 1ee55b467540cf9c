//! Finding work for workers that ask for it.
//!
//! A claim looks at the queues that this engine knows (`ready`), reads the heads that it does not know (`reads`), asks
//! the gates of a candidate (`admission`), and commits the lease under guards (`candidate`). Without work it waits,
//! which costs the store nothing, until a hint, an opening gate or its deadline.
//!
//! A partition that does not answer holds up no claim: reads and commits of one claim go on beside each other, none is
//! waited for longer than a named patience while there is something else to take, and a partition that failed is left
//! alone for a second.

pub(crate) mod admission;
mod candidate;
pub(crate) mod charging;
mod claiming;
pub(crate) mod concurrency;
mod contention;
mod early;
mod estimates;
mod first_calls;
mod held;
mod letting_in;
pub(crate) mod parking;
pub(crate) mod quotas;
pub(crate) mod reads;
pub(crate) mod ready;
mod returning;
mod slots;
mod unparking;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ff_core::execution::{ClaimedAttempt, Execution};
use ff_core::lease::ClaimGrant;
use ff_core::worker::Worker;
use ff_core::{ExecutionId, Key, LeaseId, Result};
use ff_store::Version;

use self::admission::BudgetReads;
use self::charging::Charges;
use self::claiming::Claiming;
use self::concurrency::ConcurrencyKeys;
use self::early::Roomy;
use self::first_calls::FirstCalls;
use self::letting_in::GateLooks;
use self::quotas::Quotas;
use self::ready::{Criteria, Ready};
use self::unparking::TurnsAtGates;
use crate::env;
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

/// The state that all handles of the scheduler share.
struct Memory {
    ready: Mutex<Ready>,
    /// Versions of flows whose members were claimed: a member's claim is guarded by its flow.
    flows: Mutex<BTreeMap<Key, (Version, FlowAdmits)>>,
    turn: AtomicUsize,
    /// A moving average of the time that commits of claims take; the newest counts for an eighth.
    usual_commit_us: AtomicI64,
    /// Requests to quotas on their way.
    quotas: Quotas,
    /// Reads of budgets on their way.
    budget_reads: BudgetReads,
    /// The budgets that had room when they were read last.
    roomy: Roomy,
    /// Charges to budgets on their way.
    charges: Charges,
    /// Requests to concurrency keys on their way.
    concurrency_keys: ConcurrencyKeys,
    /// The gates that this engine looks at because executions wait there.
    gate_looks: GateLooks,
    /// The turns that keys have had at gates.
    turns_at_gates: Mutex<TurnsAtGates>,
    /// Claims that wait and can be repeated.
    first_calls: FirstCalls,
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
            roomy: Roomy::default(),
            charges: Charges::default(),
            concurrency_keys: ConcurrencyKeys::default(),
            gate_looks: GateLooks::default(),
            turns_at_gates: Mutex::default(),
            first_calls: FirstCalls::default(),
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

    /// Forgets what is known of a flow that has changed.
    pub(crate) fn forget_flow(&self, key: &Key) {
        self.memory.forget_flow(key);
    }

    /// Remembers a flow that was created under this version; it lets its members run.
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
    /// The logical name of the worker. It is looked up only when there is work to take, because a worker that only
    /// waits does not need it.
    pub(crate) worker_id: OnceLock<String>,
    pub(crate) instance_id: String,
    /// One lease id for each task wanted: first those that the caller chose, then fresh ones.
    pub(crate) lease_ids: Vec<LeaseId>,
    /// How many of them the caller chose. It can ask for these again, and for no others.
    pub(crate) chosen_ids: usize,
    pub(crate) ttl_ms: i64,
    pub(crate) wait_ms: i64,
    /// The length of grants, if the caller wants grants instead of leases.
    pub(crate) grant_ttl_ms: Option<i64>,
    /// Signals that the caller has gone: work under way is finished, and nothing more is waited for.
    pub(crate) gone: Arc<CallerGone>,
    /// A try has taken too long, and others are made under its lease id: more is tried than the caller wants.
    pub(crate) tries_more: Arc<AtomicBool>,
}

impl Ask {
    /// Whether the caller knows this id, so that it may ask for the lease again.
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
        /// The lease was taken by an earlier claim, so its holder may have written under it.
        found: bool,
    },
    Grant(ClaimGrant),
}

impl Taken {
    /// Sets the end of the lease from the instant at which the store committed it. The engine's own estimate may be
    /// ahead of the store, and would promise the worker a longer lease than it has.
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

    pub(crate) fn execution_id(&self) -> ExecutionId {
        match self {
            Taken::Lease { execution, .. } => execution.id,
            Taken::Grant(grant) => grant.execution_id,
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
        let _under_way = self.begin_first_call(ask);
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

    /// The logical name under which a claimer registered; without a registration its instance name.
    pub(crate) async fn worker_id<'a>(&self, ask: &'a Ask) -> Result<&'a str> {
        if let Some(known) = ask.worker_id.get() {
            return Ok(known);
        }
        let key = self.transactor.named_keys().worker(&ask.criteria.namespace, &ask.instance_id);
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

    /// Opens closed gates, and queues whose partition failed, when their time has come. It costs nothing while there
    /// are none.
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
        let now = self.transactor.env().now_ms();
        let local = now + (until - self.transactor.now()).max(0);
        self.ready().close_gate(namespace, gate, local, now);
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
