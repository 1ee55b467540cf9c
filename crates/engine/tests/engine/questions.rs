//! Questions about a journal, their answers, and journals that begin anew.

use ff_core::execution::StepAnswer;
use ff_core::journal::{StepState, StepView};
use ff_core::op::ReasonCode;
use ff_core::op::park::Outcome;
use ff_core::op::view::Task;
use ff_core::op::{
    Complete, ContinueAsNew, DecideStep, DeliverSignal, ExplainExecution, Fail, GetExecution, ListSteps, Park,
    RecordSteps, ReplayExecution, ResumeExecution,
};
use ff_core::suspension::SuspendReason;
use ff_core::{BlockingReason, Code, ExecutionId, PublicState, limits};
use serde_json::{Value, json};

use crate::support::Harness;

fn merged(mut base: Value, more: Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

fn of(task: &Task) -> Value {
    json!({ "execution_id": task.execution_id, "fence": task.fence })
}

fn entries(task: &Task, first: u64, entries: &[Value]) -> Value {
    merged(of(task), json!({ "first_number": first, "entries": entries }))
}

fn entry(name: &str, state: &str) -> Value {
    json!({ "name": name, "state": state })
}

fn ask(task: &Task, first: u64, name: &str, reason: &str) -> Value {
    let question = json!({ "step": { "name": name }, "reason": reason, "input_hash": "new" });
    merged(of(task), json!({ "first_number": first, "questions": [question] }))
}

fn answer(id: &ExecutionId, answer: &str, more: Value) -> Value {
    merged(json!({ "execution_id": id, "answer": answer }), more)
}

fn states(entries: &[StepView]) -> Vec<(&str, StepState)> {
    entries.iter().map(|entry| (entry.name.as_str(), entry.state)).collect()
}

fn journal(task: &Task) -> &[StepView] {
    &task.journal.as_ref().expect("there is a journal").entries
}

/// A `once` step began and its worker died: the next holder asks.
async fn in_doubt(h: &Harness) -> (ExecutionId, Task) {
    let id = h.submit(json!({})).await;
    let first = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    h.must::<RecordSteps>(entries(&first, 1, &[entry("pay", "begun")])).await;
    let second = h.claim().await.unwrap();
    let asked = h.must::<Park>(ask(&second, 2, "pay", "in_doubt")).await;
    assert!(matches!(asked, Outcome::Parked { public_state: PublicState::Suspended, wake_at: None, .. }), "{asked:?}");
    (id, first)
}

#[tokio::test(start_paused = true)]
async fn a_question_is_shown_and_only_its_own_answer_ends_it() {
    let h = Harness::start().await;
    let (id, _) = in_doubt(&h).await;
    let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(shown.state.blocking_reason, BlockingReason::WaitingForDecision);
    assert_eq!(shown.suspension.as_ref().unwrap().reason, SuspendReason::InDoubt);
    assert_eq!(shown.questions.len(), 1);
    assert_eq!(shown.questions[0].answers, [StepAnswer::Happened, StepAnswer::DidNotHappen, StepAnswer::Fail]);
    let explained = h.must::<ExplainExecution>(json!({ "execution_id": id })).await;
    assert_eq!(explained.reasons.iter().map(|reason| reason.code).collect::<Vec<_>>(), [ReasonCode::DecisionNeeded]);
    assert_eq!(explained.reasons[0].details["step"]["name"], "pay");
    assert_eq!(h.refused::<ResumeExecution>(json!({ "execution_id": id })).await, Code::OperatorResumeNotAllowed);
    assert_eq!(h.refused::<DecideStep>(answer(&id, "keep", json!({}))).await, Code::Invalid);
    let other = json!({ "step": { "name": "other" } });
    assert_eq!(h.refused::<DecideStep>(answer(&id, "happened", other)).await, Code::QuestionNotOpen);
    let stray = json!({ "result": 1 });
    assert_eq!(h.refused::<DecideStep>(answer(&id, "did_not_happen", stray)).await, Code::Invalid);
    assert_eq!(h.state(&id).await, PublicState::Suspended, "nothing of this changed anything");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn each_answer_about_a_doubt_is_recorded_and_lets_the_function_go_on() {
    let h = Harness::start().await;
    for (said, more, state) in [
        ("happened", json!({ "result": { "receipt": 7 } }), StepState::Completed),
        ("did_not_happen", json!({}), StepState::Retrying),
        ("fail", json!({ "reason": "the bank does not know" }), StepState::Failed),
    ] {
        let (id, _) = in_doubt(&h).await;
        let call = merged(answer(&id, said, more), json!({ "command_id": "0190a0a0-0000-7000-8000-00000000000a" }));
        let first = h.must::<DecideStep>(call.clone()).await;
        assert_eq!((first.step.name.as_str(), first.public_state), ("pay", PublicState::Waiting));
        assert_eq!(h.must::<DecideStep>(call).await, first, "a repeat is the same answer");
        assert_eq!(h.refused::<DecideStep>(answer(&id, said, json!({}))).await, Code::ExecutionNotSuspended);
        let task = h.claim().await.unwrap();
        assert_eq!(states(journal(&task)), [("pay", StepState::Begun), ("pay", state)]);
        let last = &journal(&task)[1];
        match state {
            StepState::Completed => {
                assert_eq!(last.result.as_ref().unwrap().json().unwrap().0, r#"{"receipt":7}"#);
            }
            StepState::Failed => {
                assert_eq!(last.category.as_deref(), Some("in_doubt"));
                assert!(last.message.as_deref().unwrap().contains("the bank does not know"));
            }
            _ => assert!(last.next_at.is_some()),
        }
        h.must::<Complete>(of(&task)).await;
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_holders_report_is_refused_and_kept_beside_the_question() {
    let h = Harness::start().await;
    let (id, late) = in_doubt(&h).await;
    let report = entries(&late, 2, &[merged(entry("pay", "completed"), json!({ "result": "receipt 7" }))]);
    for _ in 0..2 {
        assert_eq!(h.refused::<RecordSteps>(report.clone()).await, Code::ExecutionNotActive);
    }
    let mut foreign = report.clone();
    foreign["fence"]["lease_id"] = json!("0190a0a0-0000-7000-8000-000000000000");
    h.refused::<RecordSteps>(foreign).await;
    let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    let evidence = &shown.questions[0].evidence;
    assert_eq!(evidence.len(), 1, "{evidence:?}");
    assert_eq!((evidence[0].state, evidence[0].lease_id), (StepState::Completed, late.fence.lease_id));
    assert_eq!(evidence[0].result.as_ref().unwrap().json().unwrap().0, r#""receipt 7""#);
    let listed = h.must::<ListSteps>(json!({ "execution_id": id })).await;
    assert_eq!(states(&listed.items), [("pay", StepState::Begun)], "evidence is no entry");
    h.must::<DecideStep>(answer(&id, "did_not_happen", json!({}))).await;
    let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert!(shown.questions.is_empty());
    h.finish().await;
}

/// Two entries were recorded, and the program has another input for the first one now.
async fn mismatched(h: &Harness) -> ExecutionId {
    let id = h.submit(json!({})).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    let large = json!({ "result": "x".repeat(2 * limits::STEP_INLINE_MAX_BYTES), "input_hash": "old" });
    let fetched = merged(entry("fetch", "completed"), large);
    let kept = merged(entry("before", "completed"), json!({ "result": 1 }));
    h.must::<RecordSteps>(entries(&task, 1, &[kept, fetched, entry("write", "completed")])).await;
    let task = h.claim().await.unwrap();
    h.must::<Park>(ask(&task, 4, "fetch", "journal_mismatch")).await;
    id
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_kept_stands_with_the_input_of_today() {
    let h = Harness::start().await;
    let id = mismatched(&h).await;
    h.must::<DecideStep>(answer(&id, "keep", json!({}))).await;
    let task = h.claim().await.unwrap();
    assert_eq!(task.generation, 0);
    use StepState::Completed;
    let expected = [("before", Completed), ("fetch", Completed), ("write", Completed), ("fetch", Completed)];
    assert_eq!(states(journal(&task)), expected);
    let (recorded, kept) = (&journal(&task)[1], &journal(&task)[3]);
    assert_eq!(recorded.result, kept.result);
    assert_eq!(kept.input_hash.as_deref(), Some("new"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn running_again_drops_the_entries_from_there_on_and_numbers_go_on() {
    let h = Harness::start().await;
    let id = mismatched(&h).await;
    let decided = h.must::<DecideStep>(answer(&id, "run_again", json!({}))).await;
    assert_eq!(decided.generation, 1);
    let task = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    assert_eq!(task.journal.as_ref().unwrap().next_number, 2);
    assert_eq!(states(journal(&task)), [("before", StepState::Completed)]);
    let wrong = h.call::<RecordSteps>(entries(&task, 1, &[entry("before", "completed")])).await.unwrap_err();
    assert_eq!((wrong.code, &wrong.details["next"]), (Code::JournalConflict, &json!(2)));
    let call = entries(&task, 2, &[entry("fetch", "completed")]);
    assert_eq!(h.must::<RecordSteps>(call.clone()).await, h.must::<RecordSteps>(call).await);
    h.must::<RecordSteps>(entries(&task, 3, &[entry("write", "completed")])).await;
    let task = h.claim().await.unwrap();
    use StepState::Completed;
    assert_eq!(states(journal(&task)), [("before", Completed), ("fetch", Completed), ("write", Completed)]);
    let numbers: Vec<u64> = journal(&task).iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let paged = h.must::<ListSteps>(json!({ "execution_id": id, "limit": 1, "after": 1 })).await;
    assert_eq!((paged.items[0].number, paged.next_after, paged.next_number), (2, Some(2), 4));
    let old = h.must::<ListSteps>(json!({ "execution_id": id, "generation": 0 })).await;
    assert_eq!(states(&old.items), [("before", Completed), ("fetch", Completed), ("write", Completed)]);
    h.must::<Complete>(of(&task)).await;
    h.pass(8 * 24 * 3600 * 1000).await;
    assert_eq!(h.refused::<GetExecution>(json!({ "execution_id": id })).await, Code::ExecutionNotFound);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_from_a_step_takes_over_what_stands_before_it() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let named = |name: &str| merged(entry(name, "completed"), json!({ "result": name }));
    let end = entries(&task, 1, &[named("a"), named("b"), named("c")]);
    h.must::<Complete>(end).await;
    let missing = json!({ "execution_id": id, "from_step": { "name": "z" } });
    assert_eq!(h.refused::<ReplayExecution>(missing).await, Code::Invalid);
    h.must::<ReplayExecution>(json!({ "execution_id": id, "from_step": { "name": "b" } })).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    assert_eq!((task.generation, states(journal(&task))), (1, vec![("a", StepState::Completed)]));
    assert_eq!(journal(&task)[0].result.as_ref().unwrap().json().unwrap().0, r#""a""#);
    h.must::<RecordSteps>(entries(&task, 2, &[named("b2")])).await;
    let task = h.claim().await.unwrap();
    let all: Vec<&str> = journal(&task).iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(all, ["a", "b2"], "a reclaim finds both");
    h.must::<Complete>(of(&task)).await;
    h.must::<ReplayExecution>(json!({ "execution_id": id, "from_step": { "name": "a" } })).await;
    assert_eq!(h.claim().await.unwrap().journal, None, "nothing stands before the first entry");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn continuing_as_new_begins_with_another_input_and_keeps_signals_that_nobody_waited_for() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "input": 0 })).await;
    for name in ["go", "go"] {
        let signal = json!({ "execution_id": id, "name": name, "payload": name });
        h.must::<DeliverSignal>(signal).await;
    }
    let mut task = h.claim().await.unwrap();
    let attempt = task.fence.attempt;
    let large = "y".repeat(20_000);
    for round in 1..=5_u32 {
        let step = merged(entry("work", "completed"), json!({ "result": large }));
        h.must::<RecordSteps>(entries(&task, 1, &[step])).await;
        let call = merged(of(&task), json!({ "input": round }));
        let continued = h.must::<ContinueAsNew>(call.clone()).await;
        assert_eq!((continued.generation, continued.public_state), (round, PublicState::Waiting));
        assert_eq!(h.must::<ContinueAsNew>(call).await.generation, round, "a repeat says the same");
        task = h.claim().await.unwrap();
        assert_eq!((task.generation, task.fence.attempt), (round, attempt));
        assert_eq!(task.input.as_ref().unwrap().json().unwrap().0, round.to_string());
        assert!(task.journal.as_ref().is_none_or(|journal| journal.entries.is_empty()));
    }
    // Both signals are there for the first two waits, in their order.
    for occurrence in 0..2 {
        let waits = json!({ "first_number": 1 + occurrence,
            "waitpoints": [{ "step": { "name": "go", "occurrence": occurrence } }] });
        let parked = h.must::<Park>(merged(of(&task), waits)).await;
        assert!(matches!(parked, Outcome::AlreadySatisfied { .. }), "{parked:?}");
    }
    h.pass(1_000).await;
    for (generation, left) in [(0, 0), (3, 0), (4, 1)] {
        let listed = h.must::<ListSteps>(json!({ "execution_id": id, "generation": generation })).await;
        assert_eq!(listed.items.len(), left, "generation {generation}");
    }
    h.must::<Complete>(merged(of(&task), json!({ "result": 1 }))).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_ending_says_what_its_run_did_not_visit_and_a_retry_runs_what_was_undone() {
    let h = Harness::start().await;
    let policy = json!({ "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 10 } } } });
    let id = h.submit(json!({ "policy": policy })).await;
    let task = h.claim().await.unwrap();
    let undo = merged(entry("cancel booking", "completed"), json!({ "compensates": { "name": "book" } }));
    let failing = json!({ "reason": "no car", "cause": { "name": "car" },
        "undone": [{ "name": "book" }, { "name": "cancel booking" }] });
    let recorded = [entry("book", "completed"), entry("car", "failed"), undo];
    h.must::<Fail>(merged(entries(&task, 1, &recorded), failing)).await;
    let task = h.claim().await.unwrap();
    assert_eq!(journal(&task)[2].compensates.as_ref().unwrap().name, "book");
    let again: Vec<&str> = journal(&task)[3..].iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(again, ["car", "book", "cancel booking"]);
    assert!(journal(&task)[3..].iter().all(|entry| entry.state == StepState::Retrying));
    let run =
        json!({ "run": { "steps_not_visited": [{ "name": "car" }], "steps_changed": [{ "name": "x", "key": "k" }] } });
    h.must::<Complete>(merged(of(&task), run)).await;
    let shown = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(shown.steps_not_visited[0].name, "car");
    assert_eq!(shown.steps_changed[0].key.as_deref(), Some("k"));
    let many: Vec<Value> = (0..101).map(|number| json!({ "name": format!("s{number}") })).collect();
    let too_many = merged(of(&task), json!({ "run": { "steps_not_visited": many } }));
    assert_eq!(h.refused::<Complete>(too_many).await, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_viewer_of_the_journal_sees_the_entries_that_came_with_the_end_of_its_generation() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    h.must::<RecordSteps>(entries(&task, 1, &[entry("a", "completed")])).await;
    let caller = ff_engine::Caller::system();
    let mut seen = ff_engine::JournalSeen::default();
    let mut names = Vec::new();
    for round in 0..3 {
        if round == 1 {
            let more = json!({ "input": 2, "first_number": 2, "entries": [entry("last", "completed")] });
            h.must::<ContinueAsNew>(merged(of(&task), more)).await;
            let next = h.claim().await.unwrap();
            h.must::<RecordSteps>(entries(&next, 1, &[entry("b", "completed")])).await;
        }
        let (now, steps) = h.engine.follow_journal(&caller, &id, seen, 100, 0).await.unwrap();
        seen = now;
        names.extend(steps.into_iter().map(|step| step.name));
    }
    assert_eq!(names, ["a", "last", "b"]);
    h.finish().await;
}
