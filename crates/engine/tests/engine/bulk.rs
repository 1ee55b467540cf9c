//! Bulk jobs: each match once, whatever crashes, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use ff_core::bulk::BulkState;
use ff_core::index::kind;
use ff_core::op::{
    BulkView, CancelBulk, CancelExecution, ChangePriority, Claim, Complete, CreateBulk, CreateExecution, CreateFlow,
    Fail, GetBulk, GetExecution, HoldExecution, ListBulk, ListExecutions, ReplayExecution,
};
use ff_core::{Code, ExecutionId, Partition, PartitionConfig, PublicState, Role, index};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options};
use ff_store::memory::{Call, MemoryStore, Plan};
use ff_store::{Answers, Batch, Hints, Outcome, Query, Store, StoreInfo};
use serde_json::{Value, json};

use crate::support::Harness;

fn options(chunk_max: usize) -> Options {
    let partitions = Some(PartitionConfig { flow: 4, budget: 1, quota: 1 });
    Options { partitions, chunk_max, ..Options::default() }
}

/// A deployment in which even a small job takes many turns.
async fn deployment() -> Harness {
    Harness::with(options(3)).await
}

async fn begin(h: &Harness, filter: Value, action: &str, more: Value) -> BulkView {
    let mut args = json!({ "filter": filter, "action": action });
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    h.must::<CreateBulk>(args).await
}

async fn get(h: &Harness, job: &BulkView) -> BulkView {
    h.must::<GetBulk>(json!({ "bulk_id": job.bulk_id })).await
}

/// Waits until a job has ended.
async fn ended(h: &Harness, job: &BulkView) -> BulkView {
    for _ in 0..10_000 {
        let now = get(h, job).await;
        if now.ended_at.is_some() {
            return now;
        }
        h.pass(10).await;
    }
    panic!("{:?} does not end", get(h, job).await);
}

/// Begins a job and waits until it has ended.
async fn run(h: &Harness, filter: Value, action: &str, more: Value) -> BulkView {
    let job = begin(h, filter, action, more).await;
    assert_eq!((job.state, job.progress.partitions), (BulkState::Running, 4));
    ended(h, &job).await
}

fn counts(job: &BulkView) -> (u64, u64, u64, u64, u64) {
    let progress = &job.progress;
    (progress.matched, progress.done, progress.unchanged, progress.refused, progress.changed_since)
}

async fn submit(h: &Harness, count: usize, more: Value) -> Vec<ExecutionId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(h.submit(more.clone()).await);
    }
    h.pass(1).await;
    ids
}

/// Executions that have failed.
async fn failed(h: &Harness, count: usize) -> Vec<ExecutionId> {
    let once = json!({ "policy": { "retry": { "max_retries": 0 } }, "lane": "breaking" });
    let ids = submit(h, count, once).await;
    for _ in 0..count {
        let task = h.claim_with(json!({ "lanes": ["breaking"] })).await.expect("it waits");
        h.must::<Fail>(json!({ "execution_id": task.execution_id, "fence": task.fence, "reason": "broke" })).await;
    }
    h.pass(1).await;
    ids
}

async fn replays(h: &Harness, ids: &[ExecutionId]) -> Vec<(PublicState, u32)> {
    let mut found = Vec::new();
    for id in ids {
        let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
        found.push((view.public_state, view.replay_count));
    }
    found
}

#[tokio::test(start_paused = true)]
async fn every_match_is_changed_once_and_nothing_else() {
    let h = deployment().await;
    let wanted = submit(&h, 20, json!({ "tags": { "team": "a" } })).await;
    let others = submit(&h, 10, json!({ "tags": { "team": "b" } })).await;
    let ended = submit(&h, 1, json!({ "tags": { "team": "a" } })).await;
    h.must::<CancelExecution>(json!({ "execution_id": ended[0], "reason": "before" })).await;
    h.pass(1).await;
    let job = run(&h, json!({ "tag": "team=a" }), "cancel", json!({ "reason": "no longer needed" })).await;
    assert_eq!((job.state, counts(&job)), (BulkState::Completed, (20, 20, 0, 0, 0)));
    assert_eq!((job.progress.partitions_done, job.reached_max), (4, false));
    for id in wanted {
        assert_eq!(h.state(&id).await, PublicState::Cancelled);
    }
    for id in others {
        assert_eq!(h.state(&id).await, PublicState::Waiting);
    }
    let before = h.must::<GetExecution>(json!({ "execution_id": ended[0] })).await;
    assert_eq!(before.public_state, PublicState::Cancelled);
    let listed = h.must::<ListBulk>(json!({})).await.items;
    assert_eq!(listed, [job]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn each_action_does_what_the_operation_for_one_does() {
    let h = deployment().await;
    let ids = submit(&h, 5, json!({})).await;
    h.must::<HoldExecution>(json!({ "execution_id": ids[0] })).await;
    h.must::<ChangePriority>(json!({ "execution_id": ids[1], "priority": 7 })).await;
    h.pass(1).await;
    let all = json!({ "kind": ["test"] });
    assert_eq!(counts(&run(&h, all.clone(), "hold", json!({ "reason": "a look" })).await), (5, 4, 1, 0, 0));
    let held = h.must::<GetExecution>(json!({ "execution_id": ids[2] })).await;
    assert_eq!(held.blocking_detail.as_deref(), Some("a look"));
    h.pass(1).await;
    assert_eq!(counts(&run(&h, all.clone(), "release", json!({})).await), (5, 5, 0, 0, 0));
    h.pass(1).await;
    assert_eq!(counts(&run(&h, all.clone(), "set_priority", json!({ "priority": 7 })).await), (5, 4, 1, 0, 0));
    h.pass(1).await;
    let tags = json!({ "tags": { "stage": "two" } });
    assert_eq!(counts(&run(&h, all.clone(), "set_tags", tags).await), (5, 5, 0, 0, 0));
    let changed = h.must::<ListExecutions>(json!({ "tag": "stage=two" })).await.items;
    assert_eq!((changed.len(), changed[0].priority), (5, 7));
    h.pass(1).await;
    // Nothing has ended yet, and only what has ended is replayed or removed.
    assert_eq!(counts(&run(&h, all.clone(), "replay", json!({})).await), (0, 0, 0, 0, 0));
    assert_eq!(counts(&run(&h, all.clone(), "cancel", json!({})).await), (5, 5, 0, 0, 0));
    h.pass(1).await;
    assert_eq!(counts(&run(&h, all.clone(), "replay", json!({})).await), (5, 5, 0, 0, 0));
    assert_eq!(replays(&h, &ids).await, [(PublicState::Waiting, 1); 5]);
    h.pass(1).await;
    run(&h, all.clone(), "cancel", json!({})).await;
    h.pass(1).await;
    assert_eq!(counts(&run(&h, all, "remove", json!({})).await), (5, 5, 0, 0, 0));
    h.pass(1_000).await;
    for id in ids {
        assert_eq!(h.refused::<GetExecution>(json!({ "execution_id": id })).await, Code::ExecutionNotFound);
    }
    h.finish().await;
}

/// A process on a store: once it has made so many commits, nothing of it reaches the store any more. Its last commit may
/// have been applied.
struct Mortal {
    store: Arc<MemoryStore>,
    commits_left: AtomicI64,
    last_is_applied: bool,
}

#[async_trait]
impl Store for Mortal {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }

    async fn read(&self, partition: Partition, queries: Vec<Query>) -> ff_store::Result<Answers> {
        if self.commits_left.load(Ordering::SeqCst) < 0 {
            std::future::pending::<()>().await;
        }
        self.store.read(partition, queries).await
    }

    async fn commit(&self, partition: Partition, batches: Arc<[Batch]>) -> ff_store::Result<Vec<Outcome>> {
        // Heartbeats come and go, and are not what the test is about.
        let is_heartbeat = |batch: &Batch| batch.puts.is_empty() && batch.deletes.is_empty();
        let left = match batches.iter().all(is_heartbeat) {
            true => self.commits_left.load(Ordering::SeqCst),
            false => self.commits_left.fetch_sub(1, Ordering::SeqCst) - 1,
        };
        if left < 0 {
            if left == -1 && self.last_is_applied {
                self.store.commit(partition, batches).await?;
            }
            return std::future::pending().await;
        }
        self.store.commit(partition, batches).await
    }

    fn watch(&self) -> Hints {
        self.store.watch()
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_server_is_killed_between_any_two_commits_changes_each_match_once() {
    for (number, last_is_applied) in (0..14).flat_map(|number| [(number, false), (number, true)]) {
        let h = Harness::with(options(3)).await;
        let ids = failed(&h, 11).await;
        h.engine.close().await;
        let store = Mortal { store: h.store.clone(), commits_left: i64::MAX.into(), last_is_applied };
        let store = Arc::new(store);
        let engine = Engine::start(store.clone(), Arc::new(TokioEnv::current()), options(3)).await.unwrap();
        let dies = Harness { engine, store: h.store.clone(), caller: Caller::system() };
        // The audit record comes before the job.
        store.commits_left.store(number + 3, Ordering::SeqCst);
        let command_id = "0190a0a0-0000-7000-8000-000000000000";
        let args = json!({ "filter": { "state": "failed" }, "action": "replay", "command_id": command_id });
        let asked = tokio::time::timeout(
            std::time::Duration::from_secs(1),
            dies.engine.call::<CreateBulk>(&dies.caller, serde_json::from_value(args.clone()).unwrap()),
        );
        drop(asked.await);
        h.pass(2_000).await;
        let lives = h.second().await;
        let job = lives.must::<CreateBulk>(args).await;
        let job = ended(&lives, &job).await;
        assert_eq!(counts(&job), (11, 11, 0, 0, 0), "killed after {number} commits, the last {last_is_applied}");
        assert_eq!(replays(&lives, &ids).await, [(PublicState::Waiting, 1); 11], "killed after {number} commits");
        lives.finish().await;
    }
}

/// One server reads that the partition has no part of the job yet, and is slow to read the matches. Another one takes the
/// turn meanwhile, and is slow to report it.
#[tokio::test(start_paused = true)]
async fn a_turn_that_another_server_took_meanwhile_is_counted() {
    let partitions = Some(PartitionConfig { flow: 1, budget: 1, quota: 1 });
    let (h, trouble) = Harness::with_trouble(Options { partitions, ..Options::default() }).await;
    let ids = failed(&h, 5).await;
    let other = h.second().await;
    h.pass(10_000).await;
    let matches = index::state("default", PublicState::Failed);
    let (mut looked, mut written, mut reported) = (false, false, false);
    trouble.begin(move |call| match call {
        Call::Read { queries, .. }
            if !looked && queries.iter().any(|query| matches!(query, Query::Scan(scan) if scan.index == matches)) =>
        {
            looked = true;
            later(4_000)
        }
        Call::Commit { batches, .. } if puts(batches, kind::BULK_PART) => {
            written = true;
            Plan::default()
        }
        Call::Commit { batches, .. } if written && !reported && puts(batches, kind::BULK) => {
            reported = true;
            later(6_000)
        }
        _ => Plan::default(),
    });
    let job = begin(&h, json!({ "state": "failed" }), "replay", json!({})).await;
    let job = ended(&h, &job).await;
    assert_eq!(counts(&job), (5, 5, 0, 0, 0));
    assert_eq!(replays(&h, &ids).await, [(PublicState::Waiting, 1); 5]);
    other.engine.close().await;
    h.finish().await;
}

fn puts(batches: &[Batch], kind: u8) -> bool {
    batches.iter().any(|batch| batch.puts.iter().any(|put| put.key.kind() == kind))
}

fn later(ms: u64) -> Plan {
    Plan { before: Some(Box::pin(tokio::time::sleep(std::time::Duration::from_millis(ms)))), ..Plan::default() }
}

#[tokio::test(start_paused = true)]
async fn what_fails_again_while_the_job_runs_is_not_replayed_again() {
    let h = deployment().await;
    let ids = failed(&h, 30).await;
    let job = begin(&h, json!({ "state": "failed" }), "replay", json!({ "rate_per_second": 20 })).await;
    let mut again = 0;
    while get(&h, &job).await.ended_at.is_none() {
        for task in h.must::<Claim>(json!({ "instance_id": "w", "lanes": ["breaking"], "wait_ms": 20 })).await.tasks {
            h.must::<Fail>(json!({ "execution_id": task.execution_id, "fence": task.fence, "reason": "again" })).await;
            again += 1;
        }
    }
    assert!(again > 10, "{again} failed again meanwhile");
    assert_eq!(get(&h, &job).await.progress.done, 30);
    assert!(replays(&h, &ids).await.iter().all(|(_, count)| *count == 1));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_changed_after_the_job_began_is_left_alone() {
    let h = deployment().await;
    let ids = submit(&h, 12, json!({})).await;
    let job = begin(&h, json!({}), "cancel", json!({ "rate_per_second": 10 })).await;
    h.pass(200).await;
    let last = *ids.iter().max_by_key(|id| (id.partition, id.uuid)).unwrap();
    h.must::<ChangePriority>(json!({ "execution_id": last, "priority": 5 })).await;
    let later = submit(&h, 3, json!({})).await;
    let job = ended(&h, &job).await;
    assert_eq!(counts(&job), (11, 11, 0, 0, 1));
    assert_eq!(h.state(&last).await, PublicState::Waiting);
    for id in later {
        assert_eq!(h.state(&id).await, PublicState::Waiting);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_counts_and_changes_nothing() {
    let h = deployment().await;
    submit(&h, 10, json!({})).await;
    let flow = json!({ "nodes": [{ "name": "a", "request": { "kind": "test" } }] });
    h.must::<CreateFlow>(flow).await;
    run(&h, json!({}), "cancel", json!({})).await;
    h.pass(1_000).await;
    let executions = |h: &Harness| {
        h.store.inspect(|contents| {
            let documents = contents.partitions().flat_map(|(_, contents)| contents.documents());
            let executions = documents.filter(|(key, _)| key.kind() == kind::EXECUTION);
            executions.map(|(key, raw)| (key.clone(), raw.body.to_vec())).collect::<Vec<_>>()
        })
    };
    let before = executions(&h);
    let dry = run(&h, json!({}), "remove", json!({ "dry_run": true })).await;
    assert_eq!(counts(&dry), (11, 10, 0, 1, 0));
    assert_eq!(executions(&h), before);
    let wet = run(&h, json!({}), "remove", json!({})).await;
    assert_eq!(counts(&wet), counts(&dry));
    // A member of a flow goes with its flow, and says so.
    assert_eq!((wet.refusals.len(), wet.refusals[0].code.as_str()), (1, "in_use"));
    assert_eq!(wet.progress.refused_by_code["in_use"], 1);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_changes_as_many_as_it_may_and_says_that_there_are_more() {
    let h = deployment().await;
    submit(&h, 20, json!({})).await;
    for (max, reached) in [(7, true), (13, false)] {
        let job = run(&h, json!({}), "cancel", json!({ "max": max })).await;
        assert_eq!((job.progress.done, job.reached_max, job.state), (max, reached, BulkState::Completed));
        let left = h.must::<ListExecutions>(json!({ "state": "waiting" })).await.items.len();
        assert_eq!(left, if reached { 13 } else { 0 });
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_spreads_the_changes_over_time() {
    let h = Harness::with(options(usize::MAX)).await;
    submit(&h, 100, json!({})).await;
    let job = begin(&h, json!({}), "cancel", json!({ "rate_per_second": 20 })).await;
    h.pass(1_000).await;
    let soon = get(&h, &job).await.progress.done;
    assert!((10..=30).contains(&soon), "{soon} in the first second");
    let job = ended(&h, &job).await;
    let took = job.ended_at.unwrap() - job.created_at;
    assert!((4_000..=7_000).contains(&took), "{took} ms for 100 at 20 a second");
    assert_eq!(job.progress.done, 100);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_stopped_changes_nothing_more() {
    let h = deployment().await;
    submit(&h, 60, json!({})).await;
    let job = begin(&h, json!({}), "cancel", json!({ "rate_per_second": 20 })).await;
    h.pass(1_000).await;
    let stopped = h.must::<CancelBulk>(json!({ "bulk_id": job.bulk_id })).await;
    assert_eq!(stopped.state, BulkState::Cancelled);
    let done = usize::try_from(stopped.progress.done).unwrap();
    assert!((1..59).contains(&done), "{done}");
    let cancelled = async || h.must::<ListExecutions>(json!({ "state": "cancelled" })).await.items.len();
    assert_eq!(cancelled().await, done);
    h.pass(60_000).await;
    assert_eq!(cancelled().await, done);
    assert_eq!(h.must::<CancelBulk>(json!({ "bulk_id": job.bulk_id })).await, stopped);
    let nobody = json!({ "bulk_id": "0190a0a0-0000-7000-8000-000000000000" });
    assert_eq!(h.refused::<CancelBulk>(nobody.clone()).await, Code::BulkNotFound);
    assert_eq!(h.refused::<GetBulk>(nobody).await, Code::BulkNotFound);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_reaches_with_a_job_what_it_reaches_without_one() {
    let mut h = deployment().await;
    let mine = submit(&h, 3, json!({ "lane": "mine" })).await;
    let theirs = submit(&h, 3, json!({ "lane": "theirs" })).await;
    let elsewhere = submit(&h, 3, json!({ "namespace": "elsewhere", "lane": "mine" })).await;
    let everything = begin(&h, json!({}), "hold", json!({ "dry_run": true, "rate_per_second": 1 })).await;
    let hidden = begin(&h, json!({}), "hold", json!({ "namespace": "elsewhere", "dry_run": true })).await;
    h.caller = Caller::new("operator", Some("default".into()), Role::Operator);
    h.caller.lanes = vec!["mine".into()];
    let cancel = |filter: Value| json!({ "filter": filter, "action": "cancel" });
    assert_eq!(h.refused::<CreateBulk>(cancel(json!({ "lane": "theirs" }))).await, Code::Forbidden);
    let mut other = cancel(json!({}));
    other["namespace"] = json!("elsewhere");
    assert_eq!(h.refused::<CreateBulk>(other).await, Code::Forbidden);
    assert_eq!(h.refused::<GetBulk>(json!({ "bulk_id": hidden.bulk_id })).await, Code::BulkNotFound);
    // It sees a job that reaches further than itself, and cannot stop it.
    assert_eq!(get(&h, &everything).await.bulk_id, everything.bulk_id);
    assert_eq!(h.refused::<CancelBulk>(json!({ "bulk_id": everything.bulk_id })).await, Code::Forbidden);
    let job = run(&h, json!({}), "cancel", json!({})).await;
    assert_eq!((counts(&job), job.created_by.as_str()), ((3, 3, 0, 0, 0), "operator"));
    h.caller.role = Role::Submitter;
    assert_eq!(h.refused::<CreateBulk>(cancel(json!({}))).await, Code::Forbidden);
    h.caller = Caller::system();
    for (ids, state) in
        [(mine, PublicState::Cancelled), (theirs, PublicState::Waiting), (elsewhere, PublicState::Waiting)]
    {
        for id in ids {
            assert_eq!(h.state(&id).await, state);
        }
    }
    h.must::<CancelBulk>(json!({ "bulk_id": everything.bulk_id })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_has_ended_is_forgotten_with_everything_it_had() {
    let h = Harness::with(Options { retention_ms: 3_600_000, ..options(3) }).await;
    submit(&h, 10, json!({})).await;
    let job = run(&h, json!({}), "cancel", json!({})).await;
    assert_eq!(job.removed_at, Some(job.ended_at.unwrap() + 3_600_000));
    let kept = |h: &Harness| {
        h.store.inspect(|contents| {
            let keys = contents.partitions().flat_map(|(_, contents)| contents.documents().map(|(key, _)| key.kind()));
            keys.filter(|of| [kind::BULK, kind::BULK_PART].contains(of)).count()
        })
    };
    assert!(kept(&h) > 1);
    h.pass(3_700_000).await;
    assert_eq!(h.refused::<GetBulk>(json!({ "bulk_id": job.bulk_id })).await, Code::BulkNotFound);
    assert_eq!(kept(&h), 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn members_of_a_flow_are_replayed_together_and_their_edges_with_them() {
    let h = deployment().await;
    let once = json!({ "kind": "test", "policy": { "retry": { "max_retries": 0 } } });
    let node = |name: &str| json!({ "name": name, "request": once });
    let graph = json!({ "nodes": [node("a"), node("b"), node("c")], "edges": [{ "from": "a", "to": "b" }, { "from": "b", "to": "c" }] });
    h.must::<CreateFlow>(graph).await;
    let task = h.claim().await.unwrap();
    h.must::<Fail>(json!({ "execution_id": task.execution_id, "fence": task.fence, "reason": "broke" })).await;
    h.pass(1_000).await;
    assert_eq!(h.must::<ListExecutions>(json!({ "state": "skipped" })).await.items.len(), 2);
    let job = run(&h, json!({ "state": ["failed", "skipped"] }), "replay", json!({})).await;
    assert_eq!(counts(&job), (3, 3, 0, 0, 0));
    for _ in 0..3 {
        let task = h.claim().await.expect("the next member");
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    assert_eq!(h.must::<ListExecutions>(json!({ "state": "completed" })).await.items.len(), 3);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn bad_jobs_are_refused_and_too_many_wait() {
    let h = deployment().await;
    for bad in [
        json!({ "filter": {}, "action": "set_priority" }),
        json!({ "filter": {}, "action": "set_tags" }),
        json!({ "filter": {}, "action": "replay", "reason": "x" }),
        json!({ "filter": {}, "action": "cancel", "priority": 1 }),
        json!({ "filter": {}, "action": "cancel", "max": 0 }),
        json!({ "filter": {}, "action": "cancel", "max": 1_000_001 }),
        json!({ "filter": {}, "action": "cancel", "rate_per_second": 0 }),
        json!({ "filter": { "lane": "no such lane" }, "action": "cancel" }),
    ] {
        assert_eq!(h.refused::<CreateBulk>(bad).await, Code::Invalid);
    }
    submit(&h, 1, json!({})).await;
    let slow = json!({ "rate_per_second": 1 });
    submit(&h, 200, json!({})).await;
    for _ in 0..ff_core::limits::BULK_OPEN_MAX {
        begin(&h, json!({}), "hold", slow.clone()).await;
    }
    let one_more = json!({ "filter": {}, "action": "hold" });
    assert_eq!(h.refused::<CreateBulk>(one_more).await, Code::ConcurrencyLimitExceeded);
    h.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_or_a_schedule_that_does_not_exist_is_an_empty_job() {
    let h = deployment().await;
    submit(&h, 3, json!({})).await;
    for filter in [
        json!({ "flow_id": "0001-0190a0a0-0000-7000-8000-000000000000" }),
        json!({ "flow_id": "7777-0190a0a0-0000-7000-8000-000000000000" }),
        json!({ "schedule": "nothing" }),
        json!({ "parent": "0001-0190a0a0-0000-7000-8000-000000000000" }),
    ] {
        let job = begin(&h, filter, "cancel", json!({})).await;
        let job = ended(&h, &job).await;
        assert_eq!((job.state, counts(&job)), (BulkState::Completed, (0, 0, 0, 0, 0)));
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_children_of_an_execution_are_found_by_their_parent() {
    let h = deployment().await;
    let parent = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let link = json!({ "execution_id": parent, "fence": task.fence });
    let mut children = Vec::new();
    for _ in 0..5 {
        let args = json!({ "kind": "child", "parent": link, "lane": "children" });
        children.push(h.must::<CreateExecution>(args).await.execution_id);
    }
    submit(&h, 2, json!({ "kind": "child", "lane": "children" })).await;
    let of_parent = json!({ "parent": parent, "order": "oldest" });
    let listed = h.must::<ListExecutions>(of_parent).await.items;
    assert_eq!(listed.iter().map(|item| item.execution_id).collect::<Vec<_>>(), children);
    let none = json!({ "parent": children[0] });
    assert_eq!(h.must::<ListExecutions>(none).await.items, []);
    let job = begin(&h, json!({ "parent": parent }), "cancel", json!({})).await;
    assert_eq!(job.progress.partitions, 1);
    assert_eq!(counts(&ended(&h, &job).await), (5, 5, 0, 0, 0));
    assert_eq!(h.state(&parent).await, PublicState::Active);
    h.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn replays_that_a_policy_does_not_allow_are_listed_as_refused() {
    let h = deployment().await;
    let ids = submit(&h, 4, json!({ "policy": { "max_replay_count": 1 } })).await;
    for id in &ids {
        h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    }
    h.must::<ReplayExecution>(json!({ "execution_id": ids[1] })).await;
    h.must::<CancelExecution>(json!({ "execution_id": ids[1] })).await;
    h.pass(1).await;
    let job = run(&h, json!({ "state": "cancelled" }), "replay", json!({})).await;
    assert_eq!(counts(&job), (4, 3, 0, 1, 0));
    assert_eq!(job.refusals[0].execution_id, ids[1]);
    assert_eq!(job.refusals[0].code, Code::MaxReplaysExhausted.as_str());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_created_or_changed_right_after_a_job_began_is_left_alone() {
    let h = deployment().await;
    let before = submit(&h, 30, json!({})).await;
    h.pass(1).await;
    let job = begin(&h, json!({ "kind": ["test"] }), "cancel", json!({ "rate_per_second": 100 })).await;
    h.pass(1).await;
    let changed = before.last().unwrap();
    h.must::<ChangePriority>(json!({ "execution_id": changed, "priority": 7 })).await;
    let after = submit(&h, 5, json!({})).await;
    let ended = ended(&h, &job).await;
    assert_eq!((ended.progress.done, ended.progress.changed_since), (29, 1), "{ended:?}");
    for id in after.iter().chain([changed]) {
        assert_eq!(h.state(id).await, PublicState::Waiting);
    }
    h.finish().await;
}
