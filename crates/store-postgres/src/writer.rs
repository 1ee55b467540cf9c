//! Writers: each takes groups of commits from the queue and runs them on a connection of its own pool.

use std::borrow::Cow;
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
use crate::describe::{Describe, View};
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
    pub(crate) view: Option<View>,
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
            view: options.view.filter(|_| options.with_view),
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
        let size = if entangled { batches.len().max(1) } else { GROUP_BATCHES_MAX };
        let mut answers = Vec::with_capacity(1);
        let mut touches = touches.into_iter();
        for first in (0..batches.len()).step_by(size) {
            let part = first..batches.len().min(first + size);
            let (reply, answer) = oneshot::channel();
            let bytes = batches[part.clone()].iter().map(Batch::bytes).sum();
            let touches = touches.by_ref().take(part.len()).collect();
            let (call, counted) = (batches.clone(), counted.clone());
            let job = Job { partition, call, part, touches, counted, entangled, bytes, reply };
            if self.queue.push(job).is_ok() {
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
        let mut answers: Vec<Result<Vec<Outcome>>> = Vec::with_capacity(group.len());
        match self.execute(partition, Work::of(&group)).await {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                answers.extend(group.iter().map(|job| Ok(outcomes.by_ref().take(job.part.len()).collect())));
            }
            // Nothing was applied, and one of the callers is at fault: the others must not suffer for it.
            Err(Failure::Data(_)) if group.len() > 1 => {
                for job in &group {
                    let alone = self.execute(partition, Work::of(std::slice::from_ref(job))).await;
                    answers.push(alone.map_err(StoreError::from));
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
        for (batch, outcome) in job.batches().iter().zip(outcomes) {
            if matches!(outcome, Outcome::Applied(_)) {
                self.notices.send(&batch.hints);
                self.notices.applied(job.partition, batch);
            }
        }
    }

    /// Applies batches in order. Neighbours that touch nothing in common go in one call.
    async fn execute(&self, partition: Partition, mut work: Work<'_>) -> std::result::Result<Vec<Outcome>, Failure> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(work.batches.len());
        while outcomes.len() < work.batches.len() {
            work.learn(partition, self.locks, self.counted());
            match self.attempt(partition, work.wave(outcomes.len())).await {
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
    async fn attempt(&self, partition: Partition, wave: Wave<'_>) -> std::result::Result<Answer, Failure> {
        let mut context = Context {
            partition,
            locks: self.locks,
            floor: self.clock.floor(),
            describe: self.describe,
            view: self.view,
            counted: wave.counted,
            alone: false,
        };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let call = Call::new(wave.batches, wave.touches.iter().map(Cow::as_ref), &context);
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

/// The batches of a group, in order, with what they touch.
struct Work<'a> {
    batches: Vec<&'a Batch>,
    touches: Vec<Cow<'a, Touches>>,
    counted: Arc<HashSet<Key>>,
}

/// Neighbours that touch nothing in common.
struct Wave<'a> {
    batches: &'a [&'a Batch],
    touches: &'a [Cow<'a, Touches>],
    counted: &'a HashSet<Key>,
}

impl<'a> Work<'a> {
    fn of(group: &'a [Job]) -> Self {
        let counted = group.first().map(|job| &job.counted);
        let agreed = counted.filter(|first| group.iter().all(|job| Arc::ptr_eq(first, &job.counted)));
        Self {
            batches: group.iter().flat_map(Job::batches).collect(),
            touches: group.iter().flat_map(|job| job.touches.iter().map(Cow::Borrowed)).collect(),
            // Jobs that do not agree begin with knowing nothing.
            counted: agreed.cloned().unwrap_or_default(),
        }
    }

    /// Works out again what the batches touch, if other logs are counted than was known.
    fn learn(&mut self, partition: Partition, locks: Locks, counted: Arc<HashSet<Key>>) {
        if !Arc::ptr_eq(&self.counted, &counted) {
            let touches = |batch: &&Batch| Cow::Owned(Touches::of(batch, partition, locks, &counted));
            self.touches = self.batches.iter().map(touches).collect();
            self.counted = counted;
        }
    }

    /// As many batches from this place on as touch nothing in common; at least one.
    fn wave(&self, from: usize) -> Wave<'_> {
        let mut touched = Touched::default();
        let alike = self.touches[from..].iter().take_while(|touches| {
            let apart = !touched.overlaps(touches);
            touched.add(touches);
            apart
        });
        let part = from..from + alike.count();
        Wave { batches: &self.batches[part.clone()], touches: &self.touches[part], counted: &self.counted }
    }
}

fn entangled(touches: &[Touches]) -> bool {
    let mut touched = Touched::default();
    touches.iter().any(|touches| {
        let overlaps = touched.overlaps(touches);
        touched.add(touches);
        overlaps
    })
}
