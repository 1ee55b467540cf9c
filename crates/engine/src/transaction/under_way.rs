//! Work that goes on when its caller goes away.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::sync::Notify;

use super::Transactor;
use crate::env::BoxFuture;

/// A signal that a caller no longer waits for its answer.
#[derive(Debug, Default)]
pub(crate) struct CallerGone {
    said: AtomicBool,
    wake: Notify,
}

impl CallerGone {
    pub(crate) fn say(&self) {
        self.said.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    pub(crate) fn is_said(&self) -> bool {
        self.said.load(Ordering::SeqCst)
    }

    /// Waits until the caller may have gone. Only one task waits at a time.
    pub(crate) async fn heard(&self) {
        self.wake.notified().await;
    }
}

/// Work that runs in its caller's task while the caller waits for it. If the caller goes away, a task of its own
/// finishes it: the work may have changed something, and its consequences must follow.
pub(crate) struct UnderWay<T: Send + 'static> {
    transactor: Transactor,
    work: Option<BoxFuture<'static, T>>,
    /// The signal by which the work learns that its caller is gone.
    gone: Option<Arc<CallerGone>>,
}

impl Transactor {
    /// Carries out work that goes on when its caller does not wait for it.
    pub(crate) fn see_through<T: Send + 'static>(&self, work: BoxFuture<'static, T>) -> UnderWay<T> {
        UnderWay { transactor: self.clone(), work: Some(work), gone: None }
    }

    /// The same for work that wants to know that its caller is gone.
    pub(crate) fn see_through_telling<T: Send + 'static>(
        &self,
        gone: Arc<CallerGone>,
        work: BoxFuture<'static, T>,
    ) -> UnderWay<T> {
        UnderWay { transactor: self.clone(), work: Some(work), gone: Some(gone) }
    }
}

impl<T: Send + 'static> Future for UnderWay<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // The work is taken out while it is polled, so that work that panics is not continued by a task.
        let mut work = self.work.take().expect("a future is not polled after its end");
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for UnderWay<T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        if let Some(gone) = &self.gone {
            gone.say();
        }
        self.transactor.spawn_short(async move { drop(work.await) });
    }
}
