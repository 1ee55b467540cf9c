//! The holds of an execution: a set of reasons that keep it from running. The execution is eligible when the set is
//! empty. Of several holds the strongest is shown, in the order of declaration below.

use serde::{Deserialize, Serialize};

use super::Execution;
use crate::error::{Code, Error, Result};
use crate::event::Effects;
use crate::gate::Gate;
use crate::id::ExecutionId;
use crate::index;
use crate::join::{JoinDecision, JoinPolicy, JoinState};
use crate::key::IndexName;
use crate::lease::LeaseFence;
use crate::limits;
use crate::partition::digest16;
use crate::planted::{Bug, planted};
use crate::state::{AttemptState, BlockingReason, EligibilityState, LifecyclePhase};

/// One reason not to run, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hold {
    /// An operator (or the cancellation of its flow) stopped it.
    Operator,
    /// Upstreams have not ended as its join wants, or its children have not ended.
    Dependencies,
    /// A delay, a backoff or a resume delay.
    Time,
    /// A budget refused it.
    Budget,
    /// Its quota refused it.
    Quota,
    /// Its journal is being copied from the execution that it was forked from.
    Copy,
}

/// A set of holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Holds(u8);

impl Holds {
    /// Adds a hold.
    pub fn set(&mut self, hold: Hold) {
        self.0 |= 1 << hold as u8;
    }

    /// Removes a hold.
    pub fn clear(&mut self, hold: Hold) {
        self.0 &= !(1 << hold as u8);
    }

    /// Whether it is in the set.
    pub fn has(self, hold: Hold) -> bool {
        self.0 & (1 << hold as u8) != 0
    }

    /// Whether there is no hold.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether there is a hold other than the operator's, which alone may outlast a lease.
    pub fn any_but_operator(self) -> bool {
        self.0 & !(1 << Hold::Operator as u8) != 0
    }

    /// The strongest hold.
    pub fn strongest(self) -> Option<Hold> {
        [Hold::Operator, Hold::Copy, Hold::Dependencies, Hold::Time, Hold::Budget, Hold::Quota]
            .into_iter()
            .find(|hold| self.has(*hold))
    }
}

impl Execution {
    /// Derives the eligibility of a runnable execution, and the reason that is shown, from its holds.
    pub(crate) fn settle(&mut self) {
        if self.state.lifecycle_phase != LifecyclePhase::Runnable {
            return;
        }
        let (eligibility, reason) = match self.holds.strongest() {
            None => (EligibilityState::EligibleNow, BlockingReason::WaitingForWorker),
            Some(Hold::Operator | Hold::Copy) => (EligibilityState::BlockedByOperator, self.operator_reason()),
            Some(Hold::Dependencies) => (EligibilityState::BlockedByDependencies, BlockingReason::WaitingForChildren),
            Some(Hold::Time) => (EligibilityState::NotEligibleUntilTime, self.time_reason),
            Some(Hold::Budget) => (EligibilityState::BlockedByBudget, self.budget_reason()),
            Some(Hold::Quota) => (EligibilityState::BlockedByQuota, BlockingReason::WaitingForQuota),
        };
        if !self.holds.is_empty() {
            self.end_grant();
        }
        self.state.eligibility_state = eligibility;
        self.state.blocking_reason = reason;
    }

    /// Whether an operator or the cancellation of its flow paused it; the latter is shown until the execution is
    /// released.
    fn operator_reason(&self) -> BlockingReason {
        match self.state.blocking_reason {
            BlockingReason::PausedByFlowCancel => BlockingReason::PausedByFlowCancel,
            _ => BlockingReason::PausedByOperator,
        }
    }

    /// A budget that suspends what it refuses says so until the execution is released.
    fn budget_reason(&self) -> BlockingReason {
        match self.state.blocking_reason {
            BlockingReason::PausedByPolicy => BlockingReason::PausedByPolicy,
            _ => BlockingReason::WaitingForBudget,
        }
    }

    /// The first layout kept only the strongest hold, as the eligibility it leads to.
    pub(super) fn derive_holds(&mut self) {
        match self.state.eligibility_state {
            EligibilityState::BlockedByOperator => self.holds.set(Hold::Operator),
            EligibilityState::BlockedByDependencies => self.holds.set(Hold::Dependencies),
            EligibilityState::NotEligibleUntilTime => self.holds.set(Hold::Time),
            EligibilityState::BlockedByBudget => self.holds.set(Hold::Budget),
            EligibilityState::BlockedByQuota => self.holds.set(Hold::Quota),
            _ => {}
        }
    }

    /// Drops every hold but the operator's, because an execution that is not runnable has no others.
    pub(crate) fn drop_holds(&mut self) {
        for hold in [Hold::Dependencies, Hold::Time, Hold::Budget, Hold::Quota, Hold::Copy] {
            self.holds.clear(hold);
        }
        self.not_before = 0;
        self.time_reason = BlockingReason::default();
        self.forget_gate();
        self.blocking_detail.clear();
    }

    pub(crate) fn hold_until(&mut self, until: i64, reason: BlockingReason, now: i64) {
        if until > now {
            self.not_before = until;
            self.time_reason = reason;
            self.holds.set(Hold::Time);
        }
    }

    /// Ends a delay that its holder asked for, before its time; says whether there was one.
    pub fn end_delay(&mut self, now: i64) -> bool {
        let delayed = self.holds.has(Hold::Time) && self.time_reason == BlockingReason::WaitingForDelay;
        if !delayed || self.state.lifecycle_phase != LifecyclePhase::Runnable {
            return false;
        }
        self.mark_updated(now);
        self.holds.clear(Hold::Time);
        self.not_before = 0;
        self.settle();
        true
    }

    /// An operator stops it. A running attempt goes on; nothing new starts.
    pub fn hold(&mut self, detail: &str, now: i64) -> Result<()> {
        self.refuse_terminal()?;
        self.mark_updated(now);
        self.holds.set(Hold::Operator);
        if self.state.lifecycle_phase == LifecyclePhase::Runnable {
            self.blocking_detail = detail.to_owned();
        }
        self.settle();
        Ok(())
    }

    /// Its flow was cancelled with a policy that leaves members as they are: it must not start any more. Returns
    /// whether this changed anything.
    pub fn pause_with_flow(&mut self, reason: &str, now: i64) -> bool {
        let waits = self.state.lifecycle_phase == LifecyclePhase::Runnable && !self.has_started();
        if !waits || self.holds.has(Hold::Operator) {
            return false;
        }
        self.mark_updated(now);
        self.holds.set(Hold::Operator);
        self.blocking_detail = reason.to_owned();
        self.state.blocking_reason = BlockingReason::PausedByFlowCancel;
        self.settle();
        true
    }

    /// The operator ends the hold.
    pub fn release(&mut self, now: i64) -> Result<()> {
        self.refuse_terminal()?;
        self.mark_updated(now);
        if self.holds.has(Hold::Operator) && self.state.lifecycle_phase == LifecyclePhase::Runnable {
            // The operator's detail has overwritten that of the gate, but the name of the gate is still known.
            self.blocking_detail = match Gate::parse(&self.parked_on) {
                Some(Gate::Budget(name)) => format!("budget {name}"),
                Some(Gate::Quota(name)) => format!("quota {name}"),
                Some(Gate::Key { key, .. }) => format!("concurrency key {key}"),
                None => String::new(),
            };
        }
        self.holds.clear(Hold::Operator);
        self.settle();
        Ok(())
    }

    /// A gate refused it: it leaves the queue until that gate opens or `recheck_at`.
    pub fn park(&mut self, gate: &str, detail: &str, recheck_at: i64, now: i64) -> Result<()> {
        let hold = if Gate::budget_of(gate).is_some() { Hold::Budget } else { Hold::Quota };
        if !self.is_eligible() {
            return Err(Error::of(Code::ExecutionNotEligible));
        }
        let now = self.mark_updated(now);
        self.holds.set(hold);
        self.parked_on = gate.to_owned();
        self.parked_by_key = !self.fair_key().is_empty();
        self.blocking_detail = detail.to_owned();
        self.recheck_at = recheck_at.clamp(now, now + limits::BLOCKED_RECHECK_MS);
        self.settle();
        Ok(())
    }

    /// A budget whose action is `suspend` refused it. Like [`Execution::park`], but people are shown that a policy
    /// paused it.
    pub fn pause_by_policy(&mut self, gate: &str, detail: &str, recheck_at: i64, now: i64) -> Result<()> {
        self.park(gate, detail, recheck_at, now)?;
        self.state.blocking_reason = BlockingReason::PausedByPolicy;
        Ok(())
    }

    /// Its gate may have opened: back to the queue, to be admitted or refused anew.
    pub fn unpark(&mut self, now: i64, effects: &mut Effects) {
        let now = self.mark_updated(now);
        if self.asks_budget() {
            return self.budget_answered(now, effects);
        }
        self.holds.clear(Hold::Budget);
        self.holds.clear(Hold::Quota);
        self.forget_gate();
        if !self.holds.has(Hold::Operator) {
            self.blocking_detail.clear();
        }
        self.settle();
    }

    /// No gate keeps it out.
    pub(super) fn forget_gate(&mut self) {
        self.parked_on.clear();
        self.parked_by_key = false;
        self.recheck_at = 0;
    }

    /// Where it stands while a gate keeps it out.
    pub(super) fn blocked_index(&self) -> IndexName {
        match self.parked_by_key {
            true => index::blocked_by_key(&self.namespace, &self.parked_on, self.fair_key()),
            false => index::blocked(&self.namespace, &self.parked_on),
        }
    }

    /// Whether it may be claimed or granted now.
    pub fn is_eligible(&self) -> bool {
        let free = self.holds.is_empty() || planted(Bug::HoldsIgnored);
        self.state.lifecycle_phase == LifecyclePhase::Runnable && free && self.grant.is_none()
    }

    /// Whether any attempt was ever started.
    pub fn has_started(&self) -> bool {
        self.attempt.is_some()
    }

    /// A new dependency of an execution that has not started.
    pub fn add_dependency(&mut self, policy: Option<&JoinPolicy>, now: i64) -> Result<()> {
        let waits = self.state.lifecycle_phase == LifecyclePhase::Runnable
            && self.state.attempt_state == AttemptState::PendingFirstAttempt;
        if !waits {
            return Err(Error::of(Code::DependencyNotApplicable).with("public_state", self.public_state()));
        }
        let mut join = self.join.clone().unwrap_or_default();
        join.add_edge(policy)?;
        self.mark_updated(now);
        self.join = Some(join);
        self.hold_for_join();
        // A gate is asked again once the dependencies are met, because its refusal may be long out of date by then.
        self.holds.clear(Hold::Budget);
        self.holds.clear(Hold::Quota);
        self.forget_gate();
        self.settle();
        Ok(())
    }

    /// Whether its flow may still add edges that lead to it.
    pub fn expect_further_edges(&mut self, expected: bool) {
        if let Some(join) = &mut self.join {
            join.more_may_come = expected;
        }
        self.hold_for_join();
        self.settle();
    }

    /// Whether it waits for more successes than there are edges that lead to it.
    pub fn lacks_edges(&self) -> bool {
        !self.is_terminal() && !self.has_started() && self.join.as_ref().is_some_and(|join| join.lacks_edges())
    }

    /// Holds it for its upstreams if and only if its join is not satisfied. An edge may come after the join was
    /// decided, so the hold follows from the join's counters and not from the change that was just made. An attempt
    /// that waits for its children has the same hold for another reason, and is left alone here.
    pub(crate) fn hold_for_join(&mut self) {
        let Some(join) = &self.join else { return };
        if self.state.attempt_state == AttemptState::AttemptInterrupted {
            return;
        }
        if join.state() == JoinState::Satisfied && !planted(Bug::LateEdgeHolds) {
            self.holds.clear(Hold::Dependencies);
        } else {
            self.holds.set(Hold::Dependencies);
        }
    }

    /// One of its upstreams ended. The caller acts on the decision: a satisfied join lets it run here, an impossible
    /// one must be followed by [`Execution::skip`].
    pub fn upstream_ended(&mut self, success: bool, now: i64) -> Result<JoinDecision> {
        let Some(join) = self.join.as_mut() else {
            return Ok(JoinDecision::AlreadyDecided);
        };
        let decision = join.resolve(success)?;
        self.mark_updated(now);
        if self.state.lifecycle_phase == LifecyclePhase::Runnable {
            self.hold_for_join();
            let early = planted(Bug::ChildStartsEarly) && success;
            if early || matches!(decision, JoinDecision::Satisfied { .. }) {
                self.holds.clear(Hold::Dependencies);
            }
            self.settle();
        }
        Ok(decision)
    }

    /// The id of the child that its holder names by a key. It depends on nothing but the key and on how often the
    /// execution was replayed and has continued as new since, so that every lease finds the child that an earlier lease of
    /// its generation spawned. An answer that drops entries of the journal begins no generation in this sense: the
    /// children live on.
    pub fn child_id(&self, key: &str) -> ExecutionId {
        let (replays, continuations) = (self.replays.to_be_bytes(), self.continuations.to_be_bytes());
        let mut parts: Vec<&[u8]> = vec![b"child", self.id.uuid.as_bytes(), &replays, key.as_bytes()];
        // Ids that earlier versions gave out have no such part, and must be found again.
        if self.continuations > 0 {
            parts.push(&continuations);
        }
        let uuid = uuid::Builder::from_custom_bytes(digest16(&parts)).into_uuid();
        ExecutionId { partition: self.id.partition, uuid }
    }

    /// The lease holder spawned a child that it may wait for.
    pub fn spawn_child(&mut self, fence: &LeaseFence, now: i64) -> Result<()> {
        self.check_fence(fence)?;
        self.mark_updated(now);
        self.child_wait.spawn();
        Ok(())
    }

    /// One of the children that it spawned has ended, successfully or not.
    pub fn child_ended(&mut self, now: i64) -> Result<()> {
        self.mark_updated(now);
        let last = self.child_wait.resolve()?;
        if last && self.waits.is_empty() && self.state.attempt_state == AttemptState::AttemptInterrupted {
            self.holds.clear(Hold::Dependencies);
            self.settle();
        }
        Ok(())
    }
}
