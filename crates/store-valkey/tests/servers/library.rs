//! The function library comes and goes, and comes in other protocols, while the store works.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::{CommandId, Key, Partition};
use ff_store::{Append, Batch, LogStart, Outcome, Store, StoreError};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Server, Value};

use crate::clock::{load_with_a_clock, set_clock};
use crate::support::{Load, creation, new_key};

const CODE: &str = include_str!("../../lua/flowfabric.lua");
/// As the library names it.
pub(crate) const PROTOCOL: u32 = 8;

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(ValkeyStore::open(url).await.expect("the store opens"))
}

/// The library as a program of another protocol has it.
pub(crate) fn library_of(protocol: u32) -> String {
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

/// Calls the commit function as a program of a protocol does, with one batch of a partition and one value. Positions of
/// keys begin at 2, behind the partition's list of indexes.
fn commit(server: &Server, protocol: u32, keys: &[&[u8]], batch: &[u8], value: &[u8]) -> Value {
    let registry = format!("{}r", Partition::SYSTEM);
    // Eight items stand in front of the batch, and before them two that say the protocol and the length. The batch begins
    // with its end, where commands would begin if there were any.
    let end = u8::try_from(8 + 1 + batch.len() + 3).expect("a small batch");
    // No commands, no barrier, no hints; one batch of one partition, whose list is key 1 and whose hints have no channel.
    let front = [Some(end), Some(0), Some(0), None, Some(1), Some(1), Some(1), None, Some(end)];
    let items: Vec<Option<u8>> = front.into_iter().chain(batch.iter().copied().map(Some)).collect();
    let (request, function) = (packed(protocol, &items), format!("ff_commit_{protocol}"));
    let count = (1 + keys.len()).to_string();
    let call = [&[b"FCALL", function.as_bytes(), count.as_bytes(), registry.as_bytes()], keys, &[&request, value]];
    server.client().try_command(&call.concat()).expect("the server answers")
}

/// Creates a document as a program of a protocol does: one batch, guarded by absence, that puts it.
pub(crate) fn create(server: &Server, protocol: u32, key: &Key, value: &[u8]) -> Value {
    let key = [format!("{}d", Partition::SYSTEM).as_bytes(), key.as_bytes()].concat();
    // Of partition 1; no logs; one guard (create key 2 from argument 2); of each kind of effect none.
    commit(server, protocol, &[&key], &[1, 0, 1, 8, 2, 2, 0, 0, 0, 0], value)
}

/// Appends a record as a program of a protocol does.
fn append(server: &Server, protocol: u32, log: &Key, record: &[u8]) {
    let key = [format!("{}l", Partition::SYSTEM).as_bytes(), log.as_bytes()].concat();
    // Of partition 1; one log (key 2); no guards, puts or leases; one append to key 2, without a cap, of the arguments 2 to
    // 2; nothing else.
    let appended = commit(server, protocol, &[&key], &[1, 1, 2, 0, 0, 0, 1, 2, 0, 2, 2, 0], record);
    assert!(matches!(&appended, Value::Bytes(_)), "{appended:?}");
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
async fn records_of_programs_of_two_protocols_have_numbers_of_their_own() {
    let (server, other, log) = (Server::start(), PROTOCOL + 1, Key::from_bytes(*b"log"));
    let mut now = 1_000_000_000;
    // A stream compares instants, too, so each record comes at a later one.
    let mut later = || {
        now += 1_000;
        set_clock(&server, now);
    };
    later();
    load_with_a_clock(&server, PROTOCOL);
    load_with_a_clock(&server, other);
    let store = open(&server.url()).await;
    let records = vec![Bytes::from_static(b"ours")];
    let ours = Append { log: log.clone(), records, expected: None, cap: 0, in_turn: false };
    for theirs in [1, 1, 0, 2, 1] {
        later();
        let batch = Batch { appends: vec![ours.clone()], ..Batch::new(CommandId::default()) };
        assert!(store.commit(Partition::SYSTEM, [batch].into()).await.is_ok());
        for _ in 0..theirs {
            later();
            append(&server, other, &log, b"theirs");
        }
    }
    let page = store.log(Partition::SYSTEM, log, LogStart::After(0), 100).await.expect("it reads");
    let numbers: Vec<u64> = page.records.iter().map(|record| record.sequence).collect();
    assert_eq!(numbers, (1..=10).collect::<Vec<u64>>());
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
