//! What became of each execution.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::model::{Model, Run};
use crate::history::Call;
use crate::score::Score;
use crate::workload::plan::kind;

pub(super) fn judge(model: &Model<'_>, score: &mut Score) {
    let done = model.runs.values().any(|run| run.calls.iter().any(|call| call.call == "complete" && call.accepted()));
    score.judge("work was done", 0, done, || "nothing was completed".to_owned());
    for call in &model.history.calls {
        score.judge("no call ends in an internal error", call.began, call.status != 500, || {
            format!("{}: {}", call.call, call.shown)
        });
    }
    for (key, (at, ids)) in &model.keys {
        score.judge("a key means one execution", *at, ids.len() == 1, || format!("{key}: {ids:?}"));
    }
    one_effect(model, score);
    for call in model.history.calls.iter().filter(|call| call.accepted()) {
        let there = match call.call.as_str() {
            "submit" => model.outcome.executions.contains_key(text(&call.shown["execution_id"])),
            "flow" => model.outcome.flows.contains_key(text(&call.shown["flow_id"])),
            _ => continue,
        };
        score.judge("what was acknowledged is there", call.ended, there, || {
            format!("{} {}: {}", call.call, call.about("key"), call.shown)
        });
    }
    for (id, view) in &model.outcome.executions {
        let at = view["created_at"].as_i64().unwrap_or_default();
        let state = text(&view["public_state"]);
        score.judge("nothing is stuck", at, state == "completed", || {
            format!("{id} ({}) is {state}: {}", text(&view["kind"]), view["explained"]["reasons"][0]["message"])
        });
        if let Some(run) = model.runs.get(id.as_str()) {
            one_ending(id, run, view, score);
            steps(id, run, view, score);
            frames(id, run, view, score);
        }
    }
}

/// Every submit is repeated until it is acknowledged. So work that a worker was given and no submit was told of is a second
/// effect of one, if all of them were acknowledged in the end.
fn one_effect(model: &Model<'_>, score: &mut Score) {
    let calls = || model.history.calls.iter().filter(|call| call.call == "submit" || call.call == "flow");
    if calls().any(|call| !model.keys.contains_key(call.about("key"))) {
        return;
    }
    let mut told: BTreeSet<&str> = model.outcome.runs.keys().map(String::as_str).collect();
    for call in calls().filter(|call| call.accepted()) {
        told.extend(call.shown["execution_id"].as_str());
        told.extend(
            call.shown["executions"].as_object().into_iter().flat_map(|all| all.values()).filter_map(Value::as_str),
        );
    }
    for (id, run) in &model.runs {
        let Some(lease) = run.leases.first() else { continue };
        score.judge("a repeated submit has one effect", lease.claim.began, told.contains(id), || {
            format!("{id} ({}) was given to a worker, and no submit was told of it", run.kind)
        });
    }
}

fn one_ending(id: &str, run: &Run<'_>, view: &Value, score: &mut Score) {
    let accepted = run.calls.iter().filter(|call| call.call == "complete" && call.accepted());
    let endings: BTreeMap<u64, i64> =
        accepted.map(|call| (call.about["epoch"].as_u64().unwrap_or_default(), call.began)).collect();
    let at = endings.values().next().copied().unwrap_or_default();
    score.judge("one ending is accepted", at, endings.len() <= 1, || format!("{id}: {endings:?}"));
    if let Some(epoch) = endings.keys().next() {
        score.judge("the result is that of the ending", at, view["result"].as_u64() == Some(*epoch), || {
            format!("{id}: {} instead of {epoch}", view["result"])
        });
    }
}

fn steps(id: &str, run: &Run<'_>, view: &Value, score: &mut Score) {
    if run.kind != kind::PLAIN {
        return;
    }
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    let entries = view["steps"].as_array().into_iter().flatten();
    entries.for_each(|entry| *kept.entry(text(&entry["name"])).or_default() += 1);
    for call in once(run, "step") {
        let count = kept.get(call.about("name")).copied().unwrap_or(0);
        score.judge("an acknowledged step is there once", call.ended, count == 1, || {
            format!("{id}: {} is there {count} times", call.about("name"))
        });
    }
    let numbers: Vec<u64> =
        view["steps"].as_array().into_iter().flatten().filter_map(|entry| entry["number"].as_u64()).collect();
    let whole = numbers.iter().zip(1_u64..).all(|(number, expected)| *number == expected);
    score.judge("a journal has no gap", 0, whole, || format!("{id}: {numbers:?}"));
}

/// Frames that were acknowledged are there once and in order. One that was not may be there.
fn frames(id: &str, run: &Run<'_>, view: &Value, score: &mut Score) {
    let mut acknowledged: BTreeMap<u64, Vec<(u64, &Call)>> = BTreeMap::new();
    for call in once(run, "frame") {
        let attempt = call.about["attempt"].as_u64().unwrap_or_default();
        let sequence = call.about["sequence"].as_u64().unwrap_or_default();
        acknowledged.entry(attempt).or_default().push((sequence, call));
    }
    for (attempt, mut frames) in acknowledged {
        frames.sort_by_key(|(sequence, _)| *sequence);
        let kept = view["frames"][attempt.to_string()].as_array();
        let kept: Vec<&str> = kept.into_iter().flatten().map(text).collect();
        let distinct: BTreeSet<&&str> = kept.iter().collect();
        score.judge("no frame is there twice", 0, distinct.len() == kept.len(), || format!("{id}: {kept:?}"));
        let mut places = Vec::new();
        for (_, call) in frames {
            let wanted = base64(format!("\"{}\"", call.about("text")).as_bytes());
            let place = kept.iter().position(|frame| *frame == wanted);
            score.judge("an acknowledged frame is there", call.ended, place.is_some(), || {
                format!("{id}: {} of attempt {attempt}", call.about("text"))
            });
            places.extend(place);
        }
        score.judge("frames stay in order", 0, places.is_sorted(), || format!("{id}: {places:?}"));
    }
}

/// Accepted calls, one for each identity.
fn once<'a>(run: &Run<'a>, name: &str) -> Vec<&'a Call> {
    let mut seen = BTreeSet::new();
    let accepted = run.calls.iter().copied().filter(|call| call.call == name && call.accepted());
    accepted.filter(|call| seen.insert(call.about.to_string())).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for piece in bytes.chunks(3) {
        let number = piece.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - piece.len()));
        for place in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= piece.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_become_the_text_that_servers_show() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(super::base64(bytes.as_bytes()), text);
        }
    }
}
