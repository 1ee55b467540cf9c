//! Removes a flow that has ended before its retention is over.

use ff_core::Result;
use ff_core::op::parts::Removed;
use ff_core::op::{RemoveFlow, RemoveFlowArgs};

use crate::caller::Caller;
use crate::flow::{load_flow, save_flow};
use crate::op::{Handle, Request};
use crate::services::Services;
use crate::transaction::{Command, Tx};

/// From the commit on the flow reads as gone. The mark that it leaves makes the resolver remove members and edges in
/// chunks, and the flow last.
impl Handle<RemoveFlow> for Services {
    async fn handle(&self, caller: &Caller, args: RemoveFlowArgs) -> Result<Removed> {
        self.transactor.check_flow_id(&args.flow_id)?;
        self.transactor.check_lanes_of_members(caller, &args.flow_id).await?;
        let partition = args.flow_id.partition();
        let identity = self.transactor.identity::<RemoveFlow>(caller, &args, None);
        self.transactor.transact_once(partition, identity, &Request::<RemoveFlow> { caller, args: &args }).await
    }
}

impl Command for Request<'_, RemoveFlow> {
    type Outcome = Removed;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Removed> {
        let mut flow = load_flow(tx, self.caller, &self.args.flow_id).await?;
        flow.begin_removal()?;
        tx.relief();
        save_flow(tx, &flow);
        Ok(Removed::Removed)
    }
}
