//! A newer version of the software: its documents have a key that this version does not know. A version that writes
//! such a document must keep what it does not understand.

use bytes::Bytes;
use ff_core::index::kind;
use ff_store::Batch;

/// The unknown key with its value, as msgpack: a text of four bytes and the number 1.
const UNKNOWN: &[u8] = b"\xa4~new\x01";

/// The kinds of documents whose next version has the key.
const KINDS: [u8; 12] = [
    kind::EXECUTION,
    kind::FLOW,
    kind::EDGE,
    kind::WAITPOINT,
    kind::SIGNAL,
    kind::BUDGET,
    kind::QUOTA,
    kind::SLOT,
    kind::CONCURRENCY_KEY,
    kind::KEY_HOLDER,
    kind::RESERVATION,
    kind::LANE,
];

/// Writes a batch as the newer version does.
pub(crate) fn write(batch: &mut Batch) {
    for put in batch.puts.iter_mut().filter(|put| KINDS.contains(&put.key.kind())) {
        if let Some(body) = with_unknown(&put.body) {
            put.body = body;
        }
    }
}

/// Whether a document has the key.
pub(crate) fn has_unknown(body: &[u8]) -> bool {
    body.ends_with(UNKNOWN) || body.windows(UNKNOWN.len()).any(|found| found == UNKNOWN)
}

/// The document without the key, for a bug that drops it.
pub(crate) fn without_unknown(body: &Bytes) -> Bytes {
    if !body.ends_with(UNKNOWN) {
        return body.clone();
    }
    let mut changed = body[..body.len() - UNKNOWN.len()].to_vec();
    match changed.get(1).copied() {
        Some(header @ 0x81..=0x8f) => changed[1] = header - 1,
        Some(0xde) => {
            let count = u16::from_be_bytes([changed[2], changed[3]]) - 1;
            changed[2..4].copy_from_slice(&count.to_be_bytes());
        }
        _ => return body.clone(),
    }
    changed.into()
}

/// One more entry in the map behind the schema byte.
fn with_unknown(body: &[u8]) -> Option<Bytes> {
    if has_unknown(body) {
        return None;
    }
    let (schema, header) = (*body.first()?, *body.get(1)?);
    let mut changed = vec![schema];
    let entries = match header {
        0x80..=0x8e => {
            changed.push(header + 1);
            body.get(2..)?
        }
        0x8f => {
            changed.extend([0xde, 0, 16]);
            body.get(2..)?
        }
        0xde => {
            let count = u16::from_be_bytes([*body.get(2)?, *body.get(3)?]).checked_add(1)?;
            changed.push(0xde);
            changed.extend(count.to_be_bytes());
            body.get(4..)?
        }
        _ => return None,
    };
    changed.extend_from_slice(entries);
    changed.extend_from_slice(UNKNOWN);
    Some(changed.into())
}

#[cfg(test)]
mod tests {
    use ff_core::encoding::Document;
    use ff_core::execution::Execution;

    use super::*;

    #[test]
    fn what_a_newer_version_adds_can_be_read_is_kept_and_can_be_taken_away() {
        let plain = Bytes::from(Execution::default().encode());
        let written = with_unknown(&plain).expect("it is a map without the key");
        assert!(has_unknown(&written) && !has_unknown(&plain));
        let read = Execution::decode(&written).expect("an older version reads it");
        assert!(has_unknown(&read.encode()));
        assert_eq!(without_unknown(&written), plain);
        assert_eq!(with_unknown(&written), None);
    }
}
