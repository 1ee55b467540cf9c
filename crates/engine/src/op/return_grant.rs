//! Hands a grant back; the execution is queued again.

use ff_core::op::ReturnGrant;
use ff_core::op::return_grant::{Args, Outcome};
use ff_core::worker::Worker;
use ff_core::{Code, Error, Result};

use super::not_found;
use crate::engine::{Caller, Engine, Handle};

impl Handle<ReturnGrant> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let worker = self.system_document::<Worker>(&Worker::key_of(&namespace, &args.instance_id)).await?;
        let worker_id = worker.map_or_else(|| args.instance_id.clone(), |worker| worker.worker_id);
        self.change(caller, &args.execution_id, None, |execution, moment| {
            if execution.namespace != namespace {
                return Err(not_found(&args.execution_id));
            }
            let own = execution.grant.as_ref().is_some_and(|grant| grant.worker_id == worker_id);
            if own && execution.drop_grant(args.grant_id, moment.now).is_ok() {
                return Ok(Outcome { changed: true });
            }
            if execution.grant_is_over(args.grant_id) {
                return Ok(Outcome { changed: false });
            }
            Err(Error::of(Code::InvalidClaimGrant))
        })
        .await
    }
}
