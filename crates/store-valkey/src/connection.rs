//! One pipelined connection, as a task that owns its socket.
//!
//! Callers put requests into a queue; the task writes the gathered requests in one go and hands out the answers in
//! order. It knows which requests had been sent when a connection broke: those are lost (they may have taken effect).
//! The rest are still in the queue and go over the next connection.
//!
//! If the tier promises replicas, a group of commits is followed by one WAIT on this same connection, and the answers
//! of the group are held until the replicas have it. The next group gathers meanwhile, so many callers share one round
//! trip to the replicas. If the tier promises the disk, the group is followed by a question whether the server still
//! syncs every write.
//!
//! While a server cannot be reached, the task goes on trying to connect, and callers are refused at once.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::Tier;
use crate::joint::{Joining, Joint, Part};
use crate::resp::{Frame, command, take_frame};
use crate::transport::{DialError, Dialer, Duplex, Line};

/// Requests that may wait for a connection before callers wait for room.
const QUEUE: usize = 4_096;
/// Requests written in one go.
const GROUP: usize = 512;
/// The next write waits until one in so many of the callers that were just answered has asked again.
const SHARE: usize = 3;
/// Even a single request waits for others that are ready: one answer may have woken several callers, for example that
/// of a commit which their requests shared.
const TOGETHER_MIN: usize = 2;
/// After a failed attempt to connect, requests are refused this long before the next attempt.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// Why a call got no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallError {
    /// It was never sent.
    NotSent(String),
    /// The server does not let us in.
    Denied(String),
    /// It was sent, and its outcome is unknown.
    Lost(String),
    /// It was done, but the promise of the tier was not confirmed.
    Unconfirmed(String),
}

impl CallError {
    /// The reason with the server's address; a failed connection names the address already.
    pub(crate) fn at(&self, address: &str) -> String {
        match self {
            CallError::NotSent(why) if why.starts_with(address) => why.clone(),
            other => format!("{address}: {other}"),
        }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::NotSent(why) | CallError::Denied(why) | CallError::Lost(why) | CallError::Unconfirmed(why) => {
                f.write_str(why)
            }
        }
    }
}

/// The content of a request.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// One encoded command.
    Command(Bytes),
    /// A commit, which may share its call with others.
    Commit(Arc<Part>),
}

impl Body {
    /// Whether all of it frees memory.
    pub(crate) fn is_relief(&self) -> bool {
        matches!(self, Body::Commit(part) if part.is_relief())
    }
}

/// A request on its way to a server.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) body: Body,
    /// The slot is on its way to this server: an ASKING goes before it.
    pub(crate) asking: bool,
    /// It does not share its call with other commits.
    pub(crate) alone: bool,
    /// It is answered only when the promise of the tier is confirmed.
    pub(crate) confirmed: bool,
    /// It is about the server, not about its data, so even a server that is not known to be in charge may be asked.
    pub(crate) about_server: bool,
}

impl Request {
    /// A command about the server itself.
    pub(crate) fn plain(bytes: Bytes) -> Self {
        Self { body: Body::Command(bytes), asking: false, alone: true, confirmed: false, about_server: true }
    }
}

/// What all connections to one server have found: whether it can be reached, and which of its processes is in charge.
#[derive(Debug, Default)]
pub(crate) struct Health {
    outage: Mutex<Option<Outage>>,
    charge: Mutex<Charge>,
}

/// The process of a server that was found to be in charge, and since when another process has answered in its place.
#[derive(Debug, Default)]
struct Charge {
    trusted: Option<String>,
    replaced: Option<Instant>,
}

#[derive(Debug, Clone)]
struct Outage {
    since: Instant,
    why: DialError,
}

impl Health {
    /// How long ago the first failed attempt since the last success was. A server that must not be asked for data
    /// counts as one that does not answer.
    pub(crate) fn unreachable_for(&self) -> Option<Duration> {
        let outage = self.outage().as_ref().map(|outage| outage.since.elapsed());
        outage.max(self.charge().replaced.map(|since| since.elapsed()))
    }

    fn failed(&self, why: &DialError) {
        let mut outage = self.outage();
        let since = outage.as_ref().map_or_else(Instant::now, |outage| outage.since);
        *outage = Some(Outage { since, why: why.clone() });
    }

    fn reached(&self) {
        *self.outage() = None;
    }

    fn why(&self) -> Option<DialError> {
        self.outage().as_ref().map(|outage| outage.why.clone())
    }

    /// Notes that this process is in charge. Another process at the same address, after a restart, may have lost its
    /// data while another server took over.
    pub(crate) fn trust(&self, run_id: &str) {
        let mut charge = self.charge();
        charge.replaced = None;
        if charge.trusted.as_deref() != Some(run_id) {
            charge.trusted = Some(run_id.to_owned());
        }
    }

    fn trusts(&self, run_id: &str) -> bool {
        self.charge().trusted.as_deref() == Some(run_id)
    }

    /// A request for data has met a process that is not trusted.
    fn met_another(&self) {
        self.charge().replaced.get_or_insert_with(Instant::now);
    }

    fn charge(&self) -> MutexGuard<'_, Charge> {
        self.charge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Answer = oneshot::Sender<Result<Frame, CallError>>;

/// The handle that callers hold. The connection's task ends with its last handle.
#[derive(Debug)]
pub(crate) struct Connection {
    queue: mpsc::Sender<(Request, Answer)>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    /// A connection that is made when the first request comes.
    pub(crate) fn new(address: String, dialer: Arc<Dialer>, health: Arc<Health>) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE);
        let task = tokio::spawn(Actor { address, dialer, health, requests }.run()).abort_handle();
        Self { queue, task }
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn call(&self, request: Request) -> Result<Frame, CallError> {
        let closed = || CallError::NotSent("the connection was closed".into());
        let (answer, answered) = oneshot::channel();
        self.queue.send((request, answer)).await.map_err(|_| closed())?;
        // The task drops an answer only when it is aborted, with the request perhaps already sent.
        answered.await.unwrap_or_else(|_| Err(CallError::Lost("the connection was closed".into())))
    }
}

/// Waits until enough callers that are about to ask have done so, so that the server reads several requests at once. It
/// does not wait for all of them: the server would be idle while requests gather, and this process while the server
/// answers. It also stops when all tasks that were ready have run and none of them brought a request.
async fn gather(requests: &mut mpsc::Receiver<(Request, Answer)>, waiting: &mut Vec<(Request, Answer)>, enough: usize) {
    let enough = enough.min(GROUP);
    let mut polled = false;
    poll_fn(|cx| {
        let before = waiting.len();
        while waiting.len() < GROUP
            && let Poll::Ready(Some(next)) = requests.poll_recv(cx)
        {
            waiting.push(next);
        }
        if waiting.len() >= enough || (polled && waiting.len() == before) {
            return Poll::Ready(());
        }
        polled = true;
        // The task is polled again when a request comes, and at the latest when all tasks that are ready have run.
        let _ = std::pin::pin!(tokio::task::yield_now()).poll(cx);
        Poll::Pending
    })
    .await;
}

struct Actor {
    address: String,
    dialer: Arc<Dialer>,
    health: Arc<Health>,
    requests: mpsc::Receiver<(Request, Answer)>,
}

impl Actor {
    async fn run(mut self) {
        let mut waiting = Vec::new();
        let mut backoff = BACKOFF_MIN;
        loop {
            if waiting.is_empty() && self.requests.recv_many(&mut waiting, GROUP).await == 0 {
                return;
            }
            match self.dial(&mut waiting).await {
                Ok(line) => {
                    backoff = BACKOFF_MIN;
                    self.health.reached();
                    let unproven = line.run_id.map(|run_id| {
                        let (address, health) = (self.address.clone(), self.health.clone());
                        Unproven { address, run_id, health }
                    });
                    let session = Session::new(line.stream, self.dialer.clone(), unproven);
                    match session.serve(&mut self.requests, &mut waiting).await {
                        End::Closed => return,
                        End::Broken(why) => tracing::debug!(address = self.address, why, "connection lost"),
                    }
                }
                Err(why) => {
                    tracing::debug!(address = self.address, ?why, "cannot connect");
                    self.health.failed(&why);
                    self.refuse(&why, &mut waiting, Instant::now() + backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    /// Connects. Callers wait for the connection only if the server could be reached the last time.
    async fn dial(&mut self, waiting: &mut Vec<(Request, Answer)>) -> Result<Line, DialError> {
        let mut dialing = std::pin::pin!(self.dialer.dial(&self.address));
        let mut open = true;
        loop {
            let outage = self.health.why();
            if let Some(why) = &outage {
                refuse_all(why, waiting);
            }
            tokio::select! {
                biased;
                dialed = dialing.as_mut() => return dialed,
                received = self.requests.recv_many(waiting, GROUP), if open && outage.is_some() => open = received > 0,
            }
        }
    }

    /// Refuses the waiting requests, and those that come until the next attempt, so that callers can look for another
    /// server.
    async fn refuse(&mut self, why: &DialError, waiting: &mut Vec<(Request, Answer)>, until: Instant) {
        loop {
            refuse_all(why, waiting);
            match timeout_at(until, self.requests.recv_many(waiting, GROUP)).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

fn refuse_all(why: &DialError, waiting: &mut Vec<(Request, Answer)>) {
    for (_, answer) in waiting.drain(..) {
        // A caller that has gone away needs no answer.
        let _ = answer.send(Err(match why {
            DialError::Unreachable(text) => CallError::NotSent(text.clone()),
            DialError::Denied(text) => CallError::Denied(text.clone()),
        }));
    }
}

enum End {
    /// All handles are gone and everything was answered.
    Closed,
    Broken(String),
}

enum Pending {
    Call {
        asked: Asked,
        confirmed: bool,
        deadline: Instant,
    },
    /// The answer to ASKING, for which no caller waits.
    Asking {
        deadline: Instant,
    },
    /// A command that follows a group: its answer confirms one promise of the tier for the group.
    Confirmation {
        of: Promise,
        last: bool,
        deadline: Instant,
    },
}

/// The callers that wait for the answer of one call.
enum Asked {
    One(Answer),
    /// Commits that shared a call: the answer has an item for each, in their order.
    Together(Vec<Answer>),
}

impl Asked {
    /// Each caller with its own answer. A refusal of the call refuses all of them.
    fn each(self, frame: Frame) -> Result<Vec<(Answer, Frame)>, String> {
        match (self, frame) {
            (Asked::One(answer), frame) => Ok(vec![(answer, frame)]),
            (Asked::Together(answers), Frame::Array(items)) if items.len() == answers.len() => {
                Ok(answers.into_iter().zip(items).collect())
            }
            (Asked::Together(answers), Frame::Error(text)) => {
                Ok(answers.into_iter().map(|answer| (answer, Frame::Error(text.clone()))).collect())
            }
            (Asked::Together(answers), _) => Err(format!("the server did not answer {} commits", answers.len())),
        }
    }

    fn into_answers(self) -> Vec<Answer> {
        match self {
            Asked::One(answer) => vec![answer],
            Asked::Together(answers) => answers,
        }
    }
}

/// A promise of a tier beyond the primary's memory.
#[derive(Debug, Clone, Copy)]
enum Promise {
    /// The answer of WAIT.
    Replicas,
    /// The answer of CONFIG GET.
    Disk,
}

impl Pending {
    fn deadline(&self) -> Instant {
        match self {
            Pending::Call { deadline, .. } | Pending::Asking { deadline } | Pending::Confirmation { deadline, .. } => {
                *deadline
            }
        }
    }
}

/// A server process that may not be the one that was found to be in charge.
struct Unproven {
    address: String,
    run_id: String,
    health: Arc<Health>,
}

/// The life of one socket.
struct Session {
    stream: Box<dyn Duplex>,
    dialer: Arc<Dialer>,
    /// Present until the process at the other end is known to be in charge.
    unproven: Option<Unproven>,
    pending: VecDeque<Pending>,
    /// Answers of the group that the pending confirmations are about.
    held: Vec<(Answer, Frame)>,
    /// The first answer that did not confirm the group.
    unconfirmed: Option<String>,
    /// Confirmations that have not been answered yet.
    waits: usize,
    /// The number of answers that were last handed out; each of their callers may ask again.
    delivered: usize,
    inbox: BytesMut,
    outbox: Vec<u8>,
}

impl Session {
    fn new(stream: Box<dyn Duplex>, dialer: Arc<Dialer>, unproven: Option<Unproven>) -> Self {
        Self {
            stream,
            dialer,
            unproven,
            pending: VecDeque::new(),
            held: Vec::new(),
            unconfirmed: None,
            waits: 0,
            delivered: 0,
            inbox: BytesMut::with_capacity(64 * 1024),
            outbox: Vec::new(),
        }
    }

    async fn serve(
        mut self,
        requests: &mut mpsc::Receiver<(Request, Answer)>,
        waiting: &mut Vec<(Request, Answer)>,
    ) -> End {
        let why = self.exchange(requests, waiting).await;
        let Some(why) = why else { return End::Closed };
        let lost = |answer: Answer| {
            // A caller that has gone away needs no answer.
            let _ = answer.send(Err(CallError::Lost(why.clone())));
        };
        self.held.into_iter().for_each(|(answer, _)| lost(answer));
        for pending in self.pending {
            if let Pending::Call { asked, .. } = pending {
                asked.into_answers().into_iter().for_each(lost);
            }
        }
        End::Broken(why)
    }

    /// Writes and reads until the connection breaks (returns why), or no handle is left (returns nothing).
    async fn exchange(
        &mut self,
        requests: &mut mpsc::Receiver<(Request, Answer)>,
        waiting: &mut Vec<(Request, Answer)>,
    ) -> Option<String> {
        let mut open = true;
        // One timer serves the whole session: it checks the oldest pending request now and then. A timer for each
        // request would have to be set and cancelled every time.
        let patience = self.dialer.options.request_timeout / 4;
        let mut look = std::pin::pin!(sleep_until(Instant::now() + patience));
        loop {
            if !waiting.is_empty() && self.waits == 0 {
                gather(requests, waiting, self.delivered.div_ceil(SHARE).max(TOGETHER_MIN)).await;
                self.enqueue(waiting);
                let deadline = Instant::now() + self.dialer.options.request_timeout;
                match timeout_at(deadline, self.stream.write_all(&self.outbox)).await {
                    Ok(Ok(())) => self.outbox.clear(),
                    Ok(Err(why)) => return Some(why.to_string()),
                    Err(_) => return Some("the server takes no more bytes".into()),
                }
            }
            if !open && self.pending.is_empty() && waiting.is_empty() {
                return None;
            }
            tokio::select! {
                biased;
                read = self.stream.read_buf(&mut self.inbox) => match read {
                    Ok(0) => return Some("the server closed the connection".into()),
                    Err(why) => return Some(why.to_string()),
                    Ok(_) => if let Err(why) = self.deliver() {
                        return Some(why);
                    },
                },
                // While a WAIT is unanswered, the next group gathers in the queue.
                received = requests.recv_many(waiting, GROUP), if open && self.waits == 0 => open = received > 0,
                () = look.as_mut() => {
                    let now = Instant::now();
                    if self.pending.front().is_some_and(|oldest| oldest.deadline() <= now) {
                        return Some("the server did not answer in time".into());
                    }
                    look.as_mut().reset(now + patience);
                }
            }
        }
    }

    /// Moves requests to the outbox, with commits in shared calls, and a WAIT behind them if one of them asks for it.
    fn enqueue(&mut self, waiting: &mut Vec<(Request, Answer)>) {
        if self.unproven.as_ref().is_some_and(|process| process.health.trusts(&process.run_id)) {
            self.unproven = None;
        }
        let options = &self.dialer.options;
        let deadline = Instant::now() + options.request_timeout;
        let mut wait = false;
        let mut joining = Joining::new(options.cluster);
        for (request, answer) in waiting.drain(..) {
            if answer.is_closed() {
                // The caller gave up before the request was sent, so it is not sent: no caller would learn of its
                // effect.
                continue;
            }
            let Request { body, asking, alone, confirmed, about_server } = request;
            if let Some(process) = self.unproven.as_ref().filter(|_| !about_server) {
                process.health.met_another();
                let why =
                    format!("{} was restarted, and is not known to have the data of the primary", process.address);
                // A caller that has gone away needs no answer.
                let _ = answer.send(Err(CallError::NotSent(why)));
                continue;
            }
            wait |= confirmed;
            if asking {
                self.outbox.extend_from_slice(&command(&[b"ASKING"]));
                self.pending.push_back(Pending::Asking { deadline });
            }
            let asked = match body {
                Body::Command(bytes) => {
                    self.outbox.extend_from_slice(&bytes);
                    Asked::One(answer)
                }
                Body::Commit(part) if asking || alone => {
                    Asked::Together(Joint::alone(part, answer).write(&mut self.outbox))
                }
                Body::Commit(part) => {
                    joining.add(part, answer);
                    continue;
                }
            };
            self.pending.push_back(Pending::Call { asked, confirmed, deadline });
        }
        for joint in joining.into_joints() {
            let asked = Asked::Together(joint.write(&mut self.outbox));
            // All commits of a process ask for the same confirmation.
            self.pending.push_back(Pending::Call { asked, confirmed: wait, deadline });
        }
        if !wait {
            return;
        }
        let disk = options.tier == Tier::Fsynced;
        if options.replicas > 0 {
            // The server gives up a little earlier than we do, so that its count arrives.
            let millis = (options.request_timeout * 4 / 5).as_millis().max(1).to_string();
            self.outbox.extend_from_slice(&command(&[
                b"WAIT",
                options.replicas.to_string().as_bytes(),
                millis.as_bytes(),
            ]));
            self.pending.push_back(Pending::Confirmation { of: Promise::Replicas, last: !disk, deadline });
            self.waits += 1;
        }
        if disk {
            self.outbox.extend_from_slice(&command(&[b"CONFIG", b"GET", b"appendfsync", b"appendonly"]));
            self.pending.push_back(Pending::Confirmation { of: Promise::Disk, last: true, deadline });
            self.waits += 1;
        }
    }

    /// Hands out all answers that are complete.
    fn deliver(&mut self) -> Result<(), String> {
        self.delivered = 0;
        while let Some(frame) = take_frame(&mut self.inbox)? {
            match self.pending.pop_front() {
                None => return Err("the server answered a question nobody asked".into()),
                Some(Pending::Asking { .. }) => {}
                Some(Pending::Call { asked, confirmed: true, .. }) => self.held.extend(asked.each(frame)?),
                Some(Pending::Call { asked: Asked::One(answer), .. }) => {
                    // A caller that has gone away needs no answer.
                    let _ = answer.send(Ok(frame));
                    self.delivered += 1;
                }
                Some(Pending::Call { asked, .. }) => {
                    for (answer, frame) in asked.each(frame)? {
                        let _ = answer.send(Ok(frame));
                        self.delivered += 1;
                    }
                }
                Some(Pending::Confirmation { of, last, .. }) => {
                    self.waits -= 1;
                    let missing = match of {
                        Promise::Replicas => missing_replicas(self.dialer.options.replicas, &frame),
                        Promise::Disk => missing_sync(&frame),
                    };
                    self.unconfirmed = self.unconfirmed.take().or(missing);
                    if last {
                        self.release_held();
                    }
                }
            }
        }
        Ok(())
    }

    /// Hands out the answers of a group that was confirmed, or was not.
    fn release_held(&mut self) {
        let unconfirmed = self.unconfirmed.take();
        for (answer, frame) in self.held.drain(..) {
            let answered = match &unconfirmed {
                // A call that ended in an error did nothing, so it needs no confirmation.
                Some(why) if !matches!(frame, Frame::Error(_)) => Err(CallError::Unconfirmed(why.clone())),
                _ => Ok(frame),
            };
            // A caller that has gone away needs no answer.
            let _ = answer.send(answered);
        }
    }
}

/// Why the answer of WAIT does not confirm a group.
fn missing_replicas(wanted: u32, frame: &Frame) -> Option<String> {
    let confirmed = frame.integer().unwrap_or(0);
    let enough = confirmed >= i64::from(wanted);
    (!enough).then(|| format!("{confirmed} of {wanted} replicas confirmed the commit in time"))
}

/// Why the answer of CONFIG GET does not confirm that writes reach the disk before their answers leave.
pub(crate) fn missing_sync(frame: &Frame) -> Option<String> {
    let items: &[Frame] = if let Frame::Array(items) = frame { items } else { &[] };
    let setting = |wanted: &str| {
        let mut pairs = items.chunks_exact(2).filter(|pair| pair[0].text() == Some(wanted));
        pairs.next().and_then(|pair| pair[1].text()).unwrap_or("unknown").to_owned()
    };
    let (aof, fsync) = (setting("appendonly"), setting("appendfsync"));
    let kept = aof == "yes" && fsync == "always";
    (!kept).then(|| {
        format!("tier=fsynced needs appendonly yes and appendfsync always; found appendonly {aof}, appendfsync {fsync}")
    })
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    fn ask() -> (Request, Answer) {
        (Request::plain(Bytes::new()), oneshot::channel().0)
    }

    /// Begins with one request; more come between one look and the next. How many go together, and after how many looks.
    fn gathered(coming: &[usize], enough: usize) -> (usize, usize) {
        let (queue, mut requests) = mpsc::channel(GROUP);
        let (mut waiting, mut looks, mut coming) = (vec![ask()], 0, coming.iter());
        {
            let mut gathering = std::pin::pin!(gather(&mut requests, &mut waiting, enough));
            loop {
                looks += 1;
                if gathering.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    break;
                }
                for _ in 0..*coming.next().unwrap_or(&0) {
                    queue.try_send(ask()).unwrap();
                }
            }
        }
        (waiting.len(), looks)
    }

    #[test]
    fn a_lone_request_goes_at_once() {
        assert_eq!(gathered(&[], 0), (1, 1));
        assert_eq!(gathered(&[], 1), (1, 1));
    }

    #[test]
    fn those_who_come_are_waited_for_until_they_are_enough() {
        assert_eq!(gathered(&[1, 1, 1, 1, 1, 1, 1], 6), (6, 6));
        assert_eq!(gathered(&[9], 6), (10, 2));
        assert_eq!(gathered(&[GROUP], 6), (GROUP, 2));
    }

    #[test]
    fn nobody_is_waited_for_who_does_not_come() {
        assert_eq!(gathered(&[], 6), (1, 2));
        assert_eq!(gathered(&[3], 6), (4, 3));
    }
}
