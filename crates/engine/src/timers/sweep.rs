//! The sweep: one small read for each partition in a long period, which finds what lost hints missed.

use ff_core::planted::{Bug, planted};
use ff_core::{Partition, index};
use ff_store::{Answer, Query, Scan, ScanPage};

use crate::engine::Engine;
use crate::env;
use crate::scheduler::ready::QueueId;

/// Marks taken up by one look.
const MARKS_LIMIT: usize = 200;
/// Queues learnt by one look; more are learnt by the next ones.
const QUEUES_LIMIT: usize = 10_000;

impl Engine {
    /// Looks at everything once at the start, then at one partition after the other.
    pub(crate) async fn run_sweeps(self) {
        loop {
            self.sweep_all(0).await;
            let partitions = self.partitions().all().count();
            let pause = (self.options().sweep_ms / i64::try_from(partitions).unwrap_or(i64::MAX)).max(1);
            // A resync breaks the slow round off and begins with a quick one.
            let slow_round = async {
                env::within(self.env_handle(), self.options().sweep_ms, std::future::pending::<()>()).await;
                loop {
                    self.sweep_all(pause).await;
                }
            };
            let resync = self.timers().sweep.notified();
            futures_util::future::select(Box::pin(resync), Box::pin(slow_round)).await;
        }
    }

    async fn sweep_all(&self, pause_ms: i64) {
        for partition in self.partitions().all() {
            if pause_ms > 0 {
                self.env().sleep(pause_ms).await;
                // Others look at it; rank 0 is enough for what nobody waits for.
                if self.rank(partition) > 0 {
                    continue;
                }
            }
            self.sweep_partition(partition).await;
        }
    }

    /// Due head, marks head and queue names of a partition, in one read.
    pub(crate) async fn sweep_partition(&self, partition: Partition) {
        let queries = vec![
            Query::Scan(Scan::first(index::due(), 1)),
            Query::Scan(Scan::first(index::marks(), MARKS_LIMIT)),
            Query::Indexes { prefix: vec![index::QUEUE_PREFIX], limit: QUEUES_LIMIT },
        ];
        let answers = match self.read(partition, queries).await {
            Ok(answers) => answers.answers,
            Err(error) => {
                tracing::warn!(%partition, %error, "a partition cannot be swept");
                return;
            }
        };
        let mut answers = answers.into_iter();
        let due = answers.next().and_then(Answer::into_scan).unwrap_or_default();
        let marks = answers.next().and_then(Answer::into_scan).unwrap_or_default();
        let queues = answers.next().and_then(Answer::into_indexes).unwrap_or_default();
        for entry in due.entries {
            self.timers().note(partition, entry.score);
        }
        if !planted(Bug::MarksNotSwept) {
            self.resolve_marks(partition, marks).await;
        }
        for index in queues {
            self.scheduler().ready().announce(&QueueId { partition, index }, i64::MIN);
        }
    }
    /// Takes up a page of marks and all that follow it: after a crash there may be many.
    async fn resolve_marks(&self, partition: Partition, mut page: ScanPage) {
        loop {
            let last = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            let full = page.entries.len() == MARKS_LIMIT;
            for entry in page.entries {
                self.resolve_soon(partition, entry.member);
            }
            let Some((score, member)) = last.filter(|_| full) else { return };
            let scan = Scan::first(index::marks(), MARKS_LIMIT).after(score, member);
            page = match self.read(partition, vec![Query::Scan(scan)]).await {
                Ok(answers) => answers.into_only(Answer::into_scan).unwrap_or_default(),
                Err(error) => {
                    tracing::warn!(%partition, %error, "the marks cannot be read; left to the next sweep");
                    return;
                }
            };
        }
    }
}
