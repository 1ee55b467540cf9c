//! Bulk jobs: each match once, by the contract's sequence 41.

use ff_core::Code;
use serde_json::{Value, json};

use crate::world::{World, merged, no_retries, text};

/// Submits so many at once.
async fn submit_many(world: &World, count: usize, request: Value) -> Vec<String> {
    let requests: Vec<Value> = (0..count).map(|_| merged(json!({ "kind": "test" }), request.clone())).collect();
    let answer = world.must("create_executions", json!({ "executions": requests })).await;
    answer["results"].as_array().expect("a list").iter().map(|one| text(&one["execution_id"])).collect()
}

async fn ended(world: &World, job: &Value) -> Value {
    let get = async || world.must("get_bulk", json!({ "bulk_id": job["bulk_id"] })).await;
    world.until("the bulk job has ended", async || get().await["ended_at"].is_i64()).await;
    get().await
}

/// Fails what a claim hands out; says how many that were.
async fn fail_some(world: &World, wait_ms: i64) -> usize {
    let args = json!({ "instance_id": "w-1", "lanes": ["default"], "max_tasks": 20, "wait_ms": wait_ms });
    let tasks = world.must("claim", args).await["tasks"].take();
    let tasks = tasks.as_array().cloned().unwrap_or_default();
    for task in &tasks {
        world.fail_for_good(task).await;
    }
    tasks.len()
}

/// Calls go to the servers in turn, and each of them may take the turns of the job.
pub(crate) async fn s41_a_bulk_replay_goes_on_at_another_server_and_replays_each_once(world: World) {
    let ids = submit_many(&world, 60, merged(no_retries(), json!({ "tags": { "batch": "one" } }))).await;
    let mut failed = 0;
    while failed < ids.len() {
        failed += fail_some(&world, 1_000).await;
    }
    let untouched = submit_many(&world, 3, json!({ "lane": "idle", "tags": { "batch": "one" } })).await;
    let args = json!({
        "filter": { "tag": "batch=one", "state": "failed" }, "action": "replay", "rate_per_second": 100,
        "command_id": uuid::Uuid::new_v4().to_string(),
    });
    let dry = world
        .must(
            "create_bulk",
            merged(args.clone(), json!({ "dry_run": true, "command_id": uuid::Uuid::new_v4().to_string() })),
        )
        .await;
    let dry = ended(&world, &dry).await;
    assert_eq!((&dry["progress"]["matched"], &dry["progress"]["done"]), (&json!(60), &json!(60)), "{dry}");
    world.is(&ids[0], "failed").await;
    let job = world.must("create_bulk", args.clone()).await;
    assert_eq!(world.must("create_bulk", args).await["bulk_id"], job["bulk_id"], "the same command is the same job");
    // Some of them fail again while the job goes on, and are not replayed a second time.
    let mut again = 0;
    while again < 20 {
        again += fail_some(&world, 1_000).await;
    }
    let job = ended(&world, &job).await;
    assert_eq!((&job["state"], &job["progress"]["done"]), (&json!("completed"), &json!(60)), "{job}");
    for id in &ids {
        assert_eq!(world.get(id).await["replay_count"], 1, "{id}");
    }
    for id in &untouched {
        world.is(id, "waiting").await;
    }
}

pub(crate) async fn s41_a_bulk_job_counts_refuses_and_stops(world: World) {
    let ids = submit_many(&world, 40, json!({ "lane": "idle" })).await;
    let flow = json!({ "nodes": [{ "name": "a", "request": { "kind": "test", "lane": "idle" } }] });
    let member = world.must("create_flow", flow).await;
    let begin = async |filter: Value, action: &str, more: Value| {
        let args = merged(json!({ "filter": filter, "action": action }), more);
        world.must("create_bulk", args).await
    };
    // A job that may change one a second is stopped long before its end, and changes nothing afterwards.
    let slow = begin(json!({}), "hold", json!({ "rate_per_second": 1, "reason": "a look" })).await;
    world
        .until("something is held", async || {
            world.must("get_bulk", json!({ "bulk_id": slow["bulk_id"] })).await["progress"]["done"] != 0
        })
        .await;
    let stopped = world.must("cancel_bulk", json!({ "bulk_id": slow["bulk_id"] })).await;
    assert_eq!(stopped["state"], "cancelled");
    let done = stopped["progress"]["done"].as_u64().expect("a number");
    assert!((1..41).contains(&done), "{stopped}");
    let released = ended(&world, &begin(json!({}), "release", json!({})).await).await;
    assert_eq!(released["progress"]["done"], json!(done), "{released}");
    assert_eq!(released["progress"]["unchanged"], json!(41 - done), "{released}");
    // At most so many, and it says that there are more.
    let some = ended(&world, &begin(json!({ "lane": "idle" }), "cancel", json!({ "max": 10 })).await).await;
    assert_eq!((&some["progress"]["done"], &some["reached_max"]), (&json!(10), &json!(true)), "{some}");
    let rest = ended(&world, &begin(json!({ "lane": "idle" }), "cancel", json!({})).await).await;
    assert_eq!((&rest["progress"]["done"], &rest["reached_max"]), (&json!(31), &json!(false)), "{rest}");
    // A member goes with its flow; everything else is removed.
    let removed = ended(&world, &begin(json!({ "state": "cancelled" }), "remove", json!({})).await).await;
    assert_eq!((&removed["progress"]["done"], &removed["progress"]["refused"]), (&json!(40), &json!(1)), "{removed}");
    let refused = json!([{ "execution_id": member["executions"]["a"], "code": "in_use" }]);
    assert_eq!(removed["refusals"], refused);
    world.refused("get_execution", json!({ "execution_id": ids[0] }), Code::ExecutionNotFound).await;
    let listed = world.must("list_bulk", json!({ "limit": 2 })).await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(listed["items"][0]["bulk_id"], removed["bulk_id"], "the newest comes first");
    let rest = world.must("list_bulk", json!({ "cursor": listed["next_cursor"] })).await;
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(3));
    let nobody = json!({ "bulk_id": uuid::Uuid::new_v4().to_string() });
    world.refused("get_bulk", nobody, Code::BulkNotFound).await;
    let bad = json!({ "filter": {}, "action": "set_priority" });
    let details = world.refused("create_bulk", bad, Code::Invalid).await;
    assert_eq!(details["field"], "priority");
}
