//! The tree of commands.

use clap::{Parser, Subcommand};

use crate::command::{
    approve, audit, bench, budget, bulk, call, cancel, change, completions, count, decide, diff, doctor, events,
    exit_codes, explain, flow, fork, get, hook, lane, ls, mcp, profile, provider, quota, replay, result, rotate_secret,
    schedule, server, signal, steps, submit, subscription, tail, token, top, wait, whoami, worker,
};
use crate::target::Target;
use crate::{dev, task};

/// FlowFabric: durable execution for long-running, interruptible work.
#[derive(Parser)]
#[command(name = "ff", version, propagate_version = true, max_term_width = 120)]
#[command(after_help = "\
Examples:
  ff dev --demo                           see what it does, in a minute
  ff server                               run a server on ./flowfabric.db
  ff submit greet '{\"name\": \"Ada\"}'       hand in work
  ff ls --state failed                    find what went wrong
  ff explain ID                           ask why something does not run

The server's address comes from --server, FF_SERVER or a profile. Options of the deployment and the output may also
stand before the command. `ff help exit-codes` lists the exit codes.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// A command with the deployment it is for.
#[derive(Debug, clap::Args)]
pub(crate) struct Targeted<T: clap::Args> {
    #[command(flatten)]
    pub(crate) own: T,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a server for trying things out, with a demo
    Dev(dev::Arguments),
    /// Run the server
    Server(Box<server::Arguments>),
    /// Submit work
    Submit(Box<Targeted<submit::Arguments>>),
    /// List executions, newest first
    Ls(Box<Targeted<ls::Arguments>>),
    /// Count executions by state, and what waits by lane and kind
    Count(Box<Targeted<count::Arguments>>),
    /// Watch lanes, rates and workers
    Top(Box<Targeted<top::Arguments>>),
    /// Show an execution
    Get(Box<Targeted<get::Arguments>>),
    /// Show what the function of an execution has done
    Steps(Box<Targeted<steps::Arguments>>),
    /// Answer a question about a step of an execution
    Decide(Box<Targeted<decide::Arguments>>),
    /// Make a new execution that begins with what another one did
    Fork(Box<Targeted<fork::Arguments>>),
    /// Show what two executions did differently
    Diff(Box<Targeted<diff::Arguments>>),
    /// Say why an execution is not running
    Explain(Box<Targeted<explain::Arguments>>),
    /// Fetch the result of an execution
    Result(Box<Targeted<result::Arguments>>),
    /// Wait until executions have ended
    Wait(Box<Targeted<wait::Arguments>>),
    /// Follow the output of an execution while it runs
    Tail(Box<Targeted<tail::Arguments>>),
    /// Cancel executions
    Cancel(Box<Targeted<cancel::Arguments>>),
    /// Run an execution that has ended once more
    Replay(Box<Targeted<replay::Arguments>>),
    /// Keep executions from starting
    Hold(Box<Targeted<change::Hold>>),
    /// Let held executions start
    Release(Box<Targeted<change::Release>>),
    /// End the suspension of executions
    Resume(Box<Targeted<change::Resume>>),
    /// Change how soon executions start
    Priority(Box<Targeted<change::Priority>>),
    /// Set or take away tags of an execution
    Tag(Box<Targeted<change::Tag>>),
    /// Remove executions that have ended
    Rm(Box<Targeted<change::Remove>>),
    /// Send a signal to an execution that waits for one
    Signal(Box<Targeted<signal::Arguments>>),
    /// List what waits for a person
    Approvals(Box<Targeted<approve::Approvals>>),
    /// Approve what waits for a person
    Approve(Box<Targeted<approve::Approve>>),
    /// Reject what waits for a person
    Reject(Box<Targeted<approve::Reject>>),
    /// Submit, show and cancel flows
    Flow(Box<Targeted<flow::Arguments>>),
    /// Define budgets and see what is spent
    Budget(Box<Targeted<budget::Arguments>>),
    /// Define what providers allow and see their effective limits
    Provider(Box<Targeted<provider::Arguments>>),
    /// Define quotas and see how full they are
    Quota(Box<Targeted<quota::Arguments>>),
    /// Run work again and again, by cron, at an interval or at given instants
    Schedule(Box<Targeted<schedule::Arguments>>),
    /// Do one thing to everything that filters match
    Bulk(Box<Targeted<bulk::Arguments>>),
    /// Tell others what happens: webhooks, and work that events lead to
    Subscription(Box<Targeted<subscription::Arguments>>),
    /// Let others begin work or signal it, by messages that they sign
    Hook(Box<Targeted<hook::Arguments>>),
    /// Open and close lanes
    Lane(Box<Targeted<lane::Arguments>>),
    /// Run a program as a worker; see and remove workers
    Worker(Box<Targeted<worker::Arguments>>),
    /// Serve an agent host over standard input and output
    Mcp(Box<Targeted<mcp::Arguments>>),
    /// Speak for the task that a worker runs this program for
    Task(task::Arguments),
    /// Create, list and revoke API tokens
    Token(Box<Targeted<token::Arguments>>),
    /// Say which deployment commands go to, and on whose behalf
    Whoami(Box<Targeted<whoami::Arguments>>),
    /// List the deployments that are known by name, and choose one
    Profile(Box<Targeted<profile::Arguments>>),
    /// Sign waitpoint tokens with a new secret
    RotateSecret(Box<Targeted<rotate_secret::Arguments>>),
    /// See administrative acts, and the callers that made them
    Audit(Box<Targeted<audit::Arguments>>),
    /// See what happens in the deployment
    Events(Box<Targeted<events::Arguments>>),
    /// Examine a store or a server
    Doctor(Box<Targeted<doctor::Arguments>>),
    /// Measure how fast it is on a store
    Bench(Box<bench::Arguments>),
    /// Call any operation of the API by its name
    Call(Box<Targeted<call::Arguments>>),
    /// Print a completion script for a shell
    Completions(completions::Arguments),
    /// Explain the exit codes
    ExitCodes(exit_codes::Arguments),
}
