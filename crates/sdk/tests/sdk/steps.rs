//! Durable functions: what was done is not done again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowfabric::op::{ListSteps, list_steps};
use flowfabric::{Client, OnDoubt, Retry, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

/// How often each step of a test's function ran.
#[derive(Default)]
struct Ran {
    first: AtomicU32,
    second: AtomicU32,
    third: AtomicU32,
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
    assert_eq!(execution.result::<u32>().await.unwrap(), 30);
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
    let worker = runtime.start(&client).await.unwrap();
    let execution = client.submit("pays").send().await.unwrap();
    let answer = serde_json::json!({ "answer": "happened", "result": "receipt 7" });
    execution.signal("in doubt: pay").payload(&answer).send().await.unwrap();
    assert_eq!(execution.result::<String>().await.unwrap(), "receipt 7");
    assert_eq!(ran.first.load(Ordering::SeqCst), 1);
    worker.stop().await.unwrap();
    client.close().await;
}
