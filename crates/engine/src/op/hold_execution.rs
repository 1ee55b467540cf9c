//! Keeps an execution from being claimed until it is released.

use ff_core::Result;
use ff_core::execution::Hold;
use ff_core::op::HoldExecution;
use ff_core::op::hold_execution::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<HoldExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let identity = self.identity::<HoldExecution>(caller, &args, None);
        self.change_once(identity, caller, &args.execution_id, None, |execution, moment| {
            let changed = !execution.holds.has(Hold::Operator);
            // The first hold's reason stands, so that a repeated call is the same call.
            if changed {
                execution.hold(args.reason.as_deref().unwrap_or_default(), moment.now)?;
            }
            Ok(Outcome { changed, public_state: execution.public_state() })
        })
        .await
    }
}
