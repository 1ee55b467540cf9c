//! Reading executions: one, many, and what became of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ff_core::execution::Execution;
use ff_core::lease::{Attempt, HistoryRecord, Lease};
use ff_core::op::parts::Content;
use ff_core::op::view::{AttemptView, ExecutionView};
use ff_core::op::{
    GetExecution, GetExecutionArgs, GetResult, GetResultArgs, GetState, GetStateArgs, GetStateOutcome, ListAttempts,
    ListAttemptsArgs, ListAttemptsOutcome, ListExecutions, ListExecutionsArgs, ListExecutionsOutcome, WaitExecution,
    WaitExecutionArgs, WaitExecutionOutcome,
};
use ff_core::{
    AttemptIndex, BlockingReason, Code, Document, EligibilityState, Error, ExecutionId, IndexName, Key, Partition,
    PublicState, Result, index, limits,
};
use ff_store::{IndexEntry, LogStart, Query, Scan};
use uuid::Uuid;

use crate::engine::{Caller, Engine, Handle};
use crate::payload::Which;
use crate::view::{self, some_instant, some_text};
use crate::visibility::{check_visible, not_found};
use crate::{cursor, env, logs};

impl Handle<GetExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: GetExecutionArgs) -> Result<ExecutionView> {
        let (execution, lease_until) = self.visible_execution(caller, &args.execution_id).await?;
        let mut shown = view::execution(&execution, lease_until);
        if execution.is_eligible() {
            self.show_what_is_not_stored(&execution, &mut shown).await;
        }
        Ok(shown)
    }
}

impl Engine {
    /// A closed lane and missing capabilities are never stored. They are shown if they can be found out.
    async fn show_what_is_not_stored(&self, execution: &Execution, shown: &mut ExecutionView) {
        if let Ok(Some(lane)) = self.closed_lane(execution).await {
            shown.state.eligibility_state = EligibilityState::BlockedByLaneState;
            shown.blocking_detail = Some(format!("lane {} is {}", lane.name, lane.state));
        } else if !execution.capabilities.is_empty()
            && let Ok(Some(reason)) = self.worker_missing(execution).await
        {
            shown.state.eligibility_state = EligibilityState::BlockedByRoute;
            shown.state.blocking_reason = BlockingReason::WaitingForCapableWorker;
            shown.blocking_detail = Some(reason.message);
        }
    }

    /// An execution that the caller may see, as the store has it now, and when its lease ends.
    pub(crate) async fn visible_execution(&self, caller: &Caller, id: &ExecutionId) -> Result<(Execution, i64)> {
        self.check_id(id)?;
        let found = self.store().documents(id.partition(), vec![Execution::key_of(id)]).await?;
        let stored = found.into_iter().next().flatten().ok_or_else(|| not_found(id))?;
        let execution = Execution::decode(&stored.body)?;
        check_visible(caller, &execution)?;
        Ok((execution, stored.lease_until))
    }
}

impl Handle<GetState> for Engine {
    async fn handle(&self, caller: &Caller, args: GetStateArgs) -> Result<GetStateOutcome> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        Ok(GetStateOutcome {
            execution_id: execution.id,
            public_state: execution.public_state(),
            state: execution.state,
        })
    }
}

impl Handle<GetResult> for Engine {
    async fn handle(&self, caller: &Caller, args: GetResultArgs) -> Result<Content> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        match &execution.result {
            Some(result) => self.content(Which::Result, &execution.id, result).await,
            None => {
                let code = if execution.is_terminal() { Code::NoResult } else { Code::ResultNotReady };
                Err(Error::of(code).with("public_state", execution.public_state()))
            }
        }
    }
}

impl Handle<WaitExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: WaitExecutionArgs) -> Result<WaitExecutionOutcome> {
        let id = &args.execution_id;
        self.check_id(id)?;
        let wait_ms = self.limits().tail_wait("wait_ms", args.wait_ms.unwrap_or(self.limits().tail_wait_max_ms))?;
        let deadline = self.env().now_ms() + wait_ms;
        let mut listener = self.listen_to(id.partition(), Execution::key_of(id));
        loop {
            self.refuse_if_closing()?;
            let (execution, lease_until) = self.visible_execution(caller, id).await?;
            let left = deadline - self.env().now_ms();
            if execution.is_terminal() || left <= 0 {
                let terminal = execution.is_terminal();
                return Ok(WaitExecutionOutcome { terminal, execution: view::execution(&execution, lease_until) });
            }
            env::within(self.env_handle(), left, listener.changed()).await;
        }
    }
}

/// Entries one call looks at; a filter that matches little answers with fewer items and a cursor.
const SCANNED_MAX: usize = 10_000;
/// Entries read at once from each index at the least.
const CHUNK_MIN: usize = 16;

/// A place in the list: creation, partition, id.
type Position = (i64, u16, [u8; 16]);

/// Lists executions, newest first by (creation, partition, id), over all partitions.
///
/// The page is a merge of ordered indexes. The cursor is a place in that order, so an execution that changes its state
/// between two pages is neither shown twice nor passed over: its place stays the same.
impl Handle<ListExecutions> for Engine {
    async fn handle(&self, caller: &Caller, args: ListExecutionsArgs) -> Result<ListExecutionsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.limits().page(args.limit)?;
        let after = cursor::decode::<Position>(args.cursor.as_deref())?;
        let mut sources = self.sources(&namespace, &args, after)?;
        let partitions: BTreeSet<Partition> = sources.iter().map(|source| source.partition).collect();
        let chunk = (limit / partitions.len().max(1)).clamp(CHUNK_MIN, limits::PAGE_MAX);
        let mut items = Vec::new();
        let mut position = after;
        let mut seen = BTreeSet::new();
        for _ in 0..SCANNED_MAX {
            self.refill(&mut sources, chunk).await?;
            let head = sources.iter_mut().filter(|source| source.head().is_some()).max_by_key(|source| source.head());
            let Some(source) = head else { return Ok(ListExecutionsOutcome { items, next_cursor: None }) };
            // Another entry is there, so the page that is full now has a successor.
            if items.len() == limit {
                break;
            }
            position = source.head();
            let entry = source.buffer.pop_front().and_then(|entry| entry.document);
            let Some(execution) = entry.and_then(|stored| self.readable::<Execution>(&stored)) else { continue };
            if execution_matches(&namespace, &args, &execution)? && seen.insert(execution.id) {
                items.push(view::summary(&execution));
            }
        }
        Ok(ListExecutionsOutcome { items, next_cursor: position.map(|position| cursor::encode(&position)) })
    }
}

/// One ordered index of one partition, read in chunks.
struct Source {
    partition: Partition,
    scan: Scan,
    buffer: VecDeque<IndexEntry>,
    exhausted: bool,
}

impl Source {
    fn head(&self) -> Option<Position> {
        let entry = self.buffer.front()?;
        let uuid = entry.member.uuid().unwrap_or(Uuid::nil());
        Some((entry.score, self.partition.number, uuid.into_bytes()))
    }
}

impl Engine {
    /// The narrowest indexes that hold everything the filters can match.
    fn sources(&self, namespace: &str, args: &ListExecutionsArgs, after: Option<Position>) -> Result<Vec<Source>> {
        let states = args.state.as_ref().map_or(PublicState::ALL, std::slice::from_ref);
        let mut sources = Vec::new();
        let mut add = |partition: Partition, index: IndexName| {
            sources.extend(scan_from(partition, index, args, after).map(|scan| Source {
                partition,
                scan,
                buffer: VecDeque::new(),
                exhausted: false,
            }));
        };
        if let Some(flow) = &args.flow_id {
            if flow.check(self.partitions()).is_ok() {
                states.iter().for_each(|state| add(flow.partition(), index::member(flow.uuid, *state)));
            }
            return Ok(sources);
        }
        for partition in self.flow_partitions() {
            match args.tag()? {
                Some((key, value)) => add(partition, index::tag(namespace, key, value)),
                None => states.iter().for_each(|state| add(partition, index::state(namespace, *state))),
            }
        }
        Ok(sources)
    }

    /// Reads on where a buffer ran dry: one read for each partition.
    async fn refill(&self, sources: &mut [Source], chunk: usize) -> Result<()> {
        let mut dry: BTreeMap<Partition, Vec<usize>> = BTreeMap::new();
        for (place, source) in sources.iter().enumerate() {
            if source.buffer.is_empty() && !source.exhausted {
                dry.entry(source.partition).or_default().push(place);
            }
        }
        if dry.is_empty() {
            return Ok(());
        }
        let reads = dry.into_iter().map(|(partition, places)| {
            let scans = places.iter().map(|place| Scan { limit: chunk, ..sources[*place].scan.clone() });
            let queries: Vec<Query> = scans.map(Query::Scan).collect();
            async move { (places, self.read(partition, queries).await) }
        });
        for (places, answers) in futures_util::future::join_all(reads).await {
            for (place, answer) in places.into_iter().zip(answers?.answers) {
                let page = answer.into_scan().unwrap_or_default();
                let source = &mut sources[place];
                source.exhausted = page.entries.len() < chunk;
                if let Some(last) = page.entries.last() {
                    source.scan.after = Some((last.score, last.member.clone()));
                }
                source.buffer.extend(page.entries);
            }
        }
        Ok(())
    }
}

/// The part of an index behind a position; `None` when nothing of it can be there.
fn scan_from(
    partition: Partition,
    index: IndexName,
    args: &ListExecutionsArgs,
    after: Option<Position>,
) -> Option<Scan> {
    let mut scan = Scan::last(index, CHUNK_MIN).with_documents();
    scan.min = args.created_from.unwrap_or(i64::MIN);
    scan.max = args.created_to.map_or(i64::MAX, |to| to.saturating_sub(1));
    if let Some((created_at, number, uuid)) = after {
        // At the same instant, higher partitions were shown and lower ones were not.
        match partition.number.cmp(&number) {
            std::cmp::Ordering::Less => scan.max = scan.max.min(created_at),
            std::cmp::Ordering::Greater => scan.max = scan.max.min(created_at.saturating_sub(1)),
            std::cmp::Ordering::Equal => {
                scan.max = scan.max.min(created_at);
                scan.after = Some((created_at, Key::new(index::kind::EXECUTION, &[&uuid])));
            }
        }
    }
    (scan.min <= scan.max).then_some(scan)
}

fn execution_matches(namespace: &str, args: &ListExecutionsArgs, execution: &Execution) -> Result<bool> {
    let tag = args.tag()?;
    Ok(execution.namespace == namespace
        && args.state.is_none_or(|state| state == execution.public_state())
        && args.lane.as_ref().is_none_or(|lane| *lane == execution.lane)
        && args.kind.as_ref().is_none_or(|kind| *kind == execution.kind)
        && args.flow_id.is_none_or(|flow| execution.flow == Some(flow))
        && tag.is_none_or(|(key, value)| execution.tags.get(key).is_some_and(|found| found == value)))
}

/// Records read at once.
const ATTEMPT_EVENTS_PAGE: usize = 1_000;

impl Handle<ListAttempts> for Engine {
    async fn handle(&self, caller: &Caller, args: ListAttemptsArgs) -> Result<ListAttemptsOutcome> {
        let (execution, lease_until) = self.visible_execution(caller, &args.execution_id).await?;
        let mut attempts = BTreeMap::new();
        for record in self.history(&execution).await? {
            note_lease(&mut attempts, record.lease.as_ref(), 0);
            note_attempt(&mut attempts, record.attempt.as_ref());
        }
        note_lease(&mut attempts, execution.lease.as_ref(), lease_until);
        note_attempt(&mut attempts, execution.attempt.as_ref());
        Ok(ListAttemptsOutcome { items: attempts.into_values().collect() })
    }
}

impl Engine {
    /// Ended attempts and leases of an execution, oldest first, without the present ones.
    pub(crate) async fn history(&self, execution: &Execution) -> Result<Vec<HistoryRecord>> {
        let mut records = Vec::new();
        let mut after = 0;
        loop {
            let log = logs::history(&execution.id);
            let page = self
                .store()
                .log(execution.id.partition(), log.clone(), LogStart::After(after), ATTEMPT_EVENTS_PAGE)
                .await?;
            let full = page.records.len() == ATTEMPT_EVENTS_PAGE;
            for record in page.records {
                after = record.sequence;
                records.extend(self.readable_record::<HistoryRecord>(&log, &record.record));
            }
            if !full {
                return Ok(records);
            }
        }
    }
}

fn attempt_entry(attempts: &mut BTreeMap<AttemptIndex, AttemptView>, index: AttemptIndex) -> &mut AttemptView {
    attempts.entry(index).or_insert_with(|| AttemptView {
        index,
        kind: Default::default(),
        worker_id: None,
        started_at: None,
        ended_at: None,
        outcome: None,
        failure_reason: None,
        failure_category: None,
        leases: Vec::new(),
    })
}

fn note_lease(attempts: &mut BTreeMap<AttemptIndex, AttemptView>, lease: Option<&Lease>, lease_until: i64) {
    let Some(lease) = lease else { return };
    let attempt = attempt_entry(attempts, lease.attempt);
    attempt.worker_id = some_text(&lease.worker_id);
    attempt.leases.push(view::lease(lease, lease_until));
}

fn note_attempt(attempts: &mut BTreeMap<AttemptIndex, AttemptView>, attempt: Option<&Attempt>) {
    let Some(attempt) = attempt else { return };
    let shown = attempt_entry(attempts, attempt.index);
    shown.kind = attempt.kind;
    shown.started_at = some_instant(attempt.started_at);
    shown.ended_at = some_instant(attempt.ended_at);
    shown.outcome = (attempt.ended_at != 0).then_some(attempt.outcome);
    shown.failure_reason = some_text(&attempt.failure_reason);
    shown.failure_category = some_text(&attempt.failure_category);
}
