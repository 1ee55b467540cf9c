//! Reserve, settle, release: the ceiling holds whichever calls race for it.

use ff_core::op::view::Task;
use ff_core::op::{
    CancelExecution, Complete, CreateBudget, DeleteBudget, GetBudget, ListApprovals, ListReservations, ReleaseSpend,
    ReportBudgetUsage, ReportUsage, ReserveSpend, ResetBudget, SettleSpend, reserve_spend,
};
use ff_core::usage::ReportUsageResult;
use ff_core::{Code, PublicState};
use serde_json::{Value, json};

use crate::support::Harness;

async fn budget(h: &Harness, name: &str, hard: i64) {
    let dimensions = json!({ "tokens": { "hard": hard } });
    h.must::<CreateBudget>(json!({ "name": name, "dimensions": dimensions })).await;
}

async fn task_under(h: &Harness, budgets: Value) -> Task {
    h.submit(json!({ "budget_ids": budgets })).await;
    h.claim().await.expect("a task")
}

fn request(task: &Task, key: &str, more: Value) -> Value {
    let mut args = json!({ "execution_id": task.execution_id, "fence": task.fence, "key": key });
    args.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    args
}

async fn reserve(h: &Harness, task: &Task, key: &str, tokens: i64) -> reserve_spend::Outcome {
    h.must::<ReserveSpend>(request(task, key, json!({ "amounts": { "tokens": tokens } }))).await
}

fn is_held(outcome: &reserve_spend::Outcome) -> bool {
    matches!(outcome, reserve_spend::Outcome::Reserved { .. })
}

/// Used, held, overrun and left of a budget's tokens.
async fn standing(h: &Harness, name: &str) -> (i64, i64, i64, Option<i64>) {
    let status = h.must::<GetBudget>(json!({ "name": name })).await;
    let tokens = &status.standing["tokens"];
    (tokens.used, tokens.reserved, tokens.overrun, tokens.left)
}

#[tokio::test(start_paused = true)]
async fn what_is_reserved_takes_room_and_what_was_spent_takes_its_place() {
    let h = Harness::start().await;
    budget(&h, "team", 100).await;
    let task = task_under(&h, json!(["team"])).await;
    assert!(is_held(&reserve(&h, &task, "a", 60).await));
    assert_eq!(standing(&h, "team").await, (0, 60, 0, Some(40)));
    let reserve_spend::Outcome::Refused(refusal) = reserve(&h, &task, "b", 50).await else { panic!("50 does not fit") };
    assert_eq!((refusal.left, refusal.limit, refusal.requested), (40, 100, 50));
    assert_eq!(h.must::<GetBudget>(json!({ "name": "team" })).await.refused_count, 1);
    let report = json!({ "name": "team", "usage": { "tokens": 41 } });
    let breach = ReportUsageResult::HardBreach { dimension: "tokens".into(), current: 60, limit: 100 };
    assert_eq!(h.must::<ReportBudgetUsage>(report).await, breach, "reports see what is held");
    let settled = h.must::<SettleSpend>(request(&task, "a", json!({ "actual": { "tokens": 45 } }))).await;
    assert!(settled.budgets["team"].overrun.is_empty());
    assert_eq!(standing(&h, "team").await, (45, 0, 0, Some(55)));
    assert!(is_held(&reserve(&h, &task, "c", 55).await), "a refused key and a settled one leave room for the next");
    let held = h.must::<ListReservations>(json!({ "name": "team" })).await.items;
    assert_eq!((held.len(), held[0].key.as_str(), held[0].amounts["tokens"]), (1, "c", 55));
    h.must::<ReleaseSpend>(request(&task, "c", json!({}))).await;
    assert_eq!(standing(&h, "team").await, (45, 0, 0, Some(55)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn more_than_was_reserved_counts_as_overrun() {
    let h = Harness::start().await;
    budget(&h, "team", 100).await;
    let task = task_under(&h, json!(["team"])).await;
    reserve(&h, &task, "a", 100).await;
    let settled = h.must::<SettleSpend>(request(&task, "a", json!({ "actual": { "tokens": 130 } }))).await;
    assert_eq!(settled.budgets["team"].overrun["tokens"], 30);
    assert_eq!(standing(&h, "team").await, (130, 0, 30, Some(0)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeat_is_the_same_reservation_and_other_content_is_refused() {
    let h = Harness::start().await;
    budget(&h, "team", 100).await;
    let task = task_under(&h, json!(["team"])).await;
    let first = reserve(&h, &task, "a", 60).await;
    assert_eq!(reserve(&h, &task, "a", 60).await, first);
    let other = request(&task, "a", json!({ "amounts": { "tokens": 61 } }));
    assert_eq!(h.refused::<ReserveSpend>(other).await, Code::IdempotencyConflict);
    let settle = |tokens: i64| request(&task, "a", json!({ "actual": { "tokens": tokens } }));
    let once = h.must::<SettleSpend>(settle(70)).await;
    assert_eq!(h.must::<SettleSpend>(settle(70)).await, once);
    assert_eq!(standing(&h, "team").await, (70, 0, 10, Some(30)));
    assert_eq!(h.refused::<SettleSpend>(settle(71)).await, Code::IdempotencyConflict);
    assert_eq!(h.refused::<ReleaseSpend>(request(&task, "a", json!({}))).await, Code::ReservationEnded);
    let again = request(&task, "a", json!({ "amounts": { "tokens": 60 } }));
    assert_eq!(h.refused::<ReserveSpend>(again).await, Code::ReservationEnded);
    assert_eq!(h.refused::<SettleSpend>(request(&task, "never", json!({}))).await, Code::ReservationNotFound);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_holders_reservation_settles_at_the_reserve_and_a_late_word_corrects_it() {
    let h = Harness::start().await;
    budget(&h, "team", 100).await;
    h.submit(json!({ "budget_ids": ["team"] })).await;
    let dead = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    let args = request(&dead, "call", json!({ "amounts": { "tokens": 60 }, "ttl_ms": 5_000 }));
    h.must::<ReserveSpend>(args).await;
    let next = h.claim_with(json!({ "wait_ms": 10_000 })).await.expect("the lease ran out");
    let late = request(&dead, "other", json!({ "amounts": { "tokens": 1 } }));
    assert_eq!(h.refused::<ReserveSpend>(late).await, Code::StaleLease);
    assert!(is_held(&reserve(&h, &next, "call", 30).await), "a new lease reserves anew under the same key");
    assert_eq!(standing(&h, "team").await, (0, 90, 0, Some(10)));
    h.pass(5_000).await;
    assert_eq!(standing(&h, "team").await, (60, 30, 0, Some(10)));
    h.must::<SettleSpend>(request(&dead, "call", json!({ "actual": { "tokens": 20 } }))).await;
    assert_eq!(standing(&h, "team").await, (20, 30, 0, Some(50)), "the holder's own word takes the reserve's place");
    h.must::<SettleSpend>(request(&next, "call", json!({ "actual": { "tokens": 30 } }))).await;
    assert_eq!(standing(&h, "team").await, (50, 0, 0, Some(50)));
    h.pass(24 * 3_600 * 1_000).await;
    let forgotten = request(&dead, "call", json!({ "actual": { "tokens": 20 } }));
    assert_eq!(h.refused::<SettleSpend>(forgotten).await, Code::ReservationNotFound);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_settled_after_a_reset_counts_in_the_window_that_reserved_it() {
    let h = Harness::start().await;
    budget(&h, "team", 100).await;
    let task = task_under(&h, json!(["team"])).await;
    reserve(&h, &task, "a", 60).await;
    h.must::<ResetBudget>(json!({ "name": "team" })).await;
    assert_eq!(standing(&h, "team").await, (0, 0, 0, Some(100)));
    assert!(is_held(&reserve(&h, &task, "b", 100).await));
    h.must::<SettleSpend>(request(&task, "a", json!({ "actual": { "tokens": 75 } }))).await;
    assert_eq!(standing(&h, "team").await, (0, 100, 0, Some(0)));
    let previous = h.must::<GetBudget>(json!({ "name": "team" })).await.previous_window.unwrap();
    assert_eq!((previous.usage["tokens"], previous.overrun["tokens"]), (75, 15));
    assert!(previous.reserved.is_empty());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_one_budget_gives_back_what_the_others_held() {
    let h = Harness::start().await;
    budget(&h, "a", 100).await;
    budget(&h, "b", 10).await;
    h.must::<CreateBudget>(json!({ "name": "calls", "dimensions": { "calls": { "hard": 1 } } })).await;
    let task = task_under(&h, json!(["b", "a", "calls"])).await;
    let reserve_spend::Outcome::Refused(refusal) = reserve(&h, &task, "k", 11).await else { panic!("b has no room") };
    assert_eq!(refusal.budget, "b");
    assert_eq!(standing(&h, "a").await, (0, 0, 0, Some(100)));
    let reserve_spend::Outcome::Reserved { budgets } = reserve(&h, &task, "k", 10).await else { panic!("it fits") };
    assert_eq!(budgets.keys().collect::<Vec<_>>(), ["a", "b"], "the key is free, and calls counts no tokens");
    let unknown = request(&task, "x", json!({ "amounts": { "tokens": 1 }, "budget": "calls" }));
    assert_eq!(h.refused::<ReserveSpend>(unknown).await, Code::Invalid);
    let foreign = request(&task, "x", json!({ "amounts": { "tokens": 1 }, "budget": "other" }));
    assert_eq!(h.refused::<ReserveSpend>(foreign).await, Code::BudgetNotFound);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_is_found_again_is_not_given_back() {
    let h = Harness::start().await;
    budget(&h, "a", 100).await;
    budget(&h, "b", 5).await;
    let task = task_under(&h, json!(["a", "b"])).await;
    h.must::<ReserveSpend>(request(&task, "k", json!({ "amounts": { "tokens": 50 }, "budget": "a" }))).await;
    let everywhere = reserve(&h, &task, "k", 50).await;
    assert!(matches!(everywhere, reserve_spend::Outcome::Refused(_)), "{everywhere:?}");
    assert_eq!(standing(&h, "a").await, (0, 50, 0, Some(50)));
    h.must::<SettleSpend>(request(&task, "k", json!({ "actual": { "tokens": 40 } }))).await;
    assert_eq!(standing(&h, "a").await, (40, 0, 0, Some(60)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_dimension_that_only_a_budget_above_has_is_charged_through_the_one_below() {
    let h = Harness::start().await;
    h.must::<CreateBudget>(json!({ "name": "acme", "dimensions": { "cents": { "hard": 10 } } })).await;
    budget(&h, "acme/ada", 100).await;
    let task = task_under(&h, json!(["acme/ada"])).await;
    let cents = |cents: i64| json!({ "amounts": { "cents": cents } });
    let refused = h.must::<ReserveSpend>(request(&task, "dear", cents(50))).await;
    let reserve_spend::Outcome::Refused(refusal) = refused else { panic!("50 cents do not fit: {refused:?}") };
    assert_eq!((refusal.budget.as_str(), refusal.left), ("acme", 10));
    assert!(is_held(&h.must::<ReserveSpend>(request(&task, "cheap", cents(4))).await));
    h.must::<SettleSpend>(request(&task, "cheap", json!({ "actual": { "cents": 4 } }))).await;
    let usage =
        |cents: i64| json!({ "execution_id": task.execution_id, "fence": task.fence, "usage": { "cents": cents } });
    let counted = h.must::<ReportUsage>(usage(5)).await;
    assert_eq!(counted.budgets["acme/ada"], ReportUsageResult::Ok);
    let breach = h.must::<ReportUsage>(usage(2)).await;
    assert!(matches!(breach.budgets["acme/ada"], ReportUsageResult::HardBreach { current: 9, .. }), "{breach:?}");
    assert_eq!(h.must::<GetBudget>(json!({ "name": "acme" })).await.standing["cents"].used, 9);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_of_what_no_budget_counts_is_refused_and_changes_nothing() {
    let h = Harness::start().await;
    budget(&h, "team", 100).await;
    let task = task_under(&h, json!(["team"])).await;
    reserve(&h, &task, "k", 50).await;
    let mistaken = request(&task, "k", json!({ "actual": { "tokns": 50 } }));
    assert_eq!(h.refused::<SettleSpend>(mistaken).await, Code::Invalid);
    assert_eq!(standing(&h, "team").await, (0, 50, 0, Some(50)));
    h.must::<SettleSpend>(request(&task, "k", json!({ "actual": { "tokens": 50 } }))).await;
    assert_eq!(standing(&h, "team").await, (50, 0, 0, Some(50)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lower_settlement_lets_in_what_waits() {
    let h = Harness::start().await;
    budget(&h, "team", 100).await;
    let task = task_under(&h, json!(["team"])).await;
    reserve(&h, &task, "a", 100).await;
    let waiting = h.submit(json!({ "budget_ids": ["team"] })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    assert_eq!(h.state(&waiting).await, PublicState::RateLimited);
    let settle = h.must::<SettleSpend>(request(&task, "a", json!({ "actual": { "tokens": 99 } })));
    let claim = h.claim_with(json!({ "wait_ms": 1_000 }));
    let (next, _) = tokio::join!(claim, settle);
    assert_eq!(next.expect("a settlement below the reserve opens the budget").execution_id, waiting);
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn sixty_four_racing_holders_never_pass_the_ceiling_and_share_commits() {
    let h = Harness::start().await;
    budget(&h, "team", 1_000).await;
    let mut tasks = Vec::new();
    for _ in 0..64 {
        tasks.push(task_under(&h, json!(["team"])).await);
    }
    let spending = tasks.iter().enumerate().map(|(agent, task)| {
        let h = &h;
        async move {
            let mut spent = 0;
            for call in 0..8 {
                let amount = i64::try_from((agent * 7 + call * 3) % 20 + 1).unwrap();
                let key = format!("call {call}");
                if !is_held(&reserve(h, task, &key, amount).await) {
                    continue;
                }
                let (used, reserved, overrun, _) = standing(h, "team").await;
                assert!(used - overrun + reserved <= 1_000, "{used} used and {reserved} reserved");
                h.must::<SettleSpend>(request(task, &key, json!({ "actual": { "tokens": amount } }))).await;
                spent += amount;
            }
            spent
        }
    });
    let spent: i64 = futures_util::future::join_all(spending).await.iter().sum();
    let (used, reserved, overrun, _) = standing(&h, "team").await;
    assert_eq!((used, reserved, overrun), (spent, 0, 0));
    assert!(used <= 1_000 && used > 980, "{used}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_reservation_counts_in_a_rolling_window_from_its_settlement_on() {
    let h = Harness::start().await;
    let team = json!({ "name": "team", "dimensions": { "tokens": { "hard": 100 } }, "rolling_ms": 64_000 });
    h.must::<CreateBudget>(team).await;
    let task = task_under(&h, json!(["team"])).await;
    let long = json!({ "amounts": { "tokens": 60 }, "ttl_ms": 600_000 });
    h.must::<ReserveSpend>(request(&task, "a", long)).await;
    h.pass(100_000).await;
    assert_eq!(standing(&h, "team").await, (0, 60, 0, Some(40)), "what is held does not leave");
    h.must::<SettleSpend>(request(&task, "a", json!({ "actual": { "tokens": 70 } }))).await;
    assert_eq!(standing(&h, "team").await, (70, 0, 10, Some(30)));
    h.pass(60_000).await;
    assert_eq!(standing(&h, "team").await, (70, 0, 10, Some(30)));
    h.pass(6_000).await;
    assert_eq!(standing(&h, "team").await, (0, 0, 0, Some(100)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_orphan_in_a_rolling_window_is_corrected_where_it_counted_and_not_once_it_has_left() {
    let h = Harness::start().await;
    let team = json!({ "name": "team", "dimensions": { "tokens": { "hard": 100 } }, "rolling_ms": 64_000 });
    h.must::<CreateBudget>(team).await;
    let task = task_under(&h, json!(["team"])).await;
    for key in ["a", "b"] {
        let held = json!({ "amounts": { "tokens": 40 }, "ttl_ms": 1_000 });
        h.must::<ReserveSpend>(request(&task, key, held)).await;
    }
    h.pass(2_000).await;
    assert_eq!(standing(&h, "team").await, (80, 0, 0, Some(20)));
    h.must::<SettleSpend>(request(&task, "a", json!({ "actual": { "tokens": 10 } }))).await;
    assert_eq!(standing(&h, "team").await, (50, 0, 0, Some(50)));
    h.pass(66_000).await;
    assert_eq!(standing(&h, "team").await, (0, 0, 0, Some(100)));
    h.must::<SettleSpend>(request(&task, "b", json!({ "actual": { "tokens": 90 } }))).await;
    assert_eq!(standing(&h, "team").await, (0, 0, 0, Some(100)), "it has left");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn reservations_of_a_deleted_budget_do_not_harm_the_one_made_anew() {
    let h = Harness::start().await;
    budget(&h, "team", 100).await;
    let task = task_under(&h, json!(["team"])).await;
    for (key, ttl_ms) in [("settled", 60_000), ("released", 60_000), ("forgotten", 1_000)] {
        let held = json!({ "amounts": { "tokens": 30 }, "ttl_ms": ttl_ms });
        h.must::<ReserveSpend>(request(&task, key, held)).await;
    }
    h.must::<DeleteBudget>(json!({ "name": "team", "force": true })).await;
    budget(&h, "team", 50).await;
    assert!(is_held(&reserve(&h, &task, "new", 50).await), "the new one has all of its room");
    h.must::<SettleSpend>(request(&task, "settled", json!({ "actual": { "tokens": 30 } }))).await;
    h.must::<ReleaseSpend>(request(&task, "released", json!({}))).await;
    h.pass(2_000).await;
    assert_eq!(standing(&h, "team").await, (0, 50, 0, Some(0)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_reservation_of_a_deleted_child_is_settled_in_what_it_stood_under() {
    let h = Harness::start().await;
    budget(&h, "acme", 100).await;
    budget(&h, "acme/ada", 100).await;
    let task = task_under(&h, json!(["acme/ada"])).await;
    for (key, ttl_ms) in [("settled", 60_000), ("forgotten", 1_000)] {
        let held = json!({ "amounts": { "tokens": 30 }, "ttl_ms": ttl_ms });
        h.must::<ReserveSpend>(request(&task, key, held)).await;
    }
    h.must::<DeleteBudget>(json!({ "name": "acme/ada", "force": true })).await;
    h.must::<SettleSpend>(request(&task, "settled", json!({ "actual": { "tokens": 5 } }))).await;
    assert_eq!(standing(&h, "acme").await, (5, 30, 0, Some(65)));
    h.pass(2_000).await;
    assert_eq!(standing(&h, "acme").await, (35, 0, 0, Some(65)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_goes_when_everything_that_waited_for_its_answer_was_cancelled() {
    let h = Harness::start().await;
    let team = json!({ "name": "team", "dimensions": { "tokens": { "hard": 10 } }, "on_hard": "ask" });
    h.must::<CreateBudget>(team).await;
    let task = task_under(&h, json!(["team"])).await;
    reserve(&h, &task, "a", 10).await;
    let waits = h.submit(json!({ "budget_ids": ["team"] })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    assert!(matches!(reserve(&h, &task, "b", 1).await, reserve_spend::Outcome::Asked { .. }));
    let asks = async || h.must::<GetBudget>(json!({ "name": "team" })).await.question.is_some();
    h.must::<CancelExecution>(json!({ "execution_id": waits })).await;
    h.pass(120_000).await;
    assert!(asks().await, "one still waits for the answer");
    h.must::<CancelExecution>(json!({ "execution_id": task.execution_id })).await;
    h.pass(35_000).await;
    assert!(!asks().await);
    h.submit(json!({ "budget_ids": ["team"] })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    assert!(asks().await, "the next one asks anew");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_waits_for_any_more_is_not_listed() {
    let h = Harness::start().await;
    let team = json!({ "name": "team", "dimensions": { "tokens": { "hard": 10 } }, "on_hard": "ask" });
    h.must::<CreateBudget>(team).await;
    let (first, second) = (task_under(&h, json!(["team"])).await, task_under(&h, json!(["team"])).await);
    reserve(&h, &first, "a", 10).await;
    let listed = async || h.must::<ListApprovals>(json!({})).await.budgets.len();
    for task in [&first, &second] {
        assert!(matches!(reserve(&h, task, "b", 1).await, reserve_spend::Outcome::Asked { .. }));
    }
    let waits =
        h.submit(json!({ "budget_ids": ["team"], "policy": { "timeout": { "execution_deadline_ms": 500 } } })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    for task in [&first, &second] {
        assert_eq!(listed().await, 1, "one still waits for the answer");
        h.must::<CancelExecution>(json!({ "execution_id": task.execution_id })).await;
    }
    assert_eq!(listed().await, 1, "one still waits to start");
    h.pass(501).await;
    assert_eq!((h.state(&waits).await, listed().await), (PublicState::Expired, 0));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_report_that_only_finds_no_room_beside_what_is_held_exhausts_nothing() {
    let h = Harness::start().await;
    budget(&h, "team", 100).await;
    let task = task_under(&h, json!(["team"])).await;
    assert!(is_held(&reserve(&h, &task, "a", 90).await));
    let report = json!({ "name": "team", "usage": { "tokens": 20 } });
    let breach = ReportUsageResult::HardBreach { dimension: "tokens".into(), current: 90, limit: 100 };
    assert_eq!(h.must::<ReportBudgetUsage>(report).await, breach);
    h.must::<ReleaseSpend>(request(&task, "a", json!({}))).await;
    let status = h.must::<GetBudget>(json!({ "name": "team" })).await;
    assert!(status.exhausted.is_empty(), "{status:?}");
    task_under(&h, json!(["team"])).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_reservation_of_a_removed_budget_is_made_anew_in_the_one_that_takes_its_name() {
    let h = Harness::start().await;
    budget(&h, "acme", 100).await;
    budget(&h, "acme/ada", 10).await;
    let task = task_under(&h, json!(["acme/ada"])).await;
    assert!(is_held(&reserve(&h, &task, "a", 8).await));
    h.must::<DeleteBudget>(json!({ "name": "acme/ada", "force": true })).await;
    budget(&h, "acme/ada", 10).await;
    let listed = h.must::<ListReservations>(json!({ "name": "acme/ada" })).await.items;
    assert!(listed.is_empty(), "{listed:?}");
    assert!(is_held(&reserve(&h, &task, "a", 8).await));
    assert_eq!(standing(&h, "acme/ada").await, (0, 8, 0, Some(2)));
    assert_eq!(standing(&h, "acme").await, (0, 8, 0, Some(92)), "it is held once");
    h.must::<SettleSpend>(request(&task, "a", json!({ "actual": { "tokens": 7 } }))).await;
    assert_eq!(standing(&h, "acme/ada").await, (7, 0, 0, Some(3)));
    assert_eq!(standing(&h, "acme").await, (7, 0, 0, Some(93)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_charge_to_several_budgets_of_a_tree_counts_once_in_each() {
    let h = Harness::start().await;
    for (name, hard) in [("acme", 100), ("acme/ada", 50), ("acme/bob", 30)] {
        budget(&h, name, hard).await;
    }
    let task = task_under(&h, json!(["acme", "acme/ada", "acme/bob"])).await;
    let report = json!({ "execution_id": task.execution_id, "fence": task.fence, "usage": { "tokens": 7 }, "dedup_key": "draft" });
    let reported = h.must::<ReportUsage>(report.clone()).await.budgets;
    assert_eq!(reported.keys().collect::<Vec<_>>(), ["acme", "acme/ada", "acme/bob"]);
    assert!(reported.values().all(|answer| *answer == ReportUsageResult::Ok), "{reported:?}");
    let again = h.must::<ReportUsage>(report.clone()).await.budgets;
    assert!(again.len() == 3 && again.values().all(|answer| *answer == ReportUsageResult::AlreadyApplied), "{again:?}");
    let mut one = report;
    one["budget"] = json!("acme");
    assert_eq!(h.must::<ReportUsage>(one).await.budgets["acme"], ReportUsageResult::AlreadyApplied);
    for name in ["acme", "acme/ada", "acme/bob"] {
        assert_eq!(standing(&h, name).await.0, 7, "{name}");
    }
    let reserve_spend::Outcome::Reserved { budgets } = reserve(&h, &task, "a", 20).await else { panic!("20 fit") };
    assert_eq!(budgets.keys().collect::<Vec<_>>(), ["acme", "acme/ada", "acme/bob"]);
    assert_eq!(standing(&h, "acme").await, (7, 20, 0, Some(73)));
    let settled = h.must::<SettleSpend>(request(&task, "a", json!({ "actual": { "tokens": 10 } }))).await;
    assert_eq!(settled.budgets.len(), 3);
    for (name, left) in [("acme", 83), ("acme/ada", 33), ("acme/bob", 13)] {
        assert_eq!(standing(&h, name).await, (17, 0, 0, Some(left)), "{name}");
    }
    assert!(!is_held(&reserve(&h, &task, "b", 14).await), "bob has 13 left");
    assert_eq!(standing(&h, "acme").await, (17, 0, 0, Some(83)), "what one of them refuses is held in none");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_estimate_under_several_budgets_of_a_tree_is_held_once_in_each_and_spent_from() {
    let h = Harness::start().await;
    for (name, hard) in [("acme", 100), ("acme/ada", 100)] {
        budget(&h, name, hard).await;
    }
    let args = json!({ "budget_ids": ["acme", "acme/ada"], "policy": { "estimate": { "tokens": 40 } } });
    h.submit(args).await;
    let task = h.claim().await.expect("a task");
    assert_eq!(standing(&h, "acme").await, (0, 40, 0, Some(60)));
    let report =
        json!({ "execution_id": task.execution_id, "fence": task.fence, "usage": { "tokens": 10 }, "budget": "acme" });
    h.must::<ReportUsage>(report).await;
    assert_eq!(standing(&h, "acme").await, (10, 30, 0, Some(60)), "it is spent from the estimate");
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.pass(10).await;
    assert_eq!(standing(&h, "acme").await, (10, 0, 0, Some(90)));
    assert_eq!(standing(&h, "acme/ada").await.1, 0);
    h.finish().await;
}
