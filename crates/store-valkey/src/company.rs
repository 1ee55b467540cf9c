//! Who else listens to the hints of a standalone server.
//!
//! A hint costs the server a publication and the process a message to itself for every commit. As long as nobody else
//! listens that is spent for nothing, so a process that knows itself alone keeps its hints to itself. Whoever begins to
//! listen greets all others. One that was alone then shares its hints again, and answers that the newcomer should look
//! at everything once: what was committed before the greeting arrived was not published.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use uuid::Uuid;

use crate::commit::CHANNEL;
use crate::resp::Frame;
use crate::topology::Topology;

/// Between two looks whether the others have gone. Only while there are some.
const LOOK: Duration = Duration::from_secs(30);
/// In place of a partition's number.
const MARKER: [u8; 8] = [u8::MAX; 8];
const GREETING: u8 = b'g';
const ANSWER: u8 = b'a';

/// Whether somebody else listens.
pub(crate) struct Company {
    own: Uuid,
    state: Mutex<State>,
    /// A newcomer waits for its answer.
    greeted: Notify,
}

struct State {
    there: bool,
    /// Counts greetings: a count of listeners taken before one of them is out of date.
    greetings: u64,
    unanswered: Option<Uuid>,
}

impl Default for Company {
    fn default() -> Self {
        let state = State { there: true, greetings: 0, unanswered: None };
        Self { own: Uuid::now_v7(), state: Mutex::new(state), greeted: Notify::new() }
    }
}

impl Company {
    /// Whether hints must be published.
    pub(crate) fn is_there(&self) -> bool {
        self.state().there
    }

    /// Nothing is known any more: the subscription ended.
    pub(crate) fn assume(&self) {
        self.state().there = true;
    }

    /// Takes a message that is no hint; says whether it tells this process to look at everything.
    pub(crate) fn heard(&self, payload: &[u8]) -> bool {
        let Some((kind, whom)) = parse(payload) else { return false };
        if kind == ANSWER {
            return whom == self.own;
        }
        if whom != self.own {
            let mut state = self.state();
            state.greetings += 1;
            if !state.there {
                state.there = true;
                state.unanswered = Some(whom);
                self.greeted.notify_one();
            }
        }
        false
    }

    /// Greets, then looks now and then whether the others have gone, and answers greetings. Never ends.
    pub(crate) async fn keep_looking(&self, topology: &Topology) {
        self.count(topology, &[b"PUBLISH", CHANNEL, &message(GREETING, self.own)]).await;
        loop {
            if self.is_there() {
                sleep(LOOK).await;
                self.count(topology, &[b"PUBSUB", b"NUMSUB", CHANNEL]).await;
            } else {
                self.greeted.notified().await;
                let newcomer = self.state().unanswered.take();
                if let Some(newcomer) = newcomer {
                    send(topology, &[b"PUBLISH", CHANNEL, &message(ANSWER, newcomer)]).await;
                }
            }
        }
    }

    /// Learns from a command's answer how many listen.
    async fn count(&self, topology: &Topology, command: &[&[u8]]) {
        let greetings = self.state().greetings;
        let listeners = match send(topology, command).await {
            Some(Frame::Integer(listeners)) => listeners,
            Some(Frame::Array(items)) => items.last().and_then(Frame::integer).unwrap_or(i64::MAX),
            _ => return,
        };
        let mut state = self.state();
        if listeners == 1 && state.greetings == greetings {
            state.there = false;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn send(topology: &Topology, command: &[&[u8]]) -> Option<Frame> {
    let primary = topology.map().primary(0)?.clone();
    primary.ask(command).await.ok()
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

    fn alone() -> Company {
        let company = Company::default();
        company.state().there = false;
        company
    }

    #[test]
    fn a_greeting_ends_the_solitude_and_wants_an_answer() {
        let company = alone();
        let newcomer = Uuid::from_u128(7);
        assert!(!company.heard(&message(GREETING, newcomer)));
        assert!(company.is_there());
        assert_eq!(company.state().unanswered, Some(newcomer));
    }

    #[test]
    fn ones_own_greeting_is_no_company() {
        let company = alone();
        assert!(!company.heard(&message(GREETING, company.own)));
        assert!(!company.is_there());
    }

    #[test]
    fn only_who_is_answered_looks_at_everything() {
        let company = alone();
        assert!(company.heard(&message(ANSWER, company.own)));
        assert!(!company.heard(&message(ANSWER, Uuid::from_u128(7))));
        assert!(!company.heard(b"nonsense"));
    }
}
