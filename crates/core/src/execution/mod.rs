//! The execution: one piece of work, from submission to its end. This module holds the document; its transitions
//! are in the modules below, by theme.
//!
//! * `asking`: waiting for a person's decision about a budget
//! * `build`: which build of the program may run it
//! * `claim`: taking it under a lease, grants, giving a lease back
//! * `creation`: a request for a new one, and what becomes of it
//! * `ending`: completing, failing, cancelling, parting from an attempt
//! * `entries`: its index entries
//! * `holds`: the set of reasons that keep it from running
//! * `journal`: generations of its journal, questions about it and their answers
//! * `looping`: steps that are taken for a loop
//! * `reclaim`: losing a lease, the wait before the next claim, and the last sign of work of the lost workers
//! * `sharing`: its turn in its lane, and the keys that it takes or stands for
//! * `suspend`: suspension and resumption
//! * `timer`: transitions that happen because time passes
//! * `waits`: parking until the first of several things happens

mod asking;
mod build;
mod claim;
mod creation;
mod ending;
mod entries;
mod holds;
mod journal;
mod looping;
mod reclaim;
mod sharing;
mod suspend;
mod timer;
mod waits;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::budget::Amounts;
use crate::capability::CapabilitySet;
use crate::document;
use crate::encoding::{Blob, Document};
use crate::error::{Code, Error, Result};
use crate::event::{Effects, Event, EventType};
use crate::gate::{self, Gate};
use crate::id::{ExecutionId, FlowId, LeaseEpoch, LeaseId, SignalId, SlotId};
use crate::index::{self, kind};
use crate::join::{ChildWait, Join};
use crate::key::{IndexName, Key};
use crate::lease::{Attempt, Grant, Lease, LeaseEnding, LeaseFence};
use crate::payload::Payload;
use crate::planted::{Bug, planted};
use crate::policy::Policy;
use crate::schedule::ScheduledRun;
use crate::sharing::{ConcurrencyLimit, Sharing};
use crate::state::{BlockingReason, LifecyclePhase, PublicState, StateVector};
use crate::subscription::Delivery;
use crate::suspension::Suspension;
use crate::{limits, text, vocabulary};

use reclaim::LostLeases;

pub use asking::AskBudget;
pub use claim::{Claim, ClaimedAttempt, ClaimedSlot};
pub use creation::NewExecution;
pub use ending::{CancelSource, Cancelled, FailOutcome, Failure, NewFailure};
pub use holds::{Hold, Holds};
pub use journal::{Base, Fork, JournalNotes, LateReport, Question, Segment, StepAnswer, StepRef};
pub use looping::{FoundLoop, find_loop};
pub use reclaim::{LastWords, LostLease};
pub use suspend::{Resumed, SuspendRequest, Suspended};
pub use timer::Fired;
pub use waits::Wait;

document! {
    /// One piece of work.
    pub struct Execution {
        /// Its identity.
        "i" id: ExecutionId,
        /// The namespace it belongs to.
        "ns" namespace: String,
        /// Which lane it waits in.
        "l" lane: String = DEFAULT_LANE.to_owned(),
        /// The kind of work; workers choose their handler by it.
        "k" kind: String,
        /// Higher runs earlier.
        "p" priority: i64,
        /// The creator that the submission names.
        "c" creator: String,
        /// The API token that submitted it, if that token may do no more than submit: such a token may cancel, signal
        /// and replay its own executions.
        "sb" submitted_by: String,
        /// The idempotency key it was created with, for people.
        "ik" idempotency_key: String,
        /// Labels to find it by.
        "tg" tags: BTreeMap<String, String>,
        /// Its policy: retries, timeouts, limits, routing. It never changes, so all copies of the document share it.
        "po" policy: Arc<Policy> = Policy::built_in(),
        /// The capabilities that a worker must have.
        "rq" capabilities: CapabilitySet,
        /// Budgets it is charged to, sorted.
        "bu" budgets: Vec<String>,
        /// The quota it runs under.
        "qu" quota: Option<String>,
        /// Its input.
        "in" input: Payload,
        /// When it was created.
        "ca" created_at: i64,
        /// When it last changed; transitions never go behind it.
        "ua" updated_at: i64,
        /// When its first attempt started; 0 before.
        "sa" started_at: i64,
        /// When it ended; 0 before.
        "ea" ended_at: i64,
        /// When it expires, whatever its state then; 0 for never.
        "dl" deadline_at: i64,
        /// The deadline was named when it was created, or is its parent's, where its policy has one, too.
        "dc" deadline_chosen: bool,
        /// The six dimensions.
        "st" state: StateVector,
        /// The reasons that keep it from running.
        "h" holds: Holds,
        /// When the time hold ends.
        "nb" not_before: i64,
        /// The reason of the time hold.
        "tr" time_reason: BlockingReason,
        /// Which budget (`b:name`) or quota (`q:name`) refused it, while it is parked.
        "pk" parked_on: String,
        /// It is parked among those of its fair key. What an earlier version parked stands among all that wait for the gate.
        "pf" parked_by_key: bool,
        /// When a parked execution is checked again, even if no hint came.
        "pr" recheck_at: i64,
        /// Free text about the reason of its wait.
        "bd" blocking_detail: String,
        /// Tells a repeated request from a different one with the same id.
        "rh" request_hash: Blob,
        /// The flow it is a member of.
        "f" flow: Option<FlowId>,
        /// Its name in the flow's graph.
        "nd" node: String,
        /// The condition over its upstreams under which it may start.
        "j" join: Option<Box<Join>>,
        /// The children it waits for while it is parted from its attempt.
        "cw" child_wait: ChildWait,
        /// The current or last attempt.
        "at" attempt: Option<Attempt>,
        /// Counts its leases.
        "ep" epoch: LeaseEpoch,
        /// The present or last lease.
        "ls" lease: Option<Lease>,
        /// An outstanding grant.
        "g" grant: Option<Box<Grant>>,
        /// The lease or grant that a repeated claim was answered with. The call that took it may have lost its caller, and must not
        /// give it back any more.
        "ka" kept_claim: LeaseId,
        /// How its last leases ended.
        "le" endings: Vec<LeaseEnding>,
        /// Retries since the first attempt or the last replay.
        "rt" retries: u32,
        /// Leases lost since the first attempt or the last replay.
        "rc" reclaims: u32,
        /// Times it was run again after its end.
        "rp" replays: u32,
        /// Times it continued as new since the first run or the last replay began.
        "co" continuations: u32,
        /// The last failure.
        "fa" failure: Option<Failure>,
        /// The result of the attempt that completed.
        "rs" result: Option<Payload>,
        /// Its progress, as its worker reported it.
        "pg" progress: Option<Progress>,
        /// Its suspension, while it is suspended.
        "su" suspension: Option<Box<Suspension>>,
        /// The cause that ended the last suspension, until the execution parts from its lease again, or ends. A retry
        /// or a reclaim finds it as the first claim after the suspension did.
        "rb" resumed_by: ResumedBy,
        /// The time that ended its last park was that of a wait for a signal or a child which did not come. Then
        /// `resumed_by` is the time: that a wait has timed out stands in the journal, and no signal says it.
        "rw" wait_timed_out: bool,
        /// The signals that ended the last suspension.
        "rg" resume_signals: Vec<SignalId>,
        /// Bytes that the suspending holder left for the next one; they are kept as long as `resumed_by`.
        "cn" continuation: Option<Box<Payload>>,
        /// Signals accepted so far.
        "sg" signals: u32,
        /// Its waits while it is parked; the first that ends lets it run again.
        "wt" waits: Vec<Wait>,
        /// Counts its journals: a replay begins a new one.
        "gn" generation: u32,
        /// Earlier generations whose journals are kept.
        "gp" past_generations: Vec<u32>,
        /// The build that runs it to its end; empty while any may.
        "bi" pinned_build: String,
        /// Notes about its journals; most executions have none.
        "jn" journal: Option<Box<JournalNotes>>,
        /// Leases that it lost; most executions have lost none.
        "lo" lost: Option<Box<LostLeases>>,
        /// Trace context of its submitter.
        "tc" trace_context: String,
        /// The concurrency slot of its quota that its lease uses.
        "sl" slot: Option<SlotId>,
        /// Up to this instant the timer of that slot has not checked it: a lease that ends earlier leaves no mark.
        "sv" slot_unseen_until: i64,
        /// Slots to be given back in the quota's partition.
        "ms" owed_slots: Vec<SlotId>,
        /// Whether its end has still to be told to its downstreams and its flow.
        "mr" owes_resolution: bool,
        /// The schedule that made it.
        "sc" schedule: Option<Box<ScheduledRun>>,
        /// The schedule that made the flow in which it was created. The flow is the run, and tells its end.
        "fs" flow_schedule: Option<Box<ScheduledRun>>,
        /// The subscription that made it.
        "dv" delivery: Option<Box<Delivery>>,
        /// The reason and the source of its cancellation.
        "cx" cancellation: Option<Cancellation>,
        /// How far its removal is, once it has begun. A removal is never undone.
        "rm" removal: Option<Removal>,
        /// Whether the name of its queue says its kind. An execution that an earlier version queued stays in its queue
        /// until it changes for the first time.
        "qk" queued_by_kind: bool,
        /// How it shares its lane, and keys, with others.
        "sh" sharing: Option<Box<Sharing>>,
    }
}

/// The lane of executions that name none.
pub const DEFAULT_LANE: &str = "default";
/// The namespace of callers that name none.
pub const DEFAULT_NAMESPACE: &str = "default";

document! {
    /// How far an attempt says it is.
    pub api struct Progress {
        /// Per cent.
        "p" pct: u8,
        /// The worker's words for what it is doing.
        "m" message: String,
        /// When it said so.
        "a" at: i64,
    }
}

document! {
    /// How far the removal of an execution is that takes more than one commit.
    pub struct Removal {
        /// The streams of this many attempts, from the first on, have been removed.
        "a" attempts: u32,
    }
}

document! {
    /// Why an execution was cancelled.
    pub api struct Cancellation {
        /// The reason, in words.
        "r" reason: String,
        /// The source of the cancellation.
        "s" source: CancelSource,
        /// The execution that took its place.
        "x" superseded_by: Option<ExecutionId>,
    }
}

vocabulary! {
    /// The cause that ended a suspension.
    #[derive(Default)]
    pub closed enum ResumedBy {
        /// There was none since the execution last parted from a lease.
        #[default]
        Nothing "nothing",
        /// Signals.
        Signals "signals",
        /// Its timeout.
        Timeout "timeout",
        /// The end of a child.
        Child "child",
        /// The instant that it was parked until.
        Time "time",
        /// An operator.
        Operator "operator",
        /// The answer to a question about its journal.
        Decision "decision",
    }
}

crate::vocabulary! {
    /// The cause that let an attempt go on.
    pub enum ResumeCause {
        /// The signals that it waited for.
        Signal "signal",
        /// The end of its children.
        Children "children",
        /// The instant that it asked for.
        Delay "delay",
        /// An operator.
        Operator "operator",
        /// The timeout of its suspension.
        Timeout "timeout",
        /// The answer to a question about its journal.
        Decision "decision",
    }
}

impl Execution {
    /// The one state that people see.
    pub fn public_state(&self) -> PublicState {
        self.state.public_state()
    }

    /// Whether it has ended.
    pub fn is_terminal(&self) -> bool {
        self.state.lifecycle_phase == LifecyclePhase::Terminal
    }

    /// The present lease, in the form in which its claimer got it.
    pub fn held_lease(&self) -> Option<ClaimedAttempt> {
        let lease = self.lease.as_ref().filter(|lease| lease.ended_at == 0)?;
        let fence = LeaseFence { attempt: lease.attempt, lease_id: lease.id, epoch: lease.epoch };
        Some(ClaimedAttempt { kind: lease.kind, fence })
    }

    /// The key of an execution by its id.
    pub fn key_of(id: &ExecutionId) -> Key {
        Key::of_uuid(kind::EXECUTION, &id.uuid)
    }

    /// The amounts that each of its claims holds in its budgets; none without budgets.
    pub fn estimate(&self) -> Option<&Amounts> {
        Some(&self.policy.estimate).filter(|estimate| !estimate.is_empty() && !self.budgets.is_empty())
    }

    /// The gates that it must pass (its budgets, its concurrency keys, its quota and its estimate) in one canonical
    /// string.
    pub fn gate(&self) -> String {
        let budgets = self.budgets.iter().map(|name| Gate::Budget(name));
        let gates = budgets.chain(self.concurrency().iter().map(ConcurrencyLimit::gate));
        let gates = gates.chain(self.quota.iter().map(|name| Gate::Quota(name)));
        let mut list = String::new();
        for gate in gates {
            gate::enlist(&mut list, gate);
        }
        if let Some(estimate) = self.estimate() {
            gate::enlist(&mut list, gate::estimate_mark(estimate));
        }
        list
    }

    /// Moves `updated_at` forward and returns the time that the transition uses: time never goes back for a document.
    pub(crate) fn mark_updated(&mut self, now: i64) -> i64 {
        self.queued_by_kind = true;
        self.updated_at = self.updated_at.max(now);
        self.updated_at
    }

    /// Changes how soon it runs.
    pub fn change_priority(&mut self, priority: i64, now: i64) -> Result<()> {
        self.refuse_terminal()?;
        self.mark_updated(now);
        self.priority = priority.clamp(0, limits::PRIORITY_MAX);
        Ok(())
    }

    /// Replaces its tags.
    pub fn set_tags(&mut self, tags: BTreeMap<String, String>, now: i64) -> Result<()> {
        text::tags("tags", &tags)?;
        self.mark_updated(now);
        self.tags = tags;
        Ok(())
    }

    /// Becomes a member of a flow in its partition. An execution that has ended owes its end to the flow, because it
    /// may be the last member.
    pub fn join_flow(&mut self, flow: FlowId, node: Option<&str>, now: i64) {
        self.mark_updated(now);
        self.flow = Some(flow);
        if let Some(node) = node {
            self.node = node.to_owned();
        }
        self.owes_resolution |= self.is_terminal();
    }

    pub(crate) fn refuse_terminal(&self) -> Result<()> {
        if self.is_terminal() {
            return Err(Error::of(Code::ExecutionTerminal).with("public_state", self.public_state()));
        }
        Ok(())
    }

    /// An event about this execution.
    pub(crate) fn event(&self, event_type: EventType) -> Event {
        Event {
            event_type,
            namespace: self.namespace.clone(),
            execution_id: Some(self.id),
            execution_kind: self.kind.clone(),
            flow_id: self.flow,
            tags: self.tags.clone(),
            attempt: self.attempt.as_ref().map(|attempt| attempt.index).unwrap_or_default(),
            delivery: self.delivery.is_some(),
            ..Default::default()
        }
    }

    /// The event of an accepted signal.
    pub fn signal_event(&self, signal: SignalId, name: &str, effects: &mut Effects) {
        let mut event = self.event(EventType::SignalAccepted);
        event.signal_id = Some(signal);
        event.detail = name.to_owned();
        effects.tell(event);
    }

    /// The event of its creation.
    pub fn creation_event(&self) -> Event {
        self.event(EventType::Created)
    }

    /// Whether everything in the document agrees. Asserted after every transition in tests and the simulator.
    pub fn check(&self) -> Result<()> {
        self.state.check()?;
        let broken = |why: &str| Err(Error::new(Code::Internal, format!("{} {why}: {:?}", self.id, self.state)));
        let phase = self.state.lifecycle_phase;
        if self.holds.is_empty() != (self.state.eligibility_state == crate::EligibilityState::EligibleNow)
            && phase == LifecyclePhase::Runnable
        {
            return broken("is eligible and held, or neither");
        }
        if phase != LifecyclePhase::Runnable && (self.grant.is_some() || self.holds.any_but_operator()) {
            return broken("keeps a grant or a hold that only a runnable one can have");
        }
        if (phase == LifecyclePhase::Suspended) != self.suspension.is_some() {
            return broken("is suspended without a suspension, or the reverse");
        }
        let live = self.lease.as_ref().is_some_and(|lease| lease.ended_at == 0);
        if (phase == LifecyclePhase::Active) != live {
            return broken("is active without a lease, or the reverse");
        }
        if live && self.lease.as_ref().is_some_and(|lease| lease.epoch != self.epoch) {
            return broken("has a lease of another epoch");
        }
        if (phase == LifecyclePhase::Terminal) != (self.ended_at != 0) {
            return broken("has ended without a time, or the reverse");
        }
        if !self.resume_signals.is_empty() && self.resumed_by != ResumedBy::Signals {
            return broken("keeps signals that did not resume it");
        }
        let single = self.sharing.as_ref().and_then(|sharing| sharing.single.as_ref());
        if phase == LifecyclePhase::Terminal && single.is_some_and(|single| single.held) {
            return broken("has ended, and its key still stands for it");
        }
        if self.slot.is_some() && phase != LifecyclePhase::Active {
            return broken("keeps a slot without a lease");
        }
        if self.retries > self.policy.retry.max_retries || self.reclaims > self.policy.max_reclaim_count {
            return broken("was tried more often than its policy allows");
        }
        let (by_budget, by_quota) = match Gate::parse(&self.parked_on) {
            Some(Gate::Budget(_)) => (true, false),
            Some(Gate::Quota(_) | Gate::Key { .. }) => (false, true),
            None => (false, false),
        };
        if (self.holds.has(Hold::Budget) || self.asks_budget()) != by_budget || self.holds.has(Hold::Quota) != by_quota
        {
            return broken("is parked without a gate, or the reverse");
        }
        Ok(())
    }
}

impl Document for Execution {
    const KIND: u8 = kind::EXECUTION;
    crate::encoding::compiled_here!();

    fn upgrade(&mut self, from: u8) {
        if from == 1 {
            self.derive_holds();
        }
    }
}

impl Execution {
    /// The queue it waits in while it is eligible.
    pub fn queue(&self) -> IndexName {
        let (route, gate) = (self.capabilities.route(), self.gate());
        if !self.fair_key().is_empty() {
            index::fair_queue(&self.namespace, &self.lane, &self.kind, &route, &gate, self.fair_key())
        } else if self.queued_by_kind {
            index::queue(&self.namespace, &self.lane, &self.kind, &route, &gate)
        } else {
            index::queue_of_any_kind(&self.namespace, &self.lane, &route, &gate)
        }
    }

    /// Moves an execution that an earlier version queued to the queue of its kind.
    pub fn queue_by_kind(&mut self, now: i64) {
        self.mark_updated(now);
    }

    /// Its place among the executions that wait in its queue.
    pub fn queue_score(&self) -> i64 {
        let priority = if planted(Bug::PriorityIgnored) { 0 } else { self.priority };
        index::queue_score(priority, self.created_at, self.aging_ms())
    }
}
