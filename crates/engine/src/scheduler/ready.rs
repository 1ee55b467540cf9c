//! What this engine knows of the queues: which may hold work, the candidates fetched from them, and who waits.
//!
//! Plain data behind one short lock, no I/O. A candidate that was handed out is this caller's alone within the
//! process, so workers of one process never fight over a head; other processes are kept apart by the commit's guards.
//!
//! Cost: picking is logarithmic in the queues of the lanes asked for and does not depend on how many executions wait,
//! on other lanes, or on how many workers are idle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ff_core::execution::Execution;
use ff_core::{CapabilitySet, IndexName, Key, Partition};
use ff_store::{Fence, Version};
use tokio::sync::Notify;

/// Candidates kept for each queue; what is beyond stays in the store until these are used up.
pub(crate) const BUFFER_MAX: usize = 256;

/// An execution that may be claimed, as some read or commit brought it along. The claim's guards decide.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) execution: Arc<Execution>,
    pub(crate) version: Version,
    pub(crate) fence: Fence,
    pub(crate) queue: QueueId,
}

/// A queue of one partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueId {
    pub(crate) partition: Partition,
    pub(crate) index: IndexName,
}

/// What a queue's name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueName {
    pub(crate) namespace: String,
    pub(crate) lane: String,
    pub(crate) route: CapabilitySet,
    pub(crate) gate: String,
}

impl QueueName {
    /// `None` for a name that this version cannot read; such a queue is passed over.
    pub(crate) fn parse(index: &IndexName) -> Option<Self> {
        let parts = index.parts()?;
        let [namespace, lane, route, gate] = parts.as_slice() else { return None };
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        Some(Self {
            namespace: text(namespace)?,
            lane: text(lane)?,
            route: CapabilitySet::from_route(&text(route)?).ok()?,
            gate: text(gate)?,
        })
    }
}

#[derive(Debug)]
struct Queue {
    name: QueueName,
    /// Ordered by (score, key), like the index itself.
    buffer: BTreeMap<(i64, Key), Candidate>,
    /// The best score that may be in the store and not in the buffer; `None`: nothing is known to be there.
    unfetched: Option<i64>,
    /// Somebody reads this queue from the store right now.
    fetching: bool,
    /// The best score announced since that read began, which it may not have seen.
    missed: Option<i64>,
    /// The head holds only what cannot be taken now: the next read begins behind it.
    read_after: Option<(i64, Key)>,
    /// The score it stands under among the heads of its lane.
    listed: Option<i64>,
}

/// A lane of a namespace.
#[derive(Default)]
struct Lane {
    queues: BTreeSet<QueueId>,
    /// The queues with a head that could be picked now, the best first.
    heads: BTreeSet<(i64, QueueId)>,
}

impl Queue {
    /// The head that could be picked now, and whether it is yet to be read.
    fn head(&self) -> Option<(i64, bool)> {
        let buffered = self.buffer.keys().next().map(|(score, _)| *score);
        let unfetched = self.unfetched.filter(|_| !self.fetching);
        match (buffered, unfetched) {
            (Some(buffered), Some(unfetched)) if unfetched < buffered => Some((unfetched, true)),
            (Some(buffered), _) => Some((buffered, false)),
            (None, Some(unfetched)) => Some((unfetched, true)),
            (None, None) => None,
        }
    }

    /// Something at this score is in the store.
    fn note(&mut self, score: i64) {
        let known = if self.fetching { &mut self.missed } else { &mut self.unfetched };
        *known = Some(known.map_or(score, |known| known.min(score)));
    }

    fn best(&self) -> Option<i64> {
        let buffered = self.buffer.keys().next().map(|(score, _)| *score);
        match (buffered, self.unfetched) {
            (Some(buffered), Some(unfetched)) => Some(buffered.min(unfetched)),
            (buffered, unfetched) => buffered.or(unfetched),
        }
    }
}

/// What a claimer can take.
#[derive(Debug, Clone)]
pub(crate) struct Criteria {
    pub(crate) namespace: String,
    pub(crate) lanes: Vec<String>,
    pub(crate) capabilities: CapabilitySet,
}

impl Criteria {
    fn takes(&self, name: &QueueName) -> bool {
        name.namespace == self.namespace
            && self.lanes.contains(&name.lane)
            && self.capabilities.contains_all(&name.route)
    }
}

/// What to do next for a claimer.
#[derive(Debug)]
pub(crate) enum Pick {
    /// Try these.
    Candidates(Vec<Candidate>),
    /// Read these queues from the store, then ask again.
    Fetch(Vec<QueueId>),
    /// Nothing can be had now.
    Nothing,
}

struct Waiter {
    criteria: Criteria,
    wake: Arc<Notify>,
    /// Told of work and not yet back: further work wakes somebody else.
    woken: bool,
}

/// Everything the scheduler remembers.
#[derive(Default)]
pub(crate) struct Ready {
    queues: BTreeMap<QueueId, Queue>,
    /// By namespace and name, so that other lanes cost nothing.
    lanes: BTreeMap<String, BTreeMap<String, Lane>>,
    /// Candidates handed out and not yet settled; a fetch must not hand them out again.
    in_flight: BTreeSet<(Partition, Key)>,
    /// Members of cancelled flows, which their flow is about to take out of the queue; left alone until then.
    aside: BTreeMap<(Partition, Key), i64>,
    /// Gates that refused, until when.
    closed_gates: BTreeMap<(String, String), i64>,
    /// By number, and so in the order they came.
    waiters: BTreeMap<u64, Waiter>,
    next_waiter: u64,
}

impl Ready {
    /// The store may hold something at this score in this queue.
    pub(crate) fn announce(&mut self, id: &QueueId, score: i64) {
        let Some(queue) = self.queue(id) else { return };
        queue.note(score);
        self.relist(id);
        self.wake_for(id);
    }

    /// A commit of this process made an execution claimable: it need not be read again.
    pub(crate) fn offer(&mut self, candidate: Candidate) {
        let id = candidate.queue.clone();
        let score = candidate.execution.queue_score();
        let Some(queue) = self.queue(&id) else { return };
        let place = (score, Execution::key_of(&candidate.execution.id));
        // The buffer is always the very head of the queue: behind something unfetched, or over its size, it stays out.
        let behind = queue.unfetched.is_some_and(|unfetched| unfetched <= score);
        if behind || queue.fetching || queue.buffer.len() >= BUFFER_MAX {
            queue.note(score);
        } else {
            queue.buffer.insert(place, candidate);
        }
        self.relist(&id);
        self.wake_for(&id);
    }

    fn queue(&mut self, id: &QueueId) -> Option<&mut Queue> {
        if !self.queues.contains_key(id) {
            let name = QueueName::parse(&id.index)?;
            let lanes = self.lanes.entry(name.namespace.clone()).or_default();
            lanes.entry(name.lane.clone()).or_default().queues.insert(id.clone());
            let queue = Queue {
                name,
                buffer: BTreeMap::new(),
                unfetched: None,
                fetching: false,
                missed: None,
                read_after: None,
                listed: None,
            };
            self.queues.insert(id.clone(), queue);
        }
        self.queues.get_mut(id)
    }

    /// Moves a queue to its place among the heads of its lane. Everything that changes a queue ends with this.
    fn relist(&mut self, id: &QueueId) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        let score = queue.head().map(|(score, _)| score);
        if queue.listed == score {
            return;
        }
        let before = std::mem::replace(&mut queue.listed, score);
        let lane = self.lanes.get_mut(&queue.name.namespace).and_then(|lanes| lanes.get_mut(&queue.name.lane));
        let Some(lane) = lane else { return };
        if let Some(before) = before {
            lane.heads.remove(&(before, id.clone()));
        }
        if let Some(score) = score {
            lane.heads.insert((score, id.clone()));
        }
    }

    /// Whether there may be anything in the lanes of a claimer; the answer costs nothing.
    pub(crate) fn may_have_work(&self, criteria: &Criteria) -> bool {
        let Some(lanes) = self.lanes.get(&criteria.namespace) else { return false };
        criteria.lanes.iter().any(|lane| lanes.get(lane).is_some_and(|lane| !lane.heads.is_empty()))
    }

    /// The best work for a claimer, or what must be read to find it. `first_lane` begins the turn among the lanes.
    pub(crate) fn pick(&mut self, criteria: &Criteria, first_lane: usize, count: usize, now: i64) -> Pick {
        self.closed_gates.retain(|_, until| *until > now);
        self.aside.retain(|_, until| *until > now);
        let mut picked = Vec::new();
        let mut fetch = Vec::new();
        let lanes = criteria.lanes.len();
        for turn in 0..lanes {
            let lane = &criteria.lanes[(first_lane + turn) % lanes];
            while picked.len() < count {
                let Some((id, unfetched)) = self.best_queue(criteria, lane) else { break };
                if unfetched && fetch.is_empty() && !picked.is_empty() {
                    // Everything picked is at least as good as what is yet to be read. To read first would only bring
                    // the same head again when more is wanted than one read returns.
                    return Pick::Candidates(picked);
                }
                if unfetched {
                    fetch.push(id.clone());
                    if let Some(queue) = self.queues.get_mut(&id) {
                        queue.fetching = true;
                    }
                    self.relist(&id);
                    continue;
                }
                let candidate =
                    self.queues.get_mut(&id).and_then(|queue| queue.buffer.pop_first()).map(|(_, candidate)| candidate);
                let Some(candidate) = candidate else { break };
                self.relist(&id);
                self.in_flight.insert((id.partition, Execution::key_of(&candidate.execution.id)));
                picked.push(candidate);
            }
        }
        if fetch.is_empty() {
            if picked.is_empty() { Pick::Nothing } else { Pick::Candidates(picked) }
        } else {
            // What must be read may be better than what was picked: put it back and ask again with everything known.
            for candidate in picked {
                self.put_back(candidate);
            }
            Pick::Fetch(fetch)
        }
    }

    fn is_closed(&self, name: &QueueName) -> bool {
        // Most work has no gate, and this is asked for every queue at every pick.
        !name.gate.is_empty() && self.closed_gates.contains_key(&(name.namespace.clone(), name.gate.clone()))
    }

    /// The queue of a lane with the best head that this claimer can take, and whether that head is yet to be read.
    fn best_queue(&self, criteria: &Criteria, lane: &str) -> Option<(QueueId, bool)> {
        let lane = self.lanes.get(&criteria.namespace)?.get(lane)?;
        lane.heads.iter().find_map(|(_, id)| {
            let queue = self.queues.get(id)?;
            let takes = criteria.capabilities.contains_all(&queue.name.route) && !self.is_closed(&queue.name);
            takes.then(|| queue.head()).flatten().map(|(_, must_fetch)| (id.clone(), must_fetch))
        })
    }

    /// Where the next read of a queue begins; `None` for its head.
    pub(crate) fn read_after(&self, id: &QueueId) -> Option<(i64, Key)> {
        self.queues.get(id).and_then(|queue| queue.read_after.clone())
    }

    /// A read of a queue has come back: what it found, the last entry it saw, and whether that was the whole queue.
    pub(crate) fn fetched(&mut self, id: &QueueId, found: Vec<Candidate>, last: Option<(i64, Key)>, complete: bool) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        queue.fetching = false;
        queue.buffer.clear();
        for candidate in found {
            let place = (id.partition, Execution::key_of(&candidate.execution.id));
            if !self.in_flight.contains(&place) && !self.aside.contains_key(&place) {
                queue.buffer.insert((candidate.execution.queue_score(), place.1), candidate);
            }
        }
        queue.unfetched = if complete { None } else { last.as_ref().map(|(score, _)| *score) };
        queue.read_after = if complete || !queue.buffer.is_empty() { None } else { last };
        if let Some(missed) = queue.missed.take() {
            queue.read_after = None;
            queue.note(missed);
        }
        let holds_something = queue.best().is_some();
        self.relist(id);
        if holds_something {
            self.wake_for(id);
        }
        self.forget_if_empty(id);
    }

    /// A read failed: the queue is as unknown as before.
    pub(crate) fn fetch_failed(&mut self, id: &QueueId) {
        if let Some(queue) = self.queues.get_mut(id) {
            queue.fetching = false;
            if let Some(missed) = queue.missed.take() {
                queue.note(missed);
            }
        }
        self.relist(id);
    }

    /// A candidate was claimed, or is not claimable after all.
    pub(crate) fn settled(&mut self, candidate: &Candidate) {
        self.in_flight.remove(&(candidate.queue.partition, Execution::key_of(&candidate.execution.id)));
        self.forget_if_empty(&candidate.queue);
        self.wake_for(&candidate.queue);
    }

    /// A candidate that somebody else will take out of its queue.
    pub(crate) fn put_aside(&mut self, candidate: &Candidate, until: i64) {
        let place = (candidate.queue.partition, Execution::key_of(&candidate.execution.id));
        self.in_flight.remove(&place);
        self.aside.insert(place, until);
        self.forget_if_empty(&candidate.queue);
    }

    /// A candidate lost to a conflict: what the store has of it now is unknown, so the queue is read again.
    pub(crate) fn lost(&mut self, candidate: &Candidate) {
        self.in_flight.remove(&(candidate.queue.partition, Execution::key_of(&candidate.execution.id)));
        let score = candidate.execution.queue_score();
        let id = candidate.queue.clone();
        if let Some(queue) = self.queue(&id) {
            queue.note(score);
        }
        self.relist(&id);
        self.wake_for(&id);
    }

    /// A candidate that was not tried goes back to where it came from.
    pub(crate) fn put_back(&mut self, candidate: Candidate) {
        let key = Execution::key_of(&candidate.execution.id);
        self.in_flight.remove(&(candidate.queue.partition, key.clone()));
        let id = candidate.queue.clone();
        if let Some(queue) = self.queue(&id) {
            queue.buffer.insert((candidate.execution.queue_score(), key), candidate);
        }
        self.relist(&id);
    }

    fn forget_if_empty(&mut self, id: &QueueId) {
        let Some(queue) = self.queues.get(id) else { return };
        if queue.best().is_some() || queue.fetching {
            return;
        }
        let Some(Queue { name, listed, .. }) = self.queues.remove(id) else { return };
        let Some(lanes) = self.lanes.get_mut(&name.namespace) else { return };
        if let Some(lane) = lanes.get_mut(&name.lane) {
            lane.queues.remove(id);
            if let Some(listed) = listed {
                lane.heads.remove(&(listed, id.clone()));
            }
            if lane.queues.is_empty() {
                lanes.remove(&name.lane);
            }
        }
        if lanes.is_empty() {
            self.lanes.remove(&name.namespace);
        }
    }

    /// A gate refused: nothing behind it is tried until then, or until it is opened.
    pub(crate) fn close_gate(&mut self, namespace: &str, gate: &str, until: i64) {
        self.closed_gates.insert((namespace.to_owned(), gate.to_owned()), until);
    }

    /// A budget or quota may admit again: every gate that names it is open.
    pub(crate) fn open_gates(&mut self, namespace: &str, part: &str) {
        self.closed_gates.retain(|(of, gate), _| of != namespace || !gate.split(',').any(|one| one == part));
        let ids: Vec<QueueId> = self
            .queues
            .iter()
            .filter(|(_, queue)| queue.name.namespace == namespace && queue.name.gate.split(',').any(|one| one == part))
            .map(|(id, _)| id.clone())
            .collect();
        for id in ids {
            self.wake_for(&id);
        }
    }

    /// When the earliest closed gate opens by itself. Those that have are forgotten.
    pub(crate) fn next_gate_opening(&mut self, now: i64) -> Option<i64> {
        self.closed_gates.retain(|_, until| *until > now);
        self.closed_gates.values().min().copied()
    }

    /// The lanes of a namespace in which there may be work.
    pub(crate) fn lanes(&self, namespace: &str) -> Vec<String> {
        self.lanes.get(namespace).into_iter().flat_map(|lanes| lanes.keys().cloned()).collect()
    }

    /// Whether somebody in this process waits for work like this.
    pub(crate) fn is_awaited(&self, execution: &Execution) -> bool {
        self.waiters.values().any(|waiter| {
            waiter.criteria.namespace == execution.namespace
                && waiter.criteria.lanes.contains(&execution.lane)
                && waiter.criteria.capabilities.contains_all(&execution.capabilities)
        })
    }

    /// Somebody waits for work.
    pub(crate) fn wait(&mut self, criteria: Criteria) -> (u64, Arc<Notify>) {
        let number = self.next_waiter;
        self.next_waiter += 1;
        let wake = Arc::new(Notify::new());
        self.waiters.insert(number, Waiter { criteria, wake: Arc::clone(&wake), woken: false });
        (number, wake)
    }

    /// A waiter found nothing and waits again.
    pub(crate) fn wait_again(&mut self, number: u64) {
        if let Some(waiter) = self.waiters.get_mut(&number) {
            waiter.woken = false;
        }
    }

    /// A waiter is back; work it was told of and did not take is somebody else's now.
    pub(crate) fn stop_waiting(&mut self, number: u64) {
        if let Some(waiter) = self.waiters.remove(&number)
            && waiter.woken
        {
            self.wake_next(&waiter.criteria);
        }
    }

    fn wake_next(&mut self, criteria: &Criteria) {
        let ready: Vec<QueueId> = self
            .queues
            .iter()
            .filter(|(_, queue)| criteria.takes(&queue.name) && queue.best().is_some())
            .map(|(id, _)| id.clone())
            .collect();
        for id in ready {
            self.wake_for(&id);
        }
    }

    /// Wakes the one who has waited longest for what this queue holds.
    fn wake_for(&mut self, id: &QueueId) {
        let Some(queue) = self.queues.get(id) else { return };
        for waiter in self.waiters.values_mut() {
            if !waiter.woken && waiter.criteria.takes(&queue.name) {
                waiter.woken = true;
                waiter.wake.notify_one();
                return;
            }
        }
    }

    /// Hints may have been lost: every waiter looks for itself.
    pub(crate) fn wake_all(&mut self) {
        for waiter in self.waiters.values_mut() {
            waiter.woken = true;
            waiter.wake.notify_one();
        }
    }
}
