//! Tasks that are exchanged for the next: what became of each, and what the worker holds meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ff_server::Settings;
use ff_store::memory::MemoryStore;
use flowfabric::{
    ClaimedTask, Client, Code, Execution, FlowFabricWorker, PublicState, TaskContext, TaskError, Tasks, WorkerConfig,
    WorkerRuntime,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, Semaphore};

use crate::support::{Running, both_ways, within};

fn config(at_once: usize) -> WorkerConfig {
    WorkerConfig::new("w").max_concurrent_tasks(at_once).claim_wait(Duration::from_secs(20))
}

async fn submit(client: &Client, count: usize) -> Vec<Execution> {
    let mut executions = Vec::new();
    for number in 0..count {
        executions.push(client.submit("k").input(&number).send().await.unwrap());
    }
    executions
}

async fn until_state(execution: &Execution, state: PublicState) {
    within(async {
        while execution.state().await.unwrap() != state {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// So many tasks, however they come.
async fn take(tasks: &mut Tasks, count: usize) -> Vec<ClaimedTask> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(within(tasks.next()).await.unwrap());
    }
    assert_eq!(taken.len(), count);
    taken
}

#[tokio::test]
async fn a_task_that_ends_brings_the_next_and_never_more_than_there_are_places() {
    for (way, client, _server) in both_ways().await {
        let executions = submit(&client, 3).await;
        let worker = FlowFabricWorker::connect(&client, config(2)).await.unwrap();
        let mut tasks = worker.tasks();
        let mut held = take(&mut tasks, 2).await;
        let before = client.calls_made();
        held.remove(0).complete(&1).await.unwrap();
        let next = take(&mut tasks, 1).await.remove(0);
        assert_eq!(next.execution_id(), executions[2].id(), "{way}");
        assert_eq!(client.calls_made() - before, 1, "{way}: one call ended a task and brought another");
        assert_eq!(worker.free_permits(), 0, "{way}: the place was passed on");
        next.complete(&2).await.unwrap();
        held.remove(0).complete(&3).await.unwrap();
        drop(tasks);
        worker.stop(Duration::ZERO).await.unwrap();
        // The claim that waited for work is dropped when its task is next looked at, and its place with it.
        within(async {
            while worker.free_permits() < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(worker.free_permits(), 2, "{way}: every place came back");
    }
}

#[tokio::test]
async fn no_more_handlers_run_than_the_worker_may_have() {
    struct Gauge {
        now: AtomicUsize,
        most: AtomicUsize,
        done: Semaphore,
    }
    async fn measured(context: TaskContext<Arc<Gauge>>, _: usize) -> Result<(), TaskError> {
        let gauge = context.state();
        gauge.most.fetch_max(gauge.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        gauge.now.fetch_sub(1, Ordering::SeqCst);
        gauge.done.add_permits(1);
        Ok(())
    }
    for (way, client, _server) in both_ways().await {
        submit(&client, 60).await;
        let gauge = Arc::new(Gauge { now: 0.into(), most: 0.into(), done: Semaphore::new(0) });
        let runtime = WorkerRuntime::with_state(config(3), gauge.clone()).register("k", measured);
        let worker = runtime.start(&client).await.unwrap();
        within(gauge.done.acquire_many(60)).await.unwrap().forget();
        within(worker.stop()).await.unwrap();
        assert!(gauge.most.load(Ordering::SeqCst) <= 3, "{way}: {:?}", gauge.most);
        let ended = client.list_all(Default::default()).await.unwrap();
        assert!(ended.iter().all(|one| one.public_state == PublicState::Completed), "{way}");
    }
}

#[tokio::test]
async fn one_refused_ending_fails_its_own_attempt_and_no_other() {
    async fn ends_together(context: TaskContext<Arc<Barrier>>, number: usize) -> Result<Vec<u8>, TaskError> {
        context.state().wait().await;
        // A result of more than a mebibyte is refused.
        Ok(vec![1; if number == 1 { 1024 * 1024 } else { 1 }])
    }
    for (way, client, _server) in both_ways().await {
        let mut executions = Vec::new();
        for number in 0..3 {
            executions.push(client.submit("k").input(&number).max_retries(0).send().await.unwrap());
        }
        let runtime = WorkerRuntime::with_state(config(3), Arc::new(Barrier::new(3))).register("k", ends_together);
        let worker = runtime.start(&client).await.unwrap();
        for (number, execution) in executions.iter().enumerate() {
            let view = within(execution.wait()).await.unwrap();
            if number == 1 {
                assert_eq!(view.public_state, PublicState::Failed, "{way}");
                assert_eq!(view.last_failure.unwrap().category.as_deref(), Some("refused"), "{way}");
            } else {
                assert_eq!(view.public_state, PublicState::Completed, "{way}");
            }
        }
        within(worker.stop()).await.unwrap();
    }
}

#[tokio::test]
async fn the_end_of_a_lost_task_is_refused_and_its_place_goes_to_the_next() {
    for (way, client, _server) in both_ways().await {
        let executions = submit(&client, 2).await;
        let worker = FlowFabricWorker::connect(&client, config(1)).await.unwrap();
        let mut tasks = worker.tasks();
        let task = take(&mut tasks, 1).await.remove(0);
        executions[0].cancel("not needed").await.unwrap();
        let token = task.cancellation().clone();
        let refused = task.complete(&1).await.unwrap_err();
        assert_eq!(refused.code(), Some(Code::LeaseRevoked), "{way}");
        assert!(token.is_cancelled(), "{way}");
        let next = take(&mut tasks, 1).await.remove(0);
        assert_eq!(next.execution_id(), executions[1].id(), "{way}");
        next.complete(&2).await.unwrap();
        drop(tasks);
        worker.stop(Duration::ZERO).await.unwrap();
    }
}

#[tokio::test]
async fn what_came_with_an_exchange_and_nobody_took_is_handed_back() {
    for (way, client, _server) in both_ways().await {
        let executions = submit(&client, 2).await;
        let worker = FlowFabricWorker::connect(&client, config(1)).await.unwrap();
        let mut tasks = worker.tasks();
        take(&mut tasks, 1).await.remove(0).complete(&1).await.unwrap();
        until_state(&executions[1], PublicState::Active).await;
        drop(tasks);
        within(worker.stop(Duration::from_secs(20))).await.unwrap();
        let view = executions[1].get().await.unwrap();
        assert_eq!(view.public_state, PublicState::Waiting, "{way}");
        let heir = FlowFabricWorker::connect(&client, config(1)).await.unwrap();
        let task = within(heir.claim_next()).await.unwrap().unwrap();
        assert_eq!(task.attempt_index().0, 0, "{way}: it is the same attempt");
        task.complete(&2).await.unwrap();
        heir.stop(Duration::ZERO).await.unwrap();
    }
}

#[tokio::test]
async fn a_stopping_worker_ends_its_tasks_and_takes_no_other() {
    for (way, client, _server) in both_ways().await {
        let executions = submit(&client, 2).await;
        let worker = FlowFabricWorker::connect(&client, config(1)).await.unwrap();
        let mut tasks = worker.tasks();
        let task = take(&mut tasks, 1).await.remove(0);
        let stopping = tokio::spawn({
            let worker = worker.clone();
            async move { worker.stop(Duration::from_secs(20)).await }
        });
        within(worker.stopping().cancelled()).await;
        assert!(within(tasks.next()).await.unwrap().is_empty(), "{way}");
        task.complete(&1).await.unwrap();
        within(stopping).await.unwrap().unwrap();
        assert_eq!(executions[0].state().await.unwrap(), PublicState::Completed, "{way}");
        let other = executions[1].get().await.unwrap();
        assert_eq!((other.public_state, other.attempt), (PublicState::Waiting, None), "{way}: nobody claimed it");
    }
}

/// Passes requests on to a server, except exchanges: those it does not know.
async fn earlier_server(server: String, asked: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(pass_on(client, server.clone(), asked.clone()));
        }
    });
    url
}

async fn pass_on(mut client: TcpStream, server: String, asked: Arc<AtomicUsize>) -> std::io::Result<()> {
    let mut upstream = TcpStream::connect(server).await?;
    let (mut request, mut answer) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let count = read?;
                if count == 0 {
                    return Ok(());
                }
                let line = request[..count].split(|byte| *byte == b'\r').next().unwrap_or_default();
                if String::from_utf8_lossy(line).contains("/exchange ") {
                    asked.fetch_add(1, Ordering::SeqCst);
                    let body = r#"{"code":"route_not_found","title":"no such route","status":404,"detail":"no"}"#;
                    let head = "HTTP/1.1 404 Not Found\r\ncontent-type: application/problem+json\r\n";
                    let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                    client.write_all(answer.as_bytes()).await?;
                } else {
                    upstream.write_all(&request[..count]).await?;
                }
            }
            read = upstream.read(&mut answer) => {
                let count = read?;
                if count == 0 {
                    return Ok(());
                }
                client.write_all(&answer[..count]).await?;
            }
        }
    }
}

#[tokio::test]
async fn a_server_that_knows_no_exchanges_is_asked_once_and_then_called_for_each() {
    let server = Running::start(Settings::default(), Arc::new(MemoryStore::new())).await;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let asked = Arc::new(AtomicUsize::new(0));
    let client = Client::connect(&earlier_server(address, asked.clone()).await).await.unwrap();
    let executions = submit(&client, 10).await;
    async fn double(_: TaskContext, number: usize) -> Result<usize, TaskError> {
        Ok(2 * number)
    }
    let worker = WorkerRuntime::new(config(1)).register("k", double).start(&client).await.unwrap();
    for (number, execution) in executions.iter().enumerate() {
        assert_eq!(within(execution.result::<usize>()).await.unwrap(), 2 * number);
    }
    within(worker.stop()).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1, "it is not asked again");
    server.stop().await;
}
