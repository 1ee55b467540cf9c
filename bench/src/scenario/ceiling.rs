//! The race for one ceiling: agents that spend from one limit at the same moment. Ours reserves before each call; beside
//! it runs a limiter of the usual kind, which looks whether there is room, makes the call, and then charges it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use ff_core::budget::Limits;
use ff_core::op;
use flowfabric::op::reserve_spend;
use flowfabric::{FlowFabricWorker, WorkerConfig};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::open::Kind;
use crate::run::Run;
use crate::subject::Subject;
use crate::work::all;

/// Agents, unless said otherwise.
const AGENTS: usize = 64;
/// The amount that all of them together may spend.
const LIMIT: i64 = 1_000;
/// The dearest call; the cheapest costs one.
const CALL_MAX: i64 = 20;
/// How long a call takes.
const CALL: Duration = Duration::from_millis(5);
const BUDGET: &str = "ceiling";
const DIMENSION: &str = "tokens";

/// Ours, and on Valkey the other kind on the same server.
pub(crate) async fn ceiling(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    ours(run, &subject).await?;
    if let (Kind::Valkey, Some(url)) = (subject.opened.kind, &subject.opened.url) {
        check_then_charge(run, &address(url)?, &subject.namespace).await?;
    }
    subject.close().await
}

/// The cost of a call of an agent: spread evenly, and the same in every run.
fn cost(agent: i64, call: i64) -> i64 {
    (agent * 31 + call * 17 + agent * call * 7) % CALL_MAX + 1
}

fn line(run: &Run<'_>, limiter: &'static str, spent: i64, calls: i64, took: Duration) -> Result<()> {
    let figures = Figures::new()
        .with("agents", run.arguments.workers_or(AGENTS))
        .with("limit", LIMIT)
        .with("limiter", limiter)
        .measured("spent", spent as f64)
        .measured("past_the_limit", (spent - LIMIT).max(0) as f64)
        .measured("calls", calls as f64)
        .measured("seconds", took.as_secs_f64());
    run.report(figures)
}

async fn ours(run: &Run<'_>, subject: &Subject) -> Result<()> {
    let agents = run.arguments.workers_or(AGENTS);
    run.progress(&format!("{agents} agents reserve from a limit of {LIMIT}"));
    let client = &subject.client;
    let limits = Limits { hard: LIMIT, ..Default::default() };
    let dimensions = [(DIMENSION.to_owned(), limits)].into();
    client.create_budget(op::create_budget::Args { name: BUDGET.into(), dimensions, ..Default::default() }).await?;
    let mut tasks = Vec::new();
    for _ in 0..agents {
        let worker = FlowFabricWorker::connect(client, WorkerConfig::new("agent")).await?;
        client.submit("agent").budget(BUDGET).send().await?;
        tasks.push(worker.claim_next().await?.ok_or("nothing to claim")?);
    }
    let calls = Arc::new(AtomicI64::new(0));
    let began = Instant::now();
    let mut racing = JoinSet::new();
    for (agent, task) in (0..).zip(tasks) {
        let calls = calls.clone();
        racing.spawn(async move {
            for call in 0.. {
                let cost = cost(agent, call);
                let key = call.to_string();
                match task.reserve(key.as_str(), [(DIMENSION, cost)], None).await? {
                    reserve_spend::Outcome::Reserved { .. } => {}
                    _ => break,
                }
                tokio::time::sleep(CALL).await;
                calls.fetch_add(1, Ordering::Relaxed);
                task.settle(key, [(DIMENSION, cost)]).await?;
            }
            task.complete(&()).await?;
            Ok(())
        });
    }
    all(racing).await?;
    let took = began.elapsed();
    let spent = client.budget(BUDGET).await?.standing[DIMENSION].used;
    line(run, "reserve-then-settle", spent, calls.load(Ordering::Relaxed), took)
}

async fn check_then_charge(run: &Run<'_>, address: &str, namespace: &str) -> Result<()> {
    let agents = run.arguments.workers_or(AGENTS);
    run.progress(&format!("{agents} agents look at a counter, call, and add to it"));
    let key = format!("{namespace}:{BUDGET}");
    let mut counters = Vec::new();
    for _ in 0..agents {
        counters.push(Counter::connect(address, &key).await?);
    }
    let calls = Arc::new(AtomicI64::new(0));
    let began = Instant::now();
    let mut racing = JoinSet::new();
    for (agent, mut counter) in (0..).zip(counters) {
        let calls = calls.clone();
        racing.spawn(async move {
            for call in 0.. {
                let cost = cost(agent, call);
                if counter.read().await? + cost > LIMIT {
                    break;
                }
                tokio::time::sleep(CALL).await;
                calls.fetch_add(1, Ordering::Relaxed);
                counter.add(cost).await?;
            }
            Ok(())
        });
    }
    all(racing).await?;
    let took = began.elapsed();
    let mut counter = Counter::connect(address, &key).await?;
    let spent = counter.read().await?;
    counter.remove().await?;
    line(run, "check-then-charge", spent, calls.load(Ordering::Relaxed), took)
}

/// Host and port of an address without a password.
fn address(url: &str) -> Result<String> {
    let rest =
        url.strip_prefix("valkey://").ok_or_else(|| Error::Usage("the counter needs a plain valkey://".into()))?;
    let place = rest.split(['/', '?', ',']).next().unwrap_or(rest);
    match place.contains('@') {
        true => Err(Error::Usage("the counter takes no password".into())),
        false => Ok(place.to_owned()),
    }
}

/// A number on the server that an agent looks at and adds to.
struct Counter {
    stream: BufReader<TcpStream>,
    key: String,
}

impl Counter {
    async fn connect(address: &str, key: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), key: key.to_owned() })
    }

    async fn read(&mut self) -> Result<i64> {
        let key = self.key.clone();
        self.ask(&["GET", &key]).await
    }

    async fn add(&mut self, amount: i64) -> Result<i64> {
        let key = self.key.clone();
        self.ask(&["INCRBY", &key, &amount.to_string()]).await
    }

    async fn remove(&mut self) -> Result<i64> {
        let key = self.key.clone();
        self.ask(&["DEL", &key]).await
    }

    /// Sends a command and reads the number it answers with; nothing is 0.
    async fn ask(&mut self, words: &[&str]) -> Result<i64> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(command.as_bytes()).await?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        let text = answer.trim_end();
        let number = |text: &str| text.parse::<i64>().map_err(|_| Error::Broken(format!("{text:?} is no number")));
        match text.split_at_checked(1) {
            Some((":", value)) => number(value),
            Some(("$", "-1")) => Ok(0),
            Some(("$", length)) => {
                let length = usize::try_from(number(length)?)?;
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes).await?;
                number(std::str::from_utf8(&bytes[..length]).map_err(|error| Error::Broken(error.to_string()))?)
            }
            _ => Err(Error::Broken(format!("the counter answered {text:?}"))),
        }
    }
}
