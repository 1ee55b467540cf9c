//! Counts the executions of a namespace.

use ff_core::Result;
use ff_core::op::{GetCounts, GetCountsArgs, GetCountsOutcome};

use crate::caller::Caller;
use crate::op::Handle;
use crate::services::Services;

impl Handle<GetCounts> for Services {
    async fn handle(&self, caller: &Caller, args: GetCountsArgs) -> Result<GetCountsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        self.shared.counts.of(&namespace).await
    }
}
