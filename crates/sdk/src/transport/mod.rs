//! The two ways to an engine: in this process, or over HTTP. Everything above is the same for both.

mod connection;
mod event;
mod http;
mod in_process;
mod sse;

use ff_core::op::Operation;
use ff_core::stream::FrameId;
use ff_core::{Error, ExecutionId};
use ff_engine::{Engine, Serves};

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

/// Carries calls, each tried once.
pub(crate) trait Transport {
    /// Calls an operation. The key is the identity of a call whose arguments have no field for it.
    fn call<O: Operation>(
        &self,
        args: O::Args,
        key: Option<&str>,
    ) -> impl Future<Output = Result<O::Outcome, Failure>> + Send
    where
        Engine: Serves<O>;

    /// Opens the stream of an execution after a frame.
    fn follow(&self, id: ExecutionId, after: FrameId) -> impl Future<Output = Result<Follower, Failure>> + Send;
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

impl Transport for Connection {
    async fn call<O: Operation>(&self, args: O::Args, key: Option<&str>) -> Result<O::Outcome, Failure>
    where
        Engine: Serves<O>,
    {
        match self {
            Connection::InProcess(engine) => engine.call::<O>(args, key).await,
            Connection::Http(server) => server.call::<O>(args, key).await,
        }
    }

    async fn follow(&self, id: ExecutionId, after: FrameId) -> Result<Follower, Failure> {
        match self {
            Connection::InProcess(engine) => engine.follow(id, after).await,
            Connection::Http(server) => server.follow(id, after).await,
        }
    }
}
