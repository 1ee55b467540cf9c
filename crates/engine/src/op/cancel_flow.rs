//! Cancels a flow: one commit, after which no member starts. The members follow in chunks, also after a crash.

use ff_core::flow::{CancelFlowResult, Flow};
use ff_core::op::CancelFlow;
use ff_core::op::cancel_flow::Args;
use ff_core::{Result, limits};

use super::flow::{end_if_complete, load_flow, save_flow};
use crate::engine::{Caller, Engine, Handle};
use crate::env;
use crate::transaction::{Command, Tx};

impl Handle<CancelFlow> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<CancelFlowResult> {
        let id = &args.flow_id;
        self.check_flow_id(id)?;
        let deadline = self.env().now_ms() + limits::WAIT_MAX_MS;
        let mut listener = self.listen_to(id.partition(), Flow::key_of(id));
        let verb = Verb { caller, args: &args };
        let identity = self.identity::<CancelFlow>(caller, &args, None);
        self.transact_once(id.partition(), identity, &verb).await?;
        // A repeat finds it further on than the first call left it.
        let mut flow = self.visible_flow(caller, id).await?.0;
        let outstanding = |flow: &Flow| flow.cancellation.as_ref().is_some_and(|cancellation| cancellation.outstanding);
        while args.wait && outstanding(&flow) {
            self.refuse_if_closing()?;
            let left = deadline - self.env().now_ms();
            if left <= 0 {
                break;
            }
            env::within(self.env_handle(), left, listener.changed()).await;
            flow = self.visible_flow(caller, id).await?.0;
        }
        let members = self.first_members(id, limits::FLOW_CANCEL_LISTED_MAX).await?;
        let policy = flow.cancellation.as_ref().map(|cancellation| cancellation.policy).unwrap_or_default();
        if args.wait && !outstanding(&flow) {
            // Cancelling a member cannot fail for good: a crash or a conflict only makes it take longer.
            return Ok(CancelFlowResult::Cancelled { policy, members, failed: Vec::new() });
        }
        Ok(CancelFlowResult::CancellationScheduled { policy, member_count: flow.node_count, members })
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    args: &'a Args,
}

impl Command for Verb<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let mut flow = load_flow(tx, self.caller, &self.args.flow_id).await?;
        let reason = self.args.reason.as_deref().unwrap_or_default();
        if flow.cancel(self.args.policy.unwrap_or_default(), reason, tx.now)? {
            if flow.node_count == 0 {
                end_if_complete(tx, &mut flow).await?;
            }
            save_flow(tx, &flow);
        }
        Ok(())
    }
}
