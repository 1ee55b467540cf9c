//! The numbers of advisory locks. Every process on a database must come to the same ones: they never change.

use ff_core::Partition;

/// The kind of thing that a lock protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protects {
    /// The schema, while it is migrated.
    Schema = 1,
    /// The order of event numbers, while some are drawn.
    Numbers = 2,
    /// Nothing: it is held by every process that listens for hints, and counted.
    Listening = 3,
    /// All of a partition.
    Partition = 4,
    /// A document, there or not.
    Document = 5,
    /// The numbering of a log.
    Log = 6,
    /// An index entry; only told apart within a process.
    Entry = 7,
    /// A blob; only told apart within a process.
    Blob = 8,
}

/// Makes the lock numbers of one schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Locks(u64);

impl Locks {
    pub(crate) fn of_schema(schema: &str) -> Self {
        Self(mix(BASIS, schema.as_bytes()))
    }

    /// A lock of the whole schema.
    pub(crate) fn single(self, protects: Protects) -> i64 {
        finish(mix(self.0, &[protects as u8]))
    }

    /// The lock of a partition.
    pub(crate) fn partition(self, partition: Partition) -> i64 {
        self.named(partition, Protects::Partition, &[])
    }

    /// The lock of something in a partition. Names that share a number wait for each other, no more.
    pub(crate) fn named(self, partition: Partition, protects: Protects, names: &[&[u8]]) -> i64 {
        let mut hash = mix(self.0, &[protects as u8]);
        hash = mix(hash, &partition.ordinal().to_be_bytes());
        for name in names {
            hash = mix(hash, &(name.len() as u64).to_be_bytes());
            hash = mix(hash, name);
        }
        finish(hash)
    }
}

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a.
fn mix(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

/// Spreads the last bytes over the whole number, because FNV does not.
fn finish(hash: u64) -> i64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_numbers_never_change() {
        // Two processes of different versions would otherwise not keep each other out.
        let locks = Locks::of_schema("flowfabric");
        let numbers = [
            locks.single(Protects::Schema),
            locks.partition(Partition::SYSTEM),
            locks.named(Partition::flow(7), Protects::Document, &[b"x"]),
        ];
        assert_eq!(numbers, [5_901_382_954_175_349_174, 8_859_968_471_093_541_669, -1_602_921_751_478_258_892]);
    }

    #[test]
    fn schemas_partitions_and_names_are_told_apart() {
        let ours = Locks::of_schema("a");
        let mut seen = std::collections::BTreeSet::new();
        for lock in [
            ours.named(Partition::flow(0), Protects::Entry, &[b"ab", b"c"]),
            ours.named(Partition::flow(0), Protects::Entry, &[b"a", b"bc"]),
            ours.named(Partition::flow(1), Protects::Entry, &[b"a", b"bc"]),
            ours.named(Partition::flow(0), Protects::Document, &[b"a", b"bc"]),
            Locks::of_schema("b").named(Partition::flow(0), Protects::Entry, &[b"a", b"bc"]),
        ] {
            assert!(seen.insert(lock));
        }
    }
}
