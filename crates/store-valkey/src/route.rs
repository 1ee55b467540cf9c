//! Brings a call to the server that can take it, and absorbs what a changing deployment answers meanwhile.
//!
//! An error reply means that nothing happened, so the call goes on, elsewhere or later, until the time limit. Only a
//! commit whose answer was lost is given back at once: its outcome is unknown, and the caller resolves it by reading.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ff_store::{Result, StoreError};
use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::{CallError, Request};
use crate::library::{self, Found};
use crate::refusal::Refusal;
use crate::resp::{Frame, command};
use crate::topology::{Node, Purpose, Topology, redirect_address};

const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// What one attempt led to.
enum Step {
    Answer(Frame),
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
    /// The library was put in order: try again at once.
    Again,
    Fail(StoreError),
}

/// Sends an encoded function call to the primary of a slot. A read is given up at the time limit wherever it is; a commit
/// that was sent is not, since its answer says what became of it.
pub(crate) async fn call(topology: &Topology, slot: u16, purpose: Purpose, bytes: &Bytes) -> Result<Frame> {
    let deadline = Instant::now() + topology.dialer.options.connect_timeout;
    let called = call_until(topology, slot, purpose, bytes, deadline);
    match purpose {
        Purpose::Commit => called.await,
        Purpose::Read => timeout_at(deadline, called)
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable(format!("no server answered for slot {slot} in time")))),
    }
}

async fn call_until(
    topology: &Topology,
    slot: u16,
    purpose: Purpose,
    bytes: &Bytes,
    deadline: Instant,
) -> Result<Frame> {
    let options = &topology.dialer.options;
    let confirmed = purpose == Purpose::Commit && options.waits();
    let mut pause = PAUSE_MIN;
    let mut redirect: Option<(Arc<Node>, bool)> = None;
    loop {
        let target = redirect.take().or_else(|| topology.map().primary(slot).map(|node| (node.clone(), false)));
        let step = match target {
            Some((node, asking)) => {
                let request = Request { bytes: with_asking(bytes, asking), skip: asking.into(), confirmed };
                attempt(topology, &node, node.call(slot, purpose, request).await, purpose).await
            }
            None => {
                let error = StoreError::Unavailable(format!("no server has slot {slot}"));
                Step::Wait { error, doubt: true }
            }
        };
        match step {
            Step::Answer(frame) => return Ok(frame),
            Step::Fail(error) => return Err(error),
            // Servers that disagree can send a call to and fro; that too ends with the time limit.
            Step::Redirect { .. } | Step::Again if Instant::now() > deadline => {
                return Err(StoreError::Unavailable(format!("no server took slot {slot} in time")));
            }
            Step::Redirect { address, asking } => redirect = Some((topology.node(&address), asking)),
            Step::Again => {}
            Step::Wait { error, doubt } => {
                if doubt {
                    topology.doubt();
                }
                if Instant::now() + pause > deadline {
                    return Err(error);
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

fn with_asking(bytes: &Bytes, asking: bool) -> Bytes {
    if asking { [&command(&[b"ASKING"])[..], bytes].concat().into() } else { bytes.clone() }
}

async fn attempt(
    topology: &Topology,
    node: &Node,
    answer: std::result::Result<Frame, CallError>,
    purpose: Purpose,
) -> Step {
    match answer {
        Ok(Frame::Error(text)) => refused(topology, node, &text).await,
        Ok(frame) => Step::Answer(frame),
        Err(CallError::Denied(text)) => Step::Fail(StoreError::Config(text)),
        Err(CallError::NotSent(why)) => Step::Wait { error: StoreError::Unavailable(why), doubt: true },
        Err(CallError::Lost(why)) => {
            topology.doubt();
            let why = format!("{}: {why}", node.address);
            match purpose {
                Purpose::Read => Step::Wait { error: StoreError::Unavailable(why), doubt: true },
                Purpose::Commit => Step::Fail(StoreError::Unknown(why)),
            }
        }
        Err(CallError::Unconfirmed { confirmed }) => {
            topology.doubt();
            let wanted = topology.dialer.options.replicas;
            let why = format!("{confirmed} of {wanted} replicas of {} confirmed the commit in time", node.address);
            Step::Fail(StoreError::Unknown(why))
        }
    }
}

async fn refused(topology: &Topology, node: &Node, text: &str) -> Step {
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
    match Refusal::parse(text) {
        Refusal::Moved(address) => {
            topology.doubt();
            redirected(&address, false)
        }
        Refusal::Ask(address) => redirected(&address, true),
        Refusal::NoLibrary => in_order(library::reconcile(node, Found::Missing, may_load).await),
        Refusal::OtherLibrary(revision) => {
            in_order(library::reconcile(node, Found::Revision(revision), may_load).await)
        }
        Refusal::Later => {
            Step::Wait { error: StoreError::Unavailable(format!("{}: {text}", node.address)), doubt: true }
        }
        refusal @ Refusal::NotPrimary => {
            Step::Wait { error: refusal.into_error(&format!("{}: {text}", node.address)), doubt: true }
        }
        refusal => Step::Fail(refusal.into_error(&format!("{}: {text}", node.address))),
    }
}
