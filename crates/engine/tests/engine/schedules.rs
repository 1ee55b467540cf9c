//! Schedules under a clock that the test moves.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ff_core::op::view::ScheduleView;
use ff_core::op::{
    AdvanceTestClock, BackfillSchedule, CancelExecution, Claim, Complete, CreateSchedule, DeleteSchedule, DisableLane,
    Fail, GetExecution, GetFlow, GetSchedule, ListExecutions, ListSchedules, PauseSchedule, ResumeLane, ResumeSchedule,
    TriggerSchedule, UpdateSchedule,
};
use ff_core::schedule::{Origin, OriginKind, RunOutcome, ScheduleState};
use ff_core::{Code, ExecutionId, PartitionConfig, PublicState};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options, TestClock};
use ff_store::memory::MemoryStore;
use serde_json::{Value, json};

use crate::support::{Harness, START};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

struct Deployment {
    it: Harness,
    /// The clock of the store and of the process that is there now.
    clock: Arc<Mutex<Arc<TestClock>>>,
}

impl Deployment {
    async fn start(now: i64) -> Self {
        let clock = Arc::new(Mutex::new(TestClock::starting_at(now)));
        let source = clock.clone();
        let store = Arc::new(MemoryStore::with_clock(Arc::new(move || source.lock().unwrap().now())));
        Self { it: open(&store, &clock).await, clock }
    }

    /// The process ends, time passes without it, and another one takes its place.
    async fn outage(&mut self, ms: i64) {
        self.it.engine.close().await;
        let now = self.clock.lock().unwrap().now() + ms;
        *self.clock.lock().unwrap() = TestClock::starting_at(now);
        self.it = open(&self.it.store, &self.clock).await;
    }

    async fn create(&self, name: &str, spec: Value, more: Value) {
        let mut args = json!({ "name": name, "spec": spec, "template": { "execution": { "kind": "test" } } });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.it.must::<CreateSchedule>(args).await;
    }

    async fn get(&self, name: &str) -> ScheduleView {
        self.it.must::<GetSchedule>(json!({ "name": name })).await
    }

    async fn advance(&self, ms: i64) {
        self.it.must::<AdvanceTestClock>(json!({ "advance_ms": ms })).await;
    }

    /// The outcomes of its instants, the oldest first, counted from the start.
    async fn outcomes(&self, name: &str) -> Vec<(i64, RunOutcome)> {
        let view = self.get(name).await;
        view.runs.iter().rev().map(|run| (run.scheduled_for - START, run.outcome)).collect()
    }

    async fn claim(&self) -> (ExecutionId, ff_core::lease::LeaseFence) {
        let args = json!({ "instance_id": "w-1", "lanes": ["default"], "lease_ttl_ms": 3_600_000 });
        let task = self.it.must::<Claim>(args).await.tasks.pop().expect("something waits");
        (task.execution_id, task.fence)
    }

    async fn complete(&self) -> ExecutionId {
        let (id, fence) = self.claim().await;
        self.it.must::<Complete>(json!({ "execution_id": id, "fence": fence })).await;
        id
    }
}

async fn open(store: &Arc<MemoryStore>, clock: &Mutex<Arc<TestClock>>) -> Harness {
    let partitions = Some(PartitionConfig { flow: 4, budget: 1, quota: 1 });
    let test_clock = Some(clock.lock().unwrap().clone());
    let options = Options { test_clock, partitions, retention_ms: 400 * DAY, ..Options::default() };
    let engine = Engine::start(store.clone(), Arc::new(TokioEnv::current()), options).await.expect("it starts");
    Harness { engine, store: store.clone(), caller: Caller::system() }
}

fn started(instants: &[i64]) -> Vec<(i64, RunOutcome)> {
    instants.iter().map(|instant| (*instant, RunOutcome::Started)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_instant_of_an_interval_creates_one_execution() {
    let on = Deployment::start(START).await;
    on.create("poll", json!({ "every_ms": MINUTE }), json!({})).await;
    let view = on.get("poll").await;
    assert_eq!((view.state, view.run_count), (ScheduleState::Active, 0));
    assert_eq!(view.next, (1..=10).map(|n| START + n * MINUTE).collect::<Vec<_>>());
    on.advance(3 * MINUTE + 5_000).await;
    assert_eq!(on.outcomes("poll").await, started(&[MINUTE, 2 * MINUTE, 3 * MINUTE]));
    let view = on.get("poll").await;
    assert_eq!((view.run_count, view.next[0]), (3, START + 4 * MINUTE));
    let run = view.runs[0].execution_id.expect("it was created");
    let execution = on.it.must::<GetExecution>(json!({ "execution_id": run })).await;
    assert_eq!((execution.schedule.as_deref(), execution.scheduled_for), (Some("poll"), Some(START + 3 * MINUTE)));
    assert_eq!(view.runs[0].public_state, Some(PublicState::Waiting));
    on.it.submit(json!({})).await;
    let runs = on.it.must::<ListExecutions>(json!({ "schedule": "poll" })).await.items;
    assert_eq!((runs.len(), runs[0].execution_id), (3, run));
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_id_somebody_else_has_taken_is_created_under_another() {
    let on = Deployment::start(START).await;
    on.create("poll", json!({ "every_ms": MINUTE }), json!({})).await;
    let view = on.get("poll").await;
    let partition = on.it.engine.partitions().schedule_partition("default", "poll").number;
    let uuid = Origin::regular().run_id(&view.schedule_id, view.next[0]);
    let taken = ExecutionId { partition, uuid };
    on.it.submit(json!({ "namespace": "other", "execution_id": taken })).await;
    on.advance(2 * MINUTE).await;
    assert_eq!(on.outcomes("poll").await, started(&[MINUTE, 2 * MINUTE]));
    let run = on.get("poll").await.runs[1].execution_id.expect("it was created");
    assert_ne!(run, taken);
    let execution = on.it.must::<GetExecution>(json!({ "execution_id": run })).await;
    assert_eq!(execution.scheduled_for, Some(START + MINUTE));
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_interval_may_be_counted_from_the_epoch() {
    let on = Deployment::start(START).await;
    on.create("hourly", json!({ "every_ms": HOUR }), json!({ "starts_at": 0 })).await;
    let first = (START / HOUR + 1) * HOUR;
    let view = on.get("hourly").await;
    assert_eq!((view.state, view.next[0]), (ScheduleState::Active, first));
    on.create("listed", json!({ "at": [0, START + MINUTE] }), json!({})).await;
    assert_eq!(on.get("listed").await.next, [START + MINUTE]);
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_is_created_with_its_whole_graph() {
    let on = Deployment::start(START).await;
    let node = |name: &str| json!({ "name": name, "request": { "kind": "test" } });
    let flow = json!({ "kind": "graph", "nodes": [node("a"), node("b")], "edges": [{ "from": "a", "to": "b" }] });
    let more = json!({ "template": { "flow": flow }, "overlap": "skip" });
    on.create("graphs", json!({ "every_ms": HOUR }), more).await;
    on.advance(2 * HOUR).await;
    assert_eq!(on.outcomes("graphs").await, [(HOUR, RunOutcome::Started), (2 * HOUR, RunOutcome::Skipped)]);
    let id = on.get("graphs").await.runs[1].flow_id.expect("it was created");
    let flow = on.it.must::<GetFlow>(json!({ "flow_id": id })).await;
    assert_eq!(
        (flow.member_count, flow.scheduled_for, flow.schedule.as_deref()),
        (2, Some(START + HOUR), Some("graphs"))
    );
    on.complete().await;
    on.advance(1).await;
    on.complete().await;
    on.advance(HOUR).await;
    assert_eq!(on.outcomes("graphs").await.last(), Some(&(3 * HOUR, RunOutcome::Started)));
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_members_of_a_scheduled_flow_are_found_by_its_schedule() {
    let on = Deployment::start(START).await;
    let node = |name: &str| json!({ "name": name, "request": { "kind": "test" } });
    let flow = json!({ "nodes": [node("a"), node("b")], "edges": [{ "from": "a", "to": "b" }] });
    on.create("graphs", json!({ "every_ms": HOUR }), json!({ "template": { "flow": flow } })).await;
    on.create("others", json!({ "every_ms": HOUR }), json!({ "template": { "flow": flow } })).await;
    on.advance(2 * HOUR).await;
    let found = on.it.must::<ListExecutions>(json!({ "schedule": "graphs" })).await.items;
    let flows: BTreeSet<_> = found.iter().filter_map(|one| one.flow_id).collect();
    let runs: BTreeSet<_> = on.get("graphs").await.runs.iter().filter_map(|run| run.flow_id).collect();
    assert_eq!((found.len(), flows), (4, runs));
    let member = on.it.must::<GetExecution>(json!({ "execution_id": found[0].execution_id })).await;
    assert_eq!((member.schedule.as_deref(), member.scheduled_for), (Some("graphs"), Some(START + 2 * HOUR)));
    // The flow is the run, and its schedule hears of the flow's end alone.
    for _ in 0..4 {
        on.complete().await;
        on.advance(1).await;
    }
    assert_eq!(on.get("graphs").await.runs.len(), 2);
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn overlap_decides_what_an_instant_comes_to_while_a_run_is_open() {
    use RunOutcome::{Buffered, Skipped, Started};
    let on = Deployment::start(START).await;
    for overlap in ["allow", "skip", "buffer_one", "cancel_previous"] {
        on.create(overlap, json!({ "every_ms": HOUR }), json!({ "overlap": overlap })).await;
    }
    on.advance(3 * HOUR).await;
    assert_eq!(on.outcomes("allow").await, started(&[HOUR, 2 * HOUR, 3 * HOUR]));
    assert_eq!(on.outcomes("skip").await, [(HOUR, Started), (2 * HOUR, Skipped), (3 * HOUR, Skipped)]);
    assert_eq!(on.outcomes("buffer_one").await, [(HOUR, Started), (2 * HOUR, Buffered), (3 * HOUR, Skipped)]);
    assert_eq!(on.outcomes("cancel_previous").await, started(&[HOUR, 2 * HOUR, 3 * HOUR]));
    let states: Vec<_> = on.get("cancel_previous").await.runs.iter().map(|run| run.public_state.unwrap()).collect();
    assert_eq!(states, [PublicState::Waiting, PublicState::Cancelled, PublicState::Cancelled]);
    // The run that waited starts when the first has ended, and for its own instant.
    let first = on.get("buffer_one").await.runs.last().unwrap().execution_id.unwrap();
    assert_eq!(on.get("buffer_one").await.buffered, Some(START + 2 * HOUR));
    on.it.must::<CancelExecution>(json!({ "execution_id": first })).await;
    on.advance(1).await;
    assert_eq!(on.outcomes("buffer_one").await, [(HOUR, Started), (3 * HOUR, Skipped), (2 * HOUR, Started)]);
    assert_eq!(on.get("buffer_one").await.buffered, None);
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_instant_that_waits_at_a_pause_is_passed_over_and_a_trigger_that_waits_is_not() {
    use RunOutcome::{Missed, Started};
    let on = Deployment::start(START).await;
    on.create("poll", json!({ "every_ms": HOUR }), json!({ "overlap": "buffer_one" })).await;
    on.advance(2 * HOUR).await;
    assert_eq!(on.get("poll").await.buffered, Some(START + 2 * HOUR));
    on.it.must::<PauseSchedule>(json!({ "name": "poll" })).await;
    assert_eq!(on.outcomes("poll").await, [(HOUR, Started), (2 * HOUR, Missed)]);
    let triggered = on.it.must::<TriggerSchedule>(json!({ "name": "poll", "overlap": "buffer_one" })).await;
    assert_eq!(on.get("poll").await.buffered, Some(triggered.scheduled_for));
    on.complete().await;
    on.advance(MINUTE).await;
    assert_eq!(on.outcomes("poll").await[2..], started(&[2 * HOUR]), "what a person asked for runs, paused or not");
    on.complete().await;
    on.advance(HOUR).await;
    on.it.must::<ResumeSchedule>(json!({ "name": "poll" })).await;
    on.advance(MINUTE).await;
    assert_eq!(on.outcomes("poll").await.len(), 3, "nothing that was due at the pause or since is run");
    on.advance(HOUR).await;
    assert_eq!(on.outcomes("poll").await[3..], started(&[4 * HOUR]));
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_saw_to_in_time_is_caught_up_on_as_the_schedule_says() {
    use RunOutcome::{Missed, Started};
    let mut on = Deployment::start(START).await;
    for (name, catch_up) in [
        ("none", json!("none")),
        ("last", json!("last")),
        ("two", json!({ "all": { "max": 2 } })),
        ("all", json!({ "all": {} })),
    ] {
        on.create(name, json!({ "every_ms": HOUR }), json!({ "catch_up": catch_up })).await;
    }
    on.advance(HOUR).await;
    on.outage(4 * HOUR + 2 * MINUTE).await;
    on.advance(HOUR).await;
    let first = (HOUR, Started);
    let next = (6 * HOUR, Started);
    assert_eq!(on.outcomes("none").await, [first, (2 * HOUR, Missed), next]);
    assert_eq!(on.outcomes("last").await, [first, (2 * HOUR, Missed), (5 * HOUR, Started), next]);
    assert_eq!(on.outcomes("two").await, [first, (2 * HOUR, Missed), (4 * HOUR, Started), (5 * HOUR, Started), next]);
    assert_eq!(on.outcomes("all").await, started(&[HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 5 * HOUR, 6 * HOUR]));
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_instant_that_is_a_little_late_runs_whatever_catch_up_says() {
    let mut on = Deployment::start(START).await;
    on.create("poll", json!({ "every_ms": HOUR }), json!({})).await;
    on.outage(HOUR + 59_000).await;
    on.advance(1).await;
    assert_eq!(on.outcomes("poll").await, started(&[HOUR]));
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_begins_in_the_past_catches_up_on_it() {
    let on = Deployment::start(START).await;
    let past = |catch_up: Value| json!({ "starts_at": START - 3 * HOUR, "catch_up": catch_up });
    on.create("all", json!({ "every_ms": HOUR }), past(json!({ "all": { "max": 1_000 } }))).await;
    on.create("last", json!({ "every_ms": HOUR }), past(json!("last"))).await;
    on.create("none", json!({ "every_ms": HOUR }), past(json!("none"))).await;
    on.create("at", json!({ "at": [START + 5, START - HOUR, START - HOUR] }), json!({ "catch_up": "last" })).await;
    on.advance(10).await;
    assert_eq!(on.outcomes("all").await, started(&[-3 * HOUR, -2 * HOUR, -HOUR, 0]));
    assert_eq!(
        on.outcomes("last").await,
        [(-3 * HOUR, RunOutcome::Missed), (-HOUR, RunOutcome::Started), (0, RunOutcome::Started)]
    );
    assert_eq!(on.outcomes("none").await, [(-3 * HOUR, RunOutcome::Missed), (0, RunOutcome::Started)]);
    assert_eq!(on.outcomes("at").await, started(&[-HOUR, 5]));
    assert_eq!(on.get("at").await.state, ScheduleState::Ended);
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_schedule_passes_over_its_instants_and_goes_on_from_its_resumption() {
    let on = Deployment::start(START).await;
    on.create("poll", json!({ "every_ms": HOUR }), json!({ "catch_up": { "all": {} } })).await;
    on.advance(HOUR).await;
    let paused = on.it.must::<PauseSchedule>(json!({ "name": "poll", "note": "moving" })).await;
    assert_eq!((paused.state, paused.next_at), (ScheduleState::Paused, None));
    on.advance(3 * HOUR + MINUTE).await;
    // A triggered run runs all the same.
    let triggered = on.it.must::<TriggerSchedule>(json!({ "name": "poll" })).await;
    assert_eq!(triggered.outcome, RunOutcome::Started);
    let resumed = on.it.must::<ResumeSchedule>(json!({ "name": "poll", "note": "done" })).await;
    assert_eq!(resumed.next_at, Some(START + 5 * HOUR));
    assert_eq!(resumed.note.unwrap().text, "done");
    on.advance(HOUR).await;
    let runs = on.get("poll").await.runs;
    let seen: Vec<_> = runs.iter().rev().map(|run| (run.scheduled_for - START, run.origin)).collect();
    let trigger = (4 * HOUR + MINUTE, OriginKind::Trigger);
    assert_eq!(seen, [(HOUR, OriginKind::Regular), trigger, (5 * HOUR, OriginKind::Regular)]);
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_pause_it_and_a_success_starts_the_count_anew() {
    let on = Deployment::start(START).await;
    let execution = json!({ "kind": "test", "policy": { "retry": { "max_retries": 0 } } });
    let more = json!({ "template": { "execution": execution }, "pause_after_failures": 2 });
    on.create("job", json!({ "every_ms": HOUR }), more).await;
    let fail = async || {
        let (id, fence) = on.claim().await;
        on.it.must::<Fail>(json!({ "execution_id": id, "fence": fence, "reason": "broke" })).await;
        on.advance(1).await;
    };
    on.advance(HOUR).await;
    fail().await;
    assert_eq!(on.get("job").await.failures, 1);
    on.advance(HOUR).await;
    on.complete().await;
    on.advance(1).await;
    assert_eq!(on.get("job").await.failures, 0);
    for _ in 0..2 {
        assert_eq!(on.get("job").await.state, ScheduleState::Active);
        on.advance(HOUR).await;
        fail().await;
    }
    let view = on.get("job").await;
    assert_eq!((view.state, view.failures), (ScheduleState::Paused, 2));
    let note = view.note.expect("it says why");
    assert_eq!((note.text.as_str(), note.by.as_str()), ("2 runs failed in a row", "schedule"));
    on.it.must::<ResumeSchedule>(json!({ "name": "job" })).await;
    assert_eq!(on.get("job").await.failures, 0);
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_run_cancels_nothing_that_it_was_to_replace() {
    let on = Deployment::start(START).await;
    on.create("job", json!({ "every_ms": HOUR }), json!({ "overlap": "cancel_previous" })).await;
    let flow = json!({ "nodes": [{ "name": "only", "request": { "kind": "test" } }] });
    let whole = json!({ "overlap": "cancel_previous", "template": { "flow": flow } });
    on.create("graph", json!({ "every_ms": HOUR }), whole).await;
    on.advance(HOUR).await;
    on.it.must::<DisableLane>(json!({ "lane": "default" })).await;
    on.advance(HOUR).await;
    for name in ["job", "graph"] {
        let runs = on.get(name).await.runs;
        assert_eq!(
            (runs[0].outcome, runs[0].refused.as_deref()),
            (RunOutcome::Refused, Some("lane_disabled")),
            "{name}"
        );
        let ended = runs[1].public_state.is_some_and(|state| state.is_terminal());
        assert!(runs[1].outcome == RunOutcome::Started && !ended, "{name}: {:?}", runs[1]);
    }
    on.it.must::<ResumeLane>(json!({ "lane": "default" })).await;
    on.advance(HOUR).await;
    let runs = on.get("job").await.runs;
    assert_eq!(runs[0].outcome, RunOutcome::Started);
    assert_eq!(runs[2].public_state, Some(PublicState::Cancelled), "the next one takes its place");
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_run_is_told_of_and_the_schedule_goes_on() {
    let on = Deployment::start(START).await;
    let more = json!({ "template": { "execution": { "kind": "test", "lane": "gpu" } }, "pause_after_failures": 1 });
    on.create("job", json!({ "every_ms": HOUR }), more).await;
    on.it.must::<DisableLane>(json!({ "lane": "gpu" })).await;
    on.advance(HOUR).await;
    let run = on.get("job").await.runs.remove(0);
    assert_eq!((run.outcome, run.refused.as_deref()), (RunOutcome::Refused, Some("lane_disabled")));
    on.it.must::<ResumeLane>(json!({ "lane": "gpu" })).await;
    on.it.pass(2_000).await;
    on.advance(HOUR).await;
    assert_eq!(on.outcomes("job").await, [(HOUR, RunOutcome::Refused), (2 * HOUR, RunOutcome::Started)]);
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_backfill_runs_a_stretch_once_beside_the_regular_runs() {
    let mut on = Deployment::start(START).await;
    on.create("poll", json!({ "every_ms": MINUTE }), json!({})).await;
    on.advance(5 * MINUTE).await;
    let args = json!({
        "name": "poll", "from": START - 100 * MINUTE, "to": START + 5 * MINUTE,
        "command_id": "0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e",
    });
    let first = on.it.must::<BackfillSchedule>(args.clone()).await;
    assert_eq!(first.instants, 106);
    on.outage(0).await;
    assert_eq!(on.it.must::<BackfillSchedule>(args).await, first);
    on.advance(1).await;
    let view = on.get("poll").await;
    assert_eq!((view.run_count, view.backfills.len()), (111, 0));
    let all = on.it.must::<ListExecutions>(json!({ "limit": 1_000 })).await.items;
    let ids: BTreeSet<_> = all.iter().map(|execution| execution.execution_id).collect();
    assert_eq!(ids.len(), 111);
    let refused = json!({ "name": "poll", "from": 0, "to": START });
    assert_eq!(on.it.refused::<BackfillSchedule>(refused).await, Code::Invalid);
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_update_needs_the_revision_that_was_seen_and_goes_on_from_now() {
    let on = Deployment::start(START).await;
    on.create("poll", json!({ "every_ms": HOUR }), json!({ "catch_up": { "all": {} } })).await;
    let update = |revision: u64, every_ms: i64| {
        let template = json!({ "execution": { "kind": "other" } });
        json!({ "name": "poll", "expected_revision": revision, "spec": { "every_ms": every_ms }, "template": template })
    };
    assert_eq!(on.it.refused::<UpdateSchedule>(update(2, MINUTE)).await, Code::StaleRevision);
    on.advance(90 * MINUTE).await;
    let updated = on.it.must::<UpdateSchedule>(update(1, MINUTE)).await;
    assert_eq!((updated.revision, updated.next_at), (2, Some(START + 91 * MINUTE)));
    on.advance(MINUTE).await;
    assert_eq!(on.outcomes("poll").await, started(&[HOUR, 91 * MINUTE]));
    let kind = on.it.must::<ListExecutions>(json!({})).await.items[0].kind.clone();
    assert_eq!(kind, "other");
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_schedule_made_anew_under_an_old_name_runs_its_instants_again() {
    let on = Deployment::start(START).await;
    let spec = json!({ "at": [START + HOUR, START + 2 * HOUR] });
    on.create("once", spec.clone(), json!({})).await;
    let same = json!({ "name": "once", "spec": spec, "template": { "execution": { "kind": "test" } } });
    let again = serde_json::to_value(on.it.must::<CreateSchedule>(same).await).unwrap();
    assert_eq!(again["outcome"], "already_exists");
    let other = json!({ "name": "once", "spec": spec, "template": { "execution": { "kind": "other" } } });
    assert_eq!(on.it.refused::<CreateSchedule>(other).await, Code::DefinitionConflict);
    on.advance(HOUR).await;
    let first = on.get("once").await;
    on.it.must::<DeleteSchedule>(json!({ "name": "once" })).await;
    assert_eq!(on.it.refused::<GetSchedule>(json!({ "name": "once" })).await, Code::ScheduleNotFound);
    // The end of a run whose schedule is gone concerns no document.
    on.complete().await;
    on.create("once", spec, json!({ "catch_up": "last" })).await;
    on.advance(HOUR).await;
    let second = on.get("once").await;
    assert_ne!(first.schedule_id, second.schedule_id);
    assert_eq!(on.outcomes("once").await, started(&[HOUR, 2 * HOUR]));
    assert_ne!(first.runs[0].execution_id, second.runs[1].execution_id);
    assert_eq!(on.it.must::<ListSchedules>(json!({})).await.items.len(), 1);
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn jitter_delays_each_run_by_its_own_amount_and_never_past_the_next() {
    let on = Deployment::start(START).await;
    on.create("poll", json!({ "every_ms": MINUTE }), json!({ "jitter_ms": DAY })).await;
    on.advance(11 * MINUTE).await;
    let runs = on.get("poll").await.runs;
    assert!(runs.len() >= 10, "{runs:?}");
    let delays: BTreeSet<i64> = runs.iter().map(|run| run.at - run.scheduled_for).collect();
    assert!(delays.len() > 5 && delays.iter().all(|delay| (0..MINUTE).contains(delay)), "{delays:?}");
    on.it.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_spec_or_template_is_refused_by_its_field() {
    let on = Deployment::start(START).await;
    let execution = json!({ "execution": { "kind": "test" } });
    for (spec, template, field) in [
        (json!({ "cron": "0 25 * * *" }), execution.clone(), "spec.cron"),
        (json!({ "cron": "0 1 * * *", "time_zone": "Mars/Olympus" }), execution.clone(), "spec.time_zone"),
        (json!({ "every_ms": 10 }), execution.clone(), "spec.every_ms"),
        (json!({ "every_ms": 5_000, "at": [1] }), execution.clone(), "spec"),
        (json!({}), execution, "spec"),
        (
            json!({ "every_ms": 5_000 }),
            json!({ "execution": { "kind": "test", "deadline_at": 1 } }),
            "template.execution",
        ),
        (json!({ "every_ms": 5_000 }), json!({ "flow": { "nodes": [] } }), "template.flow.nodes"),
    ] {
        let args = json!({ "name": "bad", "spec": spec, "template": template });
        let error = on.it.call::<CreateSchedule>(args.clone()).await.unwrap_err();
        assert_eq!((error.code, &error.details["field"]), (Code::Invalid, &json!(field)), "{args}: {error:?}");
    }
    on.it.finish().await;
}

/// Zones whose clocks change in different ways: on both halves of the earth, by half an hour, and at midnight.
const ZONES: [&str; 4] = ["Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo"];

#[tokio::test(start_paused = true)]
async fn a_year_of_cron_with_restarts_runs_every_instant_once() {
    // 2027-01-01.
    let began = 1_798_761_600_000;
    let mut on = Deployment::start(began).await;
    for zone in ZONES {
        let spec = json!({ "cron": "30 0,2 * * *", "time_zone": zone });
        // Each run ends by itself, so that what waits does not pile up.
        let policy = json!({ "timeout": { "execution_deadline_ms": 1_000 } });
        let template = json!({ "execution": { "kind": "test", "policy": policy } });
        on.create(&zone.replace('/', "-"), spec, json!({ "template": template })).await;
    }
    // Steps that are no multiple of anything, with a restart between any two.
    let mut now = began;
    while now < began + 365 * DAY {
        let step = (11 * DAY + 7 * HOUR + 13 * MINUTE).min(began + 365 * DAY - now);
        on.advance(step).await;
        on.outage(0).await;
        now += step;
    }
    for zone in ZONES {
        let expected = expected_instants(zone, began, now);
        let view = on.get(&zone.replace('/', "-")).await;
        let created = created_instants(&on, &view).await;
        assert_eq!(created, expected, "{zone}");
        assert_eq!(view.run_count, i64::try_from(expected.len()).unwrap(), "{zone}");
    }
    on.it.finish().await;
}

/// The instants at which the store holds a run of a schedule; a set, because two of one instant would have one id.
async fn created_instants(on: &Deployment, view: &ScheduleView) -> BTreeSet<i64> {
    on.it.store.inspect(|contents| {
        let documents = contents.partitions().flat_map(|(_, contents)| contents.documents());
        let executions = documents.filter(|(key, _)| key.kind() == ff_core::index::kind::EXECUTION);
        let runs = executions.filter_map(|(_, raw)| {
            let execution = <ff_core::execution::Execution as ff_core::Document>::decode(&raw.body).unwrap();
            execution.schedule.filter(|run| run.schedule == view.schedule_id).map(|run| run.scheduled_for)
        });
        runs.collect()
    })
}

/// Minute by minute through the year: a time of day counts the first time that the clock shows it, and one that the clock
/// never shows counts at the change that skips it.
fn expected_instants(zone: &str, from: i64, to: i64) -> BTreeSet<i64> {
    let zone = jiff::tz::TimeZoneDatabase::bundled().get(zone).unwrap();
    let wall = |at: i64| {
        let offset = zone.to_offset(jiff::Timestamp::from_millisecond(at).unwrap());
        at + i64::from(offset.seconds()) * 1_000
    };
    let wanted = |wall: i64| [30 * MINUTE, 150 * MINUTE].contains(&wall.rem_euclid(DAY));
    let mut seen = BTreeSet::new();
    let mut expected = BTreeSet::new();
    // Times that the clock showed the day before were shown before.
    for at in (from - DAY..=to).step_by(60_000) {
        let mut shown = wall(at - MINUTE) + MINUTE;
        let mut counts = false;
        while shown <= wall(at) {
            counts |= wanted(shown) && seen.insert(shown);
            shown += MINUTE;
        }
        if wanted(wall(at)) && seen.insert(wall(at)) {
            counts = true;
        }
        if counts && at > from {
            expected.insert(at);
        }
    }
    expected
}
