//! A client against a newer server: a proxy before a real one adds fields to every object of an answer, and replaces words and
//! variants by such as this version does not know.

use std::sync::Arc;
use std::time::Duration;

use ff_server::Settings;
use ff_store::memory::MemoryStore;
use flowfabric::op::{ListSteps, create_budget, list_steps};
use flowfabric::{
    BlockingReason, Client, Code, FailOutcome, FlowFabricWorker, Frame, Limits, PublicState, StreamEvent,
    SuspendReason, SuspendRequest, TaskContext, WorkerConfig, WorkerRuntime,
};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Running, within};

/// Words and their successors. The proxy changes answers alone, so that the server never meets them.
const WORDS: &[(&str, &str)] = &[
    ("waiting", "resting"),
    ("completed", "done_and_dusted"),
    ("suspended", "hibernating"),
    ("waiting_for_worker", "waiting_for_the_moon"),
    ("waiting_for_signal", "waiting_for_a_sign"),
    ("initial", "fresh"),
    ("eligible_now", "eligible_today"),
    ("unowned", "orphaned"),
    ("success", "triumph"),
    ("block", "frown"),
    ("terminal_failed", "failed_for_ever"),
    ("budget_not_found", "budget_on_the_moon"),
];

/// Fields that hold such words; anything else is a user's text.
const FIELDS: &[&str] = &[
    "public_state",
    "blocking_reason",
    "reason",
    "type",
    "attempt_type",
    "outcome",
    "kind",
    "eligibility_state",
    "ownership_state",
    "terminal_outcome",
    "attempt_state",
    "lifecycle_phase",
    "on_hard",
    "code",
    "claim_kind",
];

/// Fields that hold maps by names of users: they get no new fields.
const MAPS: &[&str] =
    &["tags", "dimensions", "usage", "reserved", "standing", "granted", "estimate", "details", "executions"];

/// Makes the value of a field newer; an answer is the value of a field without a name.
fn grow(field: &str, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(name, value)| grow(name, value));
            if !MAPS.contains(&field) {
                fields.insert("of_a_newer_version".into(), json!({ "more": [1] }));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| grow(field, item)),
        Value::String(word) if FIELDS.contains(&field) => {
            if let Some((_, newer)) = WORDS.iter().find(|(old, _)| *old == word) {
                *word = (*newer).to_owned();
            }
        }
        _ => {}
    }
}

/// One line of a stream of events.
fn grown_line(line: &str) -> String {
    let Some(mut data) = line.strip_prefix("data: ").and_then(|data| serde_json::from_str(data).ok()) else {
        return line.to_owned();
    };
    grow("", &mut data);
    format!("data: {data}\n")
}

/// Passes requests on as they are, and answers as a newer server would give them.
async fn newer(server: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let upstream = TcpStream::connect(&server).await.unwrap();
            let (mut from_client, to_client) = client.into_split();
            let (from_server, mut to_server) = upstream.into_split();
            tokio::spawn(async move {
                let requests = tokio::io::copy(&mut from_client, &mut to_server);
                tokio::select! {
                    _ = requests => {}
                    _ = answers(BufReader::new(from_server), to_client) => {}
                }
            });
        }
    });
    url
}

async fn answers(mut server: BufReader<OwnedReadHalf>, mut client: OwnedWriteHalf) -> std::io::Result<()> {
    loop {
        let (mut head, mut length, mut chunked) = (Vec::new(), 0, false);
        loop {
            let mut line = String::new();
            if server.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let lower = line.to_ascii_lowercase();
            match lower.strip_prefix("content-length:") {
                Some(number) => length = number.trim().parse().unwrap(),
                None if lower.trim().is_empty() => break,
                None => head.push(line),
            }
            chunked |= lower.starts_with("transfer-encoding:");
        }
        client.write_all(head.concat().as_bytes()).await?;
        if chunked {
            client.write_all(b"\r\n").await?;
            stream(&mut server, &mut client).await?;
            continue;
        }
        let mut body = vec![0; length];
        server.read_exact(&mut body).await?;
        if let Ok(mut answer) = serde_json::from_slice::<Value>(&body) {
            grow("", &mut answer);
            body = answer.to_string().into_bytes();
        }
        let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        client.write_all(format!("{length}\r\n").as_bytes()).await?;
        client.write_all(&body).await?;
    }
}

/// A body in chunks: each holds whole events.
async fn stream(server: &mut BufReader<OwnedReadHalf>, client: &mut OwnedWriteHalf) -> std::io::Result<()> {
    loop {
        let mut size = String::new();
        server.read_line(&mut size).await?;
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        server.read_exact(&mut chunk).await?;
        let text: String = std::str::from_utf8(&chunk[..size]).unwrap().split_inclusive('\n').map(grown_line).collect();
        client.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
        if size == 0 {
            return Ok(());
        }
    }
}

/// A server, an operator who sees it as it is, and a client that sees it as a newer one.
async fn deployment() -> (Running, Client, Client) {
    let server = Running::start(Settings::default(), Arc::new(MemoryStore::new())).await;
    let operator = Client::connect(&server.url).await.unwrap();
    let client = Client::connect(&newer(server.url.strip_prefix("http://").unwrap().to_owned()).await).await.unwrap();
    (server, operator, client)
}

#[tokio::test]
async fn new_words_are_kept_wherever_an_answer_has_them() {
    let (server, operator, client) = deployment().await;
    let execution = within(client.submit("k").input(&1).send()).await.unwrap();
    let view = within(execution.get()).await.unwrap();
    assert_eq!((view.public_state.as_str(), view.public_state.is_terminal()), ("resting", false));
    assert_eq!(view.state.blocking_reason.as_str(), "waiting_for_the_moon");
    assert!(matches!(view.state.blocking_reason, BlockingReason::Unknown(_)));
    let listed = within(client.list_all(Default::default())).await.unwrap();
    assert_eq!((listed.len(), listed[0].public_state.as_str()), (1, "resting"));
    assert!(!within(execution.explain()).await.unwrap().reasons.is_empty());
    let worker = FlowFabricWorker::connect(&client, WorkerConfig::new("w")).await.unwrap();
    let task = within(worker.claim_next()).await.unwrap().unwrap();
    within(task.append_frame(Frame::text("t", "a"))).await.unwrap();
    within(task.renew_lease()).await.unwrap();
    within(task.suspend(SuspendRequest::for_signal("go", SuspendReason::Signal))).await.unwrap();
    assert_eq!(within(execution.state()).await.unwrap().as_str(), "hibernating");
    assert_eq!(within(execution.pending_waitpoints()).await.unwrap().len(), 1);
    within(execution.signal("go").send()).await.unwrap();
    let task = within(worker.claim_next()).await.unwrap().unwrap();
    within(task.complete(&2)).await.unwrap();
    // The server says by itself that the execution has ended.
    let ended = within(execution.wait()).await.unwrap();
    assert_eq!(ended.public_state.as_str(), "done_and_dusted");
    assert_eq!(execution.attempts().await.unwrap().len(), 1);
    let events: Vec<StreamEvent> = within(execution.tail().map(Result::unwrap).collect()).await;
    assert!(matches!(events.last(), Some(StreamEvent::End { public_state: PublicState::Unknown(_) })), "{events:?}");
    assert_eq!(within(operator.execution(execution.id()).state()).await.unwrap(), PublicState::Completed);
    within(worker.stop(Duration::ZERO)).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_worker_of_today_serves_a_server_of_tomorrow() {
    let (server, operator, client) = deployment().await;
    let handler = |ctx: TaskContext, number: i64| async move {
        let doubled: i64 = ctx.step("double", move || async move { Ok(number * 2) }).await?;
        let more: i64 = ctx.wait_signal("more").await?;
        Ok(doubled + more)
    };
    let worker = WorkerRuntime::new(WorkerConfig::new("w")).register("k", handler).start(&client).await.unwrap();
    let execution = within(client.submit("k").input(&20).send()).await.unwrap();
    within(execution.signal("more").payload(&2).send()).await.unwrap();
    let seen = operator.execution(execution.id());
    assert_eq!(within(seen.result::<i64>()).await.unwrap(), 42);
    let args = list_steps::Args { execution_id: execution.id(), generation: None, after: None, limit: None };
    assert!(!within(client.call::<ListSteps>(args)).await.unwrap().items.is_empty());
    within(worker.stop()).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn new_outcomes_and_codes_are_kept() {
    let (server, operator, client) = deployment().await;
    let dimensions = [("tokens".to_owned(), Limits { hard: 5, ..Default::default() })].into();
    let args = create_budget::Args { name: "b".into(), dimensions, ..Default::default() };
    within(operator.create_budget(args)).await.unwrap();
    let budget = within(client.budget("b")).await.unwrap();
    assert_eq!(budget.definition.on_hard.as_str(), "frown");
    let error = within(client.budget("none")).await.unwrap_err();
    assert!(error.to_string().contains("budget_on_the_moon") && error.code() != Some(Code::BudgetNotFound), "{error}");
    let execution = within(client.submit("k").max_retries(0).send()).await.unwrap();
    let worker = FlowFabricWorker::connect(&client, WorkerConfig::new("w")).await.unwrap();
    let task = within(worker.claim_next()).await.unwrap().unwrap();
    let outcome = within(task.fail("no", "broken")).await.unwrap();
    let FailOutcome::Unknown(variant) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(variant.field::<String>("outcome").as_deref(), Some("failed_for_ever"));
    assert_eq!(within(operator.execution(execution.id()).state()).await.unwrap(), PublicState::Failed);
    within(worker.stop(Duration::ZERO)).await.unwrap();
    server.stop().await;
}
