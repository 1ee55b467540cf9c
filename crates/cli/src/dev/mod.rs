//! `ff dev`: a server for trying things out, in this process, with a demo.
//!
//! `demo` submits a flow and tells what happens to it, `work` is what the demo's worker does, `scenery` is what else there
//! is to see, `narrator` is the voice.

mod demo;
mod narrator;
mod scenery;
mod work;

use std::io::BufRead;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use ff_server::{Config, Server, Settings};
use flowfabric::{CancellationToken, Client, SdkError};
use tracing_subscriber::EnvFilter;

use crate::command::runtime_of;
use crate::failure::{Failure, Result};
use crate::output::{Format, Output, When};
use crate::stop::Stop;
use narrator::Narrator;

/// Where things are kept by default; beside the work, and easy to throw away.
const FOLDER: &str = "flowfabric-dev";
const DEFAULT_LISTEN: &str = "127.0.0.1:7171";

/// The arguments of `ff dev`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff dev                                  a server on ./flowfabric-dev
  ff dev --demo                           the same, with a worker and a flow that waits for your approval
  ff dev --demo --open                    and show it in a browser
  ff dev --demo --memory                  leave nothing behind
  ff dev --demo --auto-approve --exit-when-done
  ff dev --listen 0.0.0.0:7171            in a container: makes up a token and prints it
  ff dev --memory --test-clock            for tests: time passes only by POST /v1/test/clock")]
pub(crate) struct Arguments {
    /// Run a worker and a flow that fans out, streams, asks for an approval and spends a budget
    #[arg(long)]
    demo: bool,
    /// Where to keep things [default: sqlite://./flowfabric-dev/flowfabric.db]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Keep things in memory only
    #[arg(long, conflicts_with = "store")]
    memory: bool,
    /// Let time stand still until a test moves it: POST /v1/test/clock {"advance_ms": 60000}
    #[arg(long, requires = "memory", conflicts_with_all = ["demo", "store"])]
    test_clock: bool,
    /// Address and port [default: 127.0.0.1:7171, or a free port when that one is taken]. Where others reach it, callers need
    /// the token in FF_API_TOKEN, or one that is made up and printed
    #[arg(long, env = "FF_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Open the dashboard in a browser
    #[arg(long)]
    open: bool,
    /// Approve without asking
    #[arg(long, requires = "demo")]
    auto_approve: bool,
    /// End when the demo has ended
    #[arg(long, requires = "demo")]
    exit_when_done: bool,
    /// The level of the server's log: error, warn, info, debug
    #[arg(long, value_name = "LEVEL", default_value = "error")]
    log_level: String,
    /// When to use colours
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    color: When,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    // People count from when they pressed Enter.
    let started = Instant::now();
    let out = Output::new(Format::Table, arguments.color);
    let runtime = runtime_of(ff_server::default_threads());
    match runtime.and_then(|runtime| runtime.block_on(serve(arguments, out, started))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            out.failure(&failure);
            ExitCode::from(failure.exit_code)
        }
    }
}

async fn serve(arguments: Arguments, out: Output, started: Instant) -> Result<()> {
    start_logs(&arguments.log_level)?;
    let mut stop = Stop::listen()?;
    let reachable = arguments.listen.is_some_and(|listen| !listen.ip().is_loopback());
    let given = std::env::var("FF_API_TOKEN").ok().filter(|token| reachable && !token.is_empty());
    let made_up = (reachable && given.is_none()).then(make_up_token);
    let config = configure(&arguments, given.or(made_up.clone()))?;
    // How it is kept, behind the question mark, is no news here.
    let store = ff_stores::redacted(&config.store).split('?').next().unwrap_or_default().to_owned();
    let server = match arguments.test_clock {
        true => Server::start_on_test_clock(config).await,
        false => Server::start(config).await,
    };
    let server = server.map_err(|error| cannot_start(error, &arguments))?;
    let client = Client::connect_with(server.engine().clone()).await?;
    let narrator = Narrator::new(out.style(), format!("http://{}", server.address()));
    narrator.ready(&store, started.elapsed());
    if let Some(token) = &made_up {
        narrator.made_up_token(token);
    }
    if arguments.open {
        browse(narrator.address());
    }

    let over = CancellationToken::new();
    let serving = tokio::spawn(server.run(over.clone().cancelled_owned()));
    let ended = attend(&arguments, &client, &narrator, started, &mut stop).await;
    over.cancel();
    let _ = serving.await;
    ended
}

/// Plays the demo beside the server, where it is asked for, and waits for the end.
async fn attend(
    arguments: &Arguments,
    client: &Client,
    narrator: &Narrator,
    started: Instant,
    stop: &mut Stop,
) -> Result<()> {
    if arguments.demo {
        let worker = work::start(client).await?;
        let told = tokio::select! {
            biased;
            _ = stop.requested() => None,
            told = demo::tell(client, narrator, started, arguments.auto_approve) => Some(told),
        };
        match told {
            Some(Ok(())) if !arguments.exit_when_done => {
                narrator.goes_on();
                stop.requested().await;
            }
            Some(Err(failure)) => return Err(failure),
            Some(Ok(())) | None => {}
        }
        return Ok(worker.stop().await?);
    }
    narrator.hints();
    stop.requested().await;
    Ok(())
}

/// A token for an address that others can reach: a port of a container is such an address.
fn make_up_token() -> String {
    (0..2).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect()
}

fn configure(arguments: &Arguments, api_token: Option<String>) -> Result<Config> {
    let listen = match arguments.listen {
        Some(listen) => listen.to_string(),
        // Trying is the only way to know; another program may still come between, and is then told so.
        None if TcpListener::bind(DEFAULT_LISTEN).is_ok() => DEFAULT_LISTEN.to_owned(),
        None => "127.0.0.1:0".to_owned(),
    };
    let store = match &arguments.store {
        Some(store) => store.clone(),
        None if arguments.memory => "memory://".to_owned(),
        None => {
            let path = Path::new(FOLDER);
            std::fs::create_dir_all(path)
                .map_err(|error| Failure::usage(format!("{} cannot be made: {error}", path.display())))?;
            format!("sqlite://./{FOLDER}/flowfabric.db")
        }
    };
    let settings = Settings { store: Some(store), listen: Some(listen), api_token, ..Settings::default() };
    Config::resolve(settings, Settings::default()).map_err(|error| Failure::usage(error.to_string()))
}

fn cannot_start(error: ff_core::Error, arguments: &Arguments) -> Failure {
    let own = arguments.store.is_none() && !arguments.memory;
    let failure = Failure::from(SdkError::Refused(error));
    if own {
        failure.advice("Is another `ff dev` running here? Stop it, or try --memory or another --store.")
    } else {
        failure
    }
}

fn start_logs(level: &str) -> Result<()> {
    let filter = EnvFilter::try_new(level).map_err(|error| Failure::usage(format!("--log-level: {error}")))?;
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    Ok(())
}

/// Opens an address in the browser of this machine. Where there is none, the address that was printed is enough.
fn browse(address: &str) {
    let (program, arguments): (&str, &[&str]) = match std::env::consts::OS {
        "macos" => ("open", &[]),
        "windows" => ("cmd", &["/c", "start"]),
        _ => ("xdg-open", &[]),
    };
    let mut command = std::process::Command::new(program);
    command.args(arguments).arg(address);
    let silent = std::process::Stdio::null;
    let opened = command.stdin(silent()).stdout(silent()).stderr(silent()).spawn();
    if let Err(error) = opened {
        eprintln!("no browser could be opened ({program}: {error}); the dashboard is at {address}");
    }
}

/// Ends when Enter is pressed. A thread of its own, because nothing can take back a read from a terminal; it ends with
/// the process.
fn enter_pressed() -> tokio::sync::oneshot::Receiver<()> {
    let (pressed, waiting) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        if matches!(std::io::stdin().lock().read_line(&mut line), Ok(1..)) {
            let _ = pressed.send(());
        }
    });
    waiting
}
