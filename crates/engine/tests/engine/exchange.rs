//! The calls of a busy worker in one: endings, renewals and a claim, each with an answer of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ff_core::op::parts::RenewalOutcome;
use ff_core::op::view::Task;
use ff_core::op::{
    Claim, Complete, Exchange, ExchangeEnded, ExchangeOutcome, GetExecution, ListWorkers, RegisterWorker,
};
use ff_core::{Code, Family, PublicState};
use ff_engine::Options;
use ff_store::Query;
use ff_store::memory::{Call, Plan};
use serde_json::{Value, json};

use crate::support::Harness;

async fn claim_many(h: &Harness, count: usize) -> Vec<Task> {
    for _ in 0..count {
        h.submit(json!({})).await;
    }
    h.must::<Claim>(json!({ "instance_id": "w-1", "lanes": ["default"], "max_tasks": count })).await.tasks
}

fn complete(task: &Task) -> Value {
    json!({ "complete": { "execution_id": task.execution_id, "fence": task.fence, "result": 1 } })
}

async fn exchange(h: &Harness, end: Vec<Value>, renew: Vec<Value>, claim: Option<Value>) -> ExchangeOutcome {
    let mut args = json!({ "instance_id": "w-1", "end": end, "renew": renew });
    if let Some(mut claim) = claim {
        claim["lanes"] = json!(["default"]);
        args["claim"] = claim;
    }
    h.must::<Exchange>(args).await
}

#[tokio::test(start_paused = true)]
async fn each_part_is_answered_as_its_own_operation_answers() {
    let h = Harness::start().await;
    let tasks = claim_many(&h, 4).await;
    let waiting = h.submit(json!({})).await;
    let holder = |task: &Task| json!({ "execution_id": task.execution_id, "fence": task.fence });
    let mut fails = holder(&tasks[1]);
    fails["reason"] = json!("broke");
    let mut delays = holder(&tasks[2]);
    delays["delay_ms"] = json!(60_000);
    let mut stale = complete(&tasks[3]);
    stale["complete"]["fence"]["epoch"] = json!(7);
    let end = vec![complete(&tasks[0]), json!({ "fail": fails }), json!({ "delay": delays }), stale];
    let renew = vec![holder(&tasks[3]), holder(&tasks[0])];
    let answer = exchange(&h, end, renew, Some(json!({ "max_tasks": 4 }))).await;
    assert!(matches!(answer.end[0], ExchangeEnded::Complete(_)), "{answer:?}");
    assert!(matches!(answer.end[1], ExchangeEnded::Fail(_)), "{answer:?}");
    assert!(matches!(answer.end[2], ExchangeEnded::Delay(_)), "{answer:?}");
    let ExchangeEnded::Problem(error) = &answer.end[3] else { panic!("{answer:?}") };
    assert_eq!(error.code, Code::StaleLease);
    assert!(matches!(answer.renew[0], RenewalOutcome::Renewed { .. }), "{answer:?}");
    assert_eq!(answer.renew.len(), 2);
    let claimed = answer.claim.expect("it was asked for");
    assert_eq!(claimed.tasks.iter().map(|task| task.execution_id).collect::<Vec<_>>(), [waiting]);
    assert_eq!(h.state(&tasks[0].execution_id).await, PublicState::Completed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn with_endings_the_claim_looks_once_and_without_it_waits() {
    let h = Harness::start().await;
    let tasks = claim_many(&h, 1).await;
    let began = tokio::time::Instant::now();
    let claim = json!({ "wait_ms": 20_000 });
    let answer = exchange(&h, vec![complete(&tasks[0])], Vec::new(), Some(claim.clone())).await;
    assert!(answer.claim.is_some_and(|claimed| claimed.tasks.is_empty() && claimed.problem.is_none()));
    assert!(began.elapsed().as_secs() < 2, "{:?}", began.elapsed());
    let submitting = async {
        h.pass(5_000).await;
        h.submit(json!({})).await
    };
    let (answer, id) = tokio::join!(exchange(&h, Vec::new(), Vec::new(), Some(claim)), submitting);
    assert_eq!(answer.claim.expect("it was asked for").tasks[0].execution_id, id);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_ending_that_leaves_its_task_with_the_worker_lowers_the_claim() {
    let h = Harness::start().await;
    let tasks = claim_many(&h, 3).await;
    for _ in 0..3 {
        h.submit(json!({})).await;
    }
    let mut refused = complete(&tasks[1]);
    refused["complete"]["result_base64"] = json!("AA==");
    let end = vec![complete(&tasks[0]), refused, complete(&tasks[2])];
    let answer = exchange(&h, end, Vec::new(), Some(json!({ "max_tasks": 3 }))).await;
    let ExchangeEnded::Problem(error) = &answer.end[1] else { panic!("{answer:?}") };
    assert_eq!(error.code, Code::Invalid);
    let claimed = answer.claim.expect("it was asked for");
    assert_eq!(claimed.tasks.len(), 2, "one place is still taken");
    let given_back = h.claim_with(json!({ "wait_ms": 0 })).await.expect("the third was given back");
    let view = h.must::<GetExecution>(json!({ "execution_id": given_back.execution_id })).await;
    assert_eq!(given_back.fence.attempt.0, 0, "nothing was counted: {view:?}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn endings_and_claims_of_one_partition_are_one_call_of_the_store() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    let tasks = claim_many(&h, 20).await;
    for _ in 0..20 {
        h.submit(json!({})).await;
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    trouble.begin(move |call| {
        if let Call::Commit { partition, .. } = call
            && partition.family == Family::Flow
        {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Plan::default()
    });
    let answer = exchange(&h, tasks.iter().map(complete).collect(), Vec::new(), Some(json!({ "max_tasks": 20 }))).await;
    trouble.end();
    assert_eq!(answer.end.iter().filter(|ended| matches!(ended, ExchangeEnded::Complete(_))).count(), 20);
    assert_eq!(answer.claim.expect("it was asked for").tasks.len(), 20);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeat_after_a_lost_reply_gets_the_same_answer_and_takes_nothing_else() {
    let h = Harness::start().await;
    let tasks = claim_many(&h, 5).await;
    for _ in 0..8 {
        h.submit(json!({})).await;
    }
    let ids: Vec<_> = (1..=5).map(|number| format!("01890000-0000-7000-8000-{number:012}")).collect();
    let claim = |retry: bool| json!({ "max_tasks": 5, "lease_ids": ids, "retry": retry });
    let end = || tasks.iter().map(complete).collect::<Vec<_>>();
    let first = exchange(&h, end(), Vec::new(), Some(claim(false))).await;
    let again = exchange(&h, end(), Vec::new(), Some(claim(true))).await;
    assert_eq!(again.end, first.end);
    let fences = |answer: &ExchangeOutcome| {
        let tasks = &answer.claim.as_ref().expect("it was asked for").tasks;
        tasks.iter().map(|task| (task.execution_id, task.fence)).collect::<Vec<_>>()
    };
    assert_eq!(fences(&again), fences(&first));
    assert_eq!(fences(&first).len(), 5);
    let left = h.must::<Claim>(json!({ "instance_id": "w-2", "lanes": ["default"], "max_tasks": 8 })).await;
    assert_eq!(left.tasks.len(), 3);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_receives_is_given_back_and_endings_stand() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    let tasks = claim_many(&h, 1).await;
    let id = h.submit(json!({})).await;
    trouble.begin(|call| {
        let slow = matches!(call, Call::Commit { .. });
        let pause = slow.then(|| Box::pin(tokio::time::sleep(std::time::Duration::from_millis(20))) as _);
        Plan { before: pause, ..Plan::default() }
    });
    let args = json!({ "instance_id": "w-1", "end": [complete(&tasks[0])], "claim": { "lanes": ["default"] } });
    let args = serde_json::from_value(args).unwrap();
    let calling = h.engine.call::<Exchange>(&h.caller, args);
    // It begins, and its caller goes away.
    assert!(futures_util::FutureExt::now_or_never(calling).is_none());
    trouble.end();
    let task = h.claim_with(json!({ "instance_id": "w-2" })).await.expect("it was given back");
    assert_eq!((task.execution_id, task.fence.attempt.0), (id, 0));
    assert_eq!(h.state(&tasks[0].execution_id).await, PublicState::Completed);
    h.finish().await;
}

/// A commit that returns a lease to its queue comes late: meanwhile the claim is repeated.
fn returns_late(call: Call<'_>) -> Plan {
    let returns = matches!(call, Call::Commit { batches, .. } if batches.iter().any(|batch| {
        batch.leases.iter().any(|lease| lease.ttl_ms.is_none())
    }));
    let pause = returns.then(|| Box::pin(tokio::time::sleep(std::time::Duration::from_millis(100))) as _);
    Plan { before: pause, ..Plan::default() }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_repeated_claim_was_answered_with_is_not_taken_back() {
    for (way, here) in [("claim", true), ("claim", false), ("exchange", true), ("exchange", false)] {
        let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
        let other = h.second().await;
        let id = h.submit(json!({})).await;
        let lease = "018f3c2a-0000-7000-8000-000000000001";
        let claim = |retry: bool| json!({ "lanes": ["default"], "lease_ids": [lease], "retry": retry });
        let begin = |server: &Harness, retry: bool| {
            let (engine, caller) = (server.engine.clone(), server.caller.clone());
            let mut args = claim(retry);
            let args = match way {
                "claim" => {
                    args["instance_id"] = json!("w-1");
                    args
                }
                _ => json!({ "instance_id": "w-1", "claim": args }),
            };
            async move {
                match way {
                    "claim" => {
                        engine.call::<Claim>(&caller, serde_json::from_value(args).unwrap()).await.unwrap().tasks
                    }
                    _ => {
                        let args = serde_json::from_value(args).unwrap();
                        engine.call::<Exchange>(&caller, args).await.unwrap().claim.unwrap().tasks
                    }
                }
            }
        };
        let slow = |call: Call<'_>| {
            let pause = matches!(call, Call::Commit { .. })
                .then(|| Box::pin(tokio::time::sleep(std::time::Duration::from_millis(20))) as _);
            Plan { before: pause, ..Plan::default() }
        };
        trouble.begin(slow);
        // The claim begins, and its caller goes away before the answer.
        assert!(futures_util::FutureExt::now_or_never(begin(&h, false)).is_none());
        trouble.begin(returns_late);
        while h.state(&id).await != PublicState::Active {
            h.pass(1).await;
        }
        let tasks = begin(if here { &h } else { &other }, true).await;
        assert_eq!((tasks.len(), tasks[0].execution_id), (1, id), "{way}");
        h.pass(1_000).await;
        trouble.end();
        h.must::<Complete>(json!({ "execution_id": id, "fence": tasks[0].fence })).await;
        other.engine.close().await;
        h.finish().await;
    }
}

/// The first commit is late; those that come after it are not.
fn first_is_late() -> impl Fn(Call<'_>) -> Plan + Send + Sync + 'static {
    let commits = std::sync::atomic::AtomicUsize::new(0);
    move |call: Call<'_>| {
        let first =
            matches!(call, Call::Commit { .. }) && commits.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        let pause = first.then(|| Box::pin(tokio::time::sleep(std::time::Duration::from_millis(100))) as _);
        Plan { before: pause, ..Plan::default() }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_repeat_took_at_another_server_is_not_taken_back_by_the_first() {
    for mode in ["lease", "grant"] {
        let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
        let other = h.second().await;
        let id = h.submit(json!({})).await;
        let lease = "018f3c2a-0000-7000-8000-000000000001";
        let begin = |server: &Harness, retry: bool| {
            let (engine, caller) = (server.engine.clone(), server.caller.clone());
            let claim = json!({ "lanes": ["default"], "lease_ids": [lease], "retry": retry, "mode": mode });
            let args = serde_json::from_value(json!({ "instance_id": "w-1", "claim": claim })).unwrap();
            Box::pin(async move { engine.call::<Exchange>(&caller, args).await.unwrap().claim.unwrap() })
        };
        trouble.begin(first_is_late());
        let mut first = begin(&h, false);
        assert!(futures_util::FutureExt::now_or_never(&mut first).is_none());
        let repeated = begin(&other, true).await;
        // The commit of the first call is under way, and the caller goes away.
        drop(first);
        h.pass(1_000).await;
        trouble.end();
        let fence = match mode {
            "lease" => json!(repeated.tasks[0].fence),
            _ => {
                let grant = &repeated.grants[0];
                let args = json!({ "instance_id": "w-1", "grant_id": grant.grant_id, "execution_id": id });
                json!(other.must::<ff_core::op::ClaimFromGrant>(args).await.task.fence)
            }
        };
        h.must::<Complete>(json!({ "execution_id": id, "fence": fence })).await;
        other.engine.close().await;
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeat_that_waited_beside_the_first_call_gets_what_that_one_took() {
    for way in ["claim", "exchange"] {
        let h = Harness::start().await;
        let lease = "018f3c2a-0000-7000-8000-000000000001";
        let begin = |retry: bool| {
            let (engine, caller) = (h.engine.clone(), h.caller.clone());
            let mut claim = json!({ "lanes": ["default"], "lease_ids": [lease], "retry": retry, "wait_ms": 2_000 });
            tokio::spawn(async move {
                if way == "claim" {
                    claim["instance_id"] = json!("w-1");
                    return engine.call::<Claim>(&caller, serde_json::from_value(claim).unwrap()).await.unwrap().tasks;
                }
                let args = serde_json::from_value(json!({ "instance_id": "w-1", "claim": claim })).unwrap();
                engine.call::<Exchange>(&caller, args).await.unwrap().claim.unwrap().tasks
            })
        };
        let first = begin(false);
        h.pass(100).await;
        let repeat = begin(true);
        h.pass(100).await;
        let id = h.submit(json!({})).await;
        let (first, repeat) = (first.await.unwrap(), repeat.await.unwrap());
        assert_eq!(first.len(), 1, "{way}");
        assert_eq!(
            repeat.iter().map(|task| (task.execution_id, task.fence)).collect::<Vec<_>>(),
            [(id, first[0].fence)]
        );
        h.must::<Complete>(json!({ "execution_id": id, "fence": repeat[0].fence })).await;
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn too_much_at_once_and_a_bad_claim_are_refused() {
    let h = Harness::start().await;
    let tasks = claim_many(&h, 1).await;
    let most = ff_core::limits::EXCHANGE_ENDINGS_MAX;
    let many = vec![complete(&tasks[0]); most + 1];
    let error = h.call::<Exchange>(json!({ "instance_id": "w-1", "end": many })).await.expect_err("it is refused");
    assert_eq!((error.code, &error.details["field"]), (Code::Invalid, &json!("end")));
    // A claim that makes no sense holds back no ending.
    let args = json!({ "instance_id": "w-1", "end": [complete(&tasks[0])], "claim": { "lanes": [] } });
    let answer = h.must::<Exchange>(args).await;
    assert!(matches!(answer.end[0], ExchangeEnded::Complete(_)));
    let problem = answer.claim.and_then(|claimed| claimed.problem).expect("it has no lanes");
    assert_eq!(problem.code, Code::NoLanes);
    let cancel = json!({ "cancel": { "execution_id": tasks[0].execution_id } });
    let answer = exchange(&h, vec![cancel], Vec::new(), None).await;
    assert!(matches!(&answer.end[0], ExchangeEnded::Problem(error) if error.details["field"] == "fence"), "{answer:?}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_registered_worker_gets_no_more_than_it_runs_at_once() {
    let h = Harness::start().await;
    let register = json!({ "instance_id": "w-1", "worker_id": "w", "lanes": ["default"], "nonce": "n", "capacity": 2 });
    h.must::<RegisterWorker>(register).await;
    for _ in 0..6 {
        h.submit(json!({})).await;
    }
    let many = || Some(json!({ "max_tasks": 4 }));
    let tasks = exchange(&h, Vec::new(), Vec::new(), many()).await.claim.unwrap().tasks;
    assert_eq!(tasks.len(), 2);
    for wait in [0, 2_000] {
        h.pass(wait).await;
        let full = exchange(&h, Vec::new(), Vec::new(), many()).await.claim.unwrap();
        assert!(full.tasks.is_empty());
        assert_eq!(full.problem.unwrap().code, Code::WorkerAtCapacity);
    }
    let answer = exchange(&h, vec![complete(&tasks[0])], Vec::new(), many()).await;
    let next = answer.claim.unwrap();
    assert_eq!((next.tasks.len(), next.problem), (1, None), "one has ended");
    let [held, other] = [&tasks[1], &next.tasks[0]];
    h.must::<Complete>(json!({ "execution_id": held.execution_id, "fence": held.fence })).await;
    h.must::<Complete>(json!({ "execution_id": other.execution_id, "fence": other.fence })).await;
    let last = exchange(&h, Vec::new(), Vec::new(), many()).await.claim.unwrap().tasks;
    assert_eq!(last.len(), 2, "they ended by calls of their own");
    let claim = json!({ "instance_id": "w-1", "lanes": ["default"], "max_tasks": 4 });
    assert_eq!(h.refused::<Claim>(claim).await, Code::WorkerAtCapacity);
    h.finish().await;
}

fn registration(instance: &str, capacity: u32) -> Value {
    json!({ "instance_id": instance, "worker_id": "w", "lanes": ["default"], "nonce": "n", "capacity": capacity })
}

async fn claim_as(h: &Harness, instance: &str, max_tasks: usize) -> Vec<Task> {
    h.must::<Claim>(json!({ "instance_id": instance, "lanes": ["default"], "max_tasks": max_tasks })).await.tasks
}

#[tokio::test(start_paused = true)]
async fn endings_that_free_nothing_make_no_room_for_a_full_worker() {
    for case in ["none", "wrong fence", "twice", "earlier", "unknown", "another worker's", "handed back"] {
        let h = Harness::start().await;
        h.must::<RegisterWorker>(registration("w-1", 2)).await;
        h.must::<RegisterWorker>(registration("w-2", 2)).await;
        for _ in 0..9 {
            h.submit(json!({})).await;
        }
        let mut held = claim_as(&h, "w-1", 2).await;
        assert_eq!(held.len(), 2, "{case}");
        let mut ending = complete(&held[0]);
        let (end, room) = match case {
            "wrong fence" => {
                ending["complete"]["fence"]["lease_id"] = json!("01a3185c-5000-7661-80ab-28b890620001");
                (vec![ending], 0)
            }
            "twice" => (vec![ending.clone(), ending], 1),
            "earlier" => {
                h.must::<Complete>(ending["complete"].clone()).await;
                held.extend(claim_as(&h, "w-1", 1).await);
                (vec![ending], 0)
            }
            "unknown" => {
                let id = held[0].execution_id.to_string();
                ending["complete"]["execution_id"] = json!(format!("{}00000000", &id[..id.len() - 8]));
                (vec![ending], 0)
            }
            "another worker's" => (vec![complete(&claim_as(&h, "w-2", 1).await[0])], 0),
            "handed back" => {
                // The second of these has no room, and what it took goes back; that makes no room, either.
                for _ in 0..2 {
                    let wrong = json!({ "complete": { "execution_id": held[1].execution_id, "fence": { "lease_id":
                        "01a3185c-5000-7661-80ab-28b890620001", "epoch": 1, "attempt": 0 } } });
                    exchange(&h, vec![wrong], Vec::new(), Some(json!({ "max_tasks": 1 }))).await;
                }
                (Vec::new(), 0)
            }
            _ => (Vec::new(), 0),
        };
        let asked = exchange(&h, end, Vec::new(), Some(json!({ "max_tasks": 2 }))).await.claim.unwrap();
        assert_eq!(asked.tasks.len(), room, "{case}");
        let shown = h.must::<ListWorkers>(json!({})).await.items;
        let worker = shown.iter().find(|worker| worker.instance_id == "w-1").expect("it is registered");
        assert_eq!(worker.leases_held, 2, "{case}");
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn claims_at_the_same_time_give_a_worker_no_more_than_it_runs() {
    for servers in [1, 2] {
        let (h, trouble) = Harness::with_trouble(Options::default()).await;
        let other = if servers == 1 { None } else { Some(h.second().await) };
        h.must::<RegisterWorker>(registration("w-1", 1)).await;
        for _ in 0..6 {
            h.submit(json!({})).await;
        }
        // All of them count before any of them takes.
        trouble.begin(|call| match call {
            Call::Commit { .. } => Plan {
                before: Some(Box::pin(tokio::time::sleep(std::time::Duration::from_millis(5)))),
                ..Plan::default()
            },
            Call::Read { .. } => Plan::default(),
        });
        let ask = || json!({ "instance_id": "w-1", "lanes": ["default"] });
        let elsewhere = other.as_ref().unwrap_or(&h);
        let all = tokio::join!(h.call::<Claim>(ask()), elsewhere.call::<Claim>(ask()), h.call::<Claim>(ask()));
        trouble.end();
        let counts = [all.0, all.1, all.2].map(|one| one.map_or(0, |claimed| claimed.tasks.len()));
        assert!(counts.iter().sum::<usize>() <= 1, "{servers}: {counts:?}");
        assert!(servers == 2 || counts.iter().sum::<usize>() == 1, "on one server one of them stays: {counts:?}");
        let held = h.must::<ListWorkers>(json!({})).await.items[0].leases_held;
        assert_eq!(held, counts.iter().sum::<usize>() as u64, "{servers}");
        if let Some(other) = other {
            other.engine.close().await;
        }
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_worker_that_ends_as_much_as_it_takes_is_not_counted() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    for (capacity, held) in [(4, 4), (40, 4)] {
        let instance = format!("w-{capacity}");
        h.must::<RegisterWorker>(registration(&instance, capacity)).await;
        for _ in 0..30 {
            h.submit(json!({})).await;
        }
        let mut tasks = claim_as(&h, &instance, held).await;
        let counts = Arc::new(AtomicUsize::new(0));
        let counted = counts.clone();
        trouble.begin(move |call| {
            if matches!(call, Call::Read { queries, .. } if queries.iter().any(|one| matches!(one, Query::Count { .. }))) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            Plan::default()
        });
        for _ in 0..20 {
            let end = vec![complete(&tasks.remove(0))];
            let claim = json!({ "lanes": ["default"], "max_tasks": 1 });
            let args = json!({ "instance_id": instance, "end": end, "claim": claim });
            tasks.extend(h.must::<Exchange>(args).await.claim.unwrap().tasks);
            assert_eq!(tasks.len(), held);
            h.pass(500).await;
        }
        trouble.end();
        assert_eq!(counts.load(Ordering::SeqCst), 0, "{capacity}");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_function_that_begins_anew_may_come_back_with_the_same_call() {
    let h = Harness::start().await;
    let task = claim_many(&h, 1).await.remove(0);
    let again = json!({ "continue_as_new": { "execution_id": task.execution_id, "fence": task.fence, "input": { "page": 2 } } });
    let answer = exchange(&h, vec![again], Vec::new(), Some(json!({ "max_tasks": 1 }))).await;
    assert!(matches!(&answer.end[0], ExchangeEnded::ContinueAsNew(begun) if begun.generation == 1), "{answer:?}");
    let next = answer.claim.unwrap().tasks.remove(0);
    assert_eq!((next.execution_id, next.generation), (task.execution_id, 1));
    assert_eq!(next.input.unwrap().bytes, r#"{"page":2}"#);
    h.finish().await;
}
