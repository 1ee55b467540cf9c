//! Answers that are lost on their way: the call is repeated, and its effect is that of one call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ff_server::Settings;
use ff_store::memory::{Call, Fault, Faults, MemoryStore, Plan};
use flowfabric::op::{ListSteps, list_steps};
use flowfabric::{
    Client, Engine, EngineOptions, FlowFabricWorker, Frame, PublicState, SuspendOutcome, SuspendReason, SuspendRequest,
    TaskContext, WorkerConfig, WorkerRuntime,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::support::{Running, within};

/// Every call of a worker has its effect once in the end. `lose` makes the next answer disappear.
async fn everything_happens_once(client: &Client, lose: &(dyn Fn() + Sync)) {
    let config = WorkerConfig::new("w").claim_wait(Duration::from_secs(20));
    let worker = FlowFabricWorker::connect(client, config).await.unwrap();
    lose();
    let execution = within(client.submit("k").input(&1).send()).await.unwrap();
    assert_eq!(client.list_all(Default::default()).await.unwrap().len(), 1, "one execution");
    lose();
    let task = within(worker.claim_next()).await.unwrap().unwrap();
    assert_eq!((task.attempt_index().0, task.lease_epoch().0), (0, 1), "one lease");
    for number in 1..=3_u64 {
        lose();
        let appended = within(task.append_frame(Frame::text("t", number.to_string()))).await.unwrap();
        assert_eq!(appended.count, number, "one frame");
    }
    lose();
    let request = SuspendRequest::for_signal("go", SuspendReason::Signal);
    let suspended = within(task.suspend(request)).await.unwrap();
    let SuspendOutcome::Suspended { waitpoint_id, token, .. } = suspended else { panic!("{suspended:?}") };
    lose();
    within(execution.signal("go").waitpoint(waitpoint_id, token).send()).await.unwrap();
    let task = within(worker.claim_next()).await.unwrap().unwrap();
    assert_eq!((task.attempt_index().0, task.resume_signals().len()), (0, 1), "one signal");
    lose();
    within(task.delay_execution(Duration::ZERO)).await.unwrap();
    lose();
    let task = within(worker.claim_next()).await.unwrap().unwrap();
    assert_eq!(task.lease_epoch().0, 3, "one lease more");
    lose();
    assert_eq!(within(task.complete(&2)).await.unwrap().public_state, PublicState::Completed);
    lose();
    assert_eq!(within(execution.replay()).await.unwrap().replay_count, 1, "one replay");
    let task = within(worker.claim_next()).await.unwrap().unwrap();
    lose();
    within(task.fail("no", "busy")).await.unwrap();
    let view = execution.get().await.unwrap();
    assert_eq!(view.retry_count, 1, "one retry");
    lose();
    within(worker.stop(Duration::ZERO)).await.unwrap();
}

/// A function whose every entry and every park loses its answer. Answers with how often its steps ran.
async fn every_step_runs_once(client: &Client, lose: Arc<dyn Fn() + Send + Sync>) {
    let ran = Arc::new(AtomicUsize::new(0));
    let (counted, losing) = (ran.clone(), lose.clone());
    let handler = move |ctx: TaskContext, (): ()| {
        let (ran, lose) = (counted.clone(), losing.clone());
        async move {
            for page in 0..3 {
                let body = || async {
                    lose();
                    Ok(ran.fetch_add(1, Ordering::SeqCst))
                };
                ctx.step("page", body).key(page.to_string()).await?;
            }
            lose();
            // Satisfied at once: the lease stays, and so does the answer.
            let early: String = ctx.wait_signal("early").timeout(Duration::from_secs(3_600)).await?;
            ctx.step("between", || async { Ok(ran.fetch_add(1, Ordering::SeqCst)) }).await?;
            lose();
            let late: String = ctx.wait_signal("late").await?;
            Ok(format!("{early} {late}"))
        }
    };
    let execution = within(client.submit("steps").send()).await.unwrap();
    within(execution.signal("early").payload(&"one").send()).await.unwrap();
    let worker = WorkerRuntime::new(WorkerConfig::new("w")).register("steps", handler).start(client).await.unwrap();
    within(async {
        while execution.state().await.unwrap() != PublicState::Suspended {
            tokio::task::yield_now().await;
        }
    })
    .await;
    lose();
    within(execution.signal("late").payload(&"two").send()).await.unwrap();
    assert_eq!(within(execution.result::<String>()).await.unwrap(), "one two");
    assert_eq!(ran.load(Ordering::SeqCst), 4, "each step once");
    let args = list_steps::Args { execution_id: execution.id(), generation: None, after: None, limit: None };
    let recorded = within(client.call::<ListSteps>(args)).await.unwrap().items.len();
    assert_eq!(recorded, 3 + 2 + 1 + 1, "each entry once");
    within(worker.stop()).await.unwrap();
}

/// Tasks whose answers are lost in turn while they are exchanged. Each runs once and ends once.
async fn every_exchange_happens_once(client: &Client, lose: Arc<dyn Fn() + Send + Sync>) {
    let ran = Arc::new(Semaphore::new(0));
    let (counted, losing) = (ran.clone(), lose.clone());
    let handler = move |_: TaskContext, number: usize| {
        counted.add_permits(1);
        if number.is_multiple_of(3) {
            losing();
        }
        async move { Ok(number) }
    };
    let mut executions = Vec::new();
    for number in 0..30_usize {
        executions.push(within(client.submit("k").input(&number).send()).await.unwrap());
    }
    let config = WorkerConfig::new("w").max_concurrent_tasks(4);
    let worker = WorkerRuntime::new(config).register("k", handler).start(client).await.unwrap();
    for (number, execution) in executions.iter().enumerate() {
        assert_eq!(within(execution.result::<usize>()).await.unwrap(), number);
        let attempts = execution.attempts().await.unwrap();
        let leases: usize = attempts.iter().map(|attempt| attempt.leases.len()).sum();
        assert_eq!((attempts.len(), leases), (1, 1), "one attempt under one lease");
    }
    assert_eq!(ran.available_permits(), 30, "each ran once");
    within(worker.stop()).await.unwrap();
}

/// Passes bytes on between clients and a server, except answers that are to be lost: those end the connection.
async fn lossy_proxy(server: String, lose: Arc<AtomicUsize>, lost: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (server, lose, lost) = (server.clone(), lose.clone(), lost.clone());
            tokio::spawn(async move {
                let upstream = TcpStream::connect(server).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = upstream.into_split();
                let requests = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
                let answers = async {
                    let mut bytes = vec![0; 64 * 1024];
                    loop {
                        let count = from_server.read(&mut bytes).await?;
                        if count == 0 {
                            return Ok(());
                        }
                        if lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
                            lost.fetch_add(1, Ordering::SeqCst);
                            return Ok::<_, std::io::Error>(());
                        }
                        to_client.write_all(&bytes[..count]).await?;
                    }
                };
                tokio::select! {
                    _ = requests => {}
                    _ = answers => {}
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn over_http_a_lost_answer_changes_nothing() {
    let server = Running::start(Settings::default(), Arc::new(MemoryStore::new())).await;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let (lose, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let url = lossy_proxy(address, lose.clone(), lost.clone()).await;
    let client = Client::connect(&url).await.unwrap();
    everything_happens_once(&client, &|| {
        lose.store(1, Ordering::SeqCst);
    })
    .await;
    assert!(lost.load(Ordering::SeqCst) >= 12, "{lost:?} answers were lost");
    server.stop().await;
}

#[tokio::test]
async fn over_http_a_lost_answer_of_a_step_or_a_park_changes_nothing() {
    let server = Running::start(Settings::default(), Arc::new(MemoryStore::new())).await;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let (lose, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let url = lossy_proxy(address, lose.clone(), lost.clone()).await;
    let client = Client::connect(&url).await.unwrap();
    every_step_runs_once(&client, Arc::new(move || lose.store(1, Ordering::SeqCst))).await;
    assert!(lost.load(Ordering::SeqCst) >= 5, "{lost:?} answers were lost");
    server.stop().await;
}

#[tokio::test]
async fn over_http_a_lost_answer_of_an_exchange_changes_nothing() {
    let server = Running::start(Settings::default(), Arc::new(MemoryStore::new())).await;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let (lose, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let url = lossy_proxy(address, lose.clone(), lost.clone()).await;
    let client = Client::connect(&url).await.unwrap();
    every_exchange_happens_once(&client, Arc::new(move || lose.store(1, Ordering::SeqCst))).await;
    assert!(lost.load(Ordering::SeqCst) >= 5, "{lost:?} answers were lost");
    server.stop().await;
}

/// Loses the answers of some commits.
#[derive(Default)]
struct LosesCommits {
    lose: AtomicUsize,
    lost: AtomicU64,
}

impl Faults for LosesCommits {
    fn plan(&self, call: Call<'_>) -> Plan {
        let due = || self.lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if matches!(call, Call::Commit { .. }) && due() {
            self.lost.fetch_add(1, Ordering::SeqCst);
            return Fault::LostReply.into();
        }
        Plan::default()
    }
}

/// An engine in this process whose store loses answers, and a client of it.
async fn losing_commits() -> (Arc<LosesCommits>, Engine, Client) {
    let faults = Arc::new(LosesCommits::default());
    let store = Arc::new(MemoryStore::new().with_faults(faults.clone()));
    let env = Arc::new(ff_engine::env::TokioEnv::current());
    let engine = Engine::start(store, env, EngineOptions::default()).await.unwrap();
    let client = Client::connect_with(engine.clone()).await.unwrap();
    (faults, engine, client)
}

#[tokio::test]
async fn in_process_a_lost_commit_changes_nothing() {
    let (faults, engine, client) = losing_commits().await;
    everything_happens_once(&client, &|| {
        faults.lose.store(1, Ordering::SeqCst);
    })
    .await;
    assert!(faults.lost.load(Ordering::SeqCst) >= 12, "{:?} answers were lost", faults.lost);
    engine.close().await;
}

#[tokio::test]
async fn in_process_a_lost_commit_of_a_step_or_a_park_changes_nothing() {
    let (faults, engine, client) = losing_commits().await;
    let losing = faults.clone();
    every_step_runs_once(&client, Arc::new(move || losing.lose.store(1, Ordering::SeqCst))).await;
    assert!(faults.lost.load(Ordering::SeqCst) >= 5, "{:?} answers were lost", faults.lost);
    engine.close().await;
}

#[tokio::test]
async fn in_process_a_lost_commit_of_an_exchange_changes_nothing() {
    let (faults, engine, client) = losing_commits().await;
    let losing = faults.clone();
    every_exchange_happens_once(&client, Arc::new(move || losing.lose.store(1, Ordering::SeqCst))).await;
    assert!(faults.lost.load(Ordering::SeqCst) >= 5, "{:?} answers were lost", faults.lost);
    engine.close().await;
}
