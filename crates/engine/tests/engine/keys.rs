//! Keys that stand for one execution at a time: singletons and debounced bursts.

use crate::support::{Harness, START};
use ff_core::op::{
    CancelExecution, Complete, CreateExecution, CreateExecutionOutcome, CreateExecutions, GetExecution,
    RemoveExecution, ReplayExecution,
};
use ff_core::{Code, CommandId, ExecutionId, Key, Mint, Partition, PartitionConfig, PublicState, index};
use ff_engine::Options;
use ff_store::memory::RawDocument;
use ff_store::{Batch, Guard, Put, Store};
use serde_json::{Value, json};

async fn create(h: &Harness, more: Value) -> CreateExecutionOutcome {
    let mut args = json!({ "kind": "test" });
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    h.must::<CreateExecution>(args).await
}

async fn single(h: &Harness) -> CreateExecutionOutcome {
    create(h, json!({ "singleton": { "key": "report" } })).await
}

async fn debounced(h: &Harness, input: i64) -> CreateExecutionOutcome {
    create(h, json!({ "input": input, "debounce": { "key": "index", "wait_ms": 1_000, "max_wait_ms": 2_500 } })).await
}

fn key_holders(h: &Harness) -> Vec<(Partition, Key, RawDocument)> {
    h.store.inspect(|contents| {
        let all =
            contents.partitions().flat_map(|(partition, c)| c.documents().map(move |(key, raw)| (partition, key, raw)));
        let found = all.filter(|(_, key, _)| key.kind() == index::kind::KEY_HOLDER);
        found.map(|(partition, key, raw)| (partition, key.clone(), raw.clone())).collect()
    })
}

fn holders(h: &Harness) -> usize {
    key_holders(h).len()
}

/// A key of a newer version with its value, as msgpack.
const NEWER: &[u8] = b"\xa4~new\x01";

#[tokio::test(start_paused = true)]
async fn a_key_that_passes_to_another_keeps_what_a_newer_version_wrote_beside_it() {
    let h = Harness::start().await;
    debounced(&h, 1).await;
    let (partition, key, raw) = key_holders(&h).remove(0);
    let mut body = [&raw.body[..], NEWER].concat();
    assert!((0x81..0x8f).contains(&body[1]), "a small map behind the schema's byte");
    body[1] += 1;
    let mut batch = Batch::new(CommandId::mint(&Mint { now_ms: 1, random: [7; 10] }));
    batch.guards.push(Guard::Version(key.clone(), raw.version));
    batch.puts.push(Put { key, body: body.into(), fence: raw.fence, expires_at: None });
    let outcomes = h.store.commit(partition, [batch].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().is_some());
    let second = debounced(&h, 2).await;
    assert!(second.superseded.is_some());
    let (_, _, raw) = key_holders(&h).remove(0);
    assert!(raw.body.ends_with(NEWER), "{raw:?}");
    assert_eq!(h.claim().await.unwrap().execution_id, second.execution_id);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_singleton_is_answered_while_it_waits_or_runs_and_made_anew_after_its_end() {
    let h = Harness::start().await;
    let first = single(&h).await;
    assert!(!first.duplicate);
    assert_eq!((single(&h).await.execution_id, single(&h).await.duplicate), (first.execution_id, true));
    let task = h.claim().await.unwrap();
    let again = single(&h).await;
    assert_eq!((again.execution_id, again.public_state), (first.execution_id, PublicState::Active));
    assert!(!create(&h, json!({ "singleton": { "key": "other" } })).await.duplicate);
    h.must::<Complete>(json!({ "execution_id": first.execution_id, "fence": task.fence })).await;
    assert_eq!(holders(&h), 1, "the document of an ended one leaves with it");
    let next = single(&h).await;
    assert!(!next.duplicate && next.execution_id != first.execution_id);
    h.must::<CancelExecution>(json!({ "execution_id": next.execution_id })).await;
    assert_eq!(holders(&h), 1);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn racing_submissions_of_a_singleton_make_one() {
    let h = Harness::start().await;
    let other = h.second().await;
    let racing = (0..20).map(|number| single(if number % 2 == 0 { &h } else { &other }));
    let outcomes = futures_util::future::join_all(racing).await;
    assert_eq!(outcomes.iter().filter(|outcome| !outcome.duplicate).count(), 1);
    assert!(outcomes.iter().all(|outcome| outcome.execution_id == outcomes[0].execution_id));
    let items = vec![json!({ "kind": "test", "singleton": { "key": "report" } }); 5];
    let batch = serde_json::to_value(h.must::<CreateExecutions>(json!({ "executions": items })).await).unwrap();
    for result in batch["results"].as_array().unwrap() {
        assert_eq!((&result["duplicate"], &result["execution_id"]), (&json!(true), &json!(outcomes[0].execution_id)));
    }
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_replayed_singleton_stands_for_its_key_unless_another_does() {
    let h = Harness::start().await;
    let first = single(&h).await.execution_id;
    h.must::<CancelExecution>(json!({ "execution_id": first })).await;
    h.must::<ReplayExecution>(json!({ "execution_id": first })).await;
    assert_eq!(single(&h).await.execution_id, first);
    h.must::<CancelExecution>(json!({ "execution_id": first })).await;
    let second = single(&h).await.execution_id;
    h.must::<ReplayExecution>(json!({ "execution_id": first })).await;
    assert_eq!(single(&h).await.execution_id, second);
    h.must::<CancelExecution>(json!({ "execution_id": first })).await;
    assert_eq!(single(&h).await.execution_id, second, "the end of one without the key frees it for nobody");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_idempotency_key_names_the_singleton_that_it_made() {
    let h = Harness::start().await;
    let keyed = json!({ "singleton": { "key": "report" }, "idempotency_key": "monday" });
    let first = create(&h, keyed.clone()).await;
    h.must::<CancelExecution>(json!({ "execution_id": first.execution_id })).await;
    let again = create(&h, keyed).await;
    assert_eq!((again.execution_id, again.duplicate), (first.execution_id, true));
    assert!(!single(&h).await.duplicate);
    h.finish().await;
}

async fn with_four_partitions() -> Harness {
    let partitions = PartitionConfig { flow: 4, budget: 1, quota: 1 };
    Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await
}

/// A singleton under an idempotency key. Some of these keys live where the singleton does, and most do not.
fn report_under_key(number: u32) -> Value {
    json!({ "singleton": { "key": "report" }, "input": number, "idempotency_key": format!("k-{number}") })
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_answered_with_a_running_singleton_goes_on_to_name_it() {
    let h = with_four_partitions().await;
    for number in 0..8 {
        let keyed = report_under_key(number);
        let running = single(&h).await.execution_id;
        let first = create(&h, keyed.clone()).await;
        assert_eq!((first.execution_id, first.duplicate), (running, true));
        h.must::<CancelExecution>(json!({ "execution_id": running })).await;
        for _ in 0..2 {
            let again = create(&h, keyed.clone()).await;
            assert_eq!((again.execution_id, again.duplicate), (running, true), "{number}");
        }
        let other = json!({ "kind": "test", "singleton": { "key": "report" }, "input": "other", "idempotency_key": format!("k-{number}") });
        assert_eq!(h.refused::<CreateExecution>(other).await, Code::IdempotencyConflict);
    }
    h.pass(24 * 3_600_000).await;
    assert!(!create(&h, report_under_key(0)).await.duplicate, "a key is remembered for a day");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_names_a_singleton_ends_with_it() {
    let h = with_four_partitions().await;
    for number in 0..8 {
        let keyed = report_under_key(number);
        let running = single(&h).await.execution_id;
        create(&h, keyed.clone()).await;
        h.must::<CancelExecution>(json!({ "execution_id": running })).await;
        h.must::<RemoveExecution>(json!({ "execution_id": running })).await;
        let anew = create(&h, keyed.clone()).await;
        assert!(!anew.duplicate && anew.execution_id != running);
        h.must::<CancelExecution>(json!({ "execution_id": anew.execution_id })).await;
        assert_eq!(create(&h, keyed).await.execution_id, anew.execution_id, "{number}");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn of_a_burst_the_last_one_runs_and_says_whose_place_it_took() {
    let h = Harness::start().await;
    let first = debounced(&h, 1).await;
    assert_eq!((first.public_state, first.superseded), (PublicState::Delayed, None));
    h.pass(900).await;
    let second = debounced(&h, 2).await;
    assert_eq!(second.superseded, Some(first.execution_id));
    let view = h.must::<GetExecution>(json!({ "execution_id": first.execution_id })).await;
    let cancellation = view.cancellation.unwrap();
    assert_eq!(view.public_state, PublicState::Cancelled);
    assert_eq!((cancellation.source.as_str(), cancellation.superseded_by), ("superseded", Some(second.execution_id)));
    let task = h.claim().await.unwrap();
    assert_eq!(task.execution_id, second.execution_id);
    let now = h.engine.now() - START;
    assert!((1_900..2_100).contains(&now), "one second after the last, not at {now}");
    // The execution that runs is left alone, and a new burst begins beside it.
    let third = debounced(&h, 3).await;
    assert_eq!((third.superseded, third.public_state), (None, PublicState::Delayed));
    h.must::<Complete>(json!({ "execution_id": second.execution_id, "fence": task.fence })).await;
    assert_eq!(debounced(&h, 4).await.superseded, Some(third.execution_id), "the end of the second freed nothing");
    let last = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": last.execution_id, "fence": last.fence })).await;
    assert_eq!(holders(&h), 0, "the document of an idle key leaves");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_starts_no_later_than_its_bound() {
    let h = Harness::start().await;
    let mut created: Vec<ExecutionId> = Vec::new();
    for number in 0..4 {
        created.push(debounced(&h, number).await.execution_id);
        h.pass(800).await;
    }
    // At 2,400 the fourth came; it was to wait until 3,400, but the burst began at 0.
    let task = h.claim().await.unwrap();
    assert_eq!(task.execution_id, created[3]);
    let waited = h.must::<GetExecution>(json!({ "execution_id": created[3] })).await.started_at.unwrap() - START;
    assert!((2_500..3_300).contains(&waited), "started at {waited}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_waited_as_long_as_it_may_keeps_its_place() {
    let h = Harness::start().await;
    let first = debounced(&h, 1).await;
    h.pass(2_600).await;
    let second = debounced(&h, 2).await;
    assert_eq!(second.superseded, None, "no worker came, and the next burst waits for its own turn");
    assert_eq!(h.state(&first.execution_id).await, PublicState::Waiting);
    assert_eq!(h.claim().await.unwrap().execution_id, first.execution_id);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_and_a_place_of_its_own_exclude_each_other() {
    let h = Harness::start().await;
    for wrong in [
        json!({ "singleton": { "key": "a" }, "debounce": { "key": "a", "wait_ms": 1 } }),
        json!({ "debounce": { "key": "a", "wait_ms": 1 }, "delay_until": START + 5_000 }),
        json!({ "debounce": { "key": "a", "wait_ms": 0 } }),
        json!({ "singleton": { "key": "" } }),
    ] {
        let mut args = json!({ "kind": "test" });
        args.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        assert_eq!(h.refused::<CreateExecution>(args).await, Code::Invalid, "{wrong}");
    }
    h.finish().await;
}
