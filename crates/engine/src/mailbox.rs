//! The waitpoints of journal entries: where signals wait for a function, also one whose journal begins anew.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::journal::StepIdentity;
use ff_core::suspension::{Delivery, NewSuspension, Suspension};
use ff_core::waitpoint::{CloseReason, Waitpoint};
use ff_core::{Indexed, Result, SignalFact, WaitpointId, index, limits};
use ff_store::Scan;

use crate::substitute;
use crate::transaction::Tx;

/// A waitpoint of a journal entry.
pub(crate) struct StepWaitpoint {
    pub(crate) waitpoint: Waitpoint,
    /// It is stored already.
    pub(crate) known: bool,
}

/// The waitpoints of entries of the present journal, made where they are new. A foreign one under the id of an entry is
/// passed over, and the entry gets a substitute.
pub(crate) async fn of_steps(
    tx: &mut Tx<'_>,
    execution: &Execution,
    steps: &[&StepIdentity],
) -> Result<Vec<StepWaitpoint>> {
    let fresh = |step: &&StepIdentity, now: i64| {
        Waitpoint::of_step(execution.id, execution.generation, &execution.namespace, step, now)
    };
    let fresh: Vec<Waitpoint> = steps.iter().map(|step| fresh(step, tx.now)).collect();
    let known = tx.load_many::<Waitpoint>(fresh.iter().map(Indexed::key).collect()).await?;
    let mut found = Vec::with_capacity(fresh.len());
    for (fresh, known) in fresh.into_iter().zip(known) {
        found.push(match known.map(|known| known.document) {
            None => StepWaitpoint { waitpoint: fresh, known: false },
            Some(known) if known.is_of_journal(&execution.id, execution.generation) => {
                StepWaitpoint { waitpoint: known, known: true }
            }
            Some(_) => substituted(tx, fresh).await?,
        });
    }
    Ok(found)
}

async fn substituted(tx: &mut Tx<'_>, mut fresh: Waitpoint) -> Result<StepWaitpoint> {
    fresh.id.uuid = substitute::find_or_mint(tx, &fresh.execution, fresh.id.uuid).await?;
    let known = tx.load::<Waitpoint>(fresh.key()).await?.map(|known| known.document);
    let is_known = known.is_some();
    Ok(StepWaitpoint { waitpoint: known.unwrap_or(fresh), known: is_known })
}

/// Signals that were sent by name before the execution suspended, as far as its suspension asks for them. They wait at
/// mailboxes until then, and count as if they had come to the waitpoint of the suspension. A question to people takes none:
/// an approval that was sent twice must not answer the next question, too. Neither does one with a schema, which might not
/// fit them. Where no signal was ever accepted nothing is read.
pub(crate) async fn take_early(
    tx: &mut Tx<'_>,
    execution: &Execution,
    request: &NewSuspension,
    waitpoint: WaitpointId,
) -> Result<Vec<SignalFact>> {
    let mut trial = Suspension::new(request.clone(), tx.now)?;
    // A journal that begins anew counts its signals anew, and keeps those that no wait has taken.
    let none_came = execution.signals == 0 && execution.generation == 0;
    if none_came || trial.takes_decisions() || !request.ask.schema.is_empty() {
        return Ok(Vec::new());
    }
    let mut mailboxes = pending(tx, execution).await?;
    let holds_mail = |one: &Waitpoint| {
        one.generation == Some(execution.generation) && one.step_key.is_none() && !one.buffered.is_empty()
    };
    mailboxes.retain(holds_mail);
    mailboxes.sort_by_key(|one| one.buffered.first().map(|fact| fact.at));
    let mut taken = Vec::new();
    for mut mailbox in mailboxes {
        let Some(first) = mailbox.buffered.first() else { continue };
        let fact = SignalFact { waitpoint, ..first.clone() };
        let delivery = trial.deliver(fact.clone());
        if delivery == Delivery::NoOp {
            continue;
        }
        mailbox.hand_over();
        tx.save(&mailbox);
        taken.push(fact);
        if matches!(delivery, Delivery::Satisfied { .. }) {
            break;
        }
    }
    Ok(taken)
}

/// The waitpoints of an execution that buffer.
async fn pending(tx: &mut Tx<'_>, execution: &Execution) -> Result<Vec<Waitpoint>> {
    let scan = Scan::first(index::pending_waitpoints(execution.id.uuid), limits::PAGE_MAX).with_documents();
    let entries = tx.scan(scan).await?.entries;
    let loaded = entries.into_iter().filter_map(|entry| tx.adopt_readable::<Waitpoint>(entry.member, entry.document));
    Ok(loaded.map(|loaded| loaded.document).collect())
}

/// A replay begins: the waitpoints of the runs before it take no more signals.
pub(crate) async fn close_past(tx: &mut Tx<'_>, execution: &Execution) -> Result<()> {
    let past = |waitpoint: &Waitpoint| waitpoint.generation != Some(execution.generation);
    for mut waitpoint in pending(tx, execution).await?.into_iter().filter(past) {
        waitpoint.close(CloseReason::ExecutionEnded, tx.now);
        tx.save(&waitpoint);
    }
    Ok(())
}

/// Whether calls of a name are counted from zero in the new generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renumbered {
    Yes,
    No,
}

/// A generation has ended and another one of the execution begins: the waitpoints of the old one close, and signals
/// that were sent by name and that no wait has taken yet are kept for the new one.
pub(crate) async fn move_on(tx: &mut Tx<'_>, execution: &Execution, ended: u32, renumbered: Renumbered) -> Result<()> {
    let mut old = pending(tx, execution).await?;
    old.retain(|waitpoint| waitpoint.generation == Some(ended));
    old.sort_by(|one, other| (&one.step_name, one.step_occurrence).cmp(&(&other.step_name, other.step_occurrence)));
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for mut waitpoint in old {
        let buffered = std::mem::take(&mut waitpoint.buffered);
        let bytes = waitpoint.buffered_bytes;
        waitpoint.close(CloseReason::Requested, tx.now);
        tx.save(&waitpoint);
        if buffered.is_empty() || waitpoint.step_key.is_some() {
            continue;
        }
        let count = counts.entry(waitpoint.step_name.clone()).or_default();
        let occurrence = match renumbered {
            Renumbered::Yes => *count,
            Renumbered::No => waitpoint.step_occurrence,
        };
        *count += 1;
        let step = StepIdentity { name: waitpoint.step_name, key: None, occurrence: Some(occurrence) };
        for StepWaitpoint { waitpoint: mut fresh, .. } in of_steps(tx, execution, &[&step]).await? {
            fresh.buffered.clone_from(&buffered);
            fresh.buffered_bytes = bytes;
            for fact in &mut fresh.buffered {
                fact.waitpoint = fresh.id;
            }
            tx.save(&fresh);
        }
    }
    Ok(())
}
