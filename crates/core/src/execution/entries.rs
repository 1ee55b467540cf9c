//! The index entries of an execution: a pure function of the document and the instant its lease ends.

use super::{Execution, Hold};
use crate::index::{self, DocumentLease, Due, Indexed};
use crate::key::{Entry, Key};
use crate::state::LifecyclePhase;

/// The capacity of the list: few executions have more entries at a time.
const ENTRIES_USUAL: usize = 4;

impl Indexed for Execution {
    fn key(&self) -> Key {
        Execution::key_of(&self.id)
    }

    fn index_entries(&self, lease_until: i64) -> Vec<Entry> {
        let key = self.key();
        let entry = |index, score| Entry { index, member: key.clone(), score };
        let state = self.public_state();
        if self.removal.is_some() && self.flow.is_none() {
            // An execution that is being removed is in no list any more; only the removal finds it, by its timer and
            // its mark.
            let timer = self.next_timer().map(|at| Due::Timer.entry(&key, at));
            let mark = self.owes_anything().then(|| entry(index::marks(), self.updated_at));
            return timer.into_iter().chain(mark).collect();
        }
        let mut entries = Vec::with_capacity(ENTRIES_USUAL);
        entries.push(entry(index::state(&self.namespace, state), self.created_at));
        if self.is_eligible() {
            entries.push(entry(self.queue(), self.queue_score()));
        }
        if self.holds.has(Hold::Budget) || self.holds.has(Hold::Quota) || self.asks_budget() {
            entries.push(entry(self.blocked_index(), self.queue_score()));
        }
        if let Some(at) = self.next_timer() {
            entries.push(Due::Timer.entry(&key, at));
        }
        if self.state.lifecycle_phase == LifecyclePhase::Active {
            entries.push(Due::Lease.entry(&key, lease_until));
            if let Some(lease) = &self.lease {
                entries.push(entry(index::worker(&self.namespace, &lease.instance_id), lease.acquired_at));
            }
        }
        if let Some(suspension) = self.suspension.as_ref().filter(|suspension| suspension.asks()) {
            entries.push(entry(index::asks(&self.namespace), suspension.suspended_at));
        }
        if self.owes_anything() {
            entries.push(entry(index::marks(), self.updated_at));
        }
        if let Some(flow) = &self.flow {
            entries.push(entry(index::member(flow.uuid, state), self.created_at));
        }
        if let Some(fork) = self.fork() {
            entries.push(entry(index::forks(fork.origin.uuid), self.created_at));
            if self.unfinished_fork().is_some() {
                entries.push(entry(index::open_forks(fork.origin.uuid), self.created_at));
            }
        }
        if let Some(run) = &self.schedule {
            entries.push(entry(index::runs(run.schedule.0), run.number));
        }
        if let Some(delivery) = &self.delivery {
            entries.push(entry(index::deliveries(delivery.subscription.0), self.created_at));
            if !self.is_terminal() {
                entries.push(entry(index::open_deliveries(delivery.subscription.0), self.created_at));
            }
        }
        for (tag, value) in &self.tags {
            entries.push(entry(index::tag(&self.namespace, tag, value), self.created_at));
        }
        entries
    }

    fn document_lease(&self) -> DocumentLease {
        let Some(lease) = &self.lease else { return DocumentLease::default() };
        let ttl_ms = (self.state.lifecycle_phase == LifecyclePhase::Active).then_some(lease.ttl_ms);
        DocumentLease { epoch: lease.epoch, lease_id: lease.id, ttl_ms }
    }
}
