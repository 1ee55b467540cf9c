//! Reading in a transaction. A document that was loaded is known with its version, which the commit guards, and with its
//! index entries, from which the commit works out the difference.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ff_core::execution::Execution;
use ff_core::{Code, Error, Indexed, Key, Result};
use ff_store::{Query, Scan, ScanPage, StoredDocument};

use super::documents::{Known, Staged};
use super::{Loaded, Tx};

/// The content under a key, before it is decoded.
enum Found {
    /// This transaction deletes it.
    Deleted,
    /// This transaction saves it.
    Staged { body: Bytes, lease_until: i64 },
    /// The store has it, or has nothing.
    Stored(Option<StoredDocument>),
}

impl Tx<'_> {
    /// Asks several questions at once. The transaction does not know the documents in the answers until they are
    /// adopted.
    pub(crate) async fn read(&mut self, queries: Vec<Query>) -> Result<Vec<ff_store::Answer>> {
        let answers = self.transactor.read(self.partition, queries).await?;
        self.now = self.now.max(answers.at);
        self.told = self.told.max(Some(answers.at));
        Ok(answers.answers)
    }

    /// A page of an index.
    pub(crate) async fn scan(&mut self, scan: Scan) -> Result<ScanPage> {
        let mut answers = self.read(vec![Query::Scan(scan)]).await?;
        let page = answers.pop().and_then(ff_store::Answer::into_scan);
        Ok(page.unwrap_or_default())
    }

    /// How many entries an index has.
    pub(crate) async fn count(&mut self, index: ff_core::IndexName) -> Result<u64> {
        let mut answers = self.read(vec![Query::count_all(index)]).await?;
        Ok(answers.pop().and_then(ff_store::Answer::into_count).unwrap_or(0))
    }

    /// The documents under these keys, in order, in one round trip.
    pub(crate) async fn load_many<D: Indexed>(&mut self, keys: Vec<Key>) -> Result<Vec<Option<Loaded<D>>>> {
        self.load_each(keys).await?.into_iter().collect()
    }

    /// Loads documents for a command that goes on without those that cannot be decoded; they are passed over.
    pub(crate) async fn load_readable<D: Indexed>(&mut self, keys: Vec<Key>) -> Result<Vec<Option<Loaded<D>>>> {
        let transactor = self.transactor;
        let loaded = self.load_each(keys.clone()).await?.into_iter().zip(keys);
        Ok(loaded
            .map(|(loaded, key)| {
                loaded.unwrap_or_else(|error| {
                    transactor.pass_over(&key, &error);
                    None
                })
            })
            .collect())
    }

    /// The documents under these keys in one round trip, each readable or not by itself.
    async fn load_each<D: Indexed>(&mut self, keys: Vec<Key>) -> Result<Vec<Result<Option<Loaded<D>>>>> {
        let found = self.look_up_each(&keys).await?;
        Ok(keys.into_iter().zip(found).map(|(key, found)| self.adopt_found(key, found)).collect())
    }

    /// The content under these keys, in one round trip. This knows no types of documents, and is compiled once for all.
    async fn look_up_each(&mut self, keys: &[Key]) -> Result<Vec<Found>> {
        let unknown: Vec<Key> = keys.iter().filter(|key| !self.documents.has(key)).cloned().collect();
        let mut fresh = BTreeMap::new();
        if !unknown.is_empty() {
            let mut answers = self.read(vec![Query::Documents(unknown.clone())]).await?;
            let documents = answers.pop().and_then(ff_store::Answer::into_documents).unwrap_or_default();
            for (key, document) in unknown.into_iter().zip(documents) {
                fresh.insert(key, document);
            }
        }
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push(match fresh.remove(key) {
                Some(stored) => Found::Stored(stored),
                None => self.look_up(key).await?,
            });
        }
        Ok(found)
    }

    /// Documents of admission, in order: as this engine's commits left them where that may save a round trip. A decision
    /// made from such a copy counts only once the store has confirmed its version.
    pub(crate) async fn load_admission<D: Indexed>(&mut self, keys: Vec<Key>) -> Result<Vec<Option<Loaded<D>>>> {
        let mut kept: BTreeMap<Key, StoredDocument> = BTreeMap::new();
        if self.use_cache {
            let now_ms = self.transactor.env().now_ms();
            let unknown = keys.iter().filter(|key| !self.documents.has(key));
            kept.extend(unknown.filter_map(|key| Some((key.clone(), self.transactor.admission().get(key, now_ms)?))));
        }
        self.used_cache |= !kept.is_empty();
        let others = keys.iter().filter(|key| !kept.contains_key(*key)).cloned().collect();
        let mut others = self.load_many::<D>(others).await?.into_iter();
        let mut loaded = Vec::with_capacity(keys.len());
        for key in keys {
            loaded.push(match kept.remove(&key) {
                Some(stored) => self.adopt(key, Some(stored))?,
                None => others.next().flatten(),
            });
        }
        Ok(loaded)
    }

    /// The document under a key.
    pub(crate) async fn load<D: Indexed>(&mut self, key: Key) -> Result<Option<Loaded<D>>> {
        let found = self.look_up(&key).await?;
        self.adopt_found(key, found)
    }

    /// The content under a key: as this transaction left it, or as the store has it.
    async fn look_up(&mut self, key: &Key) -> Result<Found> {
        match self.documents.staged(key) {
            Some(Staged::Delete) => return Ok(Found::Deleted),
            Some(Staged::Put { body, .. }) => {
                let lease_until = self.documents.known(key).map_or(0, |known| known.lease_until);
                return Ok(Found::Staged { body: body.clone(), lease_until });
            }
            None => {}
        }
        let mut answers = self.read(vec![Query::Documents(vec![key.clone()])]).await?;
        let stored = answers.pop().and_then(ff_store::Answer::into_documents).and_then(|mut found| found.pop());
        Ok(Found::Stored(stored.flatten()))
    }

    fn adopt_found<D: Indexed>(&mut self, key: Key, found: Found) -> Result<Option<Loaded<D>>> {
        match found {
            Found::Deleted => Ok(None),
            Found::Staged { body, lease_until } => {
                D::decode(&body).map(|document| Some(Loaded { document, lease_until }))
            }
            Found::Stored(stored) => self.adopt(key, stored),
        }
    }

    /// An execution, from the cache where that may save a round trip: a decision made from a cached copy counts only
    /// once the store has confirmed its version.
    pub(crate) async fn execution(&mut self, id: &ff_core::ExecutionId) -> Result<Execution> {
        Ok(Arc::unwrap_or_clone(self.shared_execution(id).await?))
    }

    /// Like [`Tx::execution`], but an absent execution is no error.
    pub(crate) async fn find_execution(&mut self, id: &ff_core::ExecutionId) -> Result<Option<Execution>> {
        Ok(self.find_shared(id).await?.map(Arc::unwrap_or_clone))
    }

    /// Like [`Tx::execution`], for commands of every task: they copy the document once, into the place where it is
    /// changed. By value it would be moved from future to future.
    pub(crate) async fn shared_execution(&mut self, id: &ff_core::ExecutionId) -> Result<Arc<Execution>> {
        self.find_shared(id).await?.ok_or_else(|| Error::of(Code::ExecutionNotFound).with("execution_id", id))
    }

    async fn find_shared(&mut self, id: &ff_core::ExecutionId) -> Result<Option<Arc<Execution>>> {
        let key = Execution::key_of(id);
        if self.use_cache
            && self.documents.known(&key).is_none()
            && let Some(cached) = self.transactor.cache().get(&key)
        {
            self.used_cache = true;
            let known = Known {
                version: Some(cached.version),
                fence: cached.fence,
                lease_until: cached.lease_until,
                entries: cached.execution.index_entries(cached.lease_until),
                pinned: false,
            };
            self.documents.know(key, known);
            return Ok(Some(cached.execution));
        }
        Ok(self.load::<Execution>(key).await?.map(|loaded| Arc::new(loaded.document)))
    }

    /// Makes a document that some read brought along known to the transaction.
    pub(crate) fn adopt<D: Indexed>(&mut self, key: Key, stored: Option<StoredDocument>) -> Result<Option<Loaded<D>>> {
        let Some(stored) = stored else {
            self.documents.know_first(key, Known::default);
            return Ok(None);
        };
        let document = D::decode(&stored.body)?;
        self.documents.know_first(key, || Known {
            version: Some(stored.version),
            fence: stored.fence,
            lease_until: stored.lease_until,
            entries: document.index_entries(stored.lease_until),
            pinned: false,
        });
        Ok(Some(Loaded { document, lease_until: stored.lease_until }))
    }

    /// Adopts a document of a page of an index: one that cannot be decoded is passed over, and reads as not there.
    pub(crate) fn adopt_readable<D: Indexed>(&mut self, key: Key, stored: Option<StoredDocument>) -> Option<Loaded<D>> {
        self.adopt(key.clone(), stored).unwrap_or_else(|error| {
            self.transactor.pass_over(&key, &error);
            None
        })
    }

    /// Adopts a document for a command that goes through many. If the command has already saved this one, the result is
    /// the saved state.
    pub(crate) fn adopt_current<D: Indexed>(&mut self, key: &Key, stored: StoredDocument) -> Result<Option<D>> {
        match self.documents.staged(key) {
            Some(Staged::Delete) => Ok(None),
            Some(Staged::Put { body, .. }) => D::decode(body).map(Some),
            None => Ok(self.adopt::<D>(key.clone(), Some(stored))?.map(|loaded| loaded.document)),
        }
    }
}
