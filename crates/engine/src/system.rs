//! Cached documents of the system partition: lanes, secrets, tokens. A copy may be used for one second after it was
//! last confirmed, so that a pause, a rotation or a revocation holds everywhere within a second of its answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ff_core::index::kind;
use ff_core::lane::Lane;
use ff_core::subscription::{CreationWatch, DELIVERY_LANE};
use ff_core::{Code, Document, Error, Key, Partition, Result};
use ff_store::Query;

use crate::transaction::Transactor;

/// How long a copy may be used.
const CONFIRMED_MS: i64 = 1_000;
/// Copies kept; past it all are dropped.
const CAPACITY: usize = 10_000;
/// Names that strangers made up and that are remembered to stand for nothing; past it all are dropped.
const STRANGE_MAX: usize = 1_000;

/// Reads documents of the system partition through copies of them.
#[derive(Clone)]
pub(crate) struct SystemDocuments {
    transactor: Transactor,
    copies: Arc<Copies>,
}

#[derive(Default)]
struct Copies(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    copies: BTreeMap<Key, Copy>,
    /// When it was confirmed that a document does not exist whose name any stranger may make up. They stand apart, so that
    /// a flood of them pushes out nothing else.
    strange: BTreeMap<Key, i64>,
}

struct Copy {
    confirmed_at: i64,
    body: Option<Bytes>,
}

impl Copies {
    fn get(&self, key: &Key, now: i64) -> Option<Option<Bytes>> {
        let kept = self.kept();
        let (confirmed_at, body) = match (kept.copies.get(key), kept.strange.get(key)) {
            (Some(copy), _) => (copy.confirmed_at, copy.body.clone()),
            (None, Some(confirmed_at)) => (*confirmed_at, None),
            (None, None) => return None,
        };
        (now - confirmed_at < CONFIRMED_MS).then_some(body)
    }

    fn put(&self, key: Key, body: Option<Bytes>, confirmed_at: i64) {
        let kept = &mut *self.kept();
        // A bearer names its token and a message its hook before it is known whether there is one.
        if body.is_none() && matches!(key.kind(), kind::TOKEN | kind::HOOK) {
            kept.copies.remove(&key);
            if kept.strange.len() >= STRANGE_MAX {
                kept.strange.clear();
            }
            kept.strange.insert(key, confirmed_at);
            return;
        }
        kept.strange.remove(&key);
        if kept.copies.len() >= CAPACITY {
            kept.copies.clear();
        }
        kept.copies.insert(key, Copy { confirmed_at, body });
    }

    fn forget(&self, key: &Key) {
        let mut kept = self.kept();
        kept.copies.remove(key);
        kept.strange.remove(key);
    }

    fn clear(&self) {
        *self.kept() = Kept::default();
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl SystemDocuments {
    pub(crate) fn new(transactor: Transactor) -> Self {
        Self { transactor, copies: Arc::default() }
    }

    pub(crate) fn transactor(&self) -> &Transactor {
        &self.transactor
    }

    /// A document has changed.
    pub(crate) fn forget(&self, key: &Key) {
        self.copies.forget(key);
    }

    /// Any document may have changed.
    pub(crate) fn clear(&self) {
        self.copies.clear();
    }

    /// A document of the system partition, at most a second old.
    pub(crate) async fn system_document<D: Document>(&self, key: &Key) -> Result<Option<D>> {
        let [body] = self.bodies([key]).await?;
        body.map(|body| D::decode(&body)).transpose()
    }

    /// The bodies of documents of the system partition, at most a second old. Those that are too old are read together.
    async fn bodies<const N: usize>(&self, keys: [&Key; N]) -> Result<[Option<Bytes>; N]> {
        let asked_at = self.transactor.env().now_ms();
        let copies = keys.map(|key| self.copies.get(key, asked_at));
        let old: Vec<Key> =
            keys.iter().zip(&copies).filter(|(_, copy)| copy.is_none()).map(|(key, _)| (*key).clone()).collect();
        if old.is_empty() {
            return Ok(copies.map(Option::flatten));
        }
        let answers = self.transactor.read(Partition::SYSTEM, vec![Query::Documents(old.clone())]).await?;
        let found = answers.into_only(ff_store::Answer::into_documents).map_err(Error::from)?;
        let mut read = found.into_iter().map(|stored| stored.map(|stored| stored.body));
        let mut old = old.into_iter();
        Ok(copies.map(|copy| {
            copy.unwrap_or_else(|| {
                let body = read.next().flatten();
                // The age counts from before the question: the answer may be as old as that.
                old.next().into_iter().for_each(|key| self.copies.put(key, body.clone(), asked_at));
                body
            })
        }))
    }

    /// A lane, if it was configured or used.
    pub(crate) async fn lane(&self, namespace: &str, lane: &str) -> Result<Option<Lane>> {
        self.system_document(&self.transactor.named_keys().lane(namespace, lane)).await
    }

    /// Refuses the lane of the engine's own, and one that is not on the deployment's list, if it has one.
    pub(crate) fn check_lane(&self, lane: &str) -> Result<()> {
        if lane == DELIVERY_LANE {
            let detail =
                format!("the lane {DELIVERY_LANE} is the engine's own: it sends the webhooks of subscriptions");
            return Err(Error::new(Code::Forbidden, detail).with("lane", lane));
        }
        match &self.transactor.options().lanes {
            Some(lanes) if !lanes.iter().any(|known| known == lane) => {
                Err(Error::of(Code::LaneNotFound).with("lane", lane).with("lanes", lanes))
            }
            _ => Ok(()),
        }
    }

    /// The terms of the namespace and the lane for submissions. A lane that takes none is one of the terms, because a
    /// repeat of an earlier submission is answered all the same.
    pub(crate) async fn submission_terms(&self, namespace: &str, lane: &str) -> Result<SubmissionTerms> {
        self.check_lane(lane)?;
        let keys = [&self.transactor.named_keys().lane(namespace, lane), &CreationWatch::key_of(namespace)];
        let [lane, watch] = self.bodies(keys).await?;
        let announced = watch.is_some();
        let Some(lane) = lane.map(|lane| Lane::decode(&lane)).transpose()? else {
            return Ok(SubmissionTerms { aging_ms: 0, announced, refusal: None });
        };
        Ok(SubmissionTerms { aging_ms: lane.aging_ms, announced, refusal: lane.check_submission().err() })
    }
}

/// The wishes of a namespace and a lane about what is submitted there.
#[derive(Debug, Clone)]
pub(crate) struct SubmissionTerms {
    /// How much age is worth one step of priority; 0 is the default.
    pub(crate) aging_ms: i64,
    /// A subscription asks for the creation of executions.
    pub(crate) announced: bool,
    /// Why the lane takes nothing new.
    pub(crate) refusal: Option<Error>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_strangers_make_up_push_out_no_copy_and_are_few() {
        let copies = Copies::default();
        let lane = Lane::key_of("n", "lane");
        copies.put(lane.clone(), None, 0);
        let token = Key::new(kind::TOKEN, &[b"known"]);
        copies.put(token.clone(), Some(Bytes::from_static(b"token")), 0);
        for number in 0..20 * CAPACITY {
            let name = number.to_be_bytes();
            let kind = if number % 2 == 0 { kind::TOKEN } else { kind::HOOK };
            copies.put(Key::new(kind, &[&name]), None, 0);
        }
        assert_eq!(copies.get(&lane, 1), Some(None));
        assert_eq!(copies.get(&token, 1), Some(Some(Bytes::from_static(b"token"))));
        let kept = copies.kept();
        assert!(kept.copies.len() == 2 && kept.strange.len() <= STRANGE_MAX, "{}", kept.strange.len());
    }

    #[test]
    fn a_name_that_stood_for_nothing_is_forgotten_when_something_has_it() {
        let copies = Copies::default();
        let hook = Key::new(kind::HOOK, &[b"h"]);
        copies.put(hook.clone(), None, 0);
        assert_eq!(copies.get(&hook, 1), Some(None));
        copies.forget(&hook);
        assert_eq!(copies.get(&hook, 1), None);
        copies.put(hook.clone(), None, 0);
        copies.put(hook.clone(), Some(Bytes::from_static(b"hook")), 1);
        assert_eq!(copies.get(&hook, 2), Some(Some(Bytes::from_static(b"hook"))));
        copies.put(hook.clone(), None, 3);
        assert_eq!(copies.get(&hook, 4), Some(None));
    }
}
