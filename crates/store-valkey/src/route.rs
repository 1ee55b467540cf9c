//! Brings a call to the server that can take it, and repeats it while a changing deployment refuses it.
//!
//! An error reply means that nothing happened, so the call goes on, elsewhere or later, until the time limit. A commit
//! whose answer was lost, or whose function failed in its middle, is given back at once: its outcome is unknown, and
//! the caller resolves it. A fault that has lasted for a while is not waited for again: calls to a server that cannot
//! be reached, and commits on a slot whose move does not end, fail at once, and calls to other servers go on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ff_store::{Result, StoreError};
use tokio::time::{Instant, sleep, timeout_at};

use crate::answer::Committed;
use crate::commit::Part;
use crate::connection::{Body, CallError, Reply, Request};
use crate::library::{self, Found};
use crate::refusal::{self, Refusal};
use crate::resp::Frame;
use crate::topology::{Node, Purpose, Topology, redirect_address};

const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// How long calls wait for a server that cannot be reached, counted from the first failure. It is long enough for a
/// restart or a manual failover to pass unnoticed.
const OUTAGE_PATIENCE: Duration = Duration::from_secs(1);

/// Why a call was given up.
pub(crate) enum Failure {
    /// The slot is on its way to another server, and the call's keys are in both places. Only reads end like this.
    Moving,
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Store(error)
    }
}

/// The result of one attempt.
enum Step {
    Answer(Reply),
    /// Go to this node, this once with ASKING.
    Redirect {
        address: String,
        asking: bool,
    },
    /// Try again after a pause; the error is for the caller when time runs out.
    Wait {
        error: StoreError,
        doubt: bool,
    },
    /// The keys of the call are in two places.
    Moving(StoreError),
    /// The library was missing and has been loaded, or the call was refused because it shared a call: try again at
    /// once.
    Again,
    Fail(StoreError),
}

/// Sends an encoded commit to the primary of a slot. It is not given up once it was sent, because only its answer tells
/// its outcome.
pub(crate) async fn commit(topology: &Topology, part: Part) -> Result<Committed> {
    let (slot, deadline) = (part.slot, Instant::now() + topology.dialer.options.connect_timeout);
    match call_until(topology, slot, Follow::Keys, &Body::Commit(Arc::new(part)), deadline).await {
        Ok(Reply::Committed(committed)) => Ok(committed),
        Ok(Reply::Frame(frame)) => Err(StoreError::Unknown(format!("a commit was answered with {frame:?}"))),
        Err(Failure::Store(error)) => Err(error),
        Err(Failure::Moving) => Err(StoreError::Unavailable(format!("slot {slot} is moving"))),
    }
}

/// Whether a call may follow its keys to another server before their slot itself has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    Keys,
    /// It may not, because it reads keys that it does not name. Those may not have moved yet, and the other server
    /// would silently take them for absent.
    Nothing,
}

/// Sends an encoded read to the primary of a slot, and gives it up at the time limit wherever it is.
pub(crate) async fn read(
    topology: &Topology,
    slot: u16,
    bytes: &Bytes,
    follow: Follow,
) -> std::result::Result<Frame, Failure> {
    let deadline = Instant::now() + topology.dialer.options.connect_timeout;
    let late = || Err(StoreError::Unavailable(format!("no server answered for slot {slot} in time")).into());
    let body = Body::Command(bytes.clone());
    let answer = call_until(topology, slot, follow, &body, deadline);
    match timeout_at(deadline, answer).await {
        Ok(Ok(Reply::Frame(frame))) => Ok(frame),
        Ok(Ok(Reply::Committed(_))) => Err(StoreError::Corrupt("a read was answered as a commit".into()).into()),
        Ok(Err(failure)) => Err(failure),
        Err(_) => late(),
    }
}

async fn call_until(
    topology: &Topology,
    slot: u16,
    follow: Follow,
    body: &Body,
    deadline: Instant,
) -> std::result::Result<Reply, Failure> {
    let purpose = Purpose::of(body);
    let confirmed = purpose == Purpose::Commit && topology.dialer.options.confirms();
    let mut pause = PAUSE_MIN;
    let mut redirect: Option<(Arc<Node>, bool)> = None;
    // A commit that was refused in a shared call may be accepted alone.
    let mut alone = false;
    loop {
        let target = redirect.take().or_else(|| topology.map().primary(slot).map(|node| (node.clone(), false)));
        let step = match target {
            Some((node, asking)) => {
                let request = Request { body: body.clone(), asking, alone, confirmed, about_server: false };
                let answer = node.call(slot, request).await;
                attempt(topology, &node, answer, Attempted { body, alone: std::mem::replace(&mut alone, true) }).await
            }
            None => {
                let error = StoreError::Unavailable(format!("no server has slot {slot}"));
                Step::Wait { error, doubt: true }
            }
        };
        match step {
            Step::Answer(reply) => return Ok(reply),
            Step::Fail(error) => return Err(error.into()),
            // Servers that disagree can send a call to and fro, so redirections end with the time limit, too.
            Step::Redirect { .. } | Step::Again if Instant::now() > deadline => {
                return Err(StoreError::Unavailable(format!("no server took slot {slot} in time")).into());
            }
            Step::Redirect { asking: true, .. } if follow == Follow::Nothing => {
                topology.doubt();
                return Err(Failure::Moving);
            }
            Step::Redirect { address, asking } => redirect = Some((topology.node(&address), asking)),
            Step::Again => {}
            Step::Moving(_) if purpose == Purpose::Read => {
                topology.doubt();
                return Err(Failure::Moving);
            }
            Step::Moving(error) if topology.is_stuck(slot) => return Err(error.into()),
            Step::Wait { error, .. } | Step::Moving(error) if Instant::now() + pause > deadline => {
                return Err(error.into());
            }
            Step::Wait { doubt: false, .. } => pause = rest(pause).await,
            Step::Wait { .. } | Step::Moving(_) => {
                topology.doubt();
                pause = rest(pause).await;
            }
        }
    }
}

/// Pauses; returns how long the next pause is.
async fn rest(pause: Duration) -> Duration {
    sleep(pause).await;
    (pause * 2).min(PAUSE_MAX)
}

/// The request of an attempt, and whether it was sent in a call of its own.
#[derive(Clone, Copy)]
struct Attempted<'b> {
    body: &'b Body,
    alone: bool,
}

async fn attempt(
    topology: &Topology,
    node: &Node,
    answer: std::result::Result<Reply, CallError>,
    attempted: Attempted<'_>,
) -> Step {
    match answer {
        Ok(Reply::Frame(Frame::Error(text))) => refused(topology, node, &text, attempted).await,
        Ok(reply) => Step::Answer(reply),
        Err(CallError::Denied(text)) => Step::Fail(StoreError::Config(text)),
        Err(CallError::NotSent(why)) => {
            let error = StoreError::Unavailable(why);
            if node.unreachable_for().is_some_and(|outage| outage > OUTAGE_PATIENCE) {
                topology.doubt();
                Step::Fail(error)
            } else {
                Step::Wait { error, doubt: true }
            }
        }
        Err(CallError::Lost(why)) => {
            topology.doubt();
            let why = format!("{}: {why}", node.address);
            match Purpose::of(attempted.body) {
                Purpose::Read => Step::Wait { error: StoreError::Unavailable(why), doubt: true },
                Purpose::Commit => Step::Fail(StoreError::Unknown(why)),
            }
        }
        Err(CallError::Unconfirmed(why)) => {
            topology.doubt();
            Step::Fail(StoreError::Unknown(format!("{}: {why}", node.address)))
        }
    }
}

async fn refused(topology: &Topology, node: &Node, text: &str, attempted: Attempted<'_>) -> Step {
    let redirected = |address: &str, asking: bool| match redirect_address(&node.address, address) {
        Some(address) => Step::Redirect { address, asking },
        None => Step::Fail(StoreError::Corrupt(format!("{} sends us nowhere: {text}", node.address))),
    };
    let in_order = |result: Result<()>| match result {
        Ok(()) => Step::Again,
        Err(error) if error.retryable() => Step::Wait { error, doubt: true },
        Err(error) => Step::Fail(error),
    };
    let may_load = topology.dialer.options.load_library;
    let at_node = format!("{}: {text}", node.address);
    match Refusal::parse(text) {
        Refusal::Moved(address) => {
            topology.doubt();
            redirected(&address, false)
        }
        Refusal::Ask(address) => redirected(&address, true),
        Refusal::NoLibrary => in_order(library::provide(node, Found::Missing, may_load).await),
        Refusal::OtherLibrary(protocol) => in_order(library::provide(node, Found::Protocol(protocol), may_load).await),
        Refusal::Moving => Step::Moving(StoreError::Unavailable(at_node)),
        Refusal::Later => Step::Wait { error: StoreError::Unavailable(at_node), doubt: true },
        refusal @ Refusal::NotPrimary => Step::Wait { error: refusal.into_error(&at_node), doubt: true },
        // A full server accepts a commit that frees memory, unless it shared a call with one that does not.
        Refusal::Full if !attempted.alone && attempted.body.is_relief() => Step::Again,
        Refusal::Other if Purpose::of(attempted.body) == Purpose::Commit && !refusal::had_not_begun(text) => {
            Step::Fail(StoreError::Unknown(at_node))
        }
        refusal => Step::Fail(refusal.into_error(&at_node)),
    }
}
