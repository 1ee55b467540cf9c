//! One reader for all viewers of an execution.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ff_core::stream::FrameId;
use ff_core::{Code, Error, ExecutionId, Result};
use ff_engine::{Caller, Engine, Seen, StreamUpdate};
use tokio::sync::broadcast;

/// Frames or entries that one look at the store brings.
pub(crate) const PAGE: usize = 100;
/// Events a viewer may fall behind before it reads from the store again.
const BACKLOG: usize = 256;
/// A feed without viewers ends after this long.
const LINGER_MS: i64 = 15_000;

/// A frame or an entry as viewers are shown it, rendered once for all of them.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    /// How far a viewer has come when it has seen this.
    pub(crate) seen: Seen,
    /// It says that the attempt is paused, which has no position of its own.
    pub(crate) pause: bool,
    /// Nothing follows.
    pub(crate) last: bool,
    pub(crate) text: Bytes,
}

/// Renders what the engine shows.
pub(crate) fn render(update: StreamUpdate, seen: Seen) -> Result<Vec<Shown>> {
    let one = |seen, pause, last, text| Ok(vec![Shown { seen, pause, last, text }]);
    match update {
        StreamUpdate::Frames(frames) => frames
            .into_iter()
            .map(|frame| {
                let text = event("frame", Some(&frame.id.to_string()), &frame)?;
                Ok(Shown { seen: Seen { after: frame.id, paused: false }, pause: false, last: false, text })
            })
            .collect(),
        StreamUpdate::Attempt(attempt) => {
            let after = FrameId { attempt, sequence: 0 };
            let data = serde_json::json!({ "attempt": attempt, "discard_before": after });
            let text = event("attempt", Some(&after.to_string()), &data)?;
            one(Seen { after, paused: false }, false, false, text)
        }
        StreamUpdate::Paused { attempt, reason, detail } => {
            let data = serde_json::json!({ "attempt": attempt, "reason": reason, "detail": detail });
            one(Seen { paused: true, ..seen }, true, false, event("paused", None, &data)?)
        }
        StreamUpdate::End(public_state) => {
            one(seen, false, true, event("end", None, &serde_json::json!({ "public_state": public_state }))?)
        }
        StreamUpdate::Nothing => Ok(Vec::new()),
    }
}

/// The feeds of all executions that are being viewed.
#[derive(Default, Clone)]
pub(crate) struct Feeds(Arc<Mutex<BTreeMap<ExecutionId, broadcast::Sender<Arc<Shown>>>>>);

impl Feeds {
    /// Joins the feed of an execution; where there is none, one begins after the frame that is the last one now. Frames
    /// from before the joining are in the store, later ones are in the feed.
    pub(crate) fn join(&self, engine: &Engine, id: ExecutionId, end: FrameId) -> broadcast::Receiver<Arc<Shown>> {
        let mut feeds = self.0.lock().expect("no holder of this lock panics");
        if let Some(sender) = feeds.get(&id) {
            return sender.subscribe();
        }
        let (sender, receiver) = broadcast::channel(BACKLOG);
        feeds.insert(id, sender.clone());
        let (feeds, engine) = (self.clone(), engine.clone());
        // It ends by itself: with its execution, with its last viewer, with the engine, or with an error.
        tokio::spawn(async move {
            feeds.run(engine, id, Seen { after: end, paused: false }, &sender).await;
        });
        receiver
    }

    async fn run(&self, engine: Engine, id: ExecutionId, mut seen: Seen, sender: &broadcast::Sender<Arc<Shown>>) {
        let caller = Caller::system();
        loop {
            let shown = match engine.follow(&caller, &id, seen, PAGE, LINGER_MS).await {
                Ok(update) => render(update, seen),
                Err(error) => Err(error),
            };
            let Ok(shown) = shown else { break };
            let mut last = false;
            for one in shown {
                seen = one.seen;
                last |= one.last;
                // A feed without listeners is no error: the loop ends below.
                let _ = sender.send(Arc::new(one));
            }
            let mut feeds = self.0.lock().expect("no holder of this lock panics");
            if last || sender.receiver_count() == 0 {
                feeds.remove(&id);
                return;
            }
        }
        // Viewers find the feed closed, read from the store themselves, and meet the error there.
        self.0.lock().expect("no holder of this lock panics").remove(&id);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().expect("no holder of this lock panics").len()
    }
}

/// One event as it stands on the wire. JSON texts have no line breaks, so the data is one line.
pub(crate) fn event(name: &str, id: Option<&str>, data: &impl serde::Serialize) -> Result<Bytes> {
    let data = serde_json::to_string(data)
        .map_err(|error| Error::new(Code::Internal, format!("an event cannot be written: {error}")))?;
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    Ok(Bytes::from(format!("event: {name}\n{id}data: {data}\n\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_data() {
        let bytes = event("frame", Some("0-1"), &serde_json::json!({ "text": "a\nb" })).unwrap();
        assert_eq!(&bytes[..], b"event: frame\nid: 0-1\ndata: {\"text\":\"a\\nb\"}\n\n");
    }
}
