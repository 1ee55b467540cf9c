//! The queues as this engine knows them: which may hold work, the candidates fetched from them, and the claims that
//! wait.
//!
//! This is plain data behind one short lock, without I/O. Within the process a candidate is handed out to one claim
//! only, so workers of one process never fight over a head; between processes the guards of the commit decide. Instants
//! are of the process's own clock, which never goes back.
//!
//! Queues are kept for lanes that workers here claim from; of other lanes only the partitions are remembered. Cost:
//! picking grows with the capability sets required in the lanes asked for, and logarithmically with their queues. It
//! does not depend on how many executions wait, on other lanes, on closed gates, or on how many workers are idle.

mod gates;
mod lane;
mod learning;
mod openings;
mod outages;
mod picking;
mod queue;
#[cfg(test)]
mod tests;
mod turns;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use ff_core::execution::Execution;
use ff_core::{IndexName, Key, Partition};
use tokio::sync::Notify;

use self::gates::Gates;
use self::lane::{AwaitedLane, Lane, Learning, LearningState};
use self::openings::Opening;
use self::outages::Outage;
use self::queue::{Listed, Listing, Queue};
use self::waiting::Waiter;
use crate::ranks::Ranks;

pub(crate) use self::lane::Skills;
pub(crate) use self::picking::{Pick, Wanted};
pub(crate) use self::queue::{Candidate, QueueId, QueueName};
pub(crate) use self::turns::Turns;

/// Candidates kept for each queue; further ones are read from the store when these are used up.
pub(crate) const BUFFER_MAX: usize = 256;
/// Candidates kept in all queues together.
const BUFFERED_MAX: usize = 32_768;
/// Queues known at a time; further ones are learnt when there is room.
const QUEUES_MAX: usize = 100_000;
/// Lanes that are remembered although no worker here claims from them.
const LANES_REMEMBERED_MAX: usize = 10_000;
/// Queues and lists of names that one claim reads at once.
pub(crate) const READS_MAX: usize = 64;
/// A claim that has this many queues to read does not read the names of more.
const UNREAD_MAX: usize = 1_000;
/// Queues and candidates that no claim has asked for within this time are dropped.
const KEPT_MS: i64 = 60_000;
/// Queues for which there was no room are looked for again after this long.
const POSTPONED_MS: i64 = 5_000;
/// A queue whose partition failed is left alone for this long.
const BLOCKED_MS: i64 = 1_000;
/// For this long after a partition failed, others are expected to fail, too.
const TROUBLED_MS: i64 = 10_000;
/// For this long after another server took a candidate that this one tried, this one prefers partitions in which it is
/// ranked first.
const CONTENDED_MS: i64 = 1_000;
/// It prefers them only to work elsewhere that is older by no more than this.
const NEAR_MS: i64 = 500;
/// In a partition in which another server is ranked first, it takes one of so many candidates at the head of the queue.
const SPREAD: usize = 16;
/// It leaves the very head of a queue for this long to each server that is ranked before it there. One that has not
/// taken the head by then may be stopped, or have no worker for it.
const LEFT_PER_RANK_MS: i64 = 100;
/// A claim waits this long for a read; a longer read counts as failed for it.
pub(crate) const READ_PATIENCE_MS: i64 = 1_000;

/// The work that a claimer can take.
#[derive(Debug, Clone)]
pub(crate) struct Criteria {
    pub(crate) namespace: String,
    pub(crate) lanes: Vec<String>,
    pub(crate) skills: Arc<Skills>,
}

/// Something to read from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Read {
    /// The head of a queue.
    Head(QueueId),
    /// A page of the names of a lane's queues in a partition.
    Names { partition: Partition, namespace: String, lane: String, after: Option<IndexName> },
}

impl Read {
    pub(crate) fn partition(&self) -> Partition {
        match self {
            Self::Head(id) => id.partition,
            Self::Names { partition, .. } => *partition,
        }
    }
}

/// A page of names of queues, in their order.
#[derive(Debug, Clone)]
pub(crate) struct NamesPage {
    /// The names follow this one.
    pub(crate) after: Option<IndexName>,
    pub(crate) names: Vec<IndexName>,
    /// Whether there may be more names behind them.
    pub(crate) more: bool,
}

/// Everything the scheduler remembers.
#[derive(Default)]
pub(crate) struct Ready {
    queues: BTreeMap<QueueId, Queue>,
    /// By namespace and name, so that other lanes cost nothing.
    lanes: BTreeMap<String, BTreeMap<String, Lane>>,
    /// Lanes that are only remembered.
    remembered: usize,
    /// There was no room to remember some lane, so a lane that is not known may have work in any partition.
    forgot_lanes: bool,
    /// Partitions that the last sweep could not read: any lane may have work there.
    unswept: BTreeSet<Partition>,
    /// Candidates in all buffers.
    buffered: usize,
    /// Candidates handed out and not yet settled; a fetch must not hand them out again.
    in_flight: BTreeSet<(Partition, Key)>,
    /// Candidates that are left alone until an instant, such as members of cancelled flows, which their flow is about
    /// to take out of the queue.
    aside: BTreeMap<(Partition, Key), i64>,
    gates: Gates,
    openings: BTreeSet<(i64, Opening)>,
    opening_noted: Arc<Notify>,
    /// By number, and so in the order they came.
    waiters: BTreeMap<u64, Waiter>,
    next_waiter: u64,
    /// The number of the last announcement.
    stamp: u64,
    let_go_at: i64,
    /// Partitions that do not answer.
    outages: BTreeMap<Partition, Outage>,
    /// When a read of a partition last succeeded.
    answered_at: BTreeMap<Partition, i64>,
    troubled_until: i64,
    ranks: Ranks,
    /// A counter by which candidates are picked from among the first of a queue.
    spread: u64,
}

impl Ready {
    /// An empty memory.
    pub(crate) fn new(ranks: Ranks) -> Self {
        Self { ranks, ..Self::default() }
    }

    /// Announces that the store may hold work of this score in this queue.
    pub(crate) fn announce(&mut self, id: &QueueId, score: i64, now: i64) {
        let Some(queue) = self.queue(id, now) else { return };
        queue.note(score);
        queue.note_head(now);
        self.relist(id);
        self.wake_for(id);
    }

    /// Offers an execution that a commit of this process made claimable, so that it need not be read.
    pub(crate) fn offer(&mut self, candidate: Candidate, now: i64) {
        let id = candidate.queue.clone();
        let score = candidate.execution.queue_score();
        let room = self.buffered < BUFFERED_MAX;
        // The commit shows that the partition works.
        self.commit_answered(id.partition);
        let Some(queue) = self.queue(&id, now) else { return };
        queue.blocked_until = None;
        queue.suspect = false;
        // The buffer is always the very head of the queue, so a candidate behind unread work, or beyond the buffer's
        // size, stays out. Work in a queue of an earlier version is moved before it is handed out.
        let behind = queue.is_behind(score) || queue.buffer.len() >= BUFFER_MAX;
        let kept = if queue.name.is_of_any_kind() || behind || !room {
            queue.note(score);
            false
        } else {
            queue.buffer.insert((score, Execution::key_of(&candidate.execution.id)), candidate).is_none()
        };
        queue.note_head(now);
        self.buffered += usize::from(kept);
        self.relist(&id);
        self.wake_for(&id);
    }

    /// The queue, if a claim awaits its lane; otherwise only the lane is remembered.
    fn queue(&mut self, id: &QueueId, now: i64) -> Option<&mut Queue> {
        self.stamp += 1;
        if !self.queues.contains_key(id) {
            let name = QueueName::parse(&id.index)?;
            let full = self.queues.len() >= QUEUES_MAX;
            let Some(lane) = lane_mut(&mut self.lanes, &name.namespace, &name.lane) else {
                self.remember(name.namespace, name.lane, id.partition);
                return None;
            };
            if full {
                let until = now + POSTPONED_MS;
                match lane.unlearnt.get_mut(&id.partition) {
                    Some(learning) => learning.again = true,
                    None => {
                        lane.unlearnt.insert(id.partition, Learning::new(LearningState::Postponed { until }));
                        let (namespace, lane) = (name.namespace, name.lane);
                        self.open_at(until, Opening::Names { namespace, lane, partition: id.partition });
                    }
                }
                return None;
            }
            let others = if lane.add_queue(&name, id) { lane.queues.clone() } else { BTreeSet::new() };
            self.gates.add_queue(&name.namespace, &name.gate, id);
            if let Some(outage) = self.outages.get_mut(&id.partition) {
                outage.add_lane(&name.namespace, &name.lane);
            }
            self.queues.insert(id.clone(), Queue::new(name, now));
            self.begin_turns(others);
        }
        let queue = self.queues.get_mut(id)?;
        queue.stamp = self.stamp;
        Some(queue)
    }

    /// Lists queues of a lane anew whose work takes turns from now on.
    fn begin_turns(&mut self, queues: BTreeSet<QueueId>) {
        for id in queues {
            let Some(queue) = self.queues.get(&id) else { continue };
            let Some(lane) = lane_mut(&mut self.lanes, &queue.name.namespace, &queue.name.lane) else { continue };
            if let Some(score) = queue.listed.head {
                lane.list(&queue.name, Listed::Head(score), id);
            }
        }
    }

    /// A candidate takes the turn of its key, or gives it back. In a lane without keys nothing happens.
    fn charge(&mut self, candidate: &Candidate, served: bool) {
        let execution = &candidate.execution;
        if let Some(lane) = lane_mut(&mut self.lanes, &execution.namespace, &execution.lane) {
            lane.charge(execution.fair_key(), execution.fair_weight(), served);
        }
    }

    /// Moves a queue to its place among the heads of its lane. Everything that changes a queue ends with this.
    fn relist(&mut self, id: &QueueId) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        let after = match self.outages.get(&id.partition) {
            _ if !self.gates.admits(&queue.name.namespace, &queue.name.gate) => Listing::default(),
            Some(outage) => outage.listing(queue),
            None => queue.listing(),
        };
        if queue.listed == after {
            return;
        }
        let before = std::mem::replace(&mut queue.listed, after);
        let Some(lane) = lane_mut(&mut self.lanes, &queue.name.namespace, &queue.name.lane) else { return };
        for (before, after) in before.places().into_iter().zip(after.places()).filter(|(before, after)| before != after)
        {
            if let Some(before) = before {
                lane.unlist(&queue.name, before, id);
            }
            if let Some(after) = after {
                lane.list(&queue.name, after, id.clone());
            }
        }
    }

    /// Whether there may be anything in the lanes of a claimer; the answer costs nothing.
    pub(crate) fn may_have_work(&self, criteria: &Criteria) -> bool {
        self.awaited_lanes(criteria).any(|lane| lane.may_have_work(&criteria.skills))
            || criteria.lanes.iter().any(|lane| self.is_probe_due(&criteria.namespace, lane))
    }

    fn awaited_lanes<'a>(&'a self, criteria: &'a Criteria) -> impl Iterator<Item = &'a AwaitedLane> {
        let lanes = self.lanes.get(&criteria.namespace);
        criteria.lanes.iter().filter_map(move |lane| lanes?.get(lane)?.awaited())
    }

    /// Where the next read of a queue begins; `None` for its head.
    pub(crate) fn read_after(&self, id: &QueueId) -> Option<(i64, Key)> {
        self.queues.get(id).and_then(|queue| queue.read_after.clone())
    }

    /// A read of a queue has come back: what it found, the last entry it saw, and whether that was the whole queue.
    pub(crate) fn fetched(
        &mut self,
        id: &QueueId,
        mut found: Vec<Candidate>,
        mut last: Option<(i64, Key)>,
        mut complete: bool,
        now: i64,
    ) {
        self.read_answered(id.partition, now);
        // Reads that ran at the same time may bring more than there is room for.
        let kept = self.read_limit(found.len());
        if kept < found.len() {
            found.truncate(kept);
            last = found.last().map(|candidate| (candidate.execution.queue_score(), candidate.place().1));
            complete = false;
        }
        let Some(queue) = self.queues.get_mut(id) else { return };
        let missed = queue.end_fetch();
        queue.suspect = false;
        queue.blocked_until = None;
        self.buffered -= queue.buffer.len();
        queue.buffer.clear();
        for candidate in found {
            let place = candidate.place();
            if !self.in_flight.contains(&place) && !self.aside.contains_key(&place) {
                queue.buffer.insert((candidate.execution.queue_score(), place.1), candidate);
            }
        }
        self.buffered += queue.buffer.len();
        if let Some((score, _)) = last.as_ref().filter(|_| !complete) {
            queue.note(*score);
        }
        queue.read_after = if complete || !queue.buffer.is_empty() { None } else { last };
        if queue.unread {
            queue.read_after = None;
        }
        if let Some(missed) = missed {
            queue.read_after = None;
            queue.note(missed);
        }
        queue.note_head(now);
        let holds_something = !queue.is_empty();
        if let Some(lane) = lane_mut(&mut self.lanes, &queue.name.namespace, &queue.name.lane) {
            lane.read_at = Some(now);
        }
        self.relist(id);
        if holds_something {
            self.wake_for(id);
        }
        self.forget_if_empty(id);
    }

    /// How many candidates one read of a queue may bring. If many are kept already, only as many as show whether the
    /// queue holds more than one.
    pub(crate) fn read_limit(&self, usual: usize) -> usize {
        if self.buffered + usual > BUFFERED_MAX { usual.min(2) } else { usual }
    }

    fn queues_in(&self, partition: Partition) -> Vec<QueueId> {
        self.queues_between(partition, None, None)
    }

    /// The queues of a partition after a name, up to and including another.
    fn queues_between(&self, partition: Partition, after: Option<&IndexName>, to: Option<&IndexName>) -> Vec<QueueId> {
        let from = match after {
            Some(after) => Bound::Excluded(QueueId { partition, index: after.clone() }),
            None => Bound::Included(QueueId { partition, index: IndexName::from_bytes([]) }),
        };
        let ids = self.queues.range((from, Bound::Unbounded)).map(|(id, _)| id);
        let here = ids.take_while(|id| id.partition == partition && to.is_none_or(|to| id.index <= *to));
        here.cloned().collect()
    }

    /// A candidate was claimed.
    pub(crate) fn settled(&mut self, candidate: &Candidate) {
        self.in_flight.remove(&candidate.place());
        self.tried(candidate, true);
        self.forget_if_empty(&candidate.queue);
        self.wake_for(&candidate.queue);
    }

    /// Leaves a candidate alone until an instant: another commit takes it out of its queue, or its claim was refused.
    pub(crate) fn put_aside(&mut self, candidate: &Candidate, until: i64) {
        self.in_flight.remove(&candidate.place());
        self.aside.insert(candidate.place(), until);
        self.tried(candidate, false);
        self.forget_if_empty(&candidate.queue);
    }

    /// Leaves a candidate alone until an instant, when it is tried again: a claim that is on its way holds the room it
    /// needs.
    pub(crate) fn put_off(&mut self, candidate: &Candidate, until: i64) {
        self.put_aside(candidate, until);
        let score = candidate.execution.queue_score();
        self.open_at(until, Opening::Candidate { queue: candidate.queue.clone(), score });
    }

    /// A candidate was lost to a conflict: its present state in the store is unknown, so the queue is read again.
    pub(crate) fn lost(&mut self, candidate: &Candidate, now: i64) {
        self.in_flight.remove(&candidate.place());
        self.tried(candidate, false);
        let score = candidate.execution.queue_score();
        if let Some(queue) = self.queue(&candidate.queue, now) {
            queue.note(score);
        }
        self.relist(&candidate.queue);
        self.wake_for(&candidate.queue);
    }

    /// Another server took a candidate. Servers that take work in the same order would go on colliding, so this one
    /// keeps out of the way for a while.
    pub(crate) fn overtaken(&mut self, candidate: &Candidate, now: i64) {
        if let Some(lane) = lane_mut(&mut self.lanes, &candidate.execution.namespace, &candidate.execution.lane) {
            lane.contended_until = now + CONTENDED_MS;
        }
        self.lost(candidate, now);
    }

    /// Puts a candidate that was not tried back into its queue.
    fn put_back(&mut self, candidate: Candidate) {
        let place = candidate.place();
        self.in_flight.remove(&place);
        self.tried(&candidate, false);
        self.charge(&candidate, false);
        let id = candidate.queue.clone();
        if let Some(queue) = self.queues.get_mut(&id)
            && queue.buffer.insert((candidate.execution.queue_score(), place.1), candidate).is_none()
        {
            self.buffered += 1;
        }
        self.relist(&id);
    }

    /// A candidate was tried: its gate has room for the next one, and for more if it admitted this one.
    fn tried(&mut self, candidate: &Candidate, admitted: bool) {
        if !candidate.execution.is_gated() || self.gates.are_all_open() {
            return;
        }
        let gate = (candidate.execution.namespace.clone(), candidate.execution.gate());
        if self.gates.end_try(&gate, admitted) {
            self.relist_gate(&gate);
            self.wake_for_gate(&gate);
        }
    }

    fn forget_if_empty(&mut self, id: &QueueId) {
        if self.queues.get(id).is_some_and(Queue::is_empty) {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: &QueueId) {
        let Some(Queue { name, listed, buffer, .. }) = self.queues.remove(id) else { return };
        self.buffered -= buffer.len();
        self.gates.remove_queue(&name.namespace, &name.gate, id);
        let Some(lane) = lane_mut(&mut self.lanes, &name.namespace, &name.lane) else { return };
        lane.queues.remove(id);
        for at in listed.places().into_iter().flatten() {
            lane.unlist(&name, at, id);
        }
    }

    /// Whether work that a claimer could take could not be read, and no queue of its lanes was read since. A slow read
    /// is no outage as long as others are answered.
    pub(crate) fn is_unreadable(&self, criteria: &Criteria, since: i64, now: i64) -> bool {
        let (mut failed, mut slow, mut answered) = (false, false, false);
        for lane in self.awaited_lanes(criteria) {
            if lane.read_at.is_some_and(|at| at > since) {
                return false;
            }
            answered |= lane.read_at.is_some_and(|at| at > now - READ_PATIENCE_MS);
            let takes = |queue: &&Queue| criteria.skills.suffice(&queue.name.route, &queue.name.kind);
            for id in &lane.queues {
                let Some(queue) = self.queues.get(id).filter(takes) else { continue };
                let outage = self.outages.get(&id.partition).filter(|_| !queue.is_empty());
                failed |= (queue.suspect && !queue.is_empty()) || outage.is_some_and(|outage| !outage.hangs());
                slow |= outage.is_some() || queue.hangs(now, READ_PATIENCE_MS);
            }
            for learning in lane.unlearnt.values() {
                match learning.state {
                    LearningState::Due { suspect } => failed |= suspect,
                    LearningState::Reading { since } => slow |= now - since >= READ_PATIENCE_MS,
                    LearningState::Blocked { .. } => failed = true,
                    LearningState::Postponed { .. } => {}
                }
            }
        }
        failed || (slow && !answered)
    }
}

fn lane_mut<'l>(
    lanes: &'l mut BTreeMap<String, BTreeMap<String, Lane>>,
    namespace: &str,
    lane: &str,
) -> Option<&'l mut AwaitedLane> {
    lanes.get_mut(namespace)?.get_mut(lane)?.awaited_mut()
}
