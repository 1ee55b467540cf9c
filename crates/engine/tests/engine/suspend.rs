//! Suspension: waitpoints, signals, tokens of waitpoints, timeouts, operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Harness, START};
use ff_core::lease::ClaimKind;
use ff_core::op::suspend::Outcome as Suspended;
use ff_core::op::view::Task;
use ff_core::op::{
    CloseWaitpoint, Complete, ContinueAsNew, CreatePendingWaitpoint, DeliverSignal, GetExecution, GetWaitpointToken,
    ListPendingWaitpoints, ListResumeSignals, ResumeExecution, RotateWaitpointSecret, Suspend,
};
use ff_core::{
    BlockingReason, Code, ExecutionId, PublicState, Role, SignalEffect, SignalOutcome, WaitpointState, limits,
};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options};
use ff_store::memory::{Call, Fault, Faults, MemoryStore, Plan};
use serde_json::{Value, json};

/// A suspension whose answer was `suspended`.
struct Waiting {
    id: ExecutionId,
    waitpoint: String,
    token: String,
}

impl Waiting {
    fn signal(&self, name: &str, more: Value) -> Value {
        let signal = json!({
            "execution_id": self.id, "waitpoint_id": self.waitpoint, "token": self.token, "name": name,
        });
        merged(signal, more)
    }
}

fn merged(mut first: Value, more: Value) -> Value {
    first.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    first
}

fn suspend_args(task: &Task, more: Value) -> Value {
    let args = json!({
        "execution_id": task.execution_id,
        "fence": task.fence,
        "condition": { "any": [{ "name": "approve" }] },
        "reason": "approval",
    });
    merged(args, more)
}

async fn claimed(h: &Harness, more: Value) -> Task {
    h.submit(more).await;
    h.claim().await.expect("what was submitted can be claimed")
}

async fn suspended(h: &Harness, more: Value) -> Waiting {
    let task = claimed(h, json!({})).await;
    suspend(h, task, more).await
}

async fn suspend(h: &Harness, task: Task, more: Value) -> Waiting {
    match h.must::<Suspend>(suspend_args(&task, more)).await {
        Suspended::Suspended { waitpoint_id, token, .. } => {
            Waiting { id: task.execution_id, waitpoint: waitpoint_id.to_string(), token: token.0 }
        }
        other => panic!("{other:?}"),
    }
}

fn effect(outcome: &SignalOutcome) -> SignalEffect {
    match outcome {
        SignalOutcome::Accepted { effect, .. } => *effect,
        SignalOutcome::TriggeredResume { .. } => SignalEffect::ResumeConditionSatisfied,
        SignalOutcome::Duplicate { .. } | SignalOutcome::Unknown(_) => panic!("{outcome:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_signal_resumes_the_same_attempt_with_its_bytes() {
    let h = Harness::start().await;
    let waiting = suspended(&h, json!({ "detail": "the release", "continuation_base64": "AP8=" })).await;
    let view = h.must::<GetExecution>(json!({ "execution_id": waiting.id })).await;
    assert_eq!(view.public_state, PublicState::Suspended);
    assert_eq!(view.state.blocking_reason, BlockingReason::WaitingForApproval);
    assert_eq!(view.blocking_detail.as_deref(), Some("the release"));
    let other = h.must::<DeliverSignal>(waiting.signal("other", json!({}))).await;
    assert_eq!(effect(&other), SignalEffect::NoOp);
    assert_eq!(h.state(&waiting.id).await, PublicState::Suspended);
    let signal = waiting.signal("approve", json!({ "payload_base64": "AAH/", "source_identity": "eve" }));
    let approved = h.must::<DeliverSignal>(signal).await;
    assert_eq!(effect(&approved), SignalEffect::ResumeConditionSatisfied);
    assert_eq!(h.state(&waiting.id).await, PublicState::Waiting);
    let again = h.claim().await.unwrap();
    assert_eq!((again.claim_kind, again.fence.attempt.0, again.fence.epoch.0), (ClaimKind::Resumed, 0, 2));
    assert_eq!(&again.continuation.unwrap().bytes[..], [0, 255]);
    let [signal] = &again.resume_signals[..] else { panic!("{:?}", again.resume_signals) };
    assert_eq!((signal.name.as_str(), signal.source_identity.as_str()), ("approve", "eve"));
    assert_eq!(signal.payload.as_deref(), Some(&[0, 1, 255][..]));
    let listed = h.must::<ListResumeSignals>(json!({ "execution_id": waiting.id })).await;
    assert_eq!(listed.items, again.resume_signals);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn large_payloads_and_continuations_come_back_whole() {
    let h = Harness::start().await;
    let text = "x".repeat(5_000);
    let waiting = suspended(&h, json!({ "continuation": text })).await;
    h.must::<DeliverSignal>(waiting.signal("approve", json!({ "payload": text }))).await;
    let again = h.claim().await.unwrap();
    assert_eq!(again.continuation.as_ref().unwrap().bytes.len(), 5_002);
    assert_eq!(again.resume_signals[0].payload.as_ref().map(|payload| payload.len()), Some(5_002));
    // A second suspension of the attempt with small bytes leaves no blob of the first behind.
    let second = suspend(&h, again, json!({ "continuation": 1 })).await;
    h.must::<DeliverSignal>(second.signal("approve", json!({}))).await;
    let last = h.claim().await.unwrap();
    assert_eq!(&last.continuation.unwrap().bytes[..], b"1");
    assert_eq!(last.resume_signals[0].payload, None);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn all_matchers_must_be_met_and_distinct_sources_counted() {
    let h = Harness::start().await;
    let waiting = suspended(&h, json!({ "condition": { "all": [{ "name": "a" }, { "name": "b" }] } })).await;
    for (name, expected) in [
        ("a", SignalEffect::AppendedToWaitpoint),
        ("a", SignalEffect::NoOp),
        ("b", SignalEffect::ResumeConditionSatisfied),
    ] {
        assert_eq!(effect(&h.must::<DeliverSignal>(waiting.signal(name, json!({}))).await), expected, "{name}");
    }
    let task = h.claim().await.unwrap();
    let names: Vec<&str> = task.resume_signals.iter().map(|signal| signal.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let condition = json!({ "condition": { "count": { "n": 2, "distinct": "sources" } } });
    let waiting = suspend(&h, task, condition).await;
    for (source, expected) in [
        ("eve", SignalEffect::AppendedToWaitpoint),
        ("eve", SignalEffect::NoOp),
        ("bob", SignalEffect::ResumeConditionSatisfied),
    ] {
        let signal = waiting.signal("vote", json!({ "source_type": "user", "source_identity": source }));
        assert_eq!(effect(&h.must::<DeliverSignal>(signal).await), expected, "{source}");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_takes_effect_once_and_a_closed_waitpoint_takes_nothing_new() {
    let h = Harness::start().await;
    let waiting = suspended(&h, json!({ "condition": { "all": [{ "name": "a" }, { "name": "b" }] } })).await;
    let once = waiting.signal("a", json!({ "idempotency_key": "k" }));
    let SignalOutcome::Accepted { signal_id, .. } = h.must::<DeliverSignal>(once.clone()).await else { panic!() };
    let duplicate = SignalOutcome::Duplicate { existing_signal_id: signal_id };
    assert_eq!(h.must::<DeliverSignal>(once.clone()).await, duplicate);
    let own = waiting.signal("b", json!({ "signal_id": "01890a5d-ac96-774b-bcce-b302099a8057" }));
    assert_eq!(effect(&h.must::<DeliverSignal>(own.clone()).await), SignalEffect::ResumeConditionSatisfied);
    assert!(matches!(h.must::<DeliverSignal>(own).await, SignalOutcome::Duplicate { .. }));
    assert_eq!(h.must::<DeliverSignal>(once).await, duplicate, "the first answer outlives the suspension");
    assert_eq!(h.refused::<DeliverSignal>(waiting.signal("a", json!({}))).await, Code::WaitpointClosed);
    assert_eq!(h.claim().await.unwrap().resume_signals.len(), 2);
    h.finish().await;
}

async fn pending(h: &Harness, task: &Task, more: Value) -> ff_core::op::create_pending_waitpoint::Outcome {
    let args = json!({ "execution_id": task.execution_id, "fence": task.fence });
    h.must::<CreatePendingWaitpoint>(merged(args, more)).await
}

/// A signal by name alone, as an operator sends it.
async fn signal_by_name(h: &Harness, task: &Task, name: &str) -> SignalEffect {
    let signal = json!({ "execution_id": task.execution_id, "name": name, "idempotency_key": name });
    effect(&h.must::<DeliverSignal>(signal).await)
}

#[tokio::test(start_paused = true)]
async fn a_signal_by_name_that_came_too_early_satisfies_the_suspension_that_asks_for_it() {
    let h = Harness::start().await;
    let waits = |names: &[&str]| {
        let all: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        json!({ "condition": { "all": all }, "reason": "signal", "idempotency_key": names.join("+") })
    };
    let task = claimed(&h, json!({})).await;
    assert_eq!(signal_by_name(&h, &task, "other").await, SignalEffect::Buffered);
    assert_eq!(signal_by_name(&h, &task, "go").await, SignalEffect::Buffered);
    let satisfied = h.must::<Suspend>(suspend_args(&task, waits(&["go"]))).await;
    let Suspended::AlreadySatisfied { resume_signals, .. } = &satisfied else { panic!("{satisfied:?}") };
    assert_eq!(resume_signals.iter().map(|signal| signal.name.as_str()).collect::<Vec<_>>(), ["go"]);
    // It was used up, and the other one still waits for a suspension of its own.
    let args = suspend_args(&task, waits(&["go", "other"]));
    assert!(matches!(h.must::<Suspend>(args).await, Suspended::Suspended { .. }));
    let again = json!({ "execution_id": task.execution_id, "name": "go", "idempotency_key": "again" });
    assert_eq!(effect(&h.must::<DeliverSignal>(again).await), SignalEffect::ResumeConditionSatisfied);
    let mut names: Vec<String> =
        h.claim().await.unwrap().resume_signals.into_iter().map(|signal| signal.name).collect();
    names.sort();
    assert_eq!(names, ["go", "other"]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_early_signal_waits_for_a_suspension_that_can_use_it() {
    let h = Harness::start().await;
    let go = json!({ "condition": { "all": [{ "name": "go" }] }, "reason": "signal" });
    let asked = merged(go.clone(), json!({ "idempotency_key": "asked", "schema": { "type": "object" } }));
    // A repeat of a call without a key could not be told from a new one, and a signal without payload fits no schema.
    for unable in [go.clone(), asked] {
        let task = claimed(&h, json!({})).await;
        assert_eq!(signal_by_name(&h, &task, "go").await, SignalEffect::Buffered);
        let waiting = suspend(&h, task, unable).await;
        h.must::<ResumeExecution>(json!({ "execution_id": waiting.id })).await;
        let task = h.claim().await.unwrap();
        let call = suspend_args(&task, merged(go.clone(), json!({ "idempotency_key": "able" })));
        let satisfied = h.must::<Suspend>(call).await;
        assert!(matches!(satisfied, Suspended::AlreadySatisfied { .. }), "{satisfied:?}");
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_early_signal_outlives_the_journal_that_it_came_to() {
    let h = Harness::start().await;
    let task = claimed(&h, json!({})).await;
    assert_eq!(signal_by_name(&h, &task, "go").await, SignalEffect::Buffered);
    let onward = json!({
        "execution_id": task.execution_id, "fence": task.fence, "input": { "round": 1 },
    });
    h.must::<ContinueAsNew>(onward).await;
    let task = h.claim().await.unwrap();
    let call = json!({ "condition": { "all": [{ "name": "go" }] }, "reason": "signal", "idempotency_key": "go" });
    let satisfied = h.must::<Suspend>(suspend_args(&task, call)).await;
    assert!(matches!(satisfied, Suspended::AlreadySatisfied { .. }), "{satisfied:?}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_approval_that_was_sent_twice_does_not_answer_the_next_question() {
    let h = Harness::start().await;
    let task = claimed(&h, json!({})).await;
    assert_eq!(signal_by_name(&h, &task, "approve").await, SignalEffect::Buffered);
    assert!(matches!(h.must::<Suspend>(suspend_args(&task, json!({}))).await, Suspended::Suspended { .. }));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_buffered_signal_satisfies_a_suspension_before_it_begins() {
    let h = Harness::start().await;
    let task = claimed(&h, json!({})).await;
    let waitpoint = pending(&h, &task, json!({ "waitpoint_key": "gate" })).await;
    let signal = json!({
        "execution_id": task.execution_id, "waitpoint_id": waitpoint.waitpoint_id, "token": waitpoint.token,
        "name": "approve", "payload": { "by": "eve" },
    });
    assert_eq!(effect(&h.must::<DeliverSignal>(signal.clone()).await), SignalEffect::Buffered);
    let args = suspend_args(&task, json!({ "waitpoint_ids": [waitpoint.waitpoint_id], "idempotency_key": "s" }));
    let first = h.must::<Suspend>(args.clone()).await;
    let Suspended::AlreadySatisfied { resume_signals, waitpoint_key, .. } = &first else { panic!("{first:?}") };
    assert_eq!((waitpoint_key.as_str(), resume_signals.len()), ("gate", 1));
    assert_eq!(h.must::<Suspend>(args).await, first, "the same call again gets the same answer");
    assert_eq!(h.state(&task.execution_id).await, PublicState::Active);
    assert_eq!(h.refused::<DeliverSignal>(signal).await, Code::WaitpointClosed);
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_execution_that_has_ended_waits_for_nothing() {
    let h = Harness::start().await;
    let task = claimed(&h, json!({})).await;
    pending(&h, &task, json!({})).await;
    let of_task = json!({ "execution_id": task.execution_id });
    assert_eq!(h.must::<ListPendingWaitpoints>(of_task.clone()).await.items.len(), 1);
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    assert!(h.must::<ListPendingWaitpoints>(of_task).await.items.is_empty());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_suspension_on_pending_waitpoints_counts_what_they_buffered() {
    let h = Harness::start().await;
    let task = claimed(&h, json!({})).await;
    let (one, two) = (pending(&h, &task, json!({})).await, pending(&h, &task, json!({})).await);
    let signal = |waitpoint: &ff_core::op::create_pending_waitpoint::Outcome| {
        json!({
            "execution_id": task.execution_id, "waitpoint_id": waitpoint.waitpoint_id, "token": waitpoint.token,
            "name": "x",
        })
    };
    h.must::<DeliverSignal>(signal(&one)).await;
    let waitpoints = json!({
        "waitpoint_ids": [one.waitpoint_id, two.waitpoint_id],
        "condition": { "count": { "n": 2, "distinct": "waitpoints" } },
    });
    let waiting = suspend(&h, task.clone(), waitpoints).await;
    assert_eq!(waiting.waitpoint, one.waitpoint_id.to_string());
    let listed = h.must::<ListPendingWaitpoints>(json!({ "execution_id": waiting.id })).await.items;
    assert_eq!(listed.iter().map(|item| item.state).collect::<Vec<_>>(), [WaitpointState::Active; 2]);
    assert_eq!(effect(&h.must::<DeliverSignal>(signal(&one)).await), SignalEffect::NoOp);
    assert_eq!(effect(&h.must::<DeliverSignal>(signal(&two)).await), SignalEffect::ResumeConditionSatisfied);
    assert!(h.must::<ListPendingWaitpoints>(json!({ "execution_id": waiting.id })).await.items.is_empty());
    let again = h.claim().await.unwrap();
    let used = suspend_args(&again, json!({ "waitpoint_ids": [one.waitpoint_id] }));
    assert_eq!(h.refused::<Suspend>(used).await, Code::WaitpointNotPending);
    let twice = suspend_args(&again, json!({ "waitpoint_ids": [one.waitpoint_id, one.waitpoint_id] }));
    assert_eq!(h.refused::<Suspend>(twice).await, Code::Invalid);
    assert_eq!(h.state(&waiting.id).await, PublicState::Active, "a refused suspension changes nothing");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn each_timeout_behaviour_ends_a_suspension_its_own_way() {
    for (behavior, state) in [
        (json!("fail"), PublicState::Failed),
        (json!("cancel"), PublicState::Cancelled),
        (json!("expire"), PublicState::Expired),
        (json!("auto_resume"), PublicState::Waiting),
        (json!("escalate"), PublicState::Suspended),
    ] {
        let h = Harness::start().await;
        let waiting = suspended(&h, json!({ "timeout_ms": 500, "timeout_behavior": behavior })).await;
        h.pass(499).await;
        assert_eq!(h.state(&waiting.id).await, PublicState::Suspended, "{behavior}");
        h.pass(2).await;
        assert_eq!(h.state(&waiting.id).await, state, "{behavior}");
        match state {
            PublicState::Waiting => {
                let again = h.claim().await.unwrap();
                let names: Vec<&str> = again.resume_signals.iter().map(|signal| signal.name.as_str()).collect();
                assert_eq!((names, again.fence.attempt.0), (vec!["__timeout__"], 0));
            }
            PublicState::Suspended => {
                let view = h.must::<GetExecution>(json!({ "execution_id": waiting.id })).await;
                assert_eq!(view.state.blocking_reason, BlockingReason::PausedByOperator);
                h.must::<ResumeExecution>(json!({ "execution_id": waiting.id })).await;
                assert!(h.claim().await.unwrap().resume_signals.is_empty());
            }
            _ => {}
        }
        let late = h.refused::<DeliverSignal>(waiting.signal("approve", json!({}))).await;
        assert_eq!(late, Code::WaitpointClosed, "{behavior}");
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_says_what_a_suspension_leaves_open() {
    let h = Harness::start().await;
    let policy = json!({ "suspension": { "default_timeout_ms": 300, "timeout_behavior": "cancel" } });
    let task = claimed(&h, json!({ "policy": policy })).await;
    let waiting = suspend(&h, task, json!({})).await;
    h.pass(301).await;
    assert_eq!(h.state(&waiting.id).await, PublicState::Cancelled);
    let task = claimed(&h, json!({ "policy": { "suspension": { "default_timeout_ms": 300 } } })).await;
    let waiting = suspend(&h, task, json!({})).await;
    h.pass(301).await;
    assert_eq!(h.state(&waiting.id).await, PublicState::Failed, "failure is what a timeout means by default");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_and_the_timeout_at_the_same_moment_end_it_once() {
    let h = Harness::start().await;
    let waiting = suspended(&h, json!({ "timeout_ms": 500 })).await;
    let (signal, ()) = tokio::join!(
        async {
            h.pass(500).await;
            h.call::<DeliverSignal>(waiting.signal("approve", json!({}))).await
        },
        h.pass(600)
    );
    match (signal, h.state(&waiting.id).await) {
        (Ok(outcome), PublicState::Waiting) => assert!(matches!(outcome, SignalOutcome::TriggeredResume { .. })),
        (Err(error), PublicState::Failed) => assert_eq!(error.code, Code::WaitpointClosed),
        (outcome, state) => panic!("{outcome:?} left it {state}"),
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_resumed_execution_waits_for_its_resume_delay() {
    let h = Harness::start().await;
    let waiting = suspended(&h, json!({})).await;
    h.must::<DeliverSignal>(waiting.signal("approve", json!({ "resume_delay_ms": 800 }))).await;
    let view = h.must::<GetExecution>(json!({ "execution_id": waiting.id })).await;
    assert_eq!(view.public_state, PublicState::Delayed);
    assert_eq!(view.state.blocking_reason, BlockingReason::WaitingForResumeDelay);
    assert!(h.claim_with(json!({ "wait_ms": 700 })).await.is_none());
    let again = h.claim().await.unwrap();
    assert_eq!((again.claim_kind, again.resume_signals.len()), (ClaimKind::Resumed, 1));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_operator_resumes_where_the_suspension_allows_it() {
    let h = Harness::start().await;
    let waiting = suspended(&h, json!({ "condition": "operator_only" })).await;
    assert_eq!(effect(&h.must::<DeliverSignal>(waiting.signal("approve", json!({}))).await), SignalEffect::NoOp);
    let resume = json!({ "execution_id": waiting.id, "command_id": "01890a5d-ac96-774b-bcce-b302099a8057" });
    let first = h.must::<ResumeExecution>(resume.clone()).await;
    assert_eq!(h.must::<ResumeExecution>(resume).await.suspension_id, first.suspension_id);
    let fresh = json!({ "execution_id": waiting.id });
    assert_eq!(h.refused::<ResumeExecution>(fresh).await, Code::ExecutionNotSuspended);
    let task = h.claim().await.unwrap();
    assert!(task.resume_signals.is_empty());
    let closed = suspend(&h, task, json!({ "allow_operator_resume": false })).await;
    let refused = h.refused::<ResumeExecution>(json!({ "execution_id": closed.id })).await;
    assert_eq!(refused, Code::OperatorResumeNotAllowed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_suspend_gets_the_first_answer_and_another_lease_does_not() {
    let h = Harness::start().await;
    let task = claimed(&h, json!({})).await;
    let args = suspend_args(&task, json!({ "timeout_ms": 60_000, "idempotency_key": "s" }));
    let first = h.must::<Suspend>(args.clone()).await;
    assert_eq!(h.must::<Suspend>(args.clone()).await, first);
    let Suspended::Suspended { waitpoint_id, token, timeout_at, .. } = first.clone() else { panic!("{first:?}") };
    assert_eq!(timeout_at, Some(h.store.now() + 60_000));
    let foreign =
        Task { fence: ff_core::lease::LeaseFence { lease_id: Default::default(), ..task.fence }, ..task.clone() };
    assert_eq!(h.refused::<Suspend>(suspend_args(&foreign, json!({}))).await, Code::ExecutionNotActive);
    let signal = json!({
        "execution_id": task.execution_id, "waitpoint_id": waitpoint_id, "token": token, "name": "approve",
    });
    h.must::<DeliverSignal>(signal).await;
    assert_eq!(h.must::<Suspend>(args.clone()).await, first, "also after it was resumed");
    h.claim().await.unwrap();
    assert_eq!(h.must::<Suspend>(args).await, first, "and after it was claimed");
    assert_eq!(h.refused::<Suspend>(suspend_args(&foreign, json!({}))).await, Code::StaleLease);
    assert_eq!(h.state(&task.execution_id).await, PublicState::Active);
    h.finish().await;
}

/// Loses the reply of every first commit while it is switched on.
#[derive(Default)]
struct LostReplies(AtomicBool);

impl Faults for LostReplies {
    fn plan(&self, call: Call<'_>) -> Plan {
        match call {
            Call::Commit { .. } if self.0.swap(false, Ordering::SeqCst) => Fault::LostReply.into(),
            _ => Plan::default(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_changes_neither_answer_nor_effect() {
    let began = tokio::time::Instant::now();
    let clock = move || START + i64::try_from(began.elapsed().as_millis()).expect("tests are short");
    let faults = Arc::new(LostReplies::default());
    let store = Arc::new(MemoryStore::with_clock(Arc::new(clock)).with_faults(faults.clone()));
    let engine = Engine::start(store.clone(), Arc::new(TokioEnv::current()), Options::default()).await.unwrap();
    let h = Harness { engine, store, caller: Caller::system() };
    let task = claimed(&h, json!({})).await;
    faults.0.store(true, Ordering::SeqCst);
    let waiting = suspend(&h, task, json!({})).await;
    faults.0.store(true, Ordering::SeqCst);
    let signal = waiting.signal("approve", json!({}));
    assert!(matches!(h.must::<DeliverSignal>(signal).await, SignalOutcome::TriggeredResume { .. }));
    let again = h.claim().await.unwrap();
    assert_eq!((again.fence.attempt.0, again.resume_signals.len()), (0, 1));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_token_changes_nothing_and_tells_nothing() {
    let h = Harness::start().await;
    let (one, two) = (suspended(&h, json!({})).await, suspended(&h, json!({})).await);
    let before = h.documents();
    let flipped = format!("{}{}", &one.token[..one.token.len() - 1], if one.token.ends_with('0') { "1" } else { "0" });
    let absent = format!("{}{}", &one.waitpoint[..one.waitpoint.len() - 12], "000000000000");
    for wrong in [
        json!({ "token": two.token }),
        json!({ "token": flipped }),
        json!({ "token": "" }),
        json!({ "token": "k1" }),
        json!({ "token": format!("k9{}", &one.token[2..]) }),
        json!({ "token": one.token.to_uppercase() }),
        json!({ "waitpoint_id": absent }),
        json!({ "waitpoint_id": two.waitpoint }),
        json!({ "execution_id": two.id }),
        json!({ "execution_id": format!("ffff{}", &one.id.to_string()[4..]) }),
    ] {
        let signal = merged(one.signal("approve", json!({})), wrong.clone());
        assert_eq!(h.refused::<DeliverSignal>(signal).await, Code::InvalidToken, "{wrong}");
    }
    assert_eq!(h.documents(), before);
    // The token of a closed waitpoint still proves the sender, and only then is it said that it is closed.
    h.must::<DeliverSignal>(one.signal("approve", json!({}))).await;
    assert_eq!(h.refused::<DeliverSignal>(one.signal("approve", json!({}))).await, Code::WaitpointClosed);
    let wrong = one.signal("approve", json!({ "token": two.token }));
    assert_eq!(h.refused::<DeliverSignal>(wrong).await, Code::InvalidToken);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_operator_signals_without_a_token_in_its_own_namespace() {
    let mut h = Harness::start().await;
    let waiting = suspended(&h, json!({})).await;
    let signal = json!({ "execution_id": waiting.id, "name": "approve" });
    let with_role = |role, namespace: Option<&str>| Caller::new("ops", namespace.map(str::to_owned), role);
    h.caller = with_role(Role::Worker, None);
    assert_eq!(h.refused::<DeliverSignal>(signal.clone()).await, Code::Forbidden);
    h.caller = with_role(Role::Operator, Some("other"));
    assert_eq!(h.refused::<DeliverSignal>(signal.clone()).await, Code::ExecutionNotFound);
    let guessed = waiting.signal("approve", json!({ "token": "k1:00" }));
    assert_eq!(h.refused::<DeliverSignal>(guessed).await, Code::InvalidToken, "only the right token opens the wall");
    h.caller = with_role(Role::Operator, Some("default"));
    let wrong = waiting.signal("approve", json!({ "token": "k1:00" }));
    assert_eq!(h.refused::<DeliverSignal>(wrong).await, Code::InvalidToken, "a token that is shown must be right");
    assert!(matches!(h.must::<DeliverSignal>(signal.clone()).await, SignalOutcome::TriggeredResume { .. }));
    assert_eq!(effect(&h.must::<DeliverSignal>(signal).await), SignalEffect::Buffered, "for who asks for it by name");
    h.caller = Caller::system();
    let task = h.claim().await.unwrap();
    let (one, _two) = (pending(&h, &task, json!({})).await, pending(&h, &task, json!({})).await);
    let signal = json!({ "execution_id": waiting.id, "name": "other" });
    assert_eq!(h.refused::<DeliverSignal>(signal.clone()).await, Code::Invalid, "there are two");
    h.must::<CloseWaitpoint>(json!({ "execution_id": waiting.id, "waitpoint_id": one.waitpoint_id })).await;
    assert_eq!(effect(&h.must::<DeliverSignal>(signal).await), SignalEffect::Buffered);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn pending_waitpoints_are_listed_closed_and_expire() {
    let h = Harness::start().await;
    let task = claimed(&h, json!({})).await;
    let id = task.execution_id;
    let first = pending(&h, &task, json!({ "waitpoint_key": "gate", "expires_in_ms": 1_000 })).await;
    let second = pending(&h, &task, json!({})).await;
    assert_eq!(second.waitpoint_key, format!("wpk:{}", second.waitpoint_id));
    let repeat = json!({ "waitpoint_id": first.waitpoint_id, "waitpoint_key": "gate", "expires_in_ms": 1_000 });
    assert_eq!(pending(&h, &task, repeat).await, first, "the same id means the same waitpoint");
    let other = json!({ "execution_id": id, "fence": task.fence, "waitpoint_id": first.waitpoint_id });
    assert_eq!(h.refused::<CreatePendingWaitpoint>(other).await, Code::IdempotencyConflict);
    let listed = h.must::<ListPendingWaitpoints>(json!({ "execution_id": id })).await.items;
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|item| item.state == WaitpointState::Pending && item.kid == "k1"));
    assert_ne!(listed[0].fingerprint, listed[1].fingerprint);
    let waitpoint = json!({ "execution_id": id, "waitpoint_id": second.waitpoint_id });
    assert_eq!(h.must::<GetWaitpointToken>(waitpoint.clone()).await.token, second.token);
    assert!(h.must::<CloseWaitpoint>(waitpoint.clone()).await.changed);
    assert!(!h.must::<CloseWaitpoint>(waitpoint.clone()).await.changed);
    assert_eq!(h.refused::<GetWaitpointToken>(waitpoint).await, Code::WaitpointClosed);
    h.pass(1_001).await;
    assert!(h.must::<ListPendingWaitpoints>(json!({ "execution_id": id })).await.items.is_empty());
    let signal = json!({
        "execution_id": id, "waitpoint_id": first.waitpoint_id, "token": first.token, "name": "approve",
    });
    assert_eq!(h.refused::<DeliverSignal>(signal).await, Code::WaitpointClosed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn waitpoints_and_signals_hold_at_their_limits_and_not_one_past() {
    let h = Harness::start().await;
    let task = claimed(&h, json!({ "policy": { "max_signals_per_execution": 2 } })).await;
    let id = task.execution_id;
    let waitpoint = pending(&h, &task, json!({})).await;
    for _ in 1..limits::WAITPOINTS_MAX {
        pending(&h, &task, json!({})).await;
    }
    let one_more = json!({ "execution_id": id, "fence": task.fence });
    assert_eq!(h.refused::<CreatePendingWaitpoint>(one_more).await, Code::WaitpointLimitExceeded);
    let signal = json!({
        "execution_id": id, "waitpoint_id": waitpoint.waitpoint_id, "token": waitpoint.token, "name": "x",
    });
    h.must::<DeliverSignal>(signal.clone()).await;
    h.must::<DeliverSignal>(merged(signal.clone(), json!({ "idempotency_key": "k" }))).await;
    let before = h.documents();
    assert_eq!(h.refused::<DeliverSignal>(signal.clone()).await, Code::SignalLimitExceeded);
    let timeout = merged(signal.clone(), json!({ "name": "__timeout__" }));
    assert_eq!(h.refused::<DeliverSignal>(timeout).await, Code::Invalid);
    let payload = "x".repeat(limits::SIGNAL_PAYLOAD_MAX_BYTES - 1);
    let large = merged(signal.clone(), json!({ "payload": payload }));
    assert_eq!(h.refused::<DeliverSignal>(large).await, Code::PayloadTooLarge);
    assert_eq!(h.documents(), before);
    let repeat = merged(signal, json!({ "idempotency_key": "k" }));
    assert!(matches!(h.must::<DeliverSignal>(repeat).await, SignalOutcome::Duplicate { .. }));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_waitpoint_buffers_as_many_signals_as_its_limit() {
    let h = Harness::start().await;
    let task = claimed(&h, json!({})).await;
    let waitpoint = pending(&h, &task, json!({})).await;
    let signal = json!({
        "execution_id": task.execution_id, "waitpoint_id": waitpoint.waitpoint_id, "token": waitpoint.token,
        "name": "x",
    });
    for _ in 0..limits::BUFFERED_SIGNALS_MAX {
        h.must::<DeliverSignal>(signal.clone()).await;
    }
    assert_eq!(h.refused::<DeliverSignal>(signal).await, Code::SignalLimitExceeded);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_old_holder_cannot_suspend_or_open_waitpoints() {
    let h = Harness::start().await;
    h.submit(json!({})).await;
    let old = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    h.pass(1_001).await;
    assert_eq!(h.refused::<Suspend>(suspend_args(&old, json!({}))).await, Code::LeaseExpired);
    h.claim().await.unwrap();
    let before = h.documents();
    assert_eq!(h.refused::<Suspend>(suspend_args(&old, json!({}))).await, Code::StaleLease);
    let open = json!({ "execution_id": old.execution_id, "fence": old.fence });
    assert_eq!(h.refused::<CreatePendingWaitpoint>(open).await, Code::StaleLease);
    assert_eq!(h.documents(), before);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_rotated_secret_verifies_for_its_grace() {
    let h = Harness::start().await;
    let condition = json!({ "condition": { "count": { "n": 10 } } });
    let waiting = suspended(&h, condition).await;
    assert!(waiting.token.starts_with("k1:"));
    let rotate =
        |kid: &str, digit: &str| json!({ "new_kid": kid, "new_secret_hex": digit.repeat(64), "grace_ms": 5_000 });
    let rotated = h.must::<RotateWaitpointSecret>(rotate("k2", "2")).await;
    assert_eq!((rotated.previous_kid.as_deref(), rotated.changed), (Some("k1"), true));
    assert!(!h.must::<RotateWaitpointSecret>(rotate("k2", "2")).await.changed);
    assert_eq!(h.refused::<RotateWaitpointSecret>(rotate("k2", "3")).await, Code::RotationConflict);
    assert_eq!(h.refused::<RotateWaitpointSecret>(rotate("k:3", "3")).await, Code::Invalid);
    let token = json!({ "execution_id": waiting.id, "waitpoint_id": waiting.waitpoint });
    let fresh = h.must::<GetWaitpointToken>(token).await;
    assert_eq!(fresh.kid, "k2");
    h.must::<DeliverSignal>(waiting.signal("x", json!({}))).await;
    h.must::<DeliverSignal>(waiting.signal("x", json!({ "token": fresh.token }))).await;
    h.pass(5_001).await;
    assert_eq!(h.refused::<DeliverSignal>(waiting.signal("x", json!({}))).await, Code::TokenExpired);
    h.must::<DeliverSignal>(waiting.signal("x", json!({ "token": fresh.token }))).await;
    let unknown = waiting.signal("x", json!({ "token": format!("k7:{}", "0".repeat(64)) }));
    assert_eq!(h.refused::<DeliverSignal>(unknown).await, Code::InvalidToken);
    h.finish().await;
}

/// Delays every commit to a family of partitions, so that calls that begin together have all read before one writes.
fn slow_commits(family: ff_core::Family) -> impl FnMut(Call<'_>) -> Plan {
    move |call| {
        let slow = matches!(call, Call::Commit { partition, .. } if partition.family == family);
        let pause = || Box::pin(tokio::time::sleep(std::time::Duration::from_millis(50))) as ff_store::memory::Pause;
        Plan { before: slow.then(pause), ..Default::default() }
    }
}

#[tokio::test(start_paused = true)]
async fn racing_holders_never_pass_the_limit_of_pending_waitpoints() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let task = claimed(&h, json!({})).await;
    for _ in 1..limits::WAITPOINTS_MAX {
        pending(&h, &task, json!({})).await;
    }
    trouble.begin(slow_commits(ff_core::Family::Flow));
    let args = json!({ "execution_id": task.execution_id, "fence": task.fence });
    let (first, second) =
        tokio::join!(h.call::<CreatePendingWaitpoint>(args.clone()), h.call::<CreatePendingWaitpoint>(args));
    trouble.end();
    let refused = first.and(second).unwrap_err();
    assert_eq!(refused.code, Code::WaitpointLimitExceeded);
    let listed = h.must::<ListPendingWaitpoints>(json!({ "execution_id": task.execution_id })).await;
    assert_eq!(listed.items.len(), limits::WAITPOINTS_MAX);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn of_two_servers_that_rotate_at_once_the_store_lets_one() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let other = h.second().await;
    h.pass(100).await;
    trouble.begin(slow_commits(ff_core::Family::System));
    let rotate = |kid: &str, digit: &str| json!({ "new_kid": kid, "new_secret_hex": digit.repeat(64) });
    let (first, second) = tokio::join!(
        h.call::<RotateWaitpointSecret>(rotate("k2", "2")),
        other.call::<RotateWaitpointSecret>(rotate("k3", "3")),
    );
    trouble.end();
    let refused = first.and(second).unwrap_err();
    assert_eq!(refused.code, Code::ConcurrencyLimitExceeded);
    assert_eq!(refused.details.get("pool"), Some(&json!("admin_rotate")));
    other.engine.close().await;
    h.finish().await;
}
