//! Workers and the tasks in their hands.

use std::time::Duration;

use flowfabric::op::{CreateBudget, DeregisterWorker, create_budget, deregister_worker};
use flowfabric::{
    AttemptIndex, ClaimGrant, ClaimKind, Client, Code, FlowFabricWorker, Frame, FrameBound, FrameId, LeaseLoss,
    PublicState, ReportUsageResult, SdkError, SuspendOutcome, SuspendReason, SuspendRequest, WorkerConfig,
};

use crate::support::{both_ways, within};

/// Leases as short as they may be, so that losing one does not take long.
fn config(name: &str) -> WorkerConfig {
    WorkerConfig::new(name).lease_ttl(Duration::from_secs(1)).claim_wait(Duration::from_secs(10))
}

async fn worker(client: &Client, name: &str) -> FlowFabricWorker {
    FlowFabricWorker::connect(client, config(name)).await.unwrap()
}

/// Longer than any test holds a grant.
const GRANT_TTL: Duration = Duration::from_secs(30);

async fn grant(worker: &FlowFabricWorker) -> ClaimGrant {
    within(worker.obtain_grant("default", GRANT_TTL)).await.unwrap().unwrap()
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
            worker.claim_via_server("default", GRANT_TTL).await,
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
        assert!(worker.hand_back_grant(&fresh).await.unwrap(), "{way}");
        assert!(!worker.hand_back_grant(&fresh).await.unwrap(), "{way}: it is back already");
        let task = within(worker.claim_via_server("default", GRANT_TTL)).await.unwrap().unwrap();
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
        let SuspendOutcome::AlreadySatisfied {
            task, resume_signals, suspension_id, waitpoint_id, waitpoint_key, ..
        } = outcome
        else {
            panic!("{way}: {outcome:?}")
        };
        assert_eq!((waitpoint_id, waitpoint_key), (waitpoint.waitpoint_id, waitpoint.waitpoint_key), "{way}");
        assert!(!suspension_id.to_string().is_empty(), "{way}");
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
        let read = execution.read_stream(AttemptIndex(0), FrameBound::First, FrameBound::Last, 1_000).await;
        let frames = read.unwrap().frames;
        let texts: Vec<_> =
            frames.iter().skip(1).map(|frame| String::from_utf8(frame.payload.to_vec()).unwrap()).collect();
        assert_eq!(texts, (0..999).map(|number| number.to_string()).collect::<Vec<_>>(), "{way}");
    }
}

#[tokio::test]
async fn a_grant_is_for_its_lane_and_lasts_as_long_as_it_says() {
    for (way, client, _server) in both_ways().await {
        let lanes = config("w").lanes(["a", "b"]).claim_wait(Duration::ZERO);
        let worker = FlowFabricWorker::connect(&client, lanes).await.unwrap();
        let execution = client.submit("k").lane("b").send().await.unwrap();
        assert!(within(worker.obtain_grant("a", GRANT_TTL)).await.unwrap().is_none(), "{way}: nothing waits there");
        assert!(within(worker.claim_via_server("a", GRANT_TTL)).await.unwrap().is_none(), "{way}");
        let granted = within(worker.obtain_grant("b", Duration::from_millis(1))).await.unwrap().unwrap();
        assert_eq!((granted.execution_id, granted.lane.as_str()), (execution.id(), "b"), "{way}");
        for ttl in [Duration::ZERO, Duration::from_millis(60_001)] {
            let refused = worker.obtain_grant("b", ttl).await.unwrap_err();
            assert_eq!(refused.code(), Some(Code::Invalid), "{way}: {ttl:?}");
        }
        let waits = config("w").lanes(["b"]);
        let patient = FlowFabricWorker::connect(&client, waits).await.unwrap();
        let task = within(patient.claim_via_server("b", GRANT_TTL)).await.unwrap().unwrap();
        assert_eq!(task.execution_id(), execution.id(), "{way}: an unused grant lapses");
        let expired = worker.claim_from_grant(&granted).await.unwrap_err();
        assert_eq!(expired.code(), Some(Code::ClaimGrantExpired), "{way}");
        task.complete(&()).await.unwrap();
    }
}

#[tokio::test]
async fn frames_are_read_by_range_and_a_wait_that_is_too_long_is_refused() {
    for (way, client, _server) in both_ways().await {
        let worker = worker(&client, "w").await;
        let execution = client.submit("k").send().await.unwrap();
        let task = within(worker.claim_next()).await.unwrap().unwrap();
        for number in 1..=5 {
            task.append_frame(Frame::text("n", number.to_string())).await.unwrap();
        }
        let frame = |sequence| FrameId { attempt: AttemptIndex(0), sequence };
        let at = |sequence| FrameBound::At(frame(sequence));
        let sequences =
            |frames: flowfabric::StreamFrames| frames.frames.iter().map(|frame| frame.id.sequence).collect::<Vec<_>>();
        let read = execution.read_stream(AttemptIndex(0), at(2), at(4), 10).await.unwrap();
        assert_eq!(sequences(read), [2, 3, 4], "{way}: both ends are included");
        let read = task.read_stream(at(3), FrameBound::Last, 2).await.unwrap();
        assert_eq!(sequences(read), [3, 4], "{way}: not more than asked for");
        let tailed = task.tail_stream(2, Duration::ZERO, 2).await.unwrap();
        assert_eq!(sequences(tailed), [3, 4], "{way}");
        let too_long = Duration::from_millis(30_001);
        for refused in [
            execution.tail_stream(frame(0), too_long, 1).await,
            task.tail_stream(0, too_long, 1).await,
            execution.tail_stream(frame(0), Duration::ZERO, 0).await,
            execution.read_stream(AttemptIndex(0), FrameBound::First, FrameBound::Last, 10_001).await,
        ] {
            assert_eq!(refused.unwrap_err().code(), Some(Code::Invalid), "{way}");
        }
        task.complete(&()).await.unwrap();
    }
}

#[tokio::test]
async fn usage_is_charged_to_one_budget_or_to_all() {
    for (way, client, _server) in both_ways().await {
        let worker = worker(&client, "w").await;
        for (name, hard) in [("small", 10), ("large", 1_000)] {
            let budget = serde_json::json!({ "name": name, "dimensions": { "tokens": { "hard": hard } } });
            client.call::<CreateBudget>(serde_json::from_value::<create_budget::Args>(budget).unwrap()).await.unwrap();
        }
        client.submit("k").budget("small").budget("large").send().await.unwrap();
        let task = within(worker.claim_next()).await.unwrap().unwrap();
        let charged = task.report_usage_to("large", [("tokens", 500)], Some("draft".into())).await.unwrap();
        assert_eq!(charged, ReportUsageResult::Ok, "{way}");
        let both = task.report_usage([("tokens", 5)], None).await.unwrap();
        assert_eq!(both.len(), 2, "{way}: {both:?}");
        let breach = task.report_usage_to("small", [("tokens", 6)], None).await.unwrap();
        assert!(matches!(breach, ReportUsageResult::HardBreach { .. }), "{way}: {breach:?}");
        let foreign = task.report_usage_to("other", [("tokens", 1)], None).await.unwrap_err();
        assert!(foreign.code().is_some(), "{way}: {foreign}");
        task.complete(&()).await.unwrap();
    }
}

#[tokio::test]
async fn a_heartbeat_that_finds_another_process_under_its_name_ends_claims_and_keeps_the_tasks() {
    for (way, client, _server) in both_ways().await {
        let one = FlowFabricWorker::connect(&client, config("w").instance_id("w-1")).await.unwrap();
        client.submit("k").send().await.unwrap();
        let task = within(one.claim_next()).await.unwrap().unwrap();
        // An operator takes the first for dead, and a second process gets its name.
        let removed = deregister_worker::Args { instance_id: "w-1".into(), namespace: None, nonce: None };
        client.call::<DeregisterWorker>(removed).await.unwrap();
        let other = FlowFabricWorker::connect(&client, config("w").instance_id("w-1")).await.unwrap();
        within(one.stopping().cancelled()).await;
        assert!(one.claim_all_it_can().await.unwrap().is_empty(), "{way}");
        assert!(task.is_lease_healthy(), "{way}: the lease is the task's, whatever became of the name");
        task.complete(&()).await.unwrap();
        assert!(!other.stopping().is_cancelled(), "{way}");
    }
}
