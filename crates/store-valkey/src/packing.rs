//! The content of a function call: KEYS, and a flat msgpack sequence that refers to them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write as _;

use bytes::Bytes;
use ff_core::{IndexName, Key, Partition};

use crate::resp::{Command, Decimal};

/// The protocol that this program speaks, and the number in the names of the library and its functions. Every request
/// carries it, too, so that a function never reads a request of another protocol.
pub(crate) const PROTOCOL: u32 = 8;

/// The longest sequence that Lua unpacks onto its stack.
const SEQUENCE_MAX: usize = 500;

/// Bytes around every part of a command: a line before it and two bytes behind it.
const PART_FRONT: usize = 10;

/// Bytes of the header of an array.
const ARRAY: usize = 5;
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

/// The hash tag of a partition, which begins the names of all its keys.
#[derive(Debug)]
pub(crate) struct Tag(Vec<u8>);

impl Tag {
    pub(crate) fn of(partition: Partition) -> Self {
        let mut tag = Vec::with_capacity(TAG_BYTES);
        // Writing to memory cannot fail.
        let _ = write!(tag, "{partition}");
        Self(tag)
    }

    /// The full name of a key.
    pub(crate) fn name(&self, space: Space, bytes: &[u8]) -> Vec<u8> {
        [&self.0, &[space.marker()][..], bytes].concat()
    }
}

/// The key in a full name, without tag and marker.
pub(crate) fn key_of(name: &[u8]) -> Option<Key> {
    let tag = name.iter().position(|byte| *byte == b'}')? + 1;
    name.get(tag + 1..).map(Key::from_bytes)
}

/// The keys of one call, each once. Positions begin at 1, as in Lua.
pub(crate) struct Keys {
    /// All names, one behind the other.
    bytes: Vec<u8>,
    /// The end of each name in `bytes`.
    ends: Vec<usize>,
    /// Positions by the hash of the name, at the first free place from there on; 0 is free. At most half of it is used.
    table: Vec<u32>,
    /// Names come from users, who must not be able to choose names that all hash alike.
    hasher: RandomState,
}

/// Places of a new table.
const TABLE: usize = 64;

impl Keys {
    /// No keys yet. A call names those it needs and no others: while a slot moves, every key that is not where the others
    /// are makes it fail.
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(1_024),
            ends: Vec::with_capacity(TABLE / 2),
            table: vec![0; TABLE],
            hasher: RandomState::new(),
        }
    }

    pub(crate) fn position(&mut self, tag: &Tag, space: Space, bytes: &[u8]) -> usize {
        if 2 * (self.ends.len() + 1) > self.table.len() {
            self.grow();
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&tag.0);
        self.bytes.push(space.marker());
        self.bytes.extend_from_slice(bytes);
        let place = self.place_of(start..self.bytes.len());
        let known = self.table[place];
        if known > 0 {
            self.bytes.truncate(start);
            return usize::try_from(known).expect("a position among keys in memory");
        }
        self.ends.push(self.bytes.len());
        self.table[place] = u32::try_from(self.ends.len()).expect("a commit has a bounded number of operations");
        self.ends.len()
    }

    /// The place of a name in the table, or the free place for it.
    fn place_of(&self, name: std::ops::Range<usize>) -> usize {
        let name = &self.bytes[name];
        let mut hasher = self.hasher.build_hasher();
        hasher.write(name);
        let last = self.table.len() - 1;
        let low = u32::try_from(hasher.finish() & u64::from(u32::MAX)).expect("32 bits");
        let mut place = usize::try_from(low).expect("an index") & last;
        loop {
            match self.table[place] {
                0 => return place,
                position if self.name_at(position) == name => return place,
                _ => place = (place + 1) & last,
            }
        }
    }

    fn name_at(&self, position: u32) -> &[u8] {
        let position = usize::try_from(position).expect("a position among keys in memory");
        let start = if position > 1 { self.ends[position - 2] } else { 0 };
        &self.bytes[start..self.ends[position - 1]]
    }

    fn grow(&mut self) {
        self.table = vec![0; 2 * self.table.len()];
        let mut start = 0;
        for (at, end) in self.ends.iter().enumerate() {
            let place = self.place_of(start..*end);
            self.table[place] = u32::try_from(at + 1).expect("a commit has a bounded number of operations");
            start = *end;
        }
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

    pub(crate) fn registry(&mut self, tag: &Tag) -> usize {
        self.position(tag, Space::Registry, b"")
    }

    pub(crate) fn document(&mut self, tag: &Tag, key: &Key) -> usize {
        self.position(tag, Space::Document, key.as_bytes())
    }

    pub(crate) fn index(&mut self, tag: &Tag, index: &IndexName) -> usize {
        self.position(tag, Space::Index, index.as_bytes())
    }

    pub(crate) fn log(&mut self, tag: &Tag, log: &Key) -> usize {
        self.position(tag, Space::Log, log.as_bytes())
    }

    pub(crate) fn blob(&mut self, tag: &Tag, key: &Key) -> usize {
        self.position(tag, Space::Blob, key.as_bytes())
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

    /// Where Lua finds the next item: two stand before the request's own, and it counts from 1.
    pub(crate) fn next(&self) -> usize {
        self.items + 3
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
            -32_768..=-1 => {
                self.bytes.push(0xd1);
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
        self.bytes[1..ARRAY].copy_from_slice(&total.to_be_bytes());
        self.bytes[ARRAY] = 0xce;
        self.bytes[6..10].copy_from_slice(&PROTOCOL.to_be_bytes());
        self.bytes[10] = 0xce;
        self.bytes[11..FRONT].copy_from_slice(&total.to_be_bytes());
        if self.items + 2 > SEQUENCE_MAX { &self.bytes } else { &self.bytes[ARRAY..] }
    }
}

/// The place of a number that is filled in later.
pub(crate) struct Reserved(usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_position_however_many_there_are() {
        let (mut keys, tag, other) = (Keys::new(), Tag::of(Partition::flow(7)), Tag::of(Partition::flow(8)));
        let key = |n: u8| Key::from_bytes([b'x', n]);
        assert_eq!(keys.registry(&tag), 1);
        let positions: Vec<usize> = (0..200).map(|n| keys.document(&tag, &key(n))).collect();
        assert_eq!(positions, (2..202).collect::<Vec<_>>());
        assert_eq!((0..200).map(|n| keys.document(&tag, &key(n))).collect::<Vec<_>>(), positions);
        assert_eq!(keys.blob(&tag, &key(3)), 202);
        assert_eq!(keys.document(&other, &key(3)), 203);
        let names: Vec<&[u8]> = keys.names().collect();
        assert_eq!((names.len(), names[0], names[4]), (203, &b"{fp:7}r"[..], &b"{fp:7}dx\x03"[..]));
        assert_eq!(key_of(names[202]), Some(key(3)));
        assert_eq!(tag.name(Space::Document, b"xy"), b"{fp:7}dxy");
    }
}
