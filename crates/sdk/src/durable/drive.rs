//! Calls a handler, and parks its task when every branch of it waits.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

use super::Steps;
use crate::task_error::TaskError;

/// Runs a handler to its end, or until all of its branches wait for something durable. Then the handler is parked and
/// dropped; it is called again, from its first line, when the first of its waits has ended.
pub(crate) async fn drive<T>(
    steps: &Arc<Steps>,
    handler: impl Future<Output = Result<T, TaskError>>,
) -> Result<T, TaskError> {
    let mut handler = pin!(handler);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    loop {
        let ended = poll_fn(|context| {
            woken.task.register(context.waker());
            woken.flag.store(false, Ordering::SeqCst);
            match handler.as_mut().poll(&mut Context::from_waker(&waker)) {
                // The task no longer belongs to this worker, whatever the handler returns.
                _ if steps.is_released() => Poll::Ready(Some(Err(TaskError::released()))),
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending if steps.may_park() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        });
        if let Some(ended) = ended.await {
            return ended;
        }
        // A branch that has only yielded for a moment is woken by now; it has work to do before the task may be given
        // up.
        tokio::task::yield_now().await;
        if !woken.flag.load(Ordering::SeqCst)
            && steps.may_park()
            && Box::pin(steps.park()).await.map_err(|error| TaskError::of_record(&error))?
        {
            return Err(TaskError::released());
        }
    }
}

/// Whether a branch of the handler was woken since it was last polled.
#[derive(Default)]
struct Woken {
    flag: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.flag.store(true, Ordering::SeqCst);
        self.task.wake();
    }
}
