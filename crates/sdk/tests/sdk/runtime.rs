//! Functions that are called for tasks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flowfabric::{
    Client, Frame, PublicState, RunningWorker, SdkError, StreamEvent, SuspendReason, SuspendRequest, TaskContext,
    TaskError, WorkerConfig, WorkerRuntime, category,
};

use crate::support::{both_ways, within};

fn config() -> WorkerConfig {
    WorkerConfig::new("runtime").lease_ttl(Duration::from_secs(1)).claim_wait(Duration::from_secs(10))
}

/// The category of the failure that ended an execution.
async fn failure_of(client: &Client, kind: &str, input: &str) -> (String, String) {
    let submission = client.submit(kind).input(input).max_retries(0);
    match within(submission.send().await.unwrap().result::<String>()).await {
        Err(SdkError::NotCompleted { failure: Some(failure), .. }) => (failure.category.unwrap(), failure.reason),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn functions_have_typed_inputs_and_share_a_state() {
    for (way, client, _server) in both_ways().await {
        let runtime = WorkerRuntime::with_state(config(), AtomicUsize::new(0)).register(
            "count",
            |context: TaskContext<AtomicUsize>, more: usize| async move {
                Ok(context.state().fetch_add(more, Ordering::SeqCst) + more)
            },
        );
        let worker = runtime.start(&client).await.unwrap();
        let mut sums = Vec::new();
        for more in [1, 2, 3] {
            let execution = client.submit("count").input(&more).send().await.unwrap();
            sums.push(within(execution.result::<usize>()).await.unwrap());
        }
        assert_eq!(sums, [1, 3, 6], "{way}");
        worker.stop().await.unwrap();
    }
}

async fn start_failing(client: &Client) -> RunningWorker {
    async fn refuse(_: TaskContext, reason: String) -> Result<(), TaskError> {
        Err(TaskError::new(reason).category("quota"))
    }
    async fn panics(_: TaskContext, reason: String) -> Result<(), TaskError> {
        panic!("{reason}")
    }
    async fn numbers(_: TaskContext, number: i64) -> Result<i64, TaskError> {
        Ok(number)
    }
    async fn parse(_: TaskContext, text: String) -> Result<i64, TaskError> {
        Ok(text.parse::<i64>()?)
    }
    let runtime = WorkerRuntime::new(config())
        .register("refuse", refuse)
        .register("panics", panics)
        .register("numbers", numbers)
        .register("parse", parse);
    runtime.start(client).await.unwrap()
}

#[tokio::test]
async fn errors_and_panics_fail_the_attempt_with_their_category() {
    for (way, client, _server) in both_ways().await {
        let worker = start_failing(&client).await;
        assert_eq!(failure_of(&client, "refuse", "no").await, ("quota".into(), "no".into()), "{way}");
        let (category, reason) = failure_of(&client, "panics", "ouch").await;
        assert_eq!((category.as_str(), reason.as_str()), (category::PANIC, "panicked: ouch"), "{way}");
        assert_eq!(failure_of(&client, "numbers", "x").await.0, category::INVALID_INPUT, "{way}");
        assert_eq!(failure_of(&client, "parse", "x").await.0, category::ERROR, "{way}");
        worker.stop().await.unwrap();
    }
}

#[tokio::test]
async fn services_with_different_kinds_share_a_lane() {
    async fn named(context: TaskContext, name: String) -> Result<String, TaskError> {
        Ok(format!("{} {name}", context.kind()))
    }
    for (way, client, _server) in both_ways().await {
        let unknown = client.submit("nobody's").input("x").send().await.unwrap();
        let mails = WorkerRuntime::new(config()).register("mail", named).start(&client).await.unwrap();
        let images = WorkerRuntime::new(config()).register("image", named).start(&client).await.unwrap();
        for number in 0..20 {
            let kind = if number % 3 == 0 { "image" } else { "mail" };
            let result: String = within(client.submit(kind).input("x").send()).await.unwrap().result().await.unwrap();
            assert_eq!(result, format!("{kind} x"), "{way}");
        }
        assert_eq!(unknown.state().await.unwrap(), flowfabric::PublicState::Waiting, "{way}: nobody failed it");
        let reasons = unknown.explain().await.unwrap().reasons;
        assert_eq!(reasons[0].message, "no live worker in lane default serves kind nobody's", "{way}");
        mails.stop().await.unwrap();
        images.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_function_streams_reports_suspends_and_goes_on() {
    async fn chat(context: TaskContext, question: String) -> Result<String, TaskError> {
        if let Some(signal) = context.resume_signals().first() {
            let answer: String = serde_json::from_slice(signal.payload.as_deref().unwrap_or(b"null"))?;
            context.emit(Frame::text("token", &answer)).await?;
            return Ok(format!("{question} {answer}"));
        }
        context.update_progress(10, "asking").await?;
        context.report_usage([("tokens", 7)], None).await?;
        context.emit(Frame::text("token", &question)).await?;
        let signals = context.suspend(SuspendRequest::for_signal("answer", SuspendReason::ToolResult)).await?;
        Err(TaskError::new(format!("nobody can have answered yet: {signals:?}")))
    }
    for (way, client, _server) in both_ways().await {
        let limits = BTreeMap::from([("tokens".to_owned(), flowfabric::Limits { hard: 100, ..Default::default() })]);
        let budget = flowfabric::op::create_budget::Args { name: "b".into(), dimensions: limits, ..Default::default() };
        client.create_budget(budget).await.unwrap();
        let worker = WorkerRuntime::new(config()).register("chat", chat).start(&client).await.unwrap();
        let execution = client.submit("chat").input("why?").budget("b").send().await.unwrap();
        let mut tail = execution.tail();
        let mut texts = Vec::new();
        let end = loop {
            match within(tail.next()).await.unwrap().unwrap() {
                StreamEvent::Frame(frame) => texts.push(String::from_utf8(frame.payload.to_vec()).unwrap()),
                StreamEvent::Paused { .. } => {
                    execution.signal("answer").payload("because").send().await.unwrap();
                }
                StreamEvent::End { public_state } => break public_state,
                other => panic!("{way}: {other:?}"),
            }
        };
        assert_eq!((end, texts), (PublicState::Completed, vec!["why?".to_owned(), "because".to_owned()]), "{way}");
        assert_eq!(execution.result::<String>().await.unwrap(), "why? because", "{way}");
        assert_eq!(client.budget("b").await.unwrap().usage["tokens"], 7, "{way}");
        worker.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_parent_comes_back_when_its_children_have_ended() {
    async fn parent(context: TaskContext, (): ()) -> Result<Vec<i64>, TaskError> {
        let children = context.upstreams().await?;
        if children.is_empty() {
            for number in 1..=3 {
                context.spawn_child("square").input(&number).send().await?;
            }
            return Err(context.wait_for_children().await);
        }
        let read = |child: &flowfabric::UpstreamView| -> Result<i64, TaskError> {
            let result = child.result.as_ref().ok_or_else(|| TaskError::new("a child has no result"))?;
            Ok(serde_json::from_slice(&result.bytes)?)
        };
        let mut squares = children.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        squares.sort_unstable();
        Ok(squares)
    }
    async fn square(_: TaskContext, number: i64) -> Result<i64, TaskError> {
        Ok(number * number)
    }
    for (way, client, _server) in both_ways().await {
        let runtime = WorkerRuntime::new(config()).register("parent", parent).register("square", square);
        let worker = runtime.start(&client).await.unwrap();
        let execution = client.submit("parent").send().await.unwrap();
        assert_eq!(within(execution.result::<Vec<i64>>()).await.unwrap(), [1, 4, 9], "{way}");
        worker.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_refused_ending_fails_the_attempt_by_the_policy() {
    async fn nested(_: TaskContext, (): ()) -> Result<Vec<Deep>, TaskError> {
        Ok(vec![Deep::of(200)])
    }
    async fn lost(context: TaskContext, (): ()) -> Result<(), TaskError> {
        let nowhere = flowfabric::WaitpointId { partition: 0, uuid: uuid::Uuid::from_u128(1) };
        let request = flowfabric::SuspendRequest::for_signal("go", flowfabric::SuspendReason::Signal);
        context.suspend(request.on_waitpoint(nowhere)).await?;
        Ok(())
    }
    for (way, client, _server) in both_ways().await {
        let runtime = WorkerRuntime::new(config()).register("nested", nested).register("lost", lost);
        let worker = runtime.start(&client).await.unwrap();
        for kind in ["nested", "lost"] {
            let execution = client.submit(kind).never_retry([flowfabric::category::REFUSED]).send().await.unwrap();
            let ended = within(execution.result::<()>()).await.unwrap_err();
            let failed = execution.get().await.unwrap().last_failure.unwrap_or_else(|| panic!("{way}: {ended}"));
            assert_eq!(failed.category.as_deref(), Some("refused"), "{way}, {kind}: {}", failed.reason);
        }
        worker.stop().await.unwrap();
    }
}

/// JSON that is deeper than the engine stores.
struct Deep(Option<Box<Deep>>);

impl Deep {
    fn of(depth: usize) -> Self {
        (0..depth).fold(Deep(None), |inner, _| Deep(Some(Box::new(inner))))
    }
}

impl serde::Serialize for Deep {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter())
    }
}

#[tokio::test]
async fn a_task_whose_result_is_refused_has_failed_when_the_call_returns() {
    for (way, client, _server) in both_ways().await {
        let execution = client.submit("test").max_retries(0).send().await.unwrap();
        let worker = flowfabric::FlowFabricWorker::connect(&client, config()).await.unwrap();
        let task = within(worker.claim_all_it_can()).await.unwrap().pop().unwrap();
        let refused = task.complete_bytes(vec![1], "no\ntype").await.unwrap_err();
        let flowfabric::SdkError::EndingRefused { outcome, .. } = &refused else { panic!("{way}: {refused:?}") };
        assert_eq!(*outcome, flowfabric::FailOutcome::TerminalFailed, "{way}");
        assert_eq!(refused.code(), Some(flowfabric::Code::Invalid), "{way}");
        assert_eq!(execution.state().await.unwrap(), PublicState::Failed, "{way}");
        worker.stop(Duration::ZERO).await.unwrap();
    }
}

#[tokio::test]
async fn a_stopping_runtime_finishes_what_it_can_and_hands_back_the_rest() {
    async fn wait(context: TaskContext<tokio::sync::Semaphore>, (): ()) -> Result<(), TaskError> {
        context.update_progress(1, "running").await?;
        context.state().acquire().await?.forget();
        Ok(())
    }
    for (way, client, _server) in both_ways().await {
        let start = async |permits, drain| {
            let state = tokio::sync::Semaphore::new(permits);
            let runtime = WorkerRuntime::with_state(config(), state).register("wait", wait).drain(drain);
            runtime.start(&client).await.unwrap()
        };
        let execution = client.submit("wait").send().await.unwrap();
        let stuck = start(0, Duration::ZERO).await;
        within(async {
            while execution.get().await.unwrap().progress.is_none() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        within(stuck.stop()).await.unwrap();
        assert_eq!(execution.state().await.unwrap(), PublicState::Waiting, "{way}: it was handed back");
        let free = start(1, Duration::from_secs(20)).await;
        within(execution.result::<()>()).await.unwrap();
        within(free.stop()).await.unwrap();
        assert_eq!(execution.get().await.unwrap().attempt.unwrap().0, 0, "{way}: in the same attempt");
    }
}

#[tokio::test]
async fn what_a_function_spends_is_held_before_and_settled_after() {
    async fn agent(context: TaskContext, wants: i64) -> Result<i64, TaskError> {
        let call = |tokens: i64| async move { Ok(flowfabric::Spent::new(tokens, [("tokens", tokens)])) };
        let first = context.spend("call", [("tokens", 40)], || call(30)).await?;
        let undone = context.spend("call", [("tokens", 70)], || async {
            Err::<flowfabric::Spent<()>, _>(TaskError::not_done("the model is busy"))
        });
        assert!(undone.await.is_err());
        context.spend("unlimited", [("calls", 1)], || async { Ok(flowfabric::Spent::new((), [("calls", 1)])) }).await?;
        let second = context.spend("call", [("tokens", wants)], || call(wants)).await?;
        Ok(first + second)
    }
    for (way, client, _server) in both_ways().await {
        let limits = BTreeMap::from([("tokens".to_owned(), flowfabric::Limits { hard: 100, ..Default::default() })]);
        let budget = flowfabric::op::create_budget::Args { name: "b".into(), dimensions: limits, ..Default::default() };
        client.create_budget(budget).await.unwrap();
        let worker = WorkerRuntime::new(config()).register("agent", agent).start(&client).await.unwrap();
        let fits = client.submit("agent").input(&20).budget("b").send().await.unwrap();
        assert_eq!(within(fits.wait()).await.unwrap().public_state, PublicState::Completed, "{way}");
        assert_eq!(fits.result::<i64>().await.unwrap(), 50, "{way}");
        let tokens = &client.budget("b").await.unwrap().standing["tokens"];
        assert_eq!((tokens.used, tokens.reserved, tokens.left), (50, 0, Some(50)), "{way}");
        let policy = serde_json::from_str(r#"{ "retry": { "max_retries": 0 } }"#).unwrap();
        let large = client.submit("agent").input(&21).budget("b").policy(policy).send().await.unwrap();
        assert_eq!(within(large.wait()).await.unwrap().public_state, PublicState::Failed, "{way}");
        let failure = large.get().await.unwrap().last_failure.unwrap();
        assert_eq!(failure.category.as_deref(), Some(flowfabric::category::BUDGET_REFUSED), "{way}: {failure:?}");
        worker.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_report_that_a_hard_limit_forbids_is_an_error_of_the_function() {
    async fn agent(context: TaskContext, tokens: i64) -> Result<(), TaskError> {
        context.report_usage([("tokens", tokens)], None).await?;
        Ok(())
    }
    for (way, client, _server) in both_ways().await {
        let limits =
            BTreeMap::from([("tokens".to_owned(), flowfabric::Limits { hard: 100, soft: 10, ..Default::default() })]);
        let budget = flowfabric::op::create_budget::Args { name: "b".into(), dimensions: limits, ..Default::default() };
        client.create_budget(budget).await.unwrap();
        let worker = WorkerRuntime::new(config()).register("agent", agent).start(&client).await.unwrap();
        let submit = |tokens: i64| client.submit("agent").input(&tokens).budget("b").max_retries(0).send();
        let soft = submit(60).await.unwrap();
        assert_eq!(
            within(soft.wait()).await.unwrap().public_state,
            PublicState::Completed,
            "{way}: a soft limit warns"
        );
        let hard = submit(41).await.unwrap();
        assert_eq!(within(hard.wait()).await.unwrap().public_state, PublicState::Failed, "{way}");
        let failure = hard.get().await.unwrap().last_failure.unwrap();
        assert_eq!(failure.category.as_deref(), Some("budget_exceeded"), "{way}: {failure:?}");
        assert_eq!(failure.reason, "budget b: the limit of tokens is reached", "{way}");
        worker.stop().await.unwrap();
    }
}
