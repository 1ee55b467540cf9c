//! What became of an idempotency key: the execution it made, and a hash that tells a repeat from another request; and
//! answers that leave no other trace.

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
}

impl Indexed for IdempotencyRecord {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.idempotency_key)
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        Vec::new()
    }
}

document! {
    /// The answer to a command that leaves no other trace of its identity, so that a repeat gets it again. It expires.
    pub struct AnswerRecord {
        /// The digest that is the record's key.
        "k" digest: Blob,
        /// The answer, as the operation keeps it.
        "a" answer: Blob,
    }
}

impl AnswerRecord {
    /// The answer to an operation under an identity.
    pub fn new(operation: &str, identity: &[&[u8]], answer: impl Into<Blob>) -> Self {
        let digest = digest_of(operation, identity).to_vec().into();
        Self { digest, answer: answer.into(), ..Default::default() }
    }

    /// Where the record lives, in the partition of what the operation changed.
    pub fn key_of(operation: &str, identity: &[&[u8]]) -> Key {
        Key::new(kind::RECORD, &[&digest_of(operation, identity)])
    }
}

fn digest_of(operation: &str, identity: &[&[u8]]) -> [u8; 16] {
    let mut parts = vec![b"answer".as_slice(), operation.as_bytes()];
    parts.extend_from_slice(identity);
    digest16(&parts)
}

impl Document for AnswerRecord {
    const KIND: u8 = kind::RECORD;
}

impl Indexed for AnswerRecord {
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
        let record = AnswerRecord::new("suspend", &[b"lease", b"key"], "yes");
        assert_eq!(record.key(), AnswerRecord::key_of("suspend", &[b"lease", b"key"]));
        assert_ne!(record.key(), AnswerRecord::key_of("suspend", &[b"leasek", b"ey"]));
        assert_ne!(record.key(), AnswerRecord::key_of("resume", &[b"lease", b"key"]));
        assert_eq!(AnswerRecord::decode(&record.encode()).unwrap(), record);
    }
}
