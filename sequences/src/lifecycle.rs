//! Creating, completing, failing, timing out, replaying, streaming, cancelling, forgetting.

use ff_core::Code;
use serde_json::json;

use crate::world::{World, merged, no_retries, text};

pub(crate) async fn s01_a_task_is_created_claimed_renewed_and_completed(w: World) {
    let id = w.submit(json!({ "input_base64": "AAECA/8=" })).await;
    w.is(&id, "waiting").await;
    let task = w.claim().await;
    assert_eq!((task["claim_kind"].as_str(), task["fence"]["attempt"].as_u64()), (Some("initial"), Some(0)));
    assert_eq!(task["fence"]["epoch"], 1);
    assert_eq!(task["input"]["payload_base64"], "AAECA/8=");
    w.is(&id, "active").await;
    let lease = json!({ "execution_id": id, "fence": task["fence"] });
    let renewed = w.must("renew_leases", json!({ "leases": [lease] })).await;
    assert_eq!(renewed["results"][0]["outcome"], "renewed", "{renewed}");
    let complete = json!({ "execution_id": id, "fence": task["fence"], "result_base64": "/wD/" });
    assert_eq!(w.must("complete", complete).await["public_state"], "completed");
    let result = w.must("get_result", json!({ "execution_id": id })).await;
    assert_eq!(result["payload_base64"], "/wD/");
    w.nothing_to_claim().await;
    let listed = w.must("list_executions", json!({ "state": "completed" })).await;
    assert_eq!(listed["items"][0]["execution_id"], json!(id));
    assert_eq!(w.must("list_executions", json!({ "state": "waiting" })).await["items"], json!([]));
}

pub(crate) async fn s02_a_failure_is_retried_once_and_then_final(w: World) {
    let retry = json!({ "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 100 } } } });
    let (id, fence) = w.in_hand(json!({ "policy": retry })).await;
    let fail = |fence| json!({ "execution_id": id, "fence": fence, "reason": "broke", "category": "io" });
    assert_eq!(w.must("fail", fail(fence)).await["outcome"], "retry_scheduled");
    w.is(&id, "delayed").await;
    let again = w.claim().await;
    assert_eq!((again["claim_kind"].as_str(), again["fence"]["attempt"].as_u64()), (Some("retry"), Some(1)));
    assert_eq!(again["fence"]["epoch"], 2);
    assert_eq!(w.must("fail", fail(again["fence"].clone())).await["outcome"], "terminal_failed");
    w.is(&id, "failed").await;
    assert_eq!(w.get(&id).await["last_failure"]["category"], "io");
}

pub(crate) async fn s18_deadlines_and_attempt_timeouts(w: World) {
    let deadline = json!({ "policy": { "timeout": { "execution_deadline_ms": 400 } } });
    let (active, fence) = w.in_hand(deadline.clone()).await;
    let (suspended, other) = w.in_hand(deadline.clone()).await;
    let suspend = json!({ "execution_id": suspended, "fence": other, "reason": "signal", "condition": { "any": [] } });
    let asked = w.must("suspend", suspend).await;
    let delayed = w.submit(merged(deadline.clone(), json!({ "delay_until": 4_000_000_000_000i64 }))).await;
    let held = w.submit(deadline.clone()).await;
    w.must("hold_execution", json!({ "execution_id": held })).await;
    let flow = w.must("create_flow", json!({ "kind": "test" })).await;
    let upstream = w.submit(json!({ "flow_id": flow["flow_id"], "delay_until": 4_000_000_000_000i64 })).await;
    let waits = json!({ "flow_id": flow["flow_id"], "dependencies": [{ "upstream": upstream }] });
    let blocked = w.submit(merged(deadline.clone(), waits)).await;
    w.must("create_budget", json!({ "name": "spent", "dimensions": { "tokens": { "hard": 1 } } })).await;
    w.must("report_budget_usage", json!({ "name": "spent", "usage": { "tokens": 1 } })).await;
    let unpaid = w.submit(merged(deadline.clone(), json!({ "budget_ids": ["spent"] }))).await;
    for id in [&active, &suspended, &delayed, &held, &blocked, &unpaid] {
        w.becomes(id, "expired").await;
        let state = w.get(id).await["state"].clone();
        assert_eq!(
            (&state["ownership_state"], &state["eligibility_state"]),
            (&json!("unowned"), &json!("not_applicable"))
        );
    }
    w.nothing_to_claim().await;
    // Nothing waits for them any more: no signal, no frame, no lease.
    let signal = json!({ "execution_id": suspended, "waitpoint_id": asked["waitpoint_id"], "token": asked["token"],
        "name": "late" });
    w.refused("deliver_signal", signal, Code::WaitpointClosed).await;
    for id in [&active, &suspended] {
        let stream = w.must("read_stream", json!({ "execution_id": id, "attempt": 0 })).await;
        assert!(stream["closed_at"].is_i64(), "{stream}");
    }
    let renewed = w.must("renew_leases", json!({ "leases": [{ "execution_id": active, "fence": fence }] })).await;
    assert_eq!(renewed["results"][0]["outcome"], "lost", "{renewed}");
    // What an expired one held is free again: the next under the same quota and key runs.
    w.must("create_quota", json!({ "name": "one", "max_concurrent": 1 })).await;
    let held = json!({ "quota_policy_id": "one", "concurrency": [{ "key": "door", "limit": 1 }] });
    let (holder, _) = w.in_hand(merged(deadline, held.clone())).await;
    let next = w.submit(held).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(next), "the slot of the one that expired");
    w.is(&holder, "expired").await;
    w.complete(&next, &task["fence"], json!(1)).await;
    let complete = json!({ "execution_id": active, "fence": fence });
    let details = w.refused("complete", complete, Code::ExecutionNotActive).await;
    assert_eq!(details["terminal_outcome"], "expired");
    let policy = json!({ "timeout": { "attempt_timeout_ms": 200 },
        "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 50 } } } });
    let (timed, _) = w.in_hand(json!({ "policy": policy })).await;
    let again = w.claim().await;
    assert_eq!((again["execution_id"].as_str(), again["claim_kind"].as_str()), (Some(timed.as_str()), Some("retry")));
    w.becomes(&timed, "failed").await;
    assert_eq!(w.get(&timed).await["last_failure"]["category"], "timeout");
}

pub(crate) async fn s19_every_end_can_be_replayed(w: World) {
    let (completed, fence) = w.in_hand(json!({ "policy": { "max_replay_count": 10 } })).await;
    w.complete(&completed, &fence, json!("first")).await;
    let (failed, _) = {
        let id = w.submit(no_retries()).await;
        let task = w.claim().await;
        w.fail_for_good(&task).await;
        (id, task)
    };
    let cancelled = w.submit(json!({})).await;
    w.must("cancel_execution", json!({ "execution_id": cancelled })).await;
    let expired = w.submit(json!({ "deadline_at": 1_000 })).await;
    w.becomes(&expired, "expired").await;
    let flow = w.must("create_flow", json!({ "kind": "test" })).await;
    let member = |more: serde_json::Value| merged(merged(json!({ "flow_id": flow["flow_id"] }), no_retries()), more);
    let upstream = w.submit(member(json!({}))).await;
    let skipped = w.submit(member(json!({ "dependencies": [{ "upstream": upstream }] }))).await;
    let task = w.claim().await;
    w.fail_for_good(&task).await;
    w.becomes(&skipped, "skipped").await;
    for id in [&completed, &failed, &cancelled, &expired] {
        let replayed = w.must("replay_execution", json!({ "execution_id": id })).await;
        assert_eq!((replayed["public_state"].as_str(), replayed["replay_count"].as_u64()), (Some("waiting"), Some(1)));
        let task = w.claim().await;
        assert_eq!((task["execution_id"].as_str(), task["claim_kind"].as_str()), (Some(id.as_str()), Some("replay")));
        w.refused("replay_execution", json!({ "execution_id": id }), Code::ExecutionNotTerminal).await;
        w.complete(id, &task["fence"], json!("second")).await;
    }
    for _ in 2..=10 {
        w.must("replay_execution", json!({ "execution_id": completed })).await;
        let result = w.must("get_result", json!({ "execution_id": completed })).await;
        assert!(result["payload"].is_string(), "the previous result stays: {result}");
        w.must("cancel_execution", json!({ "execution_id": completed })).await;
    }
    w.refused("replay_execution", json!({ "execution_id": completed }), Code::MaxReplaysExhausted).await;

    // A skipped member waits again for what had failed, and runs when that has succeeded after all.
    let replayed = w.must("replay_execution", json!({ "execution_id": skipped })).await;
    assert_eq!(replayed["public_state"], "waiting_children", "{replayed}");
    w.must("replay_execution", json!({ "execution_id": upstream })).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(upstream));
    w.complete(&upstream, &task["fence"], json!(1)).await;
    let task = w.claim().await;
    assert_eq!((task["execution_id"].as_str(), task["claim_kind"].as_str()), (Some(skipped.as_str()), Some("replay")));
    w.complete(&skipped, &task["fence"], json!(2)).await;
}

pub(crate) async fn s21_a_stream_is_appended_read_tailed_and_closed(w: World) {
    let (id, fence) = w.in_hand(json!({})).await;
    let append = |first: u64, texts: &[&str], fence: &serde_json::Value| {
        let frames: Vec<_> = texts.iter().map(|text| json!({ "type": "token", "payload": text })).collect();
        json!({ "execution_id": id, "fence": fence, "first_sequence": first, "frames": frames })
    };
    let three = append(1, &["a", "b", "c"], &fence);
    assert_eq!(w.must("append_frames", three.clone()).await["last_sequence"], 3);
    assert_eq!(w.must("append_frames", three).await["last_sequence"], 3, "the same frames again");
    let read = w.must("read_stream", json!({ "execution_id": id, "attempt": 0 })).await;
    assert_eq!(read["frames"].as_array().map(Vec::len), Some(3), "{read}");
    let tail = json!({ "execution_id": id, "attempt": 0, "after": "0-3", "block_ms": 10_000 });
    let fourth = append(4, &["d"], &fence);
    let (tailed, _) = tokio::join!(w.must("tail_stream", tail), w.must("append_frames", fourth));
    assert_eq!(tailed["frames"][0]["id"], "0-4", "{tailed}");
    let suspend = json!({ "execution_id": id, "fence": fence, "reason": "signal", "condition": { "any": [] } });
    let suspended = w.must("suspend", suspend).await;
    let open = w.must("read_stream", json!({ "execution_id": id, "attempt": 0 })).await;
    assert!(open["closed_at"].is_null(), "a suspended attempt's stream stays open: {open}");
    let waitpoint = (&suspended["waitpoint_id"], &suspended["token"]);
    let signal = json!({ "execution_id": id, "waitpoint_id": waitpoint.0, "token": waitpoint.1, "name": "go" });
    w.must("deliver_signal", signal).await;
    let task = w.claim().await;
    assert_eq!(task["next_frame_sequence"], 5, "{task}");
    let tail = json!({ "execution_id": id, "attempt": 0, "after": "0-4", "block_ms": 10_000 });
    let result = json!("done");
    let (tailed, _) = tokio::join!(w.must("tail_stream", tail), w.complete(&id, &task["fence"], result));
    assert!(tailed["closed_at"].is_i64(), "the end wakes the tail: {tailed}");
    w.refused("append_frames", append(5, &["e"], &task["fence"]), Code::StreamClosed).await;
}

pub(crate) async fn s23_cancel_ends_every_state(w: World) {
    let waiting = w.submit(json!({ "lane": "elsewhere" })).await;
    let delayed = w.submit(json!({ "delay_until": 4_000_000_000_000i64 })).await;
    let held = w.submit(json!({})).await;
    w.must("hold_execution", json!({ "execution_id": held })).await;
    let (active, fence) = w.in_hand(json!({})).await;
    let (suspended, other) = w.in_hand(json!({})).await;
    let suspend =
        json!({ "execution_id": suspended, "fence": other, "reason": "approval", "condition": { "any": [] } });
    w.must("suspend", suspend).await;
    let flow = w.must("create_flow", json!({ "kind": "test" })).await;
    let upstream = w.submit(json!({ "flow_id": flow["flow_id"], "delay_until": 4_000_000_000_000i64 })).await;
    let waits = json!({ "flow_id": flow["flow_id"], "dependencies": [{ "upstream": upstream }] });
    let blocked = w.submit(waits).await;
    w.must("create_budget", json!({ "name": "spent", "dimensions": { "tokens": { "hard": 1 } } })).await;
    w.must("report_budget_usage", json!({ "name": "spent", "usage": { "tokens": 1 } })).await;
    let unpaid = w.submit(json!({ "budget_ids": ["spent"], "lane": "unpaid" })).await;
    w.until("the one without money is held back", async || {
        assert!(w.claim_with(json!({ "lanes": ["unpaid"], "wait_ms": 0 })).await.is_none());
        w.state(&unpaid).await == "rate_limited"
    })
    .await;
    let retried = w.submit(json!({ "lane": "retried" })).await;
    let task = w.claim_with(json!({ "lanes": ["retried"] })).await.expect("the one to retry");
    w.must("fail", json!({ "execution_id": retried, "fence": task["fence"], "reason": "broke" })).await;
    let granted = w.submit(json!({ "lane": "granted" })).await;
    let ask = json!({ "instance_id": "w-1", "lanes": ["granted"], "mode": "grant", "grant_ttl_ms": 60_000, "wait_ms": 10_000 });
    let grant = w.must("claim", ask).await["grants"][0].clone();
    assert_eq!(grant["execution_id"], json!(granted));
    let claimed_in = async |lane: &str| {
        let id = w.submit(json!({ "lane": lane })).await;
        let task = w.claim_with(json!({ "lanes": [lane] })).await.expect("it waits in its lane");
        (id, task["fence"].clone())
    };
    let (revoked, _) = claimed_in("revoked").await;
    w.must("revoke_lease", json!({ "execution_id": revoked })).await;
    let (resumed, lease) = claimed_in("resumed").await;
    let suspend = json!({ "execution_id": resumed, "fence": lease, "reason": "signal", "condition": { "any": [] } });
    let asked = w.must("suspend", suspend).await;
    let signal = json!({ "execution_id": resumed, "waitpoint_id": asked["waitpoint_id"], "token": asked["token"],
        "name": "go" });
    w.must("deliver_signal", signal).await;
    let unroutable = w.submit(json!({ "lane": "elsewhere", "required_capabilities": ["gpu"] })).await;
    for (id, state) in [(&revoked, "waiting"), (&resumed, "waiting"), (&suspended, "suspended"), (&active, "active")] {
        w.is(id, state).await;
    }
    let all = [
        &waiting,
        &delayed,
        &held,
        &active,
        &suspended,
        &blocked,
        &unpaid,
        &retried,
        &granted,
        &revoked,
        &resumed,
        &unroutable,
    ];
    for id in all {
        let answer = w.must("cancel_execution", json!({ "execution_id": id, "reason": "enough" })).await;
        assert_eq!(answer["outcome"], "cancelled", "{answer}");
        w.is(id, "cancelled").await;
        let again = w.must("cancel_execution", json!({ "execution_id": id })).await;
        assert_eq!(
            (again["outcome"].as_str(), again["public_state"].as_str()),
            (Some("already_terminal"), Some("cancelled"))
        );
    }
    w.refused("complete", json!({ "execution_id": active, "fence": fence }), Code::LeaseRevoked).await;
    w.nothing_to_claim().await;
    for lane in ["elsewhere", "unpaid", "retried", "granted", "revoked", "resumed"] {
        let ask = json!({ "lanes": [lane], "capabilities": ["gpu"], "wait_ms": 0 });
        assert!(w.claim_with(ask).await.is_none(), "{lane}");
    }
    let used = json!({ "instance_id": "w-1", "grant_id": grant["grant_id"], "execution_id": granted });
    let refused = w.call("claim_from_grant", used).await;
    assert!(refused.is_err(), "{refused:?}");
    // Each is found under its end, and under no other state.
    let listed = w.must("list_executions", json!({ "state": "cancelled" })).await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(all.len()), "{listed}");
    for state in [
        "waiting",
        "delayed",
        "rate_limited",
        "waiting_children",
        "active",
        "suspended",
        "completed",
        "failed",
        "expired",
        "skipped",
    ] {
        let listed = w.must("list_executions", json!({ "state": state })).await;
        let found = listed["items"].as_array().expect("a page").iter().map(|item| item["execution_id"].clone());
        let found: Vec<_> = found.filter(|id| *id != json!(upstream)).collect();
        assert!(found.is_empty(), "{state}: {found:?}");
    }
    // The one that was asked about is no question any more.
    assert_eq!(w.must("list_approvals", json!({})).await["items"], json!([]));
    let open = w.must("list_executions", json!({ "open": true })).await;
    assert_eq!(open["items"].as_array().map(Vec::len), Some(1), "only the upstream: {open}");
    let (completed, fence) = w.in_hand(json!({})).await;
    w.complete(&completed, &fence, json!(1)).await;
    let answer = w.must("cancel_execution", json!({ "execution_id": completed })).await;
    assert_eq!(answer["public_state"], "completed");
}

pub(crate) async fn s25_a_key_names_one_execution(w: World) {
    let request = json!({ "kind": "test", "idempotency_key": "order-1", "input": { "n": 1 } });
    let first = w.must("create_execution", request.clone()).await;
    let again = w.must("create_execution", request.clone()).await;
    assert_eq!((&again["execution_id"], &again["duplicate"]), (&first["execution_id"], &json!(true)));
    let other = merged(request, json!({ "input": { "n": 2 } }));
    w.refused("create_execution", other, Code::IdempotencyConflict).await;
    let own = json!({ "kind": "test", "execution_id": first["execution_id"] });
    w.refused("create_execution", own, Code::IdempotencyConflict).await;
    let flow = w.must("create_flow", json!({ "kind": "test" })).await;
    let member = json!({ "kind": "test", "idempotency_key": "order-2", "flow_id": flow["flow_id"] });
    let first = w.must("create_execution", member.clone()).await;
    let again = w.must("create_execution", member.clone()).await;
    assert_eq!((&again["execution_id"], &again["duplicate"]), (&first["execution_id"], &json!(true)));
    w.refused("create_execution", merged(member, json!({ "kind": "other" })), Code::IdempotencyConflict).await;
}

pub(crate) async fn s28_retention_removes_everything(w: World) {
    let (id, fence) = w.in_hand(json!({ "policy": { "retention_ms": 300 }, "tags": { "team": "a" } })).await;
    let frames = json!([{ "type": "token", "payload": "a" }]);
    let append = json!({ "execution_id": id, "fence": fence, "first_sequence": 1, "frames": frames });
    w.must("append_frames", append).await;
    w.complete(&id, &fence, json!("x".repeat(5_000))).await;
    let gone = async || {
        let answer = w.call("get_execution", json!({ "execution_id": id })).await;
        answer.is_err_and(|error| error.code == Code::ExecutionNotFound)
    };
    w.until("it is gone", gone).await;
    for filter in [json!({}), json!({ "tag": "team=a" }), json!({ "state": "completed" })] {
        assert_eq!(w.must("list_executions", filter.clone()).await["items"], json!([]), "{filter}");
    }
    let stream = w.call("read_stream", json!({ "execution_id": id, "attempt": 0 })).await;
    assert_eq!(stream.map_err(|error| error.code), Err(Code::ExecutionNotFound));
    assert_eq!(text(&json!(id)), id);
}
