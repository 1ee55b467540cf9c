//! Durable functions: what was done is not done again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ff_core::journal::{StepKind, StepState};
use ff_core::suspension::SuspendReason;
use ff_server::Settings;
use ff_store::memory::MemoryStore;
use flowfabric::op::{DecideStep, ListSteps, list_steps};
use flowfabric::{
    Client, Execution, OnChange, OnDoubt, PublicState, Retry, TaskContext, TaskError, WorkerConfig, WorkerRuntime,
};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::{Running, within};

/// How often each step of a test's function ran.
#[derive(Default)]
struct Ran {
    first: AtomicU32,
    second: AtomicU32,
    third: AtomicU32,
    reached: tokio::sync::Notify,
    parked: Parked,
}

/// Opens when the test has seen a function parked.
struct Parked(Semaphore);

impl Default for Parked {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl std::ops::Deref for Parked {
    type Target = Semaphore;

    fn deref(&self) -> &Semaphore {
        &self.0
    }
}

fn once_more(counter: &AtomicU32) -> u32 {
    counter.fetch_add(1, Ordering::SeqCst) + 1
}

async fn memory() -> Client {
    Client::connect("memory://").await.expect("a store in memory")
}

async fn two_waits(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<String, TaskError> {
    let ran = ctx.state();
    let first: u32 = ctx.step("first", || async { Ok(once_more(&ran.first)) }).await?;
    let word: String = ctx.wait_signal("decision").await?;
    let second: u32 = ctx.step("second", || async { Ok(once_more(&ran.second)) }).await?;
    Ok(format!("{first} {word} {second}"))
}

#[tokio::test]
async fn a_function_that_waits_for_a_signal_does_nothing_twice() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("two-waits", two_waits);
    let worker = runtime.start(&client).await.unwrap();
    let execution = client.submit("two-waits").send().await.unwrap();
    // The signal may come before the function waits for it: it is kept under its name.
    execution.signal("decision").payload(&"yes").send().await.unwrap();
    let result: String = execution.result().await.unwrap();
    assert_eq!(result, "1 yes 1");
    assert_eq!((ran.first.load(Ordering::SeqCst), ran.second.load(Ordering::SeqCst)), (1, 1));
    worker.stop().await.unwrap();
    client.close().await;
}

async fn flaky(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<u32, TaskError> {
    let ran = ctx.state();
    ctx.step("first", || async { Ok(once_more(&ran.first)) }).await?;
    ctx.step("second", || async { if once_more(&ran.second) < 2 { Err(TaskError::new("not yet")) } else { Ok(()) } })
        .await?;
    let tried: u32 = ctx
        .step("third", || async {
            let tried = once_more(&ran.third);
            if tried < 3 { Err(TaskError::new("not yet")) } else { Ok(tried) }
        })
        .retry(Retry::times(3, Duration::from_millis(1)))
        .await?;
    Ok(tried)
}

#[tokio::test]
async fn a_retry_runs_the_failed_step_again_and_no_other() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("flaky", flaky);
    let worker = runtime.start(&client).await.unwrap();
    let execution = client.submit("flaky").max_retries(1).send().await.unwrap();
    assert_eq!(execution.result::<u32>().await.unwrap(), 3);
    let counts = [&ran.first, &ran.second, &ran.third].map(|counter| counter.load(Ordering::SeqCst));
    assert_eq!(counts, [1, 2, 3]);
    worker.stop().await.unwrap();
    client.close().await;
}

async fn parallel(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<u32, TaskError> {
    let ran = ctx.state();
    let pages = (0..20_u32).map(|page| {
        let ctx = ctx.clone();
        async move { ctx.step("page", || async move { Ok(page) }).key(page.to_string()).await }
    });
    let pages = futures_util::future::try_join_all(pages).await?;
    let unkeyed = (0..2).map(|_| ctx.step("same", || async { Ok(()) }).into_future());
    let ended = futures_util::future::join_all(unkeyed).await;
    assert!(ended[0].is_ok() && ended[1].is_err(), "two calls of one name at once need keys");
    once_more(&ran.first);
    Ok(pages.into_iter().sum())
}

#[tokio::test]
async fn parallel_steps_are_legal_with_keys() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("parallel", parallel);
    let worker = runtime.start(&client).await.unwrap();
    let execution = client.submit("parallel").send().await.unwrap();
    assert_eq!(execution.result::<u32>().await.unwrap(), 190);
    let args = list_steps::Args { execution_id: execution.id(), generation: None, after: None, limit: Some(1_000) };
    let steps = client.call::<ListSteps>(args).await.unwrap();
    assert!(steps.items.iter().filter(|step| step.name == "page").count() == 20, "{:?}", steps.items);
    worker.stop().await.unwrap();
    client.close().await;
}

async fn parent(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<u32, TaskError> {
    let ran = ctx.state();
    once_more(&ran.first);
    let parts = (0..3_u32).map(|part| ctx.child::<u32>("part", "part", &part).key(part.to_string()).into_future());
    let parts = futures_util::future::try_join_all(parts).await?;
    Ok(parts.into_iter().sum())
}

async fn part(ctx: TaskContext<Arc<Ran>>, number: u32) -> Result<u32, TaskError> {
    once_more(&ctx.state().second);
    ctx.state().parked.acquire().await?.forget();
    Ok(number * 10)
}

#[tokio::test]
async fn children_run_once_each_and_their_parent_comes_back_for_their_results() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let config = WorkerConfig::new("w");
    let runtime = WorkerRuntime::with_state(config, ran.clone()).register("parent", parent).register("part", part);
    let worker = runtime.start(&client).await.unwrap();
    let execution = client.submit("parent").send().await.unwrap();
    until(async || execution.state().await.unwrap() == PublicState::WaitingChildren).await;
    ran.parked.add_permits(3);
    assert_eq!(within(execution.result::<u32>()).await.unwrap(), 30);
    assert_eq!(ran.second.load(Ordering::SeqCst), 3);
    assert!(ran.first.load(Ordering::SeqCst) >= 2, "the parent was called again");
    worker.stop().await.unwrap();
    client.close().await;
}

async fn pays(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<String, TaskError> {
    let ran = ctx.state();
    let receipt: String = ctx
        .step("pay", || async {
            once_more(&ran.first);
            Err(TaskError::new("the connection was reset"))
        })
        .once(OnDoubt::Ask)
        .await?;
    Ok(receipt)
}

#[tokio::test]
async fn a_step_in_doubt_is_never_repeated_by_itself() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("pays", pays);
    let execution = client.submit("pays").send().await.unwrap();
    let worker = runtime.start(&client).await.unwrap();
    for times in 1..=3 {
        until_asked(&execution).await;
        assert_eq!(ran.first.load(Ordering::SeqCst), times, "once by itself, and once for each time somebody said so");
        match times {
            3 => decide(&client, &execution, json!({ "answer": "happened", "result": "receipt 7" })).await,
            _ => decide(&client, &execution, json!({ "answer": "did_not_happen" })).await,
        }
    }
    assert_eq!(execution.result::<String>().await.unwrap(), "receipt 7");
    assert_eq!(ran.first.load(Ordering::SeqCst), 3);
    // A person who lets it fail is not overruled by a retry.
    let policy = json!({ "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 1 } } } });
    let execution = client.submit("pays").policy(serde_json::from_value(policy).unwrap()).send().await.unwrap();
    until_asked(&execution).await;
    decide(&client, &execution, json!({ "answer": "fail" })).await;
    until(async || execution.state().await.unwrap() == PublicState::Failed).await;
    assert_eq!(ran.first.load(Ordering::SeqCst), 4);
    worker.stop().await.unwrap();
    client.close().await;
}

/// Waits until so many signals were taken and the execution waits for the next one.
async fn until_suspended(client: &Client, execution: &Execution, answered: usize) {
    until(async || {
        let waiting = execution.state().await.unwrap() == PublicState::Suspended;
        waiting && steps_of(client, execution, StepKind::Signal).await == answered
    })
    .await;
}

/// Waits until a person is asked.
async fn until_asked(execution: &Execution) {
    until(async || execution.get().await.unwrap().questions.len() == 1).await;
}

async fn decide(client: &Client, execution: &Execution, answer: serde_json::Value) {
    let mut args = json!({ "execution_id": execution.id() });
    args.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
    client.call::<DecideStep>(serde_json::from_value(args).unwrap()).await.unwrap();
}

async fn fetches(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<u32, TaskError> {
    let ran = ctx.state();
    // The input changes with every call of the function, as if the code had changed.
    let input = once_more(&ran.first);
    let body = || async { Ok(once_more(&ran.second)) };
    let fetched: u32 = ctx.step("fetch", body).input(&input).await?;
    let kept: u32 = ctx.step("keep", body).key("k").input(&input).await?;
    let again: u32 = ctx.step("again", body).key("k").input(&input).on_change(OnChange::RunAgain).await?;
    let () = ctx.wait_signal("go").await?;
    Ok(fetched * 100 + kept * 10 + again)
}

#[tokio::test]
async fn a_changed_input_is_asked_about_under_a_count_and_decided_beforehand_under_a_key() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("fetches", fetches);
    let execution = client.submit("fetches").send().await.unwrap();
    let worker = runtime.start(&client).await.unwrap();
    until(async || execution.state().await.unwrap() == PublicState::Suspended).await;
    execution.signal("go").payload(&()).send().await.unwrap();
    until_asked(&execution).await;
    let shown = execution.get().await.unwrap();
    assert_eq!(shown.suspension.unwrap().reason, SuspendReason::JournalMismatch);
    // The kept entry has the input of the run that asked; the next run has yet another one and asks again.
    decide(&client, &execution, json!({ "answer": "keep" })).await;
    until_asked(&execution).await;
    decide(&client, &execution, json!({ "answer": "run_again" })).await;
    until(async || execution.get().await.unwrap().suspension.is_some_and(|it| it.reason == SuspendReason::Signal))
        .await;
    assert_eq!(execution.get().await.unwrap().generation, 1);
    worker.stop().await.unwrap();
    client.close().await;
}

async fn counts(ctx: TaskContext<Arc<Ran>>, round: u32) -> Result<u32, TaskError> {
    let ran = ctx.state();
    ctx.step("work", || async { Ok(once_more(&ran.first)) }).await?;
    if round < 20 {
        return Err(ctx.continue_as_new(&(round + 1)).await);
    }
    Ok(round)
}

#[tokio::test]
async fn a_function_continues_as_new_until_it_is_done() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("counts", counts);
    let execution = client.submit("counts").input(&0).send().await.unwrap();
    let worker = runtime.start(&client).await.unwrap();
    assert_eq!(execution.result::<u32>().await.unwrap(), 20);
    assert_eq!(ran.first.load(Ordering::SeqCst), 21, "each generation did its step once");
    assert_eq!(execution.get().await.unwrap().generation, 20);
    worker.stop().await.unwrap();
    client.close().await;
}

async fn books(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<u32, TaskError> {
    let ran = ctx.state();
    let booked: u32 = ctx.step("book", || async { Ok(once_more(&ran.first)) }).await?;
    let car = ctx
        .step("car", || async { if once_more(&ran.second) == 1 { Err(TaskError::new("no car")) } else { Ok(()) } })
        .await;
    if let Err(failure) = car {
        ctx.step("cancel booking", || async { Ok(()) }).compensates("book").await?;
        return Err(failure);
    }
    Ok(booked)
}

#[tokio::test]
async fn a_retry_runs_the_step_again_that_was_undone() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("books", books);
    let policy = json!({ "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 1 } } } });
    let execution = client.submit("books").policy(serde_json::from_value(policy).unwrap()).send().await.unwrap();
    let worker = runtime.start(&client).await.unwrap();
    assert_eq!(execution.result::<u32>().await.unwrap(), 2, "what was cancelled is booked again");
    let shown = execution.get().await.unwrap();
    let names: Vec<&str> = shown.steps_not_visited.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["cancel booking"], "the run that came through had no need of it");
    worker.stop().await.unwrap();
    client.close().await;
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    within(async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// How many entries of a kind have ended.
async fn steps_of(client: &Client, execution: &Execution, kind: StepKind) -> usize {
    let args = list_steps::Args { execution_id: execution.id(), generation: None, after: None, limit: Some(1_000) };
    let steps = client.call::<ListSteps>(args).await.unwrap();
    steps.items.iter().filter(|step| step.kind == kind && step.state == StepState::Completed).count()
}

async fn races(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<String, TaskError> {
    let ran = ctx.state();
    for round in 0..10 {
        let key = round.to_string();
        let left = ctx.step("left", || async { Ok(once_more(&ran.first)) }).key(&key).into_future();
        let right = ctx.step("right", || async { Ok(once_more(&ran.second)) }).key(&key).into_future();
        tokio::select! {
            biased;
            ended = left => ended.map(drop)?,
            ended = right => ended.map(drop)?,
        }
    }
    tokio::select! {
        word = ctx.wait_signal("decision") => word,
        late = ctx.wait_signal::<String>("never").timeout(Duration::from_secs(3_600)) => late,
    }
}

#[tokio::test]
async fn a_branch_that_is_dropped_while_its_step_is_recorded_holds_nobody_up() {
    // Over HTTP an entry is on its way for a while, so that the other branch queues behind it and is dropped there.
    let server = Running::start(Settings::default(), Arc::new(MemoryStore::new())).await;
    let client = Client::connect(&server.url).await.unwrap();
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("races", races);
    let worker = runtime.start(&client).await.unwrap();
    let execution = client.submit("races").send().await.unwrap();
    until_suspended(&client, &execution, 0).await;
    let bodies = || [&ran.first, &ran.second].map(|counter| counter.load(Ordering::SeqCst));
    let before = bodies();
    execution.signal("decision").payload(&"yes").send().await.unwrap();
    assert_eq!(within(execution.result::<String>()).await.unwrap(), "yes");
    assert_eq!(bodies(), before, "what was recorded did not run again");
    assert!(before[1] > 0, "no branch was dropped: {before:?}");
    worker.stop().await.unwrap();
    client.close().await;
    server.stop().await;
}

async fn waits_beside_work(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<(String, u32), TaskError> {
    let ran = ctx.state();
    let work = async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let tried = ctx
            .step("work", || async {
                let tried = once_more(&ran.first);
                if tried < 3 { Err(TaskError::new("not yet")) } else { Ok(tried) }
            })
            .retry(Retry::times(3, Duration::from_millis(20)))
            .await?;
        once_more(&ran.second);
        Ok(tried)
    };
    futures_util::future::try_join(ctx.wait_signal::<String>("decision").into_future(), work).await
}

#[tokio::test]
async fn a_function_is_not_parked_while_another_branch_has_work_to_do() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("beside", waits_beside_work);
    let worker = runtime.start(&client).await.unwrap();
    let execution = client.submit("beside").send().await.unwrap();
    until_suspended(&client, &execution, 0).await;
    assert_eq!(ran.first.load(Ordering::SeqCst), 3, "every try was made before it let go");
    execution.signal("decision").payload(&"yes").send().await.unwrap();
    assert_eq!(within(execution.result::<(String, u32)>()).await.unwrap(), ("yes".into(), 3));
    assert_eq!(ran.first.load(Ordering::SeqCst), 3);
    worker.stop().await.unwrap();
    client.close().await;
}

async fn three_steps(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<[u32; 3], TaskError> {
    let ran = ctx.state();
    let first = ctx.step("first", || async { Ok(once_more(&ran.first)) }).await?;
    let second = ctx.step("second", || async { Ok(once_more(&ran.second)) }).await?;
    ctx.sleep("breathe", Duration::from_millis(1)).await?;
    if ctx.attempt_index().0 == 0 {
        ran.reached.notify_one();
        std::future::pending::<()>().await;
    }
    let third = ctx.step("third", || async { Ok(once_more(&ran.third)) }).await?;
    Ok([first, second, third])
}

#[tokio::test]
async fn a_worker_that_loses_its_lease_between_steps_leaves_what_it_did() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let config = WorkerConfig::new("w").lease_ttl(Duration::from_secs(1));
    let runtime = WorkerRuntime::with_state(config, ran.clone()).register("three", three_steps);
    let worker = runtime.start(&client).await.unwrap();
    let execution = client.submit("three").send().await.unwrap();
    within(ran.reached.notified()).await;
    execution.revoke_lease("a drill").await.unwrap();
    assert_eq!(within(execution.result::<[u32; 3]>()).await.unwrap(), [1, 1, 1]);
    assert_eq!(steps_of(&client, &execution, StepKind::Sleep).await, 1, "a short sleep is shown as one");
    worker.stop().await.unwrap();
    client.close().await;
}

/// More than a claim brings along.
async fn many_steps(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<usize, TaskError> {
    let ran = ctx.state();
    let mut bytes = 0;
    for page in 0..40_u32 {
        let step = ctx.step("page", || async { Ok("x".repeat(20_000 + once_more(&ran.first) as usize)) });
        bytes += step.key(page.to_string()).await?.len();
    }
    let waits = ["a", "b"].map(|name| ctx.wait_signal::<()>(name).into_future());
    futures_util::future::try_join_all(waits).await?;
    Ok(bytes)
}

#[tokio::test]
async fn a_journal_that_is_larger_than_a_claim_is_read_in_pages() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("many", many_steps);
    let worker = runtime.start(&client).await.unwrap();
    let execution = client.submit("many").send().await.unwrap();
    until_suspended(&client, &execution, 0).await;
    execution.signal("b").payload(&()).send().await.unwrap();
    until_suspended(&client, &execution, 1).await;
    execution.signal("a").payload(&()).send().await.unwrap();
    let expected: u32 = (1..=40).map(|ran| 20_000 + ran).sum();
    assert_eq!(within(execution.result::<u32>()).await.unwrap(), expected);
    assert_eq!(ran.first.load(Ordering::SeqCst), 40);
    worker.stop().await.unwrap();
    client.close().await;
}

/// Looks until something is there, and passes over what goes wrong on the way.
async fn looks(ctx: TaskContext<Arc<Ran>>, (): ()) -> Result<u32, TaskError> {
    let ran = ctx.state();
    for _ in 0..100 {
        once_more(&ran.first);
        let seen: u32 = ctx.step("look", || async { Ok(ran.second.load(Ordering::SeqCst)) }).await.unwrap_or(0);
        if seen > 0 {
            return Ok(seen);
        }
    }
    Err(TaskError::new("it looked a hundred times"))
}

#[tokio::test]
async fn a_handler_that_loops_is_stopped_whatever_it_makes_of_its_errors() {
    let client = memory().await;
    let ran = Arc::new(Ran::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), ran.clone()).register("looks", looks);
    let policy = json!({ "no_progress": { "same": 4, "window": 20 } });
    let execution = client.submit("looks").policy(serde_json::from_value(policy).unwrap()).send().await.unwrap();
    let worker = runtime.start(&client).await.unwrap();
    until_asked(&execution).await;
    assert_eq!(ran.first.load(Ordering::SeqCst), 4, "the fourth look was the last");
    ran.second.store(7, Ordering::SeqCst);
    decide(&client, &execution, json!({ "answer": "go_on" })).await;
    assert_eq!(within(execution.result::<u32>()).await.unwrap(), 7);
    worker.stop().await.unwrap();
    client.close().await;
}
