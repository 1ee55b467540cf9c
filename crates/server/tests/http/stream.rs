//! Viewers of streams and subscribers of events.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::support::{ADMIN, Client, Running, settings, with_tokens, within};

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
struct Event {
    name: String,
    id: Option<String>,
    data: Value,
}

/// Reads events as they come.
struct Viewer {
    body: Incoming,
    text: String,
}

impl Viewer {
    async fn open(client: &Client, path: &str) -> Self {
        let client = client.with("accept", "text/event-stream");
        let response = within(client.open(Method::GET, path, Bytes::new())).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new() }
    }

    async fn open_after(client: &Client, path: &str, last: &str) -> Self {
        Self::open(&client.with("last-event-id", last), path).await
    }

    /// The next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let data = serde_json::from_str(&field("data: ").unwrap()).unwrap();
                let event = Event { name: field("event: ").unwrap(), id: field("id: "), data };
                self.text = rest.to_owned();
                return Some(event);
            }
            let frame = within(self.body.frame()).await?.unwrap();
            self.text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
    }

    async fn names(&mut self, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        while names.len() < count {
            let event = self.next().await.expect("the stream ended early");
            names.push(format!("{} {}", event.name, event.id.unwrap_or_default()));
        }
        names
    }
}

async fn submit(client: &Client, body: Value) -> String {
    client.post("/v1/executions", &body).await.ok()["execution_id"].as_str().unwrap().to_owned()
}

async fn claim(client: &Client) -> Value {
    let claimed = client.post("/v1/workers/w/claim", &json!({ "lanes": ["default"], "wait_ms": 20_000 })).await;
    claimed.ok()["tasks"][0]["fence"].clone()
}

async fn append(client: &Client, id: &str, fence: &Value, first: u64, count: u64) {
    let frames: Vec<Value> =
        (first..first + count).map(|number| json!({ "type": "text", "payload": { "n": number } })).collect();
    let body = json!({ "fence": fence, "first_sequence": first, "frames": frames });
    client.post(&format!("/v1/executions/{id}/frames"), &body).await.ok();
}

#[tokio::test]
async fn a_viewer_resumes_where_it_was_cut() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let id = submit(&client, json!({ "kind": "a" })).await;
    let path = format!("/v1/executions/{id}/stream");
    let mut viewer = Viewer::open(&client, &path).await;
    let fence = claim(&client).await;
    append(&client, &id, &fence, 1, 3).await;
    assert_eq!(viewer.names(3).await, ["frame 0-1", "frame 0-2", "frame 0-3"]);
    drop(viewer);
    append(&client, &id, &fence, 4, 2).await;
    let mut viewer = Viewer::open_after(&client, &path, "0-2").await;
    assert_eq!(viewer.names(3).await, ["frame 0-3", "frame 0-4", "frame 0-5"]);
    append(&client, &id, &fence, 6, 1).await;
    assert_eq!(viewer.names(1).await, ["frame 0-6"]);
    client.post(&format!("/v1/executions/{id}/complete"), &json!({ "fence": fence })).await.ok();
    let end = viewer.next().await.unwrap();
    assert_eq!((end.name.as_str(), &end.data["public_state"]), ("end", &json!("completed")));
    assert_eq!(viewer.next().await, None);
    let mut late = Viewer::open_after(&client, &path, "0-5").await;
    assert_eq!(late.names(2).await, ["frame 0-6", "end "]);
    assert_eq!(late.next().await, None);
    let malformed = client.with("last-event-id", "x").get(&path).await;
    assert_eq!((malformed.status, malformed.code().as_str()), (400, "invalid"));
    server.stop().await;
}

#[tokio::test]
async fn a_viewer_crosses_attempts_and_sees_pauses() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let retry = json!({ "max_retries": 1, "backoff": { "fixed": { "delay_ms": 1 } } });
    let id = submit(&client, json!({ "kind": "a", "policy": { "retry": retry } })).await;
    let path = format!("/v1/executions/{id}/stream");
    let mut viewer = Viewer::open(&client, &path).await;
    let fence = claim(&client).await;
    append(&client, &id, &fence, 1, 1).await;
    assert_eq!(viewer.names(1).await, ["frame 0-1"]);
    let failure = json!({ "fence": fence, "reason": "broke", "category": "test" });
    client.post(&format!("/v1/executions/{id}/fail"), &failure).await.ok();
    let fence = claim(&client).await;
    append(&client, &id, &fence, 1, 1).await;
    assert_eq!(viewer.names(2).await, ["attempt 1-0", "frame 1-1"]);
    let suspend = json!({ "fence": fence, "condition": { "any": [{ "name": "go" }] }, "reason": "approval" });
    client.post(&format!("/v1/executions/{id}/suspend"), &suspend).await.ok();
    let paused = viewer.next().await.unwrap();
    assert_eq!((paused.name.as_str(), &paused.data["reason"]), ("paused", &json!("waiting_for_approval")));
    client.post(&format!("/v1/executions/{id}/cancel"), &json!({ "reason": "enough" })).await.ok();
    let end = viewer.next().await.unwrap();
    assert_eq!((end.name.as_str(), &end.data["public_state"]), ("end", &json!("cancelled")));
    // Everything again, from the start.
    let mut again = Viewer::open(&client, &path).await;
    assert_eq!(again.names(4).await, ["frame 0-1", "attempt 1-0", "frame 1-1", "end "]);
    server.stop().await;
}

#[tokio::test]
async fn a_viewer_that_asks_for_it_sees_the_journal_and_all_of_it_before_the_end() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let id = submit(&client, json!({ "kind": "a" })).await;
    let path = format!("/v1/executions/{id}/stream");
    let mut viewer = Viewer::open(&client, &format!("{path}?steps=0")).await;
    let mut plain = Viewer::open(&client, &path).await;
    let fence = claim(&client).await;
    let record = async |first: u64, name: &str| {
        let entry = json!({ "name": name, "state": "completed", "result": { "n": first } });
        let body = json!({ "fence": fence, "first_number": first, "entries": [entry] });
        client.post(&format!("/v1/executions/{id}/steps"), &body).await.ok();
    };
    record(1, "fetch").await;
    let seen = viewer.next().await.unwrap();
    assert_eq!((seen.name.as_str(), &seen.data["step"]["name"]), ("step", &json!("fetch")));
    assert_eq!((&seen.data["generation"], &seen.data["step"]["number"]), (&json!(0), &json!(1)));
    append(&client, &id, &fence, 1, 1).await;
    assert_eq!(viewer.names(1).await, ["frame 0-1"], "frames keep their ids");
    let last = json!({ "fence": fence, "first_number": 2, "entries": [{ "name": "last", "state": "completed" }] });
    client.post(&format!("/v1/executions/{id}/complete"), &last).await.ok();
    let seen = viewer.next().await.unwrap();
    assert_eq!((seen.name.as_str(), &seen.data["step"]["name"]), ("step", &json!("last")));
    assert_eq!(viewer.names(1).await, ["end "]);
    assert_eq!(plain.names(2).await, ["frame 0-1", "end "], "others see what they always did");
    let mut later = Viewer::open(&client, &format!("{path}?steps=1")).await;
    assert_eq!(later.names(3).await, ["frame 0-1", "step ", "end "]);
    let refused = client.get(&format!("{path}?steps=many")).await;
    assert_eq!((refused.status, refused.json()["details"]["field"].as_str()), (400, Some("steps")));
    server.stop().await;
}

#[tokio::test]
async fn a_viewer_that_comes_back_after_a_replay_sees_what_it_missed_of_both_generations() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let id = submit(&client, json!({ "kind": "a" })).await;
    let finish = async |names: &[&str]| {
        let fence = claim(&client).await;
        let entries: Vec<_> = names.iter().map(|name| json!({ "name": name, "state": "completed" })).collect();
        let body = json!({ "fence": fence, "first_number": 1, "entries": entries });
        client.post(&format!("/v1/executions/{id}/complete"), &body).await.ok();
    };
    finish(&["one", "two", "three"]).await;
    client.post(&format!("/v1/executions/{id}/replay"), &json!({})).await.ok();
    finish(&["four", "five"]).await;
    let path = format!("/v1/executions/{id}/stream");
    for (seen, missed) in [("0-1", vec!["two", "three", "four", "five"]), ("1-1", vec!["five"]), ("1", vec!["five"])] {
        let mut viewer = Viewer::open(&client, &format!("{path}?steps={seen}")).await;
        let mut steps = Vec::new();
        while let Some(event) = viewer.next().await {
            steps.extend(event.data["step"]["name"].as_str().map(str::to_owned));
        }
        assert_eq!(steps, missed, "{seen}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_revoked_token_ends_its_silent_streams_before_the_next_ping() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let body = json!({ "name": "r", "namespace": "default", "role": "reader" });
    let secret = admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned();
    let reader = server.client_with(&secret);
    let id = submit(&admin, json!({ "kind": "a" })).await;
    let mut frames = Viewer::open(&reader, &format!("/v1/executions/{id}/stream")).await;
    let mut events = Viewer::open(&reader, "/v1/events").await;
    crate::removals::delete(&admin, "/v1/admin/tokens/r").await.ok();
    for viewer in [&mut frames, &mut events] {
        while let Some(event) = viewer.next().await {
            assert_ne!(event.name, "ping", "it ends before it would have been told that it is still there");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn viewers_that_reconnect_all_the_time_miss_nothing_and_see_nothing_twice() {
    const FRAMES: u64 = 400;
    const VIEWERS: u64 = 16;
    let server = Running::start(settings()).await;
    let client = server.client();
    let id = submit(&client, json!({ "kind": "a" })).await;
    let path = format!("/v1/executions/{id}/stream");
    let fence = claim(&client).await;
    let mut viewers = Vec::new();
    for number in 1..=VIEWERS {
        let (client, path) = (client.clone(), path.clone());
        viewers.push(tokio::spawn(async move {
            let mut seen: Vec<u64> = Vec::new();
            let mut cuts = 0;
            let mut viewer = Viewer::open(&client, &path).await;
            loop {
                // Each viewer leaves at other moments: after every 1st, 2nd, 3rd ... frame.
                if !seen.is_empty() && (seen.len() as u64).is_multiple_of(number * 7) && cuts < 50 {
                    cuts += 1;
                    let last = format!("0-{}", seen.last().unwrap());
                    viewer = Viewer::open_after(&client, &path, &last).await;
                }
                match viewer.next().await {
                    Some(event) if event.name == "frame" => {
                        assert_eq!(event.data["id"], event.id.clone().unwrap());
                        seen.push(event.id.unwrap().strip_prefix("0-").unwrap().parse().unwrap());
                    }
                    Some(event) if event.name == "end" => return (seen, cuts),
                    Some(_) => {}
                    None => panic!("the stream ended early"),
                }
            }
        }));
    }
    let mut next = 1;
    while next <= FRAMES {
        let count = (next % 5 + 1).min(FRAMES + 1 - next);
        append(&client, &id, &fence, next, count).await;
        next += count;
    }
    client.post(&format!("/v1/executions/{id}/complete"), &json!({ "fence": fence })).await.ok();
    for viewer in viewers {
        let (seen, cuts) = within(viewer).await.unwrap();
        assert_eq!(seen, (1..=FRAMES).collect::<Vec<_>>());
        assert!(cuts >= 3);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_position_that_a_client_made_up_harms_nobody_else() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let id = submit(&client, json!({ "kind": "a" })).await;
    let path = format!("/v1/executions/{id}/stream");
    let fence = claim(&client).await;
    let _liar = Viewer::open_after(&client, &path, "0-999999").await;
    let mut viewer = Viewer::open(&client, &path).await;
    append(&client, &id, &fence, 1, 2).await;
    assert_eq!(viewer.names(2).await, ["frame 0-1", "frame 0-2"]);
    server.stop().await;
}

#[tokio::test]
async fn a_full_pool_refuses_by_name_and_a_place_comes_back() {
    let server = Running::start(ff_server::Settings { sse_max: Some(1), stream_ops_max: Some(1), ..settings() }).await;
    let client = server.client();
    let id = submit(&client, json!({ "kind": "a" })).await;
    let path = format!("/v1/executions/{id}/stream");
    let viewer = Viewer::open(&client, &path).await;
    let refused = client.get(&path).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "concurrency_limit_exceeded"));
    assert_eq!(refused.json()["details"], json!({ "pool": "sse", "max": 1 }));
    assert!(refused.headers.contains_key("retry-after"));
    drop(viewer);
    // The place comes back when the server learns that the viewer has gone.
    let fence = claim(&client).await;
    client.post(&format!("/v1/executions/{id}/complete"), &json!({ "fence": fence })).await.ok();
    let again = async {
        while client.get(&path).await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    within(again).await;
    server.stop().await;
}

#[tokio::test]
async fn events_are_shown_as_they_happen_and_from_a_cursor() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let mut viewer = Viewer::open(&client, "/v1/events?kinds=completion").await;
    let mut cursor = None;
    for number in 0..3 {
        let id = submit(&client, json!({ "kind": "a" })).await;
        let fence = claim(&client).await;
        client.post(&format!("/v1/executions/{id}/complete"), &json!({ "fence": fence })).await.ok();
        let event = viewer.next().await.unwrap();
        assert_eq!((event.name.as_str(), &event.data["event"]["execution_id"]), ("completion", &json!(id)), "{number}");
        cursor = event.id.or(cursor);
    }
    let mut again = Viewer::open(&client, "/v1/events?kinds=completion&kinds=signal").await;
    let first = again.next().await.unwrap();
    assert_eq!(first.name, "completion");
    let id = submit(&client, json!({ "kind": "b" })).await;
    client.post(&format!("/v1/executions/{id}/cancel"), &json!({})).await.ok();
    let mut resumed = Viewer::open_after(&client, "/v1/events?kinds=completion", &cursor.unwrap()).await;
    assert_eq!(resumed.next().await.unwrap().data["event"]["execution_id"], id.as_str());
    server.stop().await;
}

#[tokio::test]
async fn a_revoked_token_sees_nothing_more() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(crate::support::ADMIN);
    let made =
        admin.post("/v1/admin/tokens", &json!({ "name": "eve", "namespace": "default", "role": "reader" })).await;
    let token = made.ok()["secret"].as_str().unwrap().to_owned();
    let id = submit(&admin, json!({ "kind": "a" })).await;
    let path = format!("/v1/executions/{id}/stream");
    let mut viewer = Viewer::open(&server.client_with(&token), &path).await;
    let fence = claim(&admin).await;
    append(&admin, &id, &fence, 1, 1).await;
    assert_eq!(viewer.names(1).await, ["frame 0-1"]);
    assert_eq!(admin.send(Method::DELETE, "/v1/admin/tokens/eve", "").await.status, 200);
    // Within a second of the revocation the next frame ends the stream instead of being shown.
    let mut sequence = 2;
    let cut = async {
        loop {
            append(&admin, &id, &fence, sequence, 1).await;
            sequence += 1;
            if viewer.next().await.is_none() {
                break;
            }
        }
    };
    let started = std::time::Instant::now();
    within(cut).await;
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(server.client_with(&token).get(&path).await.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn a_ticket_opens_a_stream_without_headers_and_ends_with_its_token() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(crate::support::ADMIN);
    let id = submit(&admin, json!({ "kind": "k" })).await;
    let other = submit(&admin, json!({ "kind": "k" })).await;
    let fence = claim(&admin).await;
    let frames = json!({ "fence": fence, "first_sequence": 1, "frames": [{ "type": "t" }, { "type": "t" }] });
    admin.post(&format!("/v1/executions/{id}/frames"), &frames).await.ok();
    let token = json!({ "name": "viewer", "role": "reader", "namespace": "default" });
    let token = admin.post("/v1/admin/tokens", &token).await.ok()["secret"].as_str().unwrap().to_owned();
    let reader = server.client_with(&token);
    let ticket = async |body: Value| {
        let made = reader.post("/v1/stream-tickets", &body).await.ok();
        made["ticket"].as_str().unwrap().to_owned()
    };
    let (any, only) = (ticket(json!({})).await, ticket(json!({ "execution_id": id })).await);
    let nobody = server.client();
    let path = format!("/v1/executions/{id}/stream");
    let mut viewer = Viewer::open(&nobody, &format!("{path}?ticket={only}&after=0-1")).await;
    assert_eq!(viewer.names(1).await, ["frame 0-2"]);
    for (path, status) in [
        (format!("{path}?after=0-1"), 401),
        (format!("{path}?ticket=k1:00.00"), 401),
        (format!("{path}?ticket={only}&ticket={only}"), 400),
        (format!("{path}?ticket={only}&after=nonsense"), 400),
        (format!("{path}?ticket={only}&colour=red"), 400),
        (format!("/v1/executions/{other}/stream?ticket={only}"), 403),
        (format!("/v1/executions/{id}?ticket={any}"), 401),
    ] {
        assert_eq!(nobody.get(&path).await.status, status, "{path}");
    }
    let mut events = Viewer::open(&nobody, &format!("/v1/events?ticket={any}")).await;
    assert!(events.next().await.is_some());
    let revoked = admin.send(Method::DELETE, "/v1/admin/tokens/viewer", "").await;
    assert_eq!(revoked.status, 200);
    // The viewer does not hear frames from now on, once its credential was looked at again.
    let mut sequence = 3;
    loop {
        let more = json!({ "fence": fence, "first_sequence": sequence, "frames": [{ "type": "t" }] });
        admin.post(&format!("/v1/executions/{id}/frames"), &more).await.ok();
        sequence += 1;
        match viewer.next().await {
            Some(event) if event.name == "error" => {
                assert_eq!(event.data["code"], "unauthenticated");
                break;
            }
            Some(event) => assert!(["frame", "ping"].contains(&event.name.as_str()), "{event:?}"),
            None => break,
        }
    }
    assert_eq!(nobody.get(&format!("{path}?ticket={any}")).await.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn a_browser_is_told_how_soon_to_come_back() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let id = submit(&client, json!({ "kind": "k" })).await;
    client.post(&format!("/v1/executions/{id}/cancel"), &json!({})).await.ok();
    let told = client.get(&format!("/v1/executions/{id}/stream")).await;
    assert!(told.body.starts_with(b"retry: 1000\nevent: "), "{:?}", told.body);
    server.stop().await;
}
