//! How the queues of a lane come to be known. Of a lane without claims only the partitions are remembered; its first
//! claim reads the names of its queues there; after a while without claims the queues are forgotten again.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::{Family, Partition};

use super::lane::{AwaitedLane, Lane, Learning, LearningState};
use super::{
    BLOCKED_MS, Criteria, KEPT_MS, LANES_REMEMBERED_MAX, NamesPage, Opening, POSTPONED_MS, Pick, QUEUES_MAX, QueueId,
    Read, Ready, UNREAD_MAX, Wanted, lane_mut,
};

impl Ready {
    /// A claim asks for work, so from now on the queues of its lanes are kept. `partitions` returns all that may hold
    /// work.
    pub(crate) fn begin(&mut self, criteria: &Criteria, partitions: impl Fn() -> Vec<Partition>, now: i64) {
        if !self.lanes.contains_key(&criteria.namespace) {
            self.lanes.insert(criteria.namespace.clone(), BTreeMap::new());
        }
        let Some(lanes) = self.lanes.get_mut(&criteria.namespace) else { return };
        for name in &criteria.lanes {
            let places = match lanes.get_mut(name) {
                Some(Lane::Awaited(lane)) => {
                    lane.claimed_at = now;
                    continue;
                }
                Some(Lane::Remembered(places)) => {
                    self.remembered -= 1;
                    std::mem::take(places).into_keys().collect()
                }
                None if self.forgot_lanes => partitions(),
                None => Vec::new(),
            };
            let mut unlearnt: BTreeMap<Partition, Learning> =
                places.into_iter().map(|partition| (partition, Learning::due(false))).collect();
            unlearnt.extend(self.unswept.iter().map(|partition| (*partition, Learning::due(true))));
            let lane = AwaitedLane { claimed_at: now, unlearnt, ..AwaitedLane::default() };
            lanes.insert(name.clone(), Lane::Awaited(Box::new(lane)));
        }
        if !criteria.skills.kinds.is_empty() {
            self.list_by_kind(criteria);
        }
        if now >= self.let_go_at {
            self.let_go(now);
        }
    }

    /// The first claim that names kinds has the heads of its lanes listed by kind.
    fn list_by_kind(&mut self, criteria: &Criteria) {
        for name in &criteria.lanes {
            let Some(lane) = lane_mut(&mut self.lanes, &criteria.namespace, name) else { continue };
            if !lane.list_by_kind() {
                continue;
            }
            for id in lane.queues.clone() {
                let Some(queue) = self.queues.get(&id) else { continue };
                for at in queue.listed.places().into_iter().flatten() {
                    lane.list(&queue.name, at, id.clone());
                }
            }
        }
    }

    /// Remembers that work may wait in a lane that no worker here claims from.
    pub(super) fn remember(&mut self, namespace: String, lane: String, partition: Partition) {
        let stamp = self.stamp;
        let lanes = self.lanes.entry(namespace).or_default();
        match lanes.get_mut(&lane) {
            Some(Lane::Remembered(places)) => drop(places.insert(partition, stamp)),
            Some(Lane::Awaited(_)) => {}
            None if self.remembered >= LANES_REMEMBERED_MAX => self.forgot_lanes = true,
            None => {
                self.remembered += 1;
                lanes.insert(lane, Lane::Remembered(BTreeMap::from([(partition, stamp)])));
            }
        }
    }

    /// The names of queues that a claimer's lane may have, unless it has enough to read.
    pub(super) fn learn_names(
        &mut self,
        criteria: &Criteria,
        (name, wanted): (&str, Wanted),
        pick: &mut Pick,
        now: i64,
    ) {
        let Some(lane) = lane_mut(&mut self.lanes, &criteria.namespace, name) else { return };
        if lane.unlearnt.is_empty() || lane.has_unread(&criteria.skills, UNREAD_MAX) {
            return;
        }
        let due = lane.unlearnt.iter_mut().filter_map(|(partition, learning)| match learning.state {
            LearningState::Due { suspect } => Some((*partition, suspect, learning)),
            _ => None,
        });
        for (partition, suspect, learning) in due.take(pick.room(wanted)) {
            learning.state = LearningState::Reading { since: now };
            let (namespace, lane, after) = (criteria.namespace.clone(), name.to_owned(), learning.after.clone());
            let read = Read::Names { partition, namespace, lane, after };
            if suspect { pick.suspects.push(read) } else { pick.reads.push(read) }
        }
    }

    /// A page of the names of a lane's queues in a partition was read.
    pub(crate) fn learnt(&mut self, (namespace, lane): (&str, &str), partition: Partition, page: NamesPage, now: i64) {
        self.read_answered(partition, now);
        let Some(known) = lane_mut(&mut self.lanes, namespace, lane) else { return };
        known.read_at = Some(now);
        let NamesPage { mut after, names, more } = page;
        // A page that was requested before reading began anew is dropped.
        let Some(since) = known.unlearnt.get(&partition).filter(|l| l.after == after).map(|l| l.since) else { return };
        let mut room = true;
        for index in names {
            let id = QueueId { partition, index };
            room = self.find(&id, since, now);
            if !room {
                break;
            }
            after = Some(id.index);
        }
        let Some(known) = lane_mut(&mut self.lanes, namespace, lane) else { return };
        let Some(learning) = known.unlearnt.get_mut(&partition) else { return };
        if !room {
            let until = now + POSTPONED_MS;
            (learning.state, learning.after) = (LearningState::Postponed { until }, after);
            let opening = Opening::Names { namespace: namespace.to_owned(), lane: lane.to_owned(), partition };
            return self.open_at(until, opening);
        }
        if !more && !std::mem::take(&mut learning.again) {
            known.unlearnt.remove(&partition);
            return;
        }
        (learning.state, learning.after) = (LearningState::Due { suspect: false }, after.filter(|_| more));
        self.wake_lane(namespace, lane);
    }

    /// Takes the name of a queue that was found in the store. The queue is to be read, unless its name was announced
    /// since the number `since`. Returns whether there was room for it.
    fn find(&mut self, id: &QueueId, since: u64, now: i64) -> bool {
        if self.queues.get(id).is_some_and(|queue| queue.found >= since) {
            return true;
        }
        if self.queues.len() >= QUEUES_MAX && !self.queues.contains_key(id) {
            return false;
        }
        self.announce_name(id, now);
        true
    }

    /// Announces that the store may hold work of any score in this queue. A name that this version cannot read is
    /// ignored.
    fn announce_name(&mut self, id: &QueueId, now: i64) {
        let Some(queue) = self.queue(id, now) else { return };
        queue.note_name();
        self.relist(id);
        self.wake_for(id);
    }

    /// The names of a lane's queues in a partition could not be read.
    pub(crate) fn not_learnt(&mut self, (namespace, lane): (&str, &str), partition: Partition, now: i64) {
        let Some(known) = lane_mut(&mut self.lanes, namespace, lane) else { return };
        let until = now + BLOCKED_MS;
        let state = LearningState::Blocked { until };
        let learning = known.unlearnt.entry(partition).or_insert_with(|| Learning::due(true));
        if matches!(learning.state, LearningState::Blocked { .. }) {
            return;
        }
        learning.state = state;
        let opening = Opening::Names { namespace: namespace.to_owned(), lane: lane.to_owned(), partition };
        self.open_at(until, opening);
    }

    pub(super) fn learn_again(&mut self, namespace: &str, name: &str, partition: Partition, now: i64) {
        let Some(lane) = lane_mut(&mut self.lanes, namespace, name) else { return };
        let Some(learning) = lane.unlearnt.get_mut(&partition) else { return };
        let suspect = match learning.state {
            LearningState::Blocked { until } if until <= now => true,
            LearningState::Postponed { until } if until <= now => false,
            _ => return,
        };
        learning.state = LearningState::Due { suspect };
        self.wake_lane(namespace, name);
    }

    /// The number of the last announcement, taken before the names of a partition's queues are read.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// A first sweep begins: partitions that it has not reached may hold work of any lane, so claims read those
    /// themselves.
    pub(crate) fn sweep_begins(&mut self, partitions: impl Iterator<Item = Partition>) {
        self.unswept.extend(partitions);
    }

    /// A sweep could not read the names of a partition's queues: claims look for those of their lanes.
    pub(crate) fn sweep_failed(&mut self, partition: Partition, now: i64) {
        if partition.family != Family::Flow {
            return;
        }
        self.unswept.insert(partition);
        let mut awaited = Vec::new();
        for (namespace, lanes) in &self.lanes {
            let lanes = lanes.iter().filter(|(_, lane)| lane.awaited().is_some());
            awaited.extend(lanes.map(|(name, _)| (namespace.clone(), name.clone())));
        }
        // The queues may have changed without a hint that arrived.
        let since = self.stamp + 1;
        for (namespace, name) in awaited {
            self.not_learnt((&namespace, &name), partition, now);
            let lane = lane_mut(&mut self.lanes, &namespace, &name);
            if let Some(learning) = lane.and_then(|lane| lane.unlearnt.get_mut(&partition)) {
                (learning.since, learning.after) = (since, None);
            }
        }
    }

    /// A sweep that began at this announcement has read a page of the names of a partition's queues: a queue that should
    /// be on it and is not, and that was not announced since, is not there.
    pub(crate) fn sweep_found(&mut self, partition: Partition, page: &NamesPage, began: u64, now: i64) {
        let last = page.names.last().filter(|_| page.more);
        for id in self.queues_between(partition, page.after.as_ref(), last) {
            let gone = page.names.binary_search(&id.index).is_err()
                && self.queues.get(&id).is_some_and(|queue| queue.stamp <= began && queue.is_at_rest());
            if gone {
                self.forget(&id);
            }
        }
        for index in &page.names {
            self.announce_name(&QueueId { partition, index: index.clone() }, now);
        }
    }

    /// A sweep that began at this announcement has read all names of a partition's queues; these lanes have some.
    pub(crate) fn sweep_ended(&mut self, partition: Partition, waits: &BTreeMap<String, BTreeSet<String>>, began: u64) {
        self.unswept.remove(&partition);
        for (namespace, lanes) in &mut self.lanes {
            let waits = waits.get(namespace);
            lanes.retain(|name, lane| {
                let Lane::Remembered(places) = lane else { return true };
                let found = waits.is_some_and(|waits| waits.contains(name));
                if !found && places.get(&partition).is_some_and(|stamp| *stamp <= began) {
                    places.remove(&partition);
                }
                if places.is_empty() {
                    self.remembered -= 1;
                }
                !places.is_empty()
            });
        }
        self.lanes.retain(|_, lanes| !lanes.is_empty());
    }

    /// Drops candidates that no claim took for a while, and the queues of lanes that no worker claims from any more.
    pub(crate) fn let_go(&mut self, now: i64) {
        self.let_go_at = now + KEPT_MS / 4;
        let unused = now - KEPT_MS;
        let mut dropped = Vec::new();
        for (id, queue) in
            self.queues.iter_mut().filter(|(_, queue)| queue.used_at < unused && !queue.buffer.is_empty())
        {
            self.buffered -= queue.drop_buffer();
            dropped.push(id.clone());
        }
        for id in dropped {
            self.relist(&id);
        }
        let mut idle = Vec::new();
        for (namespace, lanes) in &self.lanes {
            let unasked = lanes.iter().filter_map(|(name, lane)| Some((name, lane.awaited()?)));
            let unasked = unasked.filter(|(_, lane)| lane.claimed_at < unused && lane.lines.is_empty());
            idle.extend(unasked.map(|(name, _)| (namespace.clone(), name.clone())));
        }
        for (namespace, name) in idle {
            self.let_lane_go(namespace, name);
        }
    }

    fn let_lane_go(&mut self, namespace: String, name: String) {
        let Some(lane) = lane_mut(&mut self.lanes, &namespace, &name) else { return };
        let queues = std::mem::take(&mut lane.queues);
        let mut places: BTreeSet<Partition> = lane.unlearnt.keys().copied().collect();
        places.extend(queues.iter().map(|id| id.partition));
        for id in &queues {
            self.forget(id);
        }
        if let Some(lanes) = self.lanes.get_mut(&namespace) {
            lanes.remove(&name);
            if lanes.is_empty() {
                self.lanes.remove(&namespace);
            }
        }
        for partition in places {
            self.remember(namespace.clone(), name.clone(), partition);
        }
    }

    /// The lanes of a namespace in which there may be work.
    pub(crate) fn lanes(&self, namespace: &str) -> Vec<String> {
        let lanes = self.lanes.get(namespace).into_iter().flatten();
        let with_work = lanes.filter(|(_, lane)| match lane {
            Lane::Remembered(places) => !places.is_empty(),
            Lane::Awaited(lane) => !lane.queues.is_empty() || !lane.unlearnt.is_empty(),
        });
        with_work.map(|(name, _)| name.clone()).collect()
    }
}
