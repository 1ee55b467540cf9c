//! For tests of durable programs: everything in memory, time that only the test moves, workers that die where the test
//! says, and a check that a recorded journal still fits today's code.
//!
//! ```
//! use std::time::Duration;
//! use flowfabric::testing::TestBed;
//! use flowfabric::{TaskContext, TaskError, WorkerConfig, WorkerRuntime};
//!
//! async fn remind(ctx: TaskContext, name: String) -> Result<String, TaskError> {
//!     ctx.sleep("a day", Duration::from_secs(86_400)).await?;
//!     ctx.step("mail", || async { Ok(format!("{name} was reminded")) }).await
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> flowfabric::Result<()> {
//! let bed = TestBed::start().await?;
//! bed.work(WorkerRuntime::new(WorkerConfig::new("w")).register("remind", remind)).await?;
//! let execution = bed.client().submit("remind").input("Ada").send().await?;
//! bed.run_until_idle().await?;
//! bed.advance(Duration::from_secs(86_400)).await?;
//! assert_eq!(execution.result::<String>().await?, "Ada was reminded");
//! # Ok(()) }
//! ```
//!
//! [`TestBed`] is the deployment, `plan` says what goes wrong, `fit` is the check of journals.

mod fit;
mod plan;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ff_core::op::{AdvanceTestClock, GetTestClock, WaitUntilIdle, advance_test_clock, get_test_clock, wait_until_idle};
use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options, TestClock};
use ff_store::memory::MemoryStore;

use crate::client::Client;
use crate::error::{Result, SdkError};
use crate::execution::Execution;
use crate::runtime::{RunningWorker, WorkerRuntime};
use crate::task_error::TaskError;
use plan::Plan;

pub use crate::durable::Moment;
pub use fit::{Fit, assert_journal_fits, fit};

/// The time of a test's clock at its beginning: 1 January 2030, in milliseconds since the epoch.
pub const BEGINNING: i64 = 1_893_456_000_000;
/// Real time that waiting until idle may take.
const IDLE_PATIENCE: Duration = Duration::from_secs(30);
/// Leaps that [`TestBed::run_until_ended`] makes at the most.
const LEAPS_MAX: usize = 10_000;

/// A deployment in memory whose clock the test moves.
///
/// Leases, sleeps, retries and timeouts follow that clock; what a body takes and what a call waits for is real time. A
/// lease therefore never runs out while a test looks on: kill its worker, then [`advance`](TestBed::advance) past it.
#[derive(Debug)]
pub struct TestBed {
    client: Client,
    engine: Engine,
    clock: Arc<TestClock>,
    plan: Arc<Plan>,
    workers: Arc<Mutex<Vec<Option<RunningWorker>>>>,
}

impl TestBed {
    /// Starts one.
    pub async fn start() -> Result<Self> {
        let clock = TestClock::starting_at(BEGINNING);
        let store = Arc::new(MemoryStore::with_clock(clock.source()));
        let options = Options { test_clock: Some(clock.clone()), ..Options::default() };
        let engine = Engine::start(store, Arc::new(TokioEnv::current()), options).await?;
        let client = Client::connect_with(engine.clone()).await?;
        Ok(Self { client, engine, clock, plan: Arc::default(), workers: Arc::default() })
    }

    /// A client of it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The time of its clock, in milliseconds since the epoch.
    pub fn now(&self) -> i64 {
        self.clock.now()
    }

    /// Starts a worker. It dies where [`kill_at`](TestBed::kill_at) says, or with the test bed.
    pub async fn work<S: Send + Sync + 'static>(&self, runtime: WorkerRuntime<S>) -> Result<()> {
        let place = {
            let mut workers = self.workers();
            workers.push(None);
            workers.len() - 1
        };
        let killer = Killer { place, workers: self.workers.clone() };
        let running = runtime.watched_by(Arc::new(plan::Follower::new(self.plan.clone(), killer))).start(&self.client);
        let running = running.await?;
        self.workers()[place] = Some(running);
        Ok(())
    }

    /// Kills the next worker that comes to this moment of a step of this name, as a power cut would: nothing it has not
    /// recorded is left of it, and its leases stay until they run out.
    pub fn kill_at(&self, step: impl Into<String>, moment: Moment) {
        self.plan.kill_at(step.into(), moment);
    }

    /// Lets the next so many tries of steps of this name fail in the place of their bodies.
    pub fn fail_step(
        &self,
        step: impl Into<String>,
        times: usize,
        failure: impl Fn() -> TaskError + Send + Sync + 'static,
    ) {
        self.plan.fail(step.into(), times, Arc::new(failure));
    }

    /// Waits until a worker was killed that [`kill_at`](TestBed::kill_at) spoke of and no earlier call waited for.
    pub async fn killed(&self) -> Result<()> {
        let killed = tokio::time::timeout(IDLE_PATIENCE, self.plan.killed());
        killed.await.map_err(|_| busy("no worker came to the step at which it was to be killed"))
    }

    /// Kills every worker now.
    pub fn kill_all(&self) {
        self.workers().iter_mut().for_each(|worker| *worker = None);
    }

    /// Moves the clock. Timers that become due on the way are fired in their order before this returns.
    pub async fn advance(&self, time: Duration) -> Result<i64> {
        let advance_ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Ok(self.client.call::<AdvanceTestClock>(advance_test_clock::Args { advance_ms }).await?.now)
    }

    /// Waits until nothing happens any more unless the clock is moved or a caller acts: no task is held, claimable or
    /// due. An error says what is left when that does not come about.
    pub async fn run_until_idle(&self) -> Result<()> {
        let timeout_ms = i64::try_from(IDLE_PATIENCE.as_millis()).ok();
        let seen = self.client.call::<WaitUntilIdle>(wait_until_idle::Args { timeout_ms }).await?;
        if seen.idle {
            return Ok(());
        }
        Err(busy(format!(
            "{} tasks are held, {} are claimable and {} due; a killed worker holds its tasks until the clock passes their \
             leases",
            seen.leased, seen.claimable, seen.due
        )))
    }

    /// Lets time pass, from one instant at which something is due to the next, until an execution has ended.
    pub async fn run_until_ended(&self, execution: &Execution) -> Result<()> {
        for _ in 0..LEAPS_MAX {
            self.run_until_idle().await?;
            if execution.state().await?.is_terminal() {
                return Ok(());
            }
            let clock = self.client.call::<GetTestClock>(get_test_clock::Args {}).await?;
            let Some(next) = clock.next_due_at else {
                return Err(busy("the execution waits for something that no clock brings"));
            };
            self.advance(Duration::from_millis(u64::try_from(next - clock.now).unwrap_or(0))).await?;
        }
        Err(busy(format!("the execution has not ended after {LEAPS_MAX} leaps of the clock")))
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, Vec<Option<RunningWorker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        self.kill_all();
        self.engine.stop_waits();
    }
}

/// Kills one worker.
#[derive(Debug)]
struct Killer {
    place: usize,
    workers: Arc<Mutex<Vec<Option<RunningWorker>>>>,
}

impl Killer {
    /// Says whether there was a worker left to kill.
    fn kill(&self) -> bool {
        let taken = {
            let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
            workers.get_mut(self.place).and_then(Option::take)
        };
        taken.is_some()
    }
}

fn busy(what: impl std::fmt::Display) -> SdkError {
    SdkError::config("test bed", "run", what.to_string())
}
