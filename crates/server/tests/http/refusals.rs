//! Answers to a client that asks for the wrong thing.

use bytes::Bytes;
use hyper::Method;
use serde_json::json;

use crate::support::{Running, settings, with_tokens};

#[tokio::test]
async fn a_refusal_is_a_problem_with_everything_a_program_needs() {
    let server = Running::start(settings()).await;
    let refused = server.client().post("/v1/executions", &json!({ "kind": "a", "colour": 1 })).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.headers["content-type"], "application/problem+json");
    let problem = refused.json();
    assert_eq!(problem["type"], "urn:flowfabric:error:invalid");
    assert_eq!((&problem["title"], &problem["status"]), (&json!("invalid"), &json!(400)));
    assert_eq!((&problem["code"], &problem["retryable"]), (&json!("invalid"), &json!(false)));
    assert_eq!(problem["details"]["field"], "colour");
    assert!(problem["detail"].is_string() && problem["advice"].is_string());
    server.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_said_with_a_code() {
    let server = Running::start(settings()).await;
    let client = server.client();
    for (method, path, status, code) in [
        (Method::GET, "/v1/nothing", 404, "route_not_found"),
        (Method::GET, "/nothing", 404, "route_not_found"),
        (Method::PUT, "/v1/executions", 405, "method_not_allowed"),
        (Method::POST, "/v1/executions", 400, "invalid"),
        (Method::GET, "/v1/executions/%ff", 400, "invalid"),
        (Method::GET, "/v1/executions/nonsense", 400, "invalid"),
        (Method::GET, "/v1/executions/0000-0190a0a0-0000-7000-8000-000000000000", 404, "execution_not_found"),
    ] {
        let refused = client.send(method.clone(), path, Bytes::new()).await;
        assert_eq!((refused.status, refused.code().as_str()), (status, code), "{method} {path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn an_unknown_path_is_a_page_for_a_browser_and_a_problem_for_programs() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let browser = client.with("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");
    for path in ["/nowhere", "/v2/executions", "/executionsx"] {
        let page = browser.get(path).await;
        assert_eq!(
            (page.status, &page.headers["content-type"]),
            (404, &"text/html; charset=utf-8".parse().unwrap()),
            "{path}"
        );
        let problem = client.get(path).await;
        assert_eq!((problem.status, problem.code().as_str()), (404, "route_not_found"), "{path}");
    }
    for (client, path) in [(&browser, "/v1/nowhere"), (&browser, "/v1"), (&client.with("accept", "*/*"), "/nowhere")] {
        assert_eq!(client.get(path).await.headers["content-type"], "application/problem+json", "{path}");
    }
    assert_eq!(browser.post("/nowhere", &json!({})).await.code(), "route_not_found");
    server.stop().await;
}

#[tokio::test]
async fn garbage_is_refused_and_changes_nothing() {
    let server = Running::start(settings()).await;
    let client = server.client().with("content-type", "application/json");
    for body in [
        "",
        "{",
        "[]",
        "null",
        "\"text\"",
        "{\"kind\":1}",
        "{\"kind\":\"a\",\"kind\":\"b\"}",
        "\u{0}",
        "{\"kind\":\"a\"} x",
    ] {
        let refused = client.send(Method::POST, "/v1/executions", body).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"), "{body:?}");
    }
    let invalid_utf8 = client.send(Method::POST, "/v1/executions", &b"{\"kind\":\"\xff\"}"[..]).await;
    assert_eq!(invalid_utf8.status, 400);
    let deep = format!("{{\"kind\":\"a\",\"policy\":{}1{}}}", "[".repeat(20_000), "]".repeat(20_000));
    assert_eq!(client.send(Method::POST, "/v1/executions", deep).await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    let server = Running::start(settings()).await;
    let client = server.client().with("content-type", "application/json");
    let large = Bytes::from(vec![b' '; 70_000]);
    let refused = client.send(Method::POST, "/v1/workers/w/claim", large).await;
    assert_eq!((refused.status, refused.code().as_str()), (413, "payload_too_large"));
    // A length that is only announced is refused all the same: nothing of the body has been sent.
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 999999999\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    crate::support::within(tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    server.stop().await;
}

#[tokio::test]
async fn another_host_or_origin_is_refused() {
    let server = Running::start(settings()).await;
    let foreign = server.client().with("host", "evil.example").get("/v1/executions").await;
    assert_eq!((foreign.status, foreign.code().as_str()), (403, "host_not_allowed"));
    assert_eq!(server.client().with("host", "localhost:1").get("/livez").await.status, 200);
    let asked =
        server.client().with("origin", "https://evil.example").send(Method::OPTIONS, "/v1/executions", "").await;
    assert_eq!(asked.status, 403);
    assert!(!asked.headers.contains_key("access-control-allow-origin"));
    server.stop().await;

    let cors = ff_server::Settings { cors_origins: Some(vec!["https://good.example".into()]), ..settings() };
    let server = Running::start(cors).await;
    let asked =
        server.client().with("origin", "https://good.example").send(Method::OPTIONS, "/v1/executions", "").await;
    assert_eq!(asked.status, 204);
    assert_eq!(asked.headers["access-control-allow-origin"], "https://good.example");
    server.stop().await;
}

#[tokio::test]
async fn a_form_of_another_page_cannot_act() {
    let server = Running::start(settings()).await;
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        let client = server.client().with("content-type", content_type);
        let refused = client.send(Method::POST, "/v1/executions", "{\"kind\":\"a\"}").await;
        assert_eq!((refused.status, refused.code().as_str()), (415, "unsupported_media_type"), "{content_type}");
    }
    server.stop().await;
}

#[tokio::test]
async fn only_the_right_token_opens() {
    let server = Running::start(with_tokens()).await;
    for authorization in ["Bearer canary-wrong", "Bearer ", "Basic YTpi", "Bearer", "bearer ff_00_00", ""] {
        let refused = server.client().with("authorization", authorization).get("/v1/workers").await;
        assert_eq!((refused.status, refused.code().as_str()), (401, "unauthenticated"), "{authorization:?}");
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
    }
    assert_eq!(server.client().get("/metrics").await.status, 401);
    for path in ["/livez", "/readyz", "/healthz", "/openapi.json"] {
        assert_eq!(server.client().get(path).await.status, 200, "{path}");
    }
    let admin = server.client_with(crate::support::ADMIN);
    admin.post("/v1/executions", &json!({ "kind": "k", "lane": "slow" })).await.ok();
    let metrics = admin.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    let page = std::str::from_utf8(&metrics.body).unwrap();
    crate::metrics::check(page);
    assert!(page.contains("flowfabric_queue_depth{namespace=\"default\",lane=\"slow\"} 1\n"), "{page}");
    assert_eq!(admin.get("/v1/workers").await.status, 200);
    server.stop().await;
}
