//! Copies the journal of an execution to its fork: a bounded part in each commit, until the fork is released.

use ff_core::execution::{Execution, Fork};
use ff_core::journal::{NewRecord, StepKind, StepRecord, StepState};
use ff_core::payload::Payload;
use ff_core::{Document, Result, limits};
use ff_store::LogStart;

use crate::journal;
use crate::logs;
use crate::payload::Which;
use crate::transaction::Tx;

/// Records that one commit copies.
const RECORDS_AT_ONCE: usize = 100;
/// Bytes that one commit copies, give or take one result.
const BYTES_AT_ONCE: usize = 4 * 1024 * 1024;

/// Copies the next part of a fork's journal and saves the fork. Entries that have ended, or are to run again, are copied;
/// what had only begun is not, so that nothing of it is in doubt.
pub(crate) async fn copy_some(tx: &mut Tx<'_>, mut execution: Execution, mut fork: Fork) -> Result<bool> {
    let Some(mut origin) = tx.find_execution(&fork.origin).await? else {
        return abandon(tx, execution, "the execution it was forked from is gone");
    };
    let (mut records, mut bytes) = (Vec::new(), 0);
    let mut total = journal::size_before(tx, &execution, fork.next).await?;
    let mut done = true;
    'runs: for run in origin.journal_segments(fork.generation) {
        let below = run.below.min(fork.below);
        while fork.copied + 1 < below {
            let log = logs::journal(&origin.id, run.generation);
            let after = run.sequence(fork.copied.max(run.first - 1));
            let page = journal::read_log(tx, &log, LogStart::After(after), RECORDS_AT_ONCE).await?;
            // The removal of the origin takes its journal away from the beginning on: what is left is not what follows.
            let follows = page.records.first().is_some_and(|first| run.number(first.sequence) == fork.copied + 1);
            if !follows {
                return abandon(tx, execution, "the journal it was forked from is gone");
            }
            for stored in page.records {
                let number = run.number(stored.sequence);
                if number >= below {
                    break;
                }
                if records.len() >= RECORDS_AT_ONCE || bytes >= BYTES_AT_ONCE {
                    done = false;
                    break 'runs;
                }
                fork.copied = number;
                let record = StepRecord::decode(&stored.record)?;
                if record.state == StepState::Begun {
                    continue;
                }
                let (mut record, beside) = inherited(tx, &origin, run.generation, stored.sequence, record).await?;
                let size = record.encode().len() + beside.as_ref().map_or(0, bytes::Bytes::len);
                bytes += size;
                total += size as u64;
                record.total_bytes = total;
                records.push(NewRecord { number: fork.next, record, beside });
                fork.next += 1;
            }
        }
    }
    journal::write(tx, &execution, &records);
    execution.fork_copied(fork, done, tx.now);
    tx.save_execution(&execution, Default::default());
    if done && origin.owes_journals() {
        // A generation that was kept for the copy may go.
        origin.fork_is_complete(tx.now);
        tx.save(&origin);
    }
    Ok(!done)
}

/// A record as the fork has it, with its result. A child's result is part of its entry from here on: the child belongs to
/// another execution.
async fn inherited(
    tx: &mut Tx<'_>,
    origin: &Execution,
    generation: u32,
    sequence: u64,
    record: StepRecord,
) -> Result<(StepRecord, Option<bytes::Bytes>)> {
    let content = tx.transactor.step_result(&origin.id, generation, sequence, &record).await?;
    let of_child = record.kind == StepKind::Child && record.state == StepState::Completed && content.is_none();
    let content = match record.child.filter(|_| of_child) {
        Some(child) => match tx.find_execution(&child).await?.and_then(|child| Some((child.id, child.result?))) {
            Some((id, result)) => tx.transactor.optional_content(Which::Result, &id, &result).await?,
            None => None,
        },
        None => content,
    };
    let (result, beside) = match content {
        Some(content) => {
            let (payload, beside) =
                Payload::divide_at(content.bytes, &content.content_type, limits::STEP_INLINE_MAX_BYTES);
            (Some(payload), beside)
        }
        None => (None, None),
    };
    Ok((StepRecord { result, inherited: true, ..record }, beside))
}

/// There is nothing left to copy from: the fork fails, and says why.
fn abandon(tx: &mut Tx<'_>, mut execution: Execution, reason: &str) -> Result<bool> {
    let mut effects = ff_core::event::Effects::default();
    execution.fork_failed(reason, tx.now, &mut effects);
    tx.save_execution(&execution, effects);
    Ok(false)
}
