//! Frames: how many a second can be appended, and how soon many viewers of one stream see them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use flowfabric::{ClaimedTask, Client, FlowFabricWorker, Frame, StreamEvent, WorkerConfig};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::run::Run;
use crate::work::{per_second, take_one};

/// Attempts that append at once.
const ATTEMPTS: [usize; 2] = [1, 100];
/// Frames that all viewers see, and the time between them: viewers have to keep up, or a backlog would be measured.
const SEEN: usize = 50;
const PAUSE: Duration = Duration::from_millis(50);
/// About a token of text.
const TEXT: &str = " token ";
/// How long the slowest viewer may take.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Appends and views.
pub(crate) async fn stream(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let frames = run.arguments.tasks;
    let most = ATTEMPTS.into_iter().max().unwrap_or(1);
    let worker =
        FlowFabricWorker::connect(&subject.client, WorkerConfig::new("bench").max_concurrent_tasks(most)).await?;
    for attempts in ATTEMPTS {
        for (way, per_call) in [(Way::Calls, "one"), (Way::Writer, "what gathers")] {
            run.progress(&format!("{frames} frames by {attempts} attempts, in a call: {per_call}"));
            let (took, tasks) = send(claim(&worker, attempts).await?, frames, way).await?;
            let figures = Figures::new().with("attempts", attempts).with("frames_per_call", per_call);
            run.report(figures.measured("frames_per_s", per_second(frames, took)))?;
            finish(tasks).await?;
        }
    }
    let viewers = run.arguments.viewers;
    run.progress(&format!("{viewers} viewers of one stream"));
    let tasks = claim(&worker, 1).await?;
    let mut latencies = view(&subject.client, &tasks[0], viewers).await?;
    run.report(Figures::new().with("viewers", viewers).with("frames", SEEN).latency(&mut latencies))?;
    finish(tasks).await?;
    worker.stop(Duration::from_secs(1)).await?;
    subject.close().await
}

/// Submits and claims so many tasks.
async fn claim(worker: &FlowFabricWorker, count: usize) -> Result<Vec<ClaimedTask>> {
    for _ in 0..count {
        worker.client().submit("bench").send().await?;
    }
    let mut tasks = Vec::new();
    while tasks.len() < count {
        tasks.extend(worker.claim_up_to(count - tasks.len()).await?);
    }
    Ok(tasks)
}

async fn finish(tasks: Vec<ClaimedTask>) -> Result<()> {
    for task in tasks {
        task.complete(&()).await?;
    }
    Ok(())
}

/// How frames travel.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// A call for each.
    Calls,
    /// Through a writer, which sends what gathers.
    Writer,
}

/// Sends so many frames, as fast as the attempts can.
async fn send(tasks: Vec<ClaimedTask>, frames: usize, way: Way) -> Result<(Duration, Vec<ClaimedTask>)> {
    let left = Arc::new(AtomicUsize::new(frames));
    let mut sending: JoinSet<Result<ClaimedTask>> = JoinSet::new();
    let began = Instant::now();
    for task in tasks {
        let left = left.clone();
        sending.spawn(async move {
            let frame = || Frame::text("token", TEXT);
            match way {
                Way::Calls => {
                    while take_one(&left) {
                        task.append_frame(frame()).await?;
                    }
                }
                Way::Writer => {
                    let writer = task.frame_writer();
                    while take_one(&left) {
                        writer.write(frame()).await?;
                    }
                    writer.finish().await?;
                }
            }
            Ok(task)
        });
    }
    let mut tasks = Vec::new();
    while let Some(task) = sending.join_next().await {
        tasks.push(task??);
    }
    Ok((began.elapsed(), tasks))
}

/// From the call that appends a frame until each viewer has it.
async fn view(client: &Client, task: &ClaimedTask, viewers: usize) -> Result<Latencies> {
    let (seen, mut sightings) = mpsc::unbounded_channel();
    let mut viewing: JoinSet<Result<()>> = JoinSet::new();
    for _ in 0..viewers {
        let (seen, mut tail) = (seen.clone(), client.execution(task.execution_id()).tail());
        viewing.spawn(async move {
            while let Some(event) = tail.next().await {
                if let StreamEvent::Frame(_) = event?
                    && seen.send(Instant::now()).is_err()
                {
                    break;
                }
            }
            Ok(())
        });
    }
    drop(seen);
    let mut latencies = Latencies::default();
    // The first frame tells that all viewers are there, and is not measured.
    for number in 0..=SEEN {
        let began = Instant::now();
        task.append_frame(Frame::text("token", TEXT)).await?;
        for _ in 0..viewers {
            let sighting = tokio::time::timeout(WAIT_MAX, sightings.recv()).await;
            let at = sighting.ok().flatten().ok_or("a viewer does not see a frame")?;
            if number > 0 {
                latencies.record(at.duration_since(began));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    drop(sightings);
    viewing.abort_all();
    Ok(latencies)
}
