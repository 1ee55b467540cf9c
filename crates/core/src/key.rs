//! Names inside a partition: document keys, index names, index members, log names. Stores see opaque bytes; this
//! module is the only place that knows how they are put together.

use std::fmt;

use uuid::Uuid;

/// The name of a document within its partition: one byte of kind, then sixteen raw bytes or a little more.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Box<[u8]>);

impl Key {
    /// A key from raw bytes, as a store returns them.
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// A key from its kind and parts.
    pub fn new(kind: u8, parts: &[&[u8]]) -> Self {
        let mut bytes = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
        bytes.push(kind);
        for part in parts {
            bytes.extend_from_slice(part);
        }
        Self(bytes.into())
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The kind of document, its first byte.
    pub fn kind(&self) -> u8 {
        self.0.first().copied().unwrap_or(0)
    }

    /// The UUID right behind the kind, where the key has one.
    pub fn uuid(&self) -> Option<Uuid> {
        self.0.get(1..17).and_then(|bytes| Uuid::from_slice(bytes).ok())
    }
}

/// Printable bytes as they are, the rest in hex, so that a key reads well in logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(f, &self.0)
    }
}

/// The name of an ordered index within its partition.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IndexName(Box<[u8]>);

impl IndexName {
    /// A name from raw bytes, as a store returns them.
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A name from its kind and length-prefixed parts, so that no two lists of parts make the same name.
    pub fn from_parts(kind: u8, parts: &[&[u8]]) -> Self {
        let mut bytes = vec![kind];
        for part in parts {
            let length = u16::try_from(part.len()).expect("parts of index names are limited far below 64 KiB");
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(part);
        }
        Self(bytes.into())
    }

    /// The parts of a name made by [`IndexName::from_parts`].
    pub fn parts(&self) -> Option<Vec<&[u8]>> {
        let mut rest = self.0.get(1..)?;
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let (length, tail) = rest.split_at_checked(2)?;
            let (part, tail) = tail.split_at_checked(usize::from(u16::from_be_bytes([length[0], length[1]])))?;
            parts.push(part);
            rest = tail;
        }
        Some(parts)
    }
}

impl fmt::Debug for IndexName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(f, &self.0)
    }
}

/// One entry of an index: keyed by (index, member); the score is data.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// The index.
    pub index: IndexName,
    /// What is in it: usually the key of a document.
    pub member: Key,
    /// Where it stands.
    pub score: i64,
}

fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for &byte in bytes {
        if byte.is_ascii_graphic() {
            write!(f, "{}", char::from(byte))?;
        } else {
            write!(f, "\\{byte:02x}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_index_names_come_back_and_never_run_together() {
        let name = IndexName::from_parts(b'q', &[b"a", b"", b"bc"]);
        assert_eq!(name.parts().unwrap(), [&b"a"[..], b"", b"bc"]);
        assert_ne!(IndexName::from_parts(b'q', &[b"ab", b"c"]), IndexName::from_parts(b'q', &[b"a", b"bc"]));
        assert_eq!(IndexName::from_bytes(*b"q\0\x05a").parts(), None);
    }
}
