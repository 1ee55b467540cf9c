//! The state at the end, as a healthy server shows it: written beside the history, so that the checker can be run again
//! on the files alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::caller::Caller;
use crate::history::{History, Recorder};
use crate::workload::plan::{self, kind};

/// Readers side by side.
const READERS: usize = 4;
/// The file.
const NAME: &str = "final.json";

/// Everything that is looked at.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Executions by id: the view, and beside it `result`, `steps` and `frames` by attempt.
    pub executions: BTreeMap<String, Value>,
    /// Flows by id.
    pub flows: BTreeMap<String, Value>,
    /// Runs of the schedule: executions by id with their instant.
    pub runs: BTreeMap<String, i64>,
    /// How many runs the schedule speaks of.
    pub run_count: u64,
    /// The standing of the budgets by name.
    pub budgets: BTreeMap<String, Value>,
    /// How many places of the quota are taken.
    pub slots_in_use: i64,
    /// What the reconcilers had to repair, and documents that could not be read; `None` if they did not look at everything.
    pub repairs: Option<f64>,
}

impl Outcome {
    /// Asks for everything that the history speaks of.
    pub fn look(servers: &[String], history: &History, recorder: &Arc<Recorder>) -> Self {
        let mut caller = Caller::new(servers, recorder, 0);
        let mut outcome = Self::default();
        for name in [plan::COUNTED, plan::CEILING, plan::RACE] {
            let budget = caller.look_json(&format!("/v1/budgets/{name}")).unwrap_or_default();
            outcome.budgets.insert(name.to_owned(), budget["standing"]["tokens"].clone());
        }
        let slots = caller.look_json(&format!("/v1/quotas/{}", plan::SLOTS)).unwrap_or_default();
        outcome.slots_in_use = slots["in_use"].as_i64().unwrap_or(i64::MAX);
        let schedule = caller.look_json(&format!("/v1/schedules/{}", plan::SCHEDULE)).unwrap_or_default();
        outcome.run_count = schedule["run_count"].as_u64().unwrap_or_default();
        let scheduled = list(&mut caller, &format!("schedule={}", plan::SCHEDULE));
        let mut wanted: BTreeMap<String, &str> = BTreeMap::new();
        let mut flows = Vec::new();
        for call in history.calls.iter().filter(|call| call.accepted()) {
            match call.call.as_str() {
                "submit" => {
                    let id = call.shown["execution_id"].as_str().unwrap_or_default().to_owned();
                    wanted.insert(id, call.about("kind"));
                }
                "flow" => {
                    flows.extend(call.shown["flow_id"].as_str().map(str::to_owned));
                    let members = call.shown["executions"].as_object().into_iter().flat_map(|map| map.values());
                    wanted.extend(members.filter_map(|id| Some((id.as_str()?.to_owned(), kind::MEMBER))));
                }
                _ => {}
            }
        }
        wanted.extend(scheduled.iter().map(|id| (id.clone(), kind::SCHEDULED)));
        flows.sort();
        flows.dedup();
        for id in flows {
            if let Some(flow) = caller.look_json(&format!("/v1/flows/{id}")) {
                outcome.flows.insert(id, flow);
            }
        }
        outcome.executions = read_all(servers, recorder, wanted);
        for id in scheduled {
            let instant = outcome.executions.get(&id).and_then(|view| view["scheduled_for"].as_i64());
            outcome.runs.insert(id, instant.unwrap_or_default());
        }
        outcome
    }

    /// Writes it beside the history.
    pub fn write(&self, folder: &Path) -> Result<(), String> {
        let whole = json!({
            "executions": self.executions, "flows": self.flows, "runs": self.runs, "run_count": self.run_count,
            "budgets": self.budgets, "slots_in_use": self.slots_in_use, "repairs": self.repairs,
        });
        std::fs::write(folder.join(NAME), whole.to_string()).map_err(|why| why.to_string())
    }

    /// Reads what was written.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(folder.join(NAME)).map_err(|why| why.to_string())?;
        let mut whole: Value = serde_json::from_str(&text).map_err(|why| why.to_string())?;
        let mut map = |name: &str| match whole[name].take() {
            Value::Object(map) => map.into_iter().collect::<BTreeMap<String, Value>>(),
            _ => BTreeMap::new(),
        };
        let (executions, flows, budgets) = (map("executions"), map("flows"), map("budgets"));
        let runs = map("runs").into_iter().map(|(id, at)| (id, at.as_i64().unwrap_or_default())).collect();
        Ok(Self {
            executions,
            flows,
            budgets,
            runs,
            run_count: whole["run_count"].as_u64().unwrap_or_default(),
            slots_in_use: whole["slots_in_use"].as_i64().unwrap_or(i64::MAX),
            repairs: whole["repairs"].as_f64(),
        })
    }
}

/// Ids of all executions that a filter finds.
pub(crate) fn list(caller: &mut Caller, filter: &str) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let Some(page) = caller.look_json(&format!("/v1/executions?{filter}&limit=200{cursor}")) else { return ids };
        let found = page["items"].as_array().into_iter().flatten();
        ids.extend(found.filter_map(|item| Some(item["execution_id"].as_str()?.to_owned())));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
    }
}

/// How many executions had not ended, and when they were counted; `None` when no server says.
pub(crate) fn open_executions(caller: &mut Caller) -> Option<(u64, i64)> {
    const ENDED: [&str; 5] = ["completed", "failed", "cancelled", "expired", "skipped"];
    let counts = caller.look_json("/v1/counts")?;
    let states = counts["states"].as_object()?.iter().filter(|(state, _)| !ENDED.contains(&state.as_str()));
    Some((states.filter_map(|(_, count)| count["value"].as_u64()).sum(), counts["counted_at"].as_i64()?))
}

fn read_all(servers: &[String], recorder: &Arc<Recorder>, wanted: BTreeMap<String, &str>) -> BTreeMap<String, Value> {
    let queue: Mutex<Vec<(String, &str)>> = Mutex::new(wanted.into_iter().collect());
    let found: Mutex<BTreeMap<String, Value>> = Mutex::default();
    thread::scope(|scope| {
        for number in 0..READERS {
            let (queue, found) = (&queue, &found);
            let mut caller = Caller::new(servers, recorder, number);
            scope.spawn(move || {
                loop {
                    let next = queue.lock().expect("no holder of this lock panics").pop();
                    let Some((id, kind)) = next else { return };
                    if let Some(view) = read_one(&mut caller, &id, kind) {
                        found.lock().expect("no holder of this lock panics").insert(id, view);
                    }
                }
            });
        }
    });
    found.into_inner().expect("no holder of this lock panics")
}

fn read_one(caller: &mut Caller, id: &str, kind: &str) -> Option<Value> {
    let mut view = caller.look_json(&format!("/v1/executions/{id}"))?;
    let path = |what: &str| format!("/v1/executions/{id}/{what}");
    if view["public_state"] == "completed" {
        // `null` is no result of ours.
        view["result"] = caller.look_json(&path("result")).unwrap_or_default();
    } else {
        view["explained"] = caller.look_json(&path("explain")).unwrap_or_default();
    }
    if kind == kind::PLAIN {
        view["steps"] = caller.look_json(&path("steps")).unwrap_or_default()["items"].take();
    }
    if [kind::PLAIN, kind::LONG].contains(&kind) {
        let attempts = view["attempt"].as_u64().unwrap_or_default();
        for attempt in 0..=attempts {
            let read = path(&format!("attempts/{attempt}/stream?limit=100"));
            let frames = caller.look_json(&read).unwrap_or_default();
            let texts = frames["frames"].as_array().into_iter().flatten();
            let texts: Vec<Value> = texts.map(|frame| frame["payload_base64"].clone()).collect();
            view["frames"][attempt.to_string()] = Value::Array(texts);
        }
    }
    Some(view)
}
