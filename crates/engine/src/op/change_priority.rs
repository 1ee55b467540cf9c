//! Changes the priority of an execution that has not ended; a queued one moves.

use ff_core::Result;
use ff_core::op::ChangePriority;
use ff_core::op::change_priority::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<ChangePriority> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.change(caller, &args.execution_id, None, |execution, moment| {
            execution.change_priority(args.priority, moment.now)?;
            Ok(Outcome { priority: execution.priority })
        })
        .await
    }
}
