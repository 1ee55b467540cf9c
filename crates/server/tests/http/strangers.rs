//! Messages of strangers: none of them is answered with 5xx, everything that is refused is refused with a typed
//! problem, and a refusal changes nothing.

use std::sync::Arc;

use bytes::Bytes;
use ff_store::memory::MemoryStore;
use hyper::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Answer, Client, Running, settings, within};

/// Every document but the registration of servers, which lives by the clock, and what the audit log keeps of acts that
/// were refused.
pub(crate) fn documents(store: &MemoryStore) -> Vec<(String, Bytes)> {
    store.inspect(|contents| {
        let all = contents
            .partitions()
            .flat_map(|(partition, contents)| contents.documents().map(move |(key, stored)| (partition, key, stored)));
        let (server, record) = (ff_core::index::kind::SERVER, ff_core::index::kind::RECORD);
        let kept = all.filter(|(partition, key, _)| {
            key.kind() != server && (*partition, key.kind()) != (ff_core::Partition::SYSTEM, record)
        });
        kept.map(|(partition, key, stored)| (format!("{partition} {key:?}"), stored.body.clone())).collect()
    })
}

fn assert_problem(answer: &Answer, what: &str) {
    assert!((400..500).contains(&answer.status), "{what}: {} {:?}", answer.status, answer.body);
    assert_eq!(answer.headers["content-type"], "application/problem+json", "{what}");
    let problem = answer.json();
    assert_eq!(problem["status"], answer.status, "{what}");
    let code = ff_core::Code::parse(problem["code"].as_str().unwrap()).unwrap_or_else(|| panic!("{what}: {problem}"));
    assert_eq!(problem["type"], format!("urn:flowfabric:error:{code}"), "{what}");
    assert_eq!(code.http_status(), answer.status, "{what}");
    assert!(problem["detail"].is_string() && problem["details"].is_object() && problem["retryable"].is_boolean());
}

/// A server with one execution that waits, and its store.
async fn start() -> (Running, Client, String, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    let server = Running::start_on(settings(), store.clone()).await;
    let client = server.client();
    let created = client.post("/v1/executions", &json!({ "kind": "k", "lane": "apart" })).await.ok();
    let id = created["execution_id"].as_str().unwrap().to_owned();
    (server, client, id, store)
}

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

#[tokio::test]
async fn bodies_that_make_no_sense_are_refused_and_change_nothing() {
    let (server, client, _, store) = start().await;
    let before = documents(&store);
    let texts: Vec<String> = vec![
        String::new(),
        "   ".into(),
        "null".into(),
        "[]".into(),
        "1".into(),
        "\"x\"".into(),
        "{".into(),
        "{\"kind\":\"k\"} {}".into(),
        "\u{feff}{\"kind\":\"k\"}".into(),
        format!("{{\"kind\":\"k\",\"input\":{}}}", nested(101)),
        format!("{{\"kind\":\"k\",\"input\":{}}}", nested(200_000)),
        format!("{{\"kind\":\"k\",\"policy\":{}}}", nested(20_000)),
        format!("{{\"kind\":\"k\",\"nonsense\":{}}}", nested(20_000)),
        r#"{"kind":"k","input":"\ud800"}"#.into(),
        r#"{"kind":"\ud800"}"#.into(),
        r#"{"kind":"a\u0000b"}"#.into(),
        "{\"kind\":\"a\0b\"}".into(),
        r#"{"kind":""}"#.into(),
        r#"{"kind":null}"#.into(),
        r#"{"kind":"a","kind":"a"}"#.into(),
        r#"{"kind":"a","tags":{"a":"1","a":"2"}}"#.into(),
        r#"{"kind":"a","policy":{"max_replay_count":1,"max_replay_count":2}}"#.into(),
        r#"{"kind":"k","priority":1e999}"#.into(),
        r#"{"kind":"k","priority":99999999999999999999999}"#.into(),
        r#"{"kind":"k","priority":1.5}"#.into(),
        r#"{"kind":"k","delay_until":-5}"#.into(),
        r#"{"kind":"k","delay_until":9223372036854775807}"#.into(),
        r#"{"kind":"k","deadline_at":-9223372036854775808}"#.into(),
        r#"{"kind":"k","dedup_window_ms":9223372036854775807,"idempotency_key":"a"}"#.into(),
        r#"{"kind":"k","idempotency_key":""}"#.into(),
        r#"{"kind":"k","execution_id":""}"#.into(),
        r#"{"kind":"k","execution_id":"ffff-0190a0a0-0000-7000-8000-000000000000"}"#.into(),
        r#"{"kind":"k","flow_id":"ffff-0190a0a0-0000-7000-8000-000000000000"}"#.into(),
        r#"{"kind":"k","flow_id":"0000-0190a0a0-0000-7000-8000-000000000000"}"#.into(),
        r#"{"kind":"k","namespace":""}"#.into(),
        r#"{"kind":"k","lane":"a b"}"#.into(),
        r#"{"kind":"k","tags":{"A B":"v"}}"#.into(),
        r#"{"kind":"k","tags":{"a":"\u0000"}}"#.into(),
        r#"{"kind":"k","required_capabilities":["a,b"]}"#.into(),
        r#"{"kind":"k","input_base64":"***"}"#.into(),
        r#"{"kind":"k","input":1,"input_base64":"AA=="}"#.into(),
        r#"{"kind":"k","input_base64":"AA==","content_type":"a\r\nx: y"}"#.into(),
        r#"{"kind":"k","policy":{"retry":{"max_retries":-1}}}"#.into(),
        r#"{"kind":"k","policy":{"retry":{"max_retries":4294967296}}}"#.into(),
        r#"{"kind":"k","policy":{"retry":{"backoff":{"exponential":{"multiplier":-1}}}}}"#.into(),
        json!({ "kind": "k", "namespace": "n".repeat(65) }).to_string(),
        json!({ "kind": "k", "lane": "n".repeat(65) }).to_string(),
        json!({ "kind": "k".repeat(129) }).to_string(),
        json!({ "kind": "k", "idempotency_key": "k".repeat(257) }).to_string(),
        json!({ "kind": "k", "trace_context": "k".repeat(257) }).to_string(),
        json!({ "kind": "k", "input": "x".repeat(1024 * 1024) }).to_string(),
        // More than a connection can hold: the answer arrives all the same.
        json!({ "kind": "k", "input": "x".repeat(8 * 1024 * 1024) }).to_string(),
    ];
    let client = client.with("content-type", "application/json");
    for text in texts {
        let shown: String = text.chars().take(100).collect();
        let answer = client.send(Method::POST, "/v1/executions", text).await;
        assert_problem(&answer, &shown);
    }
    for bytes in [&b"{\"kind\":\"\xff\xfe\"}"[..], &b"\xff\xfe{\0}\0"[..], &b"\0"[..], &b"\x1f\x8b\x08"[..]] {
        assert_problem(&client.send(Method::POST, "/v1/executions", bytes).await, &format!("{bytes:?}"));
    }
    assert_eq!(documents(&store), before);
    server.stop().await;
}

#[tokio::test]
async fn names_of_any_alphabet_are_kept_to_the_letter() {
    let (server, client, _, _) = start().await;
    let body = json!({ "kind": "größe-漢字-🙂", "namespace": "équipe", "lane": "Ünï", "input": ["🙂", "\u{0}"] });
    let id = client.post("/v1/executions", &body).await.ok()["execution_id"].as_str().unwrap().to_owned();
    let found = client.get(&format!("/v1/executions/{id}")).await.ok();
    for field in ["kind", "namespace", "lane"] {
        assert_eq!(found[field], body[field]);
    }
    let claim = json!({ "lanes": ["Ünï"], "namespace": "équipe" });
    let task = client.post("/v1/workers/w%F0%9F%99%82/claim", &claim).await.ok()["tasks"][0].clone();
    assert_eq!(task["input"]["payload"], body["input"]);
    server.stop().await;
}

#[tokio::test]
async fn questions_that_make_no_sense_are_refused() {
    let (server, client, id, store) = start().await;
    let before = documents(&store);
    let long = "a".repeat(3_000);
    let execution = format!("/v1/executions/{id}");
    let mut paths: Vec<String> = [
        "/v1/executions?nonsense=1",
        "/v1/executions?limit=0",
        "/v1/executions?limit=-1",
        "/v1/executions?limit=1001",
        "/v1/executions?limit=99999999999999999999",
        "/v1/executions?limit=abc",
        "/v1/executions?limit=",
        "/v1/executions?limit=1&limit=2",
        "/v1/executions?state=bogus",
        "/v1/executions?lane=%ff",
        "/v1/executions?%zz=1",
        "/v1/executions?namespace=%20",
        "/v1/executions?flow_id=zzz",
        "/v1/executions/",
        "/v1/executions//state",
        "/v1/executions/%00",
        "/v1/executions/..%2f..",
        "/v1/executions/ffff-0190a0a0-0000-7000-8000-000000000000",
        "/v1/executions/0000-0190A0A0-0000-7000-8000-000000000000",
        "/v1/executions/0190a0a0-0000-7000-8000-000000000000",
        "/v1/executions/0000-00000000-0000-0000-0000-000000000000",
        "/v1/flows/x",
        "/v1/budgets/%20",
        "/v1/budgets/nope",
        "/v1/quotas/nope",
        "/v1/events?kinds=zzz",
        "/v1/events?wait_ms=-1",
        "/v1/%00",
        "//v1/executions",
        "/V1/executions",
        "/v1/../v1/executions",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.push(format!("/v1/executions/{long}"));
    paths.push(format!("/v1/budgets/{}", "b".repeat(65)));
    paths.push(format!("/v1/flows/{id}"));
    for list in
        ["executions", "flows", "workers", "lanes", "budgets", "quotas", "events", "admin/tokens", "admin/audit"]
    {
        for cursor in ["garbage", "", "%00", &long, "AAAA"] {
            paths.push(format!("/v1/{list}?cursor={cursor}"));
        }
    }
    for rest in [
        "/stream?x=1",
        "/attempts/-1/stream",
        "/attempts/x/stream",
        "/attempts/99999999999/stream",
        "/attempts/0/stream?from=zz",
        "/attempts/0/stream?count=0",
        "/attempts/0/stream?from=99999999999999999999-1",
        "/attempts/0/stream/tail?block_ms=30001",
        "/attempts/0/stream/tail?block_ms=-1",
        "/wait?wait_ms=30001",
        "/events?cursor=zz",
        "/upstreams?cursor=zz",
        "/result",
        "/waitpoints/x/token",
        "/",
    ] {
        paths.push(format!("{execution}{rest}"));
    }
    for path in paths {
        let shown: String = path.chars().take(100).collect();
        assert_problem(&client.get(&path).await, &shown);
    }
    let resumed = client.with("last-event-id", "99999999999999999999-1").get(&format!("{execution}/stream")).await;
    assert_problem(&resumed, "Last-Event-ID");
    assert_eq!(documents(&store), before);
    server.stop().await;
}

#[tokio::test]
async fn acts_that_make_no_sense_are_refused_and_change_nothing() {
    let (server, client, id, store) = start().await;
    let before = documents(&store);
    let lease = "0190a0a0-0000-7000-8000-000000000000";
    let fence = json!({ "attempt": 0, "lease_id": lease, "epoch": 1 });
    let big = 9_223_372_036_854_775_807_i64;
    let rows: Vec<(Method, String, Value)> = vec![
        (Method::POST, "/v1/workers/w/claim".into(), json!({ "lanes": [] })),
        (Method::POST, "/v1/workers/w/claim".into(), json!({ "lanes": ["a b"] })),
        (Method::POST, "/v1/workers/w/claim".into(), json!({ "lanes": ["a"], "max_tasks": 0 })),
        (Method::POST, "/v1/workers/w/claim".into(), json!({ "lanes": ["a"], "max_tasks": -1 })),
        (Method::POST, "/v1/workers/w/claim".into(), json!({ "lanes": ["a"], "lease_ttl_ms": 999 })),
        (Method::POST, "/v1/workers/w/claim".into(), json!({ "lanes": ["a"], "wait_ms": big })),
        (Method::POST, "/v1/workers/w/claim".into(), json!({ "lanes": ["a"], "lease_ids": ["x"] })),
        (
            Method::POST,
            "/v1/workers/w/claim".into(),
            json!({ "lanes": ["a"], "lease_ids": [lease, lease], "max_tasks": 2 }),
        ),
        (Method::POST, format!("/v1/workers/{}/claim", "w".repeat(65)), json!({ "lanes": ["a"] })),
        (Method::POST, "/v1/workers/a%20b/claim".into(), json!({ "lanes": ["a"] })),
        (Method::PUT, "/v1/workers/w".into(), json!({ "worker_id": "w", "lanes": [], "nonce": "n" })),
        (
            Method::PUT,
            "/v1/workers/w".into(),
            json!({ "worker_id": "w", "lanes": ["a"], "nonce": "n", "capacity": 4_294_967_296_i64 }),
        ),
        (Method::POST, format!("/v1/executions/{id}/cancel"), json!({ "reason": "r".repeat(5_000) })),
        (Method::POST, format!("/v1/executions/{id}/cancel"), json!({ "reason": "a\u{0}" })),
        (Method::POST, format!("/v1/executions/{id}/cancel"), json!({ "source": "zzz" })),
        (Method::POST, format!("/v1/executions/{id}/complete"), json!({ "fence": null })),
        (Method::POST, format!("/v1/executions/{id}/complete"), json!({ "fence": fence })),
        (
            Method::POST,
            format!("/v1/executions/{id}/complete"),
            json!({ "fence": { "attempt": 0, "lease_id": lease, "epoch": -1 } }),
        ),
        (
            Method::POST,
            format!("/v1/executions/{id}/complete"),
            json!({ "fence": { "attempt": 0, "lease_id": id, "epoch": 1 } }),
        ),
        (
            Method::POST,
            format!("/v1/executions/{id}/frames"),
            json!({ "fence": fence, "first_sequence": 0, "frames": [{ "type": "t" }] }),
        ),
        (
            Method::POST,
            format!("/v1/executions/{id}/frames"),
            json!({ "fence": fence, "first_sequence": u64::MAX, "frames": [{ "type": "t" }, { "type": "t" }] }),
        ),
        (Method::POST, format!("/v1/executions/{id}/signal"), json!({ "name": "" })),
        (Method::POST, format!("/v1/executions/{id}/signal"), json!({ "name": "a", "token": "" })),
        (Method::POST, format!("/v1/executions/{id}/signal"), json!({ "name": "a", "token": "x".repeat(5_000) })),
        (Method::POST, format!("/v1/executions/{id}/replay"), json!({})),
        (Method::POST, format!("/v1/executions/{id}/resume"), json!({})),
        (Method::PUT, format!("/v1/executions/{id}/tags"), json!({ "tags": { "": "x" } })),
        (Method::POST, "/v1/executions/batch".into(), json!({ "executions": [] })),
        (Method::POST, "/v1/executions/batch".into(), json!({ "executions": vec![json!({ "kind": "k" }); 1_001] })),
        (Method::POST, "/v1/budgets".into(), json!({ "name": "b", "dimensions": {} })),
        (Method::POST, "/v1/budgets".into(), json!({ "name": "b", "dimensions": { "t": { "hard": -1 } } })),
        (Method::POST, "/v1/budgets".into(), json!({ "name": "b", "dimensions": { "t": { "hard": big } } })),
        (Method::POST, "/v1/budgets".into(), json!({ "name": "b".repeat(65), "dimensions": { "t": { "hard": 1 } } })),
        (Method::POST, "/v1/budgets/nope/usage".into(), json!({ "usage": { "t": 1 } })),
        (Method::POST, "/v1/budgets/nope/usage".into(), json!({ "usage": { "t": big } })),
        (Method::POST, "/v1/quotas".into(), json!({ "name": "q", "max_requests": -1 })),
        (Method::POST, "/v1/quotas".into(), json!({ "name": "q", "max_concurrent": 10_001 })),
        (
            Method::POST,
            "/v1/flows".into(),
            json!({ "kind": "k", "flow_id": "ffff-0190a0a0-0000-7000-8000-000000000000" }),
        ),
        (Method::POST, "/v1/admin/rotate-waitpoint-secret".into(), json!({ "new_kid": "a:b", "new_secret_hex": "00" })),
        (Method::POST, "/v1/admin/tokens".into(), json!({ "name": "", "role": "reader" })),
        (Method::POST, "/v1/admin/tokens".into(), json!({ "name": "t", "role": "king" })),
        (Method::PUT, "/v1/lanes/a%20b".into(), json!({})),
        (Method::POST, "/v1/lanes/%00/pause".into(), json!({})),
    ];
    let client = client.with("content-type", "application/json");
    for (method, path, body) in rows {
        let shown: String = format!("{method} {path} {body}").chars().take(200).collect();
        assert_problem(&client.send(method, &path, body.to_string()).await, &shown);
    }
    assert_eq!(documents(&store), before);
    server.stop().await;
}

#[tokio::test]
async fn headers_that_make_no_sense_are_refused() {
    let (server, client, _, store) = start().await;
    let body = json!({ "kind": "a" });
    let keyed = client.with("idempotency-key", "k1");
    keyed.post("/v1/executions", &body).await.ok();
    let before = documents(&store);
    assert_problem(&keyed.post("/v1/executions", &json!({ "kind": "b" })).await, "another body under the same key");
    assert_problem(&client.with("idempotency-key", &"x".repeat(300)).post("/v1/executions", &body).await, "a long key");
    assert_problem(&client.with("traceparent", &"x".repeat(300)).post("/v1/executions", &body).await, "a long trace");
    for content_type in ["text/plain", "application/xml", "", "json", "application/vnd.api+json"] {
        let answer =
            client.with("content-type", content_type).send(Method::POST, "/v1/executions", body.to_string()).await;
        assert_problem(&answer, content_type);
    }
    for method in ["PATCH", "TRACE", "PROPFIND"] {
        let answer = client.send(method.parse().unwrap(), "/v1/executions", "").await;
        assert_problem(&answer, method);
        assert_eq!(answer.headers["allow"], "POST, GET", "{method}");
        assert_eq!(client.send(method.parse().unwrap(), "/livez", "").await.headers["allow"], "GET, HEAD");
    }
    assert_eq!(documents(&store), before);
    server.stop().await;
}

#[tokio::test]
async fn what_is_hardly_http_is_cut_off_and_the_server_lives_on() {
    let (server, client, _, store) = start().await;
    let before = documents(&store);
    let post = "POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let many: String = (0..500).map(|number| format!("x{number}: a\r\n")).collect();
    for (text, status) in [
        (format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(300_000)), Some(431)),
        (format!("GET /livez HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"), Some(431)),
        (format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(100_000)), None),
        ("\u{16}\u{3}\u{1}\r\n\r\n".into(), Some(400)),
        ("GET /v1/executions HTTP/1.1\r\n\r\n".into(), Some(403)),
        (format!("{post}content-length: abc\r\n\r\n"), Some(400)),
        (format!("{post}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}x"), Some(400)),
        (format!("{post}transfer-encoding: chunked\r\n\r\nZZ\r\nxx\r\n0\r\n\r\n"), Some(400)),
        ("GET / HTTP/7.0\r\n\r\n".into(), Some(400)),
        ("GET /v1/lanes HTTP/1.1\r\nhost: evil.example\r\n\r\n".into(), Some(403)),
        ("GET /v1/lanes HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n".into(), Some(400)),
        ("GET /livez HTTP/1.1\r\nhost: 10.0.0.7\r\n\r\n".into(), Some(200)),
        // A load balancer that names no host.
        ("GET /livez HTTP/1.1\r\n\r\n".into(), Some(200)),
    ] {
        let shown: String = text.chars().take(80).collect();
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // The server may close before it has read everything.
        let _ = stream.write_all(text.as_bytes()).await;
        let mut head = vec![0; 12];
        let read = within(stream.read_exact(&mut head)).await;
        if let Some(status) = status {
            assert!(read.is_ok(), "{shown}: {read:?}");
            assert_eq!(String::from_utf8(head).unwrap(), format!("HTTP/1.1 {status}"), "{shown}");
        }
        assert_eq!(client.get("/livez").await.status, 200);
    }
    assert_eq!(documents(&store), before);
    server.stop().await;
}
