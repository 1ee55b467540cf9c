//! Returns work that no worker received to its queue.

use ff_core::lease::{ClaimGrant, LeaseFence};
use ff_core::{ExecutionId, Result};

use super::{Scheduler, Taken};
use crate::caller::Caller;

impl Scheduler {
    /// Hands back work that no worker received: the same attempt, nothing counted.
    pub(crate) async fn give_back(&self, taken: Vec<Taken>) {
        for one in taken {
            match &one {
                Taken::Lease { execution, claimed, .. } => self.give_lease_back(&execution.id, &claimed.fence).await,
                Taken::Grant(grant) => self.give_grant_back(grant).await,
            }
        }
    }

    pub(crate) async fn give_lease_back(&self, id: &ExecutionId, fence: &LeaseFence) {
        let caller = Caller::system();
        let returned = self.transactor.change(&caller, id, Some(fence), |execution, context| {
            execution.return_lease(fence, context.now, context.effects)
        });
        self.note_returned(returned.await);
    }

    pub(crate) async fn give_grant_back(&self, grant: &ClaimGrant) {
        let caller = Caller::system();
        let returned = self.transactor.change(&caller, &grant.execution_id, None, |execution, context| {
            execution.drop_grant(grant.grant_id, context.now)
        });
        self.note_returned(returned.await);
    }

    fn note_returned<T>(&self, returned: Result<T>) {
        if let Err(error) = returned
            && let Some(suppressed) = self.transactor.may_log("undelivered work could not be given back")
        {
            tracing::warn!(%error, suppressed, "undelivered work could not be given back; its lease will run out");
        }
    }
}
