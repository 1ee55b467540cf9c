//! Removes an execution that has ended before its retention is over.

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::index::Due;
use ff_core::op::parts::Removed;
use ff_core::op::{RemoveExecution, RemoveExecutionArgs};
use ff_core::{ExecutionId, Result};

use crate::caller::Caller;
use crate::op::{Handle, Request};
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::visibility::load_visible;

/// The commit that is answered says that the removal has begun; from then on the execution reads as gone. The timer that
/// this leaves takes away everything it has, also after a crash; it is fired once right here, which is all that most
/// executions need.
impl Handle<RemoveExecution> for Services {
    async fn handle(&self, caller: &Caller, args: RemoveExecutionArgs) -> Result<Removed> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.transactor.identity::<RemoveExecution>(caller, &args, None);
        let verb = Request::<RemoveExecution> { caller, args: &args };
        let removed = self.transactor.transact_once(partition, identity, &verb).await?;
        if let Err(error) = self.remove_now(&args.execution_id).await {
            tracing::info!(execution = %args.execution_id, %error, "the rest of a removal is left to its timer");
        }
        Ok(removed)
    }
}

impl Services {
    async fn remove_now(&self, id: &ExecutionId) -> Result<()> {
        let (partition, key) = (id.partition(), Execution::key_of(id));
        let Some(execution) = self.transactor.find::<Execution>(partition, key.clone()).await? else { return Ok(()) };
        // Its debts elsewhere come first.
        let Some(at) = execution.next_timer() else { return Ok(()) };
        self.shared.timers.fire(partition, &Due::Timer.member(&key), at).await
    }
}

impl Command for Request<'_, RemoveExecution> {
    type Outcome = Removed;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Removed> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        execution.begin_removal(tx.now)?;
        tx.relief();
        tx.save_execution(&execution, Effects::default());
        Ok(Removed::Removed)
    }
}
