//! Caches of documents as this engine's own commits left them, so that later commits need no read.
//!
//! A cached copy is never trusted: every decision from it is guarded by its version, and a refusal is decided again
//! from the store.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ff_core::execution::Execution;
use ff_core::index::kind;
use ff_core::lane::Lane;
use ff_core::worker::Worker;
use ff_core::{Edge, Key};
use ff_store::{Fence, StoredDocument, Version};

/// How many executions are kept; beyond that the oldest are dropped.
const CAPACITY: usize = 20_000;
/// Of how many executions the downstreams are kept; beyond that the oldest are dropped.
const DOWNSTREAMS_CAPACITY: usize = 10_000;
/// How many quotas, concurrency keys and slots are kept; beyond that the oldest are dropped.
const ADMISSION_CAPACITY: usize = 20_000;
/// A document that another engine has changed is read for this long before its copy here is relied upon again.
const CONTENDED_MS: i64 = 1_000;
/// How many contended documents are remembered; beyond that all are forgotten, and each costs a conflict.
const CONTENDED_MAX: usize = 1_000;
/// How many names' keys are remembered; beyond that all are forgotten and worked out anew.
const NAMES_KEPT: usize = 10_000;
/// How many journals' sizes are remembered; beyond that all are forgotten, and the next entry of each costs one read.
const SIZES_KEPT: usize = 20_000;

/// An execution as the last commit of this engine left it.
#[derive(Debug, Clone)]
pub(crate) struct Cached {
    pub(crate) execution: Arc<Execution>,
    pub(crate) version: Version,
    pub(crate) fence: Fence,
    pub(crate) lease_until: i64,
}

/// Executions whose leases were taken through this engine: their holders' calls commit without a read.
pub(crate) struct Cache(Mutex<Aged<Cached>>);

/// A few executions that wait for nothing but one other, as the commit that created them and their flow left them.
#[derive(Debug)]
pub(crate) struct Downstreams {
    /// The version of the flow, the edges and the executions, which one commit wrote.
    pub(crate) version: Version,
    /// Every edge from the upstream, with the execution it leads to.
    pub(crate) all: Vec<(Edge, Arc<Execution>)>,
}

/// Downstreams of executions, so that the commit that ends an execution can tell them.
pub(crate) struct DownstreamCache(Mutex<Aged<Downstreams>>);

/// The documents of admission as the last commit of this engine left them: quotas, concurrency keys and their slots.
/// All claims under one quota write its document, and reading it before each write would cost as much as the write.
pub(crate) struct AdmissionCache(Mutex<AdmissionDocuments>);

struct AdmissionDocuments {
    documents: Aged<StoredDocument>,
    /// Until when a document is not relied upon, by the process's clock.
    contended: BTreeMap<Key, i64>,
}

/// A map that forgets its oldest entries.
struct Aged<V> {
    by_key: BTreeMap<Key, (u64, V)>,
    by_age: VecDeque<(u64, Key)>,
    next: u64,
    capacity: usize,
}

impl<V> Aged<V> {
    fn new(capacity: usize) -> Self {
        Self { by_key: BTreeMap::new(), by_age: VecDeque::new(), next: 0, capacity }
    }

    fn put(&mut self, key: Key, value: V) {
        let number = self.next;
        self.next += 1;
        self.by_key.insert(key.clone(), (number, value));
        self.by_age.push_back((number, key));
        while self.by_age.len() > self.capacity {
            let Some((number, key)) = self.by_age.pop_front() else { break };
            // A key that was put again since has a younger place in the line.
            if self.by_key.get(&key).is_some_and(|(current, _)| *current == number) {
                self.by_key.remove(&key);
            }
        }
    }

    fn clear(&mut self) {
        self.by_key.clear();
        self.by_age.clear();
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self(Mutex::new(Aged::new(CAPACITY)))
    }
}

impl Cache {
    pub(crate) fn get(&self, key: &Key) -> Option<Cached> {
        self.contents().by_key.get(key).map(|(_, cached)| cached.clone())
    }

    pub(crate) fn put(&self, key: Key, cached: Cached) {
        self.contents().put(key, cached);
    }

    /// Replaces the document of a lease by a newer one. What is remembered of an earlier lease says nothing about when
    /// this one ends, and goes.
    pub(crate) fn update(&self, key: &Key, fence: Fence, execution: Arc<Execution>, version: Version) {
        let mut contents = self.contents();
        match contents.by_key.get_mut(key) {
            Some((_, cached)) if cached.fence == fence => {
                cached.execution = execution;
                cached.version = version;
            }
            Some(_) => {
                contents.by_key.remove(key);
            }
            None => {}
        }
    }

    /// Notes a later end of a document's lease. A renewal never moves the end back, and neither does its answer,
    /// however late it comes. Answers the end as far as it is known.
    pub(crate) fn renewed(&self, key: &Key, fence: Fence, lease_until: i64) -> i64 {
        match self.contents().by_key.get_mut(key) {
            Some((_, cached)) if cached.fence == fence => {
                cached.lease_until = cached.lease_until.max(lease_until);
                cached.lease_until
            }
            _ => lease_until,
        }
    }

    pub(crate) fn remove(&self, key: &Key) {
        self.contents().by_key.remove(key);
    }

    pub(crate) fn clear(&self) {
        self.contents().clear();
    }

    fn contents(&self) -> std::sync::MutexGuard<'_, Aged<Cached>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Default for DownstreamCache {
    fn default() -> Self {
        Self(Mutex::new(Aged::new(DOWNSTREAMS_CAPACITY)))
    }
}

impl DownstreamCache {
    pub(crate) fn put(&self, upstream: Key, downstreams: Downstreams) {
        self.contents().put(upstream, downstreams);
    }

    /// Takes the downstreams of an execution out of the cache, so that a second call has to read the store.
    pub(crate) fn take(&self, upstream: &Key) -> Option<Downstreams> {
        self.contents().by_key.remove(upstream).map(|(_, downstreams)| downstreams)
    }

    pub(crate) fn clear(&self) {
        self.contents().clear();
    }

    fn contents(&self) -> std::sync::MutexGuard<'_, Aged<Downstreams>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Default for AdmissionCache {
    fn default() -> Self {
        let documents = Aged::new(ADMISSION_CAPACITY);
        Self(Mutex::new(AdmissionDocuments { documents, contended: BTreeMap::new() }))
    }
}

impl AdmissionCache {
    /// Whether documents under this key are kept.
    pub(crate) fn keeps(key: &Key) -> bool {
        matches!(key.kind(), kind::QUOTA | kind::CONCURRENCY_KEY | kind::SLOT)
    }

    /// The document, unless other engines change it, too.
    pub(crate) fn get(&self, key: &Key, now_ms: i64) -> Option<StoredDocument> {
        let contents = self.contents();
        if contents.contended.get(key).is_some_and(|until| now_ms < *until) {
            return None;
        }
        contents.documents.by_key.get(key).map(|(_, stored)| stored.clone())
    }

    /// A commit of this engine wrote a document, or removed it.
    pub(crate) fn written(&self, key: Key, body: Option<Bytes>, version: Version) {
        let mut contents = self.contents();
        match body {
            Some(body) => {
                let stored =
                    StoredDocument { key: key.clone(), body, version, fence: Fence::default(), lease_until: 0 };
                contents.documents.put(key, stored);
            }
            None => drop(contents.documents.by_key.remove(&key)),
        }
    }

    /// Notes that another engine has changed the document.
    pub(crate) fn contended(&self, key: &Key, now_ms: i64) {
        let mut contents = self.contents();
        contents.documents.by_key.remove(key);
        if contents.contended.len() >= CONTENDED_MAX {
            contents.contended.clear();
        }
        contents.contended.insert(key.clone(), now_ms + CONTENDED_MS);
    }

    pub(crate) fn clear(&self) {
        self.contents().documents.clear();
    }

    fn contents(&self) -> std::sync::MutexGuard<'_, AdmissionDocuments> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// The keys of lanes and workers, which are digests of their names and asked for several times with every task.
#[derive(Default)]
pub(crate) struct NamedKeys {
    lanes: KeysOfNames,
    workers: KeysOfNames,
}

impl NamedKeys {
    pub(crate) fn lane(&self, namespace: &str, name: &str) -> Key {
        self.lanes.get(namespace, name, Lane::key_of)
    }

    pub(crate) fn worker(&self, namespace: &str, instance_id: &str) -> Key {
        self.workers.get(namespace, instance_id, Worker::key_of)
    }
}

/// The keys of documents of one kind.
#[derive(Default)]
struct KeysOfNames(Mutex<Names>);

#[derive(Default)]
struct Names {
    /// By namespace and name.
    keys: BTreeMap<String, BTreeMap<String, Key>>,
    /// How many keys there are in all namespaces.
    count: usize,
}

impl KeysOfNames {
    fn get(&self, namespace: &str, name: &str, key_of: fn(&str, &str) -> Key) -> Key {
        let Names { keys, count } = &mut *self.0.lock().expect("no holder of this lock panics");
        if let Some(key) = keys.get(namespace).and_then(|keys| keys.get(name)) {
            return key.clone();
        }
        if *count >= NAMES_KEPT {
            keys.clear();
            *count = 0;
        }
        let key = key_of(namespace, name);
        keys.entry(namespace.to_owned()).or_default().insert(name.to_owned(), key.clone());
        *count += 1;
        key
    }
}

/// The sizes of the journals that this engine wrote to last, so that their limit is checked without a read.
#[derive(Default)]
pub(crate) struct JournalSizes(Mutex<BTreeMap<Key, (u64, u64)>>);

impl JournalSizes {
    /// The bytes of a journal up to and with a number.
    pub(crate) fn at(&self, log: &Key, number: u64) -> Option<u64> {
        let sizes = self.0.lock().expect("no holder of this lock panics");
        sizes.get(log).filter(|(last, _)| *last == number).map(|(_, bytes)| *bytes)
    }

    pub(crate) fn note(&self, log: Key, number: u64, bytes: u64) {
        let mut sizes = self.0.lock().expect("no holder of this lock panics");
        if sizes.len() >= SIZES_KEPT {
            sizes.clear();
        }
        sizes.insert(log, (number, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_others_change_is_not_relied_upon_for_a_while() {
        let cache = AdmissionCache::default();
        let key = Key::new(kind::QUOTA, &[b"q"]);
        let version = Version::default();
        cache.written(key.clone(), Some(Bytes::from_static(b"one")), version);
        assert_eq!(cache.get(&key, 0).unwrap().body, "one");
        cache.contended(&key, 0);
        assert!(cache.get(&key, 0).is_none());
        cache.written(key.clone(), Some(Bytes::from_static(b"two")), version);
        assert!(cache.get(&key, CONTENDED_MS - 1).is_none());
        assert_eq!(cache.get(&key, CONTENDED_MS).unwrap().body, "two");
        cache.written(key.clone(), None, version);
        assert!(cache.get(&key, CONTENDED_MS).is_none());
    }

    #[test]
    fn a_remembered_key_is_that_of_the_name_however_many_there_are() {
        let keys = NamedKeys::default();
        for name in (0..NAMES_KEPT + 2).chain(0..2).map(|number| number.to_string()) {
            assert_eq!(keys.lane("n", &name), Lane::key_of("n", &name));
        }
        assert_eq!(keys.worker("n", "1"), Worker::key_of("n", "1"));
        assert_eq!(keys.worker("m", "1"), Worker::key_of("m", "1"));
        assert!(keys.lanes.0.lock().unwrap().count <= NAMES_KEPT);
    }

    #[test]
    fn what_is_oldest_goes_and_what_was_put_again_is_young() {
        let key = |number: u8| Key::new(b'x', &[&[number]]);
        let mut aged = Aged::new(2);
        aged.put(key(1), 'a');
        aged.put(key(2), 'b');
        aged.put(key(1), 'c');
        aged.put(key(3), 'd');
        let kept: Vec<(Key, char)> = aged.by_key.iter().map(|(key, (_, value))| (key.clone(), *value)).collect();
        assert_eq!(kept, [(key(1), 'c'), (key(3), 'd')]);
    }
}
