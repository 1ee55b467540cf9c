//! The documents that one try of a command has loaded or changed, by their keys.

use std::collections::BTreeMap;

use bytes::Bytes;
use ff_core::{Entry, Key};
use ff_store::{Fence, Version};

/// Up to so many documents are found by looking at each. Nearly every command has one or two, and a tree of them would
/// cost several times what they do.
const FEW: usize = 16;

/// A document as it was loaded.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// `None`: there is no document.
    pub(super) version: Option<Version>,
    pub(super) fence: Fence,
    pub(super) lease_until: i64,
    pub(super) entries: Vec<Entry>,
    /// Guard the version even if the document is not saved.
    pub(super) pinned: bool,
}

/// A document as it will be saved.
#[derive(Debug, Clone)]
pub(super) enum Staged {
    Put { body: Bytes, fence: Fence, lease: Option<Option<i64>>, entries: Vec<Entry>, expires_at: Option<i64> },
    Delete,
}

/// A document that was loaded, or is to be saved or deleted.
#[derive(Debug)]
pub(super) struct Touched {
    pub(super) key: Key,
    pub(super) known: Option<Known>,
    pub(super) staged: Option<Staged>,
}

/// The documents of a try.
#[derive(Debug, Default)]
pub(super) struct Documents {
    /// In the order in which they were met.
    touched: Vec<Touched>,
    /// Their places in that list, once there are more than a few.
    places: BTreeMap<Key, usize>,
}

impl Documents {
    fn place(&self, key: &Key) -> Option<usize> {
        if self.touched.len() <= FEW {
            return self.touched.iter().position(|one| one.key == *key);
        }
        self.places.get(key).copied()
    }

    fn get(&self, key: &Key) -> Option<&Touched> {
        self.place(key).map(|place| &self.touched[place])
    }

    /// The document under this key, which counts as met from now on.
    fn meet(&mut self, key: Key) -> &mut Touched {
        let place = self.place(&key).unwrap_or_else(|| self.add(key));
        &mut self.touched[place]
    }

    fn add(&mut self, key: Key) -> usize {
        let place = self.touched.len();
        if place == 0 {
            // Most commands change one document.
            self.touched.reserve_exact(1);
        }
        if place == FEW {
            self.places.extend(self.touched.iter().map(|one| one.key.clone()).zip(0..));
        }
        if place >= FEW {
            self.places.insert(key.clone(), place);
        }
        self.touched.push(Touched { key, known: None, staged: None });
        place
    }

    /// Whether a document was loaded or is to be changed.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.get(key).is_some_and(|one| one.known.is_some() || one.staged.is_some())
    }

    pub(super) fn known(&self, key: &Key) -> Option<&Known> {
        self.get(key)?.known.as_ref()
    }

    pub(super) fn known_mut(&mut self, key: &Key) -> Option<&mut Known> {
        let place = self.place(key)?;
        self.touched[place].known.as_mut()
    }

    /// Makes a document known as it was loaded last.
    pub(super) fn know(&mut self, key: Key, known: Known) {
        self.meet(key).known = Some(known);
    }

    /// Makes a document known, unless it was loaded before.
    pub(super) fn know_first(&mut self, key: Key, known: impl FnOnce() -> Known) {
        self.meet(key).known.get_or_insert_with(known);
    }

    /// Every document that was loaded.
    pub(super) fn all_known(&self) -> impl Iterator<Item = (&Key, &Known)> {
        self.touched.iter().filter_map(|one| Some((&one.key, one.known.as_ref()?)))
    }

    pub(super) fn staged(&self, key: &Key) -> Option<&Staged> {
        self.get(key)?.staged.as_ref()
    }

    pub(super) fn staged_mut(&mut self, key: &Key) -> Option<&mut Staged> {
        let place = self.place(key)?;
        self.touched[place].staged.as_mut()
    }

    pub(super) fn stage(&mut self, key: Key, staged: Staged) {
        self.meet(key).staged = Some(staged);
    }

    /// Whether any document is to be saved or deleted.
    pub(super) fn any_staged(&self) -> bool {
        self.touched.iter().any(|one| one.staged.is_some())
    }

    /// Drops what was to be saved or deleted; documents that were loaded stay known.
    pub(super) fn unstage(&mut self) {
        self.touched.iter_mut().for_each(|one| one.staged = None);
    }

    /// All documents, in the order of their keys.
    pub(super) fn into_sorted(mut self) -> Vec<Touched> {
        self.touched.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        self.touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_found_however_many_there_are_and_they_come_out_sorted() {
        let key = |number: u8| Key::from_bytes([b'x', number]);
        for count in [1, 2, FEW, FEW + 1, 3 * FEW] {
            let mut documents = Documents::default();
            let numbers = || (0..u8::try_from(count).unwrap()).rev();
            for number in numbers() {
                documents.know_first(key(number), || Known { lease_until: number.into(), ..Known::default() });
                documents.know_first(key(number), || unreachable!("it is known"));
                documents.stage(key(number), Staged::Delete);
            }
            assert!(numbers().all(|number| documents.known(&key(number)).unwrap().lease_until == i64::from(number)));
            assert!(!documents.has(&key(200)) && documents.staged(&key(200)).is_none());
            documents.unstage();
            assert!(!documents.any_staged() && documents.has(&key(0)));
            documents.stage(key(100), Staged::Delete);
            let sorted = documents.into_sorted();
            assert_eq!(sorted.len(), count + 1);
            assert!(sorted.is_sorted_by_key(|one| one.key.clone()));
            assert!(sorted.last().unwrap().staged.is_some());
        }
    }
}
