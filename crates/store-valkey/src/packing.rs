//! The content of a function call: KEYS, a flat msgpack sequence that refers to them, and the values to store.

use std::collections::HashMap;
use std::io::Write as _;

use bytes::Bytes;
use ff_core::{IndexName, Key, Partition};

use crate::resp::{Command, Decimal};

/// The protocol that this program speaks, and the number in the names of the library and its functions. Every request
/// carries it, too, so that a function never reads a request of another protocol.
pub(crate) const PROTOCOL: u32 = 7;

/// The longest sequence that Lua unpacks onto its stack.
const SEQUENCE_MAX: u32 = 500;

/// Bytes around every part of a command: a line before it and two bytes behind it.
const PART_FRONT: usize = 10;

/// Bytes in front of the items: an array's header, the protocol, the length.
const FRONT: usize = 15;

/// The key spaces of a partition, as the byte behind its hash tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Registry,
    Barrier,
    /// A key that never exists, so that a moving slot refuses the call.
    Never,
    Document,
    Blob,
    Index,
    Log,
}

impl Space {
    pub(crate) fn marker(self) -> u8 {
        match self {
            Space::Registry => b'r',
            Space::Barrier => b'w',
            Space::Never => b'n',
            Space::Document => b'd',
            Space::Blob => b'b',
            Space::Index => b'i',
            Space::Log => b'l',
        }
    }
}

/// The capacity for a partition's tag; every tag is shorter.
const TAG_BYTES: usize = 16;
/// Among this few keys a linear search is faster than hashing.
const FEW: usize = 24;

/// The keys of one call, each once. Positions begin at 1, as in Lua.
pub(crate) struct Keys {
    tag: Vec<u8>,
    /// All names, one behind the other.
    bytes: Vec<u8>,
    /// The end of each name in `bytes`.
    ends: Vec<usize>,
    /// Positions by name; used only when there are many keys.
    positions: HashMap<Vec<u8>, usize>,
}

impl Keys {
    /// The keys of a commit, which begin with the list of index names.
    pub(crate) fn new(partition: Partition) -> Self {
        let mut keys = Self::bare(partition);
        keys.registry();
        keys
    }

    /// No keys yet. A read names those it needs and no others: while a slot moves, every key that is not where the others
    /// are makes the call fail.
    pub(crate) fn bare(partition: Partition) -> Self {
        let mut tag = Vec::with_capacity(TAG_BYTES);
        // Writing to memory cannot fail.
        let _ = write!(tag, "{partition}");
        Self { tag, bytes: Vec::with_capacity(512), ends: Vec::with_capacity(16), positions: HashMap::new() }
    }

    pub(crate) fn registry(&mut self) -> usize {
        self.position(Space::Registry, b"")
    }

    /// The full name of a key.
    pub(crate) fn name(&self, space: Space, bytes: &[u8]) -> Vec<u8> {
        [&self.tag, &[space.marker()][..], bytes].concat()
    }

    pub(crate) fn position(&mut self, space: Space, bytes: &[u8]) -> usize {
        let marker = space.marker();
        if self.ends.len() < FEW {
            let same = |name: &[u8]| name.get(self.tag.len()) == Some(&marker) && name[self.tag.len() + 1..] == *bytes;
            if let Some(at) = self.names().position(same) {
                return at + 1;
            }
        } else {
            if self.positions.is_empty() {
                self.positions = self.names().map(<[u8]>::to_vec).zip(1..).collect();
            }
            let name = self.name(space, bytes);
            if let Some(&at) = self.positions.get(&name) {
                return at;
            }
            self.positions.insert(name, self.ends.len() + 1);
        }
        self.bytes.extend_from_slice(&self.tag);
        self.bytes.push(marker);
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.ends.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Roughly how many bytes the keys take when they are sent.
    pub(crate) fn bytes_len(&self) -> usize {
        self.bytes.len() + PART_FRONT * self.ends.len()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| &self.bytes[std::mem::replace(&mut start, end)..end])
    }

    pub(crate) fn document(&mut self, key: &Key) -> usize {
        self.position(Space::Document, key.as_bytes())
    }

    pub(crate) fn index(&mut self, index: &IndexName) -> usize {
        self.position(Space::Index, index.as_bytes())
    }

    pub(crate) fn log(&mut self, log: &Key) -> usize {
        self.position(Space::Log, log.as_bytes())
    }

    pub(crate) fn blob(&mut self, key: &Key) -> usize {
        self.position(Space::Blob, key.as_bytes())
    }

    /// The key at a position, without tag and marker.
    pub(crate) fn key_at(&self, position: usize) -> Option<Key> {
        let name = self.names().nth(position.checked_sub(1)?)?;
        name.get(self.tag.len() + 1..).map(Key::from_bytes)
    }
}

/// Values that are stored as they are: arguments of their own, behind the request. Positions count as in Lua's ARGV.
#[derive(Default)]
pub(crate) struct Values(Vec<[Bytes; 2]>);

impl Values {
    /// Adds a value that is put together of two parts.
    pub(crate) fn add(&mut self, front: Bytes, back: Bytes) -> usize {
        self.0.push([front, back]);
        self.0.len() + 1
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Roughly how many bytes the values take when they are sent.
    pub(crate) fn bytes_len(&self) -> usize {
        self.iter().flatten().map(Bytes::len).sum::<usize>() + PART_FRONT * self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[Bytes; 2]> {
        self.0.iter()
    }
}

/// A call of a function of the library that takes keys and a request.
pub(crate) fn function_call(command: &str, function: &str, keys: &Keys, request: &mut Packed) -> Bytes {
    let mut call = Command::with_capacity(4 + keys.len(), keys.bytes_len() + request.bytes_len() + 64);
    call.part(command.as_bytes()).part(function.as_bytes()).count(keys.len());
    for name in keys.names() {
        call.part(name);
    }
    call.part(request.finish());
    call.into_bytes()
}

/// A flat msgpack sequence whose length is known at its end.
pub(crate) struct Packed {
    items: usize,
    bytes: Vec<u8>,
}

impl Packed {
    pub(crate) fn new() -> Self {
        let mut bytes = Vec::with_capacity(512);
        bytes.resize(FRONT, 0);
        Self { items: 0, bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.items
    }

    /// Roughly how many bytes the request takes when it is sent.
    pub(crate) fn bytes_len(&self) -> usize {
        self.bytes.len() + PART_FRONT
    }

    pub(crate) fn number(&mut self, number: i64) -> &mut Self {
        self.items += 1;
        match number {
            0..=127 => self.bytes.push(u8::try_from(number).expect("the arm is below 128")),
            128..=65_535 => {
                self.bytes.push(0xcd);
                self.bytes.extend_from_slice(&number.to_be_bytes()[6..]);
            }
            _ => {
                self.bytes.push(0xd3);
                self.bytes.extend_from_slice(&number.to_be_bytes());
            }
        }
        self
    }

    pub(crate) fn count(&mut self, count: usize) -> &mut Self {
        self.number(i64::try_from(count).unwrap_or(i64::MAX))
    }

    pub(crate) fn string(&mut self, string: &[u8]) -> &mut Self {
        self.items += 1;
        let length = string.len();
        if let Ok(short) = u8::try_from(length) {
            if short < 32 {
                self.bytes.push(0xa0 | short);
            } else {
                self.bytes.extend_from_slice(&[0xd9, short]);
            }
        } else if let Ok(medium) = u16::try_from(length) {
            self.bytes.push(0xda);
            self.bytes.extend_from_slice(&medium.to_be_bytes());
        } else {
            let long = u32::try_from(length).expect("a commit carries at most 32 MiB");
            self.bytes.push(0xdb);
            self.bytes.extend_from_slice(&long.to_be_bytes());
        }
        self.bytes.extend_from_slice(string);
        self
    }

    pub(crate) fn decimal(&mut self, number: i64) -> &mut Self {
        self.string(Decimal::of(number).as_bytes())
    }

    pub(crate) fn nothing(&mut self) -> &mut Self {
        self.items += 1;
        self.bytes.push(0xc2);
        self
    }

    /// Leaves room for a number that is known later.
    pub(crate) fn reserve_number(&mut self) -> Reserved {
        self.items += 1;
        self.bytes.extend_from_slice(&[0xce, 0, 0, 0, 0]);
        Reserved(self.bytes.len() - 4)
    }

    /// Writes the number that room was left for.
    pub(crate) fn fill(&mut self, reserved: Reserved, number: usize) {
        let number = u32::try_from(number).expect("a commit has a bounded number of operations");
        self.bytes[reserved.0..reserved.0 + 4].copy_from_slice(&number.to_be_bytes());
    }

    /// The whole request: the protocol and the length in front of the items. A large one is wrapped into an array,
    /// because Lua's stack does not hold it.
    pub(crate) fn finish(&mut self) -> &[u8] {
        let total = u32::try_from(self.items + 2).expect("a commit has a bounded number of operations");
        self.bytes[0] = 0xdd;
        self.bytes[1..5].copy_from_slice(&total.to_be_bytes());
        self.bytes[5] = 0xce;
        self.bytes[6..10].copy_from_slice(&PROTOCOL.to_be_bytes());
        self.bytes[10] = 0xce;
        self.bytes[11..FRONT].copy_from_slice(&total.to_be_bytes());
        if total > SEQUENCE_MAX { &self.bytes } else { &self.bytes[5..] }
    }
}

/// The place of a number that is filled in later.
pub(crate) struct Reserved(usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_position_however_many_there_are() {
        let mut keys = Keys::new(Partition::flow(7));
        let key = |n: u8| Key::from_bytes([b'x', n]);
        let positions: Vec<usize> = (0..40).map(|n| keys.document(&key(n))).collect();
        assert_eq!(positions, (2..42).collect::<Vec<_>>());
        assert_eq!((0..40).map(|n| keys.document(&key(n))).collect::<Vec<_>>(), positions);
        assert_eq!(keys.blob(&key(3)), 42);
        assert_eq!(keys.key_at(positions[3]), Some(key(3)));
        assert_eq!(keys.name(Space::Document, b"xy"), b"{fp:7}dxy");
    }
}
