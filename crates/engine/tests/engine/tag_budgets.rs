//! Children of budgets by tag: made by their first use, charged beside what they stand under, gone when idle.

use ff_core::op::view::Task;
use ff_core::op::{
    Complete, CreateBudget, DecideBudget, DeleteBudget, ExplainExecution, GetBudget, GetBudgetTree, GetExecution,
    ListReservations, ReleaseSpend, ReportBudgetUsage, ReportUsage, ReserveSpend, SetBudgetLimits, SettleSpend,
    UpdateBudget, reserve_spend,
};
use ff_core::usage::ReportUsageResult;
use ff_core::{Code, PublicState};
use serde_json::{Value, json};

use crate::support::Harness;

const HOUR_MS: u64 = 3_600_000;

/// A budget of 1,000 with children of their own for each customer.
async fn acme(h: &Harness, each: Value) {
    let template = each.as_object().cloned().expect("an object");
    let args = json!({ "name": "acme", "dimensions": { "tokens": { "hard": 1_000 } }, "per": "tag:customer",
        "template": template });
    h.must::<CreateBudget>(args).await;
}

fn hundred() -> Value {
    json!({ "dimensions": { "tokens": { "hard": 100 } } })
}

async fn task_of(h: &Harness, customer: &str) -> Task {
    let id = h.submit(json!({ "budget_ids": ["acme"], "tags": { "customer": customer } })).await;
    let task = h.claim().await.expect("it may start");
    assert_eq!(task.execution_id, id);
    task
}

fn with(task: &Task, more: Value) -> Value {
    let mut args = json!({ "execution_id": task.execution_id, "fence": task.fence });
    args.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    args
}

async fn reserve(h: &Harness, task: &Task, key: &str, tokens: i64) -> reserve_spend::Outcome {
    h.must::<ReserveSpend>(with(task, json!({ "key": key, "amounts": { "tokens": tokens } }))).await
}

async fn report(h: &Harness, task: &Task, tokens: i64) -> ReportUsageResult {
    let answer = h.must::<ReportUsage>(with(task, json!({ "usage": { "tokens": tokens } }))).await;
    answer.budgets["acme"].clone()
}

/// Used and held.
async fn standing(h: &Harness, name: &str) -> (i64, i64) {
    let tokens =
        h.must::<GetBudget>(json!({ "name": name })).await.standing.remove("tokens").expect("it counts tokens");
    (tokens.used, tokens.reserved)
}

async fn tree(h: &Harness) -> Vec<String> {
    let tree = h.must::<GetBudgetTree>(json!({ "name": "acme" })).await;
    tree.items.into_iter().map(|budget| budget.name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_charge_counts_in_the_child_of_its_tag_and_a_limit_of_either_refuses_it() {
    let h = Harness::start().await;
    acme(&h, hundred()).await;
    assert_eq!(tree(&h).await, ["acme"]);
    let x = task_of(&h, "x").await;
    assert_eq!(tree(&h).await, ["acme"], "a start uses nothing");
    assert!(matches!(reserve(&h, &x, "a", 60).await, reserve_spend::Outcome::Reserved { .. }));
    assert_eq!((standing(&h, "acme").await, standing(&h, "acme/x").await), ((0, 60), (0, 60)));
    let reserve_spend::Outcome::Refused(refusal) = reserve(&h, &x, "b", 41).await else { panic!("it does not fit") };
    assert_eq!((refusal.budget.as_str(), refusal.left), ("acme/x", 40));
    let held = h.must::<ListReservations>(json!({ "name": "acme/x" })).await.items;
    assert_eq!((held.len(), held[0].budget.as_str(), held[0].amounts["tokens"]), (1, "acme/x", 60));
    assert_eq!(h.must::<ListReservations>(json!({ "name": "acme" })).await.items.len(), 0);
    h.must::<SettleSpend>(with(&x, json!({ "key": "a", "actual": { "tokens": 50 } }))).await;
    let y = task_of(&h, "y").await;
    assert_eq!(report(&h, &y, 100).await, ReportUsageResult::Ok);
    assert!(matches!(report(&h, &y, 1).await, ReportUsageResult::HardBreach { limit: 100, .. }));
    assert_eq!(tree(&h).await, ["acme", "acme/x", "acme/y"]);
    assert_eq!((standing(&h, "acme").await, standing(&h, "acme/x").await), ((150, 0), (50, 0)));

    h.submit(json!({ "budget_ids": ["acme"] })).await;
    let plain = h.claim().await.expect("acme has room");
    assert_eq!(report(&h, &plain, 400).await, ReportUsageResult::Ok, "without the tag only acme counts");
    let status = h.must::<GetBudget>(json!({ "name": "acme/x" })).await;
    assert!(status.from_template);
    assert_eq!((status.definition.scope_type.as_str(), status.definition.scope_id.as_str()), ("customer", "x"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_used_up_child_keeps_out_its_own_and_nobody_else() {
    let h = Harness::start().await;
    acme(&h, json!({ "dimensions": { "tokens": { "hard": 10 } }, "reset_interval_ms": 60_000 })).await;
    let x = task_of(&h, "x").await;
    report(&h, &x, 10).await;
    let blocked = h.submit(json!({ "budget_ids": ["acme"], "tags": { "customer": "x" }, "priority": 9 })).await;
    task_of(&h, "y").await;
    let explained = h.must::<ExplainExecution>(json!({ "execution_id": blocked })).await;
    assert_eq!(explained.reasons[0].details["budget"], "acme/x", "{explained:?}");
    let raised = json!({ "name": "acme/x", "dimensions": { "tokens": { "hard": 20 } } });
    h.must::<SetBudgetLimits>(raised).await;
    assert_eq!(h.claim_with(json!({ "wait_ms": 5_000 })).await.expect("it was let in").execution_id, blocked);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_of_a_child_lets_in_what_waits_for_it() {
    let h = Harness::start().await;
    acme(&h, json!({ "dimensions": { "tokens": { "hard": 10 } }, "reset_interval_ms": 60_000 })).await;
    let x = task_of(&h, "x").await;
    report(&h, &x, 10).await;
    h.must::<Complete>(with(&x, json!({}))).await;
    let blocked = h.submit(json!({ "budget_ids": ["acme"], "tags": { "customer": "x" } })).await;
    assert!(h.claim_with(json!({ "wait_ms": 1_000 })).await.is_none());
    h.pass(40_000).await;
    let task = h.claim_with(json!({ "wait_ms": 30_000 })).await.expect("the child was reset");
    assert_eq!(task.execution_id, blocked);
    assert_eq!((standing(&h, "acme").await, standing(&h, "acme/x").await), ((10, 0), (0, 0)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn children_follow_their_template_unless_a_person_changed_them() {
    let h = Harness::start().await;
    acme(&h, json!({ "dimensions": { "tokens": { "hard": 10 } } })).await;
    for customer in ["own", "x"] {
        let task = task_of(&h, customer).await;
        report(&h, &task, 10).await;
    }
    h.must::<SetBudgetLimits>(json!({ "name": "acme/own", "dimensions": { "tokens": { "hard": 11 } } })).await;
    let blocked = h.submit(json!({ "budget_ids": ["acme"], "tags": { "customer": "x" } })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    let template = json!({ "dimensions": { "tokens": { "hard": 50 } } });
    h.must::<UpdateBudget>(json!({ "name": "acme", "template": template })).await;
    let task = h.claim_with(json!({ "wait_ms": 5_000 })).await.expect("its child has room again");
    assert_eq!(task.execution_id, blocked);
    assert_eq!(report(&h, &task, 40).await, ReportUsageResult::Ok);
    let limit =
        async |name: &str| h.must::<GetBudget>(json!({ "name": name })).await.definition.dimensions["tokens"].hard;
    assert_eq!((limit("acme/x").await, limit("acme/own").await), (50, 11));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_leaves_when_it_is_idle_and_empty_and_its_reservations_are_still_ended() {
    let h = Harness::start().await;
    acme(&h, json!({ "dimensions": { "tokens": { "hard": 10 } }, "rolling_ms": 60_000 })).await;
    let x = task_of(&h, "x").await;
    reserve(&h, &x, "a", 5).await;
    h.must::<ReleaseSpend>(with(&x, json!({ "key": "a" }))).await;
    let y = task_of(&h, "y").await;
    report(&h, &y, 5).await;
    h.pass(HOUR_MS - 60_000).await;
    assert_eq!(tree(&h).await, ["acme", "acme/x", "acme/y"]);
    h.pass(2 * 60_000).await;
    assert_eq!(tree(&h).await, ["acme"], "nothing is counted in them");
    assert_eq!(standing(&h, "acme").await, (5, 0), "acme has no window");
    h.refused::<GetBudget>(json!({ "name": "acme/x" })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_asks_is_answered_for_its_own() {
    let h = Harness::start().await;
    acme(&h, json!({ "dimensions": { "tokens": { "hard": 10 } }, "on_hard": "ask" })).await;
    let x = task_of(&h, "x").await;
    assert_eq!(reserve(&h, &x, "a", 11).await, reserve_spend::Outcome::Asked { budget: "acme/x".into() });
    assert_eq!(reserve(&h, &x, "a", 11).await, reserve_spend::Outcome::Asked { budget: "acme/x".into() }, "again");
    task_of(&h, "y").await;
    let grant = json!({ "name": "acme/x", "answer": "grant", "amounts": { "tokens": 5 } });
    h.must::<DecideBudget>(grant).await;
    let x = h.claim_with(json!({ "wait_ms": 1_000 })).await.expect("it goes on");
    assert!(matches!(reserve(&h, &x, "a", 11).await, reserve_spend::Outcome::Reserved { .. }));
    assert_eq!(standing(&h, "acme/x").await, (0, 11));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn odd_values_have_a_path_and_a_refused_charge_makes_nothing() {
    let h = Harness::start().await;
    acme(&h, hundred()).await;
    for (value, path) in [("a b/ü", "acme/a%20b%2Fü"), ("", "acme/%"), ("..", "acme/%2E%2E")] {
        let task = task_of(&h, value).await;
        report(&h, &task, 1).await;
        assert_eq!(standing(&h, path).await, (1, 0), "{value:?}");
    }
    let long = task_of(&h, &"x".repeat(256)).await;
    assert!(matches!(reserve(&h, &long, "a", 101).await, reserve_spend::Outcome::Refused(_)));
    assert_eq!(tree(&h).await.len(), 4, "what was refused left nothing behind");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_children_of_a_deleted_budget_go_with_it_and_limit_nothing_under_its_name() {
    let h = Harness::start().await;
    acme(&h, hundred()).await;
    let x = task_of(&h, "x").await;
    assert_eq!(report(&h, &x, 90).await, ReportUsageResult::Ok);
    assert_eq!(h.refused::<DeleteBudget>(json!({ "name": "acme" })).await, Code::InUse);
    h.must::<DeleteBudget>(json!({ "name": "acme", "force": true })).await;
    assert_eq!(h.refused::<GetBudget>(json!({ "name": "acme/x" })).await, Code::BudgetNotFound);
    acme(&h, hundred()).await;
    assert_eq!(report(&h, &x, 50).await, ReportUsageResult::Ok);
    assert_eq!((standing(&h, "acme").await, standing(&h, "acme/x").await), ((50, 0), (50, 0)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_is_deleted_or_taken_over_like_any_other() {
    let h = Harness::start().await;
    acme(&h, hundred()).await;
    let x = task_of(&h, "x").await;
    reserve(&h, &x, "a", 60).await;
    assert_eq!(h.refused::<DeleteBudget>(json!({ "name": "acme" })).await, Code::InUse);
    h.must::<DeleteBudget>(json!({ "name": "acme/x", "force": true })).await;
    reserve(&h, &x, "b", 90).await;
    h.must::<SettleSpend>(with(&x, json!({ "key": "a", "actual": { "tokens": 60 } }))).await;
    assert_eq!((standing(&h, "acme").await, standing(&h, "acme/x").await), ((60, 90), (0, 90)), "one made anew");
    h.must::<CreateBudget>(json!({ "name": "acme/x", "dimensions": { "tokens": { "hard": 95 } } })).await;
    assert_eq!(standing(&h, "acme/x").await, (0, 90), "the definition is a person's, the counters stay");
    assert!(!h.must::<GetBudget>(json!({ "name": "acme/x" })).await.from_template);
    h.must::<Complete>(with(&x, json!({}))).await;
    let state = h.must::<GetExecution>(json!({ "execution_id": x.execution_id })).await.public_state;
    assert_eq!(state, PublicState::Completed);
    let operator = json!({ "name": "acme", "usage": { "tokens": 1 } });
    assert_eq!(h.must::<ReportBudgetUsage>(operator).await, ReportUsageResult::Ok);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_template_without_a_tag_is_refused_by_field() {
    let h = Harness::start().await;
    let dimensions = json!({ "tokens": { "hard": 1 } });
    for args in [
        json!({ "name": "a", "dimensions": dimensions, "per": "tag:customer" }),
        json!({ "name": "a", "dimensions": dimensions, "template": hundred() }),
        json!({ "name": "a", "dimensions": dimensions, "per": "customer", "template": hundred() }),
        json!({ "name": "a/b/c/d/e", "dimensions": dimensions, "per": "tag:customer", "template": hundred() }),
        json!({ "name": "a", "dimensions": dimensions, "rolling_ms": 60_000, "reset_interval_ms": 1_000 }),
        json!({ "name": "a", "dimensions": dimensions, "rolling_ms": 1 }),
    ] {
        assert_eq!(h.refused::<CreateBudget>(args).await, Code::Invalid);
    }
    h.finish().await;
}
