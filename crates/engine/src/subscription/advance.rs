//! Moves the cursors of subscriptions over events. The commit that moves one over an event creates its delivery.

use ff_core::event::Event;
use ff_core::execution::Execution;
use ff_core::op::view::{EventMessage, EventView};
use ff_core::subscription::{Subscription, SubscriptionCursor};
use ff_core::{Class, ExecutionId, Key, Result, SubscriptionId, limits};
use ff_store::LogStart;

use super::create::{NewDelivery, create_delivery};
use super::look::{Look, Seen, events};
use super::state::{Advanced, Place};
use crate::submission::Submissions;
use crate::transaction::{Command, Tx};
use crate::view::event_view;
use crate::{env, logs};

/// A template of so many bytes counts for one delivery more in a commit.
const TEMPLATE_WEIGHT_BYTES: usize = 4_096;

/// Moves cursors on over events and creates the deliveries.
pub(super) struct Advance<'a> {
    pub(super) submissions: &'a Submissions,
    pub(super) subscriptions: &'a [Subscription],
    /// How far they have come; empty where that is not known.
    pub(super) places: Vec<Place>,
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
