//! Waiting for the first of several things: an instant, a signal, a child. The holder records each wait as a begun
//! journal entry and gives its lease up. The first event ends its own entry and lets the execution run again. The other
//! entries stay open: a waitpoint that did not fire still takes its signal after the wake of another.

use super::{Execution, Hold, Question, ResumedBy};
use crate::document;
use crate::error::{Error, Result};
use crate::event::Effects;
use crate::id::{ExecutionId, SuspensionId, WaitpointId};
use crate::journal::{StepEntry, StepIdentity, StepKind, StepState};
use crate::lease::{LeaseEnd, LeaseFence};
use crate::limits;
use crate::state::{BlockingReason, EligibilityState, LifecyclePhase, TerminalOutcome};
use crate::suspension::{SuspendReason, Suspension};

document! {
    /// One of the things that a parked execution waits for, and the journal entry that it ends.
    pub struct Wait {
        /// The entry's name.
        "n" name: String,
        /// The entry's key.
        "k" key: Option<String>,
        /// Which call of the name it is, without a key.
        "o" occurrence: u32,
        /// The kind of the entry that is waited for.
        "t" kind: StepKind,
        /// When the wait ends by itself; 0 for never.
        "u" until: i64,
        /// Where the signal arrives.
        "w" waitpoint: Option<WaitpointId>,
        /// The child.
        "c" child: Option<ExecutionId>,
        /// The question for a person about the entry.
        "q" question: Option<Question>,
        /// The provider whose turn the wait is for; empty where it is for none.
        "p" provider: String,
    }
}

impl Wait {
    /// The entry it ends.
    pub fn identity(&self) -> StepIdentity {
        StepIdentity {
            name: self.name.clone(),
            key: self.key.clone(),
            occurrence: self.key.is_none().then_some(self.occurrence),
        }
    }

    fn is_due(&self, now: i64) -> bool {
        self.until != 0 && self.until <= now
    }

    /// The journal entry when the time of the wait is up: a sleep is over, or no signal or child's end came in time.
    pub fn timed_out(&self) -> StepEntry {
        match self.kind {
            StepKind::Sleep => self.ended(StepState::Completed),
            _ => StepEntry {
                category: Some("timeout".into()),
                message: Some("the wait timed out".into()),
                ..self.ended(StepState::Failed)
            },
        }
    }

    /// The journal entry of a child's end; its result is read from the child.
    pub fn child_ended(&self, outcome: TerminalOutcome, reason: &str) -> StepEntry {
        match outcome {
            TerminalOutcome::Success => StepEntry { child: self.child, ..self.ended(StepState::Completed) },
            _ => StepEntry {
                child: self.child,
                category: Some(outcome.as_str().to_owned()),
                message: Some(reason.to_owned()).filter(|reason| !reason.is_empty()),
                ..self.ended(StepState::Failed)
            },
        }
    }

    /// The entry in its last state.
    pub fn ended(&self, state: StepState) -> StepEntry {
        let StepIdentity { name, key, occurrence } = self.identity();
        StepEntry { name, key, occurrence, kind: Some(self.kind), state, ..Default::default() }
    }
}

impl Execution {
    /// Releases the lease until the first of these waits ends.
    pub fn await_first(
        &mut self,
        fence: &LeaseFence,
        suspension: SuspensionId,
        waits: Vec<Wait>,
        now: i64,
        effects: &mut Effects,
    ) -> Result<()> {
        self.check_fence(fence)?;
        if waits.is_empty() || waits.len() > limits::WAITS_MAX {
            let detail = format!("must name 1 to {} things to wait for", limits::WAITS_MAX);
            return Err(Error::invalid("waits", detail));
        }
        let now = self.mark_updated(now);
        self.part(LeaseEnd::Parked, now, effects);
        self.rest(suspension, waits, now, effects);
        let wake_at = self.wake_at();
        self.remember_told(|ending| ending.next_at = wake_at.unwrap_or(0));
        Ok(())
    }

    /// Lets an execution without a lease wait for the first of these.
    pub(super) fn rest(&mut self, suspension: SuspensionId, waits: Vec<Wait>, now: i64, effects: &mut Effects) {
        let until = waits.iter().map(|wait| wait.until).filter(|until| *until != 0).min();
        let waitpoints: Vec<WaitpointId> = waits.iter().filter_map(|wait| wait.waitpoint).collect();
        let children = waits.iter().any(|wait| wait.child.is_some());
        let question = waits.iter().find_map(|wait| wait.question.clone());
        self.waits = waits;
        if !waitpoints.is_empty() || question.is_some() {
            let (reason, detail) =
                question.map_or((SuspendReason::Signal, String::new()), |asked| (asked.reason, asked.detail));
            let mut suspension = Suspension::of_waits(suspension, waitpoints, reason, now);
            suspension.timeout_at = until;
            self.blocking_detail = detail;
            self.state.lifecycle_phase = LifecyclePhase::Suspended;
            self.state.eligibility_state = EligibilityState::NotApplicable;
            self.state.blocking_reason = suspension.blocking_reason();
            self.suspension = Some(Box::new(suspension));
            self.suspension_event(effects);
        } else if children {
            self.holds.set(Hold::Dependencies);
        } else if let Some(until) = until {
            self.hold_until(until, BlockingReason::WaitingForDelay, now);
        }
        self.settle();
    }

    /// When the first of its waits ends by itself.
    pub fn wake_at(&self) -> Option<i64> {
        self.waits.iter().map(|wait| wait.until).filter(|until| *until != 0).min()
    }

    /// When the first of its waits ends by itself, while it is neither suspended nor under a lease.
    pub(super) fn waits_until(&self) -> Option<i64> {
        let resting = self.state.lifecycle_phase == LifecyclePhase::Runnable && !self.holds.is_empty();
        self.wake_at().filter(|_| resting)
    }

    /// The waits whose time is up; the caller writes their entries.
    pub fn due_waits(&self, now: i64) -> Vec<Wait> {
        self.waits.iter().filter(|wait| wait.is_due(now)).cloned().collect()
    }

    /// Whether it is parked until a signal arrives here.
    pub fn waits_at(&self, waitpoint: &WaitpointId) -> Option<Wait> {
        let parked = self.state.lifecycle_phase == LifecyclePhase::Suspended;
        self.waits.iter().find(|wait| wait.waitpoint.as_ref() == Some(waitpoint)).filter(|_| parked).cloned()
    }

    /// Whether it is parked until this child ends.
    pub fn waits_for_child(&self, child: &ExecutionId) -> Option<Wait> {
        let parked = matches!(self.state.lifecycle_phase, LifecyclePhase::Suspended | LifecyclePhase::Runnable);
        self.waits.iter().find(|wait| wait.child.as_ref() == Some(child)).filter(|_| parked).cloned()
    }

    /// The time of one of its waits is up.
    pub(super) fn wake_by_time(&mut self, now: i64, effects: &mut Effects) {
        let awaited = |wait: &&Wait| wait.waitpoint.is_some() || wait.child.is_some();
        let timed_out = self.waits.iter().filter(awaited).any(|wait| wait.is_due(now));
        self.wake(if timed_out { ResumedBy::Timeout } else { ResumedBy::Time }, now, effects);
        self.resumed_by = ResumedBy::Time;
        self.wait_timed_out = timed_out;
    }

    /// One of its waits has ended: it may run again.
    pub fn wake(&mut self, by: ResumedBy, now: i64, effects: &mut Effects) {
        self.mark_updated(now);
        self.resumption_event(by, effects);
        self.waits.clear();
        self.suspension = None;
        self.blocking_detail.clear();
        self.resumed_by = by;
        self.state.lifecycle_phase = LifecyclePhase::Runnable;
        self.holds.clear(Hold::Dependencies);
        self.holds.clear(Hold::Time);
        self.not_before = 0;
        self.settle();
    }
}
