//! What opening a store refuses, waits for and warns of.

use std::time::{Duration, Instant};

use ff_store::{Store, StoreError};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Replicated, Server};

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
async fn the_primary_is_found_among_the_hosts() {
    let pair = Replicated::start();
    let url = format!("valkey://{},{}?tier=replicated", pair.replica.address(), pair.primary.address());
    let store = ValkeyStore::open(&url).await.expect("it opens");
    assert_eq!(store.info().durability, "in the primary and 1 of its replicas");
    let (error, _) = refusal(&format!("{}?startup_timeout_ms=300", pair.replica.url())).await;
    assert!(matches!(error, StoreError::ReadOnly(_)), "{error:?}");
}
