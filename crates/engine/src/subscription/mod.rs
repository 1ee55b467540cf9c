//! Subscriptions at work: what happened in a partition is looked through for them, and the commit that moves their cursors
//! over an event creates its delivery. So an event is delivered once, whatever crashes.
//!
//! An engine knows all subscriptions of the deployment, from hints and sweeps. Without any, an event costs it a
//! comparison. Of several engines the one that is ranked first for a partition looks through it. Events that no
//! subscription wants are passed over in memory, and the cursors are stored only now and then. Webhooks are sent by
//! `delivery`.

mod advance;
mod create;
mod ends;
mod look;
mod state;

use std::collections::BTreeSet;
use std::sync::Arc;

use ff_core::event::Event;
use ff_core::subscription::{Subscription, SubscriptionCursor};
use ff_core::{Key, Partition, Result, SubscriptionId, index, limits};
use ff_store::Scan;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use self::advance::Advance;
use self::ends::{Begin, End, GoOn, Remove, RemoveCursor};
use self::look::Look;
use self::state::{Advanced, Place, SubscriptionState};
use crate::servers::Servers;
use crate::submission::Submissions;
use crate::transaction::Transactor;
use crate::{env, logs};

pub(crate) use self::create::{NewDelivery, create_delivery};
pub(crate) use self::ends::watch_creation;

/// A partition or a list that could not be read is looked at again after this time.
const RETRY_MS: i64 = 1_000;
/// Partitions that are looked through at the same time.
const PARTITIONS_AT_ONCE: usize = 16;
/// Subscriptions whose cursors one commit moves.
const CURSORS_PER_COMMIT: usize = 50;
/// Cursors whose subscription is gone are looked for in every partition once in this time, in one partition after another.
const TIDY_MS: i64 = 3_600_000;
/// The first time, so long after the start: what has to be done at once goes first.
const FIRST_TIDY_MS: i64 = 60_000;
/// Cursors that one look for such takes.
const TIDY_CURSORS_MAX: usize = 1_000;

/// Looks through partitions on behalf of subscriptions.
#[derive(Clone)]
pub(crate) struct Subscriptions {
    transactor: Transactor,
    servers: Servers,
    submissions: Submissions,
    pub(crate) state: Arc<SubscriptionState>,
}

impl Subscriptions {
    pub(crate) fn new(servers: Servers, submissions: Submissions) -> Self {
        Self { transactor: servers.transactor().clone(), servers, submissions, state: Arc::default() }
    }

    /// Looks through partitions for as long as the engine runs.
    pub(crate) async fn run(self) {
        self.state.look_again();
        let mut tidy_at = self.transactor.env().now_ms() + FIRST_TIDY_MS;
        let mut untidy = self.transactor.flow_partitions();
        loop {
            let left = tidy_at - self.transactor.env().now_ms();
            env::within(self.transactor.env_handle(), left.max(0), self.state.wake.notified()).await;
            if self.transactor.env().now_ms() >= tidy_at {
                let turn = untidy.next().or_else(|| {
                    untidy = self.transactor.flow_partitions();
                    untidy.next()
                });
                if let Some(partition) = turn.filter(|partition| self.servers.rank(*partition) == 0) {
                    self.tidy_cursors(partition).await;
                }
                let partitions = i64::from(self.transactor.partitions().flow).max(1);
                tidy_at = self.transactor.env().now_ms() + TIDY_MS / partitions;
            }
            if self.state.is_stale(self.transactor.env().now_ms())
                && let Err(error) = self.read_subscriptions().await
            {
                if let Some(suppressed) = self.transactor.may_log("the subscriptions cannot be read") {
                    tracing::warn!(%error, suppressed, "the subscriptions cannot be read; looking again soon");
                }
                self.transactor.env().sleep(RETRY_MS).await;
                self.state.look_again();
                continue;
            }
            let waiting = self.state.take_waiting(self.transactor.flow_partitions());
            let looks = waiting.into_iter().map(|partition| self.look_through(partition));
            stream::iter(looks).buffer_unordered(PARTITIONS_AT_ONCE).collect::<()>().await;
        }
    }

    /// Reads which subscriptions there are, and finishes removals that were begun.
    async fn read_subscriptions(&self) -> Result<()> {
        self.state.begin_reading();
        let asked_at = self.transactor.env().now_ms();
        let all = self.transactor.named_in::<Subscription>(Partition::SYSTEM, Subscription::everywhere(), None).await?;
        if self.servers.rank(Partition::SYSTEM) == 0 {
            for one in all.iter().filter(|one| one.removing) {
                let (subscriptions, subscription) = (self.clone(), one.clone());
                self.transactor.spawn_short(async move {
                    if let Err(error) = subscriptions.finish_removal(&subscription).await {
                        tracing::warn!(%error, name = subscription.name, "a subscription is not removed yet");
                    }
                });
            }
        }
        self.state.learn(all, self.transactor.flow_partitions(), asked_at);
        Ok(())
    }

    /// Removes cursors whose subscription is gone, such as one that the store forgot.
    async fn tidy_cursors(&self, partition: Partition) {
        // A partition that cannot be read now is looked at the next time.
        let scan = Scan::first(index::cursors(), TIDY_CURSORS_MAX);
        let Ok(found) = self.transactor.store().scan(partition, scan).await else { return };
        if found.entries.is_empty() {
            return;
        }
        // Read after them: a subscription is there before its cursors.
        let all = self.transactor.named_in::<Subscription>(Partition::SYSTEM, Subscription::everywhere(), None).await;
        let Ok(all) = all else { return };
        let known: BTreeSet<Key> = all.iter().map(|one| SubscriptionCursor::key_of(&one.id)).collect();
        for key in found.entries.into_iter().map(|entry| entry.member).filter(|key| !known.contains(key)) {
            let removed =
                self.transactor.transact(partition, self.transactor.fresh_command(), &RemoveCursor { key }).await;
            if let Err(error) = removed {
                tracing::warn!(%partition, %error, "a cursor without a subscription is not removed yet");
            }
        }
    }

    /// Looks through one partition, in turns of one bounded commit each.
    async fn look_through(&self, partition: Partition) {
        if self.servers.rank(partition) != 0 {
            return;
        }
        let subscriptions = self.state.active(partition);
        for some in subscriptions.chunks(self.transactor.chunk(CURSORS_PER_COMMIT)) {
            match self.transactor.contain("subscriptions", self.advance_cursors(partition, some)).await {
                Ok(false) => {}
                Ok(true) => self.state.note(partition),
                Err(error) => {
                    if let Some(suppressed) = self.transactor.may_log("events cannot be delivered") {
                        tracing::warn!(%partition, %error, suppressed, "events cannot be delivered; trying again soon");
                    }
                    let subscriptions = self.clone();
                    self.transactor.spawn_short(async move {
                        subscriptions.transactor.env().sleep(RETRY_MS).await;
                        subscriptions.state.note(partition);
                    });
                }
            }
        }
    }

    /// Moves cursors on over the next events; says whether there are more.
    async fn advance_cursors(&self, partition: Partition, subscriptions: &[Subscription]) -> Result<bool> {
        let (places, forgotten) = self.state.places(partition, subscriptions);
        if let Some(places) = &places
            && let Some(passed) = self.pass_over_unwanted(partition, subscriptions, places).await?
        {
            let more = passed.more;
            self.state.keep(partition, passed, forgotten);
            return Ok(more);
        }
        let verb = Advance { submissions: &self.submissions, subscriptions, places: places.unwrap_or_default() };
        let advanced = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await?;
        let more = advanced.more;
        self.state.keep(partition, advanced, forgotten);
        Ok(more)
    }

    /// Passes over the next events in memory if no subscription wants them; `None` where a commit has to decide.
    async fn pass_over_unwanted(
        &self,
        partition: Partition,
        subscriptions: &[Subscription],
        places: &[Place],
    ) -> Result<Option<Advanced>> {
        let nothing = || Some(Advanced::default());
        let sequences = || places.iter().map(|place| place.seen.sequence);
        let Some(from) = sequences().min() else { return Ok(nothing()) };
        let limit = self.transactor.chunk(limits::SUBSCRIPTION_EVENTS_PER_LOOK);
        let answers = self.transactor.read(partition, Look::queries(sequences(), limit)).await?;
        let look = Look::new(answers.answers, from);
        let page = &look.page;
        if page.removed_up_to > from || !places.iter().all(|place| look.confirms(&place.seen)) {
            // The store has forgotten something, or the log no longer reaches back: the cursors decide.
            return Ok(None);
        }
        let Some(last) = page.records.last().map(|record| record.sequence) else { return Ok(nothing()) };
        let unstored =
            places.iter().any(|place| last.saturating_sub(place.stored) >= limits::SUBSCRIPTION_UNSTORED_MAX);
        let wanted = page.records.iter().any(|record| {
            let event = self.transactor.readable_record::<Event>(&logs::events(), &record.record);
            let wants = |event: Event| {
                let after = |place: &Place| record.sequence > place.seen.sequence;
                subscriptions.iter().zip(places).any(|(one, place)| after(place) && one.wants(&event))
            };
            event.is_some_and(wants)
        });
        if wanted || unstored {
            return Ok(None);
        }
        let moved = subscriptions.iter().zip(places).map(|(one, place)| {
            let seen = if place.seen.sequence < last { look.seen(last) } else { place.seen };
            (one.id, Place { stored: place.stored, seen })
        });
        Ok(Some(Advanced { places: moved.collect(), more: page.records.len() >= limit, ..Advanced::default() }))
    }

    /// Lets a subscription begin in every partition, behind what has happened there.
    pub(crate) async fn begin_cursors(&self, id: SubscriptionId) -> Result<()> {
        let begin = |partition| async move {
            self.transactor.transact(partition, self.transactor.fresh_command(), &Begin { id }).await
        };
        let begun = stream::iter(self.transactor.flow_partitions()).map(begin).buffer_unordered(PARTITIONS_AT_ONCE);
        begun.try_collect::<()>().await
    }

    /// Lets the webhooks of a subscription that was paused be sent now, in a task of its own. Those that this misses look
    /// for themselves within half a minute.
    pub(crate) fn deliver_soon(&self, namespace: &str, name: &str) {
        let (subscriptions, key) = (self.clone(), Subscription::key_of(namespace, name));
        self.transactor.spawn_short(async move {
            if let Err(error) = subscriptions.deliver_now(key).await
                && let Some(suppressed) = subscriptions.transactor.may_log("webhooks were not let go on")
            {
                tracing::warn!(%error, suppressed, "webhooks of a resumed subscription wait for up to 30 s");
            }
        });
    }

    async fn deliver_now(&self, key: Key) -> Result<()> {
        let found = self.transactor.find::<Subscription>(Partition::SYSTEM, key).await?;
        let Some(id) = found.filter(|one| !one.paused && one.is_webhook()).map(|one| one.id) else { return Ok(()) };
        let go_on = |partition| async move {
            let mut after = None;
            loop {
                let verb = GoOn { id, after };
                after = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await?;
                if after.is_none() {
                    return Ok::<(), ff_core::Error>(());
                }
            }
        };
        let gone_on = stream::iter(self.transactor.flow_partitions()).map(go_on).buffer_unordered(PARTITIONS_AT_ONCE);
        gone_on.try_collect::<()>().await
    }

    /// Removes the cursors and open webhooks of a subscription, and the subscription last.
    pub(crate) async fn finish_removal(&self, subscription: &Subscription) -> Result<()> {
        let end = |partition| async move {
            while self.transactor.transact(partition, self.transactor.fresh_command(), &End { subscription }).await? {}
            Ok::<(), ff_core::Error>(())
        };
        let ended = stream::iter(self.transactor.flow_partitions()).map(end).buffer_unordered(PARTITIONS_AT_ONCE);
        ended.try_collect::<()>().await?;
        self.transactor.transact(Partition::SYSTEM, self.transactor.fresh_command(), &Remove { subscription }).await
    }
}
