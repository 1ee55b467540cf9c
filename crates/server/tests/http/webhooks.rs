//! Subscriptions end to end: webhooks that arrive, are refused, are sent again, and never go where they must not.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ff_core::signature;
use http_body_util::{BodyExt, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::support::{ADMIN, Client, Running, TEST_TIMEOUT, settings, with_tokens, within};

/// A request that arrived.
#[derive(Debug, Clone)]
struct Received {
    headers: HeaderMap,
    body: Bytes,
}

impl Received {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn is_signed_with(&self, secret: &str) -> bool {
        let secret = signature::read_secret("secret", secret).unwrap();
        let (id, at) = (self.header("webhook-id"), self.header("webhook-timestamp"));
        signature::verify(&secret, id, at, self.header("webhook-signature"), &self.body)
    }
}

/// The signature by another implementation, in another language.
const VERIFIER: &str = r#"
import base64, hashlib, hmac, json, sys
sent = json.load(sys.stdin)
key = base64.b64decode(sent["secret"].removeprefix("whsec_"))
signed = f"{sent['id']}.{sent['timestamp']}.".encode() + base64.b64decode(sent["body"])
expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
sys.exit(0 if any(hmac.compare_digest(expected, one) for one in sent["signature"].split()) else 1)
"#;

fn python_agrees(received: &Received, secret: &str) -> bool {
    let sent = json!({
        "secret": secret, "id": received.header("webhook-id"), "timestamp": received.header("webhook-timestamp"),
        "signature": received.header("webhook-signature"), "body": ff_core::Blob(received.body.clone()),
    });
    let mut python = std::process::Command::new("python3");
    let mut python = python.args(["-c", VERIFIER]).stdin(std::process::Stdio::piped()).spawn().expect("python3");
    std::io::Write::write_all(&mut python.stdin.take().unwrap(), sent.to_string().as_bytes()).unwrap();
    python.wait().unwrap().success()
}

/// A receiver of webhooks that answers the n-th with a status.
struct Receiver {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    arrived: Arc<Notify>,
}

impl Receiver {
    async fn start(status: impl Fn(usize) -> u16 + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let arrived = Arc::new(Notify::new());
        let (all, bell, status) = (received.clone(), arrived.clone(), Arc::new(status));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (all, bell, status) = (all.clone(), bell.clone(), status.clone());
                let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                    let (all, bell, status) = (all.clone(), bell.clone(), status.clone());
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        let number = {
                            let mut all = all.lock().unwrap();
                            all.push(Received { headers: parts.headers, body });
                            all.len() - 1
                        };
                        bell.notify_one();
                        let answer = Response::builder().status(status(number)).body(Full::new(Bytes::from("thanks")));
                        Ok::<_, Infallible>(answer.unwrap())
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, received, arrived }
    }

    fn url(&self) -> String {
        format!("http://{}/hook?key=canary-path", self.address)
    }

    fn all(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Waits until so many requests have arrived.
    async fn got(&self, count: usize) -> Vec<Received> {
        within(async {
            while self.all().len() < count {
                self.arrived.notified().await;
            }
        })
        .await;
        self.all()
    }
}

fn reaching_loopback() -> ff_server::Settings {
    ff_server::Settings { webhook_allow_private: Some(vec!["127.0.0.0/8".into()]), ..settings() }
}

async fn subscribe(client: &Client, url: &str, retries: u32) -> String {
    let retry = json!({ "max_retries": retries, "backoff": { "fixed": { "delay_ms": 20 } } });
    let target = json!({ "webhook": { "url": url } });
    let body = json!({ "name": "s", "target": target, "retry": retry });
    let created = client.post("/v1/subscriptions", &body).await.ok();
    created["secret"].as_str().unwrap().to_owned()
}

/// Runs an execution to its end.
async fn complete_one(client: &Client) -> String {
    let submitted = client.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let claimed = client.post("/v1/workers/w/claim", &json!({ "lanes": ["default"], "wait_ms": 5_000 })).await.ok();
    let task = &claimed["tasks"][0];
    let path = format!("/v1/executions/{}/complete", task["execution_id"].as_str().unwrap());
    client.post(&path, &json!({ "fence": task["fence"], "result": 1 })).await.ok();
    submitted["execution_id"].as_str().unwrap().to_owned()
}

/// Looks until the newest delivery is in a state.
async fn delivery_is(client: &Client, state: &str) -> Value {
    let looking = async {
        loop {
            let shown = client.get("/v1/subscriptions/s").await.ok();
            let newest = shown["deliveries"][0].clone();
            if newest["public_state"] == state {
                return newest;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let ended = tokio::time::timeout(TEST_TIMEOUT, looking).await;
    ended.unwrap_or_else(|_| panic!("no delivery is {state}"))
}

#[tokio::test]
async fn each_event_arrives_once_signed_and_leads_to_no_other() {
    let server = Running::start(reaching_loopback()).await;
    let client = server.client();
    let receiver = Receiver::start(|_| 200).await;
    let secret = subscribe(&client, &receiver.url(), 0).await;
    assert!(secret.starts_with("whsec_"));
    let mut expected = BTreeSet::new();
    for _ in 0..3 {
        expected.insert(complete_one(&client).await);
    }
    let received = receiver.got(3).await;
    delivery_is(&client, "completed").await;
    let mut told = BTreeSet::new();
    for one in &received {
        assert!(one.is_signed_with(&secret), "{one:?}");
        assert!(!one.is_signed_with("whsec_c29tZSBvdGhlciBzZWNyZXQh"));
        assert!(python_agrees(one, &secret) && !python_agrees(one, "whsec_c29tZSBvdGhlciBzZWNyZXQh"));
        let message = one.json();
        assert_eq!((&message["type"], &message["subscription"]), (&json!("completed"), &json!("s")));
        assert_eq!(one.header("content-type"), "application/json");
        told.insert(message["data"]["event"]["execution_id"].as_str().unwrap().to_owned());
        // The id of the message is the delivery, which is an execution.
        let delivery = client.get(&format!("/v1/executions/{}", one.header("webhook-id"))).await.ok();
        assert_eq!((&delivery["kind"], &delivery["lane"]), (&json!("ff:webhook"), &json!("ff:deliveries")));
    }
    assert_eq!(told, expected);
    // One more event: the ends of the deliveries came before it, and were delivered nowhere.
    complete_one(&client).await;
    assert_eq!(receiver.got(4).await.len(), 4);
    let shown = client.get("/v1/subscriptions/s").await.ok();
    assert_eq!(shown["delivery_count"], 4);
    assert!(shown.get("secret").is_none() && shown["target"]["webhook"].get("secret").is_none());
    server.stop().await;
}

#[tokio::test]
async fn a_receiver_that_recovers_gets_the_same_message_again() {
    let server = Running::start(reaching_loopback()).await;
    let client = server.client();
    let receiver = Receiver::start(|number| if number < 2 { 503 } else { 202 }).await;
    let secret = subscribe(&client, &receiver.url(), 5).await;
    complete_one(&client).await;
    let received = receiver.got(3).await;
    let delivery = delivery_is(&client, "completed").await;
    assert_eq!(delivery["attempts"], 3);
    let ids: BTreeSet<&str> = received.iter().map(|one| one.header("webhook-id")).collect();
    assert_eq!(ids.len(), 1, "every try has the id of the message");
    assert!(received.iter().all(|one| one.is_signed_with(&secret) && one.body == received[0].body));
    server.stop().await;
}

#[tokio::test]
async fn a_receiver_that_does_not_recover_leaves_a_dead_letter_that_is_replayed() {
    let server = Running::start(reaching_loopback()).await;
    let client = server.client();
    let receiver = Receiver::start(|number| if number < 2 { 500 } else { 200 }).await;
    subscribe(&client, &receiver.url(), 1).await;
    complete_one(&client).await;
    let letter = delivery_is(&client, "failed").await;
    assert_eq!(letter["failure"], "the receiver answered 500");
    let path = format!("/v1/executions/{}", letter["execution_id"].as_str().unwrap());
    let why = client.get(&format!("{path}/explain")).await.ok();
    assert!(why["reasons"][0]["message"].as_str().unwrap().contains("the receiver answered 500"), "{why}");
    client.post(&format!("{path}/replay"), &json!({})).await.ok();
    let received = receiver.got(3).await;
    delivery_is(&client, "completed").await;
    assert_eq!(received[2].header("webhook-id"), received[0].header("webhook-id"));
    server.stop().await;
}

#[tokio::test]
async fn nothing_goes_to_loopback_unless_it_is_allowed_nor_where_a_redirect_points() {
    let inside = Receiver::start(|_| 200).await;
    let server = Running::start(settings()).await;
    let client = server.client();
    subscribe(&client, &inside.url(), 5).await;
    complete_one(&client).await;
    let refused = delivery_is(&client, "failed").await;
    assert_eq!(refused["attempts"], 1, "no further try would change it");
    assert!(refused["failure"].as_str().unwrap().contains("loopback"), "{refused}");
    server.stop().await;
    // One that may be reached points at it.
    let server = Running::start(reaching_loopback()).await;
    let client = server.client();
    let outside = Receiver::start(|_| 307).await;
    subscribe(&client, &outside.url(), 0).await;
    complete_one(&client).await;
    let refused = delivery_is(&client, "failed").await;
    assert_eq!(refused["failure"], "the receiver answered 307, and redirects are not followed");
    assert!(inside.all().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_removed_subscription_cancels_what_has_not_arrived() {
    let server = Running::start(reaching_loopback()).await;
    let client = server.client();
    let receiver = Receiver::start(|_| 500).await;
    subscribe(&client, &receiver.url(), 1_000).await;
    complete_one(&client).await;
    receiver.got(2).await;
    let deleted = client.send(Method::DELETE, "/v1/subscriptions/s", "").await.ok();
    assert!(deleted["subscription_id"].is_string());
    assert_eq!(client.get("/v1/subscriptions/s").await.code(), "subscription_not_found");
    let open = client.get("/v1/executions?lane=ff:deliveries&open=true").await.ok();
    assert_eq!(open["items"], json!([]), "its webhooks were cancelled");
    server.stop().await;
}

#[tokio::test]
async fn administrators_subscribe_and_readers_see_no_secrets() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let token = async |role: &str| {
        let body = json!({ "name": role, "role": role });
        let secret = admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned();
        server.client_with(&secret)
    };
    let (reader, operator) = (token("reader").await, token("operator").await);
    let url = "https://example.com/T01/B02?key=canary-path";
    let secret = "whsec_Y2FuYXJ5LXdlYmhvb2stc2VjcmV0ISE=";
    let body = json!({ "name": "s", "target": { "webhook": { "url": url, "secret": secret } } });
    assert_eq!(operator.post("/v1/subscriptions", &body).await.status, 403);
    let created = admin.post("/v1/subscriptions", &body).await;
    assert_eq!((created.status, created.headers["location"].to_str().unwrap()), (201, "/v1/subscriptions/s"));
    assert!(!String::from_utf8_lossy(&created.body).contains("whsec_"), "its creator knows it");
    for client in [&reader, &operator, &admin] {
        for path in ["/v1/subscriptions", "/v1/subscriptions/s"] {
            let shown = client.get(path).await.ok().to_string();
            assert!(!shown.contains("whsec_") && !shown.contains("Y2FuYXJ5"), "{shown}");
            let is_admin = std::ptr::eq(client, &admin);
            assert_eq!(shown.contains("canary-path"), is_admin, "{shown}");
            assert!(shown.contains("https://example.com/"));
        }
    }
    assert_eq!(reader.post("/v1/subscriptions/s/pause", &json!({})).await.status, 403);
    assert_eq!(operator.post("/v1/subscriptions/s/pause", &json!({})).await.ok()["state"], "paused");
    assert_eq!(operator.send(Method::DELETE, "/v1/subscriptions/s", "").await.status, 403);
    let key = admin.with("idempotency-key", "one");
    let made = json!({ "name": "made", "target": { "webhook": { "url": url } } });
    let first = key.post("/v1/subscriptions", &made).await.ok();
    assert_eq!(
        key.post("/v1/subscriptions", &made).await.ok(),
        first,
        "a repeat of the call is shown the secret again"
    );
    let other = admin.post("/v1/subscriptions", &made).await.ok();
    assert_eq!((&other["outcome"], other.get("secret")), (&json!("already_exists"), None));
    server.stop().await;
}
