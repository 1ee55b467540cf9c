//! Clients that are slow, silent, or gone.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Running, settings, within};

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

#[tokio::test]
async fn a_client_that_never_sends_its_body_is_answered() {
    let server = Running::start(ff_server::Settings { body_timeout_ms: Some(200), ..settings() }).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n";
    silent.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(silent.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("did not arrive in time"), "{answer}");
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
