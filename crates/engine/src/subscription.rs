//! Subscriptions at work: what happened in a partition is looked through for them, and the commit that moves their cursors
//! over an event creates its delivery. So an event is delivered once, whatever crashes.
//!
//! An engine knows all subscriptions of the deployment, from hints and sweeps. Without any, an event costs it a
//! comparison. Of several engines the one that is ranked first for a partition looks through it. Events that no
//! subscription wants are passed over in memory, and the cursors are stored only now and then. Webhooks are sent by
//! `delivery`.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ff_core::event::{Effects, Event};
use ff_core::execution::{CancelSource, Cancelled, Execution, NewExecution};
use ff_core::op::parts::JSON;
use ff_core::op::view::{EventMessage, EventView};
use ff_core::op::{CreateExecutionArgs, SubscriptionTarget};
use ff_core::payload::Payload;
use ff_core::subscription::{CreationWatch, DELIVERY_LANE, Delivery, Subscription, SubscriptionCursor, WEBHOOK_KIND};
use ff_core::{
    Blob, Class, ExecutionId, Family, IndexName, Indexed, Key, Partition, Result, SubscriptionId, index, limits,
};
use ff_store::{Answer, LogPage, LogRecord, LogStart, Query, Scan};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::Notify;

use crate::caller::Caller;
use crate::options::Options;
use crate::servers::Servers;
use crate::submission::{Submissions, write_new};
use crate::transaction::{Command, Transactor, Tx};
use crate::view::event_view;
use crate::{env, logs};

/// The memory of the subscriptions may be this old when it is acted on.
const CONFIRMED_MS: i64 = 1_000;
/// A partition or a list that could not be read is looked at again after this time.
const RETRY_MS: i64 = 1_000;
/// Partitions that are looked through at the same time.
const PARTITIONS_AT_ONCE: usize = 16;
/// Subscriptions whose cursors one commit moves.
const CURSORS_PER_COMMIT: usize = 50;
/// A template of so many bytes counts for one delivery more in a commit.
const TEMPLATE_WEIGHT_BYTES: usize = 4_096;
/// Cursors and deliveries whose subscription is gone are looked for once in this time.
const TIDY_MS: i64 = 3_600_000;
/// The first time, so long after the start: what has to be done at once goes first.
const FIRST_TIDY_MS: i64 = 60_000;
/// Cursors that one look for such takes.
const TIDY_CURSORS_MAX: usize = 1_000;
/// The creator of deliveries.
const CREATOR: &str = "subscription";
/// Why the webhooks of a subscription are cancelled.
const REMOVED: &str = "its subscription was removed";

/// Looks through partitions on behalf of subscriptions.
#[derive(Clone)]
pub(crate) struct Subscriptions {
    transactor: Transactor,
    servers: Servers,
    submissions: Submissions,
    pub(crate) state: Arc<SubscriptionState>,
}

/// The subscriptions as an engine knows them.
#[derive(Default)]
pub(crate) struct SubscriptionState {
    /// Whether there are any: what the path of a task looks at.
    any: AtomicBool,
    known: Mutex<Known>,
    /// Wakes the service when there is something to look at.
    wake: Notify,
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
struct Place {
    /// As its cursor says.
    stored: u64,
    /// Up to here nothing was wanted.
    seen: Seen,
}

/// An event up to which a log was looked through. A store that forgets gives out its number again, to another event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    sequence: u64,
    /// A digest of the record; none if it was not there.
    record: Option<u64>,
}

/// Events of a partition, and the records at the places from where they are looked at.
struct Look {
    page: LogPage,
    places: BTreeMap<u64, u64>,
}

impl Look {
    /// The page begins with the first of the places, so that most often one query is enough.
    fn queries(places: impl Iterator<Item = u64>, limit: usize) -> Vec<Query> {
        let places: BTreeSet<u64> = places.collect();
        let mut limits = std::iter::once(limit + 1).chain(std::iter::repeat(1));
        let query = |place: u64| {
            let start = LogStart::After(place.saturating_sub(1));
            Query::Log { log: logs::events(), start, limit: limits.next().unwrap_or(1) }
        };
        places.into_iter().map(query).collect()
    }

    fn new(answers: Vec<Answer>, from: u64) -> Self {
        let mut pages = answers.into_iter().filter_map(Answer::into_log);
        let mut page = pages.next().unwrap_or_default();
        let mut places: BTreeMap<u64, u64> = pages
            .filter_map(|page| page.records.into_iter().next())
            .map(|record| (record.sequence, digest(&record)))
            .collect();
        places.extend(page.records.iter().map(|record| (record.sequence, digest(record))));
        page.records.retain(|record| record.sequence > from);
        Self { page, places }
    }

    /// Whether the log still has the event that was seen there, or has given it up in the order of events.
    fn confirms(&self, seen: &Seen) -> bool {
        let there = self.places.get(&seen.sequence);
        self.page.next > seen.sequence && there.is_none_or(|record| seen.record == Some(*record))
    }

    fn seen(&self, sequence: u64) -> Seen {
        Seen { sequence, record: self.places.get(&sequence).copied() }
    }
}

fn digest(record: &LogRecord) -> u64 {
    let mut hasher = DefaultHasher::new();
    (record.at, &record.record).hash(&mut hasher);
    hasher.finish()
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

    fn is_stale(&self, now: i64) -> bool {
        let known = self.known();
        let old = known.read_at.is_none_or(|read_at| now - read_at >= CONFIRMED_MS);
        known.stale || (old && !known.waiting.is_empty())
    }

    fn take_waiting(&self, all: impl Iterator<Item = Partition>) -> BTreeSet<Partition> {
        let mut known = self.known();
        let everywhere = std::mem::take(&mut known.everywhere) && !known.all.is_empty();
        let waiting = std::mem::take(&mut known.waiting);
        if everywhere { all.collect() } else { waiting }
    }

    /// The subscriptions that deliver now in a partition.
    fn active(&self, partition: Partition) -> Vec<Subscription> {
        let known = self.known();
        let goes_on = |one: &&Subscription| !one.paused && !one.removing && !known.ended.contains(&(partition, one.id));
        known.all.iter().filter(goes_on).cloned().collect()
    }

    /// The list as it was read. Partitions are looked through for what is new or goes on.
    fn learn(&self, all: Vec<Subscription>, partitions: impl Iterator<Item = Partition>, now: i64) {
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
    fn places(&self, partition: Partition, subscriptions: &[Subscription]) -> (Option<Vec<Place>>, u64) {
        let known = self.known();
        let places = subscriptions.iter().map(|one| known.places.get(&(partition, one.id)).copied()).collect();
        (places, known.forgotten)
    }

    fn keep(&self, partition: Partition, advanced: Advanced, forgotten: u64) {
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

impl Subscriptions {
    pub(crate) fn new(servers: Servers, submissions: Submissions) -> Self {
        Self { transactor: servers.transactor().clone(), servers, submissions, state: Arc::default() }
    }

    /// Looks through partitions for as long as the engine runs.
    pub(crate) async fn run(self) {
        self.state.look_again();
        let mut tidy_at = self.transactor.env().now_ms() + FIRST_TIDY_MS;
        loop {
            let left = tidy_at - self.transactor.env().now_ms();
            env::within(self.transactor.env_handle(), left.max(0), self.state.wake.notified()).await;
            if self.transactor.env().now_ms() >= tidy_at {
                tidy_at = self.transactor.env().now_ms() + TIDY_MS;
                self.tidy_cursors().await;
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
        self.state.known().stale = false;
        let asked_at = self.transactor.env().now_ms();
        let read = self.transactor.named_in::<Subscription>(Partition::SYSTEM, Subscription::everywhere(), None).await;
        let all = read.inspect_err(|_| self.state.known().stale = true)?;
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
    async fn tidy_cursors(&self) {
        let mut found = Vec::new();
        for partition in self.transactor.flow_partitions().filter(|partition| self.servers.rank(*partition) == 0) {
            // A partition that cannot be read now is looked at the next time.
            let scan = Scan::first(index::cursors(), TIDY_CURSORS_MAX);
            if let Ok(page) = self.transactor.store().scan(partition, scan).await {
                found.extend(page.entries.into_iter().map(|entry| (partition, entry.member)));
            }
        }
        if found.is_empty() {
            return;
        }
        // Read after them: a subscription is there before its cursors.
        let all = self.transactor.named_in::<Subscription>(Partition::SYSTEM, Subscription::everywhere(), None).await;
        let Ok(all) = all else { return };
        let known: BTreeSet<Key> = all.iter().map(|one| SubscriptionCursor::key_of(&one.id)).collect();
        for (partition, key) in found.into_iter().filter(|(_, key)| !known.contains(key)) {
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

struct Begin {
    id: SubscriptionId,
}

impl Command for Begin {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        if tx.load::<SubscriptionCursor>(SubscriptionCursor::key_of(&self.id)).await?.is_none() {
            let page = events(tx, LogStart::Before(u64::MAX), 1).await?;
            tx.save(&SubscriptionCursor::at_end(self.id, page.next));
        }
        Ok(())
    }
}

struct RemoveCursor {
    key: Key,
}

impl Command for RemoveCursor {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        if tx.load::<SubscriptionCursor>(self.key.clone()).await?.is_some() {
            tx.relief();
            tx.delete(&self.key);
        }
        Ok(())
    }
}

/// Ends a subscription in one partition; says whether something is left.
struct End<'a> {
    subscription: &'a Subscription,
}

impl Command for End<'_> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let id = self.subscription.id;
        let loaded = tx.load::<SubscriptionCursor>(SubscriptionCursor::key_of(&id)).await?;
        if loaded.is_none_or(|loaded| !loaded.document.removed) {
            let gone = SubscriptionCursor { subscription: id, removed: true, ..Default::default() };
            tx.save_until(&gone, tx.now + limits::SUBSCRIPTION_REMEMBERED_MS);
        }
        if !self.subscription.is_webhook() {
            return Ok(false);
        }
        let limit = tx.transactor.chunk(limits::DELIVERIES_PER_COMMIT);
        let page = tx.scan(Scan::first(index::open_deliveries(id.0), limit).with_documents()).await?;
        let more = page.entries.len() == limit;
        for entry in page.entries {
            let Some(loaded) = tx.adopt_readable::<Execution>(entry.member, entry.document) else { continue };
            let (mut execution, mut effects) = (loaded.document, Effects::default());
            if execution.cancel(CancelSource::Operator, REMOVED, tx.now, &mut effects)? == Cancelled::Now {
                tx.save_shared(Arc::new(execution), effects);
            }
        }
        Ok(more)
    }
}

struct Remove<'a> {
    subscription: &'a Subscription,
}

impl Command for Remove<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let loaded = tx.load::<Subscription>(self.subscription.key()).await?;
        if loaded.is_some_and(|loaded| loaded.document.removing && loaded.document.id == self.subscription.id) {
            tx.relief();
            if self.subscription.definition.filter.asks_for_creation() {
                watch_creation(tx, &self.subscription.namespace, -1).await?;
            }
            tx.delete(&self.subscription.key());
        }
        Ok(())
    }
}

/// A subscription that asks for the creation of executions begins or ends.
pub(crate) async fn watch_creation(tx: &mut Tx<'_>, namespace: &str, change: i64) -> Result<()> {
    let key = CreationWatch::key_of(namespace);
    let found = tx.load::<CreationWatch>(key.clone()).await?.map(|loaded| loaded.document);
    let subscriptions = found.as_ref().map_or(0, |watch| watch.subscriptions).saturating_add_signed(change);
    match subscriptions {
        0 if found.is_some() => tx.delete(&key),
        0 => {}
        _ => tx.save(&CreationWatch { namespace: namespace.to_owned(), subscriptions, ..found.unwrap_or_default() }),
    }
    Ok(())
}

/// Moves cursors on over events and creates the deliveries.
struct Advance<'a> {
    submissions: &'a Submissions,
    subscriptions: &'a [Subscription],
    /// How far they have come; empty where that is not known.
    places: Vec<Place>,
}

#[derive(Default)]
struct Advanced {
    places: Vec<(SubscriptionId, Place)>,
    /// Those whose cursors say that they were removed.
    ended: Vec<SubscriptionId>,
    more: bool,
}

/// A subscription on its way through a page of events.
struct Follower<'a> {
    submissions: &'a Submissions,
    subscription: &'a Subscription,
    cursor: SubscriptionCursor,
    stored: u64,
    /// What was seen beyond that.
    seen: Option<Seen>,
    /// Something is to be stored.
    changed: bool,
}

impl Command for Advance<'_> {
    type Outcome = Advanced;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Advanced> {
        let mut ended = Vec::new();
        let mut followers = self.followers(tx, &mut ended).await?;
        let limit = tx.transactor.chunk(limits::SUBSCRIPTION_EVENTS_PER_LOOK);
        let Some(look) = look_on(tx, &mut followers, limit).await? else {
            return Ok(Advanced { ended, ..Advanced::default() });
        };
        let page = &look.page;
        for one in followers.iter_mut().filter(|one| one.cursor.position < page.removed_up_to) {
            one.cursor.position = page.removed_up_to;
            one.cursor.gaps += 1;
            one.changed = true;
        }
        let mut more = page.records.len() >= limit;
        let mut created = 0;
        for record in &page.records {
            if created >= tx.transactor.chunk(limits::DELIVERIES_PER_COMMIT) {
                more = true;
                break;
            }
            let event = tx.transactor.readable_record::<Event>(&logs::events(), &record.record);
            for one in followers.iter_mut().filter(|one| one.cursor.position < record.sequence) {
                one.cursor.position = record.sequence;
                let Some(event) = event.as_ref().filter(|event| one.subscription.wants(event)) else { continue };
                let view = event_view(tx.partition, record, event.clone());
                created += 1 + one.subscription.definition.template.len() / TEMPLATE_WEIGHT_BYTES;
                one.deliver(tx, view).await?;
            }
        }
        let mut places = Vec::with_capacity(followers.len());
        for one in followers {
            let (position, mut stored) = (one.cursor.position, one.stored);
            if one.changed || position.saturating_sub(stored) >= limits::SUBSCRIPTION_UNSTORED_MAX {
                tx.save(&one.cursor);
                stored = position;
            }
            places.push((one.subscription.id, Place { stored, seen: look.seen(position) }));
        }
        Ok(Advanced { places, ended, more })
    }
}

impl<'a> Advance<'a> {
    /// The subscriptions with their cursors. One without a cursor, whose creation was interrupted, begins here and now.
    async fn followers(&self, tx: &mut Tx<'_>, ended: &mut Vec<SubscriptionId>) -> Result<Vec<Follower<'a>>> {
        let keys: Vec<Key> = self.subscriptions.iter().map(|one| SubscriptionCursor::key_of(&one.id)).collect();
        let mut followers = Vec::with_capacity(keys.len());
        for (place, loaded) in tx.load_many::<SubscriptionCursor>(keys).await?.into_iter().enumerate() {
            let subscription = &self.subscriptions[place];
            let Some(loaded) = loaded else {
                let page = events(tx, LogStart::Before(u64::MAX), 1).await?;
                tx.save(&SubscriptionCursor::at_end(subscription.id, page.next));
                continue;
            };
            let mut cursor = loaded.document;
            if cursor.removed {
                ended.push(subscription.id);
                continue;
            }
            let stored = cursor.position;
            // Behind a cursor that went back, something was wanted.
            let known = self.places.get(place).filter(|known| known.stored <= stored);
            let seen = known.map(|known| known.seen).filter(|seen| seen.sequence > stored);
            cursor.position = seen.map_or(stored, |seen| seen.sequence);
            let submissions = self.submissions;
            followers.push(Follower { submissions, subscription, cursor, stored, seen, changed: false });
        }
        Ok(followers)
    }
}

impl Follower<'_> {
    /// Creates the delivery of an event. A refusal is counted, and the subscription goes on.
    async fn deliver(&mut self, tx: &mut Tx<'_>, view: EventView) -> Result<()> {
        self.changed = true;
        let subscription = self.subscription;
        let mut id = subscription.delivery_id(tx.partition, &view.event_id, view.happened_at);
        // A derived id is no secret, so that another caller may have created something under it. The cursor moves in
        // this commit, so another id is as good.
        if tx.is_repeat() && tx.load::<Execution>(Execution::key_of(&id)).await?.is_some() {
            id = ExecutionId::in_partition(tx.partition, &env::mint(tx.transactor.env(), tx.now));
        }
        let new = NewDelivery { id, event_id: view.event_id.clone(), message: EventMessage::of(subscription, view) };
        match create_delivery(tx, self.submissions, subscription, new).await {
            Ok(()) => self.cursor.deliveries += 1,
            Err(error) if matches!(error.code.class(), Class::Unavailable | Class::Internal) => return Err(error),
            Err(error) => {
                tracing::warn!(subscription = subscription.name, %error, "the delivery of an event was refused");
                self.cursor.refused += 1;
            }
        }
        Ok(())
    }
}

/// A delivery in the making.
pub(crate) struct NewDelivery {
    pub(crate) id: ExecutionId,
    pub(crate) event_id: String,
    pub(crate) message: EventMessage,
}

/// Creates the execution of a delivery.
pub(crate) async fn create_delivery(
    tx: &mut Tx<'_>,
    submissions: &Submissions,
    subscription: &Subscription,
    new: NewDelivery,
) -> Result<()> {
    let delivery = Delivery {
        subscription: subscription.id,
        name: subscription.name.clone(),
        event_id: new.event_id,
        event_type: new.message.message_type.clone(),
        ..Default::default()
    };
    let body = new.message.to_json();
    let (request, blob) = match SubscriptionTarget::of(&subscription.definition)? {
        SubscriptionTarget::Webhook(_) => {
            let (input, blob) = Payload::divide(body.into(), JSON);
            (webhook_request(tx.transactor.options(), subscription, new.id, input), blob)
        }
        SubscriptionTarget::Unknown(variant) => return Err(variant.refused("target")),
        SubscriptionTarget::Execution(request) => {
            let args = CreateExecutionArgs {
                execution_id: Some(new.id),
                input_base64: Some(Blob::from(body)),
                content_type: Some(JSON.to_owned()),
                ..*request
            };
            let namespace = Some(subscription.namespace.clone());
            let caller = Caller { name: CREATOR.to_owned(), namespace, ..Caller::system() };
            let submission = submissions.submission(&caller, &args).await?;
            (submission.request, submission.blob)
        }
    };
    let mut execution = Execution::create(request, tx.now)?;
    execution.delivery = Some(Box::new(delivery));
    // What happens to a delivery is no event for subscriptions.
    write_new(tx, execution, blob, false);
    Ok(())
}

fn webhook_request(options: &Options, subscription: &Subscription, id: ExecutionId, input: Payload) -> NewExecution {
    let mut policy = subscription.delivery_policy();
    let kept_ms = options.retention_ms;
    policy.retention_ms = Some(kept_ms).filter(|kept_ms| *kept_ms != limits::RETENTION_DEFAULT_MS);
    NewExecution {
        id,
        namespace: subscription.namespace.clone(),
        lane: DELIVERY_LANE.to_owned(),
        kind: WEBHOOK_KIND.to_owned(),
        priority: 0,
        creator: CREATOR.to_owned(),
        submitted_by: String::new(),
        idempotency_key: String::new(),
        tags: BTreeMap::new(),
        policy,
        capabilities: Default::default(),
        budgets: Vec::new(),
        quota: None,
        input,
        delay_until: None,
        deadline_at: None,
        flow: None,
        node: String::new(),
        request_hash: Blob::default(),
        trace_context: String::new(),
        schedule: None,
        sharing: Default::default(),
    }
}

/// Looks on from where followers are. One that is at an event which the store has forgotten goes back to its cursor, which
/// the store forgot together with it.
async fn look_on(tx: &mut Tx<'_>, followers: &mut [Follower<'_>], limit: usize) -> Result<Option<Look>> {
    loop {
        let positions = || followers.iter().map(|one| one.cursor.position);
        let Some(from) = positions().min() else { return Ok(None) };
        let look = Look::new(tx.read(Look::queries(positions(), limit)).await?, from);
        let mut confirmed = true;
        for one in &mut *followers {
            if one.seen.take_if(|seen| !look.confirms(seen)).is_some() {
                one.cursor.position = one.stored;
                confirmed = false;
            }
        }
        if confirmed {
            return Ok(Some(look));
        }
    }
}

async fn events(tx: &mut Tx<'_>, start: LogStart, limit: usize) -> Result<LogPage> {
    let mut answers = tx.read(vec![Query::Log { log: logs::events(), start, limit }]).await?;
    Ok(answers.pop().and_then(Answer::into_log).unwrap_or_default())
}
