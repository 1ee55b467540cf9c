//! Every kind of document, for code that must treat them all alike: the reconcilers, the doctor and the checkers.

use crate::encoding::Document;
use crate::error::{Code, Error, Result};
use crate::index::{Indexed, kind};
use crate::key::{Entry, Key};

/// The index entries a stored document must have, whatever it is. `None`: this version does not know its kind.
pub fn index_entries(key: &Key, body: &[u8], lease_until: i64) -> Result<Option<Vec<Entry>>> {
    fn of<D: Indexed>(key: &Key, body: &[u8], lease_until: i64) -> Result<Option<Vec<Entry>>> {
        let document = D::decode(body)?;
        if document.key() != *key {
            let found = document.key();
            return Err(Error::new(Code::CorruptDocument, format!("{key:?} holds the document of {found:?}")));
        }
        Ok(Some(document.index_entries(lease_until)))
    }
    let of_kind = match key.kind() {
        kind::EXECUTION => of::<crate::execution::Execution>,
        kind::FLOW => of::<crate::flow::Flow>,
        kind::EDGE => of::<crate::edge::Edge>,
        kind::WAITPOINT => of::<crate::waitpoint::Waitpoint>,
        kind::SIGNAL => of::<crate::signal::AcceptedSignal>,
        kind::BUDGET => of::<crate::budget::Budget>,
        kind::QUOTA => of::<crate::quota::QuotaPolicy>,
        kind::SCHEDULE => of::<crate::schedule::Schedule>,
        kind::BULK => of::<crate::bulk::BulkJob>,
        kind::BULK_PART => of::<crate::bulk::BulkPart>,
        kind::SUBSCRIPTION => of::<crate::subscription::Subscription>,
        kind::CURSOR => of::<crate::subscription::SubscriptionCursor>,
        kind::HOOK => of::<crate::hook::Hook>,
        kind::SLOT => of::<crate::slot::Slot>,
        kind::CONCURRENCY_KEY => of::<crate::concurrency::ConcurrencyKey>,
        kind::RESERVATION => of::<crate::reservation::Reservation>,
        kind::PROVIDER => of::<crate::provider::Provider>,
        kind::BOOKING => of::<crate::provider::Booking>,
        kind::WORKER => of::<crate::worker::Worker>,
        kind::SERVER => of::<crate::worker::Server>,
        kind::LANE => of::<crate::lane::Lane>,
        kind::TOOL => of::<crate::tool::Tool>,
        kind::TOKEN => of::<crate::api_token::ApiToken>,
        // These have no entries by design.
        kind::RECORD | kind::KEY_HOLDER | kind::SECRETS | kind::DEPLOYMENT | kind::SUMMARY | kind::CREATION_WATCH => {
            return Ok(Some(Vec::new()));
        }
        _ => return Ok(None),
    };
    of_kind(key, body, lease_until)
}

/// Asserts what must hold inside a document, where its kind has such rules.
pub fn check(key: &Key, body: &[u8]) -> Result<()> {
    match key.kind() {
        kind::EXECUTION => crate::execution::Execution::decode(body)?.check(),
        _ => Ok(()),
    }
}
