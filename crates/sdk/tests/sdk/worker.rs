//! Workers and the tasks in their hands.

use std::time::Duration;

use flowfabric::op::{Claim, ClaimMode, ReturnGrant, claim, return_grant};
use flowfabric::{
    ClaimGrant, ClaimKind, Client, Code, FlowFabricWorker, Frame, LeaseLoss, PublicState, SdkError, SuspendOutcome,
    SuspendReason, SuspendRequest, WorkerConfig,
};

use crate::support::{both_ways, within};

/// Leases as short as they may be, so that losing one does not take long.
fn config(name: &str) -> WorkerConfig {
    WorkerConfig::new(name).lease_ttl(Duration::from_secs(1)).claim_wait(Duration::from_secs(10))
}

async fn worker(client: &Client, name: &str) -> FlowFabricWorker {
    FlowFabricWorker::connect(client, config(name)).await.unwrap()
}

async fn grant(worker: &FlowFabricWorker) -> ClaimGrant {
    let args = claim::Args {
        instance_id: worker.config().instance_id.clone(),
        namespace: None,
        lanes: worker.config().lanes.clone(),
        capabilities: Default::default(),
        kinds: Default::default(),
        max_tasks: None,
        wait_ms: Some(10_000),
        mode: Some(ClaimMode::Grant),
        lease_ids: Vec::new(),
        retry: false,
        lease_ttl_ms: None,
        grant_ttl_ms: Some(30_000),
    };
    worker.client().call::<Claim>(args).await.unwrap().grants.pop().unwrap()
}

#[tokio::test]
async fn a_task_shows_what_was_submitted_and_ends_once() {
    for (way, client, _server) in both_ways().await {
        let worker = worker(&client, "w").await;
        let execution = client.submit("add").input(&[1, 2]).tag("team", "a").lane("default").send().await.unwrap();
        let task = within(worker.claim_next()).await.unwrap().unwrap();
        assert_eq!((task.execution_id(), task.kind(), task.lane()), (execution.id(), "add", "default"), "{way}");
        assert_eq!(task.input_json::<Vec<i64>>().unwrap(), [1, 2]);
        assert_eq!((task.attempt_index().0, task.lease_epoch().0, task.claim_kind()), (0, 1, ClaimKind::Initial));
        assert_eq!(task.tags()["team"], "a");
        task.update_progress(50, "half").await.unwrap();
        assert_eq!(execution.get().await.unwrap().progress.unwrap().pct, Some(50), "{way}");
        let completed = task.complete(&3).await.unwrap();
        assert_eq!(completed.public_state, PublicState::Completed);
        assert_eq!(execution.result::<i64>().await.unwrap(), 3, "{way}");
        worker.stop(Duration::ZERO).await.unwrap();
        assert!(client.workers().await.unwrap().is_empty(), "{way}");
    }
}

#[tokio::test]
async fn a_full_worker_claims_nothing_and_leaves_a_grant_untouched() {
    for (way, client, _server) in both_ways().await {
        let worker = FlowFabricWorker::connect(&client, config("w").max_concurrent_tasks(1)).await.unwrap();
        client.submit("k").send().await.unwrap();
        let held = within(worker.claim_next()).await.unwrap().unwrap();
        client.submit("k").send().await.unwrap();
        let grant = grant(&worker).await;
        for refused in [
            worker.claim_from_grant(&grant).await.map(Some),
            worker.claim_from_reclaim_grant(&grant).await.map(Some),
            worker.claim_via_server().await,
            worker.claim_next().await,
        ] {
            let full = matches!(refused, Err(SdkError::WorkerAtCapacity { max_concurrent_tasks: 1 }));
            assert!(full, "{way}: {refused:?}");
        }
        held.complete(&()).await.unwrap();
        let task = worker.claim_from_grant(&grant).await.unwrap();
        assert_eq!(task.execution_id(), grant.execution_id, "{way}");
        task.complete(&()).await.unwrap();
    }
}

#[tokio::test]
async fn a_grant_is_claimed_once_and_only_an_interrupted_one_as_a_reclaim() {
    for (way, client, _server) in both_ways().await {
        let worker = worker(&client, "w").await;
        client.submit("k").send().await.unwrap();
        let fresh = grant(&worker).await;
        let refused = worker.claim_from_reclaim_grant(&fresh).await.unwrap_err();
        assert_eq!(refused.code(), Some(Code::NotAResumedExecution), "{way}");
        let returned = return_grant::Args {
            instance_id: worker.config().instance_id.clone(),
            grant_id: fresh.grant_id,
            execution_id: fresh.execution_id,
            namespace: None,
        };
        assert!(worker.client().call::<ReturnGrant>(returned).await.unwrap().changed, "{way}");
        let task = within(worker.claim_via_server()).await.unwrap().unwrap();
        task.delay_execution(Duration::ZERO).await.unwrap();
        let resumed = grant(&worker).await;
        let task = worker.claim_from_reclaim_grant(&resumed).await.unwrap();
        assert_eq!((task.claim_kind(), task.attempt_index().0), (ClaimKind::Resumed, 0), "{way}");
        task.fail("enough", "permanent").await.unwrap();
    }
}

#[tokio::test]
async fn one_call_claims_as_many_as_there_are_permits() {
    for (way, client, _server) in both_ways().await {
        let worker = FlowFabricWorker::connect(&client, config("w").max_concurrent_tasks(8)).await.unwrap();
        for _ in 0..10 {
            client.submit("k").send().await.unwrap();
        }
        let before = client.calls_made();
        let tasks = within(worker.claim_all_it_can()).await.unwrap();
        assert_eq!((tasks.len(), client.calls_made() - before, worker.free_permits()), (8, 1, 0), "{way}");
        for task in tasks {
            task.complete(&()).await.unwrap();
        }
        assert_eq!(within(worker.claim_all_it_can()).await.unwrap().len(), 2, "{way}: and the tasks are dropped");
        assert_eq!(worker.free_permits(), 8);
    }
}

#[tokio::test]
async fn a_held_task_is_kept_and_a_dropped_one_runs_elsewhere() {
    for (way, client, _server) in both_ways().await {
        let (one, other) = (worker(&client, "one").await, worker(&client, "other").await);
        client.submit("k").send().await.unwrap();
        let task = within(one.claim_next()).await.unwrap().unwrap();
        // Three times as long as the lease lasts: only renewals can keep it.
        let lost = tokio::time::timeout(Duration::from_secs(3), task.cancellation().cancelled()).await;
        assert!(lost.is_err() && task.is_lease_healthy(), "{way}");
        assert_eq!(task.consecutive_renewal_failures(), 0, "{way}");
        task.renew_lease().await.unwrap();
        drop(task);
        let taken = within(other.claim_next()).await.unwrap().unwrap();
        assert_eq!((taken.claim_kind(), taken.attempt_index().0), (ClaimKind::Reclaim, 1), "{way}");
        taken.complete(&()).await.unwrap();
    }
}

#[tokio::test]
async fn the_token_of_a_cancelled_task_fires_and_late_calls_are_refused() {
    for (way, client, _server) in both_ways().await {
        let worker = worker(&client, "w").await;
        let execution = client.submit("k").send().await.unwrap();
        let task = within(worker.claim_next()).await.unwrap().unwrap();
        execution.cancel("no more").await.unwrap();
        within(task.cancellation().cancelled()).await;
        assert_eq!(task.lease_loss(), Some(LeaseLoss::Cancelled), "{way}");
        assert!(!task.is_lease_healthy());
        let refused = task.complete(&()).await.unwrap_err();
        assert!(refused.is_lease_lost(), "{way}: {refused}");
        let revoked = client.submit("k").send().await.unwrap();
        let task = within(worker.claim_next()).await.unwrap().unwrap();
        revoked.revoke_lease("test").await.unwrap();
        let refused = task.append_frame(Frame::text("t", "x")).await.unwrap_err();
        assert_eq!(refused.code(), Some(Code::LeaseRevoked), "{way}");
        assert!(task.cancellation().is_cancelled(), "{way}");
    }
}

#[tokio::test]
async fn a_suspension_that_is_satisfied_already_gives_the_task_back() {
    for (way, client, _server) in both_ways().await {
        let worker = worker(&client, "w").await;
        let execution = client.submit("k").send().await.unwrap();
        let task = within(worker.claim_next()).await.unwrap().unwrap();
        let waitpoint = task.create_pending_waitpoint(None, None).await.unwrap();
        let signal = worker.deliver_signal(execution.id(), "go").waitpoint(waitpoint.waitpoint_id, waitpoint.token);
        signal.payload(&"now").send().await.unwrap();
        let request = || SuspendRequest::for_signal("go", SuspendReason::Signal);
        let outcome = task.suspend(request().on_waitpoint(waitpoint.waitpoint_id)).await.unwrap();
        let SuspendOutcome::AlreadySatisfied { task, resume_signals } = outcome else { panic!("{way}: {outcome:?}") };
        assert_eq!((resume_signals.len(), resume_signals[0].name.as_str()), (1, "go"), "{way}");
        let outcome = task.suspend(request().continuation(&7)).await.unwrap();
        let SuspendOutcome::Suspended { waitpoint_id, token, .. } = outcome else { panic!("{way}: {outcome:?}") };
        execution.signal("go").waitpoint(waitpoint_id, token).payload(&"later").send().await.unwrap();
        let task = within(worker.claim_next()).await.unwrap().unwrap();
        assert_eq!((task.claim_kind(), task.attempt_index().0), (ClaimKind::Resumed, 0), "{way}");
        assert_eq!(task.continuation_json::<i64>().unwrap(), Some(7), "{way}");
        let payload = task.resume_signals()[0].payload.as_ref().unwrap();
        assert_eq!(&payload[..], b"\"later\"", "{way}");
        task.complete(&()).await.unwrap();
    }
}

#[tokio::test]
async fn a_stopping_worker_hands_back_what_it_holds() {
    for (way, client, _server) in both_ways().await {
        let (one, other) = (worker(&client, "one").await, worker(&client, "other").await);
        client.submit("k").send().await.unwrap();
        let task = within(one.claim_next()).await.unwrap().unwrap();
        let waiting = tokio::spawn({
            let one = one.clone();
            async move { one.claim_next().await }
        });
        one.stop(Duration::ZERO).await.unwrap();
        assert!(within(waiting).await.unwrap().unwrap().is_none(), "{way}: a waiting claim ends");
        assert!(task.cancellation().is_cancelled(), "{way}");
        let taken = within(other.claim_next()).await.unwrap().unwrap();
        assert_eq!((taken.claim_kind(), taken.attempt_index().0), (ClaimKind::Resumed, 0), "{way}: the same attempt");
        assert!(task.complete(&()).await.unwrap_err().is_lease_lost(), "{way}");
        taken.complete(&()).await.unwrap();
    }
}

#[tokio::test]
async fn a_second_process_with_the_same_instance_id_is_refused() {
    for (way, client, _server) in both_ways().await {
        let one = FlowFabricWorker::connect(&client, config("w").instance_id("w-1")).await.unwrap();
        let refused = FlowFabricWorker::connect(&client, config("w").instance_id("w-1")).await.unwrap_err();
        assert_eq!(refused.code(), Some(Code::DuplicateWorkerInstance), "{way}");
        one.stop(Duration::ZERO).await.unwrap();
        FlowFabricWorker::connect(&client, config("w").instance_id("w-1")).await.unwrap();
    }
}

#[tokio::test]
async fn a_writer_sends_many_frames_in_few_calls_and_in_order() {
    for (way, client, _server) in both_ways().await {
        let worker = worker(&client, "w").await;
        let execution = client.submit("k").send().await.unwrap();
        let task = within(worker.claim_next()).await.unwrap().unwrap();
        task.append_frame(Frame::json("note", &"first").unwrap()).await.unwrap();
        let before = client.calls_made();
        let writer = task.frame_writer();
        for number in 0..1_000 {
            writer.write(Frame::text("token", number.to_string())).await.unwrap();
        }
        assert_eq!(within(writer.finish()).await.unwrap(), 1_000, "{way}");
        let calls = client.calls_made() - before;
        assert!(calls < 100, "{way}: {calls} calls");
        task.complete(&()).await.unwrap();
        let frames = execution.read_stream(flowfabric::AttemptIndex(0), 1_000).await.unwrap().frames;
        let texts: Vec<_> =
            frames.iter().skip(1).map(|frame| String::from_utf8(frame.payload.to_vec()).unwrap()).collect();
        assert_eq!(texts, (0..999).map(|number| number.to_string()).collect::<Vec<_>>(), "{way}");
    }
}
