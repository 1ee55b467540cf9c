//! HTTP/2: many requests over one connection. A peer is held to the same times as over HTTP/1: a connection without
//! requests is ended, and so is one whose peer leaves an answer lying.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::answer::Body;
use crate::app::App;
use crate::http;

/// Requests that one connection may have under way.
const STREAMS_MAX: u32 = 128;
/// A peer that is silent is asked this often whether it is there.
const PING_EVERY: Duration = Duration::from_secs(20);
/// The longest head of a request, as over HTTP/1.
const HEAD_MAX_BYTES: u32 = 64 * 1024;

/// Serves a connection until it ends, or until the server stops and its present answers are given.
pub(crate) async fn serve<I>(app: Arc<App>, io: I, peer: IpAddr) -> hyper::Result<()>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let streams = Arc::new(Streams::default());
    let for_requests = (app.clone(), streams.clone());
    let service = service_fn(move |request| {
        let (app, streams) = for_requests.clone();
        let progress = streams.begin();
        async move {
            let answer = http::respond(app, peer, request).await;
            Ok::<_, Infallible>(answer.map(|body| Followed { body, progress }))
        }
    });
    // The task of a request ends with its connection, because its stream does.
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX).max_header_list_size(HEAD_MAX_BYTES);
    builder.keep_alive_interval(PING_EVERY).keep_alive_timeout(app.config.write_timeout);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    tokio::select! {
        ended = serving.as_mut() => return ended,
        () = app.stopped() => {
            serving.as_mut().graceful_shutdown();
            return serving.await;
        }
        () = streams.idle(app.config.header_timeout) => {}
        () = streams.stuck(app.config.write_timeout) => return Ok(()),
    }
    // Answers that were handed over whole may still wait for the peer to take them.
    serving.as_mut().graceful_shutdown();
    tokio::time::timeout(app.config.write_timeout, serving).await.unwrap_or(Ok(()))
}

/// The requests of one connection.
#[derive(Default)]
struct Streams {
    begun: AtomicU64,
    open: Mutex<Vec<Arc<Progress>>>,
}

/// How far the answer to a request is; shared with its body, and gone with it.
#[derive(Default)]
struct Progress {
    /// Since when a piece of the answer waits for the peer to make room for the next.
    waiting_since: Mutex<Option<Instant>>,
}

impl Progress {
    fn set(&self, since: Option<Instant>) {
        *self.waiting_since.lock().expect("no holder of this lock panics") = since;
    }
}

impl Streams {
    fn begin(&self) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.open().push(progress.clone());
        progress
    }

    /// The requests under way; those that have ended are forgotten.
    fn open(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Progress>>> {
        let mut open = self.open.lock().expect("no holder of this lock panics");
        open.retain(|progress| Arc::strong_count(progress) > 1);
        open
    }

    /// Ends when no request began, and none was under way, for this time.
    async fn idle(&self, limit: Duration) {
        let mut begun = self.begun.load(Ordering::Relaxed);
        loop {
            tokio::time::sleep(limit).await;
            let now = self.begun.load(Ordering::Relaxed);
            if now == begun && self.open().is_empty() {
                return;
            }
            begun = now;
        }
    }

    /// Ends when the peer has made no room for an answer for this time.
    async fn stuck(&self, limit: Duration) {
        loop {
            tokio::time::sleep(limit / 2).await;
            let since =
                |progress: &Arc<Progress>| *progress.waiting_since.lock().expect("no holder of this lock panics");
            if self.open().iter().filter_map(since).any(|since| since.elapsed() >= limit) {
                return;
            }
        }
    }
}

/// A body that notes when its last piece was taken. Its reader asks for the next one as soon as the peer has room.
struct Followed {
    body: Body,
    progress: Arc<Progress>,
}

impl hyper::body::Body for Followed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.progress.set(matches!(polled, Poll::Ready(Some(_))).then(Instant::now));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
