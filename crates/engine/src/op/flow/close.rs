//! Closes a flow that was made step by step.

use ff_core::Result;
use ff_core::op::{CloseFlow, CloseFlowArgs, CloseFlowOutcome};

use crate::caller::Caller;
use crate::flow::{end_if_complete, load_flow, save_flow};
use crate::op::{Handle, Request};
use crate::services::Services;
use crate::transaction::{Command, Tx};

impl Handle<CloseFlow> for Services {
    async fn handle(&self, caller: &Caller, args: CloseFlowArgs) -> Result<CloseFlowOutcome> {
        self.transactor.check_flow_id(&args.flow_id)?;
        self.transactor.check_lanes_of_members(caller, &args.flow_id).await?;
        let partition = args.flow_id.partition();
        let identity = self.transactor.identity::<CloseFlow>(caller, &args, None);
        let changed =
            self.transactor.transact_once(partition, identity, &Request::<CloseFlow> { caller, args: &args }).await?;
        let (flow, counts) = self.settled_flow(caller, &args.flow_id).await?;
        Ok(CloseFlowOutcome { changed, state: flow.state(&counts) })
    }
}

impl Command for Request<'_, CloseFlow> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let mut flow = load_flow(tx, self.caller, &self.args.flow_id).await?;
        let changed = flow.close(tx.now, tx.transactor.options().retention_ms);
        if changed {
            end_if_complete(tx, &mut flow).await?;
            save_flow(tx, &flow);
        }
        Ok(changed)
    }
}
