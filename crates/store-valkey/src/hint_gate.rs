//! A gate for hints, open while other processes listen to a server.
//!
//! A hint costs the server a publication and the process a message to itself for every commit. As long as nobody else
//! listens that is spent for nothing, so a process that knows itself alone at a server keeps the hints of what it commits
//! there to itself. A process that begins to listen greets all others, in a cluster on every channel it listens to. One that was
//! alone then shares its hints again, and answers that the newcomer should look at everything once: what was committed
//! before the greeting arrived was not published.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use uuid::Uuid;

use crate::resp::Frame;
use crate::topology::Node;

/// Between two looks whether the others have gone. In a cluster also whether some have come: programs of before protocol 5
/// do not greet there.
const LOOK: Duration = Duration::from_secs(30);
/// In place of a partition's number.
const MARKER: [u8; 8] = [u8::MAX; 8];
const GREETING: u8 = b'g';
const ANSWER: u8 = b'a';

/// Open while other processes listen: hints pass it only then.
pub(crate) struct HintGate {
    own: Uuid,
    state: Mutex<State>,
    /// A newcomer waits for its answer.
    greeted: Notify,
}

struct State {
    /// Others listen, or may.
    open: bool,
    /// Counts greetings: a count of listeners taken before one of them is out of date.
    greetings: u64,
    /// A newcomer, and the channel on which it greeted.
    unanswered: Option<(Uuid, Vec<u8>)>,
}

/// Where somebody may listen.
pub(crate) struct Place<'a> {
    pub(crate) node: &'a Node,
    /// The channels of slots.
    pub(crate) sharded: bool,
    pub(crate) channels: &'a [Vec<u8>],
}

impl Place<'_> {
    fn publish(&self) -> &'static [u8] {
        if self.sharded { b"SPUBLISH" } else { b"PUBLISH" }
    }

    /// Greets on every channel; the most listeners that one of them has, if all could be counted.
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

    /// Nothing is known any more: the subscription ended.
    pub(crate) fn assume(&self) {
        self.state().open = true;
    }

    /// Takes a message that is no hint; says whether it tells this process to look at everything.
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

    /// Greets, then looks now and then whether the others have gone, and answers greetings. Never ends.
    pub(crate) async fn keep_looking(&self, place: &Place<'_>) {
        let greetings = self.state().greetings;
        self.learn(greetings, place.greet(self.own).await);
        loop {
            if !self.is_open() && !place.sharded {
                self.greeted.notified().await;
            } else {
                // The time passes while nobody comes.
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

    /// Takes what was counted when so many had greeted. What could not be counted changes nothing.
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
