//! OTLP over HTTP, in its JSON form: batches of spans to a collector's `/v1/traces`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

use super::{Message, SpanData, SpanKind, unhex};
use crate::tls;

/// Spans that go together.
const BATCH: usize = 512;
/// The first span of a batch waits this long for others.
const GATHER: Duration = Duration::from_millis(500);
/// For one batch, from the connection to the answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Where spans go.
#[derive(Clone)]
pub(crate) struct Otlp {
    host: String,
    port: u16,
    path: String,
    tls: Option<TlsConnector>,
    /// May hold a key.
    headers: Vec<(String, String)>,
}

impl Otlp {
    /// Reads the address of a collector, such as `http://localhost:4318`, and headers as `name=value,name=value`.
    pub(crate) fn parse(endpoint: &str, headers: &str) -> Result<Self, String> {
        let uri: Uri = endpoint.parse().map_err(|_| "is not an address such as http://localhost:4318".to_owned())?;
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => Some(tls::connector()?),
            _ => return Err("must begin with http:// or https://".into()),
        };
        let host = uri.host().ok_or("names no host")?.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 4318 });
        let path = format!("{}/v1/traces", uri.path().trim_end_matches('/'));
        let mut pairs = Vec::new();
        for pair in headers.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or("has a header without a value")?;
            let known = hyper::header::HeaderName::try_from(name).is_ok()
                && hyper::header::HeaderValue::try_from(value).is_ok();
            if !known {
                return Err("has a header that cannot be sent".into());
            }
            pairs.push((name.to_owned(), value.to_owned()));
        }
        Ok(Self { host, port, path, tls, headers: pairs })
    }

    async fn post(&self, body: Vec<u8>) -> Result<(), String> {
        let failed = |why: &dyn std::fmt::Display| why.to_string();
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|why| failed(&why))?;
        match &self.tls {
            None => self.exchange(tcp, body).await,
            Some(connector) => {
                let name = ServerName::try_from(self.host.clone()).map_err(|why| failed(&why))?;
                self.exchange(connector.connect(name, tcp).await.map_err(|why| failed(&why))?, body).await
            }
        }
    }

    async fn exchange<T>(&self, stream: T, body: Vec<u8>) -> Result<(), String>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let failed = |why: hyper::Error| why.to_string();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let mut request = Request::post(&self.path).header("content-type", "application/json");
        request = request.header("host", format!("{}:{}", self.host, self.port)).header("connection", "close");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|why| why.to_string())?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(failed)?;
            let status = response.status();
            response.into_body().collect().await.map_err(failed)?;
            if status.is_success() { Ok(()) } else { Err(format!("the collector answered {status}")) }
        };
        let (answer, _ended) = tokio::join!(answer, connection);
        answer
    }
}

/// Debug leaves out the headers.
impl std::fmt::Debug for Otlp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Otlp({}:{}{})", self.host, self.port, self.path)
    }
}

/// Sends spans as they come until every sender is gone.
pub(super) async fn run(otlp: Otlp, mut waiting: mpsc::Receiver<Message>, lost: Arc<AtomicU64>) {
    let mut healthy = true;
    let mut messages = Vec::with_capacity(BATCH);
    while waiting.recv_many(&mut messages, BATCH).await > 0 {
        let flushed = messages.iter().any(|message| matches!(message, Message::Flush(_)));
        if messages.len() < BATCH && !flushed {
            // No caller waits for a span; a few of them cost no more to send than one.
            let more = BATCH - messages.len();
            let _ = tokio::time::timeout(GATHER, waiting.recv_many(&mut messages, more)).await;
        }
        let mut spans = Vec::new();
        let mut flushes = Vec::new();
        for message in messages.drain(..) {
            match message {
                Message::Span(span) => spans.push(span),
                Message::Flush(done) => flushes.push(done),
            }
        }
        if !spans.is_empty() {
            let count = spans.len() as u64;
            let sent = match tokio::time::timeout(SEND_TIMEOUT, otlp.post(body(&spans))).await {
                Ok(sent) => sent,
                Err(_) => Err("the collector did not answer in time".into()),
            };
            if let Err(why) = &sent {
                lost.fetch_add(count, Ordering::Relaxed);
                if healthy {
                    tracing::warn!(collector = ?otlp, why, "spans cannot be sent; they are lost until it works again");
                }
            } else if !healthy {
                tracing::info!(collector = ?otlp, "spans are sent again");
            }
            healthy = sent.is_ok();
        }
        for done in flushes {
            let _ = done.send(());
        }
    }
}

fn body(spans: &[Box<SpanData>]) -> Vec<u8> {
    let spans: Vec<Value> = spans.iter().map(|span| span_json(span)).collect();
    let resource =
        json!([attribute("service.name", "flowfabric"), attribute("service.version", env!("CARGO_PKG_VERSION")),]);
    let scope = json!({ "name": "flowfabric", "version": env!("CARGO_PKG_VERSION") });
    let document = json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] });
    document.to_string().into_bytes()
}

fn span_json(span: &SpanData) -> Value {
    let kind = match span.kind {
        SpanKind::Server => 2,
        SpanKind::Consumer => 5,
    };
    let mut attributes: Vec<Value> = span.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    let mut status = json!({});
    if let Some(code) = span.error {
        attributes.push(attribute("error.type", code));
        status = json!({ "code": 2, "message": code });
    }
    let links: Vec<Value> =
        span.link.iter().map(|link| json!({ "traceId": unhex(&link.trace), "spanId": unhex(&link.span) })).collect();
    // Numbers of 64 bits are texts in the JSON form.
    let mut value = json!({
        "traceId": unhex(&span.context.trace),
        "spanId": unhex(&span.context.span),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": span.start_ns.to_string(),
        "endTimeUnixNano": span.end_ns.to_string(),
        "attributes": attributes,
        "links": links,
        "status": status,
    });
    if let Some(parent) = &span.parent {
        value["parentSpanId"] = json!(unhex(parent));
    }
    value
}

fn attribute(name: &str, value: &str) -> Value {
    json!({ "key": name, "value": { "stringValue": value } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_says_where_spans_go() {
        let otlp = Otlp::parse("http://collector", "x-key=canary,b=c").unwrap();
        assert_eq!((otlp.host.as_str(), otlp.port, otlp.path.as_str()), ("collector", 4318, "/v1/traces"));
        assert_eq!(otlp.headers.len(), 2);
        assert!(!format!("{otlp:?}").contains("canary"));
        let prefixed = Otlp::parse("http://[::1]:99/otlp/", "").unwrap();
        assert_eq!((prefixed.host.as_str(), prefixed.port, prefixed.path.as_str()), ("::1", 99, "/otlp/v1/traces"));
        for (endpoint, headers) in
            [("collector:4318", ""), ("ftp://a", ""), ("", ""), ("http://a", "x"), ("http://a", "a b=c")]
        {
            assert!(Otlp::parse(endpoint, headers).is_err(), "{endpoint} {headers}");
        }
    }
}
