//! Registers a worker process, or replaces what it said before.

use ff_core::Result;
use ff_core::op::RegisterWorker;
use ff_core::op::register_worker::{Args, Outcome};
use ff_core::worker::Registration;

use crate::engine::{Caller, Engine, Handle};

impl Handle<RegisterWorker> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.limits().capabilities(&args.capabilities)?;
        args.lanes.iter().try_for_each(|lane| self.check_lane(lane))?;
        let registration = Registration {
            namespace: caller.namespace(args.namespace.as_deref())?,
            worker_id: args.worker_id,
            instance_id: args.instance_id,
            lanes: args.lanes,
            capabilities: args.capabilities,
            capacity: args.capacity.unwrap_or(1),
            version: args.version.unwrap_or_default(),
            nonce: args.nonce,
            lease_ttl_ms: self.limits().lease_ttl(args.lease_ttl_ms)?,
        };
        let (worker, expires_at) = self.register(registration).await?;
        // The full set once, the digest afterwards.
        tracing::info!(
            instance = worker.instance_id,
            capabilities = worker.capabilities.route(),
            digest = worker.capabilities.digest(),
            "a worker registered"
        );
        Ok(Outcome { expires_at, ttl_ms: worker.ttl_ms })
    }
}
