//! Calls to providers, under a clock that the test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ff_core::provider::ProviderStatus;
use flowfabric::op::{CreateProvider, GetProvider, ListSteps, create_provider, get_provider, list_steps};
use flowfabric::testing::TestBed;
use flowfabric::{Metered, PublicState, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

/// A model that says 429 to its second call.
#[derive(Default)]
struct Model {
    calls: AtomicU32,
}

impl Model {
    fn ask(&self) -> Result<Metered<u32>, TaskError> {
        match self.calls.fetch_add(1, Ordering::SeqCst) + 1 {
            2 => Err(TaskError::throttled(Some(Duration::from_secs(600)))),
            call => Ok(Metered::new(call, 7)),
        }
    }
}

async fn asks(ctx: TaskContext<Arc<Model>>, (): ()) -> Result<Vec<u32>, TaskError> {
    let mut answers = Vec::new();
    for _ in 0..3 {
        let model = ctx.state();
        answers.push(ctx.acquire("model").tokens(10).step("ask", || async { model.ask() }).await?);
    }
    Ok(answers)
}

async fn bed_with_provider() -> TestBed {
    let bed = TestBed::start().await.unwrap();
    let args = create_provider::Args { name: "model".into(), max_requests: Some(1), ..Default::default() };
    bed.client().call::<CreateProvider>(args).await.unwrap();
    bed
}

async fn status(bed: &TestBed) -> ProviderStatus {
    let args = get_provider::Args { name: "model".into(), namespace: None };
    bed.client().call::<GetProvider>(args).await.unwrap()
}

#[tokio::test]
async fn a_call_waits_for_its_turn_without_holding_its_task_and_again_when_it_was_too_much() {
    let bed = bed_with_provider().await;
    let model = Arc::new(Model::default());
    bed.work(WorkerRuntime::with_state(WorkerConfig::new("w"), model.clone()).register("asks", asks)).await.unwrap();
    let execution = bed.client().submit("asks").send().await.unwrap();
    bed.run_until_idle().await.unwrap();
    assert_eq!(execution.state().await.unwrap(), PublicState::Delayed, "the second call has a place in the line");
    assert_eq!(model.calls.load(Ordering::SeqCst), 1);
    assert_eq!((status(&bed).await.booked, status(&bed).await.in_use), (1, 0));
    bed.run_until_ended(&execution).await.unwrap();
    assert_eq!(execution.result::<Vec<u32>>().await.unwrap(), [1, 3, 4], "what was answered is not asked again");
    let status = status(&bed).await;
    assert_eq!((status.granted, status.throttled, status.in_use, status.booked), (4, 1, 0, 0));
    let args = list_steps::Args { execution_id: execution.id(), generation: None, after: None, limit: None };
    let steps = bed.client().call::<ListSteps>(args).await.unwrap().items;
    assert_eq!(steps.iter().filter(|step| step.name == "ask").count(), 3);
    assert!(steps.iter().any(|step| step.name == "wait for model"));
}

async fn calls_once(ctx: TaskContext<Arc<Model>>, (): ()) -> Result<u32, TaskError> {
    let model = ctx.state();
    let permit = ctx.acquire("model").tokens(10).await?;
    let answer: u32 = ctx.step("ask", || async { Ok(model.calls.fetch_add(1, Ordering::SeqCst) + 1) }).await?;
    permit.settle(7).await?;
    ctx.sleep("cool down", Duration::from_secs(3_600)).await?;
    Ok(answer)
}

#[tokio::test]
async fn a_call_that_was_settled_is_not_booked_again_when_the_function_is_called_again() {
    let bed = bed_with_provider().await;
    let model = Arc::new(Model::default());
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("w"), model.clone()).register("calls", calls_once);
    bed.work(runtime).await.unwrap();
    let execution = bed.client().submit("calls").send().await.unwrap();
    bed.run_until_idle().await.unwrap();
    assert_eq!(status(&bed).await.tokens_in_window, 7, "what it really cost counts");
    bed.run_until_ended(&execution).await.unwrap();
    assert_eq!(execution.result::<u32>().await.unwrap(), 1);
    assert_eq!((status(&bed).await.granted, model.calls.load(Ordering::SeqCst)), (1, 1));
}
