//! The intake: the tasks of a worker as they come, from claims that wait for work and from exchanges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ff_core::limits;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::FlowFabricWorker;
use crate::error::{Result, SdkError};
use crate::task::ClaimedTask;

/// The pause after a claim that failed, on top of the client's own repeats.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// The tasks of a worker, as many as it has free permits; see [`FlowFabricWorker::tasks`].
///
/// Dropping it hands back the tasks that were not taken from it.
#[derive(Debug)]
pub struct Tasks {
    worker: FlowFabricWorker,
    inbox: Inbox,
    /// Not more than the worker's permits: each task that waits here has one.
    arrived: mpsc::UnboundedReceiver<Result<Vec<ClaimedTask>>>,
    claiming: AbortHandle,
}

/// The sending side, to which claimed tasks are delivered.
#[derive(Debug, Clone)]
pub(super) struct Inbox {
    arrived: mpsc::UnboundedSender<Result<Vec<ClaimedTask>>>,
    /// A claim waits for work.
    asks: Arc<AtomicBool>,
    /// An error waits to be taken; no second one is kept.
    troubled: Arc<AtomicBool>,
}

impl Inbox {
    pub(super) fn is(&self, other: &Inbox) -> bool {
        self.arrived.same_channel(&other.arrived)
    }

    /// Whether a claim waits for work.
    pub(super) fn asks(&self) -> bool {
        self.asks.load(Ordering::Relaxed)
    }

    /// Delivers tasks; returns them if no loop takes tasks any more.
    pub(super) fn deliver(&self, tasks: Vec<ClaimedTask>) -> Vec<ClaimedTask> {
        match self.arrived.send(Ok(tasks)) {
            Ok(()) => Vec::new(),
            Err(undelivered) => undelivered.0.unwrap_or_default(),
        }
    }
}

impl FlowFabricWorker {
    /// The tasks of this worker as they come: the cheapest way to work for long. While this is held, a task that ends
    /// is exchanged for the next one in the same call, and a claim waits for work only while a permit is free. A task
    /// that is not taken out is leased all the same, so it is for a loop that starts whatever comes.
    ///
    /// ```
    /// # async fn example(worker: flowfabric::FlowFabricWorker) -> flowfabric::Result<()> {
    /// let mut tasks = worker.tasks();
    /// while !worker.stopping().is_cancelled() {
    ///     for task in tasks.next().await? {
    ///         tokio::spawn(async move { task.complete(&"done").await });
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn tasks(&self) -> Tasks {
        let (sender, arrived) = mpsc::unbounded_channel();
        let inbox = Inbox { arrived: sender, asks: Arc::default(), troubled: Arc::default() };
        self.shared.exchanges.open(inbox.clone());
        let claiming = tokio::spawn(claim_what_is_free(self.clone(), inbox.clone())).abort_handle();
        Tasks { worker: self.clone(), inbox, arrived, claiming }
    }
}

impl Tasks {
    /// The tasks that came first; none when the worker stops. After an error the worker claims again by itself.
    pub async fn next(&mut self) -> Result<Vec<ClaimedTask>> {
        tokio::select! {
            biased;
            () = self.worker.shared.stopping.cancelled() => Ok(Vec::new()),
            arrived = self.arrived.recv() => {
                if matches!(arrived, Some(Err(_))) {
                    self.inbox.troubled.store(false, Ordering::Relaxed);
                }
                arrived.unwrap_or_else(|| Ok(Vec::new()))
            }
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.claiming.abort();
        self.worker.shared.exchanges.close(&self.inbox);
        self.arrived.close();
        let mut left = Vec::new();
        while let Ok(arrived) = self.arrived.try_recv() {
            left.extend(arrived.into_iter().flatten());
        }
        // Without a runtime their leases run out.
        if let (false, Ok(runtime)) = (left.is_empty(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(ClaimedTask::hand_back_all(left));
        }
    }
}

/// Claims with all permits that are free, until the worker stops. While all permits pass from task to task by
/// exchanges, none is free, and this claims nothing.
async fn claim_what_is_free(worker: FlowFabricWorker, inbox: Inbox) {
    let stopping = worker.shared.stopping.clone();
    while !stopping.is_cancelled() {
        let permit = tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            permit = worker.shared.permits.clone().acquire_owned() => permit,
        };
        let Ok(permit) = permit else { return };
        inbox.asks.store(true, Ordering::Relaxed);
        let claimed = worker.claim_with(permit, limits::CLAIM_TASKS_MAX).await;
        inbox.asks.store(false, Ordering::Relaxed);
        match claimed {
            Ok(tasks) if tasks.is_empty() => {}
            Ok(tasks) => ClaimedTask::hand_back_all(inbox.deliver(tasks)).await,
            Err(error) => pause_after(error, &worker, &inbox).await,
        }
    }
}

async fn pause_after(error: SdkError, worker: &FlowFabricWorker, inbox: &Inbox) {
    if !inbox.troubled.swap(true, Ordering::Relaxed) {
        // If no loop receives the error, this task is about to end, too.
        let _ = inbox.arrived.send(Err(error));
    }
    tokio::select! {
        () = worker.shared.stopping.cancelled() => {}
        () = tokio::time::sleep(CLAIM_PAUSE) => {}
    }
}
