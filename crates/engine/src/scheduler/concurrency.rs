//! Takes and gives back slots of concurrency keys. A key is not created: its document is made by the first claim that
//! takes a slot, and removed some time after the last slot is given back. Requests to one key share commits, as those
//! to one quota do.

use ff_core::concurrency::{ConcurrencyKey, KeyRequest};
use ff_core::execution::Execution;
use ff_core::gate::Gate;
use ff_core::slot::Slot;
use ff_core::{Code, ConcurrencyLimit, Error, ExecutionId, Indexed, Key, LeaseId, Result, SlotId};

use super::Scheduler;
use super::admission::{Limit, Refusal};
use super::slots::{self, SlotAsk};
use crate::groups::{self, Groups, Name};
use crate::hint::Item;
use crate::transaction::{Command, Tx};

/// A request to a key.
type KeyAsk = SlotAsk<KeyRequest>;

/// The answer of a key.
#[derive(Debug)]
pub(crate) enum KeyAnswer {
    Taken,
    /// The key is full: this many executions hold it.
    Full(u32),
    /// Slots were given back.
    Freed,
}

/// Requests to concurrency keys on their way.
pub(crate) type ConcurrencyKeys = Groups<KeyAsk, KeyAnswer>;

impl Scheduler {
    /// Takes a slot of every key of an execution, in the order of the keys. After a refusal the slots taken so far are
    /// given back.
    pub(super) async fn take_keys(
        &self,
        execution: &Execution,
        lease: LeaseId,
        slot: SlotId,
    ) -> Result<std::result::Result<(), Refusal>> {
        let namespace = &execution.namespace;
        for (place, limit) in execution.concurrency().iter().enumerate() {
            let request = KeyRequest { execution: execution.id, lease, slot, limit: limit.limit };
            let refused = match self.ask_key(namespace, &limit.key, KeyAsk::Take(request)).await {
                Ok(KeyAnswer::Taken) => continue,
                Ok(KeyAnswer::Full(in_use)) => Ok(Err(full(limit, in_use))),
                Ok(KeyAnswer::Freed) => Err(Error::of(Code::Internal)),
                Err(error) => Err(error),
            };
            // After an error the slot of this key may have been taken, too.
            let taken = if refused.is_err() { place + 1 } else { place };
            self.free_keys(execution, &execution.concurrency()[..taken], slot).await;
            return refused;
        }
        Ok(Ok(()))
    }

    /// Gives back the slots of a try whose claim was not applied. A slot that cannot be given back is freed as an
    /// orphan.
    pub(super) async fn free_keys(&self, execution: &Execution, limits: &[ConcurrencyLimit], slot: SlotId) {
        for limit in limits {
            let keys = vec![Slot::key_of_concurrency(&execution.id, &slot, &limit.key)];
            if let Err(error) = self.free_key_slots(&execution.namespace, &limit.key, keys).await
                && let Some(suppressed) = self.transactor.may_log("an unused slot of a key could not be given back")
            {
                let key = &limit.key;
                tracing::warn!(key, %error, suppressed, "an unused slot could not be given back; it is freed as an orphan");
            }
        }
    }

    /// Gives back the slots that an execution owes to its keys.
    pub(crate) async fn give_back_keys(
        &self,
        namespace: &str,
        keys: &[String],
        execution: &ExecutionId,
        slots: &[SlotId],
    ) -> Result<()> {
        for key in keys {
            let slots = slots.iter().map(|slot| Slot::key_of_concurrency(execution, slot, key)).collect();
            self.free_key_slots(namespace, key, slots).await?;
        }
        Ok(())
    }

    /// Frees slots of a key.
    pub(crate) async fn free_key_slots(&self, namespace: &str, key: &str, slots: Vec<Key>) -> Result<()> {
        match self.ask_key(namespace, key, KeyAsk::Free(slots)).await? {
            KeyAnswer::Freed => Ok(()),
            KeyAnswer::Taken | KeyAnswer::Full(_) => Err(Error::of(Code::Internal)),
        }
    }

    async fn ask_key(&self, namespace: &str, key: &str, ask: KeyAsk) -> Result<KeyAnswer> {
        let serve = |name| {
            let scheduler = self.clone();
            self.transactor.spawn_short(async move { scheduler.serve_key(name).await });
        };
        self.memory.concurrency_keys.ask((namespace.to_owned(), key.to_owned()), ask, serve).await
    }

    async fn serve_key(&self, name: Name) {
        let partition = self.transactor.partitions().concurrency_partition(&name.0, &name.1);
        let document = ConcurrencyKey::key_of(&name.0, &name.1);
        while let Some((asks, callers)) = self.memory.concurrency_keys.next(&name).await {
            let verb = AskKey { name: &name, asks: &asks };
            let outcome = self.transactor.transact_in_turn(partition, document.clone(), &verb).await;
            groups::answer(callers, outcome.map(|told| told.into_iter().map(Ok).collect()));
        }
    }
}

fn full(limit: &ConcurrencyLimit, in_use: u32) -> Refusal {
    let detail = format!("concurrency key {}: {in_use}/{} running", limit.key, limit.limit);
    Refusal::waits(limit.gate().to_string(), Limit::Quota("key"), detail, None)
}

/// Hints that the limits of a key have room under which executions wait.
pub(crate) fn hint_open_limits(tx: &mut Tx<'_>, document: &ConcurrencyKey) {
    for limit in document.open_limits() {
        tx.hint(Item::gate(&document.namespace, Gate::Key { limit, key: &document.key }));
    }
}

/// All requests to a key, in one commit. Slots that are given back can be taken at once.
struct AskKey<'a> {
    name: &'a Name,
    asks: &'a [KeyAsk],
}

impl Command for AskKey<'_> {
    type Outcome = Vec<KeyAnswer>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<KeyAnswer>> {
        let (namespace, key) = self.name;
        let before = tx.load_admission::<ConcurrencyKey>(vec![ConcurrencyKey::key_of(namespace, key)]).await?;
        let before = before.into_iter().flatten().next().map(|loaded| loaded.document);
        let mut held = slots::load_held(tx, self.asks, |request| self.slot_of(request)).await?;
        let mut document = before.clone().unwrap_or_else(|| ConcurrencyKey::new(namespace, key, tx.now));
        let freed = slots::remove_freed(tx, self.asks, &mut held);
        (0..freed).for_each(|_| document.release(tx.now));
        if freed > 0 {
            hint_open_limits(tx, &document);
        }
        let mut told = Vec::with_capacity(self.asks.len());
        for ask in self.asks {
            told.push(match ask {
                KeyAsk::Free(_) => KeyAnswer::Freed,
                KeyAsk::Take(request) => self.take(tx, &mut document, &held, request),
            });
        }
        match before {
            None if document.is_idle() => {}
            Some(_) if document.is_idle() => tx.delete(&document.key()),
            before if before.as_ref() != Some(&document) => tx.save(&document),
            _ => {}
        }
        Ok(told)
    }
}

impl AskKey<'_> {
    /// The key of the slot that a claim takes.
    fn slot_of(&self, request: &KeyRequest) -> Key {
        Slot::key_of_concurrency(&request.execution, &request.slot, &self.name.1)
    }

    fn take(&self, tx: &mut Tx<'_>, document: &mut ConcurrencyKey, held: &[Slot], asked: &KeyRequest) -> KeyAnswer {
        let slot = self.slot_of(asked);
        if held.iter().any(|held| held.key() == slot) {
            return KeyAnswer::Taken;
        }
        match document.take(asked, tx.now) {
            Some(slot) => {
                tx.create(&slot);
                KeyAnswer::Taken
            }
            None => KeyAnswer::Full(document.in_use),
        }
    }
}
