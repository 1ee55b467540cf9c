//! Submissions that are made at the same time share requests, and each keeps its own answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ff_server::Settings;
use ff_store::memory::MemoryStore;
use flowfabric::{Client, Code, PublicState};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Running, within};

/// The beginning of each request: the connection is kept alive, so each one comes by itself in a chunk of its own.
const REQUEST: &[u8] = b"POST /v1/executions";
const AT_ONCE: usize = 200;

/// A proxy that counts requests which submit something; every so many-th answer is lost with its connection.
async fn counting_proxy(to: String, lose_every: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(forward(client, to.clone(), counted.clone(), lose_every));
        }
    });
    (url, requests)
}

async fn forward(mut client: TcpStream, to: String, requests: Arc<AtomicUsize>, lose_every: usize) {
    let mut server = TcpStream::connect(to.trim_start_matches("http://")).await.unwrap();
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut lose = false;
    loop {
        tokio::select! {
            count = client.read(&mut asked) => {
                let Ok(count @ 1..) = count else { return };
                if asked.starts_with(REQUEST) {
                    let number = requests.fetch_add(1, Ordering::SeqCst) + 1;
                    lose = number.is_multiple_of(lose_every);
                }
                server.write_all(&asked[..count]).await.unwrap();
            }
            count = server.read(&mut answered) => {
                let Ok(count @ 1..) = count else { return };
                if lose || client.write_all(&answered[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn deployment(lose_every: usize) -> (Running, Client, Arc<AtomicUsize>) {
    let server = Running::start(Settings::default(), Arc::new(MemoryStore::new())).await;
    let (url, requests) = counting_proxy(server.url.clone(), lose_every).await;
    let client = Client::connect(&url).await.unwrap();
    (server, client, requests)
}

async fn submitted(client: &Client) -> usize {
    client.list_all(Default::default()).await.unwrap().len()
}

#[tokio::test]
async fn submissions_at_the_same_time_share_requests_and_keep_their_own_answers() {
    let (server, client, requests) = deployment(usize::MAX).await;
    let submissions = (0..AT_ONCE).map(|number| {
        // A kind that is too long is refused.
        let kind = if number == 77 { "k".repeat(1_000) } else { format!("kind-{number}") };
        client.submit(kind).input(&number).send()
    });
    let answers = within(join_all(submissions)).await;
    for (number, answer) in answers.iter().enumerate() {
        match answer {
            Ok(execution) => {
                let view = execution.get().await.unwrap();
                assert_eq!((view.kind, view.public_state), (format!("kind-{number}"), PublicState::Waiting));
            }
            Err(error) => {
                assert_eq!(number, 77, "{error}");
                assert_eq!(error.code(), Some(Code::Invalid), "{error}");
            }
        }
    }
    assert_eq!(submitted(&client).await, AT_ONCE - 1);
    let requests = requests.load(Ordering::SeqCst);
    assert!(requests < AT_ONCE / 10, "{requests} requests for {AT_ONCE} submissions");
    server.stop().await;
}

#[tokio::test]
async fn a_submission_by_itself_is_a_request_by_itself() {
    let (server, client, requests) = deployment(usize::MAX).await;
    for number in 1..=5 {
        within(client.submit("k").send()).await.unwrap();
        assert_eq!(requests.load(Ordering::SeqCst), number);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_lost_answer_of_a_shared_request_leaves_one_execution_for_each_submission() {
    let (server, client, requests) = deployment(3).await;
    let answers = within(join_all((0..AT_ONCE).map(|number| client.submit("k").input(&number).send()))).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(requests.load(Ordering::SeqCst) >= 3, "no answer was lost");
    assert_eq!(submitted(&client).await, AT_ONCE);
    server.stop().await;
}

#[tokio::test]
async fn submissions_whose_callers_go_away_hold_up_no_other() {
    let (server, client, _) = deployment(usize::MAX).await;
    for turn in 0..20 {
        // Some have a request under way, and others wait, when their callers go.
        let mut leaving: Vec<_> = (0..40).map(|_| Box::pin(client.submit("left").send())).collect();
        for (number, one) in leaving.iter_mut().enumerate() {
            let polled = futures_util::poll!(one.as_mut());
            assert!(polled.is_pending(), "turn {turn}, {number}");
        }
        let staying = join_all((0..40).map(|_| client.submit("stayed").send()));
        let leave = async {
            for one in leaving {
                drop(one);
                tokio::task::yield_now().await;
            }
        };
        let (answers, ()) = within(futures_util::future::join(staying, leave)).await;
        assert!(answers.iter().all(Result::is_ok), "turn {turn}: {answers:?}");
    }
    let stayed =
        client.list_all(flowfabric::op::list_executions::Args { kind: vec!["stayed".into()], ..Default::default() });
    assert_eq!(stayed.await.unwrap().len(), 800);
    server.stop().await;
}
