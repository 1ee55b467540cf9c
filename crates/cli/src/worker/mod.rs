//! `ff worker -- PROGRAM`: any program is a worker.
//!
//! The loop claims tasks with the SDK's worker and runs each one's program (`run`): `program` starts it, `words` turns its
//! standard error into frames, `socket` takes its `ff task` calls, `ending` reads its exit status.

mod ending;
mod notebook;
mod program;
mod run;
mod socket;
mod words;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flowfabric::{FlowFabricWorker, SdkError, ToolDefinition, WorkerConfig};
use tokio::task::JoinSet;

use crate::failure::{Failure, Result};
use crate::output::{Colour, Output, Style};
use crate::session::Session;
use crate::span;
use crate::stop::Stop;

pub(crate) use ending::TABLE;

/// How long a worker that ends tries to say so.
const FAREWELL: Duration = Duration::from_secs(3);

/// The arguments of running a program.
#[derive(Debug, clap::Args)]
pub(crate) struct Launch {
    /// A lane to take work from; may be repeated [default: default]
    #[arg(long = "lane", value_name = "LANE")]
    lanes: Vec<String>,
    /// A kind of work the program does; may be repeated. Other kinds are left to other workers [default: all]
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// A file that describes a kind of the program to agents, as JSON: kind, description, input_schema; may be repeated
    #[arg(long = "tool", value_name = "FILE")]
    tools: Vec<PathBuf>,
    /// How many programs at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    concurrency: usize,
    /// A capability of the program, for work that requires it; may be repeated
    #[arg(long = "capability", value_name = "NAME")]
    capabilities: Vec<String>,
    /// The name of the worker [default: the program's name]
    #[arg(long)]
    name: Option<String>,
    /// The type of the result [default: JSON if it is JSON, otherwise text or bytes]
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// After a crash of the worker, others take over in this time
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = span::parse)]
    lease_ttl: i64,
    /// How long a program may take after SIGTERM, before SIGKILL
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = span::parse)]
    grace: i64,
    /// How long programs may go on when the worker is told to stop
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = span::parse)]
    drain: i64,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The settings that the tasks of a worker share.
struct Settings {
    program: Vec<OsString>,
    content_type: Option<String>,
    grace: Duration,
    /// Where sockets are.
    folder: PathBuf,
    /// The search path of programs.
    path: Option<OsString>,
    /// The server's address, if there is one.
    server: Option<String>,
}

/// Runs programs until it is told to stop.
pub(crate) async fn run(session: Session, arguments: Launch) -> Result<()> {
    let stop = Stop::listen()?;
    if let Some(program) = arguments.program.first().filter(|program| program::find(program).is_none()) {
        return Err(Failure::usage(format!("{} cannot be run: there is no such program", program.display()))
            .advice("Name a program that is on the path, or give its path: ff worker -- ./transcode.sh."));
    }
    let session = session.patient().await?;
    let folder = socket::private_folder().map_err(|error| Failure::usage(format!("no temporary folder: {error}")))?;
    let worker = FlowFabricWorker::connect(&session.client, arguments.config()?).await?;
    let drain = span_of(arguments.drain);
    session.out.note(&announcement(&arguments, &worker, &session.address()));
    let settings = Arc::new(arguments.settings(&session, folder.path()));
    work(&worker, &settings, session.out, stop, drain).await
}

async fn work(
    worker: &FlowFabricWorker,
    settings: &Arc<Settings>,
    out: Output,
    mut stop: Stop,
    drain: Duration,
) -> Result<()> {
    let mut tasks = JoinSet::new();
    let ended = tokio::select! {
        biased;
        _ = stop.requested() => Ok(()),
        ended = claim(worker, settings, out, &mut tasks) => ended,
    };
    if !tasks.is_empty() {
        out.note("ff worker: stopping; programs may finish, once more stops them");
    }
    let timeout = if tasks.is_empty() { FAREWELL } else { drain + FAREWELL };
    let stopped = tokio::select! {
        biased;
        _ = stop.requested() => tokio::time::timeout(FAREWELL, worker.stop(Duration::ZERO)).await,
        stopped = tokio::time::timeout(timeout, worker.stop(drain)) => stopped,
    };
    // Programs whose tasks were handed back are told to stop, and get their grace.
    while tasks.join_next().await.is_some() {}
    match stopped {
        Ok(stopped) => ended.and(stopped.map_err(Failure::from)),
        Err(_) => {
            out.note("ff worker: the server does not hear that it has ended; its registration runs out by itself");
            ended
        }
    }
}

/// Claims and starts until something forbids it.
async fn claim(
    worker: &FlowFabricWorker,
    settings: &Arc<Settings>,
    out: Output,
    tasks: &mut JoinSet<()>,
) -> Result<()> {
    let mut arriving = worker.tasks();
    loop {
        while tasks.try_join_next().is_some() {}
        match arriving.next().await {
            Ok(claimed) => {
                for task in claimed {
                    let settings = settings.clone();
                    tasks.spawn(async move {
                        let report = run::run(task, &settings).await;
                        // A line that is not read is no loss: the server knows all the same.
                        let _ = out.line(&report, |style| text(&report, style));
                    });
                }
                if worker.stopping().is_cancelled() {
                    return Err(Failure::new(
                        4,
                        "duplicate_worker_instance",
                        "another process has taken this worker's place",
                    ));
                }
            }
            Err(error) if is_passing(&error) => out.note(&format!("ff worker: {error}; trying again")),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether waiting may help.
fn is_passing(error: &SdkError) -> bool {
    match error {
        SdkError::Unreachable(_) => true,
        SdkError::Refused(error) => error.code.retryable(),
        _ => false,
    }
}

impl Launch {
    fn config(&self) -> Result<WorkerConfig> {
        let name = self.name.clone().unwrap_or_else(|| self.program_name());
        let mut config = WorkerConfig::new(name)
            .capabilities(self.capabilities.iter().cloned())
            .kinds(self.kinds.iter().cloned())
            .max_concurrent_tasks(self.concurrency)
            .lease_ttl(span_of(self.lease_ttl))
            .version(env!("CARGO_PKG_VERSION"));
        if !self.lanes.is_empty() {
            config = config.lanes(self.lanes.iter().cloned());
        }
        for file in &self.tools {
            config = config.tool(read_tool(file)?);
        }
        Ok(config)
    }

    /// The program's file name, where it makes a name for a worker.
    fn program_name(&self) -> String {
        let name = self.program.first().and_then(|program| Path::new(program).file_name()?.to_str());
        let name: String = name.unwrap_or("program").chars().filter(char::is_ascii_graphic).take(64).collect();
        if name.is_empty() { "program".to_owned() } else { name }
    }

    fn settings(self, session: &Session, folder: &Path) -> Settings {
        Settings {
            program: self.program,
            content_type: self.content_type,
            grace: span_of(self.grace),
            folder: folder.to_owned(),
            path: program::search_path(),
            server: session.client.engine().is_none().then(|| session.address()),
        }
    }
}

fn read_tool(file: &Path) -> Result<ToolDefinition> {
    let refused = |why: String| {
        Failure::usage(format!("{} describes no tool: {why}", file.display()))
            .advice(r#"It is JSON: {"kind": "...", "description": "...", "input_schema": {"type": "object", ...}}."#)
    };
    let text = std::fs::read_to_string(file).map_err(|error| refused(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| refused(error.to_string()))
}

fn span_of(span_ms: i64) -> Duration {
    Duration::from_millis(span_ms.unsigned_abs())
}

fn announcement(arguments: &Launch, worker: &FlowFabricWorker, address: &str) -> String {
    let lanes: Vec<&str> = worker.config().lanes.iter().map(String::as_str).collect();
    let kinds = if arguments.kinds.is_empty() { "all kinds".to_owned() } else { arguments.kinds.join(", ") };
    format!(
        "ff worker: {} does {kinds} in lane {}, {} at once, for {address}",
        arguments.program_name(),
        lanes.join(", "),
        arguments.concurrency
    )
}

fn text(report: &run::Report, style: Style) -> String {
    let colour = match report.outcome {
        "completed" => Colour::Green,
        "failed" => Colour::Red,
        "lost" | "untold" | "retry_scheduled" => Colour::Yellow,
        _ => Colour::Magenta,
    };
    let took = span::show(i64::try_from(report.duration_ms).unwrap_or(i64::MAX));
    let detail = report.detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
    let outcome = style.paint(colour, report.outcome);
    format!("{} {} attempt {} {outcome} after {took}{detail}", report.execution_id, report.kind, report.attempt)
}
