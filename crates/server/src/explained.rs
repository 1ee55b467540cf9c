//! A connection whose refusals have a body. A request that is hardly HTTP never reaches the routes: the library answers it
//! with a status alone. Here such an answer gets the problem that every other refusal has.
//!
//! Only the first answer on a connection is looked at: it begins with the first bytes that are written, which later ones
//! cannot be told from, because bodies are bytes of others.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ff_core::{Code, Error};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::answer;

/// The header of an answer that the library made by itself; all of ours have a body.
const NO_BODY: &str = "content-length: 0\r\n";

/// Wraps a connection.
pub(crate) struct Explained<T> {
    inner: T,
    /// Nothing was written yet.
    fresh: bool,
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
    pub(crate) fn new(inner: T) -> Self {
        Self { inner, fresh: true, instead: None }
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
        if std::mem::take(&mut self.fresh) {
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
            [one] if self.fresh => self.poll_write(context, one),
            _ if self.instead.is_some() => self.write_instead(context),
            _ => {
                self.fresh = false;
                Pin::new(&mut self.inner).poll_write_vectored(context, slices)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn answer_to(request: String) -> (String, serde_json::Value) {
        // Small enough that answers are written in pieces.
        let (client, server) = tokio::io::duplex(64);
        let (mut answers, mut requests) = tokio::io::split(client);
        let service = service_fn(|_request: hyper::Request<hyper::body::Incoming>| async {
            Ok::<_, Infallible>(answer::problem(&Error::of(Code::RouteNotFound), None))
        });
        let mut builder = http1::Builder::new();
        builder.max_buf_size(128 * 1024).keep_alive(false);
        let serving = tokio::spawn(builder.serve_connection(TokioIo::new(Explained::new(server)), service));
        let mut text = String::new();
        // The server may answer, and hang up, before it has read everything.
        let (_, read) = tokio::join!(requests.write_all(request.as_bytes()), answers.read_to_string(&mut text));
        read.unwrap();
        drop(serving.await);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let said = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        assert_eq!(said.parse::<usize>().unwrap(), body.len(), "{head}");
        (head.to_owned(), serde_json::from_str(body).unwrap())
    }

    #[tokio::test]
    async fn a_refusal_by_the_library_is_a_problem_as_every_other_one() {
        for (request, status, code) in [
            (format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(65_600)), 414, "uri_too_long"),
            (format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "a".repeat(200_000)), 431, "headers_too_large"),
            ("GET / HTTP/7.0\r\n\r\n".to_owned(), 400, "invalid"),
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), 404, "route_not_found"),
        ] {
            let (head, problem) = answer_to(request).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            assert!(head.contains("content-type: application/problem+json"), "{head}");
            assert_eq!((&problem["status"], &problem["code"]), (&status.into(), &code.into()));
        }
    }
}
