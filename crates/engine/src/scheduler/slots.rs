//! Requests about slots. Quotas and concurrency keys have them in common: a claim takes a slot, and the end of a lease
//! gives slots back. Each of the two counts its slots in a document of its own (`quotas`, `concurrency`).

use std::collections::BTreeSet;

use ff_core::planted::{Bug, planted};
use ff_core::slot::Slot;
use ff_core::{Indexed, Key, Result};

use crate::transaction::Tx;

/// A request to a document that counts slots.
#[derive(Debug, Clone)]
pub(crate) enum SlotAsk<R> {
    /// Take a slot for a claim.
    Take(R),
    /// Give back slots. One that is not there was given back before.
    Free(Vec<Key>),
}

impl<R> SlotAsk<R> {
    /// The slots that the request gives back.
    pub(super) fn freed(&self) -> &[Key] {
        match self {
            SlotAsk::Take(_) => &[],
            SlotAsk::Free(slots) => slots,
        }
    }
}

/// The slots that requests give back, each once.
pub(super) fn freed_by<R>(asks: &[SlotAsk<R>]) -> BTreeSet<&Key> {
    asks.iter().flat_map(SlotAsk::freed).collect()
}

/// Loads the slots that exist and that requests speak of: those that are given back, and in a repeated command also those
/// that an earlier try took. No other command can have taken them, because the slot of a claim has an id of its own.
pub(super) async fn load_held<R>(
    tx: &mut Tx<'_>,
    asks: &[SlotAsk<R>],
    slot_of: impl Fn(&R) -> Key,
) -> Result<Vec<Slot>> {
    let mut keys: BTreeSet<Key> = freed_by(asks).into_iter().cloned().collect();
    if tx.is_repeat() {
        keys.extend(asks.iter().filter_map(|ask| match ask {
            SlotAsk::Take(request) => Some(slot_of(request)),
            SlotAsk::Free(_) => None,
        }));
    }
    let found = tx.load_admission::<Slot>(keys.into_iter().collect()).await?;
    Ok(found.into_iter().flatten().map(|loaded| loaded.document).collect())
}

/// Removes those of the held slots that requests give back, and returns how many these are.
pub(super) fn remove_freed<R>(tx: &mut Tx<'_>, asks: &[SlotAsk<R>], held: &mut Vec<Slot>) -> usize {
    if planted(Bug::QuotaSlotLeaked) {
        return 0;
    }
    let given = freed_by(asks);
    let (freed, kept): (Vec<Slot>, Vec<Slot>) =
        std::mem::take(held).into_iter().partition(|slot| given.contains(&slot.key()));
    *held = kept;
    freed.iter().for_each(|slot| tx.delete(&slot.key()));
    freed.len()
}
