//! The rest when everything is over: `slots_returned` at rest, and `drains_to_empty` ten days later.

use std::collections::BTreeMap;

use ff_core::encoding::Document;
use ff_core::index::kind;
use ff_core::provider::Provider;
use ff_core::{ConcurrencyKey, Key, QuotaPolicy};
use ff_store::memory::Contents;

use super::Checker;
use crate::invariant::Invariant;

/// Documents that people define and take away, and the servers that live.
const DEFINITIONS: [u8; 9] = [
    kind::DEPLOYMENT,
    kind::SECRETS,
    kind::LANE,
    kind::TOOL,
    kind::BUDGET,
    kind::QUOTA,
    kind::PROVIDER,
    kind::TOKEN,
    kind::SERVER,
];
/// The first bytes of the logs that are kept by count and not by time: events and audit.
const KEPT_LOGS: [u8; 2] = [b'E', b'A'];

/// Providers that count calls under way or booked.
fn calls_counted<'c>(documents: impl Iterator<Item = (&'c Key, &'c [u8])>) -> Option<String> {
    let mut providers =
        documents.filter(|(key, _)| key.kind() == kind::PROVIDER).filter_map(|(_, body)| Provider::decode(body).ok());
    let busy = providers.find(|provider| provider.in_use > 0 || provider.booked > 0 || !provider.waiting.is_empty())?;
    Some(format!("provider {} counts {} calls under way and {} booked", busy.name, busy.in_use, busy.booked))
}

/// A quota or concurrency key that counts slots in use.
fn slots_in_use(contents: &Contents) -> Option<(String, u32)> {
    let documents = contents.partitions().flat_map(|(_, contents)| contents.documents());
    let mut counted = documents.filter_map(|(key, raw)| match key.kind() {
        kind::QUOTA => QuotaPolicy::decode(&raw.body).ok().map(|quota| (format!("quota {}", quota.name), quota.in_use)),
        kind::CONCURRENCY_KEY => {
            ConcurrencyKey::decode(&raw.body).ok().map(|key| (format!("key {}", key.key), key.in_use))
        }
        _ => None,
    });
    counted.find(|(_, in_use)| *in_use > 0)
}

impl Checker {
    /// Whether slots are still to come back. A store that forgot may have forgotten which execution had one.
    pub(super) fn slots_out(&self, contents: &Contents) -> bool {
        self.generation == 0 && slots_in_use(contents).is_some()
    }

    /// At rest no execution has a slot.
    pub(super) fn check_slots_at_rest(&mut self, contents: &Contents) {
        if self.generation > 0 {
            return;
        }
        if let Some((name, in_use)) = slots_in_use(contents) {
            self.violate(Invariant::SlotsReturned, format!("{name} has {in_use} slots in use at rest"));
        }
    }

    /// A document that must not be there ten days after the last work.
    pub(crate) fn leftover(&self, contents: &Contents, now: impl Fn(ff_core::Partition) -> i64) -> Option<String> {
        for (partition, contents) in contents.partitions() {
            let now = now(partition);
            if let Some(counted) = calls_counted(contents.documents().map(|(key, raw)| (key, &raw.body[..]))) {
                return Some(format!("{partition}: {counted}"));
            }
            let documents = contents.documents().filter(|(_, raw)| raw.present(now)).map(|(key, _)| key);
            let left: Vec<&Key> = documents.filter(|key| !DEFINITIONS.contains(&key.kind())).collect();
            if let Some(first) = left.first() {
                let mut kinds: BTreeMap<char, usize> = BTreeMap::new();
                left.iter().for_each(|key| *kinds.entry(char::from(key.kind())).or_default() += 1);
                return Some(format!("{partition}: documents of these kinds {kinds:?}, such as {first:?}"));
            }
            let mut logs = contents.logs().filter(|(name, page)| {
                let kept = name.as_bytes().first().is_some_and(|first| KEPT_LOGS.contains(first));
                !kept && !page.records.is_empty()
            });
            if let Some((name, page)) = logs.next() {
                return Some(format!("{partition}: log {name:?} with {} records", page.records.len()));
            }
            if let Some((key, _)) = contents.blobs().next() {
                return Some(format!("{partition}: {} blobs, such as {key:?}", contents.blobs().count()));
            }
        }
        None
    }
}
