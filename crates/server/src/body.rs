//! The body of a request, read within bounds.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ff_core::{Code, Error, Result};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::header::{self, HeaderMap};

use crate::arguments::Sent;
use crate::config::Config;
use crate::origin;

/// How much of a body is read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// The most bytes.
    pub(crate) max: usize,
    /// How long it may take to arrive.
    pub(crate) timeout: Duration,
}

/// Reads a body that may be read: of a known type, and no larger than the operation's largest.
pub(crate) async fn read<B>(
    config: &Config,
    method: &Method,
    headers: &HeaderMap,
    body: B,
    reading: Reading,
) -> Result<Sent>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error,
{
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|value| *value != "identity") {
        let encoding = encoding.to_str().unwrap_or("");
        let detail = format!("bodies are not decoded; this one is said to be {encoding:?}");
        return Err(Error::new(Code::UnsupportedMediaType, detail).with("field", "Content-Encoding"));
    }
    let essence = headers.get(header::CONTENT_TYPE).map(|value| {
        let text = value.to_str().unwrap_or("");
        text.split(';').next().unwrap_or("").trim()
    });
    let is = |wanted: &str| essence.is_some_and(|essence| essence.eq_ignore_ascii_case(wanted));
    let wrap: fn(Bytes) -> Sent = match essence {
        Some(_) if is("application/json") => Sent::Json,
        Some(_) if is("application/octet-stream") => Sent::Raw,
        // A browser sends other types across origins without asking. Reads and removals do not need one.
        None if matches!(*method, Method::GET | Method::DELETE) => Sent::Json,
        // Nor does a call that says nothing, unless a page of another origin may have made it.
        None if body.is_end_stream() && !origin::is_foreign(config, headers) => return Ok(Sent::Nothing),
        _ => return Err(Error::of(Code::UnsupportedMediaType)),
    };
    let bytes = bytes(config, headers, body, reading).await?;
    // An empty raw body is a blob of no bytes; an empty JSON body says nothing.
    let nothing = bytes.is_empty() && !is("application/octet-stream");
    Ok(if nothing { Sent::Nothing } else { wrap(bytes) })
}

/// Reads a body of whatever type, as it is.
pub(crate) async fn bytes<B>(
    config: &Config,
    headers: &HeaderMap,
    mut body: B,
    Reading { max, timeout }: Reading,
) -> Result<Bytes>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error,
{
    let announced = body.size_hint().lower();
    if usize::try_from(announced).map_or(true, |announced| announced > max) {
        discard(config, headers, body, announced).await;
        return Err(too_large(announced, max));
    }
    let reading = async {
        // Most bodies come in one piece, which is taken as it is.
        let mut only = Bytes::new();
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Error::invalid("body", format!("ended early: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = bytes.len().max(only.len()) + data.len();
            if length > max {
                return Err(too_large(length as u64, max));
            }
            if only.is_empty() && bytes.is_empty() {
                only = data;
                continue;
            }
            bytes.extend_from_slice(&std::mem::take(&mut only));
            bytes.extend_from_slice(&data);
        }
        Ok(if bytes.is_empty() { only } else { bytes.freeze() })
    };
    let late = |_| Error::invalid("body", "did not arrive in time");
    let read = tokio::time::timeout(timeout, reading).await.map_err(late)?;
    if let Err(refused) = &read
        && refused.code == Code::PayloadTooLarge
    {
        discard(config, headers, body, 0).await;
    }
    read
}

/// Reads on to the end of a body that is refused, within reason: a client that is still sending would otherwise find
/// its connection closed instead of the answer. One that asks before it sends needs no such reading.
async fn discard<B>(config: &Config, headers: &HeaderMap, mut body: B, announced: u64)
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
{
    if announced > DISCARD_MAX_BYTES || headers.contains_key(header::EXPECT) {
        return;
    }
    let reading = async {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, |data| data.len() as u64);
            if read > DISCARD_MAX_BYTES {
                break;
            }
        }
    };
    // A client that sends for longer gets the answer all the same.
    let _ = tokio::time::timeout(config.body_timeout.min(DISCARD_TIMEOUT), reading).await;
}

/// A body that is refused is read up to here.
const DISCARD_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// A body that is refused is read for at most this long.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

fn too_large(size: u64, max: usize) -> Error {
    let detail = format!("the body has at least {size} bytes, the limit is {max}");
    Error::new(Code::PayloadTooLarge, detail).with("field", "body").with("max", max)
}
