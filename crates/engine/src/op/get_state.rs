//! Shows the state of an execution.

use ff_core::Result;
use ff_core::op::GetState;
use ff_core::op::get_state::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<GetState> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        Ok(Outcome { execution_id: execution.id, public_state: execution.public_state(), state: execution.state })
    }
}
