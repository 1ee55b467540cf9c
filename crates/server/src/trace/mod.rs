//! Traces: one span for each operation, and one for each attempt that a claim begins, linked to the span of its
//! submission. They are sent to a collector over OTLP; without one configured nothing here runs.

mod export;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ff_core::Error;
use ff_core::op::view::Task;
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use tokio::sync::{mpsc, oneshot};

pub(crate) use export::Otlp;

/// Spans that may wait for the collector; further ones are lost and counted.
const QUEUE: usize = 4_096;
/// How long a stopping server waits for the collector.
const FAREWELL: Duration = Duration::from_secs(3);

/// The W3C header.
const TRACEPARENT: &str = "traceparent";

/// Takes spans and sends them in the background.
pub(crate) struct Tracer {
    queue: mpsc::Sender<Message>,
    lost: Arc<AtomicU64>,
}

enum Message {
    Span(Box<SpanData>),
    /// Everything before it has been sent, or is lost, when this is answered.
    Flush(oneshot::Sender<()>),
}

impl Tracer {
    /// Starts sending.
    pub(crate) fn start(otlp: Otlp) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        // It ends with the last sender, which is this tracer.
        tokio::spawn(export::run(otlp, waiting, lost.clone()));
        Self { queue, lost }
    }

    /// A span for a request. Its caller's span is its parent.
    pub(crate) fn begin(&self, name: &'static str, headers: &HeaderMap) -> Span {
        let caller = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()).and_then(Context::parse);
        let trace = caller.map_or_else(|| uuid::Uuid::new_v4().into_bytes(), |caller| caller.trace);
        let data = SpanData {
            context: Context { trace, span: span_id() },
            parent: caller.map(|caller| caller.span),
            name: name.into(),
            kind: SpanKind::Server,
            start_ns: now_ns(),
            end_ns: 0,
            attributes: vec![("flowfabric.operation", name.into())],
            link: None,
            error: None,
        };
        Span { data, queue: self.queue.clone(), lost: self.lost.clone() }
    }

    /// Spans that were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Sends what waits, for a while.
    pub(crate) async fn finish(&self) {
        let (done, finished) = oneshot::channel();
        let flush = async {
            if self.queue.send(Message::Flush(done)).await.is_ok() {
                // An exporter that is gone has nothing left to send.
                let _ = finished.await;
            }
        };
        if tokio::time::timeout(FAREWELL, flush).await.is_err() {
            tracing::warn!("the last spans could not be sent");
        }
    }
}

/// A span that has not ended.
pub(crate) struct Span {
    data: SpanData,
    queue: mpsc::Sender<Message>,
    lost: Arc<AtomicU64>,
}

impl Span {
    /// Says something about it.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.data.attributes.push((name, value.into()));
    }

    /// Lets an execution that is submitted without a trace context have this one.
    pub(crate) fn offer(&self, headers: &mut HeaderMap) {
        if !headers.contains_key(TRACEPARENT)
            && let Ok(value) = HeaderValue::from_str(&self.data.context.to_string())
        {
            headers.insert(TRACEPARENT, value);
        }
    }

    /// Ends it, and begins the attempts that it handed out.
    pub(crate) fn end(mut self, refusal: Option<&Error>, attempts: &[Task]) {
        self.data.end_ns = now_ns();
        self.data.error = refusal.map(|error| error.code.as_str());
        for task in attempts {
            self.send(attempt(&self.data, task));
        }
        let data = std::mem::replace(&mut self.data, SpanData::empty());
        self.send(data);
    }

    fn send(&self, data: SpanData) {
        if self.queue.try_send(Message::Span(Box::new(data))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An attempt begins where a claim ends; how it goes on is its worker's to tell, under the same trace context.
fn attempt(claim: &SpanData, task: &Task) -> SpanData {
    SpanData {
        context: Context { trace: claim.context.trace, span: span_id() },
        parent: Some(claim.context.span),
        name: format!("attempt {}", task.kind),
        kind: SpanKind::Consumer,
        start_ns: claim.end_ns,
        end_ns: claim.end_ns,
        attributes: vec![
            ("flowfabric.execution_id", task.execution_id.to_string()),
            ("flowfabric.namespace", task.namespace.clone()),
            ("flowfabric.lane", task.lane.clone()),
            ("flowfabric.attempt", task.fence.attempt.to_string()),
            ("flowfabric.claim_kind", task.claim_kind.as_str().to_owned()),
        ],
        link: task.trace_context.as_deref().and_then(Context::parse),
        error: None,
    }
}

/// The parts of a span that are sent.
struct SpanData {
    context: Context,
    parent: Option<[u8; 8]>,
    name: String,
    kind: SpanKind,
    start_ns: u64,
    end_ns: u64,
    attributes: Vec<(&'static str, String)>,
    /// The submission that this belongs to.
    link: Option<Context>,
    error: Option<&'static str>,
}

impl SpanData {
    fn empty() -> Self {
        Self {
            context: Context { trace: [0; 16], span: [0; 8] },
            parent: None,
            name: String::new(),
            kind: SpanKind::Server,
            start_ns: 0,
            end_ns: 0,
            attributes: Vec::new(),
            link: None,
            error: None,
        }
    }
}

/// The side of a call that a span is on.
#[derive(Clone, Copy)]
enum SpanKind {
    Server,
    Consumer,
}

/// A span's place in its trace, as `traceparent` carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Context {
    trace: [u8; 16],
    span: [u8; 8],
}

impl Context {
    /// Reads a header. One that is not well-formed belongs to no trace.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
        if version.len() != 2 || version == "ff" {
            return None;
        }
        let context = Self { trace: hex(trace)?, span: hex(span)? };
        (context.trace != [0; 16] && context.span != [0; 8]).then_some(context)
    }
}

impl std::fmt::Display for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "00-{}-{}-01", unhex(&self.trace), unhex(&self.span))
    }
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let lower = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if digits.len() != N * 2 || !digits.iter().all(lower) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn unhex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn span_id() -> [u8; 8] {
    let mut id = [0; 8];
    id.copy_from_slice(&uuid::Uuid::new_v4().into_bytes()[..8]);
    id
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_read_and_written_as_the_header_says() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = Context::parse(text).unwrap();
        assert_eq!(context.to_string(), text);
        for wrong in [
            "",
            "00-aa-bb-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c",
        ] {
            assert_eq!(Context::parse(wrong), None, "{wrong}");
        }
    }
}
