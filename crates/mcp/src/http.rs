//! The protocol over HTTP, without sessions: every request stands for itself, so any server of a deployment answers it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Collected, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use crate::deployment::Deployment;
use crate::message::{self, Malformed};
use crate::server::Server;

/// A call that waits says so this often, so that nothing between it and its client takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Answers a request whose sender, origin and size were checked before.
pub async fn respond<D: Deployment>(
    server: Server<D>,
    request: Request<Full<Bytes>>,
) -> Response<BoxBody<Bytes, Infallible>> {
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await.map(Collected::to_bytes);
    if parts.method == Method::POST
        && let Err(malformed) = message::check(&body)
    {
        return refuse(&malformed);
    }
    let request = Request::from_parts(parts, Full::new(body));
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        // A stream has its head at once and pings, so that a call may wait for long.
        .with_json_response(false)
        .with_sse_keep_alive(Some(KEEP_ALIVE))
        .with_sse_retry(None)
        .with_max_request_body_bytes(usize::MAX)
        .disable_allowed_hosts()
        .disable_allowed_origins();
    let sessions = Arc::new(NeverSessionManager::default());
    StreamableHttpService::new(move || Ok(server.clone()), sessions, config).handle(request).await
}

fn refuse(malformed: &Malformed) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(malformed.answer()).boxed());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if malformed.is_no_request() {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    response
}
