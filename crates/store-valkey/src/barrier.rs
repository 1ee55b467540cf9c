//! Shared barriers: callers that come while a barrier is under way all wait for the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::Partition;
use ff_store::{Result, StoreError};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

type Answer = oneshot::Sender<Result<()>>;

/// The callers that wait, by partition, and the tasks that run barriers for them.
#[derive(Default)]
pub(crate) struct Barriers(Mutex<State>);

#[derive(Default)]
struct State {
    /// A partition is in the map while a task runs barriers for it.
    waiting: HashMap<Partition, Vec<Answer>>,
    /// A task ends when no caller waits for its partition. It is a task of its own so that a caller that goes away does
    /// not end the barrier of the others.
    tasks: JoinSet<()>,
}

impl Barriers {
    /// Waits for a barrier that begins after this call.
    pub(crate) async fn wait<F>(
        self: &Arc<Self>,
        partition: Partition,
        carry_out: impl Fn() -> F + Send + 'static,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send,
    {
        let (answer, answered) = oneshot::channel();
        {
            let mut state = self.state();
            let first = !state.waiting.contains_key(&partition);
            state.waiting.entry(partition).or_default().push(answer);
            if first {
                while state.tasks.try_join_next().is_some() {}
                // A weak handle, so that the tasks end with the store.
                let barriers = Arc::downgrade(self);
                state.tasks.spawn(async move {
                    while let Some(group) = barriers.upgrade().map(|barriers| barriers.take(partition)) {
                        if group.is_empty() {
                            return;
                        }
                        let outcome = carry_out().await;
                        for answer in group {
                            // A caller that has gone away needs no answer.
                            let _ = answer.send(outcome.clone());
                        }
                    }
                });
            }
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store was closed".into())))
    }

    /// The callers of the next barrier; if there are none, the partition leaves the map.
    fn take(&self, partition: Partition) -> Vec<Answer> {
        let mut state = self.state();
        let taken = state.waiting.get_mut(&partition).map(std::mem::take).unwrap_or_default();
        if taken.is_empty() {
            state.waiting.remove(&partition);
        }
        taken
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn those_who_come_meanwhile_share_the_next() {
        let barriers = Arc::<Barriers>::default();
        let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let carry_out = || {
            let (begun, gate) = (begun.clone(), gate.clone());
            move || {
                let (begun, gate) = (begun.clone(), gate.clone());
                async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.expect("it stays open").forget();
                    Ok(())
                }
            }
        };
        let mut callers = JoinSet::new();
        for _ in 0..100 {
            let (barriers, carry_out) = (barriers.clone(), carry_out());
            callers.spawn(async move { barriers.wait(Partition::flow(1), carry_out).await });
            while begun.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        }
        while barriers.state().waiting[&Partition::flow(1)].len() < 99 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        assert!(callers.join_all().await.into_iter().all(|answer| answer.is_ok()));
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }
}
