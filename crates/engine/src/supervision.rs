//! Services: the tasks that run for as long as the engine does. One that panics is started again after a pause,
//! counted, and shown to a caller that asks whether this process is fit to serve.
//!
//! A defect that one document or one hint triggers must not stop all timers. So the work of a service for one document
//! is contained as well: a panic is an error of that work alone, and the service goes on.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use crate::transaction::Transactor;

/// The pause before a service that panicked is started again; it doubles each time.
const RESTART_MS: i64 = 100;
/// The longest of these pauses.
const RESTART_MAX_MS: i64 = 30_000;
/// A service that ran for this long is trusted again: its next pause is the shortest.
const TRUSTED_MS: i64 = 60_000;

/// The health of one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceHealth {
    /// Its name.
    pub name: &'static str,
    /// How often it, or a part of its work, has panicked since the engine was started.
    pub restarts: u64,
    /// Whether it runs now; it does not while it waits to be started again.
    pub running: bool,
}

/// The health of the services of an engine.
pub(crate) fn health(transactor: &Transactor) -> Vec<ServiceHealth> {
    let restarts = transactor.metrics().service_restarts();
    let down = transactor.runtime().down();
    restarts
        .into_iter()
        .map(|(name, restarts)| ServiceHealth { name, restarts, running: !down.contains(name) })
        .collect()
}

/// Runs a service until it ends by itself or the engine closes.
pub(crate) fn run_service<R>(transactor: &Transactor, name: &'static str, run: impl Fn() -> R + Send + Sync + 'static)
where
    R: Future<Output = ()> + Send + 'static,
{
    transactor.metrics().service_started(name);
    let own = transactor.clone();
    transactor.spawn_owned(async move {
        let mut pause_ms = RESTART_MS;
        loop {
            let started = own.env().now_ms();
            let Err(panic) = AssertUnwindSafe(async { run().await }).catch_unwind().await else {
                return;
            };
            own.runtime().down().insert(name);
            if own.env().now_ms() - started >= TRUSTED_MS {
                pause_ms = RESTART_MS;
            }
            tracing::error!(service = name, pause_ms, "a service panicked; starting it again");
            own.runtime().panicked(name, panic);
            own.env().sleep(pause_ms).await;
            pause_ms = (pause_ms * 2).min(RESTART_MAX_MS);
            own.runtime().down().remove(name);
            // The work it was about to do when it panicked is forgotten; it is still in the store.
            own.due().sweep_now();
        }
    });
}
