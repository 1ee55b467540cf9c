//! Executions that get nowhere: steps that are taken for a loop, and leases that are lost again and again.

use ff_core::execution::StepAnswer;
use ff_core::op::park::Outcome;
use ff_core::op::view::Task;
use ff_core::op::{
    AppendFrames, Complete, ContinueAsNew, DecideStep, Delay, Exchange, ExchangeEnded, ExplainExecution, Fail,
    GetExecution, ListApprovals, Park, Progress, ReasonCode, RecordSteps, ReplayExecution, RevokeLease, Suspend,
    WaitChildren,
};
use ff_core::suspension::SuspendReason;
use ff_core::{BlockingReason, Code, Error, ExecutionId, PublicState};
use serde_json::{Value, json};

use crate::support::Harness;

fn entries(task: &Task, first: u64, entries: &[Value]) -> Value {
    json!({ "execution_id": task.execution_id, "fence": task.fence, "first_number": first, "entries": entries })
}

/// The call of a step that looked at something and saw this.
fn looked(occurrence: u64, saw: Value) -> Value {
    json!({ "name": "look", "occurrence": occurrence, "state": "completed", "result": saw, "input_hash": "the inbox" })
}

fn policy(action: &str) -> Value {
    json!({ "policy": { "no_progress": { "same": 3, "window": 10, "action": action } } })
}

/// Records the same look three times, with another step between; says what the last call was.
async fn loops(h: &Harness, task: &Task, first: u64) -> Value {
    let think = json!({ "name": "think", "occurrence": first, "state": "completed", "result": first });
    let saw = json!({ "mails": 0 });
    let call = entries(task, first, &[looked(first, saw.clone()), think, looked(first + 1, saw.clone())]);
    assert!(!h.must::<RecordSteps>(call).await.loop_detected);
    entries(task, first + 3, &[looked(first + 2, saw)])
}

#[tokio::test(start_paused = true)]
async fn the_same_result_too_often_asks_a_person_who_may_let_it_go_on() {
    let h = Harness::start().await;
    let id = h.submit(policy("ask")).await;
    let task = h.claim().await.unwrap();
    let call = loops(&h, &task, 1).await;
    let recorded = h.must::<RecordSteps>(call.clone()).await;
    assert!(recorded.loop_detected);
    assert_eq!(h.must::<RecordSteps>(call).await, recorded, "a repeat of the call gets the same answer");
    assert_eq!(h.refused::<RecordSteps>(entries(&task, 5, &[looked(9, json!(1))])).await, Code::ExecutionNotActive);
    assert_eq!(
        h.refused::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await,
        Code::ExecutionNotActive,
        "the lease is released"
    );
    let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(shown.state.blocking_reason, BlockingReason::WaitingForDecision);
    assert_eq!(shown.questions[0].reason, SuspendReason::NoProgress);
    assert_eq!(shown.questions[0].answers, [StepAnswer::GoOn, StepAnswer::Fail]);
    let asked = h.must::<ListApprovals>(json!({})).await.items;
    assert_eq!(asked[0].detail.as_deref(), Some("step look had the same result 3 times within the last 10 entries"));
    let answer = |answer: &str| json!({ "execution_id": id, "answer": answer });
    assert_eq!(h.refused::<DecideStep>(answer("keep")).await, Code::Invalid);
    h.must::<DecideStep>(answer("go_on")).await;
    let again = h.claim().await.unwrap();
    let journal = again.journal.as_ref().unwrap();
    assert_eq!((journal.entries.len(), journal.next_number), (4, 5), "what was recorded stands");
    // Equal results are counted anew: the fourth is the first.
    let call = loops(&h, &again, 5).await;
    assert!(h.must::<RecordSteps>(call).await.loop_detected);
    let reason = json!({ "execution_id": id, "answer": "fail", "reason": "it will not come" });
    assert_eq!(h.must::<DecideStep>(reason).await.public_state, PublicState::Failed);
    let failure = h.must::<GetExecution>(json!({ "execution_id": id })).await.last_failure.unwrap();
    assert_eq!(failure.category.as_deref(), Some("loop_detected"));
    assert!(failure.reason.ends_with(": it will not come"), "{}", failure.reason);
    h.must::<ReplayExecution>(json!({ "execution_id": id })).await;
    let replayed = h.claim().await.unwrap();
    assert!(h.must::<RecordSteps>(loops(&h, &replayed, 1).await).await.loop_detected, "a replay counts from the start");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_same_result_too_often_fails_for_good_where_the_policy_says_so() {
    let h = Harness::start().await;
    let id = h.submit(policy("fail")).await;
    let task = h.claim().await.unwrap();
    let call = loops(&h, &task, 1).await;
    let recorded = h.must::<RecordSteps>(call.clone()).await;
    assert!(recorded.loop_detected);
    assert_eq!(h.must::<RecordSteps>(call).await, recorded);
    let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(shown.public_state, PublicState::Failed, "no retry runs into it again");
    assert_eq!(shown.last_failure.unwrap().category.as_deref(), Some("loop_detected"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_changing_result_another_input_or_a_wait_is_no_loop() {
    let h = Harness::start().await;
    h.submit(policy("ask")).await;
    let task = h.claim().await.unwrap();
    for number in 1..=20_u64 {
        let changing = looked(number, json!({ "mails": number }));
        let rest = json!({ "name": "rest", "occurrence": number, "kind": "sleep", "state": "completed" });
        let fetch = json!({ "name": "fetch", "occurrence": number, "state": "completed", "result": "done",
            "input_hash": format!("page {number}") });
        let call = entries(&task, 3 * number - 2, &[changing, rest, fetch]);
        assert!(!h.must::<RecordSteps>(call).await.loop_detected, "{number}");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn results_beside_the_journal_are_compared_without_being_read() {
    let h = Harness::start().await;
    h.submit(policy("fail")).await;
    let task = h.claim().await.unwrap();
    let large = |last: u64| json!(format!("{}{last}", "x".repeat(20_000)));
    for number in 1..=4 {
        let call = entries(&task, number, &[looked(number, large(number))]);
        assert!(!h.must::<RecordSteps>(call).await.loop_detected);
    }
    for number in 5..=6 {
        let call = entries(&task, number, &[looked(number, large(4))]);
        assert_eq!(h.must::<RecordSteps>(call).await.loop_detected, number == 6);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_sleeps_between_its_looks_is_stopped_when_it_parks() {
    let h = Harness::start().await;
    let id = h.submit(policy("ask")).await;
    for number in 1..=3_u64 {
        let task = h.claim_with(json!({ "wait_ms": 30_000 })).await.unwrap();
        let first = 3 * number - 2;
        let sleeps = json!([{ "step": { "name": "rest", "occurrence": number }, "sleep_ms": 10_000 }]);
        let mut call = entries(&task, first, &[looked(number, json!("nothing"))]);
        call["sleeps"] = sleeps;
        let parked = h.must::<Park>(call.clone()).await;
        assert_eq!(h.must::<Park>(call).await, parked);
        let expected = if number == 3 { PublicState::Suspended } else { PublicState::Delayed };
        assert!(
            matches!(&parked, Outcome::Parked { public_state, .. } if *public_state == expected),
            "{number}: {parked:?}"
        );
    }
    let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(shown.questions[0].reason, SuspendReason::NoProgress);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn recording_without_the_policy_reads_nothing() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let partition = task.execution_id.partition();
    let reads = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = reads.clone();
    trouble.begin(move |call| {
        if matches!(call, ff_store::memory::Call::Read { partition: read, .. } if read == partition) {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        ff_store::memory::Plan::default()
    });
    for number in 1..=10 {
        h.must::<RecordSteps>(entries(&task, number, &[looked(number, json!("same"))])).await;
    }
    trouble.end();
    assert_eq!(reads.load(std::sync::atomic::Ordering::SeqCst), 0);
    h.finish().await;
}

/// Loses a lease of one second; says how long the next claim had to wait after it.
async fn lost(h: &Harness) -> Task {
    let task = h.claim_with(json!({ "lease_ttl_ms": 1_000, "wait_ms": 30_000 })).await.unwrap();
    h.pass(1_001).await;
    task
}

async fn waits(h: &Harness, id: &ExecutionId) -> i64 {
    let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    shown.delay_until.map_or(0, |until| until - shown.updated_at)
}

#[tokio::test(start_paused = true)]
async fn from_the_third_silent_loss_on_the_next_claim_waits_and_explain_says_why() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    for expected in [0, 0, 1_000, 2_000] {
        lost(&h).await;
        assert_eq!(waits(&h, &id).await, expected);
    }
    let explained = h.must::<ExplainExecution>(json!({ "execution_id": id })).await;
    assert_eq!(explained.reasons[0].code, ReasonCode::RetryBackoff);
    assert!(explained.reasons[0].message.contains("4 leases in a row"), "{explained:?}");
    let task = h.claim_with(json!({ "wait_ms": 30_000 })).await.unwrap();
    h.must::<RevokeLease>(json!({ "execution_id": id })).await;
    assert_eq!(waits(&h, &id).await, 0, "an operator's revoke makes nobody wait");
    assert_eq!(task.fence.attempt.0, 4);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_entry_a_frame_or_progress_is_a_sign_of_work() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let mut number = 0;
    for sign in ["none", "none", "entry", "none", "none", "frame", "none", "none", "progress"] {
        let task = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
        let held = json!({ "execution_id": id, "fence": task.fence });
        let with = |more: Value| {
            let mut call = held.clone();
            call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            call
        };
        match sign {
            "entry" => {
                number += 1;
                h.must::<RecordSteps>(entries(&task, number, &[looked(number, json!(1))])).await;
            }
            "frame" => {
                let frames = json!([{ "type": "token", "payload": "hello" }]);
                h.must::<AppendFrames>(with(json!({ "first_sequence": 1, "frames": frames }))).await;
            }
            "progress" => drop(h.must::<Progress>(with(json!({ "pct": 40, "message": "halfway" }))).await),
            _ => {}
        }
        h.pass(1_001).await;
        assert_eq!(waits(&h, &id).await, 0, "{sign}");
    }
    let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    let said: Vec<&str> = shown.last_words.iter().map(|words| words.said.as_str()).collect();
    assert_eq!(said, ["frame token: \"hello\"", "", "", "40 %: halfway"]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_poison_execution_is_given_up_with_what_its_workers_last_said() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "policy": { "max_reclaim_count": 2 } })).await;
    for number in 1..=3 {
        let task = h.claim_with(json!({ "lease_ttl_ms": 1_000, "wait_ms": 30_000 })).await.unwrap();
        let begun = json!({ "name": "load", "key": format!("{number}"), "state": "begun" });
        h.must::<RecordSteps>(entries(&task, number, &[begun])).await;
        h.pass(1_001).await;
    }
    let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(shown.public_state, PublicState::Failed);
    let failure = shown.last_failure.unwrap();
    assert_eq!(failure.category.as_deref(), Some("max_reclaims_exceeded"));
    assert_eq!(failure.reason, "max_reclaims_exceeded: 3 leases were lost; w-1 last said: step load[3] begun");
    assert_eq!(shown.last_words.len(), 3);
    let explained = h.must::<ExplainExecution>(json!({ "execution_id": id })).await;
    assert_eq!(explained.reasons[0].details["last_words"][0]["said"], "step load[1] begun");
    h.finish().await;
}

/// Ends the lease of a task in this way, with an entry; says what was refused.
async fn part(h: &Harness, how: &str, call: &Value) -> Error {
    let mut call = call.clone();
    match how {
        "fail" => call["reason"] = json!("not yet"),
        "delay" => call["delay_ms"] = json!(1_000),
        "suspend" => {
            call["condition"] = json!({ "any": [] });
            call["reason"] = json!("signal");
        }
        _ => {}
    }
    let refused = match how {
        "fail" => h.call::<Fail>(call).await.err(),
        "delay" => h.call::<Delay>(call).await.err(),
        "suspend" => h.call::<Suspend>(call).await.err(),
        "wait_children" => h.call::<WaitChildren>(call).await.err(),
        _ => h.call::<ContinueAsNew>(call).await.err(),
    };
    refused.expect("it did not happen")
}

#[tokio::test(start_paused = true)]
async fn a_parting_whose_entries_are_a_loop_is_refused_and_its_repeats_are_told_the_same() {
    let h = Harness::start().await;
    for (action, state) in [("ask", PublicState::Suspended), ("fail", PublicState::Failed)] {
        for how in ["fail", "delay", "suspend", "wait_children", "continue_as_new"] {
            let id = h.submit(policy(action)).await;
            let task = h.claim().await.unwrap();
            let call = loops(&h, &task, 1).await;
            let refused = part(&h, how, &call).await;
            assert_eq!(refused.code, Code::ExecutionNotActive, "{action} {how}");
            assert_eq!(refused.details["lease_end"], "loop_detected", "{action} {how}");
            assert_eq!(part(&h, how, &call).await, refused, "{action} {how}");
            let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
            assert_eq!((shown.public_state, shown.generation, shown.retry_count), (state, 0, 0), "{action} {how}");
            if state == PublicState::Suspended {
                assert_eq!(shown.questions[0].reason, SuspendReason::NoProgress);
                h.must::<DecideStep>(json!({ "execution_id": id, "answer": "go_on" })).await;
                let again = h.claim().await.unwrap();
                assert_eq!(again.journal.as_ref().unwrap().next_number, 5, "the entries were recorded");
                let repeated = part(&h, how, &call).await;
                assert_eq!(
                    (repeated.code, &repeated.details["lease_end"]),
                    (refused.code, &refused.details["lease_end"])
                );
                h.must::<Complete>(json!({ "execution_id": id, "fence": again.fence })).await;
            }
        }
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_exchange_that_is_told_of_a_loop_has_room_for_another_task() {
    let h = Harness::start().await;
    h.submit(policy("ask")).await;
    let task = h.claim().await.unwrap();
    let mut call = loops(&h, &task, 1).await;
    call["delay_ms"] = json!(1_000);
    let next = h.submit(json!({})).await;
    let claim = json!({ "lanes": ["default"] });
    let said = json!({ "instance_id": "w-1", "end": [{ "delay": call }], "claim": claim });
    let answer = h.must::<Exchange>(said).await;
    let ExchangeEnded::Problem(problem) = &answer.end[0] else { panic!("{answer:?}") };
    assert_eq!(problem.details["lease_end"], "loop_detected");
    let claimed = answer.claim.expect("it asked").tasks;
    assert_eq!(claimed.iter().map(|task| task.execution_id).collect::<Vec<_>>(), [next]);
    h.finish().await;
}
