//! Jobs that wait for a thread. The queue is bounded. It is closed once; a job that was accepted before is still handed
//! out.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ff_store::{Result, StoreError};

/// Calls that may wait at a time. Every caller waits for its answer, so only very many callers at once reach this
/// limit.
const WAITING_MAX: usize = 65_536;

/// A queue between callers and the threads that serve them.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    /// The number of waiting jobs at which a thread is woken.
    wake_at: usize,
    closed: bool,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State { waiting: VecDeque::new(), wake_at: 1, closed: false }),
            arrived: Condvar::new(),
        }
    }

    /// Adds a job.
    pub(crate) fn push(&self, item: T) -> Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(StoreError::Unavailable("the store is closed".into()));
        }
        if state.waiting.len() >= WAITING_MAX {
            return Err(StoreError::Unavailable(format!("{WAITING_MAX} calls wait already")));
        }
        state.waiting.push_back(item);
        let wake = state.waiting.len() >= state.wake_at;
        drop(state);
        if wake {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Waits for a job; `None` once the queue is closed and empty.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.waiting.pop_front() {
                return Some(item);
            }
            if state.closed {
                return None;
            }
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a short time until so many jobs wait. For a queue that only one thread serves.
    pub(crate) fn gather(&self, wanted: usize, wait_max: Duration) {
        let mut state = self.lock();
        state.wake_at = wanted;
        let gathering = |state: &mut State<T>| state.waiting.len() < wanted && !state.closed;
        let waited = self.arrived.wait_timeout_while(state, wait_max, gathering);
        waited.unwrap_or_else(PoisonError::into_inner).0.wake_at = 1;
    }

    /// Takes waiting jobs, in order, as long as `wanted` accepts them.
    pub(crate) fn pop_while(&self, into: &mut Vec<T>, mut wanted: impl FnMut(&T) -> bool) {
        let mut state = self.lock();
        while state.waiting.front().is_some_and(&mut wanted) {
            into.extend(state.waiting.pop_front());
        }
    }

    /// Accepts nothing more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Accepts nothing more and drops the waiting jobs: each caller learns that no answer will come.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.arrived.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No method panics half way through a change, so the queue behind a poisoned lock is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
