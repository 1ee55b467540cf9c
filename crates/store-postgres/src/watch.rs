//! Hints. A commit's own process hears of it at once; other processes hear by NOTIFY, from one notifier that sends
//! many hints in one message, after the commits and outside of them, and nothing while no other process listens.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::{Object, Pool};
use ff_core::Partition;
use ff_store::{Batch, Hint, HintSender, Hints, Result, WatchEvent};
use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client};
use uuid::Uuid;

use crate::connect::{self, Connector, RawConnection, within};
use crate::error;
use crate::locks::{Locks, Protects};
use crate::maintain::Maintenance;
use crate::message::{Message, pack};
use crate::options::Options;

/// Messages of commits that wait for the notifier; past it the others are told to look at everything.
const WAITING_MAX: usize = 4_096;
/// How long it is taken as known whether another process listens.
const PEERS_KNOWN_FOR: Duration = Duration::from_secs(1);
/// The pauses between attempts to listen again, or to tell the others.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The notices that follow a commit. Cheap to clone.
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
            self.tell(WatchEvent::Hint(hint.clone()));
        }
        if self.others.try_send(hints.to_vec()).is_err() {
            self.overflow.store(true, Ordering::Relaxed);
        }
    }

    /// Notes what a batch that was applied leaves to maintain.
    pub(crate) fn applied(&self, partition: Partition, batch: &Batch) {
        self.maintenance.applied(partition, batch);
    }

    /// Tells the own process.
    pub(crate) fn tell(&self, event: WatchEvent) {
        if let Some(own) = &*self.own.lock().unwrap_or_else(PoisonError::into_inner) {
            own.send(event);
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

/// The exchange of notices with other processes.
pub(crate) struct Exchange {
    connector: Connector,
    pool: Pool,
    channel: String,
    lock: i64,
    answer_timeout: Duration,
    listen_check: Duration,
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
    /// Runs the connection. One that is dead never ends by itself while it waits for an answer.
    driver: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Exchange {
    /// Also returns what commits leave for the notifier.
    pub(crate) fn new(
        connector: Connector,
        pool: Pool,
        options: &Options,
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
            channel: format!("ff_{}", options.schema),
            lock: Locks::of_schema(&options.schema).single(Protects::Listening),
            answer_timeout: options.answer_timeout(),
            listen_check: options.listen_check,
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
        let mut pause = RETRY_MIN;
        loop {
            match self.begin().await {
                Ok(listener) => {
                    pause = RETRY_MIN;
                    match first.take() {
                        Some(first) => drop(first.send(Ok(()))),
                        None => self.notices.tell(WatchEvent::Resync),
                    }
                    let why = self.hear(listener).await;
                    self.listening.store(0, Ordering::Relaxed);
                    tracing::warn!(why, "lost the connection that listens for hints");
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
        let listener = Listener { client, messages, driver: tokio::spawn(forward(connection, sender)) };
        let client = &listener.client;
        let wrong = |error| error::reading(&error);
        let begun = async {
            // The names are plain: the schema was checked.
            client.batch_execute(&format!("LISTEN {}", self.channel)).await.map_err(wrong)?;
            client.execute("SELECT pg_advisory_lock_shared($1)", &[&self.lock]).await.map_err(wrong)?;
            let row = client.query_one("SELECT pg_backend_pid()", &[]).await.map_err(wrong)?;
            self.listening.store(row.get(0), Ordering::Relaxed);
            let hello = Message::Hello.encode(self.instance);
            client.execute("SELECT pg_notify($1, $2)", &[&self.channel, &hello]).await.map_err(wrong)?;
            Ok(())
        };
        within(self.answer_timeout, begun).await?;
        Ok(listener)
    }

    /// Hears the others until the connection is lost, and says why it is.
    async fn hear(&self, mut listener: Listener) -> String {
        // A process that was sure of having no listeners is sure for a second; the hints it did not send are made up
        // for then.
        let mut make_up = self.ask_for_peers().await.unwrap_or(true).then(|| Instant::now() + PEERS_KNOWN_FOR);
        let mut check = Instant::now() + self.listen_check;
        loop {
            let wake = make_up.map_or(check, |at| at.min(check));
            match tokio::time::timeout_at(wake.into(), listener.messages.recv()).await {
                Ok(Some(message)) => {
                    self.receive(&message);
                    check = Instant::now() + self.listen_check;
                }
                Ok(None) => return "it was closed".into(),
                Err(_) if make_up.is_some_and(|at| at <= Instant::now()) => {
                    make_up = None;
                    self.notices.tell(WatchEvent::Resync);
                }
                // The others had nothing to say, or the connection is dead without a word.
                Err(_) => {
                    if let Err(error) = self.ask_for_life(&listener.client).await {
                        return error.to_string();
                    }
                    check = Instant::now() + self.listen_check;
                }
            }
        }
    }

    /// The server answers without a transaction.
    async fn ask_for_life(&self, client: &Client) -> Result<()> {
        let answer = async { client.check_connection().await.map_err(|error| error::reading(&error)) };
        within(self.answer_timeout, answer).await
    }

    fn receive(&self, message: &str) {
        match Message::decode(message) {
            Some((instance, _)) if instance == self.instance => {}
            Some((_, Message::Hints(hints))) => {
                self.know_peers(true);
                hints.into_iter().for_each(|hint| self.notices.tell(WatchEvent::Hint(hint)));
            }
            Some((_, Message::Hello)) => self.know_peers(true),
            // A message that is not understood may be a hint of another version.
            Some((_, Message::Resync)) | None => self.notices.tell(WatchEvent::Resync),
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
                tracing::warn!(%error, "could not pass hints on; the others will be told to look at everything");
                self.make_up().await;
            }
        }
    }

    /// Tells the others that they missed something, until that has arrived.
    async fn make_up(&self) {
        let mut pause = RETRY_MIN;
        loop {
            tokio::time::sleep(pause).await;
            match self.pass_on(Vec::new(), true).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, "still cannot tell the others"),
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Hands the hints over, or the news that some were lost.
    async fn pass_on(&self, hints: Vec<Hint>, overflow: bool) -> Result<()> {
        if !self.has_peers().await? {
            return Ok(());
        }
        let messages = if overflow { vec![Message::Resync] } else { pack(hints) };
        let client = connect::take(&self.pool).await?;
        let told = self.tell_all(&client, &messages).await;
        connect::give_back(client, told)
    }

    async fn tell_all(&self, client: &Object, messages: &[Message]) -> Result<()> {
        let wrong = |error| error::reading(&error);
        for message in messages {
            let told = async {
                let statement = client.prepare_cached("SELECT pg_notify($1, $2)").await.map_err(wrong)?;
                client.execute(&statement, &[&self.channel, &message.encode(self.instance)]).await.map_err(wrong)
            };
            within(self.answer_timeout, told).await?;
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
        const OTHERS: &str = "SELECT EXISTS (SELECT FROM pg_locks
             WHERE locktype = 'advisory' AND granted AND objsubid = 1
               AND (classid::bigint << 32) | objid::bigint = $1 AND pid <> $2
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";
        let client = connect::take(&self.pool).await?;
        let wrong = |error| error::reading(&error);
        let asked = async {
            let statement = client.prepare_cached(OTHERS).await.map_err(wrong)?;
            let own = self.listening.load(Ordering::Relaxed);
            Ok(client.query_one(&statement, &[&self.lock, &own]).await.map_err(wrong)?.get(0))
        };
        let peers = within(self.answer_timeout, asked).await;
        connect::give_back(client, peers)
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
