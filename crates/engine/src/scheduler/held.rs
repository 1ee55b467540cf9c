//! Finds the work that a claimer holds already, which is the answer to a repeated claim whose first answer was lost.

use std::sync::Arc;

use ff_core::execution::Execution;
use ff_core::index::{self, Due, kind};
use ff_core::{Code, Error, Partition, Result, limits};
use ff_store::Scan;

use super::candidate::is_outage;
use super::ready::READ_PATIENCE_MS;
use crate::env;
use crate::scheduler::{Ask, Scheduler, Taken};

/// Entries read at once.
const PAGE: usize = 1_000;
/// Pages of one partition's index that are read at most.
const PAGES_MAX: usize = 10;

impl Scheduler {
    /// The leases and grants that this worker process has under the lease ids of the claim.
    pub(crate) async fn find_leases(&self, ask: &Ask) -> Result<Vec<Taken>> {
        let looks = self.transactor.flow_partitions().map(|partition| self.held_in(partition, ask));
        let mut found = Vec::new();
        for held in futures_util::future::join_all(looks).await {
            found.extend(held?);
        }
        Ok(found)
    }

    /// The same, but partitions that do not answer are skipped, so that they do not hold up the work of others. Work in
    /// such a partition comes back when its lease runs out, or to a later repeat.
    pub(crate) async fn find_reachable_leases(&self, ask: &Ask) -> Result<Vec<Taken>> {
        let looks = self.transactor.flow_partitions().map(|partition| self.held_in(partition, ask));
        let mut found = Vec::new();
        for held in self.those_that_answer(looks).await? {
            found.extend(held);
        }
        Ok(found)
    }

    async fn held_in(&self, partition: Partition, ask: &Ask) -> Result<Vec<Taken>> {
        let mut held = self.leases_in(partition, ask).await?;
        // No index lists grants by worker. Each grant has a timer that is due soon, and few entries are, so the `due`
        // index is read.
        if ask.grant_ttl_ms.is_some() && held.len() < ask.lease_ids.len() {
            held.extend(self.grants_in(partition, ask).await?);
        }
        // The leases were committed by another call, so the barrier makes sure that they last before they are handed
        // out again.
        if !held.is_empty() {
            self.transactor.store().barrier(partition).await?;
        }
        Ok(held)
    }

    /// The answers of the partitions that answer in time. It is an error only if no partition does.
    async fn those_that_answer<T>(
        &self,
        looks: impl Iterator<Item = impl Future<Output = Result<T>>>,
    ) -> Result<Vec<T>> {
        let looks: Vec<_> = looks.collect();
        let asked = looks.len();
        let answers = env::those_within(self.transactor.env_handle(), READ_PATIENCE_MS, looks.into_iter()).await;
        let late = answers.len() < asked;
        let mut failure = late.then(|| Error::new(Code::Unavailable, "no partition answers in time"));
        let mut found = Vec::new();
        for answer in answers {
            match answer {
                Ok(answer) => found.push(answer),
                Err(error) if is_outage(&error) => failure = Some(error),
                Err(error) => return Err(error),
            }
        }
        match failure {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    async fn leases_in(&self, partition: Partition, ask: &Ask) -> Result<Vec<Taken>> {
        let index = index::worker(&ask.criteria.namespace, &ask.instance_id);
        let mut held = Vec::new();
        let mut scan = Scan::last(index, PAGE).with_documents();
        for _ in 0..PAGES_MAX {
            let page = self.transactor.store().scan(partition, scan.clone()).await?;
            let Some(last) = page.entries.last() else { break };
            scan = scan.after(last.score, last.member.clone());
            for stored in page.entries.into_iter().filter_map(|entry| entry.document) {
                let Some(execution) = self.transactor.readable::<Execution>(&stored) else { continue };
                let Some(claimed) = execution.held_lease() else { continue };
                let meant =
                    ask.lease_ids.contains(&claimed.fence.lease_id) && ask.criteria.lanes.contains(&execution.lane);
                if meant && stored.lease_until > self.transactor.now_in(partition) {
                    let (execution, lease_until) = (Arc::new(execution), stored.lease_until);
                    held.push(Taken::Lease { execution, claimed, lease_until, found: true });
                }
            }
        }
        Ok(held)
    }

    async fn grants_in(&self, partition: Partition, ask: &Ask) -> Result<Vec<Taken>> {
        let mut held = Vec::new();
        let worker_id = self.worker_id(ask).await?;
        let mut scan =
            Scan::first(index::due(), PAGE).up_to(self.transactor.now_in(partition) + limits::GRANT_TTL_MAX_MS);
        for _ in 0..PAGES_MAX {
            let page = self.transactor.store().scan(partition, scan.clone()).await?;
            let Some(last) = page.entries.last() else { break };
            scan = scan.after(last.score, last.member.clone());
            let timers = page.entries.iter().filter_map(|entry| Due::parse(&entry.member));
            let keys: Vec<_> = timers
                .filter(|(key, due)| *due == Due::Timer && key.kind() == kind::EXECUTION)
                .map(|(key, _)| key)
                .collect();
            for stored in self.transactor.store().documents(partition, keys).await?.into_iter().flatten() {
                let Some(mut execution) = self.transactor.readable::<Execution>(&stored) else { continue };
                let Some(grant) = execution.grant.clone() else { continue };
                let own = grant.worker_id == worker_id && execution.namespace == ask.criteria.namespace;
                if own && ask.lease_ids.contains(&grant.id) && grant.expires_at > self.transactor.now_in(partition) {
                    // Granting again with the same id returns the existing grant.
                    held.push(Taken::Grant(execution.grant(
                        grant.id,
                        &grant.worker_id,
                        1,
                        self.transactor.now_in(partition),
                    )?));
                }
            }
        }
        Ok(held)
    }
}
