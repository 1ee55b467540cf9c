//! Work of different keys takes turns in a lane, at every server.

use crate::reconcile::damage;
use crate::support::Harness;
use ff_core::execution::Execution;
use ff_core::op::view::ExecutionView;
use ff_core::op::{
    Claim, Complete, CreateBudget, CreateExecutions, CreateQuota, ListExecutions, ReportBudgetUsage, ResetBudget,
    SetBudgetLimits,
};
use ff_core::{ExecutionId, Family, PartitionConfig, index};
use ff_engine::Options;
use ff_store::EntryChange;
use ff_store::memory::{Call, Plan};
use serde_json::{Value, json};

/// Submits so many under one key.
async fn flood(h: &Harness, key: &str, count: usize) {
    for chunk in (0..count).collect::<Vec<_>>().chunks(1_000) {
        let items: Vec<_> = chunk.iter().map(|_| json!({ "kind": "test", "fair_key": key })).collect();
        h.must::<CreateExecutions>(json!({ "executions": items })).await;
    }
}

async fn claim(h: &Harness) -> ff_core::op::view::Task {
    h.claim_with(json!({ "wait_ms": 1_000 })).await.expect("something waits")
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_after_thousands_of_another_key_is_claimed_within_two_claims_at_each_server() {
    let h = Harness::start().await;
    let servers = [h.second().await, h.second().await];
    flood(&h, "a", 3_000).await;
    for (number, server) in [&h, &servers[0], &servers[1]].into_iter().enumerate() {
        // It has served the crowd for a while.
        for _ in 0..20 {
            claim(server).await;
        }
        let late = h.submit(json!({ "fair_key": format!("late-{number}") })).await;
        h.pass(100).await;
        let next: Vec<ExecutionId> = [claim(server).await, claim(server).await].map(|task| task.execution_id).to_vec();
        assert!(next.contains(&late), "server {number} claimed {next:?}, not {late}");
    }
    for server in servers {
        server.engine.close().await;
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn small_tenants_are_through_after_twice_their_number_of_claims() {
    let h = Harness::start().await;
    flood(&h, "a", 2_000).await;
    claim(&h).await;
    for key in ["b", "c", "d"] {
        flood(&h, key, 10).await;
    }
    let mut last = 0;
    for place in 1..=60 {
        let task = claim(&h).await;
        let view = h.must::<ff_core::op::GetExecution>(json!({ "execution_id": task.execution_id })).await;
        if view.fair_key.as_deref() != Some("a") {
            last = place;
        }
    }
    assert!((30..=60).contains(&last), "the last of thirty was claim {last}");
    assert!(last <= 44, "four keys take turns: thirty of three are through after forty claims, not {last}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_of_weight_three_gets_three_turns_and_priority_goes_before_turns() {
    let h = Harness::start().await;
    for _ in 0..40 {
        h.submit(json!({ "fair_key": "light" })).await;
        h.submit(json!({ "fair_key": "heavy", "fair_weight": 3 })).await;
    }
    let urgent = h.submit(json!({ "fair_key": "light", "priority": 1 })).await;
    assert_eq!(claim(&h).await.execution_id, urgent);
    let args = json!({ "instance_id": "w-1", "lanes": ["default"], "max_tasks": 20, "wait_ms": 1_000 });
    let tasks = h.must::<Claim>(args).await.tasks;
    assert_eq!(tasks.len(), 20);
    let mut heavy = 0;
    for task in &tasks {
        let view = h.must::<ff_core::op::GetExecution>(json!({ "execution_id": task.execution_id })).await;
        heavy += usize::from(view.fair_key.as_deref() == Some("heavy"));
    }
    assert!((14..=16).contains(&heavy), "{heavy} of 20");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn work_without_a_key_takes_turns_as_one_and_runs_to_the_end() {
    let h = Harness::start().await;
    for _ in 0..5 {
        h.submit(json!({})).await;
    }
    flood(&h, "a", 5).await;
    flood(&h, "b", 5).await;
    let mut kinds = Vec::new();
    for _ in 0..15 {
        let task = claim(&h).await;
        let view = h.must::<ff_core::op::GetExecution>(json!({ "execution_id": task.execution_id })).await;
        kinds.push(view.fair_key.unwrap_or_default());
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    for round in kinds.chunks(3) {
        let mut sorted = round.to_vec();
        sorted.sort();
        assert_eq!(sorted, ["", "a", "b"], "{kinds:?}");
    }
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_does_not_wait_until_every_key_of_its_lane_is_known() {
    const KEYS: usize = 3_000;
    const READ_MS: u64 = 10;
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let all: Vec<Value> =
        (0..KEYS).map(|number| json!({ "kind": "test", "fair_key": format!("tenant-{number:06}") })).collect();
    for some in all.chunks(300) {
        h.must::<CreateExecutions>(json!({ "executions": some })).await;
    }
    trouble.begin(|call| match call {
        Call::Read { partition, .. } if partition.family == Family::Flow => {
            let pause = tokio::time::sleep(std::time::Duration::from_millis(READ_MS));
            Plan { before: Some(Box::pin(pause)), ..Plan::default() }
        }
        _ => Plan::default(),
    });
    let began = h.engine.now();
    claim(&h).await;
    let took = h.engine.now() - began;
    assert!(took <= 100, "the first of {KEYS} keys was served after {took} ms");
    // All that was not known then is found by the claims that follow.
    let mut keys = std::collections::BTreeSet::new();
    for _ in 0..KEYS / 100 {
        let args = json!({ "instance_id": "w-1", "lanes": ["default"], "max_tasks": 100, "wait_ms": 1_000 });
        keys.extend(h.must::<Claim>(args).await.tasks.into_iter().map(|task| task.execution_id));
    }
    while let Some(task) = h.claim_with(json!({ "wait_ms": 1_000 })).await {
        keys.insert(task.execution_id);
    }
    assert_eq!(keys.len(), KEYS - 1);
    trouble.end();
    h.finish().await;
}

/// A gate that one execution fills, or that lets in one for each opening.
const NARROW: [&str; 3] = ["quota", "key", "budget"];

/// Parks executions behind a narrow gate that is full. Each has an open budget of its own beside it, so that each is
/// examined. Answers with what holds the gate.
async fn park_behind(h: &Harness, gate: &str, all: &[Value]) -> Option<ff_core::op::view::Task> {
    let behind = |more: &Value, own: Option<String>| {
        let mut args = more.as_object().expect("an object").clone();
        let mut budgets: Vec<String> = own.into_iter().collect();
        match gate {
            "quota" => drop(args.insert("quota_policy_id".into(), json!("narrow"))),
            "key" => drop(args.insert("concurrency".into(), json!([{ "key": "narrow", "limit": 1 }]))),
            _ => budgets.push("narrow".into()),
        }
        args.insert("budget_ids".into(), json!(budgets));
        Value::Object(args)
    };
    h.must::<CreateQuota>(json!({ "name": "narrow", "max_concurrent": 1 })).await;
    h.must::<CreateBudget>(json!({ "name": "narrow", "dimensions": { "tokens": { "hard": 1 } } })).await;
    let holder = match gate {
        "budget" => {
            h.must::<ReportBudgetUsage>(json!({ "name": "narrow", "usage": { "tokens": 1 } })).await;
            None
        }
        _ => {
            h.submit(behind(&json!({ "fair_key": "a" }), None)).await;
            Some(claim(h).await)
        }
    };
    for (number, one) in all.iter().enumerate() {
        let own = format!("own-{number}");
        h.must::<CreateBudget>(json!({ "name": own, "dimensions": { "tokens": { "hard": 1_000 } } })).await;
        h.submit(behind(one, Some(own))).await;
        h.pass(1).await;
    }
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    let parked = h.must::<ListExecutions>(json!({ "state": "rate_limited", "limit": 200 })).await;
    assert_eq!(parked.items.len(), all.len(), "all of them are parked ({gate})");
    holder
}

/// The next so many that a narrow gate lets in, one after the other.
async fn let_in(
    h: &Harness,
    gate: &str,
    mut holder: Option<ff_core::op::view::Task>,
    count: usize,
) -> Vec<ExecutionView> {
    let mut started = Vec::new();
    for _ in 0..count {
        match holder.take() {
            Some(held) => {
                h.must::<Complete>(json!({ "execution_id": held.execution_id, "fence": held.fence })).await;
            }
            None => {
                h.must::<ResetBudget>(json!({ "name": "narrow" })).await;
            }
        }
        let task = claim(h).await;
        started.push(h.must::<ff_core::op::GetExecution>(json!({ "execution_id": task.execution_id })).await);
        if gate == "budget" {
            h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
            h.must::<ReportBudgetUsage>(json!({ "name": "narrow", "usage": { "tokens": 1 } })).await;
        } else {
            holder = Some(task);
        }
    }
    started
}

#[tokio::test(start_paused = true)]
async fn keys_take_turns_also_when_they_wait_parked_behind_a_gate() {
    for gate in NARROW {
        for options in [Options::default(), Options { partitions: Some(PartitionConfig::SINGLE), ..Options::default() }]
        {
            let h = Harness::with(options).await;
            let mut all = vec![json!({ "fair_key": "a" }); 29];
            all.push(json!({ "fair_key": "b" }));
            all.push(json!({}));
            let holder = park_behind(&h, gate, &all).await;
            let keys: Vec<String> = let_in(&h, gate, holder, 4).await.into_iter().map(key_of).collect();
            assert!(keys[..3].contains(&"b".to_owned()), "{gate}: {keys:?}");
            assert!(keys[..3].contains(&String::new()), "{gate}: work without a key has its turn, too: {keys:?}");
            assert!(keys.contains(&"a".to_owned()), "{gate}: {keys:?}");
            h.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn priority_goes_before_turns_among_parked_work_too() {
    for gate in NARROW {
        let h = Harness::start().await;
        let mut all = vec![json!({ "fair_key": "a" }); 5];
        all.extend([json!({ "fair_key": "b" }), json!({ "fair_key": "a", "priority": 3 })]);
        all.extend([json!({ "fair_key": "a", "priority": 3 }), json!({ "priority": 9 })]);
        let holder = park_behind(&h, gate, &all).await;
        let started = let_in(&h, gate, holder, 5).await;
        let order: Vec<i64> = started.iter().map(|view| view.priority).collect();
        assert_eq!(order[..3], [9, 3, 3], "{gate}: {order:?}");
        assert!(started[3..].iter().any(|view| view.fair_key.as_deref() == Some("b")), "{gate}");
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_of_weight_three_has_three_turns_at_a_gate_for_one_of_another() {
    let h = Harness::start().await;
    let heavy = json!({ "fair_key": "heavy", "fair_weight": 3 });
    let all: Vec<Value> =
        (0..40).map(|number| if number % 2 == 0 { heavy.clone() } else { json!({ "fair_key": "light" }) }).collect();
    let holder = park_behind(&h, "quota", &all).await;
    let keys: Vec<String> = let_in(&h, "quota", holder, 20).await.into_iter().map(key_of).collect();
    let share = keys.iter().filter(|key| *key == "heavy").count();
    assert!((14..=16).contains(&share), "{share} of 20: {keys:?}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_opens_wide_lets_in_every_key_however_many_there_are() {
    let single = Options { partitions: Some(PartitionConfig::SINGLE), ..Options::default() };
    for (options, keys) in [(single.clone(), 150), (Options { chunk_max: 2, ..single }, 15)] {
        let h = Harness::with(options).await;
        let all: Vec<Value> = (0..keys).map(|number| json!({ "fair_key": format!("tenant-{number}") })).collect();
        park_behind(&h, "budget", &all).await;
        h.must::<SetBudgetLimits>(json!({ "name": "narrow", "dimensions": { "tokens": { "hard": 1_000 } } })).await;
        let parked = h.must::<ListExecutions>(json!({ "state": "rate_limited", "limit": 200 })).await.items;
        assert!(parked.is_empty(), "{} of {keys} are left", parked.len());
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_of_parked_work_that_an_earlier_version_left_behind_stands_in_nobodys_way() {
    let h = Harness::with(Options { partitions: Some(PartitionConfig::SINGLE), ..Options::default() }).await;
    let ended = h.submit(json!({ "fair_key": "b" })).await;
    let task = claim(&h).await;
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    let holder = park_behind(&h, "quota", &[json!({ "fair_key": "b" })]).await;
    let (index, member) = (index::blocked_by_key("default", "q:narrow", "b"), Execution::key_of(&ended));
    damage(&h, &member, EntryChange::Set { index, member: member.clone(), score: 0 }).await;
    assert_eq!(let_in(&h, "quota", holder, 1).await.len(), 1, "it starts within a second");
    h.finish().await;
}

fn key_of(view: ExecutionView) -> String {
    view.fair_key.unwrap_or_default()
}
