//! Functions by kind, called for every task a worker claims.

mod context;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

pub use context::TaskContext;

use ff_core::tool::ToolDefinition;

use crate::client::Client;
use crate::durable::Watcher;
use crate::error::{Result, SdkError};
use crate::task_error::{TaskError, category};
use crate::typed::Task;
use crate::worker::{FlowFabricWorker, WorkerConfig};

/// A handler without its types: from a task to the JSON text of its result.
type Handler<S> = Arc<dyn Fn(TaskContext<S>) -> BoxFuture<'static, Result<String, TaskError>> + Send + Sync>;

/// A worker that calls async functions by the kind of their tasks, with input and output in JSON.
///
/// It claims only the kinds it has functions for, so that services with different kinds may share a lane.
///
/// A function's error fails the attempt with the category of the error, a panic with the category `panic`; the
/// execution's policy decides what is tried again.
///
/// ```
/// # async fn example() -> flowfabric::Result<()> {
/// use flowfabric::{Client, TaskContext, TaskError, WorkerConfig, WorkerRuntime};
///
/// async fn greet(_: TaskContext, name: String) -> Result<String, TaskError> {
///     Ok(format!("Hello, {name}!"))
/// }
///
/// let client = Client::connect("memory://").await?;
/// let worker = WorkerRuntime::new(WorkerConfig::new("greeter")).register("greet", greet).start(&client).await?;
/// let greeting: String = client.submit("greet").input("world").send().await?.result().await?;
/// assert_eq!(greeting, "Hello, world!");
/// worker.stop().await?;
/// client.close().await;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
pub struct WorkerRuntime<S = ()> {
    config: WorkerConfig,
    state: Arc<S>,
    handlers: BTreeMap<String, Handler<S>>,
    drain: Duration,
    watcher: Option<Arc<dyn Watcher>>,
}

impl WorkerRuntime {
    /// A runtime without functions.
    pub fn new(config: WorkerConfig) -> Self {
        Self::with_state(config, ())
    }
}

impl<S: Send + Sync + 'static> WorkerRuntime<S> {
    /// A runtime whose functions share a state: a connection pool, a model, a configuration.
    pub fn with_state(config: WorkerConfig, state: S) -> Self {
        let (handlers, drain) = (BTreeMap::new(), Duration::from_secs(15));
        Self { config, state: Arc::new(state), handlers, drain, watcher: None }
    }

    /// A test that follows the functions.
    pub(crate) fn watched_by(mut self, watcher: Arc<dyn Watcher>) -> Self {
        self.watcher = Some(watcher);
        self
    }

    /// Calls a function for every task of a type; see [`Task`].
    ///
    /// ```
    /// use flowfabric::{Task, TaskContext, TaskError, WorkerConfig, WorkerRuntime};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Greet { name: String }
    ///
    /// impl Task for Greet {
    ///     const KIND: &'static str = "greet";
    ///     type Output = String;
    /// }
    ///
    /// async fn greet(_: TaskContext, task: Greet) -> Result<String, TaskError> {
    ///     Ok(format!("Hello, {}!", task.name))
    /// }
    ///
    /// let runtime = WorkerRuntime::new(WorkerConfig::new("greeter")).serve(greet);
    /// ```
    #[must_use]
    pub fn serve<T, F, Fut>(self, function: F) -> Self
    where
        T: Task,
        F: Fn(TaskContext<S>, T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T::Output, TaskError>> + Send + 'static,
    {
        self.register(T::KIND, function)
    }

    /// Calls a function for every task of a kind. A second one for the same kind replaces the first.
    #[must_use]
    pub fn register<F, Fut, I, O>(mut self, kind: impl Into<String>, function: F) -> Self
    where
        F: Fn(TaskContext<S>, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, TaskError>> + Send + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
    {
        let function = Arc::new(function);
        let handler: Handler<S> = Arc::new(move |context: TaskContext<S>| {
            let function = function.clone();
            Box::pin(async move {
                let input = context
                    .input_json::<I>()
                    .map_err(|error| TaskError::new(error.to_string()).category(category::INVALID_INPUT))?;
                let output = function(context, input).await?;
                serde_json::to_string(&output)
                    .map_err(|error| TaskError::new(error.to_string()).category(category::INVALID_RESULT))
            })
        });
        self.handlers.insert(kind.into(), handler);
        self
    }

    /// Lets agents call a kind that has a function here; see [`tool`](crate::tool).
    #[must_use]
    pub fn tool(mut self, tool: ToolDefinition) -> Self {
        self.config = self.config.tool(tool);
        self
    }

    /// How long a stopping worker waits for its tasks before it hands them back; 15 seconds unless this says
    /// otherwise.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Starts working in the background.
    pub async fn start(self, client: &Client) -> Result<RunningWorker> {
        if self.handlers.is_empty() {
            return Err(SdkError::config("runtime", "handlers", "must not be empty: register a function first"));
        }
        // It claims only what it has a function for: other work waits for a worker that has.
        let config = self.config.kinds(self.handlers.keys().cloned());
        let worker = FlowFabricWorker::connect(client, config).await?;
        let working = run::Working {
            worker: worker.clone(),
            state: self.state,
            handlers: Arc::new(self.handlers),
            watcher: self.watcher,
        };
        let claiming = tokio::spawn(working.run());
        Ok(RunningWorker { worker, claiming: Some(claiming), drain: self.drain })
    }

    /// Works until the process is told to stop by Ctrl-C or SIGTERM, then finishes or hands back what it holds.
    pub async fn run(self, client: &Client) -> Result<()> {
        let stop = run::stop_signal().map_err(|error| SdkError::config("runtime", "signals", error.to_string()))?;
        self.run_until(client, stop).await
    }

    /// Works until a future ends, then finishes or hands back what it holds.
    pub async fn run_until(self, client: &Client, stop: impl Future<Output = ()>) -> Result<()> {
        let worker = self.start(client).await?;
        stop.await;
        worker.stop().await
    }
}

impl<S> std::fmt::Debug for WorkerRuntime<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds: Vec<&String> = self.handlers.keys().collect();
        f.debug_struct("WorkerRuntime").field("config", &self.config).field("kinds", &kinds).finish_non_exhaustive()
    }
}

/// A worker at work. Dropping it stops the claims and its handlers at once, and its leases run out; see
/// [`stop`](RunningWorker::stop).
#[derive(Debug)]
pub struct RunningWorker {
    worker: FlowFabricWorker,
    claiming: Option<JoinHandle<()>>,
    drain: Duration,
}

impl RunningWorker {
    /// The worker underneath.
    pub fn worker(&self) -> &FlowFabricWorker {
        &self.worker
    }

    /// Claims nothing more, waits for the tasks in hand, hands back those that take too long, and deregisters.
    pub async fn stop(mut self) -> Result<()> {
        let stopped = self.worker.stop(self.drain).await;
        if let Some(claiming) = self.claiming.take() {
            // It ends with its last task; one that was handed back has been told so.
            let _ = claiming.await;
        }
        stopped
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        if let Some(claiming) = &self.claiming {
            claiming.abort();
        }
    }
}
