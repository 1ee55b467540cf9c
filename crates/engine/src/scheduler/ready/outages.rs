//! Partitions that do not answer. The queues of such a partition are out of sight until a read or a commit there
//! succeeds. Once in a while one claim reads one of them, and the result applies to all. A partition whose reads hang
//! is left alone in the same way, but known candidates of its queues are handed out, because commits may work there.
//!
//! Cost: the beginning and the end of an outage touch every queue of the partition once. Everything else during an
//! outage costs the same however many queues the partition has.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use ff_core::{IndexName, Partition};

use super::lane::AwaitedLane;
use super::queue::{Listing, Queue};
use super::{
    BLOCKED_MS, Criteria, Opening, Pick, QueueId, READ_PATIENCE_MS, READS_MAX, Read, Ready, TROUBLED_MS, Wanted,
    lane_mut,
};

/// A partition that does not answer.
#[derive(Debug)]
pub(super) struct Outage {
    state: OutageState,
    /// No call is known to have failed there, but reads get no answer.
    hangs: bool,
    /// The queue that was probed last. The next probe reads another one, because this one may hang.
    probed: Option<QueueId>,
    /// The lanes that have queues there, by namespace; their claims probe whether the partition works again.
    lanes: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutageState {
    /// The partition failed: it is left alone until this instant.
    Closed { until: i64 },
    /// The next claim that asks for one of the lanes reads a queue.
    Due,
    /// A claim reads a queue. After that instant another claim may read another queue.
    Probing { until: i64 },
}

impl Outage {
    pub(super) fn add_lane(&mut self, namespace: &str, lane: &str) {
        if self.has_lane(namespace, lane) {
            return;
        }
        self.lanes.entry(namespace.to_owned()).or_default().insert(lane.to_owned());
    }

    fn remove_lane(&mut self, namespace: &str, lane: &str) {
        let Some(lanes) = self.lanes.get_mut(namespace) else { return };
        lanes.remove(lane);
        if lanes.is_empty() {
            self.lanes.remove(namespace);
        }
    }

    fn has_lane(&self, namespace: &str, lane: &str) -> bool {
        self.lanes.get(namespace).is_some_and(|lanes| lanes.contains(lane))
    }

    pub(super) fn hangs(&self) -> bool {
        self.hangs
    }

    /// The place of a queue of this partition in the lists of its lane.
    pub(super) fn listing(&self, queue: &Queue) -> Listing {
        if self.hangs { queue.listing_unreadable() } else { Listing::default() }
    }

    fn is_due(&self) -> bool {
        self.state == OutageState::Due
    }
}

impl Ready {
    /// A partition does not answer: its queues are left alone for a while, and their candidates are read anew
    /// afterwards.
    pub(crate) fn partition_failed(&mut self, partition: Partition, now: i64) {
        self.troubled_until = now + TROUBLED_MS;
        let until = now + BLOCKED_MS;
        match self.outages.get_mut(&partition) {
            Some(Outage { state: OutageState::Closed { .. }, hangs: false, .. }) => return,
            Some(outage @ Outage { hangs: false, .. }) => outage.state = OutageState::Closed { until },
            _ => self.begin_outage(partition, until, false),
        }
        self.open_at(until, Opening::Partition(partition));
    }

    /// A read has been under way in a partition for longer than claims wait. It is no outage while others are answered.
    pub(crate) fn read_hangs(&mut self, partition: Partition, now: i64) {
        let answered = self.answered_at.get(&partition).is_some_and(|at| now - at < READ_PATIENCE_MS);
        if answered || self.outages.contains_key(&partition) {
            return;
        }
        let until = now + BLOCKED_MS;
        self.begin_outage(partition, until, true);
        self.open_at(until, Opening::Partition(partition));
    }

    fn begin_outage(&mut self, partition: Partition, until: i64, hangs: bool) {
        let state = OutageState::Closed { until };
        let mut outage = Outage { state, hangs, probed: None, lanes: BTreeMap::new() };
        let ids = self.queues_in(partition);
        for queue in ids.iter().filter_map(|id| self.queues.get(id)) {
            outage.add_lane(&queue.name.namespace, &queue.name.lane);
        }
        self.outages.insert(partition, outage);
        for id in ids {
            if let Some(queue) = self.queues.get_mut(&id).filter(|_| !hangs) {
                self.buffered -= queue.drop_buffer();
                queue.read_after = None;
            }
            self.relist(&id);
        }
    }

    /// A read in a partition succeeded: it works, whatever it did before.
    pub(super) fn read_answered(&mut self, partition: Partition, now: i64) {
        self.answered_at.insert(partition, now);
        self.end_outage(partition);
    }

    /// A commit in a partition succeeded. That says nothing about reads that hang there.
    pub(super) fn commit_answered(&mut self, partition: Partition) {
        if self.outages.get(&partition).is_some_and(|outage| !outage.hangs) {
            self.end_outage(partition);
        }
    }

    fn end_outage(&mut self, partition: Partition) {
        if self.outages.remove(&partition).is_none() {
            return;
        }
        for id in self.queues_in(partition) {
            self.relist(&id);
            self.wake_for(&id);
        }
    }

    /// Whether some partition failed not long ago.
    pub(crate) fn is_troubled(&self, now: i64) -> bool {
        now < self.troubled_until
    }

    /// A read of a queue failed because its partition does not answer.
    pub(crate) fn fetch_met_outage(&mut self, id: &QueueId, now: i64) {
        if let Some(queue) = self.queues.get_mut(id) {
            queue.fetch_failed();
        }
        self.relist(id);
        self.partition_failed(id.partition, now);
    }

    /// A read of one queue failed, for a reason of its own: it is left alone for a while.
    pub(crate) fn fetch_failed(&mut self, id: &QueueId, now: i64) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        queue.fetch_failed();
        self.buffered -= queue.drop_buffer();
        queue.suspect = true;
        queue.read_after = None;
        if queue.blocked_until.is_none() {
            queue.blocked_until = Some(now + BLOCKED_MS);
            self.open_at(now + BLOCKED_MS, Opening::Queue(id.clone()));
        }
        self.relist(id);
    }

    /// It is time to probe whether a partition works again: one claim of each lane is told, and the first one that
    /// looks reads a queue.
    pub(super) fn open_partition(&mut self, partition: Partition, now: i64) {
        let Some(outage) = self.outages.get_mut(&partition) else { return };
        match outage.state {
            OutageState::Closed { until } | OutageState::Probing { until } if until <= now => {}
            _ => return,
        }
        outage.state = OutageState::Due;
        for (namespace, lanes) in outage.lanes.clone() {
            for lane in lanes {
                self.wake_lane(&namespace, &lane);
            }
        }
    }

    /// Whether the next claim should probe this partition.
    pub(super) fn is_probe_due_in(&self, partition: Partition) -> bool {
        self.outages.get(&partition).is_some_and(Outage::is_due)
    }

    /// Whether a claim of this lane should probe some partition.
    pub(super) fn is_probe_due(&self, namespace: &str, lane: &str) -> bool {
        self.outages.values().any(|outage| outage.is_due() && outage.has_lane(namespace, lane))
    }

    /// Adds reads that probe whether partitions with queues of this lane work again, one in each.
    pub(super) fn probe(&mut self, criteria: &Criteria, (name, wanted): (&str, Wanted), pick: &mut Pick, now: i64) {
        if !self.is_probe_due(&criteria.namespace, name) {
            return;
        }
        let due = self.outages.iter().filter(|(_, outage)| outage.is_due());
        let due = due.filter(|(_, outage)| outage.has_lane(&criteria.namespace, name));
        let due: Vec<Partition> = due.map(|(partition, _)| *partition).collect();
        for partition in due.into_iter().take(pick.room(wanted)) {
            if let Some(id) = self.begin_probe(partition, (&criteria.namespace, name), now) {
                pick.suspects.push(Read::Head(id));
            }
        }
    }

    /// Begins to read a queue of a lane in a partition that failed. Queues that are being read are skipped.
    fn begin_probe(&mut self, partition: Partition, (namespace, name): (&str, &str), now: i64) -> Option<QueueId> {
        let lane = lane_mut(&mut self.lanes, namespace, name)?;
        let outage = self.outages.get_mut(&partition)?;
        let behind = outage.probed.take();
        let mut found = false;
        for id in queues_behind(lane, partition, behind.as_ref()) {
            outage.probed = Some(id.clone());
            if let Some(queue) = self.queues.get_mut(id).filter(|queue| queue.can_be_probed()) {
                queue.begin_fetch(now);
                found = true;
                break;
            }
        }
        let (probed, until) = (outage.probed.clone(), now + BLOCKED_MS);
        if found {
            outage.state = OutageState::Probing { until };
            self.open_at(until, Opening::Partition(partition));
        } else if probed.is_none() {
            outage.remove_lane(namespace, name);
            if outage.lanes.is_empty() {
                self.outages.remove(&partition);
            }
        }
        probed.filter(|_| found)
    }
}

/// The queues of a lane in a partition: first those after a given one, then those from the first one on.
fn queues_behind<'l>(
    lane: &'l AwaitedLane,
    partition: Partition,
    behind: Option<&QueueId>,
) -> impl Iterator<Item = &'l QueueId> {
    let first = QueueId { partition, index: IndexName::from_bytes([]) };
    let from = Bound::Excluded(behind.unwrap_or(&first).clone());
    let here = move |id: &&QueueId| id.partition == partition;
    let rest = lane.queues.range((from, Bound::Unbounded)).take_while(here);
    rest.chain(lane.queues.range(first..).take_while(here)).take(READS_MAX)
}
