//! Decodes the answer of the commit function: one msgpack array for all commits of a call.

use std::sync::Arc;

use ff_core::{CommandId, IndexName, LeaseEpoch, LeaseId};
use ff_store::{AppliedBatch, Batch, Conflict, ConflictReason, Fence, Outcome};
use uuid::Uuid;

use crate::call;
use crate::commit::Part;
use crate::packing::key_of;
use crate::refusal::NOT_BEGUN;

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Committed {
    /// The outcome of each batch.
    pub(crate) outcomes: Vec<Outcome>,
    /// Indexes that should be tidied because they may be empty.
    pub(crate) left: Vec<IndexName>,
}

/// What the answer says of each commit of a call, in their order: the error of a commit is the server's text. Nothing, if
/// the answer has another shape.
pub(crate) fn decode(parts: &[Arc<Part>], bytes: &[u8]) -> Option<Vec<Result<Committed, String>>> {
    let mut items = Items { bytes };
    items.array()?;
    let partitions = call::partitions(parts);
    let times: Vec<i64> = partitions.iter().map(|_| items.integer()).collect::<Option<_>>()?;
    let mut all = Vec::with_capacity(parts.len());
    for part in parts {
        let space = partitions.iter().position(|one| *one == part.partition)?;
        let batches = part.batches().iter();
        let outcomes = batches.map(|batch| outcome(&mut items, batch, times[space])).collect::<Option<Vec<_>>>()?;
        all.push(outcomes);
    }
    let failures = items.count()?;
    let failures: Vec<(usize, String)> =
        (0..failures).map(|_| Some((items.count()?, items.text()?))).collect::<Option<_>>()?;
    let mut first = 1;
    let committed = all.into_iter().map(|outcomes| {
        let numbers = first..first + outcomes.len();
        first = numbers.end;
        let failures = failures.iter().filter(|(number, _)| numbers.contains(number));
        committed(outcomes, failures.map(|(_, text)| text.as_str()))
    });
    let mut committed: Vec<Result<Committed, String>> = committed.collect();
    for _ in 0..items.count()? {
        let partition = *partitions.get(items.count()?.checked_sub(1)?)?;
        let names: Vec<IndexName> =
            (0..items.array()?).map(|_| items.string().map(IndexName::from_bytes)).collect::<Option<_>>()?;
        // One of the partition's commits looks after them; if none succeeded, the next reader of the list does.
        let heir = parts.iter().zip(&mut committed).find_map(|(part, one)| match one {
            Ok(one) if part.partition == partition => Some(one),
            _ => None,
        });
        if let Some(heir) = heir {
            heir.left = names;
        }
    }
    items.bytes.is_empty().then_some(committed)
}

/// A commit of which one batch failed has failed; its effect is unknown if any other batch was applied, or had begun to
/// write.
fn committed<'t>(
    outcomes: Vec<Option<Outcome>>,
    failures: impl Iterator<Item = &'t str> + Clone,
) -> Result<Committed, String> {
    let begun = failures.clone().find(|failure| !failure.starts_with(NOT_BEGUN));
    let Some(failure) = begun.or_else(|| failures.clone().next()) else {
        let outcomes = outcomes.into_iter().collect::<Option<_>>().ok_or("FFPARTIAL a batch has no outcome")?;
        return Ok(Committed { outcomes, left: Vec::new() });
    };
    let applied = outcomes.iter().any(|outcome| matches!(outcome, Some(Outcome::Applied(_))));
    match failure.strip_prefix(NOT_BEGUN) {
        Some(why) if applied => Err(format!("FFPARTIAL {why}")),
        _ => Err(failure.to_owned()),
    }
}

/// The outcome of the next batch; within it nothing if the batch failed.
fn outcome(items: &mut Items<'_>, batch: &Batch, at: i64) -> Option<Option<Outcome>> {
    let Some(word) = items.try_string() else {
        return match items.integer()? {
            0 => {
                let numbers = batch.appends.iter().map(|_| u64::try_from(items.integer()?).ok());
                let sequences = numbers.collect::<Option<_>>()?;
                Some(Some(Outcome::Applied(AppliedBatch { at, sequences })))
            }
            _ => Some(None),
        };
    };
    let key = key_of(items.string()?);
    let why = match word {
        b"exists" => ConflictReason::Exists(items.version()?),
        b"missing" => items.string().map(|_| ConflictReason::Missing)?,
        b"version" => ConflictReason::Version(items.version()?),
        b"fence" => ConflictReason::Fence(parse_fence(items.string()?)?),
        b"over" => ConflictReason::LeaseOver(items.integer()?),
        b"holds" => ConflictReason::LeaseHolds(items.integer()?),
        b"late" => ConflictReason::TooLate(items.integer()?),
        b"sequence" => ConflictReason::Sequence(u64::try_from(items.integer()?).ok()?),
        _ => return None,
    };
    Some(Some(Outcome::Conflict(Conflict { key, why })))
}

/// A fence from its 24 bytes.
pub(crate) fn parse_fence(bytes: &[u8]) -> Option<Fence> {
    let (epoch, lease) = bytes.split_at_checked(8)?;
    let epoch = LeaseEpoch(u64::from_be_bytes(epoch.try_into().ok()?));
    Some(Fence { epoch, lease: LeaseId(Uuid::from_slice(lease).ok()?) })
}

/// What is left of a msgpack sequence. It has integers, strings and arrays.
struct Items<'b> {
    bytes: &'b [u8],
}

impl<'b> Items<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    /// An unsigned number of so many bytes, the first of which comes first.
    fn unsigned(&mut self, bytes: usize) -> Option<u64> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> Option<usize> {
        usize::try_from(self.unsigned(bytes)?).ok()
    }

    /// The number of items of an array.
    fn array(&mut self) -> Option<usize> {
        match self.take(1)?[0] {
            short @ 0x90..=0x9f => Some(usize::from(short & 0x0f)),
            0xdc => self.length(2),
            0xdd => self.length(4),
            // An empty table of Lua is a map as well as an array.
            0x80 => Some(0),
            _ => None,
        }
    }

    fn integer(&mut self) -> Option<i64> {
        let kind = self.take(1)?[0];
        match kind {
            0..=0x7f => Some(i64::from(kind)),
            0xcc => i64::try_from(self.unsigned(1)?).ok(),
            0xcd => i64::try_from(self.unsigned(2)?).ok(),
            0xce => i64::try_from(self.unsigned(4)?).ok(),
            0xcf => i64::try_from(self.unsigned(8)?).ok(),
            0xd3 => Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?)),
            _ => None,
        }
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(self.integer()?).ok()
    }

    fn string(&mut self) -> Option<&'b [u8]> {
        let length = match self.take(1)?[0] {
            short @ 0xa0..=0xbf => usize::from(short & 0x1f),
            0xd9 => self.length(1)?,
            0xda => self.length(2)?,
            0xdb => self.length(4)?,
            _ => return None,
        };
        self.take(length)
    }

    /// The next item if it is a string.
    fn try_string(&mut self) -> Option<&'b [u8]> {
        let before = self.bytes;
        let string = self.string();
        if string.is_none() {
            self.bytes = before;
        }
        string
    }

    fn text(&mut self) -> Option<String> {
        std::str::from_utf8(self.string()?).ok().map(str::to_owned)
    }

    fn version(&mut self) -> Option<CommandId> {
        Some(CommandId(Uuid::from_slice(self.string()?).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ff_core::{Key, Partition};
    use ff_store::Append;

    use super::*;

    fn part(partition: Partition, batches: usize) -> Arc<Part> {
        let append = Append {
            log: Key::from_bytes(*b"l"),
            records: vec![Bytes::from_static(b"r"); 2],
            expected: None,
            cap: 0,
            in_turn: false,
        };
        let batch = Batch { appends: vec![append], ..Batch::default() };
        Arc::new(Part::new(partition, vec![batch; batches].into(), 0..batches, false).unwrap())
    }

    fn applied(at: i64, sequence: u64) -> Outcome {
        Outcome::Applied(AppliedBatch { at, sequences: vec![sequence] })
    }

    /// Items of an answer: small numbers as they are, texts as strings.
    fn packed(items: &[&dyn Item]) -> Vec<u8> {
        let mut bytes = vec![0xdc, 0, u8::try_from(items.len()).unwrap()];
        items.iter().for_each(|item| item.pack(&mut bytes));
        bytes
    }

    trait Item {
        fn pack(&self, bytes: &mut Vec<u8>);
    }

    impl Item for u8 {
        fn pack(&self, bytes: &mut Vec<u8>) {
            bytes.extend([0xcc, *self]);
        }
    }

    impl Item for &[u8] {
        fn pack(&self, bytes: &mut Vec<u8>) {
            bytes.extend([0xd9, u8::try_from(self.len()).unwrap()]);
            bytes.extend_from_slice(self);
        }
    }

    impl Item for Vec<&[u8]> {
        fn pack(&self, bytes: &mut Vec<u8>) {
            bytes.push(0x90 | u8::try_from(self.len()).unwrap());
            self.iter().for_each(|item| item.pack(bytes));
        }
    }

    #[test]
    fn each_commit_gets_its_own_outcomes() {
        let (first, second) = (Partition::flow(1), Partition::flow(2));
        let parts = [part(first, 2), part(second, 1), part(first, 1)];
        let conflict: &[u8] = b"version";
        let (name, version): (&[u8], &[u8]) = (b"{fp:1}dk", &[9; 16]);
        let names: Vec<&[u8]> = vec![b"one", b"two"];
        let answer = packed(&[
            &100u8, &101u8, &0u8, &7u8, &conflict, &name, &version, &0u8, &8u8, &0u8, &9u8, &0u8, &1u8, &1u8, &names,
        ]);
        let refused = Conflict {
            key: Some(Key::from_bytes(*b"k")),
            why: ConflictReason::Version(CommandId(Uuid::from_bytes([9; 16]))),
        };
        let left: Vec<IndexName> = [b"one", b"two"].map(|name| IndexName::from_bytes(*name)).to_vec();
        let none = Vec::new;
        let expected = [
            Ok(Committed { outcomes: vec![applied(100, 7), Outcome::Conflict(refused)], left }),
            Ok(Committed { outcomes: vec![applied(101, 8)], left: none() }),
            Ok(Committed { outcomes: vec![applied(100, 9)], left: none() }),
        ];
        assert_eq!(decode(&parts, &answer), Some(expected.to_vec()));
        for end in 0..answer.len() {
            assert_eq!(decode(&parts, &answer[..end]), None, "an answer that ends after {end} bytes");
        }
    }

    #[test]
    fn a_failed_batch_is_the_failure_of_its_commit() {
        let parts = [part(Partition::flow(1), 2), part(Partition::flow(1), 1)];
        let (refused, partial): (&[u8], &[u8]) = (b"FFREFUSED why", b"FFPARTIAL why");
        let text = |failed: &[u8]| Err(String::from_utf8(failed.to_vec()).unwrap());
        let fine = Ok(Committed { outcomes: vec![applied(100, 9)], left: Vec::new() });
        // Another batch of the same commit was applied.
        let answer = packed(&[&100u8, &0u8, &7u8, &2u8, &0u8, &9u8, &1u8, &2u8, &refused, &0u8]);
        assert_eq!(decode(&parts, &answer), Some(vec![text(partial), fine.clone()]));
        // None was.
        let answer = packed(&[&100u8, &2u8, &2u8, &0u8, &9u8, &2u8, &1u8, &refused, &2u8, &refused, &0u8]);
        assert_eq!(decode(&parts, &answer), Some(vec![text(refused), fine.clone()]));
        // None was, but one of two had begun to write.
        let answer = packed(&[&100u8, &2u8, &2u8, &0u8, &9u8, &2u8, &1u8, &refused, &2u8, &partial, &0u8]);
        assert_eq!(decode(&parts, &answer), Some(vec![text(partial), fine.clone()]));
        // A command for entries failed.
        let answer = packed(&[&100u8, &0u8, &7u8, &0u8, &8u8, &0u8, &9u8, &1u8, &3u8, &partial, &0u8]);
        let both = Ok(Committed { outcomes: vec![applied(100, 7), applied(100, 8)], left: Vec::new() });
        assert_eq!(decode(&parts, &answer), Some(vec![both, text(partial)]));
    }
}
