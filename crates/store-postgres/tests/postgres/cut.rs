//! Connections cut in the middle of a commit: the caller repeats it, and it has one effect.

use std::sync::Arc;
use std::sync::Mutex;

use ff_store::{Batch, Conflict, ConflictReason, LogStart, Outcome, Store};
use ff_testkit::postgres::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::fixture::{PARTITION, append, create, key, open};

const CUTS: usize = 200;

/// Which way the bytes go that a cut counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Request,
    Reply,
}

/// A proxy that cuts a connection after so many bytes.
#[derive(Default)]
struct Scissors(Mutex<Option<(Way, usize)>>);

impl Scissors {
    fn arm(&self, way: Way, after: usize) {
        *self.0.lock().unwrap() = Some((way, after));
    }

    /// Takes the cut back; whether it had happened.
    fn disarm(&self) -> bool {
        self.0.lock().unwrap().take().is_none()
    }

    /// How many of these bytes pass, if the connection is to be cut among them.
    fn cut(&self, way: Way, length: usize) -> Option<usize> {
        let mut armed = self.0.lock().unwrap();
        match *armed {
            Some((on, after)) if on == way && after < length => {
                *armed = None;
                Some(after)
            }
            Some((on, after)) if on == way => {
                *armed = Some((on, after - length));
                None
            }
            _ => None,
        }
    }
}

async fn serve(listener: TcpListener, port: u16, scissors: Arc<Scissors>) {
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        let severed = Arc::new(Notify::new());
        tokio::spawn(forward(Way::Request, from_client, to_server, scissors.clone(), severed.clone()));
        tokio::spawn(forward(Way::Reply, from_server, to_client, scissors.clone(), severed));
    }
}

async fn forward(
    way: Way,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    scissors: Arc<Scissors>,
    severed: Arc<Notify>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = tokio::select! {
            biased;
            () = severed.notified() => break,
            read = from.read(&mut buffer) => read,
        };
        let Ok(length @ 1..) = read else { break };
        let passing = scissors.cut(way, length);
        if to.write_all(&buffer[..passing.unwrap_or(length)]).await.is_err() || passing.is_some() {
            break;
        }
    }
    // Both halves go, so both ends see a lost connection.
    severed.notify_one();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_cut_in_the_middle_has_one_effect() {
    let server = Server::shared();
    let database = server.create_database("cut");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let scissors = Arc::new(Scissors::default());
    tokio::spawn(serve(listener, server.port(), scissors.clone()));
    let url = database.replace(&format!(":{}", server.port()), &format!(":{port}"));
    let store = open(&format!("{url}?pool_size=3")).await;

    let (mut cut, mut applied_before, mut number) = (0, 0, 0_u64);
    while cut < CUTS {
        let name = format!("x{number}");
        let batch = Batch { appends: vec![append("effects", &name, Some(number + 1))], ..create(&key(&name), "body") };
        // Somewhere in the request, or somewhere in the answer to it.
        let spread = usize::try_from(number).unwrap() * 37;
        if number % 2 == 0 {
            scissors.arm(Way::Request, spread % 1_500)
        } else {
            scissors.arm(Way::Reply, spread % 400)
        };
        let first = store.commit(PARTITION, [batch.clone()].into()).await;
        cut += usize::from(scissors.disarm());
        let outcome = match first {
            Ok(outcomes) => outcomes,
            Err(error) => {
                assert!(error.retryable(), "{error:?}");
                let again = repeat(&*store, &batch).await;
                applied_before += usize::from(met_itself(&again, &batch));
                again
            }
        };
        assert!(matches!(outcome[..], [Outcome::Applied(_)]) || met_itself(&outcome, &batch), "{outcome:?}");
        number += 1;
    }
    // Both kinds must have happened, or the cuts were in the wrong places.
    assert!(applied_before > CUTS / 10 && applied_before < CUTS, "{applied_before} of {cut} were applied before");
    let direct = open(&database).await;
    let page = direct.log(PARTITION, key("effects"), LogStart::After(0), 10_000).await.unwrap();
    let names: Vec<String> =
        page.records.iter().map(|record| String::from_utf8(record.record.to_vec()).unwrap()).collect();
    assert_eq!(names, (0..number).map(|number| format!("x{number}")).collect::<Vec<_>>());
}

/// Repeats the command until the store says what became of it.
async fn repeat(store: &dyn Store, batch: &Batch) -> Vec<Outcome> {
    loop {
        match store.commit(PARTITION, [batch.clone()].into()).await {
            Ok(outcomes) => return outcomes,
            Err(error) => assert!(error.retryable(), "{error:?}"),
        }
    }
}

/// Whether the batch had been applied before.
fn met_itself(outcomes: &[Outcome], batch: &Batch) -> bool {
    matches!(outcomes, [Outcome::Conflict(Conflict { why: ConflictReason::Exists(version), .. })] if *version == batch.command)
}
