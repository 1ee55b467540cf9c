//! Work that the demo leaves beside its flow, so that every screen of the dashboard has something to show: steps, a
//! retry, a failure, work that waits for a capability no worker has, work for later, a quota, and a schedule.

use std::time::Duration;

use flowfabric::op::{GetDeployment, create_quota, get_deployment};
use flowfabric::{CapabilitySet, Client, Frame, Overlap, Result, ScheduleSpec, TaskContext, TaskError, policy};

use super::work::LANE;

const QUOTA: &str = "demo-api";
const SCHEDULE: &str = "morning-digest";
/// When the work for later is due.
const LATER_MS: i64 = 3_600_000;

/// Submits all of it. Keys keep a second demo in the same folder from doubling it.
pub(super) async fn arrange(client: &Client) -> Result<()> {
    let (name, max_requests, max_concurrent) = (QUOTA.to_owned(), Some(60), Some(4));
    client.create_quota(create_quota::Args { name, max_requests, max_concurrent, ..Default::default() }).await?;
    let now = client.call::<GetDeployment>(get_deployment::Args::default()).await?.now;
    let scene =
        |kind: &str| client.submit(kind).lane(LANE).tag("demo", "scenery").idempotency_key(format!("demo-{kind}"));
    let order = serde_json::json!({ "order": 7, "amount": -1 });
    let gpu = CapabilitySet::new(["gpu".to_owned()])?;
    let scenes = [
        scene("agent").quota(QUOTA).input("tides"),
        scene("flaky").input("a page"),
        scene("refuse").input(&order).never_retry([policy::PERMANENT]),
        scene("render").require(gpu).input("a film"),
    ];
    for scene in scenes {
        scene.send().await?;
    }
    let digest = client.submit("agent").lane(LANE).tag("demo", "scenery").input("the news").into_template()?;
    let every_morning = ScheduleSpec::cron("0 7 * * *", "Europe/Berlin");
    client.schedule(SCHEDULE, every_morning, digest).overlap(Overlap::Skip).create().await?;
    // Each demo is reminded anew: its instant is another one, which the same key would not allow.
    client.submit("remind").lane(LANE).tag("demo", "scenery").delay_until(now + LATER_MS).input("again").send().await?;
    Ok(())
}

/// Three steps that are kept, and a short sleep between them.
pub(super) async fn agent(task: TaskContext, topic: String) -> Result<String, TaskError> {
    let plan: String = task.step("plan", || async { Ok(format!("read about {topic}, then write")) }).await?;
    task.sleep("think", Duration::from_millis(200)).await?;
    let search = || async { Ok(vec![format!("{topic} come twice a day"), plan.clone()]) };
    let found: Vec<String> = task.step("search", search).await?;
    task.step("write", || async { Ok(found.join("; ")) }).await
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
