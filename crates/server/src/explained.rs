//! A connection whose refusals have a body. A request that is hardly HTTP never reaches the routes: the library answers it
//! with a status alone. Here such an answer gets the problem that every other refusal has.
//!
//! Only bytes that certainly begin an answer are looked at, because bodies are bytes of others. These are the first that are
//! written, and the first behind a flush at which no request was being answered: a flush leaves nothing unwritten.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use ff_core::{Code, Error};
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::answer;

/// The header of an answer that the library made by itself; all of ours have a body.
const NO_BODY: &str = "content-length: 0\r\n";

/// The requests of a connection that are being answered.
#[derive(Clone, Default)]
pub(crate) struct Answering(Arc<AtomicUsize>);

impl Answering {
    /// A request has come. It is answered when the last of its answer's body was handed out, or the returned value is
    /// dropped.
    pub(crate) fn begin(&self) -> Answer {
        self.0.fetch_add(1, Ordering::AcqRel);
        Answer(self.clone())
    }

    fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

/// A request that is being answered.
pub(crate) struct Answer(Answering);

impl Answer {
    /// The body of its answer.
    pub(crate) fn with<B>(self, body: B) -> AnswerBody<B> {
        AnswerBody { body, _answer: self }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A body that is dropped when all of it was handed out, as the library does with bodies.
pub(crate) struct AnswerBody<B> {
    body: B,
    _answer: Answer,
}

impl<B: Body + Unpin> Body for AnswerBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Wraps a connection.
pub(crate) struct Explained<T> {
    inner: T,
    answering: Answering,
    /// The next byte begins an answer.
    at_head: bool,
    /// Set while an answer is written in the place of another one.
    instead: Option<Instead>,
}

struct Instead {
    bytes: Vec<u8>,
    written: usize,
    /// The length of the answer that it stands for.
    of: usize,
}

impl<T> Explained<T> {
    pub(crate) fn new(inner: T, answering: Answering) -> Self {
        Self { inner, answering, at_head: true, instead: None }
    }
}

/// The answer with a problem, if this is a refusal without a body.
fn explained(head: &[u8]) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(head.strip_suffix(b"\r\n")?).ok()?;
    let error = match head.strip_prefix("HTTP/1.1 ")?.get(..3)? {
        "400" => Error::invalid("request", "is no HTTP request that can be read"),
        "414" => Error::of(Code::UriTooLong),
        "431" => Error::of(Code::HeadersTooLarge),
        _ => return None,
    };
    let (before, behind) = head.split_once(NO_BODY)?;
    let body = answer::problem_text(&error);
    let (problem, length) = (answer::PROBLEM, body.len());
    let headers = format!("content-type: {problem}\r\ncache-control: no-store\r\ncontent-length: {length}\r\n");
    Some([before.as_bytes(), behind.as_bytes(), headers.as_bytes(), b"\r\n", &body].concat())
}

impl<T: AsyncRead + Unpin> AsyncRead for Explained<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> Explained<T> {
    /// Writes what stands in the place of an answer; says the length of that answer when all of it is written.
    fn write_instead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(instead) = &mut self.instead else { return Poll::Ready(Ok(0)) };
        while instead.written < instead.bytes.len() {
            match ready!(Pin::new(&mut self.inner).poll_write(context, &instead.bytes[instead.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => instead.written += count,
            }
        }
        let of = instead.of;
        self.instead = None;
        Poll::Ready(Ok(of))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Explained<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if std::mem::take(&mut self.at_head) {
            self.instead = explained(bytes).map(|better| Instead { bytes: better, written: 0, of: bytes.len() });
        }
        match self.instead {
            Some(_) => self.write_instead(context),
            None => Pin::new(&mut self.inner).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A head without a body is one slice.
        match slices {
            [one] if self.at_head => self.poll_write(context, one),
            _ if self.instead.is_some() => self.write_instead(context),
            _ => {
                self.at_head = false;
                Pin::new(&mut self.inner).poll_write_vectored(context, slices)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_flush(context))?;
        self.at_head |= self.instead.is_none() && self.answering.is_over();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Sends requests one after the other, and returns head and body of the last answer.
    async fn answer_to(requests: &[&str]) -> (String, serde_json::Value) {
        // Small enough that answers are written in pieces.
        let (client, server) = tokio::io::duplex(64);
        let (mut answers, mut sent) = tokio::io::split(client);
        let answering = Answering::default();
        let answered = answering.clone();
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let answer = answering.begin();
            async move {
                let response = match request.uri().path() {
                    "/spoof" => hyper::Response::new(Full::<Bytes>::from(SPOOF.repeat(40))),
                    _ => {
                        answer::problem(&Error::of(Code::RouteNotFound), None).map(|_| Full::from(r#"{"code":"ours"}"#))
                    }
                };
                Ok::<_, Infallible>(response.map(|body| answer.with(body)))
            }
        });
        let mut builder = http1::Builder::new();
        builder.max_buf_size(128 * 1024);
        let serving = tokio::spawn(builder.serve_connection(TokioIo::new(Explained::new(server, answered)), service));
        let mut last = (String::new(), String::new());
        for request in requests {
            let receive = async {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(answers.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let said = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                let mut body = vec![0; said.parse().unwrap()];
                answers.read_exact(&mut body).await.unwrap();
                (head, String::from_utf8(body).unwrap())
            };
            // The server may answer, and hang up, before it has read everything.
            last = tokio::join!(sent.write_all(request.as_bytes()), receive).1;
            if request.contains("/spoof") {
                assert_eq!(last.1, SPOOF.repeat(40), "the body is as it was given");
            }
        }
        drop((sent, answers));
        drop(serving.await);
        (last.0, serde_json::from_str(&last.1).unwrap())
    }

    /// A body that looks like a refusal.
    const SPOOF: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";

    #[tokio::test]
    async fn a_refusal_by_the_library_is_a_problem_as_every_other_one() {
        let (long, large) = ("a".repeat(65_600), "a".repeat(200_000));
        for (request, status, code) in [
            (format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"), 414, "uri_too_long"),
            (format!("GET / HTTP/1.1\r\nhost: a\r\nx: {large}\r\n\r\n"), 431, "headers_too_large"),
            ("GET / HTTP/7.0\r\n\r\n".to_owned(), 400, "invalid"),
        ] {
            let well = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
            let spoof = "GET /spoof HTTP/1.1\r\nhost: a\r\n\r\n";
            for before in [vec![], vec![well], vec![well, spoof], vec![spoof, well, spoof]] {
                let (head, problem) = answer_to(&[before, vec![&request]].concat()).await;
                assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
                assert!(head.contains("content-type: application/problem+json"), "{head}");
                assert_eq!((&problem["status"], &problem["code"]), (&status.into(), &code.into()));
            }
        }
    }

    #[tokio::test]
    async fn our_own_answers_stay_as_they_are() {
        let well = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let (head, body) = answer_to(&[well, well]).await;
        assert!(head.starts_with("HTTP/1.1 404 ") && body["code"] == "ours", "{head}");
    }
}
