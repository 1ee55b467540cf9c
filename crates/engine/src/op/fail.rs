//! Ends the attempt in failure; the policy decides whether there is another.

use ff_core::Result;
use ff_core::execution::{FailOutcome, NewFailure};
use ff_core::op::Fail;
use ff_core::op::fail::Args;

use crate::engine::{Caller, Engine, Handle};

impl Handle<Fail> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<FailOutcome> {
        let holder = (&args.fence, args.new_entries()?);
        self.change_and_record(caller, &args.execution_id, holder, |execution, moment| {
            let failure = NewFailure {
                reason: &args.reason,
                category: args.category.as_deref().unwrap_or_default(),
                retry_after_ms: args.retry_after_ms,
                random: moment.random,
            };
            let outcome = execution.fail(&args.fence, failure, moment.now, moment.effects)?;
            // The entry that ended the attempt runs again with the retry; every other one stands.
            if let (FailOutcome::RetryScheduled { at }, Some(cause)) = (&outcome, &args.cause) {
                moment.entries.push(cause.retried_at(*at, &args.reason));
            }
            Ok(outcome)
        })
        .await
    }
}
