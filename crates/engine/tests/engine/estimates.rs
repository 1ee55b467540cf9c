//! Estimates: the amounts that a claim holds in budgets before it starts, and gives back when its lease ends.

use ff_core::op::view::Task;
use ff_core::op::{
    CancelExecution, Claim, Complete, CreateBudget, CreateExecution, CreateQuota, DecideBudget, DeleteBudget,
    DeliverSignal, ExplainExecution, Fail, GetBudget, ListReservations, Reason, ReasonCode, ReportUsage, ReserveSpend,
    ResetBudget, RevokeLease, SetBudgetLimits, SettleSpend, reserve_spend,
};
use ff_core::usage::ReportUsageResult;
use ff_core::{Code, ExecutionId, PublicState};
use serde_json::{Value, json};

use crate::support::Harness;

fn merged(mut args: Value, more: &Value) -> Value {
    args.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    args
}

async fn budget(h: &Harness, hard: i64, more: Value) {
    let args = json!({ "name": "team", "dimensions": { "tokens": { "hard": hard } } });
    h.must::<CreateBudget>(merged(args, &more)).await;
}

async fn submit_with(h: &Harness, tokens: i64, more: Value) -> ExecutionId {
    let policy = json!({ "estimate": { "tokens": tokens }, "retry": { "max_retries": 0 } });
    h.submit(merged(json!({ "budget_ids": ["team"], "policy": policy }), &more)).await
}

async fn submit(h: &Harness, tokens: i64) -> ExecutionId {
    submit_with(h, tokens, json!({})).await
}

fn with(task: &Task, more: Value) -> Value {
    merged(json!({ "execution_id": task.execution_id, "fence": task.fence }), &more)
}

/// The amounts used, held and left.
async fn standing_of(h: &Harness, name: &str) -> (i64, i64, Option<i64>) {
    let tokens = h.must::<GetBudget>(json!({ "name": name })).await.standing.remove("tokens").expect("it has tokens");
    (tokens.used, tokens.reserved, tokens.left)
}

async fn standing(h: &Harness) -> (i64, i64, Option<i64>) {
    standing_of(h, "team").await
}

async fn claim(h: &Harness) -> Option<Task> {
    h.claim_with(json!({ "wait_ms": 1_000 })).await
}

async fn complete(h: &Harness, task: &Task) {
    h.must::<Complete>(with(task, json!({}))).await;
}

async fn why(h: &Harness, id: &ExecutionId) -> Reason {
    h.must::<ExplainExecution>(json!({ "execution_id": id })).await.reasons.remove(0)
}

#[tokio::test(start_paused = true)]
async fn a_claim_holds_its_estimate_and_every_parting_gives_it_back() {
    let h = Harness::start().await;
    budget(&h, 100, json!({})).await;
    for ending in ["complete", "fail", "cancel", "revoke", "expire"] {
        submit(&h, 60).await;
        let task = claim(&h).await.expect("60 fit");
        assert_eq!(standing(&h).await, (0, 60, Some(40)));
        let held = h.must::<ListReservations>(json!({ "name": "team" })).await.items;
        assert_eq!((held.len(), held[0].key.as_str(), held[0].amounts["tokens"]), (1, "estimate", 60));
        match ending {
            "complete" => complete(&h, &task).await,
            "fail" => {
                h.must::<Fail>(with(&task, json!({ "reason": "broke" }))).await;
            }
            "cancel" => {
                h.must::<CancelExecution>(json!({ "execution_id": task.execution_id })).await;
            }
            _ => {
                match ending {
                    "revoke" => drop(h.must::<RevokeLease>(json!({ "execution_id": task.execution_id })).await),
                    _ => h.pass(120_000).await,
                }
                let again = claim(&h).await.expect("it is claimed anew");
                assert_eq!(
                    (again.execution_id, standing(&h).await.1),
                    (task.execution_id, 60),
                    "once, for the new lease"
                );
                complete(&h, &again).await;
            }
        }
        h.pass(100).await;
        assert_eq!(standing(&h).await, (0, 0, Some(100)), "after {ending}");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn one_whose_estimate_does_not_fit_waits_until_it_does() {
    let h = Harness::start().await;
    budget(&h, 100, json!({})).await;
    submit(&h, 60).await;
    let first = claim(&h).await.expect("60 fit");
    let second = submit(&h, 50).await;
    assert!(claim(&h).await.is_none(), "40 are left");
    let reason = why(&h, &second).await;
    assert_eq!(reason.code, ReasonCode::EstimateTooLarge);
    assert_eq!(reason.message, "budget team: 40 of 100 tokens left, its estimate is 50");
    assert_eq!((&reason.details["left"], &reason.details["estimate"]), (&json!(40), &json!(50)));
    assert_eq!(standing(&h).await, (0, 60, Some(40)));
    complete(&h, &first).await;
    assert_eq!(claim(&h).await.expect("it was let in").execution_id, second);
    assert_eq!(standing(&h).await, (0, 50, Some(50)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_fits_only_under_a_higher_limit_holds_up_no_other_and_says_so() {
    let h = Harness::start().await;
    budget(&h, 100, json!({})).await;
    let large = submit_with(&h, 101, json!({ "priority": 9 })).await;
    let small = submit(&h, 70).await;
    h.pass(10).await;
    let none = h.submit(json!({ "budget_ids": ["team"] })).await;
    for expected in [small, none] {
        let task = claim(&h).await.expect("it fits");
        assert_eq!(task.execution_id, expected);
        complete(&h, &task).await;
    }
    let reason = why(&h, &large).await;
    assert!(reason.message.ends_with("its estimate is 101: it fits only under a higher limit"), "{}", reason.message);
    h.must::<SetBudgetLimits>(json!({ "name": "team", "dimensions": { "tokens": { "hard": 101 } } })).await;
    assert_eq!(claim(&h).await.expect("it fits now").execution_id, large);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_are_let_in_one_after_the_other_without_a_pause() {
    let h = Harness::start().await;
    budget(&h, 100, json!({})).await;
    for tokens in [60, 60, 60, 90, 60, 100, 60, 60] {
        submit(&h, tokens).await;
    }
    let claims = json!({ "instance_id": "w", "lanes": ["default"], "max_tasks": 8, "wait_ms": 1_000 });
    for round in 0..8 {
        let mut tasks = h.must::<Claim>(claims.clone()).await.tasks;
        assert_eq!(tasks.len(), 1, "no two of them fit together, round {round}");
        complete(&h, &tasks.remove(0)).await;
    }
    h.pass(100).await;
    assert_eq!(standing(&h).await, (0, 0, Some(100)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn spending_takes_from_the_estimate_first() {
    let h = Harness::start().await;
    budget(&h, 100, json!({})).await;
    submit(&h, 100).await;
    let task = claim(&h).await.expect("100 fit");
    let reserve = with(&task, json!({ "key": "a", "amounts": { "tokens": 30 } }));
    assert!(matches!(h.must::<ReserveSpend>(reserve.clone()).await, reserve_spend::Outcome::Reserved { .. }));
    assert!(matches!(h.must::<ReserveSpend>(reserve).await, reserve_spend::Outcome::Reserved { .. }), "the same again");
    assert_eq!(standing(&h).await, (0, 100, Some(0)), "30 for the call, 70 of the estimate");
    h.must::<SettleSpend>(with(&task, json!({ "key": "a", "actual": { "tokens": 20 } }))).await;
    assert_eq!(standing(&h).await, (20, 70, Some(10)));
    let report = h.must::<ReportUsage>(with(&task, json!({ "usage": { "tokens": 50 } }))).await;
    assert_eq!((report.budgets["team"].clone(), standing(&h).await), (ReportUsageResult::Ok, (70, 20, Some(10))));
    let too_much = with(&task, json!({ "key": "b", "amounts": { "tokens": 31 } }));
    let reserve_spend::Outcome::Refused(refusal) = h.must::<ReserveSpend>(too_much).await else {
        panic!("31 do not fit");
    };
    assert_eq!((refusal.left, standing(&h).await), (30, (70, 20, Some(10))), "a refusal takes nothing");
    complete(&h, &task).await;
    h.pass(100).await;
    assert_eq!(standing(&h).await, (70, 0, Some(30)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_estimate_lasts_as_long_as_its_lease_and_stays_with_the_window_that_held_it() {
    let h = Harness::start().await;
    budget(&h, 100, json!({})).await;
    submit(&h, 60).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 3_600_000 })).await.expect("60 fit");
    h.pass(30 * 60_000).await;
    assert_eq!(standing(&h).await, (0, 60, Some(40)));
    h.must::<ResetBudget>(json!({ "name": "team" })).await;
    assert_eq!(standing(&h).await, (0, 0, Some(100)));
    h.must::<ReportUsage>(with(&task, json!({ "usage": { "tokens": 50 } }))).await;
    assert_eq!(standing(&h).await, (50, 0, Some(50)));
    complete(&h, &task).await;
    h.pass(100).await;
    let status = h.must::<GetBudget>(json!({ "name": "team" })).await;
    assert!(status.previous_window.expect("it was reset").reserved.is_empty());
    assert_eq!(standing(&h).await, (50, 0, Some(50)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_holds_the_estimate_and_a_lapse_gives_it_back() {
    let h = Harness::start().await;
    budget(&h, 100, json!({})).await;
    submit(&h, 60).await;
    let args = json!({ "instance_id": "w", "lanes": ["default"], "mode": "grant" });
    assert_eq!(h.must::<Claim>(args).await.grants.len(), 1);
    assert_eq!(standing(&h).await, (0, 60, Some(40)));
    h.pass(5_100).await;
    assert_eq!(standing(&h).await, (0, 0, Some(100)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_another_gate_refuses_holds_nothing() {
    let h = Harness::start().await;
    budget(&h, 100, json!({})).await;
    h.must::<CreateBudget>(json!({ "name": "other", "dimensions": { "tokens": { "hard": 50 } } })).await;
    h.must::<CreateQuota>(json!({ "name": "one", "max_concurrent": 1 })).await;
    submit_with(&h, 60, json!({ "budget_ids": ["team", "other"] })).await;
    assert!(claim(&h).await.is_none());
    h.submit(json!({ "quota_policy_id": "one" })).await;
    let first = claim(&h).await.expect("the quota is free");
    submit_with(&h, 60, json!({ "quota_policy_id": "one" })).await;
    assert!(claim(&h).await.is_none());
    assert_eq!((standing(&h).await, standing_of(&h, "other").await), ((0, 0, Some(100)), (0, 0, Some(50))));
    complete(&h, &first).await;
    assert!(claim(&h).await.is_some());
    assert_eq!(standing(&h).await, (0, 60, Some(40)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn every_budget_of_a_tree_holds_the_estimate() {
    let h = Harness::start().await;
    let template = json!({ "dimensions": { "tokens": { "hard": 40 } } });
    budget(&h, 200, json!({ "per": "tag:customer", "template": template })).await;
    submit_with(&h, 30, json!({ "tags": { "customer": "a" } })).await;
    h.pass(10).await;
    let waits = submit_with(&h, 30, json!({ "tags": { "customer": "a" } })).await;
    let never = submit_with(&h, 41, json!({ "tags": { "customer": "c" } })).await;
    submit_with(&h, 30, json!({ "tags": { "customer": "b" } })).await;
    let (first, second) = (claim(&h).await.expect("a has room"), claim(&h).await.expect("b has room"));
    assert!(claim(&h).await.is_none());
    assert_eq!((standing(&h).await, standing_of(&h, "team/a").await), ((0, 60, Some(140)), (0, 30, Some(10))));
    assert_eq!(why(&h, &waits).await.details["budget"], json!("team/a"));
    assert_eq!(why(&h, &never).await.details["budget"], json!("team/c"));
    complete(&h, &first).await;
    assert_eq!(claim(&h).await.expect("a has room again").execution_id, waits);
    complete(&h, &second).await;
    h.pass(100).await;
    assert_eq!((standing(&h).await, standing_of(&h, "team/a").await), ((0, 30, Some(170)), (0, 30, Some(10))));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_budget_holds_up_neither_the_end_nor_the_timer_of_an_estimate() {
    let h = Harness::start().await;
    budget(&h, 100, json!({})).await;
    submit(&h, 60).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 600_000 })).await.expect("60 fit");
    h.must::<DeleteBudget>(json!({ "name": "team", "force": true })).await;
    h.pass(60_000).await;
    complete(&h, &task).await;
    h.pass(100).await;
    budget(&h, 100, json!({})).await;
    assert_eq!(standing(&h).await, (0, 0, Some(100)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_asks_does_so_for_an_estimate_too() {
    let h = Harness::start().await;
    budget(&h, 100, json!({ "on_hard": "ask" })).await;
    let granted = submit(&h, 101).await;
    assert!(claim(&h).await.is_none());
    let question = h.must::<GetBudget>(json!({ "name": "team" })).await.question.expect("people are asked");
    assert_eq!((question.requested, question.left), (101, 100));
    assert_eq!(h.state(&granted).await, PublicState::Suspended);
    let early = h.must::<DeliverSignal>(json!({ "execution_id": granted, "name": "later", "payload": 2 })).await;
    assert_eq!(serde_json::to_value(&early).unwrap()["effect"], "buffered", "a signal for a later wait is kept");
    h.must::<DecideBudget>(json!({ "name": "team", "answer": "grant", "amounts": { "tokens": 10 } })).await;
    let task = claim(&h).await.expect("110 are the limit");
    assert_eq!((task.execution_id, standing(&h).await), (granted, (0, 101, Some(9))));
    complete(&h, &task).await;
    let declined = submit(&h, 111).await;
    assert!(claim(&h).await.is_none());
    h.must::<DecideBudget>(json!({ "name": "team", "answer": "no" })).await;
    let task = claim(&h).await;
    assert_eq!((task.map(|task| task.execution_id), h.state(&declined).await), (None, PublicState::Failed));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_estimate_out_of_bounds_is_refused() {
    let h = Harness::start().await;
    let many: serde_json::Map<String, Value> = (0..33).map(|n| (format!("d{n}"), json!(1))).collect();
    for estimate in
        [json!({ "tokens": -1 }), json!({ "tokens": 1_000_000_000_000_001_i64 }), json!({ "": 1 }), json!(many)]
    {
        let args = json!({ "kind": "test", "policy": { "estimate": estimate } });
        assert_eq!(h.refused::<CreateExecution>(args).await, Code::Invalid);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn estimates_that_end_one_after_another_let_in_as_many_as_fit() {
    let h = Harness::start().await;
    budget(&h, 4, json!({})).await;
    for _ in 0..6 {
        submit(&h, 2).await;
    }
    let all = json!({ "instance_id": "w", "lanes": ["default"], "max_tasks": 6, "wait_ms": 0 });
    let held = h.must::<Claim>(all.clone()).await.tasks;
    assert_eq!(held.len(), 2);
    for task in &held {
        complete(&h, task).await;
    }
    let began = h.engine.now();
    let mut left = 4;
    while left > 0 {
        let waiting = merged(all.clone(), &json!({ "wait_ms": 10_000 }));
        let tasks = h.must::<Claim>(waiting).await.tasks;
        assert!(!tasks.is_empty(), "{left} wait although nothing is held");
        for task in &tasks {
            complete(&h, task).await;
        }
        left -= tasks.len();
    }
    assert!(h.engine.now() - began < 3_000, "after {} ms", h.engine.now() - began);
    h.finish().await;
}
