//! Work that the demo leaves beside its flow, so that every screen of the dashboard has something to show: steps, a
//! retry, a failure, work that waits for a capability no worker has, work for later, a quota, a provider, a schedule, a
//! subscription to failures, a hook for messages from outside, and bulk jobs.

use std::time::Duration;

use flowfabric::op::{
    CreateProvider, GetDeployment, HookSignal, HookTarget, create_hook, create_provider, create_quota, get_deployment,
};
use flowfabric::{
    BulkFilter, CapabilitySet, Client, EventType, Frame, Metered, Overlap, PublicState, Result, ScheduleSpec,
    TaskContext, TaskError, policy,
};

use super::work::LANE;

const QUOTA: &str = "demo-api";
const PROVIDER: &str = "model-api";
const SCHEDULE: &str = "morning-digest";
const SUBSCRIPTION: &str = "failures";
const HOOK: &str = "payments";
/// What the one execution that waits for a capability is moved up to.
const URGENT: i64 = 100;
/// What a call of the provider is expected to cost, and what it costs.
const EXPECTED_TOKENS: u64 = 2_000;
const WRITTEN_TOKENS: u64 = 640;
/// When the work for later is due.
const LATER_MS: i64 = 3_600_000;

/// Submits all of it. Keys keep a second demo in the same folder from doubling it.
pub(super) async fn arrange(client: &Client) -> Result<()> {
    let (name, max_requests, max_concurrent) = (QUOTA.to_owned(), Some(60), Some(4));
    client.create_quota(create_quota::Args { name, max_requests, max_concurrent, ..Default::default() }).await?;
    connect(client).await?;
    let now = client.call::<GetDeployment>(get_deployment::Args::default()).await?.now;
    let scene =
        |kind: &str| client.submit(kind).lane(LANE).tag("demo", "scenery").idempotency_key(format!("demo-{kind}"));
    let order = serde_json::json!({ "order": 7, "amount": -1 });
    let gpu = CapabilitySet::new(["gpu".to_owned()])?;
    let scenes = [
        scene("agent").quota(QUOTA).input("tides"),
        scene("flaky").input("a page"),
        scene("refuse").input(&order).never_retry([policy::PERMANENT]),
        scene("render").require(gpu).concurrency("films", 1).fair_key("studio").input("a film"),
    ];
    for scene in scenes {
        scene.send().await?;
    }
    let digest = client.submit("agent").lane(LANE).tag("demo", "scenery").input("the news").into_template()?;
    let every_morning = ScheduleSpec::cron("0 7 * * *", "Europe/Berlin");
    client.schedule(SCHEDULE, every_morning, digest).overlap(Overlap::Skip).create().await?;
    // Each demo is reminded anew: its instant is another one, which the same key would not allow.
    client.submit("remind").lane(LANE).tag("demo", "scenery").delay_until(now + LATER_MS).input("again").send().await?;
    change_many(client).await
}

/// A service with limits that the agent calls, a subscription to failures, and a hook for messages from outside.
async fn connect(client: &Client) -> Result<()> {
    let (name, max_requests, max_tokens, max_concurrent) = (PROVIDER.to_owned(), Some(60), Some(90_000), Some(4));
    let limits =
        create_provider::Args { name, namespace: None, window_ms: None, max_requests, max_tokens, max_concurrent };
    client.call::<CreateProvider>(limits).await?;
    let note = client.submit("note").lane(LANE).tag("demo", "scenery").into_args()?;
    client.subscription(SUBSCRIPTION).events([EventType::Failed]).execution(note).await?;
    let paid = HookSignal { correlation_id: "/data/order".into(), tag: Some("order".into()), name: "paid".into() };
    let (name, target) = (HOOK.to_owned(), HookTarget::Signal(paid));
    client.create_hook(create_hook::Args { name, namespace: None, scheme: None, secret: None, target }).await?;
    Ok(())
}

/// A bulk job, and a look at what another one would do.
async fn change_many(client: &Client) -> Result<()> {
    let of = |kind: &str| BulkFilter { kind: vec![kind.to_owned()], ..Default::default() };
    client.bulk_set_priority(of("render"), URGENT).begin().await?;
    let failed = BulkFilter { state: vec![PublicState::Failed], ..of("refuse") };
    client.bulk_replay(failed).dry_run().begin().await?;
    Ok(())
}

/// Three steps that are kept, a short sleep between them, and a turn at the provider for the last.
pub(super) async fn agent(task: TaskContext, topic: String) -> Result<String, TaskError> {
    let plan: String = task.step("plan", || async { Ok(format!("read about {topic}, then write")) }).await?;
    task.sleep("think", Duration::from_millis(200)).await?;
    let search = || async { Ok(vec![format!("{topic} come twice a day"), plan.clone()]) };
    let found: Vec<String> = task.step("search", search).await?;
    let write = || async { Ok(Metered::new(found.join("; "), WRITTEN_TOKENS)) };
    task.acquire(PROVIDER).tokens(EXPECTED_TOKENS).step("write", write).await
}

/// Keeps what it was told: the event of an execution that failed.
pub(super) async fn note(_task: TaskContext, event: serde_json::Value) -> Result<serde_json::Value, TaskError> {
    Ok(event)
}

/// Fails once after it has begun to write, so that there is something void to show.
pub(super) async fn flaky(task: TaskContext, what: String) -> Result<String, TaskError> {
    task.emit(Frame::text("token", format!("attempt {}: {what} ", task.retry_count()))).await?;
    if task.retry_count() == 0 {
        return Err(TaskError::new("the connection was reset").category("transient"));
    }
    task.emit(Frame::text("token", "is done")).await?;
    Ok(what)
}

/// Never succeeds.
pub(super) async fn refuse(_task: TaskContext, _order: serde_json::Value) -> Result<(), TaskError> {
    Err(TaskError::new("the amount is negative").category(policy::PERMANENT))
}
