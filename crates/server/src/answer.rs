//! Responses: JSON, bytes, nothing, and refusals as RFC 9457 problems.

use std::convert::Infallible;

use bytes::Bytes;
use ff_core::op::parts::Content;
use ff_core::{Code, Error, Result};
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

/// The body of every response.
pub(crate) type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// The content type of refusals.
pub(crate) const PROBLEM: &str = "application/problem+json";

/// A refusal as it stands in a response.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Problem<'a> {
    /// Where the code is explained, relative to the documentation.
    #[serde(rename = "type")]
    kind: String,
    /// The class of the refusal.
    title: ff_core::Class,
    /// The HTTP status.
    status: u16,
    /// The code, from the table.
    code: Code,
    /// Whether the same call may succeed later without any change by the caller.
    retryable: bool,
    /// The particular circumstances, for people.
    detail: &'a str,
    /// The circumstances for programs; `field` on invalid input.
    details: &'a serde_json::Map<String, serde_json::Value>,
    /// When repeating makes sense.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<i64>,
    /// Advice to the caller, in one sentence.
    advice: &'static str,
    /// The id of the request in the server's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
}

impl<'a> Problem<'a> {
    fn of(error: &'a Error, request_id: Option<&'a str>) -> Self {
        let code = error.code;
        Self {
            kind: format!("urn:flowfabric:error:{code}"),
            title: code.class(),
            status: code.http_status(),
            code,
            retryable: code.retryable(),
            detail: &error.detail,
            details: &error.details,
            retry_after_ms: error.retry_after_ms,
            advice: code.advice(),
            request_id,
        }
    }
}

/// A response with a whole body.
pub(crate) fn whole(status: StatusCode, content_type: &str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    set(&mut response, header::CONTENT_TYPE, content_type);
    response
}

/// An answer in JSON.
pub(crate) fn json(outcome: &impl Serialize) -> Result<Response<Body>> {
    json_text(serde_json::to_vec(outcome))
}

/// An answer that was written as JSON.
pub(crate) fn json_text(written: serde_json::Result<Vec<u8>>) -> Result<Response<Body>> {
    let text = written.map_err(|error| Error::new(Code::Internal, format!("the answer cannot be written: {error}")))?;
    Ok(whole(StatusCode::OK, "application/json", text))
}

/// Nothing to say.
pub(crate) fn empty() -> Response<Body> {
    let mut response = Response::new(Full::default().boxed_unsync());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Bytes as they were given to us. They are a stranger's: a browser must neither guess nor run them.
pub(crate) fn bytes(content: &Content) -> Response<Body> {
    let content_type = if content.content_type.is_empty() { ff_core::op::parts::OCTETS } else { &content.content_type };
    let mut response = whole(StatusCode::OK, content_type, content.bytes.clone());
    set(&mut response, header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'");
    response
}

/// The body of a refusal.
pub(crate) fn problem_text(error: &Error) -> Vec<u8> {
    serde_json::to_vec(&Problem::of(error, None)).unwrap_or_default()
}

/// A refusal.
pub(crate) fn problem(error: &Error, request_id: Option<&str>) -> Response<Body> {
    let status = StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = serde_json::to_vec(&Problem::of(error, request_id)).unwrap_or_default();
    let mut response = whole(status, PROBLEM, text);
    if let Some(retry_after_ms) = error.retry_after_ms {
        let seconds = retry_after_ms.max(0).saturating_add(999) / 1_000;
        set(&mut response, header::RETRY_AFTER, &seconds.to_string());
    }
    if error.code == Code::MethodNotAllowed
        && let Some(allowed) = error.details.get("allowed").and_then(serde_json::Value::as_array)
    {
        let methods: Vec<&str> = allowed.iter().filter_map(serde_json::Value::as_str).collect();
        set(&mut response, header::ALLOW, &methods.join(", "));
    }
    if status == StatusCode::UNAUTHORIZED {
        set(&mut response, header::WWW_AUTHENTICATE, "Bearer");
    }
    response
}

/// Sets a header. A value that cannot stand in one is left out: only content types come from outside, and those were
/// checked when they were stored.
pub(crate) fn set(response: &mut Response<Body>, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
