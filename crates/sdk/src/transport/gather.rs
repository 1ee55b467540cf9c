//! Submissions that a client makes at the same time share a request.
//!
//! A submission is sent at once while fewer than [`REQUESTS_AT_ONCE`] are under way. One that finds so many waits for the
//! first of them to be answered, and those that wait then go together: one of them sends the request for all. Nothing is
//! waited for while a client submits one thing after the other, and a busy client makes a few requests instead of hundreds.
//!
//! Each keeps its own identity and its own answer. If the request is refused as a whole, or its sender goes away, each is
//! sent by itself, which is safe to repeat.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use ff_core::Error;
use ff_core::op::wire::WireRequest;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::Failure;
use super::http::Http;

/// Requests under way when further submissions wait for one of them.
const REQUESTS_AT_ONCE: usize = 4;
/// Submissions in one request.
const GATHERED_MAX: usize = 100;
/// A longer submission goes alone: the others shall not wait for it.
const BODY_MAX_BYTES: usize = 32 * 1024;

/// The submissions of a client that wait for each other.
#[derive(Clone, Default)]
pub(super) struct Gathering(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    under_way: usize,
    waiting: VecDeque<Waiting>,
}

/// A submission that waits, and the way to its caller.
struct Waiting {
    body: String,
    told: oneshot::Sender<Told>,
}

/// The fate of a submission that waited.
enum Told {
    /// It sends the next request, for the others that wait, too.
    Sends { body: String, turn: Turn },
    /// Another sent it; this is its item of the answer.
    Answered(Result<Bytes, Failure>),
    /// It is to be sent by itself.
    Alone { body: String },
}

impl Gathering {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Sends a submission, perhaps together with others. Gives the JSON of its answer.
    pub(super) async fn send(&self, server: &Http, request: WireRequest, path: &str) -> Result<Option<Bytes>, Failure> {
        let WireRequest { method, target, body, wait_ms } = request;
        let alone = |body: String| WireRequest { method, target: target.clone(), body: Some(body), wait_ms };
        let body = body.unwrap_or_default();
        if body.len() > BODY_MAX_BYTES {
            return server.answer(alone(body), None).await;
        }
        let (turn, body) = match self.wait_for_turn(body).await {
            Told::Sends { body, turn } => (turn, body),
            Told::Answered(answer) => return answer.map(Some),
            Told::Alone { body } => return server.answer(alone(body), None).await,
        };
        let others = self.take_waiting();
        if others.is_empty() {
            let answer = server.answer(alone(body), None).await;
            drop(turn);
            return answer;
        }
        let (bodies, callers): (Vec<String>, Vec<_>) = others.into_iter().map(|one| (one.body, one.told)).unzip();
        let mut list = String::with_capacity(20 + bodies.iter().fold(body.len(), |sum, one| sum + 1 + one.len()));
        list.push_str(r#"{"executions":["#);
        list.push_str(&body);
        for one in &bodies {
            list.push(',');
            list.push_str(one);
        }
        list.push_str("]}");
        let together = WireRequest { method, target: path.to_owned(), body: Some(list), wait_ms };
        let answer = server.answer(together, None).await;
        drop(turn);
        let mut fates = fates(answer, bodies.len() + 1).into_iter();
        let own = fates.next().flatten();
        for ((told, body), fate) in callers.into_iter().zip(bodies).zip(fates) {
            // A caller that has gone away does not hear of it.
            drop(told.send(fate.map_or(Told::Alone { body }, Told::Answered)));
        }
        match own {
            Some(answer) => answer.map(Some),
            None => server.answer(alone(body), None).await,
        }
    }

    /// Returns at once while few requests are under way.
    async fn wait_for_turn(&self, body: String) -> Told {
        let waits = {
            let mut state = self.state();
            if state.under_way < REQUESTS_AT_ONCE {
                state.under_way += 1;
                return Told::Sends { body, turn: Turn(self.clone()) };
            }
            let (told, waits) = oneshot::channel();
            state.waiting.push_back(Waiting { body: body.clone(), told });
            waits
        };
        // The sender of the request went away with it.
        waits.await.unwrap_or(Told::Alone { body })
    }

    fn take_waiting(&self) -> Vec<Waiting> {
        let mut state = self.state();
        let count = state.waiting.len().min(GATHERED_MAX - 1);
        state.waiting.drain(..count).filter(|one| !one.told.is_closed()).collect()
    }
}

/// The right to send a request. It passes to a submission that waits when this one is done, or has gone away.
struct Turn(Gathering);

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut state = self.0.state();
            while state.waiting.front().is_some_and(|first| first.told.is_closed()) {
                state.waiting.pop_front();
            }
            let next = state.waiting.pop_front();
            state.under_way -= usize::from(next.is_none());
            next
        };
        if let Some(Waiting { body, told }) = next {
            // A caller that goes away at this moment drops the turn, which passes on.
            drop(told.send(Told::Sends { body, turn: Turn(self.0.clone()) }));
        }
    }
}

/// The answer to a request of several submissions.
#[derive(Deserialize)]
struct Results<'a> {
    #[serde(borrow)]
    results: Vec<&'a RawValue>,
}

/// A result of one submission, as far as it is looked at here.
#[derive(Deserialize)]
struct Refused {
    outcome: String,
    error: Option<Error>,
}

/// The fates of so many submissions; `None` for one that is to be sent by itself.
fn fates(answer: Result<Option<Bytes>, Failure>, count: usize) -> Vec<Option<Result<Bytes, Failure>>> {
    let body = match answer {
        Ok(body) => body.unwrap_or_default(),
        Err(Failure::Unreachable(why)) => {
            return (0..count).map(|_| Some(Err(Failure::Unreachable(why.clone())))).collect();
        }
        Err(_) => return (0..count).map(|_| None).collect(),
    };
    match serde_json::from_slice::<Results<'_>>(&body) {
        Ok(all) if all.results.len() == count => all.results.into_iter().map(fate).collect(),
        _ => (0..count).map(|_| None).collect(),
    }
}

fn fate(result: &RawValue) -> Option<Result<Bytes, Failure>> {
    match serde_json::from_str::<Refused>(result.get()).ok()? {
        Refused { outcome, .. } if outcome == "created" => Some(Ok(Bytes::copy_from_slice(result.get().as_bytes()))),
        // A code of a newer server is told by the submission's own answer.
        Refused { error, .. } => error.map(|error| Err(Failure::Refused(error))),
    }
}
