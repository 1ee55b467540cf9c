//! Room that a claim or a call holds while it is on its way: no other may take it for room that is used.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ff_core::index::kind;
use ff_core::op::view::Task;
use ff_core::op::{Claim, Complete, CreateBudget, CreateQuota, GetBudget, GetExecution, ReserveSpend, reserve_spend};
use ff_core::reservation::Reservation;
use ff_core::{Document, ExecutionId, PublicState};
use ff_engine::Options;
use ff_store::memory::{Call, Fault, Plan};
use serde_json::{Value, json};

use crate::support::Harness;

/// How long the commit of the first claim takes.
const SLOW_MS: u64 = 40;

async fn budget(h: &Harness, on_hard: &str) {
    let dimensions = json!({ "tokens": { "hard": 10 } });
    h.must::<CreateBudget>(json!({ "name": "team", "dimensions": dimensions, "on_hard": on_hard })).await;
}

async fn submit(h: &Harness, tokens: i64, more: Value) -> ExecutionId {
    let mut args = json!({ "budget_ids": ["team"], "policy": { "estimate": { "tokens": tokens } } });
    args.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    h.submit(args).await
}

/// Whether a call commits a change of an execution.
fn changes_execution(call: Call<'_>) -> bool {
    match call {
        Call::Commit { batches, .. } => {
            batches.iter().any(|batch| batch.puts.iter().any(|put| put.key.kind() == kind::EXECUTION))
        }
        Call::Read { .. } => false,
    }
}

/// The first commit that changes an execution takes long.
fn first_is_slow() -> impl FnMut(Call<'_>) -> Plan + Send + 'static {
    let seen = AtomicUsize::new(0);
    move |call| {
        if !changes_execution(call) || seen.fetch_add(1, Ordering::SeqCst) > 0 {
            return Plan::default();
        }
        Plan { before: Some(Box::pin(tokio::time::sleep(Duration::from_millis(SLOW_MS)))), ..Plan::default() }
    }
}

/// Claims at two servers at the same time; the second one begins when the first has asked the gates.
async fn claim_at_both(h: &Harness, other: &Harness) -> (Vec<Task>, Vec<Task>) {
    let ask = |worker: &str| json!({ "instance_id": worker, "lanes": ["default"], "wait_ms": 400 });
    let late = async {
        h.pass(SLOW_MS / 4).await;
        other.must::<Claim>(ask("w-2")).await.tasks
    };
    let (first, second) = tokio::join!(h.must::<Claim>(ask("w-1")), late);
    (first.tasks, second)
}

async fn complete(h: &Harness, task: &Task) {
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_the_same_execution_at_another_server_fails_asks_and_parks_nothing() {
    let gates = [
        json!({}),
        json!({ "concurrency": [{ "key": "k", "limit": 1 }] }),
        json!({ "concurrency": [{ "key": "k", "limit": 2 }] }),
        json!({ "quota_policy_id": "one" }),
    ];
    for (action, gate) in
        ["fail", "ask", "suspend", "block"].iter().flat_map(|action| gates.iter().map(move |gate| (*action, gate)))
    {
        let (h, trouble) = Harness::with_trouble(Options::default()).await;
        let other = h.second().await;
        budget(&h, action).await;
        h.must::<CreateQuota>(json!({ "name": "one", "max_concurrent": 1 })).await;
        for round in 0..3 {
            trouble.begin(first_is_slow());
            let id = submit(&h, 6, gate.clone()).await;
            let (tasks, none) = claim_at_both(&h, &other).await;
            trouble.end();
            assert_eq!((tasks.len(), none.len()), (1, 0), "the slow claim is not defeated: {action} {gate} {round}");
            let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
            assert_eq!(
                (shown.public_state, shown.questions.len()),
                (PublicState::Active, 0),
                "{action} {gate} {round}"
            );
            complete(&h, &tasks[0]).await;
            h.pass(100).await;
        }
        other.engine.close().await;
        h.finish().await;
    }
}

/// A claim whose first try takes too long tries others under the same lease id. The room that the first try holds does not
/// decide the fate of those: the caller wanted one task.
#[tokio::test(start_paused = true)]
async fn a_slow_try_of_a_claim_fails_no_execution_that_the_claim_tries_beside_it() {
    for (action, is_applied) in ["fail", "ask", "suspend"].iter().flat_map(|action| [(*action, true), (*action, false)])
    {
        let (h, trouble) = Harness::with_trouble(Options::default()).await;
        budget(&h, action).await;
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(submit(&h, 10, json!({})).await);
        }
        let seen = AtomicUsize::new(0);
        trouble.begin(move |call| {
            if !changes_execution(call) || seen.fetch_add(1, Ordering::SeqCst) > 0 {
                return Plan::default();
            }
            let pause: ff_store::memory::Pause = Box::pin(tokio::time::sleep(Duration::from_millis(400)));
            match is_applied {
                true => Plan { after: Some(pause), ..Plan::default() },
                false => Plan { before: Some(pause), ..Plan::default() },
            }
        });
        let ask = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 5_000 });
        let tasks = h.must::<Claim>(ask.clone()).await.tasks;
        h.pass(100).await;
        trouble.end();
        assert_eq!(tasks.len(), 1, "{action} {is_applied}");
        for id in ids.iter().filter(|id| **id != tasks[0].execution_id) {
            let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
            assert_eq!((shown.public_state, shown.questions.len()), (PublicState::Waiting, 0), "{action} {is_applied}");
        }
        complete(&h, &tasks[0]).await;
        assert_eq!(h.must::<Claim>(ask).await.tasks.len(), 1, "the next one starts: {action} {is_applied}");
        h.finish().await;
    }
}

/// What a claim holds that is on its way does not decide the fate of another execution.
#[tokio::test(start_paused = true)]
async fn room_that_a_claim_holds_on_its_way_fails_no_other_execution() {
    for (action, tokens) in [("fail", 6), ("ask", 6), ("suspend", 6), ("fail", 10), ("ask", 10)] {
        let (h, trouble) = Harness::with_trouble(Options::default()).await;
        let other = h.second().await;
        budget(&h, action).await;
        let first = submit(&h, tokens, json!({ "priority": 9, "lane": "a" })).await;
        let second = submit(&h, 6, json!({ "lane": "b" })).await;
        // The claim of the first is on its way for a while, and is not applied in the end.
        let slow = Arc::new(AtomicUsize::new(0));
        let seen = slow.clone();
        trouble.begin(move |call| {
            if !changes_execution(call) || seen.fetch_add(1, Ordering::SeqCst) > 0 {
                return Plan::default();
            }
            let pause = tokio::time::sleep(Duration::from_millis(SLOW_MS));
            Plan { before: Some(Box::pin(pause)), fault: Some(Fault::Unavailable), ..Plan::default() }
        });
        let ask = |lane: &str, wait_ms: u64| json!({ "instance_id": format!("w-{lane}"), "lanes": [lane], "wait_ms": wait_ms });
        let late = async {
            h.pass(SLOW_MS / 4).await;
            other.must::<Claim>(ask("b", 1_000)).await.tasks
        };
        let (lost, taken) = tokio::join!(h.call::<Claim>(ask("a", 0)), late);
        trouble.end();
        assert!(lost.is_err() || lost.is_ok_and(|lost| lost.tasks.is_empty()), "its store did not answer");
        assert_eq!(
            taken.first().map(|task| task.execution_id),
            Some(second),
            "{action} {tokens}: it starts when the room is back"
        );
        assert_eq!(h.state(&first).await, PublicState::Waiting);
        complete(&h, &taken[0]).await;
        h.pass(12_000).await;
        assert_eq!(h.must::<GetBudget>(json!({ "name": "team" })).await.standing["tokens"].reserved, 0);
        other.engine.close().await;
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn room_that_running_work_holds_is_judged_at_once() {
    for (action, state) in [("fail", PublicState::Failed), ("ask", PublicState::Suspended)] {
        let h = Harness::start().await;
        budget(&h, action).await;
        submit(&h, 6, json!({})).await;
        h.claim().await.expect("6 fit");
        let second = submit(&h, 6, json!({})).await;
        assert!(h.claim().await.is_none(), "4 are left");
        assert_eq!(h.state(&second).await, state);
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_execution_that_its_key_keeps_out_holds_nothing_of_a_budget() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    budget(&h, "fail").await;
    let key = json!({ "concurrency": [{ "key": "k", "limit": 1 }], "lane": "a" });
    h.submit(key.clone()).await;
    let ask = |lane: &str| json!({ "instance_id": "w", "lanes": [lane] });
    assert_eq!(h.must::<Claim>(ask("a")).await.tasks.len(), 1, "it holds the key");
    let held = Arc::new(AtomicUsize::new(0));
    let seen = held.clone();
    submit(&h, 6, key).await;
    trouble.begin(move |call| {
        if let Call::Commit { batches, .. } = call
            && batches.iter().any(|batch| batch.puts.iter().any(|put| put.key.kind() == kind::RESERVATION))
        {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        Plan::default()
    });
    assert!(h.must::<Claim>(ask("a")).await.tasks.is_empty());
    trouble.end();
    assert_eq!(held.load(Ordering::SeqCst), 0, "the key refuses before anything is held");
    h.finish().await;
}

/// A task under these budgets.
async fn task_under(h: &Harness, budgets: &[&str]) -> Task {
    h.submit(json!({ "budget_ids": budgets })).await;
    h.claim().await.expect("nothing is used up")
}

async fn reserve(h: &Harness, task: &Task, key: &str, tokens: i64) -> reserve_spend::Outcome {
    let amounts = json!({ "tokens": tokens });
    let fence = json!(task.fence);
    let call = json!({ "execution_id": task.execution_id, "fence": fence, "key": key, "amounts": amounts });
    h.must::<ReserveSpend>(call).await
}

/// Budgets of ten tokens each.
async fn two_budgets(h: &Harness, on_hard: &str) {
    for name in ["a", "b"] {
        let dimensions = json!({ "tokens": { "hard": 10 } });
        h.must::<CreateBudget>(json!({ "name": name, "dimensions": dimensions, "on_hard": on_hard })).await;
    }
}

async fn held_of(h: &Harness, budget: &str) -> i64 {
    h.must::<GetBudget>(json!({ "name": budget })).await.standing["tokens"].reserved
}

/// Whether a call commits a reservation in this budget.
fn reserves_in(call: Call<'_>, budget: &str) -> bool {
    let Call::Commit { batches, .. } = call else { return false };
    let puts = batches.iter().flat_map(|batch| &batch.puts).filter(|put| put.key.kind() == kind::RESERVATION);
    puts.filter_map(|put| Reservation::decode(&put.body).ok()).any(|one| one.budget == budget)
}

#[tokio::test(start_paused = true)]
async fn amounts_that_one_budget_refuses_are_held_in_no_other() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    two_budgets(&h, "block").await;
    let (both, full) = (task_under(&h, &["a", "b"]).await, task_under(&h, &["b"]).await);
    reserve(&h, &full, "k", 10).await;
    let held = Arc::new(AtomicUsize::new(0));
    let seen = held.clone();
    trouble.begin(move |call| {
        seen.fetch_add(usize::from(reserves_in(call, "a")), Ordering::SeqCst);
        Plan::default()
    });
    let refused = reserve(&h, &both, "k", 10).await;
    trouble.end();
    assert!(matches!(refused, reserve_spend::Outcome::Refused(refusal) if refusal.budget == "b"));
    assert_eq!(held.load(Ordering::SeqCst), 0, "a budget that has no room is asked before others hold anything");
    h.finish().await;
}

/// What a call holds that another budget refuses in the end decides nothing about others.
#[tokio::test(start_paused = true)]
async fn amounts_on_their_way_through_several_budgets_refuse_and_ask_nobody() {
    for (on_hard, claims) in [("block", false), ("ask", false), ("fail", true), ("ask", true)] {
        let (h, trouble) = Harness::with_trouble(Options::default()).await;
        let other = h.second().await;
        two_budgets(&h, on_hard).await;
        let (both, late) = (task_under(&h, &["a", "b"]).await, task_under(&h, &["a"]).await);
        let rival = task_under(&h, &["b"]).await;
        let slow = Arc::new(AtomicUsize::new(0));
        trouble.begin(move |call| {
            if !reserves_in(call, "b") || slow.fetch_add(1, Ordering::SeqCst) > 0 {
                return Plan::default();
            }
            Plan { before: Some(Box::pin(tokio::time::sleep(Duration::from_millis(SLOW_MS)))), ..Plan::default() }
        });
        // Both budgets had room when the first call looked; the rival takes that of the second one meanwhile.
        let rivalry = async {
            h.pass(SLOW_MS / 4).await;
            assert!(matches!(reserve(&other, &rival, "k", 10).await, reserve_spend::Outcome::Reserved { .. }));
            assert_eq!(held_of(&h, "a").await, 10, "the first call is on its way");
            if claims {
                let policy = json!({ "estimate": { "tokens": 10 } });
                let id = h.submit(json!({ "budget_ids": ["a"], "policy": policy })).await;
                let taken = other.claim().await.expect("it starts when the room is back");
                assert_eq!(taken.execution_id, id);
                complete(&other, &taken).await;
                return;
            }
            let outcome = reserve(&other, &late, "k", 10).await;
            assert!(matches!(outcome, reserve_spend::Outcome::Reserved { .. }), "{on_hard}: {outcome:?}");
        };
        let (outcome, ()) = tokio::join!(reserve(&h, &both, "k", 10), rivalry);
        trouble.end();
        assert!(!matches!(outcome, reserve_spend::Outcome::Reserved { .. }), "{on_hard}: {outcome:?}");
        other.engine.close().await;
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn amounts_that_all_budgets_hold_are_judged_at_once() {
    let h = Harness::start().await;
    two_budgets(&h, "block").await;
    let (both, late) = (task_under(&h, &["a", "b"]).await, task_under(&h, &["a"]).await);
    assert!(matches!(reserve(&h, &both, "k", 10).await, reserve_spend::Outcome::Reserved { .. }));
    let before = h.engine.now();
    assert!(matches!(reserve(&h, &late, "k", 1).await, reserve_spend::Outcome::Refused(_)));
    assert!(h.engine.now() - before < 5, "nothing is on its way");
    let status = h.must::<GetBudget>(json!({ "name": "a" })).await;
    assert_eq!(status.refused_count, 1);
    h.finish().await;
}

/// A server that died between two budgets leaves amounts that will never be confirmed.
#[tokio::test(start_paused = true)]
async fn amounts_that_nobody_confirms_count_after_a_while() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    two_budgets(&h, "block").await;
    let (both, late) = (task_under(&h, &["a", "b"]).await, task_under(&h, &["a"]).await);
    trouble.begin(|call| match reserves_in(call, "b") {
        true => Plan { fault: Some(Fault::Unavailable), ..Plan::default() },
        false => Plan::default(),
    });
    let call =
        json!({ "execution_id": both.execution_id, "fence": both.fence, "key": "k", "amounts": { "tokens": 10 } });
    h.call::<ReserveSpend>(call).await.unwrap_err();
    trouble.end();
    assert_eq!(held_of(&h, "a").await, 10);
    assert!(
        matches!(reserve(&h, &late, "k", 1).await, reserve_spend::Outcome::Refused(_)),
        "it waits for no more than a while"
    );
    assert!(
        matches!(reserve(&h, &both, "k", 10).await, reserve_spend::Outcome::Reserved { .. }),
        "a repeat finds them"
    );
    h.finish().await;
}

/// A start that one server counts is not lost when the other has changed the execution since it was read, and what the
/// other took behind a closed gate is not counted again.
#[tokio::test(start_paused = true)]
async fn two_servers_start_as_many_in_each_window_as_the_quota_lets_in() {
    const WINDOW_MS: i64 = 4_000;
    const WINDOWS: usize = 4;
    const STARTS: usize = 6;
    for seed in 0..8 {
        let (h, trouble) = Harness::with_trouble(Options::default()).await;
        let other = h.second().await;
        h.must::<CreateQuota>(json!({ "name": "q", "window_seconds": 4, "max_requests": STARTS })).await;
        let begun = h.engine.now();
        for _ in 0..WINDOWS * STARTS {
            h.submit(json!({ "quota_policy_id": "q" })).await;
        }
        let calls = AtomicUsize::new(seed * 7919);
        trouble.begin(move |_| {
            let number = calls.fetch_add(1, Ordering::SeqCst) as u64;
            let ms = (number.wrapping_mul(2_654_435_761) >> 7) % 9;
            Plan { before: Some(Box::pin(tokio::time::sleep(Duration::from_millis(ms)))), ..Plan::default() }
        });
        let starts = Mutex::new(Vec::new());
        let count = || starts.lock().expect("nobody panicked").len();
        let work = async |server: &Harness, worker: &str| {
            while count() < WINDOWS * STARTS {
                let ask = json!({ "instance_id": worker, "lanes": ["default"], "max_tasks": 3, "wait_ms": 700 });
                for task in server.must::<Claim>(ask).await.tasks {
                    starts.lock().expect("nobody panicked").push(server.engine.now() - begun);
                    complete(server, &task).await;
                }
            }
        };
        tokio::join!(work(&h, "a"), work(&h, "b"), work(&other, "c"), work(&other, "d"));
        trouble.end();
        let windows: Vec<i64> =
            starts.into_inner().expect("nobody panicked").chunks(STARTS).map(|all| all[STARTS - 1]).collect();
        let ends: Vec<i64> = windows.iter().map(|last| last / WINDOW_MS).collect();
        assert_eq!(ends, [0, 1, 2, 3], "{seed}: {windows:?}");
        other.engine.close().await;
        h.finish().await;
    }
}
