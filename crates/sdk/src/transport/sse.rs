//! Reads a stream of server-sent events.

use std::time::Duration;

use bytes::BytesMut;
use ff_core::stream::StreamFrame;
use ff_core::{AttemptIndex, BlockingReason, Error, PublicState, encoding};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::connection::{Sender, unreachable};
use super::{Failure, StreamEvent};

/// The server pings every 15 seconds; one that misses three of them is gone.
const SILENCE_MAX: Duration = Duration::from_secs(50);
/// An event larger than this is no event: a frame has at most 64 KiB.
const EVENT_MAX_BYTES: usize = 1024 * 1024;

/// The events of one response.
pub(crate) struct SseReader {
    body: Incoming,
    text: BytesMut,
    /// The connection lives as long as its sender.
    _sender: Sender,
}

impl SseReader {
    pub(super) fn new(body: Incoming, sender: Sender) -> Self {
        Self { body, text: BytesMut::new(), _sender: sender }
    }

    /// The next events; `None` at the end of the response.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<StreamEvent>>, Failure> {
        loop {
            let events = self.whole_events()?;
            if !events.is_empty() {
                return Ok(Some(events));
            }
            let frame = tokio::time::timeout(SILENCE_MAX, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| Failure::Unreachable("the stream is silent".into()))? else {
                return Ok(None);
            };
            let Ok(data) = frame.map_err(|error| unreachable(&error))?.into_data() else { continue };
            if self.text.len() + data.len() > EVENT_MAX_BYTES {
                return Err(Failure::Unreadable("an event has no end".into()));
            }
            self.text.extend_from_slice(&data);
        }
    }

    fn whole_events(&mut self) -> Result<Vec<StreamEvent>, Failure> {
        let mut events = Vec::new();
        while let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
            let whole = self.text.split_to(end + 2);
            let text = std::str::from_utf8(&whole).map_err(|error| Failure::Unreadable(error.to_string()))?;
            events.extend(event(text)?);
        }
        Ok(events)
    }
}

#[derive(Deserialize)]
struct Attempt {
    attempt: AttemptIndex,
}

#[derive(Deserialize)]
struct Paused {
    attempt: AttemptIndex,
    reason: BlockingReason,
    detail: String,
}

#[derive(Deserialize)]
struct End {
    public_state: PublicState,
}

/// One event; pings and what a newer server says beside them are none.
fn event(text: &str) -> Result<Option<StreamEvent>, Failure> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    let data = field("data: ");
    Ok(Some(match field("event: ") {
        "frame" => StreamEvent::Frame(read::<StreamFrame>(data)?),
        "attempt" => StreamEvent::Attempt { attempt: read::<Attempt>(data)?.attempt },
        "paused" => {
            let paused: Paused = read(data)?;
            StreamEvent::Paused { attempt: paused.attempt, reason: paused.reason, detail: paused.detail }
        }
        "end" => StreamEvent::End { public_state: read::<End>(data)?.public_state },
        "error" => return Err(Failure::Refused(read::<Error>(data)?)),
        _ => return Ok(None),
    }))
}

fn read<T: DeserializeOwned>(data: &str) -> Result<T, Failure> {
    encoding::read_answer(|| serde_json::from_str(data))
        .map_err(|error| Failure::Unreadable(format!("an event: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_and_pings_are_passed_over() {
        let end = event("event: end\ndata: {\"public_state\":\"completed\"}\n\n").unwrap();
        assert_eq!(end, Some(StreamEvent::End { public_state: PublicState::Completed }));
        assert_eq!(event("event: ping\ndata: {}\n\n").unwrap(), None);
        assert_eq!(event("event: tomorrow\ndata: {\"x\":1}\n\n").unwrap(), None);
        let newer = event("event: end\ndata: {\"public_state\":\"archived\",\"newer\":1}\n\n").unwrap();
        assert!(
            matches!(newer, Some(StreamEvent::End { public_state: PublicState::Unknown(word) }) if word.as_str() == "archived")
        );
        assert!(matches!(event("event: frame\ndata: nonsense\n\n"), Err(Failure::Unreadable(_))));
    }
}
