//! Journals: appending entries under the fence of a lease alone, and reading them back for a claim or a person.
//!
//! The holder numbers its entries. The first try trusts the numbers; a conflict says that the log is elsewhere, and then
//! it is read. So a step costs one commit and no read.

use bytes::Bytes;
use ff_core::error::Class;
use ff_core::event::Effects;
use ff_core::execution::{self, Execution, FoundLoop, LostLease, Wait};
use ff_core::journal::{
    Journal, NewEntries, NewRecord, StepEntry, StepIdentity, StepKind, StepRecord, StepState, StepView,
};
use ff_core::lease::{ClaimKind, LeaseFence};
use ff_core::op::parts::Content;
use ff_core::state::TerminalOutcome;
use ff_core::stream::Frame;
use ff_core::{
    Blob, Code, Document, Error, ExecutionId, Indexed, Key, LeaseId, Result, SignalId, SuspensionId, limits,
};
use ff_store::{Answer, Append, LogPage, LogStart, Query};

use crate::caller::Caller;
use crate::logs;
use crate::removal::Removal;
use crate::transaction::{Command, Transactor, Tx};
use crate::visibility::check_reachable;

/// Records read at once.
const PAGE: usize = 256;

/// Where the result of a record is kept when it is too large for the journal. Results go by the place of their record in
/// the log of its generation.
pub(crate) fn result_key(execution: &ExecutionId, generation: u32, sequence: u64) -> Key {
    Key::new(b'j', &[execution.uuid.as_bytes(), &generation.to_be_bytes(), &sequence.to_be_bytes()])
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
    let tail = execution.journal_tail();
    let total = size_before(tx, execution, new.first_number).await?;
    let records = records_of(execution, fence, new, total)?;
    let written = if tx.is_repeat() { written(tx, execution, &records).await? } else { 0 };
    let fresh = records.get(written..).unwrap_or_default();
    let Some(first) = fresh.first() else { return Ok(after) };
    if first.number < tail.first {
        // These numbers are of an earlier generation, and stand.
        return Err(conflict(next_number(tx, execution).await?));
    }
    write(tx, execution, fresh);
    if let Some(last) = fresh.last() {
        let log = logs::journal(&execution.id, tail.generation);
        tx.transactor.journal_sizes().note(log, last.number, last.record.total_bytes);
    }
    Ok(after)
}

/// The records of a holder's entries. Only a policy that compares results has those digested that go beside the journal.
fn records_of(
    execution: &Execution,
    fence: &LeaseFence,
    new: &NewEntries<'_>,
    total_bytes: u64,
) -> Result<Vec<NewRecord>> {
    let mut records = new.records(fence, total_bytes)?;
    if execution.policy.no_progress.is_some() {
        records.iter_mut().for_each(NewRecord::digest_result);
    }
    Ok(records)
}

/// Stops an execution whose holder records an entry that is taken for a loop; says whether it did. The caller appends the
/// entries in the same commit, and guards the lease.
pub(crate) async fn stop_loop(
    tx: &mut Tx<'_>,
    execution: &mut Execution,
    fence: &LeaseFence,
    new: &NewEntries<'_>,
    suspension: SuspensionId,
) -> Result<bool> {
    let Some(found) = find_loop(tx, execution, fence, new).await? else { return Ok(false) };
    let mut effects = Effects::default();
    execution.stop_loop(fence, &found, suspension, tx.now, &mut effects)?;
    tx.require_holder(&execution.key(), fence);
    tx.save_execution(execution, effects);
    Ok(true)
}

/// The entry of these that is taken for a loop. Without a policy nothing is read.
async fn find_loop(
    tx: &mut Tx<'_>,
    execution: &Execution,
    fence: &LeaseFence,
    new: &NewEntries<'_>,
) -> Result<Option<FoundLoop>> {
    let Some(policy) = &execution.policy.no_progress else { return Ok(None) };
    let records: Vec<StepRecord> = records_of(execution, fence, new, 0)?.into_iter().map(|new| new.record).collect();
    if records.iter().all(|record| record.outcome_digest().is_none()) {
        return Ok(None);
    }
    let window = u64::from(policy.window);
    let from = new.first_number.saturating_sub(window).max(execution.loop_from()).max(1);
    let earlier = records_between(tx, execution, from, new.first_number).await?;
    Ok(execution::find_loop(policy, &earlier, &records))
}

/// The records of the present generation from one number up to another, oldest first.
async fn records_between(tx: &mut Tx<'_>, execution: &Execution, from: u64, below: u64) -> Result<Vec<StepRecord>> {
    let mut records = Vec::new();
    for run in execution.journal_segments(execution.generation) {
        let (first, end) = (from.max(run.first), below.min(run.below));
        if first >= end {
            continue;
        }
        let log = logs::journal(&execution.id, run.generation);
        let limit = usize::try_from(end - first).unwrap_or(PAGE);
        let page = read_log(tx, &log, LogStart::After(run.sequence(first) - 1), limit).await?;
        for stored in page.records.iter().filter(|stored| run.number(stored.sequence) < end) {
            records.push(StepRecord::decode(&stored.record)?);
        }
    }
    Ok(records)
}

/// Puts records behind the last one of the present generation.
pub(crate) fn write(tx: &mut Tx<'_>, execution: &Execution, records: &[NewRecord]) {
    let tail = execution.journal_tail();
    let Some(first) = records.first() else { return };
    for NewRecord { number, beside, .. } in records {
        if let Some(bytes) = beside {
            tx.blob(result_key(&execution.id, tail.generation, tail.sequence(*number)), Some(bytes.clone()));
        }
    }
    tx.append(Append {
        log: logs::journal(&execution.id, tail.generation),
        records: records.iter().map(|one| Bytes::from(one.record.encode())).collect(),
        expected: Some(tail.sequence(first.number)),
        cap: 0,
        in_turn: false,
    });
}

/// Records what the engine decided while no lease lives: a signal, a timeout, the end of a child, an answer. The caller
/// saves the execution in the same commit, under its version. A full journal has a reserve for it.
pub(crate) async fn append_decided(tx: &mut Tx<'_>, execution: &Execution, entries: &[StepEntry]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let next = next_number(tx, execution).await?;
    let total = size_before(tx, execution, next).await?;
    let attempt = execution.attempt.as_ref().map(|attempt| attempt.index).unwrap_or_default();
    let nobody = LeaseFence { attempt, lease_id: LeaseId::default(), epoch: execution.epoch };
    let records = NewEntries { first_number: next, entries }.decided_records(&nobody, total)?;
    write(tx, execution, &records);
    Ok(())
}

/// Refuses a function that has filled its part of the journal to wait once more: what ended the wait would use up the
/// reserve, parking by parking.
pub(crate) async fn check_room(tx: &mut Tx<'_>, execution: &Execution, first_number: u64) -> Result<()> {
    let size = size_before(tx, execution, first_number).await?;
    if first_number > limits::JOURNAL_ENTRIES_MAX || size > limits::JOURNAL_MAX_BYTES {
        return Err(Error::new(Code::JournalFull, "the journal has no room for what ends another wait"));
    }
    Ok(())
}

/// The number of the next entry.
pub(crate) async fn next_number(tx: &mut Tx<'_>, execution: &Execution) -> Result<u64> {
    let tail = execution.journal_tail();
    let log = logs::journal(&execution.id, tail.generation);
    let page = read_log(tx, &log, LogStart::Before(u64::MAX), 1).await?;
    Ok(tail.number(page.next.max(1)))
}

/// The bytes of the journal before an entry: remembered, or read once.
pub(crate) async fn size_before(tx: &mut Tx<'_>, execution: &Execution, first_number: u64) -> Result<u64> {
    if first_number <= 1 {
        return Ok(0);
    }
    let number = first_number - 1;
    let segments = execution.journal_segments(execution.generation);
    let Some(run) = segments.iter().find(|run| (run.first..run.below).contains(&number)) else { return Ok(0) };
    let log = logs::journal(&execution.id, run.generation);
    if let Some(bytes) = tx.transactor.journal_sizes().at(&log, number) {
        return Ok(bytes);
    }
    let sequence = run.sequence(number);
    let page = read_log(tx, &log, LogStart::After(sequence - 1), 1).await?;
    let record = page.records.first().filter(|record| record.sequence == sequence);
    let Some(record) = record else { return Err(conflict(next_number(tx, execution).await?)) };
    Ok(StepRecord::decode(&record.record)?.total_bytes)
}

/// How many of the records the log has already; other content or a gap is a conflict.
async fn written(tx: &mut Tx<'_>, execution: &Execution, records: &[NewRecord]) -> Result<usize> {
    let Some(first) = records.first().map(|record| record.number) else { return Ok(0) };
    let tail = execution.journal_tail();
    let log = logs::journal(&execution.id, tail.generation);
    if first < tail.first {
        return Err(conflict(next_number(tx, execution).await?));
    }
    let page = read_log(tx, &log, LogStart::After(tail.sequence(first) - 1), records.len()).await?;
    let next = tail.number(page.next.max(1));
    if first > next {
        return Err(conflict(next));
    }
    for (place, (stored, sent)) in page.records.iter().zip(records).enumerate() {
        let record = StepRecord::decode(&stored.record).ok().filter(|record| sent.is_same_as(record));
        let Some(record) = record.filter(|_| tail.number(stored.sequence) == sent.number) else {
            return Err(conflict(next));
        };
        if record.lease == sent.record.lease {
            continue;
        }
        // Another lease wrote it. That a body began there is no word of this one's, unless this one also knows its end.
        let ends = |later: &NewRecord| later.record.state.is_ended() && later.record.is_about(&record);
        let in_doubt = record.state == StepState::Begun && record.kind == StepKind::Step;
        let beside = result_key(&execution.id, tail.generation, stored.sequence);
        if (in_doubt && !records[place..].iter().any(ends)) || !has_beside(tx, beside, sent.beside.as_ref()).await? {
            return Err(conflict(next));
        }
    }
    Ok(page.records.len())
}

/// Whether the bytes that are kept beside a record are these. The record itself tells only their size.
async fn has_beside(tx: &mut Tx<'_>, key: Key, sent: Option<&Bytes>) -> Result<bool> {
    let Some(sent) = sent else { return Ok(true) };
    let found = tx.read(vec![Query::Blobs(vec![key])]).await?.pop().and_then(Answer::into_blobs);
    Ok(found.and_then(|mut found| found.pop()).flatten().is_some_and(|stored| stored == *sent))
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
    let records = records_of(execution, fence, new, 0)?;
    Ok(written(tx, execution, &records).await? == records.len())
}

/// The records from a number on, with their results.
pub(crate) async fn recorded_since(
    tx: &mut Tx<'_>,
    execution: &Execution,
    first: u64,
    limit: usize,
) -> Result<Vec<StepView>> {
    let tail = execution.journal_tail();
    let log = logs::journal(&execution.id, tail.generation);
    let page = read_log(tx, &log, LogStart::After(tail.sequence(first.max(tail.first)) - 1), limit).await?;
    let mut views = Vec::with_capacity(page.records.len());
    for stored in page.records {
        let record = StepRecord::decode(&stored.record)?;
        let result = tx.transactor.step_result(&execution.id, tail.generation, stored.sequence, &record).await?;
        views.push(record.view(tail.number(stored.sequence), stored.at, result));
    }
    Ok(views)
}

/// One entry as a journal has it.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The number of its first record.
    pub(crate) first: Option<u64>,
    /// Its last record, and where that stands.
    pub(crate) last: Option<(StepRecord, u32, u64)>,
}

/// Looks for the records of an entry in the present generation. The whole journal is gone through, without results that
/// are kept beside it.
pub(crate) async fn find(tx: &mut Tx<'_>, execution: &Execution, step: &StepIdentity) -> Result<Found> {
    let mut found = Found::default();
    for run in execution.journal_segments(execution.generation) {
        let log = logs::journal(&execution.id, run.generation);
        let mut after = 0;
        loop {
            let page = read_log(tx, &log, LogStart::After(after), PAGE).await?;
            let full = page.records.len() == PAGE;
            for stored in page.records {
                after = stored.sequence;
                if run.number(stored.sequence) >= run.below {
                    break;
                }
                let record = StepRecord::decode(&stored.record)?;
                if step.is_of(&record) {
                    found.first.get_or_insert(run.number(stored.sequence));
                    found.last = Some((record, run.generation, stored.sequence));
                }
            }
            if !full || run.number(after + 1) >= run.below {
                break;
            }
        }
    }
    Ok(found)
}

/// The last record of each of these entries below a number of the present generation.
pub(crate) async fn last_records(
    tx: &mut Tx<'_>,
    execution: &Execution,
    steps: &[&StepIdentity],
    below: u64,
) -> Result<Vec<Option<StepRecord>>> {
    let mut found = vec![None; steps.len()];
    let mut first = 1;
    while first < below {
        let end = below.min(first + PAGE as u64);
        for record in records_between(tx, execution, first, end).await? {
            let places = steps.iter().zip(&mut found).filter(|(step, _)| step.is_of(&record));
            places.for_each(|(_, last)| *last = Some(record.clone()));
        }
        first = end;
    }
    Ok(found)
}

pub(crate) async fn read_log(tx: &mut Tx<'_>, log: &Key, start: LogStart, limit: usize) -> Result<LogPage> {
    let query = Query::Log { log: log.clone(), start, limit };
    Ok(tx.read(vec![query]).await?.pop().and_then(Answer::into_log).unwrap_or_default())
}

/// The newest thing that the logs have of the present lease: a journal entry or a frame.
pub(crate) async fn last_of_lease(tx: &mut Tx<'_>, execution: &Execution) -> Result<LostLease> {
    let Some(lease) = &execution.lease else { return Ok(LostLease::default()) };
    let newest = |log| Query::Log { log, start: LogStart::Before(u64::MAX), limit: 1 };
    let journal = logs::journal(&execution.id, execution.journal_tail().generation);
    let queries = vec![newest(journal), newest(logs::frames(&execution.id, lease.attempt))];
    let mut pages = tx.read(queries).await?.into_iter().map(|answer| answer.into_log().unwrap_or_default());
    let (journal, frames) = (pages.next().unwrap_or_default(), pages.next().unwrap_or_default());
    // A record that cannot be read is a sign of work all the same.
    let step = journal.records.first().and_then(|stored| match StepRecord::decode(&stored.record) {
        Ok(record) => (record.lease == lease.id).then(|| (stored.at, record.in_words())),
        Err(_) => Some((stored.at, String::new())),
    });
    let frame = frames.records.first().map(|stored| {
        let said = Frame::decode(&stored.record).map(|frame| frame.in_words());
        (stored.at, said.unwrap_or_default())
    });
    Ok(LostLease { last: step.into_iter().chain(frame).max_by_key(|(at, _)| *at) })
}

fn conflict(next: u64) -> Error {
    Error::new(Code::JournalConflict, format!("the next entry of the journal has number {next}")).with("next", next)
}

/// Removes the journals of an execution with the results beside them, as much as the commit takes. Says whether that is
/// all; otherwise the next commit goes on.
pub(crate) async fn remove(tx: &mut Tx<'_>, execution: &Execution, removal: &mut Removal) -> Result<bool> {
    if execution.attempt.is_none() && execution.fork().is_none() {
        return Ok(true);
    }
    let past = execution.dropped_generations().iter().chain(&execution.past_generations).copied();
    for generation in past.chain([execution.generation]) {
        if !remove_generation(tx, execution, generation, removal).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the log of one generation.
pub(crate) async fn remove_generation(
    tx: &mut Tx<'_>,
    execution: &Execution,
    generation: u32,
    removal: &mut Removal,
) -> Result<bool> {
    let log = logs::journal(&execution.id, generation);
    let limit = removal.left();
    if limit == 0 {
        return Ok(false);
    }
    let page = read_log(tx, &log, LogStart::After(0), limit).await?;
    let Some(last) = page.records.last().map(|record| record.sequence) else { return Ok(true) };
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
    Ok(true)
}

/// A part of a journal with its results.
pub(crate) struct JournalPage {
    pub(crate) entries: Vec<StepView>,
    pub(crate) next_number: u64,
    /// Whether records are left behind the last one.
    pub(crate) more: bool,
}

impl Transactor {
    /// Records of a journal behind a number, with their results, until so many records or bytes.
    pub(crate) async fn read_journal(
        &self,
        execution: &Execution,
        generation: u32,
        after: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<JournalPage> {
        let id = &execution.id;
        let runs = execution.journal_segments(generation);
        let mut page = JournalPage { entries: Vec::new(), next_number: 1, more: false };
        if let [_, .., own] = runs[..] {
            // A page may end before it comes to the generation's own log, and still says where that ends.
            let log = logs::journal(id, own.generation);
            let end = self.store().log(id.partition(), log, LogStart::Before(u64::MAX), 1).await?;
            page.next_number = own.number(end.next.max(1));
        }
        let (mut after, mut bytes) = (after, 0);
        for run in &runs {
            loop {
                let wanted = self.chunk(PAGE).min(limit - page.entries.len());
                let log = logs::journal(id, run.generation);
                let start = LogStart::After(run.sequence(after.max(run.first - 1)));
                let found = self.store().log(id.partition(), log, start, wanted).await?;
                if run.below == u64::MAX {
                    page.next_number = run.number(found.next.max(1));
                }
                let full = found.records.len() == wanted;
                for stored in found.records {
                    let number = run.number(stored.sequence);
                    if number >= run.below {
                        break;
                    }
                    after = number;
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
                    let result = self.step_result(id, run.generation, stored.sequence, &record).await?;
                    page.entries.push(record.view(number, stored.at, result));
                }
                page.more = after + 1 < page.next_number;
                if page.entries.len() >= limit {
                    return Ok(page);
                }
                if !full || after + 1 >= run.below {
                    break;
                }
            }
        }
        Ok(page)
    }

    pub(crate) async fn step_result(
        &self,
        id: &ExecutionId,
        generation: u32,
        sequence: u64,
        record: &StepRecord,
    ) -> Result<Option<Content>> {
        let Some(payload) = &record.result else { return Ok(None) };
        let beside = match payload.external {
            true => {
                let key = result_key(id, generation, sequence);
                self.store().blobs(id.partition(), vec![key]).await?.pop().flatten()
            }
            false => None,
        };
        let Some(bytes) = payload.assemble(beside) else { return Err(Error::of(Code::ResultTrimmed)) };
        Ok(Some(Content { bytes, content_type: payload.content_type.clone() }))
    }

    /// The journal that a claim brings: none before the first lease of a generation that began without entries. If that
    /// lease was `found` and not taken now, its own holder may have written some.
    pub(crate) async fn claimed_journal(&self, execution: &Execution, found: bool) -> Result<Option<Journal>> {
        let first = execution.lease.as_ref().is_none_or(|lease| match lease.kind {
            ClaimKind::Initial | ClaimKind::Replay => true,
            ClaimKind::Retry | ClaimKind::Reclaim | ClaimKind::Resumed | ClaimKind::Unknown(_) => false,
        });
        let unwritten = first && !found && !execution.follows_returned_lease();
        if unwritten && !execution.begins_with_entries() {
            return Ok(None);
        }
        let most = limits::JOURNAL_ENTRIES_MAX + limits::JOURNAL_RESERVE_ENTRIES;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let max_bytes = limits::JOURNAL_PER_TASK_MAX_BYTES;
        // Boxed, because a first claim reads none.
        let page = Box::pin(self.read_journal(execution, execution.generation, 0, most, max_bytes)).await?;
        if first && page.entries.is_empty() {
            return Ok(None);
        }
        Ok(Some(Journal { entries: page.entries, next_number: page.next_number, complete: !page.more }))
    }
}

impl Transactor {
    /// A call of a lease holder was answered. If its lease was lost, the steps that it says have ended are kept as
    /// evidence: the fence stops records, not effects, and a person may be asked whether they happened.
    pub(crate) async fn keep_late_reports<T>(
        &self,
        caller: &Caller,
        id: &ExecutionId,
        fence: &LeaseFence,
        entries: &[StepEntry],
        answered: &Result<T>,
    ) {
        let refused = matches!(answered, Err(error) if error.code.class() == Class::Stale);
        if !refused || !entries.iter().any(|entry| entry.state.is_ended()) {
            return;
        }
        let verb = KeepLateReports { caller, id, fence, entries };
        // Boxed, because it is rare, and would make the future of every ending three times as large.
        let keeping = Box::pin(self.transact(id.partition(), self.fresh_command(), &verb));
        if let Err(error) = keeping.await
            && let Some(suppressed) = self.may_log("a late report was not kept")
        {
            tracing::warn!(execution = %id, %error, suppressed, "what a late holder reported was not kept");
        }
    }
}

struct KeepLateReports<'a> {
    caller: &'a Caller,
    id: &'a ExecutionId,
    fence: &'a LeaseFence,
    entries: &'a [StepEntry],
}

impl Command for KeepLateReports<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(mut execution) = tx.find_execution(self.id).await? else { return Ok(()) };
        if check_reachable(self.caller, &execution).is_err() {
            return Ok(());
        }
        let mut news = false;
        for entry in self.entries {
            news |= execution.keep_late_report(self.fence, entry, tx.now)?;
        }
        if news {
            tx.save(&execution);
        }
        Ok(())
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
    let outcome = child.state.terminal_outcome;
    debug_assert!(outcome != TerminalOutcome::None, "only an ended child wakes its parent");
    wait.child_ended(outcome, child.end_reason())
}
