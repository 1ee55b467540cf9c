//! Keys that stand for one execution at a time. The execution lives in the partition of its key, so that one commit
//! decides about both; its end frees the key in the same commit as itself.

use ff_core::event::Effects;
use ff_core::execution::{Execution, NewExecution};
use ff_core::op::CreateExecutionOutcome;
use ff_core::{Code, Error, ExecutionId, Key, KeyHolder, Result, SingleUse};

use crate::caller::check_lane_among;
use crate::submission::{Submission, existing_outcome};
use crate::transaction::Tx;

/// Whether an execution may be created under its key.
pub(crate) enum Place {
    /// It may, perhaps in the place of another one.
    Free { superseded: Option<ExecutionId> },
    /// This one stands for the key.
    Taken(CreateExecutionOutcome),
}

/// Where the holder of a request's key is written down.
pub(crate) fn holder_key(request: &NewExecution) -> Option<Key> {
    let single = request.sharing.single.as_ref()?;
    Some(KeyHolder::key_of(&request.namespace, single.usage, &single.key))
}

/// The document of a request's key, and the execution that the key stands for.
async fn find_holder(tx: &mut Tx<'_>, request: &NewExecution) -> Result<(Option<KeyHolder>, Option<Execution>)> {
    let (Some(single), Some(key)) = (&request.sharing.single, holder_key(request)) else { return Ok((None, None)) };
    let Some(known) = tx.load::<KeyHolder>(key).await?.map(|loaded| loaded.document) else { return Ok((None, None)) };
    let holder = tx.load::<Execution>(Execution::key_of(&known.execution)).await?;
    let holder = holder.map(|loaded| loaded.document).filter(|one| one.holds_key(single.usage, &single.key));
    Ok((Some(known), holder))
}

/// Refuses a submission whose debounce key stands for an execution that its caller's token is not good for: one in another
/// lane or, to a submitter, one that somebody else submitted. It would take the place of that execution, or the key from
/// it.
fn check_replaces(submission: &Submission, holder: &Execution) -> Result<()> {
    if submission.debounce.is_none() {
        return Ok(());
    }
    let submitter = &submission.request.submitted_by;
    let own = submitter.is_empty() || *submitter == holder.submitted_by;
    let others = || Error::new(Code::Forbidden, "somebody else submitted the execution that this key stands for");
    check_lane_among(&submission.lanes, &holder.lane)
        .and_then(|()| if own { Ok(()) } else { Err(others()) })
        .map_err(|refusal| refusal.with("field", "debounce.key").with("execution_id", holder.id))
}

/// Refuses a submission whose key it may not take, before anything is written.
pub(crate) async fn check_key(tx: &mut Tx<'_>, submission: &Submission) -> Result<()> {
    let (_, holder) = find_holder(tx, &submission.request).await?;
    holder.map_or(Ok(()), |holder| check_replaces(submission, &holder))
}

/// Takes the key of a new execution, and says when the execution starts if its key puts it off.
pub(crate) async fn take_key(tx: &mut Tx<'_>, request: &mut NewExecution, submission: &Submission) -> Result<Place> {
    let Some(single) = request.sharing.single.clone() else { return Ok(Place::Free { superseded: None }) };
    let (known, holder) = find_holder(tx, request).await?;
    let debounce = submission.debounce.as_ref();
    let mut began_at = tx.now;
    let mut superseded = None;
    match (holder, debounce) {
        (Some(holder), None) => return Ok(Place::Taken(existing_outcome(&holder))),
        (Some(mut holder), Some(debounce)) => {
            check_replaces(submission, &holder)?;
            let began = known.as_ref().map_or(tx.now, |known| known.began_at);
            let mut effects = Effects::default();
            // A burst that has lasted as long as it may is let run: what replaced it would wait at the end of the queue.
            if holder.is_replaceable() && tx.now < began + debounce.bound_ms() {
                holder.supersede(request.id, tx.now, &mut effects)?;
                (began_at, superseded) = (began, Some(holder.id));
            } else {
                holder.let_key_go(tx.now);
            }
            tx.save_execution(&holder, effects);
        }
        (None, _) => {}
    }
    if let Some(debounce) = debounce {
        request.delay_until = Some((tx.now + debounce.wait_ms).min(began_at + debounce.bound_ms()));
    }
    let holder = KeyHolder {
        namespace: request.namespace.clone(),
        usage: single.usage,
        key: single.key,
        execution: request.id,
        began_at,
        // What a newer version wrote beside the key stays there.
        ..known.unwrap_or_default()
    };
    tx.save(&holder);
    Ok(Place::Free { superseded })
}

/// An execution that runs again stands for its key again, unless the key stands for another one by now.
pub(crate) async fn take_key_again(tx: &mut Tx<'_>, execution: &mut Execution) -> Result<()> {
    for usage in [SingleUse::Singleton, SingleUse::Debounce] {
        let Some(key) = execution.single_key(usage) else { continue };
        let key = KeyHolder::key_of(&execution.namespace, usage, key);
        if tx.load::<KeyHolder>(key).await?.is_none()
            && let Some(holder) = execution.take_key_again()
        {
            tx.save(&holder);
        }
    }
    Ok(())
}
