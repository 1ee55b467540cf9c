//! What an execution has beside its document: waitpoints, signals, logs and blobs, and how they go with it.

use ff_core::execution::{Execution, ResumedBy};
use ff_core::index;
use ff_core::suspension::Suspension;
use ff_core::waitpoint::{CloseReason, Waitpoint};
use ff_core::{AttemptIndex, Indexed, Result, limits};
use ff_store::Scan;

use super::payload;
use crate::logs;
use crate::transaction::Tx;

/// Closes the waitpoints of a suspension that has ended.
pub(crate) async fn close_waitpoints(tx: &mut Tx<'_>, suspension: &Suspension, execution: &Execution) -> Result<()> {
    let reason = match (execution.is_terminal(), execution.resumed_by) {
        (true, _) => CloseReason::ExecutionEnded,
        (false, ResumedBy::Timeout) => CloseReason::TimedOut,
        (false, ResumedBy::Operator) => CloseReason::Resumed,
        (false, ResumedBy::Signals | ResumedBy::Nothing) => CloseReason::Satisfied,
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

/// Removes an execution with everything it has. What does not fit one commit is removed by the next ones: the document
/// itself goes last, so that its timer brings the remover back.
pub(crate) async fn remove_execution(tx: &mut Tx<'_>, execution: &Execution) -> Result<()> {
    tx.relief();
    let id = &execution.id;
    let page = tx.scan(Scan::first(index::belongings(id.uuid), limits::RESOLVE_CHUNK)).await?;
    let partial = page.entries.len() == limits::RESOLVE_CHUNK;
    for entry in page.entries {
        tx.delete_belonging(id, entry.member).await?;
    }
    if partial {
        tx.pin(&execution.key());
        return Ok(());
    }
    let attempts = execution.attempt.as_ref().map_or(0, |attempt| attempt.index.0 + 1);
    for attempt in 0..attempts {
        tx.trim(logs::frames(id, AttemptIndex(attempt)), u64::MAX);
        tx.delete_unindexed(logs::summary(id, AttemptIndex(attempt)));
    }
    tx.trim(logs::history(id), u64::MAX);
    for key in payload::all_keys(id) {
        tx.blob(key, None);
    }
    tx.delete(&execution.key());
    Ok(())
}
