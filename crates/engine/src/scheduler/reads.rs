//! Reads from the store what the scheduler's memory lacks: the heads of queues, and the names of a lane's queues.

use std::sync::Arc;

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::{Code, Document, Entry, Error, IndexName, Indexed, Partition, Result, index};
use ff_store::{Answer, Query, Scan, ScanPage};

use super::Scheduler;
use super::candidate::is_outage;
use super::ready::{Candidate, NamesPage, QueueId, QueueName, READ_PATIENCE_MS, Read};
use crate::env;
use crate::transaction::{Command, Tx};

/// Candidates read at once from one queue.
const FETCH_LIMIT: usize = 64;
/// Candidates that one call reads from several queues.
const FETCH_TOGETHER: usize = 256;
/// Queues whose heads one call reads. Where every key has a queue of its own, most hold one execution, and a call for
/// each of them would cost more than its claim.
const HEADS_MAX: usize = 16;
/// Names of queues read at once.
pub(crate) const NAMES_LIMIT: usize = 1_000;

impl Scheduler {
    /// Carries out the reads of one call, and returns at the latest when claims stop waiting for one. A call that takes
    /// longer goes on by itself, because its queues would stay out of sight without it.
    pub(super) async fn read_patiently(self, reads: Vec<Read>) {
        let Some(partition) = reads.first().map(Read::partition) else { return };
        let scheduler = self.clone();
        let mut reading = Box::pin(async move { scheduler.carry_out_reads(partition, reads).await });
        if env::within(self.transactor.env_handle(), READ_PATIENCE_MS, &mut reading).await.is_none() {
            self.ready().read_hangs(partition, self.transactor.env().now_ms());
            self.transactor.spawn_short(reading);
        }
    }

    /// Carries out the reads of one call. A partition that cannot be read is left alone for a while.
    async fn carry_out_reads(&self, partition: Partition, reads: Vec<Read>) {
        let mut heads = Vec::with_capacity(reads.len());
        for read in reads {
            match read {
                Read::Head(id) => heads.push(id),
                Read::Names { namespace, lane, after, .. } => {
                    self.learn_names(partition, (&namespace, &lane), after).await;
                }
            }
        }
        if !heads.is_empty() {
            self.read_heads(partition, heads).await;
        }
    }

    async fn learn_names(&self, partition: Partition, lane: (&str, &str), after: Option<IndexName>) {
        let page = self.names_page(partition, index::queues_of_lane(lane.0, lane.1), after).await;
        let now = self.transactor.env().now_ms();
        match page {
            Ok(page) => self.ready().learnt(lane, partition, page, now),
            Err(error) => {
                self.pass_partition_over(partition, &error);
                self.ready().not_learnt(lane, partition, now);
            }
        }
    }

    /// A page of the names of a partition's queues that begin with a prefix.
    async fn names_page(&self, partition: Partition, prefix: Vec<u8>, after: Option<IndexName>) -> Result<NamesPage> {
        let limit = self.transactor.chunk(NAMES_LIMIT);
        let query = Query::Indexes { prefix, after: after.clone(), limit };
        let names = self.transactor.read(partition, vec![query]).await?.into_only(Answer::into_indexes)?;
        let more = names.len() == limit;
        Ok(NamesPage { after, names, more })
    }

    /// Reads the heads of queues of one partition in one call.
    async fn read_heads(&self, partition: Partition, ids: Vec<QueueId>) {
        let limit = self.transactor.chunk(FETCH_LIMIT.min(FETCH_TOGETHER / ids.len()));
        let limit = self.ready().read_limit(limit);
        let scan = |id: &QueueId| {
            let mut scan = Scan::first(id.index.clone(), limit).with_documents();
            scan.after = self.ready().read_after(id);
            Query::Scan(scan)
        };
        let queries = ids.iter().map(scan).collect();
        let mut answers = match self.transactor.read(partition, queries).await {
            Ok(answers) => answers.answers.into_iter(),
            Err(error) => return self.heads_not_read(partition, &ids, &error),
        };
        for id in ids {
            match answers.next().and_then(Answer::into_scan) {
                Some(page) => self.head_read(id, page, limit).await,
                None => {
                    let error = Error::new(Code::Internal, "the store answered another question");
                    self.heads_not_read(partition, &[id], &error);
                }
            }
        }
    }

    /// Takes up what a read of a queue's head found.
    async fn head_read(&self, id: QueueId, page: ScanPage, limit: usize) {
        let complete = page.entries.len() < limit;
        let last = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
        let mut head = Vec::with_capacity(page.entries.len());
        let mut strays = Vec::new();
        for entry in page.entries {
            let Some(stored) = entry.document else { continue };
            match Execution::decode(&stored.body) {
                Ok(execution) if execution.is_eligible() => head.push(Candidate {
                    execution: Arc::new(execution),
                    version: stored.version,
                    fence: stored.fence,
                    queue: id.clone(),
                }),
                Ok(_) => strays.push(Entry { index: id.index.clone(), member: entry.member, score: entry.score }),
                Err(error) => {
                    self.transactor.metrics().undecodable();
                    if let Some(suppressed) = self.transactor.may_log("a queued execution cannot be read") {
                        let key = &entry.member;
                        tracing::error!(?key, %error, suppressed, "a queued execution cannot be read; passed over");
                    }
                }
            }
        }
        if !strays.is_empty() {
            Box::pin(self.remove_strays(id.partition, strays)).await;
        }
        if QueueName::parse(&id.index).is_some_and(|name| name.is_of_any_kind())
            && let Err(error) = Box::pin(self.queue_by_kind(&id, std::mem::take(&mut head))).await
        {
            return self.heads_not_read(id.partition, &[id], &error);
        }
        let now = self.transactor.env().now_ms();
        self.ready().fetched(&id, head, last, complete, now);
    }

    /// Moves executions that an earlier version queued to the queues of their kinds, in one call. Each keeps its place
    /// in the order, because its score stays. An execution that was changed meanwhile has already left this queue.
    async fn queue_by_kind(&self, id: &QueueId, found: Vec<Candidate>) -> Result<()> {
        let mut moves = Vec::with_capacity(found.len());
        for candidate in found {
            let (key, queue) = (candidate.execution.key(), candidate.execution.queue());
            if queue == id.index {
                let ((), prepared) = self
                    .transactor
                    .prepare(id.partition, self.transactor.fresh_command(), &QueueByKind { candidate: &candidate })
                    .await?;
                moves.push(prepared);
                continue;
            }
            // A server of the earlier version put the execution here, although its document names the queue of its
            // kind.
            let score = candidate.execution.queue_score();
            for index in [queue.clone(), id.index.clone()] {
                self.transactor.repair(id.partition, &key, Entry { index, member: key.clone(), score }).await;
            }
            let queue = QueueId { partition: id.partition, index: queue };
            self.ready().announce(&queue, score, self.transactor.env().now_ms());
        }
        if !moves.is_empty() {
            self.transactor.send_all(id.partition, moves).await?;
        }
        Ok(())
    }

    /// Removes entries from a queue whose executions are not claimable; otherwise they would be found there over and
    /// over.
    async fn remove_strays(&self, partition: Partition, strays: Vec<Entry>) {
        for stray in strays {
            self.transactor.repair(partition, &stray.member.clone(), stray).await;
        }
    }

    fn heads_not_read(&self, partition: Partition, ids: &[QueueId], error: &Error) {
        self.pass_partition_over(partition, error);
        let now = self.transactor.env().now_ms();
        for id in ids {
            match is_outage(error) {
                true => self.ready().fetch_met_outage(id, now),
                false => self.ready().fetch_failed(id, now),
            }
        }
    }

    fn pass_partition_over(&self, partition: Partition, error: &Error) {
        self.transactor.metrics().partition_passed_over();
        if let Some(suppressed) = self.transactor.may_log("a queue cannot be read") {
            tracing::warn!(%partition, %error, suppressed, "a queue cannot be read; passed over");
        }
    }
}

/// Divides reads into calls: heads of one partition that follow each other are read together.
pub(super) fn in_calls(reads: Vec<Read>) -> Vec<Vec<Read>> {
    let mut calls: Vec<Vec<Read>> = Vec::new();
    for read in reads {
        let fits = |call: &&mut Vec<Read>| match (call.last(), &read) {
            (Some(Read::Head(last)), Read::Head(id)) => last.partition == id.partition && call.len() < HEADS_MAX,
            _ => false,
        };
        match calls.last_mut().filter(fits) {
            Some(call) => call.push(read),
            None => calls.push(vec![read]),
        }
    }
    calls
}

/// Gives an execution its place in the queue of its kind.
struct QueueByKind<'a> {
    candidate: &'a Candidate,
}

impl Command for QueueByKind<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let mut execution = Execution::clone(&self.candidate.execution);
        tx.know(&execution, self.candidate.version, self.candidate.fence);
        execution.queue_by_kind(tx.now);
        tx.save_execution(&execution, Effects::default());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(partition: u16, key: usize) -> Read {
        let index = IndexName::from_bytes(format!("queue of {key}").as_bytes());
        Read::Head(QueueId { partition: Partition::flow(partition), index })
    }

    #[test]
    fn the_heads_of_one_partition_are_read_in_as_few_calls_as_fit_and_names_alone() {
        let names = Read::Names { partition: Partition::flow(0), namespace: "n".into(), lane: "l".into(), after: None };
        let heads = (0..HEADS_MAX + 2).map(|key| head(0, key));
        let reads = heads.chain([names, head(0, 90), head(1, 91), head(1, 92)]).collect();
        let calls: Vec<usize> = in_calls(reads).iter().map(Vec::len).collect();
        assert_eq!(calls, [HEADS_MAX, 2, 1, 1, 2]);
    }
}
