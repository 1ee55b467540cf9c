//! The checker is checked: a history that is sound, and one change to it for each rule, which that rule must see.

use serde_json::{Value, json};

use crate::history::{Answer, Call, History, Note};
use crate::outcome::Outcome;
use crate::workload::plan::{self, LEASE_TTL_MS, kind};

/// When the history begins.
const T: i64 = 1_000_000;

fn call(name: &str, began: i64, about: Value, shown: Value) -> Call {
    let (call, answer) = (name.to_owned(), Answer::Accepted);
    Call { call, about, began: T + began, ended: T + began + 5, answer, status: 200, shown }
}

fn task(id: &str, kind: &str, epoch: u64, claim_kind: &str) -> Value {
    json!({
        "execution_id": id, "kind": kind, "claim_kind": claim_kind, "resume_signals": [],
        "fence": { "epoch": epoch, "attempt": 0, "lease_id": format!("lease-{id}-{epoch}") },
    })
}

fn claim(began: i64, mut task: Value) -> Call {
    task["lease_expires_at"] = json!(T + began + 2 + LEASE_TTL_MS);
    call("claim", began, json!({ "worker": "w" }), json!({ "tasks": [task] }))
}

fn held(name: &str, began: i64, id: &str, epoch: u64, more: Value) -> Call {
    let mut about = json!({ "id": id, "epoch": epoch });
    if let (Some(about), Value::Object(more)) = (about.as_object_mut(), more) {
        about.extend(more);
    }
    call(name, began, about, json!({}))
}

fn submitted(key: &str, kind: &str, id: &str, more: Value) -> Call {
    let mut about = json!({ "key": key, "kind": kind });
    if let (Some(about), Value::Object(more)) = (about.as_object_mut(), more) {
        about.extend(more);
    }
    call("submit", 0, about, json!({ "execution_id": id, "duplicate": false }))
}

/// One execution of each kind, and everything as it must be.
fn sound() -> (History, Outcome) {
    let mut resumed = task("c", kind::WAITS, 2, "resumed");
    resumed["resume_signals"] = json!([{ "signal_id": "s" }]);
    let edges = json!([{ "from": "n0", "to": "n1" }]);
    let calls = vec![
        submitted("a", kind::PLAIN, "a", json!({})),
        claim(10, task("a", kind::PLAIN, 1, "initial")),
        held("usage", 20, "a", 1, json!({})),
        held("reserve", 25, "a", 1, json!({ "key": "call-1" })),
        held("settle", 30, "a", 1, json!({ "key": "call-1" })),
        held("step", 35, "a", 1, json!({ "name": "step-1" })),
        held("frame", 40, "a", 1, json!({ "attempt": 0, "sequence": 1, "text": "x" })),
        held("frame", 45, "a", 1, json!({ "attempt": 0, "sequence": 2, "text": "y" })),
        // The lease runs out; another worker has the next and completes.
        claim(20 + LEASE_TTL_MS, task("a", kind::PLAIN, 2, "reclaim")),
        held("complete", 30 + LEASE_TTL_MS, "a", 2, json!({})),
        submitted("b", kind::DELAYED, "b", json!({ "delay_until": T + 200 })),
        claim(200, task("b", kind::DELAYED, 1, "initial")),
        held("complete", 210, "b", 1, json!({})),
        submitted("c", kind::WAITS, "c", json!({})),
        claim(10, task("c", kind::WAITS, 1, "initial")),
        held("suspend", 20, "c", 1, json!({})),
        call(
            "signal",
            30,
            json!({ "id": "c", "key": "go" }),
            json!({ "outcome": "triggered_resume", "signal_id": "s" }),
        ),
        call(
            "signal",
            40,
            json!({ "id": "c", "key": "go" }),
            json!({ "outcome": "duplicate", "existing_signal_id": "s" }),
        ),
        claim(50, resumed),
        held("complete", 60, "c", 2, json!({})),
        call(
            "flow",
            0,
            json!({ "key": "f", "edges": edges }),
            json!({ "flow_id": "f", "executions": { "n0": "m0", "n1": "m1" } }),
        ),
        claim(10, task("m0", kind::MEMBER, 1, "initial")),
        held("complete", 20, "m0", 1, json!({})),
        claim(30, task("m1", kind::MEMBER, 1, "initial")),
        held("complete", 40, "m1", 1, json!({})),
    ];
    let notes = vec![Note { what: "slots".to_owned(), at: T + 50, about: json!({ "in_use": plan::SLOTS_MAX }) }];
    let ended = |kind: &str, epoch: u64| json!({ "public_state": "completed", "kind": kind, "result": epoch });
    let mut plain = ended(kind::PLAIN, 2);
    plain["steps"] = json!([{ "number": 1, "name": "step-1" }]);
    plain["frames"] = json!({ "0": ["Ingi", "Inki"] });
    let mut outcome = Outcome { run_count: 2, repairs: Some(0.0), ..Outcome::default() };
    outcome.executions.insert("a".into(), plain);
    outcome.executions.insert("b".into(), ended(kind::DELAYED, 1));
    outcome.executions.insert("c".into(), ended(kind::WAITS, 2));
    outcome.executions.insert("m0".into(), ended(kind::MEMBER, 1));
    outcome.executions.insert("m1".into(), ended(kind::MEMBER, 1));
    let flow = json!({ "state": "completed", "member_count": 2, "counts": { "completed": 2 } });
    outcome.flows.insert("f".into(), flow);
    outcome.runs = [("r1".to_owned(), T), ("r2".to_owned(), T + plan::SCHEDULE_EVERY_MS)].into();
    outcome.budgets.insert(plan::COUNTED.into(), json!({ "used": 1, "reserved": 0, "overrun": 0 }));
    outcome.budgets.insert(plan::CEILING.into(), json!({ "used": 3, "reserved": 0, "overrun": 0 }));
    outcome.budgets.insert(plan::RACE.into(), json!({ "used": 0, "reserved": 0, "overrun": 0 }));
    (History { calls, notes }, outcome)
}

fn broken(history: &History, outcome: &Outcome) -> Vec<&'static str> {
    let score = super::check(history, outcome);
    score.rules.iter().filter(|(_, rule)| rule.violations > 0).map(|(name, _)| *name).collect()
}

#[test]
fn a_sound_history_breaks_no_rule() {
    let (history, outcome) = sound();
    assert_eq!(broken(&history, &outcome), Vec::<&str>::new());
}

/// A change to a sound history, and the rule that must see it.
type Doctored = (&'static str, fn(&mut History, &mut Outcome));

fn find<'a>(history: &'a mut History, name: &str, id: &str) -> &'a mut Call {
    let found = history.calls.iter_mut().find(|call| {
        call.call == name
            && (call.about["id"] == id || call.shown["tasks"][0]["execution_id"] == id || call.about["key"] == id)
    });
    found.expect("the sound history has it")
}

const DOCTORED: &[Doctored] = &[
    ("what was acknowledged is there", |_, outcome| drop(outcome.executions.remove("a"))),
    ("a key means one execution", |history, _| {
        history.calls.push(submitted("a", kind::PLAIN, "b", json!({})));
    }),
    // The answer was lost and the key forgotten: the repetition made another execution, and workers had both.
    ("a repeated submit has one effect", |history, _| {
        let mut lost = submitted("b", kind::DELAYED, "b", json!({}));
        (lost.answer, lost.ended, lost.shown) = (Answer::Unknown, i64::MAX, Value::Null);
        history.calls.push(lost);
        history.calls.push(claim(300, task("b-again", kind::DELAYED, 1, "initial")));
    }),
    ("no call ends in an internal error", |history, _| history.calls[2].status = 500),
    ("nothing is stuck", |_, outcome| {
        outcome.executions.get_mut("b").expect("it is there")["public_state"] = json!("waiting")
    }),
    ("one ending is accepted", |history, _| {
        history.calls.push(held("complete", 60, "a", 1, json!({})));
    }),
    ("the result is that of the ending", |_, outcome| {
        outcome.executions.get_mut("a").expect("it is there")["result"] = json!(1);
    }),
    ("an acknowledged step is there once", |_, outcome| {
        outcome.executions.get_mut("a").expect("it is there")["steps"] = json!([]);
    }),
    ("a journal has no gap", |_, outcome| {
        outcome.executions.get_mut("a").expect("it is there")["steps"][0]["number"] = json!(2);
    }),
    ("an acknowledged frame is there", |_, outcome| {
        outcome.executions.get_mut("a").expect("it is there")["frames"]["0"] = json!(["Ingi"]);
    }),
    ("no frame is there twice", |_, outcome| {
        outcome.executions.get_mut("a").expect("it is there")["frames"]["0"] = json!(["Ingi", "Inki", "Inki"]);
    }),
    ("frames stay in order", |_, outcome| {
        outcome.executions.get_mut("a").expect("it is there")["frames"]["0"] = json!(["Inki", "Ingi"]);
    }),
    ("an epoch has one lease", |history, _| {
        let mut other = task("a", kind::PLAIN, 2, "reclaim");
        other["fence"]["lease_id"] = json!("another");
        history.calls.push(claim(40 + LEASE_TTL_MS, other));
    }),
    ("leases do not overlap", |history, _| {
        let early = history.calls.iter_mut().find(|call| call.shown["tasks"][0]["fence"]["epoch"] == 2);
        let early = early.expect("it is reclaimed");
        (early.began, early.ended) = (T + 100, T + 105);
    }),
    ("a late holder changes nothing", |history, _| {
        history.calls.push(held("usage", 40 + LEASE_TTL_MS, "a", 1, json!({ "late": true })));
    }),
    ("usage is counted once", |_, outcome| {
        outcome.budgets.get_mut(plan::COUNTED).expect("it is there")["used"] = json!(2)
    }),
    ("the ceiling holds", |history, _| {
        let about = json!({ "used": plan::CEILING_TOKENS, "reserved": 3, "overrun": 0 });
        history.notes.push(Note { what: "ceiling".to_owned(), at: T + 60, about });
    }),
    ("the ceiling holds", |history, _| {
        let about = json!({ "used": 0, "reserved": plan::RACE_TOKENS + 1, "overrun": 0 });
        history.notes.push(Note { what: plan::RACE.to_owned(), at: T + 60, about });
    }),
    ("no reservation is left", |_, outcome| {
        outcome.budgets.get_mut(plan::RACE).expect("it is there")["reserved"] = json!(3);
    }),
    ("no reservation is left", |_, outcome| {
        outcome.budgets.get_mut(plan::CEILING).expect("it is there")["reserved"] = json!(3);
    }),
    ("a reservation is settled once", |_, outcome| {
        outcome.budgets.get_mut(plan::CEILING).expect("it is there")["used"] = json!(6);
    }),
    ("no more at once than the quota says", |history, _| {
        for number in 0..=plan::SLOTS_MAX {
            history.calls.push(claim(200, task(&format!("slot-{number}"), kind::SLOTTED, 1, "initial")));
        }
    }),
    ("no place is left taken", |_, outcome| outcome.slots_in_use = 1),
    ("no more in a window than the quota says", |history, _| {
        for number in 0..=plan::RATE_MAX {
            history.calls.push(claim(200, task(&format!("rate-{number}"), kind::RATED, 1, "initial")));
        }
    }),
    ("a forged token is refused", |history, _| {
        history.calls.push(call("forged", 25, json!({ "id": "c" }), json!({})));
    }),
    ("a key means one signal", |history, _| find(history, "signal", "c").shown["signal_id"] = json!("other")),
    ("a signal has one effect", |history, _| {
        let mut again = task("c", kind::WAITS, 3, "resumed");
        again["resume_signals"] = json!([{ "signal_id": "s" }]);
        history.calls.push(claim(70, again));
    }),
    ("a resumed task brings its signal", |history, _| {
        let resumed = history.calls.iter_mut().find(|call| call.shown["tasks"][0]["claim_kind"] == "resumed");
        resumed.expect("it is resumed").shown["tasks"][0]["resume_signals"] = json!([]);
    }),
    ("a child starts after its upstreams", |history, _| find(history, "complete", "m0").began = T + 100),
    ("a graph ends as its members did", |_, outcome| {
        outcome.flows.get_mut("f").expect("it is there")["state"] = json!("running")
    }),
    ("no timer is early", |history, _| {
        let early = find(history, "claim", "b");
        (early.began, early.ended) = (T + 50, T + 55);
    }),
    ("no timer is early", |history, _| {
        find(history, "claim", "b").shown["tasks"][0]["lease_expires_at"] = json!(T + 199 + LEASE_TTL_MS);
    }),
    ("every instant of a schedule runs once", |_, outcome| {
        outcome.runs.insert("r2".to_owned(), T + 5_000);
    }),
    ("a schedule tells of its runs", |_, outcome| outcome.run_count = 3),
    ("indexes agree with documents", |_, outcome| outcome.repairs = Some(1.0)),
    ("work was done", |history, _| history.calls.retain(|call| call.call != "complete")),
];

/// Every rule by name.
pub(crate) fn rules() -> Vec<&'static str> {
    DOCTORED.iter().map(|(rule, _)| *rule).collect()
}

#[test]
fn every_rule_sees_the_history_that_breaks_it() {
    for (rule, doctor) in DOCTORED {
        let (mut history, mut outcome) = sound();
        doctor(&mut history, &mut outcome);
        let broken = broken(&history, &outcome);
        assert!(broken.contains(rule), "{rule} is not seen; broken are {broken:?}");
    }
}

#[test]
fn every_rule_has_a_history_that_breaks_it() {
    let (history, outcome) = sound();
    for rule in super::check(&history, &outcome).rules.into_keys() {
        assert!(DOCTORED.iter().any(|(doctored, _)| *doctored == rule), "{rule} has no history that breaks it");
    }
}

#[test]
fn indexes_are_not_judged_unless_reconcilers_looked_at_everything() {
    let (history, mut outcome) = sound();
    let judged = |outcome: &Outcome| super::check(&history, outcome).rules.contains_key("indexes agree with documents");
    assert!(judged(&outcome));
    outcome.repairs = None;
    assert!(!judged(&outcome));
}

#[test]
fn a_reclaim_is_not_measured_when_nobody_knows_whether_the_lease_was_renewed() {
    let (mut history, outcome) = sound();
    let reclaims = |history: &History| super::check(history, &outcome).reclaims;
    assert_eq!(reclaims(&history), [10]);
    let mut renewal = held("renew", 18, "a", 1, json!({}));
    (renewal.answer, renewal.ended, renewal.status) = (Answer::Unknown, i64::MAX, 0);
    history.calls.push(renewal);
    assert_eq!(reclaims(&history), Vec::<i64>::new());
    let mut again = held("renew", 19, "a", 1, json!({}));
    again.shown = json!({ "results": [{ "outcome": "renewed" }] });
    history.calls.push(again);
    assert_eq!(reclaims(&history), [1]);
}
