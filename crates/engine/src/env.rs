//! Everything the engine takes from its surroundings: time, sleep, tasks, randomness. A program brings tokio, the
//! simulator brings virtual time, and the engine cannot tell the difference.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use ff_core::{CommandId, Mint, limits};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

/// A future in a box, as tasks and timers are handed around.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The surroundings of an engine.
pub trait Env: Send + Sync + 'static {
    /// Milliseconds that never go back within this process. Only differences matter: instants come from the store.
    fn now_ms(&self) -> i64;

    /// Microseconds on the same clock, for measurements.
    fn now_us(&self) -> i64 {
        self.now_ms() * 1_000
    }

    /// Ends after this many milliseconds.
    fn sleep(&self, ms: i64) -> BoxFuture<'static, ()>;

    /// Runs a task beside everything else, until it ends or its handle aborts it.
    fn spawn(&self, task: BoxFuture<'static, ()>) -> TaskHandle;

    /// Random bits, good enough for secrets.
    fn random(&self) -> u64;

    /// A service of the engine panicked and will be started again. A program goes on; a test that looks for defects may
    /// let the panic go on instead.
    fn panicked(&self, panic: Box<dyn Any + Send>) {
        drop(panic);
    }
}

/// Owns a spawned task: dropping the handle aborts the task.
pub struct TaskHandle(Option<Box<dyn FnOnce() + Send>>);

impl TaskHandle {
    /// A handle that aborts its task in this way.
    pub fn new(abort: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(abort)))
    }

    /// Lets the task run to its end.
    pub fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for TaskHandle {
    fn drop(&mut self) {
        if let Some(abort) = self.0.take() {
            abort();
        }
    }
}

impl std::fmt::Debug for TaskHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TaskHandle")
    }
}

/// The values to mint an id from, by an environment and the store's time.
pub(crate) fn mint(env: &dyn Env, now_ms: i64) -> Mint {
    let (high, low) = (env.random().to_be_bytes(), env.random().to_be_bytes());
    let mut random = [0u8; 10];
    random[..8].copy_from_slice(&high);
    random[8..].copy_from_slice(&low[..2]);
    Mint { now_ms, random }
}

/// A fresh command id.
pub(crate) fn command_id(env: &dyn Env, now_ms: i64) -> CommandId {
    CommandId::mint(&mint(env, now_ms))
}

/// Bytes that cannot be guessed.
pub(crate) fn random_bytes(env: &dyn Env) -> [u8; limits::SECRET_MIN_BYTES] {
    let mut bytes = [0u8; limits::SECRET_MIN_BYTES];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&env.random().to_be_bytes()[..chunk.len()]);
    }
    bytes
}

/// Lets every task run that is ready now.
pub(crate) async fn let_others_run() {
    let mut polled = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        // A task that wakes itself goes behind those that wait for their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The results of those futures that end within a time, in the order in which they end.
pub(crate) async fn those_within<T>(
    env: &Arc<dyn Env>,
    ms: i64,
    futures: impl Iterator<Item = impl Future<Output = T>>,
) -> Vec<T> {
    let mut under_way: FuturesUnordered<_> = futures.collect();
    let mut ended = Vec::new();
    let all = async {
        while let Some(result) = under_way.next().await {
            ended.push(result);
        }
    };
    within(env, ms, all).await;
    ended
}

/// Runs a future, but not longer than this; `None` when the time is up.
pub(crate) fn within<T>(
    env: &Arc<dyn Env>,
    ms: i64,
    future: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    use futures_util::future::{Either, select};
    let mut future = Box::pin(future);
    async move {
        // Most answers are there at once, and need no timer.
        if let Poll::Ready(value) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
            return Some(value);
        }
        match select(future, env.sleep(ms)).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(((), _)) => None,
        }
    }
}

/// Tasks an engine has spawned, aborted together when it closes.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<Vec<TaskHandle>>);

impl Tasks {
    pub(crate) fn own(&self, handle: TaskHandle) {
        self.0.lock().expect("no holder of this lock panics").push(handle);
    }

    pub(crate) fn abort_all(&self) {
        let handles = std::mem::take(&mut *self.0.lock().expect("no holder of this lock panics"));
        drop(handles);
    }
}

#[cfg(feature = "tokio-env")]
pub use real::TokioEnv;

#[cfg(feature = "tokio-env")]
mod real {
    #![expect(clippy::disallowed_methods, reason = "this is the one place where the engine meets the real world")]

    use std::sync::Mutex;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{BoxFuture, Env, TaskHandle};

    /// Bytes asked of the operating system at once: a commit needs several random numbers, and each question costs
    /// as much as a small commit's own work.
    const BLOCK: usize = 1024;

    /// The environment of ordinary programs.
    #[derive(Debug)]
    pub struct TokioEnv {
        started: Instant,
        runtime: tokio::runtime::Handle,
        entropy: Mutex<Vec<u8>>,
    }

    impl TokioEnv {
        /// Uses the runtime this is called on.
        pub fn current() -> Self {
            Self { started: Instant::now(), runtime: tokio::runtime::Handle::current(), entropy: Mutex::default() }
        }
    }

    impl Env for TokioEnv {
        fn now_ms(&self) -> i64 {
            i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
        }

        fn now_us(&self) -> i64 {
            i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX)
        }

        fn sleep(&self, ms: i64) -> BoxFuture<'static, ()> {
            let duration = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
            // Also where a caller of another runtime waits: that one may end before the work does.
            let _ours = self.runtime.enter();
            Box::pin(tokio::time::sleep(duration))
        }

        fn spawn(&self, task: BoxFuture<'static, ()>) -> TaskHandle {
            let handle = self.runtime.spawn(task);
            TaskHandle::new(move || handle.abort())
        }

        fn random(&self) -> u64 {
            let mut entropy = self.entropy.lock().expect("no holder of this lock panics");
            if entropy.is_empty() {
                entropy.resize(BLOCK, 0);
                getrandom::fill(&mut entropy).expect("a process without randomness cannot make ids or secrets");
            }
            // Drawn bytes are taken out, so that they are never given twice.
            let rest = entropy.len() - size_of::<u64>();
            let mut drawn = [0; size_of::<u64>()];
            drawn.copy_from_slice(&entropy[rest..]);
            entropy[rest..].fill(0);
            entropy.truncate(rest);
            u64::from_ne_bytes(drawn)
        }
    }
}
