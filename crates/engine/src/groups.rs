//! Groups requests that change one hot document. Requests that arrive while a commit is under way share the next one;
//! each gets its own answer. The number of commits then grows with time, not with the number of requests.

use std::collections::BTreeMap;
use std::sync::Mutex;

use ff_core::{Code, Error, Result};
use tokio::sync::oneshot;

use crate::env;

/// Namespace and name of the document.
pub(crate) type Name = (String, String);

/// Requests that share one commit.
const TOGETHER_MAX: usize = 128;

/// The channel of a caller that waits for its answer.
pub(crate) type Caller<T> = oneshot::Sender<Result<T>>;

/// A request and its caller.
type Waiting<R, T> = (R, Caller<T>);

/// Requests on their way, by document. A document is in the map while a task commits for it.
pub(crate) struct Groups<R, T>(Mutex<BTreeMap<Name, Vec<Waiting<R, T>>>>);

impl<R, T> Default for Groups<R, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<R, T> Groups<R, T> {
    /// Queues a request and waits for its answer. The first request of a queue calls `serve`, which must start a task
    /// that serves the queue until it is empty. It must be a task of its own, so that a caller that goes away does not
    /// end the requests of others.
    pub(crate) async fn ask(&self, name: Name, request: R, serve: impl FnOnce(Name)) -> Result<T> {
        let (answered, first) = self.queue(&name, request);
        if first {
            serve(name);
        }
        answered.await.unwrap_or_else(|_| Err(Error::of(Code::ShuttingDown)))
    }

    /// Queues a request whose sender does not wait for the answer.
    pub(crate) fn tell(&self, name: Name, request: R, serve: impl FnOnce(Name)) {
        if self.queue(&name, request).1 {
            serve(name);
        }
    }

    /// Also returns whether the sender must have the queue served.
    fn queue(&self, name: &Name, request: R) -> (oneshot::Receiver<Result<T>>, bool) {
        let (answer, answered) = oneshot::channel();
        let mut groups = self.0.lock().expect("no holder of this lock panics");
        match groups.get_mut(name) {
            Some(queue) => {
                queue.push((request, answer));
                (answered, false)
            }
            None => {
                groups.insert(name.clone(), vec![(request, answer)]);
                (answered, true)
            }
        }
    }

    /// The next requests to commit, and the channels of their callers in the same order. If there are none, the queue
    /// is closed. It first lets other tasks that are ready run, because one answer may wake many callers that ask again
    /// one after the other.
    pub(crate) async fn next(&self, name: &Name) -> Option<(Vec<R>, Vec<Caller<T>>)> {
        env::let_others_run().await;
        let taken = self.take(name);
        (!taken.is_empty()).then(|| taken.into_iter().unzip())
    }

    fn take(&self, name: &Name) -> Vec<Waiting<R, T>> {
        let mut groups = self.0.lock().expect("no holder of this lock panics");
        let Some(queue) = groups.get_mut(name) else { return Vec::new() };
        let count = queue.len().min(TOGETHER_MAX);
        let taken: Vec<_> = queue.drain(..count).collect();
        if taken.is_empty() {
            groups.remove(name);
        }
        taken
    }
}

/// Gives every caller of a group the outcome of its request, or the error to all of them. A request has its effect even
/// if its caller no longer waits.
pub(crate) fn answer<T>(callers: Vec<Caller<T>>, outcome: Result<Vec<Result<T>>>) {
    let answers: Vec<Result<T>> = match outcome {
        Ok(answers) => answers,
        Err(error) => callers.iter().map(|_| Err(error.clone())).collect(),
    };
    for (caller, answer) in callers.into_iter().zip(answers) {
        let _ = caller.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sees_to_the_queue_until_nobody_is_left() {
        let groups = Groups::<usize, ()>::default();
        let name = |name: &str| ("default".to_owned(), name.to_owned());
        assert!(groups.queue(&name("a"), 0).1);
        assert!(groups.queue(&name("b"), 0).1);
        assert!((1..=TOGETHER_MAX).all(|number| !groups.queue(&name("a"), number).1));
        let requests =
            |taken: Vec<Waiting<usize, ()>>| taken.into_iter().map(|(request, _)| request).collect::<Vec<_>>();
        assert_eq!(requests(groups.take(&name("a"))), (0..TOGETHER_MAX).collect::<Vec<_>>());
        // A request that comes now is not the first: a task still commits.
        assert!(!groups.queue(&name("a"), 999).1);
        assert_eq!(requests(groups.take(&name("a"))), [TOGETHER_MAX, 999]);
        assert!(groups.take(&name("a")).is_empty());
        assert!(groups.queue(&name("a"), 0).1);
    }
}
