//! Clients that are slow, silent, or gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ff_store::Query;
use ff_store::memory::{Call, Faults, MemoryStore, Plan};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Running, settings, with_tokens, within};

#[tokio::test]
async fn a_client_that_sends_its_header_byte_by_byte_is_cut_off_and_harms_nobody() {
    let server = Running::start(ff_server::Settings { header_timeout_ms: Some(300), ..settings() }).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    let started = Instant::now();
    let dribble = async {
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        for byte in "GET /livez HTTP/1.1\r\nhost: localhost\r\nx: ".bytes().chain(std::iter::repeat(b'a')) {
            tick.tick().await;
            if slow.write_all(&[byte]).await.is_err() {
                break;
            }
            assert_eq!(server.client().get("/livez").await.status, 200);
        }
    };
    within(dribble).await;
    assert!(started.elapsed() >= Duration::from_millis(250), "{:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    server.stop().await;
}

/// The answer to a client that announces a body and does not send it, until the connection ends.
async fn answer_without_body(server: &Running) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn a_client_that_never_sends_its_body_is_answered() {
    let server = Running::start(ff_server::Settings { body_timeout_ms: Some(200), ..settings() }).await;
    let answer = answer_without_body(&server).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("did not arrive in time"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_before_the_body_says_that_the_connection_ends() {
    let server = Running::start(with_tokens()).await;
    let answer = answer_without_body(&server).await;
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("connection: close"), "{answer}");
    // Without a body there is nothing in the way of the next request.
    let refused = server.client().get("/v1/executions").await;
    assert_eq!((refused.status, refused.headers.contains_key("connection")), (401, false));
    server.stop().await;
}

#[tokio::test]
async fn work_that_a_client_did_not_wait_for_goes_to_the_next() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let mut gone = TcpStream::connect(server.address).await.unwrap();
    let body = json!({ "lanes": ["default"], "wait_ms": 30_000 }).to_string();
    let head = format!(
        "POST /v1/workers/gone/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    gone.write_all(head.as_bytes()).await.unwrap();
    // The other claim is known to wait behind the first: both sleep until there is work.
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.post("/v1/workers/here/claim", &json!({ "lanes": ["default"], "wait_ms": 20_000 })).await }
    });
    drop(gone);
    client.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let claimed = within(waiting).await.unwrap();
    assert_eq!(claimed.ok()["tasks"][0]["kind"], "k");
    server.stop().await;
}

#[tokio::test]
async fn a_stopping_server_answers_who_waits() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let created = client.post("/v1/executions", &json!({ "kind": "k", "lane": "other" })).await.ok();
    let id = created["execution_id"].as_str().unwrap().to_owned();
    let claim = json!({ "lanes": ["default"], "wait_ms": 30_000 });
    let mut claiming = Box::pin(client.post("/v1/workers/w/claim", &claim));
    let path = format!("/v1/executions/{id}/wait?wait_ms=30000");
    let mut waiting = Box::pin(client.get(&path));
    // Both have been accepted when a later request of the same client has been answered a few times.
    for _ in 0..5 {
        tokio::select! {
            biased;
            _ = &mut claiming => panic!("there is nothing to claim"),
            _ = &mut waiting => panic!("it has not ended"),
            live = client.get("/livez") => assert_eq!(live.status, 200),
        }
    }
    let started = Instant::now();
    let (claimed, waited, ()) = tokio::join!(claiming, waiting, server.stop());
    assert!([204, 503].contains(&claimed.status), "{claimed:?}");
    assert_eq!((waited.status, waited.code().as_str()), (503, "shutting_down"));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_and_harms_nobody() {
    let server = Running::start(ff_server::Settings { write_timeout_ms: Some(300), ..settings() }).await;
    let mut deaf = TcpStream::connect(server.address).await.unwrap();
    let started = Instant::now();
    // It asks for more than the buffers between the two can hold, and takes nothing.
    let asking =
        async { while deaf.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n").await.is_ok() {} };
    let serving = async {
        loop {
            assert_eq!(server.client().get("/livez").await.status, 200);
        }
    };
    within(async {
        tokio::select! {
            () = asking => {}
            () = serving => {}
        }
    })
    .await;
    assert!(started.elapsed() >= Duration::from_millis(250), "{:?}", started.elapsed());
    server.stop().await;
}

/// Panics once, in the next read of a document.
#[derive(Default)]
struct Defect(AtomicBool);

impl Faults for Defect {
    fn plan(&self, call: Call<'_>) -> Plan {
        let reads = matches!(call, Call::Read { queries: [Query::Documents(_)], .. });
        assert!(!(reads && self.0.swap(false, Ordering::SeqCst)), "a planted defect");
        Plan::default()
    }
}

#[tokio::test]
async fn a_defect_in_one_request_is_answered_and_harms_no_other() {
    let defect = Arc::new(Defect::default());
    let store = Arc::new(MemoryStore::new().with_faults(defect.clone()));
    let server = Running::start_on(settings(), store).await;
    let client = server.client();
    let created = client.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let path = format!("/v1/executions/{}", created["execution_id"].as_str().unwrap());
    defect.0.store(true, Ordering::SeqCst);
    let mut answers = Vec::new();
    // Something in the background may meet it first.
    while defect.0.load(Ordering::SeqCst) {
        answers.push(client.get(&path).await);
    }
    let last = answers.last().unwrap();
    assert!([200, 500].contains(&last.status), "{last:?}");
    if last.status == 500 {
        assert_eq!(last.headers["content-type"], "application/problem+json");
        assert_eq!(last.code(), "internal");
        assert!(!last.json()["detail"].as_str().unwrap().contains("planted"));
    }
    assert_eq!(client.get(&path).await.ok()["public_state"], "waiting");
    server.stop().await;
}
