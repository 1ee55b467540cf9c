//! Writers: each takes groups of commits from the queue and runs them on a connection of its own pool.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use ff_core::{Key, Partition};
use ff_store::{Batch, Outcome, Result, StoreError};
use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::answer::Answer;
use crate::clock::Clock;
use crate::commit::{Call, Context, statement};
use crate::connect;
use crate::describe::Describe;
use crate::error::{self, Failure};
use crate::locks::Locks;
use crate::queue::{GROUP_BATCHES_MAX, Job, Queue};
use crate::touch::{Touched, Touches};
use crate::watch::Notices;

/// Deadlocks and serialization failures are tried again this often.
const ATTEMPTS_MAX: u32 = 10;
/// Names of counted logs that are remembered, so that they are asked for once.
const COUNTED_MAX: usize = 10_000;

/// The parts that all writers of a store share.
pub(crate) struct Writers {
    pub(crate) queue: Queue,
    pub(crate) pool: Pool,
    pub(crate) locks: Locks,
    pub(crate) describe: Option<Describe>,
    pub(crate) answer_timeout: Duration,
    pub(crate) clock: Arc<Clock>,
    pub(crate) notices: Notices,
    counted: Mutex<Arc<HashSet<Key>>>,
    statement: String,
}

impl Writers {
    pub(crate) fn new(pool: Pool, locks: Locks, options: &crate::Options, clock: Arc<Clock>, notices: Notices) -> Self {
        Self {
            queue: Queue::default(),
            pool,
            locks,
            describe: options.describe,
            answer_timeout: options.answer_timeout(),
            clock,
            notices,
            counted: Mutex::default(),
            statement: statement(),
        }
    }

    /// Hands a call to the writers and waits for its outcomes. A caller that goes away changes nothing.
    pub(crate) async fn commit(&self, partition: Partition, batches: Arc<[Batch]>) -> Result<Vec<Outcome>> {
        batches.iter().try_for_each(Batch::validate)?;
        let counted = self.counted();
        let touches: Vec<Touches> =
            batches.iter().map(|batch| Touches::of(batch, partition, self.locks, &counted)).collect();
        let entangled = entangled(&touches);
        // Independent batches need not wait for each other.
        let part = if entangled { batches.len().max(1) } else { GROUP_BATCHES_MAX };
        let mut answers = Vec::with_capacity(1);
        let mut touches = touches.into_iter();
        for batches in batches.chunks(part) {
            let batches = batches.to_vec();
            let (reply, answer) = oneshot::channel();
            let bytes = batches.iter().map(Batch::bytes).sum();
            let touches = touches.by_ref().take(part).collect();
            if self.queue.push(Job { partition, batches, touches, entangled, bytes, reply }).is_ok() {
                answers.push(answer);
            } else {
                let closed = "the store is closed".to_owned();
                let error =
                    if answers.is_empty() { StoreError::Unavailable(closed) } else { StoreError::Unknown(closed) };
                return Err(error);
            }
        }
        let parts = answers.len();
        let mut outcomes = Vec::new();
        let mut failed = None;
        for answer in join_all(answers).await {
            match answer.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".into()))) {
                Ok(more) => outcomes.extend(more),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            None => Ok(outcomes),
            Some(error) if parts == 1 => Err(error),
            Some(error) => Err(StoreError::Unknown(format!("a part of the call failed: {error}"))),
        }
    }

    /// Works until the queue is closed and empty.
    pub(crate) async fn run(self: Arc<Self>) {
        while let Some(group) = self.queue.next().await {
            self.run_group(group).await;
        }
    }

    async fn run_group(&self, group: Vec<Job>) {
        let Some(partition) = group.first().map(|job| job.partition) else { return };
        let batches: Vec<&Batch> = group.iter().flat_map(|job| &job.batches).collect();
        let mut answers: Vec<Result<Vec<Outcome>>> = Vec::with_capacity(group.len());
        match self.execute(partition, &batches).await {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                answers.extend(group.iter().map(|job| Ok(outcomes.by_ref().take(job.batches.len()).collect())));
            }
            // Nothing was applied, and one of the callers is at fault: the others must not suffer for it.
            Err(Failure::Data(_)) if group.len() > 1 => {
                for job in &group {
                    let batches: Vec<&Batch> = job.batches.iter().collect();
                    answers.push(self.execute(partition, &batches).await.map_err(StoreError::from));
                }
            }
            Err(failure) => {
                let error = StoreError::from(failure);
                answers.extend(group.iter().map(|_| Err(error.clone())));
            }
        }
        self.queue.done(group.iter().flat_map(|job| &job.touches));
        for (job, answer) in group.into_iter().zip(answers) {
            if let Ok(outcomes) = &answer {
                self.tell(&job, outcomes);
            }
            // A caller that went away is told nothing; its commit stands.
            let _ = job.reply.send(answer);
        }
    }

    /// Sends the notices that follow a commit: hints, and the trimming of logs that have a cap.
    fn tell(&self, job: &Job, outcomes: &[Outcome]) {
        for (batch, outcome) in job.batches.iter().zip(outcomes) {
            if matches!(outcome, Outcome::Applied(_)) {
                self.notices.send(&batch.hints);
                for append in batch.appends.iter().filter(|append| append.cap > 0) {
                    self.notices.appended(job.partition, append);
                }
            }
        }
    }

    /// Applies batches in order. Neighbours that touch nothing in common go in one call.
    async fn execute(&self, partition: Partition, batches: &[&Batch]) -> std::result::Result<Vec<Outcome>, Failure> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(batches.len());
        while outcomes.len() < batches.len() {
            let counted = self.counted();
            let rest = &batches[outcomes.len()..];
            let wave = &rest[..wave(rest, partition, self.locks, &counted)];
            match self.attempt(partition, wave, &counted).await {
                Ok(Answer::Done(more, now)) => {
                    self.clock.observe(now);
                    outcomes.extend(more);
                }
                Ok(Answer::Recount(logs)) => self.remember(logs),
                Err(failure) if outcomes.is_empty() => return Err(failure),
                Err(failure) => {
                    let why = format!("a part of the call was applied, then {}", StoreError::from(failure));
                    return Err(Failure::Store(StoreError::Unknown(why)));
                }
            }
        }
        Ok(outcomes)
    }

    /// One call, repeated while nothing was applied and it may pass.
    async fn attempt(
        &self,
        partition: Partition,
        batches: &[&Batch],
        counted: &HashSet<Key>,
    ) -> std::result::Result<Answer, Failure> {
        let mut context = Context {
            partition,
            locks: self.locks,
            floor: self.clock.floor(),
            describe: self.describe,
            counted,
            alone: false,
        };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let call = Call::new(batches, &context);
            match self.send(&call).await {
                Err(Failure::Again(_)) if attempt < ATTEMPTS_MAX => {
                    tracing::debug!(attempt, "a commit met a deadlock or a serialization failure");
                    tokio::time::sleep(Duration::from_millis(u64::from(attempt))).await;
                }
                Err(Failure::Locks(_)) if !context.alone => context.alone = true,
                other => return other,
            }
        }
    }

    async fn send(&self, call: &Call<'_>) -> std::result::Result<Answer, Failure> {
        let client = connect::take(&self.pool).await.map_err(Failure::Store)?;
        let statement = async { client.prepare_cached(&self.statement).await.map_err(|error| error::reading(&error)) };
        let statement = match connect::within(self.answer_timeout, statement).await {
            Ok(statement) => statement,
            Err(error) => {
                drop(Object::take(client));
                return Err(Failure::Store(error));
            }
        };
        let arguments = call.arguments();
        let query = client.query_one(&statement, &arguments);
        let failure = match tokio::time::timeout(self.answer_timeout, query).await {
            Ok(Ok(row)) => return call.answer(&row).map_err(Failure::Store),
            Ok(Err(error)) => error::committing(&error),
            Err(_) => Failure::Store(StoreError::Unknown("no answer in time".into())),
        };
        if matches!(failure, Failure::Store(StoreError::ReadOnly(_))) {
            // Another server takes the writes now: the other connections lead to the same place as this one.
            self.pool.retain(|_, _| false);
        }
        // An interrupted call may hold the lock of the numbers; it goes with the connection.
        drop(Object::take(client));
        Err(failure)
    }

    fn counted(&self) -> Arc<HashSet<Key>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remember(&self, logs: Vec<Key>) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = if counted.len() < COUNTED_MAX { HashSet::clone(&counted) } else { HashSet::new() };
        changed.extend(logs);
        *counted = Arc::new(changed);
    }
}

/// How many of the first batches touch nothing in common; at least one.
fn wave(batches: &[&Batch], partition: Partition, locks: Locks, counted: &HashSet<Key>) -> usize {
    let mut touched = Touched::default();
    for (place, batch) in batches.iter().enumerate() {
        let touches = Touches::of(batch, partition, locks, counted);
        if touched.overlaps(&touches) {
            return place;
        }
        touched.add(&touches);
    }
    batches.len()
}

fn entangled(touches: &[Touches]) -> bool {
    let mut touched = Touched::default();
    touches.iter().any(|touches| {
        let overlaps = touched.overlaps(touches);
        touched.add(touches);
        overlaps
    })
}
