//! Services: the tasks that run for as long as the engine does. One that panics is started again after a pause, counted,
//! and shown by whoever asks whether this process is fit to serve.
//!
//! A defect that one document or one hint sets off must not end all timers. So what a service does for one of them is
//! contained as well, where it stands alone: the panic is an error of that one, and the service goes on.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;

use ff_core::{Code, Error, Result};
use futures_util::FutureExt;

use crate::engine::Engine;

/// The pause before a service that panicked is started again; it doubles each time.
const RESTART_MS: i64 = 100;
/// The longest of these pauses.
const RESTART_MAX_MS: i64 = 30_000;
/// A service that ran for this long is trusted again: its next pause is the shortest.
const TRUSTED_MS: i64 = 60_000;

/// How one service fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceHealth {
    /// Its name.
    pub name: &'static str,
    /// How often it, or something it did, has panicked and was begun again since the engine was started.
    pub restarts: u64,
    /// Whether it runs now; it does not while it waits to be started again.
    pub running: bool,
}

/// The services that wait to be started again.
#[derive(Default)]
pub(crate) struct Services(Mutex<BTreeSet<&'static str>>);

impl Services {
    fn down(&self) -> std::sync::MutexGuard<'_, BTreeSet<&'static str>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Engine {
    /// How the services of this engine fare.
    pub fn services(&self) -> Vec<ServiceHealth> {
        let restarts = self.metrics().service_restarts();
        let down = self.service_states().down();
        restarts
            .into_iter()
            .map(|(name, restarts)| ServiceHealth { name, restarts, running: !down.contains(name) })
            .collect()
    }

    /// Runs a service until it ends by itself or the engine closes.
    pub(crate) fn run_service<R>(&self, name: &'static str, run: impl Fn(Engine) -> R + Send + Sync + 'static)
    where
        R: Future<Output = ()> + Send + 'static,
    {
        self.metrics().service_started(name);
        let engine = self.clone();
        self.spawn_owned(async move {
            let mut pause_ms = RESTART_MS;
            loop {
                let started = engine.env().now_ms();
                let Err(panic) = AssertUnwindSafe(async { run(engine.clone()).await }).catch_unwind().await else {
                    return;
                };
                engine.service_states().down().insert(name);
                if engine.env().now_ms() - started >= TRUSTED_MS {
                    pause_ms = RESTART_MS;
                }
                tracing::error!(service = name, pause_ms, "a service panicked; starting it again");
                engine.panicked(name, panic);
                engine.env().sleep(pause_ms).await;
                pause_ms = (pause_ms * 2).min(RESTART_MAX_MS);
                engine.service_states().down().remove(name);
                // What it was about to do when it panicked is forgotten; it is still in the store.
                engine.timers().sweep_now();
            }
        });
    }

    /// Does something that stands alone on behalf of a service. A panic is its error, and is counted.
    pub(crate) async fn contain<T>(&self, name: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
        match AssertUnwindSafe(work).catch_unwind().await {
            Ok(outcome) => outcome,
            Err(panic) => {
                let text = self.panicked(name, panic);
                Err(Error::new(Code::Internal, format!("a panic: {text}")))
            }
        }
    }

    /// Counts a panic; says what it was about.
    fn panicked(&self, name: &'static str, panic: Box<dyn Any + Send>) -> String {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        tracing::error!(service = name, panic = text, "a panic in a service; this is a defect, report it");
        self.metrics().service_panicked(name);
        self.env().panicked(panic);
        text
    }
}
