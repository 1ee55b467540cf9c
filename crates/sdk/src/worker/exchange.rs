//! Exchanges: the end of a task and the claim of the next in one call.
//!
//! Endings that are ready at the same time share an exchange. An exchange claims as many tasks as it ends, so the
//! permit of a task that ended passes to the task that comes back, and a busy worker needs no separate claims. An
//! ending is sent at once unless exchanges are under way already, and then it waits for [`ENDING_WAIT_MAX`] at the
//! most.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ff_core::op::{Exchange, ExchangeClaim, ExchangeClaimed, ExchangeEnded, ExchangeEnding, ExchangeOutcome, exchange};
use ff_core::{Code, limits};
use ff_engine::env::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Shared;
use super::intake::Inbox;
use crate::client::Client;
use crate::error::{Result, SdkError, may_pass};
use crate::task::{ClaimedTask, Exchanged, Holder, Leases};

/// Exchanges with a server that are under way when further endings wait for one of them to come back. A request costs more
/// than the endings in it, so few requests with many endings are the cheapest.
const REQUESTS_AT_ONCE: usize = 2;

/// The same with an engine in this process, where a call costs little: the engine and its store work at the same time
/// only while several calls are under way.
const CALLS_AT_ONCE: usize = 8;

/// An ending waits no longer than this for an exchange to come back.
const ENDING_WAIT_MAX: Duration = Duration::from_millis(2);

/// Bytes of results in one exchange. They are longer in JSON, and must fit into the body of a request.
const EXCHANGE_RESULTS_MAX_BYTES: usize = limits::BATCH_BODY_MAX_BYTES / 4;

/// The endings of a worker that wait to be sent, and the inbox for the tasks that come back.
#[derive(Default)]
pub(super) struct Exchanges {
    state: Mutex<State>,
    /// The server does not know exchanges, so every call is made by itself.
    unknown: AtomicBool,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// The number of the last ending.
    count: u64,
    /// The number of runtime tasks that send endings.
    senders: usize,
    /// The receiver of claimed tasks. Without one nothing is claimed.
    inbox: Option<Inbox>,
}

/// One ending, with the permit of its task.
struct Waiting {
    number: u64,
    ending: ExchangeEnding,
    place: OwnedSemaphorePermit,
    answer: oneshot::Sender<Exchanged>,
}

impl Exchanges {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Sends claimed tasks here from now on.
    pub(super) fn open(&self, inbox: Inbox) {
        self.state().inbox = Some(inbox);
    }

    /// Claims nothing more for this inbox.
    pub(super) fn close(&self, inbox: &Inbox) {
        let mut state = self.state();
        if state.inbox.as_ref().is_some_and(|open| open.is(inbox)) {
            state.inbox = None;
        }
    }

    /// Leaves an ending to be sent. Answers with its number, and whether a sender must be started for it because fewer than
    /// `at_once` are at work.
    fn leave(
        &self,
        ending: ExchangeEnding,
        place: OwnedSemaphorePermit,
        at_once: usize,
    ) -> (u64, bool, oneshot::Receiver<Exchanged>) {
        let (answer, exchanged) = oneshot::channel();
        let mut state = self.state();
        state.count += 1;
        let number = state.count;
        state.waiting.push_back(Waiting { number, ending, place, answer });
        let start = state.senders < at_once;
        state.senders += usize::from(start);
        (number, start, exchanged)
    }

    /// Whether an ending still waits; then one more sender is counted, and must be started.
    fn overdue(&self, number: u64) -> bool {
        let mut state = self.state();
        let waits = state.waiting.front().is_some_and(|first| first.number <= number);
        state.senders += usize::from(waits);
        waits
    }

    /// The endings of the next exchange, and the inbox for its tasks. If there are none, the calling sender must end
    /// and is not counted any more.
    fn next(&self) -> Option<(Vec<Waiting>, Option<Inbox>)> {
        let mut state = self.state();
        let mut bytes = 0;
        let mut taken = Vec::new();
        while let Some(first) = state.waiting.front()
            && taken.len() < limits::EXCHANGE_ENDINGS_MAX
        {
            bytes += result_bytes(&first.ending);
            if !taken.is_empty() && bytes > EXCHANGE_RESULTS_MAX_BYTES {
                break;
            }
            taken.extend(state.waiting.pop_front());
        }
        if taken.is_empty() {
            state.senders -= 1;
            return None;
        }
        Some((taken, state.inbox.clone()))
    }
}

fn result_bytes(ending: &ExchangeEnding) -> usize {
    match ending {
        ExchangeEnding::Complete(args) => {
            let json = args.result.as_ref().map_or(0, |result| result.0.len());
            json + args.result_base64.as_ref().map_or(0, |result| result.0.len())
        }
        ExchangeEnding::Suspend(args) => args.continuation.as_ref().map_or(0, |continuation| continuation.0.len()),
        _ => 0,
    }
}

impl Holder for Shared {
    fn client(&self) -> &Client {
        &self.client
    }

    fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Whether a loop takes the tasks that come back, and the server knows exchanges.
    fn exchanges_endings(&self) -> bool {
        !self.exchanges.unknown.load(Ordering::Relaxed) && self.exchanges.state().inbox.is_some()
    }

    fn exchange(
        self: Arc<Self>,
        ending: ExchangeEnding,
        place: OwnedSemaphorePermit,
    ) -> BoxFuture<'static, Result<Exchanged>> {
        Box::pin(async move {
            let at_once = if self.client.engine().is_some() { CALLS_AT_ONCE } else { REQUESTS_AT_ONCE };
            let (number, start, mut exchanged) = self.exchanges.leave(ending, place, at_once);
            if start {
                tokio::spawn(self.send_endings());
            } else if let Ok(told) = tokio::time::timeout(ENDING_WAIT_MAX, &mut exchanged).await {
                return told.map_err(|_| sender_ended());
            } else if self.exchanges.overdue(number) {
                tokio::spawn(self.send_endings());
            }
            exchanged.await.map_err(|_| sender_ended())
        })
    }
}

impl Shared {
    /// Sends endings until none waits.
    async fn send_endings(self: Arc<Self>) {
        loop {
            // Tasks that end at the same moment can join this exchange.
            tokio::task::yield_now().await;
            let Some((waiting, inbox)) = self.exchanges.next() else { return };
            self.send_together(waiting, inbox).await;
        }
    }

    /// Ends several tasks in one call, which also claims as many new ones if the worker has room for them.
    async fn send_together(self: &Arc<Self>, waiting: Vec<Waiting>, inbox: Option<Inbox>) {
        // While a claim waits for work there is none, so the exchange does not claim.
        let inbox = inbox.filter(|inbox| !inbox.asks() && !self.stopping.is_cancelled());
        if inbox.is_none() && waiting.len() == 1 {
            return waiting.into_iter().for_each(Waiting::send_alone);
        }
        let (endings, senders): (Vec<ExchangeEnding>, Vec<Sender>) =
            waiting.into_iter().map(|one| (one.ending, Sender { place: one.place, answer: one.answer })).unzip();
        let claim = inbox.as_ref().map(|_| self.claim_beside(endings.len()));
        let instance_id = self.config.instance_id.clone();
        let args = exchange::Args { instance_id, namespace: None, end: endings, renew: Vec::new(), claim };
        let (args, answer) = self.client.call_repeatedly::<Exchange>(args).await;
        let parts: Vec<(ExchangeEnding, Sender)> = args.end.into_iter().zip(senders).collect();
        let outcome = match answer {
            Ok(outcome) if outcome.end.len() == parts.len() => outcome,
            Err(SdkError::Unreachable(why)) => {
                return parts.into_iter().for_each(|(_, sender)| sender.lost(&why));
            }
            other => {
                // The exchange as a whole was refused, so each ending is sent in a call of its own, which tells its own
                // reason.
                self.note_refused_exchange(other);
                return parts.into_iter().for_each(|(ending, sender)| sender.alone(ending));
            }
        };
        let (answers, free) = settle(parts, outcome.end);
        // The new leases are registered before the ended ones are removed, so that a worker that stops sees all of
        // them.
        let tasks = self.register_claimed(outcome.claim, free);
        for (answer, exchanged) in answers {
            drop(answer.send(exchanged));
        }
        let late = match inbox {
            _ if tasks.is_empty() => return,
            Some(inbox) if !self.stopping.is_cancelled() => inbox.deliver(tasks),
            _ => tasks,
        };
        ClaimedTask::hand_back_all(late).await;
    }

    /// The tasks that an exchange claimed, in the places of those that it ended.
    fn register_claimed(
        self: &Arc<Self>,
        claimed: Option<ExchangeClaimed>,
        free: Vec<OwnedSemaphorePermit>,
    ) -> Vec<ClaimedTask> {
        let Some(claimed) = claimed else { return Vec::new() };
        match claimed.problem {
            // The permits are free again, and the next claim of the intake meets the same problem and reports it.
            Some(problem) => self.log_claim(Err(&problem.into())),
            None => self.log_claim(Ok(claimed.tasks.len())),
        }
        let placed = claimed.tasks.into_iter().zip(free);
        placed.map(|(task, place)| ClaimedTask::new(self.clone(), task, place)).collect()
    }

    /// A request for as many tasks as end. It looks once and does not wait.
    fn claim_beside(&self, max_tasks: usize) -> ExchangeClaim {
        ExchangeClaim {
            lanes: self.config.lanes.clone(),
            capabilities: self.resolved.capabilities.clone(),
            kinds: self.config.kinds.clone(),
            max_tasks: Some(max_tasks),
            lease_ttl_ms: Some(self.resolved.lease_ttl_ms),
            ..ExchangeClaim::default()
        }
    }

    fn note_refused_exchange(&self, answer: Result<ExchangeOutcome>) {
        let unknown = match &answer {
            Ok(_) | Err(SdkError::Unreadable(_)) => true,
            Err(error) => matches!(error.code(), Some(Code::RouteNotFound | Code::MethodNotAllowed)),
        };
        let why = answer.err().map_or_else(|| "its answer has other parts".to_owned(), |error| error.to_string());
        if unknown {
            tracing::info!(why, "the server does not exchange endings for tasks; the worker calls it for each");
            self.exchanges.unknown.store(true, Ordering::Relaxed);
        } else {
            tracing::debug!(why, "an exchange was refused; its endings are sent by themselves");
        }
    }
}

/// The task behind an ending: its place among the tasks of the worker, and the channel of its answer.
struct Sender {
    place: OwnedSemaphorePermit,
    answer: oneshot::Sender<Exchanged>,
}

/// A task that has gone away needs no answer.
impl Sender {
    /// No answer came, and the ending may have had its effect.
    fn lost(self, why: &str) {
        drop(self.answer.send(Exchanged::Lost(SdkError::Unreachable(why.to_owned()))));
    }

    /// The ending is to be sent in a call of its own.
    fn alone(self, ending: ExchangeEnding) {
        drop(self.answer.send(Exchanged::Alone(ending, self.place)));
    }
}

/// The answers of an exchange to its endings, each with the channel that it goes to, and the places that became free.
fn settle(
    parts: Vec<(ExchangeEnding, Sender)>,
    ended: Vec<ExchangeEnded>,
) -> (Vec<(oneshot::Sender<Exchanged>, Exchanged)>, Vec<OwnedSemaphorePermit>) {
    let mut free = Vec::new();
    let mut answers = Vec::with_capacity(parts.len());
    for ((ending, Sender { place, answer }), ended) in parts.into_iter().zip(ended) {
        let exchanged = match ended {
            ExchangeEnded::Problem(error) if may_pass(&error) => Exchanged::Alone(ending, place),
            // A newer server answered in an unknown form, so the ending is repeated in a call of its own, whose answer
            // is known.
            ExchangeEnded::Unknown(_) => Exchanged::Alone(ending, place),
            ended if ended.makes_room() => {
                free.push(place);
                Exchanged::Answered(ended, None)
            }
            ended => Exchanged::Answered(ended, Some(place)),
        };
        answers.push((answer, exchanged));
    }
    (answers, free)
}

impl Waiting {
    fn send_alone(self) {
        drop(self.answer.send(Exchanged::Alone(self.ending, self.place)));
    }
}

/// The task that sends endings ends early only with its runtime.
fn sender_ended() -> SdkError {
    SdkError::Unreachable("the program is ending".into())
}
