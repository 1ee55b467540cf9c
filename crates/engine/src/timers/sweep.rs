//! The sweep: one small read for each partition in a long period, which finds work that lost hints missed. The engine
//! that is ranked first for the partition looks for timers and marks; every engine looks for queues, because each has
//! workers of its own.
//!
//! When hints may have been lost, and whenever a server has gone, all partitions are read in one quick round. The
//! engine ranked first for a partition resolves its marks; the others check a little later whether the marks are still
//! there.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::planted::{Bug, planted};
use ff_core::{IndexName, Key, Partition, index};
use ff_store::{Answer, Query, Scan, ScanPage};
use futures_util::stream::{self, StreamExt};

use super::Timers;
use crate::due::RANK_MAX;
use crate::env;
use crate::scheduler::reads::NAMES_LIMIT;
use crate::scheduler::ready::{NamesPage, QueueName};

/// Marks taken up by one look.
const MARKS_LIMIT: usize = 200;
/// How much later the engine that is next in rank resolves a mark that is still there.
pub(super) const MARKS_STEP_MS: i64 = 1_000;
/// Partitions looked at together in a quick round.
pub(super) const SWEEPS_AT_ONCE: usize = 16;

impl Timers {
    /// Looks at everything once at the start, then at one partition after the other.
    pub(crate) async fn run_sweeps(self) {
        loop {
            self.sweep_quickly().await;
            let partitions = self.transactor.partitions().all().count();
            let pause = (self.transactor.options().sweep_ms / i64::try_from(partitions).unwrap_or(i64::MAX)).max(1);
            // A resync breaks the slow round off and begins with a quick one.
            let slow_round = async {
                env::within(
                    self.transactor.env_handle(),
                    self.transactor.options().sweep_ms,
                    std::future::pending::<()>(),
                )
                .await;
                loop {
                    self.sweep_slowly(pause).await;
                }
            };
            let resync = self.transactor.due().sweep.notified();
            futures_util::future::select(Box::pin(resync), Box::pin(slow_round)).await;
        }
    }

    /// Looks at all partitions now, some of them at a time.
    async fn sweep_quickly(&self) {
        let sweeps = self.transactor.partitions().all().map(|partition| async move {
            match self.transactor.options().services {
                true => self.sweep_partition(partition).await,
                false => self.sweep_queues(partition).await,
            }
        });
        stream::iter(sweeps).buffer_unordered(SWEEPS_AT_ONCE).collect::<()>().await;
        if self.transactor.options().services {
            self.reopen_gates_soon();
        }
    }

    async fn sweep_slowly(&self, pause_ms: i64) {
        for partition in self.transactor.partitions().all() {
            self.transactor.env().sleep(pause_ms).await;
            // Only the engine ranked first reads timers and marks, which is enough for work that no caller waits for.
            // The others read the names of queues.
            match self.transactor.options().services && self.servers.rank(partition) == 0 {
                true => self.sweep_partition(partition).await,
                false => self.sweep_queues(partition).await,
            }
        }
    }

    /// Queue names of a partition.
    async fn sweep_queues(&self, partition: Partition) {
        self.sweep_subscriptions(partition);
        let began = self.scheduler.ready().stamp();
        match self.transactor.read(partition, vec![self.queue_names_query(None)]).await {
            Ok(answers) => {
                let queues = answers.into_only(Answer::into_indexes).unwrap_or_default();
                self.learn_queues(partition, queues, began).await;
            }
            Err(error) => self.not_swept(partition, &error),
        }
    }

    /// Wakes the subscriptions of a partition, because a hint about events may have been lost as well.
    fn sweep_subscriptions(&self, partition: Partition) {
        match partition {
            Partition::SYSTEM => self.subscriptions.state.look_again(),
            other => self.subscriptions.state.note(other),
        }
    }

    fn not_swept(&self, partition: Partition, error: &ff_core::Error) {
        self.scheduler.ready().sweep_failed(partition, self.transactor.env().now_ms());
        if let Some(suppressed) = self.transactor.may_log("a partition cannot be swept") {
            tracing::warn!(%partition, %error, suppressed, "a partition cannot be swept");
        }
    }

    /// Tells the scheduler a page of queue names and all pages that follow. `began` is the scheduler's stamp before the
    /// first page was read.
    async fn learn_queues(&self, partition: Partition, names: Vec<IndexName>, began: u64) {
        let page_of = |after: Option<IndexName>, names: Vec<IndexName>| {
            let more = names.len() == self.transactor.chunk(NAMES_LIMIT);
            NamesPage { after, names, more }
        };
        let mut waits: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut page = page_of(None, names);
        loop {
            self.scheduler.ready().sweep_found(partition, &page, began, self.transactor.env().now_ms());
            self.subscriptions.state.found_queues(&page.names);
            for name in page.names.iter().filter_map(QueueName::parse) {
                waits.entry(name.namespace).or_default().insert(name.lane);
            }
            let Some(last) = page.names.pop().filter(|_| page.more) else { break };
            page = match self.transactor.read(partition, vec![self.queue_names_query(Some(last.clone()))]).await {
                Ok(answers) => page_of(Some(last), answers.into_only(Answer::into_indexes).unwrap_or_default()),
                Err(error) => return self.not_swept(partition, &error),
            };
        }
        let mut ready = self.scheduler.ready();
        ready.sweep_ended(partition, &waits, began);
        ready.let_go(self.transactor.env().now_ms());
    }

    /// Due head, marks head and queue names of a partition, in one read.
    pub(crate) async fn sweep_partition(&self, partition: Partition) {
        self.sweep_subscriptions(partition);
        let queries = vec![
            Query::Scan(Scan::first(index::due(), 1)),
            Query::Scan(Scan::first(index::marks(), self.transactor.chunk(MARKS_LIMIT))),
            self.queue_names_query(None),
        ];
        let began = self.scheduler.ready().stamp();
        let answers = match self.transactor.read(partition, queries).await {
            Ok(answers) => answers.answers,
            Err(error) => return self.not_swept(partition, &error),
        };
        let mut answers = answers.into_iter();
        let due = answers.next().and_then(Answer::into_scan).unwrap_or_default();
        let marks = answers.next().and_then(Answer::into_scan).unwrap_or_default();
        let queues = answers.next().and_then(Answer::into_indexes).unwrap_or_default();
        for entry in due.entries {
            self.transactor.due().note(partition, entry.score);
        }
        self.learn_queues(partition, queues, began).await;
        if !planted(Bug::MarksNotSwept) {
            match self.servers.rank(partition) {
                0 => self.resolve_marks(partition, marks).await,
                rank => self.leave_marks(partition, rank, marks),
            }
        }
    }

    /// Leaves marks to the engine ranked before this one, and resolves those that are still there a little later.
    fn leave_marks(&self, partition: Partition, rank: i64, page: ScanPage) {
        let seen: BTreeSet<Key> = page.entries.into_iter().map(|entry| entry.member).collect();
        if seen.is_empty() || !self.transactor.due().leave(partition, seen) {
            return;
        }
        let timers = self.clone();
        self.transactor.spawn_short(async move {
            timers.transactor.env().sleep(rank.min(RANK_MAX) * MARKS_STEP_MS).await;
            let seen = timers.transactor.due().take_left(partition);
            if timers.transactor.refuse_if_closing().is_err() {
                return;
            }
            let scan = Query::Scan(Scan::first(index::marks(), timers.transactor.chunk(MARKS_LIMIT)));
            match timers.transactor.read(partition, vec![scan]).await {
                Ok(answers) => {
                    let page = answers.into_only(Answer::into_scan).unwrap_or_default();
                    let standing = page.entries.into_iter().filter(|entry| seen.contains(&entry.member));
                    standing.for_each(|entry| timers.resolver.resolve_soon(partition, entry.member));
                }
                Err(error) => timers.marks_unread(partition, &error),
            }
        });
    }

    /// Resolves a page of marks and all pages that follow: after a crash there may be many.
    async fn resolve_marks(&self, partition: Partition, mut page: ScanPage) {
        loop {
            let last = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            let full = page.entries.len() == self.transactor.chunk(MARKS_LIMIT);
            for entry in page.entries {
                self.resolver.resolve_soon(partition, entry.member);
            }
            let Some((score, member)) = last.filter(|_| full) else { return };
            let scan = Scan::first(index::marks(), self.transactor.chunk(MARKS_LIMIT)).after(score, member);
            page = match self.transactor.read(partition, vec![Query::Scan(scan)]).await {
                Ok(answers) => answers.into_only(Answer::into_scan).unwrap_or_default(),
                Err(error) => return self.marks_unread(partition, &error),
            };
        }
    }

    fn marks_unread(&self, partition: Partition, error: &ff_core::Error) {
        if let Some(suppressed) = self.transactor.may_log("the marks cannot be read") {
            tracing::warn!(%partition, %error, suppressed, "the marks cannot be read; left to the next sweep");
        }
    }

    fn queue_names_query(&self, after: Option<IndexName>) -> Query {
        Query::Indexes { prefix: vec![index::QUEUE_PREFIX], after, limit: self.transactor.chunk(NAMES_LIMIT) }
    }
}
