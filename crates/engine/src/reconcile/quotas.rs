//! The slots a quota or a concurrency key says are taken, against the slots that are; and the slots that are, against the leases that use
//! them. A store that forgot a claim after its slot was seen in use leaves a slot that no ending will ever give back.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::index::{self, kind};
use ff_core::quota::QuotaPolicy;
use ff_core::slot::{Slot, SlotFate, SlotUse};
use ff_core::{ConcurrencyKey, IndexName, Indexed, Key, Partition, Result};
use ff_store::{IndexEntry, Scan};

use super::{PAGE, Reconciled, Reconciler};
use crate::scheduler::concurrency::hint_open_limits;
use crate::transaction::{Command, Tx};

impl Reconciler {
    pub(super) async fn reconcile_quotas(&self, partition: Partition) -> Reconciled {
        let mut found = Reconciled::default();
        let prefix = vec![b'n', 0, 1, kind::QUOTA];
        let mut after = None;
        loop {
            let page = self.transactor.store().indexes_after(partition, prefix.clone(), after.take(), PAGE).await;
            let Ok(listings) = page else { return found };
            after = listings.last().filter(|_| listings.len() == PAGE).cloned();
            for listing in listings {
                found.add(self.reconcile_listing(partition, listing).await);
            }
            if after.is_none() {
                return found;
            }
        }
    }

    /// The concurrency keys with holders. They are listed nowhere, but their slots are.
    pub(super) async fn reconcile_keys(&self, partition: Partition) -> Reconciled {
        let mut found = Reconciled::default();
        let mut after = None;
        loop {
            let page =
                self.transactor.store().indexes_after(partition, vec![index::SLOTS_PREFIX], after.take(), PAGE).await;
            let Ok(names) = page else { return found };
            after = names.last().filter(|_| names.len() == PAGE).cloned();
            for name in names {
                let Some((namespace, key)) = index::key_of_slots(&name) else { continue };
                found.checked += 1;
                match self.reconcile_key(partition, name, &ConcurrencyKey::key_of(&namespace, &key)).await {
                    Ok(repaired) => found.repaired += repaired,
                    Err(error) => {
                        if let Some(suppressed) = self.transactor.may_log("the slots of a key cannot be checked") {
                            tracing::warn!(%partition, key, %error, suppressed, "the slots of a key cannot be checked");
                        }
                    }
                }
            }
            if after.is_none() {
                return found;
            }
        }
    }

    async fn reconcile_key(&self, partition: Partition, slots: IndexName, key: &Key) -> Result<u64> {
        let freed = self.free_leaked_slots(partition, slots.clone()).await?;
        let verb = RecountKey { key, slots };
        Ok(freed + u64::from(self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await?))
    }

    /// The quotas of one namespace.
    async fn reconcile_listing(&self, partition: Partition, listing: IndexName) -> Reconciled {
        let mut found = Reconciled::default();
        let mut scan = Scan::first(listing, PAGE).with_documents();
        loop {
            let Ok(page) = self.transactor.store().scan(partition, scan.clone()).await else { return found };
            let last = page.entries.last().filter(|_| page.entries.len() == PAGE);
            let next = last.map(|last| scan.clone().after(last.score, last.member.clone()));
            for entry in page.entries {
                found.checked += 1;
                found.repaired += self.reconcile_quota(partition, entry).await;
            }
            match next {
                Some(next) => scan = next,
                None => return found,
            }
        }
    }

    async fn reconcile_quota(&self, partition: Partition, entry: IndexEntry) -> u64 {
        let mut repaired = 0;
        let quota = entry.document.and_then(|stored| self.transactor.readable::<QuotaPolicy>(&stored));
        if let Some(quota) = quota.filter(|quota| quota.definition.max_concurrent != 0) {
            match self.free_leaked_slots(partition, index::slots(&quota.namespace, &quota.name)).await {
                Ok(freed) => repaired += freed,
                Err(error) => {
                    if let Some(suppressed) = self.transactor.may_log("the slots of a quota cannot be checked") {
                        let quota = quota.name;
                        tracing::warn!(%partition, quota, %error, suppressed, "the slots of a quota cannot be checked");
                    }
                }
            }
        }
        match self.scheduler.recount_quota(partition, &entry.member).await {
            Ok(recounted) => repaired += u64::from(recounted),
            Err(error) => {
                if let Some(suppressed) = self.transactor.may_log("a quota cannot be recounted") {
                    tracing::warn!(%partition, key = ?entry.member, %error, suppressed, "a quota cannot be recounted");
                }
            }
        }
        repaired
    }

    /// Frees the slots that were seen in use and that nothing uses any more. One whose claim may still come is its
    /// timer's business.
    async fn free_leaked_slots(&self, partition: Partition, slots: IndexName) -> Result<u64> {
        let mut freed = 0;
        let mut scan = Scan::first(slots, PAGE).with_documents();
        loop {
            let page = self.transactor.store().scan(partition, scan.clone()).await?;
            let Some(last) = page.entries.last() else { return Ok(freed) };
            scan = scan.after(last.score, last.member.clone());
            let mut homes: BTreeMap<Partition, Vec<Slot>> = BTreeMap::new();
            for stored in page.entries.into_iter().filter_map(|entry| entry.document) {
                let Some(slot) = self.transactor.readable::<Slot>(&stored) else { continue };
                if slot.confirmed {
                    homes.entry(slot.execution.partition()).or_default().push(slot);
                }
            }
            for (home, slots) in homes {
                let keys = slots.iter().map(|slot| Execution::key_of(&slot.execution)).collect();
                let executions = self.transactor.store().documents(home, keys).await?;
                for (slot, stored) in slots.into_iter().zip(executions) {
                    // A slot that is owed is given back by the mark that says so. An execution that cannot be decoded may
                    // use its slot.
                    let in_use = stored.is_some_and(|stored| {
                        self.transactor.readable::<Execution>(&stored).is_none_or(|execution| {
                            execution.uses_slot(&slot.id) || execution.owed_slots.contains(&slot.id)
                        })
                    });
                    let usage = if in_use { SlotUse::InUse } else { SlotUse::MayCome };
                    let free = slot.fate(usage, self.transactor.now_in(partition)) == SlotFate::Free;
                    if free && self.is_taken(partition, &slot).await? {
                        if slot.of_key {
                            self.scheduler.free_key_slots(&slot.namespace, &slot.quota, vec![slot.key()]).await?;
                        } else {
                            self.scheduler.free_slots(&slot.namespace, &slot.quota, vec![slot.key()]).await?;
                        }
                        freed += 1;
                    }
                }
            }
        }
    }
}

impl Reconciler {
    /// Whether a slot is still there: its execution may have given it back since it was read.
    async fn is_taken(&self, partition: Partition, slot: &Slot) -> Result<bool> {
        let found = self.transactor.store().documents(partition, vec![slot.key()]).await?;
        Ok(found.into_iter().flatten().next().is_some())
    }
}

/// Counts the holders of a concurrency key anew.
struct RecountKey<'a> {
    key: &'a Key,
    slots: IndexName,
}

impl Command for RecountKey<'_> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let Some(loaded) = tx.load::<ConcurrencyKey>(self.key.clone()).await? else { return Ok(false) };
        let mut document = loaded.document;
        let slots = tx.count(self.slots.clone()).await?;
        let wrong = document.recount(u32::try_from(slots).unwrap_or(u32::MAX), tx.now);
        if wrong {
            hint_open_limits(tx, &document);
            tx.save(&document);
        }
        Ok(wrong)
    }
}
