//! Gathers the commits of a call with several parts: commits of the same partition go to the store in one call. No
//! commit is delayed for that: when no part can go on by itself, all commits that are ready are sent.

use std::future::{Future, poll_fn};
use std::iter::Peekable;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use ff_core::{Partition, limits};
use ff_store::{Batch, Outcome, Store, StoreError};
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;

use crate::env::BoxFuture;

type Committed = std::result::Result<Vec<Outcome>, StoreError>;

/// The commits that the parts of a call have left to be sent.
#[derive(Default)]
pub(super) struct Gathering(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// The waker of the task that sends the commits, while it sleeps.
    sender: Option<Waker>,
    /// The call has ended: parts that go on commit by themselves.
    closed: bool,
}

/// One commit of one part.
struct Waiting {
    partition: Partition,
    batches: Arc<[Batch]>,
    answer: oneshot::Sender<Committed>,
}

impl Waiting {
    fn size(&self) -> (usize, usize) {
        let operations = self.batches.iter().map(Batch::operations).sum();
        (operations, self.batches.iter().map(Batch::bytes).sum())
    }
}

impl Gathering {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Commits batches together with those of other parts, or by themselves once the call has ended.
    pub(super) async fn commit(&self, store: &dyn Store, partition: Partition, batches: Arc<[Batch]>) -> Committed {
        let (answer, committed) = oneshot::channel();
        if let Err(alone) = self.leave(Waiting { partition, batches, answer }) {
            return store.commit(partition, alone.batches).await;
        }
        committed.await.unwrap_or_else(|_| Err(StoreError::Unknown("the call that sent it has ended".into())))
    }

    /// Leaves a commit to be sent with others; returns it if the call has ended.
    fn leave(&self, one: Waiting) -> std::result::Result<(), Waiting> {
        let mut state = self.state();
        if state.closed {
            return Err(one);
        }
        state.waiting.push(one);
        if let Some(sender) = state.sender.take() {
            sender.wake();
        }
        Ok(())
    }

    /// Runs the parts of a call to their end and sends the commits that they leave.
    pub(super) async fn run<T>(&self, store: &dyn Store, parts: impl Future<Output = T>) -> T {
        let _end = End(self);
        let mut parts = pin!(parts);
        let mut sent: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
        poll_fn(|cx| {
            // Commits that the parts leave while they are polled are sent below; only a commit that comes from another
            // task has to wake this one.
            self.state().sender = None;
            loop {
                if let Poll::Ready(ended) = parts.as_mut().poll(cx) {
                    return Poll::Ready(ended);
                }
                let mut waiting = std::mem::take(&mut self.state().waiting);
                // Commits of one partition keep their order.
                waiting.sort_by_key(|one| one.partition);
                let mut waiting = waiting.into_iter().peekable();
                while let Some(first) = waiting.next() {
                    sent.push(match waiting.peek() {
                        Some(next) if next.partition == first.partition => {
                            Box::pin(send(store, group(first, &mut waiting)))
                        }
                        _ => Box::pin(send_alone(store, first)),
                    });
                }
                // An answer that has come back lets a part go on.
                if matches!(sent.poll_next_unpin(cx), Poll::Ready(Some(()))) {
                    continue;
                }
                let mut state = self.state();
                if state.waiting.is_empty() {
                    state.sender = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

/// Closes the gathering when its call ends, even by being dropped.
struct End<'a>(&'a Gathering);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closed = true;
        state.sender = None;
        drop(std::mem::take(&mut state.waiting));
    }
}

/// A commit together with those behind it in the same partition, as far as they fit into one commit of the store.
fn group(first: Waiting, waiting: &mut Peekable<impl Iterator<Item = Waiting>>) -> Vec<Waiting> {
    let (mut operations, mut bytes) = first.size();
    let mut group = vec![first];
    while let Some(one) = waiting.next_if(|one| {
        let (more, more_bytes) = one.size();
        operations += more;
        bytes += more_bytes;
        one.partition == group[0].partition
            && operations <= limits::COMMIT_OPERATIONS_MAX
            && bytes <= limits::COMMIT_MAX_BYTES
    }) {
        group.push(one);
    }
    group
}

/// Sends a group and passes each commit its own outcome. A refusal of the call as a whole may be due to one commit, so
/// each is then tried by itself: a full store accepts endings, but no claims.
async fn send(store: &dyn Store, mut group: Vec<Waiting>) {
    let Some(partition) = group.first().map(|one| one.partition) else { return };
    if group.len() == 1 {
        return send_alone(store, group.remove(0)).await;
    }
    let batches = group.iter().flat_map(|one| one.batches.iter().cloned()).collect();
    match store.commit(partition, batches).await {
        Ok(outcomes) => {
            let mut outcomes = outcomes.into_iter();
            for one in group {
                let own = outcomes.by_ref().take(one.batches.len()).collect();
                // A part that has gone away needs no answer.
                drop(one.answer.send(Ok(own)));
            }
        }
        Err(StoreError::Full(_) | StoreError::Invalid(_) | StoreError::TooLarge(_)) => {
            join_all(group.into_iter().map(|one| send_alone(store, one))).await;
        }
        Err(error) => {
            for one in group {
                drop(one.answer.send(Err(error.clone())));
            }
        }
    }
}

async fn send_alone(store: &dyn Store, one: Waiting) {
    let committed = store.commit(one.partition, one.batches).await;
    drop(one.answer.send(committed));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ff_core::{CommandId, Key};
    use ff_store::memory::{Call, Faults, MemoryStore, Plan};
    use ff_store::{Fence, Guard, Put};
    use uuid::Uuid;

    use super::*;

    /// Counts commit calls and the batches in them.
    #[derive(Default)]
    struct Counted {
        calls: AtomicUsize,
        batches: AtomicUsize,
    }

    impl Faults for Counted {
        fn plan(&self, call: Call<'_>) -> Plan {
            if let Call::Commit { batches, .. } = call {
                self.calls.fetch_add(1, Ordering::Relaxed);
                self.batches.fetch_add(batches.len(), Ordering::Relaxed);
            }
            Plan::default()
        }
    }

    fn create(number: u8) -> Arc<[Batch]> {
        let key = Key::new(b'x', &[&[number; 16]]);
        let mut batch = Batch::new(CommandId(Uuid::from_u128(u128::from(number) + 1)));
        batch.guards.push(Guard::Absent(key.clone()));
        batch.puts.push(Put { key, body: vec![number].into(), fence: Fence::default(), expires_at: None });
        [batch].into()
    }

    #[tokio::test]
    async fn what_comes_together_for_one_partition_is_one_call_and_each_hears_of_its_own() {
        let counted = Arc::new(Counted::default());
        let store = MemoryStore::new().with_faults(counted.clone());
        let store: &dyn Store = &store;
        let gathering = Gathering::default();
        // The last one wants to create what the first one creates.
        let numbers = [1, 2, 3, 4, 1];
        let partition = |place: usize| Partition::flow(u16::from(place == 3));
        let parts = numbers.iter().enumerate();
        let parts = parts.map(|(place, &number)| gathering.commit(store, partition(place), create(number)));
        let outcomes = gathering.run(store, join_all(parts)).await;
        let applied: Vec<bool> = outcomes.into_iter().map(|own| own.unwrap().remove(0).applied().is_some()).collect();
        assert_eq!(applied, [true, true, true, true, false]);
        assert_eq!(counted.calls.load(Ordering::Relaxed), 2, "one for each partition");
        assert_eq!(counted.batches.load(Ordering::Relaxed), 5);
        // When the call has ended, a commit goes out by itself.
        assert!(gathering.commit(store, Partition::flow(0), create(9)).await.is_ok());
        assert_eq!(counted.calls.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_part_that_commits_twice_holds_up_nobody() {
        let store = MemoryStore::new();
        let store: &dyn Store = &store;
        let gathering = Gathering::default();
        let twice = async {
            for number in [1, 2] {
                gathering.commit(store, Partition::flow(0), create(number)).await.unwrap();
            }
        };
        let once = async { gathering.commit(store, Partition::flow(0), create(3)).await.unwrap().len() };
        let ((), count) = gathering.run(store, futures_util::future::join(twice, once)).await;
        assert_eq!(count, 1);
    }
}
