//! Durable functions whose code changes under them, journals that are long, and steps that cannot be recorded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ff_core::journal::{StepState, StepView};
use flowfabric::op::{ListSteps, list_steps};
use flowfabric::testing::{Moment, TestBed};
use flowfabric::{Execution, PublicState, TaskContext, TaskError, WorkerConfig, WorkerRuntime, limits};

const HOUR: Duration = Duration::from_secs(3_600);
/// The length of a worker's lease unless it says otherwise.
const LEASE: Duration = Duration::from_secs(30);

/// How often the body of each step ran.
type Ran = Arc<Mutex<BTreeMap<String, usize>>>;

fn ran(counts: &Ran, step: &str) -> usize {
    counts.lock().unwrap().get(step).copied().unwrap_or(0)
}

/// A step that only counts how often it runs.
async fn counted(ctx: &TaskContext<Ran>, step: &str) -> Result<usize, TaskError> {
    let body = || async move {
        let mut counts = ctx.state().lock().unwrap();
        let count = counts.entry(step.to_owned()).or_default();
        *count += 1;
        Ok(*count)
    };
    ctx.step(step, body).await
}

fn worker(counts: &Ran) -> WorkerRuntime<Ran> {
    WorkerRuntime::with_state(WorkerConfig::new("w"), counts.clone())
}

async fn journal_of(bed: &TestBed, execution: &Execution) -> Vec<StepView> {
    let args = list_steps::Args { execution_id: execution.id(), generation: None, after: None, limit: Some(1_000) };
    bed.client().call::<ListSteps>(args).await.unwrap().items
}

async fn yesterday(ctx: TaskContext<Ran>, (): ()) -> Result<String, TaskError> {
    counted(&ctx, "fetch").await?;
    counted(&ctx, "price").await?;
    counted(&ctx, "pay").await?;
    let word: String = ctx.wait_signal("decision").await?;
    counted(&ctx, "mail").await?;
    Ok(word)
}

/// Reordered, with two steps more and one less.
async fn today(ctx: TaskContext<Ran>, (): ()) -> Result<String, TaskError> {
    counted(&ctx, "audit").await?;
    counted(&ctx, "pay").await?;
    counted(&ctx, "fetch").await?;
    let word: String = ctx.wait_signal("decision").await?;
    counted(&ctx, "report").await?;
    counted(&ctx, "mail").await?;
    Ok(format!("{word}, today"))
}

#[tokio::test]
async fn a_run_that_began_with_yesterdays_code_goes_on_with_todays() {
    let bed = TestBed::start().await.unwrap();
    let counts = Ran::default();
    bed.work(worker(&counts).register("order", yesterday)).await.unwrap();
    let execution = bed.client().submit("order").send().await.unwrap();
    bed.run_until_idle().await.unwrap();
    assert_eq!(execution.state().await.unwrap(), PublicState::Suspended);
    bed.kill_all();

    bed.work(worker(&counts).register("order", today)).await.unwrap();
    execution.signal("decision").payload(&"approved").send().await.unwrap();
    assert_eq!(execution.result::<String>().await.unwrap(), "approved, today");
    for step in ["fetch", "price", "pay", "audit", "report", "mail"] {
        assert_eq!(ran(&counts, step), 1, "{step}");
    }
    let shown = execution.get().await.unwrap();
    let not_visited: Vec<&str> = shown.steps_not_visited.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(not_visited, ["price"], "people see what the new code has no use for");
}

#[tokio::test]
async fn a_deploy_in_the_middle_of_a_step_repeats_only_that_step() {
    let bed = TestBed::start().await.unwrap();
    let counts = Ran::default();
    bed.kill_at("pay", Moment::AfterBody);
    bed.work(worker(&counts).register("order", yesterday)).await.unwrap();
    let execution = bed.client().submit("order").send().await.unwrap();
    bed.killed().await.unwrap();
    bed.work(worker(&counts).register("order", today)).await.unwrap();
    bed.advance(LEASE).await.unwrap();
    execution.signal("decision").payload(&"approved").send().await.unwrap();
    assert_eq!(execution.result::<String>().await.unwrap(), "approved, today");
    let repeated = ["fetch", "price", "pay", "audit", "report", "mail"].map(|step| ran(&counts, step));
    assert_eq!(repeated, [1, 1, 2, 1, 1, 1], "what was not recorded ran again");
}

/// Nearly as many as a journal takes: the sleep needs records, too.
const PARTS: u32 = 9_900;
const PARTS_AT_ONCE: u32 = 100;

async fn long(ctx: TaskContext<Ran>, (): ()) -> Result<u32, TaskError> {
    let (ctx, mut sum) = (&ctx, 0);
    for first in (0..PARTS).step_by(PARTS_AT_ONCE as usize) {
        let part = |number: u32| {
            let body = move || {
                let counts = ctx.state();
                async move {
                    *counts.lock().unwrap().entry("part".into()).or_default() += 1;
                    Ok(number)
                }
            };
            ctx.step("part", body).key(number.to_string())
        };
        sum += ctx.join((first..first + PARTS_AT_ONCE).map(part)).await?.into_iter().sum::<u32>();
    }
    ctx.sleep("an hour", HOUR).await?;
    Ok(sum)
}

#[tokio::test]
async fn a_journal_that_is_nearly_full_is_found_again_whole() {
    let bed = TestBed::start().await.unwrap();
    let counts = Ran::default();
    bed.work(worker(&counts).register("long", long)).await.unwrap();
    let execution = bed.client().submit("long").send().await.unwrap();
    bed.run_until_idle().await.unwrap();
    assert_eq!(execution.state().await.unwrap(), PublicState::Delayed);
    bed.advance(HOUR).await.unwrap();
    assert_eq!(execution.result::<u32>().await.unwrap(), PARTS * (PARTS - 1) / 2);
    assert_eq!(ran(&counts, "part"), PARTS as usize);
}

async fn clumsy(ctx: TaskContext<Ran>, mistake: String) -> Result<(), TaskError> {
    match mistake.as_str() {
        "empty name" => ctx.step("", || async { Ok(()) }).await,
        "long name" => ctx.step("n".repeat(limits::STEP_NAME_MAX_BYTES + 1), || async { Ok(()) }).await,
        "empty key" => ctx.step("s", || async { Ok(()) }).key("").await,
        "large result" => {
            let large = ctx.step("large", || async { Ok("x".repeat(limits::STEP_RESULT_MAX_BYTES)) }).into_future();
            let small = ctx.step("small", || async { Ok(1) }).into_future();
            let (large, small) = tokio::join!(large, small);
            small?;
            large.map(drop)
        }
        _ => {
            let words = "\0no end ".repeat(limits::TEXT_MAX_BYTES);
            ctx.step("chatty", || async { Err(TaskError::new(words.clone()).category("chatty")) }).await
        }
    }
}

#[tokio::test]
async fn a_step_that_cannot_be_recorded_fails_the_attempt_and_nothing_else() {
    let bed = TestBed::start().await.unwrap();
    bed.work(worker(&Ran::default()).register("clumsy", clumsy)).await.unwrap();
    for (mistake, category, recorded) in [
        ("empty name", "invalid", None),
        ("long name", "invalid", None),
        ("empty key", "invalid", None),
        ("large result", "refused", Some(("small", StepState::Completed))),
        ("long words", "chatty", Some(("chatty", StepState::Failed))),
    ] {
        let execution = bed.client().submit("clumsy").input(mistake).max_retries(0).send().await.unwrap();
        let ended = execution.wait().await.unwrap();
        assert_eq!(ended.public_state, PublicState::Failed, "{mistake}");
        assert_eq!(ended.last_failure.unwrap().category.as_deref(), Some(category), "{mistake}");
        let journal = journal_of(&bed, &execution).await;
        let entries: Vec<_> = journal.iter().map(|entry| (entry.name.as_str(), entry.state)).collect();
        assert_eq!(entries, Vec::from_iter(recorded), "{mistake}");
    }
}
