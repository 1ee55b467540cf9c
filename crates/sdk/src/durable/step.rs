//! One step: code whose result is kept, so that it does not run again.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ff_core::JsonText;
use ff_core::journal::{StepEntry, StepIdentity, StepKind, StepState, StepView};
use ff_core::suspension::SuspendReason;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::book::{Asked, Call, Steps, entry};
use super::wait::changed;
use super::watcher::Moment;
use crate::task::shorten;
use crate::task_error::TaskError;

/// A body that runs longer than this is shown to people as begun.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// The category of a step of which it is not known whether it happened.
const IN_DOUBT: &str = "in_doubt";

/// What becomes of a `once` step of which it is not known whether it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDoubt {
    /// It runs again.
    RunAgain,
    /// It fails with the category `in_doubt`.
    Fail,
    /// A person is asked: the execution is suspended until the answer is `happened`, `did_not_happen` or `fail`.
    #[default]
    Ask,
}

/// What becomes of an entry with a key that the program gives another input than the recorded one. An entry without a key
/// is asked about instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnChange {
    /// The recorded entry stands; the execution shows it among `steps_changed`.
    #[default]
    Keep,
    /// The body runs again.
    RunAgain,
    /// The step fails with the category `journal_mismatch`.
    Fail,
}

/// How often the body of a step is tried in one attempt, and how long to wait in between.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    tries: u32,
    wait: Duration,
}

impl Retry {
    /// So many tries in all, with this wait before the second, doubled before each further one and never over 5 seconds.
    pub fn times(tries: u32, wait: Duration) -> Self {
        Self { tries: tries.max(1), wait }
    }

    fn wait_before(&self, tried: u32) -> Duration {
        self.wait.saturating_mul(1 << tried.saturating_sub(1).min(16)).min(Duration::from_secs(5))
    }
}

/// A step about to run; awaiting it runs it, or returns its recorded result.
#[must_use = "a step does nothing until it is awaited"]
pub struct Step<'a, F> {
    steps: Arc<Steps>,
    name: String,
    key: Option<String>,
    input_hash: Option<String>,
    once: Option<OnDoubt>,
    on_change: OnChange,
    compensates: Option<StepIdentity>,
    retry: Retry,
    timeout: Option<Duration>,
    body: F,
    /// The body may borrow what lives as long as the step.
    borrows: PhantomData<&'a ()>,
}

impl<F> Step<'_, F> {
    pub(crate) fn new(steps: Arc<Steps>, name: String, body: F) -> Self {
        let retry = Retry::times(1, Duration::ZERO);
        Self {
            steps,
            name,
            key: None,
            input_hash: None,
            once: None,
            on_change: OnChange::default(),
            compensates: None,
            retry,
            timeout: None,
            body,
            borrows: PhantomData,
        }
    }

    /// Tells calls of one name apart. Parallel calls need one.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The input that the body works on. If it differs from the recorded one when the entry is found again, the program
    /// has changed.
    pub fn input(mut self, input: &(impl Serialize + ?Sized)) -> Self {
        use sha2::Digest as _;
        let text = serde_json::to_vec(input).unwrap_or_default();
        let digest = sha2::Sha256::digest(&text);
        self.input_hash = Some(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect());
        self
    }

    /// The body has an effect that must not happen twice: its beginning is recorded before it runs. `on_doubt` decides
    /// what happens if it is not known whether the effect happened.
    pub fn once(mut self, on_doubt: OnDoubt) -> Self {
        self.once = Some(on_doubt);
        self
    }

    /// What becomes of the recorded entry when the input has changed since; for steps with a key.
    pub fn on_change(mut self, on_change: OnChange) -> Self {
        self.on_change = on_change;
        self
    }

    /// The body undoes the first step of this name. Once it has completed, a retry of the attempt runs both again.
    pub fn compensates(mut self, name: impl Into<String>) -> Self {
        self.compensates = Some(StepIdentity { name: name.into(), key: None, occurrence: Some(0) });
        self
    }

    /// The body undoes the step of this name and key.
    pub fn compensates_keyed(mut self, name: impl Into<String>, key: impl Into<String>) -> Self {
        self.compensates = Some(StepIdentity { name: name.into(), key: Some(key.into()), occurrence: None });
        self
    }

    /// Tries the body several times in one attempt.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Each try may take this long.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<'a, F, Fut, T> IntoFuture for Step<'a, F>
where
    F: Fn() -> Fut + Send + Sync + 'a,
    Fut: Future<Output = Result<T, TaskError>> + Send + 'a,
    T: Serialize + DeserializeOwned + Send + 'static,
{
    type Output = Result<T, TaskError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let call = self.steps.call(&self.name, self.key.as_deref());
        Box::pin(async move { self.run(call?).await })
    }
}

impl<F, Fut, T> Step<'_, F>
where
    F: Fn() -> Fut + Send + Sync,
    Fut: Future<Output = Result<T, TaskError>> + Send,
    T: Serialize + DeserializeOwned + Send + 'static,
{
    async fn run(self, call: Call) -> Result<T, TaskError> {
        let hash = self.input_hash.as_deref();
        let Some(known) = self.steps.find_same(&call.identity, StepKind::Step, hash).await? else {
            return self.run_body(&call.identity, 0).await;
        };
        if known.state.is_ended() && changed(&known, StepKind::Step, hash).is_some() {
            // For a step with a key the program has said beforehand what another input means.
            match self.on_change {
                OnChange::Keep => self.steps.note_changed(&call.identity),
                OnChange::RunAgain => return self.run_body(&call.identity, 0).await,
                OnChange::Fail => {
                    let reason = format!("step {} has another input than the one it recorded", call.identity.label());
                    return Err(TaskError::new(reason).category("journal_mismatch"));
                }
            }
        }
        match known.state {
            StepState::Completed => return result_of(&known),
            StepState::Failed => return Err(failure_of(&call.identity, &known)),
            StepState::Begun if self.once.is_some() => self.doubt(&call.identity).await?,
            StepState::Begun | StepState::Retrying => {}
            StepState::Unknown(state) => {
                let reason =
                    format!("step {} is {}, which is newer than this worker", call.identity.label(), state.as_str());
                return Err(TaskError::new(reason).category("journal_mismatch"));
            }
        }
        self.run_body(&call.identity, known.tries).await
    }

    async fn run_body(&self, identity: &StepIdentity, before: u32) -> Result<T, TaskError> {
        let mut tried = 0;
        self.begin(identity, before).await?;
        loop {
            tried += 1;
            let started = Instant::now();
            let failure = match self.one_try(identity, before + tried).await {
                Ok(result) => {
                    let text = serde_json::to_string(&result)
                        .map_err(|error| TaskError::new(error.to_string()).category("invalid_result"))?;
                    let done = StepEntry {
                        result: Some(JsonText(text)),
                        took_ms: i64::try_from(started.elapsed().as_millis()).ok(),
                        ..self.entry(identity, StepState::Completed, before + tried)
                    };
                    self.steps.record(done).await?;
                    self.steps.reached(Moment::Recorded, identity).await?;
                    return Ok(result);
                }
                Err(failure) => failure,
            };
            let in_doubt = !failure.is_not_done() && !matches!(self.once, None | Some(OnDoubt::RunAgain));
            if in_doubt {
                self.doubt(identity).await?;
            }
            if tried < self.retry.tries {
                if !self.steps.on_test_clock() {
                    let _busy = self.steps.busy();
                    tokio::time::sleep(self.retry.wait_before(tried)).await;
                }
                continue;
            }
            let (category, message) = failure.in_words();
            let failed = StepEntry {
                // An invalid category cannot be recorded, and is refused at the end of the attempt; the message is
                // kept.
                category: Some(category).filter(|category| ff_core::text::label("category", category).is_ok()),
                message: Some(shorten(message)),
                ..self.entry(identity, StepState::Failed, before + tried)
            };
            self.steps.record(failed).await?;
            return Err(failure.caused_by(identity.clone()));
        }
    }

    /// Records that a `once` body begins.
    async fn begin(&self, identity: &StepIdentity, tries: u32) -> Result<(), TaskError> {
        match self.once {
            Some(_) => self.steps.record(self.entry(identity, StepState::Begun, tries)).await.map(drop),
            None => Ok(()),
        }
    }

    async fn one_try(&self, identity: &StepIdentity, tries: u32) -> Result<T, TaskError> {
        let _busy = self.steps.busy();
        let limited = async {
            self.steps.reached(Moment::BeforeBody, identity).await?;
            let ended = match self.timeout {
                None => (self.body)().await,
                Some(limit) => tokio::time::timeout(limit, (self.body)())
                    .await
                    .unwrap_or_else(|_| Err(TaskError::new("the step timed out").category("timeout"))),
            };
            self.steps.reached(Moment::AfterBody, identity).await?;
            ended
        };
        let mut body = Box::pin(limited);
        if let Ok(ended) = tokio::time::timeout(SHOWN_AFTER, &mut body).await {
            return ended;
        }
        if self.once.is_none() {
            self.steps.record(self.entry(identity, StepState::Begun, tries)).await?;
        }
        body.await
    }

    fn entry(&self, identity: &StepIdentity, state: StepState, tries: u32) -> StepEntry {
        StepEntry {
            tries: Some(tries),
            input_hash: self.input_hash.clone(),
            compensates: self.compensates.clone().filter(|_| state == StepState::Completed),
            ..entry(identity, state)
        }
    }

    /// Handles a `once` step of which it is not known whether it happened. Returns if the body is to run.
    async fn doubt(&self, identity: &StepIdentity) -> Result<(), TaskError> {
        let doubt = format!("nobody knows whether step {} happened", identity.label());
        match self.once.unwrap_or_default() {
            OnDoubt::RunAgain => Ok(()),
            OnDoubt::Fail => {
                let failed = StepEntry {
                    category: Some(IN_DOUBT.into()),
                    message: Some(doubt.clone()),
                    ..self.entry(identity, StepState::Failed, 0)
                };
                self.steps.record(failed).await?;
                Err(TaskError::new(doubt).category(IN_DOUBT))
            }
            OnDoubt::Ask => {
                let (kind, input_hash) = (StepKind::Step, self.input_hash.clone());
                let asked = Asked { reason: SuspendReason::InDoubt, detail: doubt, kind, input_hash };
                match self.steps.ask(identity, asked).await {}
            }
        }
    }
}

pub(super) fn result_of<T: DeserializeOwned>(known: &StepView) -> Result<T, TaskError> {
    let bytes: &[u8] = known.result.as_ref().map_or(b"null", |content| &content.bytes);
    serde_json::from_slice(bytes).map_err(|error| {
        let reason = format!("the recorded result of step {:?} cannot be read: {error}", known.name);
        TaskError::new(reason).category("journal_mismatch")
    })
}

pub(super) fn failure_of(identity: &StepIdentity, known: &StepView) -> TaskError {
    let reason = known.message.clone().unwrap_or_else(|| format!("step {} failed", identity.label()));
    let category = known.category.clone().unwrap_or_default();
    // A step that failed in doubt does not run again by itself.
    let in_doubt = category == IN_DOUBT;
    let failure = TaskError::new(reason).category(category);
    if in_doubt { failure } else { failure.caused_by(identity.clone()) }
}

impl<F> std::fmt::Debug for Step<'_, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("name", &self.name).field("key", &self.key).finish_non_exhaustive()
    }
}
