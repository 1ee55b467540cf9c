//! The load while things go wrong: submitters that insist until they know, workers that spend, record steps, fail and
//! complete, and workers that come back from the dead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::history::{Answer, History};
use crate::recovery::fleet::Fleet;
use crate::recovery::http::request;
use crate::recovery::record::now_ms;

/// The budget whose usage is counted, and the one whose ceiling must hold.
pub(super) const COUNTED: &str = "counted";
pub(super) const CEILING: &str = "ceiling";
/// The amount that may be reserved of the ceiling, and the amount that each attempt reserves. The ceiling is no
/// multiple of it, so that calls are refused while the budget is not used up, which would keep work from starting.
pub(super) const CEILING_TOKENS: i64 = 5_000;
const CALL_TOKENS: i64 = 3;
/// Between two submits of a submitter.
const PACE: Duration = Duration::from_millis(20);
const SUBMITTERS: usize = 2;
const WORKERS: usize = 6;
/// How long a lease lasts; the dead remember their tasks later than this.
const LEASE_TTL_MS: i64 = 5_000;
const REMEMBERED_AFTER: Duration = Duration::from_secs(8);
/// A call is repeated for so long while no server answers.
const INSIST: Duration = Duration::from_secs(45);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// The threads of the load.
pub(super) struct Load {
    pub(super) stop_submitting: Arc<AtomicBool>,
    /// Grows when every worker is to forget what it has in hand.
    pub(super) forgotten: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Makes the budgets and begins.
    pub(super) fn start(fleet: &Arc<Fleet>, history: &Arc<History>) -> Result<Self, String> {
        let caller = Caller { fleet: fleet.clone(), history: history.clone() };
        for (name, hard) in [(COUNTED, 0), (CEILING, CEILING_TOKENS)] {
            let budget = json!({ "name": name, "dimensions": { "tokens": { "hard": hard } } });
            caller.insist(0, "/v1/budgets", &budget).ok_or("no budget can be made")?;
        }
        let mut load = Self {
            stop_submitting: Arc::default(),
            forgotten: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for number in 0..SUBMITTERS {
            let (caller, stop) = (caller.clone(), load.stop_submitting.clone());
            load.threads.push(thread::spawn(move || submit(&caller, number, &stop)));
        }
        let graves: Arc<Mutex<Vec<(Instant, Value)>>> = Arc::default();
        for number in 0..WORKERS {
            let worker =
                Worker { caller: caller.clone(), number, forgotten: load.forgotten.clone(), graves: graves.clone() };
            let stop = load.stop.clone();
            load.threads.push(thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    worker.turn();
                }
            }));
        }
        let (dead, stop) = (caller, load.stop.clone());
        load.threads.push(thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                remember(&dead, &graves);
                thread::sleep(AGAIN);
            }
        }));
        Ok(load)
    }

    /// Ends all threads.
    pub(super) fn stop(self) {
        self.stop_submitting.store(true, Ordering::SeqCst);
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            // A thread that panicked has said so; what it would have done counts as open.
            let _ = thread.join();
        }
    }
}

/// Calls that are repeated until a server answers, at one server after another.
#[derive(Clone)]
struct Caller {
    fleet: Arc<Fleet>,
    history: Arc<History>,
}

impl Caller {
    /// An answer that says yes or no; `None` when no server gave one for long.
    fn insist(&self, number: usize, path: &str, body: &Value) -> Option<(bool, Value)> {
        let began = Instant::now();
        let mut tries = number;
        while began.elapsed() < INSIST {
            let at = now_ms();
            match request(self.fleet.any(tries), &format!("POST {path}"), body) {
                Some((status, text)) if status < 500 && status != 429 => {
                    let accepted = (200..300).contains(&status);
                    self.history.answered(at, if accepted { Answer::Accepted } else { Answer::Refused });
                    let body = serde_json::from_str(&text).unwrap_or_default();
                    if !accepted {
                        self.history.refused(path.rsplit('/').next().unwrap_or_default(), &body);
                    }
                    return Some((accepted, body));
                }
                _ => self.history.answered(at, Answer::Unknown),
            }
            tries += 1;
            thread::sleep(AGAIN);
        }
        None
    }
}

fn submit(caller: &Caller, number: usize, stop: &AtomicBool) {
    let mut turn = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        let key = format!("{number}-{turn}");
        let backoff = json!({ "fixed": { "delay_ms": 50 } });
        let body = json!({
            "kind": "torture", "lane": "torture", "idempotency_key": key, "budget_ids": [COUNTED, CEILING],
            "policy": { "retry": { "max_retries": 20, "backoff": backoff }, "max_reclaim_count": 1_000 },
        });
        if let Some((true, created)) = caller.insist(number, "/v1/executions", &body)
            && let Some(id) = created["execution_id"].as_str()
        {
            caller.history.submitted(&key, id);
        }
        turn += 1;
        thread::sleep(PACE);
    }
}

struct Worker {
    caller: Caller,
    number: usize,
    forgotten: Arc<AtomicU64>,
    graves: Arc<Mutex<Vec<(Instant, Value)>>>,
}

impl Worker {
    /// Claims a task and works on it.
    fn turn(&self) {
        let before = self.forgotten.load(Ordering::SeqCst);
        let body = json!({ "lanes": ["torture"], "max_tasks": 1, "wait_ms": 500, "lease_ttl_ms": LEASE_TTL_MS });
        let path = format!("/v1/workers/torture-{}/claim", self.number);
        let at = now_ms();
        let answer = request(self.caller.fleet.any(self.number), &format!("POST {path}"), &body);
        let Some((status, text)) = answer.filter(|(status, _)| *status < 500) else {
            self.caller.history.answered(at, Answer::Unknown);
            thread::sleep(AGAIN);
            return;
        };
        self.caller.history.answered(at, if status < 300 { Answer::Accepted } else { Answer::Refused });
        let claimed: Value = serde_json::from_str(&text).unwrap_or_default();
        if status >= 300 {
            self.caller.history.refused("claim", &claimed);
            thread::sleep(AGAIN);
        }
        for task in claimed["tasks"].as_array().into_iter().flatten() {
            self.caller.history.claimed(task);
            if self.forgotten.load(Ordering::SeqCst) == before {
                self.work(task);
            } else {
                let grave = (Instant::now(), task.clone());
                self.graves.lock().expect("no holder of this lock panics").push(grave);
            }
        }
    }

    fn work(&self, task: &Value) {
        let (caller, fence) = (&self.caller, &task["fence"]);
        let id = task["execution_id"].as_str().unwrap_or_default();
        let epoch = fence["epoch"].as_u64().unwrap_or_default();
        let path = |what: &str| format!("/v1/executions/{id}/{what}");
        let insist = |what: &str, body: Value| caller.insist(self.number, &path(what), &body);

        caller.history.will_spend(id);
        let usage = json!({ "fence": fence, "usage": { "tokens": 1 }, "budget": COUNTED, "dedup_key": "once" });
        if let Some((true, _)) = insist("usage", usage) {
            caller.history.spent(id);
        }
        let tokens = CALL_TOKENS;
        let reserve = json!({ "fence": fence, "key": "call", "amounts": { "tokens": tokens }, "budget": CEILING, "ttl_ms": 5_000 });
        if let Some((true, held)) = insist("spend/reserve", reserve)
            && held["outcome"] == "reserved"
        {
            insist("spend/settle", json!({ "fence": fence, "key": "call", "actual": { "tokens": tokens } }));
        }
        let known = task["journal"]["entries"].as_array().map_or(0, Vec::len);
        let name = format!("step-{epoch}");
        let entry = json!({ "name": name, "state": "completed", "result": epoch });
        if let Some((true, _)) =
            insist("steps", json!({ "fence": fence, "first_number": known + 1, "entries": [entry] }))
        {
            caller.history.recorded(id, &name);
        }
        // Every third attempt fails, and is tried again.
        if epoch % 3 == 1 {
            insist("fail", json!({ "fence": fence, "reason": "on purpose", "category": "torture" }));
        } else if let Some((true, _)) = insist("complete", json!({ "fence": fence, "result": epoch })) {
            caller.history.completed(id, epoch);
        }
    }
}

/// Workers whose leases are over complete what they had in hand; no server may believe them once another worker had it.
fn remember(caller: &Caller, graves: &Mutex<Vec<(Instant, Value)>>) {
    let due: Vec<Value> = {
        let mut graves = graves.lock().expect("no holder of this lock panics");
        let (due, rest) = graves.drain(..).partition(|(died, _)| died.elapsed() > REMEMBERED_AFTER);
        *graves = rest;
        let due: Vec<(Instant, Value)> = due;
        due.into_iter().map(|(_, task)| task).collect()
    };
    for task in due {
        let id = task["execution_id"].as_str().unwrap_or_default();
        let epoch = task["fence"]["epoch"].as_u64().unwrap_or_default();
        let body = json!({ "fence": task["fence"], "result": epoch });
        if let Some((true, _)) = caller.insist(0, &format!("/v1/executions/{id}/complete"), &body) {
            caller.history.completed(id, epoch);
        }
    }
}
