//! Calls a handler, and parks its task when every branch of it waits.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::Steps;
use crate::runtime::TaskError;

/// Runs a handler to its end, or until it waits for something durable. A parked handler is dropped: it is called again,
/// from its first line, when the first thing it waits for has happened.
pub(crate) async fn drive<T>(
    steps: &Arc<Steps>,
    handler: impl Future<Output = Result<T, TaskError>>,
) -> Result<T, TaskError> {
    let mut handler = pin!(handler);
    loop {
        let ended = poll_fn(|context| match handler.as_mut().poll(context) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending if steps.may_park() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        match ended.await {
            Some(ended) => return ended,
            None if steps.park().await? => return Err(TaskError::released()),
            None => {}
        }
    }
}
