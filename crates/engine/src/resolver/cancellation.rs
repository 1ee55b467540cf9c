//! Tells the members of a cancelled flow, in chunks. Members that the policy leaves alone run to their own end.

use ff_core::execution::Execution;
use ff_core::flow::{Flow, FlowCancellation};
use ff_core::{Indexed, Key, PublicState, Result, index};
use ff_store::{Answer, Query, Scan, Version};

use super::flows::FlowStep;
use crate::cancellation::tell_member;
use crate::flow::{end_if_complete, save_flow};
use crate::transaction::Tx;

/// The states of members that have not ended.
const LIVE: &[PublicState] = &[
    PublicState::Waiting,
    PublicState::Delayed,
    PublicState::RateLimited,
    PublicState::WaitingChildren,
    PublicState::Active,
    PublicState::Suspended,
];

/// One pass over the members. A member may change its state between two passes, so passes go on until a full one has
/// found nothing to do.
#[derive(Debug, Clone)]
pub(super) struct Look {
    /// The flow's version, which every commit that tells a member changes. If it is another one than expected, the
    /// store may have forgotten such a commit, and the look begins anew.
    version: Option<Version>,
    /// States whose members were not all seen, and where to go on.
    open: Vec<(PublicState, Option<(i64, Key)>)>,
    /// This pass has found something to do.
    acted: bool,
    /// When the last member that had started ended, as far as it was seen.
    last_ended_at: i64,
}

impl Look {
    /// A pass that has seen nothing yet. If the retention of the flow is to be counted anew, it covers ended members,
    /// too.
    pub(super) fn begin(cancellation: &FlowCancellation) -> Self {
        let states = if cancellation.lapsed { PublicState::ALL } else { LIVE };
        let open = states.iter().map(|state| (*state, None)).collect();
        Self { version: None, open, acted: false, last_ended_at: 0 }
    }
}

/// Tells the next members of a flow, as many as one commit takes.
pub(super) async fn tell_members(
    tx: &mut Tx<'_>,
    mut flow: Flow,
    cancellation: &FlowCancellation,
    mut look: Look,
    chunk: usize,
) -> Result<FlowStep> {
    let version = tx.version_of(&flow.key());
    if look.version.is_some_and(|expected| Some(expected) != version) {
        look = Look::begin(cancellation);
    }
    let limit = (chunk / look.open.len().max(1)).max(1);
    let scan = |(state, after): &(PublicState, Option<(i64, Key)>)| {
        let mut scan = Scan::first(index::member(flow.id.uuid, *state), limit).with_documents();
        scan.after.clone_from(after);
        Query::Scan(scan)
    };
    let answers = tx.read(look.open.iter().map(scan).collect()).await?;
    let pages = answers.into_iter().filter_map(Answer::into_scan);
    let mut told = false;
    for ((state, _), page) in std::mem::take(&mut look.open).into_iter().zip(pages) {
        let last = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
        if page.entries.len() == limit {
            look.open.push((state, last));
        }
        for entry in page.entries {
            let Some(loaded) = tx.adopt::<Execution>(entry.member, entry.document)? else { continue };
            let member = loaded.document;
            if member.is_terminal() && member.has_started() {
                look.last_ended_at = look.last_ended_at.max(member.ended_at);
            }
            told |= tell_member(tx, member, cancellation).await?;
        }
    }
    look.acted |= told;
    if look.open.is_empty() && !look.acted {
        if flow.finish_cancellation() {
            if end_if_complete(tx, &mut flow).await? && cancellation.lapsed {
                flow.retain_from(look.last_ended_at, Some(tx.transactor.options().retention_ms));
            }
            save_flow(tx, &flow);
        }
        return Ok(FlowStep::Done);
    }
    tx.pin(&flow.key());
    if told {
        tx.save(&flow);
    }
    let look = if look.open.is_empty() { Look::begin(cancellation) } else { look };
    Ok(FlowStep::Told(Look { version: if told { Some(tx.command) } else { version }, ..look }))
}
