//! Messages between processes through NOTIFY, as text that PostgreSQL takes.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use ff_core::Partition;
use ff_store::Hint;
use uuid::Uuid;

/// Raw bytes in one message: in base64, and with its head, it stays below PostgreSQL's 8,000.
const MESSAGE_MAX_BYTES: usize = 5_800;

/// A message from one process to the others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Hints(Vec<Hint>),
    Resync,
    Hello,
}

impl Message {
    /// The sender, one letter of kind, and the hints: (partition, length, payload) each.
    pub(crate) fn encode(&self, instance: Uuid) -> String {
        let head = instance.as_simple();
        let hints = match self {
            Message::Resync => return format!("{head}r"),
            Message::Hello => return format!("{head}o"),
            Message::Hints(hints) => hints,
        };
        let mut bytes = Vec::with_capacity(MESSAGE_MAX_BYTES);
        for hint in hints {
            bytes.extend_from_slice(&hint.partition.ordinal().to_be_bytes());
            bytes.extend_from_slice(&(hint.payload.len() as u64).to_be_bytes()[4..]);
            bytes.extend_from_slice(&hint.payload);
        }
        format!("{head}h{}", STANDARD_NO_PAD.encode(bytes))
    }

    pub(crate) fn decode(text: &str) -> Option<(Uuid, Self)> {
        let (instance, rest) = text.split_at_checked(32)?;
        let instance = Uuid::try_parse(instance).ok()?;
        let message = match rest.split_at_checked(1)? {
            ("r", "") => Message::Resync,
            ("o", "") => Message::Hello,
            ("h", hints) => Message::Hints(unpack(Bytes::from(STANDARD_NO_PAD.decode(hints).ok()?))?),
            _ => return None,
        };
        Some((instance, message))
    }
}

fn unpack(mut bytes: Bytes) -> Option<Vec<Hint>> {
    let mut hints = Vec::new();
    while !bytes.is_empty() {
        let (ordinal, rest) = bytes.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let partition = Partition::from_ordinal(i64::from_be_bytes(*ordinal))?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        if rest.len() < length {
            return None;
        }
        hints.push(Hint { partition, payload: bytes.slice(HINT_HEAD..HINT_HEAD + length) });
        bytes = bytes.slice(HINT_HEAD + length..);
    }
    Some(hints)
}

/// Bytes of a hint besides its payload.
const HINT_HEAD: usize = 12;

/// As few messages as hold the hints; the same hint twice is once enough.
pub(crate) fn pack(hints: Vec<Hint>) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut seen = HashSet::new();
    let (mut current, mut size) = (Vec::new(), 0);
    for hint in hints {
        let length = HINT_HEAD + hint.payload.len();
        if length > MESSAGE_MAX_BYTES {
            return vec![Message::Resync];
        }
        if !seen.insert((hint.partition, hint.payload.clone())) {
            continue;
        }
        if size + length > MESSAGE_MAX_BYTES {
            messages.push(Message::Hints(std::mem::take(&mut current)));
            size = 0;
        }
        size += length;
        current.push(hint);
    }
    if !current.is_empty() {
        messages.push(Message::Hints(current));
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(number: u16, length: usize) -> Hint {
        Hint { partition: Partition::flow(number), payload: vec![7; length].into() }
    }

    #[test]
    fn messages_survive_their_journey() {
        let instance = Uuid::now_v7();
        for message in [Message::Resync, Message::Hello, Message::Hints(vec![hint(1, 0), hint(65_535, 300)])] {
            assert_eq!(Message::decode(&message.encode(instance)), Some((instance, message)));
        }
    }

    #[test]
    fn many_hints_fit_few_messages_that_postgres_takes() {
        let messages = pack((0..2_000).map(|number| hint(number % 1_000, 20)).collect());
        let told: usize = messages
            .iter()
            .map(|message| match message {
                Message::Hints(hints) => hints.len(),
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(told, 1_000);
        assert!(messages.len() < 10);
        assert!(messages.iter().all(|message| message.encode(Uuid::now_v7()).len() < 8_000));
    }

    #[test]
    fn a_hint_too_large_becomes_a_resync() {
        assert_eq!(pack(vec![hint(0, 1), hint(0, 10_000)]), [Message::Resync]);
    }

    #[test]
    fn what_is_cut_short_is_not_understood() {
        let text = Message::Hints(vec![hint(1, 30)]).encode(Uuid::now_v7());
        for length in 0..text.len() {
            let whole = Message::decode(&text[..length]);
            assert!(whole.is_none() || whole.is_some_and(|(_, message)| message == Message::Hints(vec![])));
        }
    }
}
