//! An order: its parts are packed by children that run beside each other, a day passes, and a mail is sent. The day passes
//! in no time, because the program moves the clock. `cargo run --example order`

use std::time::Duration;

use flowfabric::testing::TestBed;
use flowfabric::{TaskContext, TaskError, WorkerConfig, WorkerRuntime};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    items: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Pack {
    item: String,
}

#[flowfabric::task]
async fn pack(_: TaskContext, task: Pack) -> Result<String, TaskError> {
    Ok(format!("[{}]", task.item))
}

#[flowfabric::task]
async fn fulfil(ctx: TaskContext, order: Order) -> Result<String, TaskError> {
    let number = ctx.uuid("number");
    let parcels = order.items.iter().map(|item| ctx.child_task("pack", &Pack { item: item.clone() }).key(item));
    let parcels = ctx.join(parcels).await?;
    let sent_at = ctx.now("sent").await?;
    ctx.sleep("let it arrive", Duration::from_secs(86_400)).await?;
    let days = (ctx.now("asked").await? - sent_at) / 86_400_000;
    ctx.step("ask how it was", || async {
        println!("mail about order {number}");
        Ok(format!("{} after {days} day", parcels.join(" ")))
    })
    .await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bed = TestBed::start().await?;
    bed.work(WorkerRuntime::new(WorkerConfig::new("shop")).serve(fulfil).serve(pack)).await?;
    let order = bed.client().submit(Order { items: vec!["lamp".into(), "chair".into()] }).send().await?;
    bed.run_until_ended(&order).await?;
    println!("{}", order.result().await?);
    Ok(())
}
