//! One pipelined connection, as a task that owns its socket.
//!
//! Callers put requests into a queue; the task writes the gathered requests in one go and hands out the answers in
//! order. It knows which requests had been sent when a connection broke: those are lost (they may have taken effect).
//! The rest are still in the queue and go over the next connection.
//!
//! If the tier promises replicas, a group of commits is followed by one WAIT on this same connection, and the answers
//! of the group are held until the replicas have it. The next group gathers meanwhile, so many callers share one round
//! trip to the replicas. If the tier promises the disk, the group is followed by a question whether the server still
//! syncs every write.
//!
//! While a server cannot be reached, the task goes on trying to connect, and callers are refused at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::answer::Committed;
use crate::commit::Part;
use crate::health::Health;
use crate::resp::Frame;
use crate::session::{End, Session, Unproven};
use crate::transport::{DialError, Dialer, Line};

/// Requests that may wait for a connection before callers wait for room.
const QUEUE: usize = 4_096;
/// Requests written in one go.
pub(crate) const GROUP: usize = 512;
/// After a failed attempt to connect, requests are refused this long before the next attempt.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// Why a call got no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallError {
    /// It was never sent.
    NotSent(String),
    /// The server does not let us in.
    Denied(String),
    /// It was sent, and its outcome is unknown.
    Lost(String),
    /// It was done, but the promise of the tier was not confirmed.
    Unconfirmed(String),
}

impl CallError {
    /// The reason with the server's address; a failed connection names the address already.
    pub(crate) fn at(&self, address: &str) -> String {
        match self {
            CallError::NotSent(why) if why.starts_with(address) => why.clone(),
            other => format!("{address}: {other}"),
        }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::NotSent(why) | CallError::Denied(why) | CallError::Lost(why) | CallError::Unconfirmed(why) => {
                f.write_str(why)
            }
        }
    }
}

/// The content of a request.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// One encoded command.
    Command(Bytes),
    /// A commit, which may share its call with others.
    Commit(Arc<Part>),
}

impl Body {
    /// Whether all of it frees memory.
    pub(crate) fn is_relief(&self) -> bool {
        matches!(self, Body::Commit(part) if part.relief)
    }
}

/// A request on its way to a server.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) body: Body,
    /// The slot is on its way to this server: an ASKING goes before it.
    pub(crate) asking: bool,
    /// It does not share its call with other commits.
    pub(crate) alone: bool,
    /// It is answered only when the promise of the tier is confirmed.
    pub(crate) confirmed: bool,
    /// It is about the server, not about its data, so even a server that is not known to be in charge may be asked.
    pub(crate) about_server: bool,
}

impl Request {
    /// A command about the server itself.
    pub(crate) fn plain(bytes: Bytes) -> Self {
        Self { body: Body::Command(bytes), asking: false, alone: true, confirmed: false, about_server: true }
    }
}

/// What a server said.
#[derive(Debug)]
pub(crate) enum Reply {
    Frame(Frame),
    /// What became of a commit.
    Committed(Committed),
}

/// The channel of a caller that waits for an answer.
pub(crate) type Answer = oneshot::Sender<Result<Reply, CallError>>;

/// The handle that callers hold. The connection's task ends with its last handle.
#[derive(Debug)]
pub(crate) struct Connection {
    queue: mpsc::Sender<(Request, Answer)>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    /// A connection that is made when the first request comes.
    pub(crate) fn new(address: String, dialer: Arc<Dialer>, health: Arc<Health>) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE);
        let task = tokio::spawn(Actor { address, dialer, health, requests }.run()).abort_handle();
        Self { queue, task }
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn call(&self, request: Request) -> Result<Reply, CallError> {
        let closed = || CallError::NotSent("the connection was closed".into());
        let (answer, answered) = oneshot::channel();
        self.queue.send((request, answer)).await.map_err(|_| closed())?;
        // The task drops an answer only when it is aborted, with the request perhaps already sent.
        answered.await.unwrap_or_else(|_| Err(CallError::Lost("the connection was closed".into())))
    }
}

struct Actor {
    address: String,
    dialer: Arc<Dialer>,
    health: Arc<Health>,
    requests: mpsc::Receiver<(Request, Answer)>,
}

impl Actor {
    async fn run(mut self) {
        let mut waiting = Vec::new();
        let mut backoff = BACKOFF_MIN;
        loop {
            if waiting.is_empty() && self.requests.recv_many(&mut waiting, GROUP).await == 0 {
                return;
            }
            match self.dial(&mut waiting).await {
                Ok(line) => {
                    backoff = BACKOFF_MIN;
                    self.health.reached();
                    let unproven = line.run_id.map(|run_id| {
                        let (address, health) = (self.address.clone(), self.health.clone());
                        Unproven { address, run_id, health }
                    });
                    let session = Session::new(line.stream, self.dialer.clone(), unproven);
                    match session.serve(&mut self.requests, &mut waiting).await {
                        End::Closed => return,
                        End::Broken(why) => tracing::debug!(address = self.address, why, "connection lost"),
                    }
                }
                Err(why) => {
                    tracing::debug!(address = self.address, ?why, "cannot connect");
                    self.health.failed(&why);
                    self.refuse(&why, &mut waiting, Instant::now() + backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    /// Connects. Callers wait for the connection only if the server could be reached the last time.
    async fn dial(&mut self, waiting: &mut Vec<(Request, Answer)>) -> Result<Line, DialError> {
        let mut dialing = std::pin::pin!(self.dialer.dial(&self.address));
        let mut open = true;
        loop {
            let outage = self.health.why();
            if let Some(why) = &outage {
                refuse_all(why, waiting);
            }
            tokio::select! {
                biased;
                dialed = dialing.as_mut() => return dialed,
                received = self.requests.recv_many(waiting, GROUP), if open && outage.is_some() => open = received > 0,
            }
        }
    }

    /// Refuses the waiting requests, and those that come until the next attempt, so that callers can look for another
    /// server.
    async fn refuse(&mut self, why: &DialError, waiting: &mut Vec<(Request, Answer)>, until: Instant) {
        loop {
            refuse_all(why, waiting);
            match timeout_at(until, self.requests.recv_many(waiting, GROUP)).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

fn refuse_all(why: &DialError, waiting: &mut Vec<(Request, Answer)>) {
    for (_, answer) in waiting.drain(..) {
        // A caller that has gone away needs no answer.
        let _ = answer.send(Err(match why {
            DialError::Unreachable(text) => CallError::NotSent(text.clone()),
            DialError::Denied(text) => CallError::Denied(text.clone()),
        }));
    }
}
