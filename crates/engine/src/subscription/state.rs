//! The subscriptions as an engine knows them, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ff_core::subscription::{DELIVERY_LANE, Subscription};
use ff_core::{Family, IndexName, Partition, SubscriptionId, index};
use tokio::sync::Notify;

use super::look::Seen;

/// The memory of the subscriptions may be this old when it is acted on.
const CONFIRMED_MS: i64 = 1_000;

/// The subscriptions as an engine knows them.
#[derive(Default)]
pub(crate) struct SubscriptionState {
    /// Whether there are any: what the path of a task looks at.
    any: AtomicBool,
    known: Mutex<Known>,
    /// Wakes the service when there is something to look at.
    pub(super) wake: Notify,
    /// The list was read.
    pub(crate) listed: Notify,
}

#[derive(Default)]
struct Known {
    all: Arc<Vec<Subscription>>,
    /// When the list was read, in the process's time.
    read_at: Option<i64>,
    /// It may have changed since.
    stale: bool,
    /// Partitions in which something may have happened.
    waiting: BTreeSet<Partition>,
    /// Namespaces in which deliveries were seen to wait.
    queued: BTreeSet<String>,
    /// How far each subscription has come in each partition.
    places: BTreeMap<(Partition, SubscriptionId), Place>,
    /// Where the cursor of a subscription says that it was removed. The list may be older, or have forgotten that.
    ended: BTreeSet<(Partition, SubscriptionId)>,
    /// How often the places were forgotten: a look that began before that does not bring its own back.
    forgotten: u64,
    /// Every partition is to be looked through.
    everywhere: bool,
}

/// How far a subscription has come in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// As its cursor says.
    pub(super) stored: u64,
    /// Up to here nothing was wanted.
    pub(super) seen: Seen,
}

/// How far subscriptions have come with one look.
#[derive(Default)]
pub(super) struct Advanced {
    pub(super) places: Vec<(SubscriptionId, Place)>,
    /// Those whose cursors say that they were removed.
    pub(super) ended: Vec<SubscriptionId>,
    pub(super) more: bool,
}

impl SubscriptionState {
    /// Something may have happened in a partition.
    pub(crate) fn note(&self, partition: Partition) {
        // Cursors are where executions live.
        if partition.family == Family::Flow && self.any.load(Ordering::Relaxed) {
            self.known().waiting.insert(partition);
            self.wake.notify_one();
        }
    }

    /// The subscriptions may have changed.
    pub(crate) fn look_again(&self) {
        self.known().stale = true;
        self.wake.notify_one();
    }

    /// Events that were passed over are looked at again: the store may have forgotten something.
    pub(crate) fn forget_places(&self) {
        let mut known = self.known();
        known.places.clear();
        known.ended.clear();
        known.forgotten += 1;
        known.everywhere = true;
        drop(known);
        self.look_again();
    }

    /// Namespaces with webhooks to be sent.
    pub(crate) fn webhook_namespaces(&self) -> BTreeSet<String> {
        let known = self.known();
        let subscribed = known.all.iter().filter(|one| one.is_webhook()).map(|one| one.namespace.clone());
        subscribed.chain(known.queued.iter().cloned()).collect()
    }

    /// Takes note of deliveries that wait where there may be no subscription any more: their last words are theirs.
    pub(crate) fn found_queues(&self, names: &[IndexName]) {
        let lane = DELIVERY_LANE.as_bytes();
        let is_ours = |name: &&IndexName| name.as_bytes().windows(lane.len()).any(|part| part == lane);
        let parsed = names.iter().filter(is_ours).filter_map(index::QueueName::parse);
        let found: Vec<String> =
            parsed.filter(|queue| queue.lane == DELIVERY_LANE).map(|queue| queue.namespace).collect();
        if !found.is_empty() {
            self.known().queued.extend(found);
            self.listed.notify_one();
        }
    }

    /// Nothing waits in a namespace.
    pub(crate) fn found_nothing(&self, namespace: &str) {
        self.known().queued.remove(namespace);
    }

    /// The list is read now: what changes from here on makes it stale again.
    pub(super) fn begin_reading(&self) {
        self.known().stale = false;
    }

    pub(super) fn is_stale(&self, now: i64) -> bool {
        let known = self.known();
        let old = known.read_at.is_none_or(|read_at| now - read_at >= CONFIRMED_MS);
        known.stale || (old && !known.waiting.is_empty())
    }

    pub(super) fn take_waiting(&self, all: impl Iterator<Item = Partition>) -> BTreeSet<Partition> {
        let mut known = self.known();
        let everywhere = std::mem::take(&mut known.everywhere) && !known.all.is_empty();
        let waiting = std::mem::take(&mut known.waiting);
        if everywhere { all.collect() } else { waiting }
    }

    /// The subscriptions that deliver now in a partition.
    pub(super) fn active(&self, partition: Partition) -> Vec<Subscription> {
        let known = self.known();
        let goes_on = |one: &&Subscription| !one.paused && !one.removing && !known.ended.contains(&(partition, one.id));
        known.all.iter().filter(goes_on).cloned().collect()
    }

    /// The list as it was read. Partitions are looked through for what is new or goes on.
    pub(super) fn learn(&self, all: Vec<Subscription>, partitions: impl Iterator<Item = Partition>, now: i64) {
        let mut known = self.known();
        let active = |list: &[Subscription]| -> BTreeSet<SubscriptionId> {
            list.iter().filter(|one| !one.paused && !one.removing).map(|one| one.id).collect()
        };
        let (before, after) = (active(&known.all), active(&all));
        if !after.is_subset(&before) {
            known.waiting.extend(partitions);
            self.wake.notify_one();
        }
        known.places.retain(|(_, id), _| after.contains(id));
        known.ended.retain(|(_, id)| after.contains(id));
        known.all = Arc::new(all);
        known.read_at = Some(now);
        self.any.store(!known.all.is_empty(), Ordering::Relaxed);
        drop(known);
        self.listed.notify_one();
    }

    /// The places of subscriptions if all are known, and how often places were forgotten so far.
    pub(super) fn places(&self, partition: Partition, subscriptions: &[Subscription]) -> (Option<Vec<Place>>, u64) {
        let known = self.known();
        let places = subscriptions.iter().map(|one| known.places.get(&(partition, one.id)).copied()).collect();
        (places, known.forgotten)
    }

    /// Keeps how far a look came, unless places were forgotten since it began.
    pub(super) fn keep(&self, partition: Partition, advanced: Advanced, forgotten: u64) {
        let mut known = self.known();
        if known.forgotten == forgotten {
            known.places.extend(advanced.places.into_iter().map(|(id, place)| ((partition, id), place)));
            known.ended.extend(advanced.ended.into_iter().map(|id| (partition, id)));
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().expect("no holder of this lock panics")
    }
}
