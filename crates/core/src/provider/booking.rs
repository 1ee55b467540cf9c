//! A place in the line of a provider: booked for an instant, taken by the lease that asks for it then, and settled with
//! what the call really cost. One small document for each key of an execution.

use serde::{Deserialize, Serialize};

use super::ProviderCost;
use crate::encoding::Document;
use crate::id::{ExecutionId, LeaseId};
use crate::index::{Due, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::{document, limits, vocabulary};

vocabulary! {
    /// How far a booking is.
    #[derive(Default)]
    pub closed enum BookingState {
        /// It waits for its instant.
        #[default]
        Booked "booked",
        /// A lease calls the provider.
        Granted "granted",
        /// The call was made.
        Settled "settled",
    }
}

/// The identity of a booking. It is the execution's and not a lease's, so that an execution that was parked finds its
/// place again; a lease that finds one which another lease has used books anew, because it will call anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookingId {
    /// The namespace of the provider and the execution.
    pub namespace: String,
    /// The provider.
    pub provider: String,
    /// The execution that calls it.
    pub execution: ExecutionId,
    /// Which of the calls of this execution it is.
    pub key: String,
}

impl BookingId {
    /// Where the booking lives in the provider's partition.
    pub fn document_key(&self) -> Key {
        let parts: [&[u8]; 4] =
            [self.namespace.as_bytes(), self.provider.as_bytes(), self.execution.uuid.as_bytes(), self.key.as_bytes()];
        Key::new(kind::BOOKING, &[&digest16(&parts)])
    }
}

document! {
    /// A place in the line of a provider.
    pub struct Booking {
        /// The namespace of the provider and the execution.
        "n" namespace: String,
        /// The provider.
        "p" provider: String,
        /// The execution that calls it.
        "x" execution: ExecutionId,
        /// Which of the calls of this execution it is.
        "k" key: String,
        /// The lease that booked it last, or that uses it.
        "l" lease: LeaseId,
        /// The expected cost of the call.
        "c" cost: ProviderCost,
        /// The part of time that counts it.
        "b" part: i64,
        /// Its number in the line.
        "t" ticket: u64,
        /// When it may be taken, as far as is known.
        "r" ready_at: i64,
        /// How far it is.
        "s" state: BookingState,
        /// When it was taken.
        "g" granted_at: i64,
        /// When it lapses, or counts as used; an ended one is forgotten then.
        "u" until: i64,
        /// The cost it was let through at, once the call has said another one.
        "a" asked: Option<ProviderCost>,
    }
}

impl Document for Booking {
    const KIND: u8 = kind::BOOKING;
    crate::encoding::compiled_here!();
}

impl Indexed for Booking {
    fn key(&self) -> Key {
        self.id().document_key()
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        match self.state {
            BookingState::Settled => Vec::new(),
            BookingState::Booked | BookingState::Granted => vec![Due::Timer.entry(&self.key(), self.until)],
        }
    }
}

impl Booking {
    /// The identity of the booking.
    pub fn id(&self) -> BookingId {
        BookingId {
            namespace: self.namespace.clone(),
            provider: self.provider.clone(),
            execution: self.execution,
            key: self.key.clone(),
        }
    }

    /// Whether its time is up: it was not taken in time, or its holder never settled it.
    pub fn is_over(&self, now: i64) -> bool {
        self.state != BookingState::Settled && self.until <= now
    }

    /// Whether this lease was let through, also when the call has ended since.
    pub(super) fn was_granted_to(&self, lease: LeaseId) -> bool {
        self.state != BookingState::Booked && self.granted_at != 0 && self.lease == lease
    }

    /// The cost that the call was asked for at.
    pub(super) fn asked_cost(&self) -> &ProviderCost {
        self.asked.as_ref().unwrap_or(&self.cost)
    }

    /// When the call ended, if it has.
    pub(super) fn settled_at(&self) -> Option<i64> {
        (self.state == BookingState::Settled).then(|| self.until.saturating_sub(limits::PROVIDER_REMEMBERED_MS))
    }

    pub(super) fn wait_until(&mut self, ready_at: i64) {
        self.ready_at = ready_at;
        self.until = ready_at.saturating_add(limits::PROVIDER_BOOKING_GRACE_MS);
    }
}
