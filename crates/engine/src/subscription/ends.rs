//! How a subscription begins in a partition, and how it ends there.

use std::sync::Arc;

use ff_core::event::Effects;
use ff_core::execution::{CancelSource, Cancelled, Execution};
use ff_core::subscription::{CreationWatch, Subscription, SubscriptionCursor};
use ff_core::{Indexed, Key, Result, SubscriptionId, index, limits};
use ff_store::{LogStart, Scan};

use super::look::events;
use crate::transaction::{Command, Tx};

/// Why the webhooks of a subscription are cancelled.
const REMOVED: &str = "its subscription was removed";

pub(super) struct Begin {
    pub(super) id: SubscriptionId,
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

pub(super) struct RemoveCursor {
    pub(super) key: Key,
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
pub(super) struct End<'a> {
    pub(super) subscription: &'a Subscription,
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

/// Lets the webhooks of a subscription that goes on be sent, in one partition, from an entry of its index on. Returns the
/// entry behind which there may be more.
pub(super) struct GoOn {
    pub(super) id: SubscriptionId,
    pub(super) after: Option<(i64, Key)>,
}

impl Command for GoOn {
    type Outcome = Option<(i64, Key)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<(i64, Key)>> {
        let limit = tx.transactor.chunk(limits::DELIVERIES_PER_COMMIT);
        let mut scan = Scan::first(index::open_deliveries(self.id.0), limit).with_documents();
        scan.after.clone_from(&self.after);
        let page = tx.scan(scan).await?;
        let last = page.entries.last().map(|last| (last.score, last.member.clone()));
        let last = last.filter(|_| page.entries.len() == limit);
        for entry in page.entries {
            let Some(loaded) = tx.adopt_readable::<Execution>(entry.member, entry.document) else { continue };
            let mut execution = loaded.document;
            if execution.end_delay(tx.now) {
                tx.save_shared(Arc::new(execution), Effects::default());
            }
        }
        Ok(last)
    }
}

pub(super) struct Remove<'a> {
    pub(super) subscription: &'a Subscription,
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
