//! Shows an execution.

use ff_core::execution::Execution;
use ff_core::op::GetExecution;
use ff_core::op::get_execution::Args;
use ff_core::op::view::ExecutionView;
use ff_core::{BlockingReason, Document, EligibilityState, ExecutionId, Result};

use super::{check_visible, not_found, view};
use crate::engine::{Caller, Engine, Handle};

impl Handle<GetExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<ExecutionView> {
        let (execution, lease_until) = self.visible_execution(caller, &args.execution_id).await?;
        let mut shown = view::execution(&execution, lease_until);
        if execution.is_eligible() {
            self.show_what_is_not_stored(&execution, &mut shown).await;
        }
        Ok(shown)
    }
}

impl Engine {
    /// A closed lane and missing capabilities are never stored. They are shown if they can be found out.
    async fn show_what_is_not_stored(&self, execution: &Execution, shown: &mut ExecutionView) {
        if let Ok(Some(lane)) = self.closed_lane(execution).await {
            shown.state.eligibility_state = EligibilityState::BlockedByLaneState;
            shown.blocking_detail = Some(format!("lane {} is {}", lane.name, lane.state));
        } else if !execution.capabilities.is_empty()
            && let Ok(Some(reason)) = self.worker_missing(execution).await
        {
            shown.state.eligibility_state = EligibilityState::BlockedByRoute;
            shown.state.blocking_reason = BlockingReason::WaitingForCapableWorker;
            shown.blocking_detail = Some(reason.message);
        }
    }

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
