//! PostgreSQL killed under load: what was acknowledged is there, and indexes agree with documents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ff_core::{CommandId, Key};
use ff_store::{Append, Batch, EntryChange, Guard, LogStart, Outcome, Scan, Store};
use ff_testkit::postgres::Server;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::fixture::{PARTITION, TEST_TIMEOUT, append, command, create, index, key, open, put, set};

const KILLS: usize = 20;
const COMMITTERS: u64 = 8;
/// Commits between two kills, so that each kill meets a busy server.
const COMMITS_BETWEEN: u64 = 60;

/// State that the test and its committers share.
struct Load {
    store: Arc<dyn Store>,
    acknowledged: watch::Sender<u64>,
    /// Whether the server is up; a committer that met an error waits for it.
    up: watch::Receiver<bool>,
    stop: AtomicBool,
    names: AtomicU64,
}

/// The answers that a committer got: for each document the version of the last acknowledged commit, and later ones
/// whose outcome it does not know.
type KnownVersions = BTreeMap<Key, (Option<CommandId>, Vec<CommandId>)>;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_twenty_kills() {
    let server = Arc::new(tokio::task::spawn_blocking(Server::start).await.unwrap());
    let (up_sender, up) = watch::channel(true);
    let load = Arc::new(Load {
        store: open(&server.url()).await,
        acknowledged: watch::Sender::new(0),
        up,
        stop: AtomicBool::new(false),
        names: AtomicU64::new(0),
    });
    let committers: Vec<_> = (0..COMMITTERS).map(|_| tokio::spawn(run(load.clone()))).collect();
    let mut acknowledged = load.acknowledged.subscribe();
    for _ in 0..KILLS {
        let enough = *acknowledged.borrow_and_update() + COMMITS_BETWEEN;
        timeout(TEST_TIMEOUT, acknowledged.wait_for(|count| *count >= enough)).await.expect("work goes on").unwrap();
        let server = server.clone();
        up_sender.send_replace(false);
        tokio::task::spawn_blocking(move || {
            server.kill9();
            server.restart();
        })
        .await
        .unwrap();
        up_sender.send_replace(true);
    }
    load.stop.store(true, Ordering::Relaxed);
    let mut told = KnownVersions::new();
    for committer in committers {
        told.extend(committer.await.unwrap());
    }
    check(&*load.store, &told).await;
}

/// Creates a document, moves it on, again and again.
async fn run(load: Arc<Load>) -> KnownVersions {
    let mut told = KnownVersions::new();
    let mut up = load.up.clone();
    while !load.stop.load(Ordering::Relaxed) {
        let key = key(&format!("x{}", load.names.fetch_add(1, Ordering::Relaxed)));
        let (mut last, mut unknown) = (None, Vec::new());
        for batch in life(&key) {
            match load.store.commit(PARTITION, [batch.clone()].into()).await {
                Ok(outcomes) => {
                    assert!(matches!(outcomes[..], [Outcome::Applied(_)]), "nobody else touches {key:?}: {outcomes:?}");
                    last = Some(batch.command);
                    load.acknowledged.send_modify(|count| *count += 1);
                }
                Err(error) => {
                    assert!(error.retryable(), "{error:?}");
                    if error.outcome_unknown() {
                        unknown.push(batch.command);
                    }
                    timeout(TEST_TIMEOUT, up.wait_for(|up| *up)).await.expect("the server comes back").unwrap();
                    break;
                }
            }
        }
        told.insert(key, (last, unknown));
    }
    told
}

/// A document that waits, and then is done.
fn life(key: &Key) -> [Batch; 2] {
    let event = |text: &str| Append { cap: 1_000_000, ..append("events", text, None) };
    let created = Batch {
        entries: vec![set("waiting", key, 1), set("all", key, 1)],
        appends: vec![event("created")],
        ..create(key, "waiting")
    };
    let done = Batch {
        guards: vec![Guard::Version(key.clone(), created.command)],
        puts: vec![put(key, "done")],
        entries: vec![EntryChange::Remove { index: index("waiting"), member: key.clone() }, set("done", key, 2)],
        appends: vec![event("done")],
        ..Batch::new(command())
    };
    [created, done]
}

async fn check(store: &dyn Store, told: &KnownVersions) {
    let (mut created, mut done) = (0, 0);
    for (key, (last, unknown)) in told {
        let found = store.documents(PARTITION, vec![key.clone()]).await.unwrap().remove(0);
        let version = found.as_ref().map(|found| found.version);
        let possible = version == *last || version.is_some_and(|version| unknown.contains(&version));
        assert!(possible, "{key:?}: acknowledged {last:?}, perhaps {unknown:?}, found {version:?}");
        created += usize::from(found.is_some());
        done += usize::from(found.is_some_and(|found| found.body == "done"));
    }
    assert!(created > KILLS * 10, "{created} documents are no load");
    for (name, expected, body) in
        [("all", created, None), ("waiting", created - done, Some("waiting")), ("done", done, Some("done"))]
    {
        let page = store.scan(PARTITION, Scan::first(index(name), 1_000_000).with_documents()).await.unwrap();
        assert_eq!(page.entries.len(), expected, "entries of {name}");
        for entry in page.entries {
            let document =
                entry.document.unwrap_or_else(|| panic!("{name} has {:?}, which is not there", entry.member));
            assert!(body.is_none_or(|body| document.body == body), "{name} has {document:?}");
        }
    }
    let page = store.log(PARTITION, key("events"), LogStart::After(0), 1_000_000).await.unwrap();
    let count = |text: &str| page.records.iter().filter(|record| record.record == text.as_bytes()).count();
    assert_eq!((count("created"), count("done")), (created, done), "one event for each change");
}
