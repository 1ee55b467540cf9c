//! Connections that die without a word: nothing passes any more, and neither end is told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ff_store::{Append, Batch, Hint, Hints, LogStart, Store, StoreError, WatchEvent};
use ff_testkit::postgres::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::fixture::{PARTITION, TEST_TIMEOUT, command, create, key, open};

/// Whether a connection is dead.
type Dead = Arc<watch::Sender<bool>>;

/// A proxy in which connections die.
#[derive(Default)]
struct Network {
    connections: Mutex<Vec<Dead>>,
    /// The connection that says this dies of it, once.
    deadly: Mutex<Option<&'static str>>,
}

impl Network {
    /// A network in front of a new database: its addresses without and with the network between.
    async fn before(name: &str, parameters: &str) -> (Arc<Self>, String, String) {
        let server = Server::shared();
        let database = server.create_database(name);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let network = Arc::new(Self::default());
        tokio::spawn(network.clone().serve(listener, server.port()));
        let url = database.replace(&format!(":{}", server.port()), &format!(":{port}"));
        (network, database, format!("{url}?{parameters}"))
    }

    /// All connections that there are die. New ones live.
    fn fail(&self) {
        for dead in self.connections.lock().unwrap().drain(..) {
            dead.send_replace(true);
        }
    }

    fn die_of(&self, words: &'static str) {
        *self.deadly.lock().unwrap() = Some(words);
    }

    /// Whether a connection died of the words that were said to be deadly.
    fn connection_died(&self) -> bool {
        self.deadly.lock().unwrap().is_none()
    }

    fn kills(&self, bytes: &[u8]) -> bool {
        let mut deadly = self.deadly.lock().unwrap();
        let said = deadly.is_some_and(|words| bytes.windows(words.len()).any(|part| part == words.as_bytes()));
        if said {
            *deadly = None;
        }
        said
    }

    async fn serve(self: Arc<Self>, listener: TcpListener, port: u16) {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let dead = Dead::default();
            self.connections.lock().unwrap().push(dead.clone());
            let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
            tokio::spawn(forward(from_client, to_server, dead.clone(), Some(self.clone())));
            tokio::spawn(forward(from_server, to_client, dead, None));
        }
    }
}

/// Passes bytes on while the connection lives; afterwards they vanish, and so does the news of its end.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, dead: Dead, network: Option<Arc<Network>>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if network.as_ref().is_some_and(|network| network.kills(&buffer[..length])) {
            dead.send_replace(true);
        }
        if !*dead.borrow() && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
    if *dead.borrow() {
        // The other end is never told; its half stays open for as long as the test runs.
        std::future::pending::<()>().await;
    }
}

fn hinting(payload: &str) -> Batch {
    let hint = Hint { partition: PARTITION, payload: payload.to_owned().into() };
    Batch { hints: vec![hint], ..Batch::new(command()) }
}

/// A store that is not the first, once it has asked for the resync that makes up for what it missed before it listened:
/// from then on a resync means that something is wrong.
async fn open_second(url: &str) -> (Arc<dyn Store>, Hints) {
    let store = open(url).await;
    let mut hints = store.watch();
    // It comes a second after the opening. A watcher that begins later than that has missed it.
    if let Ok(signal) = timeout(Duration::from_secs(5), hints.next()).await {
        assert_eq!(signal, Some(WatchEvent::Resync));
    }
    (store, hints)
}

/// Waits for a hint; a resync now and then is allowed.
async fn until_heard(hints: &mut Hints, payload: &str) {
    while !matches!(hints.next().await, Some(WatchEvent::Hint(hint)) if hint.payload == payload) {}
}

/// Enough records to have the log trimmed for certain.
fn capped() -> Batch {
    let append =
        Append { log: key("capped"), records: vec!["record".into(); 64], expected: None, cap: 10, in_turn: false };
    Batch { appends: vec![append], ..Batch::new(command()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_died_silently_is_replaced_and_asks_for_a_resync() {
    let (network, database, url) =
        Network::before("silence_listener", "listen_check_ms=200&request_timeout_ms=3000").await;
    let other = open(&database).await;
    let (_store, mut hints) = open_second(&url).await;
    network.fail();
    let signal = timeout(TEST_TIMEOUT, hints.next()).await.expect("the silence is noticed");
    assert_eq!(signal, Some(WatchEvent::Resync));
    other.commit(PARTITION, [hinting("heard again")].into()).await.unwrap();
    timeout(TEST_TIMEOUT, until_heard(&mut hints, "heard again")).await.expect("the new connection hears");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_lives_is_left_alone() {
    let (network, database, url) = Network::before("silence_alive", "listen_check_ms=1").await;
    let other = open(&database).await;
    let (_store, mut hints) = open_second(&url).await;
    // One commit takes longer than the time between checks.
    for number in 0..100 {
        other.commit(PARTITION, [hinting(&number.to_string())].into()).await.unwrap();
        let signal = timeout(TEST_TIMEOUT, hints.next()).await.expect("every hint comes");
        assert!(matches!(&signal, Some(WatchEvent::Hint(hint)) if hint.payload == number.to_string()), "{signal:?}");
    }
    assert!(network.connections.lock().unwrap().len() > 1, "it was opened through the network");
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_that_were_lost_on_their_way_become_a_resync_elsewhere() {
    let (network, database, url) = Network::before("silence_notify", "request_timeout_ms=3000").await;
    let store = open(&url).await;
    let (_other, mut hints) = open_second(&database).await;
    network.die_of("pg_notify");
    store.commit(PARTITION, [hinting("lost")].into()).await.unwrap();
    let signal = timeout(TEST_TIMEOUT, hints.next()).await.expect("the loss is made up for without another commit");
    assert_eq!(signal, Some(WatchEvent::Resync));
    assert!(network.connection_died());
    store.commit(PARTITION, [hinting("after")].into()).await.unwrap();
    timeout(TEST_TIMEOUT, until_heard(&mut hints, "after")).await.expect("hints pass again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_connection_dies_before_it_is_sent_is_refused_in_time() {
    let (network, _, url) = Network::before("silence_prepare", "request_timeout_ms=3000").await;
    let store = open(&url).await;
    // A new connection is told the statement before it gets the commit.
    network.die_of("ff_commit");
    let refused = timeout(TEST_TIMEOUT, store.commit(PARTITION, [create(&key("a"), "body")].into())).await;
    let refused = refused.expect("it does not wait for ever").unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable(_)), "nothing was applied: {refused:?}");
    assert!(network.connection_died());
    let outcomes = store.commit(PARTITION, [create(&key("a"), "body")].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trim_whose_connection_dies_does_not_keep_later_ones_waiting() {
    let (network, database, url) = Network::before("silence_trim", "request_timeout_ms=3000").await;
    let store = open(&url).await;
    network.die_of("DELETE FROM records");
    store.commit(PARTITION, [capped()].into()).await.unwrap();
    store.commit(PARTITION, [capped()].into()).await.unwrap();
    let direct = open(&database).await;
    timeout(TEST_TIMEOUT, until_trimmed(&*direct)).await.expect("the second trim has its turn");
    assert!(network.connection_died());
}

async fn until_trimmed(store: &dyn Store) {
    while store.log(PARTITION, key("capped"), LogStart::After(0), 1_000).await.unwrap().records.len() != 10 {}
}
