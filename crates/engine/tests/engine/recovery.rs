//! Work that others take over from a server that is killed: it says no more, and what it had yet to say is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ff_core::op::create_flow::Outcome as Created;
use ff_core::op::{Complete, CreateFlow};
use ff_core::{CommandId, Family, FlowId, Partition, PartitionConfig, index};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options};
use ff_store::memory::{Call, Fault, MemoryStore, Plan};
use ff_store::{Answers, Batch, Guard, HintSender, Hints, Outcome, Query, Store, StoreInfo};
use serde_json::json;
use tokio::time::Instant;

use crate::support::Harness;

/// Work that a killed server acknowledged goes on elsewhere within this.
pub(crate) const PROMISE: Duration = Duration::from_secs(5);

/// How far a process is.
const LIVES: u8 = 0;
/// Gates change, and what the holders of leases say arrives; nothing is let in.
pub(crate) const OPENS: u8 = 1;
/// Of what it commits only what the holders of leases say arrives; what should follow from it does not.
pub(crate) const DIES: u8 = 2;
const DEAD: u8 = 3;

/// The store as one process sees it: its hints may be lost, and once it is killed nothing of it reaches the store.
pub(crate) struct Seat {
    store: Arc<MemoryStore>,
    muted: AtomicBool,
    life: AtomicU8,
    panics: AtomicU64,
    requests: AtomicU64,
    /// So long after a commit this process hears of it.
    hints_take: Duration,
}

impl Seat {
    fn new(store: &Arc<MemoryStore>, hints_take: Duration) -> Arc<Self> {
        let (muted, life, panics, requests) = (false.into(), LIVES.into(), 0.into(), 0.into());
        Arc::new(Self { store: store.clone(), muted, life, panics, requests, hints_take })
    }

    /// From now on no other process hears what this one commits.
    pub(crate) fn mute(&self) {
        self.muted.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is(&self, life: u8) {
        self.life.store(life, Ordering::SeqCst);
    }

    pub(crate) fn kill(&self) -> Instant {
        self.is(DEAD);
        Instant::now()
    }

    /// So many of the next reads of what is due in flow partitions panic.
    fn panic_when_due(&self, times: u64) {
        self.panics.store(times, Ordering::SeqCst);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    async fn reach(&self, deadly: u8) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        if self.life.load(Ordering::SeqCst) >= deadly {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Store for Seat {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }

    async fn read(&self, partition: Partition, queries: Vec<Query>) -> ff_store::Result<Answers> {
        self.reach(DEAD).await;
        let of_flows = partition.family == Family::Flow;
        let only_due = of_flows && matches!(queries.as_slice(), [Query::Scan(scan)] if scan.index == index::due());
        let less = |left: u64| left.checked_sub(1);
        if only_due && self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            panic!("a defect of the store");
        }
        self.store.read(partition, queries).await
    }

    async fn commit(&self, partition: Partition, batches: Arc<[Batch]>) -> ff_store::Result<Vec<Outcome>> {
        let of_holders = batches.iter().all(|batch| batch.guards.iter().any(|guard| matches!(guard, Guard::Live(_))));
        self.reach(match partition.family {
            Family::Budget | Family::Quota | Family::System => DIES,
            Family::Flow if of_holders => DEAD,
            Family::Flow => OPENS,
        })
        .await;
        let mut batches = batches.to_vec();
        if self.muted.load(Ordering::SeqCst) {
            batches.iter_mut().for_each(|batch| batch.hints.clear());
        }
        self.store.commit(partition, batches.into()).await
    }

    fn watch(&self) -> Hints {
        let mut hints = self.store.watch();
        let (late, hints_take) = (HintSender::default(), self.hints_take);
        let heard = late.subscribe();
        tokio::spawn(async move {
            while let Some(event) = hints.next().await {
                let late = late.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(hints_take).await;
                    late.send(event);
                });
            }
        });
        heard
    }
}

/// One more server on the store of a deployment.
pub(crate) async fn join(h: &Harness) -> (Harness, Arc<Seat>) {
    join_late(h, Duration::ZERO).await
}

/// One more server, which hears of the commits of others this late.
pub(crate) async fn join_late(h: &Harness, hints_take: Duration) -> (Harness, Arc<Seat>) {
    let seat = Seat::new(&h.store, hints_take);
    let env = Arc::new(TokioEnv::current());
    let engine = Engine::start(seat.clone(), env, Options::default()).await.expect("it starts");
    (Harness { engine, store: h.store.clone(), caller: Caller::system() }, seat)
}

/// Two servers that know each other: the one that stays and the one that will be killed.
pub(crate) async fn two_servers() -> (Harness, Harness, Arc<Seat>) {
    let partitions = PartitionConfig { flow: 8, budget: 1, quota: 1 };
    let stays = Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await;
    let (dies, seat) = join(&stays).await;
    stays.pass(5_000).await;
    (stays, dies, seat)
}

async fn flow(h: &Harness) -> FlowId {
    match h.must::<CreateFlow>(json!({ "kind": "test" })).await {
        Created::Created { flow_id, .. } => flow_id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn work_acknowledged_by_a_killed_server_is_claimed_elsewhere_within_five_seconds() {
    let (stays, dies, seat) = two_servers().await;
    seat.mute();
    for _ in 0..5 {
        dies.submit(json!({})).await;
    }
    let killed = seat.kill();
    for _ in 0..5 {
        assert!(stays.claim().await.is_some(), "not claimable after {:?}", killed.elapsed());
    }
    assert!(killed.elapsed() <= PROMISE, "{:?}", killed.elapsed());
    stays.finish().await;
}

#[tokio::test(start_paused = true)]
async fn flows_go_on_within_five_seconds_of_the_kill_of_the_server_that_ended_their_members() {
    let (stays, dies, seat) = two_servers().await;
    let mut endings = Vec::new();
    for _ in 0..4 {
        let flow = flow(&dies).await;
        let first = dies.submit(json!({ "flow_id": flow, "lane": "first" })).await;
        dies.submit(json!({ "flow_id": flow, "dependencies": [{ "upstream": first }] })).await;
        let task = dies.claim_with(json!({ "lanes": ["first"] })).await.expect("the first member");
        endings.push(json!({ "execution_id": task.execution_id, "fence": task.fence }));
    }
    seat.mute();
    seat.is(DIES);
    for args in endings {
        dies.must::<Complete>(args).await;
    }
    let killed = seat.kill();
    for _ in 0..4 {
        assert!(stays.claim().await.is_some(), "no progress after {:?}", killed.elapsed());
    }
    assert!(killed.elapsed() <= PROMISE, "{:?}", killed.elapsed());
    stays.finish().await;
}

#[tokio::test(start_paused = true)]
async fn timers_that_only_a_killed_server_knew_of_fire_within_five_seconds() {
    let (stays, dies, seat) = two_servers().await;
    seat.mute();
    for _ in 0..5 {
        dies.submit(json!({ "delay_until": stays.store.now() + 500 })).await;
    }
    let killed = seat.kill();
    for _ in 0..5 {
        assert!(stays.claim().await.is_some(), "not claimable after {:?}", killed.elapsed());
    }
    assert!(killed.elapsed() <= PROMISE, "{:?}", killed.elapsed());
    stays.finish().await;
}

#[tokio::test(start_paused = true)]
async fn leases_given_by_a_killed_server_are_reclaimed_at_their_expiry() {
    let (stays, dies, seat) = two_servers().await;
    for _ in 0..5 {
        dies.submit(json!({})).await;
    }
    seat.mute();
    let mut expires_at = 0;
    for _ in 0..5 {
        let task = dies.claim_with(json!({ "lease_ttl_ms": 6_000 })).await.expect("the work");
        expires_at = task.lease_expires_at;
    }
    seat.kill();
    for _ in 0..5 {
        assert!(stays.claim().await.is_some(), "not reclaimed at {}", stays.store.now() - expires_at);
    }
    assert!(stays.store.now() <= expires_at + 1_000, "{} ms late", stays.store.now() - expires_at);
    stays.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_at_the_second_try_is_known_to_all() {
    let (stays, trouble) = Harness::with_trouble(Options::default()).await;
    let (dies, seat) = join(&stays).await;
    stays.pass(5_000).await;
    let id = dies.submit(json!({})).await;
    let mut overtaken = false;
    trouble.begin(move |call| match call {
        Call::Commit { partition, .. } if partition == id.partition() && !std::mem::replace(&mut overtaken, true) => {
            Fault::Overtaken(CommandId::default()).into()
        }
        _ => Plan::default(),
    });
    let task = dies.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.expect("the work");
    seat.kill();
    trouble.end();
    stays.claim().await.expect("it is reclaimed");
    let late = stays.store.now() - task.lease_expires_at;
    assert!(late <= 300, "{late} ms late");
    stays.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_killed_server_holds_up_one_timer_of_a_partition_and_not_all() {
    let (stays, _dies, seat) = two_servers().await;
    let now = stays.store.now();
    // Members of a flow are in one partition, in which the other server ranks first or does not.
    for _ in 0..8 {
        let flow = flow(&stays).await;
        for (number, due) in [(0, 300), (1, 900), (2, 1_500)] {
            let lane = number.to_string();
            stays.submit(json!({ "flow_id": flow, "delay_until": now + due, "lane": lane })).await;
        }
    }
    seat.kill();
    for (number, due, late) in [(0, 300, 310), (1, 900, 10), (2, 1_500, 10)] {
        for _ in 0..8 {
            stays.claim_with(json!({ "lanes": [number.to_string()] })).await.expect("the delay ends");
            let lateness = stays.store.now() - now - due;
            assert!(lateness <= late, "{lateness} ms late");
        }
    }
    stays.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_hands_over_at_once() {
    let (stays, dies, seat) = two_servers().await;
    seat.mute();
    dies.submit(json!({})).await;
    seat.muted.store(false, Ordering::SeqCst);
    dies.engine.close().await;
    let stopped = Instant::now();
    assert!(stays.claim().await.is_some());
    assert!(stopped.elapsed() <= Duration::from_millis(100), "{:?}", stopped.elapsed());
    stays.finish().await;
}

#[tokio::test(start_paused = true)]
async fn idle_servers_ask_less_than_once_a_second_each() {
    let (stays, dies, seat) = two_servers().await;
    let (third, third_seat) = join(&stays).await;
    stays.pass(60_000).await;
    let before = (seat.requests(), third_seat.requests());
    let ms = 600_000;
    stays.pass(ms).await;
    for asked in [seat.requests() - before.0, third_seat.requests() - before.1] {
        assert!(asked * 1_000 < ms, "{asked} requests in {ms} ms");
    }
    dies.engine.close().await;
    third.engine.close().await;
    stays.finish().await;
}

#[tokio::test(start_paused = true)]
async fn timers_that_panic_are_started_again_counted_and_shown() {
    let h = Harness::start().await;
    let (other, seat) = join(&h).await;
    h.engine.close().await;
    seat.panic_when_due(2);
    other.submit(json!({ "delay_until": other.store.now() + 100 })).await;
    let (mut down, mut waiting) = (0, other.store.now());
    while other.engine.metrics().service_restarts()["timers"] < 2 {
        down += u64::from(other.engine.services().iter().any(|service| service.name == "timers" && !service.running));
        other.pass(10).await;
        assert!(other.store.now() < waiting + 5_000, "the timers do not panic");
    }
    waiting = other.store.now();
    assert!(down > 0, "a service that waits to be started again is shown");
    assert!(other.claim().await.is_some(), "the timer fires");
    assert!(other.store.now() <= waiting + 1_000);
    assert!(other.engine.services().iter().all(|service| service.running), "{:?}", other.engine.services());
    other.finish().await;
}
