//! Makes an execution that lives in a flow's partition a member of it.

use ff_core::event::Effects;
use ff_core::flow::Flow;
use ff_core::op::AddExecutionToFlow;
use ff_core::op::add_execution_to_flow::{Args, Outcome};
use ff_core::{Code, Error, Result};

use super::flow::{load_flow, save_flow};
use super::{load_visible, not_found};
use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<AddExecutionToFlow> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_flow_id(&args.flow_id)?;
        let partition = args.flow_id.partition();
        let _turn = self.locks().take(partition, Flow::key_of(&args.flow_id)).await;
        let identity = self.callers_identity::<AddExecutionToFlow>(caller, &args, None);
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
        let mut flow = load_flow(tx, self.caller, &self.args.flow_id).await?;
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        if execution.namespace != flow.namespace {
            return Err(not_found(&execution.id));
        }
        if execution.flow == Some(flow.id) {
            return Ok(Outcome::AlreadyMember { node_count: flow.node_count });
        }
        flow.keep_for(execution.policy.retention_ms);
        let node_count = flow.add_member()?;
        if let Some(other) = execution.flow {
            return Err(Error::of(Code::ExecutionInOtherFlow).with("flow_id", other));
        }
        execution.join_flow(flow.id, self.args.node.as_deref(), tx.now);
        save_flow(tx, &flow);
        tx.save_execution(&execution, Effects::default());
        Ok(Outcome::Added { node_count })
    }
}
