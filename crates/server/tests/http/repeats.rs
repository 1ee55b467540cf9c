//! `Idempotency-Key` on every POST: a repeat is the same call, whatever happened in between.

use std::sync::Arc;

use ff_core::op::{Method, OPERATIONS};
use ff_server::Settings;
use ff_store::Store;
use ff_store::memory::MemoryStore;
use serde_json::{Value, json};

use crate::support::{ADMIN, Client, Running, settings, with_tokens};

/// The things that a call is about, made for it alone.
struct Scene<'a> {
    client: &'a Client,
    lane: String,
}

impl Scene<'_> {
    async fn post(&self, path: &str, body: Value) -> Value {
        self.client.post(path, &body).await.ok()
    }

    async fn execution(&self, more: Value) -> String {
        let mut body = json!({ "kind": "k", "lane": self.lane, "policy": { "retry": { "max_retries": 0 } } });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.post("/v1/executions", body).await["execution_id"].as_str().unwrap().to_owned()
    }

    /// The path of an execution that is leased, and its fence.
    async fn leased(&self, more: Value) -> (String, Value) {
        self.execution(more).await;
        let claimed = self.post("/v1/workers/w/claim", json!({ "lanes": [self.lane] })).await;
        let task = &claimed["tasks"][0];
        (format!("/v1/executions/{}", task["execution_id"].as_str().unwrap()), task["fence"].clone())
    }

    async fn suspended(&self) -> String {
        let (path, fence) = self.leased(json!({})).await;
        let body = json!({ "fence": fence, "condition": { "count": { "n": 2 } }, "reason": "signal" });
        self.post(&format!("{path}/suspend"), body).await;
        path
    }

    /// The waitpoint of an execution that waits for a signal.
    async fn waitpoint(&self) -> String {
        let path = self.suspended().await;
        let waitpoints = self.client.get(&format!("{path}/pending-waitpoints")).await.ok();
        waitpoints["items"][0]["waitpoint_id"].as_str().unwrap().to_owned()
    }

    async fn grant(&self) -> (String, Value) {
        let body = json!({ "lanes": [self.lane], "mode": "grant", "grant_ttl_ms": 60_000 });
        let granted = self.post("/v1/workers/w/claim", body).await;
        let grant = &granted["grants"][0];
        (grant["grant_id"].as_str().unwrap().to_owned(), json!({ "execution_id": grant["execution_id"] }))
    }

    /// A flow with two members, and an edge between them that is only staged.
    async fn flow(&self) -> (String, Vec<String>) {
        let flow = self.post("/v1/flows", json!({})).await["flow_id"].as_str().unwrap().to_owned();
        let mut members = Vec::new();
        for _ in 0..2 {
            members.push(self.execution(json!({ "flow_id": flow })).await);
        }
        (flow, members)
    }

    async fn budget(&self) -> String {
        let body = json!({ "name": self.lane, "dimensions": { "tokens": { "hard": 100 } } });
        self.post("/v1/budgets", body).await;
        self.lane.clone()
    }

    fn bulk_request(&self) -> Value {
        json!({ "filter": { "lane": self.lane }, "action": "hold", "reason": "a look" })
    }

    fn schedule_request(&self) -> Value {
        let template = json!({ "execution": { "kind": "k", "lane": self.lane } });
        json!({ "name": self.lane, "spec": { "every_ms": 86_400_000 }, "template": template })
    }

    fn subscription_request(&self) -> Value {
        json!({ "name": self.lane, "target": { "execution": { "kind": "k", "lane": self.lane } } })
    }

    /// Where to send a call of this operation, and what it says.
    async fn call(&self, operation: &str) -> (String, Value) {
        let leased = async |more: Value, verb: &str, mut body: Value| {
            let (path, fence) = self.leased(more).await;
            body["fence"] = fence;
            (format!("{path}/{verb}"), body)
        };
        let nothing = json!({});
        match operation {
            "create_execution" => ("/v1/executions".into(), json!({ "kind": "k", "lane": self.lane })),
            "create_executions" => {
                let one = json!({ "kind": "k", "lane": self.lane });
                ("/v1/executions/batch".into(), json!({ "executions": [one, one, { "kind": "" }] }))
            }
            "hold_execution" => (format!("/v1/executions/{}/hold", self.execution(nothing).await), json!({})),
            "release_execution" => {
                let path = format!("/v1/executions/{}", self.execution(nothing).await);
                self.post(&format!("{path}/hold"), json!({})).await;
                (format!("{path}/release"), json!({}))
            }
            "cancel_execution" => (format!("/v1/executions/{}/cancel", self.execution(nothing).await), json!({})),
            "replay_execution" => {
                let path = format!("/v1/executions/{}", self.execution(nothing).await);
                self.post(&format!("{path}/cancel"), json!({})).await;
                (format!("{path}/replay"), json!({}))
            }
            "revoke_lease" => (format!("{}/revoke-lease", self.leased(nothing).await.0), json!({})),
            "resume_execution" => (format!("{}/resume", self.suspended().await), json!({})),
            "complete" => leased(nothing, "complete", json!({ "result": 1 })).await,
            "fail" => leased(nothing, "fail", json!({ "reason": "r" })).await,
            "delay" => leased(nothing, "delay", json!({ "delay_ms": 60_000 })).await,
            "wait_children" => leased(nothing, "wait-children", json!({})).await,
            "progress" => leased(nothing, "progress", json!({ "pct": 10 })).await,
            "append_frames" => {
                leased(nothing, "frames", json!({ "first_sequence": 1, "frames": [{ "type": "t" }] })).await
            }
            "record_steps" => {
                let entries = json!([{ "name": "s", "state": "completed", "result": 1 }]);
                leased(nothing, "steps", json!({ "first_number": 1, "entries": entries })).await
            }
            "park" => {
                let sleeps = json!([{ "step": { "name": "s" }, "sleep_ms": 60_000 }]);
                leased(nothing, "park", json!({ "first_number": 1, "sleeps": sleeps })).await
            }
            "continue_as_new" => leased(nothing, "continue-as-new", json!({ "input": 2 })).await,
            "repin_build" => {
                (format!("/v1/executions/{}/repin", self.execution(nothing).await), json!({ "build_id": "b" }))
            }
            "fork_execution" => (format!("/v1/executions/{}/fork", self.execution(nothing).await), json!({})),
            "decide_step" => {
                let (path, fence) = self.leased(nothing).await;
                let question = json!({ "step": { "name": "s" }, "reason": "in_doubt" });
                let body = json!({ "fence": fence, "first_number": 1, "questions": [question] });
                self.post(&format!("{path}/park"), body).await;
                (format!("{path}/steps/decide"), json!({ "answer": "did_not_happen" }))
            }
            "report_usage" => {
                let budgets = json!({ "budget_ids": [self.budget().await] });
                leased(budgets, "usage", json!({ "usage": { "tokens": 1 } })).await
            }
            "reserve_spend" => {
                let budgets = json!({ "budget_ids": [self.budget().await] });
                leased(budgets, "spend/reserve", json!({ "key": "k", "amounts": { "tokens": 1 } })).await
            }
            "settle_spend" | "release_spend" => {
                let (path, fence) = self.leased(json!({ "budget_ids": [self.budget().await] })).await;
                let reserve = json!({ "fence": fence, "key": "k", "amounts": { "tokens": 1 } });
                self.post(&format!("{path}/spend/reserve"), reserve).await;
                let verb = operation.trim_end_matches("_spend");
                let actual = if verb == "settle" { json!({ "tokens": 2 }) } else { Value::Null };
                let mut body = json!({ "fence": fence, "key": "k", "actual": actual });
                body.as_object_mut().unwrap().retain(|_, value| !value.is_null());
                (format!("{path}/spend/{verb}"), body)
            }
            "acquire_provider" => {
                let provider = json!({ "name": self.lane, "max_concurrent": 1 });
                self.post("/v1/providers", provider).await;
                leased(nothing, "providers/acquire", json!({ "provider": self.lane, "key": "k" })).await
            }
            "settle_provider" => {
                let provider = json!({ "name": self.lane, "max_tokens": 100 });
                self.post("/v1/providers", provider).await;
                let (path, fence) = self.leased(nothing).await;
                let call = json!({ "fence": fence, "provider": self.lane, "key": "k" });
                self.post(&format!("{path}/providers/acquire"), call).await;
                let actual = json!({ "tokens": 7 });
                let body = json!({ "fence": fence, "provider": self.lane, "key": "k", "actual": actual });
                (format!("{path}/providers/settle"), body)
            }
            "create_provider" => ("/v1/providers".into(), json!({ "name": self.lane, "max_requests": 1 })),
            "throttle_provider" => {
                self.post("/v1/providers", json!({ "name": self.lane, "max_requests": 1 })).await;
                (format!("/v1/providers/{}/throttle", self.lane), json!({ "retry_after_ms": 60_000 }))
            }
            "decide_budget" => {
                let dimensions = json!({ "tokens": { "hard": 1 } });
                let budget = json!({ "name": self.lane, "dimensions": dimensions, "on_hard": "ask" });
                self.post("/v1/budgets", budget).await;
                let (path, fence) = self.leased(json!({ "budget_ids": [self.lane] })).await;
                let reserve = json!({ "fence": fence, "key": "k", "amounts": { "tokens": 2 } });
                let asked = self.post(&format!("{path}/spend/reserve"), reserve).await;
                assert_eq!(asked["outcome"], "asked", "{asked}");
                let grant = json!({ "answer": "grant", "amounts": { "tokens": 2 } });
                (format!("/v1/budgets/{}/decide", self.lane), grant)
            }
            "suspend" => leased(nothing, "suspend", json!({ "condition": { "any": [] }, "reason": "signal" })).await,
            "create_pending_waitpoint" => leased(nothing, "waitpoints", json!({ "waitpoint_key": "gate" })).await,
            "deliver_signal" => (format!("{}/signal", self.suspended().await), json!({ "name": "go" })),
            "signal_waitpoint" => (format!("/v1/signals/{}", self.waitpoint().await), json!({ "name": "go" })),
            "read_question" => (format!("/v1/signals/{}/question", self.waitpoint().await), json!({})),
            "close_waitpoint" => {
                let (path, fence) = self.leased(nothing).await;
                let made = self.post(&format!("{path}/waitpoints"), json!({ "fence": fence })).await;
                (format!("{path}/waitpoints/{}/close", made["waitpoint_id"].as_str().unwrap()), json!({}))
            }
            "renew_leases" => {
                let (path, fence) = self.leased(nothing).await;
                let id = path.rsplit('/').next().unwrap();
                ("/v1/leases/renew".into(), json!({ "leases": [{ "execution_id": id, "fence": fence }] }))
            }
            "heartbeat_worker" => {
                let body = json!({ "worker_id": "w", "lanes": [self.lane], "nonce": "n" });
                let put = self.client.with("content-type", "application/json");
                put.send(hyper::Method::PUT, "/v1/workers/beating", body.to_string()).await.ok();
                ("/v1/workers/beating/heartbeat".into(), json!({ "nonce": "n" }))
            }
            "claim" => {
                self.execution(nothing.clone()).await;
                self.execution(nothing).await;
                ("/v1/workers/w/claim".into(), json!({ "lanes": [self.lane] }))
            }
            "exchange" => {
                let (path, fence) = self.leased(nothing.clone()).await;
                self.execution(nothing).await;
                let id = path.rsplit('/').next().unwrap();
                let end = json!([{ "complete": { "execution_id": id, "fence": fence, "result": 1 } }]);
                ("/v1/workers/w/exchange".into(), json!({ "end": end, "claim": { "lanes": [self.lane] } }))
            }
            "claim_from_grant" => {
                self.execution(nothing).await;
                let (grant, body) = self.grant().await;
                (format!("/v1/workers/w/grants/{grant}/claim"), body)
            }
            "claim_from_reclaim_grant" => {
                let (path, _) = self.leased(nothing).await;
                self.post(&format!("{path}/revoke-lease"), json!({})).await;
                let (grant, body) = self.grant().await;
                (format!("/v1/workers/w/grants/{grant}/reclaim"), body)
            }
            "create_flow" => ("/v1/flows".into(), json!({ "kind": "graph" })),
            "add_execution_to_flow" => {
                let (flow, members) = self.flow().await;
                let partition = flow.split_once('-').unwrap().0;
                let id = format!("{partition}-{}", uuid::Uuid::now_v7());
                assert_ne!(id, members[0]);
                self.execution(json!({ "execution_id": id })).await;
                (format!("/v1/flows/{flow}/members"), json!({ "execution_id": id }))
            }
            "stage_dependency_edge" => {
                let (flow, members) = self.flow().await;
                (format!("/v1/flows/{flow}/edges"), json!({ "upstream": members[0], "downstream": members[1] }))
            }
            "apply_dependency_to_child" => {
                let (flow, members) = self.flow().await;
                let edge = json!({ "upstream": members[0], "downstream": members[1] });
                let staged = self.post(&format!("/v1/flows/{flow}/edges"), edge).await;
                (format!("/v1/flows/{flow}/edges/apply"), json!({ "edge_id": staged["edge_id"] }))
            }
            "close_flow" => (format!("/v1/flows/{}/close", self.flow().await.0), json!({})),
            "cancel_flow" => (format!("/v1/flows/{}/cancel?wait=true", self.flow().await.0), json!({})),
            "create_budget" => {
                let body = json!({ "name": self.lane, "dimensions": { "tokens": { "hard": 1 } } });
                ("/v1/budgets".into(), body)
            }
            "report_budget_usage" => {
                (format!("/v1/budgets/{}/usage", self.budget().await), json!({ "usage": { "tokens": 1 } }))
            }
            "reset_budget" => (format!("/v1/budgets/{}/reset", self.budget().await), json!({})),
            "create_quota" => ("/v1/quotas".into(), json!({ "name": self.lane, "max_concurrent": 1 })),
            "create_schedule" => ("/v1/schedules".into(), self.schedule_request()),
            "pause_schedule" | "resume_schedule" | "trigger_schedule" | "backfill_schedule" => {
                self.post("/v1/schedules", self.schedule_request()).await;
                let verb = operation.trim_end_matches("_schedule");
                let body = match verb {
                    "backfill" => json!({ "from": 1_000, "to": 2_000 }),
                    _ => json!({}),
                };
                (format!("/v1/schedules/{}/{verb}", self.lane), body)
            }
            "create_bulk" => ("/v1/bulk".into(), self.bulk_request()),
            "cancel_bulk" => {
                let job = self.post("/v1/bulk", self.bulk_request()).await;
                (format!("/v1/bulk/{}/cancel", job["bulk_id"].as_str().unwrap()), json!({}))
            }
            "create_hook" => {
                let target = json!({ "execution": { "kind": "k", "lane": self.lane } });
                ("/v1/hooks".into(), json!({ "name": self.lane, "target": target }))
            }
            "create_subscription" => ("/v1/subscriptions".into(), self.subscription_request()),
            "pause_subscription" | "resume_subscription" | "test_subscription" => {
                self.post("/v1/subscriptions", self.subscription_request()).await;
                let verb = operation.trim_end_matches("_subscription");
                (format!("/v1/subscriptions/{}/{verb}", self.lane), json!({}))
            }
            "pause_lane" | "resume_lane" | "drain_lane" | "disable_lane" => {
                let verb = operation.trim_end_matches("_lane");
                (format!("/v1/lanes/{}/{verb}", self.lane), json!({ "reason": "a look" }))
            }
            "rotate_waitpoint_secret" => {
                let body = json!({ "new_kid": "k2", "new_secret_hex": "5a".repeat(32) });
                ("/v1/admin/rotate-waitpoint-secret".into(), body)
            }
            "create_stream_ticket" => ("/v1/stream-tickets".into(), json!({})),
            "create_token" => ("/v1/admin/tokens".into(), json!({ "name": "ci", "role": "reader" })),
            other => panic!("say here what a call of {other} is about"),
        }
    }
}

/// Operations whose answer to a repeat says that it is one, in words of their own.
const SAY_SO: &[&str] = &[
    "create_execution",
    "create_executions",
    "create_flow",
    "deliver_signal",
    "signal_waitpoint",
    "report_usage",
    "report_budget_usage",
];
/// Operations that only a server has whose clock a test moves; `test_clock` repeats them there.
const NOT_HERE: &[&str] = &["advance_test_clock", "wait_until_idle"];
/// Operations that only ever prolong or store nothing: the answer says until when by now.
const PROLONG: &[&str] = &["renew_leases", "heartbeat_worker", "create_stream_ticket"];

/// An answer without the instant at which a lease ends, which its claim only estimates.
fn settled(mut answer: Value) -> Value {
    for place in ["/task", "/tasks/0", "/claim/tasks/0"] {
        let Some(task) = answer.pointer_mut(place) else { continue };
        task.as_object_mut().unwrap().remove("lease_expires_at");
    }
    answer
}

#[tokio::test]
async fn a_repeat_of_any_post_is_the_same_call() {
    let server = Running::start(settings()).await;
    let client = server.client();
    for info in OPERATIONS.iter().filter(|info| info.method == Method::Post && !NOT_HERE.contains(&info.name)) {
        let name = info.name;
        let scene = Scene { client: &client, lane: name.replace('_', "-") };
        let (path, body) = scene.call(name).await;
        let keyed = client.with("idempotency-key", &format!("key of {name}"));
        let first = keyed.post(&path, &body).await.ok();
        let again = keyed.post(&path, &body).await.ok();
        if SAY_SO.contains(&name) {
            let without = |mut answer: Value| {
                for said in ["duplicate", "outcome", "public_state"] {
                    answer.as_object_mut().unwrap().remove(said);
                }
                answer
            };
            match name {
                "create_execution" | "create_flow" => assert_eq!(without(again), without(first), "{name}"),
                "create_executions" => {
                    for place in 0..2 {
                        let (one, other) = (&first["results"][place], &again["results"][place]);
                        assert_eq!(one["execution_id"], other["execution_id"], "{name}");
                        assert_eq!((&one["duplicate"], &other["duplicate"]), (&json!(false), &json!(true)), "{name}");
                    }
                    assert_ne!(first["results"][0]["execution_id"], first["results"][1]["execution_id"]);
                }
                "deliver_signal" | "signal_waitpoint" => {
                    assert_eq!(again["existing_signal_id"], first["signal_id"], "{name}")
                }
                "report_usage" => {
                    assert_eq!(again["budgets"][&scene.lane]["outcome"], "already_applied", "{again}");
                }
                _ => assert_eq!(again["outcome"], "already_applied", "{again}"),
            }
        } else if !PROLONG.contains(&name) {
            assert_eq!(settled(again), settled(first), "{name}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn other_content_under_the_same_key_is_refused() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let cases = [
        ("hold_execution", json!({ "reason": "another" })),
        ("cancel_execution", json!({ "reason": "another" })),
        ("revoke_lease", json!({ "reason": "another" })),
        ("create_budget", json!({ "reset_interval_ms": 60_000 })),
        ("create_token", json!({ "role": "operator" })),
        ("pause_lane", json!({ "reason": "another" })),
        ("pause_schedule", json!({ "note": "another" })),
        ("pause_subscription", json!({ "note": "another" })),
        ("trigger_schedule", json!({ "overlap": "skip" })),
        ("create_bulk", json!({ "action": "cancel" })),
        ("create_pending_waitpoint", json!({ "waitpoint_key": "another" })),
        ("claim", json!({ "lease_ttl_ms": 5_000 })),
    ];
    for (name, other) in cases {
        let scene = Scene { client: &client, lane: name.replace('_', "-") };
        let (path, mut body) = scene.call(name).await;
        let keyed = client.with("idempotency-key", "k");
        keyed.post(&path, &body).await.ok();
        body.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let refused = keyed.post(&path, &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (409, "idempotency_conflict"), "{name}");
    }
    let long = client.with("idempotency-key", &"k".repeat(300));
    let refused = long.post("/v1/lanes/default/pause", &json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"));
    server.stop().await;
}

#[tokio::test]
async fn a_repeat_does_not_undo_what_came_after_it() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let scene = Scene { client: &client, lane: "later".into() };
    let keyed = client.with("idempotency-key", "k");
    let path = format!("/v1/executions/{}", scene.execution(json!({})).await);
    let held = keyed.post(&format!("{path}/hold"), &json!({})).await.ok();
    scene.post(&format!("{path}/release"), json!({})).await;
    assert_eq!(keyed.post(&format!("{path}/hold"), &json!({})).await.ok(), held);
    assert_eq!(client.get(&path).await.ok()["state"]["eligibility_state"], "eligible_now");
    let cancelled = keyed.post(&format!("{path}/cancel"), &json!({})).await.ok();
    scene.post(&format!("{path}/replay"), json!({})).await;
    assert_eq!(keyed.post(&format!("{path}/cancel"), &json!({})).await.ok(), cancelled);
    assert_eq!(client.get(&path).await.ok()["public_state"], "waiting");
    let paused = keyed.post("/v1/lanes/later/pause", &json!({})).await.ok();
    scene.post("/v1/lanes/later/resume", json!({})).await;
    assert_eq!(keyed.post("/v1/lanes/later/pause", &json!({})).await.ok(), paused);
    assert_eq!(client.get("/v1/lanes").await.ok()["items"][0]["state"], "active");
    // One key, two waitpoints asked for: there is one.
    let (path, fence) = scene.leased(json!({})).await;
    for _ in 0..2 {
        keyed.post(&format!("{path}/waitpoints"), &json!({ "fence": fence })).await.ok();
    }
    let listed = client.get(&format!("{path}/pending-waitpoints")).await.ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    server.stop().await;
}

#[tokio::test]
async fn a_repeated_claim_hands_out_nothing_else() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let scene = Scene { client: &client, lane: "work".into() };
    for _ in 0..3 {
        scene.execution(json!({})).await;
    }
    let keyed = client.with("idempotency-key", "not a uuid");
    let body = json!({ "lanes": ["work"], "max_tasks": 2 });
    let first = keyed.post("/v1/workers/w/claim", &body).await.ok();
    assert_eq!(first["tasks"].as_array().map(Vec::len), Some(2));
    let again = keyed.post("/v1/workers/w/claim", &body).await.ok();
    let fences = |claimed: &Value| {
        let mut fences: Vec<_> =
            claimed["tasks"].as_array().unwrap().iter().map(|task| task["fence"].to_string()).collect();
        fences.sort();
        fences
    };
    assert_eq!(fences(&again), fences(&first));
    for task in first["tasks"].as_array().unwrap() {
        let path = format!("/v1/executions/{}/complete", task["execution_id"].as_str().unwrap());
        scene.post(&path, json!({ "fence": task["fence"] })).await;
    }
    let after = keyed.post("/v1/workers/w/claim", &body).await;
    assert_eq!(after.status, 204, "it handed out the third: {:?}", after.body);
    // Another worker's key is another key, and another key finds the third.
    let other = keyed.post("/v1/workers/other/claim", &body).await.ok();
    assert_eq!(other["tasks"].as_array().map(Vec::len), Some(1));
    server.stop().await;
}

#[tokio::test]
async fn a_claim_that_found_nothing_may_be_repeated_until_it_does() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let keyed = client.with("idempotency-key", "k");
    let body = json!({ "lanes": ["work"] });
    assert_eq!(keyed.post("/v1/workers/w/claim", &body).await.status, 204);
    let scene = Scene { client: &client, lane: "work".into() };
    scene.execution(json!({})).await;
    let claimed = keyed.post("/v1/workers/w/claim", &body).await.ok();
    assert_eq!(claimed["tasks"].as_array().map(Vec::len), Some(1));
    server.stop().await;
}

#[tokio::test]
async fn a_repeated_token_has_the_same_secret_and_nobody_elses_key_reveals_it() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let keyed = admin.with("idempotency-key", "k");
    let body = json!({ "name": "ci", "role": "admin", "namespace": "*" });
    let first = keyed.post("/v1/admin/tokens", &body).await.ok();
    let again = keyed.post("/v1/admin/tokens", &body).await.ok();
    assert_eq!(again, first);
    let ci = server.client_with(first["secret"].as_str().unwrap());
    ci.get("/v1/executions").await.ok();
    for stranger in [admin.clone(), admin.with("idempotency-key", "l"), ci.with("idempotency-key", "k")] {
        let refused = stranger.post("/v1/admin/tokens", &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (409, "definition_conflict"));
    }
    // Two callers may both say `k`.
    let scene = Scene { client: &admin, lane: "mine".into() };
    let path = format!("/v1/executions/{}", scene.execution(json!({})).await);
    scene.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!(keyed.post(&format!("{path}/replay"), &json!({})).await.ok()["replay_count"], 1);
    scene.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!(keyed.post(&format!("{path}/replay"), &json!({})).await.ok()["replay_count"], 1);
    let other = ci.with("idempotency-key", "k").post(&format!("{path}/replay"), &json!({})).await.ok();
    assert_eq!(other["replay_count"], 2);
    server.stop().await;
}

#[tokio::test]
async fn a_configured_token_keeps_its_keys_when_it_gets_a_name() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let server = Running::start_on(with_tokens(), store.clone()).await;
    let admin = server.client_with(ADMIN);
    let scene = Scene { client: &admin, lane: "mine".into() };
    let path = format!("/v1/executions/{}", scene.execution(json!({})).await);
    let keyed = |client: &Client| client.with("idempotency-key", "k");
    scene.post(&format!("{path}/cancel"), json!({})).await;
    let replayed = keyed(&admin).post(&format!("{path}/replay"), &json!({})).await.ok();
    let batch = json!({ "executions": [{ "kind": "k" }] });
    let created = keyed(&admin).post("/v1/executions/batch", &batch).await.ok();
    scene.post(&format!("{path}/cancel"), json!({})).await;
    server.stop().await;

    let other = "canary-integration-token";
    let named = Settings { api_token: Some(format!("ops={ADMIN},ci={other}")), ..settings() };
    let server = Running::start_on(named, store).await;
    let (ops, ci) = (server.client_with(ADMIN), server.client_with(other));
    assert_eq!(keyed(&ops).post(&format!("{path}/replay"), &json!({})).await.ok(), replayed);
    let again = keyed(&ops).post("/v1/executions/batch", &batch).await.ok();
    assert_eq!(again["results"][0]["execution_id"], created["results"][0]["execution_id"], "{again}");
    // Another configured token may say `k` as well.
    let others = keyed(&ci).post(&format!("{path}/replay"), &json!({})).await.ok();
    assert_eq!((&replayed["replay_count"], &others["replay_count"]), (&json!(1), &json!(2)));
    server.stop().await;
}
