//! Claims that name the kinds they serve, and the queues of an earlier version, whose names say no kind.

use ff_core::execution::Execution;
use ff_core::op::ReasonCode;
use ff_core::op::{CancelExecution, Claim, Complete, ExplainExecution, GetExecution, RegisterWorker};
use ff_core::{CommandId, Document, EligibilityState, ExecutionId, Indexed, Partition, PublicState, index};
use ff_store::{Batch, EntryChange, Guard, Put, Store};
use serde_json::json;

use crate::support::Harness;

#[tokio::test(start_paused = true)]
async fn a_claim_is_handed_only_the_kinds_it_names() {
    let h = Harness::start().await;
    let other = h.submit(json!({ "kind": "mail", "priority": 9 })).await;
    let wanted = h.submit(json!({ "kind": "image" })).await;
    let kinds = json!({ "kinds": ["image", "video"], "wait_ms": 0 });
    let task = h.claim_with(kinds.clone()).await.expect("the work of its kind");
    assert_eq!((task.execution_id, task.kind.as_str()), (wanted, "image"));
    assert!(h.claim_with(kinds).await.is_none(), "only another kind waits");
    let task = h.claim().await.expect("a claim that names no kinds takes all");
    assert_eq!(task.execution_id, other);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn work_wakes_the_claim_that_serves_its_kind() {
    let h = Harness::start().await;
    let serves = |kind: &str| h.claim_with(json!({ "kinds": [kind], "wait_ms": 5_000 }));
    let submitting = async {
        h.pass(100).await;
        h.submit(json!({ "kind": "image" })).await
    };
    let (mail, image, submitted) = tokio::join!(serves("mail"), serves("image"), submitting);
    assert!(mail.is_none());
    assert_eq!(image.expect("it was woken").execution_id, submitted);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn kinds_are_checked_like_those_of_executions() {
    let h = Harness::start().await;
    let claim = |kinds: Vec<String>| json!({ "instance_id": "w", "lanes": ["default"], "kinds": kinds });
    let many = |count: usize| (0..count).map(|number| format!("kind-{number}")).collect::<Vec<_>>();
    let most = ff_core::limits::KINDS_MAX;
    for wrong in [vec![String::new()], vec!["k".repeat(129)], many(most + 1)] {
        let error = h.call::<Claim>(claim(wrong)).await.expect_err("it is refused");
        assert_eq!(error.details["field"], "kinds", "{error:?}");
    }
    assert!(h.must::<Claim>(claim(many(most))).await.tasks.is_empty());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn explain_says_that_no_worker_serves_the_kind() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "kind": "image" })).await;
    let worker = json!({ "instance_id": "w-1", "worker_id": "w", "nonce": "n", "lanes": ["default"] });
    let with_kinds = |kinds: &[&str]| {
        let mut args = worker.clone();
        args["kinds"] = json!(kinds);
        args
    };
    h.must::<RegisterWorker>(with_kinds(&["mail"])).await;
    let explanation = h.must::<ExplainExecution>(json!({ "execution_id": id })).await;
    assert_eq!(explanation.reasons[0].code, ReasonCode::KindNotServed);
    assert_eq!(explanation.reasons[0].message, "no live worker in lane default serves kind image");
    let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(
        view.state.eligibility_state,
        EligibilityState::EligibleNow,
        "it requires nothing that could be missing"
    );
    for kinds in [&["image", "mail"][..], &[]] {
        h.must::<RegisterWorker>(with_kinds(kinds)).await;
        let explanation = h.must::<ExplainExecution>(json!({ "execution_id": id })).await;
        assert_eq!(explanation.reasons[0].code, ReasonCode::Queued);
    }
    h.finish().await;
}

/// An execution as the store has it.
async fn stored(h: &Harness, id: &ExecutionId) -> (Execution, ff_store::StoredDocument) {
    let store: &dyn Store = h.store.as_ref();
    let found = store.documents(id.partition(), vec![Execution::key_of(id)]).await.unwrap();
    let stored = found.into_iter().next().flatten().expect("it is there");
    (Execution::decode(&stored.body).unwrap(), stored)
}

/// Changes entries of an execution under its version, and its document where one is given.
async fn rewrite(h: &Harness, id: &ExecutionId, document: Option<&Execution>, entries: Vec<EntryChange>) {
    let store: &dyn Store = h.store.as_ref();
    let (key, (_, stored)) = (Execution::key_of(id), stored(h, id).await);
    let mut batch = Batch::new(CommandId(uuid::Uuid::from_u128(id.uuid.as_u128() ^ 1)));
    batch.guards.push(Guard::Version(key.clone(), stored.version));
    if let Some(document) = document {
        batch.puts.push(Put { key, body: document.encode().into(), fence: stored.fence, expires_at: None });
    }
    batch.entries = entries;
    let outcomes = store.commit(id.partition(), [batch].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().is_some());
}

fn old_queue() -> ff_core::IndexName {
    index::queue_of_any_kind("default", "default", "", "")
}

/// Makes an execution look as an earlier version left it.
async fn as_of_yesterday(h: &Harness, id: &ExecutionId) {
    let (mut execution, _) = stored(h, id).await;
    let member = Execution::key_of(id);
    let moved = vec![
        EntryChange::Remove { index: execution.queue(), member: member.clone() },
        EntryChange::Set { index: old_queue(), member, score: execution.queue_score() },
    ];
    execution.queued_by_kind = false;
    assert_eq!(execution.queue(), old_queue());
    rewrite(h, id, Some(&execution), moved).await;
    h.check();
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_version_queued_is_found_in_its_order_and_only_by_its_kind() {
    let h = Harness::start().await;
    let mut ids = Vec::new();
    for number in 0..200 {
        let kind = if number % 2 == 0 { "image" } else { "mail" };
        ids.push(h.submit(json!({ "kind": kind, "priority": 200 - number })).await);
    }
    for id in &ids {
        as_of_yesterday(&h, id).await;
    }
    // A server of this version, which knows only what it finds.
    let upgraded = h.second().await;
    h.engine.close().await;
    let serves = |kind: &str| json!({ "kinds": [kind], "wait_ms": 1_000 });
    for pair in ids.chunks(2) {
        let mail = upgraded.claim_with(serves("mail")).await.expect("work of this kind");
        assert_eq!(mail.execution_id, pair[1]);
        let image = upgraded.claim_with(serves("image")).await.expect("work of this kind");
        assert_eq!(image.execution_id, pair[0]);
    }
    upgraded.check();
    assert!(upgraded.claim_with(json!({ "wait_ms": 100 })).await.is_none());
    upgraded.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_version_queued_can_change_where_it_is() {
    let h = Harness::start().await;
    let cancelled = h.submit(json!({})).await;
    let claimed = h.submit(json!({})).await;
    for id in [&cancelled, &claimed] {
        as_of_yesterday(&h, id).await;
    }
    let upgraded = h.second().await;
    h.engine.close().await;
    upgraded.must::<CancelExecution>(json!({ "execution_id": cancelled })).await;
    upgraded.check();
    let task = upgraded.claim().await.expect("the other");
    assert_eq!(task.execution_id, claimed);
    upgraded.must::<Complete>(json!({ "execution_id": claimed, "fence": task.fence })).await;
    assert_eq!(upgraded.state(&claimed).await, PublicState::Completed);
    upgraded.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_server_of_an_earlier_version_queues_beside_this_one_is_found() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "kind": "image" })).await;
    // It kept the field that it did not know, and worked out the name of the queue without it.
    let (execution, _) = stored(&h, &id).await;
    let member = execution.key();
    let moved = vec![
        EntryChange::Remove { index: execution.queue(), member: member.clone() },
        EntryChange::Set { index: old_queue(), member, score: execution.queue_score() },
    ];
    rewrite(&h, &id, None, moved).await;
    let beside = h.second().await;
    h.engine.close().await;
    assert!(beside.claim_with(json!({ "kinds": ["mail"], "wait_ms": 100 })).await.is_none());
    let task = beside.claim_with(json!({ "kinds": ["image"] })).await.expect("it is found");
    assert_eq!(task.execution_id, id);
    beside.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_entry_of_what_cannot_be_claimed_is_removed_when_it_is_found() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let (execution, _) = stored(&h, &id).await;
    h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    let stray = EntryChange::Set { index: execution.queue(), member: execution.key(), score: execution.queue_score() };
    rewrite(&h, &id, None, vec![stray]).await;
    let other = h.second().await;
    h.engine.close().await;
    let next = other.submit(json!({})).await;
    assert_eq!(other.claim().await.expect("what can be claimed").execution_id, next);
    assert!(other.claim_with(json!({ "wait_ms": 100 })).await.is_none());
    assert_eq!(id.partition(), Partition::flow(0));
    other.finish().await;
}
