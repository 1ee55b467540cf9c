//! Schedules: instants that run once, by the contract's sequence 40.

use std::collections::BTreeSet;

use ff_core::Code;
use serde_json::{Value, json};

use crate::world::{World, merged, no_retries, text};

const HOUR: i64 = 3_600_000;

/// A schedule that creates executions of kind `test`.
async fn schedule(world: &World, name: &str, spec: Value, more: Value) -> Value {
    let template = json!({ "execution": merged(json!({ "kind": "test" }), no_retries()) });
    let args = merged(json!({ "name": name, "spec": spec, "template": template }), more);
    world.must("create_schedule", args).await
}

async fn get(world: &World, name: &str) -> Value {
    world.must("get_schedule", json!({ "name": name })).await
}

/// The outcomes of its instants, the oldest first.
async fn outcomes(world: &World, name: &str) -> Vec<(i64, String)> {
    let shown = get(world, name).await;
    let runs = shown["runs"].as_array().expect("a list").iter().rev();
    runs.map(|run| (run["scheduled_for"].as_i64().expect("an instant"), text(&run["outcome"]))).collect()
}

/// Waits until so many instants have been decided about.
async fn decided(world: &World, name: &str, count: usize) -> Vec<(i64, String)> {
    world.until(&format!("{name} decided {count} times"), async || outcomes(world, name).await.len() >= count).await;
    outcomes(world, name).await
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is later");
    i64::try_from(since.as_millis()).expect("it fits")
}

/// The coming instants of a schedule are exact over both changes of the clock, and so are those of a backfill.
pub(crate) async fn s40_a_cron_is_exact_where_the_clock_changes(world: World) {
    // 2027-03-28 01:00 UTC: 02:00 in Berlin becomes 03:00. 2027-10-31 01:00 UTC: 03:00 becomes 02:00.
    let (spring, autumn) = (1_806_195_600_000, 1_824_944_400_000);
    let day = 24 * HOUR;
    for (name, cron, change, expected) in [
        ("gap", "30 2 * * *", spring, [-day + HOUR / 2, 0, day - HOUR / 2]),
        ("fold", "30 2 * * *", autumn, [-day - HOUR / 2, -HOUR / 2, day + HOUR / 2]),
        ("hours", "0 * * * *", autumn, [-HOUR, 0, HOUR]),
        ("skipped", "30 * * * *", spring, [-HOUR / 2, HOUR / 2, 3 * HOUR / 2]),
    ] {
        let spec = json!({ "cron": cron, "time_zone": "Europe/Berlin" });
        let starts_at = change + expected[0] - 60_000;
        schedule(&world, name, spec, json!({ "starts_at": starts_at })).await;
        let next = get(&world, name).await["next"].clone();
        let expected: Vec<i64> = expected.iter().map(|after| change + after).collect();
        assert_eq!(next.as_array().expect("a list")[..3], expected.iter().map(|at| json!(at)).collect::<Vec<_>>()[..]);
        // These instants run, once each, when they are asked for; they lie in the future, which is no hindrance.
        let args = json!({ "name": name, "from": expected[0], "to": expected[2] });
        assert_eq!(world.must("backfill_schedule", args).await["instants"], 3);
        let ran = decided(&world, name, 3).await;
        assert_eq!(ran.iter().map(|(at, _)| *at).collect::<Vec<_>>(), expected, "{name}");
    }
    let bad = json!({
        "name": "bad", "spec": { "cron": "0 25 * * *" }, "template": { "execution": { "kind": "test" } },
    });
    let details = world.refused("create_schedule", bad, Code::Invalid).await;
    assert_eq!((&details["field"], &details["cron_field"]), (&json!("spec.cron"), &json!("hour")));
}

/// Each value of overlap, with a trigger that takes the place of an instant.
pub(crate) async fn s40_overlap_decides_while_a_run_is_open(world: World) {
    schedule(&world, "job", json!({ "every_ms": 24 * HOUR }), json!({})).await;
    let trigger =
        async |overlap: &str| world.must("trigger_schedule", json!({ "name": "job", "overlap": overlap })).await;
    let first = trigger("skip").await;
    assert_eq!(first["outcome"], "started");
    let first = text(&first["execution_id"]);
    assert_eq!(trigger("skip").await["outcome"], "skipped");
    let shown = world.get(&first).await;
    assert_eq!((&shown["schedule"], shown["scheduled_for"].is_i64()), (&json!("job"), true));
    // Beside it.
    let beside = text(&trigger("allow").await["execution_id"]);
    world.is(&first, "waiting").await;
    // In its place.
    let instead = trigger("cancel_previous").await;
    assert_eq!(instead["outcome"], "started");
    world.is(&beside, "cancelled").await;
    world.is(&first, "waiting").await;
    // After it: one waits, a second one does not.
    let waiting = trigger("buffer_one").await;
    assert_eq!((&waiting["outcome"], &waiting["execution_id"]), (&json!("buffered"), &Value::Null));
    assert_eq!(trigger("buffer_one").await["outcome"], "skipped");
    assert_eq!(get(&world, "job").await["buffered"], waiting["scheduled_for"]);
    world.must("cancel_execution", json!({ "execution_id": instead["execution_id"] })).await;
    world.until("the run that waited has started", async || get(&world, "job").await["buffered"].is_null()).await;
    let last = get(&world, "job").await["runs"][0].clone();
    assert_eq!((&last["outcome"], &last["scheduled_for"]), (&json!("started"), &waiting["scheduled_for"]));
}

/// Each value of catch_up, over the instants since a start in the past.
pub(crate) async fn s40_late_instants_are_caught_up_on(world: World) {
    // All five lie before the schedule, whichever clock is a little ahead.
    let starts_at = now() - 4 * HOUR - 1_000;
    let instants: Vec<i64> = (0..=4).map(|number| starts_at + number * HOUR).collect();
    for (catch_up, expected) in [
        (json!("none"), &instants[5..]),
        (json!("last"), &instants[4..]),
        (json!({ "all": { "max": 3 } }), &instants[2..]),
        (json!({ "all": { "max": 1_000 } }), &instants[..]),
    ] {
        let name = format!("late-{}", expected.len());
        schedule(&world, &name, json!({ "every_ms": HOUR }), json!({ "starts_at": starts_at, "catch_up": catch_up }))
            .await;
        let missed = expected.len() < instants.len();
        let ran = decided(&world, &name, expected.len() + usize::from(missed)).await;
        let started: Vec<i64> = ran.iter().filter(|(_, outcome)| outcome == "started").map(|(at, _)| *at).collect();
        assert_eq!(started, expected, "{catch_up}");
        assert_eq!(ran.first().is_some_and(|(_, outcome)| outcome == "missed"), missed, "{catch_up}");
        assert_eq!(get(&world, &name).await["next"][0], json!(starts_at + 5 * HOUR));
    }
}

/// Regular instants, triggers and backfills of one schedule, each once; a pause passes over what comes meanwhile.
pub(crate) async fn s40_each_instant_runs_once_beside_triggers_and_backfills(world: World) {
    let began = now();
    schedule(&world, "beat", json!({ "every_ms": 1_000 }), json!({})).await;
    let identity = json!({ "name": "beat", "command_id": uuid() });
    let first = world.must("trigger_schedule", identity.clone()).await;
    assert_eq!(world.must("trigger_schedule", identity).await, first, "the same trigger is the same run");
    let past = json!({ "name": "beat", "from": began - 61_000, "to": began - 1_000, "command_id": uuid() });
    let filled = world.must("backfill_schedule", past.clone()).await;
    assert_eq!(world.must("backfill_schedule", past).await, filled);
    world
        .until("three regular instants have run", async || {
            let shown = get(&world, "beat").await;
            let regular = |run: &&Value| run["origin"] == "regular";
            shown["backfills"].is_null()
                && shown["runs"].as_array().expect("a list").iter().filter(regular).count() >= 3
        })
        .await;
    let paused = world.must("pause_schedule", json!({ "name": "beat", "note": "enough" })).await;
    assert_eq!((&paused["state"], &paused["note"]["text"]), (&json!("paused"), &json!("enough")));
    let again = world.must("pause_schedule", json!({ "name": "beat", "note": "again" })).await;
    assert_eq!(again["note"]["text"], "enough", "the first pause stands");
    let shown = get(&world, "beat").await;
    let count = shown["run_count"].as_i64().expect("a number");
    let mut page = world.must("list_executions", json!({ "limit": 1_000 })).await;
    let items = page["items"].take();
    let ids: BTreeSet<String> =
        items.as_array().expect("a list").iter().map(|item| text(&item["execution_id"])).collect();
    assert_eq!(i64::try_from(ids.len()).ok(), Some(count), "as many executions as runs");
    assert_eq!(shown["next"], json!([]));
    let resumed = world.must("resume_schedule", json!({ "name": "beat" })).await;
    assert!(resumed["next_at"].as_i64().expect("an instant") >= paused["note"]["at"].as_i64().expect("an instant"));
    world.must("delete_schedule", json!({ "name": "beat" })).await;
}

/// A schedule that is deleted and made anew collides with nothing; a refused run does not stop it; failures do, if it
/// says so.
pub(crate) async fn s40_a_schedule_made_anew_and_a_refused_run(world: World) {
    let at = now() - HOUR;
    let once = async || schedule(&world, "once", json!({ "at": [at] }), json!({ "catch_up": "last" })).await;
    let first = once().await;
    assert_eq!(first["outcome"], "created");
    decided(&world, "once", 1).await;
    let same = once().await;
    assert_eq!((&same["outcome"], &same["schedule_id"]), (&json!("already_exists"), &first["schedule_id"]));
    let ran = get(&world, "once").await;
    assert_eq!(ran["state"], "ended");
    let gone = world.must("delete_schedule", json!({ "name": "once" })).await;
    assert_eq!(gone["schedule_id"], first["schedule_id"]);
    world.refused("get_schedule", json!({ "name": "once" }), Code::ScheduleNotFound).await;
    once().await;
    decided(&world, "once", 1).await;
    let anew = get(&world, "once").await;
    assert_ne!(anew["runs"][0]["execution_id"], ran["runs"][0]["execution_id"], "the same instant, another run");
    // Both run; the lane of the next one takes nothing.
    let lane = format!("{}-closed", world.namespace);
    let template = json!({ "execution": { "kind": "test", "lane": lane } });
    schedule(&world, "closed", json!({ "every_ms": 24 * HOUR }), json!({ "template": template })).await;
    world.must("disable_lane", json!({ "lane": lane })).await;
    world
        .until("the lane takes nothing", async || {
            world.must("trigger_schedule", json!({ "name": "closed" })).await["outcome"] == "refused"
        })
        .await;
    let refused = get(&world, "closed").await;
    assert_eq!((&refused["runs"][0]["refused"], &refused["state"]), (&json!("lane_disabled"), &json!("active")));
    // A failure pauses the schedule that says so.
    let careful = json!({ "every_ms": 24 * HOUR });
    schedule(&world, "careful", careful, json!({ "pause_after_failures": 1 })).await;
    let run = text(&world.must("trigger_schedule", json!({ "name": "careful" })).await["execution_id"]);
    loop {
        let task = world.claim().await;
        world.fail_for_good(&task).await;
        if task["execution_id"] == json!(run) {
            break;
        }
    }
    world.until("it pauses", async || get(&world, "careful").await["state"] == "paused").await;
    let note = get(&world, "careful").await["note"].clone();
    assert_eq!((&note["by"], &note["text"]), (&json!("schedule"), &json!("a run failed")));
    let update = json!({
        "name": "careful", "expected_revision": 7, "spec": { "every_ms": HOUR }, "template": { "execution": { "kind": "test" } },
    });
    world.refused("update_schedule", update, Code::StaleRevision).await;
}

fn uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}
