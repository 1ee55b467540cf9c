//! Signals for what waits: each is sent several times under one key, at different servers, once with a forged token
//! before, and once more when it has long had its effect.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::caller::{Caller, Request};

/// Between two looks at what waits.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How often each signal is sent.
const REPEATS: usize = 5;

/// Sends every execution its signal once it waits, until told to stop.
pub(super) fn deliver(caller: &mut Caller, incoming: &Mutex<Receiver<String>>, stop: &AtomicBool) {
    let mut waiting: Vec<String> = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        waiting.extend(incoming.lock().expect("no holder of this lock panics").try_iter().take(20));
        waiting.retain(|id| !wake(caller, id, stop));
        thread::sleep(LOOK_AGAIN);
    }
}

/// Signals an execution that is suspended; says whether it is done with it. Servers whose store lost everything answer no
/// signal any more, and each call to them takes its whole patience, so nothing begins that was told to stop.
fn wake(caller: &mut Caller, id: &str, stop: &AtomicBool) -> bool {
    let goes_on = || !stop.load(Ordering::SeqCst);
    if !goes_on() {
        return false;
    }
    let Some(state) = caller.look_json(&format!("/v1/executions/{id}/state")) else { return true };
    match state["public_state"].as_str() {
        Some("suspended") => {}
        Some("completed" | "failed" | "cancelled" | "expired" | "skipped") => return true,
        _ => return false,
    }
    forge(caller, id);
    let path = format!("/v1/executions/{id}/signal");
    let body = json!({ "name": "go", "idempotency_key": "go", "payload": id });
    let about = json!({ "id": id, "key": "go" });
    let request = Request { call: "signal", path, body, about };
    let repeats = (0..REPEATS).take_while(|_| goes_on());
    repeats.filter_map(|_| caller.insist(&request)).filter(|reply| reply.accepted).count() > 0
}

/// A signal with a token that nobody signed must change nothing.
fn forge(caller: &mut Caller, id: &str) {
    let Some(found) = caller.look_json(&format!("/v1/executions/{id}")) else { return };
    let Some(waitpoint) = found["suspension"]["waitpoint_ids"][0].as_str() else { return };
    let body = json!({ "name": "go", "idempotency_key": "forged", "token": format!("k1:{}", "0".repeat(64)) });
    let about = json!({ "id": id, "key": "forged" });
    caller.insist(&Request { call: "forged", path: format!("/v1/signals/{waitpoint}"), body, about });
}
