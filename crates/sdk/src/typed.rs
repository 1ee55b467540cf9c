//! Tasks that are types, so that the compiler checks both sides of them.

use std::marker::PhantomData;
use std::ops::Deref;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::Result;
use crate::execution::Execution;
use crate::submit::Submission;

/// A kind of work as a type: its value is the input, and its result has a type.
/// [`#[flowfabric::task]`](macro@crate::task) implements it for the input of the function that does the work:
///
/// ```
/// # async fn example(client: flowfabric::Client) -> flowfabric::Result<()> {
/// use flowfabric::{TaskContext, TaskError, WorkerConfig, WorkerRuntime};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Summarize { text: String, words: usize }
///
/// #[flowfabric::task]
/// async fn summarize(ctx: TaskContext, task: Summarize) -> Result<String, TaskError> {
///     ctx.step("ask", || async { Ok(task.text.split(' ').take(task.words).collect()) }).await
/// }
///
/// let worker = WorkerRuntime::new(WorkerConfig::new("w")).serve(summarize).start(&client).await?;
/// let execution = client.submit(Summarize { text: "a long text".into(), words: 2 }).send().await?;
/// let summary: String = execution.result().await?;
/// # Ok(())
/// # }
/// ```
///
/// A program that only submits has no such function, and says `impl Task for Summarize` with `KIND` and `Output`.
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// The name of the kind, as a string would give it: workers claim by it.
    const KIND: &'static str;
    /// The type of its result.
    type Output: Serialize + DeserializeOwned + Send + 'static;
}

/// Describes a [`Task`] to agents, with the schemas of its types: given to [`WorkerRuntime::tool`](crate::WorkerRuntime::tool)
/// it becomes a tool of the Model Context Protocol. It is part of the feature `schema`, which is on unless it is left out.
///
/// ```
/// use flowfabric::{Task, ToolDefinition};
///
/// #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
/// struct Greet { name: String }
///
/// impl Task for Greet {
///     const KIND: &'static str = "greet";
///     type Output = String;
/// }
///
/// let tool = ToolDefinition { repeatable: true, ..flowfabric::tool::<Greet>("Greets somebody by name.") };
/// assert_eq!(tool.kind, "greet");
/// ```
#[cfg(feature = "schema")]
pub fn tool<T>(description: impl Into<String>) -> ff_core::tool::ToolDefinition
where
    T: Task + schemars::JsonSchema,
    T::Output: schemars::JsonSchema,
{
    use ff_core::JsonText;
    use ff_core::tool::{TaskSupport, ToolDefinition};

    let schema = |schema: schemars::Schema| JsonText(serde_json::Value::from(schema).to_string());
    ToolDefinition {
        kind: T::KIND.to_owned(),
        title: None,
        description: description.into(),
        input_schema: schema(schemars::schema_for!(T)),
        output_schema: Some(schema(schemars::schema_for!(T::Output))),
        lane: None,
        repeatable: false,
        read_only: false,
        destructive: None,
        tasks: TaskSupport::default(),
    }
}

impl Client {
    /// Submits an execution of some kind, `client.submit("render").input(&request).send().await?`, or a
    /// [`Task`](crate::Task), `client.submit(Render { .. }).send().await?`.
    pub fn submit<T: Submit>(&self, what: T) -> T::Submission {
        what.begin(self.clone())
    }
}

/// The argument of [`Client::submit`]: the name of a kind, or a [`Task`].
pub trait Submit {
    /// The submission in the making.
    type Submission;

    /// Begins a submission.
    fn begin(self, client: Client) -> Self::Submission;
}

impl Submit for &str {
    type Submission = Submission;

    fn begin(self, client: Client) -> Submission {
        Submission::new(client, self.to_owned())
    }
}

impl Submit for &String {
    type Submission = Submission;

    fn begin(self, client: Client) -> Submission {
        Submission::new(client, self.clone())
    }
}

impl Submit for String {
    type Submission = Submission;

    fn begin(self, client: Client) -> Submission {
        Submission::new(client, self)
    }
}

impl<T: Task> Submit for T {
    type Submission = TaskSubmission<T>;

    fn begin(self, client: Client) -> TaskSubmission<T> {
        let submission = Submission::new(client, T::KIND.to_owned()).input(&self);
        TaskSubmission { submission, task: PhantomData }
    }
}

/// The submission of a [`Task`]; nothing happens before [`send`](TaskSubmission::send).
#[derive(Debug)]
#[must_use = "nothing is submitted before `send`"]
pub struct TaskSubmission<T> {
    submission: Submission,
    task: PhantomData<fn() -> T>,
}

impl<T: Task> TaskSubmission<T> {
    /// Says more about it: its lane, priority, policy, tags.
    pub fn with(mut self, change: impl FnOnce(Submission) -> Submission) -> Self {
        self.submission = change(self.submission);
        self
    }

    /// The submission without its type, for a flow's graph.
    pub fn into_submission(self) -> Submission {
        self.submission
    }

    /// Submits it.
    pub async fn send(self) -> Result<TaskExecution<T>> {
        Ok(TaskExecution { execution: self.submission.send().await?, task: PhantomData })
    }
}

/// An execution of a [`Task`]. It can do what an [`Execution`] can, and knows the type of its result.
#[derive(Debug)]
pub struct TaskExecution<T> {
    execution: Execution,
    task: PhantomData<fn() -> T>,
}

impl<T: Task> TaskExecution<T> {
    /// Waits for its end and reads its result.
    pub async fn result(&self) -> Result<T::Output> {
        self.execution.result().await
    }
}

impl<T> Clone for TaskExecution<T> {
    fn clone(&self) -> Self {
        Self { execution: self.execution.clone(), task: PhantomData }
    }
}

impl<T> Deref for TaskExecution<T> {
    type Target = Execution;

    fn deref(&self) -> &Execution {
        &self.execution
    }
}
