//! Lets go of an execution until the children it spawned have ended.

use ff_core::Result;
use ff_core::op::WaitChildren;
use ff_core::op::wait_children::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<WaitChildren> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let fence = args.fence;
        self.change(caller, &args.execution_id, Some(&fence), move |execution, moment| {
            execution.wait_children(&fence, moment.now, moment.effects)?;
            Ok(Outcome { open_children: execution.child_wait.open, public_state: execution.public_state() })
        })
        .await
    }
}
