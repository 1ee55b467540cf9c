//! Attacks a server as those would who have no token, a small one, or one of another namespace.
//!
//! First every credential tries every route, in the tests `redteam` of `ff-server`. Then a server of its own process is
//! flooded from many connections: its memory stays where it is, nothing fails with 5xx, a caller that may work keeps its
//! share of the answers and is answered soon, and the log holds no secret.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::program;
use crate::server::{Server, TOKEN};

/// Connections that ask at the same time.
const FLOODERS: usize = 16;
/// The memory may grow by this much after the first third of the flood: what a server keeps of strangers is bounded.
const GROWTH_MAX_PERCENT: u64 = 25;
/// The share of the answers that the one who works must have, of what an equal share would be.
const SHARE_MIN_PERCENT: usize = 12;

/// The slowest of a hundred answers to the one who works; an equal share on a small machine is far faster.
const SLOWEST_MAX: Duration = Duration::from_secs(2);
/// Where the words of a secret begin, and how many digits follow it. A token of the API and one of a waitpoint look so.
const SECRETS: [(&str, usize); 2] = [("ff_", 32), ("k1:", 32)];

/// `cargo xtask redteam [SECONDS]`: ten seconds unless told otherwise.
pub(crate) fn run(arguments: &[&str]) -> ExitCode {
    let seconds = match arguments {
        [] => Some(10),
        [seconds] => seconds.parse().ok(),
        _ => None,
    };
    let Some(seconds) = seconds else {
        eprintln!("usage: cargo xtask redteam [SECONDS]");
        return ExitCode::FAILURE;
    };
    match try_every_route().and_then(|()| flood(Duration::from_secs(seconds))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("redteam: {why}");
            ExitCode::FAILURE
        }
    }
}

fn try_every_route() -> Result<(), String> {
    let tests = ["test", "--quiet", "--package", "ff-server", "--test", "http", "redteam"];
    match Command::new("cargo").args(tests).status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err("somebody got further than its role, or the tests do not run".into()),
    }
}

fn flood(time: Duration) -> Result<(), String> {
    let program = program::build()?;
    let log = std::env::temp_dir().join(format!("ff-redteam-{}.log", std::process::id()));
    let flooded = std::fs::File::create(&log)
        .map_err(|why| format!("no log: {why}"))
        .and_then(|file| Server::start_logging(&program, "debug", Stdio::from(file)))
        .and_then(|server| flood_server(&server, time))
        .and_then(|()| holds_no_secret(&log));
    // One that was never made needs no removal.
    let _ = std::fs::remove_file(&log);
    flooded
}

/// What was counted during a flood.
#[derive(Default)]
struct Counts {
    over: AtomicBool,
    refusals: AtomicUsize,
    failures: AtomicUsize,
}

fn flood_server(server: &Server, time: Duration) -> Result<(), String> {
    let quiet = work(server, |began| began.elapsed() >= time / 10)?;
    let counts = Counts::default();
    let (early, late, busy) = std::thread::scope(|scope| {
        for number in 0..FLOODERS {
            let (server, counts) = (&server, &counts);
            scope.spawn(move || attack_until_over(server, counts, number));
        }
        let mut early = None;
        let busy = work(server, |began| {
            if early.is_none() && began.elapsed() >= time / 3 {
                early = Some(server.memory_kib());
            }
            began.elapsed() >= time
        });
        counts.over.store(true, Ordering::Relaxed);
        (early.flatten(), server.memory_kib(), busy)
    });
    let busy = busy?;
    let (refusals, failures) = (counts.refusals.into_inner(), counts.failures.into_inner());
    let memory = |kib: Option<u64>| kib.map_or("an unknown amount".to_owned(), |kib| format!("{kib} KiB"));
    println!("redteam: {refusals} refusals, {failures} failures; {}, then {}", memory(early), memory(late));
    for (when, took) in [("before", &quiet), ("meanwhile", &busy)] {
        println!("redteam: {when} {} calls of the one who may: {}", took.len(), summary(took));
    }
    if failures > 0 {
        return Err(format!("{failures} answers failed"));
    }
    let share = busy.len() * 100 / (refusals / FLOODERS).max(1);
    if share < SHARE_MIN_PERCENT {
        return Err(format!("the one who may work got {share} percent of an equal share"));
    }
    if percentile(&busy, 99) > SLOWEST_MAX {
        return Err("the one who may work was answered late".into());
    }
    match (early, late) {
        (Some(early), Some(late)) if late > early + early * GROWTH_MAX_PERCENT / 100 => {
            Err(format!("the memory grew from {early} to {late} KiB"))
        }
        _ => Ok(()),
    }
}

fn attack_until_over(server: &Server, counts: &Counts, number: usize) {
    let mut turn = number;
    while !counts.over.load(Ordering::Relaxed) {
        match ask(&server.address, &attack(turn)) {
            Some(status) if status >= 500 => counts.failures.fetch_add(1, Ordering::Relaxed),
            _ => counts.refusals.fetch_add(1, Ordering::Relaxed),
        };
        turn += 1;
    }
}

/// Submits and lists one after the other, as one who may; the times that the answers took, the shortest first.
fn work(server: &Server, mut ends: impl FnMut(Instant) -> bool) -> Result<Vec<Duration>, String> {
    let may = format!("Authorization: Bearer {TOKEN}\r\n");
    let submit = request(
        &format!("POST /v1/executions HTTP/1.1\r\n{may}"),
        "{\"kind\":\"works\",\"singleton\":{\"key\":\"one\"}}",
    );
    let list = request(&format!("GET /v1/executions HTTP/1.1\r\n{may}"), "");
    let (began, mut took) = (Instant::now(), Vec::new());
    while !ends(began) {
        let asked = Instant::now();
        let call = if took.len() % 2 == 0 { &submit } else { &list };
        match ask(&server.address, call) {
            Some(200 | 201) => took.push(asked.elapsed()),
            other => return Err(format!("the one who may work got {other:?}")),
        }
    }
    took.sort_unstable();
    Ok(took)
}

fn percentile(took: &[Duration], percent: usize) -> Duration {
    took.get(took.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
}

fn summary(took: &[Duration]) -> String {
    let (middle, slowest) = (percentile(took, 50), percentile(took, 99));
    format!("half within {:.1} ms, 99 of 100 within {:.1} ms", middle.as_secs_f64() * 1e3, slowest.as_secs_f64() * 1e3)
}

fn holds_no_secret(log: &Path) -> Result<(), String> {
    let text = std::fs::read(log).map_err(|why| format!("the log cannot be read: {why}"))?;
    let text = String::from_utf8(text).map_err(|why| format!("the log is no text: {why}"))?;
    println!("redteam: {} lines of log", text.lines().count());
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_hexdigit).count();
    let tells = |line: &str| {
        let looks = |(mark, least): &(&str, usize)| {
            line.match_indices(mark).any(|(at, _)| digits(&line[at + mark.len()..]) >= *least)
        };
        line.contains(TOKEN) || SECRETS.iter().any(looks)
    };
    match text.lines().find(|line| tells(line)) {
        Some(line) => Err(format!("a secret is in the log: {line}")),
        None => Ok(()),
    }
}

/// A request of a stranger; another one each turn, with names and tokens that were never there before.
fn attack(turn: usize) -> String {
    let unknown = format!("Authorization: Bearer ff_{turn:032x}_{turn:064x}\r\n");
    let id = format!("0000-0190a0a0-0000-7000-8000-{turn:012x}");
    match turn % 6 {
        0 => request("GET /v1/executions HTTP/1.1\r\n", ""),
        1 => request(&format!("GET /v1/executions/{id} HTTP/1.1\r\n{unknown}"), ""),
        2 => request(&format!("POST /v1/executions HTTP/1.1\r\n{unknown}"), &"[".repeat(50_000)),
        3 => request(&format!("POST /v1/signals/{id} HTTP/1.1\r\n"), "{\"name\":\"approve\",\"token\":\"k1:00\"}"),
        4 => request(&format!("GET /v1/{id}/{} HTTP/1.1\r\n", "x".repeat(4_000)), ""),
        _ => request(&format!("POST /v1/hooks/h{turn} HTTP/1.1\r\n"), "{}"),
    }
}

fn request(head: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{head}Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// The status of the answer; none if the connection was closed without one, which is a refusal, too.
fn ask(address: &str, request: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    // A server that refuses early may not read the rest.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let line = answer.split(|byte| *byte == b' ').nth(1)?;
    std::str::from_utf8(line).ok()?.parse().ok()
}
