//! A payment provider calls back long after it was asked, perhaps before the worker even waits.
//! `cargo run --example external_callback -- [URL]`

use std::time::Duration;

use flowfabric::{
    Client, ExecutionId, Secret, SuspendReason, SuspendRequest, TaskContext, TaskError, TimeoutBehavior, WaitpointId,
    WorkerConfig, WorkerRuntime,
};
use tokio::sync::mpsc;

/// What the provider is told: where to call back, and with which token.
struct Order {
    execution_id: ExecutionId,
    waitpoint_id: WaitpointId,
    token: Secret,
    amount: u64,
}

/// Stands in for the provider's API.
type Provider = mpsc::UnboundedSender<Order>;

async fn pay(context: TaskContext<Provider>, amount: u64) -> Result<String, TaskError> {
    let signals = match context.resume_signals() {
        [] => {
            // The waitpoint is there before the provider hears of it, so no callback can come too early.
            let waitpoint = context.create_pending_waitpoint(Some("payment".into()), None).await?;
            let order = Order {
                execution_id: context.execution_id(),
                waitpoint_id: waitpoint.waitpoint_id,
                token: waitpoint.token,
                amount,
            };
            context.state().send(order)?;
            let request = SuspendRequest::for_signal("paid", SuspendReason::Callback)
                .on_waitpoint(waitpoint.waitpoint_id)
                .timeout(Duration::from_secs(600), TimeoutBehavior::Fail);
            // Comes back at once when the callback was faster than this line.
            context.suspend(request).await?
        }
        signals => signals.to_vec(),
    };
    let signal = signals.first().ok_or_else(|| TaskError::new("resumed without a callback"))?;
    let receipt: String = serde_json::from_slice(signal.payload.as_deref().unwrap_or(b"null"))?;
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
