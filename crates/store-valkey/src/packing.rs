//! What a function call carries: KEYS, a flat msgpack sequence that refers to them, and the values to store.

use std::collections::HashMap;

use bytes::Bytes;
use ff_core::{IndexName, Key, Partition};

use crate::resp::Command;

/// The revision of the library this program speaks to; every request carries it.
pub(crate) const REVISION: u32 = 1;

/// Items that Lua takes one by one.
const SEQUENCE_MAX: u32 = 500;

/// The key spaces of a partition, as the byte behind its hash tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Registry,
    Barrier,
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
            Space::Document => b'd',
            Space::Blob => b'b',
            Space::Index => b'i',
            Space::Log => b'l',
        }
    }
}

/// The keys of one call, each once. Positions begin at 1, as in Lua; the first is the registry of index names.
pub(crate) struct Keys {
    tag: Vec<u8>,
    names: Vec<Vec<u8>>,
    positions: HashMap<Vec<u8>, usize>,
}

impl Keys {
    pub(crate) fn new(partition: Partition) -> Self {
        let mut keys = Self { tag: partition.to_string().into_bytes(), names: Vec::new(), positions: HashMap::new() };
        keys.position(Space::Registry, b"");
        keys
    }

    /// The full name of a key.
    pub(crate) fn name(&self, space: Space, bytes: &[u8]) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.tag.len() + 1 + bytes.len());
        name.extend_from_slice(&self.tag);
        name.push(space.marker());
        name.extend_from_slice(bytes);
        name
    }

    pub(crate) fn position(&mut self, space: Space, bytes: &[u8]) -> usize {
        let name = self.name(space, bytes);
        // A handful of keys is found faster by looking than by hashing.
        if self.names.len() < 12 {
            if let Some(at) = self.names.iter().position(|known| *known == name) {
                return at + 1;
            }
        } else {
            if self.positions.is_empty() {
                self.positions = self.names.iter().cloned().zip(1..).collect();
            }
            if let Some(&at) = self.positions.get(&name) {
                return at;
            }
            self.positions.insert(name.clone(), self.names.len() + 1);
        }
        self.names.push(name);
        self.names.len()
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
        let name = self.names.get(position.checked_sub(1)?)?;
        name.get(self.tag.len() + 1..).map(Key::from_bytes)
    }
}

/// What is stored as it is: arguments of their own, behind the request. Positions count as in Lua's ARGV.
#[derive(Default)]
pub(crate) struct Values(Vec<[Bytes; 2]>);

impl Values {
    /// Adds a value that is put together of two parts.
    pub(crate) fn add(&mut self, front: Bytes, back: Bytes) -> usize {
        self.0.push([front, back]);
        self.0.len() + 1
    }
}

/// A call of a function of the library.
pub(crate) fn function_call(command: &str, function: &str, keys: &Keys, request: &Packed, values: &Values) -> Bytes {
    let mut call = Command::new(4 + keys.names.len() + values.0.len());
    call.part(command.as_bytes()).part(function.as_bytes()).part(keys.names.len().to_string().as_bytes());
    for name in &keys.names {
        call.part(name);
    }
    call.part(&request.finish());
    for [front, back] in &values.0 {
        call.parts(&[front, back]);
    }
    call.into_bytes()
}

/// A flat msgpack sequence whose length is known at its end.
pub(crate) struct Packed {
    items: usize,
    bytes: Vec<u8>,
}

impl Packed {
    pub(crate) fn new() -> Self {
        Self { items: 0, bytes: Vec::with_capacity(256) }
    }

    pub(crate) fn len(&self) -> usize {
        self.items
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
        self.string(number.to_string().as_bytes())
    }

    pub(crate) fn nothing(&mut self) -> &mut Self {
        self.items += 1;
        self.bytes.push(0xc2);
        self
    }

    /// Appends the items of another.
    pub(crate) fn extend(&mut self, other: &Packed) {
        self.items += other.items;
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// The whole request: the revision and the length in front of the items. A large one is wrapped into an array,
    /// because Lua's stack does not hold it.
    fn finish(&self) -> Vec<u8> {
        let total = u32::try_from(self.items + 2).expect("a commit has a bounded number of operations");
        let mut whole = Vec::with_capacity(self.bytes.len() + 16);
        if total > SEQUENCE_MAX {
            whole.push(0xdd);
            whole.extend_from_slice(&total.to_be_bytes());
        }
        whole.push(0xce);
        whole.extend_from_slice(&REVISION.to_be_bytes());
        whole.push(0xce);
        whole.extend_from_slice(&total.to_be_bytes());
        whole.extend_from_slice(&self.bytes);
        whole
    }
}

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
