//! Removes a flow past its retention, with its members and edges, in chunks and the flow last. The flow's document says
//! that its removal has begun before anything is removed; from then on no caller can replay a member.

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::flow::Flow;
use ff_core::{Edge, Indexed, PublicState, Result, index};
use ff_store::{Answer, Query, Scan};

use super::flows::FlowStep;
use crate::execution_data::remove_execution_data;
use crate::flow::cancel_member;
use crate::hint::Item;
use crate::removal::Removal;
use crate::transaction::Tx;

/// Members read at once.
const MEMBERS_AT_ONCE: usize = 32;

/// Removes as much of a flow as one commit takes.
pub(super) async fn remove_some(tx: &mut Tx<'_>, flow: &Flow, chunk: usize) -> Result<FlowStep> {
    tx.relief();
    tx.pin(&flow.key());
    let at_once = tx.transactor.chunk(MEMBERS_AT_ONCE);
    let scan =
        |state: &PublicState| Query::Scan(Scan::first(index::member(flow.id.uuid, *state), at_once).with_documents());
    let answers = tx.read(PublicState::ALL.iter().map(scan).collect()).await?;
    let pages = answers.into_iter().filter_map(Answer::into_scan).flat_map(|page| page.entries);
    let mut removal = Removal::of(chunk);
    let mut empty = true;
    let mut owed = Vec::new();
    for entry in pages {
        empty = false;
        if removal.is_full() {
            break;
        }
        let Some(loaded) = tx.adopt::<Execution>(entry.member.clone(), entry.document)? else { continue };
        let mut member = loaded.document;
        if !member.owed_slots.is_empty() {
            owed.push(entry.member);
            continue;
        }
        let mut effects = Effects::default();
        // No member of a flow that has ended should be alive. If one is, it is cancelled and its end is told before it
        // is removed.
        if cancel_member(tx, &mut member, "its flow is removed", &mut effects).await? {
            removal.take(1);
            tx.save_execution(&member, effects);
            continue;
        }
        if remove_edges(tx, &member, &mut removal).await? {
            remove_execution_data(tx, &member, &mut removal).await?;
        }
    }
    if empty {
        tx.delete(&flow.key());
        tx.hint(Item::Changed(flow.key()));
        return Ok(FlowStep::Done);
    }
    Ok(if removal.is_untouched() { FlowStep::Owed(owed) } else { FlowStep::Removed })
}

/// Removes the edges of a member, as many as the commit takes; returns whether those were all.
async fn remove_edges(tx: &mut Tx<'_>, member: &Execution, removal: &mut Removal) -> Result<bool> {
    let limit = removal.left();
    let scans = [index::edges_from(member.id.uuid), index::edges_to(member.id.uuid)]
        .map(|index| Query::Scan(Scan::first(index, limit).with_documents()));
    let mut all = true;
    for page in tx.read(scans.to_vec()).await?.into_iter().filter_map(Answer::into_scan) {
        all &= page.entries.len() < limit;
        removal.take(page.entries.len());
        for entry in page.entries {
            if let Some(loaded) = tx.adopt::<Edge>(entry.member, entry.document)? {
                tx.delete(&loaded.document.key());
            }
        }
    }
    Ok(all)
}
