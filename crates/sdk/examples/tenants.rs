//! Tenants share a lane. One of them submits two hundred tasks, two others a handful: their work takes turns, and no tenant
//! ever runs more than two tasks at once. `cargo run --example tenants -- [URL]`

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use flowfabric::{Client, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

const TENANTS: [(&str, usize); 3] = [("acme", 200), ("bird", 5), ("cafe", 5)];
const AT_ONCE: usize = 2;

/// Counts of the tasks that the workers have seen.
#[derive(Default)]
struct Seen {
    running: BTreeMap<String, usize>,
    order: Vec<String>,
}

async fn work(seen: Arc<Mutex<Seen>>, tenant: String) -> Result<(), TaskError> {
    let began = || {
        let mut seen = seen.lock().expect("no holder of this lock panics");
        let running = seen.running.entry(tenant.clone()).or_default();
        *running += 1;
        assert!(*running <= AT_ONCE, "{tenant} runs {running} tasks at once");
        seen.order.push(tenant.clone());
    };
    began();
    tokio::task::yield_now().await;
    let mut seen = seen.lock().expect("no holder of this lock panics");
    seen.running.entry(tenant).and_modify(|running| *running -= 1);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let namespace = format!("tenants-{}", std::process::id());
    let client = Client::connect(&url).await?.in_namespace(&namespace);
    let mut submitted = Vec::new();
    for (tenant, count) in TENANTS {
        for _ in 0..count {
            let task = client.submit("work").input(tenant).fair_key(tenant).concurrency(tenant, 2);
            submitted.push(task.send().await?);
        }
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let shared = seen.clone();
    let handler = move |_: TaskContext, tenant: String| work(shared.clone(), tenant);
    let config = WorkerConfig::new("workers").max_concurrent_tasks(4);
    let worker = WorkerRuntime::new(config).register("work", handler).start(&client).await?;
    for execution in &submitted {
        execution.wait().await?;
    }
    worker.stop().await?;
    let order = std::mem::take(&mut seen.lock().expect("no holder of this lock panics").order);
    let last = order.iter().rposition(|tenant| tenant != "acme").expect("the small ones ran") + 1;
    println!("the ten tasks of the small tenants were through after {last} of {} starts", order.len());
    assert!(last < 100, "the small ones waited for acme");
    println!("nobody waited for acme");
    Ok(())
}
