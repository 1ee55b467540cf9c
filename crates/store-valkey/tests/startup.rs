//! What opening a store refuses, waits for and warns of.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ff_core::{Code, Error};
use ff_store::{Store, StoreError};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Replicated, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn refusal(url: &str) -> (StoreError, Duration) {
    let started = Instant::now();
    let error = ValkeyStore::open(url).await.err().expect("it is refused");
    (error, started.elapsed())
}

#[tokio::test]
async fn wrong_credentials_fail_at_once_and_stay_secret() {
    let server = Server::start_with(&["--requirepass", "right-password"]);
    for credentials in ["", ":wrong-password@", "nobody:wrong-password@"] {
        let (error, took) = refusal(&format!("valkey://{credentials}{}", server.address())).await;
        assert!(matches!(error, StoreError::Config(_)), "{error:?}");
        assert!(!error.to_string().contains("wrong-password"), "{error}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
    assert!(ValkeyStore::open(&format!("valkey://:right-password@{}", server.address())).await.is_ok());
    assert!(ValkeyStore::open(&format!("valkey://default:right-password@{}", server.address())).await.is_ok());
}

#[tokio::test]
async fn a_password_nobody_asked_for_is_refused() {
    let server = Server::start();
    let (error, _) = refusal(&format!("valkey://:secret@{}", server.address())).await;
    assert!(matches!(error, StoreError::Config(_)), "{error:?}");
}

#[tokio::test]
async fn an_unreachable_server_is_given_up_in_time() {
    let mut server = Server::start();
    server.kill();
    let (error, took) = refusal(&format!("{}?startup_timeout_ms=500", server.url())).await;
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn a_silent_server_is_given_up_in_time() {
    let server = Server::start();
    server.freeze();
    let (error, took) = refusal(&format!("{}?startup_timeout_ms=500&connect_timeout_ms=300", server.url())).await;
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_still_starting_is_waited_for() {
    let mut server = Server::start();
    server.kill();
    let url = server.url();
    let opening = tokio::spawn(async move { ValkeyStore::open(&url).await.map(|store| store.info()) });
    let server = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    });
    let info = opening.await.unwrap().expect("the store opens when its server is there");
    assert_eq!(info.kind, "valkey");
    assert!(info.version.starts_with(|first: char| first.is_ascii_digit()), "{}", info.version);
    drop(server.await.unwrap());
}

/// Passes connections on to a server, which seems to be Valkey 7 in its next answers; returns the address.
async fn seeming_old(server: &Server, answers: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (here, there) = (listener.local_addr().unwrap().to_string(), server.address());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut requests, mut replies) = client.into_split();
            let (mut from_server, mut to_server) = TcpStream::connect(&there).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut requests, &mut to_server).await });
            let answers = answers.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
                    age(&mut buffer[..length], &answers);
                    if replies.write_all(&buffer[..length]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    here
}

/// Makes the version in an answer an old one, as often as is left to do. The length stays, so the answer stays whole.
fn age(reply: &mut [u8], answers: &AtomicUsize) {
    const VERSION: &[u8] = b"valkey_version:";
    let Some(place) = reply.windows(VERSION.len()).position(|part| part == VERSION) else { return };
    let left = answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    if left.is_ok() {
        reply[place + VERSION.len()] = b'7';
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_too_old_is_waited_for_while_it_may_be_upgraded() {
    let server = Server::start();
    let answers = Arc::new(AtomicUsize::new(2));
    let address = seeming_old(&server, answers.clone()).await;
    let store =
        ValkeyStore::open(&format!("valkey://{address}")).await.expect("it opens when the server is new enough");
    assert_eq!(answers.load(Ordering::SeqCst), 0, "it was asked again");
    assert!(!store.info().version.starts_with('7'), "{}", store.info().version);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stays_too_old_is_refused_for_good() {
    let server = Server::start();
    let address = seeming_old(&server, Arc::new(AtomicUsize::new(usize::MAX))).await;
    let (error, took) = refusal(&format!("valkey://{address}?startup_timeout_ms=500")).await;
    assert!(matches!(&error, StoreError::TooOld { found, .. } if found.starts_with('7')), "{error:?}");
    assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(5), "{took:?}");
    let told = Error::from(error);
    assert_eq!((told.code, told.code.retryable()), (Code::StoreVersionTooLow, false));
    assert!(told.details.contains_key("found") && told.details.contains_key("required"), "{told:?}");
}

#[tokio::test]
async fn a_cluster_and_a_single_server_are_not_mistaken_for_each_other() {
    let single = Server::start();
    let (error, _) = refusal(&format!("{}?cluster=true", single.url())).await;
    assert!(matches!(&error, StoreError::Config(why) if why.contains("not part of a cluster")), "{error:?}");
    let member = Server::start_with(&["--cluster-enabled", "yes"]);
    let (error, _) = refusal(&member.url()).await;
    assert!(matches!(&error, StoreError::Config(why) if why.contains("cluster=true")), "{error:?}");
}

#[tokio::test]
async fn the_fsynced_tier_needs_a_server_that_syncs_always() {
    let lax = Server::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let (error, _) = refusal(&format!("{}?tier=fsynced", lax.url())).await;
    assert!(matches!(&error, StoreError::Config(why) if why.contains("everysec")), "{error:?}");
    let strict = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = ValkeyStore::open(&format!("{}?tier=fsynced", strict.url())).await.expect("it opens");
    assert_eq!(store.info().durability, "on the primary's disk");
    assert_eq!(store.warnings(), [] as [String; 0]);
}

#[tokio::test]
async fn settings_that_endanger_data_are_warned_of() {
    let server = Server::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let store = ValkeyStore::open(&format!("{}?tier=replicated", server.url())).await.expect("it opens");
    let warnings = store.warnings().join("\n");
    for word in ["allkeys-lru", "append-only", "0 replicas"] {
        assert!(warnings.contains(word), "{word} is missing in {warnings}");
    }
}

#[tokio::test]
async fn rights_that_are_missing_are_named_when_the_store_is_opened() {
    let server = Server::start();
    for (rights, word) in [
        ("+@all ~* resetchannels", "channel"),
        ("+@all ~* &* -xadd", "xadd"),
        ("+@all ~* &* -setrange", "setrange"),
        ("+@all ~* &* -subscribe", "subscribe"),
        ("+@all ~other:* &*", "key"),
    ] {
        server.command(&format!("ACL SETUSER ff reset on >secret {rights}"));
        let (error, took) = refusal(&format!("valkey://ff:secret@{}", server.address())).await;
        assert!(matches!(&error, StoreError::Config(why) if why.contains(word)), "{rights}: {error:?}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
    server.command("ACL SETUSER ff reset on >secret +@all ~{* &flowfabric_1*");
    assert!(ValkeyStore::open(&format!("valkey://ff:secret@{}", server.address())).await.is_ok());
    assert_eq!(server.command("KEYS *preflight*").into_array(), []);
}

#[tokio::test]
async fn the_rights_that_the_compose_file_gives_are_enough() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/compose.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.split_once("user flowfabric on >%s ")).expect("it says the rights").1;
    let rights = line.split_once("\\n").expect("the line ends").0;
    let server = Server::start();
    server.command(&format!("ACL SETUSER flowfabric on >secret {rights}"));
    let store = ValkeyStore::open(&format!("valkey://flowfabric:secret@{}", server.address())).await;
    assert!(store.is_ok(), "{:?}", store.err());
}

#[tokio::test]
async fn the_primary_is_found_among_the_hosts() {
    let pair = Replicated::start();
    let url = format!("valkey://{},{}?tier=replicated", pair.replica.address(), pair.primary.address());
    let store = ValkeyStore::open(&url).await.expect("it opens");
    assert_eq!(store.info().durability, "in the primary and 1 of its replicas");
    let (error, _) = refusal(&format!("{}?startup_timeout_ms=300", pair.replica.url())).await;
    assert!(matches!(error, StoreError::ReadOnly(_)), "{error:?}");
}
