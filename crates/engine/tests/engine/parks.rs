//! Waiting in a journal: sleeps, signals and children that an execution is parked for, and the entries they leave.

use crate::journal::{done, record};
use crate::support::Harness;
use ff_core::journal::{StepState, StepView};
use ff_core::op::park::Outcome;
use ff_core::op::view::Task;
use ff_core::op::{
    CancelExecution, Complete, ContinueAsNew, CreateExecution, CreatePendingWaitpoint, DeliverSignal, Fail,
    ListPendingWaitpoints, ListSteps, Park, ReplayExecution, ResumeExecution, WaitChildren,
};
use ff_core::{Code, PublicState, SignalOutcome, limits};
use serde_json::{Value, json};

fn park(task: &Task, first: u64, waits: Value) -> Value {
    let mut args = json!({ "execution_id": task.execution_id, "fence": task.fence, "first_number": first });
    args.as_object_mut().unwrap().extend(waits.as_object().unwrap().clone());
    args
}

/// The last record of each entry, by its label.
fn states(entries: &[StepView]) -> Vec<(String, StepState)> {
    let mut last = std::collections::BTreeMap::new();
    for entry in entries {
        last.insert(entry.name.clone(), entry.state);
    }
    last.into_iter().collect()
}

#[tokio::test(start_paused = true)]
async fn a_sleep_ends_at_the_instant_that_was_fixed_when_it_began() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let sleeps = json!({ "sleeps": [{ "step": { "name": "cool down" }, "sleep_ms": 3_600_000 }] });
    let call = park(&task, 1, sleeps);
    let Outcome::Parked { public_state, wake_at, .. } = h.must::<Park>(call.clone()).await else { panic!("parked") };
    assert_eq!(public_state, PublicState::Delayed);
    let again = h.must::<Park>(call).await;
    assert!(matches!(again, Outcome::Parked { wake_at: again, .. } if again == wake_at), "a repeat is the same");
    assert!(h.claim().await.is_none());
    h.pass(3_600_000).await;
    let woken = h.claim().await.unwrap();
    assert_eq!(woken.fence.attempt, task.fence.attempt, "the same attempt goes on");
    let journal = woken.journal.unwrap();
    let seen: Vec<_> = journal.entries.iter().map(|entry| (entry.state, entry.next_at)).collect();
    assert_eq!(seen, [(StepState::Begun, wake_at), (StepState::Completed, None)]);
    assert_eq!(h.state(&id).await, PublicState::Active);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_signal_wakes_and_the_other_waitpoint_still_takes_its_own() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let waits = json!({ "waitpoints": [{ "step": { "name": "left" } }, { "step": { "name": "right" } }] });
    let Outcome::Parked { public_state, waitpoints, .. } = h.must::<Park>(park(&task, 1, waits.clone())).await else {
        panic!("parked")
    };
    assert_eq!(public_state, PublicState::Suspended);
    let signal = |at: usize, payload: &str| {
        json!({ "execution_id": id, "waitpoint_id": waitpoints[at].waitpoint_id, "token": waitpoints[at].token,
                "name": "go", "payload": payload })
    };
    let outcome = h.must::<DeliverSignal>(signal(0, "l")).await;
    assert!(matches!(outcome, SignalOutcome::TriggeredResume { .. }), "{outcome:?}");
    let buffered = h.must::<DeliverSignal>(signal(1, "r")).await;
    assert!(matches!(buffered, SignalOutcome::Accepted { .. }), "the mailed link still works: {buffered:?}");
    let woken = h.claim().await.unwrap();
    assert_eq!(states(&woken.journal.as_ref().unwrap().entries), [("left".into(), StepState::Completed)]);
    let second = h.must::<Park>(park(&woken, 2, json!({ "waitpoints": [{ "step": { "name": "right" } }] }))).await;
    let Outcome::AlreadySatisfied { entries, next_number } = second else { panic!("satisfied") };
    assert_eq!((entries[0].name.as_str(), next_number), ("right", 3));
    assert_eq!(entries[0].result.as_ref().unwrap().json().unwrap().0, "\"r\"");
    assert_eq!(h.refused::<DeliverSignal>(signal(0, "late")).await, Code::WaitpointClosed);
    h.must::<Complete>(record(&woken, 3, &[done("end", json!(1))])).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_says_so_and_closes_its_waitpoint() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let waits = json!({ "waitpoints": [{ "step": { "name": "decision" }, "timeout_ms": 500 }] });
    let Outcome::Parked { waitpoints, .. } = h.must::<Park>(park(&task, 1, waits)).await else { panic!("parked") };
    let woken = h.claim().await.unwrap();
    let journal = woken.journal.unwrap();
    let last = journal.entries.last().unwrap();
    assert_eq!((last.state, last.category.as_deref()), (StepState::Failed, Some("timeout")));
    assert_eq!(woken.resume_signals, [], "the journal says it");
    assert_eq!(woken.resumed_by, Some(ff_core::execution::ResumeCause::Timeout));
    let late = json!({ "execution_id": id, "waitpoint_id": waitpoints[0].waitpoint_id, "name": "go" });
    assert_eq!(h.refused::<DeliverSignal>(late).await, Code::WaitpointClosed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_sent_by_name_waits_for_the_function_that_will_ask_for_it() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let signal = |payload: &str| json!({ "execution_id": id, "name": "decision", "payload": payload });
    h.must::<DeliverSignal>(signal("first")).await;
    let task = h.claim().await.unwrap();
    let wait =
        |occurrence: u32| json!({ "waitpoints": [{ "step": { "name": "decision", "occurrence": occurrence } }] });
    let Outcome::AlreadySatisfied { entries, .. } = h.must::<Park>(park(&task, 1, wait(0))).await else {
        panic!("satisfied")
    };
    assert_eq!(entries[0].result.as_ref().unwrap().json().unwrap().0, "\"first\"");
    h.must::<Park>(park(&task, 2, wait(1))).await;
    h.must::<DeliverSignal>(signal("second")).await;
    let woken = h.claim().await.unwrap();
    let results: Vec<_> =
        woken.journal.unwrap().entries.iter().map(|entry| entry.result.as_ref().unwrap().json().unwrap().0).collect();
    assert_eq!(results, ["\"first\"", "\"second\""]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_spawned_again_is_the_same_child_and_its_end_wakes_the_parent() {
    let h = Harness::start().await;
    let parent = h.submit(json!({})).await;
    let first = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    let spawn = |task: &Task| {
        let link = json!({ "execution_id": parent, "fence": task.fence, "key": "a" });
        json!({ "kind": "part", "lane": "parts", "parent": link })
    };
    let child = h.must::<CreateExecution>(spawn(&first)).await;
    assert!(!child.duplicate);
    let second = h.claim().await.unwrap();
    let again = h.must::<CreateExecution>(spawn(&second)).await;
    assert_eq!((again.execution_id, again.duplicate), (child.execution_id, true));
    let wait = json!({ "children": [{ "step": { "name": "part", "key": "a" }, "execution_id": child.execution_id }] });
    let parked = h.must::<Park>(park(&second, 1, wait.clone())).await;
    assert!(matches!(parked, Outcome::Parked { public_state: PublicState::WaitingChildren, .. }), "{parked:?}");
    let part = h.claim_with(json!({ "lanes": ["parts"] })).await.unwrap();
    h.must::<Complete>(json!({ "execution_id": part.execution_id, "fence": part.fence, "result": 7 })).await;
    let woken = h.claim().await.unwrap();
    assert_eq!(states(&woken.journal.as_ref().unwrap().entries), [("part".into(), StepState::Completed)]);
    let over = h.must::<Park>(park(&woken, 2, wait)).await;
    assert!(matches!(over, Outcome::AlreadySatisfied { .. }), "a child that has ended is not waited for: {over:?}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_operator_resumes_a_parked_execution_and_a_cancellation_ends_it() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let wait = json!({ "waitpoints": [{ "step": { "name": "decision" } }] });
    h.must::<Park>(park(&task, 1, wait)).await;
    h.must::<ResumeExecution>(json!({ "execution_id": id })).await;
    let woken = h.claim().await.unwrap();
    assert_eq!(states(&woken.journal.as_ref().unwrap().entries), [("decision".into(), StepState::Completed)]);
    let wait = json!({ "waitpoints": [{ "step": { "name": "more" } }], "sleeps": [{ "step": { "name": "s" }, "sleep_ms": 60_000 }] });
    h.must::<Park>(park(&woken, 2, wait)).await;
    h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    assert_eq!(h.state(&id).await, PublicState::Cancelled);
    h.pass(120_000).await;
    assert_eq!(h.state(&id).await, PublicState::Cancelled);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_park_that_was_satisfied_at_once_answers_the_same() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    h.must::<DeliverSignal>(json!({ "execution_id": id, "name": "decision", "payload": "yes" })).await;
    let task = h.claim().await.unwrap();
    let waits = json!({
        "entries": [done("before", json!(1))],
        "waitpoints": [{ "step": { "name": "decision" }, "timeout_ms": 60_000 }],
        "sleeps": [{ "step": { "name": "cool down" }, "sleep_ms": 60_000 }],
    });
    let call = park(&task, 1, waits);
    let first = h.must::<Park>(call.clone()).await;
    h.pass(5_000).await;
    let again = h.must::<Park>(call).await;
    assert_eq!(again, first);
    let Outcome::AlreadySatisfied { entries, next_number } = first else { panic!("satisfied") };
    assert_eq!(next_number, 5);
    let shown: Vec<_> =
        entries.iter().map(|entry| (entry.name.as_str(), entry.state, entry.next_at.is_some())).collect();
    use StepState::{Begun, Completed};
    let expected = [("cool down", Begun, true), ("decision", Begun, true), ("decision", Completed, false)];
    assert_eq!(shown, expected, "the instants that were fixed are told, so that the next park keeps them");
    assert_eq!(h.must::<ListSteps>(json!({ "execution_id": id })).await.items.len(), 4);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_span_that_is_waited_for_again_ends_at_the_instant_of_the_first_time() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let waits = json!({
        "sleeps": [{ "step": { "name": "cool down" }, "sleep_ms": 60_000 }],
        "waitpoints": [{ "step": { "name": "late" }, "timeout_ms": 90_000 }, { "step": { "name": "soon" } }],
    });
    let Outcome::Parked { wake_at, .. } = h.must::<Park>(park(&task, 1, waits.clone())).await else { panic!("parked") };
    h.pass(20_000).await;
    h.must::<DeliverSignal>(json!({ "execution_id": id, "name": "soon" })).await;
    let woken = h.claim().await.unwrap();
    let begun: Vec<_> = woken.journal.as_ref().unwrap().entries.iter().filter_map(|entry| entry.next_at).collect();
    let mut rest = waits;
    rest["waitpoints"].as_array_mut().unwrap().pop();
    let again = h.must::<Park>(park(&woken, 4, rest.clone())).await;
    assert!(matches!(again, Outcome::Parked { wake_at: again, .. } if again == wake_at), "{again:?}");
    h.pass(40_000).await;
    let slept = h.claim().await.unwrap();
    rest["sleeps"] = json!([]);
    let Outcome::Parked { wake_at, .. } = h.must::<Park>(park(&slept, 5, rest)).await else { panic!("parked") };
    assert_eq!(wake_at, Some(begun[1]), "the timeout of the signal is where it was");
    let steps = h.must::<ListSteps>(json!({ "execution_id": id })).await.items;
    assert_eq!(steps.iter().filter(|entry| entry.state == StepState::Begun).count(), 2, "{steps:?}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_parting_repeated_later_hears_its_first_answer() {
    let h = Harness::start().await;
    let parent = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let call = park(&task, 1, json!({ "sleeps": [{ "step": { "name": "nap" }, "sleep_ms": 60_000 }] }));
    let parked = h.must::<Park>(call.clone()).await;
    h.pass(60_000).await;
    assert_eq!(h.must::<Park>(call.clone()).await, parked);
    let task = h.claim().await.unwrap();
    assert_eq!(h.must::<Park>(call).await, parked, "also under the next lease");
    let link = json!({ "execution_id": parent, "fence": task.fence });
    h.must::<CreateExecution>(json!({ "kind": "part", "lane": "parts", "parent": link })).await;
    let of = |task: &Task| json!({ "execution_id": task.execution_id, "fence": task.fence });
    let waiting = h.must::<WaitChildren>(of(&task)).await;
    assert_eq!((waiting.open_children, waiting.public_state), (1, PublicState::WaitingChildren));
    let part = h.claim_with(json!({ "lanes": ["parts"] })).await.unwrap();
    h.must::<Complete>(of(&part)).await;
    h.pass(10).await;
    assert_eq!(h.must::<WaitChildren>(of(&task)).await, waiting);
    let task = h.claim().await.unwrap();
    let continued = h.must::<ContinueAsNew>(of(&task)).await;
    let next = h.claim().await.unwrap();
    assert_eq!(h.must::<ContinueAsNew>(of(&task)).await, continued);
    h.must::<Complete>(of(&next)).await;
    assert_eq!(h.must::<ContinueAsNew>(of(&task)).await, continued);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn another_park_with_the_numbers_of_an_earlier_one_is_a_conflict() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    h.must::<DeliverSignal>(json!({ "execution_id": id, "name": "decision", "payload": "yes" })).await;
    let task = h.claim().await.unwrap();
    h.must::<Park>(park(&task, 1, json!({ "waitpoints": [{ "step": { "name": "decision" } }] }))).await;
    let other = park(&task, 1, json!({ "sleeps": [{ "step": { "name": "nap" }, "sleep_ms": 60_000 }] }));
    let error = h.call::<Park>(other).await.unwrap_err();
    assert_eq!((error.code, &error.details["next"]), (Code::JournalConflict, &json!(2)));
    assert_eq!(h.state(&id).await, PublicState::Active);
    h.finish().await;
}

async fn open_waitpoints(h: &Harness, id: &ff_core::ExecutionId) -> Vec<String> {
    let listed = h.must::<ListPendingWaitpoints>(json!({ "execution_id": id })).await;
    listed.items.into_iter().map(|item| item.waitpoint_key).collect()
}

#[tokio::test(start_paused = true)]
async fn waitpoints_of_the_journal_are_listed_once_until_their_generation_ends() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let waits = json!({ "waitpoints": [{ "step": { "name": "left" } }, { "step": { "name": "right" } }] });
    h.must::<Park>(park(&task, 1, waits)).await;
    let mut both = open_waitpoints(&h, &id).await;
    both.sort();
    assert_eq!(both, ["left", "right"]);
    h.must::<DeliverSignal>(json!({ "execution_id": id, "name": "left" })).await;
    assert_eq!(open_waitpoints(&h, &id).await, ["right"], "it survives the wake of the other");
    let woken = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": id, "fence": woken.fence })).await;
    assert!(open_waitpoints(&h, &id).await.is_empty(), "nobody can signal what has ended");
    h.must::<ReplayExecution>(json!({ "execution_id": id })).await;
    assert!(open_waitpoints(&h, &id).await.is_empty(), "those of the old generation take nothing more");
    // A signal by name is for the new generation, although the old one left a waitpoint of this name.
    h.must::<DeliverSignal>(json!({ "execution_id": id, "name": "right", "payload": "new" })).await;
    let replayed = h.claim().await.unwrap();
    let wait = json!({ "waitpoints": [{ "step": { "name": "right" } }] });
    let Outcome::AlreadySatisfied { entries, .. } = h.must::<Park>(park(&replayed, 1, wait)).await else {
        panic!("satisfied")
    };
    assert_eq!(entries[0].result.as_ref().unwrap().json().unwrap().0, "\"new\"");
    h.finish().await;
}

fn opens(task: &Task, waitpoint: Value) -> Value {
    let mut args = json!({ "execution_id": task.execution_id, "fence": task.fence });
    args.as_object_mut().unwrap().extend(waitpoint.as_object().unwrap().clone());
    args
}

#[tokio::test(start_paused = true)]
async fn a_waitpoint_that_was_opened_for_an_entry_keeps_its_signal_for_the_park() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    let opened = h.must::<CreatePendingWaitpoint>(opens(&task, json!({ "step": { "name": "decision" } }))).await;
    assert_eq!((opened.waitpoint_key.as_str(), opened.expires_at), ("decision", None));
    let signal = json!({ "execution_id": id, "name": "approve", "payload": "yes",
        "waitpoint_id": opened.waitpoint_id, "token": opened.token });
    h.must::<DeliverSignal>(signal).await;
    // The function is called again after its worker has died, and opens the same one.
    h.pass(1_001).await;
    let again = h.claim().await.unwrap();
    let reopened = h.must::<CreatePendingWaitpoint>(opens(&again, json!({ "step": { "name": "decision" } }))).await;
    assert_eq!(reopened.waitpoint_id, opened.waitpoint_id);
    let wait = json!({ "waitpoints": [{ "step": { "name": "decision" } }] });
    let Outcome::AlreadySatisfied { entries, .. } = h.must::<Park>(park(&again, 1, wait)).await else {
        panic!("satisfied")
    };
    assert_eq!(entries[0].result.as_ref().unwrap().json().unwrap().0, "\"yes\"");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_waitpoint_for_an_entry_that_cannot_be_opened_changes_nothing() {
    let h = Harness::start().await;
    h.submit(json!({})).await;
    let old = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    h.pass(1_001).await;
    let task = h.claim().await.unwrap();
    let before = h.documents();
    let long = "n".repeat(limits::STEP_NAME_MAX_BYTES + 1);
    for waitpoint in [
        json!({ "step": { "name": "" } }),
        json!({ "step": { "name": long } }),
        json!({ "step": { "name": "s", "key": "" } }),
        json!({ "step": { "name": "s" }, "waitpoint_key": "k" }),
        json!({ "step": { "name": "s" }, "expires_in_ms": 1_000 }),
    ] {
        assert_eq!(
            h.refused::<CreatePendingWaitpoint>(opens(&task, waitpoint.clone())).await,
            Code::Invalid,
            "{waitpoint}"
        );
    }
    let late = opens(&old, json!({ "step": { "name": "s" } }));
    assert_eq!(h.refused::<CreatePendingWaitpoint>(late).await, Code::StaleLease);
    assert_eq!(h.documents(), before);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_fails_ends_its_entry_and_not_its_parent() {
    let h = Harness::start().await;
    let parent = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let mut children = Vec::new();
    for key in ["early", "late", "unrelated"] {
        let link = json!({ "execution_id": parent, "fence": task.fence, "key": key });
        let policy = json!({ "retry": { "max_retries": 0 } });
        let spawn = json!({ "kind": "part", "lane": key, "parent": link, "policy": policy });
        children.push(h.must::<CreateExecution>(spawn).await.execution_id);
    }
    let fail = async |lane: &str| {
        let part = h.claim_with(json!({ "lanes": [lane] })).await.unwrap();
        let args = json!({ "execution_id": part.execution_id, "fence": part.fence, "reason": "broke" });
        h.must::<Fail>(args).await;
    };
    let wait = |key: &str, child: usize| json!({ "children": [{ "step": { "name": "part", "key": key }, "execution_id": children[child] }] });
    fail("early").await;
    h.pass(1_000).await;
    let Outcome::AlreadySatisfied { entries, .. } = h.must::<Park>(park(&task, 1, wait("early", 0))).await else {
        panic!("the child has ended")
    };
    assert_eq!((entries[0].state, entries[0].category.as_deref()), (StepState::Failed, Some("failed")));
    assert_eq!(entries[0].message.as_deref(), Some("broke"));
    let parked = h.must::<Park>(park(&task, 2, wait("late", 1))).await;
    assert!(matches!(parked, Outcome::Parked { public_state: PublicState::WaitingChildren, .. }), "{parked:?}");
    fail("late").await;
    let woken = h.claim().await.unwrap();
    let last = woken.journal.as_ref().unwrap().entries.last().unwrap().clone();
    assert_eq!((last.key.as_deref(), last.state), (Some("late"), StepState::Failed));
    assert_eq!(last.message.as_deref(), Some("broke"));
    let sleep = json!({ "sleeps": [{ "step": { "name": "nap" }, "sleep_ms": 60_000 }] });
    h.must::<Park>(park(&woken, 3, sleep)).await;
    fail("unrelated").await;
    h.pass(1_000).await;
    assert_eq!(h.state(&parent).await, PublicState::Delayed, "a child that nobody waits for wakes and ends nobody");
    h.pass(60_000).await;
    assert!(h.claim().await.is_some());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_execution_that_is_cancelled_takes_no_signal_and_no_repeat_wakes_it() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let call = park(&task, 1, json!({ "waitpoints": [{ "step": { "name": "decision" } }] }));
    let Outcome::Parked { waitpoints, .. } = h.must::<Park>(call.clone()).await else { panic!("parked") };
    h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    let signal = json!({ "execution_id": id, "waitpoint_id": waitpoints[0].waitpoint_id,
        "token": waitpoints[0].token, "name": "go" });
    let code = h.refused::<DeliverSignal>(signal).await;
    assert!(matches!(code, Code::WaitpointClosed | Code::TargetNotSignalable), "{code}");
    h.call::<Park>(call).await.unwrap();
    assert_eq!(h.state(&id).await, PublicState::Cancelled);
    assert!(open_waitpoints(&h, &id).await.is_empty());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn signals_sent_by_name_in_advance_are_each_for_a_wait_of_their_own() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    for payload in ["first", "second"] {
        h.must::<DeliverSignal>(json!({ "execution_id": id, "name": "decision", "payload": payload })).await;
    }
    let task = h.claim().await.unwrap();
    for (occurrence, expected) in [(0, "\"first\""), (1, "\"second\"")] {
        let wait = json!({ "waitpoints": [{ "step": { "name": "decision", "occurrence": occurrence } }] });
        let Outcome::AlreadySatisfied { entries, .. } = h.must::<Park>(park(&task, occurrence + 1, wait)).await else {
            panic!("satisfied")
        };
        assert_eq!(entries[0].result.as_ref().unwrap().json().unwrap().0, expected);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_signal_by_name_is_the_same_signal_wherever_the_execution_is_by_then() {
    for identity in [json!({ "signal_id": "01a3185c-5000-7661-80ab-28b89062c3c0" }), json!({ "idempotency_key": "k" })]
    {
        let h = Harness::start().await;
        let id = h.submit(json!({})).await;
        let task = h.claim().await.unwrap();
        let wait = |occurrence: u64| json!({ "waitpoints": [{ "step": { "name": "go", "occurrence": occurrence } }] });
        h.must::<Park>(park(&task, 1, wait(0))).await;
        let mut signal = json!({ "execution_id": id, "name": "go" });
        signal.as_object_mut().unwrap().extend(identity.as_object().unwrap().clone());
        h.must::<DeliverSignal>(signal.clone()).await;
        let repeated = async || {
            let outcome = h.must::<DeliverSignal>(signal.clone()).await;
            assert!(matches!(outcome, SignalOutcome::Duplicate { .. }), "{outcome:?}");
        };
        repeated().await;
        let woken = h.claim().await.unwrap();
        h.must::<Park>(park(&woken, 2, wait(1))).await;
        repeated().await;
        assert_eq!(h.state(&id).await, PublicState::Suspended, "the next wait is for another signal");
        h.must::<CancelExecution>(json!({ "execution_id": id })).await;
        repeated().await;
        h.finish().await;
    }
}
