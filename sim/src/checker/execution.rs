//! The changes of an execution that one commit may bring.

use ff_core::encoding::Document;
use ff_core::execution::{Execution, Hold, ResumedBy};
use ff_core::lease::{AttemptKind, ClaimKind, LeaseEnd, LeaseFence};
use ff_core::subscription::WEBHOOK_KIND;
use ff_core::{
    AttemptIndex, AttemptState, BlockingReason, ExecutionId, Key, LeaseEpoch, LeaseId, LifecyclePhase, SingleUse,
    TerminalOutcome,
};
use ff_store::memory::RawDocument;

use super::{Checker, Commit, Seen, fence_key};
use crate::invariant::Invariant;

/// An execution before and after a commit.
struct Change<'a> {
    id: ExecutionId,
    at: i64,
    before: &'a Execution,
    until_before: i64,
    after: &'a Execution,
    until_after: i64,
}

impl Change<'_> {
    fn was(&self, phase: LifecyclePhase) -> bool {
        self.before.state.lifecycle_phase == phase
    }

    fn is(&self, phase: LifecyclePhase) -> bool {
        self.after.state.lifecycle_phase == phase
    }

    fn claimed(&self) -> bool {
        !self.was(LifecyclePhase::Active) && self.is(LifecyclePhase::Active)
    }

    fn replayed(&self) -> bool {
        self.was(LifecyclePhase::Terminal) && !self.is(LifecyclePhase::Terminal)
    }

    /// How its lease ended in this commit.
    fn lease_end(&self) -> Option<LeaseEnd> {
        let ended = self.was(LifecyclePhase::Active) && !self.is(LifecyclePhase::Active);
        ended.then(|| self.after.lease.as_ref().map(|lease| lease.end)).flatten()
    }
}

impl Checker {
    /// An execution was written, or its lease was moved, or it is gone.
    pub(super) fn execution_changed(&mut self, commit: Commit<'_>, key: &Key, after: Option<&RawDocument>) {
        let place = (commit.partition, key.clone());
        let before = self.facts.executions.get(&place).cloned();
        let Some(raw) = after else {
            self.execution_removed(commit.at, before.as_ref());
            self.meeting.gone(&place);
            self.facts.executions.remove(&place);
            self.facts.removed.insert(place);
            return;
        };
        let Ok(document) = Execution::decode(&raw.body) else { return };
        match &before {
            None => {
                self.execution_created(&document);
                self.dating.created(commit, document.id);
                self.check_run(document.schedule.as_ref().map(|run| run.schedule), commit.partition, key);
                self.check_delivery(&document);
                self.meeting.written(&place, None, &document, commit.elapsed_ms);
            }
            Some(before) => {
                let change = Change {
                    id: document.id,
                    at: commit.at,
                    before: &before.document,
                    until_before: before.lease_until,
                    after: &document,
                    until_after: raw.lease_until,
                };
                self.check_lease(&change);
                self.check_timers(&change);
                self.check_terminal(&change);
                self.check_attempts(&change);
                self.check_suspension(&change);
                self.check_resumption(&change);
                self.check_commands(&document, change.lease_end());
                let back = before.document.removal.is_some() && document.removal.is_none();
                self.expect(!back, Invariant::RemovalGoesOn, || {
                    format!("{} came back while it was being removed", document.id)
                });
                // What was granted before was chosen then, by place or by name.
                if change.claimed() && change.before.grant.is_none() {
                    self.check_order(&document, commit.elapsed_ms);
                }
                self.meeting.written(&place, Some(&before.document), &document, commit.elapsed_ms);
                self.facts.grants.extend(document.grant.as_ref().map(|grant| (document.id, grant.id)));
            }
        }
        self.check_single(&document);
        self.facts.executions.insert(place, Seen { document, lease_until: raw.lease_until });
    }

    fn execution_created(&mut self, document: &Execution) {
        self.created += 1;
        let fresh = document.attempt.is_none() && document.epoch.0 == 0 && document.lease.is_none();
        self.expect(fresh, Invariant::AttemptsNumbered, || format!("{} was created with a past", document.id));
        // A fork has the tags of its origin.
        let Some(key) = document.tags.get(KEY_TAG).filter(|_| document.fork().is_none()) else { return };
        let first = *self.facts.keys.entry(key.clone()).or_insert(document.id);
        // A key ends with its execution, from the commit on that begins to remove it; the next submission is a new one.
        if first != document.id && self.is_going_or_gone(&first) {
            self.facts.keys.insert(key.clone(), document.id);
            return;
        }
        self.expect(first == document.id, Invariant::OneEffect, || {
            format!("{first} and {} were both submitted as {key}", document.id)
        });
    }

    fn is_going_or_gone(&self, id: &ExecutionId) -> bool {
        let place = (id.partition(), Execution::key_of(id));
        match self.facts.executions.get(&place) {
            Some(seen) => seen.document.removal.is_some(),
            None => self.facts.removed.contains(&place),
        }
    }

    /// A singleton's key stands for one execution.
    fn check_single(&mut self, document: &Execution) {
        let Some(key) = document.single_key(SingleUse::Singleton) else { return };
        if !document.holds_key(SingleUse::Singleton, key) {
            return;
        }
        let other = self.facts.executions.values().map(|seen| &seen.document).find(|other| {
            let same = other.id != document.id && other.namespace == document.namespace;
            same && other.holds_key(SingleUse::Singleton, key)
        });
        let other = other.map(|other| other.id);
        self.expect(other.is_none(), Invariant::OneEffect, || {
            format!("{} and {other:?} stand for the singleton key {key}", document.id)
        });
    }

    fn execution_removed(&mut self, at: i64, before: Option<&Seen>) {
        let Some(Seen { document, .. }) = before else { return };
        let id = document.id;
        // Members go with their flow; everything else goes when its own time has come.
        let over = document.removable_at().is_some_and(|removable| removable <= at) || document.flow.is_some();
        self.expect(document.is_terminal() && over, Invariant::NothingLost, || {
            format!("{id} was removed as {:?}", document.public_state())
        });
        // What is made again under the same id knows nothing of this.
        self.facts.steps.retain(|(of, _), _| *of != id);
        self.facts.started.remove(&id);
        self.facts.resumptions.remove(&id);
    }

    /// Whether an execution is being removed or was removed once, even if there is another by now under its id.
    pub(super) fn is_or_was_gone(&self, id: ExecutionId) -> bool {
        let place = (id.partition(), Execution::key_of(&id));
        let there = self.facts.executions.get(&place).filter(|seen| seen.document.removal.is_none());
        there.is_none() || self.facts.removed.contains(&place)
    }

    fn check_lease(&mut self, change: &Change<'_>) {
        let (id, at) = (change.id, change.at);
        let (before, after) = (change.before, change.after);
        self.expect(after.epoch >= before.epoch, Invariant::OneLiveLease, || {
            format!("{id}: epoch went from {} to {}", before.epoch, after.epoch)
        });
        if change.was(LifecyclePhase::Active) && change.is(LifecyclePhase::Active) {
            let held = |execution: &Execution| execution.lease.as_ref().map(|lease| (lease.id, lease.epoch));
            self.expect(held(before) == held(after), Invariant::OneLiveLease, || {
                format!("{id}: {:?} was replaced by {:?}", before.lease, after.lease)
            });
            let moved = change.until_before != change.until_after;
            self.expect(!moved || change.until_before > at, Invariant::OneLiveLease, || {
                format!("{id}: a lease that ran out at {} was renewed at {at}", change.until_before)
            });
        }
        if change.claimed() {
            self.lease_began(change);
        }
        if let Some(end) = change.lease_end() {
            self.lease_ended(change, end);
        }
    }

    fn lease_began(&mut self, change: &Change<'_>) {
        let Some(lease) = &change.after.lease else { return };
        let id = change.id;
        self.expect(change.before.holds.is_empty(), Invariant::AdmissionHolds, || {
            format!("{id} was claimed while {:?} held it back", change.before.holds.strongest())
        });
        self.check_start(change.before);
        self.facts.started.insert(id);
        self.check_admission(change.after, change.at);
        let granted = change.before.grant.as_ref().map(|grant| grant.id);
        let from_grant = self.facts.grants.contains(&(id, lease.id));
        self.expect(!from_grant || granted == Some(lease.id), Invariant::OneLiveLease, || {
            format!("{id}: grant {} was used again", lease.id)
        });
        self.expect(granted.is_none_or(|granted| granted == lease.id), Invariant::OneLiveLease, || {
            format!("{id} was claimed although it is granted to somebody else")
        });
        self.expect(lease.epoch == change.before.epoch.next(), Invariant::OneLiveLease, || {
            format!("{id}: epoch {} follows {}", lease.epoch, change.before.epoch)
        });
        self.expect(change.until_after > change.at, Invariant::OneLiveLease, || {
            format!("{id}: a lease of epoch {} began without time", lease.epoch)
        });
        let known =
            self.fences.entry((id, lease.epoch.0, lease.id)).or_insert_with(|| lease.instance_id.clone()).clone();
        self.expect(known == lease.instance_id, Invariant::OneLiveLease, || {
            format!("{id}: epoch {} and lease {} were {known}'s before", lease.epoch, lease.id)
        });
    }

    fn lease_ended(&mut self, change: &Change<'_>, end: LeaseEnd) {
        let (id, at, until) = (change.id, change.at, change.until_before);
        let Some(lease) = &change.before.lease else { return };
        let fence = LeaseFence { attempt: lease.attempt, lease_id: lease.id, epoch: lease.epoch };
        let same = change.after.lease.as_ref().is_some_and(|after| after.id == lease.id && after.epoch == lease.epoch);
        self.expect(same, Invariant::OneLiveLease, || format!("{id}: {fence:?} ended as somebody else's lease"));
        match end {
            LeaseEnd::Expired => {
                self.expect(until <= at, Invariant::OneLiveLease, || {
                    format!("{id}: {fence:?} holds until {until} and was expired at {at}")
                });
                let promised = self.facts.promised.get(&(id, fence_key(&fence))).copied().unwrap_or(0);
                self.expect(promised <= at, Invariant::OneLiveLease, || {
                    format!("{id}: {fence:?} was promised until {promised} and was expired at {at}")
                });
            }
            LeaseEnd::Completed
            | LeaseEnd::Failed
            | LeaseEnd::Cancelled
            | LeaseEnd::Delayed
            | LeaseEnd::WaitingChildren
            | LeaseEnd::Suspended
            | LeaseEnd::Parked
            | LeaseEnd::Continued
            | LeaseEnd::LoopDetected
            | LeaseEnd::Returned => {
                self.expect(until > at, Invariant::OneLiveLease, || {
                    format!("{id}: {fence:?} ran out at {until} and its holder ended it as {end:?} at {at}")
                });
            }
            LeaseEnd::None
            | LeaseEnd::Revoked
            | LeaseEnd::ExecutionCancelled
            | LeaseEnd::DeadlinePassed
            | LeaseEnd::AttemptTimedOut
            | LeaseEnd::Unknown(_) => {}
        }
        // A first lease that its worker never got is as if it had never been.
        let first = change.before.attempt.as_ref().is_some_and(|attempt| attempt.index.0 == 0);
        if end == LeaseEnd::Returned && first && change.after.attempt.is_none() {
            self.facts.started.remove(&id);
        }
        self.facts.endings.insert((id, fence_key(&fence)), end);
    }

    fn check_timers(&mut self, change: &Change<'_>) {
        let (id, at, before, after) = (change.id, change.at, change.before, change.after);
        let freed = before.holds.has(Hold::Time) && !after.holds.has(Hold::Time) && !after.is_terminal();
        // A webhook that waits because its subscription is paused is let go when that is resumed.
        let resumed = before.delivery.is_some() && before.time_reason == BlockingReason::WaitingForDelay;
        self.expect(!freed || resumed || before.not_before <= at, Invariant::TimersKeepTime, || {
            format!("{id} waited until {} and was let go at {at}", before.not_before)
        });
        let expired = !before.is_terminal() && after.state.terminal_outcome == TerminalOutcome::Expired;
        let suspended = before.suspension.as_ref().and_then(|suspension| suspension.timeout_at);
        let deadline = Some(before.deadline_at).filter(|deadline| *deadline != 0);
        let early = expired && [suspended, deadline].into_iter().flatten().all(|instant| instant > at);
        self.expect(!early, Invariant::TimersKeepTime, || format!("{id} expired early, at {at}"));
        let timed_out = change.lease_end() == Some(LeaseEnd::AttemptTimedOut);
        let late = before.attempt_times_out_at().is_some_and(|instant| instant <= at);
        self.expect(!timed_out || late, Invariant::TimersKeepTime, || format!("{id}'s attempt timed out early"));
    }

    fn check_terminal(&mut self, change: &Change<'_>) {
        let (id, before, after) = (change.id, change.before, change.after);
        if change.replayed() {
            self.expect(after.replays == before.replays + 1, Invariant::TerminalOnce, || {
                format!("{id} left {:?} without a replay", before.public_state())
            });
        }
        if before.is_terminal() && after.is_terminal() {
            let same = before.state.terminal_outcome == after.state.terminal_outcome
                && before.ended_at == after.ended_at
                && before.result == after.result;
            self.expect(same, Invariant::TerminalOnce, || {
                format!("{id} ended as {:?} and then as {:?}", before.public_state(), after.public_state())
            });
        }
        let completed = change.lease_end() == Some(LeaseEnd::Completed);
        // The engine itself carries webhooks, and says of them what the receiver answered.
        if before.result != after.result && after.kind != WEBHOOK_KIND {
            let holder = before.lease.as_ref().map(|lease| result_of(lease.id, lease.epoch)).unwrap_or_default();
            let written = after.result.as_ref().map(|result| result.bytes.0.clone()).unwrap_or_default();
            self.expect(completed && written == holder.as_bytes(), Invariant::TerminalOnce, || {
                format!("{id}: the result {written:?} is not the one of the attempt that completed")
            });
        }
        let success = !before.is_terminal() && after.state.terminal_outcome == TerminalOutcome::Success;
        self.expect(!success || completed, Invariant::TerminalOnce, || format!("{id} succeeded without a holder"));
    }

    fn check_attempts(&mut self, change: &Change<'_>) {
        let (id, before, after) = (change.id, change.before, change.after);
        // Worked out here, not asked of the code under test.
        let next = match &before.attempt {
            None => AttemptIndex(0),
            Some(attempt) if attempt.ended_at == 0 => attempt.index,
            Some(attempt) => AttemptIndex(attempt.index.0 + 1),
        };
        if change.claimed() {
            let index = after.attempt.as_ref().map(|attempt| attempt.index);
            self.expect(index == Some(next), Invariant::AttemptsNumbered, || {
                format!("{id}: attempt {index:?} began where {next} was next")
            });
        } else {
            let index = |execution: &Execution| execution.attempt.as_ref().map(|attempt| attempt.index);
            // A first attempt that no worker received never was.
            let first = before.lease.as_ref().is_some_and(|lease| lease.kind == ClaimKind::Initial);
            let returned = first && change.lease_end() == Some(LeaseEnd::Returned);
            let expected = if returned { None } else { index(before) };
            self.expect(index(after) == expected, Invariant::AttemptsNumbered, || {
                format!("{id}: attempt {:?} became {:?} without a claim", index(before), index(after))
            });
        }
        let anew = change.replayed() || change.lease_end() == Some(LeaseEnd::Continued);
        let (retries, reclaims) = if anew { (0, 0) } else { (before.retries, before.reclaims) };
        let open = change.lease_end().is_some() && !after.is_terminal();
        let retry = open && after.state.attempt_state == AttemptState::PendingRetryAttempt;
        let returned = change.lease_end() == Some(LeaseEnd::Returned);
        let reclaim = open && after.state.attempt_state == AttemptState::PendingReclaimAttempt;
        let retries = retries + u32::from(retry && !returned);
        let reclaims = reclaims + u32::from(reclaim && !returned);
        self.expect((after.retries, after.reclaims) == (retries, reclaims), Invariant::AttemptsNumbered, || {
            let found = (after.retries, after.reclaims);
            format!("{id}: retries and reclaims are {found:?} where ({retries}, {reclaims}) happened")
        });
        let policy = &after.policy;
        let within = after.retries <= policy.retry.max_retries && after.reclaims <= policy.max_reclaim_count;
        self.expect(within, Invariant::AttemptsNumbered, || {
            let most = (policy.retry.max_retries, policy.max_reclaim_count);
            format!("{id}: {:?} retries and reclaims, the policy allows {most:?}", (after.retries, after.reclaims))
        });
        if change.claimed() && before.attempt.as_ref().is_none_or(|attempt| attempt.ended_at != 0) {
            let expected = match before.state.attempt_state {
                AttemptState::PendingRetryAttempt => AttemptKind::Retry,
                AttemptState::PendingReclaimAttempt => AttemptKind::Reclaim,
                AttemptState::PendingReplayAttempt => AttemptKind::Replay,
                _ => AttemptKind::Initial,
            };
            let kind = after.attempt.as_ref().map(|attempt| attempt.kind);
            self.expect(kind == Some(expected), Invariant::AttemptsNumbered, || {
                format!("{id}: an attempt of kind {kind:?} began where {expected:?} was due")
            });
        }
    }

    fn check_suspension(&mut self, change: &Change<'_>) {
        let id = change.id;
        if change.claimed() && change.before.state.attempt_state != AttemptState::PendingReplayAttempt {
            let kept = change.after.resume_signals == change.before.resume_signals
                && change.after.continuation == change.before.continuation;
            self.expect(kept, Invariant::SuspensionEndsOnce, || {
                format!("{id}: a claim lost what ended the suspension before it")
            });
        }
        let suspension = |execution: &Execution| execution.suspension.as_ref().map(|suspension| suspension.id);
        let (before, after) = (suspension(change.before), suspension(change.after));
        if before == after {
            return;
        }
        if let Some(ended) = before {
            self.expect(after.is_none(), Invariant::SuspensionEndsOnce, || {
                format!("{id}: suspension {ended} was replaced")
            });
            self.check_resume_signals(change.after);
            let first = self.facts.ended_suspensions.insert((id, ended));
            self.expect(first, Invariant::SuspensionEndsOnce, || format!("{id}: suspension {ended} ended twice"));
        }
        if let Some(begun) = after {
            let known = self.facts.ended_suspensions.contains(&(id, begun));
            self.expect(!known, Invariant::SuspensionEndsOnce, || format!("{id}: suspension {begun} came back"));
        }
    }
}

impl Checker {
    /// The signals that resumed an execution come with every claim until it parts from a worker again or ends.
    fn check_resumption(&mut self, change: &Change<'_>) {
        let (id, after) = (change.id, change.after);
        let ended = change.before.suspension.is_some() && after.suspension.is_none();
        if ended && !after.is_terminal() && after.resumed_by == ResumedBy::Signals {
            self.facts.resumptions.insert(id, after.resume_signals.clone());
        }
        // A holder whose condition was met before it could suspend keeps its lease, and has the signals at once.
        let kept = change.was(LifecyclePhase::Active) && change.is(LifecyclePhase::Active);
        if kept && change.before.resume_signals != after.resume_signals {
            self.facts.resumptions.insert(id, after.resume_signals.clone());
        }
        let parted = matches!(
            change.lease_end(),
            Some(
                LeaseEnd::Suspended
                    | LeaseEnd::Delayed
                    | LeaseEnd::WaitingChildren
                    | LeaseEnd::Parked
                    | LeaseEnd::Continued
                    | LeaseEnd::LoopDetected
            )
        );
        if parted || after.is_terminal() || change.replayed() {
            self.facts.resumptions.remove(&id);
        }
        if !change.claimed() {
            return;
        }
        let Some(expected) = self.facts.resumptions.get(&id).cloned() else { return };
        self.expect(after.resume_signals == expected, Invariant::ResumptionKept, || {
            format!("{id} was resumed by {expected:?} and is claimed with {:?}", after.resume_signals)
        });
    }
}

/// The tag that carries a submission's idempotency key.
pub(crate) const KEY_TAG: &str = "submission";

/// The result that a worker writes under a lease, so that the checkers know whose it is.
pub(crate) fn result_of(lease: LeaseId, epoch: LeaseEpoch) -> String {
    format!("\"by {lease} of epoch {epoch}\"")
}
