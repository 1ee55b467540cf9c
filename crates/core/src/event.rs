//! Events: small records of what happened, in order per partition, for subscribers.

use std::collections::BTreeMap;

use crate::document;
use crate::id::{AttemptIndex, ExecutionId, FlowId, LeaseEpoch, LeaseId, SignalId};
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

document! {
    /// One event, as the partition's log keeps it.
    pub api struct Event {
        /// The type of the event.
        "t" event_type: EventType,
        /// The namespace of the execution.
        "n" namespace: String,
        /// The execution.
        "x" execution_id: ExecutionId,
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
        /// The signal's name, or a reason.
        "d" detail: String,
        /// The execution is a delivery of a subscription. No subscription delivers what happens to it.
        "v" delivery: bool,
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
}
