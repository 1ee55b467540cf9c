//! Brings about what a document still owes elsewhere: its end told to its downstreams and its flow, concurrency slots
//! given back, a flow's cancellation told to its members. Right after the commit that left the mark, and by sweep after
//! a crash: whatever happens between two commits, the mark stays until the last of them clears it.
//!
//! Each partition has one queue of marked keys and at most one task that drains it, so that a thousand upstreams of one
//! child are resolved together in a few commits instead of fighting over it.

mod cancellation;
mod edges;
mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use ff_core::execution::Execution;
use ff_core::index::kind;
use ff_core::{Code, Error, Key, Partition, Result, SlotId, limits};

use self::edges::{Position, Resolve, Resolved};
use crate::engine::Engine;

/// After trouble a mark is tried again this much later; the wait doubles each time.
const RETRY_MS: i64 = 100;
/// The longest of these waits.
const RETRY_MAX_MS: i64 = 30_000;
/// So often; after that the mark is left to the next sweep.
const RETRIES_MAX: u32 = 12;

/// The marked documents of every partition that are known and not resolved.
#[derive(Default)]
pub(crate) struct Resolver(Mutex<BTreeMap<Partition, Queue>>);

#[derive(Default)]
struct Queue {
    keys: BTreeSet<Key>,
    /// How often in a row a mark could not be resolved.
    failures: BTreeMap<Key, u32>,
    draining: bool,
}

impl Resolver {
    /// Takes in a key; says whether somebody must begin to drain.
    fn push(&self, partition: Partition, key: Key) -> bool {
        let mut queues = self.queues();
        let queue = queues.entry(partition).or_default();
        queue.keys.insert(key);
        !std::mem::replace(&mut queue.draining, true)
    }

    /// Hands out keys; with none left the drainer must stop.
    fn take(&self, partition: Partition, limit: usize) -> Vec<Key> {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(&partition) else { return Vec::new() };
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(key) = queue.keys.pop_first()
        {
            taken.push(key);
        }
        if taken.is_empty() {
            queue.draining = false;
            if queue.failures.is_empty() {
                queues.remove(&partition);
            }
        }
        taken
    }

    fn succeeded(&self, partition: Partition, key: &Key) {
        if let Some(queue) = self.queues().get_mut(&partition) {
            queue.failures.remove(key);
        }
    }

    /// How long to wait before the next try; none when it is left to the sweep.
    fn failed(&self, partition: Partition, key: &Key) -> Option<i64> {
        let mut queues = self.queues();
        let failures = &mut queues.entry(partition).or_default().failures;
        let count = failures.entry(key.clone()).or_default();
        *count += 1;
        if *count > RETRIES_MAX {
            failures.remove(key);
            return None;
        }
        Some((RETRY_MS << (*count - 1).min(16)).min(RETRY_MAX_MS))
    }

    fn queues(&self) -> std::sync::MutexGuard<'_, BTreeMap<Partition, Queue>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Engine {
    /// Resolves a marked document, together with others of its partition, in a task beside the caller.
    pub(crate) fn resolve_soon(&self, partition: Partition, key: Key) {
        if !self.options().services {
            return;
        }
        if self.resolver().push(partition, key) {
            let engine = self.clone();
            self.spawn_short(async move { engine.drain(partition).await });
        }
    }

    async fn drain(&self, partition: Partition) {
        loop {
            let keys = self.resolver().take(partition, limits::RESOLVE_CHUNK);
            if keys.is_empty() {
                return;
            }
            let (executions, others) = keys.into_iter().partition(|key| key.kind() == kind::EXECUTION);
            self.resolve_executions(partition, executions).await;
            for key in others {
                if key.kind() == kind::FLOW {
                    let outcome = self.carry_out_cancellation(partition, &key).await;
                    self.note_outcome(partition, &key, outcome);
                }
            }
        }
    }

    /// Resolves executions together for as long as that works, and one by one when something is wrong with one.
    async fn resolve_executions(&self, partition: Partition, keys: Vec<Key>) {
        let mut work: Work = keys.into_iter().map(|key| (key, Progress::default())).collect();
        let mut chunk = limits::RESOLVE_CHUNK;
        while !work.is_empty() {
            match self.resolve_some(partition, &mut work, chunk).await {
                Ok(()) => {}
                Err(error) if error.code == Code::CommitTooLarge && chunk > 1 => chunk /= 2,
                Err(error) if work.len() == 1 || error.code.retryable() => {
                    for (key, _) in std::mem::take(&mut work) {
                        self.note_outcome(partition, &key, Err(error.clone()));
                    }
                }
                Err(_) => {
                    for (key, progress) in std::mem::take(&mut work) {
                        let mut alone = Work::from([(key.clone(), progress)]);
                        while !alone.is_empty() {
                            if let Err(error) = self.resolve_some(partition, &mut alone, chunk).await {
                                self.note_outcome(partition, &key, Err(error));
                                break;
                            }
                        }
                    }
                }
            }
        }
    }

    /// One commit: removes from `work` what is done, and remembers how far the rest is.
    async fn resolve_some(&self, partition: Partition, work: &mut Work, chunk: usize) -> Result<()> {
        let verb = Resolve { work, chunk };
        let resolved = self.transact(partition, self.fresh_command(), &verb).await?;
        for (key, outcome) in resolved {
            match outcome {
                Resolved::Done => {
                    work.remove(&key);
                    self.resolver().succeeded(partition, &key);
                }
                Resolved::More(position) => {
                    if let Some(progress) = work.get_mut(&key) {
                        progress.position = position;
                    }
                }
                Resolved::Slots(execution) => match self.release_owed_slots(&execution).await {
                    Ok(()) => {
                        if let Some(progress) = work.get_mut(&key) {
                            progress.released.extend(execution.owed_slots.iter().copied());
                        }
                    }
                    Err(error) => {
                        work.remove(&key);
                        self.note_outcome(partition, &key, Err(error));
                    }
                },
            }
        }
        Ok(())
    }

    fn note_outcome(&self, partition: Partition, key: &Key, outcome: Result<(), Error>) {
        let Err(error) = outcome else {
            self.resolver().succeeded(partition, key);
            return;
        };
        match self.resolver().failed(partition, key) {
            Some(wait_ms) => {
                tracing::warn!(%partition, ?key, %error, wait_ms, "a mark could not be resolved; trying again");
                let (engine, key) = (self.clone(), key.clone());
                self.spawn_short(async move {
                    engine.env().sleep(wait_ms).await;
                    if engine.refuse_if_closing().is_ok() {
                        engine.resolve_soon(partition, key);
                    }
                });
            }
            None => tracing::error!(%partition, ?key, %error, "a mark cannot be resolved; left to the next sweep"),
        }
    }
}

/// What is being resolved, and how far it is.
type Work = BTreeMap<Key, Progress>;

#[derive(Default, Debug, Clone)]
pub(crate) struct Progress {
    position: Option<Position>,
    /// Slots that were given back in the quota's partition and may be forgotten here.
    released: Vec<SlotId>,
}

impl Progress {
    fn owed(&self, execution: &Execution) -> bool {
        execution.owed_slots.iter().any(|slot| !self.released.contains(slot))
    }
}
