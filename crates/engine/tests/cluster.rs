//! The engine on a Valkey Cluster of which one primary is dead and no replica takes its place: work on the others is
//! handed out as fast as ever.
#![expect(clippy::disallowed_methods, reason = "a test measures real time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_core::op::{Claim, Complete, CreateExecution};
use ff_core::{ExecutionId, Mint, Partition};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::Cluster;
use serde_json::{Value, json};

/// Executions in healthy partitions that are claimed and completed.
const TASKS: usize = 1_200;
const WORKERS: usize = 4;
const DEAD: usize = 1;

fn parsed<T: serde::de::DeserializeOwned>(args: Value) -> T {
    serde_json::from_value(args).expect("the arguments are readable")
}

fn owner(cluster: &Cluster, partition: Partition) -> usize {
    let slot = cluster.nodes[0].client().command(&format!("CLUSTER KEYSLOT {partition}")).integer();
    cluster.owner(u16::try_from(slot).expect("a slot"))
}

async fn submit(engine: &Engine, partition: Partition, number: usize) {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&u64::try_from(number).unwrap().to_be_bytes());
    let id = ExecutionId::in_partition(partition, &Mint { now_ms: engine.now(), random });
    let args = parsed(json!({ "kind": "test", "execution_id": id }));
    engine.call::<CreateExecution>(&Caller::system(), args).await.expect("it is created");
}

/// Claims and completes until there is nothing left; says how long each claim that took something took.
async fn work(engine: Engine, number: usize) -> Vec<Duration> {
    let caller = Caller::system();
    let mut times = Vec::new();
    loop {
        let args = json!({ "instance_id": format!("w-{number}"), "lanes": ["default"], "wait_ms": 2_000 });
        let began = Instant::now();
        let claimed = engine.call::<Claim>(&caller, parsed(args)).await;
        let took = began.elapsed();
        let Some(task) = claimed.ok().and_then(|mut claimed| claimed.tasks.pop()) else { return times };
        times.push(took);
        let args = json!({ "execution_id": task.execution_id, "fence": task.fence });
        engine.call::<Complete>(&caller, parsed(args)).await.expect("it is completed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_dead_primary_slows_no_claim_on_the_others() {
    without_one(|cluster| cluster.nodes[DEAD].kill()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_primary_that_hangs_slows_no_claim_on_the_others() {
    without_one(|cluster| cluster.nodes[DEAD].freeze()).await;
}

async fn without_one(lose: impl FnOnce(&mut Cluster)) {
    let mut cluster = Cluster::start_patient();
    let store = Arc::new(ValkeyStore::open(&cluster.url()).await.expect("the store opens"));
    let engine = Engine::start(store, Arc::new(TokioEnv::current()), Options::default()).await.expect("it starts");
    assert_ne!(owner(&cluster, Partition::SYSTEM), DEAD, "lanes and workers are read from the system partition");
    let all = engine.partitions().all();
    let partitions: Vec<Partition> = all.filter(|one| one.family == ff_core::Family::Flow).collect();
    let (lost, healthy): (Vec<_>, Vec<_>) = partitions.into_iter().partition(|one| owner(&cluster, *one) == DEAD);
    assert!(lost.len() > 40 && healthy.len() > 80);
    // Some in every partition that is about to go, and all of them before the others.
    for (number, partition) in lost.iter().enumerate() {
        submit(&engine, *partition, number).await;
    }
    for number in 0..TASKS {
        submit(&engine, healthy[number % healthy.len()], 1_000 + number).await;
    }
    lose(&mut cluster);
    let workers: Vec<_> = (0..WORKERS).map(|number| tokio::spawn(work(engine.clone(), number))).collect();
    let mut times = Vec::new();
    for worker in workers {
        times.extend(worker.await.expect("it works"));
    }
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{} claims: p50 {:?}, p90 {:?}, p99 {:?}, max {:?}", times.len(), at(50), at(90), at(99), at(100));
    assert_eq!(times.len(), TASKS, "everything that can be had was handed out");
    assert!(at(99) <= Duration::from_millis(100), "p99 {:?}", at(99));
    // Nothing waits for the dead.
    let began = Instant::now();
    engine.close().await;
    assert!(began.elapsed() < Duration::from_secs(5), "closing took {:?}", began.elapsed());
}
