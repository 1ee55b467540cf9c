//! Taking an execution under a lease, directly or through a grant; checking the fence of its holder; and giving the
//! lease back. A lease that runs out is the subject of `reclaim`.

use super::{Execution, ResumeCause, ResumedBy};
use crate::error::{Code, Error, Result};
use crate::event::{Effects, EventType, ReleasedSlot};
use crate::id::{AttemptIndex, LeaseId, SlotId};
use crate::lease::{
    Attempt, AttemptKind, AttemptOutcome, ClaimGrant, ClaimKind, Grant, GrantKind, HistoryRecord, Lease, LeaseEnd,
    LeaseEnding, LeaseFence,
};
use crate::limits;
use crate::planted::{Bug, planted};
use crate::state::{AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState};

/// A commit that ends a lease without a mark for its slot has at least this long until `not_after` refuses it.
const UNMARKED_MARGIN_MS: i64 = 1_000;

/// The worker that claims, and the lease it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Chosen by the claimer; the id of the grant if there is one.
    pub lease_id: LeaseId,
    /// The worker's logical name.
    pub worker_id: String,
    /// The very process.
    pub instance_id: String,
    /// How long the lease lasts without a renewal.
    pub ttl_ms: i64,
    /// The concurrency slot of the execution's quota that the claim took.
    pub slot: Option<ClaimedSlot>,
    /// The build of the worker's program; empty if it names none.
    pub build_id: String,
}

/// A concurrency slot that a claim took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimedSlot {
    /// The id of the slot, which names the try that took it.
    pub id: SlotId,
    /// Up to this instant of the execution's partition the slot's own timer has not checked the slot; 0 if that is not
    /// known. See [`Execution::may_end_unmarked`].
    pub unseen_until: i64,
}

/// The attempt that a claim began or took up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimedAttempt {
    /// Whether the claim began an attempt or took one up.
    pub kind: ClaimKind,
    /// The fence every call of the holder must show.
    pub fence: LeaseFence,
}

impl Execution {
    /// The kind of attempt that a claim would get now.
    pub fn claim_kind(&self) -> ClaimKind {
        match self.state.attempt_state {
            AttemptState::PendingRetryAttempt => ClaimKind::Retry,
            AttemptState::PendingReclaimAttempt => ClaimKind::Reclaim,
            AttemptState::PendingReplayAttempt => ClaimKind::Replay,
            AttemptState::AttemptInterrupted => ClaimKind::Resumed,
            _ => ClaimKind::Initial,
        }
    }

    /// The number of the attempt that a claim would run now.
    pub fn next_attempt_index(&self) -> AttemptIndex {
        match &self.attempt {
            None => AttemptIndex(0),
            Some(attempt) if attempt.ended_at == 0 => attempt.index,
            Some(attempt) if planted(Bug::AttemptSkipped) => attempt.index.next().next(),
            Some(attempt) => attempt.index.next(),
        }
    }

    /// Takes it under a lease. An outstanding grant refuses this; use [`Execution::claim_granted`].
    pub fn claim(&mut self, claim: &Claim, now: i64, effects: &mut Effects) -> Result<ClaimedAttempt> {
        if self.state.lifecycle_phase != LifecyclePhase::Runnable {
            return Err(Error::of(Code::ExecutionNotLeaseable).with("public_state", self.public_state()));
        }
        if self.grant.is_some() {
            return Err(Error::of(Code::GrantAlreadyExists));
        }
        if !self.holds.is_empty() && !planted(Bug::HoldsIgnored) {
            return Err(self.not_eligible());
        }
        let now = self.mark_updated(now);
        let kind = self.claim_kind();
        let index = self.next_attempt_index();
        self.record_history(effects);
        if self.attempt.as_ref().is_none_or(|attempt| attempt.ended_at != 0) {
            self.begin_attempt(index, kind, now);
        }
        self.epoch = self.epoch.next();
        self.kept_claim = LeaseId::default();
        self.lease = Some(Lease {
            id: claim.lease_id,
            epoch: self.epoch,
            attempt: index,
            worker_id: claim.worker_id.clone(),
            instance_id: claim.instance_id.clone(),
            kind,
            acquired_at: now,
            ttl_ms: claim.ttl_ms,
            build_id: claim.build_id.clone(),
            ..Default::default()
        });
        self.pin_on_start(&claim.build_id)?;
        if self.started_at == 0 {
            self.started_at = now;
        }
        self.slot = claim.slot.map(|slot| slot.id);
        self.slot_unseen_until = claim.slot.map_or(0, |slot| slot.unseen_until);
        self.state.lifecycle_phase = LifecyclePhase::Active;
        self.state.ownership_state = OwnershipState::Leased;
        self.state.eligibility_state = EligibilityState::NotApplicable;
        self.state.blocking_reason = BlockingReason::None;
        self.state.attempt_state = AttemptState::RunningAttempt;
        self.blocking_detail.clear();
        self.waits.clear();
        let event_type = if kind == ClaimKind::Reclaim { EventType::LeaseReclaimed } else { EventType::LeaseAcquired };
        self.lease_event(event_type, effects);
        let fence = LeaseFence { attempt: index, lease_id: claim.lease_id, epoch: self.epoch };
        Ok(ClaimedAttempt { kind, fence })
    }

    /// The refusal of a claim because of what holds it back.
    pub fn not_eligible(&self) -> Error {
        Error::of(Code::ExecutionNotEligible)
            .with("eligibility_state", self.state.eligibility_state)
            .with("blocking_reason", self.state.blocking_reason)
    }

    /// Copies the lease and the attempt that the next lease will overwrite into the history.
    fn record_history(&mut self, effects: &mut Effects) {
        let Some(lease) = self.lease.take() else { return };
        effects.history.push(HistoryRecord { lease: Some(lease), ..Default::default() });
        if let Some(attempt) = self.attempt.as_ref().filter(|attempt| attempt.ended_at != 0) {
            effects.history.push(HistoryRecord { attempt: Some(attempt.clone()), ..Default::default() });
        }
    }

    fn begin_attempt(&mut self, index: AttemptIndex, kind: ClaimKind, now: i64) {
        let kind = match kind {
            ClaimKind::Retry => AttemptKind::Retry,
            ClaimKind::Reclaim => AttemptKind::Reclaim,
            ClaimKind::Replay => AttemptKind::Replay,
            ClaimKind::Initial | ClaimKind::Resumed | ClaimKind::Unknown(_) => AttemptKind::Initial,
        };
        self.attempt = Some(Attempt { index, kind, started_at: now, ..Default::default() });
        // A retry or a reclaim keeps the cause that ended the last suspension, so that no question is asked twice. A
        // replay begins anew.
        if kind == AttemptKind::Replay || planted(Bug::ApprovalForgotten) {
            self.forget_resumption();
        }
        self.progress = None;
    }

    /// Reserves it for one worker for a short time; it leaves the queue.
    pub fn grant(&mut self, grant_id: LeaseId, worker_id: &str, ttl_ms: i64, now: i64) -> Result<ClaimGrant> {
        if let Some(grant) = &self.grant
            && grant.id == grant_id
        {
            return Ok(self.claim_grant(grant));
        }
        if self.grant.is_some() {
            return Err(Error::of(Code::GrantAlreadyExists));
        }
        if !self.is_eligible() {
            return Err(Error::of(Code::ExecutionNotEligible));
        }
        let now = self.mark_updated(now);
        let grant =
            Grant { id: grant_id, worker_id: worker_id.to_owned(), expires_at: now + ttl_ms, ..Default::default() };
        let answer = self.claim_grant(&grant);
        self.grant = Some(Box::new(grant));
        Ok(answer)
    }

    fn claim_grant(&self, grant: &Grant) -> ClaimGrant {
        ClaimGrant {
            grant_id: grant.id,
            execution_id: self.id,
            partition: self.id.partition,
            lane: self.lane.clone(),
            kind: self.grant_kind(),
            worker_id: grant.worker_id.clone(),
            expires_at: grant.expires_at,
        }
    }

    /// Which kind of grant would be issued now.
    pub fn grant_kind(&self) -> GrantKind {
        match self.state.attempt_state {
            AttemptState::AttemptInterrupted | AttemptState::PendingReclaimAttempt => GrantKind::Reclaim,
            _ => GrantKind::Claim,
        }
    }

    /// Takes it under the lease its grant promised.
    pub fn claim_granted(&mut self, claim: &Claim, now: i64, effects: &mut Effects) -> Result<ClaimedAttempt> {
        let now = now.max(self.updated_at);
        if self.state.lifecycle_phase != LifecyclePhase::Runnable {
            return Err(Error::of(Code::InvalidClaimGrant).with("public_state", self.public_state()));
        }
        match &self.grant {
            Some(grant) if grant.id == claim.lease_id && grant.worker_id == claim.worker_id => {
                if grant.expires_at <= now {
                    return Err(Error::of(Code::ClaimGrantExpired).with("expires_at", grant.expires_at));
                }
            }
            None if planted(Bug::GrantUsedTwice) => {}
            _ => return Err(Error::of(Code::InvalidClaimGrant)),
        }
        let grant = self.grant.take();
        let granted = grant.as_ref().and_then(|grant| grant.slot).map(|id| ClaimedSlot { id, unseen_until: 0 });
        let slot = claim.slot.or(granted);
        let claimed = self.claim(&Claim { slot, ..claim.clone() }, now, effects);
        if claimed.is_err() {
            self.grant = grant;
        }
        claimed
    }

    /// Drops an outstanding grant, because it lapsed or was handed back. Its id is remembered as lapsed.
    pub fn drop_grant(&mut self, grant_id: LeaseId, now: i64) -> Result<()> {
        match &self.grant {
            Some(grant) if grant.id == grant_id => {
                self.mark_updated(now);
                self.end_grant();
                Ok(())
            }
            _ => Err(Error::of(Code::InvalidClaimGrant)),
        }
    }

    /// Ends an outstanding grant, whose id is remembered, so that its worker learns what became of it.
    pub(crate) fn end_grant(&mut self) {
        if let Some(lease_id) = self.grant.as_ref().map(|grant| grant.id) {
            self.let_grant_go();
            self.remember(LeaseEnding { lease_id, end: LeaseEnd::Returned, ..Default::default() });
        }
    }

    /// Forgets the grant; the slot it took is owed back.
    pub(crate) fn let_grant_go(&mut self) {
        self.owed_slots.extend(self.grant.take().and_then(|grant| grant.slot));
    }

    /// Whether the present lease or grant came with this concurrency slot.
    pub fn uses_slot(&self, slot: &SlotId) -> bool {
        let granted = self.grant.as_ref().and_then(|grant| grant.slot);
        granted.as_ref() == Some(slot) || self.slot.as_ref() == Some(slot)
    }

    /// Whether a commit of this partition at this instant may end the lease without a mark for its slot. That is safe
    /// only before the slot's timer has checked the slot: the timer then still frees the slot if the process that ended
    /// the lease dies before it does.
    pub fn may_end_unmarked(&self, now: i64) -> bool {
        self.slot.is_some() && now <= self.slot_unseen_until
    }

    /// Gives the slot up: without a mark if the slot's timer has still to check it, otherwise as a slot that is owed.
    fn part_with_slot(&mut self, now: i64, effects: &mut Effects) {
        let unmarked = self.may_end_unmarked(now.saturating_add(UNMARKED_MARGIN_MS));
        let until = std::mem::take(&mut self.slot_unseen_until);
        match self.slot.take() {
            Some(slot) if unmarked => effects.released.push(ReleasedSlot { slot, until }),
            slot => self.owed_slots.extend(slot),
        }
    }

    /// Whether this fence belongs to the present lease or to one of the last leases whose endings are remembered.
    pub fn knows_fence(&self, fence: &LeaseFence) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| {
            lease.id == fence.lease_id && lease.epoch == fence.epoch && lease.attempt == fence.attempt
        }) || self.ending_of(fence).is_some()
    }

    /// Whether this grant existed and has lapsed or been handed back.
    pub fn grant_is_over(&self, grant_id: LeaseId) -> bool {
        self.endings.iter().any(|ending| ending.lease_id == grant_id && ending.end == LeaseEnd::Returned)
    }

    /// The cause that let the execution go on after it last parted from a worker.
    pub fn resume_cause(&self) -> Option<ResumeCause> {
        let parted = || {
            let ending = self.endings.iter().rev().find(|ending| ending.end != LeaseEnd::Returned)?;
            match ending.end {
                LeaseEnd::WaitingChildren => Some(ResumeCause::Children),
                LeaseEnd::Delayed => Some(ResumeCause::Delay),
                _ => None,
            }
        };
        match self.resumed_by {
            ResumedBy::Signals => Some(ResumeCause::Signal),
            ResumedBy::Timeout => Some(ResumeCause::Timeout),
            ResumedBy::Child => Some(ResumeCause::Children),
            ResumedBy::Time if self.wait_timed_out => Some(ResumeCause::Timeout),
            ResumedBy::Time => Some(ResumeCause::Delay),
            ResumedBy::Operator => Some(ResumeCause::Operator),
            ResumedBy::Decision => Some(ResumeCause::Decision),
            ResumedBy::Nothing => parted(),
        }
    }

    pub(crate) fn forget_resumption(&mut self) {
        self.resumed_by = ResumedBy::Nothing;
        self.wait_timed_out = false;
        self.resume_signals.clear();
        self.continuation = None;
    }

    /// Checks the fence of a lease holder's call that does not end its lease.
    pub fn check_fence(&self, fence: &LeaseFence) -> Result<()> {
        self.check_holder(fence, LeaseEnd::None).map(drop)
    }

    /// Decides about every call of a lease holder; its checks are in the order that tells the holder the most. Returns
    /// the ending of the lease if the lease has already ended in the way that the call asks for: the caller then
    /// repeats the first answer.
    pub fn check_holder(&self, fence: &LeaseFence, end: LeaseEnd) -> Result<Option<&LeaseEnding>> {
        match self.ending_of(fence) {
            Some(ending) if ending.end == end => return Ok(Some(ending)),
            Some(ending) if ending.end == LeaseEnd::LoopDetected => return Err(self.stopped_as_loop()),
            _ => {}
        }
        let active = self.state.lifecycle_phase == LifecyclePhase::Active;
        let Some(lease) = &self.lease else { return Err(self.not_active()) };
        let same_epoch = lease.epoch == fence.epoch || planted(Bug::EpochNotChecked);
        let same = lease.id == fence.lease_id && same_epoch && lease.attempt == fence.attempt;
        let same = same || planted(Bug::FenceNotChecked);
        if same && !active {
            return Err(match lease.end {
                LeaseEnd::Revoked | LeaseEnd::ExecutionCancelled => Error::of(Code::LeaseRevoked),
                LeaseEnd::Expired => Error::of(Code::LeaseExpired).with("ended_at", lease.ended_at),
                _ => self.not_active(),
            });
        }
        if !active {
            return Err(self.not_active());
        }
        if !same {
            return Err(Error::of(Code::StaleLease).with("epoch", self.epoch));
        }
        Ok(None)
    }

    /// How the lease with this fence ended, if it did so through its holder and is remembered.
    pub fn ending_of(&self, fence: &LeaseFence) -> Option<&LeaseEnding> {
        self.endings.iter().find(|ending| {
            ending.lease_id == fence.lease_id && ending.epoch == fence.epoch && ending.attempt == fence.attempt
        })
    }

    /// When the lease with this fence ended the execution. If the execution was replayed since, the remembered ending
    /// has the instant.
    pub fn ended_by(&self, fence: &LeaseFence) -> i64 {
        let told = self.ending_of(fence).map_or(0, |ending| ending.next_at);
        if told == 0 { self.ended_at } else { told }
    }

    /// The refusal of a call whose lease ended because its entries, or those of an earlier call, were taken for a loop.
    pub fn stopped_as_loop(&self) -> Error {
        self.not_active().with("lease_end", LeaseEnd::LoopDetected)
    }

    pub(super) fn not_active(&self) -> Error {
        Error::of(Code::ExecutionNotActive)
            .with("terminal_outcome", self.state.terminal_outcome)
            .with("lifecycle_phase", self.state.lifecycle_phase)
            .with("epoch", self.epoch)
            .with("attempt", self.attempt.as_ref().map(|attempt| attempt.index))
    }

    /// Ends the present lease. The caller sets the state that follows.
    pub(crate) fn end_lease(&mut self, end: LeaseEnd, now: i64, effects: &mut Effects) -> LeaseEnding {
        let Some(lease) = self.lease.as_mut().filter(|lease| lease.ended_at == 0) else {
            return LeaseEnding::default();
        };
        lease.ended_at = now;
        lease.end = end;
        let ending =
            LeaseEnding { lease_id: lease.id, epoch: lease.epoch, attempt: lease.attempt, end, ..Default::default() };
        let held_ms = now - lease.acquired_at;
        if let Some(attempt) = self.attempt.as_mut() {
            attempt.used_ms += held_ms;
        }
        self.part_with_slot(now, effects);
        if end.is_by_holder() {
            self.holder_spoke();
        }
        self.remember(ending.clone());
        let event_type = match end {
            LeaseEnd::Expired => EventType::LeaseExpired,
            LeaseEnd::Revoked => EventType::LeaseRevoked,
            _ => EventType::LeaseReleased,
        };
        self.lease_event(event_type, effects);
        ending
    }

    /// Whether the lease before this one was handed back. A worker that reuses one lease id may have received that
    /// lease all the same, and may have written under it.
    pub fn follows_returned_lease(&self) -> bool {
        self.endings.last().is_some_and(|ending| ending.end == LeaseEnd::Returned)
    }

    /// Keeps the last endings, the newest last.
    pub(crate) fn remember(&mut self, ending: LeaseEnding) {
        self.endings.retain(|kept| kept.lease_id != ending.lease_id);
        // Most executions have one lease.
        self.endings.reserve_exact(1);
        self.endings.push(ending);
        let surplus = self.endings.len().saturating_sub(limits::LEASE_ENDINGS_KEPT);
        self.endings.drain(..surplus);
    }

    fn lease_event(&self, event_type: EventType, effects: &mut Effects) {
        let mut event = self.event(event_type);
        if let Some(lease) = &self.lease {
            event.lease_id = Some(lease.id);
            event.epoch = lease.epoch;
            event.worker_id = lease.worker_id.clone();
            event.detail = lease.end.as_str().to_owned();
        }
        effects.tell(event);
    }

    /// A repeated claim is answered with this lease: its holder begins to work, so that the call that took the lease may no
    /// longer give it back, although its own answer was not received.
    pub fn keep_lease(&mut self, fence: &LeaseFence, now: i64) -> Result<()> {
        self.check_fence(fence)?;
        self.keep_claim(fence.lease_id, now);
        Ok(())
    }

    /// A repeated claim is answered with this grant; see [`Execution::keep_lease`].
    pub fn keep_grant(&mut self, grant_id: LeaseId, now: i64) -> Result<()> {
        if self.grant.as_ref().is_none_or(|grant| grant.id != grant_id) {
            return Err(Error::of(Code::InvalidClaimGrant));
        }
        self.keep_claim(grant_id, now);
        Ok(())
    }

    fn keep_claim(&mut self, id: LeaseId, now: i64) {
        if self.kept_claim != id {
            self.mark_updated(now);
            self.kept_claim = id;
        }
    }

    /// Undoes a claim that could not be delivered, as if it had never been made; only the epoch stays.
    pub fn return_lease(&mut self, fence: &LeaseFence, now: i64, effects: &mut Effects) -> Result<()> {
        self.check_fence(fence)?;
        let now = self.mark_updated(now);
        let kind = self.lease.as_ref().map(|lease| lease.kind).unwrap_or_default();
        let used_ms = self.attempt.as_ref().map_or(0, |attempt| attempt.used_ms);
        self.end_lease(LeaseEnd::Returned, now, effects);
        if let Some(attempt) = self.attempt.as_mut() {
            attempt.used_ms = used_ms;
        }
        if kind == ClaimKind::Initial {
            // No worker ran it, so it counts as not started: a reason that keeps such an execution from starting, for
            // example the cancellation of its flow, still applies.
            self.attempt = None;
            self.started_at = 0;
        }
        self.state.lifecycle_phase = LifecyclePhase::Runnable;
        self.state.ownership_state = OwnershipState::Unowned;
        self.state.attempt_state = match kind {
            ClaimKind::Initial => AttemptState::PendingFirstAttempt,
            ClaimKind::Retry => AttemptState::PendingRetryAttempt,
            ClaimKind::Reclaim => AttemptState::PendingReclaimAttempt,
            ClaimKind::Replay => AttemptState::PendingReplayAttempt,
            ClaimKind::Resumed | ClaimKind::Unknown(_) => AttemptState::AttemptInterrupted,
        };
        self.settle();
        Ok(())
    }

    pub(crate) fn end_attempt(&mut self, outcome: AttemptOutcome, reason: &str, category: &str, now: i64) {
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.ended_at == 0) {
            attempt.ended_at = now;
            attempt.outcome = outcome;
            attempt.failure_reason = reason.to_owned();
            attempt.failure_category = category.to_owned();
        }
    }
}
