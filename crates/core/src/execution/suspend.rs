//! Suspension and resumption. A suspension ends exactly once: by signals, its timeout, a cancellation or an operator.

use super::{CancelSource, Cancellation, Execution, Failure, ResumedBy};
use crate::condition::SignalFact;
use crate::error::{Code, Error, Result};
use crate::event::{Effects, EventType};
use crate::id::SignalId;
use crate::lease::{AttemptOutcome, LeaseEnd, LeaseEnding, LeaseFence};
use crate::payload::Payload;
use crate::state::{BlockingReason, EligibilityState, LifecyclePhase, TerminalOutcome};
use crate::suspension::{Delivery, NewSuspension, Suspension, TimeoutBehavior};

/// A holder's request to suspend.
#[derive(Debug, Clone)]
pub struct SuspendRequest {
    /// The suspension, with its waitpoints.
    pub suspension: NewSuspension,
    /// Signals that its waitpoints have buffered.
    pub buffered: Vec<SignalFact>,
    /// Bytes that the holder leaves for the next one.
    pub continuation: Option<Payload>,
    /// A detail of the wait, for people; may be empty.
    pub detail: String,
}

/// The outcome of a suspension request.
#[derive(Debug, Clone, PartialEq)]
pub enum Suspended {
    /// The lease is released; the execution waits.
    Waiting,
    /// The buffered signals satisfy the condition: nothing is released, the holder goes on with these signals.
    AlreadySatisfied(Vec<SignalId>),
    /// The same request was answered before.
    Repeated(LeaseEnding),
}

/// The outcome of a delivered signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// The effect of the signal.
    pub delivery: Delivery,
    /// Whether the suspension ended.
    pub resumed: bool,
}

impl Execution {
    /// Checks that the holder may suspend, without looking at its request; returns the first answer if it did so
    /// before.
    pub fn check_suspend(&self, fence: &LeaseFence) -> Result<Option<&LeaseEnding>> {
        self.check_holder(fence, LeaseEnd::Suspended)
    }

    /// Releases the lease and waits for the condition, unless it is satisfied already.
    pub fn suspend(
        &mut self,
        fence: &LeaseFence,
        request: SuspendRequest,
        now: i64,
        effects: &mut Effects,
    ) -> Result<Suspended> {
        if let Some(ending) = self.check_suspend(fence)? {
            return Ok(Suspended::Repeated(ending.clone()));
        }
        let mut suspension = Suspension::new(request.suspension, now.max(self.updated_at))?;
        if let Delivery::Satisfied { signals } = suspension.absorb(request.buffered) {
            self.mark_updated(now);
            // The execution records the same cause as if the signals had come a moment later, so a later holder cannot
            // tell the difference.
            self.resumed_by = ResumedBy::Signals;
            self.resume_signals = signals.clone();
            self.continuation = request.continuation.map(Box::new);
            return Ok(Suspended::AlreadySatisfied(signals));
        }
        let now = self.mark_updated(now);
        self.part(LeaseEnd::Suspended, now, effects);
        if let Some(ending) = self.endings.last_mut() {
            ending.suspension_id = suspension.id;
            ending.waitpoint_id = suspension.waitpoints.first().copied().unwrap_or_default();
            ending.next_at = suspension.timeout_at.unwrap_or(0);
        }
        self.state.lifecycle_phase = LifecyclePhase::Suspended;
        self.state.eligibility_state = EligibilityState::NotApplicable;
        self.state.blocking_reason = suspension.blocking_reason();
        self.blocking_detail = request.detail;
        self.continuation = request.continuation.map(Box::new);
        self.suspension = Some(Box::new(suspension));
        self.suspension_event(effects);
        Ok(Suspended::Waiting)
    }

    /// Counts a signal that is about to be accepted, whatever its effect.
    pub fn count_signal(&mut self, now: i64) -> Result<()> {
        let max = self.policy.max_signals_per_execution;
        if self.signals >= max {
            let detail = format!("the execution accepts at most {max} signals");
            return Err(Error::new(Code::SignalLimitExceeded, detail).with("max", max));
        }
        self.mark_updated(now);
        self.signals += 1;
        Ok(())
    }

    /// A signal arrives for its suspension. `resume_delay_ms` postpones eligibility when it is the last one needed.
    pub fn deliver_signal(
        &mut self,
        fact: SignalFact,
        resume_delay_ms: i64,
        now: i64,
        effects: &mut Effects,
    ) -> Result<Resumed> {
        let suspended = self.state.lifecycle_phase == LifecyclePhase::Suspended;
        let Some(suspension) = self.suspension.as_mut().filter(|_| suspended) else {
            return Err(Error::of(Code::TargetNotSignalable).with("public_state", self.public_state()));
        };
        let delivery = suspension.deliver(fact);
        let now = self.mark_updated(now);
        let resumed = matches!(delivery, Delivery::Satisfied { .. });
        if let Delivery::Satisfied { signals } = &delivery {
            let signals = signals.clone();
            self.resume_at(now + resume_delay_ms, ResumedBy::Signals, signals, now, effects);
        }
        Ok(Resumed { delivery, resumed })
    }

    /// An operator ends the suspension.
    pub fn resume_by_operator(&mut self, now: i64, effects: &mut Effects) -> Result<()> {
        let Some(suspension) = &self.suspension else {
            return Err(Error::of(Code::ExecutionNotSuspended).with("public_state", self.public_state()));
        };
        suspension.check_operator_resume()?;
        let now = self.mark_updated(now);
        if self.asks_budget() && self.resumed_by != ResumedBy::Nothing {
            // The question came at its admission: the cause that had resumed it before is kept, because no worker has
            // read it yet.
            self.budget_answered(now, effects);
        } else {
            self.resume(ResumedBy::Operator, Vec::new(), now, effects);
        }
        Ok(())
    }

    pub(super) fn resume(&mut self, by: ResumedBy, signals: Vec<SignalId>, now: i64, effects: &mut Effects) {
        self.resume_at(now, by, signals, now, effects);
    }

    fn resume_at(&mut self, eligible_at: i64, by: ResumedBy, signals: Vec<SignalId>, now: i64, effects: &mut Effects) {
        self.resumption_event(by, effects);
        self.suspension = None;
        self.waits.clear();
        self.blocking_detail.clear();
        self.forget_gate();
        self.resumed_by = by;
        self.resume_signals = signals;
        self.state.lifecycle_phase = LifecyclePhase::Runnable;
        self.hold_until(eligible_at, BlockingReason::WaitingForResumeDelay, now);
        self.settle();
    }

    /// The suspension's time is up.
    pub(crate) fn suspension_timed_out(&mut self, now: i64, effects: &mut Effects) {
        let Some(suspension) = self.suspension.as_mut().filter(|suspension| suspension.timeout_due(now)) else {
            return;
        };
        if !self.waits.is_empty() {
            self.wake_by_time(now, effects);
            return;
        }
        let reason = "the suspension timed out";
        match suspension.behavior {
            TimeoutBehavior::Escalate => {
                suspension.escalate();
                self.state.blocking_reason = suspension.blocking_reason();
            }
            TimeoutBehavior::AutoResumeWithTimeoutSignal => self.resume(ResumedBy::Timeout, Vec::new(), now, effects),
            TimeoutBehavior::Fail | TimeoutBehavior::Unknown(_) => {
                self.failure = Some(self.suspension_failure(reason, "suspension_timeout", now));
                self.end_early(LeaseEnd::None, AttemptOutcome::Failed, reason, TerminalOutcome::Failed, now, effects);
            }
            TimeoutBehavior::Expire => {
                self.failure = Some(self.suspension_failure(reason, "expired", now));
                self.end_early(LeaseEnd::None, AttemptOutcome::Expired, reason, TerminalOutcome::Expired, now, effects);
            }
            TimeoutBehavior::Cancel => {
                self.cancellation =
                    Some(Cancellation { reason: reason.into(), source: CancelSource::Timeout, ..Default::default() });
                let outcome = TerminalOutcome::Cancelled;
                self.end_early(LeaseEnd::None, AttemptOutcome::Cancelled, reason, outcome, now, effects);
            }
        }
    }

    /// The event of a suspension that has begun, with its reason.
    pub(super) fn suspension_event(&self, effects: &mut Effects) {
        let mut event = self.event(EventType::Suspended);
        event.detail = self.suspension.as_ref().map(|suspension| suspension.reason.as_str()).unwrap_or_default().into();
        effects.events.push(event);
    }

    /// The event of a suspension that ends, with its cause. An execution that waits without a suspension, such as for
    /// an instant, has no such event.
    pub(super) fn resumption_event(&self, by: ResumedBy, effects: &mut Effects) {
        if self.suspension.is_some() {
            let mut event = self.event(EventType::Resumed);
            event.detail = by.as_str().to_owned();
            effects.events.push(event);
        }
    }

    fn suspension_failure(&self, reason: &str, category: &str, at: i64) -> Failure {
        let attempt = self.attempt.as_ref().map(|attempt| attempt.index).unwrap_or_default();
        Failure { reason: reason.into(), category: category.into(), attempt, at, by_engine: true, ..Default::default() }
    }
}
