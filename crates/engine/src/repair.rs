//! Puts one index entry right, as its document says at the moment of the repair.

use ff_core::index::{self, Due};
use ff_core::{Code, Entry, Error, Key, Partition, Result, documents};
use ff_store::{Answer, EntryChange, Query, StoredDocument};

use crate::transaction::{Command, Transactor, Tx, exactly};

impl Transactor {
    /// Puts one entry right, as its document says at the moment of the repair. Says how many entries were repaired.
    pub(crate) async fn repair(&self, partition: Partition, key: &Key, entry: Entry) -> u64 {
        match self.transact(partition, self.fresh_command(), &Repair { key, entry: &entry }).await {
            Ok(repaired) => u64::from(repaired),
            Err(error) => {
                if let Some(suppressed) = self.may_log("an index entry could not be repaired") {
                    tracing::warn!(%partition, ?key, %error, suppressed, "an index entry could not be repaired");
                }
                0
            }
        }
    }
}

/// The entries that a document justifies; none where there is no document.
pub(crate) fn justified(key: &Key, stored: Option<&StoredDocument>) -> Result<Vec<Entry>> {
    let Some(stored) = stored else { return Ok(Vec::new()) };
    documents::index_entries(key, &stored.body, stored.lease_until)?
        .ok_or_else(|| Error::new(Code::CorruptDocument, format!("{key:?} is of a kind this version does not know")))
}

/// Makes one index agree with one document, under its version.
struct Repair<'a> {
    key: &'a Key,
    entry: &'a Entry,
}

impl Command for Repair<'_> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let (stored, present) = self.look(tx, self.entry).await?;
        let of_lease = self.entry.index == index::due()
            && Due::parse(&self.entry.member).is_some_and(|(_, due)| due == Due::Lease);
        if of_lease && stored.as_ref().is_some_and(|stored| stored.lease_until > tx.now) {
            // A renewal sets the entry anew and leaves the version as it is, so no guard would keep us from undoing it.
            // The entry of a lease that ran out is the one that matters, and that one stands still.
            return Ok(false);
        }
        let wanted = justified(self.key, stored.as_ref())?
            .into_iter()
            .find(|entry| entry.index == self.entry.index && entry.member == self.entry.member);
        let change = match wanted {
            Some(wanted) if self.look(tx, &wanted).await?.1 => return Ok(false),
            Some(Entry { index, member, score }) => EntryChange::Set { index, member, score },
            None if present => {
                EntryChange::Remove { index: self.entry.index.clone(), member: self.entry.member.clone() }
            }
            None => return Ok(false),
        };
        if of_lease && matches!(change, EntryChange::Set { .. }) {
            tx.require_expired(self.key);
        }
        tx.repair_entry(self.key, stored.map(|stored| stored.version), change);
        Ok(true)
    }
}

impl Repair<'_> {
    /// The document, and whether an entry stands at its score.
    async fn look(&self, tx: &mut Tx<'_>, entry: &Entry) -> Result<(Option<StoredDocument>, bool)> {
        let answers = tx.read(vec![Query::Documents(vec![self.key.clone()]), Query::Scan(exactly(entry))]).await?;
        let mut answers = answers.into_iter();
        let stored = answers.next().and_then(Answer::into_documents).and_then(|mut found| found.pop()).flatten();
        let page = answers.next().and_then(Answer::into_scan).unwrap_or_default();
        Ok((stored, page.entries.iter().any(|found| found.member == entry.member)))
    }
}
