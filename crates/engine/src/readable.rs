//! Stored entries that this version cannot decode. Everything that goes through many documents reads them through here:
//! what cannot be decoded is passed over, counted, logged at most once a second, and remembered for the doctor. It
//! never fails a list, nor what happens to its neighbours.

use std::collections::VecDeque;
use std::sync::Mutex;

use ff_core::op::get_deployment::UndecodableEntry;
use ff_core::{Code, Document, Error, Key};
use ff_store::StoredDocument;
use serde::de::DeserializeOwned;

use crate::engine::Engine;
use crate::logs;

/// How many different entries are remembered.
const REMEMBERED_MAX: usize = 20;
/// The least time between two lines of the log about them.
const LOG_EVERY_MS: i64 = 1_000;

/// The last entries that could not be decoded.
#[derive(Debug, Default)]
pub(crate) struct Undecodable(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The one seen last stands last.
    entries: VecDeque<UndecodableEntry>,
    logged_at: Option<i64>,
    /// Those since the last line of the log.
    not_logged: u64,
}

impl Undecodable {
    /// Remembers an entry. Answers how many were not logged before it when a line of the log is due, and `None` when it
    /// is not.
    fn note(&self, key: &Key, error: &Error, now: i64) -> Option<u64> {
        let mut state = self.0.lock().expect("no holder of this lock panics");
        let key = format!("{key:?}");
        state.entries.retain(|known| known.key != key);
        if state.entries.len() == REMEMBERED_MAX {
            state.entries.pop_front();
        }
        state.entries.push_back(UndecodableEntry { key, error: error.detail.clone(), seen_at: now });
        if state.logged_at.is_some_and(|at| (at..at.saturating_add(LOG_EVERY_MS)).contains(&now)) {
            state.not_logged += 1;
            return None;
        }
        state.logged_at = Some(now);
        Some(std::mem::take(&mut state.not_logged))
    }

    pub(crate) fn entries(&self) -> Vec<UndecodableEntry> {
        self.0.lock().expect("no holder of this lock panics").entries.iter().cloned().collect()
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
        if let Some(not_logged) = metrics.undecodable_entries.note(key, error, self.now()) {
            tracing::error!(?key, %error, not_logged, "a stored entry cannot be decoded; passed over");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_remembered_once_and_logged_once_a_second() {
        let noted = Undecodable::default();
        let error = Error::new(Code::CorruptDocument, "torn");
        let key = |number: u8| Key::from_bytes([number]);
        assert_eq!(noted.note(&key(1), &error, 10_000), Some(0));
        for at in 10_000..10_005 {
            assert_eq!(noted.note(&key(1), &error, at), None);
        }
        assert_eq!(noted.note(&key(2), &error, 11_000), Some(5));
        assert_eq!(noted.note(&key(2), &error, 9_000), Some(0), "a clock that went back does not silence it");
        assert_eq!(noted.entries().len(), 2);
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
