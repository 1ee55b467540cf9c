//! Streams and events while they grow, over SSE.
//!
//! A viewer first reads what it has missed from the store, then joins the feed of its execution, which reads once for
//! all viewers. An event a viewer has seen already is passed over by its position; a viewer that falls behind reads
//! from the store again. So there is neither a gap nor a duplicate, however often it reconnects.

mod events;
mod viewer;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ff_core::stream::FrameId;
use ff_core::{Code, Error, ExecutionId, Result, limits};
use ff_engine::{Caller, JournalSeen, Seen};
use futures_util::Stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{HeaderMap, Response, StatusCode};

use crate::answer::{self, Body};
use crate::app::App;
use crate::arguments;
use crate::auth::Credential;
use crate::feeds::{PAGE, event};

pub(crate) use events::events;

/// The content type of SSE.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
/// How soon a browser comes back after a stream broke off; said with the first event.
const RETRY: &[u8] = b"retry: 1000\n";
/// A viewer hears something at least this often.
const PING: Duration = Duration::from_secs(15);

/// The execution whose stream a path names.
pub(crate) fn stream_path(path: &str) -> Result<Option<String>> {
    let id = path.strip_prefix("/v1/executions/").and_then(|rest| rest.strip_suffix("/stream"));
    id.filter(|id| !id.is_empty() && !id.contains('/')).map(arguments::decode).transpose()
}

/// Whether a viewer wants to see the journal, too, and from where on: `steps=N` begins behind entry N of the generation of
/// now, and `steps=G-N` behind entry N of generation G.
pub(crate) fn steps_after(query: Option<&str>) -> Result<Option<JournalSeen>> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(None) };
    match query.strip_prefix("steps=") {
        Some(after) => {
            let most = limits::JOURNAL_ENTRIES_MAX + limits::JOURNAL_RESERVE_ENTRIES;
            let (generation, number) = match after.split_once('-') {
                Some((generation, number)) => (generation.parse().map(Some), number),
                None => (Ok(None), after),
            };
            let seen = generation.ok().zip(number.parse().ok().filter(|number| *number <= most));
            let refusal = || {
                let detail = "must be the last entry that was seen, as number or as generation-number; 0 for none";
                Error::invalid("steps", detail)
            };
            let seen = seen.map(|(generation, after)| JournalSeen { generation, after });
            seen.ok_or_else(refusal).map(Some)
        }
        None => {
            let name = query.split(['=', '&']).next().unwrap_or(query);
            Err(Error::invalid(name, "is no parameter of a stream; it takes `after`, `steps` and `ticket`"))
        }
    }
}

/// Where a viewer begins.
pub(crate) struct Beginning {
    /// Behind this frame; Last-Event-ID says more where both are said.
    pub(crate) after: Option<String>,
    /// Behind this entry of the journal, where it is to be shown.
    pub(crate) steps: Option<JournalSeen>,
}

/// Shows the stream of an execution, and its journal to a viewer that asks for it.
pub(crate) async fn execution(
    app: &Arc<App>,
    (caller, credential): (Caller, Credential),
    execution_id: &str,
    from: Beginning,
    headers: &HeaderMap,
) -> Result<Response<Body>> {
    let id: ExecutionId = execution_id.parse()?;
    // A browser that reconnects says both, and where it was cut is what counts.
    let after = match (last_event_id(headers)?, &from.after) {
        (Some(last), _) => last.parse().map_err(|_| Error::invalid("Last-Event-ID", "must be an id of this stream"))?,
        (None, Some(after)) => after.parse().map_err(|_| Error::invalid("after", "must be an id of this stream"))?,
        (None, None) => FrameId::START,
    };
    let place = app.pools.sse.enter(&caller)?;
    let seen = Seen { after, paused: false };
    // A refusal belongs into the status of the answer, so the first look comes before its head.
    let first = app.engine.follow(&caller, &id, seen, PAGE, 0).await?;
    let viewer = viewer::Viewer::new(app.clone(), (caller, credential), id, (seen, from.steps), place);
    Ok(respond(viewer.begin(first).stream()))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().map_err(|_| Error::invalid("Last-Event-ID", "must be visible ASCII"))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn respond(events: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    use futures_util::StreamExt;
    let mut first = true;
    let frames = events.map(move |event| {
        let told = if std::mem::take(&mut first) { Bytes::from([RETRY, &event].concat()) } else { event };
        Ok(Frame::data(told))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    *response.status_mut() = StatusCode::OK;
    answer::set(&mut response, hyper::header::CONTENT_TYPE, EVENT_STREAM);
    // Proxies that buffer would hold events back.
    answer::set(&mut response, hyper::header::HeaderName::from_static("x-accel-buffering"), "no");
    response
}

fn ping() -> Bytes {
    Bytes::from_static(b"event: ping\ndata: {}\n\n")
}

/// The last words of a stream that cannot go on; the viewer comes back with what it has seen.
fn trouble(error: &Error) -> Option<Bytes> {
    match error.code {
        Code::ShuttingDown => None,
        _ => event("error", None, &serde_json::json!({ "code": error.code, "detail": error.detail })).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stream_of_an_execution_is_one() {
        assert_eq!(stream_path("/v1/executions/a/stream").unwrap().as_deref(), Some("a"));
        assert_eq!(stream_path("/v1/executions/a/attempts/0/stream").unwrap(), None);
        assert_eq!(stream_path("/v1/executions//stream").unwrap(), None);
    }

    #[test]
    fn only_steps_is_a_parameter_of_a_stream() {
        assert_eq!(steps_after(None).unwrap(), None);
        assert_eq!(steps_after(Some("steps=7")).unwrap(), Some(JournalSeen { generation: None, after: 7 }));
        assert_eq!(steps_after(Some("steps=2-7")).unwrap(), Some(JournalSeen { generation: Some(2), after: 7 }));
        let unreadable = ["steps=x", "steps=11001", "steps=1&a=2", "steps=-1", "steps=1-", "steps=1-2-3"];
        for (query, field) in unreadable.map(|query| (query, "steps")).into_iter().chain([("a=1", "a")]) {
            assert_eq!(steps_after(Some(query)).unwrap_err().details["field"], field, "{query}");
        }
    }
}
