//! Everything that happens because time passed: one service over the `due` index of every partition.
//!
//! It sleeps until the earliest instant it knows of and fires within milliseconds. Firing is an ordinary guarded
//! transaction, so several engines may fire the same entry and one of them wins; to keep them from trying at the same
//! moment they are ranked for each partition, and rank r waits r × 300 ms, from the third on as long as the third: a server
//! that was killed counts as living for a while, and many of them must not hold up those that live.
//!
//! Cost: an idle partition costs one small read in a sweep's period, however many workers wait.

mod fire;
mod govern;
mod registry;
mod sweep;

pub(crate) use fire::repair_due;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use ff_core::index;
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
/// Entries fired at once.
const FIRE_CHUNK: usize = 64;
/// After trouble with the store, try again this much later.
const RETRY_MS: i64 = 500;

/// What is known of the `due` indexes.
#[derive(Default)]
pub(crate) struct Timers {
    next: Mutex<BTreeMap<Partition, i64>>,
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

    /// The same before a commit: whether other engines must be told. They need not if an earlier instant in this
    /// partition is known: whoever fires that one looks at what comes next.
    pub(crate) fn announce(&self, partition: Partition, at: i64, now: i64) -> bool {
        let known = self.next().get(&partition).copied();
        self.note(partition, at);
        known.is_none_or(|known| at < known || known <= now)
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
            let delay = |partition| self.rank(partition).min(RANK_MAX) * RANK_STEP_MS + now - self.now_in(partition);
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
        loop {
            let mut scan = Scan::first(index::due(), FIRE_CHUNK);
            scan.after = after.clone();
            let answers = match self.read(partition, vec![Query::Scan(scan)]).await {
                Ok(answers) => answers,
                Err(error) => {
                    tracing::warn!(%partition, %error, "the due index cannot be read; trying again soon");
                    self.timers().note(partition, self.now_in(partition).max(known_at) + RETRY_MS);
                    return;
                }
            };
            let now = if planted(Bug::TimerEarly) { answers.at + 500 } else { answers.at };
            let Ok(page) = answers.into_only(ff_store::Answer::into_scan) else { return };
            let full = page.entries.len() == FIRE_CHUNK;
            let first_page = after.is_none();
            after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            // The bug remembers what is due soon, and acts on it without looking again.
            let soon = if planted(Bug::ExpiryIgnoresRenewal) { now + 500 } else { now };
            let later = page.entries.iter().map(|entry| entry.score).find(|score| *score > soon);
            let due: Vec<_> = page.entries.into_iter().filter(|entry| entry.score <= soon).collect();
            let fired_all = due.len();
            let firing = due.into_iter().map(|entry| async move {
                if entry.score > now {
                    self.env().sleep(entry.score - now).await;
                }
                self.metrics().timer_lateness.observe((now - entry.score).max(0) * 1_000);
                let outcome = self.fire(partition, &entry.member, entry.score).await;
                if let Err(error) = &outcome {
                    tracing::warn!(%partition, member = ?entry.member, %error, "a timer could not fire; trying again soon");
                }
                outcome.is_ok()
            });
            let succeeded = futures_util::future::join_all(firing).await.into_iter().all(|ok| ok);
            if let Some(at) = later {
                self.timers().note(partition, at);
            }
            if !succeeded {
                self.timers().note(partition, now + RETRY_MS);
            }
            if first_page && fired_all == 0 && known_at <= now && self.rank(partition) > 0 {
                // Another engine fired what we knew of. Its hint says so, unless it has died since: look for ourselves.
                self.sweep_partition(partition).await;
                return;
            }
            if later.is_some() || !full || fired_all == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
