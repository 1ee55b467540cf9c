//! The rules that hold for every batch on every store. What breaks one is a defect of the caller, or too large.

use std::collections::HashSet;
use std::hash::Hash;

use ff_core::{IndexName, Key, limits};

use crate::{Append, Batch, BlobChange, Effect, EntryChange, Guard, LeaseChange, Result, StoreError};

impl Batch {
    /// Checks the rules that hold for every batch on every store. Each store calls it, for all batches of a commit,
    /// before it does anything.
    pub fn validate(&self) -> Result<()> {
        // Size first: it bounds the work of all other checks.
        self.check_size()?;
        let guards = Guards::of(self);
        for guard in &self.guards {
            if let Some(key) = guard.key() {
                check_name("guarded key", key)?;
            }
        }
        for effect in self.effects() {
            match effect {
                Effect::Put(put) => {
                    check_name("key", &put.key)?;
                    if !guards.own(&put.key) {
                        return invalid(format!("{:?} is put without a version or absent guard of its own", put.key));
                    }
                }
                Effect::Delete(key) | Effect::Blob(BlobChange { key, .. }) => {
                    check_name("key", key)?;
                    guards.some_own(key)?;
                }
                Effect::Entry(entry) => check_entry(entry, &guards)?,
                Effect::Lease(lease) => check_lease(lease, &guards)?,
                Effect::Append(append) => check_append(append, &guards)?,
                Effect::Trim(trim) => check_name("log", &trim.log)?,
            }
        }
        self.check_named_once()?;
        self.check_leased_documents()
    }

    fn check_size(&self) -> Result<()> {
        let (operations, bytes) = (self.operations(), self.bytes());
        if operations > limits::COMMIT_OPERATIONS_MAX {
            let max = limits::COMMIT_OPERATIONS_MAX;
            return Err(StoreError::TooLarge(format!("{operations} operations, the limit is {max}")));
        }
        if bytes > limits::COMMIT_MAX_BYTES {
            return Err(StoreError::TooLarge(format!("{bytes} bytes, the limit is {}", limits::COMMIT_MAX_BYTES)));
        }
        Ok(())
    }

    fn check_named_once(&self) -> Result<()> {
        once("put", self.puts.iter().map(|put| &put.key))?;
        once("delete", self.deletes.iter())?;
        once(
            "index entry",
            self.entries.iter().map(|entry| match entry {
                EntryChange::Set { index, member, .. } | EntryChange::Remove { index, member } => (index, member),
            }),
        )?;
        once("lease", self.leases.iter().map(|lease| &lease.key))?;
        once("lease entry", self.leases.iter().map(|lease| (&lease.index, &lease.member)))?;
        once("append", self.appends.iter().map(|append| &append.log))?;
        once("trim", self.trims.iter().map(|trim| &trim.log))?;
        once("blob", self.blobs.iter().map(|blob| &blob.key))
    }

    /// A lease stands beside a document, so there must be one: a fence or version guard proves it, a put makes it.
    fn check_leased_documents(&self) -> Result<()> {
        for lease in self.leases.iter().filter(|lease| lease.ttl_ms.is_some()) {
            let absent = self.guards.iter().any(|guard| matches!(guard, Guard::Absent(key) if *key == lease.key));
            if absent && !self.puts.iter().any(|put| put.key == lease.key) {
                return invalid(format!("a lease is set on {:?}, which is not there", lease.key));
            }
            if self.deletes.contains(&lease.key) {
                return invalid(format!("a lease is set on {:?}, which is deleted", lease.key));
            }
        }
        Ok(())
    }
}

/// Which documents a batch guards, so that a large batch is checked in one pass.
struct Guards<'a> {
    owned: HashSet<&'a Key>,
    fenced: HashSet<&'a Key>,
    any: bool,
}

impl<'a> Guards<'a> {
    fn of(batch: &'a Batch) -> Self {
        let mut guards = Self { owned: HashSet::new(), fenced: HashSet::new(), any: !batch.guards.is_empty() };
        for guard in &batch.guards {
            match guard {
                Guard::Absent(key) | Guard::Version(key, _) => guards.owned.insert(key),
                Guard::Fence(key, _) => guards.fenced.insert(key),
                Guard::Live(_) | Guard::Expired(_) | Guard::NotAfter(_) => false,
            };
        }
        guards
    }

    fn own(&self, key: &Key) -> bool {
        self.owned.contains(key)
    }

    fn some_own(&self, what: &impl std::fmt::Debug) -> Result<()> {
        if self.owned.is_empty() {
            return invalid(format!("{what:?} changes without any version or absent guard"));
        }
        Ok(())
    }
}

fn check_entry(entry: &EntryChange, guards: &Guards<'_>) -> Result<()> {
    let (EntryChange::Set { index, member, .. } | EntryChange::Remove { index, member }) = entry;
    check_index(index)?;
    check_name("member", member)?;
    guards.some_own(index)?;
    if let EntryChange::Set { score, .. } = entry
        && !(-limits::SCORE_MAX..=limits::SCORE_MAX).contains(score)
    {
        return invalid(format!("the score {score} is not exact in a double"));
    }
    Ok(())
}

fn check_lease(lease: &LeaseChange, guards: &Guards<'_>) -> Result<()> {
    check_name("key", &lease.key)?;
    check_index(&lease.index)?;
    check_name("member", &lease.member)?;
    if !guards.own(&lease.key) && !guards.fenced.contains(&lease.key) {
        return invalid(format!("the lease of {:?} changes without a guard", lease.key));
    }
    if lease.ttl_ms.is_some_and(|ttl| !(1..=limits::DURATION_MAX_MS).contains(&ttl)) {
        return invalid(format!("a lease TTL must be 1 to {} ms", limits::DURATION_MAX_MS));
    }
    Ok(())
}

fn check_append(append: &Append, guards: &Guards<'_>) -> Result<()> {
    check_name("log", &append.log)?;
    if append.records.is_empty() {
        return invalid("an append has no records".into());
    }
    if append.expected.is_some() && !guards.any {
        return invalid("an append with an expected number needs a guard".into());
    }
    Ok(())
}

fn check_name(what: &str, key: &Key) -> Result<()> {
    let length = key.as_bytes().len();
    if length == 0 || length > limits::KEY_MAX_BYTES {
        return invalid(format!("a {what} must have 1 to {} bytes, not {length}", limits::KEY_MAX_BYTES));
    }
    Ok(())
}

fn check_index(index: &IndexName) -> Result<()> {
    let length = index.as_bytes().len();
    if length == 0 || length > limits::INDEX_NAME_MAX_BYTES {
        let max = limits::INDEX_NAME_MAX_BYTES;
        return invalid(format!("an index name must have 1 to {max} bytes, not {length}"));
    }
    Ok(())
}

/// Refuses a field that names the same thing twice.
fn once<T: Eq + Hash>(what: &str, names: impl ExactSizeIterator<Item = T>) -> Result<()> {
    let count = names.len();
    if count < 2 || names.collect::<HashSet<_>>().len() == count {
        return Ok(());
    }
    invalid(format!("a batch names the same {what} twice"))
}

fn invalid<T>(why: String) -> Result<T> {
    Err(StoreError::Invalid(why))
}
