//! What the common changes cost the server, in memory and in commands.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, LeaseEpoch, LeaseId, Partition, PublicState, index};
use ff_store::{Append, Batch, EntryChange, Fence, Guard, Hint, LeaseChange, Outcome, Put, Store};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::Server;
use uuid::Uuid;

const EXECUTIONS: u64 = 12_800;
const PARTITIONS: u64 = 32;
/// Commands that a function may call in one of the common changes.
const COMMANDS_MAX: u64 = 12;
/// A document of about 200 bytes with an input of 100 in it.
const BODY: &[u8] = &[b'd'; 300];

fn partition(number: u64) -> Partition {
    Partition::flow(u16::try_from(number % PARTITIONS).expect("a few partitions"))
}

fn execution(number: u64) -> Key {
    // Spread as the random half of a real id would be.
    let id = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Key::new(index::kind::EXECUTION, &[&id.to_be_bytes()])
}

fn queue() -> IndexName {
    index::queue("default", "default", "kind", "", "")
}

fn put(key: &Key, fence: Fence) -> Put {
    Put { key: key.clone(), body: Bytes::from_static(BODY), fence, expires_at: None }
}

fn event() -> Append {
    Append {
        log: Key::from_bytes(*b"E"),
        records: vec![Bytes::from_static(&[b'e'; 60])],
        expected: None,
        cap: 2_000,
        in_turn: false,
    }
}

fn set(index: IndexName, member: &Key, score: i64) -> EntryChange {
    EntryChange::Set { index, member: member.clone(), score }
}

fn remove(index: IndexName, member: &Key) -> EntryChange {
    EntryChange::Remove { index, member: member.clone() }
}

fn created_at(number: u64) -> i64 {
    1_800_000_000_000 + i64::try_from(number).expect("a small number")
}

fn create(number: u64) -> Batch {
    let key = execution(number);
    let score = created_at(number);
    Batch {
        guards: vec![Guard::Absent(key.clone())],
        puts: vec![put(&key, Fence::default())],
        entries: vec![set(queue(), &key, score), set(index::state("default", PublicState::Waiting), &key, score)],
        hints: vec![Hint { partition: partition(number), payload: Bytes::from_static(b"queue") }],
        ..Batch::new(CommandId(Uuid::from_u128(3 * u128::from(number))))
    }
}

fn fence(number: u64) -> Fence {
    Fence { epoch: LeaseEpoch(1), lease: LeaseId(Uuid::from_u128(number.into())) }
}

fn claim(number: u64) -> Batch {
    let key = execution(number);
    let lease = LeaseChange {
        key: key.clone(),
        // Long enough for any machine: what is measured is the cost of a lease, not its end.
        ttl_ms: Some(3_600_000),
        index: index::due(),
        member: index::Due::Lease.member(&key),
    };
    Batch {
        guards: vec![
            Guard::Version(key.clone(), CommandId(Uuid::from_u128(3 * u128::from(number)))),
            Guard::NotAfter(i64::MAX),
        ],
        puts: vec![put(&key, fence(number))],
        entries: vec![
            remove(queue(), &key),
            remove(index::state("default", PublicState::Waiting), &key),
            set(index::state("default", PublicState::Active), &key, created_at(number)),
            set(index::worker("default", &format!("worker-{}", number % 16)), &key, created_at(number)),
        ],
        leases: vec![lease],
        appends: vec![event()],
        ..Batch::new(CommandId(Uuid::from_u128(3 * u128::from(number) + 1)))
    }
}

fn complete(number: u64) -> Batch {
    let key = execution(number);
    let lease =
        LeaseChange { key: key.clone(), ttl_ms: None, index: index::due(), member: index::Due::Lease.member(&key) };
    Batch {
        guards: vec![
            Guard::Version(key.clone(), CommandId(Uuid::from_u128(3 * u128::from(number) + 1))),
            Guard::Fence(key.clone(), fence(number)),
            Guard::Live(key.clone()),
        ],
        puts: vec![put(&key, fence(number))],
        entries: vec![
            remove(index::state("default", PublicState::Active), &key),
            remove(index::worker("default", &format!("worker-{}", number % 16)), &key),
            set(index::state("default", PublicState::Completed), &key, created_at(number)),
            set(index::due(), &index::Due::Timer.member(&key), 604_800_000 + created_at(number)),
        ],
        leases: vec![lease],
        appends: vec![event()],
        relief: true,
        ..Batch::new(CommandId(Uuid::from_u128(3 * u128::from(number) + 2)))
    }
}

/// Commits one batch for every execution, 64 at a time, and says what the server spent on each.
async fn commit_all(store: &Arc<ValkeyStore>, server: &Server, name: &str, batch: fn(u64) -> Batch) {
    server.command("CONFIG RESETSTAT");
    let tasks: Vec<_> = (0..64)
        .map(|first| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in (first..EXECUTIONS).step_by(64) {
                    let outcomes = store.commit(partition(number), [batch(number)].into()).await.expect("it answers");
                    assert!(matches!(outcomes[..], [Outcome::Applied(_)]), "{outcomes:?}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("it ends");
    }
    let costs = store.command_costs().await.expect("the server tells");
    let functions = costs["fcall"];
    let others = ["fcall", "config|resetstat", "info", "ping"];
    let inner = costs.iter().filter(|(name, _)| !others.contains(&name.as_str())).map(|(_, cost)| cost.calls);
    let commands = inner.sum::<u64>().div_ceil(EXECUTIONS);
    let calls = functions.calls;
    println!("{name}: {} us and {commands} commands a commit, {calls} calls", functions.microseconds / EXECUTIONS);
    // They share calls; now and then comes one that takes names of empty indexes off the list.
    let tidying = EXECUTIONS / 64 + PARTITIONS;
    assert!(calls <= EXECUTIONS / 2 + tidying, "{calls} calls for {EXECUTIONS} commits, 64 at once");
    assert!(commands <= COMMANDS_MAX, "{commands} commands");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_share_calls_and_a_waiting_execution_less_than_a_kibibyte() {
    let server = Server::start();
    let store = Arc::new(ValkeyStore::open(&server.url()).await.expect("the store opens"));
    let memory = || server.info("used_memory").unwrap().parse::<u64>().unwrap();
    let before = memory();
    commit_all(&store, &server, "create", create).await;
    let each = (memory() - before) / EXECUTIONS;
    println!("{each} bytes for a waiting execution");
    assert!(each <= 1_024, "{each} bytes");
    commit_all(&store, &server, "claim", claim).await;
    commit_all(&store, &server, "complete", complete).await;
}
