//! Whether an execution exists for a caller.

use std::sync::Arc;

use ff_core::execution::Execution;
use ff_core::{Code, Document, Error, ExecutionId, Result};

use crate::caller::Caller;
use crate::transaction::{Transactor, Tx};

impl Transactor {
    /// Refuses an id whose partition this deployment does not have: nothing can live there.
    pub(crate) fn check_id(&self, id: &ExecutionId) -> Result<()> {
        id.check(self.partitions()).map_err(|_| not_found(id))
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

/// An execution of a namespace that the caller does not reach reads as absent, and so does one whose removal has begun.
pub(crate) fn check_visible(caller: &Caller, execution: &Execution) -> Result<()> {
    if !caller.sees(&execution.namespace) || execution.removal.is_some() {
        return Err(not_found(&execution.id));
    }
    if caller.only_own && !caller.submitted(execution) {
        let detail = format!("the role {} may do this to what it submitted itself", caller.role);
        return Err(Error::new(Code::Forbidden, detail).with("execution_id", execution.id));
    }
    Ok(())
}

/// Refuses a change of an execution that the caller does not see, or that is in a lane its token is not good for.
pub(crate) fn check_reachable(caller: &Caller, execution: &Execution) -> Result<()> {
    check_visible(caller, execution)?;
    caller.check_lane(&execution.lane)
}

/// The refusal of an id that names nothing the caller may see.
pub(crate) fn not_found(id: &ExecutionId) -> Error {
    Error::of(Code::ExecutionNotFound).with("execution_id", id)
}

/// Loads an execution that the caller is about to change, if it may.
pub(crate) async fn load_visible(tx: &mut Tx<'_>, caller: &Caller, id: &ExecutionId) -> Result<Execution> {
    Ok(Arc::unwrap_or_clone(share_visible(tx, caller, id).await?))
}

/// The same for commands of every task; see [`Tx::shared_execution`].
pub(crate) async fn share_visible(tx: &mut Tx<'_>, caller: &Caller, id: &ExecutionId) -> Result<Arc<Execution>> {
    let execution = tx.shared_execution(id).await?;
    check_reachable(caller, &execution)?;
    Ok(execution)
}
