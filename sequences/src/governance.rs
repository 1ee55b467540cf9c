//! Budgets, quotas, capabilities, priorities, holds and lanes: which execution runs when.

use ff_core::Code;
use serde_json::{Value, json};

use crate::world::{World, merged, text};

pub(crate) async fn s15_an_exhausted_budget_blocks_until_it_opens(w: World) {
    w.must("create_budget", json!({ "name": "team", "dimensions": { "tokens": { "hard": 100 } } })).await;
    let report = async |amount: i64, key: &str| {
        w.must("report_budget_usage", json!({ "name": "team", "usage": { "tokens": amount }, "dedup_key": key })).await
    };
    assert_eq!(report(60, "a").await["outcome"], "ok");
    assert_eq!(report(60, "a").await["outcome"], "already_applied", "the same key twice counts once");
    assert_eq!(report(40, "b").await["outcome"], "ok");
    let breach = report(1, "c").await;
    assert_eq!(
        (breach["outcome"].as_str(), breach["current"].as_i64(), breach["limit"].as_i64()),
        (Some("hard_breach"), Some(100), Some(100))
    );
    assert_eq!(w.must("get_budget", json!({ "name": "team" })).await["usage"]["tokens"], 100);
    let id = w.submit(json!({ "budget_ids": ["team"] })).await;
    w.is_held_back(&id).await;
    let explained = w.must("explain_execution", json!({ "execution_id": id })).await;
    assert!(explained["reasons"][0]["message"].as_str().is_some_and(|message| message.contains("team")), "{explained}");
    w.must("reset_budget", json!({ "name": "team" })).await;
    let task = w.claim().await;
    w.complete(&id, &task["fence"], json!(1)).await;
    assert_eq!(report(99, "d").await["outcome"], "ok");
    assert_eq!(report(50, "e").await["outcome"], "hard_breach");
    let blocked = w.submit(json!({ "budget_ids": ["team"] })).await;
    w.is_held_back(&blocked).await;
    w.must("set_budget_limits", json!({ "name": "team", "dimensions": { "tokens": { "hard": 1_000 } } })).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(blocked), "a raised limit lets it run");
    w.complete(&blocked, &task["fence"], json!(1)).await;
}

pub(crate) async fn s16_a_quota_holds_its_window_and_its_slots(w: World) {
    w.must("create_quota", json!({ "name": "rate", "window_seconds": 1, "max_requests": 2 })).await;
    for _ in 0..3 {
        w.submit(json!({ "quota_policy_id": "rate" })).await;
    }
    for _ in 0..2 {
        let task = w.claim().await;
        w.complete(&text(&task["execution_id"]), &task["fence"], json!(1)).await;
    }
    w.nothing_to_claim().await;
    let limited = w.must("list_executions", json!({ "state": "rate_limited" })).await;
    assert_eq!(limited["items"].as_array().map(Vec::len), Some(1), "{limited}");
    let third = text(&limited["items"][0]["execution_id"]);
    let explained = w.must("explain_execution", json!({ "execution_id": third })).await;
    assert!(explained["next_change_at"].is_i64(), "the time it opens is known: {explained}");
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(third), "it runs by itself once the window has moved on");
    w.complete(&third, &task["fence"], json!(1)).await;

    w.must("create_quota", json!({ "name": "one", "max_concurrent": 1 })).await;
    for ending in ["complete", "fail", "suspend", "revoke"] {
        let first = w.submit(json!({ "quota_policy_id": "one" })).await;
        let task = w.claim().await;
        let second = w.submit(json!({ "quota_policy_id": "one" })).await;
        w.nothing_to_claim().await;
        let held = json!({ "execution_id": first, "fence": task["fence"] });
        match ending {
            "complete" => drop(w.must("complete", held).await),
            "fail" => drop(w.must("fail", merged(held, json!({ "reason": "broke", "retry_after_ms": 600_000 }))).await),
            "suspend" => {
                let suspend = json!({ "reason": "signal", "condition": { "any": [] } });
                drop(w.must("suspend", merged(held, suspend)).await);
            }
            _ => {
                w.must("hold_execution", json!({ "execution_id": first })).await;
                drop(w.must("revoke_lease", json!({ "execution_id": first })).await);
            }
        }
        let next = w.claim().await;
        assert_eq!(next["execution_id"], json!(second), "the slot comes back after {ending}");
        w.complete(&second, &next["fence"], json!(1)).await;
    }
}

pub(crate) async fn s17_a_requirement_waits_for_its_worker_and_blocks_nobody(w: World) {
    let gpu = w.submit(json!({ "required_capabilities": ["gpu"], "priority": 100 })).await;
    let plain = w.submit(json!({})).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(plain), "what nobody here can run stands in nobody's way");
    w.complete(&plain, &task["fence"], json!(1)).await;
    w.is(&gpu, "waiting").await;
    assert_eq!(w.get(&gpu).await["state"]["eligibility_state"], "blocked_by_route");
    let explained = w.must("explain_execution", json!({ "execution_id": gpu })).await;
    assert!(explained.to_string().contains("gpu"), "{explained}");
    let capable = w.claim_with(json!({ "capabilities": ["gpu", "ssd"] })).await.expect("a capable worker takes it");
    w.complete(&gpu, &capable["fence"], json!(1)).await;
}

pub(crate) async fn s24_priority_then_age_decides(w: World) {
    let mut ids = Vec::new();
    for priority in [0, 0, 10, 5] {
        ids.push(w.submit(json!({ "priority": priority })).await);
    }
    w.must("change_priority", json!({ "execution_id": ids[1], "priority": 7 })).await;
    for expected in [2, 1, 3, 0] {
        let task = w.claim().await;
        assert_eq!(task["execution_id"], json!(ids[expected]));
        w.complete(&ids[expected], &task["fence"], json!(1)).await;
    }
    w.refused("change_priority", json!({ "execution_id": ids[0], "priority": 1 }), Code::ExecutionTerminal).await;
}

pub(crate) async fn s26_it_runs_when_nothing_holds_it(w: World) {
    let (resumed, fence) = w.in_hand(json!({})).await;
    let suspend = json!({ "execution_id": resumed, "fence": fence, "reason": "signal", "condition": { "any": [] } });
    let suspended = w.must("suspend", suspend).await;
    let signal = json!({ "execution_id": resumed, "waitpoint_id": suspended["waitpoint_id"],
        "token": suspended["token"], "name": "go", "resume_delay_ms": 300 });
    w.must("deliver_signal", signal).await;
    w.is(&resumed, "delayed").await;
    assert_eq!(w.get(&resumed).await["state"]["blocking_reason"], "waiting_for_resume_delay");
    w.must("hold_execution", json!({ "execution_id": resumed })).await;
    let waited = async || w.get(&resumed).await["held_by"] == json!(["blocked_by_operator"]);
    w.until("the delay is over", waited).await;
    w.nothing_to_claim().await;
    w.must("release_execution", json!({ "execution_id": resumed })).await;
    let task = w.claim().await;
    assert_eq!((task["execution_id"].as_str(), task["claim_kind"].as_str()), (Some(resumed.as_str()), Some("resumed")));
    w.complete(&resumed, &task["fence"], json!(1)).await;

    let later = json!({ "kind": "test", "delay_until": 4_000_000_000_000i64 });
    let nodes = json!([{ "name": "a", "request": { "kind": "test" } }, { "name": "b", "request": later }]);
    let flow = w.must("create_flow", json!({ "nodes": nodes, "edges": [{ "from": "a", "to": "b" }] })).await;
    let (a, b) = (text(&flow["executions"]["a"]), text(&flow["executions"]["b"]));
    w.is(&b, "waiting_children").await;
    let task = w.claim().await;
    w.complete(&a, &task["fence"], json!(1)).await;
    w.becomes(&b, "delayed").await;
    w.nothing_to_claim().await;
    w.must("cancel_execution", json!({ "execution_id": b })).await;
}

pub(crate) async fn s27_a_lane_is_paused_resumed_and_disabled(w: World) {
    let (running, fence) = w.in_hand(json!({})).await;
    let lane = json!({ "lane": "default" });
    w.must("pause_lane", merged(lane.clone(), json!({ "reason": "maintenance" }))).await;
    let waiting = w.submit(json!({})).await;
    // A pause holds everywhere within a second of its answer.
    w.until("the pause holds", async || w.claim_with(json!({ "wait_ms": 0 })).await.is_none()).await;
    assert_eq!(w.get(&waiting).await["state"]["eligibility_state"], "blocked_by_lane_state");
    w.complete(&running, &fence, json!("running work goes on")).await;
    let claim = w.claim_with(json!({ "wait_ms": 10_000 }));
    let (task, _) = tokio::join!(claim, w.must("resume_lane", lane.clone()));
    let task: Value = task.expect("a resumed lane gives out its work");
    assert_eq!(task["execution_id"], json!(waiting));
    w.complete(&waiting, &task["fence"], json!(1)).await;
    w.must("disable_lane", lane.clone()).await;
    let refused = async || {
        let answer = w.call("create_execution", json!({ "kind": "test" })).await;
        answer.is_err_and(|error| error.code == Code::LaneDisabled)
    };
    w.until("submissions are refused", refused).await;
    w.must("resume_lane", lane).await;
}

pub(crate) async fn s49_services_with_different_kinds_share_a_lane(w: World) {
    let mut ids = Vec::new();
    for number in 0..12 {
        // The other service's work is always the more urgent one.
        let (kind, priority) = if number % 2 == 0 { ("mail", 9) } else { ("image", 0) };
        ids.push(w.submit(json!({ "kind": kind, "priority": priority })).await);
    }
    let serves = |kinds: Value| json!({ "kinds": kinds });
    for id in ids.iter().skip(1).step_by(2) {
        let task = w.claim_with(serves(json!(["image", "video"]))).await.expect("an image waits");
        assert_eq!((task["kind"].as_str(), &task["execution_id"]), (Some("image"), &json!(id)));
        w.complete(id, &task["fence"], json!(1)).await;
    }
    let none = w.claim_with(merged(serves(json!(["image"])), json!({ "wait_ms": 100 }))).await;
    assert!(none.is_none(), "{none:?}");
    // One that waits for its kind is not woken by the other, and is by its own.
    let waiting = async { w.claim_with(serves(json!(["image"]))).await.expect("an image comes") };
    let submitting = async {
        w.submit(json!({ "kind": "mail", "priority": 9 })).await;
        w.submit(json!({ "kind": "image" })).await
    };
    let (task, late) = tokio::join!(waiting, submitting);
    assert_eq!(task["execution_id"], json!(late));
    w.complete(&late, &task["fence"], json!(1)).await;
    // Lost and returned work keeps its kind.
    let task = w.claim_with(serves(json!(["mail"]))).await.expect("mail waits");
    let id = text(&task["execution_id"]);
    w.must("revoke_lease", json!({ "execution_id": id })).await;
    let none = w.claim_with(merged(serves(json!(["image"])), json!({ "wait_ms": 100 }))).await;
    assert!(none.is_none(), "{none:?}");
    // A claim that names none takes all.
    for _ in 0..7 {
        let task = w.claim().await;
        assert_eq!(task["kind"], "mail");
        w.complete(&text(&task["execution_id"]), &task["fence"], json!(1)).await;
    }
    w.nothing_to_claim().await;
    w.must(
        "register_worker",
        json!({ "instance_id": "w-1", "worker_id": "w", "lanes": ["default"], "nonce": "n",
        "kinds": ["mail"] }),
    )
    .await;
    let id = w.submit(json!({ "kind": "image" })).await;
    let explanation = w.must("explain_execution", json!({ "execution_id": id })).await;
    assert_eq!(explanation["reasons"][0]["code"], "kind_not_served", "{explanation}");
}

/// Used, held, overrun and left of a budget's tokens.
async fn standing(w: &World, name: &str) -> (i64, i64, i64, i64) {
    let status = w.must("get_budget", json!({ "name": name })).await;
    let tokens = &status["standing"]["tokens"];
    let amount = |field: &str| tokens[field].as_i64().unwrap_or_else(|| panic!("{field} in {status}"));
    (amount("used"), amount("reserved"), amount("overrun"), amount("left"))
}

pub(crate) async fn s42_reservers_race_one_ceiling(w: World) {
    w.must("create_budget", json!({ "name": "team", "dimensions": { "tokens": { "hard": 1_000 } } })).await;
    let mut agents = Vec::new();
    for _ in 0..64 {
        agents.push(w.in_hand(json!({ "budget_ids": ["team"] })).await);
    }
    let agents = agents.iter().enumerate().map(|(agent, (id, fence))| {
        let w = &w;
        async move {
            let mut spent = 0;
            for call in 0..4 {
                let amount = i64::try_from((agent * 7 + call * 3) % 20 + 1).unwrap_or(1);
                let held = json!({ "execution_id": id, "fence": fence, "key": format!("call {call}") });
                let reserve = merged(held.clone(), json!({ "amounts": { "tokens": amount } }));
                if w.must("reserve_spend", reserve).await["outcome"] == "refused" {
                    continue;
                }
                let (used, reserved, overrun, _) = standing(w, "team").await;
                assert!(used - overrun + reserved <= 1_000, "{used} used and {reserved} held");
                w.must("settle_spend", merged(held, json!({ "actual": { "tokens": amount } }))).await;
                spent += amount;
            }
            spent
        }
    });
    let spent: i64 = futures_util::future::join_all(agents).await.into_iter().sum();
    assert_eq!(standing(&w, "team").await, (spent, 0, 0, 1_000 - spent), "every call counts once");
    assert!(spent > 980, "{spent}: what was given back was used by others");
}

pub(crate) async fn s42_a_killed_holder_settles_at_the_reserve_and_a_new_lease_reserves_anew(w: World) {
    w.must("create_budget", json!({ "name": "team", "dimensions": { "tokens": { "hard": 100 } } })).await;
    let id = w.submit(json!({ "budget_ids": ["team"] })).await;
    let dead = w.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.expect("it waits for a worker");
    let call = |task: &Value| json!({ "execution_id": id, "fence": task["fence"], "key": "call" });
    let reserve = |task: &Value, tokens: i64| merged(call(task), json!({ "amounts": { "tokens": tokens } }));
    let first = w.must("reserve_spend", merged(reserve(&dead, 60), json!({ "ttl_ms": 2_000 }))).await;
    assert_eq!(first["outcome"], "reserved", "{first}");
    let next = w.claim().await;
    assert_eq!(next["claim_kind"], "reclaim");
    let anew = w.must("reserve_spend", reserve(&next, 40)).await;
    assert_eq!(anew["outcome"], "reserved", "the same key under a new lease: {anew}");
    let full = w.must("reserve_spend", merged(reserve(&next, 1), json!({ "key": "other" }))).await;
    assert_eq!((full["outcome"].as_str(), full["left"].as_i64()), (Some("refused"), Some(0)), "{full}");
    w.until("the dead holder's reservation counts as spent", async || standing(&w, "team").await.0 == 60).await;
    assert_eq!(standing(&w, "team").await, (60, 40, 0, 0));
    let settle = |task: &Value, tokens: i64| merged(call(task), json!({ "actual": { "tokens": tokens } }));
    w.must("settle_spend", settle(&dead, 10)).await;
    assert_eq!(standing(&w, "team").await, (10, 40, 0, 50), "what it says later takes the reserve's place");
    w.must("settle_spend", settle(&dead, 10)).await;
    let settled = w.must("settle_spend", settle(&next, 55)).await;
    assert_eq!(settled["budgets"]["team"]["overrun"]["tokens"], 15, "{settled}");
    assert_eq!(standing(&w, "team").await, (65, 0, 15, 35));
    w.refused("settle_spend", settle(&next, 56), Code::IdempotencyConflict).await;
    w.refused("release_spend", call(&next), Code::ReservationEnded).await;

    // Across a reset: it counts in the window that reserved it.
    let key = json!({ "key": "late" });
    w.must("reserve_spend", merged(reserve(&next, 30), key.clone())).await;
    w.must("reset_budget", json!({ "name": "team" })).await;
    assert_eq!(standing(&w, "team").await, (0, 0, 0, 100));
    w.must("settle_spend", merged(settle(&next, 20), key)).await;
    assert_eq!(standing(&w, "team").await, (0, 0, 0, 100));
    let status = w.must("get_budget", json!({ "name": "team" })).await;
    assert_eq!(status["previous_window"]["usage"]["tokens"], 85, "{status}");

    // A reservation keeps other executions from starting, and its release lets them in.
    w.must("reserve_spend", merged(reserve(&next, 100), json!({ "key": "all" }))).await;
    let blocked = w.submit(json!({ "budget_ids": ["team"] })).await;
    w.is_held_back(&blocked).await;
    w.must("release_spend", merged(call(&next), json!({ "key": "all" }))).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(blocked));
    w.complete(&blocked, &task["fence"], json!(1)).await;
    w.complete(&id, &next["fence"], json!(1)).await;
}

pub(crate) async fn s42_a_budget_asks_one_question_for_all_that_wait(w: World) {
    let limits = json!({ "tokens": { "hard": 10 } });
    w.must("create_budget", json!({ "name": "team", "dimensions": limits, "on_hard": "ask" })).await;
    let (first, fence) = w.in_hand(json!({ "budget_ids": ["team"] })).await;
    let (second, other) = w.in_hand(json!({ "budget_ids": ["team"] })).await;
    let call = |id: &str, fence: &Value| json!({ "execution_id": id, "fence": fence, "key": "call" });
    let reserve =
        |id: &str, fence: &Value, tokens: i64| merged(call(id, fence), json!({ "amounts": { "tokens": tokens } }));
    w.must("reserve_spend", reserve(&first, &fence, 10)).await;
    w.must("settle_spend", merged(call(&first, &fence), json!({ "actual": { "tokens": 10 } }))).await;

    // In the middle of an attempt, and before a start.
    let asked = w.must("reserve_spend", reserve(&second, &other, 5)).await;
    assert_eq!((asked["outcome"].as_str(), asked["budget"].as_str()), (Some("asked"), Some("team")), "{asked}");
    assert_eq!(w.must("reserve_spend", reserve(&second, &other, 5)).await, asked, "a repeat is the same call");
    w.is(&second, "suspended").await;
    assert_eq!(w.get(&second).await["state"]["blocking_reason"], "waiting_for_decision");
    let third = w.submit(json!({ "budget_ids": ["team"] })).await;
    is_refused_a_start(&w, &third, "suspended").await;
    let explained = w.must("explain_execution", json!({ "execution_id": third })).await;
    assert_eq!(explained["reasons"][0]["code"], "decision_needed", "{explained}");
    let waiting = w.must("list_approvals", json!({})).await;
    let questions = waiting["budgets"].as_array().cloned().unwrap_or_default();
    assert_eq!((questions.len(), waiting["items"].as_array().map(Vec::len)), (1, Some(0)), "{waiting}");
    assert_eq!((questions[0]["budget"].as_str(), questions[0]["requested"].as_i64()), (Some("team"), Some(5)));

    // Granted once: all that wait go on.
    let grant = json!({ "name": "team", "answer": "grant", "amounts": { "tokens": 20 } });
    let status = w.must("decide_budget", grant.clone()).await;
    assert_eq!(status["standing"]["tokens"]["left"], 20, "{status}");
    w.refused("decide_budget", grant, Code::QuestionNotOpen).await;
    let mut claimed = Vec::new();
    for _ in 0..2 {
        let task = w.claim().await;
        let id = text(&task["execution_id"]);
        let kind = if id == second { "resumed" } else { "initial" };
        assert_eq!(task["claim_kind"], kind, "{task}");
        let held = w.must("reserve_spend", reserve(&id, &task["fence"], 10)).await;
        assert_eq!(held["outcome"], "reserved", "{held}");
        claimed.push((id, task["fence"].clone()));
    }
    claimed.sort_by_key(|(id, _)| id.clone());
    let mut expected = vec![second.clone(), third.clone()];
    expected.sort();
    assert_eq!(claimed.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), expected);

    // No: the execution that waits is refused, and the question is not asked again in this window.
    let (id, held) = claimed.remove(0);
    let more = |fence: &Value| merged(reserve(&id, fence, 1), json!({ "key": "more" }));
    assert_eq!(w.must("reserve_spend", more(&held)).await["outcome"], "asked");
    w.must("decide_budget", json!({ "name": "team", "answer": "no" })).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(id));
    let refused = w.must("reserve_spend", more(&task["fence"])).await;
    assert_eq!((refused["outcome"].as_str(), refused["left"].as_i64()), (Some("refused"), Some(0)), "{refused}");
    let late = w.submit(json!({ "budget_ids": ["team"] })).await;
    is_refused_a_start(&w, &late, "failed").await;
}

/// Nothing is handed out, and the execution ends up in a state: whichever server looks at it first sees to that.
async fn is_refused_a_start(w: &World, id: &str, state: &str) {
    let refused = async || {
        let task = w.claim_with(json!({ "wait_ms": 100 })).await;
        assert!(task.is_none(), "{task:?}");
        w.get(id).await["public_state"] == state
    };
    w.until("the start is refused", refused).await;
}

pub(crate) async fn s42_a_charge_counts_in_everything_a_budget_stands_under(w: World) {
    let limits = |hard: i64| json!({ "tokens": { "hard": hard } });
    w.refused("create_budget", json!({ "name": "acme/ada", "dimensions": limits(50) }), Code::BudgetNotFound).await;
    for (name, hard) in [("acme", 80), ("acme/ada", 50), ("acme/bob", 50)] {
        w.must("create_budget", json!({ "name": name, "dimensions": limits(hard) })).await;
    }
    let too_deep = json!({ "name": "acme/a/b/c/d/e", "dimensions": limits(1) });
    w.refused("create_budget", too_deep, Code::Invalid).await;
    let (ada, fence) = w.in_hand(json!({ "budget_ids": ["acme/ada"] })).await;
    let (bob, other) = w.in_hand(json!({ "budget_ids": ["acme/bob"] })).await;
    let call = |id: &str, fence: &Value, key: &str| json!({ "execution_id": id, "fence": fence, "key": key });
    let reserve = |id: &str, fence: &Value, key: &str, tokens: i64| {
        merged(call(id, fence, key), json!({ "amounts": { "tokens": tokens } }))
    };
    w.must("reserve_spend", reserve(&ada, &fence, "a", 40)).await;
    assert_eq!(standing(&w, "acme").await, (0, 40, 0, 40));
    let own = w.must("reserve_spend", reserve(&ada, &fence, "b", 11)).await;
    assert_eq!((own["outcome"].as_str(), own["budget"].as_str()), (Some("refused"), Some("acme/ada")), "{own}");
    let above = w.must("reserve_spend", reserve(&bob, &other, "a", 41)).await;
    assert_eq!((above["outcome"].as_str(), above["budget"].as_str()), (Some("refused"), Some("acme")), "{above}");
    w.must("reserve_spend", reserve(&bob, &other, "a", 40)).await;
    assert_eq!(standing(&w, "acme/bob").await, (0, 40, 0, 10));
    let report = json!({ "name": "acme/bob", "usage": { "tokens": 1 } });
    assert_eq!(w.must("report_budget_usage", report).await["outcome"], "hard_breach", "acme has nothing left");

    // A budget above keeps work from starting, and lets it in again.
    w.must("set_budget_limits", json!({ "name": "acme", "dimensions": limits(81) })).await;
    w.must("set_budget_limits", json!({ "name": "acme", "dimensions": limits(80) })).await;
    let blocked = w.submit(json!({ "budget_ids": ["acme/ada"] })).await;
    w.is_held_back(&blocked).await;
    let explained = w.must("explain_execution", json!({ "execution_id": blocked })).await;
    assert_eq!(explained["reasons"][0]["details"]["budget"], "acme", "{explained}");
    w.must("settle_spend", merged(call(&ada, &fence, "a"), json!({ "actual": { "tokens": 30 } }))).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(blocked));
    assert_eq!(standing(&w, "acme").await, (30, 40, 0, 10));

    let tree = w.must("get_budget_tree", json!({ "name": "acme" })).await;
    let names: Vec<String> =
        tree["items"].as_array().into_iter().flatten().map(|budget| text(&budget["name"])).collect();
    assert_eq!(names, ["acme", "acme/ada", "acme/bob"]);
}

pub(crate) async fn s42_usage_leaves_a_rolling_window_and_lets_in_what_waits(w: World) {
    let rolling = json!({ "name": "team", "dimensions": { "tokens": { "hard": 10 } }, "rolling_ms": 5_000 });
    w.must("create_budget", rolling.clone()).await;
    assert_eq!(w.must("create_budget", rolling).await["outcome"], "already_exists");
    let (id, fence) = w.in_hand(json!({ "budget_ids": ["team"] })).await;
    let call = |key: &str| json!({ "execution_id": id, "fence": fence, "key": key });
    let reserve = |key: &str, tokens: i64| merged(call(key), json!({ "amounts": { "tokens": tokens } }));
    w.must("reserve_spend", reserve("a", 10)).await;
    w.must("settle_spend", merged(call("a"), json!({ "actual": { "tokens": 9 } }))).await;
    let refused = w.must("reserve_spend", reserve("b", 2)).await;
    assert_eq!((refused["outcome"].as_str(), refused["left"].as_i64()), (Some("refused"), Some(1)), "{refused}");
    let fits_at = refused["next_reset_at"].as_i64().expect("the instant at which it fits");
    let status = w.must("get_budget", json!({ "name": "team" })).await;
    assert_eq!(status["standing"]["tokens"]["frees_at"], json!(fits_at), "{status}");
    w.must("report_budget_usage", json!({ "name": "team", "usage": { "tokens": 1 } })).await;
    let waiting = w.submit(json!({ "budget_ids": ["team"] })).await;
    w.is_held_back(&waiting).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(waiting), "what was spent has left the window");
    w.until("all of it leaves", async || standing(&w, "team").await == (0, 0, 0, 10)).await;
    w.must("reserve_spend", reserve("b", 10)).await;
    let both = json!({ "name": "team", "rolling_ms": 2_000, "reset_interval_ms": 2_000 });
    assert_eq!(w.refused("update_budget", both, Code::Invalid).await["field"], "rolling_ms");
    let fixed = w.must("update_budget", json!({ "name": "team", "reset_interval_ms": 3_600_000 })).await;
    assert_eq!((&fixed["definition"]["rolling_ms"], fixed["next_reset_at"].is_i64()), (&json!(0), true), "{fixed}");
}

pub(crate) async fn s42_an_estimate_is_held_by_the_claim_and_waits_for_its_room(w: World) {
    w.must("create_budget", json!({ "name": "team", "dimensions": { "tokens": { "hard": 100 } } })).await;
    let estimated = |tokens: i64| json!({ "budget_ids": ["team"], "policy": { "estimate": { "tokens": tokens } } });
    let (id, fence) = w.in_hand(estimated(60)).await;
    assert_eq!(standing(&w, "team").await, (0, 60, 0, 40));
    let waiting = w.submit(estimated(70)).await;
    let explained = |id: String| {
        let w = &w;
        async move { w.must("explain_execution", json!({ "execution_id": id })).await["reasons"][0].clone() }
    };
    w.nothing_to_claim().await;
    let reason = explained(waiting.clone()).await;
    assert_eq!(reason["code"], "estimate_too_large", "{reason}");
    assert_eq!((&reason["details"]["left"], &reason["details"]["estimate"]), (&json!(40), &json!(70)), "{reason}");
    let (small, small_fence) = w.in_hand(estimated(40)).await;
    assert_eq!(standing(&w, "team").await, (0, 100, 0, 0), "smaller work goes by");
    w.complete(&small, &small_fence, json!(1)).await;
    let used = json!({ "execution_id": id, "fence": fence, "usage": { "tokens": 30 } });
    assert_eq!(w.must("report_usage", used).await["budgets"]["team"]["outcome"], "ok");
    w.until("the rest of the smaller one is back", async || standing(&w, "team").await == (30, 30, 0, 40)).await;
    w.complete(&id, &fence, json!(1)).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(waiting), "the end of the first one made its room");
    assert_eq!(standing(&w, "team").await, (30, 70, 0, 0));
    w.complete(&waiting, &task["fence"], json!(1)).await;
    w.until("all of it is back", async || standing(&w, "team").await == (30, 0, 0, 70)).await;
    let wrong = json!({ "kind": "test", "policy": { "estimate": { "tokens": -1 } } });
    assert_eq!(w.refused("create_execution", wrong, Code::Invalid).await["field"], "policy.estimate.tokens");
}

pub(crate) async fn s42_the_estimate_of_an_ended_lease_fails_nothing_that_is_claimed_next(w: World) {
    let budget = |name: &str| json!({ "name": name, "dimensions": { "tokens": { "hard": 10 } }, "on_hard": "fail" });
    w.must("create_budget", budget("a")).await;
    w.must("create_budget", budget("b")).await;
    let mut ids = Vec::new();
    for number in 0..30 {
        let budgets = if number % 2 == 0 { json!(["a"]) } else { json!(["a", "b"]) };
        ids.push(w.submit(json!({ "budget_ids": budgets, "policy": { "estimate": { "tokens": 10 } } })).await);
    }
    for _ in &ids {
        let task = w.claim().await;
        w.complete(task["execution_id"].as_str().expect("an id"), &task["fence"], json!(1)).await;
    }
    for id in &ids {
        w.is(id, "completed").await;
    }
}

pub(crate) async fn s42_each_value_of_a_tag_has_a_budget_of_its_own(w: World) {
    let limits = |hard: i64| json!({ "tokens": { "hard": hard } });
    let acme = json!({ "name": "acme", "dimensions": limits(150), "per": "tag:customer",
        "template": { "dimensions": limits(100) } });
    w.must("create_budget", acme).await;
    let of = |customer: &str| json!({ "budget_ids": ["acme"], "tags": { "customer": customer } });
    let (x, fence) = w.in_hand(of("x")).await;
    let call = |key: &str| json!({ "execution_id": x, "fence": fence, "key": key });
    let reserve = |key: &str, tokens: i64| merged(call(key), json!({ "amounts": { "tokens": tokens } }));
    w.must("reserve_spend", reserve("a", 60)).await;
    assert_eq!((standing(&w, "acme").await, standing(&w, "acme/x").await), ((0, 60, 0, 90), (0, 60, 0, 40)));
    let own = w.must("reserve_spend", reserve("b", 41)).await;
    assert_eq!((own["outcome"].as_str(), own["budget"].as_str()), (Some("refused"), Some("acme/x")), "{own}");
    w.must("settle_spend", merged(call("a"), json!({ "actual": { "tokens": 100 } }))).await;
    assert_eq!(standing(&w, "acme/x").await, (100, 0, 40, 0));

    // What the child refuses keeps nobody else out, and a raised limit of it lets its own in.
    let blocked = w.submit(of("x")).await;
    let (y, other) = w.in_hand(of("a b/ü")).await;
    let above = json!({ "execution_id": y, "fence": other, "key": "a", "amounts": { "tokens": 51 } });
    let above = w.must("reserve_spend", above).await;
    assert_eq!((above["outcome"].as_str(), above["budget"].as_str()), (Some("refused"), Some("acme")), "{above}");
    w.must("report_usage", json!({ "execution_id": y, "fence": other, "usage": { "tokens": 7 } })).await;
    assert_eq!(standing(&w, "acme/a%20b%2Fü").await, (7, 0, 0, 93));
    w.is_held_back(&blocked).await;
    let explained = w.must("explain_execution", json!({ "execution_id": blocked })).await;
    assert_eq!(explained["reasons"][0]["details"]["budget"], "acme/x", "{explained}");
    let raised = json!({ "name": "acme", "template": { "dimensions": limits(120) } });
    w.must("update_budget", raised).await;
    assert_eq!(w.claim().await["execution_id"], json!(blocked), "children follow their template");

    let tree = w.must("get_budget_tree", json!({ "name": "acme" })).await;
    let names: Vec<String> =
        tree["items"].as_array().into_iter().flatten().map(|budget| text(&budget["name"])).collect();
    assert_eq!(names, ["acme", "acme/a%20b%2Fü", "acme/x"]);
    let lonely = json!({ "name": "lonely", "dimensions": limits(1), "per": "tag:customer" });
    assert_eq!(w.refused("create_budget", lonely, Code::Invalid).await["field"], "template");
}

pub(crate) async fn s45_a_provider_that_says_too_much_is_closed_everywhere_and_opens_by_itself(w: World) {
    w.must("create_provider", json!({ "name": "model", "window_ms": 1_000, "max_requests": 60, "max_tokens": 9_000 }))
        .await;
    let (id, fence) = w.in_hand(json!({})).await;
    let call = |key: &str| json!({ "execution_id": id, "fence": fence, "provider": "model", "key": key, "cost": { "tokens": 100 } });
    let first = w.must("acquire_provider", call("first")).await;
    assert_eq!((&first["granted"], &first["wait_ms"]), (&json!(true), &json!(0)), "{first}");
    assert_eq!(w.must("acquire_provider", call("first")).await, first, "the same call gets the same answer");
    let settle = json!({ "execution_id": id, "fence": fence, "provider": "model", "key": "first",
        "actual": { "tokens": 40 } });
    let settled = w.must("settle_provider", settle.clone()).await;
    assert_eq!(settled["counted"]["tokens"], 40);
    assert_eq!(w.must("settle_provider", settle).await, settled);
    let shown = w.must("get_provider", json!({ "name": "model" })).await;
    assert_eq!(
        (&shown["granted"], &shown["in_use"], &shown["effective"]["percent"]),
        (&json!(1), &json!(0), &json!(100))
    );

    let throttled = w.must("throttle_provider", json!({ "name": "model", "retry_after_ms": 1_500 })).await;
    assert_eq!((&throttled["effective"]["requests"], &throttled["effective"]["percent"]), (&json!(30), &json!(50)));
    let closed_until = throttled["closed_until"].as_i64().expect("an instant");
    let again = w.must("throttle_provider", json!({ "name": "model", "retry_after_ms": 10 })).await;
    assert_eq!(again["effective"]["percent"], 50, "calls that were refused together halve it once");
    let mut ready = Vec::new();
    for number in 0..6 {
        let booked = w.must("acquire_provider", call(&format!("call {number}"))).await;
        assert_eq!(
            (&booked["granted"], &booked["booked"]),
            (&json!(false), &json!(true)),
            "it is closed everywhere: {booked}"
        );
        ready.push(booked["ready_at"].as_i64().expect("an instant"));
    }
    assert!(ready[0] >= closed_until, "{ready:?} {closed_until}");
    assert!(ready.windows(2).all(|pair| pair[0] < pair[1]), "they do not come all at once: {ready:?}");
    for number in 0..6 {
        let granted = async || w.must("acquire_provider", call(&format!("call {number}"))).await["granted"] == true;
        w.until("it opens by itself", granted).await;
    }
    let unknown = json!({ "execution_id": id, "fence": fence, "provider": "model", "key": "never" });
    w.refused("settle_provider", unknown, Code::BookingNotFound).await;
    let too_much = merged(call("large"), json!({ "cost": { "tokens": 9_001 } }));
    assert_eq!(w.refused("acquire_provider", too_much, Code::Invalid).await["field"], "cost.tokens");
    w.refused("delete_provider", json!({ "name": "model" }), Code::InUse).await;
    w.complete(&id, &fence, json!(1)).await;
    w.refused("acquire_provider", call("late"), Code::ExecutionNotActive).await;
}
