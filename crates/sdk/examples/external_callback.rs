//! A payment provider calls back long after it was asked, perhaps before the worker even waits.
//! `cargo run --example external_callback -- [URL]`

use std::time::Duration;

use flowfabric::{Client, ExecutionId, Secret, TaskContext, TaskError, WaitpointId, WorkerConfig, WorkerRuntime};
use tokio::sync::mpsc;

/// The order for the provider: where to call back, and with which token.
struct Order {
    execution_id: ExecutionId,
    waitpoint_id: WaitpointId,
    token: Secret,
    amount: u64,
}

/// Stands in for the provider's API.
type Provider = mpsc::UnboundedSender<Order>;

async fn pay(ctx: TaskContext<Provider>, amount: u64) -> Result<String, TaskError> {
    // The waitpoint is there before the provider hears of it, so no callback can come too early.
    let paid = ctx.waitpoint::<String>("paid").await?;
    let order = || async {
        let (execution_id, waitpoint_id) = (ctx.execution_id(), paid.id());
        Ok(ctx.state().send(Order { execution_id, waitpoint_id, token: paid.token().clone(), amount })?)
    };
    ctx.step("order", order).await?;
    let receipt = paid.wait().timeout(Duration::from_secs(600)).await?;
    Ok(format!("paid {amount}, receipt {receipt}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let client = Client::connect(&url).await?.in_namespace("external-callback");
    let (provider, mut orders) = mpsc::unbounded_channel();
    let runtime = WorkerRuntime::with_state(WorkerConfig::new("shop"), provider).register("pay", pay);
    let worker = runtime.start(&client).await?;
    let execution = client.submit("pay").input(&4_200).send().await?;

    // The provider's side. Its callbacks come at least once; the key makes them count once.
    let order = orders.recv().await.ok_or("no order came")?;
    let receipt = format!("r-{}", order.amount);
    for _ in 0..2 {
        let callback = client.execution(order.execution_id).signal("paid");
        let callback = callback.waitpoint(order.waitpoint_id, order.token.clone()).payload(&receipt);
        println!("callback: {:?}", callback.idempotency_key(&receipt).send().await?);
    }
    println!("{}", execution.result::<String>().await?);
    Ok(worker.stop().await?)
}
