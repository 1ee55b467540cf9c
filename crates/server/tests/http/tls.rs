//! The server with a certificate of its own: over HTTP/1 and HTTP/2, trusted and not, renewed while it runs.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use ff_server::Settings;
use flowfabric::{Client, RetryPolicy, SdkError};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{ADMIN, Running, settings, with_tokens, within};

/// A certificate for this machine in two files, which is its own authority.
struct Made {
    folder: tempfile::TempDir,
}

impl Made {
    fn new() -> Self {
        let made = Self { folder: tempfile::tempdir().unwrap() };
        made.renew();
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts another certificate in place of the one before; gives it as it is shown.
    fn renew(&self) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(self.path("chain.pem"), made.cert.pem()).unwrap();
        std::fs::write(self.path("key.pem"), made.signing_key.serialize_pem()).unwrap();
        made.cert.der().clone()
    }

    fn settings(&self, settings: Settings) -> Settings {
        Settings { tls_cert_file: Some(self.path("chain.pem")), tls_key_file: Some(self.path("key.pem")), ..settings }
    }

    /// A connection to a server, with the protocols that its client offers.
    async fn connect(&self, server: &Running, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        use rustls::pki_types::pem::PemObject;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(self.path("chain.pem")).unwrap() {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let tcp = TcpStream::connect(server.address).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), tcp).await
    }
}

/// A connection over HTTP/2.
struct Http2 {
    sender: http2::SendRequest<Full<Bytes>>,
    /// Ends with the connection.
    connection: JoinHandle<()>,
    authority: String,
}

impl Http2 {
    /// Connects with room for so many bytes of each answer before they are read.
    async fn open(made: &Made, server: &Running, window: u32) -> Self {
        let stream = within(made.connect(server, &["h2", "http/1.1"])).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window);
        let (sender, connection) = within(builder.handshake(TokioIo::new(stream))).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        Self { sender, connection, authority: format!("localhost:{}", server.address.port()) }
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::builder().method(method).uri(format!("https://{}{path}", self.authority));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::new(body)).unwrap()
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Response<Incoming> {
        let request = self.request(method, path, headers, body);
        within(self.sender.clone().send_request(request)).await.unwrap()
    }

    async fn json(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let headers = [("content-type", "application/json")];
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        whole(self.send(method, path, &headers, body).await).await
    }
}

async fn whole(response: Response<Incoming>) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = within(response.into_body().collect()).await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

/// Room for everything a test reads.
const WIDE: u32 = 1024 * 1024;

#[tokio::test]
async fn a_client_reaches_a_server_with_tls_if_it_trusts_its_authority() {
    let made = Made::new();
    let server = Running::start(made.settings(with_tokens())).await;
    let url = format!("https://localhost:{}", server.address.port());
    let client = Client::builder(&url).token(ADMIN).ca_file(made.path("chain.pem")).connect().await.unwrap();
    let execution = client.submit("greet").send().await.unwrap();
    assert_eq!(execution.get().await.unwrap().kind, "greet");
    let once = RetryPolicy { max_elapsed: std::time::Duration::ZERO, ..RetryPolicy::default() };
    let distrusting = Client::builder(&url).token(ADMIN).retry(once.clone()).connect().await.unwrap_err();
    assert!(matches!(&distrusting, SdkError::Unreachable(why) if why.contains("FF_CA_FILE")), "{distrusting:?}");
    for (file, why) in [("absent.pem", "absent.pem"), ("key.pem", "no certificate")] {
        let unusable = Client::builder(&url).ca_file(made.path(file)).retry(once.clone()).connect().await.unwrap_err();
        assert!(unusable.to_string().contains("ca_file") && unusable.to_string().contains(why), "{unusable}");
    }
    let plain = server.client_with(ADMIN).get("/v1/deployment").await;
    assert_eq!((plain.status, plain.code().as_str()), (400, "invalid"));
    assert!(plain.json()["detail"].as_str().unwrap().contains("https"), "{:?}", plain.body);
    server.stop().await;
}

#[tokio::test]
async fn a_client_without_http_2_is_served_over_http_1_and_its_cookie_stays_on_tls() {
    let made = Made::new();
    let server = Running::start(made.settings(with_tokens())).await;
    for protocols in [&[][..], &["http/1.1"]] {
        let stream = within(made.connect(&server, protocols)).await.unwrap();
        let (mut sender, connection) = within(http1::handshake(TokioIo::new(stream))).await.unwrap();
        tokio::spawn(connection);
        let body = Full::new(Bytes::from(json!({ "token": ADMIN }).to_string()));
        let request =
            Request::post("/v1/session").header("host", "localhost").header("content-type", "application/json");
        let response = within(sender.send_request(request.body(body).unwrap())).await.unwrap();
        assert_eq!(response.status(), 200);
        let cookie = response.headers()["set-cookie"].to_str().unwrap();
        assert!(cookie.starts_with("ff_session=") && cookie.ends_with("; Secure"), "{cookie}");
    }
    server.stop().await;
}

#[tokio::test]
async fn http_2_carries_a_wait_and_other_calls_over_one_connection() {
    let made = Made::new();
    let server = Running::start(made.settings(settings())).await;
    let client = Http2::open(&made, &server, WIDE).await;
    let (status, created) = client.json("POST", "/v1/executions", json!({ "kind": "k", "input": 1 })).await;
    assert_eq!(status, 201, "{created}");
    let id = created["execution_id"].as_str().unwrap().to_owned();
    let waiting = client.request("GET", &format!("/v1/executions/{id}/wait?wait_ms=20000"), &[], Bytes::new());
    let waiting = tokio::spawn(client.sender.clone().send_request(waiting));
    let (status, claimed) = client.json("POST", "/v1/workers/w/claim", json!({ "lanes": ["default"] })).await;
    assert_eq!(status, 200, "{claimed}");
    let done = json!({ "fence": claimed["tasks"][0]["fence"], "result": 2 });
    assert_eq!(client.json("POST", &format!("/v1/executions/{id}/complete"), done).await.0, 200);
    let (status, waited) = whole(within(waiting).await.unwrap().unwrap()).await;
    assert_eq!((status, &waited["execution"]["public_state"]), (200, &json!("completed")), "{waited}");
    // The rules of HTTP/1 hold: names of hosts, bodies that are not read, the end of a server.
    let foreign = Request::get("https://evil.example/v1/deployment").body(Full::default()).unwrap();
    let (status, refused) = whole(within(client.sender.clone().send_request(foreign)).await.unwrap()).await;
    assert_eq!((status, &refused["code"]), (403, &json!("host_not_allowed")), "{refused}");
    let two = client.send("GET", "/v1/deployment", &[("host", "evil.example")], Bytes::new()).await;
    assert_eq!(two.status(), 400);
    let unread = client.send("POST", "/v1/nowhere", &[], Bytes::from(vec![b'x'; 100_000])).await;
    assert_eq!(unread.status(), 404);
    assert_eq!(client.json("GET", "/v1/deployment", Value::Null).await.0, 200);
    server.stop().await;
    within(client.connection).await.unwrap();
}

#[tokio::test]
async fn an_http_2_connection_without_requests_ends_and_so_does_one_whose_peer_leaves_an_answer_lying() {
    let made = Made::new();
    let server = Running::start(made.settings(Settings { header_timeout_ms: Some(300), ..settings() })).await;
    let idle = Http2::open(&made, &server, WIDE).await;
    within(idle.connection).await.unwrap();
    server.stop().await;

    let server = Running::start(made.settings(Settings { write_timeout_ms: Some(300), ..settings() })).await;
    let maker = Http2::open(&made, &server, WIDE).await;
    let (_, created) = maker.json("POST", "/v1/executions", json!({ "kind": "k" })).await;
    let id = created["execution_id"].as_str().unwrap();
    let (_, claimed) = maker.json("POST", "/v1/workers/w/claim", json!({ "lanes": ["default"] })).await;
    let fence = &claimed["tasks"][0]["fence"];
    let frames =
        json!({ "fence": fence, "first_sequence": 1, "frames": [{ "type": "t", "payload": "x".repeat(1_000) }] });
    let (status, appended) = maker.json("POST", &format!("/v1/executions/{id}/frames"), frames).await;
    assert_eq!(status, 200, "{appended}");
    let stuck = Http2::open(&made, &server, 100).await;
    let stream = stuck.send("GET", &format!("/v1/executions/{id}/stream"), &[], Bytes::new()).await;
    assert_eq!(stream.status(), 200);
    within(stuck.connection).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_to_new_connections_and_open_ones_go_on() {
    let made = Made::new();
    let server = Running::start(made.settings(settings())).await;
    let open = Http2::open(&made, &server, WIDE).await;
    let renewed = made.renew();
    // The client trusts the new certificate only, so that a connection succeeds as soon as it is shown.
    let stream = within(async {
        loop {
            if let Ok(stream) = made.connect(&server, &[]).await {
                break stream;
            }
        }
    })
    .await;
    assert_eq!(stream.get_ref().1.peer_certificates().unwrap()[0], renewed);
    assert_eq!(open.json("GET", "/v1/deployment", Value::Null).await.0, 200);
    server.stop().await;
}
