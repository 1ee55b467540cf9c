//! The context of a handler, beside its input.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ff_core::op::suspend;
use ff_core::{ReportUsageResult, ResumeSignal};
use serde::Serialize;
use tokio::sync::Mutex;

use crate::durable::{Acquire, ChildCall, Race, SignalWait, Step, Steps, Waitpoint, Watcher, join};
use crate::error::Result;
use crate::signal::Signal;
use crate::task::{ClaimedTask, Frame, FrameWriter, SuspendRequest};
use crate::task_error::{TaskError, category};
use crate::typed::Task;

/// The task of a handler, and the state all handlers share. It can do what a [`ClaimedTask`] can, except end: the
/// handler's return value does that. If the lease is lost, the handler's future is dropped at its next await.
#[derive(Debug)]
pub struct TaskContext<S = ()> {
    state: Arc<S>,
    task: Arc<ClaimedTask>,
    /// Opened with the first frame.
    stream: Arc<Mutex<Option<FrameWriter>>>,
    steps: Arc<Steps>,
}

impl<S> Clone for TaskContext<S> {
    fn clone(&self) -> Self {
        Self {
            state: self.state.clone(),
            task: self.task.clone(),
            stream: self.stream.clone(),
            steps: self.steps.clone(),
        }
    }
}

impl<S> Deref for TaskContext<S> {
    type Target = ClaimedTask;

    fn deref(&self) -> &ClaimedTask {
        &self.task
    }
}

impl<S> TaskContext<S> {
    pub(super) fn new(state: Arc<S>, task: Arc<ClaimedTask>, watcher: Option<Arc<dyn Watcher>>) -> Self {
        let steps = Steps::new(task.clone(), watcher);
        Self { state, task, stream: Arc::default(), steps }
    }

    pub(super) fn steps(&self) -> &Arc<Steps> {
        &self.steps
    }

    /// Runs code once: its result is kept, and a handler that is called again gets it back without running the code.
    /// A step is known by its name and key, never by its place in the code.
    ///
    /// ```no_run
    /// # async fn example(ctx: flowfabric::TaskContext) -> Result<String, flowfabric::TaskError> {
    /// let page: String = ctx.step("fetch", || async { Ok("a page".to_owned()) }).await?;
    /// # Ok(page)
    /// # }
    /// ```
    pub fn step<'a, F>(&self, name: impl Into<String>, body: F) -> Step<'a, F> {
        Step::new(self.steps.clone(), name.into(), body)
    }

    /// Sleeps. A sleep of more than five seconds lets go of the task: it costs nothing and survives every crash.
    #[must_use = "a sleep does nothing until it is awaited"]
    pub fn sleep(
        &self,
        name: impl Into<String>,
        time: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<(), TaskError>> + Send>> {
        self.steps.sleep(&name.into(), time)
    }

    /// Waits for a signal of this name and answers with its payload. The task is not held meanwhile.
    pub fn wait_signal<T>(&self, name: impl Into<String>) -> SignalWait<T> {
        SignalWait::new(self.steps.clone(), name.into())
    }

    /// Waits for a signal that is a type of its own: see [`Signal`].
    pub fn wait_for<T: Signal>(&self) -> SignalWait<T> {
        self.wait_signal(T::NAME)
    }

    /// Opens the place where a signal of this name arrives, so that others can be told of it before it is waited for.
    ///
    /// ```no_run
    /// # async fn example(ctx: flowfabric::TaskContext) -> Result<bool, flowfabric::TaskError> {
    /// let approval = ctx.waitpoint::<bool>("approval").await?;
    /// ctx.step("mail the link", || async { println!("{}", approval.id()); Ok(()) }).await?;
    /// let approved = approval.wait().timeout(std::time::Duration::from_secs(86_400)).await?;
    /// # Ok(approved)
    /// # }
    /// ```
    pub async fn waitpoint<T>(&self, name: impl Into<String>) -> Result<Waitpoint<T>, TaskError> {
        SignalWait::new(self.steps.clone(), name.into()).open().await
    }

    /// The store's time in milliseconds since the epoch, as it was at the first call of this name.
    pub async fn now(&self, name: impl Into<String>) -> Result<i64, TaskError> {
        self.steps.now(&name.into()).await
    }

    /// A random number from 0 up to 1: the same for one name whenever the function is called again, another one after a
    /// replay.
    pub fn random(&self, name: &str) -> f64 {
        self.steps.random(name, None)
    }

    /// The number for a name and a key, for loops.
    pub fn random_keyed(&self, name: &str, key: &str) -> f64 {
        self.steps.random(name, Some(key))
    }

    /// An id: the same for one name whenever the function is called again, another one after a replay. Give it to a service
    /// that knows a repeat by such an id.
    pub fn uuid(&self, name: &str) -> uuid::Uuid {
        self.steps.uuid(name, None)
    }

    /// The id for a name and a key, for loops.
    pub fn uuid_keyed(&self, name: &str, key: &str) -> uuid::Uuid {
        self.steps.uuid(name, Some(key))
    }

    /// Waits for all of these branches. If some fail, the failure is that of the first of them in their order.
    #[must_use = "branches do nothing until they are awaited"]
    pub fn join<'a, T, F>(
        &self,
        branches: impl IntoIterator<Item = F>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<T>, TaskError>> + Send + 'a>>
    where
        F: IntoFuture<Output = Result<T, TaskError>>,
        F::IntoFuture: Send + 'a,
        T: Send + 'a,
    {
        join(branches)
    }

    /// Lets branches compete: the first to end decides, and is the same one whenever the function is called again.
    ///
    /// ```no_run
    /// # async fn example(ctx: flowfabric::TaskContext) -> Result<(), flowfabric::TaskError> {
    /// let race = ctx.race("which model").branch(ctx.child("fast", "ask", "small")).branch(ctx.child("good", "ask", "large"));
    /// let (winner, answer): (usize, String) = race.cancel_losers().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn race<'a, T>(&self, name: impl Into<String>) -> Race<'a, T> {
        Race::new(self.steps.clone(), name.into())
    }

    /// Asks a provider for a call: awaiting it waits for its turn, [`Acquire::step`] also makes the call. A wait of more than
    /// five seconds lets go of the task, which keeps its place in the line.
    pub fn acquire(&self, provider: impl Into<String>) -> Acquire {
        Acquire::new(self.steps.clone(), provider.into())
    }

    /// Spawns a child execution once, waits for its end without holding the task, and answers with its result.
    pub fn child<T>(&self, name: impl Into<String>, kind: &str, input: &(impl Serialize + ?Sized)) -> ChildCall<T> {
        ChildCall::new(self.steps.clone(), name.into(), kind, input)
    }

    /// A child that is a type of its own: see [`Task`].
    pub fn child_task<T: Task>(&self, name: impl Into<String>, task: &T) -> ChildCall<T::Output> {
        self.child(name, T::KIND, task)
    }

    /// The state that all handlers share.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// Writes a frame to the task's stream in the background; all are stored before the task ends.
    pub async fn emit(&self, frame: Frame) -> Result<()> {
        let mut stream = self.stream.lock().await;
        stream.get_or_insert_with(|| self.task.frame_writer()).write(frame).await
    }

    /// Waits until everything emitted so far is stored.
    pub async fn flush(&self) -> Result<()> {
        match self.stream.lock().await.take() {
            Some(writer) => writer.finish().await.map(drop),
            None => Ok(()),
        }
    }

    /// Charges what was spent to the execution's budgets; with a key, once however often the handler is called. A report
    /// that a hard limit forbids counts nothing there and is an error, so that no handler passes over it unseen; a soft
    /// limit that is passed is in the answer. [`ClaimedTask::report_usage`] answers with either.
    pub async fn report_usage(
        &self,
        usage: impl IntoIterator<Item = (&str, i64)>,
        dedup_key: Option<String>,
    ) -> Result<BTreeMap<String, ReportUsageResult>, TaskError> {
        let answers = self.task.report_usage(usage, dedup_key).await?;
        for (budget, answer) in &answers {
            if let ReportUsageResult::HardBreach { dimension, .. } = answer {
                let reason = format!("budget {budget}: the limit of {dimension} is reached");
                return Err(TaskError::new(reason).category(category::BUDGET_EXCEEDED));
            }
        }
        Ok(answers)
    }

    /// Suspends the task and ends the handler by `?`; it is called again when the task is resumed, with
    /// [`resume_signals`](ClaimedTask::resume_signals). Where the condition holds already, the handler goes on with
    /// the signals. The token for others comes from
    /// [`create_pending_waitpoint`](ClaimedTask::create_pending_waitpoint).
    pub async fn suspend(&self, request: SuspendRequest) -> Result<Vec<ResumeSignal>, TaskError> {
        self.flush().await?;
        match self.task.end_with_suspension(request).await.map_err(TaskError::of_ending)? {
            suspend::Outcome::AlreadySatisfied { resume_signals, .. } => Ok(resume_signals),
            suspend::Outcome::Suspended { .. } | suspend::Outcome::Unknown(_) => Err(TaskError::released()),
        }
    }

    /// Lets go of the task for this long: `return Err(context.delay(time).await)`. The handler is then called again.
    pub async fn delay(&self, time: Duration) -> TaskError {
        self.let_go(self.task.end_with_delay(time)).await
    }

    /// Begins the function anew, with another input and an empty journal: `return Err(context.continue_as_new(&next).await)`.
    /// It stays the same execution, so that a loop may run for months.
    pub async fn continue_as_new(&self, input: &(impl Serialize + ?Sized)) -> TaskError {
        match serde_json::to_string(input) {
            Ok(input) => self.let_go(self.task.end_with_continuation(input)).await,
            Err(error) => TaskError::new(error.to_string()).category(category::INVALID_INPUT),
        }
    }

    /// Lets go until all children have ended: `return Err(context.wait_for_children().await)`. The handler is then
    /// called again, and finds them among its [`upstreams`](ClaimedTask::upstreams).
    pub async fn wait_for_children(&self) -> TaskError {
        self.let_go(self.task.end_with_children()).await
    }

    /// Cancels the execution: `return Err(context.cancel(reason).await)`.
    pub async fn cancel(&self, reason: impl Into<String>) -> TaskError {
        self.let_go(self.task.end_with_cancellation(reason.into())).await
    }

    async fn let_go<T>(&self, ending: impl Future<Output = Result<T>>) -> TaskError {
        if let Err(error) = self.flush().await {
            return error.into();
        }
        match ending.await {
            Ok(_) => TaskError::released(),
            Err(error) => TaskError::of_ending(error),
        }
    }
}
