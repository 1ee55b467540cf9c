//! Commits waiting for a writer. A writer takes as many as touch nothing in common, so that many callers share one
//! round trip and one flush of the log.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::{Key, Partition};
use ff_store::{Batch, Outcome, Result};
use tokio::sync::{Notify, oneshot};

use crate::touch::{Touched, Touches};

/// Batches in one group; more make nothing faster and every caller wait longer.
pub(crate) const GROUP_BATCHES_MAX: usize = 64;
/// Bytes in one group, unless a single call is larger.
const GROUP_MAX_BYTES: usize = 4 * 1024 * 1024;
/// How far a writer looks for calls that fit its group.
const LOOK_AHEAD: usize = 256;

/// One call, or a part of one.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) partition: Partition,
    pub(crate) call: Arc<[Batch]>,
    /// The batches of the call that are this job.
    pub(crate) part: Range<usize>,
    /// What each of them touches, as far as these logs are all that are counted.
    pub(crate) touches: Vec<Touches>,
    pub(crate) counted: Arc<HashSet<Key>>,
    /// Its batches touch each other: no other job joins it.
    pub(crate) entangled: bool,
    pub(crate) bytes: usize,
    pub(crate) reply: oneshot::Sender<Result<Vec<Outcome>>>,
}

impl Job {
    pub(crate) fn batches(&self) -> &[Batch] {
        &self.call[self.part.clone()]
    }
}

/// Where jobs wait.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Job>,
    /// The documents and logs that the groups under way touch. A job that touches one of them would only wait inside
    /// the database.
    under_way: Touched,
    closed: bool,
}

impl Queue {
    /// Adds a job; gives it back when the queue is closed.
    pub(crate) fn push(&self, job: Job) -> std::result::Result<(), Job> {
        let mut state = self.lock();
        if state.closed {
            return Err(job);
        }
        state.waiting.push_back(job);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The next group, all of one partition; `None` once the queue is closed and empty. Safe to cancel.
    pub(crate) async fn next(&self) -> Option<Vec<Job>> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                let group = state.take();
                if !group.is_empty() {
                    if !state.waiting.is_empty() {
                        self.changed.notify_one();
                    }
                    return Some(group);
                }
                if state.closed && state.waiting.is_empty() {
                    self.changed.notify_waiters();
                    return None;
                }
            }
            changed.await;
        }
    }

    /// A group is done.
    pub(crate) fn done<'a>(&self, touches: impl Iterator<Item = &'a Touches>) {
        let mut state = self.lock();
        for touches in touches {
            state.under_way.remove(touches);
        }
        let more = !state.waiting.is_empty();
        drop(state);
        if more {
            self.changed.notify_one();
        }
    }

    /// Takes no more jobs.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in the critical sections can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self) -> Vec<Job> {
        let mut group: Vec<Job> = Vec::new();
        let (mut batches, mut bytes, mut place) = (0, 0, 0);
        while place < self.waiting.len().min(LOOK_AHEAD) && batches < GROUP_BATCHES_MAX {
            let job = &self.waiting[place];
            let fits = match group.first() {
                None => true,
                Some(first) => {
                    first.partition == job.partition
                        && !first.entangled
                        && !job.entangled
                        && batches + job.part.len() <= GROUP_BATCHES_MAX
                        && bytes + job.bytes <= GROUP_MAX_BYTES
                }
            };
            if !fits || job.touches.iter().any(|touches| self.under_way.overlaps(touches)) {
                place += 1;
                continue;
            }
            let job = self.waiting.remove(place).expect("the place was just looked at");
            job.touches.iter().for_each(|touches| self.under_way.add(touches));
            batches += job.part.len();
            bytes += job.bytes;
            group.push(job);
        }
        group
    }
}
