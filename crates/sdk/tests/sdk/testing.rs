//! Durable functions under a clock that the test moves, and the test kit itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowfabric::op::{ListSteps, list_steps};
use flowfabric::testing::{BEGINNING, Moment, TestBed, assert_journal_fits, fit};
use flowfabric::{Execution, OnDoubt, PublicState, Signal, Task, TaskContext, TaskError, WorkerConfig, WorkerRuntime};
use serde::{Deserialize, Serialize};

const HOUR: Duration = Duration::from_secs(3_600);
/// The length of a worker's lease unless it says otherwise.
const LEASE: Duration = Duration::from_secs(30);

/// How often each body ran.
#[derive(Default)]
struct Ran {
    fetch: AtomicU32,
    pay: AtomicU32,
    mail: AtomicU32,
}

impl Ran {
    fn counts(&self) -> [u32; 3] {
        [&self.fetch, &self.pay, &self.mail].map(|count| count.load(Ordering::SeqCst))
    }
}

fn more(count: &AtomicU32) -> u32 {
    count.fetch_add(1, Ordering::SeqCst) + 1
}

fn worker<S: Send + Sync + 'static>(state: S) -> WorkerRuntime<S> {
    WorkerRuntime::with_state(WorkerConfig::new("w"), state)
}

async fn journal_of(bed: &TestBed, execution: &Execution) -> list_steps::Outcome {
    let args = list_steps::Args { execution_id: execution.id(), generation: None, after: None, limit: Some(1_000) };
    bed.client().call::<ListSteps>(args).await.unwrap()
}

async fn buy(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<String, TaskError> {
    let ran = ctx.state();
    let price: u32 = ctx.step("fetch", || async { Ok(more(&ran.fetch)) }).await?;
    let receipt: u32 = ctx.step("pay", || async { Ok(more(&ran.pay)) }).once(OnDoubt::RunAgain).await?;
    ctx.sleep("cool down", HOUR).await?;
    let mailed: u32 = ctx.step("mail", || async { Ok(more(&ran.mail)) }).await?;
    Ok(format!("{price} {receipt} {mailed}"))
}

#[tokio::test]
async fn hours_pass_when_the_test_says_so() {
    let bed = TestBed::start().await.unwrap();
    let ran = Arc::new(Ran::default());
    bed.work(worker(ran.clone()).register("buy", buy)).await.unwrap();
    let execution = bed.client().submit("buy").send().await.unwrap();
    bed.run_until_idle().await.unwrap();
    assert_eq!((execution.state().await.unwrap(), ran.counts()), (PublicState::Delayed, [1, 1, 0]));
    assert_eq!(bed.advance(HOUR - Duration::from_millis(1)).await.unwrap(), BEGINNING + 3_599_999);
    bed.run_until_idle().await.unwrap();
    assert_eq!(ran.counts(), [1, 1, 0]);
    bed.advance(Duration::from_millis(1)).await.unwrap();
    assert_eq!(execution.result::<String>().await.unwrap(), "1 1 1");
}

#[tokio::test]
async fn a_worker_that_dies_at_a_step_leaves_what_it_recorded_and_no_more() {
    for (step, moment, expected) in [
        ("fetch", Moment::BeforeBody, [1, 1, 1]),
        ("fetch", Moment::AfterBody, [2, 1, 1]),
        ("fetch", Moment::Recorded, [1, 1, 1]),
        ("pay", Moment::BeforeBody, [1, 1, 1]),
        ("pay", Moment::AfterBody, [1, 2, 1]),
        ("pay", Moment::Recorded, [1, 1, 1]),
        ("cool down", Moment::BeforeWait, [1, 1, 1]),
        ("mail", Moment::AfterBody, [1, 1, 2]),
    ] {
        let bed = TestBed::start().await.unwrap();
        let ran = Arc::new(Ran::default());
        bed.kill_at(step, moment);
        bed.work(worker(ran.clone()).register("buy", buy)).await.unwrap();
        let execution = bed.client().submit("buy").send().await.unwrap();
        if step == "mail" {
            bed.run_until_idle().await.unwrap();
            bed.advance(HOUR).await.unwrap();
        }
        bed.killed().await.unwrap();
        bed.work(worker(ran.clone()).register("buy", buy)).await.unwrap();
        bed.advance(LEASE).await.unwrap();
        bed.run_until_ended(&execution).await.unwrap();
        assert_eq!(execution.state().await.unwrap(), PublicState::Completed, "{step} {moment:?}");
        assert_eq!(ran.counts(), expected, "{step} {moment:?}");
    }
}

#[tokio::test]
async fn a_step_fails_as_often_as_the_test_says_and_retries_wait_for_the_clock() {
    let bed = TestBed::start().await.unwrap();
    let ran = Arc::new(Ran::default());
    bed.fail_step("mail", 2, || TaskError::new("the mail server is away"));
    bed.work(worker(ran.clone()).register("buy", buy)).await.unwrap();
    let execution = bed.client().submit("buy").max_retries(2).send().await.unwrap();
    bed.run_until_ended(&execution).await.unwrap();
    assert_eq!(execution.result::<String>().await.unwrap(), "1 1 1");
    assert_eq!(execution.attempts().await.unwrap().len(), 3);
    assert!(bed.now() > BEGINNING + 3_600_000, "the retries waited");
}

#[tokio::test]
async fn waiting_until_idle_says_what_is_left() {
    let bed = TestBed::start().await.unwrap();
    let execution = bed.client().submit("nobody").send().await.unwrap();
    let seen = bed
        .client()
        .call::<flowfabric::op::WaitUntilIdle>(flowfabric::op::wait_until_idle::Args { timeout_ms: Some(0) })
        .await
        .unwrap();
    assert_eq!((seen.idle, seen.claimable), (false, 1));
    execution.cancel("not needed").await.unwrap();
    bed.run_until_idle().await.unwrap();
}

async fn chance(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<(i64, i64, f64, String), TaskError> {
    let began = ctx.now("began").await?;
    let (random, uuid) = (ctx.random("dice"), ctx.uuid("order"));
    assert_ne!(ctx.random("another"), random);
    ctx.sleep("an hour", HOUR).await?;
    let later = ctx.now("later").await?;
    more(&ctx.state().fetch);
    Ok((began, later, random, uuid.to_string()))
}

#[tokio::test]
async fn time_and_chance_are_the_same_when_the_function_is_called_again() {
    let bed = TestBed::start().await.unwrap();
    let ran = Arc::new(Ran::default());
    bed.work(worker(ran.clone()).register("chance", chance)).await.unwrap();
    let execution = bed.client().submit("chance").send().await.unwrap();
    bed.run_until_ended(&execution).await.unwrap();
    let first: (i64, i64, f64, String) = execution.result().await.unwrap();
    assert_eq!((first.0, first.1), (BEGINNING, BEGINNING + 3_600_000));
    execution.replay().await.unwrap();
    bed.run_until_ended(&execution).await.unwrap();
    let second: (i64, i64, f64, String) = execution.result().await.unwrap();
    assert_eq!(second.0, BEGINNING + 3_600_000);
    assert!(first.2 != second.2 && first.3 != second.3, "a replay throws the dice anew");
}

#[derive(Debug, Serialize, Deserialize)]
struct Decision {
    approved: bool,
}

impl Signal for Decision {
    const NAME: &'static str = "decision";
}

type Mailed = Arc<std::sync::Mutex<Option<(flowfabric::WaitpointId, flowfabric::Secret)>>>;

async fn ask(ctx: TaskContext<Mailed>, (): ()) -> Result<bool, TaskError> {
    let approval = ctx.waitpoint::<Decision>("approval").await?;
    let (id, token) = (approval.id(), approval.token());
    ctx.step("mail", || async {
        *ctx.state().lock().unwrap() = Some((id, token.clone()));
        Ok(())
    })
    .await?;
    ctx.sleep("before anybody waits", HOUR).await?;
    Ok(approval.wait().timeout(HOUR).await?.approved)
}

#[tokio::test]
async fn a_waitpoint_takes_its_signal_before_anybody_waits_there() {
    let bed = TestBed::start().await.unwrap();
    let mailed = Mailed::default();
    bed.work(worker(mailed.clone()).register("ask", ask)).await.unwrap();
    let execution = bed.client().submit("ask").send().await.unwrap();
    bed.run_until_idle().await.unwrap();
    let (id, token) = mailed.lock().unwrap().take().expect("the link was mailed");
    let answer = execution.signal("decision").waitpoint(id, token).payload(&Decision { approved: true });
    answer.send().await.unwrap();
    bed.advance(HOUR).await.unwrap();
    assert!(execution.result::<bool>().await.unwrap());
    assert!(mailed.lock().unwrap().is_none(), "it is mailed once");
}

async fn decide(ctx: TaskContext, (): ()) -> Result<bool, TaskError> {
    Ok(ctx.wait_for::<Decision>().timeout(HOUR).await?.approved)
}

#[tokio::test]
async fn a_signal_that_is_a_type_needs_no_name() {
    let bed = TestBed::start().await.unwrap();
    bed.work(worker(()).register("decide", decide)).await.unwrap();
    let (answered, silent) = (bed.client().submit("decide"), bed.client().submit("decide").max_retries(0));
    let (answered, silent) = (answered.send().await.unwrap(), silent.send().await.unwrap());
    answered.send(&Decision { approved: true }).await.unwrap();
    assert!(answered.result::<bool>().await.unwrap());
    bed.run_until_ended(&silent).await.unwrap();
    assert_eq!(silent.get().await.unwrap().last_failure.unwrap().category.as_deref(), Some("timeout"));
    assert_eq!(bed.now(), BEGINNING + 3_600_000);
}

#[derive(Debug, Serialize, Deserialize)]
struct Square {
    of: u32,
}

#[flowfabric::task]
async fn square(ctx: TaskContext, task: Square) -> Result<u32, TaskError> {
    // A slow one, for races.
    if task.of > 100 {
        ctx.sleep("think", HOUR).await?;
    }
    if task.of == 0 {
        return Err(TaskError::new("nothing to do").category("zero"));
    }
    Ok(task.of * task.of)
}

async fn sums(ctx: TaskContext, upto: u32) -> Result<u32, TaskError> {
    let squares = (0..upto).map(|of| ctx.child_task("square", &Square { of: of + 1 }).key(of.to_string()));
    let squares = ctx.join(squares).await?;
    let failing = ["3", "0", "00"].map(|of| {
        let task = Square { of: of.parse().unwrap_or_default() };
        ctx.child_task("failing", &task).key(of).with(|submission| submission.max_retries(0))
    });
    let failure = ctx.join(failing).await;
    assert!(failure.is_err(), "one of them failed");
    Ok(squares.into_iter().sum())
}

async fn race(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<(usize, u32), TaskError> {
    let race = ctx.race("first").branch(ctx.child_task("slow", &Square { of: 101 }));
    let race = race.branch(ctx.child_task("quick", &Square { of: 2 }));
    let (winner, square) = race.cancel_losers().await?;
    ctx.step("fetch", || async { Ok(more(&ctx.state().fetch)) }).await?;
    Ok((winner, square))
}

#[tokio::test]
async fn a_task_that_is_a_type_has_a_result_with_a_type() {
    let bed = TestBed::start().await.unwrap();
    bed.work(worker(()).serve(square).register("sums", sums)).await.unwrap();
    let execution = bed.client().submit(Square { of: 12 }).with(|it| it.tag("size", "small")).send().await.unwrap();
    assert_eq!(execution.result().await.unwrap(), 144);
    assert_eq!(execution.get().await.unwrap().kind, Square::KIND);
    let sum = bed.client().submit("sums").input(&10).send().await.unwrap();
    assert_eq!(sum.result::<u32>().await.unwrap(), 385);
}

#[tokio::test]
async fn a_race_has_one_winner_whatever_dies_and_its_losers_are_cancelled() {
    let bed = TestBed::start().await.unwrap();
    let ran = Arc::new(Ran::default());
    bed.work(worker(()).serve(square)).await.unwrap();
    // The racer's own lane, so that the others cannot take its task over.
    let racer = || WorkerRuntime::with_state(WorkerConfig::new("racer").lanes(["races"]), ran.clone());
    bed.kill_at("fetch", Moment::AfterBody);
    let dies = racer().register("race", race);
    bed.work(dies).await.unwrap();
    let execution = bed.client().submit("race").lane("races").send().await.unwrap();
    bed.killed().await.unwrap();
    bed.work(racer().register("race", race)).await.unwrap();
    bed.advance(LEASE).await.unwrap();
    assert_eq!(execution.result::<(usize, u32)>().await.unwrap(), (1, 4));
    let slow = journal_of(&bed, &execution).await;
    assert!(slow.items.iter().any(|item| item.name == "first" && item.key.as_deref() == Some("losers")));
    bed.run_until_idle().await.unwrap();
    assert_eq!(bed.now(), BEGINNING + 30_000, "nobody waits for the loser");
}

async fn changed(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<String, TaskError> {
    let price: String = ctx.step("fetch", || async { Ok("as text".to_owned()) }).await?;
    Ok(price)
}

async fn extended(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<String, TaskError> {
    let ran = ctx.state();
    let _: u32 = ctx.step("fetch", || async { Ok(more(&ran.fetch)) }).await?;
    let _: u32 = ctx.step("check", || async { Ok(more(&ran.mail)) }).await?;
    Ok(String::new())
}

async fn shortened(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<String, TaskError> {
    let mailed: u32 = ctx.step("mail", || async { Ok(0) }).await?;
    let price: u32 = ctx.step("fetch", || async { Ok(0) }).await?;
    Ok(format!("{price} {mailed}"))
}

#[tokio::test]
async fn a_recorded_journal_shows_whether_todays_code_goes_on_with_it() {
    let bed = TestBed::start().await.unwrap();
    let ran = Arc::new(Ran::default());
    bed.work(worker(ran.clone()).register("buy", buy)).await.unwrap();
    let execution = bed.client().submit("buy").send().await.unwrap();
    bed.run_until_ended(&execution).await.unwrap();
    let journal = serde_json::to_string(&journal_of(&bed, &execution).await).unwrap();
    let untouched = Arc::new(Ran::default());
    let runtime = || worker(untouched.clone());

    let same = assert_journal_fits(runtime().register("buy", buy), "buy", &(), &journal).await;
    assert_eq!(same.result.as_deref(), Some("\"1 1 1\""));
    assert_eq!(same.found, ["fetch", "pay", "cool down", "mail"]);
    let extended = fit(runtime().register("buy", extended), "buy", &(), &journal).await.unwrap();
    assert_eq!((extended.stopped_at.as_deref(), extended.failure), (Some("check"), None));
    let shortened = fit(runtime().register("buy", shortened), "buy", &(), &journal).await.unwrap();
    assert_eq!(shortened.not_visited, ["cool down", "pay"]);
    assert_eq!((shortened.result.as_deref(), shortened.failure), (Some("\"1 1\""), None));
    let changed = fit(runtime().register("buy", changed), "buy", &(), &journal).await.unwrap();
    assert!(changed.failure.is_some_and(|failure| failure.contains("journal_mismatch")));
    assert_eq!(untouched.counts(), [0, 0, 0], "no body runs");
}
