//! Timers of an execution. Its earliest instant is one entry in the `due` index.

use super::{Execution, Hold};
use crate::error::{Code, Error, Result};
use crate::event::Effects;
use crate::id::LeaseId;
use crate::limits;
use crate::planted::{Bug, planted};
use crate::schedule::ScheduledRun;
use crate::state::LifecyclePhase;

/// The effect of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fired {
    /// Nothing is due yet.
    Nothing,
    /// The document changed.
    Changed,
    /// Its retention is over: it may be removed with everything it has.
    Remove,
}

impl Execution {
    /// When its attempt has used up its time, while it runs.
    pub fn attempt_times_out_at(&self) -> Option<i64> {
        let timeout_ms = self.policy.timeout.attempt_timeout_ms?;
        let lease = self.lease.as_ref().filter(|lease| lease.ended_at == 0)?;
        let used_ms = self.attempt.as_ref().map_or(0, |attempt| attempt.used_ms);
        Some(lease.acquired_at + (timeout_ms - used_ms).max(0))
    }

    /// When it may be removed. Members of a flow go with their flow.
    pub fn removable_at(&self) -> Option<i64> {
        let removable = self.is_terminal() && self.flow.is_none() && !self.owes_anything();
        let retention_ms = match self.removal {
            // A removal that has begun goes on at once.
            Some(_) => 0,
            None => self.policy.retention_ms.unwrap_or(limits::RETENTION_DEFAULT_MS),
        };
        removable.then(|| self.ended_at.saturating_add(retention_ms))
    }

    /// Begins the removal before the retention is over. A removal is never undone.
    pub fn begin_removal(&mut self, now: i64) -> Result<()> {
        if !self.is_terminal() {
            return Err(Error::of(Code::ExecutionNotTerminal).with("public_state", self.public_state()));
        }
        if let Some(flow) = &self.flow {
            let detail = "the execution is a member of a flow and goes with it; remove the flow";
            return Err(Error::new(Code::InUse, detail).with("flow_id", flow));
        }
        self.mark_updated(now);
        self.removal.get_or_insert_default();
        Ok(())
    }

    /// Whether an effect elsewhere is still to be brought about.
    pub fn owes_anything(&self) -> bool {
        self.owes_resolution || !self.owed_slots.is_empty() || self.owes_journals() || self.owes_schedule()
    }

    /// Whether work on its journals is still to be done in the background.
    pub fn owes_journals(&self) -> bool {
        !self.dropped_generations().is_empty() || self.unfinished_fork().is_some()
    }

    /// The run of a schedule that it is, or was created in as a member of a flow.
    pub fn scheduled_run(&self) -> Option<&ScheduledRun> {
        self.schedule.as_deref().or(self.flow_schedule.as_deref())
    }

    /// Whether its end is still to be told to its schedule.
    pub fn owes_schedule(&self) -> bool {
        self.schedule.as_ref().is_some_and(|run| run.owes_end)
    }

    /// The next instant at which something happens by itself, apart from the end of its lease.
    pub fn next_timer(&self) -> Option<i64> {
        if self.is_terminal() {
            return self.removable_at();
        }
        let not_before = self.holds.has(Hold::Time).then_some(self.not_before);
        let recheck = (!self.parked_on.is_empty()).then_some(self.recheck_at);
        let grant = self.grant.as_ref().map(|grant| grant.expires_at);
        let deadline = (self.deadline_at != 0).then_some(self.deadline_at);
        let suspension = self.suspension.as_ref().and_then(|suspension| suspension.next_timer());
        [not_before, recheck, grant, deadline, suspension, self.waits_until(), self.attempt_times_out_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Brings about everything that is due. `random` decides the jitter of a retry's backoff.
    pub fn fire(&mut self, now: i64, random: u32, effects: &mut Effects) -> Fired {
        let now = if planted(Bug::TimerEarly) { now + 500 } else { now };
        if self.next_timer().is_none_or(|at| at > now) {
            return Fired::Nothing;
        }
        if self.is_terminal() {
            return Fired::Remove;
        }
        // The document's own time may be ahead of this instant, if a clock was set back since. That makes nothing due,
        // so the comparison uses the instant itself.
        let (due, now) = (now, self.mark_updated(now));
        if self.deadline_at != 0 && self.deadline_at <= due {
            self.expire("the deadline passed", now, effects);
            return Fired::Changed;
        }
        if self.attempt_times_out_at().is_some_and(|at| at <= due) {
            self.attempt_timed_out(random, now, effects);
            return Fired::Changed;
        }
        if self.asks_budget() && self.recheck_at <= due {
            self.unpark(now, effects);
            return Fired::Changed;
        }
        if self.state.lifecycle_phase == LifecyclePhase::Suspended {
            self.suspension_timed_out(now, effects);
            return Fired::Changed;
        }
        if self.waits_until().is_some_and(|at| at <= due) {
            self.wake_by_time(now, effects);
            return Fired::Changed;
        }
        if self.holds.has(Hold::Time) && self.not_before <= due {
            self.holds.clear(Hold::Time);
            self.not_before = 0;
        }
        if !self.parked_on.is_empty() && self.recheck_at <= due {
            self.unpark(now, effects);
        }
        if let Some(lapsed) = self.lapsed_grant(due) {
            // The grant exists, as the line above found it, so this cannot fail.
            let _ = self.drop_grant(lapsed, now);
        }
        self.settle();
        Fired::Changed
    }

    fn lapsed_grant(&self, now: i64) -> Option<LeaseId> {
        self.grant.as_ref().filter(|grant| grant.expires_at <= now).map(|grant| grant.id)
    }
}
