//! The data of an execution beside its document: waitpoints, signals, logs and blobs, and how they go with it.

use ff_core::execution::{Execution, ResumedBy};
use ff_core::index;
use ff_core::suspension::Suspension;
use ff_core::waitpoint::{CloseReason, Waitpoint};
use ff_core::{AttemptIndex, Indexed, Result};
use ff_store::Scan;

use crate::journal;
use crate::logs;
use crate::payload;
use crate::removal::Removal;
use crate::transaction::Tx;

/// Closes the waitpoints of a suspension that has ended.
pub(crate) async fn close_waitpoints(tx: &mut Tx<'_>, suspension: &Suspension, execution: &Execution) -> Result<()> {
    let reason = match (execution.is_terminal(), execution.resumed_by) {
        (true, _) => CloseReason::ExecutionEnded,
        (false, ResumedBy::Timeout) => CloseReason::TimedOut,
        (false, ResumedBy::Operator | ResumedBy::Decision) => CloseReason::Resumed,
        (false, ResumedBy::Signals | ResumedBy::Child | ResumedBy::Time | ResumedBy::Nothing) => CloseReason::Satisfied,
    };
    let keys = suspension.waitpoints.iter().map(Waitpoint::key_of).collect();
    for loaded in tx.load_readable::<Waitpoint>(keys).await?.into_iter().flatten() {
        let mut waitpoint = loaded.document;
        if waitpoint.close(reason, tx.now) {
            tx.save(&waitpoint);
        }
    }
    Ok(())
}

/// Removes an execution with everything it has; says whether it is gone. Data that does not fit one commit is removed
/// by the next ones: the document itself goes last and says how far its removal is, so that no caller can bring it back
/// in between.
pub(crate) async fn remove_execution_data(
    tx: &mut Tx<'_>,
    execution: &Execution,
    removal: &mut Removal,
) -> Result<bool> {
    tx.relief();
    let id = &execution.id;
    let mut progress = execution.removal.clone().unwrap_or_default();
    let limit = removal.left();
    let page = match limit {
        0 => Default::default(),
        _ => tx.scan(Scan::first(index::execution_parts(id.uuid), limit).with_documents()).await?,
    };
    let mut done = page.entries.len() < limit;
    removal.take(page.entries.len());
    for entry in page.entries {
        tx.delete_belonging(id, entry.member, entry.document)?;
    }
    // One that was claimed and given back has no attempt, but its worker may have begun to write all the same.
    let begun = u32::from(execution.epoch.0 > 0);
    let attempts = execution.attempt.as_ref().map_or(begun, |attempt| attempt.index.0.saturating_add(1));
    while done && progress.attempts < attempts {
        if removal.is_full() {
            done = false;
            break;
        }
        removal.take(1);
        tx.trim(logs::frames(id, AttemptIndex(progress.attempts)), u64::MAX);
        tx.delete_unindexed(logs::summary(id, AttemptIndex(progress.attempts)));
        progress.attempts += 1;
    }
    done = done && !removal.is_full() && journal::remove(tx, execution, removal).await?;
    if !done {
        tx.save(&Execution { removal: Some(progress), ..execution.clone() });
        return Ok(false);
    }
    removal.take(1);
    tx.trim(logs::history(id), u64::MAX);
    for key in payload::all_keys(id) {
        tx.blob(key, None);
    }
    tx.delete(&execution.key());
    Ok(true)
}
