//! Says how far the work is. What a report leaves out stays as it was.

use ff_core::Result;
use ff_core::op::Progress;
use ff_core::op::parts::Done;
use ff_core::op::progress::Args;

use crate::engine::{Caller, Engine, Handle};

impl Handle<Progress> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Done> {
        let identity = self.callers_identity::<Progress>(caller, &args, None);
        self.change_once(identity, caller, &args.execution_id, Some(&args.fence), |execution, moment| {
            let (pct, message) = match &execution.progress {
                Some(before) => (before.pct, before.message.clone()),
                None => (0, String::new()),
            };
            let message = args.message.clone().unwrap_or(message);
            execution.report_progress(&args.fence, args.pct.unwrap_or(pct), &message, moment.now)?;
            Ok(Done {})
        })
        .await
    }
}
