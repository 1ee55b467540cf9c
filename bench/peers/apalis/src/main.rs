//! apalis: a job queue on Valkey, in Rust like ourselves. Prints what the other peers print.

use std::collections::BTreeSet;
use std::env;
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_redis::{Config, ConnectionManager, RedisStorage};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::sleep;

type Answer<T> = Result<T, BoxDynError>;

fn number(name: &str, otherwise: usize) -> usize {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// How often a worker without work asks again: often enough to be of use, or as seldom as its default, which is its heartbeat.
const POLLS: [(&str, Duration); 2] =
    [("asking every 100 ms", Duration::from_millis(100)), ("default", Duration::from_secs(30))];

/// A handler's report: which task it was given, and when.
type Begun = (usize, Instant);

/// A queue of its own for every run.
struct Queue {
    connection: ConnectionManager,
    config: Config,
}

impl Queue {
    async fn new(name: &str) -> Answer<Self> {
        Ok(Self { connection: apalis_redis::connect(address()?).await?, config: Config::default().queue(name) })
    }

    fn storage(&self) -> RedisStorage<usize> {
        RedisStorage::new(self.connection.clone()).with_config(self.config.clone())
    }

    /// Workers that end with the set and are registered on return.
    async fn work(
        &mut self,
        workers: usize,
        concurrency: usize,
        poll: Duration,
    ) -> Answer<(JoinSet<()>, UnboundedReceiver<Begun>)> {
        let (began, begun) = unbounded_channel();
        let mut running = JoinSet::new();
        for worker in 0..workers {
            let working = WorkerBuilder::new(format!("worker-{worker}"))
                .backend(self.storage().poll_with_interval(poll))
                .concurrency(concurrency)
                .data(began.clone())
                .build(begin);
            running.spawn(async move {
                // The work cannot end without its workers, so neither waits for the other.
                let why = working.run().await.err().map_or("it stopped".to_owned(), |why| why.to_string());
                eprintln!("apalis: a worker ended: {why}");
                std::process::exit(1);
            });
        }
        let registered = redis::cmd("ZCARD").arg(self.config.workers_set()).to_owned();
        while registered.query_async::<usize>(&mut self.connection).await? < workers {
            sleep(Duration::from_millis(5)).await;
        }
        Ok((running, begun))
    }

    async fn done(&mut self) -> Answer<usize> {
        Ok(redis::cmd("SCARD").arg(self.config.done_jobs_set()).query_async(&mut self.connection).await?)
    }
}

fn address() -> Answer<String> {
    Ok(format!("redis://127.0.0.1:{}/", env::var("PEER_PORT")?))
}

async fn begin(task: usize, began: Data<UnboundedSender<Begun>>) -> Answer<()> {
    Ok(began.send((task, Instant::now()))?)
}

async fn throughput(name: &str, workers: usize, concurrency: usize) -> Answer<f64> {
    let tasks = number("PEER_TASKS", 10_000);
    let submitters = number("PEER_SUBMITTERS", 64);
    let mut queue = Queue::new(name).await?;
    let (_running, mut begun) = queue.work(workers, concurrency, POLLS[0].1).await?;
    let began = Instant::now();
    let mut submitting = JoinSet::new();
    for submitter in 0..submitters {
        let mut storage = queue.storage();
        submitting.spawn(async move {
            for task in (submitter..tasks).step_by(submitters) {
                storage.push(task).await?;
            }
            Answer::Ok(())
        });
    }
    while let Some(ended) = submitting.join_next().await {
        ended??;
    }
    while queue.done().await? < tasks {
        sleep(Duration::from_millis(5)).await;
    }
    let took = began.elapsed();
    // It is fast because it fetches and completes in batches; this proves that every task reached a handler.
    let mut handled = BTreeSet::new();
    while let Ok((task, _)) = begun.try_recv() {
        handled.insert(task);
    }
    if handled.len() != tasks {
        return Err(format!("{} of {tasks} tasks reached a handler", handled.len()).into());
    }
    Ok(tasks as f64 / took.as_secs_f64())
}

async fn wake(name: &str) -> Answer<Vec<f64>> {
    let mut queue = Queue::new(name).await?;
    let (_running, mut begun) = queue.work(1, 1, POLLS[0].1).await?;
    let mut storage = queue.storage();
    let mut latencies = Vec::new();
    for wake in 0..number("PEER_WAKES", 200) {
        let began = Instant::now();
        storage.push(wake).await?;
        let (_, at) = begun.recv().await.ok_or("the worker has ended")?;
        latencies.push((at - began).as_secs_f64() * 1000.0);
        while queue.done().await? <= wake {
            sleep(Duration::from_millis(1)).await;
        }
    }
    Ok(latencies)
}

async fn commands(connection: &mut ConnectionManager) -> Answer<usize> {
    let text: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await?;
    let lines = text.lines().filter(|line| line.starts_with("cmdstat_") && !line.starts_with("cmdstat_info:"));
    let calls = lines.filter_map(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<usize>().ok());
    Ok(calls.sum())
}

async fn idle(name: &str, workers: usize, poll: Duration) -> Answer<f64> {
    let seconds = number("PEER_IDLE_SECONDS", 10);
    let mut queue = Queue::new(name).await?;
    let (_running, _begun) = queue.work(workers, 1, poll).await?;
    sleep(Duration::from_secs(2)).await;
    let before = commands(&mut queue.connection).await?;
    sleep(Duration::from_secs(seconds as u64)).await;
    Ok((commands(&mut queue.connection).await? - before) as f64 / seconds as f64)
}

fn wanted(scenario: &str) -> bool {
    env::var("PEER_SCENARIOS").map_or(true, |only| only.split(',').any(|name| name == scenario))
}

/// Prints a line; the figures are JSON already.
fn print(scenario: &str, variant: &str, unit: &str, note: &str, figures: &str) {
    let of = |name: &str| env::var(name).unwrap_or_default();
    let (system, version, store, durability) =
        (of("PEER_SYSTEM"), of("PEER_VERSION"), of("PEER_STORE"), of("PEER_DURABILITY"));
    println!(
        r#"{{"system":"{system}","version":"{version}","scenario":"{scenario}",{variant}"store":"{store}","durability":"{durability}",{figures},"unit":"{unit}","note":"{note}"}}"#
    );
}

fn rates(mut values: Vec<f64>) -> String {
    let list: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
    values.sort_by(f64::total_cmp);
    format!(
        r#""repetitions":{},"rate":{:.1},"rates":[{}]"#,
        values.len(),
        values[(values.len() - 1) / 2],
        list.join(",")
    )
}

#[tokio::main]
async fn main() -> Answer<()> {
    let (workers, repetitions) = (number("PEER_WORKERS", 16), number("PEER_REPETITIONS", 1));
    if wanted("throughput") {
        let shapes = [("one worker", 1, workers), ("many workers", workers, 1)];
        for (shape, workers, concurrency) in shapes {
            let mut values = Vec::new();
            for repetition in 1..=repetitions {
                eprintln!("apalis: throughput, {shape}, {repetition} of {repetitions}");
                values.push(throughput(&format!("throughput-{workers}-{repetition}"), workers, concurrency).await?);
            }
            let note = format!(
                "{} empty tasks, {} pushes at once, workers: {workers}, concurrency {concurrency} each: from the first push to the last completion",
                number("PEER_TASKS", 10_000),
                number("PEER_SUBMITTERS", 64)
            );
            print("throughput", &format!(r#""variant":"{shape}","#), "tasks/s", &note, &rates(values));
        }
    }
    if wanted("wake") {
        let mut latencies = Vec::new();
        for repetition in 1..=repetitions {
            eprintln!("apalis: wake {repetition} of {repetitions}");
            latencies.extend(wake(&format!("wake-{repetition}")).await?);
        }
        latencies.sort_by(f64::total_cmp);
        let at = |percent: usize| latencies[(latencies.len() * percent).div_ceil(100).saturating_sub(1)];
        let figures = format!(
            r#""repetitions":{repetitions},"p50":{:.3},"p95":{:.3},"p99":{:.3},"samples":{}"#,
            at(50),
            at(95),
            at(99),
            latencies.len()
        );
        let variant = format!(r#""variant":"{}","#, POLLS[0].0);
        print("wake", &variant, "ms", "from the call of push to the start of the task, one idle worker", &figures);
    }
    if wanted("idle") {
        for (at, (shape, poll)) in POLLS.into_iter().enumerate() {
            let mut values = Vec::new();
            for repetition in 1..=repetitions {
                eprintln!("apalis: idle, {shape}, {repetition} of {repetitions}");
                values.push(idle(&format!("idle-{at}-{repetition}"), workers, poll).await?);
            }
            let seconds = number("PEER_IDLE_SECONDS", 10);
            let note = format!("{workers} idle workers for {seconds} s, every command the server counts");
            print("idle", &format!(r#""variant":"{shape}","#), "commands/s", &note, &rates(values));
        }
    }
    Ok(())
}
