//! A lane of a namespace. For a lane that no worker here claims from, only the partitions in which work may wait are
//! remembered; its queues are learnt when the first claim comes.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;

use ff_core::{CapabilitySet, IndexName, Partition};

use super::NEAR_MS;
use super::queue::{Listed, QueueId, QueueName};
use super::turns::{Order, Place, Turns};

/// A lane as this engine knows it.
#[derive(Debug)]
pub(super) enum Lane {
    /// No worker here claims from it. The partitions in which work may wait, each with the number of its last
    /// announcement.
    Remembered(BTreeMap<Partition, u64>),
    /// A claim here asks for it, or did so lately.
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

/// A partition in which the names of the lane's queues are yet to be read. They are read page by page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Learning {
    pub(super) state: LearningState,
    /// The last name that was taken up.
    pub(super) after: Option<IndexName>,
    /// There was no room for a queue whose name may come before the next page, so reading begins with the first page
    /// again after the last.
    pub(super) again: bool,
    /// A queue whose name was announced since this number need not be read again.
    pub(super) since: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LearningState {
    /// The names can be read now. If the partition is suspect, because the last read failed, no claim waits for this
    /// read.
    Due { suspect: bool },
    /// A claim has been reading the names since this instant.
    Reading { since: i64 },
    /// The last read failed: the names are not read before this instant.
    Blocked { until: i64 },
    /// There is no room for more queues: the names are not read before this instant.
    Postponed { until: i64 },
}

impl Learning {
    /// From the first name on; a queue that was ever found by its name need not be read again.
    pub(super) fn new(state: LearningState) -> Self {
        Self { state, after: None, again: false, since: 1 }
    }

    /// Names that are to be read now.
    pub(super) fn due(suspect: bool) -> Self {
        Self::new(LearningState::Due { suspect })
    }
}

/// A lane whose work some worker here asks for.
#[derive(Debug, Default)]
pub(super) struct AwaitedLane {
    /// When a claim last asked for it.
    pub(super) claimed_at: i64,
    /// Other servers take its work at the same time: until this instant this server keeps out of their way.
    pub(super) contended_until: i64,
    /// When a read of its queues last succeeded.
    pub(super) read_at: Option<i64>,
    /// Partitions in which it may have queues that are not known.
    pub(super) unlearnt: BTreeMap<Partition, Learning>,
    pub(super) queues: BTreeSet<QueueId>,
    /// Its queues with a head that could be picked now, by what they require.
    pub(super) routes: BTreeMap<CapabilitySet, Heads>,
    /// Its queues that are to be read because their names were found, by what they require; those that were read
    /// longest ago come first. There may be very many of them: a claim does not read all of them before it takes the
    /// best work that it knows. A queue whose head is known stands among the heads as well.
    pub(super) unread: BTreeMap<CapabilitySet, Heads>,
    /// Whether heads are also listed by kind. That is not needed while no claim of the lane names kinds.
    pub(super) by_kind: bool,
    /// The claims that wait for its work, by what they can take.
    pub(super) lines: BTreeMap<Arc<Skills>, Line>,
    /// The turns of fair keys, if work of the lane has any.
    pub(super) turns: Option<Box<Turns>>,
}

/// The kinds and capabilities of a claimer.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skills {
    pub(crate) capabilities: CapabilitySet,
    /// The kinds it serves; all when empty.
    pub(crate) kinds: BTreeSet<String>,
}

impl Skills {
    /// Whether the claimer can take work of this kind that requires these capabilities.
    pub(super) fn suffice(&self, required: &CapabilitySet, kind: &str) -> bool {
        let serves = self.kinds.is_empty() || kind.is_empty() || self.kinds.contains(kind);
        serves && self.capabilities.contains_all(required)
    }
}

/// Queues that require the same capabilities, in the order of their heads.
#[derive(Debug)]
pub(super) struct Heads {
    all: Order,
    /// Empty unless the lane lists by kind.
    by_kind: BTreeMap<String, Order>,
}

impl Heads {
    fn best<'a>(&'a self, kinds: &'a BTreeSet<String>) -> Option<(Place, &'a QueueId)> {
        if kinds.is_empty() { self.all.first() } else { self.served(kinds).filter_map(Order::first).min() }
    }

    /// The heads up to this score.
    fn near<'a>(&'a self, kinds: &'a BTreeSet<String>, score: i64) -> Vec<(i64, &'a QueueId)> {
        let all = kinds.is_empty().then_some(&self.all);
        all.into_iter().chain(self.served(kinds)).flat_map(|order| order.up_to(score)).collect()
    }

    /// The heads of these kinds, and those of queues that hold any kind.
    fn served<'a>(&'a self, kinds: &'a BTreeSet<String>) -> impl Iterator<Item = &'a Order> {
        kinds.iter().map(String::as_str).chain([""]).filter_map(|kind| self.by_kind.get(kind))
    }
}

/// Claims that can take the same.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// All of them.
    pub(super) all: BTreeSet<u64>,
    /// The waiters that were not told of work since they last looked.
    pub(super) idle: BTreeSet<u64>,
}

impl AwaitedLane {
    /// Adds a queue. Returns whether its work is the first in the lane that takes turns: then all queues must be listed
    /// again.
    pub(super) fn add_queue(&mut self, name: &QueueName, id: &QueueId) -> bool {
        self.queues.insert(id.clone());
        let first = self.turns.is_none() && !name.fair_key.is_empty();
        if first {
            self.turns = Some(Box::default());
            self.routes.clear();
        }
        first
    }

    /// Charges the account of a key that is served, or refunds a key that was not served after all.
    pub(super) fn charge(&mut self, key: &str, weight: u32, served: bool) {
        let Some(turns) = &mut self.turns else { return };
        if served {
            turns.charge(key, weight)
        } else {
            turns.refund(key, weight)
        }
        for heads in self.routes.values_mut() {
            heads.all.moved(key, turns);
            heads.by_kind.values_mut().for_each(|of_kind| of_kind.moved(key, turns));
        }
        if turns.are_many() {
            turns.forget_unlisted(|key| self.routes.values().any(|heads| heads.all.has_key(key)));
        }
    }

    pub(super) fn list(&mut self, name: &QueueName, at: Listed, id: QueueId) {
        let (routes, turns, score) = match at {
            Listed::Unread(read_at) => (&mut self.unread, None, read_at),
            Listed::Head(score) => (&mut self.routes, self.turns.as_deref(), score),
        };
        if !routes.contains_key(&name.route) {
            let heads = Heads { all: Order::of(turns), by_kind: BTreeMap::new() };
            routes.insert(name.route.clone(), heads);
        }
        let Some(heads) = routes.get_mut(&name.route) else { return };
        if self.by_kind {
            if !heads.by_kind.contains_key(&name.kind) {
                heads.by_kind.insert(name.kind.clone(), Order::of(turns));
            }
            if let Some(of_kind) = heads.by_kind.get_mut(&name.kind) {
                of_kind.insert(&name.fair_key, (score, id.clone()), turns);
            }
        }
        heads.all.insert(&name.fair_key, (score, id), turns);
    }

    pub(super) fn unlist(&mut self, name: &QueueName, at: Listed, id: &QueueId) {
        let (routes, turns, score) = match at {
            Listed::Unread(read_at) => (&mut self.unread, None, read_at),
            Listed::Head(score) => (&mut self.routes, self.turns.as_deref(), score),
        };
        let Some(heads) = routes.get_mut(&name.route) else { return };
        let head = (score, id.clone());
        heads.all.remove(&name.fair_key, &head, turns);
        if heads.all.is_empty() {
            routes.remove(&name.route);
            return;
        }
        if let Some(of_kind) = heads.by_kind.get_mut(&name.kind) {
            of_kind.remove(&name.fair_key, &head, turns);
            if of_kind.is_empty() {
                heads.by_kind.remove(&name.kind);
            }
        }
    }

    /// Begins to list by kind; returns whether it did not before. Then all queues must be listed again.
    pub(super) fn list_by_kind(&mut self) -> bool {
        !std::mem::replace(&mut self.by_kind, true)
    }

    /// The next queue for a claimer: the one with the best known head, or one that is to be read because its name was
    /// found. With `unread_first` the latter comes first, otherwise only if there is no known head. Also returns
    /// whether it is the latter.
    pub(super) fn best<'a>(&'a self, skills: &'a Skills, unread_first: bool) -> Option<(&'a QueueId, bool)> {
        let known = || best_of(&self.routes, skills).map(|(_, id)| (id, false));
        let unread = || best_of(&self.unread, skills).map(|(_, id)| (id, true));
        if unread_first { unread().or_else(known) } else { known().or_else(unread) }
    }

    /// Among the known heads of about the best age, the best one that is not left to another server.
    pub(super) fn near<'a>(&'a self, skills: &'a Skills, is_left: impl Fn(&QueueId) -> bool) -> Option<&'a QueueId> {
        let (place, _) = best_of(&self.routes, skills)?;
        let limit = place.not_later_than(NEAR_MS);
        let near = sufficient(&self.routes, skills).flat_map(|heads| heads.near(&skills.kinds, limit));
        near.filter(|(_, id)| !is_left(id)).min().map(|(_, id)| id)
    }

    /// Whether a claimer has so many queues to read already that more names would be of no use to it.
    pub(super) fn has_unread(&self, skills: &Skills, count: usize) -> bool {
        let queues = sufficient(&self.unread, skills).map(|heads| match skills.kinds.is_empty() {
            true => heads.all.len(),
            false => heads.served(&skills.kinds).map(Order::len).sum(),
        });
        queues.sum::<usize>() >= count
    }

    /// Whether there may be work for a claimer, or a queue to read that may have some.
    pub(super) fn may_have_work(&self, skills: &Skills) -> bool {
        let heads = match skills.kinds.is_empty() {
            true => !self.routes.is_empty() || !self.unread.is_empty(),
            false => self.best(skills, false).is_some(),
        };
        heads || self.has_names_to_read()
    }

    pub(super) fn has_names_to_read(&self) -> bool {
        self.unlearnt.values().any(|learning| matches!(learning.state, LearningState::Due { .. }))
    }

    /// The waiter that has waited longest, of those that can take the work of this queue and were not told of other
    /// work.
    pub(super) fn longest_idle(&self, name: &QueueName) -> Option<u64> {
        let lines = self.lines.iter().filter(|(skills, _)| skills.suffice(&name.route, &name.kind));
        lines.filter_map(|(_, line)| line.idle.first()).min().copied()
    }

    /// The waiters to tell that the lane has work: of each line as many as there are kinds of work for it. Work that
    /// several lines can take is told to each of them, since the first may take something else. Names and probes may be read
    /// by any claim.
    pub(super) fn to_wake(&self, probe: bool) -> Vec<u64> {
        let mut numbers = Vec::new();
        for (skills, line) in self.lines.iter().filter(|(_, line)| !line.idle.is_empty()) {
            let routes = self.routes.iter().chain(&self.unread);
            let routes = routes.filter(|(route, _)| skills.capabilities.contains_all(route));
            let kinds = routes.map(|(_, heads)| match (self.by_kind, skills.kinds.is_empty()) {
                (false, _) => 1,
                (true, true) => heads.by_kind.len(),
                (true, false) => heads.served(&skills.kinds).count(),
            });
            numbers.extend(line.idle.iter().take(kinds.sum()));
        }
        if probe || self.has_names_to_read() {
            numbers.extend(self.lines.values().filter_map(|line| line.idle.first()).min());
        }
        numbers
    }

    /// Whether a waiter can take work of this kind that requires these capabilities.
    pub(super) fn is_awaited(&self, required: &CapabilitySet, kind: &str) -> bool {
        self.lines.keys().any(|skills| skills.suffice(required, kind))
    }

    pub(super) fn join(&mut self, skills: &Arc<Skills>, number: u64) {
        let line = self.lines.entry(Arc::clone(skills)).or_default();
        line.all.insert(number);
        line.idle.insert(number);
    }

    pub(super) fn set_idle(&mut self, skills: &Skills, number: u64, idle: bool) {
        let Some(line) = self.lines.get_mut(skills) else { return };
        if idle {
            line.idle.insert(number)
        } else {
            line.idle.remove(&number)
        };
    }

    pub(super) fn leave(&mut self, skills: &Skills, number: u64) {
        let Some(line) = self.lines.get_mut(skills) else { return };
        line.all.remove(&number);
        line.idle.remove(&number);
        if line.all.is_empty() {
            self.lines.remove(skills);
        }
    }
}

type Routes = BTreeMap<CapabilitySet, Heads>;

/// The heads that a claimer can take, by what they require.
fn sufficient<'a>(routes: &'a Routes, skills: &'a Skills) -> impl Iterator<Item = &'a Heads> {
    routes.iter().filter(|(route, _)| skills.capabilities.contains_all(route)).map(|(_, heads)| heads)
}

fn best_of<'a>(routes: &'a Routes, skills: &'a Skills) -> Option<(Place, &'a QueueId)> {
    sufficient(routes, skills).filter_map(|heads| heads.best(&skills.kinds)).min()
}
