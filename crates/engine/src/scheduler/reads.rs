//! Reading what the scheduler's memory lacks: the heads of queues, and the names of a lane's queues.

use std::sync::Arc;

use ff_core::execution::Execution;
use ff_core::{Document, Error, IndexName, Partition, Result, index};
use ff_store::{Answer, Query, Scan};

use super::candidate::is_outage;
use super::ready::{Candidate, QueueId, Read};
use crate::engine::Engine;

/// Candidates read at once from one queue.
const FETCH_LIMIT: usize = 64;
/// Names of queues read at once.
pub(crate) const NAMES_LIMIT: usize = 1_000;

impl Engine {
    /// Carries out a read. A partition that cannot be read is passed over for a while.
    pub(super) async fn carry_out_read(&self, read: Read) {
        match read {
            Read::Head(id) => self.read_head(id).await,
            Read::Names { partition, namespace, lane } => {
                let prefix = index::queues_of_lane(&namespace, &lane);
                let names = self.queue_names(partition, prefix).await;
                let now = self.env().now_ms();
                match names {
                    Ok(names) => self.scheduler().ready().learnt((&namespace, &lane), partition, names, now),
                    Err(error) => {
                        self.pass_partition_over(partition, &error);
                        self.scheduler().ready().not_learnt((&namespace, &lane), partition, now);
                    }
                }
            }
        }
    }

    /// The names of the queues of a partition that begin with a prefix, page by page.
    async fn queue_names(&self, partition: Partition, prefix: Vec<u8>) -> Result<Vec<IndexName>> {
        let mut names: Vec<IndexName> = Vec::new();
        loop {
            let after = names.last().cloned();
            let query = Query::Indexes { prefix: prefix.clone(), after, limit: NAMES_LIMIT };
            let page = self.read(partition, vec![query]).await?.into_only(Answer::into_indexes)?;
            let full = page.len() == NAMES_LIMIT;
            names.extend(page);
            if !full {
                return Ok(names);
            }
        }
    }

    async fn read_head(&self, id: QueueId) {
        let mut scan = Scan::first(id.index.clone(), FETCH_LIMIT).with_documents();
        scan.after = self.scheduler().ready().read_after(&id);
        let page = match self.read(id.partition, vec![Query::Scan(scan)]).await {
            Ok(answers) => answers.into_only(Answer::into_scan).map_err(Error::from),
            Err(error) => Err(error),
        };
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                self.pass_partition_over(id.partition, &error);
                let now = self.env().now_ms();
                let mut ready = self.scheduler().ready();
                ready.fetch_failed(&id, now);
                if is_outage(&error) {
                    ready.partition_failed(id.partition, now);
                }
                return;
            }
        };
        let complete = page.entries.len() < FETCH_LIMIT;
        let last = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
        let mut head = Vec::with_capacity(page.entries.len());
        for entry in page.entries {
            let Some(stored) = entry.document else { continue };
            match Execution::decode(&stored.body) {
                Ok(execution) => head.push(Candidate {
                    execution: Arc::new(execution),
                    version: stored.version,
                    fence: stored.fence,
                    queue: id.clone(),
                }),
                Err(error) => {
                    self.metrics().undecodable();
                    if let Some(suppressed) = self.may_log("a queued execution cannot be read") {
                        let key = &entry.member;
                        tracing::error!(?key, %error, suppressed, "a queued execution cannot be read; passed over");
                    }
                }
            }
        }
        let now = self.env().now_ms();
        self.scheduler().ready().fetched(&id, head, last, complete, now);
    }

    fn pass_partition_over(&self, partition: Partition, error: &Error) {
        self.metrics().partition_passed_over();
        if let Some(suppressed) = self.may_log("a queue cannot be read") {
            tracing::warn!(%partition, %error, suppressed, "a queue cannot be read; passed over");
        }
    }
}
