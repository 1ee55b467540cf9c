//! The dashboard: how long the calls of its screens take over many executions, and what open ones cost while they are
//! not touched.

mod deployment;
mod screen;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::deployment::Deployment;
use self::screen::{Screen, screens};
use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::load::Meter;
use crate::run::Run;
use crate::subject::Subject;

/// Dashboards that are open at once.
const DASHBOARDS: usize = 10;
/// A browser has so many connections to one server.
const CONNECTIONS: usize = 6;
/// The server shares a count for two seconds; a pause of this length makes the next one a count of its own.
const COUNTS_SHARED: Duration = Duration::from_millis(2_100);
/// How often a dashboard in front of a person asks for the counts.
const POLL: Duration = Duration::from_secs(10);
/// The cost of opening the dashboards is over by then.
const SETTLED: Duration = Duration::from_secs(2);

/// Fills a store, opens the screens one after another, then lets dashboards stay open.
pub(crate) async fn dashboard(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let deployment = Deployment::fill(run, &subject.client).await?;
    open_screens(run, &subject, &deployment).await?;
    deployment.stop().await?;
    stay_open(run, &subject).await?;
    subject.close().await
}

/// The time that opening one screen took.
#[derive(Default)]
struct Opened {
    calls: Latencies,
    whole: Latencies,
}

/// Opens every screen in turn for as long as the scenario lasts. Each turn begins with another screen, so that each of those
/// that show counts waits for a fresh one as often as the others do.
async fn open_screens(run: &Run<'_>, subject: &Subject, deployment: &Deployment) -> Result<()> {
    let screens = screens(deployment);
    let lasts = Duration::from_secs(run.arguments.seconds_or(60).into());
    let mut opened: Vec<Opened> = screens.iter().map(|_| Opened::default()).collect();
    let began = Instant::now();
    let mut turn = 0;
    while turn == 0 || began.elapsed() < lasts {
        run.progress(&format!("opening {} screens for {} s", screens.len(), lasts.as_secs()));
        tokio::time::sleep(COUNTS_SHARED).await;
        for number in 0..screens.len() {
            let at = (turn + number) % screens.len();
            let began = Instant::now();
            opened[at].calls.add(open(subject, &screens[at]).await?);
            opened[at].whole.record(began.elapsed());
        }
        turn += 1;
    }
    for (screen, opened) in screens.iter().zip(&mut opened) {
        let figures = Figures::new()
            .with("executions", run.arguments.tasks)
            .with("screen", screen.name)
            .with("calls", screen.calls.len())
            .with("times", turn)
            .latency(&mut opened.calls)
            .measured("whole_p50_ms", opened.whole.percentile_ms(50))
            .measured("whole_p95_ms", opened.whole.percentile_ms(95));
        run.report(figures)?;
    }
    Ok(())
}

/// Makes the calls of a screen as a browser does; says how long each of them took once it was sent.
async fn open(subject: &Subject, screen: &Screen) -> Result<Latencies> {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let mut calling: JoinSet<Result<Duration>> = JoinSet::new();
    for (operation, args) in screen.calls.clone() {
        let (client, connections) = (subject.client.clone(), connections.clone());
        calling.spawn(async move {
            let _one = connections.acquire().await.map_err(|closed| closed.to_string())?;
            let began = Instant::now();
            client.call_json(operation, args).await?;
            Ok(began.elapsed())
        });
    }
    let mut latencies = Latencies::default();
    while let Some(took) = calling.join_next().await {
        latencies.record(took??);
    }
    Ok(latencies)
}

/// Calls to the store without a dashboard, with some that are not touched, and with some in front of a person.
async fn stay_open(run: &Run<'_>, subject: &Subject) -> Result<()> {
    let seconds = run.arguments.seconds_or(60);
    let meter = Meter::new(std::slice::from_ref(subject)).await?;
    for (dashboards, looked_at) in [(0, false), (DASHBOARDS, false), (DASHBOARDS, true)] {
        let mut open = JoinSet::new();
        for _ in 0..dashboards {
            follow_events(subject, &mut open).await?;
            if looked_at {
                poll_counts(subject, &mut open);
            }
        }
        tokio::time::sleep(SETTLED).await;
        let before = meter.read().await?;
        run.pass(&format!("{dashboards} dashboards are open"), seconds).await;
        let after = meter.read().await?;
        let figures = Figures::new()
            .with("executions", run.arguments.tasks)
            .with("dashboards", dashboards)
            .with("looked_at", looked_at)
            .with("seconds", seconds);
        run.report(after.rates(before, seconds, figures))?;
        if !looked_at && open.len() != dashboards {
            return Err("the server ended a stream of events".into());
        }
        open.abort_all();
        // Tasks that are aborted end with an error by design.
        while open.join_next().await.is_some() {}
    }
    Ok(())
}

/// The one connection that an open dashboard holds. It is there once the server has answered.
async fn follow_events(subject: &Subject, open: &mut JoinSet<Result<()>>) -> Result<()> {
    let address = subject.address.ok_or("a dashboard needs a server")?;
    let mut connection = TcpStream::connect(address).await?;
    let request =
        format!("GET /v1/events?cursor=now&limit=100 HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = vec![0; 4_096];
    let length = connection.read(&mut answer).await?;
    if !answer[..length].starts_with(b"HTTP/1.1 200") {
        return Err("the server refuses a stream of events".into());
    }
    open.spawn(async move {
        while connection.read(&mut answer).await? > 0 {}
        Err("the server ended a stream of events".into())
    });
    Ok(())
}

/// The calls that a dashboard makes by the clock while a person is there.
fn poll_counts(subject: &Subject, open: &mut JoinSet<Result<()>>) {
    let client = subject.client.clone();
    open.spawn(async move {
        loop {
            tokio::time::sleep(POLL).await;
            client.call_json("get_counts", json!({})).await?;
        }
    });
}
