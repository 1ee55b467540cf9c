//! `ff task`: what a program says and asks while `ff worker` runs it.

mod call;
mod spend;
mod step;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use ff_core::{Blob, JsonText};
use flowfabric::{
    Condition, ConditionMatcher, FrameMode, ReportUsageResult, SuspendReason, TimeoutBehavior, WaitpointId,
};

pub(crate) use call::{Answer, Call, FrameCall, OnDoubt, SOCKET, SpendCall, StepCall, StepEnd, StepTurn, SuspendCall};

use crate::failure::{self, Failure, Result};
use crate::input::{self, SOURCE, Source, check_json, one_of};
use crate::output::{Format, Output, When};
use crate::span;
use crate::submission::Work;

/// The arguments of `ff task`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Works only inside a program that `ff worker` runs. Answers are JSON on standard output.

Examples:
  ff task progress 40 'half of the pages'
  ff task frame --type token 'Once upon'
  model | ff task frame --type token --lines
  ff task usage tokens=120 cost=3 --dedup-key page-7
  ff task spend 'model call' tokens=2000 -- ./ask-model 7
  page=$(ff task step fetch -- curl -sf \"$url\")
  ff task suspend --signal approve --signal reject --reason approval --continuation '{\"page\": 7}' && exit
  ff task retry-after 30s; exit 75")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Append a frame to the stream
    #[command(after_help = "\
Examples:
  ff task frame --type token 'Once upon'
  model | ff task frame --type token --lines
  ff task frame --type page --content-type image/png - < page.png
  ff task frame --mode summary '{\"pages\": {\"done\": 7}}'")]
    Frame(FrameArguments),
    /// Charge what was spent to the execution's budgets
    #[command(after_help = "\
Examples:
  ff task usage tokens=120 cost=3
  ff task usage tokens=120 --dedup-key page-7 || exit 75

Ends with 14 when a budget refused it: its hard limit is met.")]
    Usage {
        /// The amounts that were spent
        #[arg(value_name = "DIMENSION=AMOUNT", required = true, value_parser = input::amount)]
        usage: Vec<(String, i64)>,
        /// The same key counts once for this execution
        #[arg(long, value_name = "KEY")]
        dedup_key: Option<String>,
    },
    /// Hold amounts in the execution's budgets, run a command, and settle what it spent
    #[command(after_help = "\
Examples:
  ff task spend 'model call' tokens=2000 -- ./ask-model 7
  ff task spend 'model call 7' tokens=2000 cents=3 --ttl 2m -- sh -c './ask-model; echo tokens=1200 > $FF_SPENT_FILE'

Ends with 14, and does not run the command, when a budget has no room. The command writes what it really spent into the
file $FF_SPENT_FILE, as tokens=1200. A command that writes nothing has spent all of it, and so has one that fails, unless it
ends with 75, which says that nothing happened. Its exit code is passed on.")]
    Spend(spend::SpendArguments),
    /// Say how far the work is
    #[command(after_help = "Examples:\n  ff task progress 40\n  ff task progress 40 'half of the pages'")]
    Progress {
        /// 0 to 100
        #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
        pct: u8,
        /// Words for what it is doing
        #[arg(default_value = "")]
        message: String,
    },
    /// Run a command once: a program that runs again gets what it printed, and the command does not run
    #[command(after_help = "\
Examples:
  page=$(ff task step fetch -- curl -sf \"$url\")
  for n in 1 2 3; do ff task step page --key \"$n\" -- ./fetch \"$n\"; done
  ff task step pay --once -- ./pay 7

Prints what the command printed, when it has succeeded; what it says on standard error passes by. A command that fails
is not recorded, its exit code is passed on, and the next run of the program runs it again. Not so with --once: it is
not known whether it happened, and the step is refused with 4 and the code in_doubt, unless the command ended with 75, which
says that nothing happened, or --on-doubt says otherwise.")]
    Step(step::StepArguments),
    /// Let go until signals come; the program then ends, and starts again when they have
    #[command(after_help = "\
Examples:
  ff task suspend --signal approve --signal reject --reason approval && exit
  ff task suspend --signal paid --timeout 1h --on-timeout fail --continuation '{\"order\": 7}' && exit
  ff task suspend --condition '{\"count\": {\"n\": 2, \"distinct\": \"sources\"}}' && exit

Prints the waitpoint and its token. Ends with 15 when signals that came before satisfy it: then the program goes on.
When it starts again, FF_TASK_CLAIM_KIND is `resumed`, and `ff task signals` and `ff task continuation` say why.")]
    Suspend(SuspendArguments),
    /// Open a waitpoint before suspending, to hand its token out first
    #[command(after_help = "Examples:\n  ff task waitpoint --key payment --expires 1h")]
    Waitpoint {
        /// Its name
        #[arg(long)]
        key: Option<String>,
        /// How long it lasts unused [default: 24h]
        #[arg(long, value_name = "SPAN", value_parser = span::parse)]
        expires: Option<i64>,
    },
    /// Let go and come back after a time, in the same attempt
    #[command(after_help = "Examples:\n  ff task delay 10m && exit")]
    Delay {
        /// How long
        #[arg(value_name = "SPAN", value_parser = span::parse)]
        time: i64,
    },
    /// Say how long exit code 75 means
    #[command(after_help = "Examples:\n  ff task retry-after 30s; exit 75")]
    RetryAfter {
        /// How long
        #[arg(value_name = "SPAN", value_parser = span::parse)]
        time: i64,
    },
    /// Submit a child of this execution; prints its id
    #[command(after_help = "\
Examples:
  ff task child resize '{\"width\": 100}' --lane media
  ff task child resize '{\"width\": 100}' --key small --budget images --policy '{\"retry\": {\"max_retries\": 0}}'

A program that runs again, after a crash, a failure or a wait, finds the children it submitted before: the n-th child
with the same arguments is the same child, and a child with --key is the one of that key, until the execution is
replayed.")]
    Child(Box<ChildArguments>),
    /// Let go until the children have ended
    #[command(after_help = "Examples:\n  ff task wait-children && exit")]
    WaitChildren,
    /// Print the signals that resumed this attempt
    #[command(after_help = "Examples:\n  ff task signals | jq -r '.[0].name'")]
    Signals,
    /// Print what was handed over when this attempt suspended itself
    #[command(after_help = "Examples:\n  ff task continuation | jq .page")]
    Continuation,
    /// Print what this execution depends on, with outcomes and results
    #[command(after_help = "Examples:\n  ff task upstreams | jq '.[] | {node, result: .result.payload}'")]
    Upstreams,
}

#[derive(Debug, clap::Args)]
struct ChildArguments {
    #[command(flatten)]
    work: Work,
    /// The same key means the same child of this execution
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

#[derive(Debug, clap::Args)]
struct FrameArguments {
    /// The payload; - reads standard input
    #[arg(default_value = "-", hide_default_value = true)]
    payload: String,
    /// The type of the frame
    #[arg(long = "type", value_name = "TYPE", default_value = "output")]
    frame_type: String,
    /// One frame for each line of standard input, as it comes
    #[arg(long, conflicts_with_all = ["payload", "content_type"])]
    lines: bool,
    /// The content type of the bytes [default: text, JSON in summary mode]
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// How it is kept
    #[arg(long, value_parser = one_of!(FrameMode))]
    mode: Option<FrameMode>,
    /// Your own id for what the frame belongs to
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,
}

#[derive(Debug, clap::Args)]
struct SuspendArguments {
    /// A signal that resumes it; any of several
    #[arg(long = "signal", value_name = "NAME", required_unless_present = "condition", conflicts_with = "condition")]
    signals: Vec<String>,
    /// All of the signals are needed
    #[arg(long, requires = "signals")]
    all: bool,
    /// The condition that resumes it, as the API takes it
    #[arg(long, value_name = SOURCE)]
    condition: Option<Source>,
    /// Why
    #[arg(long, default_value = "signal", value_parser = one_of!(SuspendReason))]
    reason: SuspendReason,
    /// When it gives up
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    timeout: Option<i64>,
    /// What happens when its time is up
    #[arg(long, requires = "timeout", default_value = "fail", value_parser = one_of!(TimeoutBehavior))]
    on_timeout: TimeoutBehavior,
    /// Handed to the program when it is started again
    #[arg(long, value_name = SOURCE)]
    continuation: Option<Source>,
    /// A waitpoint that is open already; may be repeated
    #[arg(long = "waitpoint", value_name = "ID")]
    waitpoint_ids: Vec<WaitpointId>,
    /// The name of the new waitpoint
    #[arg(long, value_name = "NAME", conflicts_with = "waitpoint_ids")]
    key: Option<String>,
    /// A detail of the wait, for people
    #[arg(long, value_name = "TEXT")]
    detail: Option<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let out = Output::new(Format::Table, When::Never);
    match Worker::connect().and_then(|worker| carry_out(worker, &out, arguments.verb)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            out.failure(&failure);
            ExitCode::from(failure.exit_code)
        }
    }
}

fn carry_out(mut worker: Worker, out: &Output, verb: Verb) -> Result<()> {
    let call = match verb {
        Verb::Frame(frame) if frame.lines => return frame_lines(&mut worker, &frame),
        Verb::Frame(frame) => {
            let payload = match frame.payload.as_str() {
                "-" => Source::Stdin.read()?,
                text => text.as_bytes().to_vec(),
            };
            frame.call(payload)?
        }
        Verb::Usage { usage, dedup_key } => {
            let answer = worker.call(&Call::Usage { usage: usage.into_iter().collect(), dedup_key })?;
            out.bytes(&answer)?;
            return if refused(&answer) { Err(Failure::silent(failure::BUDGET_SPENT)) } else { Ok(()) };
        }
        Verb::Spend(arguments) => return spend::run(&mut worker, out, arguments),
        Verb::Step(arguments) => return step::run(&mut worker, out, arguments),
        Verb::Progress { pct, message } => Call::Progress { pct, message },
        Verb::Suspend(suspend) => {
            let answer = worker.call(&Call::Suspend(Box::new(suspend.call()?)))?;
            out.bytes(&answer)?;
            return if satisfied(&answer) { Err(Failure::silent(failure::GO_ON)) } else { Ok(()) };
        }
        Verb::Waitpoint { key, expires } => Call::Waitpoint { key, expires_in_ms: expires.map(i64::unsigned_abs) },
        Verb::Delay { time } => Call::Delay { delay_ms: time.unsigned_abs() },
        Verb::RetryAfter { time } => Call::RetryAfter { delay_ms: time.unsigned_abs() },
        Verb::Child(child) => Call::Child { request: Box::new(child.work.request()?), key: child.key },
        Verb::WaitChildren => Call::WaitChildren,
        Verb::Signals => Call::Signals,
        Verb::Continuation => Call::Continuation,
        Verb::Upstreams => Call::Upstreams,
    };
    out.bytes(&worker.call(&call)?)
}

/// Sends each line as soon as it is there.
fn frame_lines(worker: &mut Worker, frame: &FrameArguments) -> Result<()> {
    for line in std::io::stdin().lock().split(b'\n') {
        let line = line.map_err(|error| Failure::usage(format!("stdin cannot be read: {error}")))?;
        worker.call(&frame.call(line)?)?;
    }
    Ok(())
}

impl FrameArguments {
    fn call(&self, payload: Vec<u8>) -> Result<Call> {
        let summary = self.mode == Some(FrameMode::Summary);
        let content_type = match &self.content_type {
            Some(content_type) => content_type.clone(),
            None if summary => "application/json".to_owned(),
            None => content_type(&payload).to_owned(),
        };
        Ok(Call::Frame(FrameCall {
            frame_type: self.frame_type.clone(),
            payload: Blob(payload.into()),
            content_type,
            mode: self.mode,
            correlation_id: self.correlation_id.clone(),
        }))
    }
}

impl SuspendArguments {
    fn call(self) -> Result<SuspendCall> {
        let condition = match &self.condition {
            Some(source) => {
                let text = source.read_text()?;
                serde_json::from_str(&text)
                    .map_err(|error| input::malformed(source.name(), error.line(), error.column(), &error))?
            }
            None => {
                let matchers = self.signals.into_iter().map(ConditionMatcher::named).collect();
                if self.all { Condition::All(matchers) } else { Condition::Any(matchers) }
            }
        };
        condition.validate().map_err(|error| Failure::usage(error.detail))?;
        Ok(SuspendCall {
            condition,
            reason: self.reason,
            timeout: self.timeout.map(|time| (time.unsigned_abs(), self.on_timeout)),
            continuation: self.continuation.as_ref().map(read_json).transpose()?,
            waitpoint_ids: self.waitpoint_ids,
            waitpoint_key: self.key,
            detail: self.detail,
        })
    }
}

fn read_json(source: &Source) -> Result<JsonText> {
    let text = source.read_text()?;
    check_json(source.name(), &text)?;
    Ok(JsonText(text.trim().to_owned()))
}

/// The content type of bytes whose sender did not give one.
pub(crate) fn content_type(bytes: &[u8]) -> &'static str {
    if std::str::from_utf8(bytes).is_ok() { "text/plain; charset=utf-8" } else { "application/octet-stream" }
}

/// Whether a budget refused what was reported.
fn refused(answer: &[u8]) -> bool {
    let breached = |answer: &ReportUsageResult| matches!(answer, ReportUsageResult::HardBreach { .. });
    serde_json::from_slice::<BTreeMap<String, ReportUsageResult>>(answer)
        .is_ok_and(|budgets| budgets.values().any(breached))
}

/// Whether a suspension was over before it began.
fn satisfied(answer: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(answer).is_ok_and(|answer| answer["outcome"] == "already_satisfied")
}

/// The worker that runs this program.
struct Worker {
    requests: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Worker {
    fn connect() -> Result<Self> {
        let Some(path) = std::env::var_os(SOCKET).filter(|path| !path.is_empty()) else {
            return Err(Failure::usage(format!("{SOCKET} is not set: there is no task here"))
                .advice("`ff task` is for programs that `ff worker` runs: ff worker --lane L --kind K -- ./program"));
        };
        let requests = UnixStream::connect(path).map_err(worker_gone)?;
        let answers = BufReader::new(requests.try_clone().map_err(worker_gone)?);
        Ok(Self { requests, answers })
    }

    fn call(&mut self, call: &Call) -> Result<bytes::Bytes> {
        let mut line = serde_json::to_vec(call).map_err(|error| Failure::usage(error.to_string()))?;
        line.push(b'\n');
        self.requests.write_all(&line).map_err(worker_gone)?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer).map_err(worker_gone)? == 0 {
            return Err(worker_gone(std::io::ErrorKind::UnexpectedEof.into()));
        }
        match serde_json::from_str(&answer) {
            Ok(Answer::Done(answer)) => Ok(answer.0),
            Ok(Answer::Refused { exit_code, code, message }) => Err(Failure::new(exit_code, &code, message)),
            Err(error) => Err(Failure::new(1, "internal", format!("the worker's answer cannot be read: {error}"))),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is the last thing that happens to the error")]
fn worker_gone(error: std::io::Error) -> Failure {
    let stale = ff_core::Class::Stale.exit_code();
    Failure::new(stale, "worker_gone", format!("the worker does not answer: {error}"))
        .advice("The lease is lost or the worker has ended: stop, the work goes on elsewhere.")
}
