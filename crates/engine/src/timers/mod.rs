//! Timers: one service that fires everything that happens because time passed, from the `due` index of every partition.
//!
//! It sleeps until the earliest instant it knows of and fires within milliseconds. Firing is an ordinary guarded
//! transaction, so several engines may fire the same entry and one of them wins; to keep them from trying at the same
//! moment they are ranked for each partition, and rank r waits r × 300 ms, from the third on as long as the third. A
//! server that was killed counts as alive for a while. An engine that had to fire in its place does not wait for it
//! again until the ranks change or some seconds have passed, so a dead server delays one firing of a partition and not
//! all.
//!
//! Cost: an idle partition costs one small read in a sweep's period, however many workers wait.

mod booking;
mod fire;
mod govern;
mod orphan;
mod registry;
mod reopening;
mod sweep;

use std::collections::BTreeSet;

use ff_core::index::{self, Due};
use ff_core::planted::{Bug, planted};
use ff_core::{Key, Partition};
use ff_store::{IndexEntry, Query, Scan};
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::bulk::Bulk;
use crate::due::{MISSED_MS, RANK_STEP_MS, RETRY_MS};
use crate::env;
use crate::providers::Providers;
use crate::resolver::Resolver;
use crate::scheduler::Scheduler;
use crate::servers::Servers;
use crate::submission::Submissions;
use crate::subscription::Subscriptions;
use crate::transaction::Transactor;

/// Entries fired at once.
const FIRE_CHUNK: usize = 64;

/// Fires due entries, and sweeps partitions for work that lost hints missed.
#[derive(Clone)]
pub(crate) struct Timers {
    pub(crate) transactor: Transactor,
    pub(crate) servers: Servers,
    pub(crate) scheduler: Scheduler,
    pub(crate) resolver: Resolver,
    pub(crate) providers: Providers,
    pub(crate) bulk: Bulk,
    pub(crate) submissions: Submissions,
    pub(crate) subscriptions: Subscriptions,
}

impl Timers {
    /// Fires due entries for as long as the engine lives. Partitions do not wait for each other: one whose store does
    /// not answer holds up only itself.
    pub(crate) async fn run(self) {
        let timers = &self;
        let mut firing = FuturesUnordered::new();
        let mut busy = BTreeSet::new();
        loop {
            let now = self.transactor.now();
            // Instants of a partition are of its own clock, which may be behind or ahead of the process's clock, by
            // which this service sleeps.
            let delay = |partition| {
                self.transactor.due().delay(partition, self.servers.rank(partition), now) + now
                    - self.transactor.now_in(partition)
            };
            for (partition, at) in self.transactor.due().take_due(now, &busy, delay) {
                busy.insert(partition);
                firing.push(async move {
                    timers.fire_partition(partition, at).await;
                    partition
                });
            }
            let patience = self.transactor.due().earliest(&busy, delay).map_or(i64::MAX, |at| (at - now).max(1));
            let woken = async {
                match patience {
                    i64::MAX => self.transactor.due().wake.notified().await,
                    // A test clock stands still until a test moves it, which wakes this service.
                    _ if self.transactor.options().test_clock.is_some() => self.transactor.due().wake.notified().await,
                    ms => {
                        env::within(self.transactor.env_handle(), ms, self.transactor.due().wake.notified()).await;
                    }
                }
            };
            if firing.is_empty() {
                woken.await;
            } else if let Either::Left((Some(partition), _)) = select(firing.next(), Box::pin(woken)).await {
                busy.remove(&partition);
            }
        }
    }

    /// Fires everything that is due in one partition and notes the next instant.
    async fn fire_partition(&self, partition: Partition, known_at: i64) {
        // An entry that cannot be fired stays at the head; entries due behind it must not wait for it.
        let mut after: Option<(i64, Key)> = None;
        let chunk = self.transactor.chunk(FIRE_CHUNK);
        loop {
            let mut scan = Scan::first(index::due(), chunk);
            scan.after = after.clone();
            let answers = match self.transactor.read(partition, vec![Query::Scan(scan)]).await {
                Ok(answers) => answers,
                Err(error) => {
                    if let Some(suppressed) = self.transactor.may_log("the due index cannot be read") {
                        tracing::warn!(%partition, %error, suppressed, "the due index cannot be read; trying again soon");
                    }
                    self.transactor.due().note(partition, self.transactor.now_in(partition).max(known_at) + RETRY_MS);
                    return;
                }
            };
            let now = if planted(Bug::TimerEarly) { answers.at + 500 } else { answers.at };
            // A store's clock that stepped back is behind this engine's estimate for a while. An entry that is not due
            // by that clock yet must not be checked again at once.
            let ahead = (self.transactor.now_in(partition) - now).max(0);
            let Ok(page) = answers.into_only(ff_store::Answer::into_scan) else { return };
            let full = page.entries.len() == chunk;
            after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            // The planted bug acts on entries that are due soon without reading them again.
            let soon = if planted(Bug::ExpiryIgnoresRenewal) { now + 500 } else { now };
            let later = next_after(partition, &page.entries, soon, full);
            self.note_missed(partition, &page.entries, now);
            let due: Vec<_> = page.entries.into_iter().filter(|entry| entry.score <= soon).collect();
            let any_due = !due.is_empty();
            let firing = due.iter().map(|entry| self.fire_entry(partition, entry, now));
            let succeeded = futures_util::future::join_all(firing).await.into_iter().all(|ok| ok);
            if let Some(at) = later {
                self.transactor.due().note(partition, at.saturating_add(ahead));
            }
            if !succeeded {
                self.transactor.due().note(partition, now + ahead + RETRY_MS);
            }
            if later.is_some() || !full || !any_due {
                return;
            }
        }
    }

    /// Notes that the engine ranked before this one has left entries of a partition unfired for too long.
    fn note_missed(&self, partition: Partition, entries: &[IndexEntry], now: i64) {
        let overdue = now - MISSED_MS..=now - RANK_STEP_MS;
        if self.servers.rank(partition) > 0 && entries.iter().any(|entry| overdue.contains(&entry.score)) {
            self.transactor.due().missed(partition, now);
        }
    }

    /// Fires one entry, and returns whether that succeeded.
    async fn fire_entry(&self, partition: Partition, entry: &IndexEntry, now: i64) -> bool {
        if entry.score > now {
            self.transactor.env().sleep(entry.score - now).await;
        }
        self.transactor.metrics().timer_lateness.observe((now - entry.score).max(0) * 1_000);
        let outcome = self.transactor.contain("timers", self.fire(partition, &entry.member, entry.score)).await;
        if let Err(error) = &outcome
            && let Some(suppressed) = self.transactor.may_log("a timer could not fire")
        {
            let member = &entry.member;
            tracing::warn!(%partition, ?member, %error, suppressed, "a timer could not fire; trying again soon");
        }
        outcome.is_ok()
    }
}

/// The next instant after `soon` at which something of a page is due. Ends of server registrations are not fired here,
/// because servers watch each other; but a full page of them may hide other entries behind it.
fn next_after(partition: Partition, entries: &[IndexEntry], soon: i64, full: bool) -> Option<i64> {
    let mut coming = entries.iter().filter(|entry| entry.score > soon);
    let next = match partition {
        Partition::SYSTEM if !full => coming.find(|entry| !is_server(&entry.member)),
        _ => coming.next(),
    };
    next.map(|entry| entry.score)
}

/// Whether a `due` entry is the end of a server's registration.
fn is_server(member: &Key) -> bool {
    Due::parse(member).is_some_and(|(key, _)| key.kind() == index::kind::SERVER)
}
