//! On a store whose reads show more than what lasts: an answer that no commit stands behind waits for the store's barrier.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use ff_core::op::{
    CancelExecution, Claim, Complete, CreateBudget, CreateExecution, Fail, GetExecution, Operation, ReportBudgetUsage,
};
use ff_core::{Code, LeaseId, Partition};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options, Serves};
use ff_store::memory::MemoryStore;
use ff_store::{Answers, Batch, Hints, Outcome, Query, Result, Store, StoreError, StoreInfo};
use serde_json::{Value, json};

/// A memory store whose replicas are away when the test says so: nothing that was read can be confirmed.
struct Replicated {
    inner: MemoryStore,
    away: AtomicBool,
    barriers: AtomicUsize,
}

#[async_trait]
impl Store for Replicated {
    fn info(&self) -> StoreInfo {
        self.inner.info()
    }

    async fn read(&self, partition: Partition, queries: Vec<Query>) -> Result<Answers> {
        self.inner.read(partition, queries).await
    }

    async fn commit(&self, partition: Partition, batches: Arc<[Batch]>) -> Result<Vec<Outcome>> {
        self.inner.commit(partition, batches).await
    }

    async fn barrier(&self, _: Partition) -> Result<()> {
        self.barriers.fetch_add(1, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) { Err(StoreError::Unknown("no replica".into())) } else { Ok(()) }
    }

    fn watch(&self) -> Hints {
        self.inner.watch()
    }
}

struct Deployment {
    engine: Engine,
    store: Arc<Replicated>,
}

impl Deployment {
    async fn start() -> Self {
        let store =
            Replicated { inner: MemoryStore::new(), away: AtomicBool::new(false), barriers: AtomicUsize::new(0) };
        let store = Arc::new(store);
        // Nothing in the background, so that every barrier is one of the calls'.
        let options = Options { services: false, ..Options::default() };
        let engine = Engine::start(store.clone(), Arc::new(TokioEnv::current()), options).await.expect("it starts");
        Self { engine, store }
    }

    async fn call<O: Operation>(&self, args: &Value) -> ff_core::Result<O::Outcome>
    where
        Engine: Serves<O>,
    {
        let args = serde_json::from_str(&args.to_string()).expect("the arguments are readable");
        self.engine.call::<O>(&Caller::system(), args).await
    }

    /// An operation that was done already: it is answered again, but not while it is not known whether that lasts.
    async fn answers_only_what_lasts<O: Operation>(&self, args: Value)
    where
        Engine: Serves<O>,
    {
        let decided =
            |answer: ff_core::Result<O::Outcome>| answer.map_err(|error| error.code).map(|one| format!("{one:?}"));
        let before = self.store.barriers.load(Ordering::SeqCst);
        let known = decided(self.call::<O>(&args).await);
        assert_ne!(known, Err(Code::Unavailable), "{} {args}", O::NAME);
        assert!(self.store.barriers.load(Ordering::SeqCst) > before, "{} {args} asked for no barrier", O::NAME);
        self.store.away.store(true, Ordering::SeqCst);
        assert_eq!(decided(self.call::<O>(&args).await), Err(Code::Unavailable), "{} {args}", O::NAME);
        self.store.away.store(false, Ordering::SeqCst);
        assert_eq!(decided(self.call::<O>(&args).await), known, "{} {args}", O::NAME);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_done_before_is_answered_when_it_lasts() {
    let d = Deployment::start().await;
    let create = json!({ "kind": "test", "idempotency_key": "once" });
    let id = d.call::<CreateExecution>(&create).await.expect("it is created").execution_id;
    d.answers_only_what_lasts::<CreateExecution>(create.clone()).await;
    let lease = LeaseId(uuid::Uuid::from_u128(7));
    let claim = json!({ "instance_id": "w-1", "lanes": ["default"], "lease_ids": [lease], "wait_ms": 0 });
    let task = d.call::<Claim>(&claim).await.expect("it is claimed").tasks.pop().expect("there is one");
    let mut again = claim.clone();
    again["retry"] = json!(true);
    d.answers_only_what_lasts::<Claim>(again).await;
    let complete = json!({ "execution_id": id, "fence": task.fence });
    d.call::<Complete>(&complete).await.expect("it completes");
    d.answers_only_what_lasts::<Complete>(complete).await;
    d.answers_only_what_lasts::<CancelExecution>(json!({ "execution_id": id })).await;
    let failure = json!({ "execution_id": id, "fence": task.fence, "reason": "late" });
    d.answers_only_what_lasts::<Fail>(failure).await;
    let budget = json!({ "name": "b", "dimensions": { "tokens": { "hard": 100 } } });
    d.call::<CreateBudget>(&budget).await.expect("it is created");
    d.answers_only_what_lasts::<CreateBudget>(budget).await;
    let usage = json!({ "name": "b", "usage": { "tokens": 1 }, "dedup_key": "k" });
    d.call::<ReportBudgetUsage>(&usage).await.expect("it is counted");
    d.answers_only_what_lasts::<ReportBudgetUsage>(usage).await;
    d.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_plain_read_costs_no_barrier() {
    let d = Deployment::start().await;
    let id = d.call::<CreateExecution>(&json!({ "kind": "test" })).await.expect("it is created").execution_id;
    let before = d.store.barriers.load(Ordering::SeqCst);
    d.call::<GetExecution>(&json!({ "execution_id": id })).await.expect("it is there");
    assert_eq!(d.store.barriers.load(Ordering::SeqCst), before);
    d.engine.close().await;
}
