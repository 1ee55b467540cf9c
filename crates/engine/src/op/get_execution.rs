//! Shows an execution.

use ff_core::execution::Execution;
use ff_core::op::GetExecution;
use ff_core::op::get_execution::Args;
use ff_core::op::view::ExecutionView;
use ff_core::{Document, ExecutionId, Result};

use super::{check_visible, not_found, view};
use crate::engine::{Caller, Engine, Handle};

impl Handle<GetExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<ExecutionView> {
        let (execution, lease_until) = self.visible_execution(caller, &args.execution_id).await?;
        Ok(view::execution(&execution, lease_until))
    }
}

impl Engine {
    /// An execution that the caller may see, as the store has it now, and when its lease ends.
    pub(crate) async fn visible_execution(&self, caller: &Caller, id: &ExecutionId) -> Result<(Execution, i64)> {
        self.check_id(id)?;
        let found = self.store().documents(id.partition(), vec![Execution::key_of(id)]).await?;
        let stored = found.into_iter().next().flatten().ok_or_else(|| not_found(id))?;
        let execution = Execution::decode(&stored.body)?;
        check_visible(caller, &execution)?;
        Ok((execution, stored.lease_until))
    }
}
