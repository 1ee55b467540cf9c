//! Requests that change one hot document. Those that arrive while a commit is under way share the next one; each gets its
//! own answer. The number of commits then grows with time, not with the number of requests.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::sync::oneshot;

/// Namespace and name of the document.
pub(crate) type Name = (String, String);

/// Requests that share one commit.
const TOGETHER_MAX: usize = 128;

/// A request and whoever waits for its answer.
pub(crate) type Waiting<R, A> = (R, oneshot::Sender<A>);

/// Requests on their way, by document. A document is in the map while somebody commits for it.
pub(crate) struct Groups<R, A>(Mutex<BTreeMap<Name, Vec<Waiting<R, A>>>>);

impl<R, A> Default for Groups<R, A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<R, A> Groups<R, A> {
    /// Queues a request; says whether its sender must see to the queue.
    pub(crate) fn queue(&self, name: &Name, request: R) -> (oneshot::Receiver<A>, bool) {
        let (answer, answered) = oneshot::channel();
        let mut groups = self.0.lock().expect("no holder of this lock panics");
        let first = !groups.contains_key(name);
        groups.entry(name.clone()).or_default().push((request, answer));
        (answered, first)
    }

    /// The next requests to commit; with none left the queue is closed.
    pub(crate) fn take(&self, name: &Name) -> Vec<Waiting<R, A>> {
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
        // Who comes now is not the first: somebody still commits.
        assert!(!groups.queue(&name("a"), 999).1);
        assert_eq!(requests(groups.take(&name("a"))), [TOGETHER_MAX, 999]);
        assert!(groups.take(&name("a")).is_empty());
        assert!(groups.queue(&name("a"), 0).1);
    }
}
