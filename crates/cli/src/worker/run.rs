//! One task: starts the program, answers its calls, watches over the lease, and turns its end into the task's.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::Duration;

use ff_core::op::{StepQuestion, create_execution};
use flowfabric::{
    CancellationToken, ClaimedTask, ExecutionId, FailOutcome, Frame, JsonText, SdkError, SuspendOutcome, SuspendReason,
    SuspendRequest, limits,
};
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Settings;
use super::ending::{self, Ending};
use super::notebook::{Notebook, Turn};
use super::program::{Printed, Program};
use super::socket::{Asked, ProgramSocket};
use super::words::Words;
use crate::task::{Answer, Call, FrameCall, SpendCall, SuspendCall, content_type as guess};

/// The report about a task.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) execution_id: ExecutionId,
    pub(super) kind: String,
    pub(super) attempt: u32,
    pub(super) outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
    pub(super) duration_ms: u128,
}

/// The outcome, and what people want to know about it.
type Outcome = (&'static str, Option<String>);

/// Runs the program for a task.
pub(super) async fn run(task: ClaimedTask, settings: &Settings) -> Report {
    let started = Instant::now();
    let (execution_id, kind, attempt) = (task.execution_id(), task.kind().to_owned(), task.attempt_index().0);
    let (outcome, detail) = work(task, settings).await;
    Report { execution_id, kind, attempt, outcome, detail, duration_ms: started.elapsed().as_millis() }
}

async fn work(task: ClaimedTask, settings: &Settings) -> Outcome {
    let (socket, calls) = match ProgramSocket::open(&settings.folder, &task.lease_id().to_string()) {
        Ok(opened) => opened,
        Err(error) => return fail(task, format!("the worker has no socket: {error}"), "not_runnable", None).await,
    };
    let (program, printed, stderr) = match Program::start(settings, &task, socket.path()) {
        Ok(started) => started,
        Err(error) => {
            let name = settings.program[0].display();
            return fail(task, format!("{name} cannot be started: {error}"), "not_runnable", None).await;
        }
    };
    let running = Running {
        settings,
        lost: task.cancellation().clone(),
        words: Words::listen(stderr, task.frame_writer()),
        task: Some(task),
        program,
        notebook: None,
        retry_after: None,
        let_go: None,
    };
    running.run_to_the_end(calls, printed).await
}

struct Running<'a> {
    settings: &'a Settings,
    /// Fires when the work has become pointless.
    lost: CancellationToken,
    words: Words,
    /// Until it is let go.
    task: Option<ClaimedTask>,
    program: Program,
    /// Opened with the first step.
    notebook: Option<Notebook>,
    /// The pause before the retry that exit code 75 asks for.
    retry_after: Option<Duration>,
    /// How the task ended while its program still ran.
    let_go: Option<Outcome>,
}

/// How long the program may still take.
#[derive(Clone, Copy)]
enum Stage {
    /// As long as it likes.
    Running,
    /// It let go of its task and has nothing more to do.
    Leaving(Instant),
    /// It was asked to stop.
    Asked(Instant),
    /// It was stopped.
    Stopped,
}

impl Stage {
    fn until(self) -> Option<Instant> {
        match self {
            Stage::Leaving(until) | Stage::Asked(until) => Some(until),
            Stage::Running | Stage::Stopped => None,
        }
    }
}

impl Running<'_> {
    async fn run_to_the_end(mut self, mut calls: mpsc::Receiver<Asked>, mut printed: JoinHandle<Printed>) -> Outcome {
        let status = self.supervise(&mut calls).await;
        let grace = self.settings.grace;
        let mut output = tokio::time::timeout(grace, &mut printed).await.ok();
        let mut last_words = self.words.last(grace).await;
        if output.is_none() || last_words.is_none() {
            // Something that the program started and left behind holds its pipes.
            self.program.kill();
            if output.is_none() {
                output = tokio::time::timeout(grace, &mut printed).await.ok();
            }
            if last_words.is_none() {
                last_words = self.words.last(grace).await;
            }
        }
        if let Some(let_go) = self.let_go {
            return let_go;
        }
        let Some(task) = self.task.take().filter(|_| !self.lost.is_cancelled()) else {
            return ("lost", Some("the lease is lost, the program was stopped".into()));
        };
        let last_words = last_words.unwrap_or_default();
        match (status, output) {
            (Ok(status), Some(Ok(printed))) => {
                let end = End { status, printed, last_words, retry_after: self.retry_after };
                end.tell(task, self.settings.content_type.as_deref()).await
            }
            (Err(error), _) => fail(task, format!("the program was lost: {error}"), "not_runnable", None).await,
            (Ok(_), _) => fail(task, "something keeps its standard output open".into(), "output_open", None).await,
        }
    }

    /// Answers the program's calls until it has ended; asks it to stop, and stops it, when it must.
    async fn supervise(&mut self, calls: &mut mpsc::Receiver<Asked>) -> std::io::Result<ExitStatus> {
        let grace = self.settings.grace;
        let mut stage = Stage::Running;
        loop {
            let until = stage.until();
            tokio::select! {
                biased;
                status = self.program.ended() => return status,
                () = self.lost.cancelled(), if matches!(stage, Stage::Running | Stage::Leaving(_)) => {
                    self.program.terminate();
                    stage = Stage::Asked(Instant::now() + grace);
                }
                () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    if let Stage::Leaving(_) = stage {
                        self.program.terminate();
                        stage = Stage::Asked(Instant::now() + grace);
                    } else {
                        self.program.kill();
                        stage = Stage::Stopped;
                    }
                }
                Some((call, reply)) = calls.recv() => {
                    let lost = self.lost.clone();
                    let answer = tokio::select! {
                        biased;
                        () = lost.cancelled() => Answer::refused("the lease is lost"),
                        answer = self.answer(call) => answer,
                    };
                    if self.task.is_none() && matches!(stage, Stage::Running) {
                        stage = Stage::Leaving(Instant::now() + grace);
                    }
                    // A program that does not wait for its answer does not need it.
                    let _ = reply.send(answer);
                }
            }
        }
    }

    async fn answer(&mut self, call: Call) -> Answer {
        match self.carry_out(call).await {
            Ok(answer) => answer,
            Err(error) => Answer::from(&error),
        }
    }

    async fn carry_out(&mut self, call: Call) -> Result<Answer, SdkError> {
        let Some(task) = &self.task else { return Ok(Answer::refused("the task was let go: the program should end")) };
        Ok(match call {
            Call::Frame(frame) => task.append_frame(frame_of(frame)).await.map(|_| Answer::done())?,
            Call::Usage { usage, dedup_key } => {
                let usage = usage.iter().map(|(dimension, amount)| (dimension.as_str(), *amount));
                Answer::json(&task.report_usage(usage, dedup_key).await?)
            }
            Call::Spend(call) => spend(task, call).await?,
            Call::Progress { pct, message } => task.update_progress(pct, message).await.map(|()| Answer::done())?,
            Call::Waitpoint { key, expires_in_ms } => {
                let expires_in = expires_in_ms.map(Duration::from_millis);
                Answer::json(&task.create_pending_waitpoint(key, expires_in).await?)
            }
            Call::RetryAfter { delay_ms } => {
                self.retry_after = Some(Duration::from_millis(delay_ms));
                Answer::done()
            }
            Call::Child { request, key } => {
                let mut child = task.spawn_child(request.kind.clone());
                child = child.with(|args| *args = create_execution::Args { parent: args.parent.take(), ..*request });
                if let Some(key) = key {
                    child = child.child_key(key);
                }
                let child = child.send().await?;
                Answer::Done(ff_core::Blob(child.id().to_string().into()))
            }
            Call::Signals => Answer::json(&task.resume_signals()),
            Call::Continuation => {
                let bytes = task.continuation().map(|content| content.bytes.clone()).unwrap_or_default();
                Answer::Done(ff_core::Blob(bytes))
            }
            Call::Step(call) => {
                let turn = notebook(&mut self.notebook, task).await?.turn(task, call).await?;
                self.take(turn).await
            }
            Call::StepEnded { step, end } => {
                let turn = notebook(&mut self.notebook, task).await?.ended(task, step, end).await?;
                self.take(turn).await
            }
            Call::Upstreams => Answer::json(&task.upstreams().await?),
            Call::Suspend(_) | Call::Delay { .. } | Call::WaitChildren => {
                // Words of the program up to now belong to the time before.
                self.words.flush().await;
                match self.task.take() {
                    Some(task) => self.let_go(task, call).await,
                    None => Answer::refused("the task was let go"),
                }
            }
        })
    }

    /// Tells the program how it goes on with a step, or lets go of the task to ask a person.
    async fn take(&mut self, turn: Turn) -> Answer {
        let (step, first_number) = match turn {
            Turn::Answer(answer) => return answer,
            Turn::Ask { step, first_number } => (step, first_number),
        };
        self.words.flush().await;
        let Some(task) = self.task.take() else { return Answer::refused("the task was let go") };
        let label = step.label();
        let question = StepQuestion {
            step,
            reason: SuspendReason::InDoubt,
            detail: Some(format!("nobody knows whether step {label} happened")),
            kind: None,
            input_hash: None,
        };
        match task.ask(first_number, question).await {
            Ok(()) => {
                self.let_go = Some(("suspended", None));
                let message = format!("a person is asked whether step {label} happened: the program should end");
                Answer::refused_as("in_doubt", message)
            }
            Err(error) => {
                let answer = Answer::from(&error);
                self.let_go = Some(outcome_of(Err(error)));
                answer
            }
        }
    }

    async fn let_go(&mut self, task: ClaimedTask, call: Call) -> Answer {
        let released = match call {
            Call::Suspend(request) => match task.suspend(request_of(*request)).await {
                Ok(SuspendOutcome::AlreadySatisfied {
                    task,
                    suspension_id,
                    waitpoint_id,
                    waitpoint_key,
                    token,
                    resume_signals,
                }) => {
                    self.words.go_on(task.frame_writer()).await;
                    self.task = Some(*task);
                    return Answer::json(&json!({
                        "outcome": "already_satisfied", "suspension_id": suspension_id, "waitpoint_id": waitpoint_id,
                        "waitpoint_key": waitpoint_key, "token": token, "resume_signals": resume_signals,
                    }));
                }
                Ok(SuspendOutcome::Suspended { suspension_id, waitpoint_id, waitpoint_key, token, timeout_at }) => {
                    let answer = json!({
                        "outcome": "suspended", "suspension_id": suspension_id, "waitpoint_id": waitpoint_id,
                        "waitpoint_key": waitpoint_key, "token": token, "timeout_at": timeout_at,
                    });
                    Ok(("suspended", Answer::json(&answer)))
                }
                Ok(SuspendOutcome::Unknown(variant)) => Ok(("suspended", Answer::json(&variant))),
                Err(error) => Err(error),
            },
            Call::Delay { delay_ms } => {
                let delayed = task.delay_execution(Duration::from_millis(delay_ms)).await;
                delayed.map(|delayed| ("delayed", Answer::json(&delayed)))
            }
            _ => task.move_to_waiting_children().await.map(|waiting| ("waiting_children", Answer::json(&waiting))),
        };
        match released {
            Ok((outcome, answer)) => {
                self.let_go = Some((outcome, None));
                answer
            }
            Err(error) => {
                let answer = Answer::from(&error);
                self.let_go = Some(outcome_of(Err(error)));
                answer
            }
        }
    }
}

/// The journal of the task, read when the first step asks for it: a program without steps costs nothing more.
async fn notebook<'n>(slot: &'n mut Option<Notebook>, task: &ClaimedTask) -> Result<&'n mut Notebook, SdkError> {
    let opened = match slot.take() {
        Some(opened) => opened,
        None => Notebook::open(task).await?,
    };
    Ok(slot.insert(opened))
}

/// How a program ended.
struct End {
    status: ExitStatus,
    printed: Printed,
    last_words: String,
    retry_after: Option<Duration>,
}

impl End {
    /// Ends the task as its program did.
    async fn tell(self, task: ClaimedTask, content_type: Option<&str>) -> Outcome {
        match Ending::of(self.status) {
            Ending::Complete if self.printed.too_much => {
                let reason = format!("the result has more than {} bytes", limits::RESULT_MAX_BYTES);
                fail(task, reason, "result_too_large", None).await
            }
            Ending::Complete => {
                let bytes = self.printed.bytes;
                let completed = match (content_type, json_of(&bytes)) {
                    (Some(content_type), _) => task.complete_bytes(bytes, content_type).await,
                    (None, Some(json)) => task.complete(&json).await,
                    (None, None) => {
                        let content_type = guess(&bytes);
                        task.complete_bytes(bytes, content_type).await
                    }
                };
                outcome_of(completed.map(|_| ("completed", None)))
            }
            Ending::Fail { category, later } => {
                let reason = ending::reason(self.status, &self.last_words);
                fail(task, reason, &category, self.retry_after.filter(|_| later)).await
            }
        }
    }
}

async fn fail(task: ClaimedTask, reason: String, category: &str, retry_after: Option<Duration>) -> Outcome {
    let failed = match retry_after {
        Some(retry_after) => task.fail_and_retry_after(reason.as_str(), category, retry_after).await,
        None => task.fail(reason.as_str(), category).await,
    };
    outcome_of(failed.map(|outcome| shown(&outcome, reason)))
}

fn shown(outcome: &FailOutcome, reason: String) -> Outcome {
    match outcome {
        FailOutcome::RetryScheduled { .. } => ("retry_scheduled", Some(reason)),
        FailOutcome::TerminalFailed => ("failed", Some(reason)),
        FailOutcome::Unknown(_) => ("untold", Some(reason)),
    }
}

/// An ending that was refused has failed the attempt. Where it could not be told, another worker has the task now, or
/// will have it when the lease has run out.
fn outcome_of(outcome: Result<Outcome, SdkError>) -> Outcome {
    outcome.unwrap_or_else(|error| match &error {
        SdkError::EndingRefused { error, outcome } => shown(outcome, format!("refused: {error}")),
        lost if lost.is_lease_lost() => ("lost", Some(error.to_string())),
        _ => ("untold", Some(error.to_string())),
    })
}

/// The text of a result that is JSON, as it was printed.
fn json_of(bytes: &[u8]) -> Option<JsonText> {
    let text = std::str::from_utf8(bytes).ok()?.trim();
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    Some(JsonText(text.to_owned()))
}

fn frame_of(call: FrameCall) -> Frame {
    let mut frame = Frame::bytes(call.frame_type, call.payload.0, call.content_type);
    if let Some(mode) = call.mode {
        frame = frame.mode(mode);
    }
    if let Some(correlation_id) = call.correlation_id {
        frame = frame.correlation_id(correlation_id);
    }
    frame
}

fn request_of(call: SuspendCall) -> SuspendRequest {
    let mut request = SuspendRequest::until(call.condition, call.reason);
    if let Some((time_ms, behavior)) = call.timeout {
        request = request.timeout(Duration::from_millis(time_ms), behavior);
    }
    if let Some(continuation) = &call.continuation {
        request = request.continuation(continuation);
    }
    if let Some(key) = call.waitpoint_key {
        request = request.waitpoint_key(key);
    }
    if let Some(detail) = call.detail {
        request = request.detail(detail);
    }
    call.waitpoint_ids.into_iter().fold(request, SuspendRequest::on_waitpoint)
}

/// Answers a program's call about a reservation.
async fn spend(task: &ClaimedTask, call: SpendCall) -> Result<Answer, SdkError> {
    fn each(amounts: &BTreeMap<String, i64>) -> impl Iterator<Item = (&str, i64)> {
        amounts.iter().map(|(dimension, amount)| (dimension.as_str(), *amount))
    }
    Ok(match call {
        SpendCall::Reserve { key, amounts, ttl_ms } => {
            Answer::json(&task.reserve(key, each(&amounts), ttl_ms.map(Duration::from_millis)).await?)
        }
        SpendCall::Settle { key, actual } => Answer::json(&task.settle(key, each(&actual)).await?),
        SpendCall::Release { key } => task.release(key).await.map(|()| Answer::done())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_json_when_it_is_and_keeps_its_text() {
        assert_eq!(json_of(b"{\"n\": 1.00}\n"), Some(JsonText("{\"n\": 1.00}".into())));
        assert_eq!(json_of(b"hello"), None);
        assert_eq!(json_of(b""), None);
        assert_eq!(json_of(b"\xff"), None);
    }
}
