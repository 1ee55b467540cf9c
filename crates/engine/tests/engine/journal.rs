//! What a function has already done, kept for whoever calls it again.

use crate::support::Harness;
use ff_core::journal::{StepKind, StepState, StepView};
use ff_core::op::view::Task;
use ff_core::op::{Complete, Delay, Fail, GetState, ListSteps, RecordSteps, ReplayExecution};
use ff_core::{Code, PublicState, limits};
use serde_json::{Value, json};

fn done(name: &str, result: Value) -> Value {
    json!({ "name": name, "state": "completed", "result": result })
}

fn record(task: &Task, first: u64, entries: &[Value]) -> Value {
    json!({ "execution_id": task.execution_id, "fence": task.fence, "first_number": first, "entries": entries })
}

fn names(entries: &[StepView]) -> Vec<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_claim_after_a_lost_lease_brings_what_was_recorded() {
    let h = Harness::start().await;
    h.submit(json!({})).await;
    let first = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    assert_eq!((first.generation, first.journal.clone()), (0, None), "nobody can have recorded anything");
    let recorded = h.must::<RecordSteps>(record(&first, 1, &[done("fetch", json!({ "page": 7 }))])).await;
    assert_eq!((recorded.last_number, recorded.next_number), (1, 2));
    h.must::<RecordSteps>(record(&first, 2, &[done("write", json!("x"))])).await;
    let second = h.claim().await.unwrap();
    let journal = second.journal.unwrap();
    assert_eq!((journal.next_number, journal.complete), (3, true));
    assert_eq!(names(&journal.entries), ["fetch", "write"]);
    let fetched = &journal.entries[0];
    assert_eq!((fetched.kind, fetched.state, fetched.occurrence), (StepKind::Step, StepState::Completed, Some(0)));
    assert_eq!((fetched.lease_id, fetched.attempt), (first.fence.lease_id, first.fence.attempt));
    assert_eq!(fetched.result.as_ref().unwrap().json().unwrap().0, r#"{"page":7}"#);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_record_is_the_same_and_anything_else_is_a_conflict_that_changes_nothing() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let call = record(&task, 1, &[done("a", json!(1)), done("b", json!(2))]);
    let first = h.must::<RecordSteps>(call.clone()).await;
    assert_eq!(h.must::<RecordSteps>(call).await, first);
    for wrong in [record(&task, 2, &[done("b", json!(3))]), record(&task, 4, &[done("d", json!(4))])] {
        let error = h.call::<RecordSteps>(wrong).await.unwrap_err();
        assert_eq!((error.code, &error.details["next"]), (Code::JournalConflict, &json!(3)));
    }
    let overlapping = h.must::<RecordSteps>(record(&task, 2, &[done("b", json!(2)), done("c", json!(3))])).await;
    assert_eq!(overlapping.next_number, 4);
    let listed = h.must::<ListSteps>(json!({ "execution_id": id })).await;
    assert_eq!((names(&listed.items), listed.next_after), (vec!["a", "b", "c"], None));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_lost_its_lease_records_nothing() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let old = h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    h.pass(1_001).await;
    assert_eq!(h.refused::<RecordSteps>(record(&old, 1, &[done("a", json!(1))])).await, Code::LeaseExpired);
    let new = h.claim().await.unwrap();
    assert_eq!(h.refused::<RecordSteps>(record(&old, 1, &[done("a", json!(1))])).await, Code::StaleLease);
    assert_eq!(new.journal.unwrap().entries, []);
    assert!(h.must::<ListSteps>(json!({ "execution_id": id })).await.items.is_empty());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_step_and_the_end_are_one_commit() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let mut gap = record(&task, 2, &[done("last", json!(1))]);
    gap["result"] = json!("no");
    assert_eq!(h.refused::<Complete>(gap).await, Code::JournalConflict);
    assert_eq!(h.must::<GetState>(json!({ "execution_id": id })).await.public_state, PublicState::Active);
    let mut end = record(&task, 1, &[done("last", json!(1))]);
    end["result"] = json!("yes");
    h.must::<Complete>(end.clone()).await;
    h.must::<Complete>(end).await;
    let listed = h.must::<ListSteps>(json!({ "execution_id": id })).await;
    assert_eq!(names(&listed.items), ["last"]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_runs_the_entry_that_ended_the_attempt_and_no_other() {
    let h = Harness::start().await;
    let policy = json!({ "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 50 } } } });
    h.submit(json!({ "policy": policy })).await;
    let first = h.claim().await.unwrap();
    let mut failure = record(
        &first,
        1,
        &[done("fetch", json!(1)), json!({ "name": "write", "state": "failed", "message": "disk full" })],
    );
    failure["reason"] = json!("disk full");
    failure["cause"] = json!({ "name": "write" });
    h.must::<Fail>(failure.clone()).await;
    h.must::<Fail>(failure).await;
    let second = h.claim().await.unwrap();
    let journal = second.journal.clone().unwrap();
    let states: Vec<_> = journal.entries.iter().map(|entry| (entry.name.as_str(), entry.state)).collect();
    use StepState::{Completed, Failed, Retrying};
    assert_eq!(states, [("fetch", Completed), ("write", Failed), ("write", Retrying)]);
    // No retry is left: the failure stands.
    let mut failure = record(&second, 4, &[json!({ "name": "write", "state": "failed", "message": "again" })]);
    failure["reason"] = json!("again");
    failure["cause"] = json!({ "name": "write" });
    h.must::<Fail>(failure).await;
    let listed = h.must::<ListSteps>(json!({ "execution_id": second.execution_id })).await;
    assert_eq!(listed.items.last().unwrap().state, Failed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_begins_a_journal_of_its_own_and_the_old_one_can_still_be_read() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    h.must::<Complete>(record(&task, 1, &[done("old", json!(1))])).await;
    h.must::<ReplayExecution>(json!({ "execution_id": id })).await;
    let replayed = h.claim().await.unwrap();
    assert_eq!((replayed.generation, replayed.journal.clone()), (1, None));
    h.must::<RecordSteps>(record(&replayed, 1, &[done("new", json!(1))])).await;
    let present = h.must::<ListSteps>(json!({ "execution_id": id })).await;
    assert_eq!((present.generation, names(&present.items)), (1, vec!["new"]));
    let past = h.must::<ListSteps>(json!({ "execution_id": id, "generation": 0 })).await;
    assert_eq!(names(&past.items), ["old"]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn large_results_come_back_whole_and_leave_with_the_execution() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "policy": { "retention_ms": 1_000 } })).await;
    let task = h.claim().await.unwrap();
    let large = "x".repeat(300 * 1024);
    for number in 1..=3 {
        h.must::<RecordSteps>(record(&task, number, &[done(&format!("s{number}"), json!(large))])).await;
    }
    h.must::<Delay>(json!({ "execution_id": id, "fence": task.fence, "delay_ms": 10 })).await;
    let task = h.claim().await.unwrap();
    let journal = task.journal.clone().unwrap();
    assert_eq!((journal.entries.len(), journal.complete, journal.next_number), (1, false, 4), "the rest is paged");
    let rest = h.must::<ListSteps>(json!({ "execution_id": id, "after": 1 })).await;
    let sizes: Vec<_> = rest.items.iter().map(|entry| entry.result.as_ref().unwrap().bytes.len()).collect();
    assert_eq!(sizes, [large.len() + 2, large.len() + 2]);
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    h.pass(2_000).await;
    assert_eq!(h.refused::<ListSteps>(json!({ "execution_id": id })).await, Code::ExecutionNotFound);
    h.store.inspect(|contents| {
        for (partition, contents) in contents.partitions() {
            assert_eq!(contents.blobs().count(), 0, "{partition} keeps bytes of an execution that is gone");
        }
    });
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_journal_has_an_end_and_bad_entries_change_nothing() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let before = h.documents();
    let long = "n".repeat(limits::STEP_NAME_MAX_BYTES + 1);
    for (entries, code) in [
        (vec![], Code::Invalid),
        (vec![done("", json!(1))], Code::Invalid),
        (vec![done(&long, json!(1))], Code::Invalid),
        (vec![done("a", json!(1)); limits::STEPS_PER_RECORD_MAX + 1], Code::Invalid),
        (vec![done("a", json!("x".repeat(limits::STEP_RESULT_MAX_BYTES)))], Code::PayloadTooLarge),
    ] {
        assert_eq!(h.refused::<RecordSteps>(record(&task, 1, &entries)).await, code);
    }
    let past_the_end = record(&task, limits::JOURNAL_ENTRIES_MAX + 1, &[done("a", json!(1))]);
    let code = h.refused::<RecordSteps>(past_the_end).await;
    assert!(matches!(code, Code::JournalFull | Code::JournalConflict), "{code}");
    assert_eq!(h.documents(), before);
    assert!(h.must::<ListSteps>(json!({ "execution_id": id })).await.items.is_empty());
    h.finish().await;
}
