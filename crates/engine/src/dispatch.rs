//! The listener of the transactor: tells the board, the scheduler, the timers, the resolver, the registry and the
//! subscriptions of this engine's commits and of other engines' hints.

use std::sync::{Arc, Mutex};

use ff_core::index::kind;
use ff_core::planted::{Bug, planted};
use ff_core::{Indexed, Key, Partition};
use ff_store::WatchEvent;

use crate::board::Board;
use crate::hint::{Item, Message};
use crate::logs;
use crate::registry::Registry;
use crate::resolver::Resolver;
use crate::scheduler::Scheduler;
use crate::scheduler::ready::{Candidate, QueueId};
use crate::servers::Servers;
use crate::subscription::Subscriptions;
use crate::system::SystemDocuments;
use crate::transaction::{AppliedCommit, Listener, PerhapsApplied, Transactor, fence_of};

/// Tells services what was committed.
pub(crate) struct Dispatch {
    pub(crate) transactor: Transactor,
    pub(crate) board: Board,
    pub(crate) system: SystemDocuments,
    pub(crate) servers: Servers,
    pub(crate) scheduler: Scheduler,
    pub(crate) resolver: Resolver,
    pub(crate) registry: Registry,
    pub(crate) subscriptions: Subscriptions,
}

/// The hints of a store, for the first listener.
pub(crate) type FirstHints = Arc<Mutex<Option<ff_store::Hints>>>;

impl Dispatch {
    /// Acts on hints of other engines until the store is closed.
    pub(crate) async fn listen(self: Arc<Self>, first: FirstHints) {
        let taken = first.lock().expect("no holder of this lock panics").take();
        let mut hints = taken.unwrap_or_else(|| {
            // Hints between the end of the former listener and now were lost.
            self.resync();
            self.transactor.store().watch()
        });
        let own = Message::beginning(self.transactor.origin());
        while let Some(event) = hints.next().await {
            match event {
                WatchEvent::Hint(hint) if hint.payload.starts_with(&own) => {}
                WatchEvent::Hint(hint) => {
                    if let Some(message) = Message::decode(&hint.payload) {
                        self.act_on(hint.partition, &message.items);
                    }
                }
                WatchEvent::Resync => self.resync(),
            }
        }
    }

    /// Lets all services look at everything, because hints may have been lost.
    fn resync(&self) {
        self.transactor.cache().clear();
        self.transactor.downstreams().clear();
        self.transactor.admission().clear();
        self.system.clear();
        self.registry.forget_counts();
        self.subscriptions.state.forget_places();
        self.servers.look_again();
        self.transactor.due().sweep_now();
        self.board.wake_all();
        self.scheduler.ready().wake_all();
    }

    /// Acts on a hint, whether it is our own or another engine's.
    fn act_on(&self, partition: Partition, items: &[Item]) {
        for item in items {
            match item {
                Item::Ready(..) if planted(Bug::WaitersNotWoken) => {}
                Item::Ready(index, score) => {
                    let queue = QueueId { partition, index: index.clone() };
                    self.scheduler.ready().announce(&queue, *score, self.transactor.env().now_ms());
                }
                Item::Due(at) => self.transactor.due().hear(partition, *at, self.transactor.now_in(partition)),
                Item::Changed(key) => {
                    self.scheduler.forget_flow(key);
                    self.board.wake(partition, key);
                }
                Item::Log(key) => {
                    self.board.wake(partition, key);
                    if *key == logs::events() {
                        self.subscriptions.state.note(partition);
                    }
                }
                // The engine that left the mark has no resolver of its own.
                Item::Mark(key) if self.servers.rank(partition) == 0 => {
                    self.resolver.resolve_soon(partition, key.clone());
                }
                Item::Mark(_) => {}
                Item::Gate(index) => self.scheduler.gate_opened(index),
                Item::System(key) => self.system_changed(key),
            }
        }
    }

    /// Looks at the gates that a commit of this engine opened. Other engines leave that to it.
    fn wake_opened(&self, items: &mut Vec<Item>) {
        items.retain(|item| match item {
            Item::Gate(index) => {
                self.scheduler.gate_opens(index);
                false
            }
            _ => true,
        });
    }

    fn system_changed(&self, key: &Key) {
        self.system.forget(key);
        match key.kind() {
            kind::SERVER => self.servers.look_again(),
            kind::SUBSCRIPTION => self.subscriptions.state.look_again(),
            // The lane may give out work again, so the claims that wait must look.
            kind::LANE => self.scheduler.ready().wake_all(),
            kind::WORKER => self.registry.registration_changed(key),
            _ => {}
        }
    }
}

impl Listener for Dispatch {
    fn applied(&self, applied: AppliedCommit) {
        let AppliedCommit { partition, version, executions, items, flow, due, marked, released, leases } = applied;
        self.registry.leases_changed(&executions, &leases, self.transactor.env().now_ms());
        for execution in executions.iter().filter(|execution| execution.is_eligible()) {
            if planted(Bug::WaitersNotWoken) {
                continue;
            }
            let held = execution.document_lease();
            let candidate = Candidate {
                execution: execution.clone(),
                version,
                fence: fence_of(held.epoch, held.lease_id),
                queue: QueueId { partition, index: execution.queue() },
            };
            self.scheduler.ready().offer(candidate, self.transactor.env().now_ms());
        }
        // Executions that became claimable were offered above, document and all; they need not be announced and read
        // again.
        let mut others = items;
        others.retain(|item| !matches!(item, Item::Ready(..)));
        self.wake_opened(&mut others);
        self.act_on(partition, &others);
        if let Some(flow) = flow {
            self.scheduler.flow_created(flow, version);
        }
        // The instant was noted before the commit, too, but a timer that fired in between may have replaced it without
        // seeing this entry.
        if let Some(at) = due {
            self.transactor.due().note(partition, at);
        }
        for key in marked {
            match executions.iter().find(|execution| execution.key() == key) {
                Some(execution) => self.resolver.resolve_written(partition, execution, version),
                None => self.resolver.resolve_soon(partition, key),
            }
        }
        released.into_iter().for_each(|one| self.scheduler.give_back_soon(one));
        if let Some(clock) = &self.transactor.options().test_clock {
            clock.changed();
        }
    }

    /// Acts as if the commit had been applied: a wrong hint costs one look, but a missing one leaves work lying until
    /// the next sweep.
    fn perhaps_applied(&self, applied: PerhapsApplied<'_>) {
        // It is not known whether other engines were told what is due.
        let mut others = applied.items.to_vec();
        others.retain(|item| !matches!(item, Item::Due(_)));
        self.wake_opened(&mut others);
        self.act_on(applied.partition, &others);
        if let Some(at) = applied.due {
            self.transactor.due().note(applied.partition, at);
        }
        for key in applied.marked {
            self.resolver.resolve_soon(applied.partition, key.clone());
        }
        applied.released.iter().for_each(|one| self.scheduler.give_back_if_released(one));
    }
}
