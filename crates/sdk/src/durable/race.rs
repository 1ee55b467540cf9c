//! Branches that run in parallel: a join waits for all of them, a race for the first.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use ff_core::ExecutionId;
use ff_core::journal::StepKind;
use ff_core::op::{CancelExecution, cancel_execution};
use serde::{Deserialize, Serialize};

use super::book::{Call, Steps};
use super::step::{Step, result_of};
use super::watcher::Moment;
use crate::task_error::TaskError;

type Branch<'a, T> = Pin<Box<dyn Future<Output = Result<T, TaskError>> + Send + 'a>>;

/// Waits for all branches. If some fail, the result is the failure of the first of them in their order, so that it is
/// the same whenever the function is called again.
///
/// The branches are begun here and not when the future is polled: their calls are counted in the order of the code, and the
/// iterator is not kept over an await.
pub(crate) fn join<'a, T, F>(branches: impl IntoIterator<Item = F>) -> Branch<'a, Vec<T>>
where
    F: IntoFuture<Output = Result<T, TaskError>>,
    F::IntoFuture: Send + 'a,
    T: Send + 'a,
{
    let begin = |branch: F| -> Branch<'a, T> { Box::pin(branch.into_future()) };
    let branches: Vec<_> = branches.into_iter().map(begin).collect();
    Box::pin(async { futures_util::future::join_all(branches).await.into_iter().collect() })
}

/// Branches of which the first to end wins; awaiting it returns the winner's position and result.
///
/// The winner is recorded under the race's name, so that it is the same one whenever the function is called again.
#[must_use = "a race does nothing until it is awaited"]
pub struct Race<'a, T> {
    steps: Arc<Steps>,
    name: String,
    branches: Vec<Branch<'a, T>>,
    cancels: bool,
}

/// How a race ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Finish {
    winner: usize,
    /// Children that the losers were waiting for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    losers: Vec<ExecutionId>,
}

impl<'a, T> Race<'a, T> {
    pub(crate) fn new(steps: Arc<Steps>, name: String) -> Self {
        Self { steps, name, branches: Vec::new(), cancels: false }
    }

    /// Adds a branch: a step, a wait, a child, or a future of these. Branches that end together are taken in this order.
    pub fn branch<F>(mut self, branch: F) -> Self
    where
        F: IntoFuture<Output = Result<T, TaskError>>,
        F::IntoFuture: Send + 'a,
    {
        self.branches.push(Box::pin(branch.into_future()));
        self
    }

    /// Cancels the children that losing branches wait for. Without it they run to their ends.
    pub fn cancel_losers(mut self) -> Self {
        self.cancels = true;
        self
    }

    async fn run(mut self, decided: Call) -> Result<(usize, T), TaskError>
    where
        T: Send,
    {
        if self.branches.is_empty() {
            return Err(TaskError::new(format!("race {:?} has no branches", self.name)).category("empty_race"));
        }
        if let Some(known) = self.steps.ended(&decided.identity, StepKind::Step).await? {
            let finish: Finish = result_of(&known)?;
            let Some(winner) = self.branches.get_mut(finish.winner) else {
                let reason = format!("race {:?} was won by branch {}, which it has not", self.name, finish.winner);
                return Err(TaskError::new(reason).category("journal_mismatch"));
            };
            // The other branches are never polled, so they spawn nothing and wait for nothing.
            let result = winner.as_mut().await;
            cancel(&self.steps, &self.name, finish.losers).await?;
            return result.map(|value| (finish.winner, value));
        }
        self.steps.reached(Moment::BeforeWait, &decided.identity).await?;
        let branches = &mut self.branches;
        let (winner, result) = poll_fn(|context| {
            for (place, branch) in branches.iter_mut().enumerate() {
                if let Poll::Ready(result) = branch.as_mut().poll(context) {
                    return Poll::Ready((place, result));
                }
            }
            Poll::Pending
        })
        .await;
        if result.as_ref().is_err_and(|failure| !failure.is_failure()) {
            // The function is interrupted; no branch has won.
            return result.map(|value| (winner, value));
        }
        let open = self.steps.open_children();
        self.branches.clear();
        // The children that the drop of the losers has closed were the losers'.
        let left = self.steps.open_children();
        let losers = open.difference(&left).filter(|_| self.cancels).copied().collect();
        let finish = Finish { winner, losers };
        self.steps.record_result(&decided.identity, &finish).await?;
        cancel(&self.steps, &self.name, finish.losers).await?;
        result.map(|value| (winner, value))
    }
}

/// Cancels the losers' children in a step, so that it is done once and survives a crash.
async fn cancel(steps: &Arc<Steps>, name: &str, losers: Vec<ExecutionId>) -> Result<(), TaskError> {
    if losers.is_empty() {
        return Ok(());
    }
    let client = steps.task().client().clone();
    let (client, losers) = (&client, &losers);
    let cancelling = || async move {
        for execution_id in losers.iter().copied() {
            let args = cancel_execution::Args::from_outside(execution_id, Some("lost a race".into()));
            client.call::<CancelExecution>(args).await?;
        }
        Ok(())
    };
    Step::new(steps.clone(), name.to_owned(), cancelling).key("losers").await
}

impl<'a, T: Send + 'a> IntoFuture for Race<'a, T> {
    type Output = Result<(usize, T), TaskError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let call = self.steps.call(&self.name, None);
        Box::pin(async move { self.run(call?).await })
    }
}

impl<T> std::fmt::Debug for Race<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Race").field("name", &self.name).field("branches", &self.branches.len()).finish_non_exhaustive()
    }
}
