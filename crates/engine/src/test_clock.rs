//! A clock that only a test moves, and how it is moved.
//!
//! The store on this clock and the engine agree on the time to the millisecond, because both read it here. Everything
//! that is an instant of the store follows it: leases, wake-ups, retries, timeouts, windows, retention. Waits in a
//! process's own time go on: long polls, repeats of calls, sweeps. Moving the clock stops at every instant at which
//! something is due, so that what follows from one timer may come before the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::{Mutex, MutexGuard, watch};

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct TestClock {
    now: AtomicI64,
    /// Moves come one after the other.
    moving: Mutex<()>,
    /// How many changes the engine has made, for callers that wait until it makes no more.
    changes: watch::Sender<u64>,
}

impl TestClock {
    /// A clock that shows this many milliseconds since the epoch.
    pub fn starting_at(now: i64) -> Arc<Self> {
        Arc::new(Self { now: AtomicI64::new(now), moving: Mutex::default(), changes: watch::Sender::default() })
    }

    /// The time that it shows.
    pub fn now(&self) -> i64 {
        self.now.load(Ordering::SeqCst)
    }

    /// The clock of a store on it.
    pub fn source(self: &Arc<Self>) -> ff_store::memory::Clock {
        let clock = self.clone();
        Arc::new(move || clock.now())
    }

    /// Tells of the engine's changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The engine changed something.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    pub(crate) async fn one_mover(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().await
    }

    pub(crate) fn show(&self, now: i64) {
        self.now.fetch_max(now, Ordering::SeqCst);
    }
}
