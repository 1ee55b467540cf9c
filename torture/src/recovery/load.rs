//! The clients of the servers: submitters to the one that is killed next, takers to the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::record::{Kind, Record};
use crate::fleet::Fleet;
use crate::http::call;
use crate::instant::now_ms;

/// Between two turns of a submitter.
const PACE: Duration = Duration::from_millis(10);
/// A delay ends up to this much later.
const DELAY_MAX_MS: i64 = 6_000;
/// How long the leases last that no worker renews.
const LEASE_TTL_MS: i64 = 6_000;
/// How long a taker waits at one server.
const WAIT_MS: i64 = 1_000;
/// A taker that found nothing looks again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Takers of each kind.
const TAKERS: usize = 2;

/// The threads of the load.
pub(super) struct Load {
    pub(super) stop_submitting: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Ends all threads.
    pub(super) fn stop(self) {
        self.stop_submitting.store(true, Ordering::SeqCst);
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            // A thread that panicked has said so; what it would have seen counts as lost.
            let _ = thread.join();
        }
    }
}

/// Begins.
pub(super) fn start(fleet: &Arc<Fleet>, record: &Arc<Record>) -> Load {
    let mut load = Load { stop_submitting: Arc::default(), stop: Arc::default(), threads: Vec::new() };
    let submitters: [fn(&Submitter); 4] =
        [Submitter::submit, Submitter::end_member, Submitter::delay, Submitter::let_go];
    for turn in submitters {
        let submitter = Submitter::new(fleet, record);
        let stop = load.stop_submitting.clone();
        load.threads.push(thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                turn(&submitter);
                thread::sleep(PACE);
            }
        }));
    }
    for kind in Kind::ALL {
        for number in 0..TAKERS {
            let (fleet, record, stop) = (fleet.clone(), record.clone(), load.stop.clone());
            load.threads.push(thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    take(&fleet, &record, kind, number);
                }
            }));
        }
    }
    load
}

/// Says what the server that is killed next acknowledges.
struct Submitter {
    fleet: Arc<Fleet>,
    record: Arc<Record>,
    turns: AtomicU64,
    /// Downstreams by their upstream.
    downstreams: Mutex<BTreeMap<String, String>>,
}

impl Submitter {
    fn new(fleet: &Arc<Fleet>, record: &Arc<Record>) -> Self {
        let (fleet, record) = (fleet.clone(), record.clone());
        Self { fleet, record, turns: AtomicU64::new(0), downstreams: Mutex::default() }
    }

    fn submit(&self) {
        let (server, address) = self.fleet.victim();
        let created = call(address, "/v1/executions", &json!({ "kind": "test", "lane": Kind::Submit.lane() }));
        if let Some(id) = created.as_ref().and_then(|created| created["execution_id"].as_str()) {
            self.record.acknowledged(Kind::Submit, id, server, 0);
        }
    }

    fn delay(&self) {
        let (server, address) = self.fleet.victim();
        let turn = i64::try_from(self.turns.fetch_add(1, Ordering::Relaxed)).unwrap_or(0);
        let due = now_ms() + turn * 331 % DELAY_MAX_MS;
        let args = json!({ "kind": "test", "lane": Kind::Timer.lane(), "delay_until": due });
        let created = call(address, "/v1/executions", &args);
        if let Some(id) = created.as_ref().and_then(|created| created["execution_id"].as_str()) {
            self.record.acknowledged(Kind::Timer, id, server, due);
        }
    }

    /// Makes a flow of two, takes a first member and ends it: its downstream must go on.
    fn end_member(&self) {
        let (server, address) = self.fleet.victim();
        let node = |name: &str, lane: &str| json!({ "name": name, "request": { "kind": "test", "lane": lane } });
        let nodes = [node("first", "first"), node("then", Kind::Progress.lane())];
        let args = json!({ "kind": "test", "nodes": nodes, "edges": [{ "from": "first", "to": "then" }] });
        let Some(created) = call(address, "/v1/flows", &args) else { return };
        let mut downstreams = self.downstreams.lock().expect("no holder of this lock panics");
        if let (Some(first), Some(then)) =
            (created["executions"]["first"].as_str(), created["executions"]["then"].as_str())
        {
            downstreams.insert(first.to_owned(), then.to_owned());
        }
        for task in claim(address, "submitter", "first", json!({ "max_tasks": 4 })) {
            let Some(then) = task["execution_id"].as_str().and_then(|first| downstreams.remove(first)) else {
                continue;
            };
            if complete(address, &task) {
                self.record.acknowledged(Kind::Progress, &then, server, 0);
            }
        }
    }

    /// Takes work under a short lease, and forgets it.
    fn let_go(&self) {
        let (server, address) = self.fleet.victim();
        drop(call(address, "/v1/executions", &json!({ "kind": "test", "lane": "leased" })));
        for task in claim(address, "submitter", "leased", json!({ "lease_ttl_ms": LEASE_TTL_MS })) {
            let (id, until) = (task["execution_id"].as_str(), task["lease_expires_at"].as_i64());
            let (Some(id), Some(until)) = (id, until) else { continue };
            if task["claim_kind"] == "initial" {
                self.record.acknowledged(Kind::Lease, id, server, until);
            } else {
                self.record.taken(id, now_ms());
                complete(address, &task);
            }
        }
    }
}

/// Takes what has become claimable at a server that stays.
fn take(fleet: &Fleet, record: &Record, kind: Kind, number: usize) {
    let (_, address) = fleet.survivor(number);
    // An execution that is to be leased belongs to its submitter first; no other claim waits for it.
    let wait_ms = if kind == Kind::Lease { 0 } else { WAIT_MS };
    let tasks = claim(address, "taker", kind.lane(), json!({ "max_tasks": 16, "wait_ms": wait_ms }));
    let at = now_ms();
    if tasks.is_empty() {
        // A server that is down answers at once.
        thread::sleep(LOOK_AGAIN);
    }
    for task in tasks {
        if kind == Kind::Lease && task["claim_kind"] == "initial" {
            continue;
        }
        if let Some(id) = task["execution_id"].as_str() {
            record.taken(id, at);
        }
        complete(address, &task);
    }
}

fn claim(address: &str, instance: &str, lane: &str, more: Value) -> Vec<Value> {
    let mut args = json!({ "lanes": [lane] });
    if let (Some(args), Value::Object(more)) = (args.as_object_mut(), more) {
        args.extend(more);
    }
    let answer = call(address, &format!("/v1/workers/{instance}/claim"), &args);
    answer.and_then(|answer| answer["tasks"].as_array().cloned()).unwrap_or_default()
}

fn complete(address: &str, task: &Value) -> bool {
    let id = task["execution_id"].as_str().unwrap_or_default();
    call(address, &format!("/v1/executions/{id}/complete"), &json!({ "fence": task["fence"] })).is_some()
}
