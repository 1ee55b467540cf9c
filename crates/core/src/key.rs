//! Names inside a partition: document keys, index names, index members, log names. Stores see opaque bytes; this
//! module is the only place that knows how they are put together.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use uuid::Uuid;

/// Names up to this length are kept in place. Every key and nearly every index name is shorter, and a commit handles
/// dozens of them, so that allocating each would be most of its cost.
const IN_PLACE: usize = 38;

/// Names up to this length are put together without an allocation beside the one that keeps them.
const NAME_USUAL: usize = 128;

/// The first byte of the names of indexes that no store has to list.
pub(crate) const UNLISTED: u8 = b'!';

/// Bytes of a name, compared and hashed as bytes.
#[derive(Clone)]
enum Name {
    InPlace {
        length: u8,
        bytes: [u8; IN_PLACE],
    },
    /// Shared, because a queue with long names of people is handed around as often as one with short ones.
    Long(Arc<[u8]>),
}

impl Name {
    fn of(first: &[u8], parts: &[&[u8]]) -> Self {
        let total = first.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        match u8::try_from(total) {
            Ok(length) if total <= IN_PLACE => {
                let mut bytes = [0; IN_PLACE];
                bytes[..first.len()].copy_from_slice(first);
                let mut at = first.len();
                for part in parts {
                    bytes[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                Self::InPlace { length, bytes }
            }
            _ => {
                let mut bytes = Vec::with_capacity(total);
                bytes.extend_from_slice(first);
                parts.iter().for_each(|part| bytes.extend_from_slice(part));
                Self::Long(bytes.into())
            }
        }
    }

    /// A name that is known when the program is compiled. It must be short.
    const fn fixed(name: &[u8]) -> Self {
        let mut bytes = [0; IN_PLACE];
        let mut length = 0;
        while (length as usize) < name.len() {
            bytes[length as usize] = name[length as usize];
            length += 1;
        }
        Self::InPlace { length, bytes }
    }

    /// This name and one more byte.
    fn followed_by(&self, byte: u8) -> Self {
        match self {
            Self::InPlace { length, bytes } if usize::from(*length) < IN_PLACE => {
                let mut bytes = *bytes;
                bytes[usize::from(*length)] = byte;
                Self::InPlace { length: length + 1, bytes }
            }
            longer => Self::of(longer.as_bytes(), &[&[byte]]),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::InPlace { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// The name of a document within its partition: one byte of kind, then sixteen raw bytes or a little more.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Name);

impl Key {
    /// A key from raw bytes, as a store returns them.
    pub fn from_bytes(bytes: impl AsRef<[u8]>) -> Self {
        Self(Name::of(bytes.as_ref(), &[]))
    }

    /// A key from its kind and parts.
    pub fn new(kind: u8, parts: &[&[u8]]) -> Self {
        Self(Name::of(&[kind], parts))
    }

    /// The key of a document that is known by its UUID, which most are: its length is known when it is made.
    pub(crate) fn of_uuid(kind: u8, uuid: &Uuid) -> Self {
        let mut bytes = [0; IN_PLACE];
        bytes[0] = kind;
        bytes[1..17].copy_from_slice(uuid.as_bytes());
        Self(Name::InPlace { length: 17, bytes })
    }

    /// This key and one more byte.
    pub(crate) fn followed_by(&self, byte: u8) -> Self {
        Self(self.0.followed_by(byte))
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The kind of document, its first byte.
    pub fn kind(&self) -> u8 {
        self.as_bytes().first().copied().unwrap_or(0)
    }

    /// The UUID right behind the kind, where the key has one.
    pub fn uuid(&self) -> Option<Uuid> {
        self.as_bytes().get(1..17).and_then(|bytes| Uuid::from_slice(bytes).ok())
    }
}

/// Printable bytes as they are, the rest in hex, so that a key reads well in logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(f, self.as_bytes())
    }
}

/// The name of an ordered index within its partition.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IndexName(Name);

impl IndexName {
    /// The name of an index of which each partition has one. It must be short.
    pub(crate) const fn fixed(name: &[u8]) -> Self {
        Self(Name::fixed(name))
    }

    /// A name from raw bytes, as a store returns them.
    pub fn from_bytes(bytes: impl AsRef<[u8]>) -> Self {
        Self(Name::of(bytes.as_ref(), &[]))
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether stores list it among the non-empty indexes. An index whose name begins with an exclamation mark is only
    /// ever found by its name, so that a store need not keep book of it.
    pub fn is_listed(&self) -> bool {
        self.as_bytes().first() != Some(&UNLISTED)
    }

    /// A name from its kind and length-prefixed parts, so that no two lists of parts make the same name.
    pub fn from_parts(kind: u8, parts: &[&[u8]]) -> Self {
        let total = 1 + parts.iter().map(|part| part.len() + 2).sum::<usize>();
        let (mut usual, mut long) = ([0; NAME_USUAL], Vec::new());
        let bytes = match usual.get_mut(..total) {
            Some(bytes) => bytes,
            None => {
                long.resize(total, 0);
                &mut long[..]
            }
        };
        bytes[0] = kind;
        let mut at = 1;
        for part in parts {
            let length = u16::try_from(part.len()).expect("parts of index names are limited far below 64 KiB");
            bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
            at += 2;
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Self(if total > IN_PLACE { Name::Long(Arc::from(&*bytes)) } else { Name::of(bytes, &[]) })
    }

    /// The parts of a name made by [`IndexName::from_parts`].
    pub fn parts(&self) -> Option<Vec<&[u8]>> {
        let mut rest = self.as_bytes().get(1..)?;
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
        write_bytes(f, self.as_bytes())
    }
}

/// One entry of an index: keyed by (index, member); the score is data.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// The index.
    pub index: IndexName,
    /// The member: usually the key of a document.
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
    fn names_are_compared_by_their_bytes_however_they_are_kept() {
        let lengths = [0, 1, IN_PLACE - 1, IN_PLACE, IN_PLACE + 1, 300];
        let name = |length: usize| Key::from_bytes(vec![7; length]);
        for length in lengths {
            assert_eq!(name(length).as_bytes(), vec![7; length]);
            assert_eq!(name(length), name(length));
        }
        assert!(lengths.map(name).is_sorted());
        assert!(Key::from_bytes([8]) > name(300));
        assert_eq!(Key::new(b'x', &[b"ab", &[1; 60]]).as_bytes()[..4], *b"xab\x01");
        for length in lengths {
            assert_eq!(name(length).followed_by(9).as_bytes(), [vec![7; length], vec![9]].concat());
        }
        let uuid = Uuid::from_bytes([3; 16]);
        assert_eq!(Key::of_uuid(b'x', &uuid), Key::new(b'x', &[uuid.as_bytes()]));
        assert_eq!(IndexName::fixed(b"!due"), IndexName::from_bytes(b"!due"));
    }

    #[test]
    fn parts_of_index_names_come_back_and_never_run_together() {
        let name = IndexName::from_parts(b'q', &[b"a", b"", b"bc"]);
        assert_eq!(name.parts().unwrap(), [&b"a"[..], b"", b"bc"]);
        assert_ne!(IndexName::from_parts(b'q', &[b"ab", b"c"]), IndexName::from_parts(b'q', &[b"a", b"bc"]));
        assert_eq!(IndexName::from_bytes(*b"q\0\x05a").parts(), None);
    }
}
