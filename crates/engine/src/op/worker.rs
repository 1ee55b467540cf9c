//! The registry of workers.

use ff_core::index::{self, kind};
use ff_core::op::{
    DeregisterWorker, DeregisterWorkerArgs, DeregisterWorkerOutcome, HeartbeatWorker, HeartbeatWorkerArgs,
    HeartbeatWorkerOutcome, ListWorkers, ListWorkersArgs, ListWorkersOutcome, RegisterWorker, RegisterWorkerArgs,
    RegisterWorkerOutcome,
};
use ff_core::worker::{Registration, Worker};
use ff_core::{Blob, Key, Partition, Result, limits};
use ff_store::Scan;

use crate::caller::Caller;
use crate::cursor;
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};

impl Handle<RegisterWorker> for Services {
    async fn handle(&self, caller: &Caller, args: RegisterWorkerArgs) -> Result<RegisterWorkerOutcome> {
        self.transactor.limits().capabilities(&args.capabilities)?;
        args.lanes
            .iter()
            .try_for_each(|lane| caller.check_lane(lane).and_then(|()| self.shared.system.check_lane(lane)))?;
        let registration = Registration {
            namespace: caller.namespace(args.namespace.as_deref())?,
            worker_id: args.worker_id,
            instance_id: args.instance_id,
            lanes: args.lanes,
            capabilities: args.capabilities,
            kinds: args.kinds,
            capacity: args.capacity.unwrap_or(limits::WORKER_CAPACITY_MAX),
            version: args.version.unwrap_or_default(),
            nonce: args.nonce,
            lease_ttl_ms: self.transactor.limits().lease_ttl(args.lease_ttl_ms)?,
            tools: args.tools,
        };
        let (worker, expires_at) = self.shared.registry.register(registration, &caller.lanes).await?;
        // The full set once, the digest afterwards.
        tracing::info!(
            instance = worker.instance_id,
            capabilities = worker.capabilities.route(),
            digest = worker.capabilities.digest(),
            "a worker registered"
        );
        Ok(RegisterWorkerOutcome { expires_at, ttl_ms: worker.ttl_ms })
    }
}

impl Handle<HeartbeatWorker> for Services {
    async fn handle(&self, caller: &Caller, args: HeartbeatWorkerArgs) -> Result<HeartbeatWorkerOutcome> {
        self.transactor.limits().renewals("leases", &args.leases)?;
        let namespace = caller.namespace(args.namespace.as_deref())?;
        // The leases do not depend on the registration: a worker that lost it keeps its work while it registers anew.
        let (registration, leases) = futures_util::future::join(
            self.shared.registry.keep_registration(&namespace, &args.instance_id, &args.nonce),
            self.transactor.renew_all(caller, &args.leases),
        )
        .await;
        Ok(HeartbeatWorkerOutcome { expires_at: registration?, leases })
    }
}

impl Handle<DeregisterWorker> for Services {
    async fn handle(&self, caller: &Caller, args: DeregisterWorkerArgs) -> Result<DeregisterWorkerOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let key = Worker::key_of(&namespace, &args.instance_id);
        self.shared.registry.forget(&key);
        let verb = RemoveWorker { caller, key, nonce: args.nonce.as_deref() };
        self.transactor.transact(Partition::SYSTEM, self.transactor.fresh_command(), &verb).await
    }
}

struct RemoveWorker<'a> {
    caller: &'a Caller,
    key: Key,
    nonce: Option<&'a str>,
}

impl Command for RemoveWorker<'_> {
    type Outcome = DeregisterWorkerOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DeregisterWorkerOutcome> {
        let Some(loaded) = tx.load::<Worker>(self.key.clone()).await? else {
            return Ok(DeregisterWorkerOutcome { changed: false });
        };
        loaded.document.lanes.iter().try_for_each(|lane| self.caller.check_lane(lane))?;
        loaded.document.check_deregister(self.nonce)?;
        tx.delete(&self.key);
        Ok(DeregisterWorkerOutcome { changed: true })
    }
}

/// Pages of the registry that one call looks at before it hands out a short page with a cursor.
const SCANS_MAX: usize = 10;

impl Handle<ListWorkers> for Services {
    async fn handle(&self, caller: &Caller, args: ListWorkersArgs) -> Result<ListWorkersOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.transactor.limits().page(args.limit)?;
        let mut position = cursor::decode::<(i64, Blob)>(args.cursor.as_deref())?;
        let mut found = Vec::new();
        let mut ended = false;
        for _ in 0..SCANS_MAX {
            let mut scan = Scan::first(index::listing(kind::WORKER, &namespace), limit).with_documents();
            if let Some((score, member)) = &position {
                scan = scan.after(*score, Key::from_bytes(member.to_vec()));
            }
            let page = self.transactor.store().scan(Partition::SYSTEM, scan).await?;
            ended = page.entries.len() < limit;
            let now = self.transactor.now();
            for entry in page.entries {
                if found.len() == limit {
                    ended = false;
                    break;
                }
                position = Some((entry.score, Blob::from(entry.member.as_bytes().to_vec())));
                let Some(stored) = entry.document.filter(|stored| stored.lease_until > now) else { continue };
                let worker = self.transactor.readable::<Worker>(&stored);
                let wanted = |worker: &Worker| args.lane.as_ref().is_none_or(|lane| worker.lanes.contains(lane));
                found.extend(worker.filter(wanted).map(|worker| (worker, stored.lease_until)));
            }
            if ended || found.len() == limit {
                break;
            }
        }
        let instances: Vec<&str> = found.iter().map(|(worker, _)| worker.instance_id.as_str()).collect();
        let held = self.shared.registry.leases_held(&namespace, &instances).await?;
        let items = found.iter().zip(held).map(|((worker, until), held)| worker.view(*until, held)).collect();
        let next_cursor = position.filter(|_| !ended).map(|position| cursor::encode(&position));
        Ok(ListWorkersOutcome { items, next_cursor })
    }
}
