//! Openings: gates that close and open, and everything else that becomes possible because time passes.

use std::sync::Arc;

use ff_core::Partition;
use tokio::sync::Notify;

use super::gates::GateName;
use super::{QueueId, Ready};

/// What was known behind a gate that was closed for this long is read anew when it opens: other servers may have taken it
/// since, and its quota would count a start of what has ended.
const STALE_MS: i64 = 250;

/// Something that becomes possible because time passes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Opening {
    Gate(GateName),
    Queue(QueueId),
    /// A candidate at this place of its queue was put off.
    Candidate {
        queue: QueueId,
        score: i64,
    },
    Partition(Partition),
    Names {
        namespace: String,
        lane: String,
        partition: Partition,
    },
}

impl Ready {
    /// Closes a gate that refused: nothing behind it is tried until this instant, or until it is opened.
    pub(crate) fn close_gate(&mut self, namespace: &str, gate: &str, until: i64, now: i64) {
        let name = (namespace.to_owned(), gate.to_owned());
        self.forget_opening(&name);
        self.open_at(until, Opening::Gate(name.clone()));
        if self.gates.close(&name, until, now) {
            self.relist_gate(&name);
        }
    }

    pub(super) fn forget_opening(&mut self, gate: &GateName) {
        if let Some(until) = self.gates.closed_until(gate) {
            self.openings.remove(&(until, Opening::Gate(gate.clone())));
        }
    }

    pub(super) fn open_at(&mut self, at: i64, opening: Opening) {
        if self.next_opening().is_none_or(|next| at < next) {
            self.opening_noted.notify_one();
        }
        self.openings.insert((at, opening));
    }

    /// Notified when something opens earlier than the next known opening.
    pub(crate) fn opening_noted(&self) -> Arc<Notify> {
        Arc::clone(&self.opening_noted)
    }

    /// A budget or quota admits so many: the gates that name it are opened for that many.
    pub(crate) fn open_gates(&mut self, namespace: &str, part: &str, count: usize, now: i64) {
        for gate in self.gates.with_part(namespace, part) {
            self.open_gate(&gate, count, now);
        }
    }

    fn open_gate(&mut self, gate: &GateName, count: usize, now: i64) {
        self.forget_opening(gate);
        if self.gates.closed_since(gate).is_some_and(|since| now - since >= STALE_MS) {
            for id in self.gates.queues(gate) {
                if let Some(queue) = self.queues.get_mut(&id) {
                    self.buffered -= queue.drop_buffer();
                }
            }
        }
        self.gates.open(gate, count);
        self.relist_gate(gate);
        self.wake_for_gate(gate);
    }

    /// A budget or quota admits again: the gates that name it open by this instant.
    pub(crate) fn open_gates_at(&mut self, namespace: &str, part: &str, at: i64) {
        for gate in self.gates.with_part(namespace, part) {
            if self.gates.closed_until(&gate).is_some_and(|until| until > at) {
                // It has been closed since before.
                self.close_gate(namespace, &gate.1, at, at);
            }
        }
    }

    /// Every closed gate may admit one candidate: time has moved, and it is not known which of them still refuse.
    pub(crate) fn open_all_gates(&mut self, now: i64) {
        for gate in self.gates.closed() {
            self.open_gate(&gate, 1, now);
        }
    }

    /// Whether nothing behind a gate is tried now.
    pub(crate) fn is_gate_closed(&self, namespace: &str, gate: &str) -> bool {
        self.gates.closed_until(&(namespace.to_owned(), gate.to_owned())).is_some()
    }

    pub(super) fn relist_gate(&mut self, gate: &GateName) {
        for id in self.gates.queues(gate) {
            self.relist(&id);
        }
    }

    /// The next instant at which something opens by itself.
    pub(crate) fn next_opening(&self) -> Option<i64> {
        self.openings.first().map(|(at, _)| *at)
    }

    /// Opens gates, queues and partitions whose instant has come. Each lets one claim try; if that succeeds, others
    /// follow.
    pub(crate) fn open_due(&mut self, now: i64) {
        while let Some((at, opening)) = self.openings.first().cloned() {
            if at > now {
                return;
            }
            self.openings.pop_first();
            match opening {
                Opening::Gate(gate) => {
                    // A later closing has a time of its own.
                    if self.gates.closed_until(&gate).is_some_and(|until| until <= now) {
                        self.open_gate(&gate, 1, now);
                    }
                }
                Opening::Queue(id) => {
                    if let Some(queue) = self.queues.get_mut(&id)
                        && queue.blocked_until.is_some_and(|until| until <= now)
                    {
                        queue.blocked_until = None;
                        self.relist(&id);
                        self.wake_for(&id);
                    }
                }
                Opening::Candidate { queue: id, score } => {
                    self.aside.retain(|_, until| *until > now);
                    if let Some(queue) = self.queue(&id, now) {
                        queue.note(score);
                    }
                    self.relist(&id);
                    self.wake_for(&id);
                }
                Opening::Partition(partition) => self.open_partition(partition, now),
                Opening::Names { namespace, lane, partition } => self.learn_again(&namespace, &lane, partition, now),
            }
        }
    }
}
