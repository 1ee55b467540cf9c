//! A worker process. It claims and works on several tasks at once until its standard input closes, which it does when the
//! campaign ends for whatever reason. It is killed and stopped on purpose: one that goes on after its leases ran out
//! must be refused.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::plan::{self, kind};
use crate::caller::{Caller, Reply, Request};
use crate::history::Recorder;
use crate::random::Random;

/// Where a worker process finds what it is told.
const VARIABLE: &str = "FF_TORTURE_WORKER";
/// Between two tries to claim.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two renewals of a long task.
const RENEW_EVERY: Duration = Duration::from_millis(1_200);
/// The same for a worker in no hurry, whose lease has 0.3 s left: a timer that has read the end of the lease by then must look
/// again before it takes the lease away.
const RENEW_LATE: Duration = Duration::from_millis(3_700);
/// How many of a hundred long tasks are renewed so late.
const LATE_PERCENT: u64 = 50;
/// A long task takes one and a half times its lease.
const LONG: Duration = Duration::from_millis(6_000);

/// What a worker process is told.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The servers.
    pub servers: Vec<String>,
    /// Where the history goes.
    pub folder: PathBuf,
    /// Which worker this is.
    pub number: usize,
    /// The seed of its decisions.
    pub seed: u64,
    /// Tasks that it works on at once.
    pub threads: usize,
}

impl WorkerOptions {
    /// The variable that tells a process of the same program to be this worker.
    pub fn variable(&self) -> (&'static str, String) {
        let told = json!({
            "servers": self.servers, "folder": self.folder, "number": self.number, "seed": self.seed,
            "threads": self.threads,
        });
        (VARIABLE, told.to_string())
    }

    fn told() -> Option<Self> {
        let told: Value = serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok()?;
        let servers = told["servers"].as_array()?.iter().filter_map(|server| Some(server.as_str()?.to_owned()));
        Some(Self {
            servers: servers.collect(),
            folder: told["folder"].as_str()?.into(),
            number: told["number"].as_u64()?.try_into().ok()?,
            seed: told["seed"].as_u64()?,
            threads: told["threads"].as_u64()?.try_into().ok()?,
        })
    }
}

/// Works until standard input closes, if this process was told to be a worker; says whether it was.
pub fn work_if_asked() -> bool {
    let Some(options) = WorkerOptions::told() else { return false };
    let recorder = Recorder::open(&options.folder, &format!("worker-{}", options.number));
    let recorder = Arc::new(recorder.expect("the campaign made the folder"));
    for thread in 0..options.threads {
        let number = options.number * options.threads + thread;
        let mut worker = Worker {
            caller: Caller::new(&options.servers, &recorder, number),
            // A worker that was started again goes other ways than before.
            random: Random::new(options.seed, u64::from(std::process::id()) * 16 + thread as u64),
            instance: format!("torture-{}", options.number),
        };
        thread::spawn(move || {
            loop {
                worker.turn();
            }
        });
    }
    // The end of standard input, or a failure to read it, both mean that the campaign is over.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    true
}

struct Worker {
    caller: Caller,
    random: Random,
    instance: String,
}

/// A task in hand.
struct Task {
    id: String,
    kind: String,
    fence: Value,
    epoch: u64,
    attempt: u64,
    next_frame: u64,
    next_step: u64,
    resumed: bool,
    claimed: Value,
}

impl Task {
    fn of(claimed: &Value) -> Self {
        let fence = claimed["fence"].clone();
        Self {
            id: claimed["execution_id"].as_str().unwrap_or_default().to_owned(),
            kind: claimed["kind"].as_str().unwrap_or_default().to_owned(),
            epoch: fence["epoch"].as_u64().unwrap_or_default(),
            attempt: fence["attempt"].as_u64().unwrap_or_default(),
            next_frame: claimed["next_frame_sequence"].as_u64().unwrap_or(1),
            next_step: claimed["journal"]["next_number"].as_u64().unwrap_or(1),
            resumed: claimed["resume_signals"].as_array().is_some_and(|signals| !signals.is_empty()),
            claimed: claimed.clone(),
            fence,
        }
    }

    /// A call under this task's lease.
    fn request(&self, call: &'static str, path: &str, body: Value, about: Value) -> Request {
        let mut body = body;
        body["fence"] = self.fence.clone();
        let mut about = about;
        about["id"] = json!(self.id);
        about["epoch"] = json!(self.epoch);
        Request { call, path: format!("/v1/executions/{}/{path}", self.id), body, about }
    }
}

impl Worker {
    /// Claims a task and works on it. A claim is not repeated: the lease of one whose answer was lost runs out.
    fn turn(&mut self) {
        let body = json!({ "lanes": [plan::LANE], "max_tasks": 1, "wait_ms": 300, "lease_ttl_ms": plan::LEASE_TTL_MS });
        let path = format!("/v1/workers/{}/claim", self.instance);
        let claim = Request { call: "claim", path, body, about: json!({ "worker": self.instance }) };
        match self.caller.once(&claim) {
            Some(Reply { accepted: true, body }) => {
                for claimed in body["tasks"].as_array().into_iter().flatten() {
                    self.work(&Task::of(claimed));
                }
            }
            _ => thread::sleep(AGAIN),
        }
    }

    /// Whether the lease still holds: a call that was refused as stale ends the work.
    fn work(&mut self, task: &Task) -> Option<()> {
        match task.kind.as_str() {
            kind::WAITS if !task.resumed => return self.suspend(task),
            kind::PLAIN => self.spend_and_write(task)?,
            kind::RACES => self.race(task)?,
            kind::LONG => self.take_long(task)?,
            kind::MEMBER | kind::SLOTTED => thread::sleep(Duration::from_millis(self.random.below(40))),
            _ => {}
        }
        // Every so often an attempt fails, and is tried again.
        if task.kind == kind::PLAIN && self.random.percent(20) {
            let body = json!({ "reason": "on purpose", "category": "torture" });
            self.holding(&task.request("fail", "fail", body, json!({})))?;
        } else {
            let body = json!({ "result": task.epoch });
            self.holding(&task.request("complete", "complete", body, json!({})))?;
        }
        Some(())
    }

    /// The answer of a call of the holder; `None` when it is refused, or when no server answers for long.
    fn holding(&mut self, request: &Request) -> Option<Value> {
        self.caller.insist(request).filter(|reply| reply.accepted).map(|reply| reply.body)
    }

    fn spend_and_write(&mut self, task: &Task) -> Option<()> {
        let usage = json!({ "usage": { "tokens": 1 }, "budget": plan::COUNTED, "dedup_key": "once" });
        self.holding(&task.request("usage", "usage", usage, json!({})))?;
        let key = format!("call-{}", task.epoch);
        let reserve = json!({
            "key": key, "amounts": { "tokens": plan::CALL_TOKENS }, "budget": plan::CEILING, "ttl_ms": 5_000
        });
        let held = self.holding(&task.request("reserve", "spend/reserve", reserve, json!({ "key": key })))?;
        if held["outcome"] == "reserved" {
            let settle = json!({ "key": key, "actual": { "tokens": plan::CALL_TOKENS } });
            self.holding(&task.request("settle", "spend/settle", settle, json!({ "key": key })))?;
        }
        let name = format!("step-{}", task.epoch);
        let entry = json!({ "name": name, "state": "completed", "result": task.epoch });
        let steps = json!({ "first_number": task.next_step, "entries": [entry] });
        self.holding(&task.request("step", "steps", steps, json!({ "name": name })))?;
        (0..1 + self.random.below(3)).try_for_each(|number| self.write_frame(task, number))
    }

    fn write_frame(&mut self, task: &Task, number: u64) -> Option<()> {
        let text = format!("{}-{}-{number}", task.epoch, task.attempt);
        let sequence = task.next_frame + number;
        let frames = json!({ "first_sequence": sequence, "frames": [{ "type": "text", "payload": text }] });
        let about = json!({ "attempt": task.attempt, "sequence": sequence, "text": text });
        self.holding(&task.request("frame", "frames", frames, about)).map(drop)
    }

    /// Reserves and settles several times. A reservation that is refused is not waited for.
    fn race(&mut self, task: &Task) -> Option<()> {
        for round in 0..plan::RACE_ROUNDS {
            let key = format!("race-{}-{round}", task.epoch);
            let about = || json!({ "key": key, "budget": plan::RACE });
            let amounts = json!({ "tokens": plan::CALL_TOKENS });
            let reserve = json!({ "key": key, "amounts": amounts, "budget": plan::RACE, "ttl_ms": 5_000 });
            let held = self.holding(&task.request("reserve", "spend/reserve", reserve, about()))?;
            if held["outcome"] == "reserved" {
                let settle = json!({ "key": key, "actual": { "tokens": 0 } });
                self.holding(&task.request("settle", "spend/settle", settle, about()))?;
            }
        }
        Some(())
    }

    fn take_long(&mut self, task: &Task) -> Option<()> {
        // Work that loses one lease after another without a sign of life waits longer and longer for the next.
        self.write_frame(task, 0)?;
        let every = if self.random.percent(LATE_PERCENT) { RENEW_LATE } else { RENEW_EVERY };
        let began = Instant::now();
        while began.elapsed() < LONG {
            thread::sleep(every);
            let renewal = json!({ "execution_id": task.id, "fence": task.fence, "lease_ttl_ms": plan::LEASE_TTL_MS });
            let request = Request {
                call: "renew",
                path: "/v1/leases/renew".to_owned(),
                body: json!({ "leases": [renewal] }),
                about: json!({ "id": task.id, "epoch": task.epoch }),
            };
            let renewed = self.caller.insist(&request)?;
            if renewed.body["results"][0]["outcome"] == "lost" {
                self.go_on_regardless(task);
                return None;
            }
        }
        Some(())
    }

    /// A holder that was told that it holds no more tries everything else, as one that does not listen.
    fn go_on_regardless(&mut self, task: &Task) {
        let again = || json!({ "again": true });
        // After the frame with which it began.
        let sequence = task.next_frame + 1;
        let frames = json!({ "first_sequence": sequence, "frames": [{ "type": "text", "payload": "late" }] });
        let about = json!({ "again": true, "attempt": task.attempt, "sequence": sequence, "text": "late" });
        let wait = json!({
            "condition": { "any": [{ "name": "go" }] }, "reason": "signal", "timeout_ms": 3_600_000,
            "idempotency_key": format!("wait-{}", task.epoch),
        });
        let fail = json!({ "reason": "late", "category": "torture" });
        for request in [
            task.request("frame", "frames", frames, about),
            task.request("suspend", "suspend", wait, again()),
            task.request("fail", "fail", fail, again()),
            task.request("complete", "complete", json!({ "result": task.epoch }), again()),
        ] {
            self.caller.insist(&request);
        }
    }

    fn suspend(&mut self, task: &Task) -> Option<()> {
        let body = json!({
            "condition": { "any": [{ "name": "go" }] }, "reason": "signal", "timeout_ms": 3_600_000,
            "idempotency_key": format!("wait-{}", task.epoch), "continuation": task.claimed["fence"]["epoch"],
        });
        self.holding(&task.request("suspend", "suspend", body, json!({}))).map(drop)
    }
}
