//! The commands, one file each.

pub(crate) mod approve;
pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod budget;
pub(crate) mod bulk;
pub(crate) mod call;
pub(crate) mod cancel;
pub(crate) mod change;
pub(crate) mod completions;
pub(crate) mod count;
pub(crate) mod decide;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod exit_codes;
pub(crate) mod explain;
pub(crate) mod flow;
pub(crate) mod fork;
pub(crate) mod get;
pub(crate) mod hook;
pub(crate) mod lane;
pub(crate) mod ls;
pub(crate) mod mcp;
pub(crate) mod profile;
pub(crate) mod provider;
pub(crate) mod quota;
pub(crate) mod replay;
pub(crate) mod result;
pub(crate) mod rotate_secret;
pub(crate) mod schedule;
pub(crate) mod server;
pub(crate) mod signal;
pub(crate) mod steps;
pub(crate) mod submit;
pub(crate) mod subscription;
pub(crate) mod tail;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod wait;
pub(crate) mod whoami;
pub(crate) mod worker;

use std::pin::Pin;
use std::process::ExitCode;

use crate::arguments::{Command, Targeted};
use crate::failure::{Failure, Result};
use crate::session::Session;
use crate::target::Target;

/// Runs a command to its exit code.
pub(crate) fn run(command: Command) -> ExitCode {
    match command {
        Command::Server(arguments) => server::run(*arguments),
        Command::Task(arguments) => crate::task::run(arguments),
        Command::Dev(arguments) => crate::dev::run(arguments),
        Command::Completions(arguments) => completions::run(arguments),
        Command::Bench(arguments) => bench::run(*arguments),
        Command::ExitCodes(_) => exit_codes::run(),
        Command::Submit(it) => connected(*it, submit::run),
        Command::Ls(it) => connected(*it, ls::run),
        Command::Count(it) => connected(*it, count::run),
        Command::Top(it) => connected(*it, top::run),
        Command::Get(it) => connected(*it, get::run),
        Command::Explain(it) => connected(*it, explain::run),
        Command::Result(it) => connected(*it, result::run),
        Command::Wait(it) => connected(*it, wait::run),
        Command::Tail(it) => connected(*it, tail::run),
        Command::Cancel(it) => connected(*it, cancel::run),
        Command::Replay(it) => connected(*it, replay::run),
        Command::Hold(it) => connected(*it, change::hold),
        Command::Release(it) => connected(*it, change::release),
        Command::Resume(it) => connected(*it, change::resume),
        Command::Priority(it) => connected(*it, change::priority),
        Command::Tag(it) => connected(*it, change::tag),
        Command::Rm(it) => connected(*it, change::remove),
        Command::Signal(it) => connected(*it, signal::run),
        Command::Approvals(it) => connected(*it, approve::list),
        Command::Approve(it) => connected(*it, approve::approve),
        Command::Reject(it) => connected(*it, approve::reject),
        Command::Flow(it) => match it.own.check() {
            // Looking for mistakes needs no deployment.
            Some(file) => conclude(flow::check(&it.target.output(), file), &it.target),
            None => connected(*it, flow::run),
        },
        Command::Budget(it) => connected(*it, budget::run),
        Command::Provider(it) => connected(*it, provider::run),
        Command::Quota(it) => connected(*it, quota::run),
        Command::Schedule(it) => connected(*it, schedule::run),
        Command::Bulk(it) => connected(*it, bulk::run),
        Command::Subscription(it) => connected(*it, subscription::run),
        Command::Hook(it) => connected(*it, hook::run),
        Command::Lane(it) => connected(*it, lane::run),
        Command::Worker(it) => connected(*it, worker::run),
        Command::Mcp(it) => connected(*it, mcp::run),
        Command::Token(it) => connected(*it, token::run),
        Command::Whoami(it) => connected(*it, whoami::run),
        Command::Profile(it) => conclude(profile::run(&it.target.output(), &it.own), &it.target),
        Command::RotateSecret(it) => connected(*it, rotate_secret::run),
        Command::Steps(it) => connected(*it, steps::run),
        Command::Decide(it) => connected(*it, decide::run),
        Command::Fork(it) => connected(*it, fork::run),
        Command::Diff(it) => connected(*it, diff::run),
        Command::Audit(it) => connected(*it, audit::run),
        Command::Events(it) => connected(*it, events::run),
        Command::Call(it) => match it.own.lists() {
            true => conclude(call::list(&it.target.output()), &it.target),
            false => connected(*it, call::run),
        },
        Command::Doctor(it) => doctor::run(*it),
    }
}

/// Runs a command that needs a deployment.
fn connected<T, R>(command: Targeted<T>, run: impl FnOnce(Session, T) -> R + 'static) -> ExitCode
where
    T: clap::Args + 'static,
    R: Future<Output = Result<()>> + 'static,
{
    let Targeted { own, target } = command;
    conclude(in_session(&target, Box::new(move |session| Box::pin(run(session, own)))), &target)
}

/// A command whose types are not known: opening a session and a runtime for it is compiled once, and not for each.
type Work = Box<dyn FnOnce(Session) -> Pin<Box<dyn Future<Output = Result<()>>>>>;

fn in_session(target: &Target, work: Work) -> Result<()> {
    in_runtime(async {
        let session = Session::open(target).await?;
        let client = session.client.clone();
        let ended = work(session).await;
        // An engine in this process finishes what it began.
        client.close().await;
        ended
    })
}

fn in_runtime<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_runtime)?;
    runtime.block_on(work)
}

/// A runtime for a command that serves others, with so many threads.
pub(crate) fn runtime_of(threads: usize) -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().map_err(no_runtime)
}

fn no_runtime(error: std::io::Error) -> Failure {
    Failure::new(1, "internal", format!("no runtime: {error}"))
}

/// Says what went wrong, if something did, and ends.
fn conclude(ended: Result<()>, target: &Target) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            target.output().failure(&failure);
            ExitCode::from(failure.exit_code)
        }
    }
}

/// Everything of a list that comes in pages.
async fn pages<T>(fetch: impl AsyncFn(Option<String>) -> Result<(Vec<T>, Option<String>)>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let (items, next) = fetch(cursor).await?;
        all.extend(items);
        match next {
            Some(next) => cursor = Some(next),
            None => return Ok(all),
        }
    }
}
