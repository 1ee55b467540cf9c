//! Traces as a collector receives them.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{Running, settings};

/// The received requests: the key that came with each, and its spans.
type Received = Arc<Mutex<Vec<(String, Value)>>>;

/// A collector that remembers.
async fn collector() -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let received = Received::default();
    let kept = received.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = kept.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let kept = kept.clone();
                async move {
                    assert_eq!(request.uri().path(), "/v1/traces");
                    assert_eq!(request.headers()["content-type"], "application/json");
                    let key = request.headers()["x-key"].to_str().unwrap().to_owned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let document: Value = serde_json::from_slice(&body).unwrap();
                    for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap() {
                        kept.lock().unwrap().push((key.clone(), span.clone()));
                    }
                    Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from_static(b"{}"))))
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (endpoint, received)
}

fn attribute<'s>(span: &'s Value, name: &str) -> &'s str {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == name).expect("there is such an attribute");
    found["value"]["stringValue"].as_str().unwrap()
}

#[tokio::test]
async fn an_attempt_is_linked_to_its_submission() {
    let (endpoint, received) = collector().await;
    let configured =
        ff_server::Settings { otlp_endpoint: Some(endpoint), otlp_headers: Some("x-key=canary".into()), ..settings() };
    let server = Running::start(configured).await;
    let client = server.client();
    let created = client.post("/v1/executions", &json!({ "kind": "a" })).await.ok();
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    client.with("traceparent", parent).post("/v1/executions", &json!({ "kind": "b" })).await.ok();
    let claim = json!({ "lanes": ["default"], "max_tasks": 2 });
    let claimed = client.post("/v1/workers/w/claim", &claim).await.ok();
    assert_eq!(client.get("/v1/executions/nonsense").await.status, 400);
    // A server that has stopped has sent everything.
    server.stop().await;
    let received = received.lock().unwrap();
    assert!(received.iter().all(|(key, _)| key == "canary"));
    let named =
        |name: &str| received.iter().map(|(_, span)| span).filter(|span| span["name"] == name).collect::<Vec<_>>();
    let submissions = named("create_execution");
    assert_eq!(submissions.len(), 2);
    let own = submissions.iter().find(|span| span.get("parentSpanId").is_none()).unwrap();
    assert_eq!(attribute(own, "flowfabric.execution_id"), created["execution_id"].as_str().unwrap());
    let child = submissions.iter().find(|span| span["parentSpanId"] == "b7ad6b7169203331").unwrap();
    assert_eq!(child["traceId"], "0af7651916cd43dd8448eb211c80319c");
    let attempt = named("attempt a")[0];
    assert_eq!(attempt["links"], json!([{ "traceId": own["traceId"], "spanId": own["spanId"] }]));
    assert_eq!(attempt["parentSpanId"], named("claim")[0]["spanId"]);
    let context = format!("00-{}-{}-01", own["traceId"].as_str().unwrap(), own["spanId"].as_str().unwrap());
    let tasks = claimed["tasks"].as_array().unwrap();
    assert!(tasks.iter().any(|task| task["trace_context"] == context.as_str()), "{tasks:?}");
    // The caller's trace context is the one its worker gets.
    assert!(tasks.iter().any(|task| task["trace_context"] == parent), "{tasks:?}");
    let refused = named("get_execution")[0];
    assert_eq!((&refused["status"]["code"], attribute(refused, "error.type")), (&json!(2), "invalid"));
}

#[tokio::test]
async fn a_collector_that_is_not_there_harms_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let server = Running::start(ff_server::Settings { otlp_endpoint: Some(endpoint), ..settings() }).await;
    let client = server.client();
    for _ in 0..20 {
        client.post("/v1/executions", &json!({ "kind": "a" })).await.ok();
    }
    let observer = server.observer.clone();
    server.stop().await;
    let families = observer.families().await;
    let lost = families.iter().find(|family| family.name == "flowfabric_spans_lost_total").unwrap();
    assert_eq!(lost.samples[0].value, ff_engine::SampleValue::Number(20));
}
