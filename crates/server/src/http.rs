//! HTTP: takes a request from its connection, finds its sender and its route, has the operation carried out, and writes
//! the response. `serve` owns the connections, `route` the table of operations.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ff_core::{Code, Error, Result};
use ff_engine::{ServiceHealth, Standing};
use futures_util::FutureExt;
use hyper::header::{self, HeaderName};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, Version};

use crate::answer::{self, Body};
use crate::app::App;
use crate::arguments::{self, Sent};
use crate::body::{self, Reading};
#[cfg(feature = "dashboard")]
use crate::dashboard;
use crate::route::{Asked, Found, Route, Routes};
use crate::trace::Span;
use crate::{auth, hooks, mcp, metrics, openapi, origin, session, sse, strangers};

/// Answers a request, whatever it is.
pub(crate) async fn respond<B>(app: Arc<App>, peer: IpAddr, mut request: Request<B>) -> Response<Body>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error,
{
    let version = request.version();
    if version == Version::HTTP_2 {
        name_host(&mut request);
    }
    let origin = request.headers().get(header::ORIGIN).cloned();
    let request_id = request_id(request.headers());
    let method = request.method().clone();
    // The path names things, never secrets; the query may hold payloads and stays out of the log.
    let path = request.uri().path().to_owned();
    let browses = matches!(method, Method::GET | Method::HEAD) && wants_page(request.headers());
    // Whether a part of the request's body has not been read.
    let unread = AtomicBool::new(!request.body().is_end_stream());
    let answered = AssertUnwindSafe(handle(&app, peer, request, &unread)).catch_unwind().await;
    let mut response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            match error.code {
                // These codes speak of the server itself or of competing writers, not of a fault of the store.
                Code::ShuttingDown | Code::Contention => {}
                code if code.class() == ff_core::Class::Internal => {
                    tracing::error!(%method, path, request_id, %error, "a request failed");
                }
                code if code.class() == ff_core::Class::Unavailable => {
                    tracing::warn!(%method, path, request_id, %error, "the store could not serve a request");
                }
                _ => {}
            }
            match error.code {
                Code::RouteNotFound if browses && !is_api(&path) => no_such_page(),
                _ => answer::problem(&error, Some(&request_id)),
            }
        }
        Err(_panic) => {
            tracing::error!(%method, path, request_id, "a request met a defect");
            answer::problem(&Error::of(Code::Internal), Some(&request_id))
        }
    };
    app.counters.answered(response.status());
    tracing::debug!(%method, path, request_id, status = response.status().as_u16(), "answered");
    answer::set(&mut response, X_REQUEST_ID, &request_id);
    finish(&app, &mut response, origin.as_ref());
    if unread.into_inner() && version != Version::HTTP_2 {
        // The unread rest of the body would follow on this connection, so the client must not use it again.
        response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    }
    response
}

/// Copies the host, which HTTP/2 has beside the path, into the header where HTTP/1 has it. If the client has set that
/// header to another host, the request has two hosts and is refused.
fn name_host<B>(request: &mut Request<B>) {
    let authority = request.uri().authority().and_then(|name| header::HeaderValue::from_str(name.as_str()).ok());
    if let Some(authority) = authority
        && request.headers().get(header::HOST) != Some(&authority)
    {
        request.headers_mut().append(header::HOST, authority);
    }
}

async fn handle<B>(app: &Arc<App>, peer: IpAddr, request: Request<B>, unread: &AtomicBool) -> Result<Response<Body>>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error,
{
    origin::check_host(&app.config, request.headers(), request.uri())?;
    if *request.method() == Method::OPTIONS && request.headers().contains_key(header::ORIGIN) {
        return origin::preflight(&app.config, request.headers());
    }
    if PLAIN.contains(&request.uri().path()) {
        return plain(app, request.method(), request.uri().path(), request.headers()).await;
    }
    if request.uri().path() == session::PATH {
        unread.store(false, Ordering::Relaxed);
        return session::respond(app, request).await;
    }
    if request.uri().path() == mcp::PATH {
        unread.store(false, Ordering::Relaxed);
        return mcp::respond(app, request).await;
    }
    if let Some(name) = hooks::posted_to(request.method(), request.uri().path())? {
        return hooks::respond(app, peer, name, request, unread).await;
    }
    #[cfg(feature = "dashboard")]
    if let Some(file) = dashboard::file(request.uri().path()) {
        return dashboard::respond(request.method(), file);
    }
    if let Some(execution_id) = sse::stream_path(request.uri().path())? {
        return stream_execution(app, &execution_id, &request.into_parts().0).await;
    }
    let found = Routes::all().find(request.method(), request.uri().path())?;
    if found.route.info.event_stream && accepts(request.headers(), sse::EVENT_STREAM) {
        return stream_events(app, &found, &request.into_parts().0).await;
    }
    let (parts, body) = request.into_parts();
    call(app, found, Incoming { peer, parts, body, unread }).await
}

/// A request whose route is known and whose body has not been read.
struct Incoming<'a, B> {
    peer: IpAddr,
    parts: Parts,
    body: B,
    /// Becomes false when the body has been read.
    unread: &'a AtomicBool,
}

/// Streams the output of one execution.
async fn stream_execution(app: &Arc<App>, execution_id: &str, request: &Parts) -> Result<Response<Body>> {
    if request.method != Method::GET {
        return Err(Error::of(Code::MethodNotAllowed).with("allowed", ["GET"]));
    }
    let asked = StreamQuery::read(request.uri.query().unwrap_or(""))?;
    let steps = sse::steps_after(Some(&asked.others))?;
    let viewer = auth::viewer(app, &request.headers, asked.ticket.as_deref(), Some(execution_id)).await?;
    let from = sse::Beginning { after: asked.after, steps };
    sse::execution(app, viewer, execution_id, from, &request.headers).await
}

/// Streams what an operation would answer, while there is more of it.
async fn stream_events(app: &Arc<App>, found: &Found, request: &Parts) -> Result<Response<Body>> {
    let Found { route, parameters } = found;
    let asked = StreamQuery::read(request.uri.query().unwrap_or(""))?;
    let (caller, credential) = auth::viewer(app, &request.headers, asked.ticket.as_deref(), None).await?;
    let body = Sent::Nothing;
    let said = arguments::Request { path: parameters, query: &asked.others, headers: &request.headers, body };
    let text = arguments::merge(&route.shape, route.info.name, said)?;
    sse::events(app, route, caller, credential, &text, asked.after, &request.headers).await
}

/// Calls an operation. A caller is let in before its body is read, and its body is read before its arguments are.
async fn call<B>(app: &Arc<App>, found: Found, incoming: Incoming<'_, B>) -> Result<Response<Body>>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error,
{
    let Found { route, parameters } = found;
    let Incoming { peer, mut parts, body, unread } = incoming;
    let (mut caller, credential) = match route.info.waitpoint_token {
        true => auth::admit(app, &parts.method, &parts.headers, peer).await?,
        false => auth::authenticate(app, &parts.method, &parts.headers).await?,
    };
    let is_stranger = caller.standing == Standing::Stranger;
    let _share = if is_stranger { None } else { app.pools.enter_call(&app.config, &caller)? };
    let timeout = if is_stranger { strangers::BODY_TIMEOUT } else { app.config.body_timeout };
    let reading = Reading { max: app.config.body_max(route.info.body_max_bytes), timeout };
    let body = body::read(&app.config, &parts.method, &parts.headers, body, reading).await?;
    unread.store(false, Ordering::Relaxed);
    // The place is taken only after the body was read: otherwise one client with many slow bodies could keep all
    // places.
    let _place = if is_stranger { Some(app.strangers.enter(peer)?) } else { None };
    let span = begin_span(app, route, &parameters, &mut parts.headers);
    let query = parts.uri.query().unwrap_or("");
    let request = arguments::Request { path: &parameters, query, headers: &parts.headers, body };
    let text = arguments::merge(&route.shape, route.info.name, request)?;
    if is_stranger {
        auth::check_waitpoint_token(&text)?;
    }
    if parts.method != Method::GET {
        caller.idempotency_key = arguments::idempotency_key(&parts.headers)?;
    }
    let accepts = |wanted: &str| accepts(&parts.headers, wanted);
    let asked = Asked { text, json_only: accepts("application/json"), traced: span.is_some() };
    route.call(app, (&caller, &credential), asked, span).await
}

/// Begins the span of a call. An operation that hands a trace context to workers hands on this span.
fn begin_span(app: &App, route: &Route, parameters: &[(&str, String)], headers: &mut HeaderMap) -> Option<Span> {
    let mut span = app.tracer.as_ref()?.begin(route.info.name, headers);
    if let Some((_, id)) = parameters.iter().find(|(name, _)| *name == "execution_id") {
        span.set("flowfabric.execution_id", id.clone());
    }
    if route.shape.has("trace_context") {
        span.offer(headers);
    }
    Some(span)
}

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A longer request id is replaced by one of our own.
const REQUEST_ID_MAX_BYTES: usize = 128;

/// The id of a request in logs and refusals: the one that its sender gave, if that is a plain name.
fn request_id(headers: &HeaderMap) -> String {
    let plain = |text: &&str| {
        !text.is_empty() && text.len() <= REQUEST_ID_MAX_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let given = headers.get(X_REQUEST_ID).and_then(|value| value.to_str().ok()).filter(plain);
    given.map_or_else(|| uuid::Uuid::now_v7().to_string(), str::to_owned)
}

/// The parts of a stream's query that stand for headers, which a browser cannot send with an event stream.
struct StreamQuery {
    after: Option<String>,
    ticket: Option<String>,
    /// The query without these parts.
    others: String,
}

impl StreamQuery {
    fn read(query: &str) -> Result<Self> {
        let mut asked = Self { after: None, ticket: None, others: String::new() };
        let mut others = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let place = match name {
                "after" => &mut asked.after,
                "ticket" => &mut asked.ticket,
                _ => {
                    others.push(parameter);
                    continue;
                }
            };
            if place.replace(arguments::decode(value)?).is_some() {
                return Err(Error::invalid(name, "is given more than once"));
            }
        }
        asked.others = others.join("&");
        Ok(asked)
    }
}

/// The paths outside of the versioned routes.
const PLAIN: &[&str] = &["/livez", "/healthz", "/readyz", "/openapi.json", "/metrics"];

async fn plain(app: &App, method: &Method, path: &str, headers: &HeaderMap) -> Result<Response<Body>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Error::of(Code::MethodNotAllowed).with("allowed", ["GET", "HEAD"]));
    }
    match path {
        "/readyz" => {
            let answer = ready(app).await;
            // Faults of the store or a service are shown to callers that may look at the deployment.
            match app.config.open() || auth::authenticate(app, method, headers).await.is_ok() {
                true => answer,
                false => answer
                    .map(|_| probe("ready\n"))
                    .map_err(|error| Error { retry_after_ms: error.retry_after_ms, ..Error::of(error.code) }),
            }
        }
        "/openapi.json" => Ok(openapi::response(app.config.open())),
        "/metrics" => {
            let (caller, _) = auth::authenticate(app, method, headers).await?;
            auth::check_reader(&caller)?;
            metrics::response(app, &caller).await
        }
        _ => Ok(probe("alive\n")),
    }
}

/// Whether the client asks for exactly this type. Lists and wildcards do not count.
fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    headers.get(header::ACCEPT).is_some_and(|accept| accept.as_bytes().eq_ignore_ascii_case(wanted.as_bytes()))
}

/// Whether a person with a browser asks: it names HTML before it takes whatever there is.
fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    accept
        .split(',')
        .any(|range| range.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/html")))
}

/// Whether a path is of the API, whose answers are for programs.
fn is_api(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/") || path == mcp::PATH
}

/// Tells a person that there is nothing here, as the dashboard does.
fn no_such_page() -> Response<Body> {
    #[cfg(feature = "dashboard")]
    if let Ok(mut page) = dashboard::page() {
        *page.status_mut() = hyper::StatusCode::NOT_FOUND;
        return page;
    }
    let text = "<!doctype html><html lang=\"en\"><title>Not found</title><h1>There is nothing here</h1></html>\n";
    answer::whole(hyper::StatusCode::NOT_FOUND, "text/html; charset=utf-8", text)
}

fn probe(text: impl Into<String>) -> Response<Body> {
    answer::whole(hyper::StatusCode::OK, "text/plain; charset=utf-8", text.into())
}

/// Answers whether this server is ready: it is not stopping, the store answers, and every service runs. A service that
/// panicked and runs again is named.
async fn ready(app: &App) -> Result<Response<Body>> {
    if app.stopping() {
        return Err(Error::of(Code::ShuttingDown).retry_after(1_000));
    }
    let looked = app.engine.store().read(ff_core::Partition::SYSTEM, Vec::new());
    match tokio::time::timeout(Duration::from_secs(5), looked).await {
        Ok(Ok(_)) => fit(&app.engine.services()),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Error::new(Code::Unavailable, "the store did not answer within 5 s").retry_after(1_000)),
    }
}

/// Whether the services let this server take requests.
fn fit(services: &[ServiceHealth]) -> Result<Response<Body>> {
    let down: Vec<&str> = services.iter().filter(|service| !service.running).map(|service| service.name).collect();
    if !down.is_empty() {
        let detail = format!("panicked and not started again yet: {}", down.join(", "));
        return Err(Error::new(Code::Unavailable, detail).with("services", down).retry_after(1_000));
    }
    let restarted = services.iter().filter(|service| service.restarts > 0);
    let lines =
        restarted.map(|service| format!("{} panicked and was begun again: {}\n", service.name, service.restarts));
    Ok(probe(format!("ready\n{}", lines.collect::<String>())))
}

/// Sets the headers that every response has.
fn finish(app: &App, response: &mut Response<Body>, origin: Option<&header::HeaderValue>) {
    let headers = response.headers_mut();
    let mut default = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(header::HeaderValue::from_static(value));
    };
    default(header::CACHE_CONTROL, "no-store");
    default(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    origin::allow(&app.config, headers, origin);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_waits_for_a_service_that_panicked_and_then_names_it() {
        let health = |name, restarts, running| ServiceHealth { name, restarts, running };
        let refused = fit(&[health("sweeps", 0, true), health("timers", 1, false)]).unwrap_err();
        assert_eq!((refused.code, &refused.details["services"]), (Code::Unavailable, &serde_json::json!(["timers"])));
        let ready = fit(&[health("sweeps", 0, true), health("timers", 1, true)]).unwrap();
        assert_eq!(ready.status(), 200);
        let body = futures_util::FutureExt::now_or_never(http_body_util::BodyExt::collect(ready.into_body()));
        let body = body.expect("a body in memory").expect("a whole body").to_bytes();
        assert_eq!(body, "ready\ntimers panicked and was begun again: 1\n");
    }
}
