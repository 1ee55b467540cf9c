//! The notice board: callers of `wait`, tails of streams, viewers and subscribers wait here, each for a topic. It is
//! one map for the whole process, fed by hints, so a thousand viewers of one stream cost the store nothing while
//! nothing is written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ff_core::{Key, Partition};
use tokio::sync::watch;

type Topic = (Partition, Key);

/// The notice board.
#[derive(Default, Clone)]
pub(crate) struct Board(Arc<Mutex<BTreeMap<Topic, watch::Sender<u64>>>>);

/// A listener to one topic; leaves the board when dropped.
pub(crate) struct Listener {
    topic: Topic,
    receiver: Option<watch::Receiver<u64>>,
    board: Board,
}

impl Board {
    /// Begins to listen. Nothing that happens from now on is missed: listen first, then look, then wait.
    pub(crate) fn listen(&self, partition: Partition, key: Key) -> Listener {
        let topic = (partition, key);
        let receiver = self.topics().entry(topic.clone()).or_insert_with(|| watch::channel(0).0).subscribe();
        Listener { topic, receiver: Some(receiver), board: self.clone() }
    }

    /// Wakes the listeners to a topic.
    pub(crate) fn wake(&self, partition: Partition, key: &Key) {
        if let Some(sender) = self.topics().get(&(partition, key.clone())) {
            sender.send_modify(|count| *count += 1);
        }
    }

    /// Wakes all listeners, because hints may have been lost.
    pub(crate) fn wake_all(&self) {
        for sender in self.topics().values() {
            sender.send_modify(|count| *count += 1);
        }
    }

    /// How many topics have listeners.
    pub(crate) fn len(&self) -> usize {
        self.topics().len()
    }

    fn topics(&self) -> std::sync::MutexGuard<'_, BTreeMap<Topic, watch::Sender<u64>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Listener {
    /// Returns when something has happened since the last call (or since listening began). Safe to cancel.
    pub(crate) async fn changed(&mut self) {
        if let Some(receiver) = self.receiver.as_mut() {
            // The sender lives as long as the board has this listener, so an error cannot occur.
            let _ = receiver.changed().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.receiver = None;
        let mut topics = self.board.topics();
        if topics.get(&self.topic).is_some_and(|sender| sender.receiver_count() == 0) {
            topics.remove(&self.topic);
        }
    }
}
