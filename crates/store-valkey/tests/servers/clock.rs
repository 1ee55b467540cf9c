//! The store's time when a server's clock is set, and when another server with another clock takes over.

use ff_core::{CommandId, Partition};
use ff_store::{Outcome, Store};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Server, Value};

use crate::library::{PROTOCOL, create, library_of};
use crate::support::{creation, new_key};

const HERE: Partition = Partition::flow(3);

/// The library, as a program of a protocol has it, with a clock that the test sets.
pub(crate) fn load_with_a_clock(server: &Server, protocol: u32) {
    let code = library_of(protocol);
    let adjusted = code.replace("call('TIME')", "{ call('HGET', 'clock', 's'), call('HGET', 'clock', 'us') }");
    assert_ne!(adjusted, code, "the library asks for the time as expected");
    let loaded = server.client().try_command(&[b"FUNCTION", b"LOAD", b"REPLACE", adjusted.as_bytes()]);
    assert!(matches!(loaded, Ok(Value::Bytes(_))), "{loaded:?}");
}

pub(crate) fn set_clock(server: &Server, ms: i64) {
    server.command(&format!("HSET clock s {} us {}", ms / 1000, ms % 1000 * 1000));
}

async fn told(store: &dyn Store) -> i64 {
    told_in(HERE, store).await
}

async fn told_in(partition: Partition, store: &dyn Store) -> i64 {
    let outcomes =
        store.commit(partition, [creation(&new_key(), CommandId::default())].into()).await.expect("it commits");
    let [Outcome::Applied(applied)] = &outcomes[..] else { panic!("{outcomes:?}") };
    let read = store.documents(partition, vec![new_key()]).await;
    assert!(read.is_ok());
    applied.at
}

#[tokio::test]
async fn time_goes_on_after_a_step_back_and_follows_a_step_forward() {
    let server = Server::start();
    set_clock(&server, 1_000_000_000);
    load_with_a_clock(&server, PROTOCOL);
    let store = ValkeyStore::open(&server.url()).await.expect("the store opens");
    assert_eq!(told(&store).await, 1_000_000_000);
    set_clock(&server, 1_000_005_000);
    assert_eq!(told(&store).await, 1_000_005_000);
    // An hour back: time neither goes back nor stands still.
    set_clock(&server, 996_405_000);
    assert_eq!(told(&store).await, 1_000_005_000);
    set_clock(&server, 996_413_000);
    assert_eq!(told(&store).await, 1_000_012_000, "eight seconds later, one of them given back");
    // In time the two agree again.
    set_clock(&server, 996_413_000 + 9 * 3_600_000);
    assert_eq!(told(&store).await, 996_413_000 + 9 * 3_600_000);
    // A day forward is believed, and its correction too, without a step back.
    let far = 996_413_000 + 40 * 3_600_000;
    set_clock(&server, far);
    assert_eq!(told(&store).await, far);
    set_clock(&server, far - 86_400_000);
    assert_eq!(told(&store).await, far);
    set_clock(&server, far - 86_400_000 + 800);
    assert_eq!(told(&store).await, far + 700);
}

#[tokio::test]
async fn a_server_with_a_slow_clock_goes_on_where_the_one_before_it_was() {
    let server = Server::start();
    set_clock(&server, 1_000_000_000);
    load_with_a_clock(&server, PROTOCOL);
    let store = ValkeyStore::open(&server.url()).await.expect("the store opens");
    let before = told(&store).await;
    // A library that was just loaded remembers nothing, as on a server that was just promoted.
    set_clock(&server, 990_000_000);
    load_with_a_clock(&server, PROTOCOL);
    let after = told(&store).await;
    assert!((before..=before + 200).contains(&after), "{before}, then {after}");
    set_clock(&server, 990_008_000);
    assert_eq!(told(&store).await, after + 7_000);
    assert!(store.read(HERE, Vec::new()).await.is_ok_and(|answers| answers.at >= after + 7_000));
}

/// The time that a program of another protocol is told: the first item of an answer, which is a large number.
fn told_to_another(server: &Server, protocol: u32) -> i64 {
    let Value::Bytes(answer) = create(server, protocol, &new_key(), &[0; 56]) else { panic!("an answer is bytes") };
    let length = match answer[1] {
        0xce => 4,
        0xcf => 8,
        kind => panic!("an item of kind {kind:#04x}"),
    };
    answer[2..2 + length].iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
}

#[tokio::test]
async fn programs_of_two_protocols_are_told_one_time() {
    let (server, start, span) = (Server::start(), 1_000_000_000, 400);
    set_clock(&server, start);
    load_with_a_clock(&server, PROTOCOL);
    let store = ValkeyStore::open(&server.url()).await.expect("the store opens");
    let mut latest = told_in(Partition::SYSTEM, &store).await;
    load_with_a_clock(&server, PROTOCOL + 1);
    for now in start..start + span {
        set_clock(&server, now);
        for told in [told_to_another(&server, PROTOCOL + 1), told_in(Partition::SYSTEM, &store).await] {
            assert!(told >= latest, "{latest}, then {told}");
            latest = told;
        }
    }
    let ahead = latest - (start + span);
    assert!(ahead <= 100, "after {span} ms time is {ahead} ms ahead of the clock that both tell it by");
}
