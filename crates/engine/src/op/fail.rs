//! Ends the attempt in failure; the policy decides whether there is another.

use ff_core::Result;
use ff_core::execution::{FailOutcome, NewFailure};
use ff_core::op::Fail;
use ff_core::op::fail::Args;

use crate::engine::{Caller, Engine, Handle};

impl Handle<Fail> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<FailOutcome> {
        self.change(caller, &args.execution_id, Some(&args.fence), |execution, moment| {
            let failure = NewFailure {
                reason: &args.reason,
                category: args.category.as_deref().unwrap_or_default(),
                retry_after_ms: args.retry_after_ms,
                random: moment.random,
            };
            execution.fail(&args.fence, failure, moment.now, moment.effects)
        })
        .await
    }
}
