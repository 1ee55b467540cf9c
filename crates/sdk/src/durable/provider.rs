//! Calls to a provider with limits: a call waits for its turn, under the lease for a short time, parked for a long one,
//! and reports its real cost afterwards.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ff_core::journal::{StepEntry, StepIdentity, StepKind, StepState};
use ff_core::op::{
    AcquireProvider, SettleProvider, ThrottleProvider, acquire_provider, settle_provider, throttle_provider,
};
use ff_core::provider::ProviderCost;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::book::{Steps, WaitKind, entry};
use super::step::{failure_of, result_of};
use super::wait::{SHORT_SLEEP, milliseconds};
use crate::task::ClaimedTask;
use crate::task_error::TaskError;

/// The value of a call, and its real cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metered<T> {
    value: T,
    tokens: u64,
}

impl<T> Metered<T> {
    /// A value and the tokens that it cost.
    pub fn new(value: T, tokens: u64) -> Self {
        Self { value, tokens }
    }
}

/// A planned call to a provider. Awaiting it waits for its turn.
#[must_use = "a call waits for its turn when it is awaited, or made by `step`"]
pub struct Acquire {
    steps: Arc<Steps>,
    provider: String,
    key: Option<String>,
    tokens: u64,
    ttl: Option<Duration>,
}

impl Acquire {
    pub(crate) fn new(steps: Arc<Steps>, provider: String) -> Self {
        Self { steps, provider, key: None, tokens: 0, ttl: None }
    }

    /// The tokens that the call is expected to cost.
    pub fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = tokens;
        self
    }

    /// Tells calls of one provider, or steps of one name, apart. Parallel ones need one.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// How long the call may take; after that its place among the calls at once is free for another. Ten minutes by
    /// default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Waits for its turn, makes the call as a step of this name, and settles its real cost. If the provider throttles
    /// it ([`TaskError::throttled`]), the provider is closed for all callers, and the call waits for its next turn.
    ///
    /// ```no_run
    /// # async fn ask() -> Result<(String, u64), flowfabric::TaskError> { Ok((String::new(), 7)) }
    /// # async fn example(ctx: flowfabric::TaskContext) -> Result<String, flowfabric::TaskError> {
    /// use flowfabric::Metered;
    /// let answer: String = ctx.acquire("model-api").tokens(2_000).step("ask", || async {
    ///     let (answer, tokens) = ask().await?;
    ///     Ok(Metered::new(answer, tokens))
    /// }).await?;
    /// # Ok(answer)
    /// # }
    /// ```
    pub fn step<'a, T, F, B>(
        self,
        name: impl Into<String>,
        mut body: B,
    ) -> Pin<Box<dyn Future<Output = Result<T, TaskError>> + Send + 'a>>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'a,
        F: Future<Output = Result<Metered<T>, TaskError>> + Send,
        B: FnMut() -> F + Send + 'a,
    {
        let name: String = name.into();
        let call = self.steps.call(&name, self.key.as_deref());
        Box::pin(async move {
            let call = call?;
            let known = self.steps.find_same(&call.identity, StepKind::Step, None).await?;
            match known.filter(|known| known.state.is_ended()) {
                Some(known) if known.state == StepState::Completed => return result_of(&known),
                Some(known) => return Err(failure_of(&call.identity, &known)),
                None => {}
            }
            let mut naps = 0;
            loop {
                let permit = self.turn(&call.identity, &mut naps).await?;
                let made = {
                    let _busy = self.steps.busy();
                    body().await
                };
                match made {
                    Ok(metered) => {
                        permit.end(metered.tokens).await?;
                        self.steps.record_result(&call.identity, &metered.value).await?;
                        return Ok(metered.value);
                    }
                    Err(error) => match error.throttled_for() {
                        Some(retry_after) => permit.throttled(retry_after).await?,
                        None => {
                            permit.end(self.tokens).await?;
                            return Err(error.caused_by(call.identity.clone()));
                        }
                    },
                }
            }
        })
    }

    /// Waits until the provider admits the call. `naps` counts the waits of one run of the function, which are entries
    /// of its journal.
    async fn turn(&self, identity: &StepIdentity, naps: &mut u32) -> Result<Permit, TaskError> {
        let task = self.steps.task();
        let key = identity.label();
        loop {
            let args = acquire_provider::Args {
                execution_id: task.execution_id(),
                fence: task.fence(),
                provider: self.provider.clone(),
                cost: ProviderCost { tokens: self.tokens, ..Default::default() },
                key: key.clone(),
                ttl_ms: self.ttl.map(milliseconds),
            };
            let acquired = {
                let _busy = self.steps.busy();
                task.call::<AcquireProvider>(args).await?
            };
            if acquired.granted {
                return Ok(Permit { task: task.clone(), provider: self.provider.clone(), key, marks: None });
            }
            let wait = Duration::from_millis(u64::try_from(acquired.wait_ms).unwrap_or(0));
            if wait <= SHORT_SLEEP && !self.steps.on_test_clock() {
                let _busy = self.steps.busy();
                tokio::time::sleep(wait).await;
                continue;
            }
            // A sleep that an earlier run of the function has slept through is over at once.
            let name = format!("wait for {}", self.provider);
            let nap = self.steps.call(&name, Some(&format!("{key} {naps}")))?;
            *naps += 1;
            let what = WaitKind::Sleep { sleep_ms: acquired.wait_ms, provider: Some(self.provider.clone()) };
            self.steps.until_ended(&nap, what).await?;
        }
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Permit, TaskError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Permit, TaskError>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let call = self.steps.call(&format!("call {}", self.provider), self.key.as_deref());
        Box::pin(async move {
            let call = call?;
            let known = self.steps.find_same(&call.identity, StepKind::Now, None).await?;
            if known.is_some_and(|known| known.state.is_ended()) {
                // An earlier run of the function made the call and settled it: there is nothing to wait for.
                let (task, provider) = (self.steps.task().clone(), self.provider.clone());
                return Ok(Permit { task, provider, key: String::new(), marks: None });
            }
            let permit = self.turn(&call.identity, &mut 0).await?;
            Ok(Permit { marks: Some((self.steps.clone(), call.identity.clone())), ..permit })
        })
    }
}

impl std::fmt::Debug for Acquire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acquire")
            .field("provider", &self.provider)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

/// The right to make one call. A permit that is dropped counts until its time is up.
#[derive(Debug)]
#[must_use = "a call that is not settled counts until its time is up"]
pub struct Permit {
    task: Arc<ClaimedTask>,
    provider: String,
    /// Empty if an earlier run of the function has settled it.
    key: String,
    /// The journal entry that tells the next run that the call was settled.
    marks: Option<(Arc<Steps>, StepIdentity)>,
}

impl Permit {
    /// Reports that the call was made and cost this many tokens.
    pub async fn settle(self, tokens: u64) -> Result<(), TaskError> {
        if self.key.is_empty() {
            return Ok(());
        }
        self.end(tokens).await?;
        match &self.marks {
            Some((steps, identity)) => {
                let done = StepEntry { kind: Some(StepKind::Now), ..entry(identity, StepState::Completed) };
                steps.record(done).await.map(drop)
            }
            None => Ok(()),
        }
    }

    /// Reports that the call was not made.
    pub async fn release(self) -> Result<(), TaskError> {
        self.report(ProviderCost { requests: 0, ..Default::default() }).await
    }

    /// Reports that the provider throttled the call: it gets no calls before that time, and fewer afterwards.
    pub async fn throttled(self, retry_after: Option<Duration>) -> Result<(), TaskError> {
        let args = throttle_provider::Args {
            name: self.provider.clone(),
            namespace: Some(self.task.namespace().to_owned()),
            status: None,
            retry_after_ms: retry_after.map(milliseconds),
            command_id: None,
        };
        self.task.call::<ThrottleProvider>(args).await?;
        self.end(0).await
    }

    async fn end(&self, tokens: u64) -> Result<(), TaskError> {
        self.report(ProviderCost { tokens, ..Default::default() }).await
    }

    async fn report(&self, actual: ProviderCost) -> Result<(), TaskError> {
        if self.key.is_empty() {
            return Ok(());
        }
        let args = settle_provider::Args {
            execution_id: self.task.execution_id(),
            fence: self.task.fence(),
            provider: self.provider.clone(),
            key: self.key.clone(),
            actual: Some(actual),
        };
        self.task.call::<SettleProvider>(args).await?;
        Ok(())
    }
}
