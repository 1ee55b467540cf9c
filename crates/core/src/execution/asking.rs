//! Waiting for a person to decide about a budget, before a start or in the middle of an attempt. The budget asks once
//! for all executions that wait. Each of them waits like a parked execution, and the answer releases them like a gate
//! that opens.

use uuid::Uuid;

use super::{Execution, ResumedBy};
use crate::error::{Code, Error, Result};
use crate::event::Effects;
use crate::id::{LeaseId, SuspensionId};
use crate::lease::{LeaseEnd, LeaseFence};
use crate::limits;
use crate::partition::digest16;
use crate::state::{AttemptState, EligibilityState, LifecyclePhase, OwnershipState};
use crate::suspension::Suspension;

/// The budget that an execution waits for, and its question.
#[derive(Debug, Clone)]
pub struct AskBudget<'a> {
    /// The suspension.
    pub suspension: SuspensionId,
    /// The gate of the budget that asks, as `b:name`.
    pub gate: &'a str,
    /// The question, for people.
    pub detail: &'a str,
}

impl AskBudget<'_> {
    /// The suspension that a reservation under a lease leads to: a repeat of the request finds it by its id.
    pub fn suspension_of(execution: &Execution, lease: LeaseId, budget: &str, key: &str) -> SuspensionId {
        let parts: [&[u8]; 5] =
            [b"budget", execution.id.uuid.as_bytes(), lease.as_bytes(), budget.as_bytes(), key.as_bytes()];
        SuspensionId(Uuid::from_bytes(digest16(&parts)))
    }
}

impl Execution {
    /// Whether it waits for the answer to a budget's question.
    pub fn asks_budget(&self) -> bool {
        let suspended = self.state.lifecycle_phase == LifecyclePhase::Suspended;
        suspended && self.suspension.as_ref().is_some_and(|suspension| suspension.waits_for_budget())
    }

    /// Its holder needs more than a budget has left: the lease is released until the question is answered.
    pub fn ask_budget(
        &mut self,
        fence: &LeaseFence,
        request: &AskBudget<'_>,
        now: i64,
        effects: &mut Effects,
    ) -> Result<()> {
        self.check_fence(fence)?;
        let now = self.mark_updated(now);
        self.part(LeaseEnd::Suspended, now, effects);
        if let Some(ending) = self.endings.last_mut() {
            ending.suspension_id = request.suspension;
        }
        self.await_budget(request, now, effects);
        Ok(())
    }

    /// A budget has nothing left for its start.
    pub fn ask_budget_at_admission(&mut self, request: &AskBudget<'_>, now: i64, effects: &mut Effects) -> Result<()> {
        if !self.is_eligible() {
            return Err(Error::of(Code::ExecutionNotEligible));
        }
        let now = self.mark_updated(now);
        self.state.ownership_state = OwnershipState::Unowned;
        self.await_budget(request, now, effects);
        Ok(())
    }

    fn await_budget(&mut self, request: &AskBudget<'_>, now: i64, effects: &mut Effects) {
        let suspension = Suspension::of_budget(request.suspension, now);
        self.state.lifecycle_phase = LifecyclePhase::Suspended;
        self.state.eligibility_state = EligibilityState::NotApplicable;
        self.state.blocking_reason = suspension.blocking_reason();
        self.suspension = Some(Box::new(suspension));
        self.suspension_event(effects);
        self.parked_on = request.gate.to_owned();
        self.parked_by_key = false;
        self.blocking_detail = request.detail.to_owned();
        self.recheck_at = now + limits::ASKED_RECHECK_MS;
    }

    /// The question was answered, one way or the other: the execution is admitted or refused anew. If the question was
    /// asked at its admission, the cause that had resumed it before is kept, because no worker has read it yet.
    pub(super) fn budget_answered(&mut self, now: i64, effects: &mut Effects) {
        let parted = self.state.attempt_state == AttemptState::AttemptInterrupted;
        let by = match self.resumed_by {
            ResumedBy::Nothing if parted => ResumedBy::Decision,
            by => by,
        };
        let signals = std::mem::take(&mut self.resume_signals);
        // People hear that the answer ended the suspension; the worker hears of the earlier cause.
        self.resumption_event(ResumedBy::Decision, effects);
        self.suspension = None;
        self.resume(by, signals, now, effects);
    }
}
