//! Claims that wait for work, and the choice of the claim that is told of it. The work of one queue wakes one claim;
//! when that claim has looked, it wakes the next one if there is more.

use std::sync::Arc;

use ff_core::execution::Execution;
use tokio::sync::Notify;

use super::gates::GateName;
use super::{Criteria, QueueId, Ready, lane_mut};

pub(super) struct Waiter {
    criteria: Arc<Criteria>,
    wake: Arc<Notify>,
    /// Told of work and not yet back, or busy with other work: further work wakes another waiter.
    woken: bool,
}

impl Ready {
    /// Adds a claim that waits for work in lanes that it has asked for.
    pub(crate) fn wait(&mut self, criteria: Arc<Criteria>) -> (u64, Arc<Notify>) {
        let number = self.next_waiter;
        self.next_waiter += 1;
        for lane in &criteria.lanes {
            if let Some(lane) = lane_mut(&mut self.lanes, &criteria.namespace, lane) {
                lane.join(&criteria.skills, number);
            }
        }
        let wake = Arc::new(Notify::new());
        self.waiters.insert(number, Waiter { criteria, wake: Arc::clone(&wake), woken: false });
        (number, wake)
    }

    /// A waiter is about to look for work, and can be told of new work from now on. Returns whether it had been told of
    /// some before.
    pub(crate) fn wait_again(&mut self, number: u64) -> bool {
        let woken = self.waiters.get(&number).is_some_and(|waiter| waiter.woken);
        self.set_woken(number, false);
        woken
    }

    /// A waiter tries as much as it may take: until it waits again, work wakes others. If it was told of work since its
    /// look began, another waiter is told.
    pub(crate) fn busy(&mut self, number: u64, told: bool) {
        let Some(waiter) = self.waiters.get(&number) else { return };
        let (told, criteria) = (told || waiter.woken, Arc::clone(&waiter.criteria));
        self.set_woken(number, true);
        if told {
            self.wake_lanes(&criteria);
        }
    }

    /// Removes a waiter; if it was told of work and did not take it, another waiter is told.
    pub(crate) fn stop_waiting(&mut self, number: u64, now: i64) {
        let Some(waiter) = self.waiters.remove(&number) else { return };
        for name in &waiter.criteria.lanes {
            if let Some(lane) = lane_mut(&mut self.lanes, &waiter.criteria.namespace, name) {
                lane.leave(&waiter.criteria.skills, number);
                lane.claimed_at = lane.claimed_at.max(now);
            }
            if waiter.woken {
                self.wake_lane(&waiter.criteria.namespace, name);
            }
        }
    }

    /// Whether any claim in this process waits for work.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Whether a claim in this process waits for work like this.
    pub(crate) fn is_awaited(&self, execution: &Execution) -> bool {
        let lane = self.lanes.get(&execution.namespace).and_then(|lanes| lanes.get(&execution.lane)?.awaited());
        lane.is_some_and(|lane| lane.is_awaited(&execution.capabilities, &execution.kind))
    }

    /// Wakes every waiter, because hints may have been lost.
    pub(crate) fn wake_all(&mut self) {
        let numbers: Vec<u64> = self.waiters.keys().copied().collect();
        for number in numbers {
            self.wake(number);
        }
    }

    /// Wakes the claim that has waited longest for work of this queue.
    pub(super) fn wake_for(&mut self, id: &QueueId) {
        let probe = self.is_probe_due_in(id.partition);
        let Some(queue) = self.queues.get(id).filter(|queue| probe || queue.listed.is_anywhere()) else { return };
        let Some(lane) = lane_mut(&mut self.lanes, &queue.name.namespace, &queue.name.lane) else { return };
        if let Some(number) = lane.longest_idle(&queue.name) {
            self.wake(number);
        }
    }

    /// Wakes one claim for each queue behind a gate that could be tried now, but no more than the gate admits at once.
    pub(super) fn wake_for_gate(&mut self, gate: &GateName) {
        let mut queues = self.gates.queues(gate);
        queues.retain(|id| self.queues.get(id).is_some_and(|queue| queue.listed.is_anywhere()));
        for id in queues.into_iter().take(self.gates.room(gate)) {
            self.wake_for(&id);
        }
    }

    /// Wakes other claims of these lanes, because a claim leaves work behind.
    pub(crate) fn wake_lanes(&mut self, criteria: &Criteria) {
        for lane in &criteria.lanes {
            self.wake_lane(&criteria.namespace, lane);
        }
    }

    /// Wakes the claims that may take the work of a lane.
    pub(super) fn wake_lane(&mut self, namespace: &str, name: &str) {
        let probe = self.is_probe_due(namespace, name);
        let Some(lane) = lane_mut(&mut self.lanes, namespace, name) else { return };
        for number in lane.to_wake(probe) {
            self.wake(number);
        }
    }

    fn wake(&mut self, number: u64) {
        self.set_woken(number, true);
        if let Some(waiter) = self.waiters.get(&number) {
            waiter.wake.notify_one();
        }
    }

    fn set_woken(&mut self, number: u64, woken: bool) {
        let Some(waiter) = self.waiters.get_mut(&number) else { return };
        if std::mem::replace(&mut waiter.woken, woken) == woken {
            return;
        }
        let criteria = Arc::clone(&waiter.criteria);
        for lane in &criteria.lanes {
            if let Some(lane) = lane_mut(&mut self.lanes, &criteria.namespace, lane) {
                lane.set_idle(&criteria.skills, number, !woken);
            }
        }
    }
}
