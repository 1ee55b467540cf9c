//! Journals: appending entries under the fence of a lease alone, and reading them back for a claim or a person.
//!
//! The holder numbers its entries. The first try trusts the numbers; a conflict says that the log is elsewhere, and then
//! it is read. So a step costs one commit and no read.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bytes::Bytes;
use ff_core::execution::{Execution, Wait};
use ff_core::journal::{Journal, NewEntries, NewRecord, StepEntry, StepRecord, StepState, StepView};
use ff_core::lease::{ClaimKind, LeaseFence};
use ff_core::op::parts::Content;
use ff_core::state::TerminalOutcome;
use ff_core::{Blob, Code, Document, Error, ExecutionId, Key, LeaseId, Result, SignalId, limits};
use ff_store::{Answer, Append, LogPage, LogStart, Query};

use crate::engine::Engine;
use crate::execution_data::Removal;
use crate::logs;
use crate::transaction::Tx;

/// Journals whose size is remembered; past it all are forgotten, and the next entry of each costs one read.
const SIZES_KEPT: usize = 20_000;
/// Records read at once.
const PAGE: usize = 256;

/// How large the journals are that this engine wrote to last, so that the limit is held without a read.
#[derive(Default)]
pub(crate) struct JournalSizes(Mutex<BTreeMap<Key, (u64, u64)>>);

impl JournalSizes {
    /// The bytes of a journal up to and with a number.
    fn at(&self, log: &Key, number: u64) -> Option<u64> {
        let sizes = self.0.lock().expect("no holder of this lock panics");
        sizes.get(log).filter(|(last, _)| *last == number).map(|(_, bytes)| *bytes)
    }

    fn note(&self, log: Key, number: u64, bytes: u64) {
        let mut sizes = self.0.lock().expect("no holder of this lock panics");
        if sizes.len() >= SIZES_KEPT {
            sizes.clear();
        }
        sizes.insert(log, (number, bytes));
    }
}

/// Where the result of an entry is kept when it is too large for the journal.
fn result_key(execution: &ExecutionId, generation: u32, number: u64) -> Key {
    Key::new(b'j', &[execution.uuid.as_bytes(), &generation.to_be_bytes(), &number.to_be_bytes()])
}

/// Records the entries in the transaction's commit and says which number comes next. The caller guards the lease.
pub(crate) async fn append(
    tx: &mut Tx<'_>,
    execution: &Execution,
    fence: &LeaseFence,
    new: &NewEntries<'_>,
) -> Result<u64> {
    let after = new.first_number + (new.entries.len() as u64);
    if new.is_empty() {
        return Ok(after);
    }
    let log = logs::journal(&execution.id, execution.generation);
    let total = size_before(tx, &log, new.first_number).await?;
    let records = new.records(fence, total)?;
    let written = if tx.is_repeat() { written(tx, &log, &records).await? } else { 0 };
    let fresh = records.get(written..).unwrap_or_default();
    let Some(first) = fresh.first() else { return Ok(after) };
    for NewRecord { number, beside, .. } in fresh {
        if let Some(bytes) = beside {
            tx.blob(result_key(&execution.id, execution.generation, *number), Some(bytes.clone()));
        }
    }
    tx.append(Append {
        log: log.clone(),
        records: fresh.iter().map(|one| Bytes::from(one.record.encode())).collect(),
        expected: Some(first.number),
        cap: 0,
    });
    if let Some(last) = fresh.last() {
        tx.engine.journal_sizes().note(log, last.number, last.record.total_bytes);
    }
    Ok(after)
}

/// Records what the engine decided while no lease lives: a signal, a timeout, the end of a child. The caller saves the
/// execution in the same commit, under its version. A full journal records nothing more; the holder finds out.
pub(crate) async fn append_decided(tx: &mut Tx<'_>, execution: &Execution, entries: &[StepEntry]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let log = logs::journal(&execution.id, execution.generation);
    let page = read_log(tx, &log, LogStart::Before(u64::MAX), 1).await?;
    let next = page.next.max(1);
    let total = match page.records.first() {
        Some(record) => StepRecord::decode(&record.record)?.total_bytes,
        None => 0,
    };
    let attempt = execution.attempt.as_ref().map(|attempt| attempt.index).unwrap_or_default();
    let nobody = LeaseFence { attempt, lease_id: LeaseId::default(), epoch: execution.epoch };
    let records = match (NewEntries { first_number: next, entries }).records(&nobody, total) {
        Ok(records) => records,
        Err(error) if error.code == Code::JournalFull => return Ok(()),
        Err(error) => return Err(error),
    };
    for NewRecord { number, beside, .. } in &records {
        if let Some(bytes) = beside {
            tx.blob(result_key(&execution.id, execution.generation, *number), Some(bytes.clone()));
        }
    }
    tx.append(Append {
        log,
        records: records.iter().map(|one| Bytes::from(one.record.encode())).collect(),
        expected: Some(next),
        cap: 0,
    });
    Ok(())
}

/// The bytes of the journal before an entry: remembered, or read once.
async fn size_before(tx: &mut Tx<'_>, log: &Key, first_number: u64) -> Result<u64> {
    if first_number <= 1 {
        return Ok(0);
    }
    if let Some(bytes) = tx.engine.journal_sizes().at(log, first_number - 1) {
        return Ok(bytes);
    }
    let page = read_log(tx, log, LogStart::After(first_number - 2), 1).await?;
    let record = page.records.first().filter(|record| record.sequence == first_number - 1);
    let Some(record) = record else { return Err(conflict(page.next.max(1))) };
    Ok(StepRecord::decode(&record.record)?.total_bytes)
}

/// How many of the records the log has already; other content or a gap is a conflict.
async fn written(tx: &mut Tx<'_>, log: &Key, records: &[NewRecord]) -> Result<usize> {
    let Some(first) = records.first().map(|record| record.number) else { return Ok(0) };
    let page = read_log(tx, log, LogStart::After(first - 1), records.len()).await?;
    let next = page.next.max(1);
    if first > next {
        return Err(conflict(next));
    }
    for (stored, sent) in page.records.iter().zip(records) {
        // The running total says nothing about the entry: it may have been counted from what another engine remembers.
        let total_bytes = sent.record.total_bytes;
        let same =
            StepRecord::decode(&stored.record).is_ok_and(|record| StepRecord { total_bytes, ..record } == sent.record);
        if stored.sequence != sent.number || !same {
            return Err(conflict(next));
        }
    }
    Ok(page.records.len())
}

/// Whether the journal has these entries already; other content under their numbers is a conflict.
pub(crate) async fn is_recorded(
    tx: &mut Tx<'_>,
    execution: &Execution,
    fence: &LeaseFence,
    new: &NewEntries<'_>,
) -> Result<bool> {
    if new.is_empty() {
        return Ok(true);
    }
    let log = logs::journal(&execution.id, execution.generation);
    let records = new.records(fence, 0)?;
    Ok(written(tx, &log, &records).await? == records.len())
}

/// The records from a number on, with their results.
pub(crate) async fn recorded_since(
    tx: &mut Tx<'_>,
    execution: &Execution,
    first: u64,
    limit: usize,
) -> Result<Vec<StepView>> {
    let log = logs::journal(&execution.id, execution.generation);
    let page = read_log(tx, &log, LogStart::After(first - 1), limit).await?;
    let mut views = Vec::with_capacity(page.records.len());
    for stored in page.records {
        let record = StepRecord::decode(&stored.record)?;
        let result = tx.engine.step_result(&execution.id, execution.generation, stored.sequence, &record).await?;
        views.push(record.view(stored.sequence, stored.at, result));
    }
    Ok(views)
}

async fn read_log(tx: &mut Tx<'_>, log: &Key, start: LogStart, limit: usize) -> Result<LogPage> {
    let query = Query::Log { log: log.clone(), start, limit };
    Ok(tx.read(vec![query]).await?.pop().and_then(Answer::into_log).unwrap_or_default())
}

fn conflict(next: u64) -> Error {
    Error::new(Code::JournalConflict, format!("the next entry of the journal has number {next}")).with("next", next)
}

/// Removes the journals of an execution with the results beside them, as much as the commit takes. Says whether that is
/// all; otherwise the next commit goes on.
pub(crate) async fn remove(tx: &mut Tx<'_>, execution: &Execution, removal: &mut Removal) -> Result<bool> {
    if execution.attempt.is_none() {
        return Ok(true);
    }
    let generations = execution.past_generations.iter().copied().chain([execution.generation]);
    for generation in generations {
        let log = logs::journal(&execution.id, generation);
        let limit = removal.left();
        if limit == 0 {
            return Ok(false);
        }
        let page = read_log(tx, &log, LogStart::After(0), limit).await?;
        let Some(last) = page.records.last().map(|record| record.sequence) else { continue };
        removal.take(page.records.len());
        for record in &page.records {
            let external = StepRecord::decode(&record.record)
                .is_ok_and(|record| record.result.is_some_and(|payload| payload.external));
            if external {
                tx.blob(result_key(&execution.id, generation, record.sequence), None);
            }
        }
        if page.records.len() == limit {
            tx.trim(log, last + 1);
            return Ok(false);
        }
        tx.trim(log, u64::MAX);
    }
    Ok(true)
}

/// A part of a journal with its results.
pub(crate) struct JournalPage {
    pub(crate) entries: Vec<StepView>,
    pub(crate) next_number: u64,
    /// Whether records are left behind the last one.
    pub(crate) more: bool,
}

impl Engine {
    /// Records of a journal behind a number, with their results, until so many records or bytes.
    pub(crate) async fn read_journal(
        &self,
        id: &ExecutionId,
        generation: u32,
        after: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<JournalPage> {
        let mut page = JournalPage { entries: Vec::new(), next_number: 1, more: false };
        let (mut after, mut bytes) = (after, 0);
        loop {
            let wanted = PAGE.min(limit - page.entries.len());
            let log = logs::journal(id, generation);
            let found = self.store().log(id.partition(), log, LogStart::After(after), wanted).await?;
            page.next_number = found.next.max(1);
            let full = found.records.len() == wanted;
            for stored in found.records {
                after = stored.sequence;
                let Ok(record) = StepRecord::decode(&stored.record) else {
                    self.metrics().undecodable();
                    continue;
                };
                let size = stored.record.len() + external_size(&record);
                if bytes + size > max_bytes && !page.entries.is_empty() {
                    page.more = true;
                    return Ok(page);
                }
                bytes += size;
                let result = self.step_result(id, generation, stored.sequence, &record).await?;
                page.entries.push(record.view(stored.sequence, stored.at, result));
            }
            page.more = after + 1 < page.next_number;
            if !full || page.entries.len() >= limit {
                return Ok(page);
            }
        }
    }

    async fn step_result(
        &self,
        id: &ExecutionId,
        generation: u32,
        number: u64,
        record: &StepRecord,
    ) -> Result<Option<Content>> {
        let Some(payload) = &record.result else { return Ok(None) };
        let beside = match payload.external {
            true => {
                let key = result_key(id, generation, number);
                self.store().blobs(id.partition(), vec![key]).await?.pop().flatten()
            }
            false => None,
        };
        let Some(bytes) = payload.assemble(beside) else { return Err(Error::of(Code::ResultTrimmed)) };
        Ok(Some(Content { bytes, content_type: payload.content_type.clone() }))
    }

    /// The journal that a claim brings: none before the first lease of a generation, when nobody can have written one.
    pub(crate) async fn claimed_journal(&self, execution: &Execution) -> Result<Option<Journal>> {
        let first = execution.lease.as_ref().is_none_or(|lease| match lease.kind {
            ClaimKind::Initial | ClaimKind::Replay => true,
            ClaimKind::Retry | ClaimKind::Reclaim | ClaimKind::Resumed => false,
        });
        if first {
            return Ok(None);
        }
        let most = usize::try_from(limits::JOURNAL_ENTRIES_MAX).unwrap_or(usize::MAX);
        let max_bytes = limits::JOURNAL_PER_TASK_MAX_BYTES;
        let page = self.read_journal(&execution.id, execution.generation, 0, most, max_bytes).await?;
        Ok(Some(Journal { entries: page.entries, next_number: page.next_number, complete: !page.more }))
    }
}

fn external_size(record: &StepRecord) -> usize {
    let external = record.result.as_ref().filter(|payload| payload.external);
    external.map_or(0, |payload| usize::try_from(payload.size).unwrap_or(usize::MAX))
}

/// The entry of a wait that a signal ends: its result is the signal's payload.
pub(crate) fn signal_entry(wait: &Wait, id: SignalId, payload: Option<Blob>, content_type: &str) -> StepEntry {
    StepEntry {
        content_type: payload.as_ref().map(|_| content_type.to_owned()).filter(|name| !name.is_empty()),
        result_base64: payload,
        signal: Some(id),
        ..wait.ended(StepState::Completed)
    }
}

/// The entry of a wait for a child that has just ended.
pub(crate) fn child_entry(wait: &Wait, child: &Execution) -> StepEntry {
    let reason = child.failure.as_ref().map(|failure| failure.reason.as_str()).unwrap_or_default();
    let outcome = child.state.terminal_outcome;
    debug_assert!(outcome != TerminalOutcome::None, "only an ended child wakes its parent");
    wait.child_ended(outcome, reason)
}
