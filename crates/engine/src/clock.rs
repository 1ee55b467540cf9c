//! The store's time, estimated between its answers. It dates documents; whether a lease holds is judged by the store
//! itself inside the commit.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::env::Env;

/// How far the store's clock is from the process's.
#[derive(Debug)]
pub(crate) struct StoreClock {
    offset_ms: AtomicI64,
}

impl StoreClock {
    /// Starts from one answer of the store.
    pub(crate) fn new(env: &dyn Env, store_now: i64) -> Self {
        Self { offset_ms: AtomicI64::new(store_now - env.now_ms()) }
    }

    /// Every answer of the store corrects the estimate. The answer is older than its arrival, so the estimate runs
    /// behind by at most the way back, never ahead.
    pub(crate) fn observe(&self, env: &dyn Env, store_now: i64) {
        self.offset_ms.store(store_now - env.now_ms(), Ordering::Relaxed);
    }

    /// The store's time, as far as we know.
    pub(crate) fn now(&self, env: &dyn Env) -> i64 {
        env.now_ms() + self.offset_ms.load(Ordering::Relaxed)
    }
}
