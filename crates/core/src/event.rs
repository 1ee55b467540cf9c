//! Events: small records of what happened, in order per partition, for subscribers.

use std::collections::BTreeMap;

use crate::document;
use crate::id::{AttemptIndex, ExecutionId, FlowId, LeaseEpoch, LeaseId, SignalId, SlotId};
use crate::lease::HistoryRecord;
use crate::state::PublicState;
use crate::vocabulary;

vocabulary! {
    /// Which subscription an event belongs to.
    pub enum EventKind {
        /// An execution ended.
        Completion "completion",
        /// A lease began or ended.
        Lease "lease",
        /// A signal was accepted.
        Signal "signal",
        /// An execution was suspended or resumed.
        Suspension "suspension",
        /// A budget passed a limit.
        Budget "budget",
        /// An execution was created.
        Creation "creation",
    }
}

vocabulary! {
    /// The type of an event.
    #[derive(Default)]
    pub enum EventType {
        /// The execution completed.
        #[default]
        Completed "completed",
        /// The execution failed for good.
        Failed "failed",
        /// The execution was cancelled.
        Cancelled "cancelled",
        /// The execution expired.
        Expired "expired",
        /// The execution was skipped.
        Skipped "skipped",
        /// A lease was taken.
        LeaseAcquired "lease_acquired",
        /// A holder let go.
        LeaseReleased "lease_released",
        /// A lease ran out.
        LeaseExpired "lease_expired",
        /// A lease was taken away.
        LeaseRevoked "lease_revoked",
        /// A lease was taken in place of a lost one.
        LeaseReclaimed "lease_reclaimed",
        /// A signal was accepted.
        SignalAccepted "signal_accepted",
        /// The execution waits for signals, people or an instant, and holds no lease.
        Suspended "suspended",
        /// The suspension ended, and the execution may run again.
        Resumed "resumed",
        /// A dimension of a budget passed a limit for the first time since usage was reset or the limit raised.
        Breached "breached",
        /// The execution was created; told only in namespaces where a subscription asks for it.
        Created "created",
    }
}

impl EventType {
    /// The subscription it belongs to.
    pub const fn kind(self) -> EventKind {
        match self {
            EventType::Completed
            | EventType::Failed
            | EventType::Cancelled
            | EventType::Expired
            | EventType::Skipped => EventKind::Completion,
            EventType::LeaseAcquired
            | EventType::LeaseReleased
            | EventType::LeaseExpired
            | EventType::LeaseRevoked
            | EventType::LeaseReclaimed => EventKind::Lease,
            EventType::SignalAccepted => EventKind::Signal,
            EventType::Suspended | EventType::Resumed => EventKind::Suspension,
            EventType::Breached => EventKind::Budget,
            EventType::Created => EventKind::Creation,
            EventType::Unknown(word) => EventKind::Unknown(word),
        }
    }

    /// The completion event of a terminal state.
    pub const fn of_terminal(state: PublicState) -> Option<EventType> {
        match state {
            PublicState::Completed => Some(EventType::Completed),
            PublicState::Failed => Some(EventType::Failed),
            PublicState::Cancelled => Some(EventType::Cancelled),
            PublicState::Expired => Some(EventType::Expired),
            PublicState::Skipped => Some(EventType::Skipped),
            _ => None,
        }
    }
}

vocabulary! {
    /// Which limit was passed.
    #[derive(Default)]
    pub enum BreachLevel {
        /// Usage is past the soft limit.
        #[default]
        Soft "soft",
        /// A report or a reservation met the hard limit.
        Hard "hard",
    }
}

document! {
    /// A limit of a budget that was passed.
    pub api struct Breach {
        /// The budget by name.
        "b" budget: String,
        /// Which limit.
        "l" level: BreachLevel,
        /// In which dimension.
        "d" dimension: String,
        /// The amount used and held when the limit was passed.
        "c" current: i64,
        /// The limit.
        "m" limit: i64,
    }
}

document! {
    /// One event, as the partition's log keeps it.
    pub api struct Event {
        /// The type of the event.
        "t" event_type: EventType,
        /// The namespace of the execution or the budget.
        "n" namespace: String,
        /// The execution; absent where the event is about a budget.
        "x" execution_id: Option<ExecutionId>,
        /// The kind of the execution.
        "k" execution_kind: String,
        /// The flow it is in.
        "f" flow_id: Option<FlowId>,
        /// Its tags, so that subscribers can filter by them.
        "g" tags: BTreeMap<String, String>,
        /// The attempt.
        "a" attempt: AttemptIndex,
        /// The lease, on lease events; shown to operators only.
        "l" lease_id: Option<LeaseId>,
        /// Its epoch.
        "e" epoch: LeaseEpoch,
        /// The worker, on lease events.
        "w" worker_id: String,
        /// The signal, on signal events.
        "s" signal_id: Option<SignalId>,
        /// The signal's name, a reason, or what ended a suspension.
        "d" detail: String,
        /// The execution is a delivery of a subscription. No subscription delivers what happens to it.
        "v" delivery: bool,
        /// The limit of a budget that was passed.
        "b" breach: Option<Breach>,
    }
}

/// Effects that a transition wants beside the change of its document. Only the transaction acts on them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Effects {
    /// For subscribers.
    pub events: Vec<Event>,
    /// For the execution's history.
    pub history: Vec<HistoryRecord>,
    /// Documents without index entries that go with the change.
    pub removed: Vec<crate::key::Key>,
    /// Slots that leases gave up without a mark.
    pub released: Vec<ReleasedSlot>,
}

impl Effects {
    /// Adds an event. A transition has one or two, and the first push into an empty list would make room for four.
    pub(crate) fn tell(&mut self, event: Event) {
        if self.events.is_empty() {
            self.events.reserve_exact(2);
        }
        self.events.push(event);
    }
}

/// A concurrency slot that goes back without a mark: its own timer frees it if nobody else does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleasedSlot {
    /// The slot.
    pub slot: SlotId,
    /// The change counts only up to this instant of its partition.
    pub until: i64,
}
