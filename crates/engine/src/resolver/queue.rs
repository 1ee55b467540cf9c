//! The marked documents that are known and not resolved, by partition, and the order of their turns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use ff_core::execution::Execution;
use ff_core::index::kind;
use ff_core::{Indexed, Key, Partition, SlotId};
use ff_store::Version;

use super::cancellation::Look;
use super::edges::Position;
use crate::groups::Name;

/// The first wait before a mark that could not be resolved is tried again; it doubles each time.
const RETRY_MS: i64 = 100;
/// The longest of these waits.
const RETRY_MAX_MS: i64 = 30_000;
/// How often a mark is tried again; after that it is left to the next sweep.
const RETRIES_MAX: u32 = 12;

/// How far the resolution of a marked document is.
#[derive(Default, Debug, Clone)]
pub(super) struct Progress {
    /// The edges of an execution up to this one have been resolved.
    pub(super) position: Option<Position>,
    /// Slots that were given back in the quota's partition and may be forgotten here.
    pub(super) released: Vec<SlotId>,
    /// How far the members of a cancelled flow have been told.
    pub(super) look: Option<Look>,
    /// The chunk size of its commits, if it is smaller than usual.
    pub(super) chunk: Option<usize>,
    /// The execution as a commit of this engine left it.
    pub(super) written: Option<Written>,
}

/// An execution that owes slots and nothing else, and the version that says so.
#[derive(Debug, Clone)]
pub(super) struct Written {
    pub(super) execution: Arc<Execution>,
    pub(super) version: Version,
}

impl Written {
    /// The execution as a commit left it, if it owes nothing but slots: those can be given back without reading the
    /// store.
    pub(super) fn with_slots_only(execution: &Arc<Execution>, version: Version) -> Option<Self> {
        let owes_more = execution.owes_resolution || execution.owes_journals() || execution.owes_schedule();
        let held = execution.document_lease().ttl_ms.is_some();
        let plain = !execution.owed_slots.is_empty() && !owes_more && !held;
        plain.then(|| Self { execution: Arc::clone(execution), version })
    }
}

impl Progress {
    pub(super) fn owed(&self, execution: &Execution) -> bool {
        execution.owed_slots.iter().any(|slot| !self.released.contains(slot))
    }

    /// The execution as it was written, once all slots that it owed then have been given back, so that only its mark is
    /// left to be cleared.
    pub(super) fn given_back(&self) -> Option<&Written> {
        self.written.as_ref().filter(|written| !self.owed(&written.execution))
    }

    /// The chunk size of a commit whose usual chunk size is this.
    pub(super) fn chunk(&self, usual: usize) -> usize {
        self.chunk.unwrap_or(usual)
    }
}

/// The subject of one commit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// These executions together.
    Executions(Vec<Key>),
    /// One step of a flow's work.
    Flow(Key),
}

impl Turn {
    fn keys(&self) -> &[Key] {
        match self {
            Turn::Executions(keys) => keys,
            Turn::Flow(key) => std::slice::from_ref(key),
        }
    }
}

/// The marked documents of every partition that are known and not resolved.
pub(super) struct Marks {
    queues: Mutex<BTreeMap<Partition, Queue>>,
    /// How much one commit takes.
    chunk: usize,
}

#[derive(Default)]
struct Queue {
    /// Executions in the order in which they came; as many as fit share a commit.
    executions: VecDeque<Key>,
    /// Executions of a group whose commit failed, perhaps because of one of them: each is tried by itself.
    alone: VecDeque<Key>,
    /// Flows in the order in which they came, each by itself.
    flows: VecDeque<Key>,
    /// The keys that are in one of the three queues.
    queued: BTreeSet<Key>,
    progress: BTreeMap<Key, Progress>,
    /// How often in a row a mark could not be resolved.
    failures: BTreeMap<Key, u32>,
    /// Slots to be given back, by quota and execution.
    owed: BTreeMap<Name, BTreeMap<Key, Vec<SlotId>>>,
    /// Executions whose slots are being given back, by quota. A quota is in the map while a task works for it.
    releasing: BTreeMap<Name, BTreeSet<Key>>,
    /// Which of the three queues had the last turn.
    last: usize,
    draining: bool,
}

impl Queue {
    fn push(&mut self, key: Key) {
        let line = match key.kind() {
            kind::EXECUTION => &mut self.executions,
            kind::FLOW => &mut self.flows,
            // A newer version left this mark, and knows what to do with it.
            _ => return,
        };
        if self.queued.insert(key.clone()) {
            line.push_back(key);
        }
    }

    /// The three queues take turns, so that none waits for another to be empty.
    fn next(&mut self, chunk: usize) -> Option<Turn> {
        for step in 1..=3 {
            let place = (self.last + step) % 3;
            let turn = match place {
                0 => {
                    let count = self.executions.len().min(chunk);
                    let keys: Vec<Key> = self.executions.drain(..count).collect();
                    (!keys.is_empty()).then_some(Turn::Executions(keys))
                }
                1 => self.flows.pop_front().map(Turn::Flow),
                _ => self.alone.pop_front().map(|key| Turn::Executions(vec![key])),
            };
            if let Some(turn) = turn {
                self.last = place;
                for key in turn.keys() {
                    self.queued.remove(key);
                }
                return Some(turn);
            }
        }
        None
    }

    fn is_idle(&self) -> bool {
        !self.draining && self.failures.is_empty() && self.releasing.is_empty() && self.progress.is_empty()
    }
}

impl Marks {
    /// No marks yet; `chunk` is the chunk size of one commit.
    pub(super) fn new(chunk: usize) -> Self {
        Self { queues: Mutex::default(), chunk }
    }

    /// How much one commit takes.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// Adds a key; returns whether a task must begin to drain the queue.
    pub(super) fn push(&self, partition: Partition, key: Key) -> bool {
        let mut queues = self.queues();
        let queue = queues.entry(partition).or_default();
        queue.push(key);
        !queue.queued.is_empty() && !std::mem::replace(&mut queue.draining, true)
    }

    /// The keys whose turn it is, and how far each is. `None` means that the draining task must stop.
    pub(super) fn take(&self, partition: Partition) -> Option<(Turn, BTreeMap<Key, Progress>)> {
        let mut queues = self.queues();
        let queue = queues.get_mut(&partition)?;
        let Some(turn) = queue.next(self.chunk) else {
            queue.draining = false;
            if queue.is_idle() {
                queues.remove(&partition);
            }
            return None;
        };
        let progress = |key: &Key| queue.progress.get(key).cloned().unwrap_or_default();
        let known = turn.keys().iter().map(|key| (key.clone(), progress(key))).collect();
        Some((turn, known))
    }

    /// Notes that a task for a partition or a quota ended early, so that the next key starts a new one.
    pub(super) fn abandoned(&self, partition: Partition, quota: Option<&Name>) {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(&partition) else { return };
        match quota {
            None => queue.draining = false,
            Some(quota) => drop(queue.releasing.remove(quota)),
        }
    }

    /// Queues a key again behind the others, because its turn is over and more is to be done.
    pub(super) fn again(&self, partition: Partition, key: Key, progress: Progress) {
        let mut queues = self.queues();
        let queue = queues.entry(partition).or_default();
        queue.failures.remove(&key);
        queue.progress.insert(key.clone(), progress);
        queue.push(key);
    }

    /// Lets each of these keys be tried by itself, because one of them made their commit fail.
    pub(super) fn separate(&self, partition: Partition, keys: impl IntoIterator<Item = Key>) {
        let mut queues = self.queues();
        let queue = queues.entry(partition).or_default();
        for key in keys {
            if queue.queued.insert(key.clone()) {
                queue.alone.push_back(key);
            }
        }
    }

    pub(super) fn succeeded(&self, partition: Partition, key: &Key) {
        if let Some(queue) = self.queues().get_mut(&partition) {
            queue.failures.remove(key);
            queue.progress.remove(key);
        }
    }

    /// Counts a failure; returns how long to wait before the next try, or `None` if the mark is left to the sweep.
    pub(super) fn failed(&self, partition: Partition, key: &Key) -> Option<i64> {
        let mut queues = self.queues();
        let queue = queues.entry(partition).or_default();
        let count = queue.failures.entry(key.clone()).or_default();
        *count += 1;
        if *count > RETRIES_MAX {
            queue.failures.remove(key);
            queue.progress.remove(key);
            return None;
        }
        Some((RETRY_MS << (*count - 1).min(16)).min(RETRY_MAX_MS))
    }

    /// Adds slots to be given back, unless that is under way; returns whether a task must begin to work for the quota.
    pub(super) fn owe(&self, partition: Partition, quota: &Name, key: Key, slots: Vec<SlotId>) -> bool {
        let mut queues = self.queues();
        let queue = queues.entry(partition).or_default();
        if queue.releasing.get(quota).is_some_and(|keys| keys.contains(&key)) {
            return false;
        }
        queue.owed.entry(quota.clone()).or_default().insert(key, slots);
        if queue.releasing.contains_key(quota) {
            return false;
        }
        queue.releasing.insert(quota.clone(), BTreeSet::new());
        true
    }

    /// The next slots to give back to a quota. If there are none, the quota's task must stop.
    pub(super) fn take_owed(&self, partition: Partition, quota: &Name) -> BTreeMap<Key, Vec<SlotId>> {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(&partition) else { return BTreeMap::new() };
        let mut taken = BTreeMap::new();
        if let Some(waiting) = queue.owed.get_mut(quota) {
            while taken.len() < self.chunk
                && let Some((key, slots)) = waiting.pop_first()
            {
                taken.insert(key, slots);
            }
        }
        if taken.is_empty() {
            queue.owed.remove(quota);
            queue.releasing.remove(quota);
            if queue.is_idle() {
                queues.remove(&partition);
            }
        } else {
            queue.releasing.insert(quota.clone(), taken.keys().cloned().collect());
        }
        taken
    }

    /// An execution was written that owes slots and nothing else.
    pub(super) fn written(&self, partition: Partition, key: &Key, written: Written) {
        let mut queues = self.queues();
        let progress = &mut queues.entry(partition).or_default().progress;
        progress.entry(key.clone()).or_default().written = Some(written);
    }

    /// Slots were given back, so that the execution may forget them.
    pub(super) fn released(&self, partition: Partition, key: &Key, slots: Vec<SlotId>) {
        let mut queues = self.queues();
        queues.entry(partition).or_default().progress.entry(key.clone()).or_default().released.extend(slots);
    }

    fn queues(&self) -> std::sync::MutexGuard<'_, BTreeMap<Partition, Queue>> {
        self.queues.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Partition = Partition::flow(0);

    fn execution(number: u8) -> Key {
        Key::new(kind::EXECUTION, &[&[number; 16]])
    }

    fn flow(number: u8) -> Key {
        Key::new(kind::FLOW, &[&[number; 16]])
    }

    fn turns(marks: &Marks) -> Vec<Turn> {
        std::iter::from_fn(|| marks.take(HERE).map(|(turn, _)| turn)).collect()
    }

    #[test]
    fn executions_flows_and_suspects_take_turns() {
        let marks = Marks::new(200);
        assert!(marks.push(HERE, flow(1)), "the first one begins");
        assert!(!marks.push(HERE, flow(2)));
        marks.push(HERE, execution(1));
        marks.push(HERE, execution(2));
        marks.push(HERE, execution(1));
        marks.separate(HERE, [execution(3), execution(4)]);
        let together = Turn::Executions(vec![execution(1), execution(2)]);
        let alone = |number| Turn::Executions(vec![execution(number)]);
        let expected = [Turn::Flow(flow(1)), alone(3), together, Turn::Flow(flow(2)), alone(4)];
        assert_eq!(turns(&marks), expected);
        assert!(marks.queues().is_empty(), "nothing is kept of what is done");
    }

    #[test]
    fn what_is_not_done_queues_again_behind_the_others_and_remembers_how_far_it_is() {
        let marks = Marks::new(200);
        marks.push(HERE, flow(1));
        marks.push(HERE, flow(2));
        let (turn, progress) = marks.take(HERE).unwrap();
        assert_eq!((turn, progress[&flow(1)].chunk), (Turn::Flow(flow(1)), None));
        marks.again(HERE, flow(1), Progress { chunk: Some(7), ..Default::default() });
        assert_eq!(marks.take(HERE).unwrap().0, Turn::Flow(flow(2)));
        let (turn, progress) = marks.take(HERE).unwrap();
        assert_eq!((turn, progress[&flow(1)].chunk), (Turn::Flow(flow(1)), Some(7)));
        marks.succeeded(HERE, &flow(1));
        assert!(marks.take(HERE).is_none() && marks.queues().is_empty());
    }

    #[test]
    fn a_drainer_that_is_gone_is_replaced_by_the_next_key() {
        let marks = Marks::new(200);
        assert!(marks.push(HERE, execution(1)));
        assert!(!marks.push(HERE, execution(2)));
        marks.abandoned(HERE, None);
        assert!(marks.push(HERE, execution(3)));
    }

    #[test]
    fn the_slots_of_each_quota_are_seen_to_once() {
        let marks = Marks::new(200);
        let quota = |name: &str| ("default".to_owned(), name.to_owned());
        assert!(marks.owe(HERE, &quota("a"), execution(1), vec![]));
        assert!(!marks.owe(HERE, &quota("a"), execution(2), vec![]));
        assert!(marks.owe(HERE, &quota("b"), execution(3), vec![]));
        assert_eq!(marks.take_owed(HERE, &quota("a")).len(), 2);
        assert!(!marks.owe(HERE, &quota("a"), execution(1), vec![]), "that is under way");
        for name in ["a", "b", "b"] {
            marks.take_owed(HERE, &quota(name));
        }
        assert!(marks.queues().is_empty());
    }
}
