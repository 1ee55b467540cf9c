//! Budgets: what they count, what they keep out, and what they let in again.

use crate::support::{Harness, START};
use ff_core::op::{
    Complete, CreateBudget, ExplainExecution, GetBudget, GetExecution, ListBudgets, ReportBudgetUsage, ReportUsage,
    ResetBudget, SetBudgetLimits,
};
use ff_core::usage::ReportUsageResult;
use ff_core::{BlockingReason, Code, EligibilityState, PublicState};
use ff_engine::{Caller, Options};
use serde_json::json;

async fn tokens(h: &Harness, name: &str, hard: i64) {
    h.must::<CreateBudget>(json!({ "name": name, "dimensions": { "tokens": { "hard": hard } } })).await;
}

async fn spend(h: &Harness, name: &str, amount: i64) -> ReportUsageResult {
    h.must::<ReportBudgetUsage>(json!({ "name": name, "usage": { "tokens": amount } })).await
}

async fn claim_now(h: &Harness) -> Option<ff_core::op::view::Task> {
    h.claim_with(json!({ "wait_ms": 0 })).await
}

fn commits(h: &Harness) -> u64 {
    h.engine.metrics().commits.snapshot().0.iter().sum()
}

fn breach(current: i64, limit: i64) -> ReportUsageResult {
    ReportUsageResult::HardBreach { dimension: "tokens".into(), current, limit }
}

#[tokio::test(start_paused = true)]
async fn a_used_up_budget_blocks_until_it_is_reset_or_raised() {
    let h = Harness::start().await;
    tokens(&h, "team", 100).await;
    assert_eq!(spend(&h, "team", 60).await, ReportUsageResult::Ok);
    assert_eq!(spend(&h, "team", 40).await, ReportUsageResult::Ok);
    assert_eq!(spend(&h, "team", 1).await, breach(100, 100));
    assert_eq!(h.must::<GetBudget>(json!({ "name": "team" })).await.usage["tokens"], 100);
    let id = h.submit(json!({ "budget_ids": ["team"] })).await;
    assert!(claim_now(&h).await.is_none());
    assert_eq!(h.state(&id).await, PublicState::RateLimited);
    h.must::<ResetBudget>(json!({ "name": "team" })).await;
    assert_eq!(h.state(&id).await, PublicState::Waiting);
    assert_eq!(claim_now(&h).await.unwrap().execution_id, id);

    assert_eq!(spend(&h, "team", 99).await, ReportUsageResult::Ok);
    assert_eq!(spend(&h, "team", 50).await, breach(99, 100), "it would pass the limit: nothing is counted");
    let second = h.submit(json!({ "budget_ids": ["team"] })).await;
    let (task, ()) = tokio::join!(h.claim(), async {
        h.pass(500).await;
        assert_eq!(h.state(&second).await, PublicState::RateLimited);
        h.must::<SetBudgetLimits>(json!({ "name": "team", "dimensions": { "tokens": { "hard": 200 } } })).await;
    });
    assert_eq!(task.unwrap().execution_id, second, "a raised limit wakes the claimer that waits");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_dedup_key_counts_once_and_a_refused_report_leaves_it_free() {
    let h = Harness::start().await;
    tokens(&h, "team", 100).await;
    let report = |amount: i64| json!({ "name": "team", "usage": { "tokens": amount }, "dedup_key": "k" });
    assert_eq!(h.must::<ReportBudgetUsage>(report(101)).await, breach(0, 100));
    assert_eq!(h.must::<ReportBudgetUsage>(report(10)).await, ReportUsageResult::Ok);
    assert_eq!(h.must::<ReportBudgetUsage>(report(10)).await, ReportUsageResult::AlreadyApplied);
    assert_eq!(h.must::<GetBudget>(json!({ "name": "team" })).await.usage["tokens"], 10);
    h.pass(24 * 3_600 * 1_000 + 1).await;
    assert_eq!(h.must::<ReportBudgetUsage>(report(10)).await, ReportUsageResult::Ok, "a day later the key is new");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_reports_for_its_execution_even_after_it_lost_the_lease() {
    let h = Harness::start().await;
    tokens(&h, "a", 100).await;
    h.must::<CreateBudget>(json!({ "name": "b", "dimensions": { "cents": {} } })).await;
    let id = h.submit(json!({ "budget_ids": ["a", "b", "missing"], "policy": {} })).await;
    assert!(claim_now(&h).await.is_none(), "a budget that does not exist admits nothing");
    let reason = h.must::<ExplainExecution>(json!({ "execution_id": id })).await.reasons.remove(0);
    assert_eq!(reason.code.as_str(), "budget_not_found");
    h.must::<CreateBudget>(json!({ "name": "missing", "dimensions": { "calls": {} } })).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 1000 })).await.unwrap();
    h.pass(1_100).await;
    let worker = Caller::new("w", None, ff_core::Role::Worker);
    let report =
        json!({ "execution_id": id, "fence": task.fence, "usage": { "tokens": 3, "cents": 2 }, "dedup_key": "x" });
    let args: ff_core::op::report_usage::Args = serde_json::from_str(&report.to_string()).unwrap();
    let answer = h.engine.call::<ReportUsage>(&worker, args.clone()).await.unwrap();
    assert_eq!(answer.budgets.keys().collect::<Vec<_>>(), ["a", "b"]);
    let again = h.engine.call::<ReportUsage>(&worker, args.clone()).await.unwrap();
    assert!(again.budgets.values().all(|answer| *answer == ReportUsageResult::AlreadyApplied));
    assert_eq!(h.must::<GetBudget>(json!({ "name": "a" })).await.usage["tokens"], 3);
    let mut foreign = args;
    foreign.fence.lease_id = ff_core::LeaseId::default();
    assert_eq!(h.engine.call::<ReportUsage>(&worker, foreign).await.unwrap_err().code, Code::StaleLease);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn usage_is_exact_under_concurrency_and_shares_commits() {
    let h = Harness::start().await;
    tokens(&h, "team", 0).await;
    let before = commits(&h);
    let reports = (0..64).map(|number| {
        let args = json!({ "name": "team", "usage": { "tokens": number }, "dedup_key": format!("k{}", number / 2) });
        h.must::<ReportBudgetUsage>(args)
    });
    let answers = futures_util::future::join_all(reports).await;
    assert_eq!(answers.iter().filter(|answer| **answer == ReportUsageResult::Ok).count(), 32);
    let expected: i64 = (0..64).step_by(2).sum();
    assert_eq!(h.must::<GetBudget>(json!({ "name": "team" })).await.usage["tokens"], expected);
    let commits = commits(&h) - before;
    assert!(commits <= 8, "64 reports took {commits} commits");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_resets_by_itself_and_lets_in_what_waits() {
    let h = Harness::start().await;
    let budget = json!({ "name": "day", "dimensions": { "tokens": { "hard": 1 } }, "reset_interval_ms": 20_000 });
    h.must::<CreateBudget>(budget).await;
    spend(&h, "day", 1).await;
    let id = h.submit(json!({ "budget_ids": ["day"] })).await;
    let task = h.claim_with(json!({ "wait_ms": 30_000 })).await.unwrap();
    assert_eq!(task.execution_id, id);
    let now = h.engine.now();
    assert!((START + 20_000..START + 20_500).contains(&now), "it ran at {}", now - START);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_rolling_window_lets_in_what_waits_as_usage_leaves_it() {
    let h = Harness::start().await;
    let budget = json!({ "name": "hour", "dimensions": { "tokens": { "hard": 10 } }, "rolling_ms": 64_000 });
    h.must::<CreateBudget>(budget).await;
    spend(&h, "hour", 6).await;
    h.pass(20_000).await;
    spend(&h, "hour", 4).await;
    assert_eq!(spend(&h, "hour", 1).await, breach(10, 10));
    let id = h.submit(json!({ "budget_ids": ["hour"] })).await;
    assert!(claim_now(&h).await.is_none());
    let refused = h.must::<ExplainExecution>(json!({ "execution_id": id })).await;
    assert!(refused.reasons[0].until.is_some_and(|at| (START + 64_000..=START + 65_000).contains(&at)), "{refused:?}");
    h.pass(30_000).await;
    let task = h.claim_with(json!({ "wait_ms": 30_000 })).await.expect("the first usage has left the window");
    assert_eq!(task.execution_id, id);
    let now = h.engine.now();
    assert!((START + 64_000..START + 65_500).contains(&now), "it ran at {}", now - START);
    let status = h.must::<GetBudget>(json!({ "name": "hour" })).await;
    assert_eq!((status.usage["tokens"], status.next_reset_at), (4, None));
    h.pass(30_000).await;
    assert_eq!(h.must::<GetBudget>(json!({ "name": "hour" })).await.usage["tokens"], 0, "also when nothing waits");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_hard_action_fails_or_holds_what_would_start() {
    let h = Harness::start().await;
    for action in ["fail", "suspend"] {
        let budget = json!({ "name": action, "dimensions": { "tokens": { "hard": 1 } }, "on_hard": action });
        h.must::<CreateBudget>(budget).await;
        spend(&h, action, 1).await;
    }
    let failing = h.submit(json!({ "budget_ids": ["fail"] })).await;
    let holding = h.submit(json!({ "budget_ids": ["suspend"] })).await;
    assert!(claim_now(&h).await.is_none());
    let failed = h.must::<GetExecution>(json!({ "execution_id": failing })).await;
    assert_eq!(failed.public_state, PublicState::Failed);
    assert_eq!(failed.last_failure.unwrap().category.as_deref(), Some("budget_exhausted"));
    let held = h.must::<GetExecution>(json!({ "execution_id": holding })).await;
    assert_eq!(held.state.eligibility_state, EligibilityState::BlockedByBudget);
    assert_eq!(held.state.blocking_reason, BlockingReason::PausedByPolicy);
    h.must::<ResetBudget>(json!({ "name": "suspend" })).await;
    assert_eq!(claim_now(&h).await.unwrap().execution_id, holding, "a reset lets it go");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_behind_a_closed_gate_are_in_nobodys_way() {
    let h = Harness::with(Options { partitions: Some(ff_core::PartitionConfig::SINGLE), ..Options::default() }).await;
    tokens(&h, "team", 2).await;
    spend(&h, "team", 2).await;
    for _ in 0..10_000 {
        h.submit(json!({ "budget_ids": ["team"], "priority": 10 })).await;
    }
    let free = h.submit(json!({})).await;
    assert_eq!(claim_now(&h).await.unwrap().execution_id, free);
    let parked = || {
        h.store.inspect(|contents| {
            let blocked = ff_core::index::blocked("default", "b:team");
            contents
                .partitions()
                .map(|(_, c)| c.entries().filter(|(index, ..)| **index == blocked).count())
                .sum::<usize>()
        })
    };
    assert_eq!(parked(), 1, "only what was examined is parked");
    h.must::<ResetBudget>(json!({ "name": "team" })).await;
    assert_eq!(parked(), 0);
    assert!(claim_now(&h).await.is_some());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_created_once_and_listed_by_name() {
    let h = Harness::start().await;
    for name in ["budget-c", "budget-a", "budget-b"] {
        tokens(&h, name, 5).await;
    }
    let again = json!({ "name": "budget-a", "dimensions": { "tokens": { "hard": 6 } } });
    assert_eq!(h.refused::<CreateBudget>(again).await, Code::DefinitionConflict);
    let first = h.must::<ListBudgets>(json!({ "limit": 2 })).await;
    let names: Vec<_> = first.items.iter().map(|budget| budget.name.as_str()).collect();
    assert_eq!(names, ["budget-a", "budget-b"]);
    let rest = h.must::<ListBudgets>(json!({ "cursor": first.next_cursor })).await;
    assert_eq!((rest.items.len(), rest.items[0].name.as_str(), rest.next_cursor), (1, "budget-c", None));
    assert_eq!(h.refused::<GetBudget>(json!({ "name": "none" })).await, Code::BudgetNotFound);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_same_command_is_the_same_reset() {
    let h = Harness::start().await;
    tokens(&h, "team", 5).await;
    spend(&h, "team", 5).await;
    let reset = json!({ "name": "team", "command_id": "0190b4d4-6a2b-7c3d-8e4f-5a6b7c8d9e0f" });
    let first = h.must::<ResetBudget>(reset.clone()).await;
    spend(&h, "team", 4).await;
    h.pass(10).await;
    assert_eq!(h.must::<ResetBudget>(reset).await, first);
    assert_eq!(h.must::<GetBudget>(json!({ "name": "team" })).await.usage["tokens"], 4);
    let id = h.submit(json!({ "budget_ids": ["team"] })).await;
    let task = claim_now(&h).await.unwrap();
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    h.finish().await;
}
