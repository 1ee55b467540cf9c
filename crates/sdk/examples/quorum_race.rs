//! Five models race; two answers are enough, and the slow ones are cancelled. `cargo run --example quorum_race -- [URL]`

use std::time::Duration;

use flowfabric::{
    Client, EventKind, Happening, JoinPolicy, OnSatisfied, Quorum, TaskContext, TaskError, WorkerConfig, WorkerRuntime,
};

async fn ask(context: TaskContext, (model, fast): (String, bool)) -> Result<String, TaskError> {
    if !fast {
        // Far longer than the race lasts: the handler is dropped when its execution is cancelled.
        context.update_progress(1, "thinking hard").await?;
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    Ok(format!("{model} says 42"))
}

async fn judge(context: TaskContext, (): ()) -> Result<Vec<String>, TaskError> {
    let results = context.upstreams().await?.into_iter().filter_map(|upstream| upstream.result);
    let mut answers =
        results.map(|result| Ok(serde_json::from_slice(&result.bytes)?)).collect::<Result<Vec<_>, TaskError>>()?;
    // Upstreams come in no particular order.
    answers.sort();
    Ok(answers)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let client = Client::connect(&url).await?.in_namespace("quorum-race");
    let config = WorkerConfig::new("models").lease_ttl(Duration::from_secs(1));
    let worker = WorkerRuntime::new(config).register("ask", ask).register("judge", judge).start(&client).await?;

    let two = JoinPolicy::Quorum(Quorum { k: 2, on_satisfied: OnSatisfied::CancelRemaining, ..Quorum::default() });
    let mut flow = client.new_flow("race").joining_node("judge", client.submit("judge"), two);
    for (model, fast) in [("a", true), ("b", false), ("c", true), ("d", false), ("e", false)] {
        flow = flow.node(model, client.submit("ask").input(&(model, fast))).edge(model, "judge");
    }
    let flow = flow.create().await?;
    let mut events = client.events().flow(flow.id()).kinds([EventKind::Completion]);
    let mut ended = 0;
    while ended < 6 {
        if let Happening::Event(view) = events.next().await? {
            let event = view.event;
            let id = event.execution_id.map(|id| id.to_string()).unwrap_or_default();
            println!("{} {id}: {}", event.execution_kind, event.event_type);
            ended += 1;
        }
    }
    let answers: Vec<String> = flow.node("judge").ok_or("no judge")?.result().await?;
    println!("the judge has {answers:?}");
    Ok(worker.stop().await?)
}
