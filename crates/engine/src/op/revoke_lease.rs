//! Takes the lease away from its holder; the execution is eligible again at once.

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::lease::LeaseEnd;
use ff_core::op::RevokeLease;
use ff_core::op::revoke_lease::{Args, Outcome};
use ff_core::{LeaseId, Result};

use super::load_visible;
use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<RevokeLease> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.identity::<RevokeLease>(caller, &args, args.command_id);
        self.transact_once(partition, identity, &Verb { caller, args: &args }).await
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    args: &'a Args,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let lease = execution.lease.clone();
        let named = |id: LeaseId| self.args.expected_lease_id.is_none_or(|expected| expected == id);
        let Some(lease) = lease.filter(|lease| named(lease.id)) else { return Ok(self.not_held(&execution)) };
        if lease.ended_at != 0 {
            return Ok(self.not_held(&execution));
        }
        let mut effects = Effects::default();
        let fence = execution.revoke_lease(self.args.expected_lease_id, tx.now, &mut effects)?;
        tracing::info!(
            execution = %execution.id,
            reason = self.args.reason.as_deref().unwrap_or_default(),
            "an operator revoked a lease"
        );
        tx.save_execution(&execution, effects);
        Ok(Outcome::Revoked { lease_id: fence.lease_id, epoch: fence.epoch })
    }
}

impl Verb<'_> {
    /// Nobody holds it by that lease: how the lease was lost, if it was taken away, or that there is none.
    fn not_held(&self, execution: &Execution) -> Outcome {
        let asked = self.args.expected_lease_id.or_else(|| execution.lease.as_ref().map(|lease| lease.id));
        let ending = execution.endings.iter().find(|ending| Some(ending.lease_id) == asked);
        match ending.map(|ending| ending.end) {
            Some(end @ (LeaseEnd::Revoked | LeaseEnd::Expired | LeaseEnd::ExecutionCancelled)) => {
                Outcome::AlreadyRevoked { reason: end.as_str().to_owned() }
            }
            _ => Outcome::NoActiveLease,
        }
    }
}
