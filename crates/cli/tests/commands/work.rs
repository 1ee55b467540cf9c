//! A worker's part, so that there is something to show.

use flowfabric::op::view::Task;
use flowfabric::op::{
    AppendFrames, Claim, Complete, Fail, RecordSteps, RegisterWorker, ReserveSpend, Suspend, append_frames, claim,
    complete, fail, record_steps, register_worker, reserve_spend, suspend,
};
use flowfabric::{CapabilitySet, Client, Condition, ConditionMatcher, FrameRequest, JsonText, SuspendReason};

use crate::support::as_client;

/// The lane everything here is in.
const LANE: &str = "default";

/// Registers a worker.
pub(crate) fn register(namespace: &str, instance: &str) {
    as_client(namespace, async |client| {
        let args = register_worker::Args {
            instance_id: instance.into(),
            worker_id: "painter".into(),
            namespace: None,
            lanes: [LANE.to_owned(), "gpu".to_owned()].into(),
            capabilities: CapabilitySet::new(["cuda", "large"]).unwrap(),
            kinds: ["paint".to_owned()].into(),
            capacity: Some(4),
            version: Some("1.2.3".into()),
            nonce: "n".into(),
            lease_ttl_ms: None,
            tools: Vec::new(),
        };
        client.call::<RegisterWorker>(args).await.unwrap();
    });
}

async fn take(client: &Client) -> Task {
    let args = claim::Args {
        instance_id: "worker-1".into(),
        namespace: None,
        lanes: [LANE.to_owned()].into(),
        capabilities: CapabilitySet::default(),
        kinds: Default::default(),
        max_tasks: None,
        wait_ms: Some(20_000),
        mode: None,
        lease_ids: Vec::new(),
        retry: false,
        lease_ttl_ms: None,
        grant_ttl_ms: None,
    };
    client.call::<Claim>(args).await.unwrap().tasks.pop().expect("there is work")
}

/// Records entries in the journal of a task.
pub(crate) fn record(namespace: &str, task: &Task, entries: serde_json::Value) {
    as_client(namespace, async |client| {
        let args = record_steps::Args {
            execution_id: task.execution_id,
            fence: task.fence,
            first_number: 1,
            entries: serde_json::from_value(entries).unwrap(),
        };
        client.call::<RecordSteps>(args).await.unwrap();
    });
}

async fn finish(client: &Client, task: &Task, result: &str) {
    let args = complete::Args {
        execution_id: task.execution_id,
        fence: task.fence,
        result: Some(JsonText(result.to_owned())),
        result_base64: None,
        content_type: None,
        entries: Vec::new(),
        first_number: None,
        run: None,
    };
    client.call::<Complete>(args).await.unwrap();
}

/// Takes the next task and holds amounts in its budgets.
pub(crate) fn reserve(namespace: &str, key: &str, tokens: i64) {
    as_client(namespace, async |client| {
        let task = take(&client).await;
        let args = reserve_spend::Args {
            execution_id: task.execution_id,
            fence: task.fence,
            amounts: [("tokens".to_owned(), tokens)].into(),
            key: key.to_owned(),
            ttl_ms: None,
            budget: None,
        };
        client.call::<ReserveSpend>(args).await.unwrap();
    });
}

/// Takes the next task and completes it.
pub(crate) fn complete(namespace: &str, result: &str) {
    as_client(namespace, async |client| {
        let task = take(&client).await;
        finish(&client, &task, result).await;
    });
}

/// Takes the next task and keeps it.
pub(crate) fn hold(namespace: &str) -> Task {
    as_client(namespace, async |client| take(&client).await)
}

/// Completes a task that is held.
pub(crate) fn complete_held(namespace: &str, task: &Task, result: &str) {
    as_client(namespace, async |client| finish(&client, task, result).await);
}

/// Takes the next task and fails it.
pub(crate) fn fail(namespace: &str, reason: &str) {
    let task = hold(namespace);
    fail_held(namespace, &task, reason);
}

/// Fails a task that is held.
pub(crate) fn fail_held(namespace: &str, task: &Task, reason: &str) {
    as_client(namespace, async |client| {
        let args = fail::Args {
            execution_id: task.execution_id,
            fence: task.fence,
            reason: reason.into(),
            category: Some("bad_input".into()),
            retry_after_ms: None,
            cause: None,
            entries: Vec::new(),
            first_number: None,
            run: None,
            undone: Vec::new(),
        };
        client.call::<Fail>(args).await.unwrap();
    });
}

/// Takes the next task and asks a person.
pub(crate) fn ask(namespace: &str, signals: &[&str], detail: &str) {
    as_client(namespace, async |client| {
        let task = take(&client).await;
        let matchers = signals.iter().map(|name| ConditionMatcher { name: (*name).to_owned(), ..Default::default() });
        let args = suspend::Args {
            execution_id: task.execution_id,
            fence: task.fence,
            condition: Condition::Any(matchers.collect()),
            reason: SuspendReason::Approval,
            timeout_ms: None,
            timeout_behavior: None,
            continuation: None,
            continuation_base64: None,
            continuation_content_type: None,
            requested_by: None,
            allow_operator_resume: None,
            waitpoint_ids: Vec::new(),
            waitpoint_key: Some("decision".into()),
            detail: Some(detail.into()),
            question: None,
            schema: None,
            assignees: Vec::new(),
            idempotency_key: None,
            entries: Vec::new(),
            first_number: None,
        };
        client.call::<Suspend>(args).await.unwrap();
    });
}

/// Writes frames for a task that is held, the first with this number.
pub(crate) fn write(namespace: &str, task: &Task, first_sequence: u64, frames: &[(&str, &str)]) {
    as_client(namespace, async |client| {
        let frame = |(frame_type, payload): &(&str, &str)| FrameRequest {
            frame_type: (*frame_type).to_owned(),
            payload: Some(JsonText((*payload).to_owned())),
            ..Default::default()
        };
        let args = append_frames::Args {
            execution_id: task.execution_id,
            fence: task.fence,
            first_sequence,
            frames: frames.iter().map(frame).collect(),
        };
        client.call::<AppendFrames>(args).await.unwrap();
    });
}
