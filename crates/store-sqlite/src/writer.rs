//! The one thread that writes: it takes all waiting calls, commits them in one transaction, and then answers them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_core::Partition;
use ff_store::{Batch, HintSender, Outcome, Result, StoreError, WatchEvent};
use rusqlite::{Connection, Statement};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::commit::Commits;
use crate::error;
use crate::queue::Queue;
use crate::sweep::Sweep;
use crate::wal::Wal;

/// Batches that share a transaction at most, so that no caller waits long for the others.
const GROUP_MAX_BATCHES: usize = 1_000;
/// Bytes that share a transaction at most.
const GROUP_MAX_BYTES: usize = 8 * 1024 * 1024;

/// The longest wait for more callers; the wait is also bounded by a part of the time that the last transaction took.
const GATHER_MAX: Duration = Duration::from_millis(1);

/// One call of `commit`, waiting for its answer.
#[derive(Debug)]
pub(crate) struct Job {
    partition: Partition,
    batches: Arc<[Batch]>,
    bytes: usize,
    answer: oneshot::Sender<Result<Vec<Outcome>>>,
}

impl Job {
    pub(crate) fn new(partition: Partition, batches: Arc<[Batch]>) -> (Self, oneshot::Receiver<Result<Vec<Outcome>>>) {
        let (answer, answered) = oneshot::channel();
        let bytes = batches.iter().map(Batch::bytes).sum();
        (Self { partition, batches, bytes, answer }, answered)
    }
}

/// The parts that the writer's thread owns.
pub(crate) struct Writer<'c> {
    connection: &'c Connection,
    begin: Statement<'c>,
    commit: Statement<'c>,
    rollback: Statement<'c>,
    keep_time: Statement<'c>,
    commits: Commits<'c>,
    sweep: Sweep<'c>,
    writing: Writing,
}

/// The parts that the writer works with, besides its connection.
pub(crate) struct Writing {
    pub(crate) clock: Arc<Clock>,
    pub(crate) hints: HintSender,
    pub(crate) wal: Wal,
}

/// The place where a transaction failed; it decides which callers hear of it.
enum Failure {
    /// At `BEGIN`: another program has locked the file, or it is out of reach. All callers of the group hear of it.
    Begin(StoreError),
    /// Before `COMMIT`: perhaps the fault of one call.
    Before(StoreError),
    /// At `COMMIT`: all callers of the group hear of it.
    Commit(StoreError),
}

impl From<rusqlite::Error> for Failure {
    fn from(why: rusqlite::Error) -> Self {
        Failure::Before(error::before_commit(&why))
    }
}

impl<'c> Writer<'c> {
    pub(crate) fn prepare(connection: &'c Connection, writing: Writing) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            rollback: connection.prepare("ROLLBACK")?,
            keep_time: connection.prepare("UPDATE clock SET last = ?1")?,
            commits: Commits::prepare(connection)?,
            sweep: Sweep::prepare(connection)?,
            writing,
        })
    }

    /// Serves until the queue is closed and empty.
    pub(crate) fn run(mut self, queue: &Queue<Job>) {
        let mut group = Vec::new();
        let (mut callers, mut took) = (1, Duration::ZERO);
        while let Some(job) = queue.pop() {
            if callers > 1 {
                // A caller that was just answered tends to come back at once. Without a short wait the first one back
                // would get a sync of its own, and all others would wait for the next.
                queue.gather(callers - 1, (took / 4).min(GATHER_MAX));
            }
            let (mut batches, mut bytes) = (job.batches.len(), job.bytes);
            group.push(job);
            queue.pop_while(&mut group, |job| {
                batches += job.batches.len();
                bytes += job.bytes;
                batches <= GROUP_MAX_BATCHES && bytes <= GROUP_MAX_BYTES
            });
            callers = group.len();
            let started = Instant::now();
            self.serve(&mut group, queue);
            took = started.elapsed();
            self.writing.wal.tend(self.connection);
        }
    }

    /// Commits a group and answers all callers in it.
    fn serve(&mut self, group: &mut Vec<Job>, queue: &Queue<Job>) {
        let mut done = self.transact(group, true);
        // The log itself may have filled the disk; once its content is in the file, there is room again.
        if matches!(done, Err(Failure::Before(StoreError::Full(_)) | Failure::Commit(StoreError::Full(_))))
            && self.writing.wal.cut(self.connection)
        {
            done = self.transact(group, true);
        }
        match done {
            Ok(outcomes) => self.acknowledge(group, outcomes),
            // Jobs that came meanwhile would meet the same lock and wait as long again, so they are refused together
            // with the group.
            Err(failure @ Failure::Begin(_)) => {
                queue.pop_while(group, |_| true);
                refuse(group, &failure);
            }
            // Nothing of the group was applied. Each call is tried again alone and without the sweep, so that the calls
            // without a fault succeed.
            Err(Failure::Before(_)) => {
                let mut left = std::mem::take(group).into_iter();
                while let Some(job) = left.next() {
                    let mut alone = vec![job];
                    match self.transact(&alone, false) {
                        Ok(outcomes) => self.acknowledge(&mut alone, outcomes),
                        Err(failure) => {
                            if matches!(failure, Failure::Begin(_)) {
                                alone.extend(left.by_ref());
                            }
                            refuse(&mut alone, &failure);
                        }
                    }
                }
            }
            Err(failure) => refuse(group, &failure),
        }
    }

    fn transact(&mut self, group: &[Job], sweep: bool) -> std::result::Result<Vec<Vec<Outcome>>, Failure> {
        self.begin.execute(()).map_err(|why| Failure::Begin(error::before_commit(&why)))?;
        let committed =
            self.apply(group, sweep).map_err(Failure::from).and_then(|outcomes| match self.commit.execute(()) {
                Ok(_) => Ok(outcomes),
                Err(why) => Err(Failure::Commit(error::at_commit(&why))),
            });
        if committed.is_err() {
            self.commits.forget();
        }
        // After some errors SQLite has rolled back by itself.
        if committed.is_err()
            && !self.connection.is_autocommit()
            && let Err(why) = self.rollback.execute(())
        {
            tracing::error!(%why, "a transaction could not be rolled back");
        }
        committed
    }

    fn apply(&mut self, group: &[Job], sweep: bool) -> rusqlite::Result<Vec<Vec<Outcome>>> {
        let mut applied_at = None;
        let mut answers = Vec::with_capacity(group.len());
        for job in group {
            let partition = job.partition.ordinal();
            let mut outcomes = Vec::with_capacity(job.batches.len());
            for batch in job.batches.iter() {
                let outcome = self.commits.apply(partition, batch, self.writing.clock.now())?;
                if let Outcome::Applied(applied) = &outcome {
                    applied_at = Some(applied.at);
                }
                outcomes.push(outcome);
            }
            answers.push(outcomes);
        }
        self.commits.finish()?;
        // A group of nothing but conflicts writes nothing, and so needs no sync.
        if let Some(at) = applied_at {
            if sweep {
                let garbage = self.commits.left_garbage();
                self.sweep.step(at, garbage)?;
            }
            self.keep_time.execute((at,))?;
        }
        Ok(answers)
    }

    /// Sends hints and then answers, so that a caller that has its answer can rely on the hints being under way.
    fn acknowledge(&self, group: &mut Vec<Job>, outcomes: Vec<Vec<Outcome>>) {
        for (job, outcomes) in group.drain(..).zip(outcomes) {
            for (batch, outcome) in job.batches.iter().zip(&outcomes) {
                if matches!(outcome, Outcome::Applied(_)) {
                    for hint in &batch.hints {
                        self.writing.hints.send(WatchEvent::Hint(hint.clone()));
                    }
                }
            }
            // A caller that went away needs no answer.
            let _ = job.answer.send(Ok(outcomes));
        }
    }
}

fn refuse(group: &mut Vec<Job>, failure: &Failure) {
    let (Failure::Begin(why) | Failure::Before(why) | Failure::Commit(why)) = failure;
    tracing::warn!(%why, calls = group.len(), "commits were refused");
    for job in group.drain(..) {
        // A caller that went away needs no answer.
        let _ = job.answer.send(Err(why.clone()));
    }
}
