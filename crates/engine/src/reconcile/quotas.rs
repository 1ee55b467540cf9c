//! The slots a quota says are taken, against the slots that are; and the slots that are, against the leases that use
//! them. A store that forgot a claim after its slot was seen in use leaves a slot that no ending will ever give back.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::index::{self, kind};
use ff_core::quota::QuotaPolicy;
use ff_core::slot::{Slot, SlotFate};
use ff_core::{Key, Partition, Result};
use ff_store::Scan;

use super::{PAGE, Reconciled};
use crate::engine::Engine;
use crate::transaction::{Command, Tx};

impl Engine {
    pub(super) async fn reconcile_quotas(&self, partition: Partition) -> Reconciled {
        let mut found = Reconciled::default();
        let prefix = [b'n', 0, 1, kind::QUOTA];
        let Ok(listings) = self.store().indexes(partition, prefix.to_vec(), PAGE).await else { return found };
        for listing in listings {
            let Ok(page) = self.store().scan(partition, Scan::first(listing, PAGE).with_documents()).await else {
                continue;
            };
            for entry in page.entries {
                found.checked += 1;
                let quota = entry.document.and_then(|stored| self.readable::<QuotaPolicy>(&stored));
                if let Some(quota) = quota.filter(|quota| quota.definition.max_concurrent != 0) {
                    match self.free_leaked_slots(partition, &quota).await {
                        Ok(freed) => found.repaired += freed,
                        Err(error) => {
                            tracing::warn!(%partition, quota = quota.name, %error, "the slots of a quota cannot be checked")
                        }
                    }
                }
                match self.transact(partition, self.fresh_command(), &Recount { key: &entry.member }).await {
                    Ok(repaired) => found.repaired += u64::from(repaired),
                    Err(error) => {
                        tracing::warn!(%partition, key = ?entry.member, %error, "a quota cannot be recounted")
                    }
                }
            }
        }
        found
    }

    /// Frees the slots that were seen in use and that nothing uses any more. One whose claim may still come is its
    /// timer's business.
    async fn free_leaked_slots(&self, partition: Partition, quota: &QuotaPolicy) -> Result<u64> {
        let mut freed = 0;
        let mut scan = Scan::first(index::slots(&quota.namespace, &quota.name), PAGE).with_documents();
        loop {
            let page = self.store().scan(partition, scan.clone()).await?;
            let Some(last) = page.entries.last() else { return Ok(freed) };
            scan = scan.after(last.score, last.member.clone());
            let mut homes: BTreeMap<Partition, Vec<Slot>> = BTreeMap::new();
            for stored in page.entries.into_iter().filter_map(|entry| entry.document) {
                let Some(slot) = self.readable::<Slot>(&stored) else { continue };
                if slot.confirmed {
                    homes.entry(slot.execution.partition()).or_default().push(slot);
                }
            }
            for (home, slots) in homes {
                let keys = slots.iter().map(|slot| Execution::key_of(&slot.execution)).collect();
                let executions = self.store().documents(home, keys).await?;
                for (slot, stored) in slots.into_iter().zip(executions) {
                    // One that cannot be decoded may use its slot.
                    let uses =
                        |stored| self.readable::<Execution>(&stored).is_none_or(|found| found.uses_slot(&slot.id));
                    let in_use = stored.is_some_and(uses);
                    if slot.fate(in_use, self.now()) == SlotFate::Free {
                        self.free_slots(&slot.namespace, &slot.quota, &slot.execution, &[slot.id]).await?;
                        freed += 1;
                    }
                }
            }
        }
    }
}

/// Counts the slots of a quota anew. A claim in between changes the quota's version, and the count is made again.
struct Recount<'a> {
    key: &'a Key,
}

impl Command for Recount<'_> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let Some(loaded) = tx.load::<QuotaPolicy>(self.key.clone()).await? else { return Ok(false) };
        let mut quota = loaded.document;
        let slots = tx.count(index::slots(&quota.namespace, &quota.name)).await?;
        let counted_wrong = quota.recount(u32::try_from(slots).unwrap_or(u32::MAX), tx.now);
        if counted_wrong.is_some() {
            tx.save(&quota);
        }
        Ok(counted_wrong.is_some())
    }
}
