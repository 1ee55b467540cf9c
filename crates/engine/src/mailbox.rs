//! Signals that wait for a function whose journal begins anew: they go with it.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::journal::StepIdentity;
use ff_core::waitpoint::{CloseReason, Waitpoint};
use ff_core::{Result, index, limits};
use ff_store::Scan;

use crate::transaction::Tx;

/// Whether calls of a name are counted from zero in the new generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renumbered {
    Yes,
    No,
}

/// A generation has ended and another one of the execution begins: the waitpoints of the old one close, and signals that
/// were sent by name and that nobody has waited for yet are kept for the new one.
pub(crate) async fn move_on(tx: &mut Tx<'_>, execution: &Execution, ended: u32, renumbered: Renumbered) -> Result<()> {
    let scan = Scan::first(index::pending_waitpoints(execution.id.uuid), limits::PAGE_MAX).with_documents();
    let mut old = Vec::new();
    for entry in tx.scan(scan).await?.entries {
        if let Some(loaded) = tx.adopt_readable::<Waitpoint>(entry.member, entry.document) {
            old.push(loaded.document);
        }
    }
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
        let mut fresh = Waitpoint::of_step(execution.id, execution.generation, &execution.namespace, &step, tx.now);
        fresh.buffered = buffered;
        fresh.buffered_bytes = bytes;
        for fact in &mut fresh.buffered {
            fact.waitpoint = fresh.id;
        }
        tx.create(&fresh);
    }
    Ok(())
}
