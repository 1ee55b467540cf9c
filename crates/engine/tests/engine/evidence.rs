//! Every command has its effect once, although the engine itself repeats it: the reply to its commit is lost, and
//! another command writes before it is sent again.

use std::sync::{Arc, Mutex};

use crate::support::{Harness, Trouble};
use ff_core::op::{
    CancelExecution, ChangePriority, Claim, Complete, CreateBudget, CreateExecution, CreateFlow, CreateProvider,
    CreateQuota, CreateSchedule, DeliverSignal, Fail, GetBudget, GetExecution, HoldExecution, ListLanes, PauseLane,
    RecordSteps, ReleaseExecution, RenewLeases, ReplayExecution, ReportBudgetUsage, ReportUsage, ResetBudget,
    ResumeExecution, ResumeLane, RevokeLease, Suspend, create_flow,
};
use ff_core::op::{claim, revoke_lease, suspend};
use ff_core::usage::ReportUsageResult;
use ff_core::{Code, ExecutionId, Partition, PartitionConfig, PublicState, SignalEffect, SignalOutcome};
use ff_engine::Options;
use ff_store::memory::{Call, Fault, Plan};
use serde_json::{Value, json};

const BUDGETS: Partition = Partition::budget(0);

/// The reply to the next commit of a partition is lost.
fn lose_next_reply(trouble: &Arc<Trouble>, of: Partition) {
    let mut lost = false;
    trouble.begin(move |call| match call {
        Call::Commit { partition, .. } if partition == of && !std::mem::replace(&mut lost, true) => {
            Plan { fault: Some(Fault::LostReply), ..Plan::default() }
        }
        _ => Plan::default(),
    });
}

/// Two engines on one store; the replies to the first are lost when the test says so.
async fn two() -> (Harness, Arc<Trouble>, Harness) {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let other = h.second().await;
    (h, trouble, other)
}

/// Carries out `first`, whose reply is lost, and `between` before the engine sends it again.
async fn interleaved<A, B>(
    h: &Harness,
    (trouble, partition): (&Arc<Trouble>, Partition),
    first: impl Future<Output = A>,
    between: impl Future<Output = B>,
) -> (A, B) {
    lose_next_reply(trouble, partition);
    let between = async {
        h.pass(1).await;
        between.await
    };
    let both = tokio::join!(first, between);
    trouble.end();
    both
}

async fn finish(h: Harness, other: Harness) {
    other.engine.close().await;
    h.finish().await;
}

async fn used(h: &Harness, name: &str) -> i64 {
    let status = serde_json::to_value(h.must::<GetBudget>(json!({ "name": name })).await).unwrap();
    status["usage"]["tokens"].as_i64().unwrap_or_else(|| panic!("{status}"))
}

async fn budget(h: &Harness, name: &str) {
    let args = json!({ "name": name, "dimensions": { "tokens": { "hard": 1_000 } } });
    h.must::<CreateBudget>(args).await;
}

/// Claims through an engine and fails for good.
async fn claim_and_fail(h: &Harness) {
    let task = h.claim().await.expect("it is eligible");
    let args = json!({ "execution_id": task.execution_id, "fence": task.fence, "reason": "no" });
    h.must::<Fail>(args).await;
}

async fn failed(h: &Harness) -> ExecutionId {
    let id = h.submit(json!({ "policy": { "retry": { "max_retries": 0 } } })).await;
    claim_and_fail(h).await;
    id
}

#[tokio::test(start_paused = true)]
async fn a_replay_happens_once() {
    let (h, trouble, other) = two().await;
    let id = failed(&h).await;
    let replay = h.must::<ReplayExecution>(json!({ "execution_id": id }));
    let (replayed, ()) = interleaved(&h, (&trouble, id.partition()), replay, claim_and_fail(&other)).await;
    assert_eq!((replayed.replay_count, replayed.public_state), (1, PublicState::Waiting));
    assert_eq!(h.state(&id).await, PublicState::Failed, "it was replayed twice");
    finish(h, other).await;
}

async fn suspended(h: &Harness) -> (ExecutionId, suspend::Outcome) {
    let task = h.claim().await.expect("it is eligible");
    let args = json!({
        "execution_id": task.execution_id, "fence": task.fence, "condition": { "any": [] }, "reason": "signal",
    });
    (task.execution_id, h.must::<Suspend>(args).await)
}

#[tokio::test(start_paused = true)]
async fn an_operators_resume_ends_one_suspension() {
    let (h, trouble, other) = two().await;
    h.submit(json!({})).await;
    let (id, first) = suspended(&h).await;
    let suspend::Outcome::Suspended { suspension_id, .. } = first else { panic!("{first:?}") };
    let resume = h.must::<ResumeExecution>(json!({ "execution_id": id }));
    let (resumed, _) = interleaved(&h, (&trouble, id.partition()), resume, suspended(&other)).await;
    assert_eq!(resumed.suspension_id, suspension_id);
    assert_eq!(h.state(&id).await, PublicState::Suspended, "it resumed the next suspension as well");
    finish(h, other).await;
}

#[tokio::test(start_paused = true)]
async fn a_revocation_takes_one_lease() {
    let (h, trouble, other) = two().await;
    h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let revoke = h.must::<RevokeLease>(json!({ "execution_id": task.execution_id }));
    let (revoked, next) = interleaved(&h, (&trouble, task.execution_id.partition()), revoke, other.claim()).await;
    let (lease_id, epoch) = (task.fence.lease_id, task.fence.epoch);
    assert_eq!(revoked, revoke_lease::Outcome::Revoked { lease_id, epoch });
    let next = next.expect("it is eligible again");
    let renewed = h.must::<RenewLeases>(json!({
        "leases": [{ "execution_id": next.execution_id, "fence": next.fence }]
    }));
    let renewed = serde_json::to_value(renewed.await).unwrap();
    assert_eq!(renewed["results"][0]["outcome"], "renewed", "the next lease was taken as well: {renewed}");
    finish(h, other).await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_forgets_usage_once() {
    let (h, trouble, other) = two().await;
    budget(&h, "b").await;
    let report = |tokens: i64| json!({ "name": "b", "usage": { "tokens": tokens } });
    h.must::<ReportBudgetUsage>(report(5)).await;
    let reset = h.must::<ResetBudget>(json!({ "name": "b" }));
    interleaved(&h, (&trouble, BUDGETS), reset, other.must::<ReportBudgetUsage>(report(3))).await;
    assert_eq!(used(&h, "b").await, 3);
    finish(h, other).await;
}

#[tokio::test(start_paused = true)]
async fn a_report_without_a_key_counts_once() {
    let (h, trouble, other) = two().await;
    budget(&h, "b").await;
    let report = |tokens: i64| json!({ "name": "b", "usage": { "tokens": tokens } });
    let first = h.must::<ReportBudgetUsage>(report(5));
    let (answer, _) = interleaved(&h, (&trouble, BUDGETS), first, other.must::<ReportBudgetUsage>(report(1))).await;
    assert_eq!(answer, ReportUsageResult::Ok);
    assert_eq!(used(&h, "b").await, 6);
    finish(h, other).await;
}

#[tokio::test(start_paused = true)]
async fn a_report_with_a_key_is_told_how_it_was_counted() {
    let (h, trouble, other) = two().await;
    budget(&h, "b").await;
    let report = |key: &str| json!({ "name": "b", "usage": { "tokens": 1 }, "dedup_key": key });
    let first = h.must::<ReportBudgetUsage>(report("one"));
    let (answer, _) = interleaved(&h, (&trouble, BUDGETS), first, other.must::<ReportBudgetUsage>(report("two"))).await;
    assert_eq!(answer, ReportUsageResult::Ok, "nobody else has used the key");
    assert_eq!(h.must::<ReportBudgetUsage>(report("one")).await, ReportUsageResult::AlreadyApplied);
    assert_eq!(used(&h, "b").await, 2);
    finish(h, other).await;
}

#[tokio::test(start_paused = true)]
async fn a_report_that_is_refused_breaches_once() {
    let (h, trouble, other) = two().await;
    budget(&h, "b").await;
    let report = |tokens: i64| json!({ "name": "b", "usage": { "tokens": tokens } });
    let first = h.must::<ReportBudgetUsage>(report(2_000));
    let (answer, _) = interleaved(&h, (&trouble, BUDGETS), first, other.must::<ReportBudgetUsage>(report(1))).await;
    assert!(matches!(answer, ReportUsageResult::HardBreach { current: 0, .. }), "{answer:?}");
    let status = serde_json::to_value(h.must::<GetBudget>(json!({ "name": "b" })).await).unwrap();
    assert_eq!(status["breach_count"], 1, "{status}");
    finish(h, other).await;
}

/// A signal whose sender gave neither key nor id.
#[tokio::test(start_paused = true)]
async fn a_signal_is_told_what_it_did() {
    let (h, trouble, other) = two().await;
    h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let id = task.execution_id;
    let condition = json!({ "count": { "n": 2 } });
    h.must::<Suspend>(json!({ "execution_id": id, "fence": task.fence, "condition": condition, "reason": "signal" }))
        .await;
    for more in [json!({}), json!({ "idempotency_key": "k" })] {
        let mut args = json!({ "execution_id": id, "name": "go" });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let signal = h.must::<DeliverSignal>(args);
        let touch = other.must::<ChangePriority>(json!({ "execution_id": id, "priority": 5 }));
        let (answer, _) = interleaved(&h, (&trouble, id.partition()), signal, touch).await;
        let effect = SignalEffect::AppendedToWaitpoint;
        match answer {
            SignalOutcome::Accepted { effect: did, .. } => assert_eq!(did, effect),
            SignalOutcome::TriggeredResume { .. } if more != json!({}) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(h.state(&id).await, PublicState::Waiting, "two signals, and both counted");
    finish(h, other).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_undid_stays_undone() {
    let (h, trouble, other) = two().await;
    let id = h.submit(json!({})).await;
    let this = json!({ "execution_id": id });
    let hold = h.must::<HoldExecution>(this.clone());
    let (held, released) =
        interleaved(&h, (&trouble, id.partition()), hold, other.must::<ReleaseExecution>(this.clone())).await;
    assert!(held.changed && released.changed);
    let shown = serde_json::to_value(h.must::<GetExecution>(this.clone()).await).unwrap();
    assert_eq!(shown["state"]["eligibility_state"], "eligible_now", "{shown}");
    let cancel = h.must::<CancelExecution>(this.clone());
    interleaved(&h, (&trouble, id.partition()), cancel, other.must::<ReplayExecution>(this)).await;
    assert_eq!(h.state(&id).await, PublicState::Waiting, "it was cancelled twice");
    let lane = json!({ "lane": "default" });
    h.must::<PauseLane>(lane.clone()).await;
    h.must::<ResumeLane>(lane.clone()).await;
    let pause = h.must::<PauseLane>(lane.clone());
    interleaved(&h, (&trouble, Partition::SYSTEM), pause, other.must::<ResumeLane>(lane)).await;
    let lanes = serde_json::to_value(h.must::<ListLanes>(json!({})).await).unwrap();
    assert_eq!(lanes["items"][0]["state"], "active", "{lanes}");
    finish(h, other).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_ends_with_its_execution() {
    let h = Harness::start().await;
    let args = json!({ "kind": "test", "idempotency_key": "k", "policy": { "retention_ms": 1_000 } });
    let first = h.must::<CreateExecution>(args.clone()).await;
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    let again = h.must::<CreateExecution>(args.clone()).await;
    assert_eq!((again.execution_id, again.duplicate), (first.execution_id, true));
    h.pass(2_000).await;
    assert_eq!(h.refused::<GetExecution>(json!({ "execution_id": first.execution_id })).await, Code::ExecutionNotFound);
    let next = h.must::<CreateExecution>(args.clone()).await;
    assert!(!next.duplicate, "the execution that it names is gone");
    assert_eq!(h.state(&next.execution_id).await, PublicState::Waiting);
    let repeated = h.must::<CreateExecution>(args).await;
    assert_eq!((repeated.execution_id, repeated.duplicate), (next.execution_id, true));
    h.finish().await;
}

const SIXTEEN: PartitionConfig = PartitionConfig { flow: 16, budget: 1, quota: 1 };

#[tokio::test(start_paused = true)]
async fn a_refused_member_leaves_its_key_free() {
    let h = Harness::with(Options { partitions: Some(SIXTEEN), ..Options::default() }).await;
    let create_flow::Outcome::Created { flow_id, .. } = h.must::<CreateFlow>(json!({})).await else { panic!() };
    let mut mistaken = flow_id;
    mistaken.uuid = uuid::Uuid::from_u128(7);
    let member = |flow: Value| json!({ "kind": "test", "idempotency_key": "k", "flow_id": flow });
    assert_eq!(h.refused::<CreateExecution>(member(json!(mistaken))).await, Code::FlowNotFound);
    let made = h.must::<CreateExecution>(member(json!(flow_id))).await;
    assert!(!made.duplicate);
    let again = h.must::<CreateExecution>(member(json!(flow_id))).await;
    assert_eq!((again.execution_id, again.duplicate), (made.execution_id, true));
    assert_eq!(h.refused::<CreateExecution>(member(Value::Null)).await, Code::IdempotencyConflict);
    h.finish().await;
}

/// The key was recorded, and then the process that was about to create its execution died.
#[tokio::test(start_paused = true)]
async fn a_repeat_finishes_what_was_only_recorded() {
    let (h, trouble) = Harness::with_trouble(Options { partitions: Some(SIXTEEN), ..Options::default() }).await;
    let key_partition = h.engine.partitions().key_partition("default", "k");
    let id = loop {
        let probe = h.submit(json!({ "delay_until": h.engine.now() + 3_600_000 })).await;
        if probe.partition() != key_partition {
            break ExecutionId { uuid: uuid::Uuid::from_u128(9), ..probe };
        }
    };
    let args = json!({ "kind": "test", "idempotency_key": "k", "execution_id": id });
    trouble.begin(move |call| match call {
        Call::Commit { partition, .. } if partition == id.partition() => {
            Plan { fault: Some(Fault::Unavailable), ..Plan::default() }
        }
        _ => Plan::default(),
    });
    h.refused::<CreateExecution>(args).await;
    trouble.end();
    // The repeat does not bring the id: the key knows it.
    let repeat = json!({ "kind": "test", "idempotency_key": "k" });
    let made = h.must::<CreateExecution>(repeat.clone()).await;
    assert_eq!(made.execution_id, id);
    assert_eq!(h.state(&id).await, PublicState::Waiting, "the answer names an execution that is not there");
    let again = h.must::<CreateExecution>(repeat).await;
    assert_eq!((again.execution_id, again.duplicate), (id, true));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_holders_dedup_key_is_its_executions_own() {
    let h = Harness::start().await;
    budget(&h, "b").await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        h.submit(json!({ "budget_ids": ["b"] })).await;
        tasks.push(h.claim().await.unwrap());
    }
    for task in &tasks {
        let holder = json!({ "execution_id": task.execution_id, "fence": task.fence });
        let mut args = json!({ "usage": { "tokens": 5 }, "dedup_key": "draft" });
        args.as_object_mut().unwrap().extend(holder.as_object().unwrap().clone());
        assert_eq!(h.must::<ReportUsage>(args.clone()).await.budgets["b"], ReportUsageResult::Ok);
        assert_eq!(h.must::<ReportUsage>(args.clone()).await.budgets["b"], ReportUsageResult::AlreadyApplied);
        // The report once more, by the budget's name.
        args["name"] = "b".into();
        assert_eq!(h.must::<ReportBudgetUsage>(args).await, ReportUsageResult::AlreadyApplied);
    }
    assert_eq!(used(&h, "b").await, 15);
    let operator = json!({ "name": "b", "usage": { "tokens": 1 }, "dedup_key": "draft" });
    assert_eq!(h.must::<ReportBudgetUsage>(operator.clone()).await, ReportUsageResult::Ok);
    assert_eq!(h.must::<ReportBudgetUsage>(operator).await, ReportUsageResult::AlreadyApplied);
    assert_eq!(used(&h, "b").await, 16);
    h.finish().await;
}

/// Counts commits, documents and reads of executions from now on.
fn count(trouble: &Trouble) -> Arc<Mutex<(usize, usize, usize)>> {
    let cost = Arc::new(Mutex::new((0, 0, 0)));
    let counted = cost.clone();
    trouble.begin(move |call| {
        let mut counted = counted.lock().unwrap();
        match call {
            Call::Commit { partition, batches } if partition == Partition::flow(0) => {
                counted.0 += 1;
                counted.1 += batches.iter().map(|batch| batch.puts.len()).sum::<usize>();
            }
            Call::Read { partition, .. } if partition == Partition::flow(0) => counted.2 += 1,
            _ => {}
        }
        Plan::default()
    });
    cost
}

/// Evidence is for commands that nothing else tells from their repeats: submitting, claiming and ending have their own.
#[tokio::test(start_paused = true)]
async fn a_task_pays_for_no_evidence() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    h.submit(json!({})).await;
    h.claim().await.unwrap();
    let cost = count(&trouble);
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    assert_eq!(task.execution_id, id);
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    trouble.end();
    assert_eq!(*cost.lock().unwrap(), (3, 3, 0), "commits, documents, reads");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_step_costs_one_commit_and_no_read() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    h.submit(json!({})).await;
    h.claim().await.unwrap();
    let cost = count(&trouble);
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    for number in 1..=7 {
        let entry = json!({ "name": "step", "key": number.to_string(), "state": "completed", "result": number });
        let args = json!({ "execution_id": id, "fence": task.fence, "first_number": number, "entries": [entry] });
        h.must::<RecordSteps>(args).await;
    }
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    trouble.end();
    assert_eq!(*cost.lock().unwrap(), (3 + 7, 3, 0), "commits, documents, reads");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn two_claims_under_one_key_take_once() {
    let mut h = Harness::start().await;
    let other = h.second().await;
    h.caller.idempotency_key = Some("k".into());
    let args = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 10_000 });
    let submit = async {
        other.pass(10).await;
        other.submit(json!({})).await;
        other.submit(json!({})).await;
    };
    let (one, two, ()) = tokio::join!(h.must::<Claim>(args.clone()), h.must::<Claim>(args.clone()), submit);
    let held =
        |claimed: &claim::Outcome| claimed.tasks.iter().map(|task| (task.execution_id, task.fence)).collect::<Vec<_>>();
    assert_eq!(held(&one).len(), 1);
    assert_eq!(held(&one), held(&two));
    let next = other.claim().await.expect("what the second took was given back");
    assert_ne!(next.execution_id, one.tasks[0].execution_id);
    for task in [&one.tasks[0], &next] {
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    other.submit(json!({})).await;
    assert_eq!(held(&h.must::<Claim>(args).await), [], "the key has taken what it takes");
    finish(h, other).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_is_good_for_one_name_though_names_live_in_many_partitions() {
    let partitions = PartitionConfig { flow: 4, budget: 4, quota: 4 };
    let mut h = Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await;
    h.caller.idempotency_key = Some("k".into());
    let budget = |name: String| json!({ "name": name, "dimensions": { "usd": { "hard": 5 } } });
    let quota = |name: String| json!({ "name": name, "max_requests": 5 });
    let provider = |name: String| json!({ "name": name, "max_requests": 5 });
    let template = json!({ "execution": { "kind": "tick" } });
    let schedule = |name: String| json!({ "name": name, "spec": { "every_ms": 60_000 }, "template": template });
    h.must::<CreateBudget>(budget("first".into())).await;
    h.must::<CreateBudget>(budget("first".into())).await;
    h.must::<CreateQuota>(quota("first".into())).await;
    h.must::<CreateProvider>(provider("first".into())).await;
    h.must::<CreateSchedule>(schedule("first".into())).await;
    // Some of these names live where the first one does, and most do not.
    for number in 0..8 {
        let name = || format!("other-{number}");
        assert_eq!(h.refused::<CreateBudget>(budget(name())).await, Code::IdempotencyConflict);
        assert_eq!(h.refused::<CreateQuota>(quota(name())).await, Code::IdempotencyConflict);
        assert_eq!(h.refused::<CreateProvider>(provider(name())).await, Code::IdempotencyConflict);
        assert_eq!(h.refused::<CreateSchedule>(schedule(name())).await, Code::IdempotencyConflict);
        assert_eq!(h.refused::<GetBudget>(json!({ "name": name() })).await, Code::BudgetNotFound);
    }
    h.finish().await;
}
