//! Stored entries that this version cannot decode. Code that goes through many documents reads them through here: an
//! entry that cannot be decoded is skipped, counted, logged at most once a second, and remembered for `ff doctor`. It
//! never fails a list, and never affects its neighbours.

use ff_core::{Code, Document, Error, Key};
use ff_store::StoredDocument;
use serde::de::DeserializeOwned;

use super::Transactor;
use crate::logs;

impl Transactor {
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
