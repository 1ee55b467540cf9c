//! Hints. A commit's own process hears of it at once; other processes hear by NOTIFY, from one notifier that sends
//! many hints in one message, after the commits and outside of them, and nothing while no other process listens.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use deadpool_postgres::Pool;
use ff_core::Partition;
use ff_store::{Append, Hint, HintSender, Hints, Result, Signal};
use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client};
use uuid::Uuid;

use crate::connect::{self, Connector, RawConnection};
use crate::error;
use crate::locks::{Locks, Protects};
use crate::maintain::Maintenance;

/// Messages of commits that wait for the notifier; past it the others are told to look at everything.
const WAITING_MAX: usize = 4_096;
/// Raw bytes in one message: in base64, and with its head, it stays below PostgreSQL's 8,000.
const MESSAGE_MAX_BYTES: usize = 5_800;
/// How long an answer to "does anybody else listen?" holds.
const PEERS_KNOWN_FOR: Duration = Duration::from_secs(1);
/// The longest pause between attempts to listen again.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// What a commit is followed by. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Notices {
    /// Gone once the store is closed, so that watchers see the end.
    own: Arc<Mutex<Option<HintSender>>>,
    others: mpsc::Sender<Vec<Hint>>,
    /// Hints for others were dropped.
    overflow: Arc<AtomicBool>,
    maintenance: Maintenance,
}

impl Notices {
    /// Tells the own process now and the others soon.
    pub(crate) fn send(&self, hints: &[Hint]) {
        if hints.is_empty() {
            return;
        }
        for hint in hints {
            self.tell(Signal::Hint(hint.clone()));
        }
        if self.others.try_send(hints.to_vec()).is_err() {
            self.overflow.store(true, Ordering::Relaxed);
        }
    }

    /// Notes records of a log that has a cap.
    pub(crate) fn appended(&self, partition: Partition, append: &Append) {
        self.maintenance.appended(partition, append);
    }

    /// Tells the own process.
    pub(crate) fn tell(&self, signal: Signal) {
        if let Some(own) = &*self.own.lock().unwrap_or_else(PoisonError::into_inner) {
            own.send(signal);
        }
    }

    /// A watcher. After the end it hears nothing but the end.
    pub(crate) fn subscribe(&self) -> Hints {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.as_ref().map_or_else(|| HintSender::default().subscribe(), HintSender::subscribe)
    }

    /// Ends all watchers.
    pub(crate) fn end(&self) {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// What listens to and tells other processes.
pub(crate) struct Exchange {
    connector: Connector,
    pool: Pool,
    channel: String,
    lock: i64,
    /// Tells our own messages from those of others.
    instance: Uuid,
    notices: Notices,
    peers: Mutex<Option<(Instant, bool)>>,
    /// The server process behind our listening connection; 0 without one.
    listening: AtomicI32,
}

/// Sends and receives on one connection.
struct Listener {
    client: Client,
    messages: mpsc::UnboundedReceiver<String>,
}

impl Exchange {
    /// Also returns what commits leave for the notifier.
    pub(crate) fn new(
        connector: Connector,
        pool: Pool,
        schema: &str,
        maintenance: Maintenance,
    ) -> (Arc<Self>, mpsc::Receiver<Vec<Hint>>) {
        let (others, waiting) = mpsc::channel(WAITING_MAX);
        let notices = Notices {
            own: Arc::new(Mutex::new(Some(HintSender::default()))),
            others,
            overflow: Arc::default(),
            maintenance,
        };
        let exchange = Self {
            connector,
            pool,
            channel: format!("ff_{schema}"),
            lock: Locks::of_schema(schema).single(Protects::Listening),
            instance: Uuid::now_v7(),
            notices,
            peers: Mutex::default(),
            listening: AtomicI32::new(0),
        };
        (Arc::new(exchange), waiting)
    }

    pub(crate) fn notices(&self) -> Notices {
        self.notices.clone()
    }

    /// Listens until it is aborted; `first` says how the first attempt ended.
    pub(crate) async fn listen(self: Arc<Self>, first: tokio::sync::oneshot::Sender<Result<()>>) {
        let mut first = Some(first);
        let mut pause = Duration::from_millis(50);
        loop {
            match self.begin().await {
                Ok(listener) => {
                    pause = Duration::from_millis(50);
                    match first.take() {
                        Some(first) => drop(first.send(Ok(()))),
                        None => self.notices.tell(Signal::Resync),
                    }
                    self.hear(listener).await;
                    self.listening.store(0, Ordering::Relaxed);
                    tracing::warn!("lost the connection that listens for hints");
                }
                Err(error) => {
                    if let Some(first) = first.take() {
                        drop(first.send(Err(error)));
                        return;
                    }
                    tracing::warn!(%error, "cannot listen for hints");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }

    /// Listens, takes the lock that says so, and greets the others.
    async fn begin(&self) -> Result<Listener> {
        let (client, connection) = self.connector.connect().await?;
        let (sender, messages) = mpsc::unbounded_channel();
        // Ends with the connection, which ends with the client.
        tokio::spawn(forward(connection, sender));
        let wrong = |error| error::reading(&error);
        // The names are plain: the schema was checked.
        client.batch_execute(&format!("LISTEN {}", self.channel)).await.map_err(wrong)?;
        client.execute("SELECT pg_advisory_lock_shared($1)", &[&self.lock]).await.map_err(wrong)?;
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await.map_err(wrong)?;
        self.listening.store(row.get(0), Ordering::Relaxed);
        let hello = Message::Hello.encode(self.instance);
        client.execute("SELECT pg_notify($1, $2)", &[&self.channel, &hello]).await.map_err(wrong)?;
        Ok(Listener { client, messages })
    }

    async fn hear(&self, mut listener: Listener) {
        // Whoever was sure that nobody listens is sure for a second; what it did not send is made up for then.
        let mut make_up = self.ask_for_peers().await.unwrap_or(true).then(|| Instant::now() + PEERS_KNOWN_FOR);
        loop {
            let wait = make_up.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            match tokio::time::timeout(wait, listener.messages.recv()).await {
                Ok(Some(message)) => self.receive(&message),
                Ok(None) => break,
                Err(_) => {
                    make_up = None;
                    self.notices.tell(Signal::Resync);
                }
            }
        }
        drop(listener.client);
    }

    fn receive(&self, message: &str) {
        match Message::decode(message) {
            Some((instance, _)) if instance == self.instance => {}
            Some((_, Message::Hints(hints))) => {
                self.know_peers(true);
                hints.into_iter().for_each(|hint| self.notices.tell(Signal::Hint(hint)));
            }
            Some((_, Message::Hello)) => self.know_peers(true),
            // What we do not understand may be a hint of another version.
            Some((_, Message::Resync)) | None => self.notices.tell(Signal::Resync),
        }
    }

    /// Tells other processes what commits leave here, until the store is gone.
    pub(crate) async fn notify(self: Arc<Self>, mut waiting: mpsc::Receiver<Vec<Hint>>) {
        while let Some(first) = waiting.recv().await {
            let mut hints = first;
            while let Ok(more) = waiting.try_recv() {
                hints.extend(more);
            }
            let overflow = self.notices.overflow.swap(false, Ordering::Relaxed);
            if let Err(error) = self.pass_on(hints, overflow).await {
                // A hint is only a hint: what a lost one missed is found by a sweep.
                tracing::debug!(%error, "could not pass hints on");
            }
        }
    }

    async fn pass_on(&self, hints: Vec<Hint>, overflow: bool) -> Result<()> {
        if !self.has_peers().await? {
            return Ok(());
        }
        let messages = if overflow { vec![Message::Resync] } else { pack(hints) };
        let client = connect::take(&self.pool).await?;
        let wrong = |error| error::reading(&error);
        let statement = client.prepare_cached("SELECT pg_notify($1, $2)").await.map_err(wrong)?;
        for message in messages {
            client.execute(&statement, &[&self.channel, &message.encode(self.instance)]).await.map_err(wrong)?;
        }
        Ok(())
    }

    async fn has_peers(&self) -> Result<bool> {
        let known = *self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some((at, peers)) if at.elapsed() < PEERS_KNOWN_FOR => Ok(peers),
            _ => {
                let asked = Instant::now();
                let peers = self.ask_for_peers().await?;
                *self.peers.lock().unwrap_or_else(PoisonError::into_inner) = Some((asked, peers));
                Ok(peers)
            }
        }
    }

    /// Every listener holds a shared lock for as long as it is connected.
    async fn ask_for_peers(&self) -> Result<bool> {
        let client = connect::take(&self.pool).await?;
        let wrong = |error| error::reading(&error);
        let statement = client
            .prepare_cached(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
                   AND (classid::bigint << 32) | objid::bigint = $1 AND pid <> $2
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
            )
            .await
            .map_err(wrong)?;
        let own = self.listening.load(Ordering::Relaxed);
        Ok(client.query_one(&statement, &[&self.lock, &own]).await.map_err(wrong)?.get(0))
    }

    fn know_peers(&self, peers: bool) {
        *self.peers.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), peers));
    }
}

/// Runs a connection and hands its notifications over, until it is lost.
async fn forward(mut connection: RawConnection, messages: mpsc::UnboundedSender<String>) {
    let mut stream = poll_fn(move |context| connection.poll_message(context));
    while let Some(Ok(message)) = stream.next().await {
        if let AsyncMessage::Notification(notification) = message
            && messages.send(notification.payload().to_owned()).is_err()
        {
            return;
        }
    }
}

/// What processes tell each other.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Hints(Vec<Hint>),
    Resync,
    Hello,
}

impl Message {
    /// The sender, one letter of kind, and the hints: (partition, length, payload) each.
    fn encode(&self, instance: Uuid) -> String {
        let head = instance.as_simple();
        let hints = match self {
            Message::Resync => return format!("{head}r"),
            Message::Hello => return format!("{head}o"),
            Message::Hints(hints) => hints,
        };
        let mut bytes = Vec::with_capacity(MESSAGE_MAX_BYTES);
        for hint in hints {
            bytes.extend_from_slice(&hint.partition.ordinal().to_be_bytes());
            bytes.extend_from_slice(&(hint.payload.len() as u64).to_be_bytes()[4..]);
            bytes.extend_from_slice(&hint.payload);
        }
        format!("{head}h{}", STANDARD_NO_PAD.encode(bytes))
    }

    fn decode(text: &str) -> Option<(Uuid, Self)> {
        let (instance, rest) = text.split_at_checked(32)?;
        let instance = Uuid::try_parse(instance).ok()?;
        let message = match rest.split_at_checked(1)? {
            ("r", "") => Message::Resync,
            ("o", "") => Message::Hello,
            ("h", hints) => Message::Hints(unpack(Bytes::from(STANDARD_NO_PAD.decode(hints).ok()?))?),
            _ => return None,
        };
        Some((instance, message))
    }
}

fn unpack(mut bytes: Bytes) -> Option<Vec<Hint>> {
    let mut hints = Vec::new();
    while !bytes.is_empty() {
        let (ordinal, rest) = bytes.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let partition = Partition::from_ordinal(i64::from_be_bytes(*ordinal))?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        if rest.len() < length {
            return None;
        }
        hints.push(Hint { partition, payload: bytes.slice(HINT_HEAD..HINT_HEAD + length) });
        bytes = bytes.slice(HINT_HEAD + length..);
    }
    Some(hints)
}

/// Bytes of a hint besides its payload.
const HINT_HEAD: usize = 12;

/// As few messages as hold the hints; the same hint twice is once enough.
fn pack(hints: Vec<Hint>) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut seen = HashSet::new();
    let (mut current, mut size) = (Vec::new(), 0);
    for hint in hints {
        let length = HINT_HEAD + hint.payload.len();
        if length > MESSAGE_MAX_BYTES {
            return vec![Message::Resync];
        }
        if !seen.insert((hint.partition, hint.payload.clone())) {
            continue;
        }
        if size + length > MESSAGE_MAX_BYTES {
            messages.push(Message::Hints(std::mem::take(&mut current)));
            size = 0;
        }
        size += length;
        current.push(hint);
    }
    if !current.is_empty() {
        messages.push(Message::Hints(current));
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(number: u16, length: usize) -> Hint {
        Hint { partition: Partition::flow(number), payload: vec![7; length].into() }
    }

    #[test]
    fn messages_survive_their_journey() {
        let instance = Uuid::now_v7();
        for message in [Message::Resync, Message::Hello, Message::Hints(vec![hint(1, 0), hint(65_535, 300)])] {
            assert_eq!(Message::decode(&message.encode(instance)), Some((instance, message)));
        }
    }

    #[test]
    fn many_hints_fit_few_messages_that_postgres_takes() {
        let messages = pack((0..2_000).map(|number| hint(number % 1_000, 20)).collect());
        let told: usize = messages
            .iter()
            .map(|message| match message {
                Message::Hints(hints) => hints.len(),
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(told, 1_000);
        assert!(messages.len() < 10);
        assert!(messages.iter().all(|message| message.encode(Uuid::now_v7()).len() < 8_000));
    }

    #[test]
    fn a_hint_too_large_becomes_a_resync() {
        assert_eq!(pack(vec![hint(0, 1), hint(0, 10_000)]), [Message::Resync]);
    }

    #[test]
    fn what_is_cut_short_is_not_understood() {
        let text = Message::Hints(vec![hint(1, 30)]).encode(Uuid::now_v7());
        for length in 0..text.len() {
            let whole = Message::decode(&text[..length]);
            assert!(whole.is_none() || whole.is_some_and(|(_, message)| message == Message::Hints(vec![])));
        }
    }
}
