//! Where a document lives. Every id that people hold carries its partition, so routing never needs a look-up.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Code, Error};
use crate::limits;

/// The four kinds of partitions. A commit touches exactly one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Executions, flows, edges, waitpoints and signals.
    Flow,
    /// Budgets and their usage records.
    Budget,
    /// Quota policies and their concurrency slots.
    Quota,
    /// Workers, servers, lanes, tokens, secrets and the deployment's configuration.
    System,
}

impl Family {
    /// What stands before a partition's number in its text form; all of it for the one system partition.
    pub const fn tag(self) -> &'static str {
        match self {
            Family::Flow => "fp:",
            Family::Budget => "b:",
            Family::Quota => "q:",
            Family::System => "sys",
        }
    }
}

/// One partition of one family; on Valkey it is a hash tag, elsewhere a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// Which family the partition belongs to.
    pub family: Family,
    /// Its number within the family, from 0.
    pub number: u16,
}

impl Partition {
    /// The one system partition.
    pub const SYSTEM: Partition = Partition { family: Family::System, number: 0 };

    /// A flow partition by number.
    pub const fn flow(number: u16) -> Self {
        Self { family: Family::Flow, number }
    }

    /// A budget partition by number.
    pub const fn budget(number: u16) -> Self {
        Self { family: Family::Budget, number }
    }

    /// A quota partition by number.
    pub const fn quota(number: u16) -> Self {
        Self { family: Family::Quota, number }
    }

    /// A number that identifies the partition among all families, for stores that want an integer column.
    pub const fn ordinal(self) -> i64 {
        let family = match self.family {
            Family::Flow => 0,
            Family::Budget => 1,
            Family::Quota => 2,
            Family::System => 3,
        };
        family * 65_536 + self.number as i64
    }

    /// The inverse of [`Partition::ordinal`].
    pub fn from_ordinal(ordinal: i64) -> Option<Self> {
        let family = match ordinal.div_euclid(65_536) {
            0 => Family::Flow,
            1 => Family::Budget,
            2 => Family::Quota,
            3 => Family::System,
            _ => return None,
        };
        u16::try_from(ordinal.rem_euclid(65_536)).ok().map(|number| Self { family, number })
    }
}

/// The hash-tag form: `{fp:7}`, `{b:0}`, `{q:3}`, `{sys}`.
impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family {
            Family::System => write!(f, "{{{}}}", self.family.tag()),
            family => write!(f, "{{{}{}}}", family.tag(), self.number),
        }
    }
}

/// How many partitions each family has; fixed when a deployment is first started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct PartitionConfig {
    /// Flow partitions.
    pub flow: u32,
    /// Budget partitions.
    pub budget: u32,
    /// Quota partitions.
    pub quota: u32,
}
crate::newer::open_struct!(PartitionConfig);

impl PartitionConfig {
    /// One of each: embedded and single-database deployments, where more would only cost.
    pub const SINGLE: PartitionConfig = PartitionConfig { flow: 1, budget: 1, quota: 1 };
    /// The default on a standalone Valkey.
    pub const STANDALONE: PartitionConfig = PartitionConfig { flow: 8, budget: 4, quota: 4 };
    /// The default on a Valkey Cluster.
    pub const CLUSTER: PartitionConfig = PartitionConfig { flow: 256, budget: 32, quota: 32 };

    /// Refuses counts of zero and counts that do not fit the four hex digits of an id.
    pub fn validate(&self) -> Result<(), Error> {
        for (field, count) in [("flow", self.flow), ("budget", self.budget), ("quota", self.quota)] {
            if count == 0 || count > limits::PARTITIONS_MAX {
                return Err(Error::invalid(
                    &format!("{field}_partitions"),
                    format!("must be between 1 and {}, not {count}", limits::PARTITIONS_MAX),
                ));
            }
        }
        Ok(())
    }

    /// Compares what is configured now with what the deployment was started with.
    pub fn check_against(&self, stored: &PartitionConfig) -> Result<(), Error> {
        for (field, configured, stored) in [
            ("flow", self.flow, stored.flow),
            ("budget", self.budget, stored.budget),
            ("quota", self.quota, stored.quota),
        ] {
            if configured != stored {
                return Err(Error::new(
                    Code::PartitionCountsDiffer,
                    format!("{field}_partitions is configured as {configured}, but this deployment has {stored}"),
                )
                .with("field", format!("{field}_partitions"))
                .with("configured", configured)
                .with("stored", stored));
            }
        }
        Ok(())
    }

    /// Every partition of the deployment, the system partition last.
    pub fn all(&self) -> impl Iterator<Item = Partition> + use<> {
        let numbers = |count: u32| 0..u16::try_from(count.saturating_sub(1)).map_or(u32::from(u16::MAX), u32::from) + 1;
        let number = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
        numbers(self.flow)
            .map(move |n| Partition::flow(number(n)))
            .chain(numbers(self.budget).map(move |n| Partition::budget(number(n))))
            .chain(numbers(self.quota).map(move |n| Partition::quota(number(n))))
            .chain([Partition::SYSTEM])
    }

    /// The budget partition of a budget by its name. Budgets under one root live together, so that a charge counts in
    /// all of them in one commit.
    pub fn budget_partition(&self, namespace: &str, name: &str) -> Partition {
        let root = name.split('/').next().unwrap_or(name);
        Partition::budget(place(self.budget, &[namespace.as_bytes(), root.as_bytes()]))
    }

    /// The quota partition of a quota policy by its name.
    pub fn quota_partition(&self, namespace: &str, name: &str) -> Partition {
        Partition::quota(place(self.quota, &[namespace.as_bytes(), name.as_bytes()]))
    }

    /// The quota partition of a concurrency key.
    pub fn concurrency_partition(&self, namespace: &str, key: &str) -> Partition {
        Partition::quota(place(self.quota, &[namespace.as_bytes(), b"concurrency", key.as_bytes()]))
    }

    /// The flow partition of a schedule and its runs by its name.
    pub fn schedule_partition(&self, namespace: &str, name: &str) -> Partition {
        Partition::flow(place(self.flow, &[namespace.as_bytes(), name.as_bytes()]))
    }

    /// The flow partition that an idempotency key belongs to.
    pub fn key_partition(&self, namespace: &str, idempotency_key: &str) -> Partition {
        Partition::flow(place(self.flow, &[namespace.as_bytes(), idempotency_key.as_bytes()]))
    }

    /// The flow partition whose log has the events of a budget.
    pub fn budget_events_partition(&self, namespace: &str, budget: &str) -> Partition {
        Partition::flow(place(self.flow, &[b"budget events", namespace.as_bytes(), budget.as_bytes()]))
    }
}

/// Spreads names evenly: the first bytes of a SHA-256 over the length-prefixed parts, modulo the count.
pub(crate) fn place(count: u32, parts: &[&[u8]]) -> u16 {
    let digest = digest16(parts);
    let mut first = [0u8; 8];
    first.copy_from_slice(&digest[..8]);
    let slot = u64::from_be_bytes(first) % u64::from(count.max(1));
    u16::try_from(slot).unwrap_or(0)
}

/// Sixteen bytes of SHA-256 over length-prefixed parts: the key of everything that people name.
pub fn digest16(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut digest = [0u8; 16];
    digest.copy_from_slice(&hasher.finalize()[..16]);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_zero_or_past_the_id_space_is_refused_and_named() {
        for (config, ok) in [
            (PartitionConfig::SINGLE, true),
            (PartitionConfig { flow: limits::PARTITIONS_MAX, budget: 1, quota: 1 }, true),
            (PartitionConfig { flow: limits::PARTITIONS_MAX + 1, budget: 1, quota: 1 }, false),
            (PartitionConfig { flow: 1, budget: 0, quota: 1 }, false),
        ] {
            assert_eq!(config.validate().is_ok(), ok, "{config:?}");
        }
        let error = PartitionConfig { flow: 1, budget: 1, quota: 0 }.validate().unwrap_err();
        assert_eq!(error.details["field"], "quota_partitions");
    }

    #[test]
    fn a_different_count_is_refused_with_the_field_and_both_numbers() {
        let error = PartitionConfig::STANDALONE.check_against(&PartitionConfig::CLUSTER).unwrap_err();
        assert_eq!(error.code, Code::PartitionCountsDiffer);
        assert_eq!(error.details["field"], "flow_partitions");
        assert_eq!(error.details["configured"], PartitionConfig::STANDALONE.flow);
        assert_eq!(error.details["stored"], 256);
    }

    #[test]
    fn every_partition_has_an_ordinal_of_its_own() {
        let config = PartitionConfig { flow: limits::PARTITIONS_MAX, budget: 3, quota: 2 };
        let mut seen = std::collections::BTreeSet::new();
        for partition in config.all() {
            assert!(seen.insert(partition.ordinal()), "{partition} repeats");
            assert_eq!(Partition::from_ordinal(partition.ordinal()), Some(partition));
        }
        assert_eq!(seen.len(), 65_536 + 3 + 2 + 1);
    }
}
