//! Evidence of commands. A command that is not the same command by nature (by its fence, its numbers, its ids) has an
//! [`Identity`], and leaves a [`CommandRecord`] with its answer in the commit that the record speaks of: a repeat, by a
//! caller or by the engine itself, gets that answer and has no second effect. The records of the idempotency keys of
//! submissions are here, too.

use crate::document;
use crate::encoding::{Blob, Document};
use crate::error::{Code, Error, Result};
use crate::id::ExecutionId;
use crate::index::{Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;

document! {
    /// The execution behind an idempotency key. It expires with the dedup window.
    pub struct IdempotencyRecord {
        /// Scope of the key.
        "n" namespace: String,
        /// The key.
        "k" idempotency_key: String,
        /// The execution.
        "x" execution_id: ExecutionId,
        /// Sixteen bytes that tell requests apart.
        "h" request_hash: Blob,
    }
}

impl IdempotencyRecord {
    /// Where the record of a key lives in the key's partition.
    pub fn key_of(namespace: &str, idempotency_key: &str) -> Key {
        Key::new(kind::RECORD, &[&digest16(&[b"create", namespace.as_bytes(), idempotency_key.as_bytes()])])
    }

    /// Refuses a different request under the same key.
    pub fn check_same(&self, request_hash: &Blob) -> Result<()> {
        if self.request_hash == *request_hash {
            return Ok(());
        }
        Err(Error::of(Code::IdempotencyConflict).with("execution_id", self.execution_id))
    }
}

impl Document for IdempotencyRecord {
    const KIND: u8 = kind::RECORD;
    crate::encoding::compiled_here!();
}

impl Indexed for IdempotencyRecord {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.idempotency_key)
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        Vec::new()
    }
}

/// The identity by which a repeated command is recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    digest: [u8; 16],
    /// Sixteen bytes that tell requests under one identity apart; empty where the identity decides alone.
    request: Blob,
    /// How long the evidence lasts.
    pub kept_ms: i64,
}

impl Identity {
    /// The identity of a command of an operation. Its parts tell the callers and their intents apart.
    pub fn new(operation: &str, parts: &[&[u8]], kept_ms: i64) -> Self {
        let mut all = vec![b"answer".as_slice(), operation.as_bytes()];
        all.extend_from_slice(parts);
        Self::of_digest(digest16(&all), kept_ms)
    }

    /// An identity whose digest is known.
    pub fn of_digest(digest: [u8; 16], kept_ms: i64) -> Self {
        Self { digest, request: Blob::default(), kept_ms }
    }

    /// The identity for one request only; another request under it is refused.
    pub fn for_request(self, request: &[u8]) -> Self {
        Self { request: digest16(&[request]).to_vec().into(), ..self }
    }

    /// The identity under which an answer is kept that is found only after the commit under this one.
    pub fn of_later_answer(&self) -> Self {
        Self { digest: digest16(&[b"later_answer", &self.digest]), ..self.clone() }
    }

    /// Where its evidence lives, in the partition of what the command changes.
    pub fn key(&self) -> Key {
        Key::new(kind::RECORD, &[&self.digest])
    }

    /// Sixteen bytes that nothing else is called by, for ids that are derived from it.
    pub fn digest(&self) -> &[u8; 16] {
        &self.digest
    }

    /// Whether a caller gave it, so that an earlier call may have left evidence.
    pub fn is_callers(&self) -> bool {
        !self.request.is_empty()
    }

    /// The evidence that the command was carried out with this answer.
    pub fn record(&self, answer: impl Into<Blob>) -> CommandRecord {
        CommandRecord {
            digest: self.digest.to_vec().into(),
            request: self.request.clone(),
            answer: answer.into(),
            ..Default::default()
        }
    }

    /// Refuses another request than the one that left this evidence.
    pub fn check_same(&self, record: &CommandRecord) -> Result<()> {
        if record.request == self.request { Ok(()) } else { Err(Error::of(Code::IdempotencyConflict)) }
    }
}

document! {
    /// The answer to a command, under its identity. It expires.
    pub struct CommandRecord {
        /// The digest that is the record's key.
        "k" digest: Blob,
        /// A digest that tells its request from another one under the same identity.
        "h" request: Blob,
        /// The answer, as the operation keeps it.
        "a" answer: Blob,
    }
}

impl Document for CommandRecord {
    const KIND: u8 = kind::RECORD;
    crate::encoding::compiled_here!();
}

impl Indexed for CommandRecord {
    fn key(&self) -> Key {
        Key::new(kind::RECORD, &[&self.digest])
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_by_its_operation_and_identity_alone() {
        let identity = Identity::new("suspend", &[b"lease", b"key"], 1_000);
        let record = identity.record("yes");
        assert_eq!(record.key(), identity.key());
        assert_ne!(record.key(), Identity::new("suspend", &[b"leasek", b"ey"], 1_000).key());
        assert_ne!(record.key(), Identity::new("resume", &[b"lease", b"key"], 1_000).key());
        assert_eq!(CommandRecord::decode(&record.encode()).unwrap(), record);
    }

    #[test]
    fn another_request_under_the_same_identity_is_refused() {
        let identity = |request: &[u8]| Identity::new("hold", &[b"key"], 1_000).for_request(request);
        let record = identity(b"one").record("");
        assert_eq!(identity(b"one").check_same(&record), Ok(()));
        assert_eq!(identity(b"two").key(), record.key());
        assert_eq!(identity(b"two").check_same(&record).unwrap_err().code, Code::IdempotencyConflict);
    }
}
