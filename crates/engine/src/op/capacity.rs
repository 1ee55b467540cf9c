//! A registered worker runs as many tasks as it said. One that never registered, or named no capacity, decides for itself,
//! and nothing is counted for it.

use ff_core::worker::Worker;
use ff_core::{Code, Error, Indexed, Partition, Result, limits};

use crate::locks::Turn;
use crate::registry::HeldLeases;
use crate::scheduler::ready::READ_PATIENCE_MS;
use crate::scheduler::{Ask, Taken};
use crate::services::Services;

/// While some partition is known not to answer, leases are counted in those that answer within this time.
const TROUBLED_PATIENCE_MS: i64 = 100;

impl Services {
    /// Leaves a claim as many tasks as its worker may run beside those it holds. A server that is alone counts them once
    /// and then goes by its own commits, so that a worker that waits for work costs the store nothing.
    pub(super) async fn within_capacity(&self, mut ask: Ask) -> Result<Ask> {
        let key = self.transactor.named_keys().worker(&ask.criteria.namespace, &ask.instance_id);
        let (asked, now) = (count_of(ask.lease_ids.len()), self.transactor.env().now_ms());
        if self.shared.servers.is_alone() && self.shared.registry.had_room(&key, asked, now) {
            return Ok(ask);
        }
        let Some(held) = self.count_held(&ask).await? else { return Ok(ask) };
        let free = usize::try_from(held.capacity.saturating_sub(held.leases)).unwrap_or(usize::MAX);
        if free == 0 {
            return Err(at_capacity(&held));
        }
        ask.lease_ids.truncate(free);
        ask.chosen_ids = ask.chosen_ids.min(free);
        Ok(ask)
    }

    /// Refuses a grant's lease to a worker that has no room for it. Other calls of the worker at this engine wait until the
    /// answer is dropped, so that each sees the leases of those before it.
    pub(super) async fn check_capacity(&self, namespace: &str, worker: Option<&Worker>) -> Result<Option<Turn<'_>>> {
        let Some(worker) = worker else { return Ok(None) };
        let turn = self.transactor.locks().take(Partition::SYSTEM, worker.key()).await;
        let (leases, _) = self.leases_of(namespace, &worker.instance_id).await?;
        let held = HeldLeases { capacity: worker.capacity.into(), leases };
        if held.leases < held.capacity { Ok(Some(turn)) } else { Err(at_capacity(&held)) }
    }

    /// Refuses an exchange that ends nothing when its worker was full and still is. Only then is anything counted: a
    /// worker that waits for work costs the store nothing.
    pub(super) async fn check_room(&self, ask: &Ask) -> Result<()> {
        let key = self.transactor.named_keys().worker(&ask.criteria.namespace, &ask.instance_id);
        if !self.shared.registry.was_full(&key) {
            return Ok(());
        }
        match self.count_held(ask).await? {
            Some(held) if held.leases >= held.capacity => Err(at_capacity(&held)),
            _ => Ok(()),
        }
    }

    /// How many of the tasks that a call has just taken its worker has no room for. They are counted only if the worker
    /// is close to its capacity: tasks that replace others, or that are few for it, cost no read. A count sees every task
    /// that was taken before it, so of two calls at the same time, at any servers, at least one sees the tasks of both.
    pub(super) async fn beyond_capacity(&self, ask: &Ask, taken: usize) -> Result<Surplus<'_>> {
        if taken == 0 || ask.grant_ttl_ms.is_some() {
            return Ok(Surplus::None);
        }
        let key = self.transactor.named_keys().worker(&ask.criteria.namespace, &ask.instance_id);
        let now = self.transactor.env().now_ms();
        if self.shared.registry.has_room(&key, count_of(taken), count_of(ask.lease_ids.len()), now) {
            return Ok(Surplus::None);
        }
        // Calls of this engine give back one after another, so that they do not all give back for the same surplus.
        let turn = self.transactor.locks().take(Partition::SYSTEM, key).await;
        let Some(held) = self.count_held(ask).await? else { return Ok(Surplus::None) };
        let over = usize::try_from(held.leases.saturating_sub(held.capacity)).unwrap_or(usize::MAX).min(taken);
        Ok(if over == 0 { Surplus::None } else { Surplus::Some { over, refusal: at_capacity(&held), _turn: turn } })
    }

    /// Gives back what a claim has taken beyond the capacity of its worker. Refuses the claim if nothing is left.
    pub(super) async fn keep_within_capacity(&self, ask: &Ask, mut taken: Vec<Taken>) -> Result<Vec<Taken>> {
        let key = self.transactor.named_keys().worker(&ask.criteria.namespace, &ask.instance_id);
        // The leases were counted before the claim began to wait.
        if taken.is_empty() || !self.shared.registry.may_be_nearly_full(&key, count_of(ask.lease_ids.len())) {
            return Ok(taken);
        }
        // Tasks that cannot be counted are the worker's own business.
        let Ok(Surplus::Some { over, refusal, _turn }) = self.beyond_capacity(ask, taken.len()).await else {
            return Ok(taken);
        };
        let surplus = taken.split_off(taken.len().saturating_sub(over));
        self.scheduler.give_back(surplus).await;
        if taken.is_empty() { Err(refusal) } else { Ok(taken) }
    }

    /// The leases that the worker of a claim holds, as the store has them now; `None` if they are not to be counted.
    async fn count_held(&self, ask: &Ask) -> Result<Option<HeldLeases>> {
        // A grant is not touched before its worker has room, so a full worker may ask for one.
        if ask.grant_ttl_ms.is_some() {
            return Ok(None);
        }
        let namespace = &ask.criteria.namespace;
        let key = self.transactor.named_keys().worker(namespace, &ask.instance_id);
        let begun = self.shared.registry.begin_count(&key, self.transactor.env().now_ms());
        let worker = self.shared.system.system_document::<Worker>(&key).await?;
        let Some(worker) = worker.filter(|worker| worker.capacity < limits::WORKER_CAPACITY_MAX) else {
            self.shared.registry.remember_held(key, HeldLeases::UNBOUNDED, begun);
            return Ok(None);
        };
        let (leases, is_all) = self.leases_of(namespace, &ask.instance_id).await?;
        let held = HeldLeases { capacity: worker.capacity.into(), leases };
        if is_all {
            self.shared.registry.remember_held(key, held, begun);
        }
        Ok(Some(held))
    }

    /// The leases that a worker holds, as far as partitions answer, and whether all did. One that does not answer holds up
    /// no work of others, least of all while some are known not to.
    async fn leases_of(&self, namespace: &str, instance_id: &str) -> Result<(u64, bool)> {
        let is_troubled = self.scheduler.ready().is_troubled(self.transactor.env().now_ms());
        let patience_ms = if is_troubled { TROUBLED_PATIENCE_MS } else { READ_PATIENCE_MS };
        self.shared.registry.leases_counted(namespace, instance_id, patience_ms).await
    }
}

/// The part of the tasks of a call that its worker has no room for.
pub(super) enum Surplus<'a> {
    None,
    /// So many, and the answer if nothing else is left. Other calls of the worker wait until they are given back.
    Some {
        over: usize,
        refusal: Error,
        _turn: Turn<'a>,
    },
}

fn count_of(tasks: usize) -> u64 {
    u64::try_from(tasks).unwrap_or(u64::MAX)
}

fn at_capacity(held: &HeldLeases) -> Error {
    Error::of(Code::WorkerAtCapacity).with("capacity", held.capacity).with("leases_held", held.leases)
}
