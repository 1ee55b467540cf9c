//! Calls of a program to the worker that runs it, over a socket: one line of JSON each way.
//!
//! The worker and not the program speaks to the server, because it holds the lease, and because frames are numbered by
//! their one writer.

use std::collections::BTreeMap;

use ff_core::journal::StepIdentity;
use ff_core::op::create_execution;
use ff_core::{Blob, JsonText};
use flowfabric::{Condition, FrameMode, SuspendReason, TimeoutBehavior, WaitpointId};
use serde::{Deserialize, Serialize};

/// The variable with the path of the socket.
pub(crate) const SOCKET: &str = "FF_TASK_SOCKET";

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    /// Append a frame.
    Frame(FrameCall),
    /// Charge the budgets.
    Usage { usage: BTreeMap<String, i64>, dedup_key: Option<String> },
    /// Hold amounts in the budgets, or say what became of them.
    Spend(SpendCall),
    /// Say how far it is.
    Progress { pct: u8, message: String },
    /// Open a waitpoint before suspending.
    Waitpoint { key: Option<String>, expires_in_ms: Option<u64> },
    /// Let go until signals come.
    Suspend(Box<SuspendCall>),
    /// Let go and come back later.
    Delay { delay_ms: u64 },
    /// How long "retry later" means.
    RetryAfter { delay_ms: u64 },
    /// Submit a child. Without a key it is known by its content.
    Child { request: Box<create_execution::Args>, key: Option<String> },
    /// Let go until the children have ended.
    WaitChildren,
    /// The signals that resumed it.
    Signals,
    /// The continuation that it left when it suspended itself.
    Continuation,
    /// The executions it depends on, with results.
    Upstreams,
    /// Ask whether the command of a step is to run.
    Step(StepCall),
    /// Say how the command of a step ended.
    StepEnded { step: StepIdentity, end: StepEnd },
}

/// A program's call about a reservation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SpendCall {
    /// It will spend this.
    Reserve { key: String, amounts: BTreeMap<String, i64>, ttl_ms: Option<u64> },
    /// It has spent this.
    Settle { key: String, actual: BTreeMap<String, i64> },
    /// It has spent nothing.
    Release { key: String },
}

/// A step that a program comes to.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StepCall {
    pub(crate) name: String,
    pub(crate) key: Option<String>,
    pub(crate) once: bool,
    pub(crate) on_doubt: OnDoubt,
}

/// What becomes of a `once` step of which it is not known whether it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnDoubt {
    /// The step ends with 4 and the code `in_doubt`
    Fail,
    /// The task waits until a person has answered (`ff decide`)
    Ask,
    /// The command runs again
    RunAgain,
}

/// The decision about a step: run it, or take the recorded result.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StepTurn {
    /// Its command runs.
    Run(StepIdentity),
    /// It ran before, and printed this.
    Done(Blob),
}

/// How the command of a step ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StepEnd {
    /// It succeeded and printed this.
    Printed { output: Blob, took_ms: i64 },
    /// It failed and says that nothing happened.
    NotDone,
    /// It failed. Nothing is recorded: the next run of the program runs it again, unless it is a `once` step.
    Failed,
}

/// A frame to append.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FrameCall {
    pub(crate) frame_type: String,
    pub(crate) payload: Blob,
    pub(crate) content_type: String,
    pub(crate) mode: Option<FrameMode>,
    pub(crate) correlation_id: Option<String>,
}

/// A program's request to suspend.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SuspendCall {
    pub(crate) condition: Condition,
    pub(crate) reason: SuspendReason,
    pub(crate) timeout: Option<(u64, TimeoutBehavior)>,
    pub(crate) continuation: Option<JsonText>,
    pub(crate) waitpoint_ids: Vec<WaitpointId>,
    pub(crate) waitpoint_key: Option<String>,
    pub(crate) detail: Option<String>,
}

/// The answer of the worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It is done; what the program reads, if there is something.
    Done(Blob),
    /// It was not done.
    Refused { exit_code: u8, code: String, message: String },
}

impl Answer {
    /// Nothing to read.
    pub(crate) fn done() -> Self {
        Answer::Done(Blob::default())
    }

    /// An answer in JSON.
    pub(crate) fn json(answer: &impl Serialize) -> Self {
        match serde_json::to_vec(answer) {
            Ok(text) => Answer::Done(Blob(text.into())),
            Err(error) => Answer::refused(format!("the answer cannot be written: {error}")),
        }
    }

    /// The program did what it cannot do now.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::refused_as("conflict", message)
    }

    /// A refusal with a code of its own.
    pub(crate) fn refused_as(code: &str, message: impl Into<String>) -> Self {
        let exit_code = ff_core::Class::Conflict.exit_code();
        Answer::Refused { exit_code, code: code.to_owned(), message: message.into() }
    }
}

impl From<&flowfabric::SdkError> for Answer {
    fn from(error: &flowfabric::SdkError) -> Self {
        let message = error.to_string();
        let (exit_code, code) = match error.code() {
            Some(code) => (code.class().exit_code(), code.as_str().to_owned()),
            None => (ff_core::Class::Unavailable.exit_code(), "unreachable".to_owned()),
        };
        Answer::Refused { exit_code, code, message }
    }
}
