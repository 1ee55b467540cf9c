//! How an execution shares its lane and keys with others: concurrency keys, turns, and keys that stand for one
//! execution.

use super::Execution;
use crate::limits;
use crate::sharing::{ConcurrencyLimit, KeyHolder, SingleUse};
use crate::state::LifecyclePhase;

impl Execution {
    /// The keys of which it takes a slot while it runs, in the order in which it takes them.
    pub fn concurrency(&self) -> &[ConcurrencyLimit] {
        self.sharing.as_ref().map_or(&[], |sharing| &sharing.concurrency)
    }

    /// Whether it must pass any gate.
    pub fn is_gated(&self) -> bool {
        !self.budgets.is_empty() || self.quota.is_some() || !self.concurrency().is_empty()
    }

    /// The key by which it takes turns in its lane; empty for none.
    pub fn fair_key(&self) -> &str {
        self.sharing.as_ref().map_or("", |sharing| &sharing.fair_key)
    }

    /// How many turns of its key count as one.
    pub fn fair_weight(&self) -> u32 {
        self.sharing.as_ref().map_or(1, |sharing| sharing.fair_weight.max(1))
    }

    /// How much age is worth one step of priority.
    pub fn aging_ms(&self) -> i64 {
        let said = self.sharing.as_ref().map_or(0, |sharing| sharing.aging_ms);
        if said == 0 { limits::AGING_DEFAULT_MS } else { said }
    }

    /// The key of this use that it was created under.
    pub fn single_key(&self, usage: SingleUse) -> Option<&str> {
        let single = self.sharing.as_ref().and_then(|sharing| sharing.single.as_ref());
        single.filter(|single| single.usage == usage).map(|single| single.key.as_str())
    }

    /// Whether a key stands for this execution. While a singleton's key does, no other execution is created under it;
    /// the holder of a debounce key may be superseded.
    pub fn holds_key(&self, usage: SingleUse, key: &str) -> bool {
        let single = self.sharing.as_ref().and_then(|sharing| sharing.single.as_ref());
        single.is_some_and(|single| single.held && single.usage == usage && single.key == key)
    }

    /// Its key stands for another execution from now on.
    pub fn let_key_go(&mut self, now: i64) {
        if let Some(single) = self.sharing.as_mut().and_then(|sharing| sharing.single.as_mut()) {
            single.held = false;
            self.mark_updated(now);
        }
    }

    /// Takes its key again after a replay.
    pub fn take_key_again(&mut self) -> Option<KeyHolder> {
        let single = self.sharing.as_mut()?.single.as_mut().filter(|single| !single.held)?;
        single.held = true;
        Some(KeyHolder {
            namespace: self.namespace.clone(),
            usage: single.usage,
            key: single.key.clone(),
            execution: self.id,
            began_at: self.updated_at,
            ..Default::default()
        })
    }

    /// Whether a later submission may take its place: it has not started, and no worker is about to start it.
    pub fn is_replaceable(&self) -> bool {
        let waits = self.state.lifecycle_phase == LifecyclePhase::Runnable && self.grant.is_none();
        waits && !self.has_started()
    }
}
