//! The deployment itself: what was fixed when it was first started.

use crate::document;
use crate::encoding::Document;
use crate::index::{Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::PartitionConfig;

document! {
    /// Settings that every process of a deployment must agree on.
    pub struct Deployment {
        /// Flow partitions.
        "f" flow_partitions: u32,
        /// Budget partitions.
        "b" budget_partitions: u32,
        /// Quota partitions.
        "q" quota_partitions: u32,
        /// When it was first started.
        "c" created_at: i64,
    }
}

impl Deployment {
    /// Where it lives in the system partition.
    pub fn key_of() -> Key {
        Key::new(kind::DEPLOYMENT, &[])
    }

    /// A deployment that starts now.
    pub fn new(partitions: &PartitionConfig, now: i64) -> Self {
        Self {
            flow_partitions: partitions.flow,
            budget_partitions: partitions.budget,
            quota_partitions: partitions.quota,
            created_at: now,
            ..Default::default()
        }
    }

    /// Its partition counts.
    pub fn partitions(&self) -> PartitionConfig {
        PartitionConfig { flow: self.flow_partitions, budget: self.budget_partitions, quota: self.quota_partitions }
    }
}

impl Document for Deployment {
    const KIND: u8 = kind::DEPLOYMENT;
    crate::encoding::compiled_here!();
}

impl Indexed for Deployment {
    fn key(&self) -> Key {
        Self::key_of()
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        Vec::new()
    }
}
