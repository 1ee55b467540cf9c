//! The parts of the process that everything in an engine shares: the environment, what is counted and logged, the tasks
//! that end with the engine, and whether it closes.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ff_core::{Code, Error, LogLimit, Result};
use futures_util::FutureExt;

use crate::env::{Env, Tasks};
use crate::metrics::Metrics;

/// One engine's part of its process.
pub(crate) struct Runtime {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) metrics: Metrics,
    /// The tasks that end with the engine.
    pub(crate) tasks: Tasks,
    log_limit: LogLimit,
    /// Services that wait to be started again.
    down: Mutex<BTreeSet<&'static str>>,
    closing: AtomicBool,
}

impl Runtime {
    pub(crate) fn new(env: Arc<dyn Env>) -> Self {
        Self {
            env,
            metrics: Metrics::default(),
            tasks: Tasks::default(),
            log_limit: LogLimit::new(),
            down: Mutex::default(),
            closing: AtomicBool::new(false),
        }
    }

    /// Whether a line that a loop may repeat is to be written now: then how many of it were suppressed.
    pub(crate) fn may_log(&self, line: &'static str) -> Option<u64> {
        self.log_limit.admit(line, self.env.now_ms())
    }

    /// The engine closes: whatever waits, or begins something new, is to stop.
    pub(crate) fn close(&self, closing: bool) {
        self.closing.store(closing, Ordering::SeqCst);
    }

    pub(crate) fn refuse_if_closing(&self) -> Result<()> {
        if self.closing.load(Ordering::SeqCst) { Err(Error::of(Code::ShuttingDown).retry_after(1_000)) } else { Ok(()) }
    }

    /// The services that wait to be started again.
    pub(crate) fn down(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.down.lock().expect("no holder of this lock panics")
    }

    /// Does something that stands alone on behalf of a service. A panic is its error, and is counted.
    pub(crate) fn contain<T>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> impl Future<Output = Result<T>> {
        AssertUnwindSafe(work).catch_unwind().map(move |done| {
            done.unwrap_or_else(|panic| {
                let text = self.panicked(name, panic);
                Err(Error::new(Code::Internal, format!("a panic: {text}")))
            })
        })
    }

    /// Counts a panic; says what it was about.
    pub(crate) fn panicked(&self, name: &'static str, panic: Box<dyn Any + Send>) -> String {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        tracing::error!(service = name, panic = text, "a panic in a service; this is a defect, report it");
        self.metrics.service_panicked(name);
        self.env.panicked(panic);
        text
    }
}
