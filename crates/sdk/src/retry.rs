//! When a call is repeated, and when not. Every call carries its identity, so a repeat has the effect of one call.

use std::time::Duration;

use ff_engine::env::BoxFuture;
use tokio::time::Instant;

use crate::error::may_pass;
use crate::transport::Failure;

/// How long a client keeps trying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The pause before the first repeat; it doubles with each further one.
    pub initial_backoff: Duration,
    /// The longest pause.
    pub max_backoff: Duration,
    /// No repeat begins later than this after the first try; zero switches repeats off.
    pub max_elapsed: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            max_elapsed: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// Every failure is final.
    pub fn never() -> Self {
        Self { max_elapsed: Duration::ZERO, ..Self::default() }
    }
}

/// The repeats of one call.
#[derive(Debug)]
pub(crate) struct Retries<'a> {
    policy: &'a RetryPolicy,
    started: Instant,
    repeats: u32,
}

impl<'a> Retries<'a> {
    pub(crate) fn new(policy: &'a RetryPolicy) -> Self {
        Self { policy, started: Instant::now(), repeats: 0 }
    }

    /// Waits for the right moment to repeat; a failure that is final comes back. Boxed, so that programs which call
    /// operations do not compile it again.
    pub(crate) fn after(&mut self, failure: Failure) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.wait_after(failure))
    }

    async fn wait_after(&mut self, failure: Failure) -> Result<(), Failure> {
        let Some(least) = pause(&failure) else { return Err(failure) };
        let exponential = self.policy.initial_backoff.saturating_mul(1 << self.repeats.min(16));
        let backoff = jitter(exponential.min(self.policy.max_backoff)).max(least);
        if self.started.elapsed() + backoff >= self.policy.max_elapsed {
            return Err(failure);
        }
        self.repeats += 1;
        tracing::debug!(%failure, repeats = self.repeats, "a call is repeated");
        tokio::time::sleep(backoff).await;
        Ok(())
    }
}

/// The least pause after a failure that may pass; `None` for one that will not.
fn pause(failure: &Failure) -> Option<Duration> {
    match failure {
        Failure::Unreachable(_) => Some(Duration::ZERO),
        Failure::Refused(error) => {
            let asked = u64::try_from(error.retry_after_ms.unwrap_or(0)).unwrap_or(0);
            may_pass(error).then(|| Duration::from_millis(asked))
        }
        Failure::Unknown(refusal) => (refusal.retryable && refusal.status == 503)
            .then(|| Duration::from_millis(u64::try_from(refusal.retry_after_ms.unwrap_or(0)).unwrap_or(0))),
        Failure::Closed(_) | Failure::Unreadable(_) => None,
    }
}

/// Between half and all of a pause, so that callers that failed together do not come back together.
fn jitter(pause: Duration) -> Duration {
    let share = u32::from(uuid::Uuid::new_v4().as_bytes()[0]);
    pause / 2 + pause.saturating_mul(share) / 512
}
