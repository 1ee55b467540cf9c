//! A lane of a namespace. Of a lane that nobody here asks for, only the partitions are remembered in which something may
//! wait; its queues are learnt when the first claim comes.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::{CapabilitySet, Partition};

use super::queue::QueueId;

/// What is known of a lane.
#[derive(Debug)]
pub(super) enum Lane {
    /// Nobody here asks for it: where something may wait, with the number of the announcement that said so last.
    Remembered(BTreeMap<Partition, u64>),
    /// A claim here asks for it, or did so not long ago.
    Awaited(Box<AwaitedLane>),
}

impl Lane {
    pub(super) fn awaited(&self) -> Option<&AwaitedLane> {
        match self {
            Lane::Awaited(lane) => Some(lane),
            Lane::Remembered(_) => None,
        }
    }

    pub(super) fn awaited_mut(&mut self) -> Option<&mut AwaitedLane> {
        match self {
            Lane::Awaited(lane) => Some(lane),
            Lane::Remembered(_) => None,
        }
    }
}

/// Where the names of the lane's queues are yet to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Learning {
    /// They can be read now. The last read of a suspect failed, and no claim waits for the next one.
    Due { suspect: bool },
    /// A claim reads them since then.
    Reading { since: i64 },
    /// The last read failed: not before then.
    Blocked { until: i64 },
    /// There is no room for more queues: not before then.
    Postponed { until: i64 },
}

/// A lane whose work somebody here asks for.
#[derive(Debug, Default)]
pub(super) struct AwaitedLane {
    /// When a claim last asked for it.
    pub(super) claimed_at: i64,
    /// When a read of its queues last succeeded.
    pub(super) read_at: Option<i64>,
    /// Partitions in which it may have queues that are not known.
    pub(super) unlearnt: BTreeMap<Partition, Learning>,
    pub(super) queues: BTreeSet<QueueId>,
    /// Its queues with a head that could be picked now, by what they require.
    pub(super) routes: BTreeMap<CapabilitySet, BTreeSet<(i64, QueueId)>>,
    /// Those who wait for its work, by what they can do.
    pub(super) lines: BTreeMap<CapabilitySet, Line>,
}

/// Claims with the same capabilities.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// All of them.
    pub(super) all: BTreeSet<u64>,
    /// Those that were not told of work since they last looked.
    pub(super) idle: BTreeSet<u64>,
}

impl AwaitedLane {
    pub(super) fn list(&mut self, route: &CapabilitySet, score: i64, id: QueueId) {
        match self.routes.get_mut(route) {
            Some(heads) => drop(heads.insert((score, id))),
            None => drop(self.routes.insert(route.clone(), BTreeSet::from([(score, id)]))),
        }
    }

    pub(super) fn unlist(&mut self, route: &CapabilitySet, score: i64, id: &QueueId) {
        if let Some(heads) = self.routes.get_mut(route) {
            heads.remove(&(score, id.clone()));
            if heads.is_empty() {
                self.routes.remove(route);
            }
        }
    }

    /// The queue with the best head among those that a claimer can take.
    pub(super) fn best(&self, capabilities: &CapabilitySet) -> Option<&QueueId> {
        let routes = self.routes.iter().filter(|(route, _)| capabilities.contains_all(route));
        routes.filter_map(|(_, heads)| heads.first()).min().map(|(_, id)| id)
    }

    /// Whether there is something to take, or to read in order to know.
    pub(super) fn may_have_work(&self) -> bool {
        !self.routes.is_empty() || self.has_names_to_read()
    }

    pub(super) fn has_names_to_read(&self) -> bool {
        self.unlearnt.values().any(|learning| matches!(learning, Learning::Due { .. }))
    }

    /// The one that has waited longest, of those who can take this and were not told of anything.
    pub(super) fn longest_idle(&self, required: &CapabilitySet) -> Option<u64> {
        let lines = self.lines.iter().filter(|(capabilities, _)| capabilities.contains_all(required));
        lines.filter_map(|(_, line)| line.idle.first()).min().copied()
    }

    /// Whether somebody waits who can take this.
    pub(super) fn is_awaited(&self, required: &CapabilitySet) -> bool {
        self.lines.keys().any(|capabilities| capabilities.contains_all(required))
    }

    pub(super) fn join(&mut self, capabilities: &CapabilitySet, number: u64) {
        if !self.lines.contains_key(capabilities) {
            self.lines.insert(capabilities.clone(), Line::default());
        }
        if let Some(line) = self.lines.get_mut(capabilities) {
            line.all.insert(number);
            line.idle.insert(number);
        }
    }

    pub(super) fn set_idle(&mut self, capabilities: &CapabilitySet, number: u64, idle: bool) {
        let Some(line) = self.lines.get_mut(capabilities) else { return };
        if idle {
            line.idle.insert(number)
        } else {
            line.idle.remove(&number)
        };
    }

    pub(super) fn leave(&mut self, capabilities: &CapabilitySet, number: u64) {
        let Some(line) = self.lines.get_mut(capabilities) else { return };
        line.all.remove(&number);
        line.idle.remove(&number);
        if line.all.is_empty() {
            self.lines.remove(capabilities);
        }
    }
}
