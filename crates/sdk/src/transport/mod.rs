//! The two ways to an engine: in this process, or over HTTP. Everything above is the same for both.

mod call;
mod connection;
mod event;
mod gather;
mod http;
mod in_process;
mod sse;

use ff_core::stream::FrameId;
use ff_core::{Error, ExecutionId};

pub(crate) use call::{ANSWERED, Call, Calling, Key};
pub use event::StreamEvent;
pub(crate) use http::{Http, exposes_token};
pub(crate) use in_process::InProcess;
pub(crate) use sse::SseReader;

use crate::error::{SdkError, UnknownRefusal};

/// Why a single try failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine refused.
    Refused(Error),
    /// It is not known whether the call took effect.
    Unreachable(String),
    /// An answer came that makes no sense.
    Unreadable(String),
    /// A newer server refused with a code that this version does not know.
    Unknown(Box<UnknownRefusal>),
    /// The engine in this process was closed; no other will answer.
    Closed(Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused(error) | Failure::Closed(error) => error.fmt(f),
            Failure::Unknown(refusal) => refusal.fmt(f),
            Failure::Unreachable(why) | Failure::Unreadable(why) => f.write_str(why),
        }
    }
}

impl From<Failure> for SdkError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) | Failure::Closed(error) => SdkError::Refused(error),
            Failure::Unknown(refusal) => SdkError::UnknownRefusal(refusal),
            Failure::Unreachable(why) => SdkError::Unreachable(why),
            Failure::Unreadable(why) => SdkError::Unreadable(why),
        }
    }
}

/// A stream that is open.
pub(crate) enum Follower {
    InProcess(in_process::Viewer),
    Http(SseReader),
}

impl Follower {
    /// The next events; `None` when the connection ended before the stream did.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<StreamEvent>>, Failure> {
        match self {
            Follower::InProcess(viewer) => viewer.next().await.map(Some),
            Follower::Http(reader) => reader.next().await,
        }
    }
}

/// Either way.
pub(crate) enum Connection {
    InProcess(InProcess),
    Http(Http),
}

impl Connection {
    /// Tries a call once.
    pub(crate) async fn call<'c>(&'c self, call: &mut dyn Call<'c>, key: &'c Key) -> Result<(), Failure> {
        match self {
            Connection::InProcess(engine) => engine.call(call, key).await,
            Connection::Http(server) => server.call(call, key).await,
        }
    }

    /// Opens the stream of an execution after a frame.
    pub(crate) async fn follow(&self, id: ExecutionId, after: FrameId) -> Result<Follower, Failure> {
        match self {
            Connection::InProcess(engine) => Ok(engine.follow(id, after)),
            Connection::Http(server) => server.follow(id, after).await,
        }
    }
}
