//! Flows: joins, quorums, data passing, cancellation.

use ff_core::Code;
use serde_json::{Value, json};

use crate::world::{World, merged, no_retries, text};

/// A graph of nodes that are not retried; answers with the flow.
async fn graph(w: &World, nodes: &[&str], edges: &[(&str, &str)], joins: &[(&str, Value)]) -> Value {
    let nodes: Vec<Value> = nodes
        .iter()
        .map(|name| {
            let request = merged(json!({ "kind": "test" }), no_retries());
            let join = joins.iter().find(|(node, _)| node == name).map(|(_, join)| join.clone());
            match join {
                Some(join) => json!({ "name": name, "request": request, "join": join }),
                None => json!({ "name": name, "request": request }),
            }
        })
        .collect();
    let edges: Vec<Value> = edges.iter().map(|(from, to)| json!({ "from": from, "to": to })).collect();
    let flow = w.must("create_flow", json!({ "kind": "test", "nodes": nodes, "edges": edges })).await;
    assert_eq!(flow["outcome"], "created", "{flow}");
    flow
}

fn node(flow: &Value, name: &str) -> String {
    text(&flow["executions"][name])
}

/// Claims this many tasks, by execution id.
async fn claim_all(w: &World, count: usize) -> std::collections::BTreeMap<String, Value> {
    let mut tasks = std::collections::BTreeMap::new();
    for _ in 0..count {
        let task = w.claim().await;
        tasks.insert(text(&task["execution_id"]), task);
    }
    tasks
}

async fn flow_state(w: &World, flow: &Value) -> String {
    text(&w.must("get_flow", json!({ "flow_id": flow["flow_id"] })).await["state"])
}

async fn flow_becomes(w: &World, flow: &Value, state: &str) {
    w.until(&format!("the flow is {state}"), async || flow_state(w, flow).await == state).await;
}

pub(crate) async fn s11_a_join_waits_for_all_and_a_failure_skips(w: World) {
    let flow = graph(&w, &["a", "b", "c", "d"], &[("a", "c"), ("b", "c"), ("c", "d")], &[]).await;
    let (a, b, c, d) = (node(&flow, "a"), node(&flow, "b"), node(&flow, "c"), node(&flow, "d"));
    w.is(&c, "waiting_children").await;
    let tasks = claim_all(&w, 2).await;
    w.complete(&a, &tasks[&a]["fence"], json!(1)).await;
    w.nothing_to_claim().await;
    w.is(&c, "waiting_children").await;
    w.complete(&b, &tasks[&b]["fence"], json!(2)).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(c));
    w.complete(&c, &task["fence"], json!(3)).await;
    let task = w.claim().await;
    w.complete(&d, &task["fence"], json!(4)).await;
    flow_becomes(&w, &flow, "completed").await;

    let flow = graph(&w, &["a", "b", "c", "d"], &[("a", "c"), ("b", "c"), ("c", "d")], &[]).await;
    let tasks = claim_all(&w, 2).await;
    w.fail_for_good(&tasks[&node(&flow, "a")]).await;
    w.becomes(&node(&flow, "c"), "skipped").await;
    w.becomes(&node(&flow, "d"), "skipped").await;
    let b = node(&flow, "b");
    w.complete(&b, &tasks[&b]["fence"], json!(2)).await;
    flow_becomes(&w, &flow, "failed").await;
}

pub(crate) async fn s12_a_quorum_lets_run_or_cancels_and_can_be_impossible(w: World) {
    let edges = [("a", "q"), ("b", "q"), ("c", "q")];
    for (on_satisfied, sibling) in [("let_run", "active"), ("cancel_remaining", "cancelled")] {
        let join = json!({ "quorum": { "k": 2, "on_satisfied": on_satisfied } });
        let flow = graph(&w, &["a", "b", "c", "q"], &edges, &[("q", join)]).await;
        let tasks = claim_all(&w, 3).await;
        let (a, b, c) = (node(&flow, "a"), node(&flow, "b"), node(&flow, "c"));
        w.complete(&a, &tasks[&a]["fence"], json!(1)).await;
        w.is(&node(&flow, "q"), "waiting_children").await;
        w.complete(&b, &tasks[&b]["fence"], json!(1)).await;
        let task = w.claim().await;
        assert_eq!(task["execution_id"], json!(node(&flow, "q")));
        w.becomes(&c, sibling).await;
        w.complete(&node(&flow, "q"), &task["fence"], json!(1)).await;
        if sibling == "active" {
            w.complete(&c, &tasks[&c]["fence"], json!(1)).await;
        }
        flow_becomes(&w, &flow, "completed").await;
    }
    let join = json!({ "quorum": { "k": 2, "on_satisfied": "cancel_remaining" } });
    let flow = graph(&w, &["a", "b", "c", "q"], &edges, &[("q", join)]).await;
    let tasks = claim_all(&w, 3).await;
    for name in ["a", "b"] {
        w.fail_for_good(&tasks[&node(&flow, name)]).await;
    }
    w.becomes(&node(&flow, "q"), "skipped").await;
    w.becomes(&node(&flow, "c"), "cancelled").await;
    flow_becomes(&w, &flow, "failed").await;
}

pub(crate) async fn s13_results_are_passed_and_parents_come_back(w: World) {
    let flow = graph(&w, &["a", "b"], &[("a", "b")], &[]).await;
    let (a, b) = (node(&flow, "a"), node(&flow, "b"));
    let task = w.claim().await;
    let complete = json!({ "execution_id": a, "fence": task["fence"], "result_base64": "AP8B" });
    w.must("complete", complete).await;
    let task = w.claim().await;
    let upstreams = w.must("list_upstreams", json!({ "execution_id": b, "node": "a", "results": true })).await;
    assert_eq!(upstreams["items"][0]["result"]["payload_base64"], "AP8B", "{upstreams}");
    w.complete(&b, &task["fence"], json!(1)).await;

    let (parent, fence) = w.in_hand(json!({})).await;
    let mut children = Vec::new();
    for number in 0..2 {
        let link = json!({ "execution_id": parent, "fence": fence });
        let request = merged(no_retries(), json!({ "parent": link, "node": format!("child-{number}") }));
        children.push(w.submit(request).await);
    }
    let waiting = w.must("wait_children", json!({ "execution_id": parent, "fence": fence })).await;
    assert_eq!(waiting["public_state"], "waiting_children", "{waiting}");
    let tasks = claim_all(&w, 2).await;
    w.complete(&children[0], &tasks[&children[0]]["fence"], json!("good")).await;
    w.fail_for_good(&tasks[&children[1]]).await;
    let back = w.claim().await;
    assert_eq!((back["execution_id"].as_str(), back["claim_kind"].as_str()), (Some(parent.as_str()), Some("resumed")));
    assert_eq!(back["fence"]["attempt"], 0);
    let upstreams = w.must("list_upstreams", json!({ "execution_id": parent, "results": true })).await;
    let mut states: Vec<String> =
        upstreams["items"].as_array().expect("a list").iter().map(|item| text(&item["public_state"])).collect();
    states.sort();
    assert_eq!(states, ["completed", "failed"], "{upstreams}");
    w.complete(&parent, &back["fence"], json!(1)).await;
}

pub(crate) async fn s14_cancelling_a_flow_ends_every_member(w: World) {
    let flow = w.must("create_flow", json!({ "kind": "test" })).await;
    let member = |more: Value| merged(json!({ "flow_id": flow["flow_id"] }), more);
    let active = w.submit(member(json!({}))).await;
    let held_lease = w.claim().await;
    let suspended = w.submit(member(json!({}))).await;
    let task = w.claim().await;
    let suspend =
        json!({ "execution_id": suspended, "fence": task["fence"], "reason": "signal", "condition": { "any": [] } });
    w.must("suspend", suspend).await;
    let delayed = w.submit(member(json!({ "delay_until": 4_000_000_000_000i64 }))).await;
    let waiting = w.submit(member(json!({}))).await;
    let cancel = json!({ "flow_id": flow["flow_id"], "policy": "cancel_all", "reason": "enough", "wait": true });
    // Claims that go on meanwhile: what they bring started before the answer, or not at all.
    let claims = async {
        let mut started = Vec::new();
        for _ in 0..5 {
            started.extend(w.claim_with(json!({ "wait_ms": 0 })).await);
        }
        started
    };
    let (cancelled, started) = tokio::join!(w.must("cancel_flow", cancel.clone()), claims);
    for task in started {
        let complete = json!({ "execution_id": task["execution_id"], "fence": task["fence"] });
        w.refused("complete", complete, Code::LeaseRevoked).await;
    }
    assert_eq!((cancelled["outcome"].as_str(), cancelled["policy"].as_str()), (Some("cancelled"), Some("cancel_all")));
    for id in [&active, &suspended, &delayed, &waiting] {
        w.is(id, "cancelled").await;
    }
    w.nothing_to_claim().await;
    let complete = json!({ "execution_id": active, "fence": held_lease["fence"] });
    w.refused("complete", complete, Code::LeaseRevoked).await;
    assert_eq!(cancelled["members"].as_array().map(Vec::len), Some(4), "{cancelled}");
    let again = w.must("cancel_flow", cancel).await;
    assert_eq!((again["outcome"].as_str(), again["state"].as_str()), (Some("already_terminal"), Some("cancelled")));
    assert_eq!((again["reason"].as_str(), again["member_count"].as_u64()), (Some("enough"), Some(4)));
    assert_eq!(again["members"].as_array().map(Vec::len), Some(4), "{again}");
    assert_eq!(flow_state(&w, &flow).await, "cancelled");
    let late = merged(json!({ "kind": "test" }), member(json!({})));
    w.refused("create_execution", late, Code::FlowAlreadyTerminal).await;

    // A chain is longer than one commit reaches. What one link's end would skip is cancelled, too.
    let names: Vec<String> = (0..60).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let edges: Vec<(&str, &str)> = names.iter().copied().zip(names.iter().copied().skip(1)).collect();
    let chain = graph(&w, &names, &edges, &[]).await;
    let cancel = json!({ "flow_id": chain["flow_id"], "policy": "cancel_all", "reason": "enough", "wait": true });
    let cancelled = w.must("cancel_flow", cancel).await;
    assert_eq!(cancelled["members"].as_array().map(Vec::len), Some(60), "{cancelled}");
    let last = w.must("get_execution", json!({ "execution_id": node(&chain, "n59") })).await;
    assert_eq!((&last["public_state"], &last["cancellation"]["reason"]), (&json!("cancelled"), &json!("enough")));
}

pub(crate) async fn s35_a_child_spawned_again_is_one_child(w: World) {
    let retried = json!({ "policy": { "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 1 } } } } });
    let id = w.submit(retried).await;
    let spawn = |fence: &Value, more: Value| {
        let parent = merged(json!({ "execution_id": id, "fence": fence }), more);
        json!({ "kind": "test", "lane": "children", "input": { "page": 7 }, "parent": parent })
    };
    let page = json!({ "key": "page-7" });
    let task = w.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.expect("the parent");
    let child = w.must("create_execution", spawn(&task["fence"], page.clone())).await;
    assert_eq!(child["duplicate"], false, "{child}");
    let other = w.must("create_execution", spawn(&task["fence"], json!({ "key": "page-8" }))).await;
    assert_ne!(other["execution_id"], child["execution_id"]);

    let again = async |kind: &str| {
        let task = w.claim().await;
        assert_eq!((&task["execution_id"], &task["claim_kind"]), (&json!(id), &json!(kind)), "{task}");
        let found = w.must("create_execution", spawn(&task["fence"], page.clone())).await;
        assert_eq!((&found["execution_id"], &found["duplicate"]), (&child["execution_id"], &json!(true)), "{kind}");
        task
    };
    // The lease runs out, then the attempt fails, then it waits: the next holder spawns the same child each time.
    let reclaimed = again("reclaim").await;
    w.refused("create_execution", spawn(&task["fence"], page.clone()), Code::StaleLease).await;
    let changed = merged(spawn(&reclaimed["fence"], page.clone()), json!({ "input": { "page": 9 } }));
    w.refused("create_execution", changed, Code::IdempotencyConflict).await;
    let fail = json!({ "execution_id": id, "fence": reclaimed["fence"], "reason": "broke" });
    w.must("fail", fail).await;
    let retried = again("retry").await;
    w.must("wait_children", json!({ "execution_id": id, "fence": retried["fence"] })).await;
    for _ in 0..2 {
        let task = w.claim_with(json!({ "lanes": ["children"] })).await.expect("a child");
        w.complete(&text(&task["execution_id"]), &task["fence"], json!(1)).await;
    }
    let resumed = again("resumed").await;
    let upstreams = w.must("list_upstreams", json!({ "execution_id": id })).await;
    assert_eq!(upstreams["items"].as_array().map(Vec::len), Some(2), "{upstreams}");
    w.complete(&id, &resumed["fence"], json!(1)).await;

    w.must("replay_execution", json!({ "execution_id": id })).await;
    let replayed = w.claim().await;
    let new = w.must("create_execution", spawn(&replayed["fence"], page.clone())).await;
    assert_ne!(new["execution_id"], child["execution_id"], "a replay begins anew");
    assert_eq!(new["duplicate"], false, "{new}");
    w.must("continue_as_new", json!({ "execution_id": id, "fence": replayed["fence"] })).await;
    let continued = w.claim().await;
    let newest = w.must("create_execution", spawn(&continued["fence"], page.clone())).await;
    assert_eq!(newest["duplicate"], false, "each generation has children of its own: {newest}");
    let found = w.must("create_execution", spawn(&continued["fence"], page.clone())).await;
    assert_eq!((&found["execution_id"], &found["duplicate"]), (&newest["execution_id"], &json!(true)), "{found}");
    for child in [&new, &newest] {
        w.must("cancel_execution", json!({ "execution_id": child["execution_id"] })).await;
    }
    w.complete(&id, &continued["fence"], json!(2)).await;

    // Identities of the caller's own are compared without the fence, too.
    let id = w.submit(json!({})).await;
    let keyed = |fence: &Value| {
        json!({ "kind": "test", "lane": "children", "idempotency_key": format!("{id}/only"),
            "parent": { "execution_id": id, "fence": fence } })
    };
    let task = w.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.expect("the parent");
    let child = w.must("create_execution", keyed(&task["fence"])).await;
    let task = w.claim().await;
    let found = w.must("create_execution", keyed(&task["fence"])).await;
    assert_eq!((&found["execution_id"], &found["duplicate"]), (&child["execution_id"], &json!(true)), "{found}");
    w.must("cancel_execution", json!({ "execution_id": child["execution_id"] })).await;
    w.complete(&id, &task["fence"], json!(1)).await;
}

pub(crate) async fn s50_an_edge_after_the_decision_lets_the_child_run(w: World) {
    let any_of = |on: &str| json!({ "any_of": { "on_satisfied": on } });
    let quorum = json!({ "quorum": { "k": 1, "on_satisfied": "let_run" } });
    for (join, late_state) in
        [(any_of("let_run"), "delayed"), (any_of("cancel_remaining"), "cancelled"), (quorum, "delayed")]
    {
        let flow = w.must("create_flow", json!({ "kind": "test" })).await;
        let member = |more: Value| merged(merged(json!({ "flow_id": flow["flow_id"] }), no_retries()), more);
        let first = w.submit(member(json!({}))).await;
        let late = w.submit(member(json!({ "delay_until": 4_000_000_000_000i64 }))).await;
        let child = w.submit(member(json!({ "dependencies": [{ "upstream": first }], "join": join }))).await;
        let task = w.claim().await;
        w.complete(&first, &task["fence"], json!(1)).await;
        w.becomes(&child, "waiting").await;
        let stage = json!({ "flow_id": flow["flow_id"], "upstream": late, "downstream": child });
        let staged = w.must("stage_dependency_edge", stage).await;
        let apply = json!({ "flow_id": flow["flow_id"], "edge_id": staged["edge_id"] });
        let applied = w.must("apply_dependency_to_child", apply).await;
        assert_eq!(applied["outcome"], "applied", "{applied}");
        w.is(&child, "waiting").await;
        w.is(&late, late_state).await;
        let task = w.claim().await;
        assert_eq!(task["execution_id"], json!(child), "it runs");
        w.complete(&child, &task["fence"], json!(1)).await;
        if late_state == "delayed" {
            w.must("cancel_execution", json!({ "execution_id": late })).await;
        }
        // More members may come until it is closed.
        flow_becomes(&w, &flow, "open").await;
        w.must("close_flow", json!({ "flow_id": flow["flow_id"] })).await;
        flow_becomes(&w, &flow, "completed").await;
    }
}
