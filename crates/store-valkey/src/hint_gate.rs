//! A gate for hints, open while other processes listen to a server.
//!
//! A hint costs the server a publication, and the process a message to itself, for every commit. As long as no other
//! process listens, that is wasted, so a process that knows itself alone at a server does not publish its hints there.
//! A process that begins to listen greets all others, in a cluster on every channel it listens to. A process that was
//! alone then publishes its hints again, and answers that the newcomer should look at everything once, because commits
//! before the greeting were not published.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use uuid::Uuid;

use crate::resp::Frame;
use crate::topology::Node;

/// The time between two counts of the listeners, which show whether the others have gone. In a cluster they also show
/// whether some have come, because programs older than protocol 5 do not greet there.
const LOOK: Duration = Duration::from_secs(30);
/// Stands in the place of a partition's number and marks a message that is no hint.
const MARKER: [u8; 8] = [u8::MAX; 8];
const GREETING: u8 = b'g';
const ANSWER: u8 = b'a';

/// Whether hints are published: only while the gate is open, which it is while other processes listen.
pub(crate) struct HintGate {
    own: Uuid,
    state: Mutex<State>,
    /// Notified when a newcomer waits for its answer.
    greeted: Notify,
}

struct State {
    /// Other processes listen, or may.
    open: bool,
    /// Counts greetings: a count of listeners taken before one of them is out of date.
    greetings: u64,
    /// A newcomer, and the channel on which it greeted.
    unanswered: Option<(Uuid, Vec<u8>)>,
}

/// The server and its channels at which other processes may listen.
pub(crate) struct Place<'a> {
    pub(crate) node: &'a Node,
    /// Whether the channels are those of slots.
    pub(crate) sharded: bool,
    pub(crate) channels: &'a [Vec<u8>],
}

impl Place<'_> {
    fn publish(&self) -> &'static [u8] {
        if self.sharded { b"SPUBLISH" } else { b"PUBLISH" }
    }

    /// Greets on every channel; returns the most listeners that one of them has, if all could be counted.
    async fn greet(&self, own: Uuid) -> Option<i64> {
        let mut most = 0;
        for channel in self.channels {
            let listeners = self.send(&[self.publish(), channel, &message(GREETING, own)]).await?;
            most = most.max(listeners.integer()?);
        }
        Some(most)
    }

    /// The most listeners that a channel has.
    async fn count(&self) -> Option<i64> {
        let kind: &[u8] = if self.sharded { b"SHARDNUMSUB" } else { b"NUMSUB" };
        let mut command: Vec<&[u8]> = vec![b"PUBSUB", kind];
        command.extend(self.channels.iter().map(Vec::as_slice));
        let counts = self.send(&command).await?.into_array()?;
        counts.chunks(2).map(|pair| pair.get(1)?.integer()).try_fold(0, |most, count| Some(most.max(count?)))
    }

    async fn send(&self, command: &[&[u8]]) -> Option<Frame> {
        self.node.ask(command).await.ok()
    }
}

impl Default for HintGate {
    fn default() -> Self {
        let state = State { open: true, greetings: 0, unanswered: None };
        Self { own: Uuid::now_v7(), state: Mutex::new(state), greeted: Notify::new() }
    }
}

impl HintGate {
    /// Whether hints must be published.
    pub(crate) fn is_open(&self) -> bool {
        self.state().open
    }

    /// Forgets what was known about other listeners, because the subscription ended.
    pub(crate) fn assume(&self) {
        self.state().open = true;
    }

    /// Takes a message that is no hint; returns whether it tells this process to look at everything.
    pub(crate) fn heard(&self, channel: &[u8], payload: &[u8]) -> bool {
        let Some((kind, whom)) = parse(payload) else { return false };
        if kind == ANSWER {
            return whom == self.own;
        }
        if whom != self.own {
            let mut state = self.state();
            state.greetings += 1;
            if !state.open {
                state.open = true;
                state.unanswered = Some((whom, channel.to_vec()));
                self.greeted.notify_one();
            }
        }
        false
    }

    /// Greets, then counts the listeners now and then, and answers greetings. Never ends.
    pub(crate) async fn keep_looking(&self, place: &Place<'_>) {
        let greetings = self.state().greetings;
        self.learn(greetings, place.greet(self.own).await);
        loop {
            if !self.is_open() && !place.sharded {
                self.greeted.notified().await;
            } else {
                // A timeout means that no newcomer came.
                let _ = timeout(LOOK, self.greeted.notified()).await;
            }
            let newcomer = self.state().unanswered.take();
            if let Some((newcomer, channel)) = newcomer {
                place.send(&[place.publish(), &channel, &message(ANSWER, newcomer)]).await;
            } else {
                let greetings = self.state().greetings;
                self.learn(greetings, place.count().await);
            }
        }
    }

    /// Takes a count of listeners that was begun after so many greetings. A count that failed changes nothing.
    fn learn(&self, greetings: u64, listeners: Option<i64>) {
        let Some(listeners) = listeners else { return };
        let mut state = self.state();
        if listeners > 1 {
            state.open = true;
        } else if listeners == 1 && state.greetings == greetings {
            state.open = false;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn message(kind: u8, whom: Uuid) -> Vec<u8> {
    [&MARKER[..], &[kind], whom.as_bytes()].concat()
}

fn parse(payload: &[u8]) -> Option<(u8, Uuid)> {
    let (kind, whom) = payload.strip_prefix(&MARKER)?.split_first()?;
    Some((*kind, Uuid::from_slice(whom).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone() -> HintGate {
        let gate = HintGate::default();
        gate.state().open = false;
        gate
    }

    #[test]
    fn a_greeting_ends_the_solitude_and_wants_an_answer() {
        let gate = alone();
        let newcomer = Uuid::from_u128(7);
        assert!(!gate.heard(b"channel", &message(GREETING, newcomer)));
        assert!(gate.is_open());
        // In a cluster it greets on every channel; one answer will do.
        assert!(!gate.heard(b"other", &message(GREETING, newcomer)));
        assert_eq!(gate.state().unanswered, Some((newcomer, b"channel".to_vec())));
    }

    #[test]
    fn ones_own_greeting_opens_nothing() {
        let gate = alone();
        assert!(!gate.heard(b"channel", &message(GREETING, gate.own)));
        assert!(!gate.is_open());
    }

    #[test]
    fn only_who_is_answered_looks_at_everything() {
        let gate = alone();
        assert!(gate.heard(b"channel", &message(ANSWER, gate.own)));
        assert!(!gate.heard(b"channel", &message(ANSWER, Uuid::from_u128(7))));
        assert!(!gate.heard(b"channel", b"nonsense"));
    }

    #[test]
    fn a_count_from_before_a_greeting_is_out_of_date() {
        let gate = HintGate::default();
        gate.learn(0, Some(1));
        assert!(!gate.is_open());
        gate.heard(b"channel", &message(GREETING, Uuid::from_u128(7)));
        gate.learn(0, Some(1));
        assert!(gate.is_open());
        gate.learn(1, None);
        assert!(gate.is_open());
        gate.learn(1, Some(1));
        assert!(!gate.is_open());
        gate.learn(1, Some(2));
        assert!(gate.is_open());
    }
}
