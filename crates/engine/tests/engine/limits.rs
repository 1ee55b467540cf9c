//! Every limit through the operation that has it: at the limit it is accepted, one past it is refused with its code, and
//! a refusal changes nothing. Limits of waitpoints, signals and batches are with their operations.

use crate::support::Harness;
use ff_core::op::view::Task;
use ff_core::op::{
    AppendFrames, Claim, ClaimFromGrant, Complete, ConfigureLane, CreateExecution, CreateFlow, DeliverSignal,
    GetExecution, GetResult, HeartbeatWorker, ListAudit, ListBudgets, ListEvents, ListExecutions, ListFlows, ListLanes,
    ListQuotas, ListTokens, ListWorkers, Operation, ReadStream, RegisterWorker, RenewLeases, Suspend, TailStream,
    WaitExecution,
};
use ff_core::{Code, limits};
use ff_engine::{Engine, Serves};
use serde_json::{Value, json};

/// A JSON string whose text, quotes and all, has this many bytes.
fn text_of(bytes: usize) -> String {
    "x".repeat(bytes - 2)
}

fn merged(mut args: Value, more: Value) -> Value {
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    args
}

/// Each of the arguments is refused with this code, and nothing changes.
async fn refuses<O: Operation>(h: &Harness, code: Code, wrong: impl IntoIterator<Item = Value>)
where
    Engine: Serves<O>,
{
    let before = h.documents();
    for args in wrong {
        let shown: String = args.to_string().chars().take(200).collect();
        assert_eq!(h.refused::<O>(args).await, code, "{} {shown}", O::NAME);
    }
    assert_eq!(h.documents(), before, "{} was refused and changed something", O::NAME);
}

async fn running(h: &Harness, claim: Value) -> Task {
    h.submit(json!({})).await;
    h.claim_with(claim).await.expect("there is work")
}

#[tokio::test(start_paused = true)]
async fn an_input_and_a_result_have_up_to_a_mebibyte() {
    let h = Harness::start().await;
    let past = json!({ "kind": "test", "input": text_of(limits::INPUT_MAX_BYTES + 1) });
    refuses::<CreateExecution>(&h, Code::PayloadTooLarge, [past]).await;
    let id = h.submit(json!({ "input": text_of(limits::INPUT_MAX_BYTES) })).await;
    let task = h.claim().await.unwrap();
    assert_eq!((task.execution_id, task.input.unwrap().bytes.len()), (id, limits::INPUT_MAX_BYTES));
    let complete = |bytes| json!({ "execution_id": id, "fence": task.fence, "result": text_of(bytes) });
    refuses::<Complete>(&h, Code::PayloadTooLarge, [complete(limits::RESULT_MAX_BYTES + 1)]).await;
    h.must::<Complete>(complete(limits::RESULT_MAX_BYTES)).await;
    let result = h.must::<GetResult>(json!({ "execution_id": id })).await;
    assert_eq!(result.bytes.len(), limits::RESULT_MAX_BYTES);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_brings_up_to_its_limit() {
    let h = Harness::start().await;
    let task = running(&h, json!({})).await;
    let suspend = json!({ "execution_id": task.execution_id, "fence": task.fence, "reason": "approval", "condition": { "any": [{ "name": "go" }] } });
    h.must::<Suspend>(suspend).await;
    let waitpoints = json!({ "execution_id": task.execution_id });
    let waitpoint = h.must::<ff_core::op::ListPendingWaitpoints>(waitpoints).await.items.remove(0);
    let token = json!({ "execution_id": task.execution_id, "waitpoint_id": waitpoint.waitpoint_id });
    let token = h.must::<ff_core::op::GetWaitpointToken>(token.clone()).await.token;
    let signal = |bytes| {
        json!({
            "execution_id": task.execution_id, "waitpoint_id": waitpoint.waitpoint_id, "token": token,
            "name": "go", "payload": text_of(bytes),
        })
    };
    let past = signal(limits::SIGNAL_PAYLOAD_MAX_BYTES + 1);
    refuses::<DeliverSignal>(&h, Code::PayloadTooLarge, [past]).await;
    h.must::<DeliverSignal>(signal(limits::SIGNAL_PAYLOAD_MAX_BYTES)).await;
    let resumed = h.claim().await.unwrap();
    assert_eq!(resumed.resume_signals[0].payload.as_ref().unwrap().0.len(), limits::SIGNAL_PAYLOAD_MAX_BYTES);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_frame_and_what_one_call_reads_of_them_are_bounded() {
    let h = Harness::start().await;
    let task = running(&h, json!({})).await;
    let stream = json!({ "execution_id": task.execution_id, "attempt": 0 });
    let append = |bytes| {
        let frame = json!({ "type": "token", "payload": text_of(bytes) });
        json!({ "execution_id": task.execution_id, "fence": task.fence, "first_sequence": 1, "frames": [frame] })
    };
    refuses::<AppendFrames>(&h, Code::PayloadTooLarge, [append(limits::FRAME_MAX_BYTES + 1)]).await;
    h.must::<AppendFrames>(append(limits::FRAME_MAX_BYTES)).await;
    let count = |count: usize| merged(stream.clone(), json!({ "count": count }));
    let read = h.must::<ReadStream>(count(limits::STREAM_READ_MAX)).await;
    assert_eq!(read.frames[0].payload.len(), limits::FRAME_MAX_BYTES);
    refuses::<ReadStream>(&h, Code::Invalid, [count(limits::STREAM_READ_MAX + 1), count(0)]).await;
    refuses::<TailStream>(&h, Code::Invalid, [count(limits::STREAM_READ_MAX + 1), count(0)]).await;
    let wait = |ms: i64| merged(stream.clone(), json!({ "block_ms": ms, "after": "0-1" }));
    let began = tokio::time::Instant::now();
    assert!(h.must::<TailStream>(wait(limits::TAIL_WAIT_MAX_MS)).await.frames.is_empty());
    assert_eq!(began.elapsed().as_millis(), limits::TAIL_WAIT_MAX_MS.unsigned_abs().into());
    refuses::<TailStream>(&h, Code::Invalid, [wait(limits::TAIL_WAIT_MAX_MS + 1), wait(-1)]).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_lasts_between_a_second_and_a_day() {
    let h = Harness::start().await;
    let (shortest, longest) = (limits::LEASE_TTL_MIN_MS, limits::LEASE_TTL_MAX_MS);
    let claim = |ms: i64| json!({ "instance_id": "w-1", "lanes": ["default"], "lease_ttl_ms": ms });
    refuses::<Claim>(&h, Code::Invalid, [shortest - 1, longest + 1, 0, -1].map(claim)).await;
    for ttl in [shortest, longest] {
        let task = running(&h, claim(ttl)).await;
        let renew = |ms: i64| json!({ "leases": [{ "execution_id": task.execution_id, "fence": task.fence, "lease_ttl_ms": ms }] });
        refuses::<RenewLeases>(&h, Code::Invalid, [shortest - 1, longest + 1].map(renew)).await;
        h.must::<RenewLeases>(renew(longest)).await;
        h.must::<RenewLeases>(renew(shortest)).await;
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    // Without a word it is thirty seconds.
    let task = running(&h, json!({})).await;
    h.pass(limits::LEASE_TTL_DEFAULT_MS.unsigned_abs() - 1).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none(), "a moment before the lease ends");
    let reclaimed = h.claim_with(json!({ "wait_ms": 100 })).await.expect("the lease has ended");
    assert_eq!(reclaimed.execution_id, task.execution_id);
    let worker = |ms: i64| json!({ "instance_id": "w-1", "worker_id": "w", "lanes": ["default"], "nonce": "n", "lease_ttl_ms": ms });
    refuses::<RegisterWorker>(&h, Code::Invalid, [shortest - 1, longest + 1].map(worker)).await;
    h.must::<RegisterWorker>(worker(longest)).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_and_a_claim_wait_as_long_as_they_may() {
    let h = Harness::start().await;
    let claim = |more: Value| merged(json!({ "instance_id": "w-1", "lanes": ["default"] }), more);
    let grant = |ms: i64| claim(json!({ "mode": "grant", "grant_ttl_ms": ms }));
    refuses::<Claim>(&h, Code::Invalid, [limits::GRANT_TTL_MAX_MS + 1, 0, -1].map(grant)).await;
    h.submit(json!({})).await;
    for (args, ttl) in [
        (claim(json!({ "mode": "grant" })), limits::GRANT_TTL_DEFAULT_MS),
        (grant(limits::GRANT_TTL_MAX_MS), limits::GRANT_TTL_MAX_MS),
    ] {
        let granted = h.must::<Claim>(args).await.grants.remove(0);
        let take = json!({
            "instance_id": "w-1", "grant_id": granted.grant_id, "execution_id": granted.execution_id,
        });
        h.pass(ttl.unsigned_abs() + 1).await;
        assert_eq!(h.refused::<ClaimFromGrant>(take).await, Code::ClaimGrantExpired);
    }
    h.claim().await.expect("a lapsed grant is queued again");
    let wait = |ms: i64| claim(json!({ "wait_ms": ms }));
    refuses::<Claim>(&h, Code::Invalid, [limits::CLAIM_WAIT_MAX_MS + 1, -1].map(wait)).await;
    let began = tokio::time::Instant::now();
    assert!(
        h.must::<Claim>(merged(wait(limits::CLAIM_WAIT_MAX_MS), json!({ "lanes": ["empty"] }))).await.tasks.is_empty()
    );
    assert_eq!(began.elapsed().as_millis(), limits::CLAIM_WAIT_MAX_MS.unsigned_abs().into());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_an_end_lasts_as_long_as_it_may() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let wait = |ms: i64| json!({ "execution_id": id, "wait_ms": ms });
    refuses::<WaitExecution>(&h, Code::Invalid, [limits::WAIT_MAX_MS + 1, -1].map(wait)).await;
    let began = tokio::time::Instant::now();
    h.must::<WaitExecution>(wait(limits::WAIT_MAX_MS)).await;
    assert_eq!(began.elapsed().as_millis(), limits::WAIT_MAX_MS.unsigned_abs().into());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn capabilities_are_bounded_in_number_and_in_bytes() {
    let h = Harness::start().await;
    let many = |n: usize| (0..n).map(|n| format!("c{n}")).collect::<Vec<_>>();
    let long = |bytes: usize| vec!["a".repeat(2_000), "b".repeat(bytes - 2_000)];
    let within = [many(limits::CAPABILITIES_MAX_TOKENS), long(limits::CAPABILITIES_MAX_BYTES)];
    let past = [many(limits::CAPABILITIES_MAX_TOKENS + 1), long(limits::CAPABILITIES_MAX_BYTES + 1)];
    let submit = |tokens: &Vec<String>| json!({ "kind": "test", "required_capabilities": tokens });
    let claim = |tokens: &Vec<String>| json!({ "instance_id": "w-1", "lanes": ["default"], "capabilities": tokens });
    let register = |tokens: &Vec<String>| merged(claim(tokens), json!({ "worker_id": "w", "nonce": "n" }));
    for tokens in &past {
        refuses::<CreateExecution>(&h, Code::InvalidCapabilities, [submit(tokens)]).await;
        refuses::<Claim>(&h, Code::InvalidCapabilities, [claim(tokens)]).await;
        refuses::<RegisterWorker>(&h, Code::InvalidCapabilities, [register(tokens)]).await;
    }
    for tokens in &within {
        let id = h.must::<CreateExecution>(submit(tokens)).await.execution_id;
        let task = h.must::<Claim>(claim(tokens)).await.tasks.remove(0);
        assert_eq!(task.execution_id, id);
        h.must::<RegisterWorker>(register(tokens)).await;
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn names_and_kinds_are_bounded_and_printable() {
    let h = Harness::start().await;
    let (name, kind) = ("n".repeat(limits::NAME_MAX_BYTES), "k".repeat(limits::KIND_MAX_BYTES));
    let wrong_names =
        ["n".repeat(limits::NAME_MAX_BYTES + 1), String::new(), "a b".into(), "a\u{7f}".into(), "é".repeat(33)];
    for wrong in &wrong_names {
        let submits = ["namespace", "lane"].map(|field| json!({ "kind": "test", (field): wrong }));
        refuses::<CreateExecution>(&h, Code::Invalid, submits).await;
        let worker = json!({ "instance_id": "w-1", "worker_id": "w", "lanes": ["default"], "nonce": "n" });
        let registers =
            ["instance_id", "worker_id", "namespace"].map(|field| merged(worker.clone(), json!({ (field): wrong })));
        refuses::<RegisterWorker>(&h, Code::Invalid, registers).await;
        refuses::<Claim>(&h, Code::Invalid, [json!({ "instance_id": wrong, "lanes": ["default"] })]).await;
        // An operator's refused attempt leaves its audit record, so only the code is looked at.
        assert_eq!(h.refused::<ConfigureLane>(json!({ "lane": wrong })).await, Code::Invalid);
    }
    let kinds = ["k".repeat(limits::KIND_MAX_BYTES + 1), String::new()];
    refuses::<CreateExecution>(&h, Code::Invalid, kinds.iter().map(|kind| json!({ "kind": kind }))).await;
    refuses::<CreateFlow>(&h, Code::Invalid, kinds.iter().map(|kind| json!({ "kind": kind }))).await;

    let place = json!({ "namespace": name, "lane": name, "kind": kind });
    let id = h.must::<CreateExecution>(place).await.execution_id;
    let worker = json!({ "instance_id": name, "worker_id": name, "namespace": name, "lanes": [name], "nonce": "n" });
    h.must::<RegisterWorker>(worker).await;
    h.must::<HeartbeatWorker>(json!({ "instance_id": name, "namespace": name, "nonce": "n" })).await;
    let claim = json!({ "instance_id": name, "namespace": name, "lanes": [name] });
    let task = h.must::<Claim>(claim).await.tasks.remove(0);
    assert_eq!((task.execution_id, task.kind), (id, kind));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn every_list_has_pages_of_up_to_a_thousand() {
    let h = Harness::start().await;
    let limit = |n: usize| json!({ "limit": n });
    macro_rules! pages {
        ($($list:ty)*) => {$(
            refuses::<$list>(&h, Code::Invalid, [limit(limits::PAGE_MAX + 1), limit(0)]).await;
            h.must::<$list>(limit(limits::PAGE_MAX)).await;
            h.must::<$list>(limit(1)).await;
        )*};
    }
    pages!(ListExecutions ListFlows ListBudgets ListQuotas ListLanes ListWorkers ListEvents ListAudit ListTokens);
    for _ in 0..=limits::PAGE_DEFAULT {
        h.submit(json!({})).await;
    }
    assert_eq!(h.must::<ListExecutions>(json!({})).await.items.len(), limits::PAGE_DEFAULT);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_terminal_execution_is_kept_for_a_week() {
    let h = Harness::start().await;
    let task = running(&h, json!({})).await;
    let id = json!({ "execution_id": task.execution_id });
    h.must::<Complete>(merged(id.clone(), json!({ "fence": task.fence }))).await;
    h.pass(limits::RETENTION_DEFAULT_MS.unsigned_abs() - 1_000).await;
    h.must::<GetExecution>(id.clone()).await;
    h.pass(2_000).await;
    assert_eq!(h.refused::<GetExecution>(id).await, Code::ExecutionNotFound);
    h.finish().await;
}
