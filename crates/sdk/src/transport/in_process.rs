//! Calls to an engine in this process.

use std::future::poll_fn;

use ff_core::stream::FrameId;
use ff_core::{Code, Error, ExecutionId, limits};
use ff_engine::{Caller, Engine, Seen, StreamUpdate};

use super::{Call, Failure, Follower, Key, StreamEvent};

/// An engine and on whose behalf it is called.
pub(crate) struct InProcess {
    engine: Engine,
    caller: Caller,
    /// The engine was started for this client and ends with it.
    owned: bool,
}

impl InProcess {
    pub(crate) fn new(engine: Engine, owned: bool) -> Self {
        Self { engine, caller: Caller::system(), owned }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The key of a call, for the engine.
    pub(crate) fn key(&self, text: String) -> Key {
        let caller = Caller { idempotency_key: Some(text.clone()), ..self.caller.clone() };
        Key { text: Some(text), caller: Some(caller) }
    }

    /// Tries a call once.
    pub(super) async fn call<'c>(&'c self, call: &mut dyn Call<'c>, key: &'c Key) -> Result<(), Failure> {
        call.begin(&self.engine, key.caller.as_ref().unwrap_or(&self.caller));
        poll_fn(|cx| call.poll(cx)).await.map_err(refused)
    }

    /// Opens the stream of an execution after a frame.
    pub(super) fn follow(&self, id: ExecutionId, after: FrameId) -> Follower {
        let seen = Seen { after, paused: false };
        Follower::InProcess(Viewer { engine: self.engine.clone(), caller: self.caller.clone(), id, seen })
    }

    /// Stops the engine if it is the client's own.
    pub(crate) async fn close(&self) {
        if self.owned {
            close(&self.engine).await;
        }
    }
}

async fn close(engine: &Engine) {
    engine.close().await;
    engine.store().close().await;
}

impl Drop for InProcess {
    /// The services hold the engine, so the drop of the client must tell them to stop.
    fn drop(&mut self) {
        if let (true, Ok(runtime)) = (self.owned, tokio::runtime::Handle::try_current()) {
            let engine = self.engine.clone();
            runtime.spawn(async move { close(&engine).await });
        }
    }
}

fn refused(error: Error) -> Failure {
    if error.code == Code::ShuttingDown { Failure::Closed(error) } else { Failure::Refused(error) }
}

/// Frames that are read at once.
const PAGE: usize = 100;

/// A viewer of one stream.
pub(crate) struct Viewer {
    engine: Engine,
    caller: Caller,
    id: ExecutionId,
    seen: Seen,
}

impl Viewer {
    pub(super) async fn next(&mut self) -> Result<Vec<StreamEvent>, Failure> {
        let follow = self.engine.follow(&self.caller, &self.id, self.seen, PAGE, limits::TAIL_WAIT_MAX_MS);
        Ok(match follow.await.map_err(refused)? {
            StreamUpdate::Frames(frames) => {
                if let Some(last) = frames.last() {
                    self.seen = Seen { after: last.id, paused: false };
                }
                frames.into_iter().map(StreamEvent::Frame).collect()
            }
            StreamUpdate::Attempt(attempt) => {
                self.seen = Seen { after: FrameId { attempt, sequence: 0 }, paused: false };
                vec![StreamEvent::Attempt { attempt }]
            }
            StreamUpdate::Paused { attempt, reason, detail } => {
                self.seen.paused = true;
                vec![StreamEvent::Paused { attempt, reason, detail }]
            }
            StreamUpdate::End(public_state) => vec![StreamEvent::End { public_state }],
            StreamUpdate::Nothing => Vec::new(),
        })
    }
}
