//! Stopping under load.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::process::{Process, request};

/// The calls that were acknowledged.
#[derive(Default)]
struct Acknowledged {
    created: Mutex<BTreeSet<String>>,
    completed: Mutex<BTreeSet<String>>,
    count: AtomicUsize,
    over: AtomicBool,
}

fn submit(address: &str, known: &Acknowledged) {
    while !known.over.load(Ordering::Relaxed) {
        let answer = request(address, "POST /v1/executions", &[], r#"{"kind":"k","input":[1,2,3]}"#);
        // Refused or cut: nothing was promised.
        if let Some((201, created)) = answer {
            known.created.lock().unwrap().insert(created["execution_id"].as_str().unwrap().to_owned());
            known.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn work(address: &str, known: &Acknowledged) {
    let claim = json!({ "lanes": ["default"], "max_tasks": 4, "wait_ms": 10_000 }).to_string();
    while !known.over.load(Ordering::Relaxed) {
        let Some((200, claimed)) = request(address, "POST /v1/workers/w/claim", &[], &claim) else { continue };
        for task in claimed["tasks"].as_array().unwrap() {
            let id = task["execution_id"].as_str().unwrap();
            let body = json!({ "fence": task["fence"], "result": { "of": id } }).to_string();
            let head = format!("POST /v1/executions/{id}/complete");
            if let Some((200, _)) = request(address, &head, &[], &body) {
                known.completed.lock().unwrap().insert(id.to_owned());
                known.count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn a_server_on_sqlite_told_to_terminate_under_load_loses_nothing_it_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    terminate_under_load(&format!("sqlite://{}", directory.path().join("ff.db").display()));
}

#[test]
fn a_server_on_valkey_told_to_terminate_under_load_loses_nothing_it_acknowledged() {
    let valkey = ff_testkit::valkey::Server::start();
    terminate_under_load(&valkey.url());
}

#[test]
fn a_server_on_postgres_told_to_terminate_under_load_loses_nothing_it_acknowledged() {
    let database = ff_testkit::postgres::Server::shared().create_database("stop");
    terminate_under_load(&database);
}

fn terminate_under_load(store: &str) {
    let server = Process::start(store, &[]);
    let known = Arc::new(Acknowledged::default());
    let mut clients = Vec::new();
    for number in 0..6 {
        let (address, known) = (server.address.clone(), known.clone());
        clients.push(std::thread::spawn(move || match number % 2 {
            0 => submit(&address, &known),
            _ => work(&address, &known),
        }));
    }
    let started = Instant::now();
    while known.count.load(Ordering::Relaxed) < 200 {
        assert!(started.elapsed() < Duration::from_secs(60), "the load does not get going");
        std::thread::yield_now();
    }
    let stopping = Instant::now();
    server.terminate();
    let (status, log) = server.ended();
    let took = stopping.elapsed();
    known.over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert!(log.contains("\"stopped\""), "{log}");

    let server = Process::start(store, &[]);
    let (created, completed) = (known.created.lock().unwrap(), known.completed.lock().unwrap());
    assert!(created.len() > 50 && completed.len() > 20, "{} {}", created.len(), completed.len());
    for id in created.iter() {
        let found = request(&server.address, &format!("GET /v1/executions/{id}/state"), &[], "");
        let (status, state) = found.expect("an answer");
        assert_eq!(status, 200, "{id} was acknowledged and is gone");
        if completed.contains(id) {
            assert_eq!(state["public_state"], "completed", "{id}");
        }
    }
    server.terminate();
    assert_eq!(server.ended().0.code(), Some(0));
}
