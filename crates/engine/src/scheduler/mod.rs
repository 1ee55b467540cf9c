//! Finding work for those who ask for it.
//!
//! A claim looks at what this engine knows of the queues, reads the heads it does not know, and commits the lease under
//! guards. With no work it waits, which costs the store nothing, until a hint, a gate or the end of its patience.

pub(crate) mod admission;
mod held;
pub(crate) mod parking;
pub(crate) mod quotas;
pub(crate) mod ready;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ff_core::event::Effects;
use ff_core::execution::{Claim, ClaimedAttempt, Execution};
use ff_core::flow::Flow;
use ff_core::lease::ClaimGrant;
use ff_core::worker::Worker;
use ff_core::{Document, Key, LeaseId, Result, SlotId};
use ff_store::{ConflictReason, Query, Scan, Version};
use futures_util::future::select;
use tokio::sync::Notify;

use self::admission::{Admission, BudgetsRead, Limit};
use self::ready::{Candidate, Criteria, Pick, QueueId, Ready};
use crate::engine::Engine;
use crate::env;
use crate::metrics::ClaimExit;
use crate::transaction::{Command, Tx};

/// Candidates read at once from one queue.
const FETCH_LIMIT: usize = 64;
/// The longest a claimer sleeps without looking, so that a gate that opens by time is noticed.
const LOOK_AGAIN_MS: i64 = 30_000;
/// Work whose budgets or quota cannot be read is passed over for this long.
const UNREADABLE_MS: i64 = 1_000;

/// Members of a cancelled flow are left to their flow for this long before they are looked at again.
const ASIDE_MS: i64 = 1_000;

/// The scheduler's memory.
#[derive(Default)]
pub(crate) struct Scheduler {
    ready: Mutex<Ready>,
    /// Versions of flows whose members were claimed: a member's claim is guarded by its flow.
    flows: Mutex<BTreeMap<Key, (Version, FlowAdmits)>>,
    turn: std::sync::atomic::AtomicUsize,
}

impl Scheduler {
    pub(crate) fn ready(&self) -> std::sync::MutexGuard<'_, Ready> {
        self.ready.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn forget_flow(&self, key: &Key) {
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

/// Who asks for work, and for how much.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) criteria: Criteria,
    /// The logical name behind the instance, once there is something to take: who only waits need not be looked up.
    pub(crate) worker_id: OnceLock<String>,
    pub(crate) instance_id: String,
    /// One for each task wanted, chosen by the caller.
    pub(crate) lease_ids: Vec<LeaseId>,
    pub(crate) ttl_ms: i64,
    pub(crate) wait_ms: i64,
    /// Grants of this length instead of leases.
    pub(crate) grant_ttl_ms: Option<i64>,
    /// The caller has gone: what is under way is finished, and nothing more is waited for.
    pub(crate) gone: Arc<Gone>,
}

/// Says that a caller no longer waits for its answer.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    said: AtomicBool,
    wake: Notify,
}

impl Gone {
    pub(crate) fn say(&self) {
        self.said.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    fn is_said(&self) -> bool {
        self.said.load(Ordering::SeqCst)
    }
}

/// What was taken.
#[derive(Debug, Clone)]
pub(crate) enum Taken {
    Lease { execution: Arc<Execution>, claimed: ClaimedAttempt, lease_until: i64 },
    Grant(ClaimGrant),
}

impl Taken {
    fn lane(&self) -> Option<&str> {
        match self {
            Taken::Lease { execution, .. } => Some(&execution.lane),
            Taken::Grant(grant) => Some(&grant.lane),
        }
    }
}

impl Engine {
    /// Waits for work and takes it. An empty answer means that nothing was claimable for the whole wait.
    pub(crate) async fn take_work(&self, ask: &Ask) -> Result<Vec<Taken>> {
        let started = self.env().now_us();
        let taken = self.wait_for_work(ask).await;
        let us = self.env().now_us() - started;
        let lanes = || ask.criteria.lanes.iter().map(String::as_str);
        match &taken {
            Ok(taken) if !taken.is_empty() => {
                let from: BTreeSet<&str> = taken.iter().filter_map(Taken::lane).collect();
                self.metrics().claim_ended(from.into_iter(), ClaimExit::Taken, us);
            }
            Ok(_) if ask.gone.is_said() => self.metrics().claim_ended(lanes(), ClaimExit::Gone, us),
            Ok(_) => self.metrics().claim_ended(lanes(), ClaimExit::Empty, us),
            Err(_) => self.metrics().claim_ended(lanes(), ClaimExit::Failed, us),
        }
        taken
    }

    async fn wait_for_work(&self, ask: &Ask) -> Result<Vec<Taken>> {
        let deadline = self.env().now_ms() + ask.wait_ms;
        self.refuse_if_closing()?;
        // While there is work, nobody needs to be woken for it: only who finds none joins the line, and looks again.
        let taken = self.take_ready(ask).await?;
        if !taken.is_empty() || ask.wait_ms <= 0 {
            return Ok(taken);
        }
        let (number, wake) = self.scheduler().ready().wait(ask.criteria.clone());
        let waiting = Waiting { engine: self, number };
        loop {
            self.refuse_if_closing()?;
            // Before the look: what comes during it wakes us once more.
            self.scheduler().ready().wait_again(waiting.number);
            let taken = self.take_ready(ask).await?;
            if !taken.is_empty() {
                return Ok(taken);
            }
            let left = deadline - self.env().now_ms();
            if left <= 0 || ask.gone.is_said() {
                return Ok(Vec::new());
            }
            let now = self.now();
            let gate = self.scheduler().ready().next_gate_opening(now).map(|until| until - now);
            let patience = left.min(gate.unwrap_or(LOOK_AGAIN_MS)).min(LOOK_AGAIN_MS);
            let woken = select(Box::pin(wake.notified()), Box::pin(ask.gone.wake.notified()));
            env::within(self.env_handle(), patience, woken).await;
        }
    }

    /// Takes what is there now.
    async fn take_ready(&self, ask: &Ask) -> Result<Vec<Taken>> {
        if !self.scheduler().ready().may_have_work(&ask.criteria) {
            return Ok(Vec::new());
        }
        let criteria = self.open_lanes(&ask.criteria).await?;
        self.worker_id(ask).await?;
        let first_lane = self.scheduler().turn.fetch_add(1, Ordering::Relaxed);
        let mut free = ask.lease_ids.clone();
        let mut taken = Vec::new();
        let mut failed = None;
        let mut budgets = BudgetsRead::default();
        while !free.is_empty() {
            let pick = self.scheduler().ready().pick(&criteria, first_lane, free.len(), self.now());
            match pick {
                Pick::Nothing => break,
                Pick::Fetch(queues) => self.fetch(queues).await,
                Pick::Candidates(candidates) => {
                    let assigned = free.split_off(free.len() - candidates.len());
                    self.read_budgets(&mut budgets, candidates.iter()).await;
                    let trying = candidates.into_iter().zip(assigned).collect();
                    for (lease_id, result) in self.try_candidates(ask, trying, &budgets).await {
                        match result {
                            Ok(Try::Taken(one)) => taken.push(one),
                            // Known not to have been applied: the id may name another lease.
                            Ok(Try::Parked { namespace, gate }) => {
                                // Its gate is closed now. If it opens while this claim goes on, it is read anew: what
                                // was read before would park the same work over and over.
                                budgets.forget(&namespace, &gate);
                                free.push(lease_id);
                            }
                            Ok(Try::Aside | Try::Lost) => free.push(lease_id),
                            // Unknown: the caller repeats with the same ids and finds out.
                            Err(error) => failed = Some(error),
                        }
                    }
                    if let Some(error) = failed.take() {
                        if taken.is_empty() {
                            return Err(error);
                        }
                        tracing::warn!(%error, "the outcome of one of several claims is unknown");
                        break;
                    }
                }
            }
        }
        Ok(taken)
    }

    /// The logical name of a claimer, as it registered; who did not is known by its instance.
    pub(crate) async fn worker_id<'a>(&self, ask: &'a Ask) -> Result<&'a str> {
        if let Some(known) = ask.worker_id.get() {
            return Ok(known);
        }
        let key = Worker::key_of(&ask.criteria.namespace, &ask.instance_id);
        let worker = self.system_document::<Worker>(&key).await?;
        let name = worker.map_or_else(|| ask.instance_id.clone(), |worker| worker.worker_id);
        Ok(ask.worker_id.get_or_init(|| name))
    }

    /// The lanes among those asked for that give out work now.
    async fn open_lanes<'a>(&self, criteria: &'a Criteria) -> Result<Cow<'a, Criteria>> {
        let mut criteria = Cow::Borrowed(criteria);
        for lane in &criteria.clone().lanes {
            if self.lane(&criteria.namespace, lane).await?.is_some_and(|lane| !lane.admits_claims()) {
                criteria.to_mut().lanes.retain(|open| open != lane);
            }
        }
        Ok(criteria)
    }

    /// Reads the heads of queues, all at once. A partition that cannot be read is passed over this round.
    async fn fetch(&self, queues: Vec<QueueId>) {
        let reads = queues.into_iter().map(|id| async move {
            let mut scan = Scan::first(id.index.clone(), FETCH_LIMIT).with_documents();
            scan.after = self.scheduler().ready().read_after(&id);
            (self.read(id.partition, vec![Query::Scan(scan)]).await, id)
        });
        for (answer, id) in futures_util::future::join_all(reads).await {
            let page = match answer.map(|answers| answers.into_only(ff_store::Answer::into_scan)) {
                Ok(Ok(page)) => page,
                Ok(Err(error)) => {
                    tracing::warn!(partition = %id.partition, %error, "a queue cannot be read; passed over");
                    self.scheduler().ready().fetch_failed(&id);
                    continue;
                }
                Err(error) => {
                    tracing::warn!(partition = %id.partition, %error, "a queue cannot be read; passed over");
                    self.metrics().partition_passed_over();
                    self.scheduler().ready().fetch_failed(&id);
                    continue;
                }
            };
            let complete = page.entries.len() < FETCH_LIMIT;
            let last = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            let mut head = Vec::with_capacity(page.entries.len());
            for entry in page.entries {
                let Some(stored) = entry.document else { continue };
                head.extend(self.readable(&stored).map(|execution| Candidate {
                    execution: Arc::new(execution),
                    version: stored.version,
                    fence: stored.fence,
                    queue: id.clone(),
                }));
            }
            self.scheduler().ready().fetched(&id, head, last, complete);
        }
    }

    /// Admits and claims candidates, and says of each what became of it.
    async fn try_candidates(
        &self,
        ask: &Ask,
        trying: Vec<(Candidate, LeaseId)>,
        budgets: &BudgetsRead,
    ) -> Vec<(LeaseId, Result<Try>)> {
        let tries = trying.into_iter().map(|(candidate, lease_id)| async move {
            let result = self.try_candidate(ask, &candidate, lease_id, budgets).await;
            let mut ready = self.scheduler().ready();
            match &result {
                Ok(Try::Taken(_)) => ready.settled(&candidate),
                Ok(Try::Aside) => ready.put_aside(&candidate, self.now() + ASIDE_MS),
                // What was parked may be back in its queue by now.
                Ok(Try::Parked { .. } | Try::Lost) | Err(_) => ready.lost(&candidate),
            }
            drop(ready);
            (lease_id, result)
        });
        futures_util::future::join_all(tries).await
    }

    /// Every claim holds one of these futures: what only some come to is boxed, so that it takes no room in the others.
    async fn try_candidate(
        &self,
        ask: &Ask,
        candidate: &Candidate,
        lease_id: LeaseId,
        budgets: &BudgetsRead,
    ) -> Result<Try> {
        let (slot, not_after) = match self.admit(&candidate.execution, lease_id, budgets).await {
            Admission::Admitted { slot, not_after } => (slot, not_after),
            Admission::Refused(refusal) => {
                match &refusal.limit {
                    Limit::Dimension(dimension) => self.metrics().refused_by_budget(dimension),
                    Limit::Quota(limit) => self.metrics().refused_by_quota(limit),
                }
                let (namespace, gate) = (candidate.execution.namespace.clone(), refusal.gate.clone());
                Box::pin(self.park(&candidate.execution, refusal)).await?;
                return Ok(Try::Parked { namespace, gate });
            }
            Admission::Unreadable => {
                self.metrics().refused("unreadable");
                let (namespace, gate) = (&candidate.execution.namespace, candidate.execution.gate());
                self.scheduler().ready().close_gate(namespace, &gate, self.now() + UNREADABLE_MS);
                return Ok(Try::Lost);
            }
        };
        let flow = match &candidate.execution.flow {
            Some(flow) => match self.flow_admits(flow, &candidate.execution).await {
                Ok(Some(admitted)) => Some(admitted),
                Ok(None) => {
                    // Its flow was cancelled. It leaves the queue here and now, or it would be found again and again.
                    Box::pin(self.release_unused_slot(&candidate.execution, slot)).await;
                    Box::pin(self.stop_with_flow(&candidate.execution)).await?;
                    return Ok(Try::Aside);
                }
                Err(error) => {
                    Box::pin(self.release_unused_slot(&candidate.execution, slot)).await;
                    return Err(error);
                }
            },
            None => None,
        };
        let verb = TakeCandidate { ask, candidate, lease_id, slot, not_after, flow: flow.clone() };
        let partition = candidate.queue.partition;
        let command = self.fresh_command();
        let started = self.env().now_us();
        let result = match self.prepare(partition, command, &verb).await {
            Ok((outcome, prepared)) => match self.send_all(partition, vec![prepared]).await {
                Ok(conflicts) => Ok(conflicts.into_iter().next().flatten().map_or(Ok(outcome), Err)),
                Err(error) => Err(error),
            },
            // The transition itself says no: the candidate is out of date.
            Err(error) => {
                tracing::debug!(%error, execution = %candidate.execution.id, "a candidate was out of date");
                Box::pin(self.release_unused_slot(&candidate.execution, slot)).await;
                return Ok(Try::Lost);
            }
        };
        match result {
            Ok(Ok(taken)) => {
                let us = self.env().now_us() - started;
                self.metrics().claimed(&candidate.execution, us, self.now());
                tracing::debug!(
                    execution = %candidate.execution.id,
                    lane = candidate.execution.lane,
                    attempt = %candidate.execution.next_attempt_index(),
                    lease = %lease_id,
                    worker = ask.worker_id.get(),
                    grant = ask.grant_ttl_ms.is_some(),
                    us,
                    "claimed"
                );
                Ok(Try::Taken(taken))
            }
            Ok(Err(conflict)) => {
                if let (Some((key, _)), Some(conflicting)) = (&flow, &conflict.key)
                    && key == conflicting
                {
                    self.scheduler().forget_flow(key);
                }
                if matches!(conflict.why, ConflictReason::TooLate(_)) {
                    tracing::warn!(execution = %candidate.execution.id, "a claim came too late for its slot");
                }
                Box::pin(self.release_unused_slot(&candidate.execution, slot)).await;
                Ok(Try::Lost)
            }
            Err(error) => Err(error),
        }
    }

    /// The flow's version under which this member may be claimed; none when its cancellation forbids that.
    pub(crate) async fn flow_admits(
        &self,
        flow: &ff_core::FlowId,
        member: &Execution,
    ) -> Result<Option<(Key, Version)>> {
        let key = Flow::key_of(flow);
        // Only a yes is taken from memory: the commit confirms it by the version. A no is always asked for.
        if let Some((version, admits)) = self.scheduler().flow(&key)
            && admits.admit(member)
        {
            return Ok(Some((key, version)));
        }
        let mut found = self.store().documents(flow.partition(), vec![key.clone()]).await?;
        // A member without its flow is a trace of damage; it does not run.
        let Some(stored) = found.pop().flatten() else { return Ok(None) };
        let flow = Flow::decode(&stored.body)?;
        let admits = FlowAdmits { starts: flow.admits_claims(), continuations: flow.admits_continuations() };
        self.scheduler().remember_flow(key.clone(), stored.version, admits);
        Ok(admits.admit(member).then_some((key, stored.version)))
    }
}

/// What a flow lets its members do.
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

enum Try {
    Taken(Taken),
    /// Somebody else takes it out of its queue.
    Aside,
    /// A gate refused it.
    Parked {
        namespace: String,
        gate: String,
    },
    Lost,
}

/// Leaves the line of waiters however the claim ends.
struct Waiting<'e> {
    engine: &'e Engine,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.engine.scheduler().ready().stop_waiting(self.number);
    }
}

/// Takes one candidate, as it was when it was read, under its version.
struct TakeCandidate<'a> {
    ask: &'a Ask,
    candidate: &'a Candidate,
    lease_id: LeaseId,
    slot: Option<SlotId>,
    not_after: Option<i64>,
    flow: Option<(Key, Version)>,
}

impl Command for TakeCandidate<'_> {
    type Outcome = Taken;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let mut execution = Execution::clone(&self.candidate.execution);
        tx.know(&execution, self.candidate.version, self.candidate.fence);
        if let Some((key, version)) = &self.flow {
            tx.require_version(key, *version);
        }
        if let Some(not_after) = self.not_after {
            tx.require_not_after(not_after);
        }
        let mut effects = Effects::default();
        let worker_id = tx.engine.worker_id(self.ask).await?;
        if let Some(grant_ttl_ms) = self.ask.grant_ttl_ms {
            let grant = execution.grant(self.lease_id, worker_id, grant_ttl_ms, tx.now)?;
            if let Some(granted) = execution.grant.as_mut() {
                granted.slot = self.slot;
            }
            tx.save_execution(&execution, effects);
            return Ok(Taken::Grant(grant));
        }
        let claim = Claim {
            lease_id: self.lease_id,
            worker_id: worker_id.to_owned(),
            instance_id: self.ask.instance_id.clone(),
            ttl_ms: self.ask.ttl_ms,
            slot: self.slot,
        };
        let claimed = execution.claim(&claim, tx.now, &mut effects)?;
        let execution = Arc::new(execution);
        tx.save_shared(execution.clone(), effects);
        let lease_until = tx.now + self.ask.ttl_ms;
        Ok(Taken::Lease { execution, claimed, lease_until })
    }
}
