//! Closes a flow that was made step by step.

use ff_core::Result;
use ff_core::op::{CloseFlow, CloseFlowArgs, CloseFlowOutcome};

use crate::engine::{Caller, Engine, Handle};
use crate::flow::{end_if_complete, load_flow, save_flow};
use crate::op::Request;
use crate::transaction::{Command, Tx};

impl Handle<CloseFlow> for Engine {
    async fn handle(&self, caller: &Caller, args: CloseFlowArgs) -> Result<CloseFlowOutcome> {
        self.check_flow_id(&args.flow_id)?;
        self.check_lanes_of_members(caller, &args.flow_id).await?;
        let partition = args.flow_id.partition();
        let identity = self.identity::<CloseFlow>(caller, &args, None);
        let changed = self.transact_once(partition, identity, &Request::<CloseFlow> { caller, args: &args }).await?;
        let (flow, counts) = self.settled_flow(caller, &args.flow_id).await?;
        Ok(CloseFlowOutcome { changed, state: flow.state(&counts) })
    }
}

impl Command for Request<'_, CloseFlow> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let mut flow = load_flow(tx, self.caller, &self.args.flow_id).await?;
        let changed = flow.close(tx.now, tx.engine.options().retention_ms);
        if changed {
            end_if_complete(tx, &mut flow).await?;
            save_flow(tx, &flow);
        }
        Ok(changed)
    }
}
