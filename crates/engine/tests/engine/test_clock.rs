//! Time that passes only when a test says so.

use std::sync::Arc;

use ff_core::op::{
    AdvanceTestClock, Claim, Complete, CreateQuota, GetExecution, GetTestClock, TestClockView, WaitUntilIdle,
    WaitUntilIdleOutcome,
};
use ff_core::{Code, ExecutionId, PublicState};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options, TestClock};
use ff_store::memory::MemoryStore;
use serde_json::json;

use crate::support::{Harness, START};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

async fn start() -> Harness {
    let clock = TestClock::starting_at(START);
    let store = Arc::new(MemoryStore::with_clock(clock.source()));
    let options = Options { test_clock: Some(clock), ..Options::default() };
    let engine = Engine::start(store.clone(), Arc::new(TokioEnv::current()), options).await.expect("it starts");
    Harness { engine, store, caller: Caller::system() }
}

async fn advance(it: &Harness, advance_ms: i64) -> TestClockView {
    it.must::<AdvanceTestClock>(json!({ "advance_ms": advance_ms })).await
}

async fn look(it: &Harness) -> WaitUntilIdleOutcome {
    it.must::<WaitUntilIdle>(json!({ "timeout_ms": 0 })).await
}

async fn claim_now(it: &Harness) -> Option<ff_core::op::view::Task> {
    it.must::<Claim>(json!({ "instance_id": "w-1", "lanes": ["default"] })).await.tasks.pop()
}

async fn complete(it: &Harness, id: ExecutionId, fence: ff_core::lease::LeaseFence) {
    it.must::<Complete>(json!({ "execution_id": id, "fence": fence })).await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_an_instant_waits_until_the_clock_is_moved() {
    let it = start().await;
    let id = it.submit(json!({ "delay_until": START + HOUR })).await;
    // However long the process waits, no time passes.
    it.pass(7_200_000).await;
    let clock = it.must::<GetTestClock>(json!({})).await;
    assert_eq!((clock.now, clock.next_due_at, clock.due), (START, Some(START + HOUR), 0));
    assert_eq!(advance(&it, 59 * MINUTE).await.now, START + 59 * MINUTE);
    assert_eq!(it.state(&id).await, PublicState::Delayed);
    advance(&it, MINUTE).await;
    assert_eq!(it.state(&id).await, PublicState::Waiting);
    it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_leap_stops_at_every_instant_on_its_way() {
    let it = start().await;
    let id = it.submit(json!({ "delay_until": START + HOUR, "deadline_at": START + 2 * HOUR })).await;
    let clock = advance(&it, 3 * HOUR).await;
    assert_eq!((clock.now, clock.due), (START + 3 * HOUR, 0));
    let view = it.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!((view.public_state, view.completed_at), (PublicState::Expired, Some(START + 2 * HOUR)));
    it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_by_the_clock_and_never_by_itself() {
    let it = start().await;
    let id = it.submit(json!({})).await;
    assert_eq!(look(&it).await.claimable, 1);
    let task = claim_now(&it).await.expect("it waits");
    it.pass(3_600_000).await;
    assert_eq!(it.state(&id).await, PublicState::Active);
    let seen = look(&it).await;
    assert_eq!((seen.idle, seen.leased, seen.claimable), (false, 1, 0));
    advance(&it, 30_000).await;
    assert_eq!(it.state(&id).await, PublicState::Waiting);
    let again = claim_now(&it).await.expect("it is reclaimed");
    assert_ne!(again.fence, task.fence);
    complete(&it, id, again.fence).await;
    assert!(look(&it).await.idle);
    it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_until_idle_ends_with_the_last_task_and_not_before() {
    let it = start().await;
    let id = it.submit(json!({})).await;
    let task = claim_now(&it).await.expect("it waits");
    let (idle, ()) = tokio::join!(it.must::<WaitUntilIdle>(json!({})), async {
        it.pass(1_000).await;
        complete(&it, id, task.fence).await;
    });
    assert!(idle.idle, "{idle:?}");
    assert_eq!(it.state(&id).await, PublicState::Completed);
    it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_quota_holds_back_is_not_claimable_until_its_window_has_passed() {
    let it = start().await;
    it.must::<CreateQuota>(json!({ "name": "q", "window_seconds": 60, "max_requests": 1 })).await;
    for _ in 0..3 {
        it.submit(json!({ "quota_policy_id": "q" })).await;
    }
    for round in 0..3 {
        let task = claim_now(&it).await.unwrap_or_else(|| panic!("nothing in round {round}"));
        complete(&it, task.execution_id, task.fence).await;
        assert!(claim_now(&it).await.is_none());
        assert!(look(&it).await.idle, "round {round}: {:?}", look(&it).await);
        advance(&it, 2 * MINUTE).await;
    }
    it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_past_its_retention_is_gone_after_a_leap() {
    let it = start().await;
    let id = it.submit(json!({})).await;
    let task = claim_now(&it).await.expect("it waits");
    complete(&it, id, task.fence).await;
    advance(&it, 8 * 24 * HOUR).await;
    assert_eq!(it.refused::<GetExecution>(json!({ "execution_id": id })).await, Code::ExecutionNotFound);
    it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_without_a_test_clock_says_so_and_a_clock_does_not_go_back() {
    let it = Harness::start().await;
    assert_eq!(it.refused::<GetTestClock>(json!({})).await, Code::NoTestClock);
    assert_eq!(it.refused::<AdvanceTestClock>(json!({ "advance_ms": 1 })).await, Code::NoTestClock);
    assert_eq!(it.refused::<WaitUntilIdle>(json!({})).await, Code::NoTestClock);
    it.finish().await;
    let it = start().await;
    for wrong in [-1, ff_core::limits::TEST_CLOCK_ADVANCE_MAX_MS + 1] {
        assert_eq!(it.refused::<AdvanceTestClock>(json!({ "advance_ms": wrong })).await, Code::Invalid);
    }
    it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_leap_leaves_workers_the_time_to_do_what_comes_due_on_its_way() {
    let it = start().await;
    let id = it.submit(json!({ "delay_until": START + MINUTE })).await;
    let working = async {
        let task = it.claim().await.expect("it becomes claimable");
        // Work takes real time, in which the clock would pass the lease.
        it.pass(200).await;
        complete(&it, task.execution_id, task.fence).await;
        task.fence.epoch.0
    };
    let (epoch, _) = tokio::join!(working, advance(&it, HOUR));
    assert_eq!((epoch, it.state(&id).await), (1, PublicState::Completed));
    // A worker that does nothing is left behind after a while.
    let idle = it.submit(json!({ "delay_until": START + HOUR + MINUTE })).await;
    let (held, _) = tokio::join!(it.claim(), advance(&it, HOUR));
    let lost = json!({ "execution_id": idle, "fence": held.expect("it becomes claimable").fence });
    assert_eq!(it.refused::<Complete>(lost).await, Code::LeaseExpired);
    it.finish().await;
}
