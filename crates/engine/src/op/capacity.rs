//! A registered worker runs as many tasks as it said. One that never registered, or named no capacity, decides for itself,
//! and nothing is counted for it.

use ff_core::worker::Worker;
use ff_core::{Code, Error, Result, limits};

use crate::env;
use crate::registry::HeldLeases;
use crate::scheduler::Ask;
use crate::scheduler::ready::READ_PATIENCE_MS;
use crate::services::Services;

impl Services {
    /// Leaves a claim as many tasks as its worker may run beside those it holds.
    pub(super) async fn within_capacity(&self, mut ask: Ask) -> Result<Ask> {
        let Some(held) = self.count_held(&ask).await? else { return Ok(ask) };
        let free = usize::try_from(held.capacity.saturating_sub(held.leases)).unwrap_or(usize::MAX);
        if free == 0 {
            return Err(at_capacity(&held));
        }
        ask.lease_ids.truncate(free);
        ask.chosen_ids = ask.chosen_ids.min(free);
        Ok(ask)
    }

    /// Refuses a grant's lease to a worker that has no room for it.
    pub(super) async fn check_capacity(&self, namespace: &str, worker: Option<&Worker>) -> Result<()> {
        let Some(worker) = worker else { return Ok(()) };
        let leases = self.shared.registry.leases_held(namespace, &[worker.instance_id.as_str()]).await?.iter().sum();
        let held = HeldLeases { capacity: worker.capacity.into(), leases };
        if held.leases < held.capacity { Ok(()) } else { Err(at_capacity(&held)) }
    }

    /// Refuses an exchange that ends nothing when its worker was full and still is. Only then is anything counted: a
    /// worker that waits for work costs the store nothing.
    pub(super) async fn check_room(&self, ask: &Ask) -> Result<()> {
        let key = Worker::key_of(&ask.criteria.namespace, &ask.instance_id);
        if !self.shared.registry.was_full(&key) {
            return Ok(());
        }
        match self.count_held(ask).await? {
            Some(held) if held.leases >= held.capacity => Err(at_capacity(&held)),
            _ => Ok(()),
        }
    }

    /// How many of the tasks that an exchange has taken its worker has no room for. An exchange that takes no more than
    /// it ends adds nothing, and between two counts the engine adds up what exchanges take: a busy worker is counted
    /// about once a second.
    pub(super) async fn beyond_capacity(&self, ask: &Ask, ended: usize, taken: usize) -> Result<Surplus> {
        if ask.grant_ttl_ms.is_some() {
            return Ok(Surplus::None);
        }
        let key = Worker::key_of(&ask.criteria.namespace, &ask.instance_id);
        let now = self.transactor.env().now_ms();
        if self.shared.registry.has_room(&key, ended, taken, now) || taken <= ended {
            return Ok(Surplus::None);
        }
        let Some(held) = self.count_held(ask).await? else { return Ok(Surplus::None) };
        let over = usize::try_from(held.leases.saturating_sub(held.capacity)).unwrap_or(usize::MAX).min(taken);
        self.shared.registry.has_room(&key, over, 0, now);
        Ok(if over == 0 { Surplus::None } else { Surplus::Some { over, refusal: at_capacity(&held) } })
    }

    /// The leases that the worker of a claim holds, as the store has them now; `None` if they are not to be counted.
    async fn count_held(&self, ask: &Ask) -> Result<Option<HeldLeases>> {
        // A grant is not touched before its worker has room, so a full worker may ask for one.
        if ask.grant_ttl_ms.is_some() {
            return Ok(None);
        }
        let namespace = &ask.criteria.namespace;
        let key = Worker::key_of(namespace, &ask.instance_id);
        let Some(worker) = self.shared.system.system_document::<Worker>(&key).await? else { return Ok(None) };
        let now = self.transactor.env().now_ms();
        // While a partition does not answer, the engine cannot say what the worker holds, and the others have work for
        // it.
        if worker.capacity >= limits::WORKER_CAPACITY_MAX || self.scheduler.ready().is_troubled(now) {
            return Ok(None);
        }
        let instances = [ask.instance_id.as_str()];
        let counting = self.shared.registry.leases_held(namespace, &instances);
        let leases = match env::within(self.transactor.env_handle(), READ_PATIENCE_MS, counting).await {
            Some(Ok(held)) => held.iter().sum(),
            Some(Err(error)) if error.code != Code::Unavailable => return Err(error),
            Some(Err(_)) | None => return Ok(None),
        };
        let held = HeldLeases { capacity: worker.capacity.into(), leases };
        self.shared.registry.remember_held(key, held, now);
        Ok(Some(held))
    }
}

/// The part of the tasks of an exchange that its worker has no room for.
pub(super) enum Surplus {
    None,
    /// So many, and the answer if nothing else is left.
    Some {
        over: usize,
        refusal: Error,
    },
}

fn at_capacity(held: &HeldLeases) -> Error {
    Error::of(Code::WorkerAtCapacity).with("capacity", held.capacity).with("leases_held", held.leases)
}
