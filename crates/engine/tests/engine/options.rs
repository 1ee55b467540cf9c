//! Options of a deployment: tighter limits, and defaults of a namespace.

use std::collections::BTreeMap;

use crate::support::Harness;
use ff_core::op::{
    AppendFrames, Claim, Complete, CreateExecution, DeliverSignal, GetExecution, ListExecutions, ReadStream,
    RegisterWorker, RenewLeases, TailStream, WaitExecution,
};
use ff_core::policy::Policy;
use ff_core::{Code, limits};
use ff_engine::{Engine, Limits, Options};
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn tighter_limits_hold_for_every_operation_that_has_them() {
    let limits = Limits {
        input_max_bytes: 10,
        result_max_bytes: 10,
        signal_payload_max_bytes: 10,
        frame_max_bytes: 10,
        capabilities_max_tokens: 1,
        lease_ttl_default_ms: 5_000,
        lease_ttl_min_ms: 2_000,
        lease_ttl_max_ms: 10_000,
        claim_wait_max_ms: 100,
        tail_wait_max_ms: 100,
        stream_read_max: 2,
        page_default: 2,
        page_max: 3,
        ..Limits::default()
    };
    let h = Harness::with(Options { limits, ..Options::default() }).await;
    let fits = json!({ "kind": "k", "input": "12345678" });
    let id = h.must::<CreateExecution>(fits).await.execution_id;
    assert_eq!(h.refused::<CreateExecution>(json!({ "kind": "k", "input": "123456789" })).await, Code::PayloadTooLarge);
    let capable = json!({ "kind": "k", "required_capabilities": ["a", "b"] });
    assert_eq!(h.refused::<CreateExecution>(capable).await, Code::Invalid);
    let claim = |more: &str, value: serde_json::Value| {
        let mut args = json!({ "instance_id": "w", "lanes": ["default"] });
        args[more] = value;
        args
    };
    for (field, value) in [
        ("wait_ms", json!(101)),
        ("lease_ttl_ms", json!(1_999)),
        ("lease_ttl_ms", json!(10_001)),
        ("capabilities", json!(["a", "b"])),
    ] {
        assert_eq!(h.refused::<Claim>(claim(field, value)).await, Code::Invalid, "{field}");
    }
    let claimed = h.must::<Claim>(claim("wait_ms", json!(100))).await;
    let task = &claimed.tasks[0];
    assert_eq!((task.execution_id, task.lease_ttl_ms), (id, 5_000));
    let fence = &task.fence;
    let worker = json!({ "instance_id": "w", "worker_id": "w", "lanes": ["a"], "nonce": "n", "lease_ttl_ms": 10_001 });
    assert_eq!(h.refused::<RegisterWorker>(worker).await, Code::Invalid);
    let renewal = json!({ "execution_id": id, "fence": fence, "lease_ttl_ms": 10_001 });
    assert_eq!(h.refused::<RenewLeases>(json!({ "leases": [renewal] })).await, Code::Invalid);
    let frames = |payload: &str| json!({ "execution_id": id, "fence": fence, "first_sequence": 1, "frames": [{ "type": "t", "payload": payload }] });
    assert_eq!(h.refused::<AppendFrames>(frames("123456789")).await, Code::PayloadTooLarge);
    h.must::<AppendFrames>(frames("12345678")).await;
    let signal = json!({ "execution_id": id, "name": "go", "payload": "123456789" });
    assert_eq!(h.refused::<DeliverSignal>(signal).await, Code::PayloadTooLarge);
    let stream = |field: &str, value: i64| {
        let mut args = json!({ "execution_id": id, "attempt": 0 });
        args[field] = json!(value);
        args
    };
    assert_eq!(h.refused::<ReadStream>(stream("count", 3)).await, Code::Invalid);
    assert_eq!(h.refused::<TailStream>(stream("block_ms", 101)).await, Code::Invalid);
    assert_eq!(h.refused::<WaitExecution>(json!({ "execution_id": id, "wait_ms": 101 })).await, Code::Invalid);
    assert!(!h.must::<WaitExecution>(json!({ "execution_id": id })).await.terminal);
    let complete = |result: &str| json!({ "execution_id": id, "fence": fence, "result": result });
    assert_eq!(h.refused::<Complete>(complete("123456789")).await, Code::PayloadTooLarge);
    h.must::<Complete>(complete("12345678")).await;
    for _ in 0..3 {
        h.submit(json!({})).await;
    }
    assert_eq!(h.must::<ListExecutions>(json!({})).await.items.len(), 2);
    assert_eq!(h.must::<ListExecutions>(json!({ "limit": 3 })).await.items.len(), 3);
    assert_eq!(h.refused::<ListExecutions>(json!({ "limit": 4 })).await, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn limits_wider_than_the_system_is_built_for_do_not_start() {
    let wide = Limits { input_max_bytes: limits::INPUT_MAX_BYTES + 1, ..Limits::default() };
    let store = std::sync::Arc::new(ff_store::memory::MemoryStore::new());
    let env = std::sync::Arc::new(ff_engine::env::TokioEnv::current());
    let refused = Engine::start(store, env, Options { limits: wide, ..Options::default() }).await.unwrap_err();
    assert_eq!((refused.code, &refused.details["field"]), (Code::Invalid, &json!("input_max_bytes")));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_decides_the_policy_of_executions_that_bring_none() {
    let policy: Policy = serde_json::from_value(json!({ "retry": { "max_retries": 0 } })).unwrap();
    let policies = BTreeMap::from([("strict".to_owned(), policy)]);
    let h = Harness::with(Options { policies, ..Options::default() }).await;
    let own = json!({ "retry": { "max_retries": 2 } });
    for (namespace, policy, expected) in
        [("strict", None, "failed"), ("strict", Some(own), "delayed"), ("other", None, "delayed")]
    {
        let mut args = json!({ "kind": "k", "namespace": namespace });
        if let Some(policy) = policy {
            args["policy"] = policy;
        }
        let id = h.must::<CreateExecution>(args).await.execution_id;
        let claim = json!({ "instance_id": "w", "lanes": ["default"], "namespace": namespace });
        let claimed = h.must::<Claim>(claim).await;
        let failure = json!({ "execution_id": id, "fence": claimed.tasks[0].fence, "reason": "r" });
        h.must::<ff_core::op::Fail>(failure).await;
        let state = h.must::<GetExecution>(json!({ "execution_id": id })).await.public_state;
        assert_eq!(state.as_str(), expected, "{namespace}");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_says_little_leaves_the_rest_to_the_namespace() {
    let policy: Policy = serde_json::from_value(json!({
        "retry": { "max_retries": 0 }, "timeout": { "attempt_timeout_ms": 60_000 }, "budget_ids": ["team"],
    }))
    .unwrap();
    let policies = BTreeMap::from([("strict".to_owned(), policy)]);
    let h = Harness::with(Options { policies, ..Options::default() }).await;
    let policy_of = async |policy: serde_json::Value| {
        let args = json!({ "kind": "k", "namespace": "strict", "policy": policy });
        let id = h.must::<CreateExecution>(args).await.execution_id;
        h.must::<GetExecution>(json!({ "execution_id": id })).await
    };
    let partial = policy_of(json!({ "max_replay_count": 1, "timeout": { "execution_deadline_ms": 90_000 } })).await;
    assert_eq!((partial.policy.retry.max_retries, partial.policy.max_replay_count), (0, 1));
    let timeout = &partial.policy.timeout;
    assert_eq!((timeout.attempt_timeout_ms, timeout.execution_deadline_ms), (Some(60_000), Some(90_000)));
    assert_eq!(partial.budget_ids, ["team"]);
    let chosen = policy_of(json!({ "retry": { "max_retries": 3 }, "budget_ids": [] })).await;
    assert_eq!(chosen.policy.retry.max_retries, 3, "the number is the engine's default, but it was said");
    assert!(chosen.budget_ids.is_empty(), "an empty list was said, too");
    let spared = policy_of(json!({ "retry": { "spare_permanent": true } })).await;
    assert_eq!(spared.policy.retry.non_retryable_categories, ["permanent"]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_execution_shows_the_key_it_was_created_with() {
    let h = Harness::start().await;
    let flow =
        serde_json::to_value(h.must::<ff_core::op::CreateFlow>(json!({ "kind": "f" })).await).unwrap()["flow_id"]
            .clone();
    let keyed = json!({ "kind": "k", "idempotency_key": "order 7" });
    let member = json!({ "kind": "k", "idempotency_key": "order 8", "flow_id": flow });
    for (args, key) in [(keyed, Some("order 7")), (member, Some("order 8")), (json!({ "kind": "k" }), None)] {
        let id = h.must::<CreateExecution>(args).await.execution_id;
        let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await.idempotency_key;
        assert_eq!(shown.as_deref(), key);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_is_kept_as_long_as_the_deployment_says() {
    let h = Harness::with(Options { retention_ms: 3_600_000, ..Options::default() }).await;
    let (short, own) = (h.submit(json!({})).await, h.submit(json!({ "policy": { "retention_ms": 7_200_000 } })).await);
    for _ in 0..2 {
        let task = h.claim().await.unwrap();
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    h.pass(3_500_000).await;
    h.must::<GetExecution>(json!({ "execution_id": short })).await;
    h.pass(200_000).await;
    assert_eq!(h.refused::<GetExecution>(json!({ "execution_id": short })).await, Code::ExecutionNotFound);
    h.must::<GetExecution>(json!({ "execution_id": own })).await;
    h.finish().await;
}
