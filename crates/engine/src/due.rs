//! The `due` indexes as this engine knows them: when something is due in each partition, which instants the other
//! engines were told of, and which of them this engine waits for. Transactions note instants; the timers act on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use ff_core::{Key, Partition};
use tokio::sync::Notify;

/// How much later the next engine in rank fires.
pub(crate) const RANK_STEP_MS: i64 = 300;
/// Engines behind this rank fire with it.
pub(crate) const RANK_MAX: i64 = 3;
/// An engine that fired in another's place does not wait for that one for this long.
pub(crate) const MISSED_MS: i64 = 5_000;
/// The pause before the next try after an error of the store.
pub(crate) const RETRY_MS: i64 = 500;

/// The `due` indexes as this engine knows them.
#[derive(Default)]
pub(crate) struct DueTimes {
    next: Mutex<BTreeMap<Partition, i64>>,
    /// The earliest instant of each partition that all engines were told of.
    told: Mutex<BTreeMap<Partition, i64>>,
    /// Partitions in which those ranked before this engine did not fire, and until when they are not waited for.
    missed: Mutex<BTreeMap<Partition, i64>>,
    /// Marks that an engine ranked before this one should resolve, as they were seen; looked at again a little later.
    left: Mutex<BTreeMap<Partition, BTreeSet<Key>>>,
    /// Wakes the timers when something is due.
    pub(crate) wake: Notify,
    /// Wakes the sweep.
    pub(crate) sweep: Notify,
}

impl DueTimes {
    /// Notes that something in a partition is due at this instant.
    pub(crate) fn note(&self, partition: Partition, at: i64) {
        let mut next = self.next();
        let known = next.entry(partition).or_insert(i64::MAX);
        if at < *known {
            *known = at;
            self.wake.notify_one();
        }
    }

    /// Notes an instant before a commit; says whether other engines must be told. They need not if all were told of an
    /// earlier instant in this partition that is yet to come: each of them looks then at what comes next. An instant
    /// that this engine alone noted does not count: its commit may have met a conflict, and its hint was not sent.
    pub(crate) fn announce(&self, partition: Partition, at: i64, now: i64) -> bool {
        self.note(partition, at);
        let told = self.told.lock().expect("no holder of this lock panics");
        told.get(&partition).is_none_or(|told| at < *told || *told <= now)
    }

    /// Notes an instant of a hint, which all engines heard.
    pub(crate) fn hear(&self, partition: Partition, at: i64, now: i64) {
        self.note(partition, at);
        let mut told = self.told.lock().expect("no holder of this lock panics");
        let earliest = told.entry(partition).or_insert(at);
        if at < *earliest || *earliest <= now {
            *earliest = at;
        }
    }

    /// Notes that the engines ranked before this one did not fire a due entry of a partition.
    pub(crate) fn missed(&self, partition: Partition, now: i64) {
        self.missed.lock().expect("no holder of this lock panics").insert(partition, now + MISSED_MS);
    }

    /// How long this engine waits, at its rank, for others to fire what is due.
    pub(crate) fn delay(&self, partition: Partition, rank: i64, now: i64) -> i64 {
        let missed = self.missed.lock().expect("no holder of this lock panics");
        match missed.get(&partition) {
            Some(until) if now < *until => 0,
            _ => rank.min(RANK_MAX) * RANK_STEP_MS,
        }
    }

    /// Remembers marks that are left to others; says whether a later look at them must be planned.
    pub(crate) fn leave(&self, partition: Partition, seen: BTreeSet<Key>) -> bool {
        self.left.lock().expect("no holder of this lock panics").insert(partition, seen).is_none()
    }

    /// The marks of a partition that were left to others.
    pub(crate) fn take_left(&self, partition: Partition) -> BTreeSet<Key> {
        self.left.lock().expect("no holder of this lock panics").remove(&partition).unwrap_or_default()
    }

    /// Forgets which engines did not fire, because the ranks have changed.
    pub(crate) fn ranks_changed(&self) {
        self.missed.lock().expect("no holder of this lock panics").clear();
        self.wake.notify_one();
    }

    /// Wakes the timers, because a test clock has moved.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Starts a quick sweep of every partition.
    pub(crate) fn sweep_now(&self) {
        self.sweep.notify_one();
    }

    /// The next instant at which this engine has to fire. It need not be the first instant that is due, because other
    /// engines are ranked first in some partitions. Busy partitions are left out.
    pub(crate) fn earliest(&self, busy: &BTreeSet<Partition>, delay: impl Fn(Partition) -> i64) -> Option<i64> {
        let next = self.next();
        let idle = next.iter().filter(|(partition, _)| !busy.contains(*partition));
        idle.map(|(partition, at)| at.saturating_add(delay(*partition))).min()
    }

    /// Takes the instants of partitions that are due and not busy, because they are about to be read.
    pub(crate) fn take_due(
        &self,
        now: i64,
        busy: &BTreeSet<Partition>,
        delay: impl Fn(Partition) -> i64,
    ) -> Vec<(Partition, i64)> {
        let mut next = self.next();
        let due: Vec<(Partition, i64)> = next
            .iter()
            .filter(|(partition, at)| !busy.contains(*partition) && at.saturating_add(delay(**partition)) <= now)
            .map(|(partition, at)| (*partition, *at))
            .collect();
        for (partition, _) in &due {
            next.remove(partition);
        }
        due
    }

    fn next(&self) -> std::sync::MutexGuard<'_, BTreeMap<Partition, i64>> {
        self.next.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_did_not_fire_is_not_waited_for_again_until_the_ranks_change() {
        let due = DueTimes::default();
        let partition = Partition::flow(0);
        assert_eq!(due.delay(partition, 2, 1_000), 600);
        due.missed(partition, 1_000);
        assert_eq!(due.delay(partition, 2, 1_001), 0);
        assert_eq!(due.delay(Partition::flow(1), 2, 1_001), 600);
        assert_eq!(due.delay(partition, 2, 1_000 + MISSED_MS), 600);
        due.missed(partition, 1_000);
        due.ranks_changed();
        assert_eq!(due.delay(partition, 2, 1_001), 600);
    }

    #[test]
    fn what_is_due_later_but_first_of_ours_is_what_we_sleep_for() {
        let due = DueTimes::default();
        let (others, own) = (Partition::flow(0), Partition::flow(1));
        let delay = |partition| if partition == others { 900 } else { 0 };
        due.note(others, 1_000);
        due.note(own, 1_100);
        let idle = BTreeSet::new();
        assert_eq!(due.earliest(&idle, delay), Some(1_100));
        assert_eq!(due.take_due(1_100, &idle, delay), [(own, 1_100)]);
        assert_eq!(due.earliest(&idle, delay), Some(1_900));
    }

    #[test]
    fn a_partition_that_is_busy_keeps_what_is_due_for_later() {
        let due = DueTimes::default();
        let (first, second) = (Partition::flow(0), Partition::flow(1));
        due.note(first, 1_000);
        due.note(second, 1_100);
        let busy = BTreeSet::from([first]);
        assert_eq!(due.earliest(&busy, |_| 0), Some(1_100));
        assert_eq!(due.take_due(1_200, &busy, |_| 0), [(second, 1_100)]);
        assert_eq!(due.earliest(&busy, |_| 0), None);
        assert_eq!(due.take_due(1_200, &BTreeSet::new(), |_| 0), [(first, 1_000)]);
    }
}
