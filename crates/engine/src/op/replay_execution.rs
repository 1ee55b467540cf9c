//! Runs an execution that has ended once more. A flow it belongs to goes on; a member that never ran waits again for
//! the edges that had become impossible.

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::op::ReplayExecution;
use ff_core::op::replay_execution::{Args, Outcome};
use ff_core::planted::{Bug, planted};
use ff_core::{Edge, EdgeRole, Error, Flow, Key, Result, index, limits};
use ff_store::Scan;

use super::flow::{cancel_siblings, connect, flow_not_found, save_flow};
use super::{load_visible, not_found};
use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<ReplayExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.identity::<ReplayExecution>(caller, &args, args.command_id);
        self.transact_once(partition, identity, &Verb { caller, args: &args }).await
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    args: &'a Args,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let mut effects = Effects::default();
        match execution.flow {
            None => execution.replay(0, tx.now)?,
            Some(id) => {
                let loaded = tx.load::<Flow>(Flow::key_of(&id)).await?;
                let mut flow = loaded.ok_or_else(|| flow_not_found(&id))?.document;
                if flow.removing && !planted(Bug::RemovalReopened) {
                    // It is as good as gone: parts of its flow are.
                    return Err(not_found(&execution.id));
                }
                reopen_edges(tx, &mut execution, &mut effects).await?;
                flow.reopen()?;
                // Saved even if it is unchanged: whoever is about to end the flow must notice.
                save_flow(tx, &flow);
            }
        }
        tx.save_execution(&execution, effects);
        cancel_siblings(tx, &execution, &[]).await?;
        Ok(answer(&execution))
    }
}

fn answer(execution: &Execution) -> Outcome {
    Outcome {
        attempt: execution.next_attempt_index(),
        replay_count: execution.replays,
        public_state: execution.public_state(),
    }
}

/// Replays a member. If it never ran, its impossible edges are open again; those whose upstream has succeeded since
/// count at once.
async fn reopen_edges(tx: &mut Tx<'_>, execution: &mut Execution, effects: &mut Effects) -> Result<()> {
    let mut reopened = Vec::new();
    if !execution.has_started() {
        for mut edge in edges_to(tx, execution).await? {
            if edge.role == EdgeRole::Dependency && edge.reopen() {
                reopened.push(edge);
            }
        }
    }
    let count = u32::try_from(reopened.len()).map_err(|_| Error::of(ff_core::Code::CommitTooLarge))?;
    execution.replay(count, tx.now)?;
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
