//! The function library comes and goes, and comes in other revisions, while the store works.

use std::sync::Arc;

use ff_core::{CommandId, Partition};
use ff_store::{Outcome, Store, StoreError};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Server, Value};

use crate::support::{Load, creation, new_key};

const CODE: &str = include_str!("../../lua/flowfabric_1.lua");
/// As the library names it.
const REVISION: u32 = 3;

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(ValkeyStore::open(url).await.expect("the store opens"))
}

/// Replaces the library by the same one under another revision.
fn load_revision(server: &Server, revision: u32) {
    let code = CODE.replace(&format!("local REVISION = {REVISION}"), &format!("local REVISION = {revision}"));
    assert!(revision == REVISION || code != CODE, "the library names its revision as expected");
    let loaded = server.client().try_command(&[b"FUNCTION", b"LOAD", b"REPLACE", code.as_bytes()]);
    assert!(matches!(loaded, Ok(Value::Bytes(_))), "{loaded:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_library_is_loaded_again_and_no_call_fails() {
    let server = Server::start();
    let store = open(&server.url()).await;
    let load = Load::start(&store, &[0, 1, 2, 3, 4, 5, 6, 7].map(Partition::flow));
    for _ in 0..20 {
        load.more(40).await;
        server.command("FUNCTION FLUSH");
    }
    load.more(40).await;
    let ledger = load.finish().await;
    assert_eq!((ledger.unknown, ledger.errors), (0, vec![]));
}

#[tokio::test]
async fn an_older_library_is_replaced() {
    let server = Server::start();
    load_revision(&server, REVISION - 1);
    let store = open(&server.url()).await;
    assert_eq!(server.command("FCALL_RO ff_revision_1 0").integer(), i64::from(REVISION));
    load_revision(&server, REVISION - 1);
    let outcomes = store.commit(Partition::SYSTEM, vec![creation(&new_key(), CommandId::default())]).await;
    assert!(matches!(outcomes.as_deref(), Ok([Outcome::Applied(_)])), "{outcomes:?}");
    assert_eq!(server.command("FCALL_RO ff_revision_1 0").integer(), i64::from(REVISION));
}

#[tokio::test]
async fn a_newer_library_is_refused_and_left_alone() {
    let server = Server::start();
    let store = open(&server.url()).await;
    load_revision(&server, REVISION + 1);
    let key = new_key();
    let refused = store.commit(Partition::SYSTEM, vec![creation(&key, CommandId::default())]).await;
    assert!(matches!(refused, Err(StoreError::LibraryMismatch { .. })), "{refused:?}");
    let refused = ValkeyStore::open(&server.url()).await.err();
    assert!(matches!(refused, Some(StoreError::LibraryMismatch { .. })), "{refused:?}");
    assert_eq!(server.command("FCALL_RO ff_revision_1 0").integer(), i64::from(REVISION + 1));
    load_revision(&server, REVISION);
    assert_eq!(store.documents(Partition::SYSTEM, vec![key]).await, Ok(vec![None]));
}

#[tokio::test]
async fn a_library_that_may_not_be_loaded_must_be_there() {
    let server = Server::start();
    let url = format!("{}?load_library=off", server.url());
    let refused = ValkeyStore::open(&url).await.err();
    assert!(matches!(refused, Some(StoreError::LibraryMismatch { .. })), "{refused:?}");
    load_revision(&server, REVISION);
    assert!(ValkeyStore::open(&url).await.is_ok());
}
