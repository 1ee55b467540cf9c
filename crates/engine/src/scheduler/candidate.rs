//! Tries one candidate: asks its gates and its flow, then sends the commit that takes it under a lease or a grant.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use ff_core::event::Effects;
use ff_core::execution::{Claim, ClaimedSlot, Execution};
use ff_core::flow::Flow;
use ff_core::lease::ClaimKind;
use ff_core::{Code, Document, Error, Indexed, Key, LeaseId, Result, SlotId, limits};
use ff_store::{Conflict, ConflictReason, StoreError, Version};

use super::admission::{Admission, BudgetsRead, Limit, Refusal};
use super::early::Early;
use super::ready::Candidate;
use super::{Ask, FlowAdmits, Scheduler, Taken};
use crate::transaction::{Command, NotApplied, Tx};

/// Work whose budgets or quota cannot be read is passed over for this long.
pub(super) const UNREADABLE_MS: i64 = 1_000;
/// Members of a cancelled flow are left alone for this long before they are tried again. So are candidates that damaged
/// data keeps from being tried, and those that were refused while their claim tried more than it wanted.
const ASIDE_MS: i64 = 1_000;
/// A claim must be applied this long before its slot counts as an orphan.
const SLOT_MARGIN_MS: i64 = 1_000;
/// How many conflicts with a changing flow, or with changes of a candidate that goes on to wait, a claim meets before the
/// candidate goes back to the queue. Other callers may grow the flow all the while; those of this process take turns with
/// the claim.
const TRIES_MAX: usize = 8;

/// The outcome of a try to claim a candidate.
pub(super) enum TryOutcome {
    Taken(Taken),
    /// Its flow was cancelled, and another commit takes it out of its queue.
    Aside,
    /// A gate refused it.
    Parked {
        namespace: String,
        gate: String,
    },
    /// A gate refused it because of a claim on its way: it is left alone for this long.
    Contended {
        namespace: String,
        gate: String,
        pause_ms: i64,
    },
    /// The execution has changed since it was read.
    Lost,
    /// The try failed, and nothing was taken.
    Failed(Error),
    /// It may have been taken.
    Doubtful(Error),
}

impl Scheduler {
    /// Tries a candidate, and records the outcome in the scheduler's memory.
    pub(super) async fn try_and_settle(
        &self,
        ask: &Ask,
        candidate: &Candidate,
        lease_id: LeaseId,
        budgets: &Mutex<BudgetsRead>,
        early: Option<Box<Early>>,
    ) -> TryOutcome {
        let outcome = self.try_candidate(ask, candidate, lease_id, budgets, early).await;
        let outcome = outcome.unwrap_or_else(TryOutcome::Failed);
        let now = self.transactor.env().now_ms();
        let mut ready = self.ready();
        match &outcome {
            TryOutcome::Taken(_) => ready.settled(candidate),
            TryOutcome::Aside => ready.put_aside(candidate, now + ASIDE_MS),
            // A parked candidate may be back in its queue by now.
            TryOutcome::Parked { .. } => ready.lost(candidate, now),
            TryOutcome::Contended { pause_ms, .. } => ready.put_off(candidate, now + pause_ms),
            TryOutcome::Lost => ready.overtaken(candidate, now),
            TryOutcome::Failed(error) if !is_outage(error) => ready.put_aside(candidate, now + ASIDE_MS),
            TryOutcome::Failed(_) | TryOutcome::Doubtful(_) => {
                ready.lost(candidate, now);
                ready.partition_failed(candidate.queue.partition, now);
            }
        }
        outcome
    }

    /// Tries a candidate. Every claim holds one of these futures, so rare branches are boxed and take no room in it. An
    /// error means that nothing was taken.
    async fn try_candidate(
        &self,
        ask: &Ask,
        candidate: &Candidate,
        lease_id: LeaseId,
        budgets: &Mutex<BudgetsRead>,
        early: Option<Box<Early>>,
    ) -> Result<TryOutcome> {
        let execution = &candidate.execution;
        // A slot is taken no earlier than this instant of the process's clock, and becomes an orphan a fixed time
        // later. The execution's partition is given a duration, because an instant of the quota's clock would mean
        // another moment by its own clock.
        let asked_at = early.as_ref().map_or_else(|| self.transactor.env().now_ms(), |early| early.asked_at);
        let admission = self.admit(execution, lease_id, budgets, early).await;
        self.memory.gate_looks.forget(&execution.key());
        let slot = match admission {
            Admission::Admitted { slot } => slot,
            Admission::Refused(refusal) => return Box::pin(self.park_refused(ask, execution, refusal)).await,
            Admission::Unreadable => {
                self.transactor.metrics().refused("unreadable");
                let now = self.transactor.env().now_ms();
                self.ready().close_gate(&execution.namespace, &execution.gate(), now + UNREADABLE_MS, now);
                return Ok(TryOutcome::Lost);
            }
        };
        let mut newer = None;
        for attempt in 0..TRIES_MAX {
            // The first try is the usual one. After that, the claim waits for its turn at the flow.
            let _turn = match &execution.flow {
                Some(flow) if attempt > 0 => {
                    Some(Box::pin(self.transactor.locks().take(flow.partition(), Flow::key_of(flow))).await)
                }
                _ => None,
            };
            let flow = match &execution.flow {
                None => None,
                Some(flow) => match self.flow_admits(flow, execution).await {
                    Ok(Some(admitted)) => Some(admitted),
                    Ok(None) => {
                        // Its flow was cancelled. The execution leaves the queue now, or it would be found over and
                        // over.
                        Box::pin(self.release_unused_slot(execution, slot)).await;
                        Box::pin(self.transactor.stop_with_flow(execution)).await?;
                        return Ok(TryOutcome::Aside);
                    }
                    Err(error) => {
                        Box::pin(self.release_unused_slot(execution, slot)).await;
                        return Err(error);
                    }
                },
            };
            let candidate = newer.as_ref().unwrap_or(candidate);
            let claim = TakeCandidate { scheduler: self, ask, candidate, lease_id, slot, asked_at, flow };
            match self.take_candidate(&claim).await {
                Ok(Ok(taken)) => return Ok(TryOutcome::Taken(taken)),
                Ok(Err(Some(conflict))) if claim.meets_flow(&conflict) => {}
                Ok(Err(_)) => match Box::pin(self.counted_and_waiting(candidate)).await {
                    Some(found) => newer = Some(found),
                    None => break,
                },
                Err(error) if StoreError::may_be_applied(&error) => return Ok(TryOutcome::Doubtful(error)),
                Err(error) => {
                    Box::pin(self.release_unused_slot(execution, slot)).await;
                    return Err(error);
                }
            }
        }
        Box::pin(self.release_unused_slot(execution, slot)).await;
        Ok(TryOutcome::Lost)
    }

    /// The candidate as it is now, if it was changed and waits as before, and its quota has counted its start: that start
    /// is lost to others for as long as this execution does not begin, and the gate may be closed to it by now.
    async fn counted_and_waiting(&self, candidate: &Candidate) -> Option<Candidate> {
        let before = &candidate.execution;
        if before.quota.is_none() || before.claim_kind() == ClaimKind::Resumed {
            return None;
        }
        let partition = candidate.queue.partition;
        // Without an answer the start is counted again when the execution is found the next time.
        let found = self.transactor.store().documents(partition, vec![before.key()]).await.ok()?.pop().flatten()?;
        let execution = self.transactor.readable::<Execution>(&found)?;
        let waits = execution.is_eligible()
            && execution.queue() == candidate.queue.index
            && execution.queue_score() == before.queue_score()
            && execution.next_attempt_index() == before.next_attempt_index();
        let (version, fence, queue) = (found.version, found.fence, candidate.queue.clone());
        (waits && version != candidate.version).then(|| Candidate {
            execution: Arc::new(execution),
            version,
            fence,
            queue,
        })
    }

    /// Sends the commit that takes a candidate. If nothing was taken, a conflict may say why.
    async fn take_candidate(&self, claim: &TakeCandidate<'_>) -> Result<std::result::Result<Taken, Option<Conflict>>> {
        let candidate = claim.candidate;
        let partition = candidate.queue.partition;
        let started = self.transactor.env().now_us();
        let (taken, prepared) = match self.transactor.prepare(partition, self.transactor.fresh_command(), claim).await {
            Ok(prepared) => prepared,
            // The transition refuses the claim, so the candidate is out of date.
            Err(error) => {
                tracing::debug!(%error, execution = %candidate.execution.id, "a candidate was out of date");
                return Ok(Err(None));
            }
        };
        let outcome = self.transactor.send_all_timed(partition, vec![prepared]).await?.into_iter().next();
        if let Some(Err(NotApplied { conflict, in_doubt })) = outcome {
            if in_doubt && let Some(taken) = Box::pin(self.taken_before(claim)).await? {
                return Ok(Ok(taken));
            }
            if let Some((key, _)) = claim.flow.as_ref().filter(|_| claim.meets_flow(&conflict)) {
                self.memory.forget_flow(key);
            }
            if matches!(conflict.why, ConflictReason::TooLate(_))
                && let Some(suppressed) = self.transactor.may_log("a claim came too late for its slot")
            {
                tracing::warn!(execution = %candidate.execution.id, suppressed, "a claim came too late for its slot");
            }
            return Ok(Err(Some(conflict)));
        }
        let taken = match outcome {
            Some(Ok(at)) => taken.since(at, claim.ask.ttl_ms),
            _ => taken,
        };
        let us = self.transactor.env().now_us() - started;
        self.memory.commit_took(us);
        self.transactor.metrics().claimed(&candidate.execution, us, self.transactor.now_in(candidate.queue.partition));
        tracing::debug!(
            execution = %candidate.execution.id,
            lane = candidate.execution.lane,
            attempt = %candidate.execution.next_attempt_index(),
            lease = %claim.lease_id,
            worker = claim.ask.worker_id.get(),
            grant = claim.ask.grant_ttl_ms.is_some(),
            us,
            "claimed"
        );
        Ok(Ok(taken))
    }

    /// The lease or grant of a claim whose reply was lost and whose execution other callers have changed since. If
    /// there is one, its slot and its lease id are in use. The claim cannot be applied later, because the store refused
    /// its version. A repeat at another server may have taken it under the same id, and its worker may be at work: so it
    /// is kept, and this call does not give it back if its own caller has gone.
    async fn taken_before(&self, claim: &TakeCandidate<'_>) -> Result<Option<Taken>> {
        let Some(found) = self.find_taken(claim).await? else { return Ok(None) };
        let kept = self.keep_held(vec![found]).await;
        // Without an answer the claim stays in doubt.
        let kept = kept.map_err(|error| StoreError::Unknown(error.to_string()))?;
        Ok(kept.into_iter().next())
    }

    async fn find_taken(&self, claim: &TakeCandidate<'_>) -> Result<Option<Taken>> {
        let TakeCandidate { candidate, lease_id, .. } = claim;
        let partition = candidate.queue.partition;
        let found = self.transactor.store().documents(partition, vec![candidate.execution.key()]).await;
        // Without an answer the claim stays in doubt.
        let found = found.map_err(|error| StoreError::Unknown(error.to_string()))?;
        let Some(stored) = found.into_iter().next().flatten() else { return Ok(None) };
        let mut execution = Execution::decode(&stored.body)?;
        let epoch = candidate.execution.epoch.next();
        if let Some(claimed) = execution.held_lease() {
            let own = claimed.fence.lease_id == *lease_id && claimed.fence.epoch == epoch;
            let (execution, lease_until) = (Arc::new(execution), stored.lease_until);
            return Ok(own.then_some(Taken::Lease { execution, claimed, lease_until, found: true }));
        }
        // Granting again with the same id returns the existing grant.
        let Some(grant) = execution.grant.clone().filter(|grant| grant.id == *lease_id) else { return Ok(None) };
        let now = self.transactor.now_in(partition);
        Ok(Some(Taken::Grant(execution.grant(grant.id, &grant.worker_id, 1, now)?)))
    }

    async fn park_refused(&self, ask: &Ask, execution: &Execution, refusal: Refusal) -> Result<TryOutcome> {
        let (namespace, gate) = (execution.namespace.clone(), refusal.gate.clone());
        // Another try of the same claim may hold the room, and the caller did not want both.
        let pause_ms = match ask.tries_more.load(Ordering::Relaxed) && !refusal.only_waits() {
            true => Some(ASIDE_MS),
            false => self.pause_for_tries(execution, &refusal).await,
        };
        if let Some(pause_ms) = pause_ms {
            tracing::debug!(execution = %execution.id, gate, pause_ms, "refused because of a claim on its way");
            return Ok(TryOutcome::Contended { namespace, gate, pause_ms });
        }
        match &refusal.limit {
            Limit::Dimension(dimension) => self.transactor.metrics().refused_by_budget(dimension),
            Limit::Quota(limit) => self.transactor.metrics().refused_by_quota(limit),
        }
        self.park(execution, refusal).await?;
        Ok(TryOutcome::Parked { namespace, gate })
    }

    /// The flow's version under which this member may be claimed; `None` if the flow's cancellation forbids it.
    pub(crate) async fn flow_admits(
        &self,
        flow: &ff_core::FlowId,
        member: &Execution,
    ) -> Result<Option<(Key, Version)>> {
        let key = Flow::key_of(flow);
        // Only permission is taken from memory, because the commit confirms it by the version. A refusal is always read
        // from the store.
        if let Some((version, admits)) = self.memory.flow(&key)
            && admits.admit(member)
        {
            return Ok(Some((key, version)));
        }
        let mut found = self.transactor.store().documents(flow.partition(), vec![key.clone()]).await?;
        // A member whose flow is missing shows that data was lost; it does not run.
        let Some(stored) = found.pop().flatten() else { return Ok(None) };
        let flow = Flow::decode(&stored.body)?;
        let admits = FlowAdmits { starts: flow.admits_claims(), continuations: flow.admits_continuations() };
        self.memory.remember_flow(key.clone(), stored.version, admits);
        Ok(admits.admit(member).then_some((key, stored.version)))
    }
}

/// Whether an error says that a partition does not work, rather than that one document is damaged.
pub(super) fn is_outage(error: &Error) -> bool {
    matches!(error.code, Code::Unavailable | Code::StoreFull | Code::StoreReadOnly)
}

/// Takes one candidate, as it was when it was read, under its version.
struct TakeCandidate<'a> {
    scheduler: &'a Scheduler,
    ask: &'a Ask,
    candidate: &'a Candidate,
    lease_id: LeaseId,
    slot: Option<SlotId>,
    /// An instant of the process's clock before the slot was asked for.
    asked_at: i64,
    flow: Option<(Key, Version)>,
}

impl TakeCandidate<'_> {
    /// Whether a conflict is about the flow, and not about the candidate.
    fn meets_flow(&self, conflict: &Conflict) -> bool {
        self.flow.as_ref().is_some_and(|(key, _)| conflict.key.as_ref() == Some(key))
    }
}

impl Command for TakeCandidate<'_> {
    type Outcome = Taken;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let worker_id = self.scheduler.worker_id(self.ask).await?;
        tx.know(&*self.candidate.execution, self.candidate.version, self.candidate.fence);
        if let Some((key, version)) = &self.flow {
            tx.require_version(key, *version);
        }
        let left = limits::SLOT_ORPHAN_AGE_MS - SLOT_MARGIN_MS - (tx.transactor.env().now_ms() - self.asked_at);
        let looked_at = tx.now + left;
        // A test with a clock of its own waits until nothing is owed any more, and sees that by marks.
        let unseen_until = if tx.transactor.options().test_clock.is_some() { 0 } else { looked_at };
        let slot = self.slot.map(|id| ClaimedSlot { id, unseen_until });
        if slot.is_some() {
            tx.require_not_after(looked_at);
        }
        let mut effects = Effects::default();
        let mut taken = Arc::clone(&self.candidate.execution);
        let execution = Arc::make_mut(&mut taken);
        if let Some(grant_ttl_ms) = self.ask.grant_ttl_ms {
            let grant = execution.grant(self.lease_id, worker_id, grant_ttl_ms, tx.now)?;
            if let Some(granted) = execution.grant.as_mut() {
                granted.slot = self.slot;
            }
            tx.save_shared(taken, effects);
            return Ok(Taken::Grant(grant));
        }
        let claim = Claim {
            lease_id: self.lease_id,
            worker_id: worker_id.to_owned(),
            instance_id: self.ask.instance_id.clone(),
            ttl_ms: self.ask.ttl_ms,
            slot,
            build_id: self.ask.criteria.skills.capabilities.build().unwrap_or_default().to_owned(),
        };
        let claimed = execution.claim(&claim, tx.now, &mut effects)?;
        tx.save_shared(Arc::clone(&taken), effects);
        let lease_until = tx.now + self.ask.ttl_ms;
        Ok(Taken::Lease { execution: taken, claimed, lease_until, found: false })
    }
}
