//! Hints: messages between processes that save time. Every hint may be lost, so correctness never depends on one.

use bytes::Bytes;
use ff_core::Partition;
use tokio::sync::broadcast;

/// How many hints a slow watcher may lag behind before it is told to resync instead.
const BACKLOG: usize = 16_384;

/// Something happened in a partition; only the writer of hints understands the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// Where.
    pub partition: Partition,
    /// The bytes that say what happened.
    pub payload: Bytes,
}

/// An event that a watcher of a store is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// A hint of a commit.
    Hint(Hint),
    /// Hints may have been lost (a reconnect, a failover, a slow watcher): look at everything once.
    Resync,
}

/// The sending half a store keeps: one for the whole process.
#[derive(Debug, Clone)]
pub struct HintSender(broadcast::Sender<WatchEvent>);

impl Default for HintSender {
    fn default() -> Self {
        Self(broadcast::channel(BACKLOG).0)
    }
}

impl HintSender {
    /// Tells all watchers. It is fine if there is none.
    pub fn send(&self, event: WatchEvent) {
        // An error means that no watcher exists now; a hint without a watcher may be dropped.
        let _ = self.0.send(event);
    }

    /// A new watcher.
    pub fn subscribe(&self) -> Hints {
        Hints(self.0.subscribe())
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct Hints(broadcast::Receiver<WatchEvent>);

impl Hints {
    /// The next event; `None` once the store is closed. Safe to cancel.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(WatchEvent::Resync),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
