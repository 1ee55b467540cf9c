//! Claims while a part of the store does not answer: healthy work is handed out, no claim waits longer than it said,
//! and the store is not asked more than once in a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Harness, Trouble};
use ff_core::lease::ClaimKind;
use ff_core::op::view::Task;
use ff_core::op::{CancelFlow, Claim, CreateExecutions, CreateFlow, GetExecution, RegisterWorker, create_flow};
use ff_core::{Code, ExecutionId, Mint, Partition, PartitionConfig, PublicState};
use ff_engine::Options;
use ff_store::Query;
use ff_store::memory::{Call, Fault, Plan};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

const SICK: Partition = Partition::flow(1);

fn four() -> Options {
    Options { partitions: Some(PartitionConfig { flow: 4, budget: 1, quota: 1 }), ..Options::default() }
}

fn single() -> Options {
    Options { partitions: Some(PartitionConfig::SINGLE), ..Options::default() }
}

/// How many executions wait in the sick partition.
fn queued_in_sick(h: &Harness) -> usize {
    h.store.inspect(|contents| {
        let queued = |(_, contents): (_, &ff_store::memory::PartitionContents)| {
            contents.entries().filter(|(index, ..)| index.as_bytes().first() == Some(&b'q')).count()
        };
        contents.partitions().filter(|(partition, _)| *partition == SICK).map(queued).sum()
    })
}

/// Forty executions, some in each partition; says how many are not in the sick one.
async fn spread(h: &Harness) -> usize {
    let executions: Vec<_> = (0..40).map(|_| json!({ "kind": "test" })).collect();
    h.must::<CreateExecutions>(json!({ "executions": executions })).await;
    let in_sick = queued_in_sick(h);
    assert!((1..40).contains(&in_sick), "{in_sick} of 40 in one of four partitions");
    40 - in_sick
}

fn is_of(call: &Call<'_>, sick: Partition) -> bool {
    let (Call::Read { partition, .. } | Call::Commit { partition, .. }) = call;
    *partition == sick
}

fn reads_a_queue(call: &Call<'_>) -> bool {
    let Call::Read { queries, .. } = call else { return false };
    queries.iter().any(|query| match query {
        Query::Scan(scan) => scan.index.as_bytes().first() == Some(&b'q'),
        _ => false,
    })
}

fn hang() -> Plan {
    Plan { before: Some(Box::pin(std::future::pending())), ..Plan::default() }
}

/// From now on these calls get that plan; says how many there were so far.
fn trouble_with(
    trouble: &Trouble,
    meant: impl Fn(&Call<'_>) -> bool + Send + 'static,
    plan: impl Fn() -> Plan + Send + 'static,
) -> Arc<AtomicUsize> {
    let met = Arc::new(AtomicUsize::new(0));
    let counted = met.clone();
    trouble.begin(move |call| {
        if !meant(&call) {
            return Plan::default();
        }
        counted.fetch_add(1, Ordering::SeqCst);
        plan()
    });
    met
}

fn args(more: Value) -> Value {
    let mut args = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 1_000, "max_tasks": 40 });
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    args
}

/// Claims until so many are there.
async fn claim_many(h: &Harness, wanted: usize) -> Vec<Task> {
    let mut tasks = Vec::new();
    while tasks.len() < wanted {
        let more = h
            .must::<Claim>(args(json!({ "max_tasks": (wanted - tasks.len()).min(256), "wait_ms": 5_000 })))
            .await
            .tasks;
        assert!(!more.is_empty(), "{} of {wanted}", tasks.len());
        tasks.extend(more);
    }
    tasks
}

/// The unreadable part of the store, and the counter of the calls to it.
fn outage(trouble: &Trouble, plan: impl Fn() -> Plan + Send + 'static) -> Arc<AtomicUsize> {
    trouble_with(trouble, |call| is_of(call, SICK), plan)
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_be_read_holds_up_no_healthy_work() {
    for hanging in [false, true] {
        let (h, trouble) = Harness::with_trouble(four()).await;
        let healthy = spread(&h).await;
        // It knows the work of the first only from the store.
        let other = h.second().await;
        let calls = outage(&trouble, move || if hanging { hang() } else { Fault::Unavailable.into() });
        let began = Instant::now();
        let tasks = timeout(Duration::from_secs(60), claim_many(&other, healthy)).await.expect("it is not held up");
        assert!(tasks.iter().all(|task| task.execution_id.partition() != SICK));
        assert!(began.elapsed() < Duration::from_millis(300), "{:?}", began.elapsed());
        // Nothing is left that can be read: that is no "nothing to do".
        let began = Instant::now();
        let refused = other.call::<Claim>(args(json!({ "wait_ms": 3_000 }))).await.unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms.is_some()), (Code::Unavailable, true));
        assert!(began.elapsed() < Duration::from_millis(3_100), "{:?}", began.elapsed());
        let asked = calls.load(Ordering::SeqCst);
        assert!(asked <= 12, "asked {asked} times in about four seconds");
        if hanging {
            other.engine.close().await;
            continue;
        }
        trouble.end();
        let rest = claim_many(&other, 40 - healthy).await;
        assert!(rest.iter().all(|task| task.execution_id.partition() == SICK));
        other.engine.close().await;
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_read_among_others_is_no_outage_for_a_claim_that_does_not_wait() {
    let (h, trouble) = Harness::with_trouble(four()).await;
    let healthy = spread(&h).await;
    let other = h.second().await;
    trouble
        .begin(|call| if is_of(&call, SICK) && matches!(call, Call::Read { .. }) { hang() } else { Plan::default() });
    claim_many(&other, healthy).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // More for the healthy partitions, which the second server reads.
    let more = 40 + spread(&h).await - healthy;
    claim_many(&other, more).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let nothing = other.must::<Claim>(args(json!({ "wait_ms": 0 }))).await;
    assert_eq!(nothing.tasks.len(), 0, "the others were read within the last second");
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    let refused = other.call::<Claim>(args(json!({ "wait_ms": 0 }))).await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable, "nothing was read for longer than that");
}

#[tokio::test(start_paused = true)]
async fn neither_a_repeated_claim_nor_a_worker_with_a_capacity_needs_the_partition_that_cannot_be_read() {
    for hanging in [false, true] {
        let (h, trouble) = Harness::with_trouble(four()).await;
        let healthy = spread(&h).await;
        let worker =
            json!({ "worker_id": "w", "instance_id": "w-1", "lanes": ["default"], "nonce": "n", "capacity": 40 });
        h.must::<RegisterWorker>(worker).await;
        outage(&trouble, move || if hanging { hang() } else { Fault::Unavailable.into() });
        let lease_ids: Vec<_> = (0..40).map(|n| format!("01a3185c-5000-7661-80ab-28b8906200{n:02}")).collect();
        let claim = args(json!({ "lease_ids": lease_ids, "retry": true, "wait_ms": 5_000 }));
        let claimed = timeout(Duration::from_secs(20), h.call::<Claim>(claim)).await.expect("it is not held up");
        let tasks = claimed.unwrap().tasks;
        assert!(!tasks.is_empty() && tasks.len() <= healthy, "{} of {healthy}", tasks.len());
        assert!(tasks.iter().all(|task| task.execution_id.partition() != SICK));
        trouble.end();
        h.engine.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_took_long_lets_no_worker_go_past_its_capacity() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    let worker = json!({ "worker_id": "w", "instance_id": "w-1", "lanes": ["default"], "nonce": "n", "capacity": 1 });
    h.must::<RegisterWorker>(worker).await;
    for _ in 0..4 {
        h.submit(json!({})).await;
    }
    let one = |instance: &str| args(json!({ "instance_id": instance, "max_tasks": 1, "wait_ms": 2_000 }));
    assert_eq!(h.must::<Claim>(one("w-1")).await.tasks.len(), 1);
    let slow = || Plan { before: Some(Box::pin(tokio::time::sleep(Duration::from_millis(600)))), ..Plan::default() };
    trouble_with(&trouble, |call| matches!(call, Call::Commit { .. }), slow);
    assert_eq!(h.must::<Claim>(one("w-2")).await.tasks.len(), 1);
    trouble.end();
    assert_eq!(h.refused::<Claim>(one("w-1")).await, Code::WorkerAtCapacity);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_ends_at_its_deadline_and_with_its_caller_and_with_the_engine() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    h.submit(json!({})).await;
    let other = h.second().await;
    trouble.begin(|call| if reads_a_queue(&call) { Fault::Unavailable.into() } else { Plan::default() });
    let began = Instant::now();
    assert_eq!(other.refused::<Claim>(args(json!({ "wait_ms": 0 }))).await, Code::Unavailable);
    assert!(began.elapsed() < Duration::from_millis(1_100), "{:?}", began.elapsed());
    // The caller goes away.
    assert!(timeout(Duration::from_millis(500), other.call::<Claim>(args(json!({})))).await.is_err());
    // The engine closes while a claim waits.
    let waiting = other.call::<Claim>(args(json!({ "wait_ms": 30_000 })));
    let closing = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        other.engine.close().await;
    };
    let began = Instant::now();
    let (refused, ()) = tokio::join!(waiting, closing);
    assert_eq!(refused.unwrap_err().code, Code::ShuttingDown);
    assert!(began.elapsed() < Duration::from_millis(2_000), "{:?}", began.elapsed());
    trouble.end();
    // No worker took it unseen.
    let task = h.claim().await.unwrap();
    assert_eq!(task.claim_kind, ClaimKind::Initial);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_everything_costs_one_read_of_a_queue_a_second() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    h.submit(json!({})).await;
    let other = h.second().await;
    let reads = trouble_with(&trouble, reads_a_queue, || Fault::Unavailable.into());
    let claims = (0..8).map(|number| {
        let more = json!({ "instance_id": format!("w-{number}"), "wait_ms": 20_000 });
        other.call::<Claim>(args(more))
    });
    for outcome in futures_util::future::join_all(claims).await {
        assert_eq!(outcome.unwrap_err().code, Code::Unavailable);
    }
    let reads = reads.load(Ordering::SeqCst);
    assert!((10..=25).contains(&reads), "{reads} reads in 20 seconds");
    trouble.end();
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn work_whose_partition_takes_no_commits_is_passed_over() {
    let (h, trouble) = Harness::with_trouble(four()).await;
    let healthy = spread(&h).await;
    trouble.begin(|call| match call {
        Call::Commit { partition: SICK, .. } => Fault::Unavailable.into(),
        _ => Plan::default(),
    });
    let tasks = claim_many(&h, healthy).await;
    assert!(tasks.iter().all(|task| task.execution_id.partition() != SICK));
    trouble.end();
    claim_many(&h, 40 - healthy).await;
    h.finish().await;
}

/// The request for an execution in a partition.
fn in_partition(h: &Harness, partition: Partition, number: u8) -> Value {
    let id = ExecutionId::in_partition(partition, &Mint { now_ms: h.engine.now(), random: [number; 10] });
    json!({ "execution_id": id })
}

/// Waits for one task, and says when it came.
async fn take_one(h: &Harness, instance: &str) -> (Task, Instant) {
    let wait = args(json!({ "instance_id": instance, "max_tasks": 1, "wait_ms": 20_000 }));
    let task = h.must::<Claim>(wait).await.tasks.pop().expect("there is work for both");
    (task, Instant::now())
}

#[tokio::test(start_paused = true)]
async fn work_wakes_a_claim_that_waits_and_not_one_that_is_busy_with_other_work() {
    let (h, trouble) = Harness::with_trouble(four()).await;
    // Slow, and within the patience of a claim.
    trouble.begin(|call| {
        let slow = matches!(call, Call::Commit { .. }) && is_of(&call, SICK);
        let pause = slow.then(|| Box::pin(tokio::time::sleep(Duration::from_millis(200))) as _);
        Plan { before: pause, ..Plan::default() }
    });
    let submitting = async {
        h.pass(10).await;
        let slow = h.submit(in_partition(&h, SICK, 1)).await;
        h.pass(10).await;
        let quick = h.submit(in_partition(&h, Partition::flow(2), 2)).await;
        (slow, quick, Instant::now())
    };
    let ((first, _), (second, taken_at), (slow, quick, submitted_at)) =
        tokio::join!(take_one(&h, "w-1"), take_one(&h, "w-2"), submitting);
    assert_eq!((first.execution_id, second.execution_id), (slow, quick));
    assert!(taken_at - submitted_at < Duration::from_millis(50), "{:?}", taken_at - submitted_at);
    trouble.end();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn work_told_to_a_claim_that_reads_wakes_one_that_could_not_take_what_was_read() {
    let (h, trouble) = Harness::with_trouble(four()).await;
    let other = h.second().await;
    trouble.begin(|call| {
        let slow_commit = matches!(call, Call::Commit { .. }) && is_of(&call, SICK);
        let ms = if slow_commit { 200 } else { 20 };
        let slow = slow_commit || reads_a_queue(&call);
        let pause = slow.then(|| Box::pin(tokio::time::sleep(Duration::from_millis(ms))) as _);
        Plan { before: pause, ..Plan::default() }
    });
    // The second claim cannot take what the first one reads, so the end of that read wakes nobody.
    let picky = async {
        let kinds = json!({ "instance_id": "w-2", "max_tasks": 1, "wait_ms": 20_000, "kinds": ["quick"] });
        let task = h.must::<Claim>(args(kinds)).await.tasks.pop().expect("there is work of its kind");
        (task, Instant::now())
    };
    let submit = async |partition, number, kind: &str| {
        let mut request = in_partition(&h, partition, number);
        request["kind"] = json!(kind);
        other.submit(request).await
    };
    let submitting = async {
        h.pass(10).await;
        let slow = submit(SICK, 1, "slow").await;
        h.pass(5).await;
        (slow, submit(Partition::flow(2), 2, "quick").await, Instant::now())
    };
    let ((first, _), (second, taken_at), (slow, quick, submitted_at)) =
        tokio::join!(take_one(&h, "w-1"), picky, submitting);
    assert_eq!((first.execution_id, second.execution_id), (slow, quick));
    assert!(taken_at - submitted_at < Duration::from_millis(100), "{:?}", taken_at - submitted_at);
    trouble.end();
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_passes_on_the_work_it_was_told_of() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    // From now on the engine knows that nothing waits: a claim looks no further.
    let none = h.must::<Claim>(args(json!({ "instance_id": "w-1", "max_tasks": 1, "wait_ms": 0 }))).await;
    assert_eq!(none.tasks.len(), 0);
    let failing = async {
        let wait = args(json!({ "instance_id": "w-1", "max_tasks": 1, "wait_ms": 20_000 }));
        h.refused::<Claim>(wait).await
    };
    let submitting = async {
        // By then the engine's copy of the worker is too old to be used.
        h.pass(1_500).await;
        let worker = ff_core::worker::Worker::key_of("default", "w-1");
        trouble.begin(move |call| match call {
            Call::Read { queries, .. } if queries.iter().any(|query| reads_document(query, &worker)) => {
                Fault::Unavailable.into()
            }
            _ => Plan::default(),
        });
        h.submit(json!({})).await;
        Instant::now()
    };
    let (code, (_, taken_at), submitted_at) = tokio::join!(failing, take_one(&h, "w-2"), submitting);
    assert_eq!(code, Code::Unavailable);
    assert!(taken_at - submitted_at < Duration::from_millis(100), "{:?}", taken_at - submitted_at);
    trouble.end();
    h.finish().await;
}

fn reads_document(query: &Query, key: &ff_core::Key) -> bool {
    matches!(query, Query::Documents(keys) if keys.contains(key))
}

/// So many executions, each under a key of its own, and with that in a queue of its own.
async fn submit_keys(h: &Harness, count: usize) {
    let all: Vec<Value> = (0..count).map(|n| json!({ "kind": "test", "fair_key": format!("tenant-{n:06}") })).collect();
    for some in all.chunks(300) {
        h.must::<CreateExecutions>(json!({ "executions": some })).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_has_few_reads_under_way_however_long_they_take() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    submit_keys(&h, 900).await;
    let other = h.second().await;
    let reads = trouble_with(&trouble, reads_a_queue, hang);
    assert_eq!(other.refused::<Claim>(args(json!({ "wait_ms": 1_000, "max_tasks": 1 }))).await, Code::Unavailable);
    let begun = reads.load(Ordering::SeqCst);
    assert!((1..=64).contains(&begun), "{begun} reads in a second");
    trouble.end();
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_whose_reads_hang_holds_up_no_healthy_work_however_many_queues_it_has() {
    let (h, trouble) = Harness::with_trouble(four()).await;
    submit_keys(&h, 900).await;
    let in_sick = queued_in_sick(&h);
    assert!(in_sick > 150, "{in_sick} of 900");
    let other = h.second().await;
    let reads = trouble_with(&trouble, |call| is_of(call, SICK) && reads_a_queue(call), hang);
    let began = Instant::now();
    let tasks = claim_many(&other, 900 - in_sick).await;
    assert!(tasks.iter().all(|task| task.execution_id.partition() != SICK));
    assert!(began.elapsed() < Duration::from_millis(2_500), "{:?}", began.elapsed());
    // Two claims have come before the first of these reads has taken too long; then they are made one by one.
    let begun = reads.load(Ordering::SeqCst);
    assert!((1..=2 * 64 + 8).contains(&begun), "{begun} reads in about two seconds");
    other.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_hanging_commit_takes_after_all_is_given_back() {
    let (h, trouble) = Harness::with_trouble(four()).await;
    let healthy = spread(&h).await;
    let released = Arc::new(tokio::sync::Notify::new());
    let release = released.clone();
    trouble.begin(move |call| match call {
        Call::Commit { partition: SICK, .. } => {
            let release = release.clone();
            Plan { before: Some(Box::pin(async move { release.notified().await })), ..Plan::default() }
        }
        _ => Plan::default(),
    });
    let began = Instant::now();
    let tasks = claim_many(&h, healthy).await;
    assert!(tasks.iter().all(|task| task.execution_id.partition() != SICK));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    trouble.end();
    released.notify_waiters();
    // The leases that landed late belong to no worker, and no attempt is counted.
    let rest = claim_many(&h, 40 - healthy).await;
    for task in &rest {
        assert_eq!((task.claim_kind, task.fence.attempt.0), (ClaimKind::Initial, 0));
        let view = h.must::<GetExecution>(json!({ "execution_id": task.execution_id })).await;
        assert_eq!(view.public_state, PublicState::Active);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_received_starts_nothing_in_a_cancelled_flow() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    let node = json!({ "name": "a", "request": { "kind": "test" } });
    let flow = h.must::<CreateFlow>(json!({ "nodes": [node] })).await;
    let create_flow::Outcome::Created { flow_id, executions, .. } = flow else { panic!("{flow:?}") };
    let member = executions["a"];
    // The caller goes away while the lease is on its way.
    let release = Arc::new(tokio::sync::Notify::new());
    let released = release.clone();
    trouble.begin(move |call| match call {
        Call::Commit { partition, .. } if partition.family == ff_core::Family::Flow => {
            let released = released.clone();
            Plan { before: Some(Box::pin(async move { released.notified().await })), ..Plan::default() }
        }
        _ => Plan::default(),
    });
    assert!(timeout(Duration::from_millis(100), h.call::<Claim>(args(json!({})))).await.is_err());
    trouble.end();
    release.notify_waiters();
    // It was given back, and is as if it had never started.
    while h.state(&member).await != PublicState::Waiting {
        h.pass(10).await;
    }
    let view = h.must::<GetExecution>(json!({ "execution_id": member })).await;
    assert_eq!((view.started_at, view.attempt), (None, None));
    h.must::<CancelFlow>(json!({ "flow_id": flow_id, "policy": "cancel_pending", "wait": true })).await;
    assert_eq!(h.state(&member).await, PublicState::Cancelled);
    assert!(h.claim_with(json!({ "wait_ms": 100 })).await.is_none());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn claims_keep_up_with_a_flow_that_grows_all_the_time() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    let h = Arc::new(h);
    let flow_id = match h.must::<CreateFlow>(json!({})).await {
        create_flow::Outcome::Created { flow_id, .. } => flow_id,
        other => panic!("{other:?}"),
    };
    // A commit takes a millisecond, so that another falls into the time between a read and its commit.
    trouble.begin(|call| match call {
        Call::Commit { .. } => {
            let pause = tokio::time::sleep(Duration::from_millis(1));
            Plan { before: Some(Box::pin(pause)), ..Plan::default() }
        }
        _ => Plan::default(),
    });
    let growing = |_| {
        let h = h.clone();
        tokio::spawn(async move {
            for _ in 0..200 {
                h.submit(json!({ "flow_id": flow_id })).await;
            }
        })
    };
    let adders: Vec<_> = (0..4).map(growing).collect();
    let began = Instant::now();
    for number in 0..50 {
        let claimed = Instant::now();
        assert!(h.claim().await.is_some());
        assert!(claimed.elapsed() < Duration::from_millis(100), "claim {number} took {:?}", claimed.elapsed());
    }
    assert!(adders.iter().any(|adder| !adder.is_finished()), "the flow grew all the while, for {:?}", began.elapsed());
    for adder in adders {
        adder.await.unwrap();
    }
    trouble.end();
    h.check();
    h.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn work_that_is_taken_after_its_claim_was_refused_is_given_back_unless_the_caller_knows_its_lease() {
    let chosen = "01890000-0000-7000-8000-000000000001";
    for lease_ids in [json!([]), json!([chosen])] {
        let (h, trouble) = Harness::with_trouble(single()).await;
        let id = h.submit(json!({})).await;
        let mut first = true;
        trouble.begin(move |call| {
            let late = matches!(call, Call::Commit { partition, .. } if partition == Partition::flow(0));
            let pause =
                (late && std::mem::take(&mut first)).then(|| Box::pin(tokio::time::sleep(Duration::from_secs(5))) as _);
            Plan { before: pause, ..Plan::default() }
        });
        let asked = args(json!({ "wait_ms": 0, "max_tasks": 1, "lease_ids": lease_ids, "lease_ttl_ms": 600_000 }));
        assert_eq!(h.refused::<Claim>(asked.clone()).await, Code::Unavailable);
        h.pass(10_000).await;
        let mut again = asked;
        if lease_ids == json!([]) {
            assert_eq!(h.state(&id).await, PublicState::Waiting, "nobody else knows of the lease");
        } else {
            again["retry"] = json!(true);
        }
        let task = h.must::<Claim>(again).await.tasks.pop().unwrap();
        assert_eq!((task.execution_id, task.fence.attempt.0), (id, 0));
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_told_of_work_while_it_read_is_told_of_the_next() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    let other = h.second().await;
    // From now on the other server hands out what it creates without reading it.
    assert!(other.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    trouble.begin(|call| {
        if !reads_a_queue(&call) {
            return Plan::default();
        }
        Plan { before: Some(Box::pin(tokio::time::sleep(Duration::from_millis(20)))), ..Plan::default() }
    });
    let waiting = h.claim_with(json!({ "wait_ms": 20_000 }));
    let submitting = async {
        h.pass(100).await;
        // The claim is told of the second queue while it reads the first, and finds both empty.
        for kind in ["mail", "image"] {
            other.submit(json!({ "kind": kind })).await;
            other.claim_with(json!({ "wait_ms": 0 })).await.expect("it is there");
            h.pass(5).await;
        }
        h.pass(1_000).await;
        (other.submit(json!({ "kind": "video" })).await, Instant::now())
    };
    let (task, (id, submitted)) = tokio::join!(waiting, submitting);
    assert_eq!(task.expect("it was told").execution_id, id);
    assert!(submitted.elapsed() < Duration::from_millis(500), "{:?}", submitted.elapsed());
    other.engine.close().await;
    h.finish().await;
}
