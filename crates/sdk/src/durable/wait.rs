//! Waiting for an instant, a signal or a child. A wait does not hold the task: when every branch waits, it is parked.

use std::convert::Infallible;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ff_core::WaitpointId;
use ff_core::journal::{StepEntry, StepIdentity, StepKind, StepState, StepView};
use ff_core::op::parts::Secret;
use ff_core::op::{CreatePendingWaitpoint, ParentLink, create_pending_waitpoint};
use ff_core::suspension::SuspendReason;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::book::{Asked, Call, Steps, WaitKind, entry};
use super::watcher::Moment;
use crate::submit::Submission;
use crate::task_error::TaskError;

/// Sleeps up to this long are slept under the lease.
pub(super) const SHORT_SLEEP: Duration = Duration::from_secs(5);

type Waited<T> = Pin<Box<dyn Future<Output = Result<T, TaskError>> + Send>>;

impl Steps {
    /// Sleeps; for a long sleep the task is given up.
    pub(crate) fn sleep(self: &Arc<Self>, name: &str, time: Duration) -> Waited<()> {
        let steps = self.clone();
        let call = self.call(name, None);
        Box::pin(async move {
            let call = call?;
            let known = steps.find_same(&call.identity, StepKind::Sleep, None).await?;
            if time <= SHORT_SLEEP && !steps.on_test_clock() && known.is_none() {
                let _busy = steps.busy();
                tokio::time::sleep(time).await;
                let over = StepEntry { kind: Some(StepKind::Sleep), ..entry(&call.identity, StepState::Completed) };
                return steps.record(over).await.map(drop);
            }
            steps.until_ended(&call, WaitKind::Sleep { sleep_ms: milliseconds(time), provider: None }).await.map(drop)
        })
    }

    /// Asks a person about an entry. The answer is recorded while the task is parked, and found by the next call of the
    /// function; this one does not go on.
    pub(super) async fn ask(self: &Arc<Self>, identity: &StepIdentity, asked: Asked) -> Infallible {
        self.asked(identity, &asked.detail);
        let _leaves = Leaves { steps: self, identity };
        let what = WaitKind::Question(asked);
        poll_fn(|context| {
            self.wait(identity, &what, context.waker());
            Poll::Pending
        })
        .await
    }

    /// The entry of the journal, if its kind and input are those of the program. If they differ for a counted identity,
    /// the program has changed, and a person is asked.
    pub(super) async fn find_same(
        self: &Arc<Self>,
        identity: &StepIdentity,
        kind: StepKind,
        input_hash: Option<&str>,
    ) -> Result<Option<StepView>, TaskError> {
        let Some(known) = self.find(identity).await? else { return Ok(None) };
        let differs = changed(&known, kind, input_hash);
        if let (Some(what), None) = (differs, &identity.key) {
            let detail = format!("step {} has another {what} than the one it recorded", identity.label());
            let input_hash = input_hash.map(str::to_owned);
            let asked = Asked { reason: SuspendReason::JournalMismatch, detail, kind, input_hash };
            match self.ask(identity, asked).await {}
        }
        Ok(Some(known))
    }

    /// The entry, if it has ended.
    pub(super) async fn ended(
        self: &Arc<Self>,
        identity: &StepIdentity,
        kind: StepKind,
    ) -> Result<Option<StepView>, TaskError> {
        Ok(self.find_same(identity, kind, None).await?.filter(|known| known.state.is_ended()))
    }

    /// Waits until an entry of the journal has ended. An entry that failed is an error.
    pub(super) async fn until_ended(self: &Arc<Self>, call: &Call, what: WaitKind) -> Result<StepView, TaskError> {
        let identity = &call.identity;
        let ended = match self.ended(identity, what.kind()).await? {
            Some(ended) => ended,
            None => {
                self.reached(Moment::BeforeWait, identity).await?;
                let _leaves = Leaves { steps: self, identity };
                poll_fn(|context| match self.known(identity).filter(|known| known.state.is_ended()) {
                    Some(known) => Poll::Ready(known),
                    None => {
                        self.wait(identity, &what, context.waker());
                        Poll::Pending
                    }
                })
                .await
            }
        };
        if ended.state == StepState::Completed {
            return Ok(ended);
        }
        let said = ended.message.filter(|message| !message.is_empty());
        let reason = said.unwrap_or_else(|| match what {
            WaitKind::Signal { .. } => format!("no signal {:?} came in time", identity.name),
            WaitKind::Child { .. } => format!("child {:?} did not succeed", identity.name),
            WaitKind::Sleep { .. } | WaitKind::Question(_) => format!("wait {:?} was broken off", identity.name),
        });
        Err(TaskError::new(reason).category(ended.category.unwrap_or_default()))
    }
}

/// The part of an entry that differs from the program, if any.
pub(super) fn changed(known: &StepView, kind: StepKind, input_hash: Option<&str>) -> Option<&'static str> {
    if known.kind != kind {
        return Some("kind");
    }
    let recorded = known.input_hash.as_deref();
    recorded.zip(input_hash).is_some_and(|(recorded, now)| recorded != now).then_some("input")
}

/// Removes the wait of a branch when the branch is dropped.
struct Leaves<'s> {
    steps: &'s Steps,
    identity: &'s StepIdentity,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.steps.stop_waiting(self.identity);
    }
}

/// A wait for a signal; awaiting it returns the signal's payload.
#[must_use = "a wait does nothing until it is awaited"]
pub struct SignalWait<T> {
    steps: Arc<Steps>,
    name: String,
    key: Option<String>,
    timeout: Option<Duration>,
    /// The identity of the wait, if its waitpoint was opened before.
    call: Option<Call>,
    payload: PhantomData<fn() -> T>,
}

impl<T> SignalWait<T> {
    pub(crate) fn new(steps: Arc<Steps>, name: String) -> Self {
        Self { steps, name, key: None, timeout: None, call: None, payload: PhantomData }
    }

    /// Tells waits for one name apart. Parallel waits need one. A wait of a [`Waitpoint`] has the waitpoint's.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Gives up after this long with the category `timeout`. The instant is fixed when the wait begins.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Opens the waitpoint before the function waits for the signal, so that its id and token can be given to a sender.
    pub(crate) async fn open(self) -> Result<Waitpoint<T>, TaskError> {
        let call = self.steps.call(&self.name, self.key.as_deref())?;
        let task = self.steps.task();
        let busy = self.steps.busy();
        let args = create_pending_waitpoint::Args {
            execution_id: task.execution_id(),
            fence: task.fence(),
            waitpoint_id: None,
            waitpoint_key: None,
            expires_in_ms: None,
            step: Some(call.identity.clone()),
        };
        let opened = task.call::<CreatePendingWaitpoint>(args).await?;
        drop(busy);
        let wait = Self { call: Some(call), ..self };
        Ok(Waitpoint { id: opened.waitpoint_id, token: opened.token, wait })
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for SignalWait<T> {
    type Output = Result<T, TaskError>;
    type IntoFuture = Waited<T>;

    fn into_future(self) -> Self::IntoFuture {
        let call = self.call.map_or_else(|| self.steps.call(&self.name, self.key.as_deref()), Ok);
        Box::pin(async move {
            let what = WaitKind::Signal { timeout_ms: self.timeout.map(milliseconds) };
            let ended = self.steps.until_ended(&call?, what).await?;
            let bytes: &[u8] = ended.result.as_ref().map_or(b"null", |content| &content.bytes);
            serde_json::from_slice(bytes).map_err(|error| {
                let reason = format!("the payload of signal {:?} cannot be read: {error}", self.name);
                TaskError::new(reason).category("invalid_signal")
            })
        })
    }
}

impl<T> std::fmt::Debug for SignalWait<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalWait").field("name", &self.name).field("key", &self.key).finish_non_exhaustive()
    }
}

/// A waitpoint that is open before the function waits there: a signal that comes meanwhile is kept.
#[derive(Debug)]
pub struct Waitpoint<T> {
    id: WaitpointId,
    token: Secret,
    wait: SignalWait<T>,
}

impl<T> Waitpoint<T> {
    /// Its id, for the sender of the signal.
    pub fn id(&self) -> WaitpointId {
        self.id
    }

    /// The right to signal it.
    pub fn token(&self) -> &Secret {
        &self.token
    }

    /// Waits for the signal.
    pub fn wait(self) -> SignalWait<T> {
        self.wait
    }
}

/// A child execution; awaiting it spawns it once, waits for its end and returns its result.
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
            detached: false,
        };
        let submission = task.client().submit(kind).child_of(parent).input(input);
        Self { steps, name, key: None, submission, result: PhantomData }
    }

    /// Tells children of one name apart. Parallel children need one.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets more of the child: its lane, priority, policy, tags.
    pub fn with(mut self, change: impl FnOnce(Submission) -> Submission) -> Self {
        self.submission = change(self.submission);
        self
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for ChildCall<T> {
    type Output = Result<T, TaskError>;
    type IntoFuture = Waited<T>;

    fn into_future(self) -> Self::IntoFuture {
        let call = self.steps.call(&self.name, self.key.as_deref());
        Box::pin(async move {
            let call = call?;
            let task = self.steps.task();
            let child = call.identity.child_id(&task.execution_id(), task.details().generation);
            let open = self.steps.open_child(child);
            if self.steps.ended(&call.identity, StepKind::Child).await?.is_none() {
                self.steps.reached(Moment::BeforeWait, &call.identity).await?;
                let _spawning = self.steps.busy();
                self.submission.with(|args| args.execution_id = Some(child)).send().await?;
            }
            let ended = self.steps.until_ended(&call, WaitKind::Child { execution_id: child }).await?;
            drop(open);
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

pub(super) fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
