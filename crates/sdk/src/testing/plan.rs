//! The faults that a test has planned.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::journal::StepIdentity;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use super::Killer;
use crate::durable::{Moment, Watcher};
use crate::task_error::TaskError;

type Failure = Arc<dyn Fn() -> TaskError + Send + Sync>;

/// The faults that are yet to come.
pub(super) struct Plan {
    faults: Mutex<Faults>,
    /// A permit for each worker that was killed.
    killed: Semaphore,
}

#[derive(Default)]
struct Faults {
    /// How many workers die at a moment of a step.
    kills: BTreeMap<(String, Moment), usize>,
    failures: BTreeMap<String, (usize, Failure)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { faults: Mutex::default(), killed: Semaphore::new(0) }
    }
}

impl Plan {
    pub(super) fn kill_at(&self, step: String, moment: Moment) {
        *self.faults().kills.entry((step, moment)).or_default() += 1;
    }

    pub(super) fn fail(&self, step: String, times: usize, failure: Failure) {
        self.faults().failures.insert(step, (times, failure));
    }

    pub(super) async fn killed(&self) {
        // The semaphore is never closed.
        if let Ok(permit) = self.killed.acquire().await {
            permit.forget();
        }
    }

    fn kills(&self, step: &str, moment: Moment) -> bool {
        let mut faults = self.faults();
        let Some(left) = faults.kills.get_mut(&(step.to_owned(), moment)).filter(|left| **left > 0) else {
            return false;
        };
        *left -= 1;
        true
    }

    fn failure(&self, step: &str) -> Option<TaskError> {
        let mut faults = self.faults();
        let (left, failure) = faults.failures.get_mut(step).filter(|(left, _)| *left > 0)?;
        *left -= 1;
        Some(failure())
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("kills", &self.faults().kills).finish_non_exhaustive()
    }
}

/// Carries the plan out on one worker.
#[derive(Debug)]
pub(super) struct Follower {
    plan: Arc<Plan>,
    killer: Killer,
}

impl Follower {
    pub(super) fn new(plan: Arc<Plan>, killer: Killer) -> Self {
        Self { plan, killer }
    }
}

impl Watcher for Follower {
    fn reached<'a>(&'a self, moment: Moment, step: &'a StepIdentity) -> BoxFuture<'a, Result<(), TaskError>> {
        Box::pin(async move {
            if self.plan.kills(&step.name, moment) {
                if self.killer.kill() {
                    self.plan.killed.add_permits(1);
                }
                // The dead do not go on.
                return std::future::pending().await;
            }
            if moment == Moment::BeforeBody
                && let Some(failure) = self.plan.failure(&step.name)
            {
                return Err(failure);
            }
            Ok(())
        })
    }
}
