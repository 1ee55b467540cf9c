//! The slots a quota says are taken, against the slots that are.

use ff_core::index::{self, kind};
use ff_core::quota::QuotaPolicy;
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
