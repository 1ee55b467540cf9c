//! Several hosts in one address: the one that takes writes is used, wherever it stands in the list.

use std::sync::Arc;

use ff_store::{Outcome, StoreError};
use ff_store_postgres::{Options, PostgresStore};
use ff_testkit::postgres::Server;
use tokio::time::timeout;

use crate::fixture::{PARTITION, TEST_TIMEOUT, command, create, key, open};

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_passed_over_until_it_is_promoted() {
    let (primary, standby) = tokio::task::spawn_blocking(|| {
        let primary = Server::start();
        let standby = primary.standby();
        (Arc::new(primary), Arc::new(standby))
    })
    .await
    .unwrap();
    let hosts = format!("postgres://flowfabric@127.0.0.1:{},127.0.0.1:{}/postgres", standby.port(), primary.port());
    let store = open(&hosts).await;
    for number in 0..20 {
        store
            .commit(PARTITION, [create(&key(&format!("{number}")), "body")].into())
            .await
            .expect("the primary takes it");
    }
    let alone = PostgresStore::open(Options::parse(&standby.url()).unwrap()).await;
    assert!(matches!(alone.expect_err("it takes only reads"), StoreError::ReadOnly(_)));
    let _promoted = tokio::task::spawn_blocking(move || {
        primary.kill9();
        standby.promote();
        standby
    })
    .await
    .unwrap();
    let taken = async {
        loop {
            let answer = store.commit(PARTITION, [create(&key(&command().0.to_string()), "body")].into()).await;
            if let Ok(outcomes) = answer {
                return outcomes;
            }
        }
    };
    let outcomes = timeout(TEST_TIMEOUT, taken).await.expect("the promoted server is found");
    assert!(matches!(outcomes[..], [Outcome::Applied(_)]));
    let read = timeout(TEST_TIMEOUT, async {
        loop {
            if let Ok(documents) = store.documents(PARTITION, vec![key("0")]).await {
                return documents;
            }
        }
    });
    assert!(read.await.expect("reads find it, too")[0].is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_never_answers_does_not_keep_the_others_from_their_turn() {
    let server = Server::shared();
    let url = server.create_database("standby_silent");
    // It accepts no connection: its queue of one is full, so that the system drops what comes.
    let silent = silent_host();
    let hosts = url.replace("127.0.0.1:", &format!("127.0.0.1:{},127.0.0.1:", silent.port));
    let store = timeout(TEST_TIMEOUT, open(&format!("{hosts}?connect_timeout_ms=300"))).await.expect("it opens");
    let answer = timeout(TEST_TIMEOUT, store.commit(PARTITION, [create(&key("a"), "body")].into())).await;
    assert!(matches!(answer.expect("in time").expect("the second host takes it")[..], [Outcome::Applied(_)]));
}

struct SilentHost {
    port: u16,
    _listener: tokio::net::TcpListener,
    _waiting: Vec<std::net::TcpStream>,
}

fn silent_host() -> SilentHost {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    // The listener never accepts these. Once its queue is full, connecting takes forever.
    let mut waiting = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_millis(200)) {
        waiting.push(stream);
    }
    SilentHost { port: address.port(), _listener: listener, _waiting: waiting }
}
