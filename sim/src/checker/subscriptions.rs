//! `each_event_once`: a cursor moves over an event in the commit that creates its delivery, and no event has two.

use ff_core::encoding::Document;
use ff_core::event::Event;
use ff_core::execution::Execution;
use ff_core::index::kind;
use ff_core::{Key, Subscription, SubscriptionCursor, SubscriptionId};
use ff_store::memory::RawDocument;

use super::{Checker, Commit, touched};
use crate::invariant::Invariant;

/// The log of events.
const EVENTS: &[u8] = b"E";

impl Checker {
    /// A subscription was written; what it wants never changes.
    pub(super) fn subscription_changed(&mut self, after: Option<&RawDocument>) {
        if let Some(subscription) = after.and_then(|raw| Subscription::decode(&raw.body).ok()) {
            self.facts.subscriptions.insert(subscription.id, subscription);
        }
    }

    /// A cursor was written: everything between where it was and where it is was delivered by this commit, if it was wanted.
    pub(super) fn cursor_changed(&mut self, commit: Commit<'_>, key: &Key, after: Option<&RawDocument>) {
        let decode = |raw: &RawDocument| SubscriptionCursor::decode(&raw.body).ok();
        let before = commit.before.get(key).filter(|raw| raw.present(commit.at)).and_then(decode);
        let (Some(before), Some(after)) = (before, after.and_then(decode)) else { return };
        if before.removed || after.removed || before.gaps != after.gaps || before.refused != after.refused {
            return;
        }
        if self.was_made_before_forgetting(commit) {
            return;
        }
        let (from, to) = (before.position, after.position);
        self.expect(to >= from, Invariant::EachEventOnce, || format!("a cursor went back from {from} to {to}"));
        let Some(subscription) = self.facts.subscriptions.get(&after.subscription).cloned() else { return };
        let delivered = delivered_in(commit, subscription.id);
        let events = commit.contents.logs().find(|(name, _)| name.as_bytes() == EVENTS).map(|(_, page)| page);
        for record in events.into_iter().flat_map(|page| page.records) {
            if record.sequence <= from || record.sequence > to {
                continue;
            }
            let Ok(event) = rmp_serde::from_slice::<Event>(&record.record) else { continue };
            let ending = format!("-{:04x}-{}", commit.partition.number, record.sequence);
            let told = delivered.iter().filter(|event_id| event_id.ends_with(&ending)).count();
            let wanted = usize::from(subscription.wants(&event));
            self.expect(told == wanted, Invariant::EachEventOnce, || {
                format!("{} moved on over {ending}: wanted {wanted}, delivered {told}", subscription.name)
            });
        }
    }

    /// Whether a commit was made of what the store has forgotten since: other events may have the numbers of those that
    /// it passes over.
    fn was_made_before_forgetting(&self, commit: Commit<'_>) -> bool {
        let made = commit.batch.command.0.get_timestamp().map(|made| made.to_unix());
        let made_ms = made.map(|(seconds, nanos)| seconds * 1_000 + u64::from(nanos) / 1_000_000);
        made_ms.zip(self.forgot_at).is_some_and(|(made, forgot)| made <= forgot.unsigned_abs())
    }

    /// An execution was created that is a delivery.
    pub(super) fn check_delivery(&mut self, execution: &Execution) {
        if let Some(delivery) = &execution.delivery {
            let of = (delivery.subscription, delivery.event_id.clone());
            let earlier = self.facts.deliveries.insert(of, execution.id.partition());
            self.expect(earlier.is_none(), Invariant::EachEventOnce, || {
                format!("{} was delivered twice to {}", delivery.event_id, delivery.name)
            });
        }
    }
}

/// The events whose deliveries a commit creates.
fn delivered_in(commit: Commit<'_>, subscription: SubscriptionId) -> Vec<String> {
    let created = touched(commit.batch).into_iter().filter(|key| !commit.before.contains_key(key));
    let executions = created.filter(|key| key.kind() == kind::EXECUTION).filter_map(|key| {
        let raw = commit.contents.document(&key)?;
        Execution::decode(&raw.body).ok()?.delivery
    });
    executions.filter(|delivery| delivery.subscription == subscription).map(|delivery| delivery.event_id).collect()
}
