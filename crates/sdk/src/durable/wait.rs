//! Waiting for an instant, a signal or a child. A wait does not hold the task: when every branch waits, it is parked.

use std::convert::Infallible;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ff_core::journal::{StepEntry, StepIdentity, StepKind, StepState, StepView};
use ff_core::op::ParentLink;
use ff_core::suspension::SuspendReason;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::book::{Asked, Call, Steps, What, entry};
use crate::runtime::TaskError;
use crate::submit::Submission;

/// Sleeps up to this long are slept under the lease.
const SHORT_SLEEP: Duration = Duration::from_secs(5);

impl Steps {
    /// Sleeps; a long sleep lets go of the task.
    pub(crate) fn sleep(
        self: &Arc<Self>,
        name: &str,
        time: Duration,
    ) -> impl Future<Output = Result<(), TaskError>> + Send + use<> {
        let steps = self.clone();
        let call = self.call(name, None);
        async move { steps.sleep_once(call?, time).await }
    }

    async fn sleep_once(self: &Arc<Self>, call: Call, time: Duration) -> Result<(), TaskError> {
        let known = self.find_same(&call.identity, StepKind::Sleep, None).await?;
        if known.as_ref().is_some_and(|known| known.state.is_ended()) {
            return Ok(());
        }
        if time <= SHORT_SLEEP && known.is_none() {
            let _busy = self.busy();
            tokio::time::sleep(time).await;
            let over = StepEntry { kind: Some(StepKind::Sleep), ..entry(&call.identity, StepState::Completed) };
            return self.record(over).await.map(drop);
        }
        let sleep_ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        self.until_ended(&call.identity, What::Sleep { sleep_ms }).await.map(drop)
    }

    /// Asks a person about an entry. The answer is recorded while the task is parked, and found by the next call of the
    /// function; this one does not go on.
    pub(super) async fn ask(self: &Arc<Self>, identity: &StepIdentity, asked: Asked) -> Infallible {
        let _leaves = Leaves { steps: self, identity };
        let what = What::Question(asked);
        poll_fn(|context| {
            self.wait(identity, &what, context.waker());
            Poll::Pending
        })
        .await
    }

    /// What the journal says of an entry, if the program still takes it for the same. Under a counted identity another
    /// kind or input means that the code has changed under it, and a person is asked.
    pub(super) async fn find_same(
        self: &Arc<Self>,
        identity: &StepIdentity,
        kind: StepKind,
        input_hash: Option<&str>,
    ) -> Result<Option<StepView>, TaskError> {
        let found = self.find(identity).await.map_err(|error| TaskError::of_record(&error))?;
        let Some(known) = found else { return Ok(None) };
        let differs = changed(&known, kind, input_hash);
        if let (Some(what), None) = (differs, &identity.key) {
            let detail = format!("step {} has another {what} than the one it recorded", identity.label());
            let input_hash = input_hash.map(str::to_owned);
            let asked = Asked { reason: SuspendReason::JournalMismatch, detail, kind, input_hash };
            match self.ask(identity, asked).await {}
        }
        Ok(Some(known))
    }

    /// Waits until the journal says that an entry has ended.
    async fn until_ended(self: &Arc<Self>, identity: &StepIdentity, what: What) -> Result<StepView, TaskError> {
        let _leaves = Leaves { steps: self, identity };
        let ended = poll_fn(|context| match self.known(identity).filter(|known| known.state.is_ended()) {
            Some(known) => Poll::Ready(known),
            None => {
                self.wait(identity, &what, context.waker());
                Poll::Pending
            }
        });
        Ok(ended.await)
    }
}

/// What of an entry is not as the program has it now.
pub(super) fn changed(known: &StepView, kind: StepKind, input_hash: Option<&str>) -> Option<&'static str> {
    if known.kind != kind {
        return Some("kind");
    }
    let recorded = known.input_hash.as_deref();
    recorded.zip(input_hash).is_some_and(|(recorded, now)| recorded != now).then_some("input")
}

/// A branch that is dropped no longer waits.
struct Leaves<'s> {
    steps: &'s Steps,
    identity: &'s StepIdentity,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.steps.stop_waiting(self.identity);
    }
}

/// A wait for a signal, whose payload it answers with.
#[must_use = "a wait does nothing until it is awaited"]
#[derive(Debug)]
pub struct SignalWait<T> {
    steps: Arc<Steps>,
    name: String,
    key: Option<String>,
    timeout: Option<Duration>,
    payload: PhantomData<fn() -> T>,
}

impl<T> SignalWait<T> {
    pub(crate) fn new(steps: Arc<Steps>, name: String) -> Self {
        Self { steps, name, key: None, timeout: None, payload: PhantomData }
    }

    /// Tells waits for one name apart. Parallel waits need one.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Gives up after this long with the category `timeout`. The instant is fixed when the wait begins.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for SignalWait<T> {
    type Output = Result<T, TaskError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let call = self.steps.call(&self.name, self.key.as_deref());
        Box::pin(async move {
            let call = call?;
            self.steps.find_same(&call.identity, StepKind::Signal, None).await?;
            let timeout_ms = self.timeout.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
            let ended = self.steps.until_ended(&call.identity, What::Signal { timeout_ms }).await?;
            if ended.state == StepState::Failed {
                let reason = format!("no signal {:?} came in time", self.name);
                return Err(TaskError::new(reason).category(ended.category.unwrap_or_default()));
            }
            let bytes: &[u8] = ended.result.as_ref().map_or(b"null", |content| &content.bytes);
            serde_json::from_slice(bytes).map_err(|error| {
                let reason = format!("the payload of signal {:?} cannot be read: {error}", self.name);
                TaskError::new(reason).category("invalid_signal")
            })
        })
    }
}

/// A child execution; awaiting it spawns it once, waits for its end and answers with its result.
#[must_use = "a child does nothing until it is awaited"]
pub struct ChildCall<T> {
    steps: Arc<Steps>,
    name: String,
    key: Option<String>,
    submission: Submission,
    result: PhantomData<fn() -> T>,
}

impl<T> ChildCall<T> {
    pub(crate) fn new(steps: Arc<Steps>, name: String, kind: &str, input: &(impl Serialize + ?Sized)) -> Self {
        let task = steps.task();
        let parent = ParentLink {
            execution_id: task.execution_id(),
            fence: task.fence(),
            key: None,
            kind: None,
            data_ref: None,
        };
        let submission = task.client().submit(kind).child_of(parent).input(input);
        Self { steps, name, key: None, submission, result: PhantomData }
    }

    /// Tells children of one name apart. Parallel children need one.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Says more about the child: its lane, priority, policy, tags.
    pub fn with(mut self, change: impl FnOnce(Submission) -> Submission) -> Self {
        self.submission = change(self.submission);
        self
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for ChildCall<T> {
    type Output = Result<T, TaskError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let call = self.steps.call(&self.name, self.key.as_deref());
        Box::pin(async move {
            let call = call?;
            let task = self.steps.task();
            let known = self.steps.find_same(&call.identity, StepKind::Child, None).await?;
            let child = call.identity.child_id(&task.execution_id(), task.details().generation);
            let ended = match known.filter(|known| known.state.is_ended()) {
                Some(ended) => ended,
                None => {
                    let spawning = self.steps.busy();
                    let submission = self.submission.with(|args| args.execution_id = Some(child));
                    submission.send().await?;
                    drop(spawning);
                    self.steps.until_ended(&call.identity, What::Child { execution_id: child }).await?
                }
            };
            if ended.state == StepState::Failed {
                let reason = ended.message.unwrap_or_else(|| format!("child {:?} did not succeed", self.name));
                return Err(TaskError::new(reason).category(ended.category.unwrap_or_default()));
            }
            if let Some(content) = &ended.result {
                // A fork has the results of its origin's children in its own journal.
                return serde_json::from_slice(&content.bytes).map_err(|error| {
                    let reason = format!("the result of child {:?} cannot be read: {error}", self.name);
                    TaskError::new(reason).category("journal_mismatch")
                });
            }
            let _reading = self.steps.busy();
            // An entry of an earlier generation names the child of that time.
            Ok(task.client().execution(ended.child_id.unwrap_or(child)).result().await?)
        })
    }
}

impl<T> std::fmt::Debug for ChildCall<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChildCall").field("name", &self.name).field("key", &self.key).finish_non_exhaustive()
    }
}
