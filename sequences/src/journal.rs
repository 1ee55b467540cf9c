//! Journals: what a function did stays done, and what it waits for finds it.

use ff_core::Code;
use serde_json::{Value, json};

use crate::world::{World, merged, text};

/// Long enough for a slow machine to record something, short enough to be lost in a test.
const SHORT_LEASE: i64 = 1_500;

/// Longer than the calls take that must find it asleep.
const SLEEP: i64 = 4_000;

fn entry(name: &str, state: &str) -> Value {
    json!({ "name": name, "state": state })
}

fn done(name: &str, result: Value) -> Value {
    merged(entry(name, "completed"), json!({ "result": result }))
}

/// The arguments of a call that brings entries along.
fn with_entries(task: &Value, first_number: u64, entries: &[Value]) -> Value {
    json!({ "execution_id": task["execution_id"], "fence": task["fence"], "first_number": first_number,
        "entries": entries })
}

async fn record(w: &World, task: &Value, first_number: u64, entries: &[Value]) -> Value {
    w.must("record_steps", with_entries(task, first_number, entries)).await
}

async fn park(w: &World, task: &Value, first_number: u64, waits: Value) -> Value {
    w.must("park", merged(with_entries(task, first_number, &[]), waits)).await
}

/// Name, key and state of each record, oldest first.
fn records(entries: &Value) -> Vec<(String, Option<String>, String)> {
    let items = entries.as_array().expect("a list");
    let key = |item: &Value| item["key"].as_str().map(str::to_owned);
    items.iter().map(|item| (text(&item["name"]), key(item), text(&item["state"]))).collect()
}

/// The records of a journal without keys.
fn states(entries: &Value) -> Vec<(String, String)> {
    records(entries).into_iter().map(|(name, _, state)| (name, state)).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
}

pub(crate) async fn s31_a_lost_lease_leaves_the_steps_it_recorded(w: World) {
    let id = w.submit(json!({})).await;
    let first = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("a task");
    assert!(first.get("journal").is_none_or(Value::is_null), "nobody can have recorded anything: {first}");
    let answer = record(&w, &first, 1, &[done("fetch", json!({ "page": 7 }))]).await;
    assert_eq!((&answer["last_number"], &answer["next_number"]), (&json!(1), &json!(2)));
    let large = "x".repeat(20_000);
    let call = with_entries(&first, 2, &[done("write", json!(large))]);
    assert_eq!(w.must("record_steps", call.clone()).await, w.must("record_steps", call).await, "a repeat is the same");
    let wrong = with_entries(&first, 2, &[done("write", json!("other"))]);
    assert_eq!(w.refused("record_steps", wrong, Code::JournalConflict).await["next"], 3);
    let second = w.claim().await;
    assert_eq!((second["execution_id"].as_str(), second["claim_kind"].as_str()), (Some(&*id), Some("reclaim")));
    let journal = &second["journal"];
    assert_eq!((&journal["next_number"], &journal["complete"]), (&json!(3), &json!(true)));
    assert_eq!(states(&journal["entries"]), pairs(&[("fetch", "completed"), ("write", "completed")]));
    assert_eq!(journal["entries"][0]["result"]["payload"], json!({ "page": 7 }), "{journal}");
    assert_eq!(journal["entries"][1]["result"]["payload"], json!(large));
    w.refused("record_steps", with_entries(&first, 3, &[done("late", json!(1))]), Code::StaleLease).await;
    // The third step and the end are one commit.
    let end = merged(with_entries(&second, 3, &[done("publish", json!(3))]), json!({ "result": "done" }));
    w.must("complete", end).await;
    let listed = w.must("list_steps", json!({ "execution_id": id })).await;
    assert_eq!(
        states(&listed["items"]),
        pairs(&[("fetch", "completed"), ("write", "completed"), ("publish", "completed")])
    );
    let page = w.must("list_steps", json!({ "execution_id": id, "limit": 2 })).await;
    assert_eq!(page["next_after"], 2);
    let rest = w.must("list_steps", json!({ "execution_id": id, "limit": 2, "after": 2 })).await;
    assert_eq!((states(&rest["items"]), rest.get("next_after")), (pairs(&[("publish", "completed")]), None));
}

pub(crate) async fn s32_only_the_parallel_step_that_was_not_recorded_is_missing(w: World) {
    w.submit(json!({})).await;
    let first = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("a task");
    let keyed = |key: &str, state: &str| merged(entry("fetch", state), json!({ "key": key }));
    record(&w, &first, 1, &[keyed("a", "begun"), keyed("b", "completed")]).await;
    let second = w.claim().await;
    let expected = [("a", "begun"), ("b", "completed")];
    let found = records(&second["journal"]["entries"]);
    let found: Vec<_> = found.iter().map(|(_, key, state)| (key.as_deref().unwrap_or(""), state.as_str())).collect();
    assert_eq!(found, expected);
    w.must("complete", with_entries(&second, 3, &[keyed("a", "completed")])).await;
}

/// A recorded `fetch` whose program has another input for it by now, and asks.
async fn asks_about_a_change(w: &World) -> String {
    let id = w.submit(json!({})).await;
    let first = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("a task");
    let fetched = merged(done("fetch", json!("page 1")), json!({ "input_hash": "page 1" }));
    record(w, &first, 1, &[done("open", json!(1)), fetched, done("write", json!(3))]).await;
    let second = w.claim().await;
    let question = json!({ "step": { "name": "fetch" }, "reason": "journal_mismatch", "input_hash": "page 0",
        "detail": "step fetch has another input than the one it recorded" });
    park(w, &second, 4, json!({ "questions": [question] })).await;
    let shown = w.get(&id).await;
    assert_eq!(shown["state"]["blocking_reason"], "waiting_for_decision", "{shown}");
    assert_eq!(shown["suspension"]["reason"], "journal_mismatch");
    assert_eq!(shown["questions"][0]["answers"], json!(["keep", "run_again", "fail"]));
    id
}

pub(crate) async fn s32_a_program_that_changed_under_its_journal_is_asked_about(w: World) {
    let decide = |id: &str, answer: &str| json!({ "execution_id": id, "step": { "name": "fetch" }, "answer": answer });
    let recorded = [("open", "completed"), ("fetch", "completed"), ("write", "completed")];
    for answer in ["keep", "fail"] {
        let id = asks_about_a_change(&w).await;
        w.refused("decide_step", decide(&id, "happened"), Code::Invalid).await;
        let decided = w.must("decide_step", decide(&id, answer)).await;
        assert_eq!((&decided["generation"], decided["public_state"].as_str()), (&json!(0), Some("waiting")));
        let task = w.claim().await;
        let entries = &task["journal"]["entries"];
        let last = if answer == "keep" { "completed" } else { "failed" };
        assert_eq!(states(entries), pairs(&[recorded.as_slice(), &[("fetch", last)]].concat()));
        assert_eq!(entries[3]["input_hash"], "page 0", "the program of today finds what it expects");
        match answer {
            "keep" => assert_eq!(entries[3]["result"], entries[1]["result"]),
            _ => assert_eq!(entries[3]["category"], "journal_mismatch"),
        }
        w.complete(&id, &task["fence"], json!(1)).await;
    }
    let id = asks_about_a_change(&w).await;
    let decided = w.must("decide_step", decide(&id, "run_again")).await;
    assert_eq!(decided["generation"], 1);
    let task = w.claim().await;
    assert_eq!(states(&task["journal"]["entries"]), pairs(&[("open", "completed")]), "the rest is dropped");
    assert_eq!(task["journal"]["next_number"], 2);
    w.must("complete", with_entries(&task, 2, &[done("fetch", json!("page 0"))])).await;
    let listed = w.must("list_steps", json!({ "execution_id": id })).await;
    assert_eq!(states(&listed["items"]), pairs(&recorded[..2]));
    let before = w.must("list_steps", json!({ "execution_id": id, "generation": 0 })).await;
    assert_eq!(states(&before["items"]), pairs(&recorded), "what was dropped can still be read");
}

/// A `once` step began, its worker died, and the next one asks whether it happened; the fence of the dead worker.
async fn asks_whether_it_happened(w: &World) -> (String, Value) {
    let id = w.submit(json!({})).await;
    let first = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("a task");
    record(w, &first, 1, &[entry("pay", "begun")]).await;
    let second = w.claim().await;
    let begun = &second["journal"]["entries"][0];
    assert_eq!((&begun["state"], &begun["lease_id"]), (&json!("begun"), &first["fence"]["lease_id"]));
    assert_ne!(begun["lease_id"], second["fence"]["lease_id"], "the new holder sees that it was not its own");
    let question = json!({ "step": { "name": "pay" }, "reason": "in_doubt" });
    let parked = park(w, &second, 2, json!({ "questions": [question] })).await;
    assert_eq!(parked["public_state"], "suspended");
    (id, first)
}

pub(crate) async fn s33_a_step_in_doubt_waits_for_one_of_three_answers(w: World) {
    for (answer, more, state) in [
        ("happened", json!({ "result": "receipt 7" }), "completed"),
        ("did_not_happen", json!({}), "retrying"),
        ("fail", json!({ "reason": "nobody can tell" }), "failed"),
    ] {
        let (id, late) = asks_whether_it_happened(&w).await;
        w.refused("resume_execution", json!({ "execution_id": id }), Code::OperatorResumeNotAllowed).await;
        // The late worker's report is no record, and the person who is asked can read it.
        let report = with_entries(&late, 2, &[done("pay", json!("receipt 7"))]);
        w.refused("record_steps", report, Code::ExecutionNotActive).await;
        let explained = w.must("explain_execution", json!({ "execution_id": id })).await;
        let asked = &explained["reasons"][0];
        assert_eq!(
            (asked["code"].as_str(), &asked["details"]["step"]["name"]),
            (Some("decision_needed"), &json!("pay"))
        );
        assert_eq!(asked["details"]["evidence"][0]["result"]["payload"], "receipt 7", "{explained}");
        let decide = merged(json!({ "execution_id": id, "answer": answer }), more);
        w.must("decide_step", decide.clone()).await;
        w.refused("decide_step", decide, Code::ExecutionNotSuspended).await;
        let third = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("it runs again");
        let fourth = w.claim().await;
        for task in [&third, &fourth] {
            let entries = &task["journal"]["entries"];
            assert_eq!(states(entries), pairs(&[("pay", "begun"), ("pay", state)]), "nobody asks twice");
        }
        let last = &fourth["journal"]["entries"][1];
        match state {
            "completed" => assert_eq!(last["result"]["payload"], "receipt 7"),
            "failed" => assert_eq!(last["category"], "in_doubt"),
            _ => assert!(last["next_at"].is_i64(), "{last}"),
        }
        w.complete(&id, &fourth["fence"], json!(1)).await;
    }
}

pub(crate) async fn s36_a_sleep_wakes_at_the_instant_that_was_fixed_first(w: World) {
    let id = w.submit(json!({})).await;
    let first = w.claim().await;
    let step = json!({ "name": "cool down" });
    let call = merged(
        with_entries(&first, 1, &[done("before", json!(1))]),
        json!({ "sleeps": [{ "step": step, "sleep_ms": SLEEP }] }),
    );
    let parked = w.must("park", call.clone()).await;
    assert_eq!((parked["outcome"].as_str(), parked["public_state"].as_str()), (Some("parked"), Some("delayed")));
    assert_eq!(w.must("park", call).await["wake_at"], parked["wake_at"], "a repeat is the same park");
    w.nothing_to_claim().await;
    let woken = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("it wakes");
    assert_eq!(woken["fence"]["attempt"], first["fence"]["attempt"], "the same attempt goes on");
    let expected = pairs(&[("before", "completed"), ("cool down", "begun"), ("cool down", "completed")]);
    assert_eq!(states(&woken["journal"]["entries"]), expected);
    assert_eq!(woken["journal"]["entries"][1]["next_at"], parked["wake_at"]);
    // A crash afterwards does not sleep again.
    let reclaimed = w.claim().await;
    assert_eq!(states(&reclaimed["journal"]["entries"]), expected);
    let over = json!({ "sleeps": [{ "step": { "name": "cool down" }, "until": parked["wake_at"] }] });
    assert_eq!(park(&w, &reclaimed, 4, over).await["outcome"], "already_satisfied");
    w.complete(&id, &reclaimed["fence"], json!(1)).await;
}

pub(crate) async fn s37_a_retry_runs_the_step_that_ended_the_attempt(w: World) {
    let policy = json!({ "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 10 } } } });
    let id = w.submit(json!({ "policy": policy })).await;
    let first = w.claim().await;
    let failed = |name: &str| merged(entry(name, "failed"), json!({ "message": "disk full" }));
    let entries = [done("fetch", json!(1)), failed("caught"), done("undo", json!(2)), failed("write")];
    let end = json!({ "reason": "disk full", "cause": { "name": "write" } });
    w.must("fail", merged(with_entries(&first, 1, &entries), end.clone())).await;
    let second = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("a retry");
    assert_eq!(second["claim_kind"], "retry");
    let stands = [("fetch", "completed"), ("caught", "failed"), ("undo", "completed"), ("write", "failed")];
    let expected = pairs(&[stands.as_slice(), &[("write", "retrying")]].concat());
    assert_eq!(states(&second["journal"]["entries"]), expected);
    // A reclaim changes nothing: a failure that was recorded stands.
    record(&w, &second, 6, &[failed("write")]).await;
    let reclaimed = w.claim().await;
    let expected = pairs(&[stands.as_slice(), &[("write", "retrying"), ("write", "failed")]].concat());
    assert_eq!(states(&reclaimed["journal"]["entries"]), expected);
    let answer = w.must("fail", merged(with_entries(&reclaimed, 7, &[]), end)).await;
    assert_eq!(answer["outcome"], "terminal_failed", "{answer}");
    w.is(&id, "failed").await;
}

pub(crate) async fn s37_a_replay_from_a_step_takes_over_what_stands_before_it(w: World) {
    let id = w.submit(json!({})).await;
    let task = w.claim().await;
    let all = [done("a", json!(1)), done("b", json!(2)), done("c", json!(3))];
    w.must("complete", with_entries(&task, 1, &all)).await;
    let from = |name: &str| json!({ "execution_id": id, "from_step": { "name": name } });
    assert_eq!(w.refused("replay_execution", from("z"), Code::Invalid).await["field"], "from_step");
    w.must("replay_execution", from("b")).await;
    let task = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("the replay");
    assert_eq!((task["claim_kind"].as_str(), &task["generation"]), (Some("replay"), &json!(1)));
    assert_eq!(states(&task["journal"]["entries"]), pairs(&[("a", "completed")]));
    record(&w, &task, 2, &[done("b", json!("new"))]).await;
    let task = w.claim().await;
    let entries = &task["journal"]["entries"];
    assert_eq!(states(entries), pairs(&[("a", "completed"), ("b", "completed")]));
    assert_eq!((&entries[0]["result"]["payload"], &entries[1]["result"]["payload"]), (&json!(1), &json!("new")));
    w.complete(&id, &task["fence"], json!(1)).await;
}

pub(crate) async fn s38_a_fork_inherits_what_stands_before_a_step(w: World) {
    const LARGE: usize = 1_000_000;
    const PIECES: u64 = 40;
    let id = w.submit(json!({ "input": "old", "tags": { "color": "red" } })).await;
    let task = w.claim().await;
    let keyed = |number: u64| merged(done("fetch", json!("x".repeat(LARGE))), json!({ "key": format!("{number}") }));
    for number in 1..=PIECES {
        record(&w, &task, number, &[keyed(number)]).await;
    }
    let rest = [entry("pay", "begun"), done("write", json!("old")), done("after", json!(1))];
    w.must("complete", merged(with_entries(&task, PIECES + 1, &rest), json!({ "result": "old" }))).await;
    let fork = json!({ "execution_id": id, "before_step": { "name": "write" }, "input": "new" });
    let missing = merged(fork.clone(), json!({ "before_step": { "name": "nothing" } }));
    assert_eq!(w.refused("fork_execution", missing, Code::Invalid).await["field"], "before_step");
    let forked = w.must("fork_execution", fork).await;
    assert_eq!(forked["origin_id"], json!(id));
    let forked = text(&forked["execution_id"]);
    let task = w.claim().await;
    assert_eq!((task["execution_id"].as_str(), &task["claim_kind"]), (Some(&*forked), &json!("initial")));
    assert_eq!((&task["input"]["payload"], &task["tags"]), (&json!("new"), &json!({ "color": "red" })));
    assert_eq!(task["journal"]["next_number"], PIECES + 1, "what had only begun is not inherited");
    let mut seen = 0;
    let mut after = 0;
    while seen < PIECES {
        let page = w.must("list_steps", json!({ "execution_id": forked, "after": after })).await;
        for item in page["items"].as_array().expect("a list") {
            assert_eq!((&item["inherited"], item["result_size"].as_u64()), (&json!(true), Some(LARGE as u64 + 2)));
            seen += 1;
        }
        after = page["next_after"].as_u64().unwrap_or(after);
    }
    w.must("complete", merged(with_entries(&task, PIECES + 1, &[done("write", json!("new"))]), json!({ "result": 1 })))
        .await;
    let shown = w.get(&forked).await;
    assert_eq!(shown["forked_from"], json!(id));
    let forks = w.must("list_forks", json!({ "execution_id": id })).await;
    assert_eq!(forks["items"][0]["execution_id"], json!(forked), "{forks}");
    let original = w.must("list_steps", json!({ "execution_id": id, "after": PIECES })).await;
    assert_eq!(states(&original["items"]), pairs(&[("pay", "begun"), ("write", "completed"), ("after", "completed")]));
    let result = w.must("get_result", json!({ "execution_id": id })).await;
    assert_eq!(result["payload"], "old");
}

pub(crate) async fn s39_a_pinned_execution_is_finished_by_the_build_that_started_it(w: World) {
    let pinned = json!({ "policy": { "pin_build": true } });
    let of_build = |build: &str, more: Value| merged(json!({ "capabilities": [format!("build:{build}")] }), more);
    let soon = json!({ "wait_ms": 0 });
    let old = w.submit(pinned.clone()).await;
    let first =
        w.claim_with(of_build("v1", json!({ "lease_ttl_ms": SHORT_LEASE }))).await.expect("the old build starts it");
    assert_eq!(w.get(&old).await["pinned_build"], "v1");
    // The old build is gone, and the new one starts what is new and nothing else.
    w.becomes(&old, "waiting").await;
    let new = w.submit(pinned).await;
    let started = w.claim_with(of_build("v2", json!({}))).await.expect("new work");
    assert_eq!(started["execution_id"], json!(new));
    assert!(w.claim_with(of_build("v2", soon.clone())).await.is_none(), "the old run waits for its build");
    assert!(w.claim_with(soon).await.is_none(), "and so it does for workers that name none");
    let explained = w.must("explain_execution", json!({ "execution_id": old })).await;
    assert_eq!(explained["reasons"][0]["code"], "pinned_to_build", "{explained}");
    let again =
        w.claim_with(of_build("v1", json!({ "lease_ttl_ms": SHORT_LEASE }))).await.expect("the old build is back");
    assert_eq!((again["execution_id"].as_str(), &again["claim_kind"]), (Some(&*old), &json!("reclaim")));
    assert_ne!(again["fence"], first["fence"]);
    w.becomes(&old, "waiting").await;
    let repinned = w.must("repin_build", json!({ "execution_id": old, "build_id": "v2" })).await;
    assert_eq!(repinned["build_id"], "v2");
    let taken = w.claim_with(of_build("v2", json!({}))).await.expect("an operator let the new build have it");
    assert_eq!(taken["execution_id"], json!(old));
    let attempts = w.must("list_attempts", json!({ "execution_id": old })).await;
    let builds: Vec<&Value> = attempts["items"].as_array().expect("a list").iter().map(|it| &it["build_id"]).collect();
    assert_eq!(builds, ["v1", "v1", "v2"], "{attempts}");
    w.complete(&old, &taken["fence"], json!(1)).await;
    w.complete(&new, &started["fence"], json!(1)).await;
}

pub(crate) async fn s52_a_function_continues_as_new_a_thousand_times(w: World) {
    const TIMES: u64 = 1_000;
    let id = w.submit(json!({ "input": 0 })).await;
    for round in 0..TIMES {
        let task = w.claim().await;
        assert_eq!((&task["input"]["payload"], &task["generation"]), (&json!(round), &json!(round)));
        assert_eq!(task["fence"]["attempt"], 0, "it is the same attempt");
        let known = task["journal"]["entries"].as_array().map_or(0, Vec::len);
        assert_eq!(known, 0, "the journal begins anew");
        // The last ones are looked for afterwards.
        if round % 10 == 0 || round + 3 >= TIMES {
            record(&w, &task, 1, &[done("work", json!(round))]).await;
        }
        let next = json!({ "execution_id": id, "fence": task["fence"], "input": round + 1 });
        let continued = w.must("continue_as_new", next).await;
        assert_eq!(continued["generation"], round + 1);
    }
    let task = w.claim().await;
    w.complete(&id, &task["fence"], json!("the end")).await;
    let items = async |generation: u64| {
        let listed = w.must("list_steps", json!({ "execution_id": id, "generation": generation })).await;
        listed["items"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(items(TIMES - 1).await, 1, "the journal before the last can be read");
    w.until("older journals are removed", async || items(0).await + items(TIMES - 2).await == 0).await;
    let result = w.must("get_result", json!({ "execution_id": id })).await;
    assert_eq!(result["payload"], "the end", "{result}");
}

pub(crate) async fn s51_a_waitpoint_survives_the_wake_of_another(w: World) {
    let (id, fence) = w.in_hand(json!({})).await;
    let task = json!({ "execution_id": id, "fence": fence });
    let waits = json!({ "waitpoints": [{ "step": { "name": "left" } }, { "step": { "name": "right" } }] });
    let parked = park(&w, &task, 1, waits).await;
    w.is(&id, "suspended").await;
    let listed = w.must("list_pending_waitpoints", json!({ "execution_id": id })).await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
    let signal = |at: usize, payload: &str| {
        let waitpoint = &parked["waitpoints"][at];
        json!({ "execution_id": id, "waitpoint_id": waitpoint["waitpoint_id"], "token": waitpoint["token"],
            "name": "go", "payload": payload })
    };
    assert_eq!(w.must("deliver_signal", signal(0, "l")).await["outcome"], "triggered_resume");
    let woken = w.claim().await;
    assert_eq!(states(&woken["journal"]["entries"]), pairs(&[("left", "completed")]));
    let mailed = w.must("deliver_signal", signal(1, "r")).await;
    assert_eq!(mailed["effect"], "buffered", "the mailed link still works: {mailed}");
    let wait = json!({ "waitpoints": [{ "step": { "name": "right" } }] });
    let call = merged(with_entries(&woken, 2, &[]), wait);
    let satisfied = w.must("park", call.clone()).await;
    assert_eq!((satisfied["outcome"].as_str(), &satisfied["next_number"]), (Some("already_satisfied"), &json!(3)));
    assert_eq!(satisfied["entries"][0]["result"]["payload"], "r");
    let again = w.must("park", call).await;
    assert_eq!((&again["outcome"], &again["next_number"]), (&satisfied["outcome"], &satisfied["next_number"]));
    assert_eq!(again["entries"][0]["result"], satisfied["entries"][0]["result"], "a repeat gets the same answer");
    w.refused("deliver_signal", signal(0, "late"), Code::WaitpointClosed).await;
    w.complete(&id, &woken["fence"], json!(1)).await;
}

pub(crate) async fn s46_a_step_with_the_same_result_is_a_loop_and_a_changing_one_is_not(w: World) {
    let policy = json!({ "policy": { "no_progress": { "same": 5, "window": 50, "action": "ask" } } });
    let looked =
        |number: u64, saw: Value| merged(done("look", saw), json!({ "occurrence": number, "input_hash": "the inbox" }));
    let id = w.submit(policy.clone()).await;
    let task = w.claim().await;
    for number in 1..=10 {
        let answer = record(&w, &task, number, &[looked(number, json!({ "mails": number }))]).await;
        assert_eq!(answer.get("loop_detected"), None, "a result that changes is progress: {answer}");
    }
    for number in 11..=15 {
        let call = with_entries(&task, number, &[looked(number, json!({ "mails": 0 }))]);
        let answer = w.must("record_steps", call.clone()).await;
        assert_eq!(answer["next_number"], number + 1);
        assert_eq!(answer.get("loop_detected"), (number == 15).then_some(&json!(true)));
        if number == 15 {
            assert_eq!(w.must("record_steps", call).await, answer, "a repeat is the same");
        }
    }
    w.is(&id, "suspended").await;
    let shown = w.get(&id).await;
    assert_eq!(shown["suspension"]["reason"], "no_progress", "{shown}");
    assert_eq!(shown["questions"][0]["answers"], json!(["go_on", "fail"]));
    w.refused("complete", json!({ "execution_id": id, "fence": task["fence"] }), Code::ExecutionNotActive).await;
    w.must("decide_step", json!({ "execution_id": id, "answer": "go_on" })).await;
    let task = w.claim().await;
    assert_eq!(task["journal"]["next_number"], 16, "what was recorded stands");
    let answer = record(&w, &task, 16, &[looked(16, json!({ "mails": 0 }))]).await;
    assert_eq!(answer.get("loop_detected"), None, "equal results are counted anew");
    w.complete(&id, &task["fence"], json!("done")).await;

    let failing = json!({ "policy": { "no_progress": { "same": 2, "action": "fail" } } });
    let id = w.submit(failing).await;
    let task = w.claim().await;
    let answer = record(&w, &task, 1, &[looked(0, json!(1)), looked(1, json!(1))]).await;
    assert_eq!(answer["loop_detected"], true);
    w.is(&id, "failed").await;
    assert_eq!(w.get(&id).await["last_failure"]["category"], "loop_detected");
}
