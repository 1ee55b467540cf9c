//! Suspension, signals, waitpoints and their tokens.

use ff_core::Code;
use serde_json::{Value, json};

use crate::world::{World, merged};

/// Suspends an execution in hand; answers with the suspension.
async fn suspend(w: &World, id: &str, fence: &Value, more: Value) -> Value {
    let args = json!({ "execution_id": id, "fence": fence, "reason": "signal" });
    w.must("suspend", merged(args, more)).await
}

/// The arguments of a signal for a suspension.
fn signal(id: &str, suspended: &Value, more: Value) -> Value {
    let args = json!({ "execution_id": id, "waitpoint_id": suspended["waitpoint_id"], "token": suspended["token"] });
    merged(args, more)
}

pub(crate) async fn s06_a_signal_resumes_the_same_attempt(w: World) {
    let (id, fence) = w.in_hand(json!({})).await;
    let condition = json!({ "condition": { "any": [{ "name": "approve" }] }, "reason": "approval",
        "continuation_base64": "AP8=" });
    let suspended = suspend(&w, &id, &fence, condition).await;
    w.is(&id, "suspended").await;
    assert_eq!(w.get(&id).await["state"]["blocking_reason"], "waiting_for_approval");
    let other = w.must("deliver_signal", signal(&id, &suspended, json!({ "name": "other" }))).await;
    assert_eq!((other["outcome"].as_str(), other["effect"].as_str()), (Some("accepted"), Some("no_op")));
    let approve = json!({ "name": "approve", "payload_base64": "/wA=" });
    let approved = w.must("deliver_signal", signal(&id, &suspended, approve)).await;
    assert_eq!(approved["outcome"], "triggered_resume");
    let task = w.claim().await;
    assert_eq!((task["claim_kind"].as_str(), task["fence"]["attempt"].as_u64()), (Some("resumed"), Some(0)));
    assert_eq!(task["fence"]["epoch"], 2);
    assert_eq!(task["continuation"]["payload_base64"], "AP8=");
    let signals = task["resume_signals"].as_array().expect("a list");
    assert_eq!(signals.len(), 1, "{task}");
    assert_eq!((signals[0]["name"].as_str(), signals[0]["payload_base64"].as_str()), (Some("approve"), Some("/wA=")));
    w.complete(&id, &task["fence"], json!(1)).await;
}

pub(crate) async fn s07_conditions_count_what_they_say(w: World) {
    let (id, fence) = w.in_hand(json!({})).await;
    let all = json!({ "condition": { "all": [{ "name": "a" }, { "name": "b" }] } });
    let suspended = suspend(&w, &id, &fence, all).await;
    let send = async |name: &str| w.must("deliver_signal", signal(&id, &suspended, json!({ "name": name }))).await;
    assert_eq!(send("a").await["effect"], "appended_to_waitpoint");
    assert_eq!(send("a").await["effect"], "no_op");
    assert_eq!(send("b").await["outcome"], "triggered_resume");
    let task = w.claim().await;
    assert_eq!(task["resume_signals"].as_array().map(Vec::len), Some(2), "{task}");
    let two = json!({ "condition": { "count": { "n": 2, "distinct": "sources" } } });
    let suspended = suspend(&w, &id, &task["fence"], two).await;
    let send = async |who: &str| {
        let vote = json!({ "name": "vote", "source_type": "person", "source_identity": who });
        w.must("deliver_signal", signal(&id, &suspended, vote)).await
    };
    assert_eq!(send("ann").await["effect"], "appended_to_waitpoint");
    assert_eq!(send("ann").await["effect"], "no_op", "the same source twice is one");
    assert_eq!(send("bob").await["outcome"], "triggered_resume");
}

pub(crate) async fn s08_a_signal_key_counts_once(w: World) {
    let (id, fence) = w.in_hand(json!({})).await;
    let two = json!({ "condition": { "count": { "n": 2, "distinct": "signals" } } });
    let suspended = suspend(&w, &id, &fence, two).await;
    let keyed = |key: &str| signal(&id, &suspended, json!({ "name": "go", "idempotency_key": key }));
    let first = w.must("deliver_signal", keyed("k-1")).await;
    let again = w.must("deliver_signal", keyed("k-1")).await;
    assert_eq!((again["outcome"].as_str(), &again["existing_signal_id"]), (Some("duplicate"), &first["signal_id"]));
    w.is(&id, "suspended").await;
    let other = merged(keyed("k-1"), json!({ "payload": { "another": "content" } }));
    let other = w.must("deliver_signal", other).await;
    assert_eq!((other["outcome"].as_str(), &other["existing_signal_id"]), (Some("duplicate"), &first["signal_id"]));
    assert_eq!(w.must("deliver_signal", keyed("k-2")).await["outcome"], "triggered_resume");
    w.refused("deliver_signal", keyed("k-3"), Code::WaitpointClosed).await;
}

pub(crate) async fn s09_buffered_signals_satisfy_a_suspension_at_once(w: World) {
    let (id, fence) = w.in_hand(json!({})).await;
    let waitpoint = w.must("create_pending_waitpoint", json!({ "execution_id": id, "fence": fence })).await;
    let buffered = w.must("deliver_signal", signal(&id, &waitpoint, json!({ "name": "go" }))).await;
    assert_eq!(buffered["effect"], "buffered", "{buffered}");
    let on_it = json!({ "condition": { "any": [{ "name": "go" }] }, "waitpoint_ids": [waitpoint["waitpoint_id"]] });
    let suspended = suspend(&w, &id, &fence, on_it).await;
    assert_eq!(suspended["outcome"], "already_satisfied", "{suspended}");
    assert_eq!(suspended["resume_signals"][0]["name"], "go");
    w.is(&id, "active").await;
    w.complete(&id, &fence, json!("the same lease")).await;
}

pub(crate) async fn s10_each_timeout_behaviour_does_its_own(w: World) {
    for (behavior, state) in [
        ("fail", "failed"),
        ("cancel", "cancelled"),
        ("expire", "expired"),
        ("auto_resume", "waiting"),
        ("escalate", "suspended"),
    ] {
        let (id, fence) = w.in_hand(json!({})).await;
        let condition =
            json!({ "condition": { "any": [{ "name": "go" }] }, "timeout_ms": 50, "timeout_behavior": behavior });
        let suspended = suspend(&w, &id, &fence, condition).await;
        match behavior {
            "escalate" => {
                let escalated = async || w.get(&id).await["state"]["blocking_reason"] == "paused_by_operator";
                w.until("it is escalated", escalated).await;
                w.must("resume_execution", json!({ "execution_id": id })).await;
                let task = w.claim().await;
                assert_eq!(task["resume_signals"], json!([]), "no signal resumed it");
                w.complete(&id, &task["fence"], json!(1)).await;
            }
            "auto_resume" => {
                let task = w.claim().await;
                let signals = task["resume_signals"].as_array().expect("a list");
                assert_eq!(signals.len(), 1, "{task}");
                assert_eq!(signals[0]["name"], "__timeout__");
                w.complete(&id, &task["fence"], json!(1)).await;
            }
            _ => w.becomes(&id, state).await,
        }
        w.refused("deliver_signal", signal(&id, &suspended, json!({ "name": "go" })), Code::WaitpointClosed).await;
    }
    // A signal at the very moment of the timeout: one of them wins, never both.
    for _ in 0..5 {
        let (id, fence) = w.in_hand(json!({})).await;
        let condition = json!({ "condition": { "any": [] }, "timeout_ms": 20, "timeout_behavior": "fail" });
        let suspended = suspend(&w, &id, &fence, condition).await;
        w.call("wait_execution", json!({ "execution_id": id, "wait_ms": 18 })).await.expect("it exists");
        let sent = w.call("deliver_signal", signal(&id, &suspended, json!({ "name": "go" }))).await;
        match sent {
            Ok(answer) => {
                assert_eq!(answer["outcome"], "triggered_resume");
                let task = w.claim().await;
                w.complete(&id, &task["fence"], json!(1)).await;
            }
            Err(error) => {
                assert_eq!(error.code, Code::WaitpointClosed);
                w.is(&id, "failed").await;
            }
        }
    }
}

pub(crate) async fn s20_a_rotated_secret_verifies_for_its_grace(w: World) {
    let (id, fence) = w.in_hand(json!({})).await;
    let three = json!({ "condition": { "count": { "n": 3, "distinct": "signals" } } });
    let suspended = suspend(&w, &id, &fence, three).await;
    let kid = |number: u8| format!("{}-{number}", w.namespace);
    let rotate = |number: u8, grace_ms: i64| {
        let secret = format!("{number:02x}").repeat(32);
        json!({ "new_kid": kid(number), "new_secret_hex": secret, "grace_ms": grace_ms })
    };
    // Other sequences rotate nothing, so the only secret is the one of the start.
    let rotated = w.must("rotate_waitpoint_secret", rotate(1, 60_000)).await;
    assert_eq!((rotated["new_kid"].as_str(), rotated["changed"].as_bool()), (Some(kid(1).as_str()), Some(true)));
    assert_eq!(w.must("rotate_waitpoint_secret", rotate(1, 60_000)).await["changed"], false);
    let conflicting = merged(rotate(1, 60_000), json!({ "new_secret_hex": "77".repeat(32) }));
    w.refused("rotate_waitpoint_secret", conflicting, Code::RotationConflict).await;
    let old = w.must("deliver_signal", signal(&id, &suspended, json!({ "name": "go" }))).await;
    assert_eq!(old["effect"], "appended_to_waitpoint", "within the grace: {old}");
    let place = json!({ "execution_id": id, "waitpoint_id": suspended["waitpoint_id"] });
    let current = w.must("get_waitpoint_token", place).await;
    assert_eq!(current["kid"], json!(kid(1)));
    w.must("rotate_waitpoint_secret", rotate(2, 1)).await;
    let with_token = |token: &Value| signal(&id, &suspended, json!({ "name": "go", "token": token }));
    let expired = async || {
        let answer = w.call("deliver_signal", with_token(&current["token"])).await;
        answer.is_err_and(|error| error.code == Code::TokenExpired)
    };
    w.until("the rotated secret is over its grace", expired).await;
    let unknown = json!(format!("nobody:{}", "00".repeat(32)));
    w.refused("deliver_signal", with_token(&unknown), Code::InvalidToken).await;
    w.refused("deliver_signal", with_token(&json!("nonsense")), Code::InvalidToken).await;
    w.is(&id, "suspended").await;
}

pub(crate) async fn s34_an_approval_survives_the_worker_that_resumed_with_it(w: World) {
    let retried = json!({ "policy": { "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 1 } } } } });
    let (id, fence) = w.in_hand(retried).await;
    let ask = json!({ "condition": { "any": [{ "name": "approve" }] }, "reason": "approval",
        "continuation_base64": "AP8=" });
    let suspended = suspend(&w, &id, &fence, ask).await;
    let approve = json!({ "name": "approve", "payload_base64": "/wA=", "idempotency_key": "a" });
    let approved = w.must("deliver_signal", signal(&id, &suspended, approve)).await;
    assert_eq!(approved["outcome"], "triggered_resume");
    let claimed = async |more: Value, kind: &str| {
        let task = w.claim_with(more).await.expect("it is claimable");
        assert_eq!((&task["execution_id"], &task["claim_kind"]), (&json!(id), &json!(kind)), "{task}");
        assert_eq!(task["resume_signals"].as_array().map(Vec::len), Some(1), "{task}");
        assert_eq!(task["resume_signals"][0]["payload_base64"], "/wA=", "{task}");
        assert_eq!(task["continuation"]["payload_base64"], "AP8=", "{task}");
        let listed = w.must("list_resume_signals", json!({ "execution_id": id })).await;
        assert_eq!(listed["items"], task["resume_signals"]);
        task
    };
    claimed(json!({ "lease_ttl_ms": 1_000 }), "resumed").await;
    let reclaimed = claimed(json!({}), "reclaim").await;
    let fail = json!({ "execution_id": id, "fence": reclaimed["fence"], "reason": "broke" });
    assert_eq!(w.must("fail", fail).await["outcome"], "retry_scheduled");
    let retried = claimed(json!({}), "retry").await;
    let delay = json!({ "execution_id": id, "fence": retried["fence"], "delay_ms": 1 });
    w.must("delay", delay).await;
    let task = w.claim().await;
    assert_eq!(task["resume_signals"], json!([]), "the last parting was not ended by signals: {task}");
    assert_eq!(task.get("continuation"), None, "{task}");
    w.complete(&id, &task["fence"], json!(1)).await;
}
