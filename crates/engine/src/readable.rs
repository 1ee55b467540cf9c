//! Stored entries that this version cannot decode. Everything that goes through many documents reads them through here:
//! what cannot be decoded is passed over, counted, logged at most once a second, and remembered for the doctor. It
//! never fails a list, nor what happens to its neighbours.

use std::collections::VecDeque;
use std::sync::Mutex;

use ff_core::op::UndecodableEntry;
use ff_core::{Code, Document, Error, Key};
use ff_store::StoredDocument;
use serde::de::DeserializeOwned;

use crate::engine::Engine;
use crate::logs;

/// How many different entries are remembered.
const REMEMBERED_MAX: usize = 20;

/// The last entries that could not be decoded.
#[derive(Debug, Default)]
pub(crate) struct Undecodable(Mutex<VecDeque<UndecodableEntry>>);

impl Undecodable {
    /// Remembers an entry; the one seen last stands last.
    fn note(&self, key: &Key, error: &Error, now: i64) {
        let mut entries = self.0.lock().expect("no holder of this lock panics");
        let key = format!("{key:?}");
        entries.retain(|known| known.key != key);
        if entries.len() == REMEMBERED_MAX {
            entries.pop_front();
        }
        entries.push_back(UndecodableEntry { key, error: error.detail.clone(), seen_at: now });
    }

    pub(crate) fn entries(&self) -> Vec<UndecodableEntry> {
        self.0.lock().expect("no holder of this lock panics").iter().cloned().collect()
    }
}

impl Engine {
    /// The document, unless it cannot be decoded.
    pub(crate) fn readable<D: Document>(&self, stored: &StoredDocument) -> Option<D> {
        D::decode(&stored.body).map_err(|error| self.pass_over(&stored.key, &error)).ok()
    }

    /// The record of a log, unless it cannot be decoded.
    pub(crate) fn readable_record<T: DeserializeOwned>(&self, log: &Key, record: &[u8]) -> Option<T> {
        let found = logs::decode(record);
        if found.is_none() {
            self.pass_over(log, &Error::new(Code::CorruptDocument, "a record of the log cannot be decoded"));
        }
        found
    }

    /// Takes note of an entry that cannot be decoded.
    pub(crate) fn pass_over(&self, key: &Key, error: &Error) {
        let metrics = self.metrics();
        metrics.undecodable();
        metrics.undecodable_entries.note(key, error, self.now());
        if let Some(suppressed) = self.may_log("a stored entry cannot be decoded") {
            tracing::error!(?key, %error, suppressed, "a stored entry cannot be decoded; passed over");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_remembered_once_and_the_oldest_go_first() {
        let noted = Undecodable::default();
        let error = Error::new(Code::CorruptDocument, "torn");
        let key = |number: u8| Key::from_bytes([number]);
        for at in 0..5 {
            noted.note(&key(1), &error, at);
        }
        assert_eq!(noted.entries().len(), 1);
        for number in 0..100 {
            noted.note(&key(number), &error, 20_000);
        }
        let entries = noted.entries();
        assert_eq!(
            (entries.len(), entries.last().map(|last| last.key.clone())),
            (REMEMBERED_MAX, Some(format!("{:?}", key(99))))
        );
    }
}
