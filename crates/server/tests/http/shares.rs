//! Shares: one token, or one address, leaves places for the others.

use ff_server::Settings;
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{ADMIN, Client, Running, with_tokens, within};

async fn token(admin: &Client, name: &str, role: &str) -> String {
    let made = admin.post("/v1/admin/tokens", &json!({ "name": name, "role": role })).await.ok();
    made["secret"].as_str().unwrap().to_owned()
}

/// Waits until so many places of a pool are taken.
async fn taken(admin: &Client, pool: &str, places: usize) {
    let line = format!("flowfabric_open_streams{{pool=\"{pool}\"}} {places}\n");
    let seen = async {
        while !String::from_utf8(admin.get("/metrics").await.body.to_vec()).unwrap().contains(&line) {
            tokio::task::yield_now().await;
        }
    };
    within(seen).await;
}

#[tokio::test]
async fn one_token_does_not_take_the_long_polls_and_the_viewers_of_all() {
    let small = Settings { stream_ops_max: Some(4), sse_max: Some(2), ..with_tokens() };
    let server = Running::start(small).await;
    let admin = server.client_with(ADMIN);
    let (greedy, other) = (token(&admin, "greedy", "reader").await, token(&admin, "other", "reader").await);
    let (greedy, other) = (server.client_with(&greedy), server.client_with(&other));
    let created = admin.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let execution = format!("/v1/executions/{}", created["execution_id"].as_str().unwrap());
    let wait = format!("{execution}/wait?wait_ms=20000");
    let poll = |client: &Client| {
        let (client, wait) = (client.clone(), wait.clone());
        tokio::spawn(async move { client.get(&wait).await.status })
    };
    let mut polls = vec![poll(&greedy), poll(&greedy)];
    taken(&admin, "stream_ops", 2).await;
    let refused = greedy.get(&wait).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "concurrency_limit_exceeded"));
    assert_eq!(refused.json()["details"], json!({ "pool": "stream_ops", "max": 2 }));
    assert!(refused.json()["detail"].as_str().unwrap().contains("this token"));
    polls.push(poll(&other));
    taken(&admin, "stream_ops", 3).await;

    let stream = format!("{execution}/stream");
    let viewing = within(greedy.open(Method::GET, &stream, "")).await;
    assert_eq!(viewing.status(), 200);
    assert_eq!(greedy.get(&stream).await.json()["details"], json!({ "pool": "sse", "max": 1 }));
    let mut viewed = within(other.open(Method::GET, &stream, "")).await;
    assert_eq!(viewed.status(), 200);

    admin.post(&format!("{execution}/cancel"), &json!({})).await.ok();
    for poll in polls {
        assert_eq!(within(poll).await.unwrap(), 200);
    }
    while within(viewed.body_mut().frame()).await.is_some() {}
    drop(viewing);
    taken(&admin, "stream_ops", 0).await;
    server.stop().await;
}

/// A connection from one of the addresses of this machine.
async fn connect(server: &Running, from: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    within(socket.connect(server.address)).await.unwrap()
}

/// The status of an answer, on a connection that stays open; `None` if the server closed it.
async fn ask(stream: &mut TcpStream, token: &str, head: &str) -> Option<u16> {
    let request = format!("{head} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = vec![0; 16 * 1024];
    let length = within(stream.read(&mut answer)).await.ok()?;
    std::str::from_utf8(&answer[..length]).ok()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

#[tokio::test]
async fn one_address_does_not_take_the_connections_of_all() {
    let server = Running::start(Settings { connections_max: Some(6), ..with_tokens() }).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = connect(&server, "127.0.0.2").await;
        assert_eq!(ask(&mut stream, ADMIN, "GET /v1/deployment").await, Some(200));
        held.push(stream);
    }
    let mut refused = connect(&server, "127.0.0.2").await;
    assert_eq!(ask(&mut refused, ADMIN, "GET /v1/deployment").await, None);
    let mut other = connect(&server, "127.0.0.3").await;
    assert_eq!(ask(&mut other, ADMIN, "GET /v1/deployment").await, Some(200));
    let page = String::from_utf8(server.client_with(ADMIN).get("/metrics").await.body.to_vec()).unwrap();
    assert!(page.contains("flowfabric_connections_refused_total 1\n"), "{page}");
    held.clear();
    let again = async {
        loop {
            let mut stream = connect(&server, "127.0.0.2").await;
            if ask(&mut stream, ADMIN, "GET /v1/deployment").await == Some(200) {
                break;
            }
        }
    };
    within(again).await;
    server.stop().await;
}

#[tokio::test]
async fn one_token_does_not_take_the_connections_of_all_from_several_addresses() {
    let server = Running::start(Settings { connections_max: Some(8), ..with_tokens() }).await;
    let admin = server.client_with(ADMIN);
    let (greedy, other) = (token(&admin, "greedy", "worker").await, token(&admin, "other", "worker").await);
    let claim = |token: &str| {
        let body = r#"{"lanes":["empty"],"wait_ms":20000}"#;
        let headers = format!("host: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: application/json");
        format!("POST /v1/workers/w/claim HTTP/1.1\r\n{headers}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let mut held = Vec::new();
    let share = 4;
    // Nothing tells when a claim has begun to wait: calls are made until one is refused.
    let used_up = async {
        loop {
            let address = format!("127.0.0.{}", 2 + held.len() % 3);
            let mut stream = connect(&server, &address).await;
            if ask(&mut stream, &greedy, "GET /v1/deployment").await == Some(429) {
                break;
            }
            let mut stream = connect(&server, &address).await;
            stream.write_all(claim(&greedy).as_bytes()).await.unwrap();
            held.push(stream);
        }
    };
    within(used_up).await;
    assert!(held.len() >= share, "{} calls", held.len());
    let mut stream = connect(&server, "127.0.0.9").await;
    assert_eq!(ask(&mut stream, &other, "GET /v1/deployment").await, Some(200));
    drop(held);
    server.stop().await;
}
