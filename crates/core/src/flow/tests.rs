//! Flows: their state, their graph, their cancellation and their end.

use uuid::Uuid;

use super::*;

fn new() -> NewFlow {
    NewFlow {
        id: FlowId { partition: 2, uuid: Uuid::from_u128(5) },
        namespace: "default".into(),
        kind: "pipeline".into(),
        tags: Tags::from([("team".into(), "a".into())]),
        request_hash: vec![1, 2, 3].into(),
    }
}

fn flow(members: u32) -> Flow {
    let mut flow = Flow::new(new(), 100).unwrap();
    for _ in 0..members {
        flow.add_member().unwrap();
    }
    flow
}

fn counts(list: &[(PublicState, u64)]) -> MemberCounts {
    list.iter().copied().collect()
}

fn indexes(flow: &Flow) -> Vec<crate::key::IndexName> {
    flow.index_entries(0).into_iter().map(|entry| entry.index).collect()
}

#[test]
fn the_state_follows_the_members() {
    use PublicState as S;
    for (members, state) in [
        (&[][..], FlowState::Open),
        (&[(S::Waiting, 1)], FlowState::Running),
        (&[(S::Delayed, 1), (S::Suspended, 1)], FlowState::Running),
        (&[(S::Active, 1), (S::WaitingChildren, 3)], FlowState::Running),
        (&[(S::Completed, 2), (S::Waiting, 1)], FlowState::Running),
        (&[(S::Failed, 1), (S::Active, 1)], FlowState::Running),
        (&[(S::Suspended, 1), (S::WaitingChildren, 3)], FlowState::Blocked),
        (&[(S::RateLimited, 1), (S::Completed, 1)], FlowState::Blocked),
        (&[(S::Completed, 3)], FlowState::Completed),
        (&[(S::Completed, 2), (S::Cancelled, 1)], FlowState::Completed),
        (&[(S::Completed, 2), (S::Failed, 1), (S::Skipped, 4)], FlowState::Failed),
        (&[(S::Expired, 1)], FlowState::Failed),
        (&[(S::Completed, 1), (S::Cancelled, 1), (S::Skipped, 1)], FlowState::Cancelled),
        (&[(S::Completed, 1), (S::Skipped, 1)], FlowState::Failed),
        (&[(S::Cancelled, 2)], FlowState::Cancelled),
    ] {
        assert_eq!(counts(members).state(), state, "{members:?}");
        assert_eq!(flow(1).state(&counts(members)), state);
    }
}

#[test]
fn a_cancellation_and_an_end_outweigh_the_members() {
    let running = counts(&[(PublicState::Active, 1)]);
    let mut cancelled = flow(1);
    cancelled.cancel(CancelFlowPolicy::FlowOnly, "enough", 200).unwrap();
    assert_eq!(cancelled.state(&running), FlowState::Cancelled);
    let mut ended = flow(1);
    assert!(ended.end(&counts(&[(PublicState::Failed, 1)]), None, 200));
    assert_eq!(ended.state(&MemberCounts::default()), FlowState::Failed);
}

#[test]
fn counts_read_as_names() {
    let json = serde_json::to_value(counts(&[(PublicState::Active, 2), (PublicState::Waiting, 0)])).unwrap();
    assert_eq!(json, serde_json::json!({ "active": 2 }));
}

#[test]
fn the_graph_revision_grows_and_guards() {
    let mut flow = flow(2);
    assert_eq!((flow.node_count, flow.graph_revision), (2, 2));
    assert_eq!(flow.stage_edge(Some(2)).unwrap(), 3);
    let before = flow.clone();
    let error = flow.stage_edge(Some(2)).unwrap_err();
    assert_eq!((error.code, &error.details["graph_revision"]), (Code::StaleGraphRevision, &3.into()));
    assert_eq!(flow, before);
    assert_eq!(flow.stage_edge(None).unwrap(), 4);
}

#[test]
fn a_flow_holds_as_many_members_as_its_limit() {
    let mut flow = flow(0);
    flow.add_members(limits::FLOW_MEMBERS_MAX - 1).unwrap();
    assert_eq!(flow.clone().add_members(2).unwrap_err().code, Code::FlowFull);
    assert_eq!(flow.add_member().unwrap(), limits::FLOW_MEMBERS_MAX);
    let before = flow.clone();
    assert_eq!(flow.add_member().unwrap_err().code, Code::FlowFull);
    assert_eq!(flow.add_members(u32::MAX).unwrap_err().code, Code::FlowFull);
    assert_eq!(flow, before);
}

#[test]
fn a_cancelled_flow_takes_nothing_more_and_leaves_a_mark() {
    let mut flow = flow(3);
    assert!(!indexes(&flow).contains(&index::marks()));
    assert!(flow.cancel(CancelFlowPolicy::CancelAll, "enough", 200).unwrap());
    assert!(indexes(&flow).contains(&index::marks()));
    let before = flow.clone();
    assert!(!flow.cancel(CancelFlowPolicy::FlowOnly, "again", 300).unwrap());
    assert_eq!(flow, before, "the first policy and reason stay");
    assert_eq!(flow.add_member().unwrap_err().code, Code::FlowAlreadyTerminal);
    assert_eq!(flow.stage_edge(None).unwrap_err().code, Code::FlowAlreadyTerminal);
    assert!(flow.finish_cancellation() && !flow.finish_cancellation());
    assert!(!indexes(&flow).contains(&index::marks()));
}

#[test]
fn a_flow_without_members_owes_nobody_a_cancellation() {
    let mut empty = flow(0);
    assert!(empty.cancel(CancelFlowPolicy::CancelAll, "", 200).unwrap());
    assert!(!indexes(&empty).contains(&index::marks()));
    assert!(empty.end(&MemberCounts::default(), Some(10), 200));
    assert_eq!(empty.ended.unwrap().state, FlowState::Cancelled);
}

#[test]
fn a_flow_ends_with_its_last_member_and_once() {
    let mut flow = flow(2);
    assert!(!flow.end(&counts(&[(PublicState::Completed, 1), (PublicState::Active, 1)]), Some(50), 200));
    assert!(!flow.end(&counts(&[(PublicState::Completed, 1)]), Some(50), 200), "a member is missing");
    assert!(flow.end(&counts(&[(PublicState::Completed, 2)]), Some(50), 200));
    let end = flow.ended.clone().unwrap();
    assert_eq!((end.state, end.at, end.retain_until), (FlowState::Completed, 200, Some(250)));
    assert!(flow.index_entries(0).contains(&Due::Timer.entry(&flow.key(), 250)));
    assert!(!flow.end(&counts(&[(PublicState::Failed, 2)]), Some(50), 300));
    assert_eq!(flow.add_member().unwrap_err().code, Code::FlowAlreadyTerminal);
    let error = flow.cancel(CancelFlowPolicy::CancelAll, "late", 300).unwrap_err();
    assert_eq!((error.code, &error.details["state"]), (Code::FlowAlreadyTerminal, &"completed".into()));
    assert!(!self::flow(0).end(&MemberCounts::default(), None, 200), "an open flow without members waits for some");
}

#[test]
fn a_replay_reopens_a_flow_that_has_ended() {
    let mut ended = flow(1);
    ended.end(&counts(&[(PublicState::Failed, 1)]), Some(50), 200);
    assert!(ended.reopen().unwrap());
    assert_eq!(ended, flow(1));
    assert!(!ended.reopen().unwrap());
    ended.cancel(CancelFlowPolicy::CancelAll, "", 300).unwrap();
    assert_eq!(ended.reopen().unwrap_err().code, Code::FlowAlreadyTerminal, "its members are not told yet");
    ended.finish_cancellation();
    assert!(ended.reopen().unwrap() && !ended.is_terminal());
}

#[test]
fn creating_again_is_fine_only_with_the_same_request() {
    let flow = flow(0);
    flow.check_same(&vec![1, 2, 3].into()).unwrap();
    assert_eq!(flow.check_same(&vec![1, 2].into()).unwrap_err().code, Code::IdempotencyConflict);
}

#[test]
fn bad_requests_name_their_field() {
    for (new, field) in [
        (NewFlow { namespace: String::new(), ..new() }, "namespace"),
        (NewFlow { kind: "k".repeat(limits::KIND_MAX_BYTES + 1), ..new() }, "kind"),
        (NewFlow { tags: Tags::from([("Team".into(), String::new())]), ..new() }, "tags"),
    ] {
        assert_eq!(Flow::new(new, 100).unwrap_err().details["field"], field);
    }
    let error = flow(1).cancel(CancelFlowPolicy::CancelAll, &"r".repeat(limits::TEXT_MAX_BYTES + 1), 1).unwrap_err();
    assert_eq!(error.details["field"], "reason");
}

#[test]
fn a_flow_survives_the_store_and_is_listed() {
    let mut flow = flow(2);
    flow.cancel(CancelFlowPolicy::CancelPending, "enough", 200).unwrap();
    flow.end(&counts(&[(PublicState::Cancelled, 2)]), Some(50), 300);
    assert_eq!(Flow::decode(&flow.encode()).unwrap(), flow);
    let listed = Entry { index: index::listing(kind::FLOW, "default"), member: flow.key(), score: 100 };
    assert!(flow.index_entries(0).contains(&listed));
}

#[test]
fn answers_read_as_documented() {
    let scheduled = CancelFlowResult::CancellationScheduled {
        policy: CancelFlowPolicy::CancelAll,
        member_count: 0,
        members: vec![],
    };
    let json = serde_json::to_value(&scheduled).unwrap();
    assert_eq!(
        json,
        serde_json::json!({ "outcome": "cancellation_scheduled", "policy": "cancel_all", "member_count": 0, "members": [] })
    );
    assert_eq!(serde_json::from_value::<CancelFlowResult>(json).unwrap(), scheduled);
    let failure = CancelFailure { execution_id: ExecutionId::default(), error: Error::of(Code::Unavailable) };
    let cancelled =
        CancelFlowResult::Cancelled { policy: CancelFlowPolicy::CancelAll, members: vec![], failed: vec![failure] };
    let text = serde_json::to_string(&cancelled).unwrap();
    assert_eq!(serde_json::from_str::<CancelFlowResult>(&text).unwrap(), cancelled);
}
