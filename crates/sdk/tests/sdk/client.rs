//! Clients: calls, waits, streams, events, refusals, lost servers.

use std::sync::Arc;
use std::time::Duration;

use ff_server::Settings;
use ff_store::memory::MemoryStore;
use flowfabric::op::{
    AppendFrames, Claim, Complete, CreateToken, ListTokens, append_frames, claim, complete, create_token,
    list_executions, list_tokens,
};
use flowfabric::{
    BulkFilter, BulkState, Client, Code, Event, EventType, FrameRequest, Happening, JsonText, PublicState, RetryPolicy,
    Role, SdkError, StreamEvent, op,
};

use crate::support::{Running, both_ways, within};

fn claim_one() -> claim::Args {
    claim::Args {
        instance_id: "w".into(),
        namespace: None,
        lanes: ["default".to_owned()].into(),
        capabilities: Default::default(),
        kinds: Default::default(),
        max_tasks: None,
        wait_ms: Some(10_000),
        mode: None,
        lease_ids: Vec::new(),
        retry: false,
        lease_ttl_ms: None,
        grant_ttl_ms: None,
    }
}

async fn take(client: &Client) -> op::view::Task {
    client.call::<Claim>(claim_one()).await.unwrap().tasks.pop().unwrap()
}

async fn finish(client: &Client, task: &op::view::Task, result: &str) {
    let args = complete::Args {
        execution_id: task.execution_id,
        fence: task.fence,
        result: Some(JsonText(result.to_owned())),
        result_base64: None,
        content_type: None,
        entries: Vec::new(),
        first_number: None,
        run: None,
    };
    client.call::<Complete>(args).await.unwrap();
}

async fn append(client: &Client, task: &op::view::Task, sequence: u64) {
    let frame =
        FrameRequest { frame_type: "token".into(), payload: Some(JsonText("\"x\"".into())), ..Default::default() };
    let args = append_frames::Args {
        execution_id: task.execution_id,
        fence: task.fence,
        first_sequence: sequence,
        frames: vec![frame],
    };
    client.call::<AppendFrames>(args).await.unwrap();
}

#[tokio::test]
async fn a_bulk_job_is_begun_followed_and_listed() {
    for (way, client, _server) in both_ways().await {
        for _ in 0..3 {
            client.submit("report").tag("team", "a").send().await.unwrap();
        }
        client.submit("other").send().await.unwrap();
        let reports = BulkFilter { kind: vec!["report".into()], ..Default::default() };
        let dry = client.bulk_cancel(reports.clone()).dry_run().begin().await.unwrap();
        assert_eq!(within(client.wait_bulk(dry.bulk_id)).await.unwrap().progress.done, 3, "{way}");
        let job = client.bulk_cancel(reports.clone()).reason("enough").max(2).begin().await.unwrap();
        let job = within(client.wait_bulk(job.bulk_id)).await.unwrap();
        assert_eq!((job.progress.done, job.reached_max, job.reason.as_deref()), (2, true, Some("enough")), "{way}");
        assert_eq!(client.cancel_bulk(job.bulk_id).await.unwrap().state, BulkState::Completed, "{way}");
        let tagged = client.bulk_set_tags(reports, [("team".to_owned(), "b".to_owned())].into());
        let tagged = within(client.wait_bulk(tagged.begin().await.unwrap().bulk_id)).await.unwrap();
        assert_eq!(tagged.progress.done, 3, "{way}");
        let listed = client.list_bulk().await.unwrap();
        let ids: Vec<_> = listed.iter().map(|job| job.bulk_id).collect();
        assert_eq!(ids, [tagged.bulk_id, job.bulk_id, dry.bulk_id], "{way}");
    }
}

#[tokio::test]
async fn a_result_is_waited_for_and_read() {
    for (way, client, _server) in both_ways().await {
        let execution = client.submit("add").input(&[1, 2]).tag("team", "a").send().await.unwrap();
        let task = take(&client).await;
        assert_eq!(&task.input.as_ref().unwrap().bytes[..], b"[1,2]", "{way}");
        let waiting = tokio::spawn({
            let execution = execution.clone();
            async move { execution.result::<i64>().await }
        });
        finish(&client, &task, "3").await;
        assert_eq!(within(waiting).await.unwrap().unwrap(), 3, "{way}");
        let filter = list_executions::Args { tag: vec!["team=a".into()], ..Default::default() };
        let listed = client.list_all(filter).await.unwrap();
        assert_eq!(listed.iter().map(|one| one.execution_id).collect::<Vec<_>>(), [execution.id()], "{way}");
    }
}

#[tokio::test]
async fn an_end_without_success_is_an_error_with_its_reason() {
    for (way, client, _server) in both_ways().await {
        let execution = client.submit("k").send().await.unwrap();
        execution.cancel("no longer needed").await.unwrap();
        match execution.result::<()>().await {
            Err(SdkError::NotCompleted { public_state, .. }) => {
                assert_eq!(public_state, PublicState::Cancelled, "{way}")
            }
            other => panic!("{way}: {other:?}"),
        }
        assert_eq!(execution.wait_for(Duration::ZERO).await.unwrap().unwrap().public_state, PublicState::Cancelled);
    }
}

#[tokio::test]
async fn a_refusal_has_the_same_code_and_details_either_way() {
    let mut refusals = Vec::new();
    for (_way, client, _server) in both_ways().await {
        let Err(SdkError::Refused(error)) = client.submit("k").lane("no lane").send().await else { panic!() };
        refusals.push((error.code, error.details["field"].clone()));
        let unknown = client.execution(Default::default()).get().await.unwrap_err();
        assert_eq!(unknown.code(), Some(Code::ExecutionNotFound));
    }
    assert_eq!(refusals[0], refusals[1]);
    assert_eq!(refusals[0], (Code::Invalid, "lane".into()));
}

#[tokio::test]
async fn a_tail_shows_every_frame_and_the_end() {
    for (way, client, _server) in both_ways().await {
        let execution = client.submit("k").send().await.unwrap();
        let task = take(&client).await;
        append(&client, &task, 1).await;
        let mut tail = execution.tail();
        let Some(Ok(StreamEvent::Frame(first))) = within(tail.next()).await else { panic!("{way}") };
        assert_eq!(first.id.to_string(), "0-1");
        append(&client, &task, 2).await;
        let Some(Ok(StreamEvent::Frame(second))) = within(tail.next()).await else { panic!("{way}") };
        assert_eq!((second.id.to_string().as_str(), &second.payload[..]), ("0-2", &b"\"x\""[..]));
        finish(&client, &task, "null").await;
        let end = within(tail.next()).await.unwrap().unwrap();
        assert_eq!(end, StreamEvent::End { public_state: PublicState::Completed }, "{way}");
        assert!(within(tail.next()).await.is_none(), "{way}");
    }
}

#[tokio::test]
async fn a_subscription_goes_on_from_its_cursor() {
    for (way, client, _server) in both_ways().await {
        let ids = [client.submit("k").send().await.unwrap().id(), client.submit("k").send().await.unwrap().id()];
        let mut events = client.events().kinds([flowfabric::EventKind::Completion]);
        let ended = |happening: Happening| match happening {
            Happening::Event(view) => {
                let Event { event_type, execution_id, .. } = view.event;
                assert_eq!(event_type, EventType::Completed, "{way}");
                execution_id.unwrap()
            }
            gap => panic!("{way}: {gap:?}"),
        };
        let first = take(&client).await;
        finish(&client, &first, "1").await;
        assert_eq!(ended(within(events.next()).await.unwrap()), first.execution_id);
        let cursor = events.cursor().unwrap().to_owned();
        drop(events);
        let second = take(&client).await;
        finish(&client, &second, "2").await;
        let mut later = client.events().after(cursor);
        let id = loop {
            if let Happening::Event(view) = within(later.next()).await.unwrap()
                && view.event.event_type == EventType::Completed
            {
                break view.event.execution_id.unwrap();
            }
        };
        assert_eq!(id, second.execution_id, "{way}");
        assert!(ids.contains(&id));
    }
}

#[tokio::test]
async fn a_namespace_separates_and_a_wrong_token_is_refused_at_connect() {
    for (way, client, _server) in both_ways().await {
        let team = client.in_namespace("team");
        let id = team.submit("k").send().await.unwrap().id();
        assert_eq!(client.execution(id).get().await.unwrap().namespace, "team", "{way}");
        assert!(client.list_all(Default::default()).await.unwrap().is_empty(), "{way}");
        assert_eq!(team.list_all(Default::default()).await.unwrap().len(), 1, "{way}");
    }
    let settings = Settings { api_token: Some("right-token-of-the-server".into()), ..Settings::default() };
    let server = Running::start(settings, Arc::new(MemoryStore::new())).await;
    let refused = Client::builder(&server.url).token("wrong-token-of-the-server").connect().await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Unauthenticated));
    let client = Client::builder(&server.url).token("right-token-of-the-server").connect().await.unwrap();
    client.submit("k").send().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_token_belongs_to_the_namespace_of_the_client_that_creates_it() {
    for (way, client, _server) in both_ways().await {
        let team = client.in_namespace("team");
        let args = create_token::Args {
            name: "deploy".into(),
            role: Role::Reader,
            namespace: None,
            expires_in_ms: None,
            lanes: Default::default(),
            may_assert_source: false,
        };
        team.call::<CreateToken>(args).await.unwrap();
        let listed = client.call::<ListTokens>(list_tokens::Args::default()).await.unwrap();
        assert_eq!(listed.items[0].namespace.as_str(), "team", "{way}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be() {
    let refused = Client::builder("http://127.0.0.1:1").retry(RetryPolicy::never()).connect().await.unwrap_err();
    assert!(matches!(refused, SdkError::Unreachable(_)), "{refused}");
    let bad = Client::connect("gopher://x").await.unwrap_err();
    assert!(bad.to_string().contains("gopher"), "{bad}");
    let bad = Client::builder("http://user:password@host").connect().await.unwrap_err();
    assert!(matches!(bad, SdkError::Config { field: "url", .. }), "{bad}");
}

#[tokio::test]
async fn a_tail_and_its_calls_survive_a_server_that_comes_back() {
    let store = Arc::new(MemoryStore::new());
    let server = Running::start(Settings::default(), store.clone()).await;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let client = Client::connect(&server.url).await.unwrap();
    let execution = client.submit("k").send().await.unwrap();
    let task = take(&client).await;
    append(&client, &task, 1).await;
    let mut tail = execution.tail();
    assert!(matches!(within(tail.next()).await, Some(Ok(StreamEvent::Frame(_)))));
    server.stop().await;
    let again = Running::start(Settings { listen: Some(address), ..Settings::default() }, store).await;
    append(&client, &task, 2).await;
    finish(&client, &task, "1").await;
    let Some(Ok(StreamEvent::Frame(frame))) = within(tail.next()).await else { panic!() };
    assert_eq!(frame.id.to_string(), "0-2", "neither missed nor repeated");
    assert!(matches!(within(tail.next()).await, Some(Ok(StreamEvent::End { .. }))));
    again.stop().await;
}
