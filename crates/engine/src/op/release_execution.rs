//! Ends an operator's hold.

use ff_core::Result;
use ff_core::execution::Hold;
use ff_core::op::ReleaseExecution;
use ff_core::op::release_execution::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<ReleaseExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let identity = self.identity::<ReleaseExecution>(caller, &args, None);
        self.change_once(identity, caller, &args.execution_id, None, |execution, moment| {
            let changed = execution.holds.has(Hold::Operator);
            if changed {
                execution.release(moment.now)?;
            }
            Ok(Outcome { changed, public_state: execution.public_state() })
        })
        .await
    }
}
