//! Leases: lost, revoked, granted, renewed, and what a holder that lost one can still do (nothing).

use ff_core::Code;
use serde_json::{Value, json};

use crate::world::{World, merged, text};

async fn short_lease(w: &World, more: Value) -> (String, Value) {
    let id = w.submit(more).await;
    let task = w.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.expect("it was just submitted");
    (id, task["fence"].clone())
}

pub(crate) async fn s03_a_lost_lease_is_reclaimed_and_too_many_fail(w: World) {
    let (id, old) = short_lease(&w, json!({})).await;
    w.becomes(&id, "waiting").await;
    let view = w.get(&id).await;
    assert_eq!(view["state"]["ownership_state"], "lease_expired_reclaimable", "{view}");
    let stream = w.must("read_stream", json!({ "execution_id": id, "attempt": 0 })).await;
    assert!(stream["closed_at"].is_i64(), "{stream}");
    let complete = json!({ "execution_id": id, "fence": old });
    w.refused("complete", complete.clone(), Code::LeaseExpired).await;
    let new = w.claim().await;
    assert_eq!((new["claim_kind"].as_str(), new["fence"]["attempt"].as_u64()), (Some("reclaim"), Some(1)));
    assert_eq!(new["fence"]["epoch"], 2);
    w.refused("complete", complete, Code::StaleLease).await;
    w.complete(&id, &new["fence"], json!(1)).await;
    let policy = json!({ "policy": { "max_reclaim_count": 0 } });
    let nodes = json!([{ "name": "a", "request": merged(json!({ "kind": "test" }), policy) },
                       { "name": "b", "request": { "kind": "test" } }]);
    let flow = w.must("create_flow", json!({ "nodes": nodes, "edges": [{ "from": "a", "to": "b" }] })).await;
    w.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.expect("the first node is ready");
    let (a, b) = (&flow["executions"]["a"], &flow["executions"]["b"]);
    w.becomes(a.as_str().expect("an id"), "failed").await;
    assert_eq!(w.get(a.as_str().expect("an id")).await["last_failure"]["category"], "max_reclaims_exceeded");
    w.becomes(b.as_str().expect("an id"), "skipped").await;
}

pub(crate) async fn s04_an_old_holder_is_refused_everywhere(w: World) {
    w.must("create_budget", json!({ "name": "tokens", "dimensions": { "tokens": { "hard": 100 } } })).await;
    let (id, old) = short_lease(&w, json!({ "budget_ids": ["tokens"] })).await;
    w.becomes(&id, "waiting").await;
    let new = w.claim().await;
    let with = |more: Value| merged(json!({ "execution_id": id, "fence": old }), more);
    let frames = json!({ "first_sequence": 1, "frames": [{ "type": "t", "payload": "old" }] });
    w.refused("append_frames", with(frames), Code::StaleLease).await;
    w.refused("progress", with(json!({ "pct": 5 })), Code::StaleLease).await;
    let suspend = json!({ "reason": "signal", "condition": { "any": [] } });
    w.refused("suspend", with(suspend), Code::StaleLease).await;
    w.refused("complete", with(json!({ "result": "old" })), Code::StaleLease).await;
    w.refused("fail", with(json!({ "reason": "old" })), Code::StaleLease).await;
    w.refused("delay", with(json!({ "delay_ms": 5 })), Code::StaleLease).await;
    w.refused("cancel_execution", with(json!({})), Code::StaleLease).await;
    let renewed = w.must("renew_leases", json!({ "leases": [with(json!({}))] })).await;
    assert_eq!(renewed["results"][0]["outcome"], "lost", "{renewed}");
    w.is(&id, "active").await;
    assert_eq!(w.get(&id).await["progress"], Value::Null);
    for attempt in [0, 1] {
        let stream = w.must("read_stream", json!({ "execution_id": id, "attempt": attempt })).await;
        assert_eq!(stream["frames"], json!([]), "no old frame appears");
    }
    let usage = with(json!({ "usage": { "tokens": 7 }, "dedup_key": "u-1" }));
    w.must("report_usage", usage.clone()).await;
    let again = w.must("report_usage", usage).await;
    assert_eq!(again["budgets"]["tokens"]["outcome"], "already_applied", "{again}");
    let status = w.must("get_budget", json!({ "name": "tokens" })).await;
    assert_eq!(status["usage"]["tokens"], 7, "usage is accounting: {status}");
    w.complete(&id, &new["fence"], json!("new")).await;
}

pub(crate) async fn s05_a_repeated_call_has_one_effect(w: World) {
    let (id, fence) = w.in_hand(json!({})).await;
    let complete = json!({ "execution_id": id, "fence": fence, "result": 1 });
    let first = w.must("complete", complete.clone()).await;
    assert_eq!(w.must("complete", complete).await, first);
    let other = merged(
        json!({ "execution_id": id }),
        json!({ "fence": { "attempt": 0, "epoch": 1,
        "lease_id": "00000000-0000-7000-8000-000000000001" } }),
    );
    w.refused("complete", other, Code::ExecutionNotActive).await;

    let (id, fence) = w.in_hand(json!({})).await;
    let fail = json!({ "execution_id": id, "fence": fence, "reason": "broke" });
    let first = w.must("fail", fail.clone()).await;
    assert_eq!(w.must("fail", fail).await, first);
    w.must("cancel_execution", json!({ "execution_id": id })).await;

    let (id, fence) = w.in_hand(json!({})).await;
    let cancel = json!({ "execution_id": id, "fence": fence });
    w.must("cancel_execution", cancel.clone()).await;
    w.must("cancel_execution", cancel).await;
    w.is(&id, "cancelled").await;

    let (id, fence) = w.in_hand(json!({})).await;
    let condition = json!({ "any": [{ "name": "go" }] });
    let suspend = json!({ "execution_id": id, "fence": fence, "reason": "signal", "condition": condition, "idempotency_key": "s" });
    let first = w.must("suspend", suspend.clone()).await;
    let again = w.must("suspend", suspend).await;
    assert_eq!(
        (&again["suspension_id"], &again["waitpoint_id"], &again["token"]),
        (&first["suspension_id"], &first["waitpoint_id"], &first["token"])
    );
    let signal = json!({ "execution_id": id, "waitpoint_id": first["waitpoint_id"], "token": first["token"],
        "name": "go", "idempotency_key": "g" });
    assert_eq!(w.must("deliver_signal", signal.clone()).await["outcome"], "triggered_resume");
    assert_eq!(w.must("deliver_signal", signal).await["outcome"], "duplicate");

    let lease = "01890000-0000-7000-8000-00000000000a";
    let claim = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 5_000, "lease_ids": [lease] });
    let first = w.must("claim", claim.clone()).await;
    let again = w.must("claim", merged(claim, json!({ "retry": true }))).await;
    assert_eq!(again["tasks"][0]["fence"], first["tasks"][0]["fence"], "{again}");
    let fence = &first["tasks"][0]["fence"];
    let append =
        json!({ "execution_id": id, "fence": fence, "first_sequence": 1, "frames": [{ "type": "t", "payload": "a" }] });
    let one = w.must("append_frames", append.clone()).await;
    assert_eq!(w.must("append_frames", append).await, one);
    let stream = w.must("read_stream", json!({ "execution_id": id, "attempt": 0 })).await;
    assert_eq!(stream["frames"].as_array().map(Vec::len), Some(1));
    w.complete(&id, fence, json!(1)).await;
}

pub(crate) async fn s22_a_revoked_lease_is_told_to_its_holder(w: World) {
    w.must("register_worker", json!({ "instance_id": "w-1", "worker_id": "w", "lanes": ["default"], "nonce": "n" }))
        .await;
    let (id, fence) = w.in_hand(json!({})).await;
    let revoked = w.must("revoke_lease", json!({ "execution_id": id })).await;
    assert_eq!((revoked["outcome"].as_str(), &revoked["lease_id"]), (Some("revoked"), &fence["lease_id"]));
    w.is(&id, "waiting").await;
    assert_eq!(w.get(&id).await["state"]["ownership_state"], "lease_revoked");
    w.refused("complete", json!({ "execution_id": id, "fence": fence }), Code::LeaseRevoked).await;
    let beat = json!({ "instance_id": "w-1", "nonce": "n", "leases": [{ "execution_id": id, "fence": fence }] });
    let beat = w.must("heartbeat_worker", beat).await;
    assert_eq!(
        (beat["leases"][0]["outcome"].as_str(), beat["leases"][0]["reason"].as_str()),
        (Some("lost"), Some("revoked"))
    );
    assert_eq!(w.must("revoke_lease", json!({ "execution_id": id })).await["outcome"], "already_revoked");
    let task = w.claim().await;
    assert_eq!(task["claim_kind"], "reclaim");
    w.complete(&id, &task["fence"], json!(1)).await;
    assert_eq!(w.must("revoke_lease", json!({ "execution_id": id })).await["outcome"], "no_active_lease");
}

pub(crate) async fn s29_a_grant_reserves_for_one_worker(w: World) {
    let worker = json!({ "instance_id": "w-1", "worker_id": "w", "lanes": ["default"], "nonce": "n", "capacity": 1 });
    w.must("register_worker", worker).await;
    let id = w.submit(json!({})).await;
    let ask = |ttl: i64| json!({ "instance_id": "w-1", "lanes": ["default"], "mode": "grant", "grant_ttl_ms": ttl, "wait_ms": 5_000 });
    let grant = w.must("claim", ask(60_000)).await["grants"][0].clone();
    assert_eq!((&grant["execution_id"], grant["kind"].as_str()), (&json!(id), Some("claim")));
    w.nothing_to_claim().await;
    let claim = |instance: &str, grant: &Value| json!({ "instance_id": instance, "grant_id": grant["grant_id"], "execution_id": grant["execution_id"] });
    w.refused("claim_from_grant", claim("w-2", &grant), Code::InvalidClaimGrant).await;
    w.refused("claim_from_reclaim_grant", claim("w-1", &grant), Code::NotAResumedExecution).await;
    let task = w.must("claim_from_grant", claim("w-1", &grant)).await;
    assert_eq!(task["task"]["fence"]["lease_id"], grant["grant_id"], "{task}");
    w.is(&id, "active").await;
    let second = w.submit(json!({})).await;
    let grant = w.must("claim", ask(60_000)).await["grants"][0].clone();
    w.refused("claim_from_grant", claim("w-1", &grant), Code::WorkerAtCapacity).await;
    w.complete(&id, &task["task"]["fence"], json!(1)).await;
    let task = w.must("claim_from_grant", claim("w-1", &grant)).await;
    w.complete(&second, &task["task"]["fence"], json!(1)).await;
    let third = w.submit(json!({})).await;
    let grant = w.must("claim", ask(50)).await["grants"][0].clone();
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(third), "a lapsed grant puts it back into the queue");
    w.complete(&third, &task["fence"], json!(1)).await;
    w.refused("claim_from_grant", claim("w-1", &grant), Code::ClaimGrantExpired).await;
}

pub(crate) async fn s30_a_heartbeat_renews_each_lease_on_its_own(w: World) {
    w.must("register_worker", json!({ "instance_id": "w-1", "worker_id": "w", "lanes": ["default"], "nonce": "n" }))
        .await;
    for _ in 0..20 {
        w.submit(json!({})).await;
    }
    // All at once: one after the other, the first might be over before the last is there.
    let mut leases = Vec::new();
    while leases.len() < 20 {
        let all = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 10_000, "max_tasks": 20 - leases.len(),
            "lease_ttl_ms": 2_000 });
        for task in w.must("claim", all).await["tasks"].as_array().expect("tasks") {
            leases.push(json!({ "execution_id": task["execution_id"], "fence": task["fence"] }));
        }
    }
    w.must("revoke_lease", json!({ "execution_id": leases[7]["execution_id"] })).await;
    // Beating faster than the leases run out keeps nineteen of them for three lifetimes.
    for _ in 0..10 {
        let beat = json!({ "instance_id": "w-1", "nonce": "n", "leases": leases });
        let answer = w.must("heartbeat_worker", beat).await;
        let lost: Vec<usize> = (0..20).filter(|n| answer["leases"][n]["outcome"] != "renewed").collect();
        assert_eq!(lost, [7], "{answer}");
        let (id, _) = (&leases[0]["execution_id"], ());
        let pause = json!({ "execution_id": id, "wait_ms": 650 });
        w.must("wait_execution", pause).await;
    }
    // Ending them one after the other may take longer than one of them lives.
    let longer = leases.iter().cloned().map(|mut lease| {
        lease["lease_ttl_ms"] = json!(60_000);
        lease
    });
    w.must("renew_leases", json!({ "leases": longer.collect::<Vec<_>>() })).await;
    for (number, lease) in leases.iter().enumerate().filter(|(number, _)| *number != 7) {
        let id = lease["execution_id"].as_str().expect("an id");
        w.is(id, "active").await;
        w.complete(id, &lease["fence"], json!(number)).await;
    }
}

pub(crate) async fn s30_a_renewal_in_the_moment_of_the_expiry_holds_or_is_refused(w: World) {
    const TTL_MS: u64 = 1_000;
    for _ in 0..20 {
        w.submit(json!({})).await;
    }
    let mut leases = Vec::new();
    while leases.len() < 20 {
        let ask = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 10_000, "max_tasks": 20 - leases.len(),
            "lease_ttl_ms": TTL_MS });
        leases.extend(w.must("claim", ask).await["tasks"].as_array().expect("tasks").clone());
    }
    // Each is renewed a little later than the one before, the first in time, the last too late, and some of them while
    // the timer fires.
    let renew = async |number: usize, task: &Value| {
        let earlier = 60_u64.saturating_sub(4 * u64::try_from(number).expect("few"));
        let pause = json!({ "execution_id": task["execution_id"], "wait_ms": TTL_MS - earlier });
        w.must("wait_execution", pause).await;
        let lease = json!({ "execution_id": task["execution_id"], "fence": task["fence"], "lease_ttl_ms": 60_000 });
        let answer = w.must("renew_leases", json!({ "leases": [lease] })).await;
        answer["results"][0]["outcome"] == "renewed"
    };
    let tries = leases.iter().enumerate().map(|(number, task)| renew(number, task));
    let renewed = futures_util::future::join_all(tries).await;
    for (task, renewed) in leases.iter().zip(renewed) {
        let id = text(&task["execution_id"]);
        if renewed {
            // Once it was said, no timer takes it back.
            w.is(&id, "active").await;
            w.complete(&id, &task["fence"], json!(1)).await;
        } else {
            w.becomes(&id, "waiting").await;
            w.refused("complete", json!({ "execution_id": id, "fence": task["fence"] }), Code::LeaseExpired).await;
        }
    }
}

pub(crate) async fn s47_an_exchange_whose_reply_is_lost_is_the_same_exchange(w: World) {
    let policy = json!({ "policy": { "retry": { "max_retries": 0 } } });
    for _ in 0..40 {
        w.submit(policy.clone()).await;
    }
    let mut held = Vec::new();
    while held.len() < 20 {
        let ask =
            json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 10_000, "max_tasks": 20 - held.len() });
        held.extend(w.must("claim", ask).await["tasks"].as_array().expect("tasks").clone());
    }
    let holder = |task: &Value| json!({ "execution_id": task["execution_id"], "fence": task["fence"] });
    let end: Vec<Value> = held
        .iter()
        .enumerate()
        .map(|(number, task)| match number % 4 {
            0 => json!({ "fail": merged(holder(task), json!({ "reason": "broke" })) }),
            1 => json!({ "delay": merged(holder(task), json!({ "delay_ms": 600_000 })) }),
            _ => json!({ "complete": merged(holder(task), json!({ "result": number })) }),
        })
        .collect();
    let ids: Vec<String> = (1..=20).map(|number| format!("01890000-0000-7000-8000-0000000000{number:02}")).collect();
    let claim = json!({ "lanes": ["default"], "max_tasks": 20, "lease_ids": ids, "retry": true });
    let exchange = json!({ "instance_id": "w-1", "end": end, "claim": claim });
    // A server that has not heard of the work yet finds none of it: then the call is repeated, as after a lost reply.
    let mut first = w.must("exchange", exchange.clone()).await;
    w.until("the exchange takes something", async || {
        let some = first["claim"]["tasks"].as_array().is_some_and(|tasks| !tasks.is_empty());
        if !some {
            first = w.must("exchange", exchange.clone()).await;
        }
        some
    })
    .await;
    let again = w.must("exchange", exchange.clone()).await;
    assert_eq!(again["end"], first["end"], "{again}");
    let fences = |answer: &Value| -> Vec<Value> {
        let tasks = answer["claim"]["tasks"].as_array().expect("tasks");
        tasks.iter().map(|task| json!([task["execution_id"], task["fence"]])).collect()
    };
    // A slow claim answers before all of its leases are there; the repeat then brings these, too, and loses none.
    let found = fences(&again);
    assert!(fences(&first).iter().all(|fence| found.contains(fence)), "{first} {again}");
    for (number, (task, ended)) in held.iter().zip(first["end"].as_array().expect("endings")).enumerate() {
        let (verb, state) = match number % 4 {
            0 => ("fail", "failed"),
            1 => ("delay", "delayed"),
            _ => ("complete", "completed"),
        };
        assert!(ended[verb].is_object(), "{verb}: {ended}");
        let id = task["execution_id"].as_str().expect("an id");
        w.is(id, state).await;
        assert_eq!(w.get(id).await["attempt"], 0);
    }
    // Another worker finds the rest, and nothing that was handed out.
    let taken = again["claim"]["tasks"].as_array().expect("tasks").clone();
    let mut rest = 20 - taken.len();
    while rest > 0 {
        let task = w.claim_with(json!({ "instance_id": "w-2" })).await.expect("the rest waits");
        assert!(!taken.iter().any(|other| other["execution_id"] == task["execution_id"]));
        w.complete(task["execution_id"].as_str().expect("an id"), &task["fence"], json!(1)).await;
        rest -= 1;
    }
    w.nothing_to_claim().await;
    let end: Vec<Value> = taken.iter().map(|task| json!({ "complete": holder(task) })).collect();
    let done = w.must("exchange", json!({ "instance_id": "w-1", "end": end, "renew": [holder(&taken[0])] })).await;
    assert!(done["end"].as_array().expect("endings").iter().all(|ended| ended["complete"].is_object()), "{done}");
    assert!(done["claim"].is_null() && done["renew"].as_array().map(Vec::len) == Some(1), "{done}");
}
