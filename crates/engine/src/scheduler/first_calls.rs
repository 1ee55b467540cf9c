//! Claims that wait for work, by the lease ids that their callers chose. A repeat that comes while the first call still
//! waits here lets that call end first: otherwise both would take work, each under the same ids.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ff_core::LeaseId;
use tokio::sync::Semaphore;

use super::{Ask, Memory, Scheduler};
use crate::env;

/// The names of a claim that its repeats have, too: namespace, worker process and lease ids.
type Names = (String, String, Vec<LeaseId>);

/// The claims that are under way. Each has a semaphore without permits, which is closed when the claim ends.
#[derive(Default)]
pub(super) struct FirstCalls(Mutex<BTreeMap<Names, Arc<Semaphore>>>);

impl FirstCalls {
    fn under_way(&self) -> MutexGuard<'_, BTreeMap<Names, Arc<Semaphore>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// A claim that is under way, until this is dropped.
pub(super) struct FirstCall {
    memory: Arc<Memory>,
    names: Names,
}

impl Drop for FirstCall {
    fn drop(&mut self) {
        if let Some(ended) = self.memory.first_calls.under_way().remove(&self.names) {
            ended.close();
        }
    }
}

fn names_of(ask: &Ask) -> Names {
    let ids = ask.lease_ids[..ask.chosen_ids.min(ask.lease_ids.len())].to_vec();
    (ask.criteria.namespace.clone(), ask.instance_id.clone(), ids)
}

impl Scheduler {
    /// Notes a claim that can be repeated and that waits, unless one of its names is under way already.
    pub(super) fn begin_first_call(&self, ask: &Ask) -> Option<FirstCall> {
        if ask.chosen_ids == 0 || ask.wait_ms == 0 {
            return None;
        }
        let names = names_of(ask);
        let mut under_way = self.memory.first_calls.under_way();
        if under_way.contains_key(&names) {
            return None;
        }
        under_way.insert(names.clone(), Arc::new(Semaphore::new(0)));
        Some(FirstCall { memory: Arc::clone(&self.memory), names })
    }

    /// Waits until the first call of a repeated claim has ended, if it waits in this engine, and no longer than the repeat
    /// would wait for work.
    pub(crate) async fn first_call_ended(&self, ask: &Ask) {
        let Some(first) = self.memory.first_calls.under_way().get(&names_of(ask)).cloned() else { return };
        let ended = async {
            // It has no permits, so it answers only when it is closed.
            let _ = first.acquire().await;
        };
        env::within(self.transactor.env_handle(), ask.wait_ms, ended).await;
    }
}
