//! What became of an idempotency key: the execution it made, and a hash that tells a repeat from another request.

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
