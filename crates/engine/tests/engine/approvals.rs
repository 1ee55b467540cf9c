//! Executions that wait for people: questions and their answers, signatures, and roles that may decide.

use crate::support::Harness;
use ff_core::op::view::Task;
use ff_core::op::{
    CancelExecution, Claim, Complete, CreateBudget, CreateExecution, CreatePendingWaitpoint, DeliverSignal,
    GetExecution, GetWaitpointToken, ListApprovals, ListAudit, ListPendingWaitpoints, ListResumeSignals, ReadQuestion,
    ReplayExecution, ResetBudget, SetTags, SignalWaitpoint, Suspend,
};
use ff_core::{Code, PublicState, Role, limits};
use ff_engine::{Caller, Standing};
use serde_json::{Value, json};

/// An execution that asks; its id, waitpoint and token.
struct Asked {
    id: String,
    waitpoint: String,
    token: String,
}

async fn ask(h: &Harness, more: Value) -> Asked {
    h.submit(json!({ "kind": "refund", "tags": { "team": "a" } })).await;
    let task: Task = h.claim().await.expect("what was submitted can be claimed");
    let mut args = json!({
        "execution_id": task.execution_id, "fence": task.fence, "reason": "approval",
        "condition": { "any": [{ "name": "approve" }] },
    });
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = serde_json::to_value(h.must::<Suspend>(args).await).unwrap();
    let text = |field: &str| answer[field].as_str().unwrap().to_owned();
    Asked { id: task.execution_id.to_string(), waitpoint: text("waitpoint_id"), token: text("token") }
}

impl Asked {
    fn signal(&self, name: &str, more: Value) -> Value {
        let mut args = json!({ "execution_id": self.id, "waitpoint_id": self.waitpoint, "name": name });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args
    }
}

fn with_token(name: &str, role: Role) -> Caller {
    Caller { standing: Standing::Token, ..Caller::new(name, Some("default".into()), role) }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_people_is_listed_with_its_question_and_who_signed() {
    let mut h = Harness::start().await;
    let plain = json!({ "reason": "signal", "condition": { "any": [{ "name": "go" }] } });
    ask(&h, plain).await;
    let first = ask(
        &h,
        json!({
            "question": "Refund 40 EUR?", "assignees": ["ann", "bob"], "timeout_ms": 60_000, "requested_by": "desk",
            "schema": { "type": "object" }, "condition": { "count": { "n": 2, "distinct": "sources" } },
        }),
    )
    .await;
    h.pass(10).await;
    let second = ask(&h, json!({})).await;
    h.caller = with_token("ann", Role::Approver);
    h.must::<DeliverSignal>(first.signal("approve", json!({ "payload": {} }))).await;
    let listed = h.must::<ListApprovals>(json!({})).await.items;
    assert_eq!(listed.iter().map(|one| one.execution_id.to_string()).collect::<Vec<_>>(), [&*first.id, &*second.id]);
    let one = &listed[0];
    assert_eq!(
        (one.question.as_deref(), one.kind.as_str(), &one.tags["team"][..]),
        (Some("Refund 40 EUR?"), "refund", "a")
    );
    assert_eq!((one.assignees.len(), one.deadline), (2, Some(one.since + 60_000)));
    assert_eq!(one.schema.as_ref().unwrap().0, r#"{"type":"object"}"#);
    assert_eq!(one.signed.iter().map(|signed| signed.by.as_deref()).collect::<Vec<_>>(), [Some("ann")]);
    let mine = h.must::<ListApprovals>(json!({ "assignee": "bob", "kind": "refund", "tag": "team=a" })).await.items;
    assert_eq!(mine.len(), 1);
    let page = h.must::<ListApprovals>(json!({ "limit": 1 })).await;
    let next = h.must::<ListApprovals>(json!({ "limit": 1, "cursor": page.next_cursor.unwrap() })).await;
    assert_eq!((next.items[0].execution_id.to_string(), next.next_cursor), (second.id.clone(), None));
    h.caller = with_token("bob", Role::Approver);
    h.must::<DeliverSignal>(first.signal("approve", json!({ "payload": {} }))).await;
    assert_eq!(h.must::<ListApprovals>(json!({})).await.items.len(), 1);
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_approver_decides_and_does_nothing_else() {
    let mut h = Harness::start().await;
    let asked = ask(&h, json!({})).await;
    let plain = ask(&h, json!({ "reason": "signal" })).await;
    let other = Caller { namespace: Some("other".into()), ..with_token("eve", Role::Approver) };
    h.caller = with_token("ann", Role::Approver);
    assert_eq!(h.refused::<GetExecution>(json!({ "execution_id": asked.id })).await, Code::Forbidden);
    assert_eq!(h.refused::<CancelExecution>(json!({ "execution_id": asked.id })).await, Code::Forbidden);
    assert_eq!(h.refused::<CreateExecution>(json!({ "kind": "k" })).await, Code::Forbidden);
    let token = json!({ "execution_id": asked.id, "waitpoint_id": asked.waitpoint });
    assert_eq!(h.refused::<GetWaitpointToken>(token).await, Code::Forbidden);
    assert_eq!(h.refused::<DeliverSignal>(asked.signal("go", json!({}))).await, Code::Forbidden);
    assert_eq!(h.refused::<DeliverSignal>(plain.signal("approve", json!({}))).await, Code::Forbidden);
    h.caller = other;
    assert_eq!(h.refused::<DeliverSignal>(asked.signal("approve", json!({}))).await, Code::ExecutionNotFound);
    assert_eq!(h.must::<ListApprovals>(json!({})).await.items.len(), 0);
    h.caller = with_token("ann", Role::Approver);
    let decided = json!({ "execution_id": asked.id, "name": "approve" });
    h.must::<DeliverSignal>(decided).await;
    h.caller = Caller::system();
    assert_eq!(h.state(&asked.id.parse().unwrap()).await, PublicState::Waiting);
    let audit = h.must::<ListAudit>(json!({ "what": "deliver_signal", "who": "ann" })).await.items;
    let ok: Vec<_> = audit.iter().filter(|record| record.outcome == "ok").collect();
    assert_eq!((ok.len(), ok[0].detail.as_str(), ok[0].namespace.as_str()), (1, "approve", "default"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn one_waitpoint_token_is_one_source_whatever_it_calls_itself() {
    let mut h = Harness::start().await;
    let asked = ask(&h, json!({ "condition": { "count": { "n": 2, "distinct": "sources" } } })).await;
    let vote = |who: &str| {
        asked.signal("approve", json!({ "token": asked.token, "source_type": "person", "source_identity": who }))
    };
    h.caller = Caller::stranger();
    let effect = |outcome: ff_core::SignalOutcome| serde_json::to_value(outcome).unwrap()["effect"].clone();
    assert_eq!(effect(h.must::<DeliverSignal>(vote("ann")).await), "appended_to_waitpoint");
    assert_eq!(effect(h.must::<DeliverSignal>(vote("bob")).await), "no_op");
    // An API token whose role may not decide adds nothing to the link.
    h.caller = with_token("reader", Role::Reader);
    assert_eq!(effect(h.must::<DeliverSignal>(vote("reader")).await), "no_op");
    // An authenticated caller is itself, and one that is trusted speaks for the person it names.
    h.caller = with_token("carol", Role::Operator);
    let second = ask_again(&mut h, &asked).await;
    let twice = |who: &str| second.signal("approve", json!({ "source_identity": who }));
    assert_eq!(effect(h.must::<DeliverSignal>(twice("x")).await), "appended_to_waitpoint");
    assert_eq!(effect(h.must::<DeliverSignal>(twice("y")).await), "no_op");
    h.caller = Caller { standing: Standing::Relay, ..with_token("chat", Role::Operator) };
    h.must::<DeliverSignal>(twice("dave")).await;
    h.caller = Caller::system();
    let signals = h.must::<ListResumeSignals>(json!({ "execution_id": second.id })).await.items;
    let by: Vec<_> = signals.iter().map(|signal| (&*signal.delivered_by, &*signal.source_identity)).collect();
    assert_eq!(by, [("carol", "x"), ("chat", "dave")]);
    h.finish().await;
}

/// Another execution with the same question, asked on behalf of the engine's own process.
async fn ask_again(h: &mut Harness, _like: &Asked) -> Asked {
    let caller = std::mem::replace(&mut h.caller, Caller::system());
    let asked = ask(h, json!({ "condition": { "count": { "n": 2, "distinct": "sources" } } })).await;
    h.caller = caller;
    asked
}

#[tokio::test(start_paused = true)]
async fn the_question_of_a_waitpoint_is_read_with_its_token_and_nothing_else() {
    let mut h = Harness::start().await;
    let question = json!({ "question": "Refund 40 EUR?", "assignees": ["ann"], "timeout_ms": 60_000, "schema": { "type": "object" } });
    let asked = ask(&h, question).await;
    let with = |token: &str| json!({ "waitpoint_id": asked.waitpoint, "token": token });
    h.caller = Caller::stranger();
    assert_eq!(h.refused::<ReadQuestion>(with("k1:00")).await, Code::InvalidToken);
    let nowhere = json!({ "waitpoint_id": "0000-0190a0a0-0000-7000-8000-000000000000", "token": asked.token });
    assert_eq!(h.refused::<ReadQuestion>(nowhere).await, Code::InvalidToken);
    let shown = h.must::<ReadQuestion>(with(&asked.token)).await;
    assert!(shown.open && shown.deadline.unwrap() == shown.since.unwrap() + 60_000, "{shown:?}");
    assert_eq!((shown.question.as_deref(), shown.kind.as_str()), (Some("Refund 40 EUR?"), "refund"));
    assert_eq!(
        (shown.assignees.as_slice(), shown.signals.as_slice()),
        (["ann".to_owned()].as_slice(), ["approve".to_owned()].as_slice())
    );
    assert_eq!(shown.schema.unwrap().0, r#"{"type":"object"}"#);
    // Without the token it takes a reader of the namespace.
    h.caller = Caller::new("eve", Some("elsewhere".into()), Role::Admin);
    let bare = || json!({ "waitpoint_id": asked.waitpoint });
    assert_eq!(h.refused::<ReadQuestion>(bare()).await, Code::WaitpointNotFound);
    h.caller = with_token("ann", Role::Reader);
    assert!(h.must::<ReadQuestion>(bare()).await.open);
    h.caller = Caller::stranger();
    h.must::<SignalWaitpoint>(
        json!({ "waitpoint_id": asked.waitpoint, "token": asked.token, "name": "approve", "payload": {} }),
    )
    .await;
    let over = h.must::<ReadQuestion>(with(&asked.token)).await;
    assert_eq!((over.open, over.question), (false, None), "what was asked is no longer shown");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_waitpoint_is_signalled_by_its_id_alone_and_wrong_tokens_reveal_nothing() {
    let mut h = Harness::start().await;
    let asked = ask(&h, json!({})).await;
    h.caller = Caller::stranger();
    let mut nowhere = asked.waitpoint.clone();
    nowhere.replace_range(nowhere.len() - 4.., "0000");
    for (waitpoint, token) in [(&asked.waitpoint, "k1:00"), (&nowhere, &*asked.token)] {
        let wrong = json!({ "waitpoint_id": waitpoint, "token": token, "name": "approve" });
        assert_eq!(h.refused::<SignalWaitpoint>(wrong).await, Code::InvalidToken);
    }
    assert_eq!(
        h.refused::<SignalWaitpoint>(json!({ "waitpoint_id": asked.waitpoint, "name": "approve" })).await,
        Code::Forbidden
    );
    let right = json!({ "waitpoint_id": asked.waitpoint, "token": asked.token, "name": "approve" });
    h.must::<SignalWaitpoint>(right).await;
    h.caller = Caller::system();
    let missing = json!({ "waitpoint_id": nowhere, "name": "approve" });
    assert_eq!(h.refused::<SignalWaitpoint>(missing).await, Code::WaitpointNotFound);
    let audit = h.must::<ListAudit>(json!({ "who": "waitpoint_token" })).await.items;
    assert_eq!(audit.len(), 1, "the attempts of strangers are not on record: {audit:?}");
    assert_eq!((audit[0].what.as_str(), audit[0].detail.as_str()), ("signal_waitpoint", "approve"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_must_fit_and_a_refusal_ends_a_quorum() {
    let h = Harness::start().await;
    let more = json!({
        "condition": { "count": { "n": 3, "distinct": "signals" } },
        "schema": { "type": "object", "required": ["amount"], "properties": { "amount": { "type": "integer" } } },
    });
    let asked = ask(&h, more).await;
    for wrong in [json!({}), json!({ "payload": { "amount": "7" } }), json!({ "payload_base64": "/w==" })] {
        assert_eq!(h.refused::<DeliverSignal>(asked.signal("approve", wrong)).await, Code::Invalid);
    }
    h.must::<DeliverSignal>(asked.signal("approve", json!({ "payload": { "amount": 7 } }))).await;
    let view = h.must::<GetExecution>(json!({ "execution_id": asked.id })).await;
    assert_eq!(view.suspension.unwrap().signed.len(), 1, "what was refused does not count");
    h.must::<DeliverSignal>(asked.signal("reject", json!({}))).await;
    let signals = h.must::<ListResumeSignals>(json!({ "execution_id": asked.id })).await.items;
    assert_eq!(signals.iter().map(|signal| &*signal.name).collect::<Vec<_>>(), ["reject"]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_approver_decides_no_question_that_is_yet_to_come() {
    let mut h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let later = h.must::<CreatePendingWaitpoint>(json!({ "execution_id": id, "fence": task.fence })).await;
    let suspend = json!({
        "execution_id": id, "fence": task.fence, "reason": "approval",
        "condition": { "any": [{ "name": "approve" }] },
    });
    h.must::<Suspend>(suspend).await;
    h.caller = with_token("ann", Role::Approver);
    let early = json!({ "execution_id": id, "waitpoint_id": later.waitpoint_id, "name": "approve" });
    assert_eq!(h.refused::<DeliverSignal>(early).await, Code::Forbidden);
    h.must::<DeliverSignal>(json!({ "execution_id": id, "name": "approve" })).await;
    h.caller = Caller::system();
    assert_eq!(h.state(&id).await, PublicState::Waiting);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_suspends_itself_for_a_budget_is_not_released_by_the_budget() {
    let h = Harness::start().await;
    h.must::<CreateBudget>(json!({ "name": "team", "dimensions": { "tokens": { "hard": 10 } }, "on_hard": "ask" }))
        .await;
    let id = h.submit(json!({ "budget_ids": ["team"] })).await;
    let task = h.claim().await.unwrap();
    let suspend = json!({
        "execution_id": id, "fence": task.fence, "reason": "budget", "question": "May it spend more?",
        "condition": { "any": [{ "name": "approve" }] },
    });
    h.must::<Suspend>(suspend).await;
    let listed = h.must::<ListApprovals>(json!({})).await.items;
    assert_eq!(listed.iter().map(|one| one.execution_id).collect::<Vec<_>>(), [id]);
    h.must::<ResetBudget>(json!({ "name": "team" })).await;
    h.pass(u64::try_from(2 * limits::ASKED_RECHECK_MS).unwrap()).await;
    assert_eq!(h.state(&id).await, PublicState::Suspended, "only its own signal ends it");
    h.must::<DeliverSignal>(json!({ "execution_id": id, "name": "approve" })).await;
    assert_eq!(h.state(&id).await, PublicState::Waiting);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_submitter_may_cancel_signal_replay_and_tag_its_own() {
    let mut h = Harness::start().await;
    let theirs = h.submit(json!({})).await;
    h.caller = with_token("ci", Role::Submitter);
    let own = h.submit(json!({})).await;
    for refused in [
        h.refused::<CancelExecution>(json!({ "execution_id": theirs })).await,
        h.refused::<DeliverSignal>(json!({ "execution_id": theirs, "name": "go" })).await,
        h.refused::<ReplayExecution>(json!({ "execution_id": theirs })).await,
        h.refused::<SetTags>(json!({ "execution_id": theirs, "tags": { "a": "b" } })).await,
    ] {
        assert_eq!(refused, Code::Forbidden);
    }
    h.must::<DeliverSignal>(json!({ "execution_id": own, "name": "go" })).await;
    h.must::<CancelExecution>(json!({ "execution_id": own })).await;
    h.must::<ReplayExecution>(json!({ "execution_id": own })).await;
    h.must::<SetTags>(json!({ "execution_id": own, "tags": { "a": "b" } })).await;
    h.caller = with_token("other", Role::Submitter);
    assert_eq!(h.refused::<CancelExecution>(json!({ "execution_id": own })).await, Code::Forbidden);
    assert_eq!(h.refused::<SetTags>(json!({ "execution_id": own })).await, Code::Forbidden);
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_for_some_lanes_reaches_no_others() {
    let mut h = Harness::start().await;
    h.caller = Caller { lanes: vec!["mine".into()], ..with_token("w", Role::Operator) };
    assert_eq!(h.refused::<CreateExecution>(json!({ "kind": "k" })).await, Code::Forbidden);
    h.must::<CreateExecution>(json!({ "kind": "k", "lane": "mine" })).await;
    let claim = |lane: &str| json!({ "instance_id": "w-1", "lanes": [lane] });
    assert_eq!(h.refused::<Claim>(claim("default")).await, Code::Forbidden);
    assert_eq!(h.must::<Claim>(claim("mine")).await.tasks.len(), 1);
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_leaves_no_waitpoint_of_before_open() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let of = |more: Value| {
        let mut args = json!({ "execution_id": id, "fence": task.fence });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args
    };
    let plain = h.must::<CreatePendingWaitpoint>(of(json!({ "waitpoint_key": "gate" }))).await;
    let of_step = h.must::<CreatePendingWaitpoint>(of(json!({ "step": { "name": "approval" } }))).await;
    h.must::<Complete>(of(json!({}))).await;
    h.must::<ReplayExecution>(json!({ "execution_id": id })).await;
    assert_eq!(h.must::<ListPendingWaitpoints>(json!({ "execution_id": id })).await.items, []);
    for waitpoint in [&plain, &of_step] {
        let question = json!({ "waitpoint_id": waitpoint.waitpoint_id, "token": waitpoint.token.0 });
        assert!(!h.must::<ReadQuestion>(question.clone()).await.open, "{waitpoint:?}");
        let mut signal = question;
        signal["name"] = json!("approve");
        assert_eq!(h.refused::<SignalWaitpoint>(signal).await, Code::WaitpointClosed);
        let token = json!({ "execution_id": id, "waitpoint_id": waitpoint.waitpoint_id });
        assert_eq!(h.refused::<GetWaitpointToken>(token).await, Code::WaitpointClosed);
    }
    h.finish().await;
}
