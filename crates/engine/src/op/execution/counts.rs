//! Counts the executions of a namespace.

use ff_core::Result;
use ff_core::op::{GetCounts, GetCountsArgs, GetCountsOutcome};

use crate::caller::Caller;
use crate::op::Handle;
use crate::rooms::Rooms;

impl Handle<GetCounts> for Rooms {
    async fn handle(&self, caller: &Caller, args: GetCountsArgs) -> Result<GetCountsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        self.services.counts.of(&namespace).await
    }
}
