//! Common parts of budgets, quotas and concurrency keys: how a gate is called, that it is defined once under a name, and
//! that it remembers where work is parked because of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use crate::error::{Code, Error};
use crate::limits;
use crate::partition::{Partition, PartitionConfig, digest16};

/// One of the limits that an execution passes before it starts. Its text is part of queue names, of the index of parked
/// work and of parked executions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate<'n> {
    /// A budget by name: `b:name`.
    Budget(&'n str),
    /// A quota by name: `q:name`.
    Quota(&'n str),
    /// A concurrency key under one limit: `c:limit:key`. Limits have gates of their own: a key that is full for one limit
    /// may have room under another.
    Key {
        /// How many may run at once.
        limit: u32,
        /// The key.
        key: &'n str,
    },
}

impl<'n> Gate<'n> {
    /// The gate with this text.
    pub fn parse(text: &'n str) -> Option<Self> {
        match text.split_once(':')? {
            ("b", name) => Some(Self::Budget(name)),
            ("q", name) => Some(Self::Quota(name)),
            ("c", limited) => {
                let (limit, key) = limited.split_once(':')?;
                Some(Self::Key { limit: limit.parse().ok()?, key })
            }
            _ => None,
        }
    }

    /// Whether a text begins as that of a gate does, or as the mark of an estimate. Names may contain commas, and so a list
    /// of gates is told apart by these beginnings.
    pub fn begins(text: &str) -> bool {
        ["b:", "q:", "c:", "e:"].iter().any(|prefix| text.starts_with(prefix))
    }

    /// The name of the budget, where the text is that of one.
    pub fn budget_of(text: &'n str) -> Option<&'n str> {
        match Self::parse(text) {
            Some(Self::Budget(name)) => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for Gate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Budget(name) => write!(f, "b:{name}"),
            Self::Quota(name) => write!(f, "q:{name}"),
            Self::Key { limit, key } => write!(f, "c:{limit}:{key}"),
        }
    }
}

/// Adds a gate, or the mark of an estimate, to a list of gates.
pub(crate) fn enlist(list: &mut String, gate: impl fmt::Display) {
    let comma = if list.is_empty() { "" } else { "," };
    write!(list, "{comma}{gate}").expect("a string takes whatever is written");
}

/// The mark of an estimate in a list of gates: `e:` and a digest. Estimates have queues of their own, because a budget that
/// has no room for one may have room for another.
pub(crate) fn estimate_mark(estimate: &BTreeMap<String, i64>) -> String {
    let parts: Vec<u8> = estimate.iter().flat_map(|(name, amount)| format!("{name}={amount}\n").into_bytes()).collect();
    let digest = digest16(&[&parts]);
    digest[..8].iter().fold(String::from("e:"), |mark, byte| mark + &format!("{byte:02x}"))
}

/// The outcome of a definition.
#[derive(Debug, Clone, PartialEq)]
pub enum Defined<T> {
    /// The name was free; this document is to be written.
    Created(T),
    /// The name has this very definition; there is nothing to write.
    AlreadyExists,
}

#[cfg(test)]
impl<T> Defined<T> {
    /// The document of a definition whose name was free.
    pub(crate) fn created(self) -> T {
        match self {
            Defined::Created(document) => document,
            Defined::AlreadyExists => panic!("the name was taken"),
        }
    }
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

    /// Forgets partitions in which nothing is parked any more; says whether that is news. Where there were too many to
    /// name, those that are left are named as soon as they are few enough.
    pub fn forget(&mut self, emptied: &[Partition], config: &PartitionConfig) -> bool {
        let before = self.clone();
        if self.anywhere {
            let left = self.places(config).into_iter().filter(|place| !emptied.contains(place));
            let left: BTreeSet<u16> = left.map(|place| place.number).collect();
            if left.len() <= limits::PARKED_PARTITIONS_MAX {
                *self = Self { partitions: left, ..Self::default() };
            }
        } else {
            self.partitions.retain(|number| !emptied.contains(&Partition::flow(*number)));
        }
        *self != before
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
    fn the_text_of_a_gate_is_read_back() {
        for gate in [Gate::Budget("acme/ada"), Gate::Quota("a:b,c"), Gate::Key { limit: 3, key: "x:y" }] {
            assert_eq!(Gate::parse(&gate.to_string()), Some(gate));
            assert!(Gate::begins(&gate.to_string()));
        }
        for text in ["", "b", "x:y", "c:many:key", "c:3"] {
            assert_eq!(Gate::parse(text), None, "{text}");
        }
    }

    #[test]
    fn each_estimate_has_a_mark_of_its_own() {
        let mark = |amount: i64| estimate_mark(&BTreeMap::from([("tokens".to_owned(), amount)]));
        assert!(mark(5) == mark(5) && mark(5) != mark(6) && mark(5).len() == 18);
        assert!(Gate::begins(&mark(5)) && Gate::parse(&mark(5)).is_none());
    }

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
    }

    #[test]
    fn partitions_that_were_emptied_are_forgotten_and_a_few_that_are_left_are_named() {
        let config = PartitionConfig { flow: 256, budget: 3, quota: 3 };
        let mut parked = Parked::default();
        parked.add(7);
        let seven = [Partition::flow(7)];
        assert!(parked.forget(&seven, &config) && !parked.forget(&seven, &config) && parked.is_empty());
        parked.anywhere = true;
        assert!(!parked.forget(&seven, &config), "255 are too many to name");
        let most: Vec<Partition> = (2..256).map(Partition::flow).collect();
        assert!(parked.forget(&most, &config) && !parked.anywhere);
        assert_eq!(parked.places(&config), [Partition::flow(0), Partition::flow(1)]);
    }
}
