//! A crowd before one stream: no viewer misses a frame, none sees one twice, and a viewer costs the server little.
//!
//! `FF_TEST_VIEWERS=2000` makes the crowd as large as a busy page, and 10000 as large as the scorecard asks for; it needs
//! twice as many open files. The figures are printed: `cargo test -p ff-cli --test server viewers -- --nocapture`.

use std::io::{BufRead as _, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

use crate::process::{Process, TEST_TIMEOUT, request};

const VIEWERS_DEFAULT: usize = 200;
const FRAMES: u64 = 120;
/// The most that a viewer may cost; small crowds drown in the noise of everything else.
const VIEWER_MAX_BYTES: usize = 50_000;
const CROWD: usize = 1_000;

/// Answers as plain text until the connection ends: HTTP/1.0 knows no chunks.
async fn open(address: &str, id: &str, last: u64) -> Lines<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let last = if last == 0 { String::new() } else { format!("last-event-id: 0-{last}\r\n") };
    let head = format!("GET /v1/executions/{id}/stream HTTP/1.0\r\nhost: localhost\r\n{last}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    BufReader::new(stream).lines()
}

/// Watches to the end and leaves every few frames. Answers how often it came back.
async fn watch(address: String, id: String, every: u64, arrived: Arc<AtomicUsize>) -> u64 {
    let (mut seen, mut returns) = (0, 0);
    let mut lines = open(&address, &id, seen).await;
    loop {
        let line = lines.next_line().await.unwrap().expect("the stream ended before the execution");
        if line == "event: end" {
            assert_eq!(seen, FRAMES);
            return returns;
        }
        let Some(sequence) = line.strip_prefix("id: 0-") else { continue };
        let sequence: u64 = sequence.parse().unwrap();
        assert_eq!(sequence, seen + 1, "a gap or a duplicate");
        seen = sequence;
        if seen == 1 {
            arrived.fetch_add(1, Ordering::Relaxed);
        } else if seen.is_multiple_of(every) {
            returns += 1;
            lines = open(&address, &id, seen).await;
        }
    }
}

fn call(address: &str, head: &str, body: &Value) -> Value {
    let (status, answer) = request(address, head, &[], &body.to_string()).expect("an answer");
    assert!(matches!(status, 200 | 201), "{status} {answer}");
    answer
}

/// An execution with a worker that appends to it, over one connection, as workers do.
struct Writer {
    address: String,
    connection: std::net::TcpStream,
    id: String,
    fence: Value,
}

impl Writer {
    fn start(address: &str) -> Self {
        let created = call(address, "POST /v1/executions", &json!({ "kind": "show" }));
        let claim = json!({ "lanes": ["default"], "wait_ms": 10_000, "lease_ttl_ms": 3_600_000 });
        let claimed = call(address, "POST /v1/workers/w/claim", &claim);
        let id = created["execution_id"].as_str().unwrap().to_owned();
        let connection = std::net::TcpStream::connect(address).unwrap();
        connection.set_nodelay(true).unwrap();
        Self { address: address.into(), connection, id, fence: claimed["tasks"][0]["fence"].clone() }
    }

    /// Sends a call and reads its answer to the end.
    fn call(&self, path: &str, body: &Value) {
        let (mut connection, body) = (&self.connection, body.to_string());
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json");
        write!(connection, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut lines = std::io::BufReader::new(connection);
        let mut length = 0;
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 && line != "\r\n" {
            assert!(!line.starts_with("HTTP/1.1") || line.starts_with("HTTP/1.1 200"), "{line}");
            length = line.strip_prefix("content-length: ").map_or(length, |text| text.trim().parse().unwrap());
            line.clear();
        }
        lines.read_exact(&mut vec![0; length]).unwrap();
    }

    /// Appends one frame after the other; the times they took, in order of length.
    fn append(&self, first: u64, count: u64) -> Vec<Duration> {
        let mut times = Vec::new();
        for sequence in first..first + count {
            let frames = json!([{ "type": "text", "payload": { "n": sequence, "text": "a few words of a model" } }]);
            let body = json!({ "fence": self.fence, "first_sequence": sequence, "frames": frames });
            let started = Instant::now();
            self.call(&format!("/v1/executions/{}/frames", self.id), &body);
            times.push(started.elapsed());
        }
        times.sort();
        times
    }

    fn complete(&self) {
        call(&self.address, &format!("POST /v1/executions/{}/complete", self.id), &json!({ "fence": self.fence }));
    }
}

#[test]
fn viewers_of_one_stream_that_reconnect_miss_nothing_and_cost_little() {
    let viewers = std::env::var("FF_TEST_VIEWERS").ok().map_or(VIEWERS_DEFAULT, |text| text.parse().unwrap());
    // All of them come from one address, and one that came back may be there before the server saw it leave.
    let places = (4 * viewers).to_string();
    let variables = [
        ("FF_LOG_LEVEL", "warn,ff_server=info"),
        ("FF_SSE_MAX", &places),
        ("FF_CONNECTIONS_MAX", &places),
        ("FF_CALLER_SHARE_PERCENT", "100"),
    ];
    let server = Process::start("memory://", &variables);
    let time_max = TEST_TIMEOUT * u32::try_from(viewers.div_ceil(CROWD)).unwrap();
    let idle = Writer::start(&server.address);
    let alone = idle.append(1, FRAMES);
    idle.complete();

    let writer = Writer::start(&server.address);
    writer.append(1, 1);
    let before = server.resident_bytes();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let arrived = Arc::new(AtomicUsize::new(0));
    let watching: Vec<_> = (0..viewers)
        .map(|number| {
            // The viewers leave at different moments, the most eager after every seventh frame.
            let every = 7 + (number % 40) as u64;
            runtime.spawn(watch(server.address.clone(), writer.id.clone(), every, arrived.clone()))
        })
        .collect();
    let started = Instant::now();
    while arrived.load(Ordering::Relaxed) < viewers {
        assert!(started.elapsed() < time_max, "only {arrived:?} of {viewers} have arrived");
        std::thread::yield_now();
    }
    let after = server.resident_bytes();
    let watched = writer.append(2, FRAMES - 1);
    writer.complete();
    let returns = runtime.block_on(async {
        let mut returns = 0;
        for viewer in watching {
            returns += tokio::time::timeout(time_max, viewer).await.expect("a viewer waits in vain").unwrap();
        }
        returns
    });
    let each = before.zip(after).map(|(before, after)| after.saturating_sub(before) / viewers);
    let part = |times: &[Duration], percent: usize| times[times.len() * percent / 100];
    println!(
        "{viewers} viewers of {FRAMES} frames came back {returns} times: no gap, no duplicate; {each:?} bytes each; \
         append p50 {:?}, p99 {:?} alone, {:?} and {:?} watched",
        part(&alone, 50),
        part(&alone, 99),
        part(&watched, 50),
        part(&watched, 99)
    );
    assert!(returns >= viewers as u64, "{returns}");
    if viewers >= CROWD {
        assert!(each.is_none_or(|each| each <= VIEWER_MAX_BYTES), "{each:?} bytes each");
    }
    server.terminate();
    assert_eq!(server.ended().0.code(), Some(0));
}
