//! Common parts of budgets and quotas: they are defined once under a name, and they remember where work is parked
//! because of them.

use std::collections::BTreeSet;

use crate::error::{Code, Error};
use crate::limits;
use crate::partition::{Partition, PartitionConfig};

/// The outcome of a definition.
#[derive(Debug, Clone, PartialEq)]
pub enum Defined<T> {
    /// The name was free; this document is to be written.
    Created(T),
    /// The name has this very definition; there is nothing to write.
    AlreadyExists,
}

crate::document! {
    /// The flow partitions in which something is parked because of this gate. It may name too many, never too few:
    /// a partition without parked work only costs a look.
    pub struct Parked {
        /// The partitions by number.
        "p" partitions: BTreeSet<u16>,
        /// There were too many to name.
        "a" anywhere: bool,
    }
}

impl Parked {
    /// Remembers a partition; says whether that is news.
    pub fn add(&mut self, partition: u16) -> bool {
        if self.anywhere || self.partitions.contains(&partition) {
            return false;
        }
        if self.partitions.len() == limits::PARKED_PARTITIONS_MAX {
            self.partitions.clear();
            self.anywhere = true;
        } else {
            self.partitions.insert(partition);
        }
        true
    }

    /// Forgets a partition in which nothing is parked any more; says whether that is news.
    pub fn remove(&mut self, partition: u16) -> bool {
        self.partitions.remove(&partition)
    }

    /// Forgets everything, after every partition was looked at.
    pub fn clear(&mut self) {
        self.partitions.clear();
        self.anywhere = false;
    }

    /// Whether nothing is parked anywhere.
    pub fn is_empty(&self) -> bool {
        !self.anywhere && self.partitions.is_empty()
    }

    /// Where to look for parked work.
    pub fn places(&self, config: &PartitionConfig) -> Vec<Partition> {
        if self.anywhere {
            let flow = PartitionConfig { budget: 0, quota: 0, ..*config };
            return flow.all().filter(|place| place.family == crate::Family::Flow).collect();
        }
        self.partitions.iter().map(|&number| Partition::flow(number)).collect()
    }
}

/// The refusal of a definition under a name that has another one.
pub(crate) fn definition_conflict(what: &str, name: &str) -> Error {
    Error::new(Code::DefinitionConflict, format!("the {what} {name} exists with a different definition"))
        .with("name", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parked_work_is_remembered_by_partition_up_to_the_limit_and_then_everywhere() {
        let config = PartitionConfig { flow: 256, budget: 3, quota: 3 };
        let mut parked = Parked::default();
        assert!(parked.is_empty() && parked.places(&config).is_empty());
        let most = u16::try_from(limits::PARKED_PARTITIONS_MAX).unwrap();
        for number in 0..most {
            assert!(parked.add(number) && !parked.add(number));
        }
        assert_eq!((parked.places(&config).len(), parked.anywhere), (limits::PARKED_PARTITIONS_MAX, false));
        assert!(parked.add(most) && parked.anywhere && !parked.is_empty());
        assert_eq!(parked.places(&config), (0..256).map(Partition::flow).collect::<Vec<_>>());
        parked.clear();
        assert_eq!(parked, Parked::default());
    }

    #[test]
    fn a_partition_that_was_emptied_is_forgotten() {
        let mut parked = Parked::default();
        parked.add(7);
        assert!(parked.remove(7) && !parked.remove(7) && parked.is_empty());
    }
}
