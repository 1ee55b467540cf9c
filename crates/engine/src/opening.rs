//! The documents of gates. Each lists the partitions in which executions wait for the gate. A commit that may have made room
//! hints that the gate opened and leaves the list alone; the engine that made the commit looks at the gate
//! (`scheduler/letting_in.rs`).

use ff_core::budget::{Amounts, Budget};
use ff_core::concurrency::ConcurrencyKey;
use ff_core::gate::{Gate, Parked};
use ff_core::quota::QuotaPolicy;
use ff_core::{Indexed as _, Key, Partition, PartitionConfig, Result};
use serde::{Deserialize, Serialize};

use crate::transaction::{Transactor, Tx};

/// The document of a gate, as it was loaded.
pub(crate) enum GateDocument {
    Budget(Box<Budget>),
    Quota(Box<QuotaPolicy>),
    Key { document: ConcurrencyKey, limit: u32 },
}

/// What a look at a gate sees of its document.
#[derive(Debug, PartialEq)]
pub(crate) struct GateView {
    /// Where executions may wait.
    pub(crate) places: Vec<Partition>,
    /// How many can run now.
    pub(crate) room: u64,
    /// Time alone makes room after this long.
    pub(crate) opens_in_ms: Option<i64>,
    /// Whether those that wait can be expected to find room, although nothing has changed since they were refused.
    pub(crate) is_worth_waking: bool,
    /// The smallest estimates that are waited with.
    pub(crate) awaited: Amounts,
}

impl GateDocument {
    /// Loads the document of a gate. A concurrency key without a document has no holders; a budget or a quota without one
    /// admits nothing, and looks for what waits for it when it is created.
    pub(crate) async fn load(tx: &mut Tx<'_>, namespace: &str, gate: Gate<'_>) -> Result<Option<Self>> {
        let (_, document) = place_of(tx.transactor, namespace, gate);
        Ok(match gate {
            Gate::Budget(_) => tx.load(document).await?.map(|loaded| Self::Budget(Box::new(loaded.document))),
            Gate::Quota(_) => tx.load(document).await?.map(|loaded| Self::Quota(Box::new(loaded.document))),
            Gate::Key { limit, key } => {
                let loaded = tx.load::<ConcurrencyKey>(document).await?;
                let new = || ConcurrencyKey::new(namespace, key, tx.now);
                Some(Self::Key { document: loaded.map_or_else(new, |loaded| loaded.document), limit })
            }
        })
    }

    /// Where executions wait.
    pub(crate) fn parked(&mut self) -> &mut Parked {
        match self {
            Self::Budget(budget) => &mut budget.parked_in,
            Self::Quota(quota) => &mut quota.parked_in,
            Self::Key { document, limit } => document.parked_mut(*limit),
        }
    }

    pub(crate) fn view(&mut self, now: i64, config: &PartitionConfig) -> GateView {
        let places = self.parked().places(config);
        let open = GateView { places, room: 0, opens_in_ms: None, is_worth_waking: true, awaited: Amounts::new() };
        match self {
            Self::Budget(budget) => GateView {
                room: budget.release_count(),
                is_worth_waking: budget.is_worth_waking(),
                awaited: budget.awaited.clone(),
                ..open
            },
            Self::Quota(quota) => GateView {
                room: quota.release_count(now),
                opens_in_ms: quota.reopens_at(now).map(|at| (at - now).max(1)),
                ..open
            },
            Self::Key { document, limit } => GateView { room: document.room(*limit), ..open },
        }
    }

    /// An execution waits with this estimate. Says whether there is still no room for it.
    pub(crate) fn await_room(&mut self, estimate: &Amounts) -> bool {
        match self {
            Self::Budget(budget) => budget.await_room(estimate),
            Self::Quota(_) | Self::Key { .. } => false,
        }
    }

    /// Forgets the estimates that were waited with when nothing waits any more; those that are parked again note theirs
    /// anew. Estimates that were noted since the gate was looked at stay.
    pub(crate) fn forget_awaited(&mut self, seen: &Amounts) {
        if let Self::Budget(budget) = self
            && budget.parked_in.is_empty()
            && budget.awaited == *seen
        {
            budget.awaited.clear();
        }
    }

    /// Writes the changed document. A concurrency key that nothing holds or waits for goes.
    pub(crate) fn save(self, tx: &mut Tx<'_>) {
        match self {
            Self::Budget(budget) => tx.save(budget.as_ref()),
            Self::Quota(quota) => tx.save(quota.as_ref()),
            Self::Key { mut document, .. } => {
                document.parking_changed(tx.now);
                match document.is_idle() {
                    true => tx.delete(&document.key()),
                    false => tx.save(&document),
                }
            }
        }
    }
}

/// The partition and the key of a gate's document.
pub(crate) fn place_of(transactor: &Transactor, namespace: &str, gate: Gate<'_>) -> (Partition, Key) {
    let partitions = transactor.partitions();
    match gate {
        Gate::Budget(name) => (partitions.budget_partition(namespace, name), Budget::key_of(namespace, name)),
        Gate::Quota(name) => (partitions.quota_partition(namespace, name), QuotaPolicy::key_of(namespace, name)),
        Gate::Key { key, .. } => {
            (partitions.concurrency_partition(namespace, key), ConcurrencyKey::key_of(namespace, key))
        }
    }
}

/// The answer to a command that opened a gate, as it is kept for repeats: beside it stand the executions that earlier versions
/// let in, of which there are none now.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept<T>(pub(crate) T, EarlierOpening);

#[derive(Debug, Default, Serialize, Deserialize)]
struct EarlierOpening {
    places: Vec<u16>,
    count: u64,
    given_back: u64,
}

impl<T> Kept<T> {
    pub(crate) fn of(answer: T) -> Self {
        Self(answer, EarlierOpening::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_an_earlier_version_kept_it_and_the_other_way_round() {
        let kept = r#"[7,{"places":[1,2],"count":3,"given_back":4,"awaited":{"tokens":5}}]"#;
        assert_eq!(serde_json::from_str::<Kept<u64>>(kept).unwrap().0, 7);
        assert_eq!(serde_json::to_string(&Kept::of(7)).unwrap(), r#"[7,{"places":[],"count":0,"given_back":0}]"#);
    }
}
