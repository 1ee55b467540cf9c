//! The function library comes and goes, and comes in other protocols, while the store works.

use std::sync::Arc;

use ff_core::{CommandId, Key, Partition};
use ff_store::{Outcome, Store, StoreError};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Server, Value};

use crate::support::{Load, creation, new_key};

const CODE: &str = include_str!("../../lua/flowfabric.lua");
/// As the library names it.
const PROTOCOL: u32 = 8;

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(ValkeyStore::open(url).await.expect("the store opens"))
}

/// The library as a program of another protocol has it.
fn library_of(protocol: u32) -> String {
    let code = CODE
        .replace(&format!("name=flowfabric_{PROTOCOL}"), &format!("name=flowfabric_{protocol}"))
        .replace(&format!("local PROTOCOL = {PROTOCOL}"), &format!("local PROTOCOL = {protocol}"));
    ["commit", "commit_relief", "read", "tidy", "protocol"].iter().fold(code, |code, function| {
        code.replace(&format!("'ff_{function}_{PROTOCOL}'"), &format!("'ff_{function}_{protocol}'"))
    })
}

fn load(server: &Server, code: &str) {
    let loaded = server.client().try_command(&[b"FUNCTION", b"LOAD", b"REPLACE", code.as_bytes()]);
    assert!(matches!(loaded, Ok(Value::Bytes(_))), "{loaded:?}");
}

/// Small positive numbers and nothings, as the functions take them.
fn packed(protocol: u32, items: &[Option<u8>]) -> Vec<u8> {
    let mut bytes = vec![0xce];
    bytes.extend_from_slice(&protocol.to_be_bytes());
    bytes.push(u8::try_from(items.len() + 2).expect("a few items"));
    bytes.extend(items.iter().map(|item| item.unwrap_or(0xc2)));
    bytes
}

/// Creates a document as a program of a protocol does: one batch, guarded by absence, that puts it.
fn create(server: &Server, protocol: u32, key: &Key, value: &[u8]) -> Value {
    let key = [format!("{}d", Partition::SYSTEM).as_bytes(), key.as_bytes()].concat();
    let registry = format!("{}r", Partition::SYSTEM);
    // Commands would begin behind the batch, and there are none; no barrier, no hints; one batch of one partition, whose
    // list is key 1 and whose hints have no channel.
    let front = [Some(22), Some(0), Some(0), None, Some(1), Some(1), Some(1), None];
    // The batch ends there, too, and is of partition 1; no logs; one guard (create key 2 from argument 2); of each kind of
    // effect none.
    let batch = [Some(22), Some(1), Some(0), Some(1), Some(8), Some(2), Some(2), Some(0), Some(0), Some(0), Some(0)];
    let request = packed(protocol, &[&front[..], &batch].concat());
    let function = format!("ff_commit_{protocol}");
    let call: [&[u8]; 7] = [b"FCALL", function.as_bytes(), b"2", registry.as_bytes(), &key, &request, value];
    server.client().try_command(&call).expect("the server answers")
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_of_three_protocols_work_side_by_side() {
    let server = Server::start();
    let (older, newer) = (PROTOCOL - 1, PROTOCOL + 1);
    load(&server, &library_of(older));
    let store = open(&server.url()).await;
    load(&server, &library_of(newer));
    let load = Load::start(&store, &[0, 1].map(Partition::flow));
    load.more(50).await;
    for protocol in [older, newer] {
        let key = new_key();
        let value = [&[7; 56][..], b"body"].concat();
        let created = create(&server, protocol, &key, &value);
        assert!(matches!(&created, Value::Bytes(_)), "{created:?}");
        let read = store.documents(Partition::SYSTEM, vec![key.clone()]).await.expect("it reads");
        assert_eq!(read[0].as_ref().map(|document| &document.body[..]), Some(&b"body"[..]));
        // What one program wrote, another's guard meets.
        let refused = store.commit(Partition::SYSTEM, [creation(&key, CommandId::default())].into()).await;
        assert!(matches!(refused.as_deref(), Ok([Outcome::Conflict(_)])), "{refused:?}");
        let refused = create(&server, if protocol == older { newer } else { older }, &key, &value);
        let conflict = b"exists";
        assert!(
            matches!(&refused, Value::Bytes(text) if text.windows(conflict.len()).any(|window| window == conflict)),
            "{refused:?}"
        );
        assert_eq!(server.command(&format!("FCALL_RO ff_protocol_{protocol} 0")).integer(), i64::from(protocol));
    }
    load.more(50).await;
    let ledger = load.finish().await;
    assert_eq!((ledger.unknown, ledger.errors), (0, vec![]));
    assert!(ValkeyStore::open(&server.url()).await.is_ok(), "an upgrade leaves the other libraries alone");
    let libraries = server.command("FUNCTION LIST").into_array().len();
    assert_eq!(libraries, 3);
}

#[tokio::test]
async fn a_library_under_our_name_with_another_protocol_is_never_used() {
    let server = Server::start();
    let store = open(&server.url()).await;
    let wrong = CODE.replace(&format!("local PROTOCOL = {PROTOCOL}"), "local PROTOCOL = 9");
    load(&server, &wrong);
    let key = new_key();
    let refused = store.commit(Partition::SYSTEM, [creation(&key, CommandId::default())].into()).await;
    assert!(matches!(refused, Err(StoreError::LibraryMismatch { .. })), "{refused:?}");
    let refused = ValkeyStore::open(&server.url()).await.err();
    assert!(matches!(refused, Some(StoreError::LibraryMismatch { .. })), "{refused:?}");
    load(&server, CODE);
    assert_eq!(store.documents(Partition::SYSTEM, vec![key]).await, Ok(vec![None]));
}

#[tokio::test]
async fn a_library_that_may_not_be_loaded_must_be_there() {
    let server = Server::start();
    let url = format!("{}?load_library=off", server.url());
    let refused = ValkeyStore::open(&url).await.err();
    assert!(matches!(refused, Some(StoreError::LibraryMismatch { .. })), "{refused:?}");
    load(&server, CODE);
    assert!(ValkeyStore::open(&url).await.is_ok());
}
