//! One reader for all viewers of an execution.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Bytes, BytesMut};
use ff_core::stream::FrameId;
use ff_core::{Code, Error, ExecutionId, Result};
use ff_engine::{Caller, Engine, Seen, StreamUpdate};
use tokio::sync::broadcast;

/// Frames or entries that one look at the store brings.
pub(crate) const PAGE: usize = 100;
/// Looks at the store that a viewer may fall behind before it reads from the store itself.
const BACKLOG: usize = 32;
/// Viewers that are told together. A crowd is told one group after the other, with a turn for everything else in between,
/// so that an append does not wait until ten thousand viewers have heard of the one before it.
const GROUP: usize = 64;
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

/// What one look at the store brought. A viewer that has seen nothing of it is sent all of it at once.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) shown: Vec<Shown>,
    /// All texts, one after the other; `None` if a viewer has to look at each.
    pub(crate) text: Option<Bytes>,
}

impl News {
    fn of(mut shown: Vec<Shown>) -> Self {
        if shown.iter().any(|one| one.pause || one.last) {
            return Self { shown, text: None };
        }
        let mut text = BytesMut::with_capacity(shown.iter().map(|one| one.text.len()).sum());
        shown.iter().for_each(|one| text.extend_from_slice(&one.text));
        let text = text.freeze();
        let mut at = 0;
        for one in &mut shown {
            let end = at + one.text.len();
            one.text = text.slice(at..end);
            at = end;
        }
        Self { shown, text: Some(text) }
    }
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

type Group = broadcast::Sender<Arc<News>>;

/// The feeds of all executions that are being viewed: the groups of viewers of each.
#[derive(Default, Clone)]
pub(crate) struct Feeds(Arc<Mutex<BTreeMap<ExecutionId, Vec<Group>>>>);

impl Feeds {
    /// Joins the feed of an execution; where there is none, one begins after the frame that is the last one now. Frames
    /// from before the joining are in the store, later ones are in the feed.
    pub(crate) fn join(&self, engine: &Engine, id: ExecutionId, end: FrameId) -> broadcast::Receiver<Arc<News>> {
        let mut feeds = self.all();
        let is_new = !feeds.contains_key(&id);
        let groups = feeds.entry(id).or_default();
        let receiver = match groups.iter().find(|group| group.receiver_count() < GROUP) {
            Some(group) => group.subscribe(),
            None => {
                let (group, receiver) = broadcast::channel(BACKLOG);
                groups.push(group);
                receiver
            }
        };
        if is_new {
            let (feeds, engine) = (self.clone(), engine.clone());
            // It ends by itself: with its execution, with its last viewer, with the engine, or with an error.
            tokio::spawn(async move { feeds.run(engine, id, Seen { after: end, paused: false }).await });
        }
        receiver
    }

    /// Viewers of a feed that has ended find it closed, read from the store themselves, and meet its end or its error there.
    async fn run(&self, engine: Engine, id: ExecutionId, mut seen: Seen) {
        let caller = Caller::system();
        while let Ok(update) = engine.follow(&caller, &id, seen, PAGE, LINGER_MS).await {
            let Ok(shown) = render(update, seen) else { break };
            let news = Arc::new(News::of(shown));
            if let Some(last) = news.shown.last() {
                seen = last.seen;
                self.tell(&id, &news).await;
                if last.last {
                    break;
                }
            }
            let mut feeds = self.all();
            let Some(groups) = feeds.get_mut(&id) else { return };
            groups.retain(|group| group.receiver_count() > 0);
            if groups.is_empty() {
                feeds.remove(&id);
                return;
            }
        }
        self.all().remove(&id);
    }

    /// Tells the viewers of now. One that joins later finds the news in the store.
    async fn tell(&self, id: &ExecutionId, news: &Arc<News>) {
        let groups = self.all().get(id).cloned().unwrap_or_default();
        for (number, group) in groups.iter().enumerate() {
            if number > 0 {
                tokio::task::yield_now().await;
            }
            // A group that everybody has left is no error.
            let _ = group.send(news.clone());
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all().len()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<ExecutionId, Vec<Group>>> {
        self.0.lock().expect("no holder of this lock panics")
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
