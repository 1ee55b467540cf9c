//! Losing a lease: the execution is claimed anew, at once or after a wait, or fails if that happened too often. The
//! last sign of work of the lost workers is kept, because they can no longer be asked.

use super::{Execution, Failure, Progress};
use crate::document;
use crate::error::Result;
use crate::event::Effects;
use crate::id::{AttemptIndex, LeaseId};
use crate::lease::{AttemptOutcome, LeaseEnd, LeaseFence};
use crate::limits;
use crate::planted::{Bug, planted};
use crate::state::{AttemptState, BlockingReason, LifecyclePhase, OwnershipState, TerminalOutcome};

document! {
    /// The leases that an execution has lost.
    pub struct LostLeases {
        /// How many ran out in a row whose holders left no sign of work.
        "i" idle: u32,
        /// The last progress of their workers, the newest last.
        "w" last_words: Vec<LastWords>,
    }
}

document! {
    /// The last progress of a worker before its lease ran out.
    pub api struct LastWords {
        /// The attempt that was lost.
        "a" attempt: AttemptIndex,
        /// The worker's logical name.
        "w" worker_id: String,
        /// The very process.
        "p" instance_id: String,
        /// When the lease was taken.
        "s" acquired_at: i64,
        /// When it ran out.
        "t" lost_at: i64,
        /// Its last journal entry, frame or progress under this lease; empty if it left none.
        "m" said: String,
    }
}

/// The newest journal entry or frame that the logs have of a lease that ran out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LostLease {
    /// When it was recorded, and its text; `None` if the holder recorded nothing.
    pub last: Option<(i64, String)>,
}

impl Execution {
    /// The lease ran out: the attempt is lost and the execution may be claimed anew, unless that happened too often.
    /// From the third lease in a row that was lost without a sign of work, the next claim waits: an execution that
    /// kills its workers would otherwise kill them as fast as they come.
    pub fn expire_lease(&mut self, lost: &LostLease, now: i64, effects: &mut Effects) -> Result<()> {
        if self.state.lifecycle_phase != LifecyclePhase::Active {
            return Err(self.not_active());
        }
        let idle = self.note_last_words(lost, now);
        self.lose_lease(LeaseEnd::Expired, OwnershipState::LeaseExpiredReclaimable, now, effects)?;
        if let Some(backoff_ms) = reclaim_backoff_ms(idle).filter(|_| !self.is_terminal()) {
            let now = self.updated_at;
            self.hold_until(now + backoff_ms, BlockingReason::WaitingForRetryBackoff, now);
            self.settle();
        }
        Ok(())
    }

    /// An operator takes the lease away.
    pub fn revoke_lease(&mut self, expected: Option<LeaseId>, now: i64, effects: &mut Effects) -> Result<LeaseFence> {
        let lease = self.lease.as_ref().filter(|lease| lease.ended_at == 0);
        let Some(lease) = lease.filter(|lease| expected.is_none_or(|expected| expected == lease.id)) else {
            return Err(self.not_active());
        };
        let fence = LeaseFence { attempt: lease.attempt, lease_id: lease.id, epoch: lease.epoch };
        self.lose_lease(LeaseEnd::Revoked, OwnershipState::LeaseRevoked, now, effects)?;
        Ok(fence)
    }

    fn lose_lease(&mut self, end: LeaseEnd, ownership: OwnershipState, now: i64, effects: &mut Effects) -> Result<()> {
        if self.state.lifecycle_phase != LifecyclePhase::Active {
            return Err(self.not_active());
        }
        let now = self.mark_updated(now);
        self.end_lease(end, now, effects);
        self.end_attempt(AttemptOutcome::InterruptedReclaimed, "the lease was lost", "lease_lost", now);
        if self.reclaims >= self.policy.max_reclaim_count && !planted(Bug::ReclaimsUnbounded) {
            self.failure = Some(Failure {
                reason: self.quarantine_reason(),
                category: "max_reclaims_exceeded".into(),
                by_engine: true,
                attempt: self.attempt.as_ref().map(|attempt| attempt.index).unwrap_or_default(),
                at: now,
                ..Default::default()
            });
            self.finish(TerminalOutcome::Failed, now, effects);
            return Ok(());
        }
        self.reclaims += 1;
        self.state.lifecycle_phase = LifecyclePhase::Runnable;
        self.state.ownership_state = ownership;
        self.state.attempt_state = AttemptState::PendingReclaimAttempt;
        self.settle();
        Ok(())
    }

    fn quarantine_reason(&self) -> String {
        let lost = self.reclaims.saturating_add(1);
        let last = self.last_words().iter().rev().find(|words| !words.said.is_empty());
        let said = last.map(|words| format!("; {} last said: {}", words.instance_id, words.said));
        format!("max_reclaims_exceeded: {lost} leases were lost{}", said.unwrap_or_default())
    }

    /// The last progress of the workers of lost leases, the newest last.
    pub fn last_words(&self) -> &[LastWords] {
        self.lost.as_ref().map(|lost| lost.last_words.as_slice()).unwrap_or_default()
    }

    /// How many leases ran out in a row whose holders left no sign of work.
    pub fn idle_reclaims(&self) -> u32 {
        self.lost.as_ref().map_or(0, |lost| lost.idle)
    }

    /// Keeps the last sign of work of the present lease's holder; returns how many leases in a row were lost without
    /// one.
    fn note_last_words(&mut self, lost: &LostLease, now: i64) -> u32 {
        let Some(lease) = &self.lease else { return 0 };
        let since = |at: i64| at >= lease.acquired_at;
        let progress = self.progress.as_ref().filter(|progress| since(progress.at)).map(|progress| {
            let Progress { pct, message, at, .. } = progress;
            (*at, if message.is_empty() { format!("{pct} %") } else { format!("{pct} %: {message}") })
        });
        let said = lost.last.clone().filter(|(at, _)| since(*at)).into_iter().chain(progress).max_by_key(|(at, _)| *at);
        let silent = said.is_none();
        let words = LastWords {
            attempt: lease.attempt,
            worker_id: lease.worker_id.clone(),
            instance_id: lease.instance_id.clone(),
            acquired_at: lease.acquired_at,
            lost_at: now,
            said: shortened(said.map(|(_, said)| said).unwrap_or_default()),
            ..Default::default()
        };
        let lost = self.lost.get_or_insert_default();
        lost.last_words.push(words);
        let surplus = lost.last_words.len().saturating_sub(limits::LAST_WORDS_KEPT);
        lost.last_words.drain(..surplus);
        lost.idle = if silent { lost.idle.saturating_add(1) } else { 0 };
        lost.idle
    }

    /// A holder ended its own lease, so the row of leases lost without a sign of work ends here.
    pub(super) fn holder_spoke(&mut self) {
        if let Some(lost) = &mut self.lost {
            lost.idle = 0;
        }
    }
}

/// How long the next claim waits after so many leases that were lost in a row without a sign of work.
fn reclaim_backoff_ms(idle: u32) -> Option<i64> {
    let further = idle.checked_sub(limits::IDLE_RECLAIMS_BACKOFF_FROM)?;
    let doubled = limits::RECLAIM_BACKOFF_MS.checked_shl(further.min(32)).unwrap_or(limits::RECLAIM_BACKOFF_MAX_MS);
    Some(doubled.min(limits::RECLAIM_BACKOFF_MAX_MS))
}

/// The beginning of a text, cut between characters.
fn shortened(mut text: String) -> String {
    if text.len() > limits::LAST_WORDS_MAX_BYTES {
        let end = (0..=limits::LAST_WORDS_MAX_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::execution::Claim;

    fn claimed(execution: &mut Execution, lease: u128, now: i64) -> LeaseFence {
        let claim = Claim {
            lease_id: LeaseId(Uuid::from_u128(lease)),
            worker_id: "w".into(),
            instance_id: "w-1".into(),
            ttl_ms: 1_000,
            build_id: String::new(),
            slot: None,
        };
        execution.claim(&claim, now, &mut Effects::default()).unwrap().fence
    }

    fn new() -> Execution {
        Execution { namespace: "n".into(), kind: "k".into(), ..Default::default() }
    }

    /// Loses a lease and says when the next claim may come.
    fn lost(execution: &mut Execution, lost: &LostLease, now: i64) -> i64 {
        execution.expire_lease(lost, now, &mut Effects::default()).unwrap();
        execution.check().unwrap();
        if execution.is_eligible() { now } else { execution.not_before }
    }

    #[test]
    fn from_the_third_silent_loss_on_each_claim_waits_twice_as_long_up_to_a_minute() {
        let mut execution = new();
        let (mut now, mut waits) = (1_000, Vec::new());
        for lease in 1..=11 {
            claimed(&mut execution, lease, now);
            let next = lost(&mut execution, &LostLease::default(), now);
            waits.push(next - now);
            now = next;
            execution.fire(now, 0, &mut Effects::default());
            assert!(execution.is_eligible());
        }
        assert_eq!(waits, [0, 0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]);
    }

    #[test]
    fn a_sign_of_work_or_a_holder_that_ends_its_lease_begins_the_row_anew() {
        let mut execution = new();
        for lease in 1..=2 {
            claimed(&mut execution, lease, 10);
            lost(&mut execution, &LostLease::default(), 20);
        }
        claimed(&mut execution, 3, 30);
        let worked = LostLease { last: Some((35, "step fetch completed".into())) };
        assert_eq!(lost(&mut execution, &worked, 40), 40);
        assert_eq!(execution.idle_reclaims(), 0);
        for lease in 4..=5 {
            claimed(&mut execution, lease, 50);
            let old = LostLease { last: Some((35, "step fetch completed".into())) };
            lost(&mut execution, &old, 60);
        }
        assert_eq!(execution.idle_reclaims(), 2, "what an earlier lease recorded is no sign of this one");
        let fence = claimed(&mut execution, 6, 70);
        execution.delay(&fence, 70, 70, &mut Effects::default()).unwrap();
        assert_eq!(execution.idle_reclaims(), 0);
    }

    #[test]
    fn a_revoke_never_makes_a_claim_wait() {
        let mut execution = new();
        for lease in 1..=9 {
            claimed(&mut execution, lease, 10);
            execution.revoke_lease(None, 20, &mut Effects::default()).unwrap();
            execution.check().unwrap();
            assert!(execution.is_eligible());
        }
    }

    #[test]
    fn one_that_fails_for_its_lost_leases_says_what_its_workers_last_said() {
        let mut execution = new();
        Arc::make_mut(&mut execution.policy).max_reclaim_count = 1;
        let fence = claimed(&mut execution, 1, 10);
        execution.report_progress(&fence, 40, "loading the model", 11).unwrap();
        lost(&mut execution, &LostLease::default(), 20);
        claimed(&mut execution, 2, 30);
        lost(&mut execution, &LostLease::default(), 40);
        assert!(execution.is_terminal());
        let failure = execution.failure.clone().unwrap();
        assert_eq!(failure.category, "max_reclaims_exceeded");
        assert_eq!(failure.reason, "max_reclaims_exceeded: 2 leases were lost; w-1 last said: 40 %: loading the model");
        let said: Vec<&str> = execution.last_words().iter().map(|words| words.said.as_str()).collect();
        assert_eq!(said, ["40 %: loading the model", ""]);
    }

    #[test]
    fn last_words_are_few_and_short() {
        let mut execution = new();
        for (lease, now) in (1..=9).zip((1_000..).step_by(1_000)) {
            claimed(&mut execution, lease, now);
            lost(&mut execution, &LostLease { last: Some((now + 5, "ä".repeat(1_000))) }, now + 10);
        }
        assert_eq!(execution.last_words().len(), limits::LAST_WORDS_KEPT);
        assert!(execution.last_words().iter().all(|words| words.said.len() <= limits::LAST_WORDS_MAX_BYTES));
    }
}
