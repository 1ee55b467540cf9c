//! The life of one socket of a connection: requests are gathered and written in one go, and answers are handed out in
//! order. `connection` makes a new session when one breaks.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::Tier;
use crate::answer::{self, Committed};
use crate::call::Style;
use crate::commit::Part;
use crate::connection::{Answer, Body, CallError, GROUP, Reply, Request};
use crate::health::Health;
use crate::joint::{Joining, Joint};
use crate::resp::{Frame, command, take_frame};
use crate::transport::{Dialer, Duplex};

/// The next write waits until one in so many of the callers that were just answered has asked again.
const SHARE: usize = 3;
/// Even a single request waits for others that are ready: one answer may have woken several callers, for example that
/// of a commit which their requests shared.
const TOGETHER_MIN: usize = 2;

/// How a session ended.
pub(crate) enum End {
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
    /// Commits that share a call.
    Together {
        parts: Vec<Arc<Part>>,
        answers: Vec<Answer>,
    },
}

impl Asked {
    /// Each caller with its own answer. A refusal of the call refuses all of them.
    fn each(self, frame: Frame) -> Result<Vec<(Answer, Reply)>, String> {
        let (parts, answers) = match self {
            Asked::One(answer) => return Ok(vec![(answer, Reply::Frame(frame))]),
            Asked::Together { parts, answers } => (parts, answers),
        };
        let replies: Vec<Reply> = match frame {
            Frame::Error(text) => answers.iter().map(|_| Reply::Frame(Frame::Error(text.clone()))).collect(),
            Frame::Bulk(bytes) => {
                let odd = || format!("the server gave {} commits an answer of another shape", parts.len());
                let committed = answer::decode(&parts, &bytes).ok_or_else(odd)?.into_iter();
                let reply = |one: Result<Committed, String>| match one {
                    Ok(committed) => Reply::Committed(committed),
                    Err(text) => Reply::Frame(Frame::Error(text)),
                };
                committed.map(reply).collect()
            }
            _ => return Err(format!("the server did not answer {} commits", parts.len())),
        };
        Ok(answers.into_iter().zip(replies).collect())
    }

    fn into_answers(self) -> Vec<Answer> {
        match self {
            Asked::One(answer) => vec![answer],
            Asked::Together { answers, .. } => answers,
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
pub(crate) struct Unproven {
    pub(crate) address: String,
    pub(crate) run_id: String,
    pub(crate) health: Arc<Health>,
}

impl Unproven {
    /// Refuses a request for data.
    fn refuse(&self, answer: Answer) {
        self.health.met_another();
        let why = format!("{} was restarted, and is not known to have the data of the primary", self.address);
        // A caller that has gone away needs no answer.
        let _ = answer.send(Err(CallError::NotSent(why)));
    }
}

/// The life of one socket.
pub(crate) struct Session {
    stream: Box<dyn Duplex>,
    dialer: Arc<Dialer>,
    /// Present until the process at the other end is known to be in charge.
    unproven: Option<Unproven>,
    pending: VecDeque<Pending>,
    /// Answers of the group that the pending confirmations are about.
    held: Vec<(Answer, Reply)>,
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
    pub(crate) fn new(stream: Box<dyn Duplex>, dialer: Arc<Dialer>, unproven: Option<Unproven>) -> Self {
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

    pub(crate) async fn serve(
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

    /// Moves requests to the outbox, with commits in shared calls, and the confirmations behind them that one of them asks
    /// for.
    fn enqueue(&mut self, waiting: &mut Vec<(Request, Answer)>) {
        if self.unproven.as_ref().is_some_and(|process| process.health.trusts(&process.run_id)) {
            self.unproven = None;
        }
        let options = &self.dialer.options;
        let deadline = Instant::now() + options.request_timeout;
        let mut confirm = false;
        let style = Style { sharded: options.cluster, barrier: options.waits() };
        let mut joining = Joining::new(options.cluster);
        for (request, answer) in waiting.drain(..) {
            // A caller that gave up before its request was sent would not learn of its effect, so it is not sent.
            if answer.is_closed() {
                continue;
            }
            let Request { body, asking, alone, confirmed, about_server } = request;
            if let Some(process) = self.unproven.as_ref().filter(|_| !about_server) {
                process.refuse(answer);
                continue;
            }
            confirm |= confirmed;
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
                    let (parts, answers) = Joint::alone(part, answer).write(style, &mut self.outbox);
                    Asked::Together { parts, answers }
                }
                Body::Commit(part) => {
                    joining.add(part, answer);
                    continue;
                }
            };
            self.pending.push_back(Pending::Call { asked, confirmed, deadline });
        }
        for joint in joining.into_joints() {
            let (parts, answers) = joint.write(style, &mut self.outbox);
            let asked = Asked::Together { parts, answers };
            // All commits of a process ask for the same confirmation.
            self.pending.push_back(Pending::Call { asked, confirmed: confirm, deadline });
        }
        if confirm {
            self.ask_confirmations(deadline);
        }
    }

    /// Asks the server to confirm the promises of the tier for the group that was just written.
    fn ask_confirmations(&mut self, deadline: Instant) {
        let options = &self.dialer.options;
        let disk = options.tier == Tier::Fsynced;
        if options.replicas > 0 {
            // The server gives up a little earlier than we do, so that its count arrives.
            let millis = (options.request_timeout * 4 / 5).as_millis().max(1).to_string();
            let wait = command(&[b"WAIT", options.replicas.to_string().as_bytes(), millis.as_bytes()]);
            self.outbox.extend_from_slice(&wait);
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
                    let _ = answer.send(Ok(Reply::Frame(frame)));
                    self.delivered += 1;
                }
                Some(Pending::Call { asked, .. }) => {
                    for (answer, reply) in asked.each(frame)? {
                        let _ = answer.send(Ok(reply));
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
        for (answer, reply) in self.held.drain(..) {
            let answered = match &unconfirmed {
                // A call that ended in an error did nothing, so it needs no confirmation.
                Some(why) if !matches!(reply, Reply::Frame(Frame::Error(_))) => {
                    Err(CallError::Unconfirmed(why.clone()))
                }
                _ => Ok(reply),
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

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use bytes::Bytes;
    use tokio::sync::oneshot;

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
