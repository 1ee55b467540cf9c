//! A program under a task: how it is started, what it reads, what it says, how it is told to stop.

use std::ffi::OsString;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use bytes::Bytes;
use flowfabric::{ClaimedTask, limits};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use super::Settings;
use crate::task::SOCKET;

/// A program that runs.
pub(super) struct Program {
    child: Child,
    /// It and everything it starts are one group, so that a signal reaches all of them.
    group: Option<Pid>,
}

/// Variables with which a worker finds its deployment and proves its authority.
const WORKERS_OWN: [&str; 8] = [
    "FF_SERVER",
    "FF_TOKEN",
    "FF_TOKEN_FILE",
    "FF_API_TOKEN",
    "FF_API_TOKEN_FILE",
    "FF_STORE",
    "FF_STORE_FILE",
    "FF_WAITPOINT_SECRET",
];

/// The output of a program.
pub(super) struct Printed {
    pub(super) bytes: Vec<u8>,
    /// It was more than a result may have.
    pub(super) too_much: bool,
}

impl Program {
    /// Starts the program with its input on the way.
    pub(super) fn start(
        settings: &Settings,
        task: &ClaimedTask,
        socket: &Path,
    ) -> std::io::Result<(Self, JoinHandle<Printed>, ChildStderr)> {
        let mut command = Command::new(&settings.program[0]);
        // They are the worker's. A program speaks through its socket, and for its own task only.
        for name in WORKERS_OWN {
            command.env_remove(name);
        }
        command.args(&settings.program[1..]).envs(environment(settings, task)).env(SOCKET, socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let missing = || std::io::Error::other("the program has no pipes");
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        tokio::spawn(feed(stdin.ok_or_else(missing)?, task.input()));
        let printed = tokio::spawn(collect(stdout.ok_or_else(missing)?));
        Ok((Self { child, group }, printed, stderr.ok_or_else(missing)?))
    }

    /// Waits for its end.
    pub(super) async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Asks it to stop.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Stops it, and what it left behind.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // A program that has ended meanwhile needs no signal.
            let _ = kill_process_group(group, signal);
        }
    }
}

/// A program need not read its input.
async fn feed(mut stdin: ChildStdin, input: Bytes) {
    let _ = stdin.write_all(&input).await;
    let _ = stdin.shutdown().await;
}

/// Reads to the end, but keeps no more than a result may have.
async fn collect(mut stdout: ChildStdout) -> Printed {
    let mut printed = Printed { bytes: Vec::new(), too_much: false };
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = stdout.read(&mut buffer).await {
        let room = limits::RESULT_MAX_BYTES - printed.bytes.len();
        printed.too_much |= count > room;
        printed.bytes.extend_from_slice(&buffer[..count.min(room)]);
    }
    printed
}

/// The variables of a program beside the worker's own.
fn environment(settings: &Settings, task: &ClaimedTask) -> Vec<(&'static str, OsString)> {
    let fence = task.fence();
    let mut variables: Vec<(&'static str, OsString)> = vec![
        ("FF_TASK_EXECUTION_ID", task.execution_id().to_string().into()),
        ("FF_TASK_ATTEMPT", fence.attempt.to_string().into()),
        ("FF_TASK_LEASE_ID", fence.lease_id.to_string().into()),
        ("FF_TASK_LEASE_EPOCH", fence.epoch.to_string().into()),
        ("FF_TASK_FENCE", serde_json::to_string(&fence).unwrap_or_default().into()),
        ("FF_TASK_KIND", task.kind().into()),
        ("FF_TASK_LANE", task.lane().into()),
        ("FF_TASK_CLAIM_KIND", task.claim_kind().as_str().into()),
        ("FF_TASK_RETRY_COUNT", task.retry_count().to_string().into()),
        ("FF_NAMESPACE", task.namespace().into()),
    ];
    if let Some(path) = &settings.path {
        variables.push(("PATH", path.clone()));
    }
    if let Some(server) = &settings.server {
        variables.push(("FF_SERVER", server.into()));
    }
    let mut add = |name, value: Option<&str>| variables.extend(value.map(|value| (name, value.into())));
    add("FF_TASK_INPUT_TYPE", task.input_content().map(|input| input.content_type.as_str()));
    add("FF_TASK_NODE", task.node());
    add("TRACEPARENT", task.trace_context());
    add("FF_TASK_PROVIDER", task.fallback_tier().map(|tier| tier.provider.as_str()));
    add("FF_TASK_MODEL", task.fallback_tier().map(|tier| tier.model.as_str()));
    let flow = task.flow_id().map(|flow| flow.to_string());
    add("FF_TASK_FLOW_ID", flow.as_deref());
    variables
}

/// The search path with this very binary's folder at its end: a program finds `ff task` also where it is not installed.
pub(super) fn search_path() -> Option<OsString> {
    let folder = std::env::current_exe().ok()?.parent()?.to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([folder]);
    std::env::join_paths(folders).ok()
}

/// Where a program is: as its path says, or the first on the search path that may be run.
pub(super) fn find(program: &OsString) -> Option<std::path::PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let runs = |path: &std::path::PathBuf| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let path = std::path::PathBuf::from(program);
    if path.components().count() > 1 {
        return Some(path).filter(runs);
    }
    let folders = search_path().unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(&path)).find(runs)
}
