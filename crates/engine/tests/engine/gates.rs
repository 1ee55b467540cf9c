//! Gates, budgets and quotas alike, where things go wrong or come together: how many an opened gate lets in, what a
//! crashed claim leaves behind, what cannot be read, and what another engine opened.

use std::time::Duration;

use crate::support::{Harness, START};
use ff_core::op::view::Task;
use ff_core::op::{
    Complete, CreateBudget, CreateQuota, GetExecution, GetQuota, HoldExecution, ReleaseExecution, ReportBudgetUsage,
    ResetBudget, SetBudgetLimits,
};
use ff_core::{EligibilityState, ExecutionId, Family, PartitionConfig, PublicState, index};
use ff_engine::Options;
use ff_store::memory::{Call, Fault, Plan};
use serde_json::{Value, json};

fn single() -> Options {
    Options { partitions: Some(PartitionConfig::SINGLE), ..Options::default() }
}

async fn claim_now(h: &Harness) -> Option<Task> {
    h.claim_with(json!({ "wait_ms": 0 })).await
}

async fn complete(h: &Harness, task: &Task) {
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
}

/// A budget with this hard limit, all of it used.
async fn used_up(h: &Harness, name: &str, hard: i64) {
    h.must::<CreateBudget>(json!({ "name": name, "dimensions": { "tokens": { "hard": hard } } })).await;
    h.must::<ReportBudgetUsage>(json!({ "name": name, "usage": { "tokens": hard } })).await;
}

async fn reset(h: &Harness, name: &str) {
    h.must::<ResetBudget>(json!({ "name": name })).await;
}

/// How many executions are parked on a gate.
fn parked(h: &Harness, gate: &str) -> usize {
    let blocked = index::blocked("default", gate);
    h.store.inspect(|contents| {
        let count = |(_, contents): (_, &ff_store::memory::PartitionContents)| {
            contents.entries().filter(|(index, ..)| **index == blocked).count()
        };
        contents.partitions().map(count).sum()
    })
}

/// Parks executions that all wait for one gate, each with an open budget of its own, so that each is examined.
async fn park_many(h: &Harness, count: usize, more: Value) {
    for number in 0..count {
        let own = format!("own-{number}");
        h.must::<CreateBudget>(json!({ "name": own, "dimensions": { "tokens": { "hard": 1 } } })).await;
        let mut args = more.clone();
        let budgets = args.as_object_mut().unwrap().entry("budget_ids").or_insert(json!([]));
        budgets.as_array_mut().unwrap().push(json!(own));
        h.submit(args).await;
    }
    assert!(claim_now(h).await.is_none());
}

async fn quota(h: &Harness, max_concurrent: u32) {
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": max_concurrent })).await;
}

async fn in_use(h: &Harness) -> u32 {
    h.must::<GetQuota>(json!({ "name": "q" })).await.in_use
}

/// Whether this commit takes a lease or a grant, or changes an execution at all.
fn changes_work(call: &Call<'_>) -> bool {
    matches!(call, Call::Commit { partition, .. } if partition.family == Family::Flow)
}

fn concerns(call: &Call<'_>, family: Family) -> bool {
    let (Call::Read { partition, .. } | Call::Commit { partition, .. }) = call;
    partition.family == family
}

async fn eligibility(h: &Harness, id: &ExecutionId) -> EligibilityState {
    h.must::<GetExecution>(json!({ "execution_id": id })).await.state.eligibility_state
}

#[tokio::test(start_paused = true)]
async fn what_is_held_and_blocked_runs_only_when_neither_holds_it() {
    for reset_first in [true, false] {
        let h = Harness::start().await;
        used_up(&h, "team", 5).await;
        let id = h.submit(json!({ "budget_ids": ["team"] })).await;
        assert!(claim_now(&h).await.is_none());
        h.must::<HoldExecution>(json!({ "execution_id": id, "reason": "look first" })).await;
        assert_eq!(eligibility(&h, &id).await, EligibilityState::BlockedByOperator);
        if reset_first {
            reset(&h, "team").await;
            assert!(claim_now(&h).await.is_none(), "the operator holds it");
            let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
            assert_eq!(view.blocking_detail.as_deref(), Some("look first"));
            h.must::<ReleaseExecution>(json!({ "execution_id": id })).await;
        } else {
            h.must::<ReleaseExecution>(json!({ "execution_id": id })).await;
            assert!(claim_now(&h).await.is_none(), "the budget holds it");
            let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
            assert_eq!(view.state.eligibility_state, EligibilityState::BlockedByBudget);
            assert_eq!(view.blocking_detail.as_deref(), Some("budget team"));
            reset(&h, "team").await;
        }
        assert_eq!(eligibility(&h, &id).await, EligibilityState::EligibleNow);
        assert_eq!(claim_now(&h).await.unwrap().execution_id, id);
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_one_takes_nobodys_place_when_its_gate_opens() {
    let h = Harness::start().await;
    used_up(&h, "team", 1).await;
    h.must::<CreateBudget>(json!({ "name": "wide", "dimensions": { "tokens": { "hard": 9 } } })).await;
    let held = h.submit(json!({ "budget_ids": ["team"], "priority": 9 })).await;
    let waits = h.submit(json!({ "budget_ids": ["team", "wide"] })).await;
    assert!(claim_now(&h).await.is_none());
    assert_eq!(parked(&h, "b:team"), 2);
    h.must::<HoldExecution>(json!({ "execution_id": held })).await;
    reset(&h, "team").await;
    assert_eq!(claim_now(&h).await.expect("there is room for one").execution_id, waits);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_or_a_raised_limit_lets_in_no_more_than_can_run() {
    for raise in [false, true] {
        for options in [single(), Options::default()] {
            let h = Harness::with(options).await;
            used_up(&h, "team", 5).await;
            park_many(&h, 100, json!({ "budget_ids": ["team"] })).await;
            assert_eq!(parked(&h, "b:team"), 100);
            if raise {
                let limits = json!({ "name": "team", "dimensions": { "tokens": { "hard": 75 } } });
                h.must::<SetBudgetLimits>(limits).await;
                assert_eq!(parked(&h, "b:team"), 30, "70 more are free, over more than one commit");
            } else {
                reset(&h, "team").await;
                assert_eq!(parked(&h, "b:team"), 95);
                for _ in 0..5 {
                    complete(&h, &claim_now(&h).await.unwrap()).await;
                }
                reset(&h, "team").await;
                assert_eq!(parked(&h, "b:team"), 90, "the gate remembers what it left");
            }
            h.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_freed_slot_lets_in_one() {
    let h = Harness::start().await;
    quota(&h, 3).await;
    let mut running = Vec::new();
    for _ in 0..3 {
        h.submit(json!({ "quota_policy_id": "q" })).await;
        running.push(claim_now(&h).await.unwrap());
    }
    park_many(&h, 20, json!({ "quota_policy_id": "q" })).await;
    assert_eq!(parked(&h, "q:q"), 20);
    for left in [19, 18] {
        complete(&h, &running.pop().unwrap()).await;
        h.pass(5).await;
        assert_eq!(parked(&h, "q:q"), left);
        assert!(claim_now(&h).await.is_some());
        assert!(claim_now(&h).await.is_none());
    }
    assert_eq!((in_use(&h).await, parked(&h, "q:q")), (3, 18));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_a_claim_that_was_lost_is_freed_when_it_can_no_longer_come() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    quota(&h, 1).await;
    let lost = h.submit(json!({ "quota_policy_id": "q", "priority": 1 })).await;
    let mut claim = None;
    trouble.begin(move |call| {
        let Call::Commit { batches, .. } = &call else { return Plan::default() };
        // However often it is sent, this one never arrives.
        let lost = changes_work(&call) && *claim.get_or_insert(batches[0].command) == batches[0].command;
        if lost { Fault::LostRequest.into() } else { Plan::default() }
    });
    let args = json!({ "instance_id": "w-1", "lanes": ["default"] });
    let claim = tokio::time::timeout(Duration::from_secs(2), h.call::<ff_core::op::Claim>(args)).await;
    assert!(!matches!(&claim, Ok(Ok(outcome)) if !outcome.tasks.is_empty()), "{claim:?}");
    assert_eq!(in_use(&h).await, 1, "whether the claim came is not known");
    let task = h.claim_with(json!({ "wait_ms": 30_000 })).await.expect("it runs when the slot is free again");
    assert_eq!(task.execution_id, lost);
    complete(&h, &task).await;
    h.pass(15_000).await;
    assert_eq!(in_use(&h).await, 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_comes_too_late_for_its_slot_does_not_come_at_all() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    quota(&h, 1).await;
    let id = h.submit(json!({ "quota_policy_id": "q" })).await;
    let mut first = true;
    trouble.begin(move |call| {
        let late = changes_work(&call) && std::mem::take(&mut first);
        let pause = late.then(|| Box::pin(tokio::time::sleep(Duration::from_millis(11_000))) as _);
        Plan { before: pause, ..Plan::default() }
    });
    let task = h.claim_with(json!({ "wait_ms": 30_000, "lease_ttl_ms": 60_000 })).await.expect("it runs in the end");
    trouble.end();
    assert_eq!(task.execution_id, id);
    assert_eq!((task.fence.attempt.0, task.fence.epoch.0), (0, 1), "the late claim left no trace");
    assert!(h.engine.now() >= START + 11_000, "it ran at {}", h.engine.now() - START);
    assert_eq!(in_use(&h).await, 1);
    complete(&h, &task).await;
    h.pass(15_000).await;
    assert_eq!(in_use(&h).await, 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_depends_on_an_unreadable_gate_is_passed_over_and_claimed_later() {
    for family in [Family::Budget, Family::Quota] {
        let (h, trouble) = Harness::with_trouble(single()).await;
        h.must::<CreateBudget>(json!({ "name": "b", "dimensions": { "tokens": { "hard": 1 } } })).await;
        quota(&h, 1).await;
        let gated = match family {
            Family::Budget => h.submit(json!({ "budget_ids": ["b"], "priority": 9 })).await,
            _ => h.submit(json!({ "quota_policy_id": "q", "priority": 9 })).await,
        };
        let free = h.submit(json!({})).await;
        trouble.begin(move |call| if concerns(&call, family) { Fault::Unavailable.into() } else { Plan::default() });
        assert_eq!(claim_now(&h).await.expect("nothing keeps this one").execution_id, free, "{family:?}");
        assert!(claim_now(&h).await.is_none(), "{family:?}");
        assert_eq!(h.state(&gated).await, PublicState::Waiting, "nothing refused it ({family:?})");
        trouble.end();
        let began = h.engine.now();
        assert_eq!(h.claim().await.unwrap().execution_id, gated, "{family:?}");
        let waited = h.engine.now() - began;
        assert!(waited <= 2_000, "{family:?}: it ran after {waited} ms");
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_engine_opens_the_claimers_of_another_notice_at_once() {
    for by_quota in [false, true] {
        let a = Harness::start().await;
        let b = a.second().await;
        used_up(&a, "team", 2).await;
        quota(&a, 1).await;
        let (args, running) = if by_quota {
            a.submit(json!({ "quota_policy_id": "q" })).await;
            (json!({ "quota_policy_id": "q" }), Some(claim_now(&a).await.unwrap()))
        } else {
            (json!({ "budget_ids": ["team"] }), None)
        };
        let parked_one = a.submit(args.clone()).await;
        a.pass(1).await;
        let queued_one = a.submit(args).await;
        let (taken, opened_at) = tokio::join!(b.claim_with(json!({ "wait_ms": 20_000 })), async {
            a.pass(3_000).await;
            assert_eq!(a.state(&parked_one).await, PublicState::RateLimited);
            assert_eq!(a.state(&queued_one).await, PublicState::Waiting, "only what was examined is parked");
            match &running {
                Some(task) => complete(&a, task).await,
                None => reset(&a, "team").await,
            }
            a.engine.now()
        });
        assert!(taken.is_some());
        let waited = b.engine.now() - opened_at;
        assert!(waited <= 10, "it took {waited} ms (by quota: {by_quota})");
        b.engine.close().await;
        a.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claimer_that_goes_away_half_way_leaves_nothing_in_the_way() {
    for (family, commits) in [(Family::Flow, false), (Family::Flow, true), (Family::Quota, true)] {
        let (h, trouble) = Harness::with_trouble(single()).await;
        quota(&h, 1).await;
        let id = h.submit(json!({ "quota_policy_id": "q" })).await;
        // An engine that has nothing in memory, so that it reads the queue.
        let other = h.second().await;
        other.pass(1_000).await;
        trouble.begin(move |call| {
            let slow = concerns(&call, family) && matches!(call, Call::Commit { .. }) == commits;
            let pause = slow.then(|| Box::pin(tokio::time::sleep(Duration::from_millis(500))) as _);
            Plan { before: pause, ..Plan::default() }
        });
        let gone = tokio::time::timeout(Duration::from_millis(100), other.claim()).await;
        assert!(gone.is_err(), "it was to go away in the middle");
        other.pass(3_000).await;
        trouble.end();
        let began = other.engine.now();
        let task = other.claim().await.unwrap_or_else(|| panic!("{family:?} {commits}: it is nobody's"));
        assert_eq!(task.execution_id, id);
        let waited = other.engine.now() - began;
        assert!(waited <= 10, "{family:?} {commits}: it was in hand after {waited} ms");
        assert_eq!(in_use(&h).await, 1);
        other.engine.close().await;
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_opens_while_a_claim_goes_on_is_read_again() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    h.must::<CreateBudget>(json!({ "name": "b", "dimensions": { "tokens": { "hard": 1 } } })).await;
    h.must::<ReportBudgetUsage>(json!({ "name": "b", "usage": { "tokens": 1 } })).await;
    let id = h.submit(json!({ "budget_ids": ["b"] })).await;
    // The claim has read the budget as used up; by the time it has parked the work the budget is open.
    trouble.begin(|call| {
        let slow = matches!(call, Call::Commit { partition, .. } if partition.family == ff_core::Family::Flow);
        let pause = || Box::pin(tokio::time::sleep(std::time::Duration::from_millis(50))) as ff_store::memory::Pause;
        Plan { before: slow.then(pause), ..Default::default() }
    });
    let claim = tokio::time::timeout(std::time::Duration::from_secs(5), h.claim());
    let (taken, ()) = tokio::join!(claim, async {
        h.pass(10).await;
        h.must::<ResetBudget>(json!({ "name": "b" })).await;
    });
    trouble.end();
    let taken = taken.expect("the claim does not go round in circles");
    assert_eq!(taken.map(|task| task.execution_id), Some(id));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_opens_is_not_run_against_by_all_who_wait() {
    let options = Options { partitions: Some(PartitionConfig { flow: 8, budget: 1, quota: 1 }), ..Options::default() };
    let (h, trouble) = Harness::with_trouble(options).await;
    let h = std::sync::Arc::new(h);
    quota(&h, 1).await;
    for _ in 0..64 {
        h.submit(json!({ "quota_policy_id": "q" })).await;
    }
    let mut running = claim_now(&h).await.unwrap();
    assert!(claim_now(&h).await.is_none(), "the quota is full");
    let waiting = |number| {
        let h = h.clone();
        let args = json!({ "instance_id": format!("w-{number}"), "lanes": ["default"], "wait_ms": 30_000 });
        tokio::spawn(async move { h.must::<ff_core::op::Claim>(args).await.tasks.pop() })
    };
    let mut workers: Vec<_> = (0..32).map(waiting).collect();
    h.pass(10).await;
    let commits = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = commits.clone();
    trouble.begin(move |call| {
        if matches!(call, Call::Commit { .. }) {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        Plan::default()
    });
    for round in 0..8 {
        let before = commits.load(std::sync::atomic::Ordering::SeqCst);
        complete(&h, &running).await;
        let (task, _, rest) = futures_util::future::select_all(workers).await;
        workers = rest;
        running = task.unwrap().expect("the freed slot is taken");
        h.pass(100).await;
        // The end, the slot given back, what was parked, the claim with its slot, and one that finds the quota full.
        let cost = commits.load(std::sync::atomic::Ordering::SeqCst) - before;
        assert!(cost <= 12, "{cost} commits in round {round}");
    }
    workers.iter().for_each(tokio::task::JoinHandle::abort);
    trouble.end();
    h.check();
    h.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_whose_name_has_commas_opens_like_any_other() {
    let h = Harness::start().await;
    for name in ["a,b", "x,b:y"] {
        used_up(&h, name, 1).await;
        let ids = [h.submit(json!({ "budget_ids": [name] })).await, h.submit(json!({ "budget_ids": [name] })).await];
        assert!(claim_now(&h).await.is_none());
        // Another engine opens it, and its hint names the gate.
        let other = h.second().await;
        h.pass(1_000).await;
        reset(&other, name).await;
        h.pass(100).await;
        for _ in ids {
            let task = h.claim_with(json!({ "wait_ms": 500 })).await.expect("the gate is open");
            complete(&h, &task).await;
        }
        other.engine.close().await;
    }
    h.finish().await;
}
