//! Keeps a registration and all leases the worker names, each on its own.

use ff_core::Result;
use ff_core::op::HeartbeatWorker;
use ff_core::op::heartbeat_worker::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<HeartbeatWorker> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.limits().renewals(&args.leases)?;
        let namespace = caller.namespace(args.namespace.as_deref())?;
        // The leases do not depend on the registration: a worker that lost it keeps its work while it registers anew.
        let (registration, leases) = futures_util::future::join(
            self.keep_registration(&namespace, &args.instance_id, &args.nonce),
            self.renew_all(caller, &args.leases),
        )
        .await;
        Ok(Outcome { expires_at: registration?, leases })
    }
}
