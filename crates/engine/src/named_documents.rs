//! Documents that people name: one by its name, and pages of them in the order of their names.

use std::marker::PhantomData;

use ff_core::op::parts::Removed;
use ff_core::{Code, Error, IndexName, Indexed, Key, Partition, Result, index};
use ff_store::{Answer, Query, Scan};

use crate::cursor;
use crate::transaction::{Command, Transactor, Tx};

/// Entries read at once from one partition.
const CHUNK: usize = 1_000;

impl Transactor {
    /// The document under a key, as the store has it now.
    pub(crate) async fn find<D: Indexed>(&self, partition: Partition, key: Key) -> Result<Option<D>> {
        let found = self.store().documents(partition, vec![key]).await?;
        found.into_iter().next().flatten().map(|stored| D::decode(&stored.body)).transpose()
    }

    /// The documents of one kind in a namespace whose names come after the cursor, by name. An index orders names by
    /// their first bytes only, so everything from there on is read; there are not many of these.
    pub(crate) async fn named_after<D: Indexed>(
        &self,
        partitions: Vec<Partition>,
        namespace: &str,
        cursor: Option<&str>,
        name: fn(&D) -> &str,
    ) -> Result<Vec<D>> {
        let from = cursor.map_or(i64::MIN, index::name_score);
        let reads = partitions
            .into_iter()
            .map(|partition| self.named_in::<D>(partition, index::listing(D::KIND, namespace), Some(from)));
        let mut all: Vec<D> = futures_util::future::try_join_all(reads).await?.into_iter().flatten().collect();
        all.retain(|document| cursor.is_none_or(|cursor| name(document) > cursor));
        all.sort_by(|a, b| name(a).cmp(name(b)));
        Ok(all)
    }
}

impl Transactor {
    /// Every document of an index by name, from a score on.
    pub(crate) async fn named_in<D: Indexed>(
        &self,
        partition: Partition,
        index: IndexName,
        from: Option<i64>,
    ) -> Result<Vec<D>> {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let scan = Scan::first(index.clone(), CHUNK).with_documents();
            let scan = Scan { min: from.unwrap_or(i64::MIN), after: after.take(), ..scan };
            let page = self.read(partition, vec![Query::Scan(scan)]).await?;
            let page = page.into_only(Answer::into_scan).map_err(Error::from)?;
            let full = page.entries.len() == CHUNK;
            after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            for stored in page.entries.into_iter().filter_map(|entry| entry.document) {
                found.extend(self.readable::<D>(&stored));
            }
            if !full {
                return Ok(found);
            }
        }
    }
}

/// Cuts a list off at a page; the cursor is the last name on it.
pub(crate) fn page<T>(mut all: Vec<T>, limit: usize, name: impl Fn(&T) -> &str) -> (Vec<T>, Option<String>) {
    let more = all.len() > limit;
    all.truncate(limit);
    let cursor = all.last().filter(|_| more).map(|last| cursor::encode(&name(last)));
    (all, cursor)
}

/// The refusal of an unknown name.
pub(crate) fn no_such(code: Code, name: &str) -> Error {
    Error::of(code).with("name", name)
}

/// Deletes a document by its name.
pub(crate) struct RemoveNamed<'a, D> {
    key: Key,
    name: &'a str,
    missing: Code,
    document: PhantomData<fn() -> D>,
}

impl<'a, D> RemoveNamed<'a, D> {
    /// The document under this key; where there is none, the name is refused with this code.
    pub(crate) fn new(key: Key, name: &'a str, missing: Code) -> Self {
        Self { key, name, missing, document: PhantomData }
    }
}

impl<D: Indexed> Command for RemoveNamed<'_, D> {
    type Outcome = Removed;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Removed> {
        let loaded = tx.load::<D>(self.key.clone()).await?;
        loaded.ok_or_else(|| no_such(self.missing, self.name))?;
        tx.relief();
        tx.delete(&self.key);
        Ok(Removed::Removed)
    }
}
