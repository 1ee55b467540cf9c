//! Running an execution that has ended once more, with what follows for its flow and its edges.

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::flow::Flow;
use ff_core::planted::{Bug, planted};
use ff_core::{Edge, EdgeRole, Error, Key, Result, index, limits};
use ff_store::Scan;

use crate::flow::{cancel_siblings, connect, flow_not_found, save_flow};
use crate::mailbox::close_past;
use crate::single_key::take_key_again;
use crate::transaction::Tx;
use crate::visibility::not_found;

/// Replays an execution, with the entries that its journal has below a number. A refusal leaves nothing to be written.
pub(crate) async fn replay(tx: &mut Tx<'_>, execution: &mut Execution, below: Option<u64>) -> Result<()> {
    let mut effects = Effects::default();
    match execution.flow {
        None => execution.replay(0, below, tx.now)?,
        Some(id) => {
            let loaded = tx.load::<Flow>(Flow::key_of(&id)).await?;
            let mut flow = loaded.ok_or_else(|| flow_not_found(&id))?.document;
            if flow.removing && !planted(Bug::RemovalReopened) {
                // It is as good as gone: parts of its flow are.
                return Err(not_found(&execution.id));
            }
            let reopened = edges_to_reopen(tx, execution).await?;
            let count = u32::try_from(reopened.len()).map_err(|_| Error::of(ff_core::Code::CommitTooLarge))?;
            execution.replay(count, below, tx.now)?;
            flow.reopen()?;
            connect_reopened(tx, execution, reopened, &mut effects).await?;
            // Saved even if it is unchanged: a commit that is about to end the flow must notice.
            save_flow(tx, &flow);
        }
    }
    if execution.has_started() {
        close_past(tx, execution).await?;
    }
    take_key_again(tx, execution).await?;
    tx.save_execution(execution, effects);
    cancel_siblings(tx, execution, &[]).await
}

/// The edges that wait again when a member is replayed: those that had become impossible, if it never ran.
async fn edges_to_reopen(tx: &mut Tx<'_>, execution: &Execution) -> Result<Vec<Edge>> {
    let mut reopened = Vec::new();
    if !execution.has_started() {
        for mut edge in edges_to(tx, execution).await? {
            if edge.role == EdgeRole::Dependency && edge.reopen() {
                reopened.push(edge);
            }
        }
    }
    Ok(reopened)
}

/// Connects the reopened edges of a replayed member; those whose upstream has succeeded since count at once.
async fn connect_reopened(
    tx: &mut Tx<'_>,
    execution: &mut Execution,
    reopened: Vec<Edge>,
    effects: &mut Effects,
) -> Result<()> {
    let upstreams = reopened.iter().map(|edge| Execution::key_of(&edge.upstream)).collect();
    for (edge, upstream) in reopened.into_iter().zip(tx.load_many::<Execution>(upstreams).await?) {
        let succeeded = |upstream: &Execution| upstream.state.terminal_outcome == ff_core::TerminalOutcome::Success;
        let edge = match upstream.map(|loaded| loaded.document) {
            Some(upstream) if succeeded(&upstream) || !upstream.is_terminal() => {
                connect(tx, edge, &upstream, execution, effects)?
            }
            // It waits for this one to be replayed as well.
            _ => edge,
        };
        tx.save(&edge);
    }
    Ok(())
}

/// Every edge that leads to an execution, made known to the transaction.
async fn edges_to(tx: &mut Tx<'_>, execution: &Execution) -> Result<Vec<Edge>> {
    let mut edges = Vec::new();
    let mut after: Option<(i64, Key)> = None;
    loop {
        let mut scan = Scan::first(index::edges_to(execution.id.uuid), limits::PAGE_MAX).with_documents();
        scan.after = after.take();
        let page = tx.scan(scan).await?;
        let full = page.entries.len() == limits::PAGE_MAX;
        after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
        for entry in page.entries {
            if let Some(loaded) = tx.adopt_readable::<Edge>(entry.member, entry.document) {
                edges.push(loaded.document);
            }
        }
        if !full {
            return Ok(edges);
        }
    }
}
