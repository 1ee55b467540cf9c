//! The logs of a flow partition, by name, and their records.

use bytes::Bytes;
use ff_core::{AttemptIndex, ExecutionId, Key};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The log of events in a partition, for subscribers.
pub(crate) fn events() -> Key {
    Key::from_bytes(*b"E")
}

/// Ended attempts and leases of an execution.
pub(crate) fn history(execution: &ExecutionId) -> Key {
    Key::new(b'h', &[execution.uuid.as_bytes()])
}

/// Frames of one attempt.
pub(crate) fn frames(execution: &ExecutionId, attempt: AttemptIndex) -> Key {
    Key::new(b'f', &[execution.uuid.as_bytes(), &attempt.0.to_be_bytes()])
}

/// The log of the journal of one generation of an execution.
pub(crate) fn journal(execution: &ExecutionId, generation: u32) -> Key {
    Key::new(b'j', &[execution.uuid.as_bytes(), &generation.to_be_bytes()])
}

/// The merged summary of one attempt's stream: a document, under the key its module gives it.
pub(crate) fn summary(execution: &ExecutionId, attempt: AttemptIndex) -> Key {
    ff_core::Summary::key_of(execution, attempt)
}

/// Administrative acts, in the system partition.
pub(crate) fn audit() -> Key {
    Key::from_bytes(*b"A")
}

/// The log of administrative acts that were refused. It is one of its own, so that a caller that is refused all the time
/// pushes out no record of what was done.
pub(crate) fn audit_refusals() -> Key {
    Key::from_bytes(*b"AR")
}

/// The bytes of a record.
pub(crate) fn encode(record: &impl Serialize) -> Bytes {
    ff_core::encoding::pack(record).into()
}

/// The record in these bytes; `None` when they cannot be read, which the caller counts and passes over.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    rmp_serde::from_slice(bytes).ok()
}
