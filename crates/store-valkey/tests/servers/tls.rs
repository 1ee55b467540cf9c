//! Encrypted connections, and no others when the address asks for them.

use ff_core::{CommandId, Partition};
use ff_store::{Store, StoreError};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::Server;

use crate::support::{creation, new_key};

/// A folder with a certificate for the loopback address, its key, and itself as authority.
fn certificate() -> tempfile::TempDir {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate can be made");
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("certificate.pem"), made.cert.pem()).expect("it is written");
    std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).expect("it is written");
    folder
}

#[tokio::test]
async fn a_server_is_reached_by_tls_and_must_prove_who_it_is() {
    let folder = certificate();
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let tls_port = Server::free_port().to_string();
    let server = Server::start_with(&[
        "--tls-port",
        &tls_port,
        "--tls-cert-file",
        &path("certificate.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let address = format!("valkeys://127.0.0.1:{tls_port}?startup_timeout_ms=300");
    let store = ValkeyStore::open(&format!("{address}&ca_file={}", path("certificate.pem"))).await.expect("it opens");
    assert!(store.commit(Partition::SYSTEM, [creation(&new_key(), CommandId::default())].into()).await.is_ok());
    let unknown = ValkeyStore::open(&address).await.err();
    assert!(matches!(unknown, Some(StoreError::Unavailable(_))), "{unknown:?}");
    let plain = format!("valkeys://{}?startup_timeout_ms=300", server.address());
    let refused = ValkeyStore::open(&plain).await.err();
    assert!(matches!(refused, Some(StoreError::Unavailable(_))), "{refused:?}");
}

#[tokio::test]
async fn a_server_that_asks_its_clients_for_a_certificate_gets_one() {
    let folder = certificate();
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let tls_port = Server::free_port().to_string();
    let _server = Server::start_with(&[
        "--tls-port",
        &tls_port,
        "--tls-cert-file",
        &path("certificate.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-ca-cert-file",
        &path("certificate.pem"),
        "--tls-auth-clients",
        "yes",
    ]);
    let (cert, key) = (path("certificate.pem"), path("key.pem"));
    let address = format!("valkeys://127.0.0.1:{tls_port}?startup_timeout_ms=300&ca_file={cert}");
    let anonymous = ValkeyStore::open(&address).await.err();
    assert!(matches!(anonymous, Some(StoreError::Unavailable(_))), "{anonymous:?}");
    let store = ValkeyStore::open(&format!("{address}&cert_file={cert}&key_file={key}")).await.expect("it opens");
    assert!(store.commit(Partition::SYSTEM, [creation(&new_key(), CommandId::default())].into()).await.is_ok());
    let wrong = ValkeyStore::open(&format!("{address}&cert_file={cert}&key_file={cert}")).await.err();
    assert!(matches!(wrong, Some(StoreError::Config(_))), "{wrong:?}");
}
