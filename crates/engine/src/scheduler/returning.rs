//! Returns work that no worker received to its queue.

use ff_core::execution::{ClaimedAttempt, Execution};
use ff_core::lease::{ClaimGrant, LeaseFence};
use ff_core::{Code, ExecutionId, Result};
use futures_util::future::join_all;

use super::{Scheduler, Taken};
use crate::caller::Caller;
use crate::transition::TransitionContext;

impl Scheduler {
    /// Hands back work that no worker received: the same attempt, nothing counted. Work that a repeat of the claim was
    /// answered with meanwhile, here or by another server, stays with its worker; says whether there was none of that.
    pub(crate) async fn give_back(&self, taken: Vec<Taken>) -> bool {
        let caller = Caller::system();
        let mut all = true;
        for one in taken {
            let returned = match &one {
                Taken::Lease { execution, claimed: ClaimedAttempt { fence, .. }, .. } => {
                    let act = |execution: &mut Execution, context: &mut TransitionContext<'_>| {
                        if execution.kept_claim == fence.lease_id {
                            return Ok(false);
                        }
                        execution.return_lease(fence, context.now, context.effects).map(|()| true)
                    };
                    self.transactor.change(&caller, &execution.id, Some(fence), act).await
                }
                Taken::Grant(grant) => {
                    let act = |execution: &mut Execution, context: &mut TransitionContext<'_>| {
                        if execution.kept_claim == grant.grant_id {
                            return Ok(false);
                        }
                        execution.drop_grant(grant.grant_id, context.now).map(|()| true)
                    };
                    self.transactor.change(&caller, &grant.execution_id, None, act).await
                }
            };
            all &= !matches!(returned, Ok(false));
            self.note_returned(returned);
        }
        all
    }

    /// Notes that a repeated claim is answered with work that an earlier call took. That call may have noticed that its
    /// caller was gone, and be about to give the work back: whichever commits first wins, and work that was given back is
    /// left out of the answer.
    pub(crate) async fn keep_held(&self, held: Vec<Taken>) -> Result<Vec<Taken>> {
        let caller = Caller::system();
        let keeping = held.into_iter().map(|one| async {
            let kept = match &one {
                Taken::Lease { execution, claimed: ClaimedAttempt { fence, .. }, .. } => {
                    let act = |execution: &mut Execution, context: &mut TransitionContext<'_>| {
                        execution.keep_lease(fence, context.now)
                    };
                    self.transactor.change(&caller, &execution.id, None, act).await
                }
                Taken::Grant(grant) => {
                    let act = |execution: &mut Execution, context: &mut TransitionContext<'_>| {
                        execution.keep_grant(grant.grant_id, context.now)
                    };
                    self.transactor.change(&caller, &grant.execution_id, None, act).await
                }
            };
            match kept {
                Ok(()) => Ok(Some(one)),
                Err(error) if error.code == Code::Unavailable => Err(error),
                Err(_) => Ok(None),
            }
        });
        let kept: Result<Vec<Option<Taken>>> = join_all(keeping).await.into_iter().collect();
        Ok(kept?.into_iter().flatten().collect())
    }

    /// Returns a lease that its worker has no room for.
    pub(crate) async fn give_lease_back(&self, id: &ExecutionId, fence: &LeaseFence) {
        let caller = Caller::system();
        let returned = self.transactor.change(&caller, id, Some(fence), |execution, context| {
            execution.return_lease(fence, context.now, context.effects)
        });
        self.note_returned(returned.await);
    }

    /// Drops a grant that its worker has no room for.
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
