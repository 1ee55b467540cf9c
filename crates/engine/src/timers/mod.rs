//! Everything that happens because time passed: one service over the `due` index of every partition.
//!
//! It sleeps until the earliest instant it knows of and fires within milliseconds. Firing is an ordinary guarded
//! transaction, so several engines may fire the same entry and one of them wins; to keep them from trying at the same
//! moment they are ranked for each partition, and rank r waits r × 300 ms, from the third on as long as the third. A server
//! that was killed counts as living for a while. An engine that had to fire in its place does not wait for it again until
//! the ranks change or some seconds have passed, so a dead server holds up one firing of a partition and not all.
//!
//! Cost: an idle partition costs one small read in a sweep's period, however many workers wait.

mod booking;
mod fire;
mod govern;
mod orphan;
mod registry;
mod sweep;

pub(crate) use fire::repair_due;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use ff_core::index::{self, Due};
use ff_core::planted::{Bug, planted};
use ff_core::{Key, Partition};
use ff_store::{Query, Scan};
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use crate::engine::Engine;
use crate::env;

/// How much later the next engine in rank fires.
const RANK_STEP_MS: i64 = 300;
/// Those behind this rank fire with it.
const RANK_MAX: i64 = 3;
/// An engine that fired in another's place does not wait for that one for this long.
const MISSED_MS: i64 = 5_000;
/// Entries fired at once.
const FIRE_CHUNK: usize = 64;
/// After trouble with the store, try again this much later.
const RETRY_MS: i64 = 500;

/// What is known of the `due` indexes.
#[derive(Default)]
pub(crate) struct Timers {
    next: Mutex<BTreeMap<Partition, i64>>,
    /// The earliest instant of each partition that all engines were told of.
    told: Mutex<BTreeMap<Partition, i64>>,
    /// Partitions in which those ranked before this engine did not fire, and until when they are not waited for.
    missed: Mutex<BTreeMap<Partition, i64>>,
    /// Marks that an engine ranked before this one should resolve, as they were seen; looked at again a little later.
    left: Mutex<BTreeMap<Partition, BTreeSet<Key>>>,
    wake: Notify,
    sweep: Notify,
}

impl Timers {
    /// Something in a partition is due at this instant.
    pub(crate) fn note(&self, partition: Partition, at: i64) {
        let mut next = self.next();
        let known = next.entry(partition).or_insert(i64::MAX);
        if at < *known {
            *known = at;
            self.wake.notify_one();
        }
    }

    /// The same before a commit: whether other engines must be told. They need not if all were told of an earlier instant
    /// in this partition that is yet to come: each of them looks then at what comes next. What this engine alone noted
    /// does not count: its commit may have met a conflict, and its hint was not sent.
    pub(crate) fn announce(&self, partition: Partition, at: i64, now: i64) -> bool {
        self.note(partition, at);
        let told = self.told.lock().expect("no holder of this lock panics");
        told.get(&partition).is_none_or(|told| at < *told || *told <= now)
    }

    /// The same by a hint, which all engines heard.
    pub(crate) fn hear(&self, partition: Partition, at: i64, now: i64) {
        self.note(partition, at);
        let mut told = self.told.lock().expect("no holder of this lock panics");
        let earliest = told.entry(partition).or_insert(at);
        if at < *earliest || *earliest <= now {
            *earliest = at;
        }
    }

    /// Those ranked before this engine did not fire what was due in a partition.
    fn missed(&self, partition: Partition, now: i64) {
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

    /// Remembers marks that are left to others; says whether somebody must look at them later.
    fn leave(&self, partition: Partition, seen: BTreeSet<Key>) -> bool {
        self.left.lock().expect("no holder of this lock panics").insert(partition, seen).is_none()
    }

    /// The marks of a partition that were left to others.
    fn take_left(&self, partition: Partition) -> BTreeSet<Key> {
        self.left.lock().expect("no holder of this lock panics").remove(&partition).unwrap_or_default()
    }

    /// Others come before this engine now.
    pub(crate) fn ranks_changed(&self) {
        self.missed.lock().expect("no holder of this lock panics").clear();
        self.wake.notify_one();
    }

    /// Time has moved.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Look at every partition now.
    pub(crate) fn sweep_now(&self) {
        self.sweep.notify_one();
    }

    /// When this engine has to fire next, which need not be what is due first: others fire before it there. Partitions
    /// that are busy come after.
    fn earliest(&self, busy: &BTreeSet<Partition>, delay: impl Fn(Partition) -> i64) -> Option<i64> {
        let next = self.next();
        let idle = next.iter().filter(|(partition, _)| !busy.contains(*partition));
        idle.map(|(partition, at)| at.saturating_add(delay(*partition))).min()
    }

    /// Forgets what was known of a partition that is not busy, because it is about to be looked at.
    fn take_due(
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

impl Engine {
    /// Fires what is due, for as long as the engine lives. Partitions do not wait for each other: one whose store does not
    /// answer holds up only itself.
    pub(crate) async fn run_timers(self) {
        let engine = &self;
        let mut firing = FuturesUnordered::new();
        let mut busy = BTreeSet::new();
        loop {
            let now = self.now();
            // Instants of a partition are those of its own clock, which may be behind or ahead of the one slept by.
            let delay =
                |partition| self.timers().delay(partition, self.rank(partition), now) + now - self.now_in(partition);
            for (partition, at) in self.timers().take_due(now, &busy, delay) {
                busy.insert(partition);
                firing.push(async move {
                    engine.fire_partition(partition, at).await;
                    partition
                });
            }
            let patience = self.timers().earliest(&busy, delay).map_or(i64::MAX, |at| (at - now).max(1));
            let woken = async {
                match patience {
                    i64::MAX => self.timers().wake.notified().await,
                    // A clock that stands still is not slept by: who moves it wakes this service.
                    _ if self.options().test_clock.is_some() => self.timers().wake.notified().await,
                    ms => drop(env::within(self.env_handle(), ms, self.timers().wake.notified()).await),
                }
            };
            if firing.is_empty() {
                woken.await;
            } else if let Either::Left((Some(partition), _)) = select(firing.next(), Box::pin(woken)).await {
                busy.remove(&partition);
            }
        }
    }

    /// Fires everything due in one partition and notes what comes next.
    async fn fire_partition(&self, partition: Partition, known_at: i64) {
        // What cannot be fired stays at the head; what is due behind it must not wait for it.
        let mut after: Option<(i64, Key)> = None;
        let chunk = self.chunk(FIRE_CHUNK);
        loop {
            let mut scan = Scan::first(index::due(), chunk);
            scan.after = after.clone();
            let answers = match self.read(partition, vec![Query::Scan(scan)]).await {
                Ok(answers) => answers,
                Err(error) => {
                    if let Some(suppressed) = self.may_log("the due index cannot be read") {
                        tracing::warn!(%partition, %error, suppressed, "the due index cannot be read; trying again soon");
                    }
                    self.timers().note(partition, self.now_in(partition).max(known_at) + RETRY_MS);
                    return;
                }
            };
            let now = if planted(Bug::TimerEarly) { answers.at + 500 } else { answers.at };
            // A clock of the store that stepped back stands still for a while, behind what this engine takes it for. What
            // is not due by it yet must not be looked at again at once.
            let ahead = (self.now_in(partition) - now).max(0);
            let Ok(page) = answers.into_only(ff_store::Answer::into_scan) else { return };
            let full = page.entries.len() == chunk;
            after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            // The bug remembers what is due soon, and acts on it without looking again.
            let soon = if planted(Bug::ExpiryIgnoresRenewal) { now + 500 } else { now };
            let mut coming = page.entries.iter().filter(|entry| entry.score > soon);
            let later = match partition {
                // Servers watch over each other; a full page of them may hide what comes behind.
                Partition::SYSTEM if !full => coming.find(|entry| !is_server(&entry.member)),
                _ => coming.next(),
            };
            let later = later.map(|entry| entry.score);
            let overdue = now - MISSED_MS..=now - RANK_STEP_MS;
            if self.rank(partition) > 0 && page.entries.iter().any(|entry| overdue.contains(&entry.score)) {
                self.timers().missed(partition, now);
            }
            let due: Vec<_> = page.entries.into_iter().filter(|entry| entry.score <= soon).collect();
            let fired_all = due.len();
            let firing = due.into_iter().map(|entry| async move {
                if entry.score > now {
                    self.env().sleep(entry.score - now).await;
                }
                self.metrics().timer_lateness.observe((now - entry.score).max(0) * 1_000);
                let outcome = self.contain("timers", self.fire(partition, &entry.member, entry.score)).await;
                if let Err(error) = &outcome
                    && let Some(suppressed) = self.may_log("a timer could not fire")
                {
                    let member = &entry.member;
                    tracing::warn!(%partition, ?member, %error, suppressed, "a timer could not fire; trying again soon");
                }
                outcome.is_ok()
            });
            let succeeded = futures_util::future::join_all(firing).await.into_iter().all(|ok| ok);
            if let Some(at) = later {
                self.timers().note(partition, at.saturating_add(ahead));
            }
            if !succeeded {
                self.timers().note(partition, now + ahead + RETRY_MS);
            }
            if later.is_some() || !full || fired_all == 0 {
                return;
            }
        }
    }
}

/// Whether a `due` entry is the end of a server's registration.
fn is_server(member: &Key) -> bool {
    Due::parse(member).is_some_and(|(key, _)| key.kind() == index::kind::SERVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_did_not_fire_is_not_waited_for_again_until_the_ranks_change() {
        let timers = Timers::default();
        let partition = Partition::flow(0);
        assert_eq!(timers.delay(partition, 2, 1_000), 600);
        timers.missed(partition, 1_000);
        assert_eq!(timers.delay(partition, 2, 1_001), 0);
        assert_eq!(timers.delay(Partition::flow(1), 2, 1_001), 600);
        assert_eq!(timers.delay(partition, 2, 1_000 + MISSED_MS), 600);
        timers.missed(partition, 1_000);
        timers.ranks_changed();
        assert_eq!(timers.delay(partition, 2, 1_001), 600);
    }

    #[test]
    fn what_is_due_later_but_first_of_ours_is_what_we_sleep_for() {
        let timers = Timers::default();
        let (others, own) = (Partition::flow(0), Partition::flow(1));
        let delay = |partition| if partition == others { 900 } else { 0 };
        timers.note(others, 1_000);
        timers.note(own, 1_100);
        let idle = BTreeSet::new();
        assert_eq!(timers.earliest(&idle, delay), Some(1_100));
        assert_eq!(timers.take_due(1_100, &idle, delay), [(own, 1_100)]);
        assert_eq!(timers.earliest(&idle, delay), Some(1_900));
    }

    #[test]
    fn a_partition_that_is_busy_keeps_what_is_due_for_later() {
        let timers = Timers::default();
        let (first, second) = (Partition::flow(0), Partition::flow(1));
        timers.note(first, 1_000);
        timers.note(second, 1_100);
        let busy = BTreeSet::from([first]);
        assert_eq!(timers.earliest(&busy, |_| 0), Some(1_100));
        assert_eq!(timers.take_due(1_200, &busy, |_| 0), [(second, 1_100)]);
        assert_eq!(timers.earliest(&busy, |_| 0), None);
        assert_eq!(timers.take_due(1_200, &BTreeSet::new(), |_| 0), [(first, 1_000)]);
    }
}
