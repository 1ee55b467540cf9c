//! An executor on one thread with virtual time. Of the tasks that can run, the seed picks the next; when none can, time
//! jumps to the next timer. So a day passes in milliseconds, and a seed replays exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use ff_engine::env::{BoxFuture, Env, TaskHandle};

use crate::random::Random;

/// The owner of a task: everything one process spawned can be killed at once, wherever it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner(pub u32);

/// The effect of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// This task was polled.
    Polled(u64),
    /// Nothing can run, and nothing ever will by itself.
    Asleep,
}

/// Runs tasks; clones share it.
#[derive(Clone)]
pub(crate) struct Executor(Arc<Mutex<State>>);

struct State {
    now_ms: i64,
    next_id: u64,
    tasks: BTreeMap<u64, Task>,
    ready: Vec<u64>,
    /// Owners that were killed: what their futures would start as they are dropped does not begin.
    dead: BTreeSet<Owner>,
    timers: BTreeMap<(i64, u64), Waker>,
    order: Random,
    entropy: Random,
}

struct Task {
    owner: Owner,
    /// `None` while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
    waker: Waker,
    queued: bool,
}

struct TaskWaker {
    id: u64,
    executor: Executor,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut state = self.executor.state();
        let Some(task) = state.tasks.get_mut(&self.id) else { return };
        if !std::mem::replace(&mut task.queued, true) {
            state.ready.push(self.id);
        }
    }
}

impl Executor {
    /// An executor whose order and entropy come from this stream.
    pub(crate) fn new(random: &mut Random) -> Self {
        Self(Arc::new(Mutex::new(State {
            now_ms: 0,
            next_id: 0,
            tasks: BTreeMap::new(),
            ready: Vec::new(),
            dead: BTreeSet::new(),
            timers: BTreeMap::new(),
            order: random.fork(),
            entropy: random.fork(),
        })))
    }

    /// Milliseconds since the start.
    pub(crate) fn now_ms(&self) -> i64 {
        self.state().now_ms
    }

    /// Random bits.
    pub(crate) fn entropy(&self) -> u64 {
        self.state().entropy.bits()
    }

    /// Starts a task.
    pub(crate) fn spawn(&self, owner: Owner, future: BoxFuture<'static, ()>) -> TaskHandle {
        let mut state = self.state();
        if state.dead.contains(&owner) {
            drop(state);
            drop(future);
            return TaskHandle::new(|| {});
        }
        let id = state.next_id;
        state.next_id += 1;
        let waker = Waker::from(Arc::new(TaskWaker { id, executor: self.clone() }));
        state.tasks.insert(id, Task { owner, future: Some(future), waker, queued: true });
        state.ready.push(id);
        let executor = self.clone();
        TaskHandle::new(move || executor.abort(id))
    }

    /// Ends after this many milliseconds of virtual time.
    pub(crate) fn sleep(&self, ms: i64) -> Sleep {
        Sleep { executor: self.clone(), until: self.now_ms() + ms.max(0), timer: None }
    }

    /// Everything stands still for this long: what was due meanwhile is late.
    pub(crate) fn pause(&self, ms: i64) {
        self.state().now_ms += ms;
    }

    /// Everything an owner has, as it stands: what waited for a reply never gets it.
    pub(crate) fn kill(&self, owner: Owner) {
        let ids: Vec<u64> = {
            let mut state = self.state();
            state.dead.insert(owner);
            state.tasks.iter().filter(|(_, task)| task.owner == owner).map(|(id, _)| *id).collect()
        };
        for id in ids {
            self.abort(id);
        }
    }

    /// Ends every task, so that what they share is let go.
    pub(crate) fn kill_all(&self) {
        let owners: BTreeSet<Owner> = self.state().tasks.values().map(|task| task.owner).collect();
        for owner in owners {
            self.kill(owner);
        }
    }

    fn abort(&self, id: u64) {
        let task = self.state().tasks.remove(&id);
        // Dropped without the lock: a future's end may wake or abort others.
        drop(task);
    }

    /// Polls one task, or lets time pass first if none can run.
    pub(crate) fn step(&self) -> Step {
        let (id, mut future, waker) = loop {
            let mut state = self.state();
            if state.ready.is_empty() {
                let due = state.pass_time();
                drop(state);
                if due.is_empty() {
                    return Step::Asleep;
                }
                due.into_iter().for_each(Waker::wake);
                continue;
            }
            let ready = state.ready.len();
            let place = state.order.below(ready);
            let id = state.ready.swap_remove(place);
            // A task that was aborted after it was woken is gone.
            let Some(task) = state.tasks.get_mut(&id) else { continue };
            task.queued = false;
            if let Some(future) = task.future.take() {
                break (id, future, task.waker.clone());
            }
        };
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut state = self.state();
        let finished = if done {
            state.tasks.remove(&id)
        } else if let Some(task) = state.tasks.get_mut(&id) {
            task.future = Some(future);
            return Step::Polled(id);
        } else {
            None
        };
        drop(state);
        drop(finished);
        drop(future);
        Step::Polled(id)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A task that panicked ends the run; the state is whole between statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Jumps to the next timer and answers which tasks are to be woken: without the lock, because waking takes it.
    fn pass_time(&mut self) -> Vec<Waker> {
        let Some((&(at, _), _)) = self.timers.first_key_value() else { return Vec::new() };
        self.now_ms = self.now_ms.max(at);
        let later = self.timers.split_off(&(self.now_ms + 1, 0));
        std::mem::replace(&mut self.timers, later).into_values().collect()
    }
}

/// A wait in virtual time.
pub(crate) struct Sleep {
    executor: Executor,
    until: i64,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let executor = self.executor.clone();
        let mut state = executor.state();
        if state.now_ms >= self.until {
            return Poll::Ready(());
        }
        let timer = *self.timer.get_or_insert_with(|| {
            state.next_id += 1;
            state.next_id
        });
        state.timers.insert((self.until, timer), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            let waker = self.executor.state().timers.remove(&(self.until, timer));
            drop(waker);
        }
    }
}

/// The environment of one process.
pub(crate) struct SimEnv {
    executor: Executor,
    owner: Owner,
}

impl SimEnv {
    /// For the process with this owner.
    pub(crate) fn new(executor: &Executor, owner: Owner) -> Self {
        Self { executor: executor.clone(), owner }
    }
}

impl Env for SimEnv {
    fn now_ms(&self) -> i64 {
        self.executor.now_ms()
    }

    fn sleep(&self, ms: i64) -> BoxFuture<'static, ()> {
        Box::pin(self.executor.sleep(ms))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> TaskHandle {
        self.executor.spawn(self.owner, task)
    }

    fn random(&self) -> u64 {
        self.executor.entropy()
    }

    fn panicked(&self, panic: Box<dyn std::any::Any + Send>) {
        std::panic::resume_unwind(panic);
    }
}
