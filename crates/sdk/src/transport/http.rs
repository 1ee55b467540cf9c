//! Calls to a server over HTTP.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ff_core::op::wire::WireRequest;
use ff_core::stream::FrameId;
use ff_core::{Error, ExecutionId};
use ff_engine::env::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};

use super::connection::{Pool, Trusted, unreachable};
use super::gather::Gathering;
use super::{Call, Failure, Follower, Key, SseReader};
use crate::error::{SdkError, UnknownRefusal};

/// A server that is silent for this long, beyond the wait it was asked for, is not there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A server.
pub(crate) struct Http {
    pool: Pool,
    /// Stands before every path: a server may live under one of its own.
    base: String,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    submissions: Gathering,
}

impl Http {
    /// A server at an address. Nothing is sent yet. The file has the authorities that may vouch for it.
    pub(crate) fn new(url: &str, token: Option<&str>, ca_file: Option<&Path>) -> Result<Self, SdkError> {
        let wrong = |message: String| SdkError::config("connect", "url", message);
        let uri: Uri = url.parse().map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let secure = uri.scheme_str() == Some("https");
        let authority = uri.authority().ok_or_else(|| wrong("names no host".into()))?;
        if authority.as_str().contains('@') {
            return Err(wrong("must not hold a password; give the token by itself".into()));
        }
        let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let host = HeaderValue::from_str(authority.as_str()).map_err(|error| wrong(error.to_string()))?;
        let authorization = token.map(bearer).transpose()?;
        if token.is_some() && exposes_token(url) {
            tracing::warn!(host = %name, "the token goes to another machine over plain HTTP: use https://");
        }
        let base = uri.path().trim_end_matches('/').to_owned();
        let trusted = secure.then(|| ca_file.map_or(Trusted::System, Trusted::File));
        Ok(Self { pool: Pool::new(name, port, trusted)?, base, host, authorization, submissions: Gathering::default() })
    }

    fn request(&self, method: Method, target: &str, accept: &'static str) -> hyper::http::request::Builder {
        let mut request = Request::builder().method(method).uri(format!("{}{target}", self.base));
        request = request.header(header::HOST, &self.host).header(header::ACCEPT, accept);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        request
    }

    /// Tries a call once. Boxed, so that programs which call operations do not compile all of this again.
    pub(super) fn call<'t, 'c>(
        &'t self,
        call: &'t mut dyn Call<'c>,
        key: &'t Key,
    ) -> BoxFuture<'t, Result<(), Failure>> {
        Box::pin(async move {
            let request = call.write().map_err(Failure::Refused)?;
            let body = match call.gathered_at() {
                Some(path) if key.text.is_none() => self.submissions.send(self, request, path).await?,
                _ => self.answer(request, key.text.as_deref()).await?,
            };
            call.read(body.as_deref())
        })
    }

    /// Opens the stream of an execution after a frame.
    pub(super) async fn follow(&self, id: ExecutionId, after: FrameId) -> Result<Follower, Failure> {
        let mut request = self.request(Method::GET, &format!("/v1/executions/{id}/stream"), "text/event-stream");
        if after != FrameId::START {
            request = request.header("last-event-id", after.to_string());
        }
        let request = request.body(Full::default()).map_err(unsendable)?;
        let opened = async {
            let (response, sender) = self.pool.send(request).await?;
            if response.status() == StatusCode::OK {
                return Ok(Follower::Http(SseReader::new(response.into_body(), sender)));
            }
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|error| unreachable(&error))?.to_bytes();
            Err(refusal(status, &body))
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::Unreachable("the stream does not begin".into())),
        }
    }

    /// Sends a call; gives the JSON of its answer, or `None` for an answer without a body.
    pub(super) async fn answer(&self, call: WireRequest, key: Option<&str>) -> Result<Option<Bytes>, Failure> {
        let (status, body) = self.exchange(call, key).await?;
        match status {
            StatusCode::OK | StatusCode::CREATED => Ok(Some(body)),
            StatusCode::NO_CONTENT => Ok(None),
            status => Err(refusal(status, &body)),
        }
    }

    /// Sends a call and reads its whole answer.
    async fn exchange(&self, call: WireRequest, key: Option<&str>) -> Result<(StatusCode, Bytes), Failure> {
        let method = Method::from_bytes(call.method.as_str().as_bytes()).map_err(unsendable)?;
        let mut request = self.request(method, &call.target, "application/json");
        if call.body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let body = Full::new(call.body.map(Bytes::from).unwrap_or_default());
        let request = request.body(body).map_err(unsendable)?;
        let answered = async {
            let (response, sender) = self.pool.send(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|error| unreachable(&error))?.to_bytes();
            self.pool.keep(sender);
            Ok((status, body))
        };
        let timeout = ANSWER_TIMEOUT + Duration::from_millis(call.wait_ms);
        match tokio::time::timeout(timeout, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Unreachable(format!("no answer within {} ms", timeout.as_millis()))),
        }
    }
}

/// Whether a token that is sent to this address passes through a network that others may read.
pub(crate) fn exposes_token(url: &str) -> bool {
    let Some(uri) = url.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("http")) else { return false };
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let here = |address: std::net::IpAddr| address.is_loopback();
    host != "localhost" && !host.parse().is_ok_and(here)
}

fn bearer(token: &str) -> Result<HeaderValue, SdkError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| SdkError::config("connect", "token", "holds characters that no token has"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The meaning of a status that is no success. A proxy in between may answer, too, in words of its own.
fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    match serde_json::from_slice::<Error>(body) {
        Ok(error) => Failure::Refused(error),
        Err(_) if serde_json::from_slice::<UnknownRefusal>(body).is_ok_and(|refusal| !refusal.code.is_empty()) => {
            let refusal = serde_json::from_slice::<UnknownRefusal>(body).unwrap_or_default();
            Failure::Unknown(Box::new(UnknownRefusal { status: status.as_u16(), ..refusal }))
        }
        Err(_) if matches!(status.as_u16(), 429 | 502 | 503 | 504) => {
            Failure::Unreachable(format!("the server is not available: status {status}"))
        }
        Err(_) => Failure::Unreadable(format!("status {status} without a reason this version knows")),
    }
}

fn unsendable(error: impl std::fmt::Display) -> Failure {
    Failure::Unreadable(format!("the request cannot be written: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_exposed_by_plain_http_to_another_machine() {
        for url in ["http://ff.example.com", "http://10.0.0.7:7171", "http://[2001:db8::1]:7171"] {
            assert!(exposes_token(url), "{url}");
        }
        for url in
            ["https://ff.example.com", "http://localhost:7171", "http://127.0.0.9", "http://[::1]:7171", "nonsense"]
        {
            assert!(!exposes_token(url), "{url}");
        }
    }

    #[test]
    fn a_code_of_a_newer_server_is_kept_as_it_came() {
        let body =
            br#"{"code":"moon_in_the_way","detail":"wait for it","details":{"until":7},"retryable":true,"newer":1}"#;
        let error = SdkError::from(refusal(StatusCode::CONFLICT, body));
        let SdkError::UnknownRefusal(kept) = &error else { panic!("{error:?}") };
        assert_eq!(
            (kept.code.as_str(), kept.status, kept.details["until"].as_i64()),
            ("moon_in_the_way", 409, Some(7))
        );
        assert!(error.is_retryable() && error.code().is_none());
        assert!(matches!(refusal(StatusCode::BAD_GATEWAY, b"<html>"), Failure::Unreachable(_)));
        let known = br#"{"code":"lease_revoked","detail":"d","newer":1}"#;
        assert!(matches!(refusal(StatusCode::CONFLICT, known), Failure::Refused(_)));
    }
}
