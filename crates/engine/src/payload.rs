//! Where the bytes of an execution live when they are too large for its document.

use bytes::Bytes;
use ff_core::op::parts::Content;
use ff_core::payload::Payload;
use ff_core::{Code, Error, ExecutionId, Key, Result};

use crate::transaction::{Transactor, Tx};

/// Which bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Input,
    Result,
    Continuation,
}

/// The key of a blob.
pub(crate) fn key(which: Which, id: &ExecutionId) -> Key {
    let kind = match which {
        Which::Input => b'i',
        Which::Result => b'r',
        Which::Continuation => b'c',
    };
    Key::new(kind, &[id.uuid.as_bytes()])
}

/// Every blob an execution may have.
pub(crate) fn all_keys(id: &ExecutionId) -> [Key; 3] {
    [Which::Input, Which::Result, Which::Continuation].map(|which| key(which, id))
}

/// The part of some content that the document keeps, and the blob beside it.
pub(crate) fn divide(content: Option<Content>) -> (Payload, Option<Bytes>) {
    content.map_or((Payload::default(), None), |content| Payload::divide(content.bytes, content.content_type))
}

/// Writes the blob of new bytes, or removes the one of older bytes that the document kept outside.
pub(crate) fn write(tx: &mut Tx<'_>, which: Which, id: &ExecutionId, blob: Option<Bytes>, before: Option<&Payload>) {
    let had_blob = before.is_some_and(|payload| payload.external);
    if blob.is_some() || had_blob {
        tx.blob(key(which, id), blob);
    }
}

impl Transactor {
    /// The bytes of a payload, from its document or from beside it.
    pub(crate) async fn content(&self, which: Which, id: &ExecutionId, payload: &Payload) -> Result<Content> {
        let blob = if payload.external {
            let found = self.store().blobs(id.partition(), vec![key(which, id)]).await?;
            let blob = found.into_iter().next().flatten();
            Some(blob.ok_or_else(|| Error::of(Code::ResultTrimmed).with("execution_id", id))?)
        } else {
            None
        };
        let bytes = payload.assemble(blob).unwrap_or_default();
        Ok(Content { bytes, content_type: payload.content_type.clone() })
    }

    /// Content of bytes that may not exist at all: no content type means that nothing was sent.
    pub(crate) async fn optional_content(
        &self,
        which: Which,
        id: &ExecutionId,
        payload: &Payload,
    ) -> Result<Option<Content>> {
        if payload.is_absent() {
            return Ok(None);
        }
        self.content(which, id, payload).await.map(Some)
    }
}
