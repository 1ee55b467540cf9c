//! The clients: submitters that insist until they know what became of each call, and whoever made the budgets, quotas and
//! the schedule before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::backlog::Backlog;
use super::plan::{self, Load, kind};
use super::signals;
use crate::caller::{Caller, Request};
use crate::history::Recorder;
use crate::instant::now_ms;
use crate::outcome::open_executions;
use crate::random::Random;

const SUBMITTERS: usize = 3;
/// Between two looks of the watcher.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// A delay ends up to this much later.
const DELAY_MAX_MS: u64 = 3_000;

/// The threads of the clients.
#[derive(Debug)]
pub struct Clients {
    stop_submitting: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    submitters: Vec<JoinHandle<()>>,
    others: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Makes the budgets, the quotas and the schedule, and begins.
    pub fn start(servers: &[String], recorder: &Arc<Recorder>, seed: u64, load: &Load) -> Result<Self, String> {
        prepare(&mut Caller::new(servers, recorder, 0))?;
        let (stop_submitting, stop): (Arc<AtomicBool>, Arc<AtomicBool>) = Default::default();
        let (sender, receiver) = channel();
        let waiting = Arc::new(Mutex::new(receiver));
        let backlog: Arc<Backlog> = Arc::default();
        let submitters = (0..SUBMITTERS).map(|number| {
            let mut submitter = Submitter {
                caller: Caller::new(servers, recorder, number),
                random: Random::new(seed, number as u64),
                number,
                turn: 0,
                focus: load.focus,
                waiting: sender.clone(),
                backlog: backlog.clone(),
            };
            let (stop, load) = (stop_submitting.clone(), *load);
            thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    if submitter.backlog.open() < load.open_max {
                        submitter.turn();
                    }
                    thread::sleep(load.pace);
                }
            })
        });
        let submitters = submitters.collect();
        let mut others = Vec::new();
        for number in 0..2 {
            let mut caller = Caller::new(servers, recorder, number);
            let (waiting, stop) = (waiting.clone(), stop.clone());
            others.push(thread::spawn(move || signals::deliver(&mut caller, &waiting, &stop)));
        }
        let mut watcher = Caller::new(servers, recorder, 1);
        let (recorder, stopped) = (recorder.clone(), stop.clone());
        others.push(thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                watch(&mut watcher, &recorder);
                if let Some((count, counted_at)) = open_executions(&mut watcher) {
                    backlog.counted(count, counted_at, now_ms());
                }
                thread::sleep(LOOK_AGAIN);
            }
        }));
        Ok(Self { stop_submitting, stop, submitters, others })
    }

    /// Submits nothing more; returns when every submit is known.
    pub fn finish_submitting(&mut self) {
        self.stop_submitting.store(true, Ordering::SeqCst);
        for thread in self.submitters.drain(..) {
            // A thread that panicked has said so; what it submitted is in the history.
            let _ = thread.join();
        }
    }

    /// Ends all threads.
    pub fn stop(mut self) {
        self.finish_submitting();
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.others {
            let _ = thread.join();
        }
    }
}

fn prepare(caller: &mut Caller) -> Result<(), String> {
    let mut make = |call, path: &str, body: Value| {
        let about = json!({ "name": body["name"] });
        let reply = caller.insist(&Request { call, path: path.to_owned(), body, about });
        match reply {
            Some(reply) if reply.accepted => Ok(()),
            other => Err(format!("{path} is refused: {other:?}")),
        }
    };
    for (name, hard) in [(plan::COUNTED, 0), (plan::CEILING, plan::CEILING_TOKENS)] {
        make("budget", "/v1/budgets", json!({ "name": name, "dimensions": { "tokens": { "hard": hard } } }))?;
    }
    let race = json!({ "tokens": { "hard": plan::RACE_TOKENS } });
    make(
        "budget",
        "/v1/budgets",
        json!({ "name": plan::RACE, "dimensions": race, "rolling_ms": plan::RACE_WINDOW_MS }),
    )?;
    make("quota", "/v1/quotas", json!({ "name": plan::SLOTS, "max_concurrent": plan::SLOTS_MAX }))?;
    for name in (0..plan::RATES).map(rate) {
        let quota = json!({ "name": name, "window_seconds": plan::RATE_WINDOW_S, "max_requests": plan::RATE_MAX });
        make("quota", "/v1/quotas", quota)?;
    }
    let schedule = json!({
        "name": plan::SCHEDULE, "spec": { "every_ms": plan::SCHEDULE_EVERY_MS }, "overlap": "allow",
        "catch_up": { "all": { "max": 1_000 } },
        "template": { "execution": { "kind": kind::SCHEDULED, "lane": plan::LANE, "policy": policy() } },
    });
    make("schedule", "/v1/schedules", schedule)
}

fn rate(number: u64) -> String {
    format!("{}-{number}", plan::RATE)
}

/// Attempts are lost all the time here, and retries come soon.
fn policy() -> Value {
    let backoff = json!({ "fixed": { "delay_ms": 50 } });
    json!({ "retry": { "max_retries": 20, "backoff": backoff }, "max_reclaim_count": 1_000 })
}

struct Submitter {
    caller: Caller,
    random: Random,
    number: usize,
    turn: u64,
    focus: Option<&'static str>,
    /// Executions that wait for a signal.
    waiting: Sender<String>,
    backlog: Arc<Backlog>,
}

impl Submitter {
    fn turn(&mut self) {
        let key = format!("{}-{}", self.number, self.turn);
        self.turn += 1;
        let kind = self.kind();
        let more = match kind {
            kind::PLAIN => json!({ "budget_ids": [plan::COUNTED, plan::CEILING] }),
            kind::RACES => json!({ "budget_ids": [plan::RACE] }),
            kind::SLOTTED => json!({ "quota_policy_id": plan::SLOTS }),
            kind::RATED => {
                let quotas = if self.focus == Some(kind::RATED) { plan::RATES } else { 1 };
                json!({ "quota_policy_id": rate(self.random.below(quotas)) })
            }
            kind::DELAYED => {
                let delay = i64::try_from(self.random.below(DELAY_MAX_MS)).unwrap_or_default();
                json!({ "delay_until": now_ms() + delay })
            }
            kind::MEMBER => return self.graph(&key),
            _ => json!({}),
        };
        let id = self.submit(&key, kind, more);
        if let Some(id) = id.filter(|_| kind == kind::WAITS) {
            // The signallers live longer than the submitters.
            let _ = self.waiting.send(id);
        }
    }

    /// The kind of the next submit; a member stands for a whole graph.
    fn kind(&mut self) -> &'static str {
        if let Some(focus) = self.focus
            && self.random.percent(90)
        {
            return focus;
        }
        match self.random.below(100) {
            0..49 => kind::PLAIN,
            49 => kind::RACES,
            50..53 => kind::LONG,
            53..70 => kind::WAITS,
            70..78 => kind::MEMBER,
            78..88 => kind::SLOTTED,
            88..92 => kind::RATED,
            _ => kind::DELAYED,
        }
    }

    fn submit(&mut self, key: &str, kind: &str, more: Value) -> Option<String> {
        let mut body = json!({ "kind": kind, "lane": plan::LANE, "idempotency_key": key, "policy": policy() });
        let mut about = json!({ "key": key, "kind": kind });
        if let (Some(body), Some(about), Value::Object(more)) = (body.as_object_mut(), about.as_object_mut(), more) {
            let told = ["delay_until", "quota_policy_id"].into_iter();
            about.extend(told.filter_map(|name| Some((name.to_owned(), more.get(name)?.clone()))));
            body.extend(more);
        }
        let request = Request { call: "submit", path: "/v1/executions".to_owned(), body, about };
        let reply = self.caller.insist(&request).filter(|reply| reply.accepted)?;
        self.backlog.submitted(1, now_ms());
        Some(reply.body["execution_id"].as_str().unwrap_or_default().to_owned())
    }

    /// A random graph of three to six members.
    fn graph(&mut self, key: &str) {
        let size = 3 + self.random.below(4);
        let name = |number: u64| format!("n{number}");
        let nodes: Vec<Value> = (0..size)
            .map(|number| {
                let request = json!({ "kind": kind::MEMBER, "lane": plan::LANE, "policy": policy() });
                json!({ "name": name(number), "request": request })
            })
            .collect();
        let mut edges = Vec::new();
        for to in 1..size {
            let first = self.random.below(to);
            edges.push(json!({ "from": name(first), "to": name(to) }));
            let second = self.random.below(to);
            if second != first {
                edges.push(json!({ "from": name(second), "to": name(to) }));
            }
        }
        let about = json!({ "key": key, "edges": edges });
        let body = json!({ "kind": "graph", "nodes": nodes, "edges": edges, "idempotency_key": key });
        let request = Request { call: "flow", path: "/v1/flows".to_owned(), body, about };
        if self.caller.insist(&request).is_some_and(|reply| reply.accepted) {
            self.backlog.submitted(size, now_ms());
        }
    }
}

/// Looks at budgets and quotas while they are used.
fn watch(caller: &mut Caller, recorder: &Recorder) {
    for name in [plan::CEILING, plan::RACE] {
        if let Some(budget) = caller.look_json(&format!("/v1/budgets/{name}")) {
            recorder.note(name, &budget["standing"]["tokens"]);
        }
    }
    if let Some(quota) = caller.look_json(&format!("/v1/quotas/{}", plan::SLOTS)) {
        recorder.note("slots", &json!({ "in_use": quota["in_use"] }));
    }
}
