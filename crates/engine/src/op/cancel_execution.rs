//! Cancels an execution. One that has ended keeps its outcome.

use ff_core::Result;
use ff_core::execution::{CancelSource, Cancelled};
use ff_core::op::CancelExecution;
use ff_core::op::cancel_execution::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<CancelExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let reason = args.reason.as_deref().unwrap_or_default();
        // A holder's cancellation is known by its lease.
        let identity = match &args.fence {
            Some(_) => None,
            None => self.identity::<CancelExecution>(caller, &args, None),
        };
        self.change_once(identity, caller, &args.execution_id, args.fence.as_ref(), |execution, moment| {
            let cancelled = match &args.fence {
                Some(fence) => execution.cancel_held(fence, reason, moment.now, moment.effects)?,
                None => execution.cancel(CancelSource::Operator, reason, moment.now, moment.effects)?,
            };
            Ok(match cancelled {
                Cancelled::Now => Outcome::Cancelled { cancelled_at: execution.ended_at },
                Cancelled::AlreadyEnded => Outcome::AlreadyTerminal { public_state: execution.public_state() },
            })
        })
        .await
    }
}
