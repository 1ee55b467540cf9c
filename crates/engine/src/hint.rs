//! Hints between the engines of a deployment: each says that something may be worth a look. Nothing depends on a hint
//! arriving; a sweep finds the work of a lost one.

use bytes::Bytes;
use ff_core::gate::Gate;
use ff_core::{CommandId, IndexName, Key, index};
use serde::{Deserialize, Serialize};

/// One thing worth a look, in the partition the hint names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Item {
    /// Something can be claimed from this queue; its place in it.
    Ready(#[serde(with = "serde_index")] IndexName, i64),
    /// Something is due at this instant, earlier than what was announced before.
    Due(i64),
    /// An execution, flow or waitpoint changed in a way that callers wait for.
    Changed(#[serde(with = "serde_key")] Key),
    /// Records were appended to a log.
    Log(#[serde(with = "serde_key")] Key),
    /// A document owes something elsewhere, and the engine that left it so has no resolver.
    Mark(#[serde(with = "serde_key")] Key),
    /// A budget or quota may admit again: the blocked index it opens.
    Gate(#[serde(with = "serde_index")] IndexName),
    /// A document of the system partition changed: cached copies are out of date.
    System(#[serde(with = "serde_key")] Key),
}

impl Item {
    /// A gate may admit again.
    pub(crate) fn gate(namespace: &str, gate: Gate<'_>) -> Self {
        Self::Gate(index::blocked(namespace, &gate.to_string()))
    }
}

/// The items of one commit, with the engine they come from, which has acted on them already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) origin: CommandId,
    pub(crate) items: Vec<Item>,
}

impl Message {
    pub(crate) fn encode(&self) -> Bytes {
        ff_core::encoding::pack(self).into()
    }

    /// The first bytes of an engine's messages, by which the engine recognises its own messages without decoding them.
    pub(crate) fn beginning(origin: CommandId) -> Bytes {
        let empty = Self { origin, items: Vec::new() }.encode();
        empty.slice(..empty.len() - 1)
    }

    /// A message of a newer engine may not be readable; it is as good as lost.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        rmp_serde::from_slice(bytes).ok()
    }
}

macro_rules! as_bytes {
    ($module:ident, $type:ty) => {
        mod $module {
            use serde::Deserialize as _;

            pub(super) fn serialize<S: serde::Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(value.as_bytes())
            }

            pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let bytes = ff_core::Blob::deserialize(deserializer)?;
                Ok(<$type>::from_bytes(bytes.to_vec()))
            }
        }
    };
}
as_bytes!(serde_index, ff_core::IndexName);
as_bytes!(serde_key, ff_core::Key);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_wire_and_garbage_is_dropped() {
        let message = Message {
            origin: CommandId::default(),
            items: vec![
                Item::Ready(ff_core::index::queue("n", "l", "k", "", ""), -5),
                Item::Due(9),
                Item::Log(Key::from_bytes([0, 255])),
            ],
        };
        assert!(message.encode().starts_with(&Message::beginning(message.origin)));
        assert_eq!(Message::decode(&message.encode()), Some(message));
        assert_eq!(Message::decode(b"nonsense"), None);
    }
}
