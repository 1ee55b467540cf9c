//! The world of a sequence: a client, a namespace, and short ways to say common things.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ff_core::{Code, Result};
use flowfabric::{Client, SdkError};
use serde_json::{Map, Value, json};

/// The servers of one deployment, usually one. Calls go to them in turn, so that each acts on what another did a moment
/// before.
pub struct Servers(Vec<Client>);

impl Servers {
    /// Stops the engines that were started in this process. One that is gone without a word keeps its share of the
    /// timers until it is missed.
    pub(crate) async fn close(&self) {
        for client in &self.0 {
            client.close().await;
        }
    }
}

impl From<Client> for Servers {
    fn from(client: Client) -> Self {
        Self(vec![client])
    }
}

impl From<[Client; 2]> for Servers {
    fn from(clients: [Client; 2]) -> Self {
        Self(clients.into())
    }
}

/// A namespace of its own on some deployment.
#[derive(Clone)]
pub struct World {
    clients: Vec<Client>,
    turn: Arc<AtomicUsize>,
    /// The namespace; part of every name a sequence makes.
    pub namespace: String,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

impl World {
    pub(crate) fn new(servers: &Servers, name: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let short = name.split('_').next().unwrap_or(name);
        let namespace = format!("{short}-{}-{number}", std::process::id());
        let clients = servers.0.iter().map(|client| client.in_namespace(&namespace)).collect();
        Self { clients, turn: Arc::default(), namespace }
    }

    /// How many servers take calls in turn.
    pub(crate) fn servers(&self) -> usize {
        self.clients.len()
    }

    /// Calls an operation; the namespace is added where the operation takes one and names none.
    pub(crate) async fn call(&self, operation: &str, args: Value) -> Result<Value> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        match self.clients[turn % self.clients.len()].call_json(operation, args).await {
            Ok(answer) => Ok(answer),
            Err(SdkError::Refused(error)) => Err(error),
            Err(failure) => panic!("{operation}: {failure}"),
        }
    }

    /// A call that must succeed.
    pub(crate) async fn must(&self, operation: &str, args: Value) -> Value {
        match self.call(operation, args.clone()).await {
            Ok(answer) => answer,
            Err(error) => panic!("{operation} {args}: {error:?}"),
        }
    }

    /// A call that must be refused with this code; answers with the details.
    pub(crate) async fn refused(&self, operation: &str, args: Value, code: Code) -> Map<String, Value> {
        match self.call(operation, args.clone()).await {
            Ok(answer) => panic!("{operation} {args} must be refused with {code}, but answered {answer}"),
            Err(error) => {
                assert_eq!(error.code, code, "{operation} {args}: {error:?}");
                error.details
            }
        }
    }

    /// Submits an execution of kind `test`; answers with its id.
    pub(crate) async fn submit(&self, more: Value) -> String {
        let answer = self.must("create_execution", merged(json!({ "kind": "test" }), more)).await;
        text(&answer["execution_id"])
    }

    /// Claims one task, waiting for it; panics when there is none.
    pub(crate) async fn claim(&self) -> Value {
        self.claim_with(json!({})).await.unwrap_or_else(|| panic!("{}: nothing was claimable", self.namespace))
    }

    /// Claims one task with more arguments; `None` when nothing was claimable for the wait.
    pub(crate) async fn claim_with(&self, more: Value) -> Option<Value> {
        let args = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 10_000 });
        self.must("claim", merged(args, more)).await["tasks"].as_array_mut().and_then(Vec::pop)
    }

    /// Nothing can be claimed now.
    pub(crate) async fn nothing_to_claim(&self) {
        let task = self.claim_with(json!({ "wait_ms": 0 })).await;
        assert!(task.is_none(), "claimed {task:?}");
    }

    /// Claims find nothing but examine the execution, and its state says that it may not run now. A server that has not
    /// heard of it yet examines nothing, so the claim is repeated.
    pub(crate) async fn is_held_back(&self, id: &str) {
        self.until(&format!("{id} is rate_limited"), async || {
            self.nothing_to_claim().await;
            self.state(id).await == "rate_limited"
        })
        .await;
    }

    /// Submits and claims: an execution in hand.
    pub(crate) async fn in_hand(&self, more: Value) -> (String, Value) {
        let id = self.submit(more).await;
        let task = self.claim().await;
        assert_eq!(task["execution_id"], json!(id));
        (id, task["fence"].clone())
    }

    /// Completes with a JSON result.
    pub(crate) async fn complete(&self, id: &str, fence: &Value, result: Value) -> Value {
        self.must("complete", json!({ "execution_id": id, "fence": fence, "result": result })).await
    }

    /// Fails in a way that is not retried.
    pub(crate) async fn fail_for_good(&self, task: &Value) {
        let args = json!({ "execution_id": task["execution_id"], "fence": task["fence"], "reason": "broke" });
        let answer = self.must("fail", args).await;
        assert_eq!(answer["outcome"], "terminal_failed", "{answer}");
    }

    /// Everything `get` shows.
    pub(crate) async fn get(&self, id: &str) -> Value {
        self.must("get_execution", json!({ "execution_id": id })).await
    }

    /// The public state.
    pub(crate) async fn state(&self, id: &str) -> String {
        text(&self.must("get_state", json!({ "execution_id": id })).await["public_state"])
    }

    /// The state is this now.
    pub(crate) async fn is(&self, id: &str, state: &str) {
        assert_eq!(self.state(id).await, state, "{id}");
    }

    /// The state becomes this: the engine acts on its own, so the sequence looks until it has.
    pub(crate) async fn becomes(&self, id: &str, state: &str) {
        self.until(&format!("{id} is {state}"), async || self.state(id).await == state).await;
    }

    /// Looks again and again until something holds; gives up after fifteen seconds. The only place that waits by time.
    pub(crate) async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        for _ in 0..1_500 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{}: gave up waiting until {what}", self.namespace);
    }
}

/// A policy without retries.
pub(crate) fn no_retries() -> Value {
    json!({ "policy": { "retry": { "max_retries": 0 } } })
}

/// One object with the fields of both.
pub(crate) fn merged(mut base: Value, more: Value) -> Value {
    let more = more.as_object().expect("a sequence merges objects").clone();
    object(&mut base).extend(more);
    base
}

/// The text of a JSON string.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text")).to_owned()
}

fn object(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("arguments are objects")
}
