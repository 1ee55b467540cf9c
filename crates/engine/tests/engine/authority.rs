//! How far a caller reaches: what others put under ids that are no secret, forged sessions, lanes, and fences.

use crate::support::Harness;
use ff_core::journal::StepIdentity;
use ff_core::op::view::Task;
use ff_core::op::{
    CancelExecution, CancelFlow, Claim, CloseWaitpoint, Complete, CreateExecution, CreateExecutions, CreateFlow,
    CreatePendingWaitpoint, CreateResult, CreateSchedule, CreateStreamTicket, CreateToken, DecideStep, DeleteSchedule,
    DeliverSignal, DeregisterWorker, ForkExecution, GetExecution, GetWaitpointToken, ListApprovals, ListAttempts,
    ListEvents, ListExecutionEvents, ListSteps, ListTokens, Park, ParkOutcome, PauseLane, PauseSchedule, RecordSteps,
    RegisterWorker, RenewLeases, RepinBuild, ReplayExecution, ReserveSpend, RevokeToken, RotateWaitpointSecret,
    SignalWaitpoint, Suspend, TriggerSchedule, UpdateSchedule,
};
use ff_core::session::Session;
use ff_core::{Code, ExecutionId, FlowId, PublicState, Role, limits};
use ff_engine::{Caller, JournalSeen, Standing};
use serde_json::{Value, json};

fn with_token(name: &str, namespace: &str, role: Role) -> Caller {
    Caller { standing: Standing::Token, ..Caller::new(name, Some(namespace.into()), role) }
}

fn limited(lane: &str, role: Role) -> Caller {
    Caller { lanes: vec![lane.into()], ..with_token("limited", "default", role) }
}

fn step(name: &str) -> StepIdentity {
    StepIdentity { name: name.into(), key: None, occurrence: Some(0) }
}

/// A task of the victim's, and one in another namespace whose execution lives in the same partition.
async fn neighbours(h: &mut Harness) -> (Task, Task) {
    let victim = h.submit(json!({ "namespace": "ns", "lane": "v" })).await;
    let beside = json!({ "namespace": "other", "lane": "a", "execution_id": minted_beside(h, &victim) });
    h.submit(beside).await;
    let task = |namespace: &str, lane: &str| json!({ "namespace": namespace, "lanes": [lane] });
    let own = h.claim_with(task("ns", "v")).await.unwrap();
    let foreign = h.claim_with(task("other", "a")).await.unwrap();
    (own, foreign)
}

fn minted_beside(h: &Harness, id: &ExecutionId) -> ExecutionId {
    let mint = ff_core::id::Mint { now_ms: h.engine.now(), random: [9; 10] };
    ExecutionId::in_partition(id.partition(), &mint)
}

fn park(task: &Task, name: &str) -> Value {
    json!({
        "execution_id": task.execution_id, "fence": task.fence, "first_number": 1,
        "waitpoints": [{ "step": { "name": name, "occurrence": 0 } }],
    })
}

#[tokio::test(start_paused = true)]
async fn a_waitpoint_that_somebody_else_put_under_the_id_of_an_entry_decides_nothing() {
    for signalled in [true, false] {
        let mut h = Harness::start().await;
        let (own, foreign) = neighbours(&mut h).await;
        let taken = step("decision").waitpoint_id(&own.execution_id, 0);
        h.caller = with_token("attacker", "other", Role::Worker);
        let squat = json!({ "execution_id": foreign.execution_id, "fence": foreign.fence, "waitpoint_id": taken });
        let squatted = h.must::<CreatePendingWaitpoint>(squat).await;
        if signalled {
            let forged =
                json!({ "waitpoint_id": taken, "token": squatted.token, "name": "decision", "payload": "forged" });
            h.must::<SignalWaitpoint>(forged).await;
        }
        h.caller = with_token("victim", "ns", Role::Worker);
        let parked = h.must::<Park>(park(&own, "decision")).await;
        let ParkOutcome::Parked { waitpoints, .. } = &parked else { panic!("{parked:?}") };
        assert_ne!(waitpoints[0].waitpoint_id, taken);
        assert_eq!(h.must::<Park>(park(&own, "decision")).await, parked, "a repeat finds the same waitpoint");
        // The mailed token and the name both lead to the victim's own.
        h.caller = Caller::stranger();
        let mailed = json!({
            "waitpoint_id": waitpoints[0].waitpoint_id, "token": waitpoints[0].token, "name": "decision", "payload": "real",
        });
        h.must::<SignalWaitpoint>(mailed).await;
        h.caller = with_token("victim", "ns", Role::Operator);
        let entries = h.must::<ListSteps>(json!({ "execution_id": own.execution_id })).await.items;
        assert_eq!(entries[0].result.as_ref().unwrap().json().unwrap().0, "\"real\"");
        h.caller = Caller::system();
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_signal_by_name_passes_over_a_waitpoint_of_somebody_else() {
    let mut h = Harness::start().await;
    let (own, foreign) = neighbours(&mut h).await;
    let taken = step("decision").waitpoint_id(&own.execution_id, 0);
    let squat = json!({ "execution_id": foreign.execution_id, "fence": foreign.fence, "waitpoint_id": taken });
    h.must::<CreatePendingWaitpoint>(squat).await;
    h.must::<DeliverSignal>(json!({ "execution_id": own.execution_id, "name": "decision", "payload": 1 })).await;
    h.must::<DeliverSignal>(json!({ "execution_id": own.execution_id, "name": "decision", "payload": 2 })).await;
    let parked = h.must::<Park>(park(&own, "decision")).await;
    let ParkOutcome::AlreadySatisfied { entries, .. } = parked else { panic!("{parked:?}") };
    assert_eq!(entries[0].result.as_ref().unwrap().json().unwrap().0, "1", "the first was kept for the first wait");
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_execution_that_somebody_else_put_under_the_id_of_a_child_is_no_child() {
    for by_worker in [false, true] {
        let mut h = Harness::start().await;
        let (own, foreign) = neighbours(&mut h).await;
        let taken = step("fetch").child_id(&own.execution_id, 0);
        h.caller = with_token("attacker", "other", if by_worker { Role::Worker } else { Role::Submitter });
        let link = by_worker.then(|| json!({ "execution_id": foreign.execution_id, "fence": foreign.fence }));
        h.must::<CreateExecution>(json!({ "kind": "x", "execution_id": taken, "lane": "a", "parent": link })).await;
        h.caller = with_token("victim", "ns", Role::Worker);
        let parent = json!({ "execution_id": own.execution_id, "fence": own.fence });
        let spawn = json!({ "kind": "fetch", "execution_id": taken, "lane": "v", "parent": parent });
        let spawned = h.must::<CreateExecution>(spawn.clone()).await;
        assert!(!spawned.duplicate && spawned.execution_id != taken);
        let again = h.must::<CreateExecution>(spawn.clone()).await;
        assert_eq!((again.execution_id, again.duplicate), (spawned.execution_id, true));
        let mut other = spawn;
        other["kind"] = json!("other");
        assert_eq!(h.refused::<CreateExecution>(other).await, Code::IdempotencyConflict);
        // A sender that only knows the derived id waits for the right one.
        let wait = json!({
            "execution_id": own.execution_id, "fence": own.fence, "first_number": 1,
            "children": [{ "step": { "name": "fetch", "occurrence": 0 }, "execution_id": taken }],
        });
        h.must::<Park>(wait).await;
        let child = h.claim_with(json!({ "namespace": "ns", "lanes": ["v"] })).await.unwrap();
        assert_eq!(child.execution_id, spawned.execution_id);
        h.must::<Complete>(json!({ "execution_id": child.execution_id, "fence": child.fence, "result": 7 })).await;
        let resumed = h.claim_with(json!({ "namespace": "ns", "lanes": ["v"] })).await.unwrap();
        assert_eq!(resumed.journal.unwrap().entries[0].child_id, Some(spawned.execution_id));
        h.caller = Caller::system();
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_somebody_else_put_under_the_id_of_a_parent_keeps_no_children_away() {
    let mut h = Harness::start().await;
    let (own, _) = neighbours(&mut h).await;
    let taken = FlowId { partition: own.execution_id.partition, uuid: own.execution_id.uuid };
    h.must::<CreateFlow>(json!({ "namespace": "other", "flow_id": taken })).await;
    h.caller = with_token("victim", "ns", Role::Worker);
    let parent = json!({ "execution_id": own.execution_id, "fence": own.fence });
    let spawned = h.must::<CreateExecution>(json!({ "kind": "fetch", "parent": parent })).await;
    assert!(spawned.flow_id.is_some_and(|flow| flow != taken));
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_of_a_token_that_does_not_exist_is_nobodys() {
    let h = Harness::start().await;
    for token_id in [[0; 16], [7; 16]] {
        let forged = Session::begin(token_id, b"", i64::MAX);
        assert_eq!(h.engine.authenticate_session(&forged).await.unwrap_err().code, Code::Unauthenticated);
    }
    let secret = h.must::<CreateToken>(json!({ "name": "ci", "role": "reader" })).await.secret.0;
    let real = h.engine.begin_session(&secret).await.unwrap();
    assert_eq!(h.engine.authenticate_session(&real).await.unwrap().name, "ci");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_makes_none_that_reaches_further() {
    let mut h = Harness::start().await;
    h.must::<CreateToken>(json!({ "name": "everywhere", "role": "reader" })).await;
    h.must::<CreateToken>(json!({ "name": "elsewhere", "role": "reader", "lanes": ["a", "b"] })).await;
    h.caller = limited("a", Role::Admin);
    let made = h.must::<CreateToken>(json!({ "name": "deputy", "role": "admin" })).await;
    assert_eq!(made.token.lanes, ["a"], "it inherits the lanes of its maker");
    assert_eq!(h.engine.authenticate(&made.secret.0).await.unwrap().lanes, ["a"]);
    let wider = json!({ "name": "wider", "role": "admin", "lanes": ["a", "b"] });
    assert_eq!(h.refused::<CreateToken>(wider).await, Code::Forbidden);
    let names: Vec<_> = h.must::<ListTokens>(json!({})).await.items.into_iter().map(|item| item.name).collect();
    assert_eq!(names, ["deputy"]);
    for name in ["everywhere", "elsewhere"] {
        assert_eq!(h.refused::<RevokeToken>(json!({ "name": name })).await, Code::TokenNotFound);
    }
    h.caller.namespace = None;
    let rotation = json!({ "new_kid": "k9", "new_secret_hex": "9".repeat(64) });
    assert_eq!(h.refused::<RotateWaitpointSecret>(rotation).await, Code::Forbidden);
    h.caller = Caller::system();
    for reserved in ["api_token", "api_token:ops", "waitpoint_token", "local", "system", "*"] {
        assert_eq!(h.refused::<CreateToken>(json!({ "name": reserved, "role": "reader" })).await, Code::Invalid);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_of_one_lane_changes_nothing_in_another() {
    let mut h = Harness::start().await;
    let ended = h.submit(json!({ "lane": "b" })).await;
    let task = h.claim_with(json!({ "lanes": ["b"] })).await.unwrap();
    h.must::<Complete>(json!({ "execution_id": ended, "fence": task.fence })).await;
    let open = h.submit(json!({ "lane": "b" })).await;
    let held = h.claim_with(json!({ "lanes": ["b"] })).await.unwrap();
    let waitpoint = h.must::<CreatePendingWaitpoint>(json!({ "execution_id": open, "fence": held.fence })).await;
    let flow = json!({ "nodes": [{ "name": "n", "request": { "kind": "k", "lane": "b" } }] });
    let flow = serde_json::to_value(h.must::<CreateFlow>(flow).await).unwrap()["flow_id"].clone();
    let worker = json!({ "worker_id": "w", "instance_id": "w-b", "lanes": ["b"], "nonce": "n" });
    h.must::<RegisterWorker>(worker).await;
    let template = |lane: &str| json!({ "execution": { "kind": "k", "lane": lane } });
    let schedule = |lane: &str| json!({ "name": "s", "spec": { "every_ms": 1_000 }, "template": template(lane) });
    h.must::<CreateSchedule>(schedule("b")).await;
    h.caller = limited("a", Role::Operator);
    let at = |id: &ExecutionId| json!({ "execution_id": id });
    let fenced = json!({ "execution_id": open, "fence": held.fence });
    let reserve = json!({ "execution_id": open, "fence": held.fence, "key": "k", "amounts": { "tokens": 1 } });
    let of_waitpoint = json!({ "execution_id": open, "waitpoint_id": waitpoint.waitpoint_id });
    for (what, refused) in [
        ("fork", h.refused::<ForkExecution>(at(&ended)).await),
        ("replay", h.refused::<ReplayExecution>(at(&ended)).await),
        ("cancel", h.refused::<CancelExecution>(at(&open)).await),
        ("pause", h.refused::<PauseLane>(json!({ "lane": "b" })).await),
        ("reserve", h.refused::<ReserveSpend>(reserve).await),
        ("trigger", h.refused::<TriggerSchedule>(json!({ "name": "s" })).await),
        ("update", h.refused::<UpdateSchedule>(schedule("a")).await),
        ("pause of a schedule", h.refused::<PauseSchedule>(json!({ "name": "s" })).await),
        ("delete of a schedule", h.refused::<DeleteSchedule>(json!({ "name": "s" })).await),
        ("complete", h.refused::<Complete>(fenced.clone()).await),
        ("signal", h.refused::<DeliverSignal>(json!({ "execution_id": open, "name": "go" })).await),
        ("token", h.refused::<GetWaitpointToken>(of_waitpoint.clone()).await),
        ("close", h.refused::<CloseWaitpoint>(of_waitpoint).await),
        ("flow", h.refused::<CancelFlow>(json!({ "flow_id": flow })).await),
        ("worker", h.refused::<DeregisterWorker>(json!({ "instance_id": "w-b" })).await),
    ] {
        assert_eq!(refused, Code::Forbidden, "{what}");
    }
    let renewed = h.must::<RenewLeases>(json!({ "leases": [fenced.clone()] })).await;
    assert_eq!(serde_json::to_value(&renewed.results[0]).unwrap()["error"]["code"], "forbidden");
    h.must::<PauseLane>(json!({ "lane": "a" })).await;
    // The waitpoint's token is authority enough for any lane.
    let by_token = json!({ "waitpoint_id": waitpoint.waitpoint_id, "token": waitpoint.token, "name": "go" });
    h.must::<SignalWaitpoint>(by_token).await;
    h.caller = Caller::system();
    h.must::<Complete>(fenced).await;
    h.finish().await;
}

async fn ask(h: &Harness, lane: &str, more: Value) -> Value {
    h.submit(json!({ "lane": lane })).await;
    let task = h.claim_with(json!({ "lanes": [lane] })).await.unwrap();
    let mut args = json!({
        "execution_id": task.execution_id, "fence": task.fence, "reason": "approval",
        "condition": { "any": [{ "name": "approve" }] },
    });
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut asked = serde_json::to_value(h.must::<Suspend>(args).await).unwrap();
    asked["execution_id"] = json!(task.execution_id);
    asked
}

#[tokio::test(start_paused = true)]
async fn an_approver_of_one_lane_sees_and_decides_what_is_in_it() {
    let mut h = Harness::start().await;
    let (mine, theirs) = (ask(&h, "a", json!({})).await, ask(&h, "b", json!({})).await);
    h.caller = limited("a", Role::Approver);
    let listed = h.must::<ListApprovals>(json!({})).await.items;
    assert_eq!(listed.iter().map(|one| one.lane.as_str()).collect::<Vec<_>>(), ["a"]);
    let decide = |asked: &Value| json!({ "execution_id": asked["execution_id"], "name": "approve" });
    assert_eq!(h.refused::<DeliverSignal>(decide(&theirs)).await, Code::Forbidden);
    h.must::<DeliverSignal>(decide(&mine)).await;
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_token_of_a_waitpoint_is_good_for_callers_of_every_role_and_namespace() {
    let mut h = Harness::start().await;
    for (caller, delivered_by) in [
        (with_token("ann", "default", Role::Approver), "ann"),
        (with_token("bob", "default", Role::Reader), "bob"),
        (with_token("eve", "other", Role::Operator), "waitpoint_token"),
        (Caller { standing: Standing::Relay, ..with_token("chat", "other", Role::Operator) }, "waitpoint_token"),
        (Caller::stranger(), "waitpoint_token"),
    ] {
        h.caller = Caller::system();
        let asked = ask(&h, "a", json!({})).await;
        h.caller = caller;
        let signal = json!({ "waitpoint_id": asked["waitpoint_id"], "token": asked["token"], "name": "approve" });
        h.must::<SignalWaitpoint>(signal).await;
        h.caller = Caller::system();
        let signals = h.must::<ff_core::op::ListResumeSignals>(json!({ "execution_id": asked["execution_id"] })).await;
        assert_eq!(signals.items[0].delivered_by, delivered_by);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_waitpoint_of_another_namespace_does_not_tell_its_execution() {
    let mut h = Harness::start().await;
    let asked = ask(&h, "a", json!({})).await;
    h.caller = with_token("eve", "other", Role::Operator);
    let args = json!({ "waitpoint_id": asked["waitpoint_id"], "name": "approve" });
    let refused = h.call::<SignalWaitpoint>(args).await.unwrap_err();
    assert_eq!(refused.code, Code::WaitpointNotFound);
    assert!(!serde_json::to_string(&refused).unwrap().contains(asked["execution_id"].as_str().unwrap()));
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_person_counts_once_whatever_a_relay_says_of_the_way() {
    let mut h = Harness::start().await;
    let asked = ask(&h, "a", json!({ "condition": { "count": { "n": 2, "distinct": "sources" } } })).await;
    h.caller = Caller { standing: Standing::Relay, ..with_token("chat", "default", Role::Operator) };
    let vote = |way: &str, who: &str| json!({ "execution_id": asked["execution_id"], "name": "approve", "source_type": way, "source_identity": who });
    let effect = |outcome: ff_core::SignalOutcome| serde_json::to_value(outcome).unwrap()["effect"].clone();
    assert_eq!(effect(h.must::<DeliverSignal>(vote("mail", "ann")).await), "appended_to_waitpoint");
    assert_eq!(effect(h.must::<DeliverSignal>(vote("chat", "ann")).await), "no_op");
    let view = h.must::<GetExecution>(json!({ "execution_id": asked["execution_id"] })).await;
    assert_eq!(view.suspension.unwrap().signed[0].by.as_deref(), Some("ann"));
    h.must::<DeliverSignal>(vote("chat", "bob")).await;
    assert_eq!(h.state(&asked["execution_id"].as_str().unwrap().parse().unwrap()).await, PublicState::Waiting);
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_may_not_operate_sees_no_fences() {
    let mut h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let entries = json!([{ "name": "a", "state": "completed" }]);
    let record = json!({ "execution_id": id, "fence": task.fence, "first_number": 1, "entries": entries });
    h.must::<RecordSteps>(record).await;
    let lease = task.fence.lease_id.to_string();
    let at = json!({ "execution_id": id });
    for (role, shown) in [
        (Role::Reader, false),
        (Role::Submitter, false),
        (Role::Worker, false),
        (Role::Operator, true),
        (Role::Admin, true),
    ] {
        h.caller = with_token("someone", "default", role);
        let seen = JournalSeen::default();
        for (what, text) in [
            ("get", serde_json::to_string(&h.must::<GetExecution>(at.clone()).await)),
            ("attempts", serde_json::to_string(&h.must::<ListAttempts>(at.clone()).await)),
            ("events of it", serde_json::to_string(&h.must::<ListExecutionEvents>(at.clone()).await)),
            ("events", serde_json::to_string(&h.must::<ListEvents>(json!({})).await)),
            ("steps", serde_json::to_string(&h.must::<ListSteps>(at.clone()).await)),
            ("tail", serde_json::to_string(&h.engine.follow_journal(&h.caller, &id, seen, 10, 0).await.unwrap().1)),
        ] {
            assert_eq!(text.unwrap().contains(&lease), shown, "{role} {what}");
        }
    }
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_spawns_children_in_a_batch() {
    let mut h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let child = json!({ "kind": "child", "parent": { "execution_id": id, "fence": task.fence } });
    h.caller = with_token("w", "default", Role::Worker);
    let created = h.must::<CreateExecutions>(json!({ "executions": [child, child] })).await.results;
    assert!(created.iter().all(|one| matches!(one, CreateResult::Created(_))), "{created:?}");
    let mixed = json!({ "executions": [child, { "kind": "solo" }] });
    assert_eq!(h.refused::<CreateExecutions>(mixed).await, Code::Forbidden);
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_page_of_a_journal_begins_behind_any_number() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let past = json!({ "execution_id": id, "after": limits::SCORE_MAX });
    assert!(h.must::<ListSteps>(past).await.items.is_empty());
    let absurd = json!({ "execution_id": id, "after": u64::MAX });
    assert_eq!(h.refused::<ListSteps>(absurd).await, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_build_that_no_worker_can_have_is_refused() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    h.must::<RepinBuild>(json!({ "execution_id": id, "build_id": "v1" })).await;
    let impossible = json!({ "execution_id": id, "build_id": "v2,beta" });
    assert_eq!(h.refused::<RepinBuild>(impossible).await, Code::InvalidCapabilities);
    let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(view.pinned_build.as_deref(), Some("v1"));
    let most: Vec<String> = (0..limits::CAPABILITIES_MAX_TOKENS).map(|number| format!("c{number}")).collect();
    let full = h.submit(json!({ "required_capabilities": most })).await;
    let refused = h.refused::<RepinBuild>(json!({ "execution_id": full, "build_id": "v1" })).await;
    assert_eq!(refused, Code::InvalidCapabilities);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_ticket_ends_with_the_very_token_it_was_made_by() {
    let mut h = Harness::start().await;
    let first = h.must::<CreateToken>(json!({ "name": "ci", "role": "reader" })).await.secret.0;
    h.caller = h.engine.authenticate(&first).await.unwrap();
    let ticket = h.must::<CreateStreamTicket>(json!({})).await.ticket.0;
    h.engine.redeem_ticket(&ticket).await.unwrap();
    h.caller = Caller::system();
    h.must::<RevokeToken>(json!({ "name": "ci" })).await;
    h.pass(1_000).await;
    h.must::<CreateToken>(json!({ "name": "ci", "role": "reader" })).await;
    assert_eq!(h.engine.redeem_ticket(&ticket).await.unwrap_err().code, Code::Unauthenticated, "the name is another's");
    h.caller = Caller { standing: Standing::Token, ..Caller::new("api_token", None, Role::Admin) };
    let ticket = h.must::<CreateStreamTicket>(json!({})).await.ticket.0;
    h.engine.redeem_ticket(&ticket).await.unwrap();
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_approver_is_shown_a_doubt_and_decides_it() {
    let mut h = Harness::start().await;
    h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let question = json!({ "step": { "name": "pay" }, "reason": "in_doubt", "detail": "was it paid?" });
    let doubt = json!({
        "execution_id": task.execution_id, "fence": task.fence, "first_number": 1,
        "entries": [{ "name": "pay", "state": "begun" }], "questions": [question],
    });
    h.must::<Park>(doubt).await;
    h.caller = with_token("ann", "default", Role::Approver);
    let listed = h.must::<ListApprovals>(json!({})).await.items;
    let asked = &listed[0].questions[0];
    assert_eq!((asked.step.name.as_str(), asked.detail.as_deref()), ("pay", Some("was it paid?")));
    let answer = json!({ "execution_id": task.execution_id, "answer": "did_not_happen" });
    h.caller = with_token("reader", "default", Role::Reader);
    assert_eq!(h.refused::<DecideStep>(answer.clone()).await, Code::Forbidden);
    h.caller = with_token("ann", "default", Role::Approver);
    h.must::<DecideStep>(answer).await;
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn one_entry_is_waited_for_once_and_only_a_recorded_one_is_asked_about() {
    let h = Harness::start().await;
    h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let park = |more: Value| {
        let mut args = json!({ "execution_id": task.execution_id, "fence": task.fence, "first_number": 1 });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args
    };
    let twice = json!({
        "sleeps": [{ "step": { "name": "a" }, "sleep_ms": 1_000 }],
        "waitpoints": [{ "step": { "name": "a", "occurrence": 0 } }],
    });
    assert_eq!(h.refused::<Park>(park(twice)).await, Code::Invalid);
    let unknown = json!({ "questions": [{ "step": { "name": "a" }, "reason": "journal_mismatch" }] });
    assert_eq!(h.refused::<Park>(park(unknown)).await, Code::Invalid);
    let apart = json!({
        "sleeps": [{ "step": { "name": "a" }, "sleep_ms": 1_000 }, { "step": { "name": "a", "key": "0" }, "sleep_ms": 1 }],
    });
    h.must::<Park>(park(apart)).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_decision_is_recorded_in_a_full_journal_and_the_function_waits_no_more() {
    let h = Harness::start().await;
    h.submit(json!({})).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 3_600_000 })).await.unwrap();
    let mut next = 1;
    while next < limits::JOURNAL_ENTRIES_MAX {
        let count = 100.min(limits::JOURNAL_ENTRIES_MAX - next);
        let entries: Vec<Value> = (next..next + count)
            .map(|number| json!({ "name": "s", "occurrence": number, "state": "completed" }))
            .collect();
        let record =
            json!({ "execution_id": task.execution_id, "fence": task.fence, "first_number": next, "entries": entries });
        next = h.must::<RecordSteps>(record).await.next_number;
    }
    let wait = |task: &Task, first: u64, entries: Value| {
        json!({
            "execution_id": task.execution_id, "fence": task.fence, "first_number": first, "entries": entries,
            "waitpoints": [{ "step": { "name": "decision", "occurrence": first } }],
        })
    };
    h.must::<Park>(wait(&task, next, json!([{ "name": "last", "state": "completed" }]))).await;
    h.must::<DeliverSignal>(json!({ "execution_id": task.execution_id, "name": "decision", "payload": "yes" })).await;
    let after = json!({ "execution_id": task.execution_id, "after": next });
    let recorded = h.must::<ListSteps>(after).await.items;
    assert_eq!((recorded.len(), recorded[0].name.as_str()), (1, "decision"));
    let resumed = h.claim().await.unwrap();
    assert_eq!(h.refused::<Park>(wait(&resumed, next + 2, json!([]))).await, Code::JournalFull);
    h.must::<Complete>(json!({ "execution_id": resumed.execution_id, "fence": resumed.fence })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_came_before_the_question_must_fit_it() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let waitpoint = h.must::<CreatePendingWaitpoint>(json!({ "execution_id": id, "fence": task.fence })).await;
    let signal = |payload: Value| json!({ "execution_id": id, "waitpoint_id": waitpoint.waitpoint_id, "name": "approve", "payload": payload });
    h.must::<DeliverSignal>(signal(json!("anything"))).await;
    let suspend = json!({
        "execution_id": id, "fence": task.fence, "reason": "approval", "waitpoint_ids": [waitpoint.waitpoint_id],
        "condition": { "any": [{ "name": "approve" }] }, "schema": { "type": "object" },
    });
    let suspended = serde_json::to_value(h.must::<Suspend>(suspend).await).unwrap();
    assert_eq!(suspended["outcome"], "suspended");
    h.must::<DeliverSignal>(signal(json!({}))).await;
    assert_eq!(h.state(&id).await, PublicState::Waiting);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_with_a_key_brings_the_same_leases_in_the_same_order() {
    let mut h = Harness::start().await;
    for priority in [3, 1, 2] {
        h.submit(json!({ "priority": priority })).await;
    }
    h.caller.idempotency_key = Some("once".into());
    let args = json!({ "instance_id": "w-1", "lanes": ["default"], "max_tasks": 3 });
    let first = h.must::<Claim>(args.clone()).await.tasks;
    assert_eq!(first.iter().map(|task| task.priority).collect::<Vec<_>>(), [3, 2, 1]);
    let again = h.must::<Claim>(args).await.tasks;
    let leases = |tasks: &[Task]| tasks.iter().map(|task| task.fence.lease_id).collect::<Vec<_>>();
    assert_eq!(leases(&again), leases(&first));
    h.caller = Caller::system();
    h.finish().await;
}
