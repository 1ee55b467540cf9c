//! Forks: executions that begin with the journal of another one.

use ff_core::op::ReasonCode;
use ff_core::op::{
    CancelExecution, Complete, ContinueAsNew, CreateExecution, ExplainExecution, ForkExecution, GetExecution,
    ListForks, ListSteps, Park, RecordSteps, ReplayExecution,
};
use ff_core::{Code, ExecutionId, Key, PublicState, limits};
use ff_store::{Answer, Batch, LogStart, Query, Store, Trim};
use serde_json::{Value, json};

use crate::support::Harness;

fn entry(name: &str, state: &str) -> Value {
    json!({ "name": name, "state": state })
}

fn entries(task: &ff_core::op::view::Task, first: u64, entries: &[Value]) -> Value {
    json!({ "execution_id": task.execution_id, "fence": task.fence, "first_number": first, "entries": entries })
}

#[tokio::test(start_paused = true)]
async fn a_fork_has_the_ended_entries_and_the_results_of_children() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "input": 1 })).await;
    let parent = h.claim().await.unwrap();
    let link = json!({ "execution_id": id, "fence": parent.fence });
    let child = h.must::<CreateExecution>(json!({ "kind": "test", "parent": link })).await.execution_id;
    let task = h.claim().await.unwrap();
    let answer = "y".repeat(2 * limits::STEP_INLINE_MAX_BYTES);
    let end = json!({ "execution_id": child, "fence": task.fence, "result": answer });
    h.must::<Complete>(end).await;
    let large =
        json!({ "name": "large", "state": "completed", "result": "x".repeat(2 * limits::STEP_INLINE_MAX_BYTES) });
    let failed = json!({ "name": "flaky", "state": "failed", "message": "no" });
    let retrying = json!({ "name": "flaky", "state": "retrying", "next_at": 5 });
    let recorded = [large, failed, retrying, entry("pay", "begun")];
    h.must::<RecordSteps>(entries(&parent, 1, &recorded)).await;
    h.pass(10).await;
    let wait = json!({ "execution_id": id, "fence": parent.fence, "first_number": 5,
        "children": [{ "step": { "name": "ask" }, "execution_id": child }] });
    h.must::<Park>(wait).await;
    let args = json!({ "execution_id": id, "command_id": "0190a0a0-0000-7000-8000-00000000000a" });
    let forked = h.must::<ForkExecution>(args.clone()).await;
    assert_eq!(h.must::<ForkExecution>(args).await, forked, "a repeat is the same fork");
    let task = h.claim().await.unwrap();
    assert_eq!(task.execution_id, forked.execution_id);
    let journal = task.journal.clone().unwrap();
    let shown: Vec<_> = journal.entries.iter().map(|entry| (entry.name.as_str(), entry.state.as_str())).collect();
    assert_eq!(
        shown,
        [("large", "completed"), ("flaky", "failed"), ("flaky", "retrying"), ("ask", "completed")],
        "what had only begun is not there"
    );
    assert!(journal.entries.iter().all(|entry| entry.inherited));
    let asked = journal.entries.last().unwrap();
    assert_eq!(asked.result.as_ref().unwrap().json().unwrap().0, format!("\"{answer}\""));
    h.must::<RecordSteps>(entries(&task, 5, &[entry("own", "completed")])).await;
    let origin = h.must::<ListSteps>(json!({ "execution_id": id })).await;
    assert!(origin.items.iter().all(|entry| entry.name != "own" && !entry.inherited));
    let forks = h.must::<ListForks>(json!({ "execution_id": id })).await;
    assert_eq!(forks.items.iter().map(|fork| fork.execution_id).collect::<Vec<_>>(), [forked.execution_id]);
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.pass(8 * 24 * 3600 * 1000).await;
    assert!(h.must::<ListForks>(json!({ "execution_id": id })).await.items.is_empty());
    h.finish().await;
}

/// A completed execution with the steps s0 to s299.
async fn with_300_entries(h: &Harness) -> ExecutionId {
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    for number in 0..3 {
        let page: Vec<Value> = (0..100).map(|step| entry(&format!("s{}", number * 100 + step), "completed")).collect();
        h.must::<RecordSteps>(entries(&task, 1 + number * 100, &page)).await;
    }
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    id
}

#[tokio::test(start_paused = true)]
async fn a_fork_is_held_while_its_journal_is_copied_and_leaves_with_everything_it_has() {
    let h = Harness::with(ff_engine::Options { services: false, ..Default::default() }).await;
    let id = with_300_entries(&h).await;
    let fork = h.must::<ForkExecution>(json!({ "execution_id": id, "before_step": { "name": "s250" } })).await;
    assert_eq!(fork.public_state, PublicState::Waiting);
    let fork = fork.execution_id;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none(), "nobody may start it yet");
    let explained = h.must::<ExplainExecution>(json!({ "execution_id": fork })).await;
    assert_eq!(explained.reasons[0].code, ReasonCode::CopyingJournal);
    assert_eq!(explained.reasons[0].details["entries"], 250);
    // Another engine with its services finishes what this one began.
    let other = h.second().await;
    other.pass(130_000).await;
    let claimed = other.claim().await.unwrap();
    assert_eq!((claimed.execution_id, claimed.journal.unwrap().next_number), (fork, 251));
    other.must::<CancelExecution>(json!({ "execution_id": fork })).await;
    other.pass(8 * 24 * 3600 * 1000).await;
    assert_eq!(other.refused::<GetExecution>(json!({ "execution_id": fork })).await, Code::ExecutionNotFound);
    other.finish().await;
}

/// The removal of an execution takes its journal away from the beginning on.
#[tokio::test(start_paused = true)]
async fn a_fork_whose_origin_loses_entries_while_it_is_copied_fails_and_never_starts_with_a_part() {
    let h = Harness::with(ff_engine::Options { services: false, ..Default::default() }).await;
    let id = with_300_entries(&h).await;
    let fork = h.must::<ForkExecution>(json!({ "execution_id": id, "before_step": { "name": "s250" } })).await;
    let mut removal = Batch::new(ff_core::CommandId::default());
    let log = Key::new(b'j', &[id.uuid.as_bytes(), &0_u32.to_be_bytes()]);
    removal.trims.push(Trim { log, before: 120 });
    let store: &dyn Store = h.store.as_ref();
    store.commit(id.partition(), [removal].into()).await.unwrap();
    let other = h.second().await;
    other.pass(130_000).await;
    assert_eq!(other.state(&fork.execution_id).await, PublicState::Failed);
    other.finish().await;
}

/// Its origin runs on and begins anew, so that the generation that is copied, and the one that it builds on, are no longer
/// needed but for the fork.
#[tokio::test(start_paused = true)]
async fn a_fork_has_all_entries_although_its_origin_begins_anew_while_it_is_copied() {
    let h = Harness::with(ff_engine::Options { services: false, ..Default::default() }).await;
    let id = with_300_entries(&h).await;
    h.must::<ReplayExecution>(json!({ "execution_id": id, "from_step": { "name": "s200" } })).await;
    let task = h.claim().await.unwrap();
    let own: Vec<Value> = (0..50).map(|step| entry(&format!("t{step}"), "completed")).collect();
    h.must::<RecordSteps>(entries(&task, 201, &own)).await;
    let fork =
        h.must::<ForkExecution>(json!({ "execution_id": id, "before_step": { "name": "t40" } })).await.execution_id;
    let mut task = task;
    for _ in 0..3 {
        h.must::<ContinueAsNew>(json!({ "execution_id": id, "fence": task.fence })).await;
        task = h.claim().await.unwrap();
    }
    let other = h.second().await;
    other.pass(130_000).await;
    let forked = other.must::<ListSteps>(json!({ "execution_id": fork, "limit": 1000 })).await;
    let names: Vec<String> = forked.items.into_iter().map(|step| step.name).collect();
    let expected = (0..200).map(|step| format!("s{step}")).chain((0..40).map(|step| format!("t{step}")));
    assert_eq!(names, expected.collect::<Vec<_>>());
    assert_eq!(other.state(&fork).await, PublicState::Waiting);
    other.pass(130_000).await;
    for generation in 0..2 {
        let log = Key::new(b'j', &[id.uuid.as_bytes(), &u32::to_be_bytes(generation)]);
        let query = Query::Log { log, start: LogStart::After(0), limit: 1 };
        let answers = (h.store.as_ref() as &dyn Store).read(id.partition(), vec![query]).await.unwrap();
        let left = answers.answers.into_iter().next().and_then(Answer::into_log).unwrap().records.len();
        assert_eq!(left, 0, "generation {generation} is removed once it is copied");
    }
    other.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_fork_is_forked_or_run_from_a_step_only_when_its_journal_is_complete() {
    let h = Harness::with(ff_engine::Options { services: false, ..Default::default() }).await;
    let id = with_300_entries(&h).await;
    let fork = h.must::<ForkExecution>(json!({ "execution_id": id })).await.execution_id;
    let again = json!({ "execution_id": fork });
    assert_eq!(h.refused::<ForkExecution>(again.clone()).await, Code::ExecutionNotEligible);
    h.must::<CancelExecution>(again.clone()).await;
    let from_step = json!({ "execution_id": fork, "from_step": { "name": "s250" } });
    assert_eq!(h.refused::<ReplayExecution>(from_step.clone()).await, Code::ExecutionNotEligible);
    h.must::<ReplayExecution>(again.clone()).await;
    let other = h.second().await;
    other.pass(130_000).await;
    let second = other.must::<ForkExecution>(again.clone()).await.execution_id;
    other.pass(1_000).await;
    assert_eq!(other.must::<ListSteps>(json!({ "execution_id": second, "limit": 1000 })).await.items.len(), 300);
    // It never ran, and yet it has a step to run again from.
    other.must::<CancelExecution>(again).await;
    other.must::<ReplayExecution>(from_step).await;
    let steps = other.must::<ListSteps>(json!({ "execution_id": fork, "limit": 1000 })).await;
    assert_eq!(steps.items.last().unwrap().name, "s249");
    other.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_forked_is_refused_and_a_fork_without_entries_begins_at_once() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let refused = h.refused::<ForkExecution>(json!({ "execution_id": id, "before_step": { "name": "s" } })).await;
    assert_eq!(refused, Code::Invalid);
    let fork = h.must::<ForkExecution>(json!({ "execution_id": id, "input": 7 })).await.execution_id;
    for _ in 0..2 {
        let task = h.claim().await.unwrap();
        let end = json!({ "execution_id": task.execution_id, "fence": task.fence });
        if task.execution_id == fork {
            assert_eq!(task.input.as_ref().unwrap().json().unwrap().0, "7");
        }
        h.must::<Complete>(end).await;
    }
    h.must::<ReplayExecution>(json!({ "execution_id": fork })).await;
    assert_eq!(h.claim().await.unwrap().execution_id, fork);
    h.finish().await;
}
