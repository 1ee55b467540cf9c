//! Ending an attempt, parting from it, ending the execution, and running it again.

use serde::{Deserialize, Serialize};

use super::{Cancellation, Execution, Hold, Progress};
use crate::error::{Code, Error, Result};
use crate::event::{Effects, EventType};
use crate::id::{AttemptIndex, ExecutionId};
use crate::lease::{AttemptOutcome, LeaseEnd, LeaseEnding, LeaseFence};
use crate::payload::Payload;
use crate::planted::{Bug, planted};
use crate::sharing::KeyHolder;
use crate::state::{AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, TerminalOutcome};
use crate::{document, limits, text, vocabulary};

document! {
    /// The last failure.
    pub api struct Failure {
        /// The reason, in words.
        "r" reason: String,
        /// Its category, which decides whether it is retried.
        "c" category: String,
        /// In which attempt.
        "a" attempt: AttemptIndex,
        /// When it failed.
        "t" at: i64,
        /// The engine ended it; no worker reported the failure.
        "e" by_engine: bool,
    }
}

vocabulary! {
    /// The source of a cancellation.
    #[derive(Default)]
    pub closed enum CancelSource {
        /// An operator.
        #[default]
        Operator "operator",
        /// The holder of its lease.
        LeaseHolder "lease_holder",
        /// Its flow.
        Flow "flow",
        /// A timeout.
        Timeout "timeout",
        /// A later submission that took its place.
        Superseded "superseded",
    }
}

/// The outcome of a reported failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum FailOutcome {
    /// It will be tried again.
    RetryScheduled {
        /// Not before this instant.
        at: i64,
    },
    /// It has failed for good.
    TerminalFailed,
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(FailOutcome);

/// The outcome of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It is cancelled now.
    Now,
    /// It had ended before; nothing changed.
    AlreadyEnded,
}

/// The category of a function whose journal has no room for its next step.
const JOURNAL_FULL: &str = "journal_full";

impl Execution {
    /// The reason of an end without success, in words: that of the cancellation, which may have come after a failed attempt,
    /// or of the last failure.
    pub fn end_reason(&self) -> &str {
        let cancelled =
            self.cancellation.as_ref().filter(|_| self.state.terminal_outcome == TerminalOutcome::Cancelled);
        let failed = || self.failure.as_ref().map_or("", |failure| failure.reason.as_str());
        cancelled.map_or_else(failed, |cancellation| cancellation.reason.as_str())
    }

    /// The attempt succeeded.
    pub fn complete(&mut self, fence: &LeaseFence, result: Payload, now: i64, effects: &mut Effects) -> Result<()> {
        match self.check_holder(fence, LeaseEnd::Completed) {
            Ok(Some(_)) => return Ok(()),
            Err(_) if planted(Bug::ResultOverwritten) && self.is_terminal() => {}
            checked => drop(checked?),
        }
        text::optional_content_type("content_type", &result.content_type)?;
        let now = self.mark_updated(now);
        self.end_lease(LeaseEnd::Completed, now, effects);
        self.end_attempt(AttemptOutcome::Success, "", "", now);
        self.result = Some(result);
        self.failure = None;
        self.finish(TerminalOutcome::Success, now, effects);
        Ok(())
    }

    /// The attempt failed. `random` decides the jitter of the backoff.
    pub fn fail(
        &mut self,
        fence: &LeaseFence,
        failure: NewFailure<'_>,
        now: i64,
        effects: &mut Effects,
    ) -> Result<FailOutcome> {
        if let Some(ending) = self.check_holder(fence, LeaseEnd::Failed)? {
            return Ok(outcome_of(ending));
        }
        failure.validate()?;
        let now = self.mark_updated(now);
        self.end_lease(LeaseEnd::Failed, now, effects);
        Ok(self.attempt_failed(AttemptOutcome::Failed, &failure, now, effects))
    }

    /// The attempt took longer than it may.
    pub(crate) fn attempt_timed_out(&mut self, random: u32, now: i64, effects: &mut Effects) {
        self.end_lease(LeaseEnd::AttemptTimedOut, now, effects);
        let failure = NewFailure { reason: "the attempt timed out", category: "timeout", retry_after_ms: None, random };
        self.attempt_failed(AttemptOutcome::TimedOut, &failure, now, effects);
    }

    fn attempt_failed(
        &mut self,
        outcome: AttemptOutcome,
        failure: &NewFailure<'_>,
        now: i64,
        effects: &mut Effects,
    ) -> FailOutcome {
        self.end_attempt(outcome, failure.reason, failure.category, now);
        self.failure = Some(Failure {
            reason: failure.reason.to_owned(),
            category: failure.category.to_owned(),
            attempt: self.attempt.as_ref().map(|attempt| attempt.index).unwrap_or_default(),
            at: now,
            by_engine: outcome == AttemptOutcome::TimedOut,
            ..Default::default()
        });
        // A retry would not help: the next attempt would find the same full journal.
        if failure.category == JOURNAL_FULL || !self.policy.retry.allows(self.retries, failure.category) {
            self.finish(TerminalOutcome::Failed, now, effects);
            return FailOutcome::TerminalFailed;
        }
        let delay_ms =
            failure.retry_after_ms.unwrap_or_else(|| self.policy.retry.delay_ms(self.retries, failure.random));
        if !planted(Bug::RetryNotCounted) {
            self.retries += 1;
        }
        self.state.lifecycle_phase = LifecyclePhase::Runnable;
        self.state.ownership_state = OwnershipState::Unowned;
        self.state.attempt_state = AttemptState::PendingRetryAttempt;
        let at = now + delay_ms;
        self.hold_until(at, BlockingReason::WaitingForRetryBackoff, now);
        self.settle();
        if let Some(ending) = self.endings.last_mut() {
            ending.next_at = at;
        }
        FailOutcome::RetryScheduled { at }
    }

    /// The holder gives its lease up until an instant; the attempt stays open.
    pub fn delay(&mut self, fence: &LeaseFence, until: i64, now: i64, effects: &mut Effects) -> Result<i64> {
        if let Some(ending) = self.check_holder(fence, LeaseEnd::Delayed)? {
            return Ok(ending.next_at);
        }
        text::instant("delay_until", until)?;
        let now = self.mark_updated(now);
        self.part(LeaseEnd::Delayed, now, effects);
        self.hold_until(until, BlockingReason::WaitingForDelay, now);
        self.settle();
        if let Some(ending) = self.endings.last_mut() {
            ending.next_at = until;
        }
        Ok(until)
    }

    /// The holder gives its lease up until the children it spawned have ended. If none is open, the execution may be
    /// claimed at once.
    pub fn wait_children(
        &mut self,
        fence: &LeaseFence,
        continuation: Option<Payload>,
        now: i64,
        effects: &mut Effects,
    ) -> Result<LeaseEnding> {
        if let Some(ending) = self.check_holder(fence, LeaseEnd::WaitingChildren)? {
            return Ok(ending.clone());
        }
        let now = self.mark_updated(now);
        self.part(LeaseEnd::WaitingChildren, now, effects);
        self.continuation = continuation.map(Box::new);
        if !self.child_wait.is_over() {
            self.holds.set(Hold::Dependencies);
        }
        self.settle();
        let open_children = self.child_wait.open;
        Ok(self.remember_told(|ending| ending.open_children = open_children))
    }

    /// Keeps what the holder that has just parted is told, so that a repeat of its call hears the same later.
    pub(super) fn remember_told(&mut self, tell: impl FnOnce(&mut LeaseEnding)) -> LeaseEnding {
        let public_state = self.public_state();
        let Some(ending) = self.endings.last_mut() else { return LeaseEnding::default() };
        ending.public_state = Some(public_state);
        tell(ending);
        ending.clone()
    }

    /// Ends the lease but not the attempt.
    pub(crate) fn part(&mut self, end: LeaseEnd, now: i64, effects: &mut Effects) {
        self.end_lease(end, now, effects);
        self.state.lifecycle_phase = LifecyclePhase::Runnable;
        self.state.ownership_state = OwnershipState::Unowned;
        self.state.attempt_state = AttemptState::AttemptInterrupted;
        self.forget_resumption();
    }

    /// Records the progress that the holder reports.
    pub fn report_progress(&mut self, fence: &LeaseFence, pct: u8, message: &str, now: i64) -> Result<()> {
        self.check_fence(fence)?;
        if pct > 100 {
            return Err(Error::invalid("pct", "must be between 0 and 100"));
        }
        text::text("message", message)?;
        let at = self.mark_updated(now);
        self.progress = Some(Progress { pct, message: message.to_owned(), at, ..Default::default() });
        Ok(())
    }

    /// Cancels it from any state; an execution that has ended stays as it is.
    pub fn cancel(&mut self, source: CancelSource, reason: &str, now: i64, effects: &mut Effects) -> Result<Cancelled> {
        if self.is_terminal() {
            return Ok(Cancelled::AlreadyEnded);
        }
        text::text("reason", reason)?;
        let now = self.mark_updated(now);
        let end = match source {
            CancelSource::LeaseHolder => LeaseEnd::Cancelled,
            _ => LeaseEnd::ExecutionCancelled,
        };
        self.cancellation = Some(Cancellation { reason: reason.to_owned(), source, ..Default::default() });
        self.end_early(end, AttemptOutcome::Cancelled, reason, TerminalOutcome::Cancelled, now, effects);
        Ok(Cancelled::Now)
    }

    /// A later submission takes its place before it has started, and its key stands for that submission from now on.
    pub fn supersede(&mut self, by: ExecutionId, now: i64, effects: &mut Effects) -> Result<()> {
        self.let_key_go(now);
        self.cancel(CancelSource::Superseded, &format!("superseded by {by}"), now, effects)?;
        if let Some(cancellation) = &mut self.cancellation {
            cancellation.superseded_by = Some(by);
        }
        Ok(())
    }

    /// The holder cancels its own execution.
    pub fn cancel_held(
        &mut self,
        fence: &LeaseFence,
        reason: &str,
        now: i64,
        effects: &mut Effects,
    ) -> Result<Cancelled> {
        if self.check_holder(fence, LeaseEnd::Cancelled)?.is_some() {
            return Ok(Cancelled::Now);
        }
        self.cancel(CancelSource::LeaseHolder, reason, now, effects)
    }

    /// Its upstreams ended so that its join can never be satisfied. An execution that has started is never skipped.
    pub fn skip(&mut self, detail: &str, now: i64, effects: &mut Effects) -> Result<()> {
        if self.state.lifecycle_phase != LifecyclePhase::Runnable || self.has_started() {
            return Err(Error::of(Code::DependencyNotApplicable).with("public_state", self.public_state()));
        }
        let now = self.mark_updated(now);
        self.failure = Some(Failure {
            reason: detail.to_owned(),
            category: "skipped".into(),
            at: now,
            by_engine: true,
            ..Default::default()
        });
        self.finish(TerminalOutcome::Skipped, now, effects);
        Ok(())
    }

    /// Admission refuses it for good, because its budget is defined so: it fails without an attempt.
    pub fn fail_at_admission(&mut self, reason: &str, category: &str, now: i64, effects: &mut Effects) -> Result<()> {
        if !self.is_eligible() {
            return Err(Error::of(Code::ExecutionNotEligible));
        }
        let now = self.mark_updated(now);
        self.failure = Some(Failure {
            reason: reason.to_owned(),
            category: category.to_owned(),
            attempt: self.attempt.as_ref().map(|attempt| attempt.index).unwrap_or_default(),
            at: now,
            by_engine: true,
            ..Default::default()
        });
        self.end_attempt(AttemptOutcome::Failed, reason, category, now);
        self.finish(TerminalOutcome::Failed, now, effects);
        Ok(())
    }

    /// Its deadline passed.
    pub(crate) fn expire(&mut self, reason: &str, now: i64, effects: &mut Effects) {
        self.failure = Some(Failure {
            reason: reason.to_owned(),
            category: "expired".into(),
            attempt: self.attempt.as_ref().map(|attempt| attempt.index).unwrap_or_default(),
            at: now,
            by_engine: true,
            ..Default::default()
        });
        self.end_early(
            LeaseEnd::DeadlinePassed,
            AttemptOutcome::Expired,
            reason,
            TerminalOutcome::Expired,
            now,
            effects,
        );
    }

    /// Ends the execution, and its lease and attempt where it has them.
    pub(crate) fn end_early(
        &mut self,
        end: LeaseEnd,
        attempt: AttemptOutcome,
        reason: &str,
        outcome: TerminalOutcome,
        now: i64,
        effects: &mut Effects,
    ) {
        if self.state.lifecycle_phase == LifecyclePhase::Active {
            self.end_lease(end, now, effects);
        }
        self.end_attempt(attempt, reason, outcome.as_str(), now);
        self.finish(outcome, now, effects);
    }

    /// Enters a terminal state. Lease and attempt have ended already.
    pub(crate) fn finish(&mut self, outcome: TerminalOutcome, now: i64, effects: &mut Effects) {
        self.drop_holds();
        self.holds.clear(Hold::Operator);
        self.let_grant_go();
        self.suspension = None;
        self.waits.clear();
        self.forget_resumption();
        self.ended_at = now;
        self.state.lifecycle_phase = LifecyclePhase::Terminal;
        self.state.ownership_state = OwnershipState::Unowned;
        self.state.eligibility_state = EligibilityState::NotApplicable;
        self.state.blocking_reason = BlockingReason::None;
        self.state.terminal_outcome = outcome;
        self.state.attempt_state =
            if self.attempt.is_some() { AttemptState::AttemptTerminal } else { AttemptState::None };
        self.owes_resolution = self.flow.is_some() && !planted(Bug::MarkNotLeft);
        if let Some(run) = &mut self.schedule {
            run.owes_end = true;
        }
        if let Some(single) = self.sharing.as_mut().and_then(|sharing| sharing.single.as_mut())
            && std::mem::replace(&mut single.held, false)
        {
            effects.removed.push(KeyHolder::key_of(&self.namespace, single.usage, &single.key));
        }
        if let Some(event_type) = EventType::of_terminal(self.public_state()) {
            let mut event = self.event(event_type);
            event.detail = match (&self.cancellation, &self.failure) {
                (Some(cancellation), _) => cancellation.reason.clone(),
                (None, Some(failure)) => failure.reason.clone(),
                (None, None) => String::new(),
            };
            effects.tell(event);
        }
    }

    /// Runs it again after its end, with an empty journal or with the entries of the last journal below a number. The
    /// previous result stays until a new one replaces it. An execution that was skipped waits again for the impossible
    /// edges that the caller reopened.
    pub fn replay(&mut self, reopened_edges: u32, below: Option<u64>, now: i64) -> Result<()> {
        if !self.is_terminal() {
            return Err(Error::of(Code::ExecutionNotTerminal).with("public_state", self.public_state()));
        }
        if self.replays >= self.policy.max_replay_count {
            return Err(Error::of(Code::MaxReplaysExhausted).with("max_replay_count", self.policy.max_replay_count));
        }
        if self.removal.is_some() {
            return Err(Error::of(Code::ExecutionNotFound).with("execution_id", self.id));
        }
        // What never started has no run to leave behind, but a fork may have entries.
        let begins = self.attempt.is_some() || below.is_some();
        if below.is_some() {
            self.check_journal_copied()?;
        }
        if begins {
            self.check_generations(below)?;
        }
        if let Some(join) = self.join.as_mut() {
            join.reopen(reopened_edges)?;
        }
        let now = self.mark_updated(now);
        if below.is_none() {
            // The replay has no journal to continue, so any build may run it.
            self.unpin();
        }
        if begins {
            self.begin_generation(below, limits::GENERATIONS_KEPT);
        }
        let by_holder = |end| matches!(end, LeaseEnd::Completed | LeaseEnd::Cancelled);
        if let Some(ending) = self.endings.last_mut().filter(|ending| by_holder(ending.end) && ending.next_at == 0) {
            ending.next_at = self.ended_at;
        }
        self.replays += 1;
        self.continuations = 0;
        self.retries = 0;
        self.reclaims = 0;
        self.lost = None;
        self.failure = None;
        self.cancellation = None;
        self.ended_at = 0;
        // It may still owe its end to its flow, but after the replay it has not ended.
        self.owes_resolution = false;
        if let Some(run) = &mut self.schedule {
            run.owes_end = false;
        }
        // A deadline that was chosen still applies while it lies ahead; a deadline of the policy counts from now.
        let ahead = self.deadline_at > now;
        self.deadline_at = match self.policy.timeout.execution_deadline_ms {
            Some(deadline_ms) if !(ahead && self.deadline_chosen) => now + deadline_ms,
            _ if ahead => self.deadline_at,
            _ => 0,
        };
        self.state.lifecycle_phase = LifecyclePhase::Runnable;
        self.state.terminal_outcome = TerminalOutcome::None;
        self.state.attempt_state = AttemptState::PendingReplayAttempt;
        self.hold_for_join();
        self.hold_for_fork();
        self.settle();
        Ok(())
    }
}

/// A failure as its holder reports it.
#[derive(Debug, Clone, Copy)]
pub struct NewFailure<'a> {
    /// The reason, in words.
    pub reason: &'a str,
    /// The category; it decides whether the failure is retried.
    pub category: &'a str,
    /// Replaces the policy's backoff.
    pub retry_after_ms: Option<i64>,
    /// Decides the jitter of the backoff.
    pub random: u32,
}

impl NewFailure<'_> {
    fn validate(&self) -> Result<()> {
        text::text("reason", self.reason)?;
        text::optional_label("category", self.category)?;
        match self.retry_after_ms {
            Some(retry_after_ms) => text::within("retry_after_ms", retry_after_ms, 0..=limits::DURATION_MAX_MS),
            None => Ok(()),
        }
    }
}

fn outcome_of(ending: &LeaseEnding) -> FailOutcome {
    if ending.next_at == 0 { FailOutcome::TerminalFailed } else { FailOutcome::RetryScheduled { at: ending.next_at } }
}
