//! Leases and the registry of the workers that hold them.

use crate::support::{Harness, START};
use ff_core::execution::Execution;
use ff_core::lease::ClaimKind;
use ff_core::op::parts::{LeaseLoss, RenewalOutcome};
use ff_core::op::{
    CancelExecution, Claim, Complete, CreateExecution, Delay, DeregisterWorker, Fail, GetExecution, HeartbeatWorker,
    ListWorkers, Progress, RegisterWorker, RenewLeases, RevokeLease,
};
use ff_core::{Code, ExecutionId, PartitionConfig, PublicState};
use ff_engine::Options;
use ff_store::memory::{Call, Fault, Plan};
use serde_json::{Value, json};

fn worker(nonce: &str) -> Value {
    json!({ "instance_id": "w-1", "worker_id": "w", "lanes": ["default"], "capacity": 50, "nonce": nonce })
}

/// The end of a lease as the store keeps it.
fn stored_lease_until(h: &Harness, id: &ExecutionId) -> i64 {
    h.store.inspect(|contents| {
        let contents = contents.partition(id.partition()).unwrap();
        contents.document(&Execution::key_of(id)).unwrap().lease_until
    })
}

async fn many_partitions() -> Harness {
    let partitions = PartitionConfig { flow: 4, budget: 1, quota: 1 };
    Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_outlives_its_first_end_and_one_not_renewed_does_not() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 1000 })).await.unwrap();
    for _ in 0..5 {
        h.pass(700).await;
        let renewal = json!({ "leases": [{ "execution_id": id, "fence": task.fence }] });
        let results = h.must::<RenewLeases>(renewal).await.results;
        assert!(matches!(results[0], RenewalOutcome::Renewed { .. }), "{results:?}");
    }
    assert_eq!(h.state(&id).await, PublicState::Active);
    h.pass(1_001).await;
    assert_eq!(h.state(&id).await, PublicState::Waiting);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_shorter_renewal_that_comes_late_takes_nothing_back() {
    let h = Harness::start().await;
    let other = h.second().await;
    let id = h.submit(json!({})).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 1000 })).await.unwrap();
    let renewal =
        |ttl_ms: i64| json!({ "leases": [{ "execution_id": id, "fence": task.fence, "lease_ttl_ms": ttl_ms }] });
    let results = h.must::<RenewLeases>(renewal(60_000)).await.results;
    assert!(matches!(results[0], RenewalOutcome::Renewed { expires_at, .. } if expires_at == START + 60_000));
    for server in [&other, &h] {
        let results = server.must::<RenewLeases>(renewal(1_000)).await.results;
        assert!(matches!(results[0], RenewalOutcome::Renewed { .. }), "{results:?}");
    }
    h.pass(59_000).await;
    assert_eq!(h.state(&id).await, PublicState::Active, "it was promised for a minute");
    h.pass(1_100).await;
    assert_eq!(h.state(&id).await, PublicState::Waiting);
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knew_an_earlier_lease_does_not_shorten_a_later_one() {
    let first = Harness::start().await;
    let second = first.second().await;
    let id = first.submit(json!({})).await;
    let lost = first.claim_with(json!({ "lease_ttl_ms": 5_000 })).await.unwrap();
    second.must::<RevokeLease>(json!({ "execution_id": id })).await;
    let held = second.claim_with(json!({ "lease_ttl_ms": 5_000 })).await.unwrap();
    assert_eq!((held.execution_id, held.fence.epoch.0), (id, lost.fence.epoch.0 + 1));
    let lease = json!({ "execution_id": id, "fence": held.fence, "lease_ttl_ms": 60_000 });
    let renewed = second.must::<RenewLeases>(json!({ "leases": [lease] })).await;
    let RenewalOutcome::Renewed { expires_at, .. } = renewed.results[0] else { panic!("{renewed:?}") };
    // The first server still remembers the lease that was revoked.
    for pct in [10, 20] {
        first.must::<Progress>(json!({ "execution_id": id, "fence": held.fence, "pct": pct })).await;
    }
    assert_eq!(stored_lease_until(&first, &id), expires_at);
    second.engine.close().await;
    first.finish().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_promised_more_than_the_store_keeps_after_a_lost_reply() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let id = h.submit(json!({})).await;
    let mut lost = false;
    trouble.begin(move |call| match call {
        Call::Commit { batches, .. } if batches.iter().any(|batch| !batch.leases.is_empty()) => {
            let first = !std::mem::replace(&mut lost, true);
            if first { Fault::LostReply.into() } else { Plan::default() }
        }
        _ => Plan::default(),
    });
    let task = h.claim_with(json!({ "lease_ttl_ms": 60_000 })).await.unwrap();
    trouble.end();
    let renewal = json!({ "leases": [{ "execution_id": id, "fence": task.fence, "lease_ttl_ms": 1_000 }] });
    let results = h.must::<RenewLeases>(renewal).await.results;
    let RenewalOutcome::Renewed { expires_at, .. } = results[0] else { panic!("{results:?}") };
    let kept = stored_lease_until(&h, &id);
    assert!(expires_at <= kept && task.lease_expires_at <= kept, "promised {expires_at}, kept until {kept}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_in_the_moment_of_expiry_holds_or_is_refused_and_never_both() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 1000 })).await.unwrap();
    // One millisecond before the end: acknowledged, so the timer that fires at the old end must find it alive.
    h.pass(999).await;
    let renewal = json!({ "leases": [{ "execution_id": id, "fence": task.fence }] });
    let results = h.must::<RenewLeases>(renewal.clone()).await.results;
    let expires_at = START + 1_999;
    assert!(matches!(results[0], RenewalOutcome::Renewed { expires_at: at, .. } if at == expires_at), "{results:?}");
    h.pass(500).await;
    assert_eq!(h.state(&id).await, PublicState::Active);
    h.pass(500).await;
    let results = h.must::<RenewLeases>(renewal).await.results;
    let RenewalOutcome::Lost { reason, error, .. } = &results[0] else { panic!("{results:?}") };
    assert_eq!((*reason, error.code), (LeaseLoss::Expired, Code::LeaseExpired));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_keeps_what_is_left_and_says_why_each_other_lease_is_lost() {
    let h = many_partitions().await;
    h.must::<RegisterWorker>(worker("n")).await;
    let mut tasks = Vec::new();
    for _ in 0..20 {
        h.submit(json!({})).await;
        tasks.push(h.claim_with(json!({ "lease_ttl_ms": 5000 })).await.unwrap());
    }
    h.must::<RevokeLease>(json!({ "execution_id": tasks[3].execution_id })).await;
    h.must::<CancelExecution>(json!({ "execution_id": tasks[4].execution_id })).await;
    h.must::<Complete>(json!({ "execution_id": tasks[5].execution_id, "fence": tasks[5].fence })).await;
    h.pass(3_000).await;
    let leases: Vec<_> =
        tasks.iter().map(|task| json!({ "execution_id": task.execution_id, "fence": task.fence })).collect();
    let beat = json!({ "instance_id": "w-1", "nonce": "n", "leases": leases });
    let answer = h.must::<HeartbeatWorker>(beat).await;
    assert_eq!(answer.expires_at, START + 3_000 + 60_000);
    for (place, outcome) in answer.leases.iter().enumerate() {
        let expected = match place {
            3 => Some(LeaseLoss::Revoked),
            4 => Some(LeaseLoss::Cancelled),
            5 => Some(LeaseLoss::Stale),
            _ => None,
        };
        match outcome {
            RenewalOutcome::Renewed { execution_id, expires_at, .. } => {
                assert_eq!((*execution_id, expected), (tasks[place].execution_id, None));
                assert_eq!(*expires_at, START + 8_000);
            }
            RenewalOutcome::Lost { reason, .. } => assert_eq!(Some(*reason), expected),
            RenewalOutcome::Failed { .. } | RenewalOutcome::Unknown(_) => panic!("{outcome:?}"),
        }
    }
    h.pass(4_000).await;
    assert_eq!(h.state(&tasks[0].execution_id).await, PublicState::Active);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_old_holder_is_refused_everything_after_a_reclaim() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let old = h.claim_with(json!({ "lease_ttl_ms": 1000 })).await.unwrap();
    h.pass(1_001).await;
    assert_eq!(h.refused::<Complete>(json!({ "execution_id": id, "fence": old.fence })).await, Code::LeaseExpired);
    let new = h.claim().await.unwrap();
    assert_eq!((new.claim_kind, new.fence.attempt.0, new.fence.epoch.0), (ClaimKind::Reclaim, 1, 2));
    let before = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    let call = |more: Value| {
        let mut args = json!({ "execution_id": id, "fence": old.fence });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args
    };
    assert_eq!(h.refused::<Complete>(call(json!({}))).await, Code::StaleLease);
    assert_eq!(h.refused::<Fail>(call(json!({ "reason": "x" }))).await, Code::StaleLease);
    assert_eq!(h.refused::<Delay>(call(json!({ "delay_ms": 5 }))).await, Code::StaleLease);
    assert_eq!(h.refused::<Progress>(call(json!({ "pct": 5 }))).await, Code::StaleLease);
    assert_eq!(h.refused::<CancelExecution>(call(json!({}))).await, Code::StaleLease);
    let results = h.must::<RenewLeases>(json!({ "leases": [call(json!({}))] })).await.results;
    assert!(matches!(&results[0], RenewalOutcome::Lost { reason: LeaseLoss::Stale, .. }), "{results:?}");
    assert_eq!(h.must::<GetExecution>(json!({ "execution_id": id })).await, before);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn too_many_lost_leases_fail_the_execution() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "policy": { "max_reclaim_count": 1 } })).await;
    for _ in 0..2 {
        h.claim_with(json!({ "lease_ttl_ms": 1000 })).await.unwrap();
        h.pass(1_001).await;
    }
    let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(view.public_state, PublicState::Failed);
    assert_eq!(view.last_failure.unwrap().category.as_deref(), Some("max_reclaims_exceeded"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_claim_returns_the_same_leases_and_a_repeated_create_the_same_execution() {
    let h = many_partitions().await;
    let id = ff_core::ExecutionId::in_partition(
        ff_core::Partition::flow(2),
        &ff_core::Mint { now_ms: START, random: [7; 10] },
    );
    let create = json!({ "kind": "test", "execution_id": id, "input": 1 });
    assert!(!h.must::<CreateExecution>(create.clone()).await.duplicate);
    assert!(h.must::<CreateExecution>(create).await.duplicate);
    let other = json!({ "kind": "test", "execution_id": id, "input": 2 });
    assert_eq!(h.refused::<CreateExecution>(other).await, Code::IdempotencyConflict);
    h.submit(json!({})).await;
    let ids = ["00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002"];
    let claim = json!({ "instance_id": "w-1", "lanes": ["default"], "max_tasks": 2, "lease_ids": ids });
    let mut retry = claim.clone();
    retry["retry"] = json!(true);
    let mut first = h.must::<Claim>(claim).await.tasks;
    let mut again = h.must::<Claim>(retry.clone()).await.tasks;
    first.sort_by_key(|task| task.execution_id);
    again.sort_by_key(|task| task.execution_id);
    assert_eq!(first.len(), 2);
    assert_eq!(again, first);
    retry["instance_id"] = json!("w-2");
    assert_eq!(h.must::<Claim>(retry).await.tasks, [], "the leases of another process are not handed out");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_process_with_the_same_instance_id_is_refused_until_the_first_is_gone() {
    let h = Harness::start().await;
    let answer = h.must::<RegisterWorker>(worker("first")).await;
    assert_eq!((answer.ttl_ms, answer.expires_at), (60_000, START + 60_000));
    assert_eq!(h.refused::<RegisterWorker>(worker("second")).await, Code::DuplicateWorkerInstance);
    let beat = |nonce: &str| json!({ "instance_id": "w-1", "nonce": nonce });
    assert_eq!(h.refused::<HeartbeatWorker>(beat("second")).await, Code::DuplicateWorkerInstance);
    for _ in 0..4 {
        h.pass(50_000).await;
        h.must::<HeartbeatWorker>(beat("first")).await;
    }
    h.pass(60_001).await;
    assert_eq!(h.refused::<HeartbeatWorker>(beat("first")).await, Code::WorkerNotFound);
    assert_eq!(h.must::<ListWorkers>(json!({})).await.items, []);
    h.must::<RegisterWorker>(worker("second")).await;
    let wrong = json!({ "instance_id": "w-1", "nonce": "first" });
    assert_eq!(h.refused::<DeregisterWorker>(wrong).await, Code::DuplicateWorkerInstance);
    assert!(h.must::<DeregisterWorker>(json!({ "instance_id": "w-1", "nonce": "second" })).await.changed);
    assert!(!h.must::<DeregisterWorker>(json!({ "instance_id": "w-1" })).await.changed);
    h.must::<RegisterWorker>(worker("third")).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_list_of_workers_shows_their_leases_and_goes_on_behind_its_cursor() {
    let h = many_partitions().await;
    for n in 0..5 {
        let mut args = worker("n");
        args["instance_id"] = json!(format!("{n}-worker"));
        if n == 4 {
            args["lanes"] = json!(["other"]);
        }
        h.must::<RegisterWorker>(args).await;
    }
    for _ in 0..3 {
        h.submit(json!({})).await;
        h.claim_with(json!({ "instance_id": "1-worker" })).await.unwrap();
    }
    let mut seen = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let mut args = json!({ "limit": 2, "lane": "default" });
        if !cursor.is_null() {
            args["cursor"] = cursor;
        }
        let page = h.must::<ListWorkers>(args).await;
        seen.extend(page.items.into_iter().map(|worker| (worker.instance_id, worker.leases_held)));
        match page.next_cursor {
            Some(next) => cursor = json!(next),
            None => break,
        }
    }
    let expected = [("0-worker", 0), ("1-worker", 3), ("2-worker", 0), ("3-worker", 0)];
    assert_eq!(seen, expected.map(|(name, held)| (name.to_owned(), held)));
    assert_eq!(h.refused::<ListWorkers>(json!({ "cursor": "?" })).await, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_engine_takes_over_when_the_first_stops_or_dies() {
    let h = many_partitions().await;
    let env = std::sync::Arc::new(ff_engine::env::TokioEnv::current());
    let second = ff_engine::Engine::start(h.store.clone(), env, Options::default()).await.unwrap();
    let id = h.submit(json!({})).await;
    h.claim_with(json!({ "lease_ttl_ms": 1000 })).await.unwrap();
    h.engine.close().await;
    h.pass(1_000 + 400).await;
    let view = second.call::<GetExecution>(&h.caller, serde_json::from_value(json!({ "execution_id": id })).unwrap());
    assert_eq!(view.await.unwrap().public_state, PublicState::Waiting);
    h.check();
    second.close().await;
    let servers = h.store.inspect(|contents| {
        let system = contents.partitions().find(|(partition, _)| *partition == ff_core::Partition::SYSTEM);
        system.map_or(0, |(_, contents)| contents.documents().filter(|(key, _)| key.kind() == b'S').count())
    });
    assert_eq!(servers, 0, "whoever stops leaves the registry");
}
