//! Makes a child wait for a staged edge; an upstream that has ended takes effect at once.

use ff_core::event::Effects;
use ff_core::op::ApplyDependencyToChild;
use ff_core::op::apply_dependency_to_child::{Args, Outcome};
use ff_core::{Code, Edge, EdgeState, Error, Join, Result};

use super::flow::{cancel_siblings, connect, load_flow, load_member};
use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<ApplyDependencyToChild> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_flow_id(&args.flow_id)?;
        let partition = args.flow_id.partition();
        let identity = self.callers_identity::<ApplyDependencyToChild>(caller, &args, None);
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
        let args = self.args;
        let flow = load_flow(tx, self.caller, &args.flow_id).await?;
        let loaded = tx.load::<Edge>(Edge::key_of(&args.edge_id)).await?.map(|loaded| loaded.document);
        let edge = loaded
            .filter(|edge| edge.flow == flow.id)
            .ok_or_else(|| Error::of(Code::EdgeNotFound).with("edge_id", args.edge_id))?;
        let mut child = load_member(tx, &flow, &edge.downstream).await?;
        let unsatisfied = |join: &Option<Join>| join.as_ref().map_or(0, Join::unsatisfied);
        if edge.state != EdgeState::Staged {
            return Ok(Outcome::AlreadyApplied { unsatisfied_count: unsatisfied(&child.join) });
        }
        flow.check_graph(args.expected_graph_revision)?;
        tx.pin(&ff_core::Flow::key_of(&flow.id));
        let upstream = load_member(tx, &flow, &edge.upstream).await?;
        let mut effects = Effects::default();
        child.add_dependency(args.join.as_ref(), tx.now)?;
        let edge = connect(tx, edge, &upstream, &mut child, &mut effects)?;
        let unsatisfied_count = unsatisfied(&child.join);
        tx.save(&edge);
        tx.save_execution(&child, effects);
        let fresh = if edge.state == EdgeState::Pending { vec![edge.upstream] } else { Vec::new() };
        cancel_siblings(tx, &child, &fresh).await?;
        Ok(Outcome::Applied { unsatisfied_count })
    }
}
