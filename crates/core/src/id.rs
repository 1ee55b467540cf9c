//! Identities. Execution, flow and waitpoint ids carry the number of their flow partition in front of a
//! time-ordered UUID: `<partition, 4 hex>-<uuid v7>`. They are minted from time and random bits that the caller
//! brings, because this crate reads neither clock nor entropy.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Error;
use crate::partition::{Partition, PartitionConfig, place};

/// The time and ten random bytes, from which an id is minted.
#[derive(Debug, Clone, Copy)]
pub struct Mint {
    /// Milliseconds since the epoch.
    pub now_ms: i64,
    /// Fresh random bytes; never use the same ones twice.
    pub random: [u8; 10],
}

/// Makes the ids of one process rise, also within a millisecond: what was submitted first is older, and runs first.
#[derive(Debug, Default)]
pub struct Rising(std::sync::Mutex<Option<Mint>>);

impl Rising {
    /// The values to mint the next id from, given the time and random bytes.
    pub fn next(&self, fresh: Mint) -> Mint {
        let mut last = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let next = last.as_ref().and_then(|last| last.raised(&fresh)).unwrap_or_else(|| fresh.with_room());
        *last = Some(next);
        next
    }
}

/// The last bytes of what is random, which no part of a UUID's format lies in.
const COUNTED: std::ops::Range<usize> = 3..10;
/// A clock that went back further than this is believed.
const BACK_MAX_MS: i64 = 1_000;

impl Mint {
    /// Half of the numbers lie above it.
    fn with_room(mut self) -> Self {
        self.random[COUNTED.start] &= 0x7f;
        self
    }

    /// The same instant with a number above this one; `None` when a fresh one is above it by its time, or none is left.
    fn raised(&self, fresh: &Mint) -> Option<Self> {
        if fresh.now_ms > self.now_ms || fresh.now_ms < self.now_ms - BACK_MAX_MS {
            return None;
        }
        let number = |mint: &Mint| mint.random[COUNTED].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let raised = number(self) + 1 + (number(fresh) & 0xffff);
        let bytes = raised.to_be_bytes();
        let mut random = self.random;
        random[COUNTED].copy_from_slice(&bytes[1..]);
        (bytes[0] == 0).then_some(Self { now_ms: self.now_ms, random })
    }

    /// A UUID version 7: ordered by time, then random.
    pub fn uuid(&self) -> Uuid {
        let millis = u64::try_from(self.now_ms).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &self.random).into_uuid()
    }
}

macro_rules! partitioned_id {
    ($(#[$meta:meta])* $name:ident, $what:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name {
            /// The number of the flow partition the document lives in.
            pub partition: u16,
            /// The time-ordered rest of the id.
            pub uuid: Uuid,
        }

        impl $name {
            /// The partition the document lives in.
            pub const fn partition(&self) -> Partition {
                Partition::flow(self.partition)
            }

            /// An id in a given partition.
            pub fn in_partition(partition: Partition, mint: &Mint) -> Self {
                Self { partition: partition.number, uuid: mint.uuid() }
            }

            /// Refuses an id whose partition this deployment does not have.
            pub fn check(&self, config: &PartitionConfig) -> Result<(), Error> {
                if u32::from(self.partition) < config.flow {
                    return Ok(());
                }
                Err(Error::invalid(
                    concat!($what, "_id"),
                    format!("names partition {}, but this deployment has {}", self.partition, config.flow),
                ))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:04x}-{}", self.partition, self.uuid.as_hyphenated())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                parse_partitioned(text).map(|(partition, uuid)| Self { partition, uuid }).ok_or_else(|| {
                    Error::invalid(
                        concat!($what, "_id"),
                        "must be four lowercase hex digits, a dash and a lowercase UUID",
                    )
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    return serializer.collect_str(self);
                }
                let mut bytes = [0u8; 18];
                bytes[..2].copy_from_slice(&self.partition.to_be_bytes());
                bytes[2..].copy_from_slice(self.uuid.as_bytes());
                serializer.serialize_bytes(&bytes)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                    return text.parse().map_err(|error: Error| serde::de::Error::custom(error.detail));
                }
                let bytes = serde_bytes::ByteArray::<18>::deserialize(deserializer)?;
                let mut uuid = [0u8; 16];
                uuid.copy_from_slice(&bytes[2..]);
                Ok(Self { partition: u16::from_be_bytes([bytes[0], bytes[1]]), uuid: Uuid::from_bytes(uuid) })
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "pattern": "^[0-9a-f]{4}-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
                })
            }
        }
    };
}

partitioned_id!(
    /// An execution: one piece of work from submission to its terminal state.
    ExecutionId,
    "execution"
);
partitioned_id!(
    /// A flow: a graph of executions that live in one partition.
    FlowId,
    "flow"
);
partitioned_id!(
    /// A waitpoint: where signals for a suspension arrive.
    WaitpointId,
    "waitpoint"
);

impl ExecutionId {
    /// An id for an execution of its own, spread over the flow partitions.
    pub fn solo(config: &PartitionConfig, mint: &Mint) -> Self {
        let uuid = mint.uuid();
        Self { partition: place(config.flow, &[uuid.as_bytes()]), uuid }
    }

    /// An id for a member of a flow; it lives where the flow lives.
    pub fn for_flow(flow: &FlowId, mint: &Mint) -> Self {
        Self { partition: flow.partition, uuid: mint.uuid() }
    }
}

impl FlowId {
    /// An id for a new flow, spread over the flow partitions.
    pub fn mint(config: &PartitionConfig, mint: &Mint) -> Self {
        let uuid = mint.uuid();
        Self { partition: place(config.flow, &[uuid.as_bytes()]), uuid }
    }
}

fn parse_partitioned(text: &str) -> Option<(u16, Uuid)> {
    let (partition, uuid) = text.split_at_checked(4)?;
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte) || byte == b'-';
    if text.len() != 41 || !text.bytes().all(lower) {
        return None;
    }
    let uuid = Uuid::try_parse(uuid.strip_prefix('-')?).ok()?;
    Some((u16::from_str_radix(partition, 16).ok()?, uuid))
}

macro_rules! plain_id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A fresh id.
            pub fn mint(mint: &Mint) -> Self {
                Self(mint.uuid())
            }

            /// The raw sixteen bytes.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self.0.as_hyphenated(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                Uuid::try_parse(text).map(Self).map_err(|_| Error::invalid("id", "must be a UUID"))
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    serializer.serialize_bytes(self.0.as_bytes())
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                    return text.parse().map_err(|error: Error| serde::de::Error::custom(error.detail));
                }
                let bytes = serde_bytes::ByteArray::<16>::deserialize(deserializer)?;
                Ok(Self(Uuid::from_bytes(*bytes)))
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "format": "uuid" })
            }
        }
    };
}

plain_id!(
    /// A lease. The worker that claims chooses its id; a grant's id becomes the id of its lease.
    LeaseId
);
plain_id!(
    /// A concurrency slot, minted for each try of a claim: tries may share a lease id, never a slot.
    SlotId
);
plain_id!(
    /// One accepted signal.
    SignalId
);
plain_id!(
    /// One suspension of one execution.
    SuspensionId
);
plain_id!(
    /// A dependency edge: derived from its two ends, so that the same edge cannot exist twice.
    EdgeId
);
plain_id!(
    /// A schedule: minted when it is created, so that one that is made anew is another one.
    ScheduleId
);
plain_id!(
    /// A bulk job: derived from the identity of the call that began it.
    BulkId
);
plain_id!(
    /// A subscription: minted when it is created, so that one that is made anew is another one.
    SubscriptionId
);
plain_id!(
    /// An inbound hook: minted when it is created, so that one that is made anew is another one.
    HookId
);
plain_id!(
    /// One command of one caller; the documents it writes carry it as their version.
    CommandId
);

impl LeaseId {
    /// Whether it names no lease: what the engine wrote by itself has none, and readers are not shown any.
    pub fn is_nil(&self) -> bool {
        self.0.is_nil()
    }
}

impl EdgeId {
    /// The id of the edge between two executions.
    pub fn between(upstream: &ExecutionId, downstream: &ExecutionId) -> Self {
        let digest = crate::partition::digest16(&[upstream.uuid.as_bytes(), downstream.uuid.as_bytes()]);
        Self(Uuid::from_bytes(digest))
    }
}

/// Counts the leases of one execution; together with the lease id it fences off old holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct LeaseEpoch(pub u64);

impl LeaseEpoch {
    /// The epoch of the next lease.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Numbers the attempts of one execution from 0, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct AttemptIndex(pub u32);

impl AttemptIndex {
    /// The next attempt. A number that a reader made up may be the last one there is.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for AttemptIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for LeaseEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_process_rise_within_a_millisecond_too() {
        let rising = Rising::default();
        let random =
            |n: u32| std::array::from_fn(|at| (n.wrapping_mul(2_654_435_761) >> (at % 4 * 8)).to_be_bytes()[3]);
        let fresh = |now_ms, n| Mint { now_ms, random: random(n) };
        let instants = (0..10_000).map(|n| fresh(1_800_000_000_000 + i64::from(n / 3_000), n));
        // A clock that steps back a little does not turn the order around; one that was set back is believed.
        let back = (0..10).map(|n| fresh(1_800_000_000_000 - 500, n));
        let ids: Vec<_> = instants.chain(back).map(|mint| rising.next(mint).uuid()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| id.get_version_num() == 7 && id.get_variant() == uuid::Variant::RFC4122));
        assert_eq!(rising.next(fresh(1_700_000_000_000, 1)).now_ms, 1_700_000_000_000);
        let full = Mint { now_ms: 1, random: [0xff; 10] };
        assert!(full.raised(&full).is_none());
    }

    fn mint(now_ms: i64) -> Mint {
        Mint { now_ms, random: [7; 10] }
    }

    #[test]
    fn an_id_says_where_it_lives_and_survives_a_round_trip() {
        let id = ExecutionId::in_partition(Partition::flow(0x00ff), &mint(1_700_000_000_000));
        let text = id.to_string();
        assert!(text.starts_with("00ff-"), "{text}");
        assert_eq!(text.parse::<ExecutionId>().unwrap(), id);
        assert_eq!(rmp_serde::from_slice::<ExecutionId>(&rmp_serde::to_vec(&id).unwrap()).unwrap(), id);
        assert_eq!(serde_json::from_str::<ExecutionId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
    }

    #[test]
    fn ids_of_one_partition_sort_by_time() {
        let earlier = ExecutionId::in_partition(Partition::flow(3), &mint(1_000));
        let later = ExecutionId::in_partition(Partition::flow(3), &mint(1_001));
        assert!(earlier < later && earlier.to_string() < later.to_string());
    }

    #[test]
    fn malformed_ids_are_refused() {
        for text in ["", "é", "00ff", "00ff-", "00FF-0190b4d4-6a2b-7c3d-8e4f-5a6b7c8d9e0f", "zzzz-nope"] {
            assert!(text.parse::<ExecutionId>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn a_partition_the_deployment_lacks_is_refused() {
        let config = PartitionConfig { flow: 4, budget: 1, quota: 1 };
        assert!(ExecutionId::in_partition(Partition::flow(3), &mint(1)).check(&config).is_ok());
        assert!(ExecutionId::in_partition(Partition::flow(4), &mint(1)).check(&config).is_err());
    }

    #[test]
    fn an_edge_has_one_id_in_each_direction() {
        let a = ExecutionId::in_partition(Partition::flow(0), &mint(1));
        let b = ExecutionId::in_partition(Partition::flow(0), &mint(2));
        assert_eq!(EdgeId::between(&a, &b), EdgeId::between(&a, &b));
        assert_ne!(EdgeId::between(&a, &b), EdgeId::between(&b, &a));
    }
}
