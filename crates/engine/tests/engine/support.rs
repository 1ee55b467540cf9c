//! An engine on the memory store under virtual time: in a test with `start_paused = true` time moves by itself to the
//! next timer whenever nothing else can happen, so a test of a day's retention takes no time and never sleeps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ff_core::op::Operation;
use ff_core::{Code, ExecutionId, Partition, PublicState, Result, documents};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options, Serves};
use ff_store::memory::{Call, Faults, MemoryStore, Plan};
use serde_json::{Value, json};

/// The store's time at the start of every test.
pub(crate) const START: i64 = 1_800_000_000_000;

/// Virtual time as the store's clock tells it.
fn clock() -> Arc<dyn Fn() -> i64 + Send + Sync> {
    let began = tokio::time::Instant::now();
    Arc::new(move || START + i64::try_from(began.elapsed().as_millis()).expect("tests are short"))
}

/// The faults of the store, as the test says from moment to moment.
#[derive(Default)]
pub(crate) struct Trouble(Mutex<Option<Rule>>);

type Rule = Box<dyn FnMut(Call<'_>) -> Plan + Send>;

impl Trouble {
    /// From now on this decides.
    pub(crate) fn begin(&self, rule: impl FnMut(Call<'_>) -> Plan + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(rule));
    }

    /// From now on everything is well.
    pub(crate) fn end(&self) {
        *self.0.lock().unwrap() = None;
    }
}

impl Faults for Trouble {
    fn plan(&self, call: Call<'_>) -> Plan {
        self.0.lock().unwrap().as_mut().map_or_else(Plan::default, |rule| rule(call))
    }
}

/// An engine and the store behind it.
pub(crate) struct Harness {
    pub(crate) engine: Engine,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) caller: Caller,
}

impl Harness {
    /// A fresh deployment with default options.
    pub(crate) async fn start() -> Self {
        Self::with(Options::default()).await
    }

    /// A fresh deployment.
    pub(crate) async fn with(options: Options) -> Self {
        Self::on(MemoryStore::with_clock(clock()), options).await
    }

    /// A fresh deployment on a store in which things go wrong when the test says so.
    pub(crate) async fn with_trouble(options: Options) -> (Self, Arc<Trouble>) {
        let trouble = Arc::new(Trouble::default());
        let store = MemoryStore::with_clock(clock()).with_faults(trouble.clone());
        (Self::on(store, options).await, trouble)
    }

    /// A fresh deployment on nodes whose clocks differ by this much from each other.
    pub(crate) async fn skewed(
        options: Options,
        skew_of: impl Fn(Partition) -> i64 + Send + Sync + 'static,
    ) -> (Self, Arc<Trouble>) {
        let (trouble, clock) = (Arc::new(Trouble::default()), clock());
        let clocks = move |partition| clock() + skew_of(partition);
        let store = MemoryStore::with_partition_clocks(Arc::new(clocks)).with_faults(trouble.clone());
        (Self::on(store, options).await, trouble)
    }

    async fn on(store: MemoryStore, options: Options) -> Self {
        let store = Arc::new(store);
        let engine = Engine::start(store.clone(), Arc::new(TokioEnv::current()), options).await.expect("it starts");
        Self { engine, store, caller: Caller::system() }
    }

    /// Another engine on the same store.
    pub(crate) async fn second(&self) -> Self {
        let env = Arc::new(TokioEnv::current());
        let engine = Engine::start(self.store.clone(), env, Options::default()).await.expect("it starts");
        Self { engine, store: self.store.clone(), caller: Caller::system() }
    }

    /// Calls an operation with arguments as a client would write them.
    pub(crate) async fn call<O: Operation>(&self, args: Value) -> Result<O::Outcome>
    where
        Engine: Serves<O>,
    {
        let args = serde_json::from_str(&args.to_string()).expect("the arguments are readable");
        self.engine.call::<O>(&self.caller, args).await
    }

    /// Calls an operation that must succeed.
    pub(crate) async fn must<O: Operation>(&self, args: Value) -> O::Outcome
    where
        Engine: Serves<O>,
    {
        match self.call::<O>(args.clone()).await {
            Ok(outcome) => outcome,
            Err(error) => panic!("{} {args}: {error:?}", O::NAME),
        }
    }

    /// Calls an operation that must be refused.
    pub(crate) async fn refused<O: Operation>(&self, args: Value) -> Code
    where
        Engine: Serves<O>,
    {
        match self.call::<O>(args.clone()).await {
            Ok(outcome) => panic!("{} {args} succeeded: {outcome:?}", O::NAME),
            Err(error) => error.code,
        }
    }

    /// Submits an execution of kind `test`, with more arguments.
    pub(crate) async fn submit(&self, more: Value) -> ExecutionId {
        let mut args = json!({ "kind": "test" });
        args.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        self.must::<ff_core::op::CreateExecution>(args).await.execution_id
    }

    /// Claims one task of the default lane, waiting up to ten seconds for it.
    pub(crate) async fn claim(&self) -> Option<ff_core::op::view::Task> {
        self.claim_with(json!({})).await
    }

    /// Claims one task, with more arguments.
    pub(crate) async fn claim_with(&self, more: Value) -> Option<ff_core::op::view::Task> {
        let mut args = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 10_000 });
        args.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        self.must::<ff_core::op::Claim>(args).await.tasks.pop()
    }

    /// The public state of an execution.
    pub(crate) async fn state(&self, id: &ExecutionId) -> PublicState {
        self.must::<ff_core::op::GetState>(json!({ "execution_id": id })).await.public_state
    }

    /// Lets virtual time pass.
    pub(crate) async fn pass(&self, ms: u64) {
        tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
    }

    /// Every document's bytes, to see that nothing changed.
    pub(crate) fn documents(&self) -> Vec<(String, Vec<u8>)> {
        self.store.inspect(|contents| {
            let all = contents.partitions().flat_map(|(partition, contents)| {
                contents.documents().map(move |(key, raw)| (format!("{partition} {key:?}"), raw.body.to_vec()))
            });
            all.collect()
        })
    }

    /// Every document is legal, and the indexes hold exactly the entries that the documents justify.
    pub(crate) fn check(&self) {
        let partitions: Vec<_> = self.store.inspect(|contents| contents.partitions().map(|(name, _)| name).collect());
        let now: BTreeMap<_, _> = partitions.into_iter().map(|name| (name, self.store.now_in(name))).collect();
        self.store.inspect(|contents| {
            for (partition, contents) in contents.partitions() {
                let mut expected = std::collections::BTreeSet::new();
                for (key, raw) in contents.documents().filter(|(_, raw)| raw.present(now[&partition])) {
                    documents::check(key, &raw.body).unwrap_or_else(|error| panic!("{partition} {key:?}: {error:?}"));
                    let entries = documents::index_entries(key, &raw.body, raw.lease_until)
                        .unwrap_or_else(|error| panic!("{partition} {key:?}: {error:?}"))
                        .unwrap_or_else(|| panic!("{partition} {key:?} is of no known kind"));
                    expected.extend(entries.into_iter().map(|entry| (entry.index, entry.member, entry.score)));
                }
                let found: std::collections::BTreeSet<_> =
                    contents.entries().map(|(index, score, member)| (index.clone(), member.clone(), score)).collect();
                let missing: Vec<_> = expected.difference(&found).collect();
                let surplus: Vec<_> = found.difference(&expected).collect();
                assert!(
                    missing.is_empty() && surplus.is_empty(),
                    "{partition}: missing {missing:?}, surplus {surplus:?}"
                );
            }
        });
    }

    /// Checks everything and stops.
    pub(crate) async fn finish(self) {
        self.check();
        self.engine.close().await;
    }
}
