//! The loop of a worker at work, and the life of one task in it.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinSet;
use tracing::Instrument;

use super::{Handler, TaskContext};
use crate::durable::{Steps, Watcher, drive};
use crate::error::Result;
use crate::task::{ClaimedTask, RunAgain};
use crate::task_error::{End, TaskError, category};
use crate::worker::FlowFabricWorker;

/// How long a task rests that this worker cannot do anything with.
const UNKNOWN_KIND_PAUSE: Duration = Duration::from_secs(1);

/// A worker at work.
pub(super) struct Working<S> {
    pub(super) worker: FlowFabricWorker,
    pub(super) state: Arc<S>,
    pub(super) handlers: Arc<BTreeMap<String, Handler<S>>>,
    pub(super) watcher: Option<Arc<dyn Watcher>>,
}

impl<S: Send + Sync + 'static> Working<S> {
    /// Claims and works until the worker stops, and every task has ended.
    pub(super) async fn run(self) {
        let stopping = self.worker.stopping().clone();
        let mut tasks = JoinSet::new();
        let mut arriving = self.worker.tasks();
        while !stopping.is_cancelled() {
            match arriving.next().await {
                Ok(claimed) => claimed.into_iter().for_each(|task| self.spawn(&mut tasks, task)),
                Err(error) => tracing::warn!(%error, "a claim failed"),
            }
            while tasks.try_join_next().is_some() {}
        }
        // Tasks that have not begun are handed back before the others have ended.
        drop(arriving);
        while tasks.join_next().await.is_some() {}
    }

    fn spawn(&self, tasks: &mut JoinSet<()>, task: ClaimedTask) {
        let Some(handler) = self.handlers.get(task.kind()).cloned() else {
            // Only the kinds of handlers are claimed. Dropping the task would leave it until its lease runs out.
            tracing::error!(execution = %task.execution_id(), kind = task.kind(), "a task of a kind that was not claimed");
            tasks.spawn(async move { drop(task.end_with_delay(UNKNOWN_KIND_PAUSE).await) });
            return;
        };
        let (state, watcher) = (self.state.clone(), self.watcher.clone());
        let span = task.span().clone();
        let life = async move {
            let task = Arc::new(task);
            task.set_lent(true);
            let context = TaskContext::new(state, task.clone(), watcher);
            let ended = work(&context, handler).await;
            task.set_lent(false);
            if let Err(error) = report(&task, context.steps(), ended).await {
                tracing::warn!(execution = %task.execution_id(), %error, "the end of a task could not be reported");
            }
        };
        tasks.spawn(life.instrument(span));
    }
}

/// Calls the handler, unless the lease is lost first.
async fn work<S: Send + Sync + 'static>(context: &TaskContext<S>, handler: Handler<S>) -> Result<String, TaskError> {
    let lost = context.cancellation().clone();
    let handled = drive(context.steps(), async { handler(context.clone()).await });
    let called = AssertUnwindSafe(handled).catch_unwind();
    let result = tokio::select! {
        biased;
        () = lost.cancelled() => return Err(TaskError(End::Lost)),
        called = called => called.unwrap_or_else(|panic| Err(TaskError::of_panic(panic.as_ref()))),
    };
    // The frames of a failed attempt are worth reading, too.
    match context.flush().await {
        Err(error) if result.is_ok() => Err(TaskError::from(error).category(category::STREAM)),
        _ => result,
    }
}

/// Ends the task as its handler said.
async fn report(task: &ClaimedTask, steps: &Steps, ended: Result<String, TaskError>) -> Result<()> {
    let failure = match ended {
        Ok(result) => match task.end_with_json(result, steps.run_notes()).await {
            Err(error) if error.refuses_content() => {
                tracing::warn!(execution = %task.execution_id(), %error, "a result was refused; the attempt fails");
                TaskError::new(error.to_string()).category(category::REFUSED)
            }
            completed => return completed.map(drop),
        },
        Err(failure) => failure,
    };
    // Boxed, because few tasks fail, and each holds this future.
    Box::pin(report_failure(task, steps, failure)).await
}

async fn report_failure(task: &ClaimedTask, steps: &Steps, failure: TaskError) -> Result<()> {
    match failure.0 {
        End::Failed { reason, category, retry_after, cause } => {
            let undone = steps.undone();
            let again = match cause.is_some() || !undone.is_empty() {
                true => match steps.number_for_ending().await {
                    Some(number) => RunAgain { cause, undone, first_number: Some(number) },
                    None => RunAgain::default(),
                },
                false => RunAgain::default(),
            };
            task.end_with_failure(reason, category, retry_after, again).await.map(drop)
        }
        End::StartOver => task.end_with_delay(Duration::ZERO).await.map(drop),
        End::Released | End::Lost => Ok(()),
    }
}

/// Ends when the process is told to stop. Listens from now on, not only when it is first awaited: until then a signal
/// would kill the process, and its tasks would wait for their leases to run out.
#[cfg(unix)]
pub(super) fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Ends when the process is told to stop.
#[cfg(not(unix))]
pub(super) fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
