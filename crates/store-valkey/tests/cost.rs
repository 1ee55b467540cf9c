//! What the common changes cost the server, in memory and in commands.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, LeaseEpoch, LeaseId, Partition, PublicState, index};
use ff_store::{Append, Batch, EntryChange, Fence, Guard, Hint, LeaseChange, Outcome, Put, Store};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::Server;
use uuid::Uuid;

const EXECUTIONS: u128 = 20_000;
const PARTITIONS: u128 = 32;
/// A document of about 200 bytes with an input of 100 in it.
const BODY: &[u8] = &[b'd'; 300];

fn partition(number: u128) -> Partition {
    Partition::flow(u16::try_from(number % PARTITIONS).expect("a few partitions"))
}

fn execution(number: u128) -> Key {
    // Spread as the random half of a real id would be.
    let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Key::new(index::kind::EXECUTION, &[&id.to_be_bytes()])
}

fn queue() -> IndexName {
    index::queue("default", "default", "", "")
}

fn put(key: &Key, fence: Fence) -> Put {
    Put { key: key.clone(), body: Bytes::from_static(BODY), fence, expires_at: None }
}

fn event() -> Append {
    Append { log: Key::from_bytes(*b"E"), records: vec![Bytes::from_static(&[b'e'; 60])], expected: None, cap: 2_000 }
}

fn set(index: IndexName, member: &Key, score: i64) -> EntryChange {
    EntryChange::Set { index, member: member.clone(), score }
}

fn remove(index: IndexName, member: &Key) -> EntryChange {
    EntryChange::Remove { index, member: member.clone() }
}

fn created_at(number: u128) -> i64 {
    1_800_000_000_000 + i64::try_from(number).expect("a small number")
}

fn create(number: u128) -> Batch {
    let key = execution(number);
    let score = created_at(number);
    Batch {
        guards: vec![Guard::Absent(key.clone())],
        puts: vec![put(&key, Fence::default())],
        entries: vec![set(queue(), &key, score), set(index::state("default", PublicState::Waiting), &key, score)],
        hints: vec![Hint { partition: partition(number), payload: Bytes::from_static(b"queue") }],
        ..Batch::new(CommandId(Uuid::from_u128(3 * number)))
    }
}

fn fence(number: u128) -> Fence {
    Fence { epoch: LeaseEpoch(1), lease: LeaseId(Uuid::from_u128(number)) }
}

fn claim(number: u128) -> Batch {
    let key = execution(number);
    let lease = LeaseChange {
        key: key.clone(),
        ttl_ms: Some(30_000),
        index: index::due(),
        member: index::Due::Lease.member(&key),
    };
    Batch {
        guards: vec![Guard::Version(key.clone(), CommandId(Uuid::from_u128(3 * number))), Guard::NotAfter(i64::MAX)],
        puts: vec![put(&key, fence(number))],
        entries: vec![
            remove(queue(), &key),
            remove(index::state("default", PublicState::Waiting), &key),
            set(index::state("default", PublicState::Active), &key, created_at(number)),
            set(index::worker("default", &format!("worker-{}", number % 16)), &key, created_at(number)),
        ],
        leases: vec![lease],
        appends: vec![event()],
        ..Batch::new(CommandId(Uuid::from_u128(3 * number + 1)))
    }
}

fn complete(number: u128) -> Batch {
    let key = execution(number);
    let lease =
        LeaseChange { key: key.clone(), ttl_ms: None, index: index::due(), member: index::Due::Lease.member(&key) };
    Batch {
        guards: vec![
            Guard::Version(key.clone(), CommandId(Uuid::from_u128(3 * number + 1))),
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
        ..Batch::new(CommandId(Uuid::from_u128(3 * number + 2)))
    }
}

/// Commits one batch for every execution, 64 at a time, and prints what the server spent on each.
async fn commit_all(store: &Arc<ValkeyStore>, server: &Server, name: &str, batch: fn(u128) -> Batch) {
    server.command("CONFIG RESETSTAT");
    let cpu = || {
        let seconds = |field| server.info(field).unwrap().parse::<f64>().unwrap();
        seconds("used_cpu_user_main_thread") + seconds("used_cpu_sys_main_thread")
    };
    let cpu_before = cpu();
    let tasks: Vec<_> = (0..64)
        .map(|first| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in (first..EXECUTIONS).step_by(64) {
                    let outcomes = store.commit(partition(number), vec![batch(number)]).await.expect("it answers");
                    assert!(matches!(outcomes[..], [Outcome::Applied(_)]), "{outcomes:?}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("it ends");
    }
    let usec =
        |line: String| line.split("usec_per_call=").nth(1).map(|rest| rest.split(',').next().unwrap().to_owned());
    let stats = server.command("INFO commandstats").into_text();
    let calls: u128 = stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_") && !line.contains("fcall"))
        .filter_map(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<u128>().ok())
        .sum();
    let fcall = stats.lines().find(|line| line.starts_with("cmdstat_fcall:")).expect("functions were called");
    let cpu_us = (cpu() - cpu_before) * 1e6 / 20_000.0;
    let usec = usec(fcall.to_owned()).unwrap();
    println!("{name}: {usec} us, {} commands, {cpu_us:.1} us of CPU in all a commit", calls / EXECUTIONS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_execution_takes_less_than_a_kibibyte() {
    let server = Server::start();
    let store = Arc::new(ValkeyStore::open(&server.url()).await.expect("the store opens"));
    let memory = || server.info("used_memory").unwrap().parse::<u128>().unwrap();
    let before = memory();
    commit_all(&store, &server, "create", create).await;
    let each = (memory() - before) / EXECUTIONS;
    println!("{each} bytes for a waiting execution");
    assert!(each <= 1_024, "{each} bytes");
    commit_all(&store, &server, "claim", claim).await;
    commit_all(&store, &server, "complete", complete).await;
}
